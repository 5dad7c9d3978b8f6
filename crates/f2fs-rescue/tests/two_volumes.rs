//! Two volumes on one device, where the superblock of one is lost, or those of both.

mod support;

#[path = "support/volume.rs"]
mod volume;

use std::sync::Arc;

use block::{Device, MemoryDevice};
use f2fs::{OpenOptions, mkfs};
use f2fs_rescue::Options;
use support::{compare, overwrite, rescued, tree_of};
use volume::{NOW, content};

const MIB: u64 = 1 << 20;
const VOLUME_BYTES: u64 = 64 * MIB;
/// Bytes that hold both superblocks.
const SUPERBLOCKS: u64 = 8192;
/// Start of the volume with many files.
const LARGE: u64 = MIB;

/// A volume with so many files.
fn volume_of(files: u32, name: &str) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES));
    let options = mkfs::Options::new([files as u8; 16]);
    let volume = OpenOptions::new().clock(|| NOW).make(device.clone(), &options).expect("a volume");
    for n in 0..files {
        volume.write(format!("/{name}-{n}"), content(n, 30_000)).expect("there is space");
    }
    volume.close().expect("in memory");
    device
}

/// A disk with a volume of 40 files, and over it, from `start` on, one of `files`. The superblocks of the volumes at `lost` are
/// zero.
fn disk(files: u32, start: u64, lost: &[u64]) -> Arc<MemoryDevice> {
    let disk = Arc::new(MemoryDevice::new(LARGE + start + VOLUME_BYTES));
    let mut page = vec![0; 4096];
    for (volume, at) in [(volume_of(40, "large"), LARGE), (volume_of(files, "small"), start)] {
        for offset in volume.allocated_pages() {
            volume.read(offset, &mut page).expect("in memory");
            disk.write(offset + at, &page).expect("in memory");
        }
    }
    lost.iter().for_each(|at| overwrite(&disk, *at..*at + SUPERBLOCKS, 0));
    disk
}

#[test]
fn of_two_volumes_the_one_whose_superblock_stands_counts() {
    let start = LARGE + VOLUME_BYTES;
    let expected = tree_of(volume_of(4, "small"));
    let result = rescued(disk(4, start, &[LARGE]), &Options::default());
    assert_eq!(compare(&expected, &result.tree).1, Vec::<String>::new());
    assert_eq!(result.tree.len(), expected.len());
    let facts = result.rescue.facts();
    assert_eq!((facts.start, &facts.other_starts[..]), (start as i64, &[LARGE as i64][..]));
}

#[test]
fn a_second_volume_with_few_files_is_kept_apart() {
    let expected = tree_of(volume_of(40, "large"));
    for (files, start) in [(3, LARGE + VOLUME_BYTES), (1, LARGE + VOLUME_BYTES + 3 * MIB)] {
        let result = rescued(disk(files, start, &[LARGE, start]), &Options::default());
        assert_eq!(compare(&expected, &result.tree).1, Vec::<String>::new());
        assert_eq!(result.tree.len(), expected.len(), "{files}");
        assert_eq!(result.rescue.facts().other_starts, [start as i64]);
    }
}

#[test]
fn a_volume_a_few_mib_behind_another_is_kept_apart() {
    for start in [LARGE + MIB, LARGE + 3 * MIB] {
        let result = rescued(disk(20, start, &[LARGE, start]), &Options::default());
        let facts = result.rescue.facts();
        let starts = [LARGE as i64, start as i64];
        let others: Vec<i64> = starts.into_iter().filter(|at| *at != facts.start).collect();
        assert_eq!(facts.other_starts, others);
        let wanted = if facts.start == starts[0] { "large" } else { "small" };
        assert!(
            result.tree.len() > 10 && result.tree.keys().all(|path| path.is_empty() || path.contains(wanted))
        );
    }
}
