//! Bad sectors and the cleaning of sections.

use super::*;
use f2fs::engine::Caller;

/// The section most worth cleaning has a bad sector and cannot be cleaned. Others are cleaned instead.
#[test]
fn a_bad_sector_keeps_only_its_own_section_from_being_cleaned() {
    let inner = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(inner.clone(), &[], BlockSize::B4K);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &vec![1; 2500 * 4096]).unwrap();
    // One block of a segment stays, 24 of the next, 76 of another.
    for hole in [0..100, 101..1000, 1100..2400] {
        volume
            .begin(Caller::ADMIN)
            .punch_hole(ino, hole.start * 4096, (hole.end - hole.start) * 4096)
            .unwrap();
    }
    volume.unmount().unwrap();
    let bad = u64::from(volume.address(&volume.inode(ino).unwrap(), 100).unwrap().0) * 4096;
    drop(volume);
    let fault = Fault::ErrorIn { verb: Verb::Read, range: bad..bad + 4096 };
    let mut volume = open(Arc::new(Faulty::new(inner.clone(), vec![fault])), OnError::ReadOnly);
    let cleaned = volume.clean(1, Policy::Greedy).unwrap();
    assert_eq!((cleaned.sections, cleaned.moved_blocks), (1, 24));
    // Without another section, the caller gets the error.
    while let Ok(cleaned) = volume.clean(1, Policy::Greedy) {
        assert!(cleaned.sections > 0);
    }
    volume.unmount().unwrap();
    drop(volume);
    let volume = open(inner, OnError::ReadOnly);
    let mut found = vec![0; 100 * 4096];
    volume.read(ino, 1000 * 4096, &mut found).unwrap();
    assert!(found == [1; 100 * 4096]);
    volume.read(ino, 100 * 4096, &mut found[..4096]).unwrap();
    assert!(found[..4096] == [1; 4096]);
}

/// Makes a volume with a file of which one block stays in each of `segments` segments, and `last` in the last
/// one. Returns the addresses of the single blocks.
fn leave_one_of_each_segment(device: &Arc<Scratched>, segments: u64, last: u64) -> (Ino, Vec<BlockAddr>) {
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &vec![1; segments as usize * 512 * 4096]).unwrap();
    let addr_of = |volume: &Engine, block| volume.address(&volume.inode(ino).unwrap(), block).unwrap();
    let offset_of = |volume: &Engine, block| volume.geometry().position(addr_of(volume, block)).1;
    let first = (0..512).find(|block| offset_of(&volume, *block) == 0).unwrap();
    for n in 0..segments - 1 {
        let stay = if n == segments - 2 { last } else { 1 };
        let start = first + n * 512;
        volume.begin(Caller::ADMIN).punch_hole(ino, (start + stay) * 4096, (512 - stay) * 4096).unwrap();
    }
    volume.unmount().unwrap();
    (ino, (0..segments - 2).map(|n| addr_of(&volume, first + n * 512)).collect())
}

/// Any number of sections that cannot be emptied do not prevent others from being cleaned. If space runs
/// short, operations on other files do not get their error.
#[test]
fn many_bad_sectors_do_not_stop_the_cleaning_of_other_sections() {
    const SEGMENTS: u64 = 60;
    let device = Scratched::new(MemoryDevice::new(256 << 20));
    let (_, bad) = leave_one_of_each_segment(&device, SEGMENTS, 100);
    device.set(&bad);
    let mut volume = open(device.clone(), OnError::ReadOnly);
    let mut emptied = 0;
    for _ in 0..SEGMENTS {
        emptied += volume.clean(1, Policy::Greedy).map_or(0, |cleaned| cleaned.sections);
    }
    assert!(emptied > 0, "the one with a hundred blocks");
    // Without another section, the caller gets the error.
    assert!(matches!(volume.clean(1, Policy::Greedy), Err(Error::Io { .. })));
    volume.unmount().unwrap();
}

/// On a nearly full volume, each operation that opened a segment cleans sections. A bad sector in one of them
/// is not an error of an operation on another file.
#[test]
fn a_bad_sector_does_not_fail_a_writer_that_needs_space() {
    let device = Scratched::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    // Half of the nodes are freed again, so that only segments of nodes can be cleaned. Data fills its own
    // segments.
    let name = |n: u32| format!("file{n}");
    let inos: Vec<Ino> = (0..4000)
        .map(|n| volume.begin(Caller::ADMIN).create(ROOT, name(n).as_bytes(), &NewNode::new(FILE)).unwrap())
        .collect();
    volume.checkpoint().unwrap();
    for n in (1..4000).step_by(2) {
        volume.begin(Caller::ADMIN).unlink(ROOT, name(n).as_bytes()).unwrap();
    }
    volume.unmount().unwrap();
    let mut bad = BTreeMap::new();
    for ino in inos.iter().step_by(2) {
        let addr = volume.nat_entry((*ino).into()).unwrap().addr;
        bad.insert(volume.geometry().position(addr).0, addr);
    }
    drop(volume);
    device.set(&bad.into_values().collect::<Vec<_>>());
    let mut volume = open(device.clone(), OnError::ReadOnly);
    let full = volume.begin(Caller::ADMIN).create(ROOT, b"full", &NewNode::new(FILE)).unwrap();
    let refused =
        (0..).find_map(|n| volume.begin(Caller::ADMIN).write(full, n * 4096, &[1; 4096]).err()).unwrap();
    assert!(matches!(refused, Error::NoSpace { .. }), "{refused}");
    assert!(volume.read_only_reason().is_none());
    volume.unmount().unwrap();
}

/// In idle time only a few sections are tried at once, and once all have been tried, none until the next
/// checkpoint.
#[test]
fn idle_cleaning_tries_few_bad_sectors_at_once() {
    let device = Scratched::new(MemoryDevice::new(128 << 20));
    let (ino, bad) = leave_one_of_each_segment(&device, 20, 2);
    device.set(&bad);
    let mut volume = open(device.clone(), OnError::ReadOnly);
    let clean = |volume: &mut Engine| {
        let before = *device.failed.lock().unwrap();
        let cleaned = volume.clean_a_little(Policy::Greedy).is_ok_and(|cleaned| cleaned.sections > 0);
        (cleaned, *device.failed.lock().unwrap() - before)
    };
    let mut steps = Vec::new();
    while steps.last().is_none_or(|(cleaned, _)| !cleaned) {
        steps.push(clean(&mut volume));
        assert!(steps.len() < 20, "{steps:?}");
    }
    assert!(steps.iter().all(|(_, failed)| *failed <= 4) && steps.len() > 4, "{steps:?}");
    // The last of them was followed by a checkpoint.
    let again: Vec<_> = (0..10).map(|_| clean(&mut volume)).collect();
    assert_eq!(again.iter().map(|(_, failed)| failed).sum::<u64>(), bad.len() as u64, "{again:?}");
    device.set(&[]);
    assert_eq!(clean(&mut volume), (false, 0));
    volume.begin(Caller::ADMIN).write(ino, 0, &[2]).unwrap();
    volume.checkpoint().unwrap();
    assert_eq!(clean(&mut volume), (true, 0));
    volume.unmount().unwrap();
}

/// If the summary of a segment cannot be read, holes of other segments are filled.
#[test]
fn an_unreadable_summary_does_not_stop_the_filling_of_holes() {
    let device = Scratched::new(MemoryDevice::new(64 << 20));
    let (ino, singles) = leave_one_of_each_segment(&device, 8, 1);
    let mut volume = open(device.clone(), OnError::ReadOnly);
    let summary_of = |addr: &BlockAddr| {
        let geometry = volume.geometry();
        geometry.summary_block(geometry.position(*addr).0).0
    };
    device.set(&singles[1..].iter().map(summary_of).collect::<Vec<_>>());
    let mut written = 0;
    let refused = loop {
        match volume.begin(Caller::ADMIN).write(ino, (10_000 + written) * 4096, &[2; 4096]) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::NoSpace { .. }), "{written} blocks: {refused}");
    volume.unmount().unwrap();
    drop(volume);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    store(&device.inner, &path).unwrap();
    support::assert_clean(&path);
}

/// Holes stay unused only as long as the device does not answer.
#[test]
fn holes_are_filled_once_their_summaries_can_be_read() {
    let device = Scratched::new(MemoryDevice::new(128 << 20));
    let (ino, singles) = leave_one_of_each_segment(&device, 24, 1);
    let mut volume = open(device.clone(), OnError::ReadOnly);
    let summary_of = |addr: &BlockAddr| {
        let geometry = volume.geometry();
        geometry.summary_block(geometry.position(*addr).0).0
    };
    let fill = |volume: &mut Engine, from: u64| {
        let block = |n: &u64| volume.begin(Caller::ADMIN).write(ino, (10_000 + n) * 4096, &[2; 4096]).is_ok();
        (from..from + 20_000).take_while(block).count() as u64
    };
    device.set(&singles.iter().map(summary_of).collect::<Vec<_>>());
    let mut before = 0;
    for _ in 0..6 {
        before += fill(&mut volume, before);
        // Each log must be able to continue.
        assert!(matches!(volume.checkpoint(), Ok(()) | Err(Error::NoSpace { .. })));
        assert_eq!(volume.read_only_reason(), None);
    }
    device.set(&[]);
    let after = fill(&mut volume, before);
    assert!(after > 8 * 400, "{before} blocks before, {after} after");
    volume.unmount().unwrap();
    drop(volume);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    store(&device.inner, &path).unwrap();
    support::assert_clean(&path);
}
