//! Sealed files (fs-verity), as programs ask for them by ioctls.

use std::{thread, time::Duration};

use f2fs::{
    engine::Sealing,
    format::{
        FileType,
        superblock::Features,
        verity::{Descriptor, Parameters},
    },
    units::Ino,
};

use super::{Credentials, FileSystem, Result, rest::Call, to_errno};
use crate::{
    CallerMemory, Errno,
    verity::{self, Metadata, MetadataRange, VerityAnswer, VerityRequest},
};

/// Number and length of the waits for the end of writers. The kernel tells of the end of a writer later than close(2).
const WAITS: u32 = 100;
const WAIT: Duration = Duration::from_millis(5);

/// Bytes of a Merkle tree that are read at once.
const TREE_BYTES: usize = 1 << 20;

impl FileSystem {
    /// Returns true if the volume can have sealed files.
    pub fn has_verity(&self) -> bool {
        self.read_lock().is_ok_and(|volume| volume.superblock().features.has(Features::VERITY))
    }

    /// Executes an ioctl of fs-verity on an open file. Sealing a large file ends early if it is interrupted.
    pub fn verity_ioctl(
        &self,
        caller: Credentials,
        ino: Ino,
        request: VerityRequest,
        memory: CallerMemory,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<VerityAnswer> {
        let call = self.begin_call(caller, &|| false)?;
        self.verity_ioctl_within(&call, ino, request, memory, is_interrupted)
    }

    /// Executes an [ioctl of fs-verity](Self::verity_ioctl) within a call.
    pub fn verity_ioctl_within(
        &self,
        call: &Call<'_>,
        ino: Ino,
        request: VerityRequest,
        memory: CallerMemory,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<VerityAnswer> {
        if !self.has_verity() {
            return Err(Errno::OPNOTSUPP);
        }
        match request {
            VerityRequest::Enable(parameters, signature) => {
                self.seal(call, ino, &parameters, &signature, is_interrupted)?;
                Ok(VerityAnswer::default())
            }
            VerityRequest::Measure { room_bytes, by } => {
                let descriptor = self.descriptor(ino)?;
                let algorithm = descriptor.parameters.algorithm;
                verity::give_digest(algorithm, &descriptor.digest(), room_bytes, by, memory)
            }
            VerityRequest::ReadMetadata(range) => self.read_metadata(ino, range, memory),
        }
    }

    /// Seals a file that nobody writes to. Until the end, nobody can.
    fn seal(
        &self,
        call: &Call<'_>,
        ino: Ino,
        parameters: &Parameters,
        signature: &[u8],
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<()> {
        let stat = self.stat(ino)?;
        match stat.kind {
            FileType::Regular => {}
            FileType::Directory => return Err(Errno::ISDIR),
            _ => return Err(Errno::INVAL),
        }
        if !self.may_write(&*self.read_lock()?, call.caller, &stat)? {
            return Err(Errno::ACCESS);
        }
        for _ in 0..WAITS {
            if !self.has_writer(ino) || is_interrupted() {
                break;
            }
            thread::sleep(WAIT);
        }
        let _denial = self.inodes.deny_writers(ino)?;
        self.seal_denied(call, ino, parameters, signature, is_interrupted)
    }

    /// Seals a file whose writers are denied. Others may read while a part is hashed, and change other files between two parts.
    fn seal_denied(
        &self,
        call: &Call<'_>,
        ino: Ino,
        parameters: &Parameters,
        signature: &[u8],
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<()> {
        // The exclusive lock waits for the end of a truncation that began before the denial.
        let volume = call.write_lock()?;
        let mut sealing = volume.begin_sealing(ino, parameters, signature).map_err(to_errno)?;
        drop(volume);
        let part = |sealing: &mut Sealing| loop {
            if is_interrupted() {
                return Err(Errno::INTR);
            }
            if self.read_lock()?.hash_part(sealing).map_err(to_errno)? {
                return call.write_lock();
            }
        };
        loop {
            match part(&mut sealing) {
                Ok(mut volume) => {
                    if volume.begin().seal_part(&mut sealing).map_err(to_errno)?.is_some() {
                        return Ok(());
                    }
                }
                Err(errno) => {
                    // After an error of the upkeep this may fail, too. At rest it does, and the next change of the file
                    // frees the tree. The first error tells more.
                    let given_up = call.lock_to_free();
                    let _ = given_up.map(|mut volume| volume.begin().give_up_sealing(&sealing));
                    return Err(errno);
                }
            }
        }
    }

    fn descriptor(&self, ino: Ino) -> Result<Descriptor> {
        self.read_lock()?.verity(ino).map_err(to_errno)?.ok_or(Errno::NODATA)
    }

    /// Copies metadata of a sealed file to the memory of the caller, at most up to its end.
    fn read_metadata(&self, ino: Ino, range: MetadataRange, memory: CallerMemory) -> Result<VerityAnswer> {
        let descriptor = self.descriptor(ino)?;
        let buffer = CallerMemory { address: range.buffer, ..memory };
        let length = range.length.min(i32::MAX as u64);
        let copied = match range.of {
            Metadata::Descriptor => copy_part(&descriptor.to_bytes(), range.offset, length, buffer)?,
            Metadata::Signature if descriptor.signature.is_empty() => return Err(Errno::NODATA),
            Metadata::Signature => copy_part(&descriptor.signature, range.offset, length, buffer)?,
            Metadata::Tree => {
                let (mut copied, mut bytes) = (0, vec![0; TREE_BYTES.min(length as usize)]);
                while copied < length {
                    let most = bytes.len().min((length - copied) as usize);
                    let read =
                        self.read_lock()?.read_verity_tree(ino, range.offset + copied, &mut bytes[..most]);
                    let count = read.map_err(to_errno)?;
                    if count == 0 {
                        break;
                    }
                    buffer.write(copied, &bytes[..count])?;
                    copied += count as u64;
                }
                copied
            }
        };
        Ok(VerityAnswer { result: copied as i32, bytes: Vec::new() })
    }
}

/// Copies a part of metadata to the memory of the caller. Returns the number of bytes.
fn copy_part(of: &[u8], offset: u64, length: u64, buffer: CallerMemory) -> Result<u64> {
    let start = of.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
    let end = of.len().min(start.saturating_add(length as usize));
    buffer.write(0, &of[start..end])?;
    Ok((end - start) as u64)
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        ops::Range,
        sync::{
            Arc, OnceLock, Weak,
            atomic::{AtomicU64, Ordering},
        },
    };

    use block::{Hooked, MemoryDevice, Verb};
    use f2fs::{
        engine::{Engine, Options},
        format::{acl::Acl, verity::HashAlgorithm},
        units::Time,
    };

    use super::*;
    use crate::{
        GroupIdBit, OpenFor, OpenMode, WriteMode,
        file_system::{
            Change,
            tests::{format, mounted},
        },
        verity::AnswerBy,
    };

    const ROOT_USER: Credentials = Credentials { uid: 0, gid: 0, pid: 0 };
    const NOWHERE: CallerMemory = CallerMemory { pid: 0, address: 0 };

    fn enable() -> VerityRequest {
        let algorithm = HashAlgorithm::Sha256;
        VerityRequest::Enable(
            Parameters { algorithm, log_block_bytes: 12, salt: Vec::new() },
            b"signed".to_vec(),
        )
    }

    fn new_file(fs: &FileSystem, bytes: usize) -> Ino {
        let ino = fs.create(ROOT_USER, fs.root().unwrap(), b"file", 0o100_644, 0, None).unwrap().ino;
        for offset in (0..bytes).step_by(1 << 20) {
            let part = vec![7; (bytes - offset).min(1 << 20)];
            fs.write(ROOT_USER, ino, offset as u64, &part, WriteMode::default()).unwrap();
        }
        ino
    }

    #[test]
    fn a_file_is_sealed_and_measured_and_its_metadata_is_read() {
        let fs = mounted(format(&Arc::new(MemoryDevice::new(128 << 20)), "verity"));
        let ino = new_file(&fs, 600_000);
        let ask = |uid, request| {
            let memory = CallerMemory { pid: std::process::id(), address: 0 };
            fs.verity_ioctl(Credentials { uid, gid: uid, pid: 0 }, ino, request, memory, &|| false)
        };
        let measure = || VerityRequest::Measure { room_bytes: 32, by: AnswerBy::Kernel };
        assert_eq!(ask(0, measure()), Err(Errno::NODATA));
        assert_eq!(ask(1000, enable()), Err(Errno::ACCESS));
        // A list that denies this user what the mode grants to others.
        let denied = Acl::from_text("u::rw,u:1000:r,g::rw,m::rw,o::rw").unwrap().to_system();
        fs.set_xattr(
            ROOT_USER,
            ino,
            b"system.posix_acl_access",
            &denied,
            Default::default(),
            GroupIdBit::Kept,
        )
        .unwrap();
        assert_eq!(ask(1000, enable()), Err(Errno::ACCESS));
        let root = fs.root().unwrap();
        assert_eq!(fs.verity_ioctl(ROOT_USER, root, enable(), NOWHERE, &|| false), Err(Errno::ISDIR));
        ask(0, enable()).unwrap();
        assert_eq!(ask(0, enable()), Err(Errno::EXIST));
        let opened = fs.open(ROOT_USER, ino, OpenMode { open_for: OpenFor::Writing, ..OpenMode::default() });
        assert_eq!((opened, fs.has_writer(ino)), (Err(Errno::PERM), false));
        let descriptor = fs.descriptor(ino).unwrap();
        let told = ask(1000, measure()).unwrap().bytes;
        assert_eq!((told.len(), &told[4..]), (36, &descriptor.digest()[..]));
        let read = |of, offset, length| {
            let found = vec![0; 1 << 20];
            let range = MetadataRange { of, offset, length, buffer: found.as_ptr() as u64 };
            let count = ask(0, VerityRequest::ReadMetadata(range)).unwrap().result;
            found[..count as usize].to_vec()
        };
        assert_eq!(read(Metadata::Descriptor, 0, 1 << 20), descriptor.to_bytes());
        assert_eq!(read(Metadata::Signature, 2, 3), b"gne");
        let tree = read(Metadata::Tree, 0, 1 << 20);
        // The highest block, and two below it.
        assert_eq!((tree.len(), descriptor.parameters.hash(&tree[..4096])), (3 * 4096, descriptor.root_hash));
        assert_eq!(read(Metadata::Tree, 8192, 10), tree[8192..8202]);
        assert!(read(Metadata::Tree, 3 * 4096, 10).is_empty());
        fs.unmount().unwrap();
    }

    #[test]
    fn a_file_with_writers_is_not_sealed_and_a_sealing_denies_them_and_can_be_interrupted() {
        let fs = mounted(format(&Arc::new(MemoryDevice::new(256 << 20)), "verity"));
        let ino = new_file(&fs, 40 << 20);
        let writing = OpenMode { open_for: OpenFor::Writing, ..OpenMode::default() };
        fs.open(ROOT_USER, ino, writing).unwrap();
        let ask = |is_interrupted: &dyn Fn() -> bool| {
            fs.verity_ioctl(ROOT_USER, ino, enable(), NOWHERE, is_interrupted)
        };
        // FALLOC_FL_KEEP_SIZE.
        fs.allocate(ROOT_USER, ino, 0, 48 << 20, 1).unwrap();
        let reserved = fs.stat(ino).unwrap().sectors;
        assert_eq!(ask(&|| false), Err(Errno::TXTBSY));
        assert_eq!(fs.stat(ino).unwrap().sectors, reserved, "no tree was begun, so nothing is cut off");
        fs.close(ino, OpenFor::Writing);
        // Before the first part.
        assert_eq!(ask(&|| true), Err(Errno::INTR));
        assert_eq!(fs.stat(ino).unwrap().sectors, reserved);
        // Between two parts, others change the volume, but not this file.
        let calls = Cell::new(0);
        let others = || {
            calls.set(calls.get() + 1);
            assert!(fs.volume.is_open_to_readers() && !fs.volume.has_writers());
            if calls.get() == 3 {
                let truncate = Change { size: Some(5), ..Change::default() };
                assert_eq!(fs.open(ROOT_USER, ino, writing), Err(Errno::TXTBSY));
                assert_eq!(fs.change(ROOT_USER, ino, &truncate), Err(Errno::TXTBSY));
                assert_eq!(ask(&|| false), Err(Errno::BUSY));
                fs.create(ROOT_USER, fs.root().unwrap(), b"other", 0o100_644, 0, None).unwrap();
            }
            calls.get() > 5
        };
        assert_eq!(ask(&others), Err(Errno::INTR));
        assert!(
            fs.stat(ino).unwrap().sectors < reserved,
            "the tree is freed, and what was reserved in its place"
        );
        assert_eq!(fs.descriptor(ino), Err(Errno::NODATA));
        fs.write(ROOT_USER, ino, 0, b"x", WriteMode::default()).unwrap();
        fs.open(ROOT_USER, ino, writing).unwrap();
        fs.close(ino, OpenFor::Writing);
        ask(&|| false).unwrap();
        assert_eq!(fs.open(ROOT_USER, ino, writing), Err(Errno::PERM));
        assert!(!mounted(format(&Arc::new(MemoryDevice::new(64 << 20)), "")).has_verity());
        fs.unmount().unwrap();
    }

    #[test]
    fn others_may_read_while_a_part_of_a_sealing_is_hashed() {
        const BYTES: u64 = 10 << 20;
        let device = Arc::new(MemoryDevice::new(128 << 20));
        drop(format(&device, "verity"));
        let (watched, hashed) = (Arc::new(OnceLock::<Weak<FileSystem>>::new()), Arc::new(AtomicU64::new(0)));
        let (watch, count) = (watched.clone(), hashed.clone());
        let device = Hooked::new(device, move |verb, range: Range<u64>| {
            // Content is read in long requests.
            if let Some(fs) = watch.get().and_then(Weak::upgrade).filter(|_| range.end - range.start > 65_536)
            {
                assert!(verb != Verb::Read || fs.volume.is_open_to_readers(), "others have to wait");
                count.fetch_add(
                    if verb == Verb::Read { range.end - range.start } else { 0 },
                    Ordering::Relaxed,
                );
            }
            Ok(())
        });
        let volume = Engine::open(Arc::new(device), Options::new(Time::default)).unwrap();
        let fs = Arc::new(mounted(volume));
        let ino = new_file(&fs, BYTES as usize);
        fs.sync().unwrap();
        watched.set(Arc::downgrade(&fs)).unwrap();
        fs.verity_ioctl(ROOT_USER, ino, enable(), NOWHERE, &|| false).unwrap();
        assert!(hashed.load(Ordering::Relaxed) > BYTES * 3 / 4, "{hashed:?} bytes");
        fs.unmount().unwrap();
    }
}
