//! Volumes in long use.

use std::sync::Arc;

use block::{Device, MemoryDevice, Rng};
use f2fs::{
    Error,
    engine::{Caller, Engine, NewNode, Options},
    units::{Ino, Time},
};
use guest::Entry;
use model::{Setup, fsck, manifest::manifest_of};

use super::{lines, report};

pub const ROOT: Ino = Ino(3);
pub const FILE: u16 = 0o100_644;
pub const MIB: u64 = 1 << 20;
const NOW: Time = Time { seconds: 1_700_000_000, nanoseconds: 0 };

/// The options of a kind of volume.
pub fn options(setup: &Setup) -> Options {
    let settings = setup.settings;
    Options {
        active_logs: settings.active_logs,
        in_place: settings.in_place,
        cache_bytes: settings.cache_bytes,
        inline_data: settings.inline,
        inline_dentry: settings.inline,
        ..Options::new(|| NOW)
    }
}

/// Fills a volume to `percent` of its capacity with files, of which many are removed and overwritten on the way, so that
/// most segments are used in part.
pub fn age(device: Arc<dyn Device>, options: Options, percent: u64, seed: u64) {
    let mut volume = Engine::open(device, options).unwrap();
    let capacity = volume.last_checkpoint().user_blocks;
    let block_bytes = volume.superblock().block_size.bytes() as u64;
    let mut rng = Rng::new(seed);
    let mut files: Vec<(u64, Ino)> = Vec::new();
    let (mut next, mut churn) = (0, 0);
    while churn < 150 {
        let used = capacity - volume.free_user_blocks();
        let is_full = used * 100 >= capacity * percent;
        churn += u64::from(is_full);
        if (is_full || rng.chance(0.3)) && !files.is_empty() {
            let (name, ino) = files.swap_remove(rng.below(files.len() as u64) as usize);
            if rng.chance(0.5) {
                let length = rng.below(6 * block_bytes) as usize + 1;
                match volume.begin(Caller::ADMIN).write(
                    ino,
                    rng.below(20 * block_bytes),
                    &vec![seed as u8; length],
                ) {
                    Ok(()) | Err(Error::NoSpace { .. }) => files.push((name, ino)),
                    Err(error) => panic!("{error}"),
                }
                continue;
            }
            volume.begin(Caller::ADMIN).unlink(ROOT, format!("file {seed} {name}").as_bytes()).unwrap();
            continue;
        }
        let ino = volume
            .begin(Caller::ADMIN)
            .create(ROOT, format!("file {seed} {next}").as_bytes(), &NewNode::new(FILE))
            .unwrap();
        let length = if rng.chance(0.3) { rng.below(3000) } else { rng.below(capacity * block_bytes / 80) };
        let content: Vec<u8> = (0..length).map(|n| (n / 7 + next * 31) as u8).collect();
        match volume.begin(Caller::ADMIN).write(ino, 0, &content) {
            Ok(()) => files.push((next, ino)),
            Err(Error::NoSpace { .. }) => {
                volume.begin(Caller::ADMIN).unlink(ROOT, format!("file {seed} {next}").as_bytes()).unwrap()
            }
            Err(error) => panic!("{error}"),
        }
        next += 1;
    }
    volume.unmount().unwrap();
}

/// The files of a volume.
pub fn entries(device: &Arc<MemoryDevice>) -> Vec<Entry> {
    let volume = Engine::open(device.clone(), Options::read_only()).unwrap();
    manifest_of(&volume).entries
}

/// Fails unless a volume has exactly these files, and is clean for our checker and for fsck.f2fs.
pub fn assert_good(device: &Arc<MemoryDevice>, files: &[Entry], what: &str) {
    assert!(entries(device) == files, "{what}: the files differ");
    let report = report(device.clone());
    assert!(report.is_clean(), "{what}: {}", lines(&report));
    fsck::fsck(device).unwrap_or_else(|error| panic!("{what}: {error:#}"));
}
