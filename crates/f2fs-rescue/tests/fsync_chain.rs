//! Files that were fsynced after the checkpoint: the chain of their nodes tells which version is the newest.

mod support;

#[path = "support/volume.rs"]
mod volume;

use std::sync::Arc;

use block::{Device, MemoryDevice};
use f2fs::{
    format::{
        BlockSize, NodeBlock,
        node::{NodeFooter, NodeFormat},
        superblock::Features,
    },
    units::BlockAddr,
};
use f2fs_rescue::{Grade, Options};
use support::{overwrite, rescued, tree_of};
use volume::{BLOCK, open, sound};

/// A volume after a power cut with three fsynced versions of one file within one second, and their blocks in
/// the order of the chain. The last version does not have the highest address.
fn with_versions() -> (Arc<MemoryDevice>, [u64; 3]) {
    let device = sound(0);
    let volume = open(device.clone());
    let file = volume.create_file("/synced").expect("there is space");
    let ino = volume.metadata("/synced").expect("it exists").ino();
    volume.sync().expect("in memory");
    for version in [b"v1", b"v2", b"v3"] {
        file.write_at(version, 0).expect("there is space");
        file.sync_all().expect("in memory");
    }
    drop(file);
    let device = Arc::new(model::setup::copy(&device).expect("memory"));
    let mut page = vec![0; BLOCK as usize];
    let mut found = Vec::new();
    for offset in device.allocated_pages() {
        device.read(offset, &mut page).expect("in memory");
        let footer = NodeFooter::of(&page);
        if footer.nid == ino.into() && footer.is_inode() && footer.fsync {
            found.push((offset / BLOCK, page.clone()));
        }
    }
    found.sort();
    let (blocks, nodes): (Vec<u64>, Vec<Vec<u8>>) = found.into_iter().unzip();
    let first = blocks[0];
    assert_eq!(blocks, [first, first + 1, first + 2]);
    let order = [first, first + 2, first + 1];
    let next = [first + 2, first + 1, first + 3];
    let format = NodeFormat::new(BlockSize::B4K, Features::default(), &[0; 16]);
    for ((node, at), next) in nodes.into_iter().zip(order).zip(next) {
        let mut node = NodeBlock::check(format, node.into(), ino.into(), ino, BlockAddr(at as u32))
            .expect("it is sound");
        let mut footer = node.footer();
        footer.next_addr = BlockAddr(next as u32);
        node.set_footer(footer);
        device.write(at * BLOCK, node.bytes()).expect("in memory");
    }
    (device, order)
}

fn synced(device: Arc<MemoryDevice>) -> (Vec<u8>, Grade) {
    let result = rescued(device, &Options::default());
    let found = result.found.iter().find(|found| found.path == b"synced").expect("it is there");
    (result.tree["synced"].1.clone(), found.certainty.expect("it is judged").grade())
}

#[test]
fn the_chain_decides_between_versions_of_one_second() {
    let (device, _) = with_versions();
    assert_eq!(tree_of(device.clone())["synced"].1, b"v3", "the engine recovers it");
    assert_eq!(synced(device), (b"v3".to_vec(), Grade::Whole));
}

#[test]
fn a_version_behind_a_break_of_the_chain_is_not_sure() {
    let (device, order) = with_versions();
    overwrite(&device, order[1] * BLOCK..(order[1] + 1) * BLOCK, 0);
    assert_eq!(synced(device).1, Grade::Likely);
}
