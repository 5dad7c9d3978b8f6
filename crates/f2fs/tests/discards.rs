//! Discards: few, large, bounded, and only of free blocks.

mod support;

use std::{
    io,
    ops::Range,
    sync::{Arc, Mutex},
};

use block::{Counted, Device, DiscardUnit, Geometry, MemoryDevice, Recording, Verb};
use f2fs::{
    Error,
    engine::{Caller, Engine, NewNode, Options, SyncScope},
    format::BlockSize,
    units::{Ino, Time},
};

const ROOT: Ino = Ino(3);
const FILE: u16 = 0o100_644;
/// Minimum size of a discard after a checkpoint, in bytes.
const UNIT_BYTES: u64 = 64 << 10;

fn open(device: Arc<dyn block::Device>) -> Engine {
    Engine::open(device, Options { discard: true, ..Options::new(Time::default) }).unwrap()
}

/// Removing every second small file leaves no run that is worth a discard. Removing the others then leaves
/// large runs.
#[test]
fn scattered_blocks_wait_until_their_neighbours_are_free() {
    const FILES: u32 = 12_000;
    let device = Arc::new(Counted::new(MemoryDevice::new(512 << 20)));
    drop(support::format_on(device.clone(), &[], BlockSize::B4K));
    let mut volume = open(device.clone());
    let name = |n: u32| format!("file{n}").into_bytes();
    for n in 0..FILES {
        let ino = volume.begin(Caller::ADMIN).create(ROOT, &name(n), &NewNode::new(FILE)).unwrap();
        volume.begin(Caller::ADMIN).write(ino, 0, &[1; 4096]).unwrap();
    }
    volume.checkpoint().unwrap();
    let discards_after = |volume: &mut Engine, removed: &mut dyn Iterator<Item = u32>| {
        removed.for_each(|n| volume.begin(Caller::ADMIN).unlink(ROOT, &name(n)).unwrap());
        device.take_counts();
        volume.checkpoint().unwrap();
        assert_eq!(device.counts().discards, 0, "a checkpoint issues none");
        while volume.discards().issue().unwrap() > 0 {}
        let counts = device.take_counts();
        (counts.discards, counts.discarded_bytes)
    };
    let (scattered, _) = discards_after(&mut volume, &mut (0..FILES).step_by(2));
    assert!(scattered <= 10, "{scattered} discards of scattered blocks");
    let (whole, bytes) = discards_after(&mut volume, &mut (1..FILES).step_by(2));
    // Data and inodes lie in segments of their own, except at the ends.
    let files_bytes = 2 * u64::from(FILES) * 4096;
    assert!(bytes > files_bytes - files_bytes / 10, "{bytes} of {files_bytes} bytes");
    assert!(whole <= 40, "{whole} discards of {bytes} bytes");
}

/// A volume that is opened for reading is recovered in memory. Blocks that this frees are still needed by the
/// checkpoint on the device.
#[test]
fn a_recovery_in_memory_discards_nothing() {
    let device = Arc::new(Recording::without_data(MemoryDevice::new(64 << 20)));
    drop(support::format_on(device.clone(), &[], BlockSize::B4K));
    let mut volume = open(device.clone());
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &vec![1; 8 << 20]).unwrap();
    volume.checkpoint().unwrap();
    volume.begin(Caller::ADMIN).truncate(ino, 4096).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &vec![2; 8 << 20]).unwrap();
    volume.fsync(ino, SyncScope::Everything).unwrap();
    drop(volume);
    device.take_trace();
    let options = Options { discard: true, ..Options::read_only() };
    let volume = Engine::open(device.clone(), options).unwrap();
    assert_eq!(volume.stat(ino).unwrap().size, 8 << 20, "the fsync is rolled forward");
    while volume.discards().issue().unwrap() > 0 {}
    let changes: Vec<_> = device.take_trace().into_iter().filter(|it| it.verb != Verb::Read).collect();
    assert!(changes.is_empty(), "{changes:?}");
}

/// A pending discard is dropped when a log comes to its blocks.
#[test]
fn blocks_that_are_used_again_are_not_discarded() {
    let device = Arc::new(Recording::without_data(MemoryDevice::new(64 << 20)));
    drop(support::format_on(device.clone(), &[], BlockSize::B4K));
    let mut volume = open(device.clone());
    for round in 0..40_u8 {
        let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
        volume.begin(Caller::ADMIN).write(ino, 0, &vec![round; 5 << 20]).unwrap();
        volume.begin(Caller::ADMIN).unlink(ROOT, b"file").unwrap();
        volume.checkpoint().unwrap();
    }
    let kept = volume.begin(Caller::ADMIN).create(ROOT, b"kept", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(kept, 0, &vec![7; 10 << 20]).unwrap();
    volume.checkpoint().unwrap();
    device.take_trace();
    while volume.discards().issue().unwrap() > 0 {}
    let trace = device.take_trace();
    assert!(!trace.is_empty());
    for request in trace {
        assert_eq!(request.verb, Verb::Discard);
        assert_eq!((request.offset_bytes % UNIT_BYTES, request.length_bytes % UNIT_BYTES), (0, 0));
        assert!(request.length_bytes <= 8 << 20);
    }
    // A discarded range of this device reads as zeroes.
    let mut volume = open(device);
    let mut content = vec![0; 10 << 20];
    volume.read(kept, 0, &mut content).unwrap();
    assert!(content.iter().all(|byte| *byte == 7));
    volume.unmount().unwrap();
}

/// A device that refuses the first discards, and remembers all of them.
struct Refuses {
    inner: MemoryDevice,
    unit: Option<DiscardUnit>,
    kind: io::ErrorKind,
    asked: Mutex<Vec<Range<u64>>>,
    /// Number of the first requests that are refused.
    refused: usize,
}

impl Refuses {
    fn new(kind: io::ErrorKind, refused: usize) -> Arc<Refuses> {
        let inner = MemoryDevice::new(128 << 20);
        let unit = inner.discard_unit();
        let device = Arc::new(Refuses { inner, unit, kind, asked: Mutex::default(), refused: 0 });
        drop(support::format_on(device.clone(), &[], BlockSize::B4K));
        let mut device = Arc::into_inner(device).unwrap();
        (device.refused, device.asked) = (refused, Mutex::default());
        Arc::new(device)
    }

    /// Removes a large file many times, and issues what becomes free. Returns the requests.
    fn churn(self: &Arc<Self>) -> Vec<Range<u64>> {
        let mut volume = open(self.clone());
        for round in 0..8_u8 {
            let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
            volume.begin(Caller::ADMIN).write(ino, 0, &vec![round; 6 << 20]).unwrap();
            volume.checkpoint().unwrap();
            volume.begin(Caller::ADMIN).unlink(ROOT, b"file").unwrap();
            volume.checkpoint().unwrap();
            while volume.discards().issue().is_ok_and(|blocks| blocks > 0) {}
        }
        self.asked.lock().unwrap().clone()
    }
}

impl Device for Refuses {
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
        self.inner.flush()
    }
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        let mut asked = self.asked.lock().unwrap();
        asked.push(offset_bytes..offset_bytes + length_bytes);
        let is_refused = asked.len() <= self.refused;
        drop(asked);
        assert!(!is_refused || self.kind != PANICS, "a fault of the device's code");
        if is_refused { Err(self.kind.into()) } else { Ok(()) }
    }
    fn discard_unit(&self) -> Option<DiscardUnit> {
        self.unit
    }
}

#[test]
fn a_device_that_cannot_discard_gets_one_request() {
    let device = Refuses::new(io::ErrorKind::Unsupported, usize::MAX);
    assert_eq!(device.churn().len(), 1);
    let mut volume = open(device);
    assert!(volume.discards().issue().is_ok());
    let error = volume.trim(1).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "a new volume asks again: {error}");
    assert!(matches!(volume.trim(1), Err(Error::Unsupported(_))));
}

#[test]
fn a_device_without_discards_gets_no_request() {
    let mut device = Arc::into_inner(Refuses::new(io::ErrorKind::Other, 0)).unwrap();
    device.unit = None;
    assert_eq!(Arc::new(device).churn(), []);
}

#[test]
fn discards_are_tried_again_after_one_failure_but_not_after_three() {
    assert_eq!(Refuses::new(io::ErrorKind::Other, usize::MAX).churn().len(), 3);
    assert!(Refuses::new(io::ErrorKind::Other, 2).churn().len() > 4);
}

#[test]
fn requests_consist_of_whole_units_of_the_device() {
    let mut device = Arc::into_inner(Refuses::new(io::ErrorKind::Other, 0)).unwrap();
    let unit = DiscardUnit { bytes: 4 << 20, first_bytes: 1 << 20 };
    device.unit = Some(unit);
    let device = Arc::new(device);
    device.churn();
    open(device.clone()).trim(1).unwrap();
    let asked = device.asked.lock().unwrap();
    assert!(!asked.is_empty());
    for request in &*asked {
        assert_eq!(request.start % unit.bytes, unit.first_bytes, "{request:?}");
        assert_eq!((request.end - request.start) % unit.bytes, 0, "{request:?}");
    }
}

/// The error kind that makes [`Refuses`] panic.
const PANICS: io::ErrorKind = io::ErrorKind::Interrupted;

#[test]
fn no_log_waits_for_a_discard_that_panicked() {
    let device = Refuses::new(PANICS, 1);
    let mut volume = open(device.clone());
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &vec![1; 60 << 20]).unwrap();
    volume.checkpoint().unwrap();
    volume.begin(Caller::ADMIN).unlink(ROOT, b"file").unwrap();
    volume.checkpoint().unwrap();
    let discards = volume.discards().clone();
    std::panic::catch_unwind(|| discards.issue()).unwrap_err();
    // More than is free elsewhere: a log needs the segments of the discard.
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &vec![2; 74 << 20]).unwrap();
    volume.discards().stop();
    volume.unmount().unwrap();
}
