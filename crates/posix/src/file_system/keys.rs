//! Keys of a mounted volume, and policies of encrypted directories, as programs ask for them by ioctls.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use f2fs::{EncryptionPolicy, Key, KeyName, engine::Engine, format::superblock::Features, units::Ino};

use super::{Caller, FileSystem, Result, to_errno};
use crate::{
    CallerMemory, Errno,
    caller::Capability,
    encryption::{self, Claims, EncryptionRequest, KeyStatus, Removal},
};

/// The users who have added each key. A key that the mount was given belongs to nobody.
#[derive(Default)]
pub(super) struct KeyUsers(Mutex<BTreeMap<KeyName, BTreeSet<u32>>>);

impl KeyUsers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<KeyName, BTreeSet<u32>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileSystem {
    /// Fails unless the memory of a caller may be accessed for an ioctl. The caller decides how long an access takes: the
    /// memory may be mapped from a file system that never answers. So only the user of this process and administrators
    /// may have it accessed, who can stop this file system anyway.
    ///
    /// # Errors
    /// `EOPNOTSUPP` without encryption on the volume, `EACCES` for another user.
    pub fn require_memory_access(&self, caller: Caller) -> Result<()> {
        if !self.has_encryption() {
            return Err(Errno::OPNOTSUPP);
        }
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
        caller: Caller,
        ino: Ino,
        request: EncryptionRequest,
        memory: CallerMemory,
    ) -> Result<Vec<u8>> {
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
                self.set_policy(caller, ino, &policy)?;
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
    fn add_key(&self, caller: Caller, key: Key, name: KeyName) -> Result<()> {
        require_rights_over(caller, &name)?;
        let mut volume = self.lock_without_upkeep()?;
        if !volume.has_key(&name) {
            volume.add_key(key);
        }
        self.key_users.lock().entry(name).or_default().insert(caller.uid);
        Ok(())
    }

    /// Gives up claims to a key, and removes it with the last one. While files under it are open for writing, it stays: the
    /// kernel may have data of them that is to be encrypted.
    fn remove_key(&self, caller: Caller, name: KeyName, claims: Claims) -> Result<Removal> {
        require_rights_over(caller, &name)?;
        let is_admin = caller.has(Capability::SysAdmin);
        if claims == Claims::All && !is_admin {
            return Err(Errno::ACCESS);
        }
        let mut volume = self.lock_without_upkeep()?;
        if !volume.has_key(&name) {
            return Err(Errno::NOKEY);
        }
        let mut all = self.key_users.lock();
        let users = all.entry(name).or_default();
        if claims == Claims::Own {
            if !users.contains(&caller.uid) && !is_admin {
                return Err(Errno::NOKEY);
            }
            if users.iter().any(|user| *user != caller.uid) {
                users.remove(&caller.uid);
                return Ok(Removal::OtherUsers);
            }
        }
        if self.open_for_writing().into_iter().any(|ino| is_under(&volume, ino, &name)) {
            return Ok(Removal::FilesBusy);
        }
        volume.begin().remove_key(&name).map_err(to_errno)?;
        all.remove(&name);
        Ok(Removal::Done)
    }

    fn key_status(&self, caller: Caller, name: &KeyName) -> Result<KeyStatus> {
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
    fn set_policy(&self, caller: Caller, dir: Ino, policy: &EncryptionPolicy) -> Result<()> {
        let is_privileged = caller.has(Capability::Fowner);
        if caller.uid != self.stat(dir)?.uid && !is_privileged {
            return Err(Errno::ACCESS);
        }
        let name = policy.key();
        let has_added = self.key_users.lock().get(&name).is_some_and(|users| users.contains(&caller.uid));
        if matches!(name, KeyName::Identifier(_)) && !has_added && !is_privileged {
            return Err(Errno::NOKEY);
        }
        self.write_lock_for(caller)?.begin().set_encryption_policy(dir, policy).map_err(to_errno)
    }

    fn policy(&self, ino: Ino) -> Result<EncryptionPolicy> {
        self.read_lock()?.encryption_policy(ino).map_err(to_errno)?.ok_or(Errno::NODATA)
    }
}

/// Only an administrator handles keys of policies of version 1: nothing ties their names to them, so that a user could put
/// a wrong key in the place of another's.
fn require_rights_over(caller: Caller, name: &KeyName) -> Result<()> {
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
    use std::sync::Arc;

    use block::MemoryDevice;

    use super::*;
    use crate::file_system::tests::{format, mounted};

    #[test]
    fn only_administrators_and_the_user_of_the_process_have_their_memory_accessed() {
        let on = |features| mounted(format(&Arc::new(MemoryDevice::new(64 << 20)), features));
        let own = rustix::process::geteuid().as_raw();
        let caller = |uid| Caller { uid, gid: uid, pid: 0 };
        let fs = on("encrypt");
        assert_eq!(fs.require_memory_access(caller(own)), Ok(()));
        assert_eq!(fs.require_memory_access(caller(0)), Ok(()));
        assert_eq!(fs.require_memory_access(caller(own + 1000)), Err(Errno::ACCESS));
        assert_eq!(on("").require_memory_access(caller(own)), Err(Errno::OPNOTSUPP));
    }
}
