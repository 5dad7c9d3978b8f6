//! Requests of an fsync: as few as its promise needs.

use super::*;
use f2fs::engine::Caller;

/// An overwrite in place is one write. An overwrite in a new place is two: the block, and the node with its
/// address, which must not be on the device before the block.
#[test]
fn an_fsynced_overwrite_costs_two_writes_and_two_flushes_at_most() {
    use block::Verb::{Flush, Write};
    for (in_place, costs) in [
        (InPlace::Fsync, &[(Write, 4096), (Flush, 0)][..]),
        (InPlace::Never, &[(Write, 4096), (Flush, 0), (Write, 4096), (Flush, 0)]),
    ] {
        let device = Arc::new(Recording::without_data(MemoryDevice::new(BYTES)));
        let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
        let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
        volume.begin(Caller::ADMIN).write(ino, 0, &[1; 1 << 20]).unwrap();
        volume.checkpoint().unwrap();
        drop(volume);
        let options = Options { in_place, ..Options::new(|| support::NOW) };
        let mut volume = Engine::open(device.clone(), options).unwrap();
        for n in 0..2 {
            device.take_trace();
            volume.begin(Caller::ADMIN).write(ino, 40_960, &[2 + n; 4096]).unwrap();
            volume.fsync(ino, SyncScope::Everything).unwrap();
            let writes = |request: &Request| request.verb != Verb::Read;
            let verbs: Vec<_> = device.take_trace().into_iter().filter(writes).collect();
            let verbs: Vec<_> = verbs.iter().map(|request| (request.verb, request.length_bytes)).collect();
            assert_eq!(verbs, costs);
        }
    }
}

/// A file that was overwritten as a whole, in any order, is overwritten in place when it is synced, with the
/// largest possible commands. Single blocks go to the log.
#[test]
fn neighbours_wait_for_their_fsync_and_are_overwritten_together() {
    const BLOCKS: u64 = 1000;
    let device = Arc::new(Recording::without_data(MemoryDevice::new(BYTES)));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &vec![1; BLOCKS as usize * 4096]).unwrap();
    volume.checkpoint().unwrap();
    let first = volume.address(&volume.inode(ino).unwrap(), 0).unwrap();
    device.take_trace();
    for n in 0..BLOCKS {
        let at = n * 617 % BLOCKS;
        volume.begin(Caller::ADMIN).write(ino, at * 4096, &[at as u8; 4096]).unwrap();
    }
    volume.fsync(ino, SyncScope::Everything).unwrap();
    let writes = |trace: Vec<Request>| -> Vec<u64> {
        let writes = trace.into_iter().filter(|request| request.verb == Verb::Write);
        writes.map(|request| request.length_bytes / 4096).collect()
    };
    let lengths = writes(device.take_trace());
    assert!(lengths.iter().sum::<u64>() <= BLOCKS + 1 && lengths.len() <= 6, "{lengths:?}");
    assert_eq!(volume.address(&volume.inode(ino).unwrap(), 0).unwrap(), first);
    for n in 0..BLOCKS / 2 {
        volume.begin(Caller::ADMIN).write(ino, 2 * n * 4096, &[7; 4096]).unwrap();
    }
    volume.fsync(ino, SyncScope::Everything).unwrap();
    let lengths = writes(device.take_trace());
    assert!(lengths.len() <= 6, "{lengths:?}");
    assert_ne!(volume.address(&volume.inode(ino).unwrap(), 0).unwrap(), first);
    let content = read(&volume, ino);
    let wanted = |n: usize| if n % 2 == 0 { 7 } else { n as u8 };
    assert!(content.chunks(4096).enumerate().all(|(n, block)| block == [wanted(n); 4096]));
}

/// A database repeatedly makes its journal, syncs it and the directory, and removes it. Recovery finds the
/// name of a new file in its inode, so only the removal needs a checkpoint. An unchanged file needs no write.
#[test]
fn an_fsynced_directory_needs_no_checkpoint_for_the_names_of_fsynced_files() {
    let device = Arc::new(Recording::with_data(MemoryDevice::new(BYTES)));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let dir = volume.begin(Caller::ADMIN).create(ROOT, b"data", &NewNode::new(0o040_755)).unwrap();
    volume.begin(Caller::ADMIN).create(dir, b"journal", &NewNode::new(FILE)).unwrap();
    volume.checkpoint().unwrap();
    let start = copy(device.inner()).unwrap();
    device.take_trace();
    let mut trace = Vec::new();
    // Returns the number of writes of the directory's fsync, after which the power fails.
    let mut sync = |volume: &mut Engine, scope: SyncScope| {
        trace.extend(device.take_trace());
        volume.fsync(dir, scope).unwrap();
        let own = device.take_trace();
        let writes = own.iter().filter(|request| request.verb == Verb::Write).count();
        trace.extend(own);
        let left = copy(&start).unwrap();
        power_cut(&trace, trace.len(), &Survivors::None, &left).unwrap();
        let left = Engine::open(Arc::new(left), Options::new(|| support::NOW)).unwrap();
        let names = |volume: &Engine| -> Vec<_> {
            volume.entries(dir, 0).unwrap().map(|entry| entry.unwrap()).map(|e| (e.name, e.ino)).collect()
        };
        assert_eq!(names(&left), names(volume));
        writes
    };
    assert_eq!(sync(&mut volume, SyncScope::Everything), 0, "nothing has changed");
    for n in 0..3 {
        volume.begin(Caller::ADMIN).unlink(dir, b"journal").unwrap();
        let journal = volume.begin(Caller::ADMIN).create(dir, b"journal", &NewNode::new(FILE)).unwrap();
        volume.begin(Caller::ADMIN).write(journal, 0, &[n; 9000]).unwrap();
        volume.fsync(journal, SyncScope::Data).unwrap();
        assert_eq!(sync(&mut volume, SyncScope::Data), 0, "the name is in the inode");
    }
    volume.begin(Caller::ADMIN).unlink(dir, b"journal").unwrap();
    assert!(sync(&mut volume, SyncScope::Data) > 2, "it would come back");
    assert_eq!(sync(&mut volume, SyncScope::Data), 0);
    let other = volume.begin(Caller::ADMIN).create(dir, b"other", &NewNode::new(FILE)).unwrap();
    assert!(sync(&mut volume, SyncScope::Data) > 2, "it was not synced");
    volume.begin(Caller::ADMIN).link(other, dir, b"another").unwrap();
    assert!(sync(&mut volume, SyncScope::Data) > 2, "an inode has one name for recovery");
    volume.begin(Caller::ADMIN).rename(dir, b"other", dir, b"moved", RenameMode::Replace).unwrap();
    assert!(sync(&mut volume, SyncScope::Data) > 2, "recovery does not take names away");
    let new = volume.begin(Caller::ADMIN).create(dir, b"new", &NewNode::new(FILE)).unwrap();
    volume.fsync(new, SyncScope::Data).unwrap();
    assert!(sync(&mut volume, SyncScope::Everything) > 2, "recovery does not know the directory's times");
    volume.fsync(other, SyncScope::Everything).unwrap();
    let checkpoint = volume.last_checkpoint().version;
    volume.begin(Caller::ADMIN).write(new, 0, b"changed").unwrap();
    volume.fsync(other, SyncScope::Everything).unwrap();
    assert_eq!(volume.last_checkpoint().version, checkpoint, "two names, but it did not change");
}

/// If whole blocks are appended within one tick of the clock, recovery finds the size without the inode.
#[test]
fn an_fsynced_append_costs_two_writes_and_a_flush_and_its_size_comes_back() {
    const START: u64 = 930; // the inode has no room for more addresses
    let device = Arc::new(MemoryDevice::new(BYTES));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    for block in 0..START {
        volume.begin(Caller::ADMIN).write(ino, block * 4096, &[block as u8; 4096]).unwrap();
    }
    volume.checkpoint().unwrap();
    drop(volume);

    let recording = Arc::new(Recording::with_data(device));
    let mut volume = Engine::open(recording.clone(), Options::new(|| support::NOW)).unwrap();
    recording.take_trace();
    let before = copy(recording.inner()).unwrap();
    let mut trace = Vec::new();
    // (number of requests at the promise, size)
    let mut promises = vec![(0, START * 4096)];
    use Verb::{Flush, Read, Write};
    let mut append = |volume: &mut Engine, at: u64, length: usize, wanted: &[(Verb, u64)]| {
        let content: Vec<u8> = (at..at + length as u64).map(|at| (at >> 12) as u8).collect();
        volume.begin(Caller::ADMIN).write(ino, at, &content).unwrap();
        volume.fsync(ino, SyncScope::Everything).unwrap();
        let new = recording.take_trace().into_iter().filter(|request| request.verb != Read);
        let new: Vec<_> = new.collect();
        let verbs: Vec<_> = new.iter().map(|request| (request.verb, request.length_bytes)).collect();
        assert_eq!(verbs, wanted);
        trace.extend(new);
        promises.push((trace.len(), at + length as u64));
    };
    for block in START..START + 5 {
        append(&mut volume, block * 4096, 4096, &[(Write, 4096), (Write, 4096), (Flush, 0)]);
    }
    // With half a block, only the inode states the file's end. Filling the block adds no new one.
    let half = (START + 5) * 4096;
    append(&mut volume, half, 2048, &[(Write, 4096), (Write, 8192), (Flush, 0)]);
    append(&mut volume, half + 2048, 2048, &[(Write, 4096), (Write, 4096), (Flush, 0)]);
    append(&mut volume, half + 4096, 6 * 4096, &[(Write, 24_576), (Write, 4096), (Flush, 0)]);
    volume.begin(Caller::ADMIN).truncate(ino, half).unwrap();
    append(&mut volume, half, 4096, &[(Write, 4096), (Write, 8192), (Flush, 0)]);
    drop(volume);

    for at in 0..=trace.len() {
        for survivors in [Survivors::All, Survivors::None] {
            let cut = copy(&before).unwrap();
            power_cut(&trace, at, &survivors, &cut).unwrap();
            let volume = Engine::open(Arc::new(cut), Options::new(|| support::NOW)).unwrap();
            let size = volume.stat(ino).unwrap().size;
            let last = promises.iter().rposition(|(requests, _)| *requests <= at).unwrap();
            let sizes: Vec<u64> = promises[last..].iter().take(2).map(|promise| promise.1).collect();
            assert!(sizes.contains(&size), "cut {at}: {size}, not one of {sizes:?}");
            let content = read(&volume, ino);
            assert!(content.iter().enumerate().all(|(at, byte)| *byte == (at >> 12) as u8), "cut {at}");
        }
    }
}

/// After the first fsync of a file, its overwritten blocks stay in place, and adjacent blocks are one write.
#[test]
fn neighbours_that_an_fsync_overwrites_in_place_are_one_write() {
    let device = Arc::new(Recording::without_data(MemoryDevice::new(BYTES)));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &[1; 1 << 20]).unwrap();
    volume.checkpoint().unwrap();
    volume.fsync(ino, SyncScope::Everything).unwrap();
    device.take_trace();
    volume.begin(Caller::ADMIN).write(ino, 40_960, &[2; 16_384]).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 20 * 4096, &[3; 4096]).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 22 * 4096 + 5, &[4; 4096]).unwrap();
    volume.fsync(ino, SyncScope::Everything).unwrap();
    let trace = device.take_trace();
    let verbs: Vec<_> = trace.iter().map(|request| (request.verb, request.length_bytes)).collect();
    use block::Verb::{Flush, Read, Write};
    assert_eq!(
        verbs,
        [(Read, 4096), (Read, 4096), (Write, 16_384), (Write, 4096), (Write, 8192), (Flush, 0)]
    );
    let mut content = vec![0; 1 << 20];
    volume.read(ino, 0, &mut content).unwrap();
    let wanted: Vec<u8> = (0..1 << 20)
        .map(|at| match at {
            40_960..57_344 => 2,
            81_920..86_016 => 3,
            90_117..94_213 => 4,
            _ => 1,
        })
        .collect();
    assert!(content == wanted);
}
