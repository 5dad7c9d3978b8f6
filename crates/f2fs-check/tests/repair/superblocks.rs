//! Superblocks of which both copies are damaged, and a checkpoint with an impossible number.

use f2fs_check::Certainty;

use crate::{
    directories::{all_paths, faults_after_repair},
    put_superblock, repair_of,
    volume::Damaged,
};

/// Byte offset of extension_count.
const COLD: usize = 1148;
/// Byte offset of hot_ext_count.
const HOT: usize = 2757;

#[test]
fn impossible_counts_of_extensions_in_both_superblocks_come_from_their_lists() {
    for (at, bytes) in [(COLD, &[0xFF, 0xFF, 0, 0][..]), (COLD, &[62, 0, 0, 0]), (HOT, &[0xEE])] {
        let d = Damaged::new();
        let before = all_paths(&d);
        let superblock = d.volume().superblock();
        let sound = (superblock.cold_extensions.clone(), superblock.hot_extensions.clone());
        (0..2).for_each(|copy| put_superblock(&d, copy, at, bytes));
        assert_eq!(repair_of(&d.device).certainty(), Certainty::Likely);
        assert_eq!(faults_after_repair(&d, &before), Vec::<String>::new(), "byte {at}");
        let (repaired, _) = f2fs::engine::read_superblock(&*d.device, 128 << 20).unwrap();
        assert_eq!((repaired.cold_extensions, repaired.hot_extensions), sound, "byte {at}");
        model::fsck::fsck(&d.device).expect("fsck.f2fs finds nothing");
    }
}

/// The older pack counted, without the changes of the newest one.
#[test]
fn a_newest_pack_that_sets_no_segments_aside_takes_the_numbers_of_the_older_one() {
    const RESERVED: usize = 24;
    const OVERPROVISION: usize = 28;
    for at in [RESERVED, OVERPROVISION] {
        let d = Damaged::new();
        let before = all_paths(&d);
        d.put_checkpoint(at, &[0; 4]);
        assert_eq!(repair_of(&d.device).certainty(), Certainty::Likely);
        assert_eq!(faults_after_repair(&d, &before), Vec::<String>::new(), "byte {at}");
        model::fsck::fsck(&d.device).expect("fsck.f2fs finds nothing");
    }
}

/// Byte offset of the segment of a log in the head of a pack.
fn segment_at(log: usize) -> usize {
    if log < 3 { 84 + 4 * log } else { 36 + 4 * (log - 3) }
}

/// The older pack counted, without the changes of the newest one.
#[test]
fn a_newest_pack_with_two_logs_in_one_segment_counts_with_another_segment_for_one() {
    let sound = Damaged::new();
    let before = all_paths(&sound);
    let logs = sound.checkpoint().1.logs;
    for (log, other) in (0..6).map(|log| (log, (log + 1) % 6)).chain((0..6).map(|log| (log, (log + 3) % 6))) {
        let d = Damaged::new();
        d.put_checkpoint(segment_at(log), &logs[other].segment.0.to_le_bytes());
        assert_eq!(faults_after_repair(&d, &before), Vec::<String>::new(), "log {log} in that of {other}");
        model::fsck::fsck(&d.device).expect("fsck.f2fs finds nothing");
    }
}

#[test]
fn a_newest_pack_with_a_log_outside_the_main_area_counts_with_another_segment_for_it() {
    for log in 0..6 {
        let d = Damaged::new();
        let before = all_paths(&d);
        d.put_checkpoint(segment_at(log), &u32::MAX.to_le_bytes());
        assert_eq!(faults_after_repair(&d, &before), Vec::<String>::new(), "log {log}");
    }
}

/// A volume with one pack was given up.
#[test]
fn an_only_pack_with_two_logs_in_one_segment_counts_with_a_free_one() {
    for (log, other) in [(0, 1), (2, 3), (4, 2), (5, 3)] {
        let d = Damaged::new();
        let before = all_paths(&d);
        let logs = d.checkpoint().1.logs;
        d.put(d.pack(1 - d.checkpoint().0), 0, &[0; 4096]);
        d.put_checkpoint(segment_at(log), &logs[other].segment.0.to_le_bytes());
        assert_eq!(faults_after_repair(&d, &before), Vec::<String>::new(), "log {log} in that of {other}");
    }
}
