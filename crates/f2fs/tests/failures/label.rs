//! A label whose write or flush fails.

use std::{
    io,
    sync::atomic::{AtomicI64, Ordering},
};

use super::*;

/// A device that reports one request as failed although it has done it.
struct Doubtful {
    inner: MemoryDevice,
    verb: Verb,
    /// Number of requests of this kind until then; negative once it is over.
    left: AtomicI64,
}

impl Doubtful {
    fn report(&self, verb: Verb) -> io::Result<()> {
        if verb == self.verb && self.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            return Err(io::Error::other("a request that was done"));
        }
        Ok(())
    }
}

impl Device for Doubtful {
    fn geometry(&self) -> block::Geometry {
        self.inner.geometry()
    }
    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset_bytes, buf)
    }
    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        self.inner.write(offset_bytes, buf)?;
        self.report(Verb::Write)
    }
    fn flush(&self) -> io::Result<()> {
        self.inner.flush()?;
        self.report(Verb::Flush)
    }
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.inner.discard(offset_bytes, length_bytes)
    }
}

#[test]
fn the_label_in_memory_is_that_of_the_device_after_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    let image = fresh(&dir.path().join("image"));
    let mut labels = Vec::new();
    for (verb, nth) in [(Verb::Write, 0), (Verb::Write, 1), (Verb::Flush, 0), (Verb::Flush, 1)] {
        let inner = MemoryDevice::from_bytes(&image);
        let device = Arc::new(Doubtful { inner, verb, left: AtomicI64::new(i64::MAX) });
        let mut volume = open(device.clone(), OnError::ReadOnly);
        volume.set_label("old").unwrap();
        device.left.store(nth, Ordering::SeqCst);
        assert!(volume.set_label("new").is_err(), "{verb:?} {nth}");
        let stored = Engine::open(device.clone(), Options::read_only()).unwrap().superblock().label.clone();
        assert_eq!(volume.superblock().label, stored, "{verb:?} {nth}");
        labels.push(stored);
        // After a failed flush it is unknown what the device has.
        assert_eq!(volume.read_only_reason().is_some(), verb == Verb::Flush);
        if verb == Verb::Write {
            volume.set_label("next").unwrap();
            assert_eq!(volume.superblock().label, "next");
        }
    }
    assert_eq!(labels, ["old", "new", "old", "new"], "the first copy counts");
}

#[test]
fn a_power_cut_leaves_the_old_or_the_new_one_of_two_labels_of_many_sectors() {
    let dir = tempfile::tempdir().unwrap();
    // The volume has no checksums of superblocks.
    let start = MemoryDevice::from_bytes(&fresh(&dir.path().join("image")));
    let [old, new] = ["o", "n"].map(|letter| letter.repeat(512));
    let mut volume = open(Arc::new(copy(&start).unwrap()), OnError::ReadOnly);
    volume.set_label(&old).unwrap();
    volume.unmount().unwrap();
    let start = volume.device().clone();
    let recording = Arc::new(Recording::with_data(Overlay::new(start.clone())));
    open(recording.clone(), OnError::ReadOnly).set_label(&new).unwrap();
    let trace = recording.trace();
    for at in 0..=trace.len() {
        for seed in 0..8 {
            let device = Arc::new(Overlay::new(start.clone()));
            power_cut(&trace, at, &Survivors::Torn { seed }, &*device).unwrap();
            let label = Engine::open(device, Options::read_only()).unwrap().superblock().label.clone();
            assert!(label == old || label == new, "cut at {at}, seed {seed}: {label}");
        }
    }
}
