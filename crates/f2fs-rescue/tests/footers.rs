//! Inodes whose footers are damaged: the NAT tells which ones they are.

mod support;

#[path = "support/volume.rs"]
mod volume;

use block::Device;
use f2fs::engine::{Engine, Options as VolumeOptions};
use f2fs_rescue::{Grade, Options};
use support::{compare, rescued, tree_of};
use volume::{BLOCK, FEATURES, blocks_of, sound};

/// Bytes of a footer.
const FOOTER: u64 = 24;
/// A small file with two names, a large one, a directory with files, and one with directories.
const PATHS: [&str; 4] = ["/small", "/large", "/dir-3", "/a"];

#[test]
fn inodes_without_a_footer_are_rescued_by_their_numbers_in_the_nat() {
    for (which, features) in FEATURES.iter().enumerate() {
        for byte in [0, 0xFF] {
            let device = sound(which);
            let expected = tree_of(device.clone());
            let volume = Engine::open(device.clone(), VolumeOptions::read_only()).expect("a sound volume");
            for path in PATHS {
                let inode = u64::from(blocks_of(&volume, path)[0].0);
                device.write((inode + 1) * BLOCK - FOOTER, &[byte; FOOTER as usize]).expect("in memory");
            }
            let result = rescued(device, &Options::default());
            let (same, other) = compare(&expected, &result.tree);
            assert_eq!(
                (same, other),
                (expected.len(), Vec::new()),
                "{features:?} {byte:#x}: {:?}",
                result.losses
            );
            let whole = result.found.iter().filter_map(|found| found.certainty);
            let doubtful = whole.filter(|certainty| certainty.grade() != Grade::Whole).count();
            assert!(doubtful >= PATHS.len(), "their footers are doubts: {doubtful}");
        }
    }
}
