//! Keys of a mounted volume, and policies of encrypted directories, as programs ask for them by ioctls.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use f2fs::{EncryptionPolicy, Key, KeyName, engine::Engine, format::superblock::Features, units::Ino};

use super::{Credentials, FileSystem, Result, rest::Call, to_errno};
use crate::{
    CallerMemory, Errno,
    credentials::Capability,
    encryption::{self, Claims, EncryptionRequest, KeyStatus, Removal},
};

/// Maximum number of keys that a user without rights has added (Linux, `/proc/sys/kernel/keys/maxkeys`).
const KEYS_OF_USER_MAX: usize = 200;

/// The users who have added each key. A key that the mount was given belongs to nobody.
#[derive(Default)]
pub(super) struct KeyUsers(Mutex<BTreeMap<KeyName, BTreeSet<u32>>>);

impl KeyUsers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<KeyName, BTreeSet<u32>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Claims of other users to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OtherClaims {
    None,
    Some,
}

impl FileSystem {
    /// Fails unless the memory of a caller may be accessed for an ioctl. The caller decides how long an access takes: the
    /// memory may be mapped from a file system that never answers. So only the user of this process and administrators
    /// may have it accessed, who can stop this file system anyway.
    ///
    /// # Errors
    /// `EACCES` for another user.
    pub fn require_memory_access(&self, caller: Credentials) -> Result<()> {
        let is_own = caller.uid == rustix::process::geteuid().as_raw();
        if is_own || caller.has(Capability::SysAdmin) { Ok(()) } else { Err(Errno::ACCESS) }
    }

    /// Returns true if the volume can have encrypted files.
    pub fn has_encryption(&self) -> bool {
        self.read_lock().is_ok_and(|volume| volume.superblock().features.has(Features::ENCRYPT))
    }

    /// Executes an ioctl of fscrypt on an open file.
    pub fn encryption_ioctl(
        &self,
        caller: Credentials,
        ino: Ino,
        request: EncryptionRequest,
        memory: CallerMemory,
    ) -> Result<Vec<u8>> {
        self.encryption_ioctl_within(&self.begin_call(caller, &|| false)?, ino, request, memory)
    }

    /// Executes an [ioctl of fscrypt](Self::encryption_ioctl) within a call.
    pub fn encryption_ioctl_within(
        &self,
        call: &Call<'_>,
        ino: Ino,
        request: EncryptionRequest,
        memory: CallerMemory,
    ) -> Result<Vec<u8>> {
        let caller = call.caller;
        if !self.read_lock()?.superblock().features.has(Features::ENCRYPT) {
            return Err(Errno::OPNOTSUPP);
        }
        match request {
            EncryptionRequest::AddKey(key, name) => {
                self.add_key(caller, *key, name)?;
                Ok(encryption::added(&name))
            }
            EncryptionRequest::RemoveKey(name, claims) => {
                let removal = self.remove_key(caller, name, claims)?;
                Ok(encryption::removed(&name, removal))
            }
            EncryptionRequest::KeyStatus(name) => {
                let status = self.key_status(caller, &name)?;
                Ok(encryption::status(&name, status))
            }
            EncryptionRequest::SetPolicy(policy) => {
                self.set_policy(call, ino, &policy)?;
                Ok(Vec::new())
            }
            EncryptionRequest::GetPolicy => encryption::give_policy(&self.policy(ino)?, memory),
            EncryptionRequest::GetPolicyEx(room) => {
                encryption::give_policy_ex(&self.policy(ino)?, room, memory)
            }
            EncryptionRequest::GetNonce => {
                let nonce = self.read_lock()?.encryption_nonce(ino).map_err(to_errno)?;
                Ok(nonce.ok_or(Errno::NODATA)?.to_vec())
            }
        }
    }

    /// Adds a key, which is then at hand for all users; the permissions of files still hold.
    fn add_key(&self, caller: Credentials, key: Key, name: KeyName) -> Result<()> {
        require_rights_over(caller, &name)?;
        let mut volume = self.lock_without_upkeep()?;
        let mut all = self.key_users.lock();
        let own = all.values().filter(|users| users.contains(&caller.uid)).count();
        let is_new = !all.get(&name).is_some_and(|users| users.contains(&caller.uid));
        if is_new && own >= KEYS_OF_USER_MAX && !caller.has(Capability::SysAdmin) {
            return Err(Errno::DQUOT);
        }
        if !volume.has_key(&name) {
            volume.add_key(key);
        }
        all.entry(name).or_default().insert(caller.uid);
        Ok(())
    }

    /// Gives up claims to a key, and removes it with the last one. While files under it are open for writing, it stays: the
    /// kernel may have data of them that is to be encrypted. So it does while files under it are sealed.
    fn remove_key(&self, caller: Credentials, name: KeyName, claims: Claims) -> Result<Removal> {
        require_rights_over(caller, &name)?;
        if claims == Claims::All && !caller.has(Capability::SysAdmin) {
            return Err(Errno::ACCESS);
        }
        let mut volume = self.lock_without_upkeep()?;
        if !volume.has_key(&name) {
            return Err(Errno::NOKEY);
        }
        if claims == Claims::Own && self.give_up_claim(caller, &name)? == OtherClaims::Some {
            return Ok(Removal::OtherUsers);
        }
        if self.is_key_busy(&volume, &name) {
            return Ok(Removal::FilesBusy);
        }
        // Readers have their turns meanwhile, and so have those that open files for writing.
        let pending = volume.begin_write_encrypted();
        self.settle(&mut volume, pending).map_err(to_errno)?;
        if self.is_key_busy(&volume, &name) {
            return Ok(Removal::FilesBusy);
        }
        volume.begin().remove_key(&name).map_err(to_errno)?;
        self.key_users.lock().remove(&name);
        Ok(Removal::Done)
    }

    /// Returns true if a file under a key is open for writing, or is being sealed.
    fn is_key_busy(&self, volume: &Engine, name: &KeyName) -> bool {
        self.inodes.with_changes().into_iter().any(|ino| is_under(volume, ino, name))
    }

    /// Drops the claim of the caller to a key, if other users have claims. The last claim is dropped with the key.
    fn give_up_claim(&self, caller: Credentials, name: &KeyName) -> Result<OtherClaims> {
        let mut all = self.key_users.lock();
        let users = all.entry(*name).or_default();
        if !users.contains(&caller.uid) && !caller.has(Capability::SysAdmin) {
            return Err(Errno::NOKEY);
        }
        if users.iter().all(|user| *user == caller.uid) {
            return Ok(OtherClaims::None);
        }
        users.remove(&caller.uid);
        Ok(OtherClaims::Some)
    }

    fn key_status(&self, caller: Credentials, name: &KeyName) -> Result<KeyStatus> {
        let is_present = self.read_lock()?.has_key(name);
        let all = self.key_users.lock();
        let users = all.get(name).filter(|_| is_present);
        Ok(KeyStatus {
            is_present,
            is_own: users.is_some_and(|users| users.contains(&caller.uid)),
            users: users.map_or(0, |users| users.len() as u32),
        })
    }

    /// Makes an empty directory of the caller encrypted. Without the rights of its owner over all files, the caller must
    /// have added the key itself: otherwise it could not read its own files.
    fn set_policy(&self, call: &Call<'_>, dir: Ino, policy: &EncryptionPolicy) -> Result<()> {
        let caller = call.caller;
        let is_privileged = caller.has(Capability::Fowner);
        if caller.uid != self.stat(dir)?.uid && !is_privileged {
            return Err(Errno::ACCESS);
        }
        let name = policy.key();
        let has_added = self.key_users.lock().get(&name).is_some_and(|users| users.contains(&caller.uid));
        if matches!(name, KeyName::Identifier(_)) && !has_added && !is_privileged {
            return Err(Errno::NOKEY);
        }
        call.write_lock()?.begin().set_encryption_policy(dir, policy).map_err(to_errno)
    }

    fn policy(&self, ino: Ino) -> Result<EncryptionPolicy> {
        self.read_lock()?.encryption_policy(ino).map_err(to_errno)?.ok_or(Errno::NODATA)
    }
}

/// Only an administrator handles keys of policies of version 1: nothing ties their names to them, so that a user could put
/// a wrong key in the place of another's.
fn require_rights_over(caller: Credentials, name: &KeyName) -> Result<()> {
    match name {
        KeyName::Descriptor(_) if !caller.has(Capability::SysAdmin) => Err(Errno::ACCESS),
        _ => Ok(()),
    }
}

fn is_under(volume: &Engine, ino: Ino, name: &KeyName) -> bool {
    // A file whose policy cannot be read counts as one under the key.
    volume.encryption_policy(ino).map_or(true, |policy| policy.is_some_and(|policy| policy.key() == *name))
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, Mutex, OnceLock, Weak},
        thread,
        time::Duration,
    };

    use block::{Device, Hooked, MemoryDevice, Verb};
    use f2fs::{
        NONCE_SEED_BYTES, Nonces,
        engine::{NewNode, Options, SyncScope},
        units::Time,
    };

    use super::*;
    use crate::{
        OpenFor, OpenMode,
        file_system::tests::{format, mounted},
    };

    const WRITING: OpenMode = OpenMode {
        open_for: OpenFor::Writing,
        only_reads: false,
        keeps_atime: false,
        append: false,
        truncate: false,
        drops_privilege: false,
    };

    fn caller(uid: u32) -> Credentials {
        Credentials { uid, gid: uid, pid: 0 }
    }

    fn key() -> Key {
        Key::new(&[0x5A; 64]).unwrap()
    }

    fn identifier(key: &Key) -> KeyName {
        KeyName::Identifier(key.identifier())
    }

    /// A mounted volume that was given a key, with a file under it.
    fn encrypted() -> (FileSystem, Ino) {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        format(&device, "encrypt").unmount().unwrap();
        encrypted_on(device)
    }

    fn encrypted_on(device: Arc<dyn Device>) -> (FileSystem, Ino) {
        let nonces = Some(Nonces::new([9; NONCE_SEED_BYTES]));
        let mut volume = Engine::open(device, Options { nonces, ..Options::new(Time::default) }).unwrap();
        volume.add_key(key());
        let root = volume.superblock().root_ino;
        let admin = f2fs::engine::Caller::ADMIN;
        let dir = volume.begin(admin).create(root, b"secret", &NewNode::new(0o040_755)).unwrap();
        volume.begin(admin).set_encryption_policy(dir, &EncryptionPolicy::of_key(&key())).unwrap();
        let ino = volume.begin(admin).create(dir, b"file", &NewNode::new(0o100_644)).unwrap();
        (mounted(volume), ino)
    }

    #[test]
    fn only_administrators_and_the_user_of_the_process_have_their_memory_accessed() {
        let on = |features| mounted(format(&Arc::new(MemoryDevice::new(64 << 20)), features));
        let own = rustix::process::geteuid().as_raw();
        let fs = on("encrypt");
        assert!(fs.has_encryption() && !on("").has_encryption());
        assert_eq!(fs.require_memory_access(caller(own)), Ok(()));
        assert_eq!(fs.require_memory_access(caller(0)), Ok(()));
        assert_eq!(fs.require_memory_access(caller(own + 1000)), Err(Errno::ACCESS));
    }

    /// A writer was counted after its open was checked, so a key could be removed in between.
    #[test]
    fn a_file_that_is_being_opened_for_writing_keeps_its_key() {
        let (fs, ino) = encrypted();
        let name = identifier(&key());
        let volume = fs.lock_without_upkeep().unwrap();
        thread::scope(|scope| {
            let opening = scope.spawn(|| fs.open(caller(0), ino, WRITING));
            // It is counted, and waits to be checked.
            let is_counted = (0..10_000).any(|_| {
                thread::sleep(Duration::from_millis(1));
                fs.has_writer(ino)
            });
            drop(volume);
            opening.join().unwrap().unwrap();
            assert!(is_counted);
        });
        assert_eq!(fs.remove_key(caller(0), name, Claims::All), Ok(Removal::FilesBusy));
        fs.close(ino, OpenFor::Writing);
        let sealing = fs.inodes.deny_writers(ino).unwrap();
        assert_eq!(fs.remove_key(caller(0), name, Claims::All), Ok(Removal::FilesBusy));
        drop(sealing);
        assert_eq!(fs.remove_key(caller(0), name, Claims::All), Ok(Removal::Done));
        assert_eq!(fs.open(caller(0), ino, WRITING), Err(Errno::NOKEY));
        assert!(!fs.has_writer(ino));
    }

    /// Files were looked for only before the pages were written, and a file could be opened between two slices of them: the
    /// key was gone, and what its program wrote was lost.
    #[test]
    fn a_file_that_is_opened_while_pages_are_written_keeps_its_key() {
        // More than a log gathers, so that some are written before the last slice.
        const PAGES: u64 = 3000;
        let opening = Arc::new(OnceLock::<(Weak<FileSystem>, Ino)>::new());
        let opener = Arc::new(Mutex::new(None));
        let (plan, handle) = (opening.clone(), opener.clone());
        let device = Arc::new(MemoryDevice::new(64 << 20));
        format(&device, "encrypt").unmount().unwrap();
        let hooked = Hooked::new(device, move |verb, _| {
            let Some((fs, ino)) = plan.get().and_then(|(fs, ino)| Some((fs.upgrade()?, *ino))) else {
                return Ok(());
            };
            let mut handle = handle.lock().unwrap();
            if verb == Verb::Write && handle.is_none() {
                let opened = fs.clone();
                *handle = Some(thread::spawn(move || opened.open(caller(0), ino, WRITING)));
                while !fs.has_writer(ino) {
                    thread::yield_now();
                }
            }
            Ok(())
        });
        let (fs, ino) = encrypted_on(Arc::new(hooked));
        let content = vec![1; (PAGES * 4096) as usize];
        fs.write(caller(0), ino, 0, &content, crate::WriteMode::default()).unwrap();
        fs.fsync(ino, SyncScope::Everything).unwrap();
        for page in 0..PAGES {
            fs.write(caller(0), ino, page * 4096, b"new", crate::WriteMode::default()).unwrap();
        }
        let fs = Arc::new(fs);
        opening.set((Arc::downgrade(&fs), ino)).unwrap();
        assert_eq!(fs.remove_key(caller(0), identifier(&key()), Claims::All), Ok(Removal::FilesBusy));
        let opened = opener.lock().unwrap().take().expect("a page was written").join().unwrap();
        opened.unwrap();
        fs.write(caller(0), ino, 0, b"later", crate::WriteMode::default()).unwrap();
        fs.fsync(ino, SyncScope::Everything).unwrap();
    }

    /// The file was made first and opened later: without the key, its name was there and creat(2) failed.
    #[test]
    fn a_file_is_made_and_opened_with_its_key_or_not_at_all() {
        let (fs, ino) = encrypted();
        let name = identifier(&key());
        let dir = fs.lookup(fs.root().unwrap(), b"secret").unwrap().ino;
        let make = |name: &[u8]| fs.create_open(caller(0), (dir, name), 0o100_644, 0, OpenFor::Writing);
        let made = make(b"new").unwrap().ino;
        assert_eq!(fs.remove_key(caller(0), name, Claims::All), Ok(Removal::FilesBusy));
        fs.write(caller(0), made, 0, b"x", crate::WriteMode::default()).unwrap();
        fs.close(made, OpenFor::Writing);
        assert_eq!(fs.remove_key(caller(0), name, Claims::All), Ok(Removal::Done));
        let names = || fs.read_lock().unwrap().entries(dir, 0).unwrap().count();
        let before = names();
        assert_eq!(make(b"other").map(drop), Err(Errno::NOKEY));
        let nameless = fs.create_nameless(caller(0), dir, 0o100_644, 0, OpenFor::Writing);
        assert_eq!(nameless.map(drop), Err(Errno::NOKEY));
        assert_eq!((names(), fs.open_for_writing()), (before, Vec::new()));
        assert!(fs.read_lock().unwrap().orphans().is_empty());
        assert!(fs.stat(ino).is_ok());
        fs.unmount().unwrap();
    }

    #[test]
    fn a_key_stays_under_its_other_name() {
        let (fs, _) = encrypted();
        let (one, other) = (identifier(&key()), KeyName::Descriptor(key().descriptor()));
        let is_present = |name| fs.key_status(caller(0), &name).unwrap().is_present;
        assert!(is_present(one) && is_present(other));
        assert_eq!(fs.remove_key(caller(0), one, Claims::All), Ok(Removal::Done));
        assert!(!is_present(one) && is_present(other));
        // A key that a program adds by one name is not at hand under the other.
        assert_eq!(fs.remove_key(caller(0), other, Claims::All), Ok(Removal::Done));
        fs.add_key(caller(1000), key().used_by(&one), one).unwrap();
        assert!(is_present(one) && !is_present(other));
    }

    #[test]
    fn a_user_without_rights_has_a_limited_number_of_keys() {
        let (fs, _) = encrypted();
        let add = |uid, n: usize| {
            let key = Key::new(&[&n.to_le_bytes()[..], &[7; 32]].concat()).unwrap();
            let name = identifier(&key);
            fs.add_key(caller(uid), key, name).map(|()| name)
        };
        let names: Vec<KeyName> = (0..KEYS_OF_USER_MAX).map(|n| add(1000, n).unwrap()).collect();
        assert_eq!(add(1000, KEYS_OF_USER_MAX), Err(Errno::DQUOT));
        add(1000, 0).expect("it is one of them");
        add(2000, KEYS_OF_USER_MAX).expect("another user");
        add(0, KEYS_OF_USER_MAX + 1).expect("an administrator");
        assert_eq!(fs.remove_key(caller(1000), names[3], Claims::Own), Ok(Removal::Done));
        add(1000, KEYS_OF_USER_MAX).expect("one was removed");
    }
}
