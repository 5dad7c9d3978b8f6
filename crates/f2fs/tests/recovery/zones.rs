//! Fsyncs on volumes whose zones have several sections.

use super::*;
use f2fs::engine::Caller;

/// If a zone has two sections, the writes of an fsync lie in one zone. The data log follows the node log to a
/// new zone, and the chain of nodes that recovery follows stays whole.
#[test]
fn fsyncs_stay_in_a_zone_and_come_back() {
    const RECORDS: u64 = 2500;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::File::create(&path).and_then(|file| file.set_len(256 << 20)).unwrap();
    let mut volume = support::zoned(support::device(&path), 2);
    let file = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.checkpoint().unwrap();
    let record = |n: u64| [(n % 251) as u8; 4096];
    let mut together = 0;
    for n in 0..RECORDS {
        volume.begin(Caller::ADMIN).write(file, n * 4096, &record(n)).unwrap();
        volume.fsync(file, SyncScope::Everything).unwrap();
        if n % 100 == 99 {
            volume.checkpoint().unwrap();
            let logs = volume.last_checkpoint().logs;
            let zone = |kind: SegmentType| logs[kind.index()].segment.0 / 2;
            together += usize::from(zone(SegmentType::WarmData) == zone(SegmentType::WarmNode));
        }
    }
    assert!(together >= 24, "in one zone at {together} of 25 looks");
    for n in 0..1000 {
        volume.begin(Caller::ADMIN).write(file, n * 4096, &record(n + 1)).unwrap();
        volume.fsync(file, SyncScope::Everything).unwrap();
    }
    drop(volume);

    let mut volume = support::open(&path);
    let content = read(&volume, file);
    assert_eq!(content.len() as u64, RECORDS * 4096);
    for (n, block) in content.chunks_exact(4096).enumerate() {
        let wanted = if n < 1000 { record(n as u64 + 1) } else { record(n as u64) };
        assert!(block == wanted, "record {n}");
    }
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);
}

/// A database writes more data than nodes. If the data log has to leave the zone, the node log follows, and
/// the chain continues in the new place.
#[test]
fn nodes_follow_data_into_its_zone_and_are_found_there() {
    const RECORDS: u64 = 900;
    let device = Arc::new(Recording::without_data(MemoryDevice::new(256 << 20)));
    let mut volume = support::zoned(device.clone(), 2);
    let file = volume.begin(Caller::ADMIN).create(ROOT, b"a.db", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(file, 0, &[0; 40 * 4096]).unwrap();
    volume.checkpoint().unwrap();
    let geometry = *volume.geometry();
    let mut wanted = vec![0; 40 * 4096];
    let (mut apart, mut zones) = (0, Vec::<u32>::new());
    for n in 0..RECORDS {
        let (at, record) = (n as usize * 7 % 38 * 4096, [(n % 251) as u8 + 1; 3 * 4096]);
        device.take_trace();
        volume.begin(Caller::ADMIN).write(file, at as u64, &record).unwrap();
        volume.fsync(file, SyncScope::Everything).unwrap();
        wanted[at..at + record.len()].copy_from_slice(&record);
        let writes = device.take_trace().into_iter().filter(|request| request.verb == Verb::Write);
        let mut of_fsync: Vec<u32> = writes
            .map(|request| geometry.position(BlockAddr((request.offset_bytes / 4096) as u32)).0.0 / 2)
            .collect();
        of_fsync.dedup();
        apart += usize::from(of_fsync.len() > 1);
        zones.extend(of_fsync.last().copied());
        if n % 10 == 9 {
            let left = Engine::open(device.clone(), Options::read_only()).unwrap();
            assert!(read(&left, file) == wanted, "after {n} fsyncs without a checkpoint");
        }
    }
    zones.dedup();
    assert!(zones.len() >= 4, "nodes were in {zones:?}");
    assert!(apart <= zones.len() * 2, "{apart} fsyncs wrote to two zones");
}

/// A stream leaves the data log in a zone without space for the node log. Fsyncs that follow bring the two logs together
/// again, and roll-forward finds the nodes.
#[test]
fn fsyncs_after_a_stream_are_soon_in_one_zone_again() {
    let base = Arc::new(MemoryDevice::new(256 << 20));
    let device = Arc::new(Recording::without_data(base.clone()));
    let mut volume = support::zoned(device.clone(), 2);
    volume.checkpoint().unwrap();
    let geometry = *volume.geometry();
    let mut rng = Rng::new(8);
    for blocks in [256, 512, 1024, 1400] {
        let name = format!("f{blocks}").into_bytes();
        let file = volume.begin(Caller::ADMIN).create(ROOT, &name, &NewNode::new(FILE)).unwrap();
        volume.begin(Caller::ADMIN).write(file, 0, &vec![0; blocks * 4096]).unwrap();
        volume.fsync(file, SyncScope::Everything).unwrap();
        let (mut apart, mut wanted) = (0, vec![0; blocks * 4096]);
        for n in 0..blocks {
            let (block, byte) = (rng.below(blocks as u64) as usize, (n % 251) as u8 + 1);
            device.take_trace();
            volume.begin(Caller::ADMIN).write(file, block as u64 * 4096, &[byte; 4096]).unwrap();
            volume.fsync(file, SyncScope::Everything).unwrap();
            wanted[block * 4096..][..4096].fill(byte);
            let writes = device.take_trace().into_iter().filter(|request| request.verb == Verb::Write);
            let addrs = writes.map(|request| BlockAddr((request.offset_bytes / 4096) as u32));
            let in_main = addrs.filter(|addr| geometry.in_main(*addr));
            let mut zones: Vec<u32> = in_main.map(|addr| geometry.position(addr).0.0 / 2).collect();
            zones.dedup();
            apart += usize::from(zones.len() > 1);
        }
        // At most a twelfth of the blocks of two segments, and those fsyncs in which a log moves.
        assert!(apart <= 1024 / 12 + 8, "{blocks} blocks: {apart} fsyncs wrote to two zones");
        let left = Engine::open(device.clone(), Options::read_only()).unwrap();
        assert!(read(&left, file) == wanted, "{blocks} blocks: after the fsyncs without a checkpoint");
    }
    volume.unmount().unwrap();
    drop(volume);
    model::fsck::fsck(&base).unwrap();
}

/// Makes a volume with zones of two sections after long use, in which no zone is wholly free. It has a file
/// of `blocks` blocks.
fn aged_volume(device: Arc<dyn Device>, blocks: usize) -> (Engine, Ino) {
    let (volume, file) = support::long_used(device, 2, blocks);
    let last = volume.last_checkpoint();
    assert!(last.free_segments <= 2 * last.reserved_segments, "{} free segments", last.free_segments);
    (volume, file)
}

/// On an aged volume, too, the data and the nodes of an fsync lie in one zone.
#[test]
fn fsyncs_find_a_zone_on_an_aged_volume() {
    const RECORDS: u64 = 1500;
    const BLOCKS: usize = 600;
    let device = Arc::new(Recording::without_data(MemoryDevice::new(256 << 20)));
    let (mut volume, file) = aged_volume(device.clone(), BLOCKS);
    let geometry = *volume.geometry();
    let (mut rng, mut apart, mut zones) = (Rng::new(4), 0, Vec::<u32>::new());
    for n in 0..RECORDS {
        device.take_trace();
        volume
            .begin(Caller::ADMIN)
            .write(file, rng.below(BLOCKS as u64) * 4096, &[(n % 251) as u8; 4096])
            .unwrap();
        volume.fsync(file, SyncScope::Everything).unwrap();
        let writes = device.take_trace().into_iter().filter(|request| request.verb == Verb::Write);
        let addrs = writes.map(|request| BlockAddr((request.offset_bytes / 4096) as u32));
        let in_main = addrs.filter(|addr| geometry.in_main(*addr));
        let mut of_fsync: Vec<u32> = in_main.map(|addr| geometry.position(addr).0.0 / 2).collect();
        of_fsync.dedup();
        apart += usize::from(of_fsync.len() > 1);
        zones.extend(of_fsync.last().copied());
    }
    zones.dedup();
    assert!(zones.len() >= 3, "nodes were in {zones:?}");
    assert!(apart <= 30, "{apart} of {RECORDS} fsyncs wrote to two zones");
}

/// Wherever the power fails there, fsynced data is found in the logs' new places. `AGED_CUTS` sets the number
/// of cuts.
#[test]
fn fsyncs_on_an_aged_volume_survive_cuts() {
    const BLOCKS: usize = 300;
    const BYTES: u64 = 112 << 20;
    let cuts = std::env::var("AGED_CUTS").map_or(24, |cuts| cuts.parse().unwrap());
    let base = Arc::new(MemoryDevice::new(BYTES));
    let (mut volume, file) = aged_volume(base.clone(), BLOCKS);
    volume.unmount().unwrap();
    drop(volume);

    let device = Arc::new(Recording::with_data(copy(&base).unwrap()));
    let options = || Options { in_place: InPlace::Never, ..Options::new(|| support::NOW) };
    let mut volume = Engine::open(device.clone(), options()).unwrap();
    let geometry = *volume.geometry();
    let zone = |addr: BlockAddr| geometry.position(addr).0.0 / 2;
    let (mut rng, mut zones) = (Rng::new(5), Vec::new());
    let mut records: Vec<(usize, u8, usize)> = Vec::new();
    for n in 0..700usize {
        let (block, byte) = (rng.below(BLOCKS as u64) as usize, (n % 251) as u8);
        volume.begin(Caller::ADMIN).write(file, block as u64 * 4096, &[byte; 4096]).unwrap();
        volume.fsync(file, [SyncScope::Data, SyncScope::Everything][n % 2]).unwrap();
        records.push((block, byte, device.trace().len()));
        // Other files are written, too, but not synced.
        let name = |n: usize| format!("other{n}").into_bytes();
        if n % 20 == 0 {
            let other = volume.begin(Caller::ADMIN).create(ROOT, &name(n), &NewNode::new(FILE)).unwrap();
            volume.begin(Caller::ADMIN).write(other, 0, &vec![3; rng.below(60) as usize * 4096]).unwrap();
        }
        match n % 100 {
            50 => volume.begin(Caller::ADMIN).unlink(ROOT, &name(n / 20 * 20)).unwrap(),
            99 => drop(volume.clean(1, Policy::Greedy).unwrap()),
            _ => {}
        }
        zones.push(zone(volume.nat_entry(file.into()).unwrap().addr));
    }
    drop(volume);
    zones.dedup();
    assert!(zones.len() > 3, "nodes were in {zones:?}");

    let trace = device.take_trace();
    let dir = tempfile::tempdir().unwrap();
    for n in 0..cuts {
        let at = rng.below(trace.len() as u64) as usize;
        let survivors = match n % 3 {
            0 => Survivors::None,
            1 => Survivors::All,
            _ => Survivors::Mask(rng.next_u64()),
        };
        let left = Arc::new(copy(&base).unwrap());
        power_cut(&trace, at, &survivors, &*left).unwrap();
        let mut volume = Engine::open(left.clone(), options()).unwrap();
        let content = read(&volume, file);
        let mut wanted = vec![1; BLOCKS];
        let promised = records.partition_point(|(_, _, end)| *end <= at);
        records[..promised].iter().for_each(|(block, byte, _)| wanted[*block] = *byte);
        // The node of the fsync that was under way may be present without the data.
        let under_way = records.get(promised).map(|(block, ..)| *block);
        for (block, byte) in wanted.iter().enumerate().filter(|(block, _)| Some(*block) != under_way) {
            let found = &content[block * 4096..][..4096];
            assert!(found.iter().all(|one| one == byte), "cut at {at}, {survivors:?}: block {block}");
        }
        if n % 8 == 0 {
            volume.unmount().unwrap();
            drop(volume);
            let path = dir.path().join("image");
            store(&left, &path).unwrap();
            support::assert_clean(&path);
        }
    }
}
