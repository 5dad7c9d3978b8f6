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
