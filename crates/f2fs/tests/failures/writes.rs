//! Writes that the device refuses.

use super::*;
use f2fs::engine::Caller;

/// If any single write fails once, the work succeeds in the end, as without the failure.
#[test]
fn a_write_that_fails_once_is_repeated() {
    repeats_what_fails_once(None);
    repeats_what_fails_once(Some(1));
}

fn repeats_what_fails_once(write_through_bytes: Option<usize>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let image = fresh(&path);
    let (mut nth, mut failures, mut stopped) = (0, 0, 0);
    loop {
        let fault = Fault::ErrorAt { verb: Verb::Write, nth };
        let device = Arc::new(Counted::new(Faulty::new(MemoryDevice::from_bytes(&image), vec![fault])));
        let mut volume = open_for(device.clone(), OnError::Continue, write_through_bytes);
        let mut failed = false;
        let done = work(&mut volume, |volume, error| {
            assert!(matches!(error, Error::Io { .. }), "write {nth}: {error}");
            failed = true;
            volume.read_only_reason().is_none()
        });
        failures += u64::from(failed);
        if done {
            check(&volume);
            drop(volume);
            let mut bytes = vec![0; image.len()];
            device.inner().inner().read(0, &mut bytes).unwrap();
            std::fs::write(&path, &bytes).unwrap();
            support::assert_clean(&path);
            check(&support::open_read_only(&path));
        } else {
            // Only the last block of a checkpoint cannot be repeated.
            assert!(volume.read_only_reason().is_some(), "write {nth}");
            stopped += 1;
        }
        // Reported or not, a repeated write adds one to the number of writes.
        if done && device.counts().writes <= nth {
            break;
        }
        nth += 1;
    }
    assert!(failures > 30 && (4..=6).contains(&stopped), "{stopped} of {failures} ({nth})");
}

/// A checkpoint that failed at any of its writes is repeated. If the power fails meanwhile, the previous one
/// is valid, with all its tables.
#[test]
fn a_checkpoint_that_is_tried_again_leaves_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let image = {
        let device = Arc::new(MemoryDevice::from_bytes(&fresh(&path)));
        let mut volume = open(device.clone(), OnError::Continue);
        // More changes than the journals can hold.
        for n in 0..140 {
            let ino = volume
                .begin(Caller::ADMIN)
                .create(ROOT, format!("old {n}").as_bytes(), &NewNode::new(FILE))
                .unwrap();
            volume.begin(Caller::ADMIN).write(ino, 0, &[1; 40_000]).unwrap();
        }
        volume.unmount().unwrap();
        device.to_vec()
    };
    let (mut nth, mut cuts) = (0, 0);
    loop {
        let fault = Fault::ErrorAt { verb: Verb::Write, nth };
        let faulty = Faulty::new(MemoryDevice::from_bytes(&image), vec![fault]);
        let device = Arc::new(Recording::with_data(faulty));
        let mut volume = open(device.clone(), OnError::Continue);
        for n in 0..140 {
            volume.begin(Caller::ADMIN).unlink(ROOT, format!("old {n}").as_bytes()).unwrap();
        }
        volume.checkpoint().unwrap_err();
        if volume.read_only_reason().is_some() {
            // This is the checkpoint's last block, which cannot be repeated.
            break;
        }
        let before = device.trace().len();
        for n in 0..60 {
            volume
                .begin(Caller::ADMIN)
                .create(ROOT, format!("new {n}").as_bytes(), &NewNode::new(FILE))
                .unwrap();
        }
        volume.checkpoint().unwrap();
        let trace = device.take_trace();
        for at in before..trace.len() {
            let left = Arc::new(MemoryDevice::from_bytes(&image));
            power_cut(&trace, at, &Survivors::All, &*left).unwrap();
            let mut volume = open(left.clone(), OnError::ReadOnly);
            // The count includes the two dots.
            let count = volume.entries(ROOT, 0).unwrap().count();
            assert!([142, 62].contains(&count), "write {nth}, cut after {at}: {count} entries");
            volume.unmount().unwrap();
            std::fs::write(&path, left.to_vec()).unwrap();
            support::assert_clean(&path);
            cuts += 1;
        }
        nth += 1;
    }
    assert!(nth > 3 && cuts > 10, "{nth} writes failed, {cuts} cuts");
}

#[test]
fn a_flush_that_fails_ends_changes() {
    let dir = tempfile::tempdir().unwrap();
    let image = fresh(&dir.path().join("image"));
    for on_error in [OnError::ReadOnly, OnError::Continue] {
        let fault = Fault::ErrorAt { verb: Verb::Flush, nth: 2 };
        let device = Arc::new(Faulty::new(MemoryDevice::from_bytes(&image), vec![fault]));
        let mut volume = open(device, on_error);
        assert!(!work(&mut volume, |volume, _| volume.read_only_reason().is_none()));
        assert!(volume.read_only_reason().is_some());
        assert!(matches!(
            volume.begin(Caller::ADMIN).create(ROOT, b"more", &NewNode::new(FILE)),
            Err(Error::ReadOnly(_))
        ));
    }
}

/// Unwritten data can be read although the device accepts no more writes, and synced data survives.
#[test]
fn data_that_cannot_be_written_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let image = fresh(&path);
    for on_error in [OnError::ReadOnly, OnError::Continue] {
        // From some time on, everything except the checkpoints and the tables refuses writes: the device is
        // worn out.
        let device = Arc::new(Faulty::new(MemoryDevice::from_bytes(&image), Vec::new()));
        let mut volume = open(device.clone(), on_error);
        let synced = volume.begin(Caller::ADMIN).create(ROOT, b"synced", &NewNode::new(FILE)).unwrap();
        volume.begin(Caller::ADMIN).write(synced, 0, &[1; 100_000]).unwrap();
        volume.fsync(synced, SyncScope::Everything).unwrap();
        drop(volume);
        let mut bytes = vec![0; image.len()];
        device.inner().read(0, &mut bytes).unwrap();

        let all = Fault::ErrorIn { verb: Verb::Write, range: 0..image.len() as u64 };
        let device = Arc::new(Faulty::new(MemoryDevice::from_bytes(&image), vec![all]));
        let mut volume = open(device, on_error);
        let ino = volume.begin(Caller::ADMIN).create(ROOT, b"new", &NewNode::new(FILE)).unwrap();
        let mut written = 0;
        while written < 3000 && volume.begin(Caller::ADMIN).write(ino, written * 4096, &[2; 4096]).is_ok() {
            written += 1;
        }
        assert!(written > 200, "{written}");
        let mut block = [0; 4096];
        for n in [0, 100, written - 1] {
            volume.read(ino, n * 4096, &mut block).unwrap();
            assert!(block == [2; 4096], "{on_error:?}, block {n} of {written}");
        }
        let told = volume.fsync(ino, SyncScope::Everything);
        assert!(matches!(told, Err(Error::Io { .. } | Error::ReadOnly(_))), "{told:?}");
        assert_eq!(volume.read_only_reason().is_some(), on_error == OnError::ReadOnly);
        drop(volume);

        let volume = open(Arc::new(MemoryDevice::from_bytes(&bytes)), on_error);
        let mut content = vec![0; 100_000];
        volume.read(synced, 0, &mut content).unwrap();
        assert!(content == [1; 100_000]);
    }
}

/// If a block of a file cannot be read, an insertion ends half-way, and moved blocks are still in the file.
#[test]
fn an_insertion_that_fails_half_way_loses_nothing() {
    const BLOCKS: u64 = 600;
    let dir = tempfile::tempdir().unwrap();
    let image = fresh(&dir.path().join("image"));
    let device = MemoryDevice::from_bytes(&image);
    let device = Arc::new(device);
    let mut volume = open(device.clone(), OnError::ReadOnly);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    let block = |n: u64| vec![n as u8 | 1; 4096];
    for n in 0..BLOCKS {
        volume.begin(Caller::ADMIN).write(ino, n * 4096, &block(n)).unwrap();
    }
    volume.unmount().unwrap();
    let bad = volume.address(&volume.inode(ino).unwrap(), 20).unwrap();
    drop(volume);
    let mut bytes = vec![0; image.len()];
    device.read(0, &mut bytes).unwrap();
    let at = u64::from(bad.0) * 4096;
    let fault = Fault::ErrorIn { verb: Verb::Read, range: at..at + 4096 };
    let device = Arc::new(Faulty::new(MemoryDevice::from_bytes(&bytes), vec![fault]));
    let mut volume = open(device, OnError::ReadOnly);
    assert!(matches!(volume.begin(Caller::ADMIN).insert_range(ino, 0, 300 * 4096), Err(Error::Io { .. })));
    let mut found = vec![0; 4096];
    for n in (0..BLOCKS).filter(|n| *n != 20) {
        let is_at = |volume: &Engine, place: u64, found: &mut [u8]| {
            matches!(volume.read(ino, place * 4096, found), Ok(4096)) && *found == block(n)
        };
        let there = is_at(&volume, n, &mut found) || is_at(&volume, n + 300, &mut found);
        assert!(there, "block {n}");
    }
}

/// Blocks reserved past a file's end stay reserved if a write there fails.
#[test]
fn a_failed_write_releases_only_its_own_reservation() {
    let dir = tempfile::tempdir().unwrap();
    let image = fresh(&dir.path().join("image"));
    let device = Arc::new(MemoryDevice::from_bytes(&image));
    let mut volume = open(device.clone(), OnError::Continue);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &[1; 4096 + 100]).unwrap();
    volume.begin(Caller::ADMIN).allocate_range(ino, 0, 1 << 20, FileSize::Stays).unwrap();
    volume.unmount().unwrap();
    let bad = volume.address(&volume.inode(ino).unwrap(), 0).unwrap();
    drop(volume);
    let at = u64::from(bad.0) * 4096;
    let fault = Fault::ErrorIn { verb: Verb::Read, range: at..at + 4096 };
    let device = Arc::new(Faulty::new(MemoryDevice::from_bytes(&device.to_vec()), vec![fault]));
    let mut volume = open(device, OnError::Continue);
    let blocks = volume.stat(ino).unwrap().sectors;
    assert!(matches!(volume.begin(Caller::ADMIN).write(ino, 200, &[2; 100]), Err(Error::Io { .. })));
    assert_eq!((volume.stat(ino).unwrap().sectors, volume.stat(ino).unwrap().size), (blocks, 4096 + 100));
}

/// A bad sector under a block that is always overwritten in place delays only that block. Changes of other
/// files become durable, and a caller that syncs this file gets the error.
#[test]
fn a_bad_sector_under_one_file_does_not_stop_checkpoints() {
    let options = || Options { in_place: InPlace::Always, ..Options::new(|| NOW) };
    let inner = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(inner.clone(), &[], BlockSize::B4K);
    let bad = volume.begin(Caller::ADMIN).create(ROOT, b"bad", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(bad, 0, &[1; 20_000]).unwrap();
    volume.unmount().unwrap();
    let addr = volume.address(&volume.inode(bad).unwrap(), 0).unwrap();
    drop(volume);
    let range = u64::from(addr.0) * 4096..(u64::from(addr.0) + 1) * 4096;
    let fault = Fault::ErrorIn { verb: Verb::Write, range };
    let device = Arc::new(Faulty::new(inner.clone(), vec![fault]));

    let mut volume = Engine::open(device, options()).unwrap();
    volume.begin(Caller::ADMIN).write(bad, 10, &[2; 100]).unwrap();
    let good = volume.begin(Caller::ADMIN).create(ROOT, b"good", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(good, 0, &[3; 9000]).unwrap();
    assert!(matches!(volume.fsync(bad, SyncScope::Everything), Err(Error::Io { .. })));
    volume.fsync(good, SyncScope::Everything).unwrap();
    assert!(matches!(volume.checkpoint(), Err(Error::Io { .. })), "not all of it is durable");
    assert!(volume.read_only_reason().is_none());
    volume.begin(Caller::ADMIN).write(good, 0, &[4; 9000]).unwrap();
    assert!(matches!(volume.unmount(), Err(Error::Io { .. })), "the error is reported");
    drop(volume);

    let volume = Engine::open(inner, options()).unwrap();
    let mut bytes = vec![0; 9000];
    assert_eq!(volume.read(good, 0, &mut bytes).unwrap(), 9000);
    assert!(bytes == [4; 9000]);
    assert_eq!(volume.read(bad, 0, &mut bytes).unwrap(), 9000);
    assert!(bytes == [1; 9000]);
}

/// If names leave their inode for several blocks and one of the blocks finds no place, all names are still
/// found.
#[test]
fn names_that_find_no_space_stay_in_their_inode() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let over = volume.begin(Caller::ADMIN).create(ROOT, b"over", &NewNode::new(FILE)).unwrap();
    let dirs: Vec<Ino> = (0..200)
        .map(|n| {
            volume
                .begin(Caller::ADMIN)
                .create(ROOT, format!("dir{n}").as_bytes(), &NewNode::new(0o040_755))
                .unwrap()
        })
        .collect();
    volume.unmount().unwrap();
    let levels: Vec<BlockAddr> =
        dirs.iter().map(|dir| volume.nat_entry((*dir).into()).unwrap().addr).collect();
    drop(volume);
    // The directory level becomes 3, so the first level has 2^3 buckets.
    const DIR_LEVEL: u64 = 347;
    for addr in levels {
        let mut block = [0; 4096];
        let at = u64::from(addr.0) * 4096;
        device.read(at, &mut block).unwrap();
        block[DIR_LEVEL as usize] = 3;
        device.write(at, &block).unwrap();
    }
    let options = Options { checkpoint_when_asked: true, in_place: InPlace::Never, ..Options::new(|| NOW) };
    let mut volume = Engine::open(device.clone(), options).unwrap();
    volume.begin(Caller::ADMIN).write(over, 0, &[1]).unwrap();
    while volume.begin(Caller::ADMIN).write(over, 0, &[1; 1 << 20]).is_ok() {}
    while volume.begin(Caller::ADMIN).write(over, 0, &[1; 4096]).is_ok() {}
    let name = |n: usize| format!("{n} and so that few of them fit into an inode, many letters more, {n}");
    let full = dirs.into_iter().find_map(|dir| {
        let before = volume.counters();
        for n in 0..22 {
            let blocks = volume.stat(dir).unwrap().sectors;
            if let Err(error) = volume.begin(Caller::ADMIN).link(over, dir, name(n).as_bytes()) {
                assert!(matches!(error, Error::NoSpace { .. }), "{error}");
                return Some((dir, n, before.valid_blocks, blocks));
            }
        }
        None
    });
    let (dir, names, valid_blocks, blocks) = full.expect("the log of directories ends, too");
    for n in 0..names {
        assert_eq!(volume.lookup(dir, name(n).as_bytes()).unwrap(), over);
    }
    assert_eq!(volume.entries(dir, 0).unwrap().count(), names + 2);
    assert_eq!((volume.counters().valid_blocks, volume.stat(dir).unwrap().sectors), (valid_blocks, blocks));
    volume.unmount().unwrap();
    drop(volume);
    store(&device, &path).unwrap();
    support::assert_clean(&path);
}

/// Content or names that have to leave their inode are still found if there is no place for them.
#[test]
fn content_without_space_outside_its_inode_stays_there() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    drop(support::format_on(device.clone(), &[], BlockSize::B4K));
    // Freed blocks cannot be used again, so free segments run out.
    let options = Options { checkpoint_when_asked: true, in_place: InPlace::Never, ..Options::new(|| NOW) };
    let mut volume = Engine::open(device, options).unwrap();
    let over = volume.begin(Caller::ADMIN).create(ROOT, b"over", &NewNode::new(FILE)).unwrap();
    let small = volume.begin(Caller::ADMIN).create(ROOT, b"small", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(small, 0, &[7; 1000]).unwrap();
    let dirs: Vec<Ino> = (0..600)
        .map(|n| {
            volume
                .begin(Caller::ADMIN)
                .create(ROOT, format!("dir{n}").as_bytes(), &NewNode::new(0o040_755))
                .unwrap()
        })
        .collect();
    while volume.begin(Caller::ADMIN).write(over, 0, &[1; 1 << 20]).is_ok() {}
    while volume.begin(Caller::ADMIN).write(over, 0, &[1; 4096]).is_ok() {}
    assert!(volume.free_user_blocks() > 1000);
    assert!(matches!(volume.begin(Caller::ADMIN).write(small, 5000, &[8; 10]), Err(Error::NoSpace { .. })));
    let mut found = [0; 2000];
    assert_eq!(volume.read(small, 0, &mut found).unwrap(), 1000);
    assert!(found[..1000] == [7; 1000]);

    // The log of directories has a segment of its own. Each of these directories takes one block of it.
    let name = |n: usize| format!("{n} and so that few of them fit into an inode, many letters more, {n}");
    let full = dirs.into_iter().find_map(|dir| {
        let mut refused = |n| volume.begin(Caller::ADMIN).link(over, dir, name(n).as_bytes()).err();
        let (n, error) = (0..22).find_map(|n| Some((n, refused(n)?)))?;
        assert!(matches!(error, Error::NoSpace { .. }), "{error}");
        Some((dir, n))
    });
    let (dir, names) = full.expect("that ends, too");
    for n in 0..names {
        assert_eq!(volume.lookup(dir, name(n).as_bytes()).unwrap(), over);
    }
    assert_eq!(volume.entries(dir, 0).unwrap().count(), names + 2);
}

/// A checkpoint may discard freed blocks; the device need not support it.
#[test]
fn a_failed_discard_is_not_a_failed_write() {
    let fault = Fault::ErrorIn { verb: Verb::Discard, range: 0..u64::MAX };
    let device = Arc::new(Faulty::new(MemoryDevice::new(64 << 20), vec![fault]));
    drop(support::format_on(device.clone(), &[], BlockSize::B4K));
    let options = Options { discard: true, ..Options::new(|| NOW) };
    let mut volume = Engine::open(device, options).unwrap();
    for n in 0..3 {
        let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
        volume.begin(Caller::ADMIN).write(ino, 0, &[n; 100_000]).unwrap();
        volume.checkpoint().unwrap();
        volume.begin(Caller::ADMIN).unlink(ROOT, b"file").unwrap();
        volume.checkpoint().unwrap();
        assert!(volume.discards().blocks() > 0);
        assert!(matches!(volume.discards().issue(), Err(Error::Io { .. })));
        assert!(volume.discards().is_empty(), "the others are not read from the device");
    }
    assert!(matches!(volume.trim(1), Err(Error::Io { .. })), "reading it fails");
    assert!(volume.read_only_reason().is_none());
}
