//! Tests of panics in the device.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use block::{Device, Geometry, MemoryDevice};
use f2fs::{
    units::{Ino, Time},
    volume::{NewNode, Options, Volume},
};

use super::{
    FileSystem, WriteMode,
    tests::{format, mounted},
};
use crate::{Caller, Errno, SyncScope};

const ROOT_USER: Caller = Caller { uid: 0, gid: 0, pid: 0 };

/// A device whose flushes panic on demand.
struct Panics {
    inner: Arc<MemoryDevice>,
    in_flushes: AtomicBool,
}

impl Device for Panics {
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
        assert!(!self.in_flushes.load(Ordering::Relaxed), "a fault in a flush");
        self.inner.flush()
    }
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.inner.discard(offset_bytes, length_bytes)
    }
}

/// A volume with an empty file on a [`Panics`] device.
fn with_panics() -> (Arc<Panics>, FileSystem, Ino) {
    let inner = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = format(&inner, "");
    let root = volume.superblock().root_ino;
    let ino = volume.create(root, b"file", &NewNode::new(0o100_644)).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    let device = Arc::new(Panics { inner, in_flushes: AtomicBool::new(false) });
    let fs = mounted(Volume::open(device.clone(), Options::new(Time::default)).unwrap());
    (device, fs, ino)
}

/// Calls `act` while flushes panic, and expects it to panic.
fn panics_in_a_flush<T>(device: &Panics, act: impl FnOnce() -> T) {
    device.in_flushes.store(true, Ordering::Relaxed);
    assert!(catch_unwind(AssertUnwindSafe(act)).is_err(), "it does not flush");
    device.in_flushes.store(false, Ordering::Relaxed);
}

#[test]
fn after_a_panic_in_a_shared_flush_every_request_is_refused() {
    let (device, fs, ino) = with_panics();
    let write = |data: &[u8]| fs.write(ROOT_USER, ino, 0, data, WriteMode::default()).unwrap();
    // After a first fsync, the next one needs only a flush, which it shares with others.
    write(b"x");
    fs.fsync(ino, SyncScope::Everything).unwrap();
    write(b"y");
    panics_in_a_flush(&device, || fs.fsync(ino, SyncScope::Everything));
    assert_eq!(fs.stat(ino).map(drop), Err(Errno::IO));
    assert_eq!(fs.fsync(ino, SyncScope::Everything), Err(Errno::IO));
    assert!(fs.failure().is_some());
    assert!(fs.unmount().is_err());
}

#[test]
fn an_unmount_after_one_that_panicked_fails() {
    let (device, fs, ino) = with_panics();
    fs.write(ROOT_USER, ino, 0, b"x", WriteMode::default()).unwrap();
    panics_in_a_flush(&device, || fs.unmount());
    assert!(fs.failure().is_some());
    assert!(fs.unmount().is_err(), "the volume was not left clean");
}
