//! Inodes whose fields contradict each other: nothing is given as whole of which a part is missing.

mod support;

#[path = "support/volume.rs"]
mod volume;

use std::{mem::offset_of, sync::Arc};

use block::{Device, MemoryDevice};
use f2fs::{
    engine::{Engine, Options as VolumeOptions},
    format::inode::{advise, raw::InodeHead},
};
use f2fs_rescue::{Certainty, Grade, Options};
use support::{Rescued, overwrite, rescued, tree_of};
use volume::{BLOCK, FEATURES, blocks_of, sound};

/// Byte of the first node id in an inode.
const NIDS_AT: u64 = 4052;
/// Byte of an address in an inode, with and without extra attributes.
const ADDR_AT: u64 = 420;

/// Byte of the inode of a file.
fn inode_at(device: &Arc<MemoryDevice>, path: &str) -> u64 {
    let volume = Engine::open(device.clone(), VolumeOptions::read_only()).expect("a sound volume");
    u64::from(blocks_of(&volume, path)[0].0) * BLOCK
}

fn certainty(result: &Rescued, path: &str) -> Certainty {
    let found = result.found.iter().find(|found| found.path == path.as_bytes()).expect("it is there");
    found.certainty.expect("it is judged")
}

#[test]
fn the_node_behind_a_lost_number_is_found_by_its_owner() {
    for which in 0..FEATURES.len() {
        let device = sound(which);
        let expected = tree_of(device.clone());
        let nids = inode_at(&device, "/large") + NIDS_AT;
        overwrite(&device, nids..nids + 4, 0);
        let result = rescued(device, &Options::default());
        assert!(result.tree["large"].1 == expected["large"].1, "{which}: {}", certainty(&result, "large"));
    }
}

#[test]
fn a_file_with_fewer_blocks_than_it_counts_is_partial() {
    for which in 0..FEATURES.len() {
        let device = sound(which);
        let address = inode_at(&device, "/large") + ADDR_AT;
        overwrite(&device, address..address + 4, 0);
        let result = rescued(device, &Options::default());
        let certainty = certainty(&result, "large");
        assert_eq!((certainty.grade(), certainty.uncharted), (Grade::Partial, 1), "{which}: {certainty}");
        assert!(result.losses.iter().any(|loss| loss.contains("1 of the blocks")), "{:?}", result.losses);
    }
}

#[test]
fn content_past_a_size_that_is_too_small_comes_back() {
    for which in 0..FEATURES.len() {
        let device = sound(which);
        let expected = tree_of(device.clone());
        let size = inode_at(&device, "/large") + offset_of!(InodeHead, size) as u64;
        for small in [0, 5000u64] {
            device.write(size, &small.to_le_bytes()).expect("in memory");
            let result = rescued(device.clone(), &Options::default());
            let certainty = certainty(&result, "large");
            assert!(result.tree["large"].1 == expected["large"].1, "{which}: {certainty}");
            assert_eq!(certainty.grade(), Grade::Doubtful, "{which}: {certainty}");
            assert_eq!(result.losses.len(), 1, "{:?}", result.losses);
        }
    }
}

#[test]
fn blocks_that_are_reserved_past_the_end_are_no_content() {
    let device = sound(0);
    let inode = inode_at(&device, "/large");
    let size = 8u64 << 20;
    device.write(inode + offset_of!(InodeHead, size) as u64, &size.to_le_bytes()).expect("in memory");
    device.write(inode + offset_of!(InodeHead, advise) as u64, &[advise::KEEP_SIZE]).expect("in memory");
    let result = rescued(device, &Options::default());
    assert_eq!((result.tree["large"].1.len() as u64, result.losses.len()), (size, 0));
    assert_eq!(certainty(&result, "large").grade(), Grade::Whole);
}

#[test]
fn an_address_that_the_inode_does_not_count_is_no_content() {
    let device = sound(0);
    let expected = tree_of(device.clone());
    let stray = inode_at(&device, "/dir-3/file-3") + ADDR_AT + 400;
    device.write(stray, &20_000u32.to_le_bytes()).expect("in memory");
    let result = rescued(device, &Options::default());
    assert!(result.tree["dir-3/file-3"].1 == expected["dir-3/file-3"].1);
    assert_eq!(certainty(&result, "dir-3/file-3").grade(), Grade::Whole);
}
