//! Volumes that are nearly full and written continuously.

mod support;

use std::sync::Arc;

use block::{Counted, MemoryDevice, Rng};
use f2fs::{
    Error,
    engine::{ActiveLogs, Caller, Engine, InPlace, NewNode, Options, Policy, SyncScope},
    format::BlockSize,
    mkfs::{self, DeviceContent, DeviceSize, NewVolume, Plan},
    units::Ino,
};

const ROOT: Ino = Ino(3);
const FILE: u16 = 0o100_644;

/// Fills a volume up to a share of its user blocks, with one large and many small files.
fn fill(volume: &mut Engine, share: f64) -> (Ino, u64) {
    let user_blocks = volume.last_checkpoint().user_blocks;
    let goal = (user_blocks as f64 * share) as u64;
    let big = volume.begin(Caller::ADMIN).create(ROOT, b"big", &NewNode::new(FILE)).unwrap();
    let mut blocks = 0;
    while volume.counters().valid_blocks < goal {
        volume.begin(Caller::ADMIN).write(big, blocks * 4096, &[blocks as u8; 4096]).unwrap();
        blocks += 1;
        if blocks % 50 == 0 {
            let small = volume
                .begin(Caller::ADMIN)
                .create(ROOT, format!("small{blocks}").as_bytes(), &NewNode::new(FILE))
                .unwrap();
            volume.begin(Caller::ADMIN).write(small, 0, &[1; 6000]).unwrap();
        }
    }
    (big, blocks)
}

#[test]
fn random_overwrites_succeed_at_95_percent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    for (arguments, bytes, share) in
        [(&[][..], 64 << 20, 0.95), (&["-s", "2"][..], 192 << 20, 0.95), (&[][..], 128 << 20, 0.99)]
    {
        support::mkfs(&path, bytes, arguments);
        let options = Options { in_place: InPlace::Never, ..Options::new(|| support::NOW) };
        let mut volume = Engine::open(support::device(&path), options).unwrap();
        let (big, blocks) = fill(&mut volume, share);
        let mut rng = Rng::new(1);
        let mut marks = vec![0u8; blocks as usize];
        let (before, rounds) = (volume.io().written_blocks(), 3 * blocks);
        for n in 0..rounds {
            let block = rng.below(blocks);
            marks[block as usize] = n as u8 | 1;
            volume.begin(Caller::ADMIN).write(big, block * 4096, &[n as u8 | 1; 4096]).unwrap();
        }
        volume.unmount().unwrap();
        let amplification = (volume.io().written_blocks() - before) as f64 / rounds as f64;
        println!("{arguments:?} {share}: write amplification {amplification:.2}");
        assert!(amplification < 8.0, "{arguments:?}: {amplification}");
        drop(volume);
        support::assert_clean(&path);
        let volume = support::open_read_only(&path);
        let mut buf = [0; 1];
        for (block, mark) in marks.iter().enumerate().filter(|(_, mark)| **mark != 0) {
            volume.read(big, block as u64 * 4096, &mut buf).unwrap();
            assert_eq!(buf[0], *mark, "block {block}");
        }
    }
}

#[test]
fn cleaning_frees_sections_and_keeps_all_data() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 128 << 20, &["-O", "extra_attr,inode_checksum"]);
    let mut volume = support::open(&path);
    let mut files = Vec::new();
    for n in 0..1500u32 {
        let ino = volume
            .begin(Caller::ADMIN)
            .create(ROOT, format!("f{n}").as_bytes(), &NewNode::new(FILE))
            .unwrap();
        volume.begin(Caller::ADMIN).write(ino, 0, &vec![n as u8; 30_000]).unwrap();
        files.push(ino);
    }
    volume.checkpoint().unwrap();
    for n in (0..1500).filter(|n| n % 4 != 0) {
        volume.begin(Caller::ADMIN).unlink(ROOT, format!("f{n}").as_bytes()).unwrap();
    }
    volume.checkpoint().unwrap();
    let free = volume.last_checkpoint().free_segments;
    for policy in [Policy::Greedy, Policy::CostBenefit, Policy::AgeThreshold] {
        let cleaned = volume.clean(5, policy).unwrap();
        assert_eq!(cleaned.sections, 5);
        assert!(cleaned.moved_blocks > 0);
    }
    assert!(volume.last_checkpoint().free_segments > free + 4);
    assert!(volume.trim(1).unwrap() > 10_000);
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);
    let volume = support::open_read_only(&path);
    for n in (0..1500).step_by(4) {
        let mut content = vec![0; 40_000];
        assert_eq!(volume.read(files[n], 0, &mut content).unwrap(), 30_000);
        assert!(content[..30_000].iter().all(|byte| *byte == n as u8));
    }
}

/// Free sections run short on a volume that was used for long, although two fifths of it are free. Zones with few valid
/// blocks are emptied then, so that streams are appended, and after some time hardly anything is left to move.
#[test]
fn streams_are_appended_on_a_long_used_volume() {
    const BLOCKS: usize = 2048;
    const ROUNDS: u64 = 20;
    for sections_per_zone in [1, 2] {
        let base = Arc::new(MemoryDevice::new(256 << 20));
        let device = Arc::new(Counted::new(base.clone()));
        let (mut volume, file) = support::long_used(device.clone(), sections_per_zone, BLOCKS);
        let mut writes = Vec::new();
        for round in 0..ROUNDS {
            device.take_counts();
            let before = volume.io().written_blocks();
            for block in 0..BLOCKS as u64 {
                volume.begin(Caller::ADMIN).write(file, block * 4096, &[round as u8; 4096]).unwrap();
            }
            volume.fsync(file, SyncScope::Everything).unwrap();
            writes.push((device.take_counts().writes, volume.io().written_blocks() - before));
        }
        let last = &writes[ROUNDS as usize - 5..];
        for (requests, blocks) in last {
            assert!(*requests <= 120, "{sections_per_zone}: {requests} requests of {writes:?}");
            assert!(*blocks <= BLOCKS as u64 * 12 / 10, "{sections_per_zone}: {blocks} blocks of {writes:?}");
        }
        volume.unmount().unwrap();
        drop(volume);
        model::fsck::fsck(&base).unwrap();
        let volume = Engine::open(device, Options::read_only()).unwrap();
        let mut content = vec![0; BLOCKS * 4096];
        volume.read(file, 0, &mut content).unwrap();
        assert!(content.iter().all(|byte| *byte == ROUNDS as u8 - 1));
    }
}

/// Cleaning reads adjacent blocks together.
#[test]
fn cleaning_reads_neighbours_together() {
    let device = Arc::new(Counted::new(MemoryDevice::new(128 << 20)));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &vec![1; 3000 * 4096]).unwrap();
    // In each segment the blocks of some runs of 64 stay.
    for run in (0..3000 / 128).map(|n| n * 128) {
        volume.begin(Caller::ADMIN).punch_hole(ino, run * 4096, 64 * 4096).unwrap();
    }
    volume.checkpoint().unwrap();
    device.take_counts();
    let cleaned = volume.clean(3, Policy::Greedy).unwrap();
    let reads = device.take_counts().reads;
    assert!(cleaned.moved_blocks >= 3 * 256, "{cleaned:?}");
    assert!(reads <= cleaned.moved_blocks / 16, "{reads} reads for {cleaned:?}");
    volume.unmount().unwrap();
    let mut content = vec![0; 3000 * 4096];
    volume.read(ino, 0, &mut content).unwrap();
    for (n, block) in content.chunks_exact(4096).enumerate() {
        let byte = if n < 3000 / 128 * 128 && n % 128 < 64 { 0 } else { 1 };
        assert!(block.iter().all(|one| *one == byte), "block {n}");
    }
}

#[test]
fn a_volume_that_is_filled_and_emptied_over_and_over_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &[]);
    let mut volume = support::open(&path);
    let mut rng = Rng::new(5);
    let mut live: Vec<(String, u64)> = Vec::new();
    let mut refused = 0;
    for n in 0..4000u64 {
        let name = format!("f{n}");
        let size = rng.below(100_000);
        let made = volume
            .begin(Caller::ADMIN)
            .create(ROOT, name.as_bytes(), &NewNode::new(FILE))
            .and_then(|ino| volume.begin(Caller::ADMIN).write(ino, 0, &vec![n as u8; size as usize]));
        match made {
            Ok(()) => live.push((name, size)),
            Err(Error::NoSpace { .. }) => {
                refused += 1;
                let _ = volume.begin(Caller::ADMIN).unlink(ROOT, name.as_bytes());
                for _ in 0..live.len() / 5 {
                    let (gone, _) = live.swap_remove(rng.below(live.len() as u64) as usize);
                    volume.begin(Caller::ADMIN).unlink(ROOT, gone.as_bytes()).unwrap();
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused > 10, "{refused}");
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);
    let volume = support::open_read_only(&path);
    for (name, size) in live {
        let ino = volume.lookup(ROOT, name.as_bytes()).unwrap();
        assert_eq!(volume.stat(ino).unwrap().size, size);
    }
}

#[test]
fn nodes_and_data_take_turns_on_a_nearly_full_volume() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let cases = [
        (&[][..], 96 << 20, ActiveLogs::Six),
        (&["-s", "2"][..], 256 << 20, ActiveLogs::Four),
        (&[][..], 80 << 20, ActiveLogs::Two),
    ];
    for (arguments, bytes, active_logs) in cases {
        support::mkfs(&path, bytes, arguments);
        let options = Options { active_logs, cache_bytes: 1 << 20, ..Options::new(|| support::NOW) };
        let mut volume = Engine::open(support::device(&path), options).unwrap();
        let (big, blocks) = fill(&mut volume, 0.9);
        let mut rng = Rng::new(9);
        let mut small = Vec::new();
        let mut refused = 0;
        for n in 0..5_000u64 {
            // Inodes are made and removed between overwrites, so that segments of both kinds must be found.
            if rng.chance(0.55) {
                let name = format!("n{n}");
                match volume.begin(Caller::ADMIN).create(ROOT, name.as_bytes(), &NewNode::new(FILE)) {
                    Ok(ino) => {
                        small.push((name, ino));
                        if rng.chance(0.1) {
                            volume.fsync(ino, SyncScope::Everything).unwrap();
                        }
                    }
                    Err(Error::NoSpace { .. }) => refused += 1,
                    Err(error) => panic!("{arguments:?}: {error}"),
                }
            } else if !small.is_empty() && (refused > 0 || rng.chance(0.2)) {
                refused = 0;
                for _ in 0..small.len().min(20) {
                    let (name, _) = small.swap_remove(rng.below(small.len() as u64) as usize);
                    volume.begin(Caller::ADMIN).unlink(ROOT, name.as_bytes()).unwrap();
                }
            } else {
                let at = rng.below(blocks) * 4096;
                volume.begin(Caller::ADMIN).write(big, at, &[n as u8; 4096]).unwrap();
            }
        }
        volume.unmount().unwrap();
        drop(volume);
        support::assert_clean(&path);
        let volume = support::open_read_only(&path);
        for (name, ino) in small {
            assert_eq!(volume.lookup(ROOT, name.as_bytes()).unwrap(), ino);
        }
    }
}

/// A caller with much memory may keep more changes than the volume has free sections. They are written before
/// they no longer fit, and fsyncs of new files, whose nodes take the last free sections, leave space for
/// them.
#[test]
fn dirty_data_never_exceeds_the_free_space() {
    const BYTES: u64 = 128 << 20;
    for in_place in [InPlace::Never, InPlace::Fsync] {
        let device = Arc::new(MemoryDevice::new(BYTES));
        let zoned = mkfs::Options { sections_per_zone: 2, ..mkfs::Options::new([7; 16]) };
        let plan = Plan::new(&zoned, &[DeviceSize { path: String::new(), bytes: BYTES }]).unwrap();
        let options = Options { in_place, cache_bytes: 1 << 30, ..Options::new(|| support::NOW) };
        let mut volume = NewVolume::begin(device.clone(), &plan, DeviceContent::Zeroes, options)
            .unwrap()
            .finish()
            .unwrap();
        let mut rng = Rng::new(1);
        let (big, blocks) = fill(&mut volume, 0.88);
        volume.checkpoint().unwrap();
        let goal = volume.last_checkpoint().user_blocks * 95 / 100;
        let mut mails = Vec::new();
        for round in 0..6u8 {
            for n in 0..1200 {
                let name = format!("mail{round}.{n}");
                let ino =
                    volume.begin(Caller::ADMIN).create(ROOT, name.as_bytes(), &NewNode::new(FILE)).unwrap();
                volume.begin(Caller::ADMIN).write(ino, 0, &vec![3; rng.below(6000) as usize]).unwrap();
                volume.fsync(ino, SyncScope::Everything).unwrap();
                mails.push((name, ino));
                if volume.counters().valid_blocks > goal {
                    let (name, _) = mails.swap_remove(rng.below(mails.len() as u64) as usize);
                    volume.begin(Caller::ADMIN).unlink(ROOT, name.as_bytes()).unwrap();
                }
            }
            match round % 3 {
                // Parts of blocks stay in memory, and so do nodes. Whole blocks go to the log at once.
                0 => (0..blocks).for_each(|block| {
                    volume.begin(Caller::ADMIN).write(big, block * 4096 + 100, &[round; 2000]).unwrap()
                }),
                1 => mails
                    .iter()
                    .for_each(|(_, ino)| volume.begin(Caller::ADMIN).write(*ino, 0, &[round; 4]).unwrap()),
                _ => volume.begin(Caller::ADMIN).write(big, 0, &vec![round; blocks as usize * 4096]).unwrap(),
            }
            let (name, ino) = mails.swap_remove(rng.below(mails.len() as u64) as usize);
            volume.begin(Caller::ADMIN).truncate(ino, 10).unwrap();
            volume.begin(Caller::ADMIN).unlink(ROOT, name.as_bytes()).unwrap();
            volume.checkpoint().unwrap();
        }
        volume.unmount().unwrap();
        drop(volume);
        model::fsck::fsck(&device).unwrap();
        let volume = Engine::open(device, Options::read_only()).unwrap();
        let mut content = vec![0; blocks as usize * 4096];
        volume.read(big, 0, &mut content).unwrap();
        assert!(content.iter().all(|byte| *byte == 5));
    }
}
