//! Data that is written late: by a checkpoint, by an fsync that needs one, at unmount.

use super::*;
use f2fs::engine::Caller;

/// Data in memory that is written last, at unmount, does not prevent the unmount.
#[test]
fn late_writes_leave_a_clean_volume() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let image = crowded(&path);
    let mut late = 0;
    for nth in 0..20 {
        let device = Scratched::new(copy(&image).unwrap());
        let mut volume = open_small(device.clone()).unwrap();
        let ino = volume.lookup(ROOT, b"packed").unwrap();
        volume.begin(Caller::ADMIN).write(ino, 5 * 4096 + 5, &[2; 5]).unwrap();
        *device.until.lock().unwrap() = Some(nth);
        let ended = volume.unmount();
        let failed = device.until.lock().unwrap().take().is_none();
        if ended.is_ok() {
            assert!(volume.last_checkpoint().flags.has(Flags::UMOUNT), "read {nth}");
            assert!(volume.dirty_page(ino, 5).is_none());
            late += u32::from(failed);
        }
    }
    assert!(late > 0);
}

/// An fsync that needs a checkpoint also reports data that the checkpoint could not write.
#[test]
fn an_fsync_by_checkpoint_reports_data_that_stayed_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = Scratched::new(crowded(&path));
    let mut volume = open_small(device.clone()).unwrap();
    let big = volume.lookup(ROOT, b"big").unwrap();
    let node = volume.nat_entry(volume.inode(big).unwrap().child(0)).unwrap().addr;
    volume.begin(Caller::ADMIN).link(big, ROOT, b"second").unwrap();
    volume.begin(Caller::ADMIN).write(big, 1100 * 4096 + 5, &[2; 5]).unwrap();
    forget(&volume);
    device.set(&[node]);
    assert!(matches!(volume.fsync(big, SyncScope::Everything), Err(Error::Io { .. })));
    assert!(matches!(volume.fsync(big, SyncScope::Everything), Err(Error::Io { .. })), "it still waits");
    device.set(&[]);
    volume.fsync(big, SyncScope::Everything).unwrap();
    drop(volume);
    let volume = Engine::open(device, Options::new(|| NOW)).unwrap();
    let mut found = [0; 4096];
    volume.read(big, 1100 * 4096, &mut found).unwrap();
    assert!(found[..5] == [1; 5] && found[5..10] == [2; 5]);
}

/// Data that an fsync by checkpoint wrote late is reported. If the fsync's own checkpoint failed, the data is
/// in the next one.
#[test]
fn late_writes_of_an_fsync_are_in_the_next_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let image = crowded(&path);
    for links in [1, 2] {
        let device = Scratched::new(copy(&image).unwrap());
        let options = Options { in_place: InPlace::Never, ..small_options() };
        let mut volume = Engine::open(device.clone(), options).unwrap();
        let big = volume.lookup(ROOT, b"big").unwrap();
        let node = volume.nat_entry(volume.inode(big).unwrap().child(0)).unwrap().addr;
        if links == 2 {
            volume.begin(Caller::ADMIN).link(big, ROOT, b"second").unwrap();
        }
        volume.begin(Caller::ADMIN).write(big, 1100 * 4096 + 5, &[2; 5]).unwrap();
        forget(&volume);
        device.set(&[node]);
        volume.checkpoint().unwrap_err();
        device.set(&[]);
        *device.refuses_writes.lock().unwrap() = true;
        assert!(matches!(volume.fsync(big, SyncScope::Everything), Err(Error::Io { .. })));
        assert!(matches!(volume.fsync(big, SyncScope::Everything), Err(Error::Io { .. })), "it still waits");
        assert!(matches!(volume.checkpoint(), Err(Error::Io { .. })), "it still waits");
        *device.refuses_writes.lock().unwrap() = false;
        volume.checkpoint().unwrap();
        drop(volume);
        let volume = Engine::open(device, Options::new(|| NOW)).unwrap();
        let mut found = [0; 4096];
        volume.read(big, 1100 * 4096, &mut found).unwrap();
        assert!(found[..5] == [1; 5] && found[5..10] == [2; 5], "{links} links");
    }
}

/// A block whose in-place overwrite failed during the checkpoint and succeeds right after it is flushed.
#[test]
fn late_writes_in_place_are_flushed() {
    let options = || Options { in_place: InPlace::Always, ..Options::new(|| NOW) };
    let inner = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(inner.clone(), &[], BlockSize::B4K);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &[1; 20_000]).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    let fault = Fault::ErrorAt { verb: Verb::Write, nth: 0 };
    let device = Arc::new(Recording::with_data(Faulty::new(copy(&inner).unwrap(), vec![fault])));
    let mut volume = Engine::open(device.clone(), options()).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 10, &[2; 100]).unwrap();
    volume.checkpoint().unwrap();
    drop(volume);
    let trace = device.take_trace();
    let left = copy(&inner).unwrap();
    power_cut(&trace, trace.len(), &Survivors::None, &left).unwrap();
    let volume = Engine::open(Arc::new(left), options()).unwrap();
    let mut found = [0; 100];
    volume.read(ino, 10, &mut found).unwrap();
    assert!(found == [2; 100]);
}

/// A block whose overwrite the device refuses repeatedly causes no checkpoints in between.
#[test]
fn a_failed_overwrite_in_place_causes_no_checkpoint() {
    let options = || Options { in_place: InPlace::Always, ..Options::new(|| NOW) };
    let inner = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(inner.clone(), &[], BlockSize::B4K);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &[1; 20_000]).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    let volume = Engine::open(inner.clone(), Options::read_only()).unwrap();
    let start = volume.address(&volume.inode(ino).unwrap(), 0).unwrap().0 * 4096;
    drop(volume);
    let fault = Fault::ErrorIn { verb: Verb::Write, range: start.into()..(start + 4096).into() };
    let mut volume = Engine::open(Arc::new(Faulty::new(inner, vec![fault])), options()).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 10, &[2; 100]).unwrap();
    assert!(matches!(volume.checkpoint(), Err(Error::Io { .. })));
    let version = volume.last_checkpoint().version;
    for _ in 0..2 {
        assert!(matches!(volume.checkpoint(), Err(Error::Io { .. })));
        assert_eq!(volume.last_checkpoint().version, version);
    }
}

/// A repeated unmount reports the unwritten data again.
#[test]
fn every_unmount_reports_data_that_stays_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = Scratched::new(crowded(&path));
    let mut volume = open_small(device.clone()).unwrap();
    let big = volume.lookup(ROOT, b"big").unwrap();
    let node = volume.nat_entry(volume.inode(big).unwrap().child(0)).unwrap().addr;
    volume.begin(Caller::ADMIN).write(big, 1100 * 4096 + 5, &[2; 5]).unwrap();
    forget(&volume);
    device.set(&[node]);
    for _ in 0..2 {
        assert!(matches!(volume.unmount(), Err(Error::Io { .. })));
    }
    device.set(&[]);
    volume.unmount().unwrap();
    assert!(volume.last_checkpoint().flags.has(Flags::UMOUNT));
    drop(volume);
    let volume = Engine::open(device, Options::read_only()).unwrap();
    let mut found = [0; 4096];
    volume.read(big, 1100 * 4096, &mut found).unwrap();
    assert!(found[..5] == [1; 5] && found[5..10] == [2; 5]);
}

/// The previous content of an opened compressed cluster exists only in memory, so every checkpoint writes it.
/// It is written before the nodes that would have to be read for it, so that a bad sector under those does
/// not delay the checkpoint.
#[test]
fn an_opened_cluster_is_in_the_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let device = Scratched::new(crowded(&dir.path().join("image")));
    let mut volume = open_small(device.clone()).unwrap();
    let packed = volume.lookup(ROOT, b"packed").unwrap();
    let first = volume.begin(Caller::ADMIN).create(ROOT, b"first", &NewNode::new(FILE)).unwrap();
    volume.checkpoint().unwrap();
    volume.begin(Caller::ADMIN).punch_hole(packed, 5 * 4096, 4096).unwrap();
    assert!(volume.dirty_page(packed, 4).is_some());
    // This many changed nodes trigger write-back, and an fsync sends all pending runs.
    for n in 0..20 {
        let other = volume.lookup(ROOT, format!("other{n}").as_bytes()).unwrap();
        volume.begin(Caller::ADMIN).set_attr(other, &SetAttr { uid: Some(1), ..SetAttr::default() }).unwrap();
    }
    volume.begin(Caller::ADMIN).write(first, 0, &[1]).unwrap();
    volume.fsync(first, SyncScope::Everything).unwrap();
    forget(&volume);
    let holds = |device: &Scratched, hole: bool| {
        let volume = Engine::open(Arc::new(copy(&device.inner).unwrap()), Options::read_only()).unwrap();
        let mut found = [0; 16 * 4096];
        volume.read(packed, 0, &mut found).unwrap();
        let is_hole = found[5 * 4096..6 * 4096] == [0; 4096];
        is_hole == hole && (0..16).all(|n| n == 5 || found[n * 4096..(n + 1) * 4096] == [1; 4096])
    };
    assert!(holds(&device, false));
    device.set(&[volume.nat_entry(packed.into()).unwrap().addr]);
    let second = volume.begin(Caller::ADMIN).create(ROOT, b"second", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).link(second, ROOT, b"third").unwrap();
    volume.fsync(second, SyncScope::Everything).unwrap();
    assert!(holds(&device, true));
}

/// Data written late, while other data is still unwritten, is in the next checkpoint.
#[test]
fn late_writes_are_in_the_next_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = Scratched::new(crowded(&path));
    let mut volume = open_small(device.clone()).unwrap();
    let [big, held] = [&b"big"[..], b"held"].map(|name| volume.lookup(ROOT, name).unwrap());
    let [first, second] = [big, held].map(|ino| {
        let nid = volume.inode(ino).unwrap().child(0);
        volume.nat_entry(nid).unwrap().addr
    });
    for ino in [big, held] {
        volume.begin(Caller::ADMIN).write(ino, 1100 * 4096 + 5, &[2; 5]).unwrap();
    }
    forget(&volume);
    device.set(&[first, second]);
    volume.checkpoint().unwrap_err();
    device.set(&[second]);
    for _ in 0..2 {
        volume.checkpoint().unwrap_err();
    }
    drop(volume);
    let volume = Engine::open(device, Options::new(|| NOW)).unwrap();
    let mut found = [0; 4096];
    volume.read(big, 1100 * 4096, &mut found).unwrap();
    assert!(found[5..10] == [2; 5]);
}

/// The same holds if cleaning wrote it and found no section to clean.
#[test]
fn blocks_moved_by_cleaning_are_in_the_next_checkpoint() {
    let device = Scratched::new(MemoryDevice::new(100 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &vec![1; 1000 * 4096]).unwrap();
    for n in 0..400 {
        volume
            .begin(Caller::ADMIN)
            .create(ROOT, format!("other{n}").as_bytes(), &NewNode::new(FILE))
            .unwrap();
    }
    volume.unmount().unwrap();
    drop(volume);
    let mut volume = open_small(device.clone()).unwrap();
    let node = volume.nat_entry(volume.inode(ino).unwrap().child(0)).unwrap().addr;
    volume.begin(Caller::ADMIN).write(ino, 990 * 4096 + 5, &[2; 5]).unwrap();
    forget(&volume);
    device.set(&[node]);
    volume.checkpoint().unwrap_err();
    device.set(&[]);
    assert_eq!(volume.clean(1, Policy::Greedy).unwrap(), Cleaned::default());
    volume.checkpoint().unwrap();
    drop(volume);
    let volume = Engine::open(device, Options::new(|| NOW)).unwrap();
    let mut found = [0; 4096];
    volume.read(ino, 990 * 4096, &mut found).unwrap();
    assert!(found[..5] == [1; 5] && found[5..10] == [2; 5]);
}
