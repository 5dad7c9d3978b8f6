//! Volumes with `mode=lfs`: logs only append, and cleaning keeps sections free for them also on a full volume.

mod support;

use std::sync::Arc;

use block::{MemoryDevice, Rng};
use f2fs::{
    Error,
    engine::{Caller, Engine, Mode, NewNode, Options, SyncScope},
    units::Ino,
};

const ROOT: Ino = Ino(3);
const FILE: u16 = 0o100_644;
const BLOCK: u64 = 4096;

fn options(mode: Mode) -> Options {
    Options { mode, ..Options::new(|| support::NOW) }
}

/// Makes a volume, and opens it with logs that only append.
fn new_volume(bytes: u64, arguments: &[&str]) -> (Arc<MemoryDevice>, Engine) {
    let file = tempfile::NamedTempFile::new().unwrap();
    support::mkfs(file.path(), bytes, arguments);
    let device = Arc::new(model::setup::load(file.path()).unwrap());
    let volume = Engine::open(device.clone(), options(Mode::Lfs)).unwrap();
    (device, volume)
}

/// Writes to a new file until the volume is full. Returns the file and its blocks.
fn fill(volume: &mut Engine, name: &[u8]) -> (Ino, u64) {
    let file = volume.begin(Caller::ADMIN).create(ROOT, name, &NewNode::new(FILE)).unwrap();
    let mut blocks = 0;
    loop {
        match volume.begin(Caller::ADMIN).write(file, blocks * BLOCK, &[1; BLOCK as usize]) {
            Ok(()) => blocks += 1,
            Err(Error::NoSpace { .. }) => return (file, blocks),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Panics if a log has filled holes since the volume was made.
fn assert_appended(volume: &Engine) {
    for log in volume.last_checkpoint().logs {
        assert!(!log.mode.is_ssr(), "{log:?}");
    }
}

/// Removes a share of the blocks that the volume has for users, in blocks at random places.
fn punch(volume: &mut Engine, file: Ino, blocks: u64, rng: &mut Rng, percent: u64) {
    let wanted = volume.last_checkpoint().user_blocks * percent / 100;
    while volume.free_user_blocks() < wanted {
        volume.begin(Caller::ADMIN).punch_hole(file, rng.below(blocks) * BLOCK, BLOCK).unwrap();
    }
}

#[test]
fn a_full_volume_is_overwritten_at_random_without_filling_holes() {
    for (mib, arguments) in [
        (56, &[][..]),
        (64, &["-O", "extra_attr,inode_checksum"]),
        (128, &[]),
        (192, &["-s", "2", "-z", "2"]),
    ] {
        let (device, mut volume) = new_volume(mib << 20, arguments);
        let (file, blocks) = fill(&mut volume, b"file");
        assert!(volume.free_user_blocks() <= 2, "{} are free", volume.free_user_blocks());
        let mut rng = Rng::new(mib);
        for free_percent in [0, 3, 10] {
            punch(&mut volume, file, blocks, &mut rng, free_percent);
            for round in 0..blocks / 2 {
                let block = rng.below(blocks);
                let done = volume.begin(Caller::ADMIN).write(file, block * BLOCK, &[2; BLOCK as usize]);
                if let Err(error @ Error::NoSpace { needed_bytes, free_bytes }) = &done {
                    assert!(needed_bytes > free_bytes, "{mib} MiB, {free_percent} % free: {error}");
                } else {
                    done.unwrap();
                }
                if round % 64 == 0 {
                    volume.fsync(file, SyncScope::Everything).unwrap();
                    assert_appended(&volume);
                }
            }
        }
        volume.unmount().unwrap();
        assert_appended(&volume);
        drop(volume);
        model::fsck::fsck(&device).unwrap();
    }
}

/// A removal writes nodes and directories before it frees a block.
#[test]
fn files_are_removed_from_a_full_volume_and_its_space_is_used_again() {
    let (device, mut volume) = new_volume(64 << 20, &[]);
    let mut files = Vec::new();
    for turn in 0..6 {
        loop {
            let name = format!("{turn}-{}", files.len()).into_bytes();
            let done =
                volume.begin(Caller::ADMIN).create(ROOT, &name, &NewNode::new(FILE)).and_then(|file| {
                    files.push(name);
                    volume.begin(Caller::ADMIN).write(file, 0, &[turn; 5000])
                });
            match done {
                Ok(()) => {}
                Err(Error::NoSpace { needed_bytes, free_bytes }) if needed_bytes > free_bytes => break,
                Err(error) => panic!("{error}"),
            }
        }
        let mut n = 0;
        files.retain(|name| {
            n += 1;
            let stays = n % 3 == 0;
            if !stays {
                volume.begin(Caller::ADMIN).unlink(ROOT, name).unwrap();
            }
            stays
        });
        volume.checkpoint().unwrap();
        assert_appended(&volume);
    }
    volume.unmount().unwrap();
    drop(volume);
    model::fsck::fsck(&device).unwrap();
}

#[test]
fn a_volume_that_was_full_in_adaptive_mode_goes_on_appending() {
    let (device, volume) = new_volume(64 << 20, &[]);
    drop(volume);
    let mut volume = Engine::open(device.clone(), options(Mode::Adaptive)).unwrap();
    let (file, blocks) = fill(&mut volume, b"file");
    let mut rng = Rng::new(9);
    for _ in 0..blocks {
        volume.begin(Caller::ADMIN).write(file, rng.below(blocks) * BLOCK, &[2; BLOCK as usize]).unwrap();
    }
    volume.unmount().unwrap();
    assert!(volume.last_checkpoint().logs.iter().any(|log| log.mode.is_ssr()), "logs have filled holes");
    drop(volume);
    let mut volume = Engine::open(device.clone(), options(Mode::Lfs)).unwrap();
    for _ in 0..2 * blocks {
        volume.begin(Caller::ADMIN).write(file, rng.below(blocks) * BLOCK, &[3; BLOCK as usize]).unwrap();
    }
    volume.unmount().unwrap();
    // Logs that had nothing to write are still in their segments.
    let warm = volume.last_checkpoint().logs[f2fs::format::sit::SegmentType::WarmData.index()];
    assert!(!warm.mode.is_ssr(), "{warm:?}");
    drop(volume);
    model::fsck::fsck(&device).unwrap();
}

#[test]
fn logs_that_only_append_are_refused_without_checkpoints() {
    let (device, volume) = new_volume(64 << 20, &[]);
    drop(volume);
    let error = Engine::open(device, Options { checkpoint_when_asked: true, ..options(Mode::Lfs) }).err();
    assert!(matches!(error, Some(Error::Invalid(_))), "{error:?}");
}
