//! A device that checks, for tests, that readers can enter while it works.

use std::{
    io,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
};

use block::{Device, Geometry, MemoryDevice, Verb};
use f2fs::{
    engine::{Engine, NewNode, Options},
    mkfs::{self, DeviceContent, DeviceSize, NewVolume, Plan},
    units::{Ino, Time},
};

use super::{Credentials, FileSystem, OpenMode, Settings};

/// Size of the volume in bytes.
pub(super) const BYTES: u64 = 128 << 20;
/// The calling user.
pub(super) const ROOT_USER: Credentials = Credentials { uid: 0, gid: 0, pid: 0 };

/// A device that, during each flush and discard, checks whether the volume is open to readers, and if so
/// opens and reads a file of the volume on it.
pub(super) struct Watched {
    inner: MemoryDevice,
    fs: OnceLock<Weak<FileSystem>>,
    seen: Mutex<Vec<(Verb, bool)>>,
    /// Least access time in seconds that readers may see.
    pub(super) least_atime: AtomicI64,
    /// True if the next discard fails.
    pub(super) fails: AtomicBool,
}

impl Watched {
    fn watch(&self, verb: Verb) {
        let Some(fs) = self.fs.get().and_then(Weak::upgrade) else { return };
        let is_open = fs.volume.is_open_to_readers();
        if is_open {
            let ino = fs.lookup(fs.root().unwrap(), b"other").unwrap().ino;
            fs.open(ROOT_USER, ino, OpenMode { only_reads: true, ..OpenMode::default() }).unwrap();
            assert!(fs.stat(ino).unwrap().atime.seconds >= self.least_atime.load(Ordering::Relaxed));
            let mut content = [0; 8];
            assert_eq!(fs.read(ino, 0, &mut content), Ok(5));
            assert_eq!(&content[..5], b"other");
        }
        self.seen.lock().unwrap().push((verb, is_open));
    }

    /// Returns the number of flushes and discards since the last call, after checking that readers could
    /// enter during all of them.
    pub(super) fn take(&self) -> (usize, usize) {
        let seen = std::mem::take(&mut *self.seen.lock().unwrap());
        assert!(seen.iter().all(|(_, is_open)| *is_open), "readers had to wait: {seen:?}");
        let count = |verb| seen.iter().filter(|(seen, _)| *seen == verb).count();
        (count(Verb::Flush), count(Verb::Discard))
    }
}

impl Device for Watched {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset_bytes, buf)
    }
    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        self.inner.write(offset_bytes, buf)
    }
    fn flush(&self) -> io::Result<()> {
        self.watch(Verb::Flush);
        self.inner.flush()
    }
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        if self.fails.swap(false, Ordering::Relaxed) {
            return Err(io::Error::other("a failed discard"));
        }
        self.watch(Verb::Discard);
        self.inner.discard(offset_bytes, length_bytes)
    }
}

/// Mounts a new volume on a device of the same size.
pub(super) fn mounted(settings: Settings) -> (Arc<Watched>, Arc<FileSystem>) {
    mounted_on(BYTES, settings)
}

/// Mounts a new volume on a device of `device_bytes` bytes.
pub(super) fn mounted_on(device_bytes: u64, settings: Settings) -> (Arc<Watched>, Arc<FileSystem>) {
    let (fs, seen) = (OnceLock::new(), Mutex::default());
    let device = Arc::new(Watched {
        inner: MemoryDevice::new(device_bytes),
        fs,
        seen,
        least_atime: AtomicI64::new(0),
        fails: AtomicBool::new(false),
    });
    let size = DeviceSize { path: String::new(), bytes: BYTES };
    let plan = Plan::new(&mkfs::Options::new([7; 16]), &[size]).unwrap();
    let usual = || Options { discard: true, ..Options::new(Time::default) };
    let mut volume =
        NewVolume::begin(device.clone(), &plan, DeviceContent::Zeroes, usual()).unwrap().finish().unwrap();
    let root = volume.superblock().root_ino;
    let ino =
        volume.begin(f2fs::engine::Caller::ADMIN).create(root, b"other", &NewNode::new(0o100_644)).unwrap();
    volume.begin(f2fs::engine::Caller::ADMIN).write(ino, 0, b"other").unwrap();
    volume.unmount().unwrap();
    drop(volume);
    let volume = Engine::open(device.clone(), usual()).unwrap();
    let fs = Arc::new(FileSystem::new(volume, Weak::new(), settings));
    assert!(device.fs.set(Arc::downgrade(&fs)).is_ok());
    (device, fs)
}

/// Creates an empty file in the root directory.
pub(super) fn create(fs: &FileSystem, name: &[u8]) -> Ino {
    fs.create(ROOT_USER, fs.root().unwrap(), name, 0o100_644, 0, None).unwrap().ino
}
