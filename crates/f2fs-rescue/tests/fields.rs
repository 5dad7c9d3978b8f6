//! Nodes with one impossible field: the NAT and the footer tell which nodes they are, and the rest of them counts.

mod support;

#[path = "support/volume.rs"]
mod volume;

use std::sync::Arc;

use block::{Device, MemoryDevice};
use f2fs::{
    engine::{Engine, FinalSymlink, Options as VolumeOptions},
    units::BlockAddr,
};
use f2fs_rescue::{Certainty, Grade, Options};
use support::{Rescued, Tree, rescued, tree_of};
use volume::{BLOCK, FEATURES, blocks_of, sound};

/// Byte of the inode or of a further node of a file.
fn node_at(device: &Arc<MemoryDevice>, path: &str, number: usize) -> u64 {
    let volume = Engine::open(device.clone(), VolumeOptions::read_only()).expect("a sound volume");
    u64::from(blocks_of(&volume, path)[number].0) * BLOCK
}

fn certainty(result: &Rescued, path: &str) -> Certainty {
    let found = result.found.iter().find(|found| found.path == path.as_bytes()).expect("it is there");
    found.certainty.expect("it is judged")
}

/// Changes a byte of a node.
fn change(device: &MemoryDevice, at: u64, by: impl Fn(u8) -> u8) {
    let mut byte = [0];
    device.read(at, &mut byte).expect("in memory");
    device.write(at, &[by(byte[0])]).expect("in memory");
}

#[test]
fn an_inode_with_one_impossible_field_is_rescued() {
    // Byte of an inode, and the bits that are set there.
    let fields = [
        ("inline directory entries", 3, 0x04),
        ("inline data", 3, 0x02),
        ("high byte of the size", 21, 0x20),
        ("high byte of the blocks", 29, 0x01),
        ("nanoseconds", 59, 0x80),
        ("xattr node", 79, 0x10),
        ("directory", 87, 0x10),
        ("length of the name", 89, 0x04),
        ("owner in the footer", 4078, 0x04),
        ("offset in the footer", 4081, 0x02),
    ];
    for which in 0..FEATURES.len() {
        let device = sound(which);
        let expected = tree_of(device.clone());
        let inode = node_at(&device, "/large", 0);
        for (name, at, bits) in fields {
            change(&device, inode + at, |byte| byte | bits);
            let result = rescued(device.clone(), &Options::default());
            assert!(result.tree.contains_key("large"), "{which}, {name}: {:?}", result.losses);
            assert!(result.tree["large"].1 == expected["large"].1, "{which}, {name}: {:?}", result.losses);
            assert_eq!(certainty(&result, "large").grade(), Grade::Doubtful, "{which}, {name}");
            device.write(inode, &block(&sound(which), inode)).expect("in memory");
        }
    }
}

fn block(device: &MemoryDevice, at: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    device.read(at, &mut bytes).expect("in memory");
    bytes
}

#[test]
fn a_zero_in_the_name_of_an_inode_costs_no_file() {
    let device = sound(0);
    let expected = tree_of(device.clone());
    change(&device, node_at(&device, "/large", 0) + 92, |_| 0);
    let result = rescued(device, &Options::default());
    assert!(result.tree["large"].1 == expected["large"].1, "{:?}", result.losses);
}

#[test]
fn the_checksum_tells_the_size_of_the_extra_attributes() {
    for bits in [0x08, 0x04, 0x30] {
        let device = sound(1);
        let expected = tree_of(device.clone());
        change(&device, node_at(&device, "/large", 0) + 360, |byte| byte ^ bits);
        let result = rescued(device, &Options::default());
        assert!(result.tree["large"].1 == expected["large"].1, "{bits:#x}: {:?}", result.losses);
    }
}

#[test]
fn one_impossible_address_costs_one_block() {
    for which in 0..FEATURES.len() {
        let device = sound(which);
        let expected = tree_of(device.clone());
        change(&device, node_at(&device, "/large", 1) + 10 * 4 + 3, |byte| byte ^ 0x80);
        let result = rescued(device, &Options::default());
        let (was, is) = (&expected["large"].1, &result.tree["large"].1);
        let blocks = was.chunks(BLOCK as usize).zip(is.chunks(BLOCK as usize));
        assert_eq!((was.len(), blocks.filter(|(was, is)| was != is).count()), (is.len(), 1), "{which}");
        let certainty = certainty(&result, "large");
        assert_eq!((certainty.grade(), certainty.missing), (Grade::Partial, 1), "{which}: {certainty}");
    }
}

#[test]
fn a_node_that_was_overwritten_before_its_footer_is_not_taken() {
    let device = sound(0);
    let (inode, node) = (node_at(&device, "/dir-3/file-3", 0), node_at(&device, "/large", 1));
    for at in [inode, node] {
        device.write(at, &volume::content(77, BLOCK as usize - 24)).expect("in memory");
        // The type of a file.
        device.write(at, &0o100_644u16.to_le_bytes()).expect("in memory");
    }
    let result = rescued(device, &Options::default());
    assert!(!result.tree.contains_key("dir-3/file-3"));
    assert!(certainty(&result, "large").unmapped > 0);
}

/// Returns true if the large file has its attributes and its content.
fn is_same(result: &Rescued, expected: &Tree) -> bool {
    let (is, was) = (&result.tree["large"], &expected["large"]);
    is.0.meta == was.0.meta && is.1 == was.1
}

#[test]
fn the_checksum_tells_one_damaged_field() {
    let device = sound(1);
    let expected = tree_of(device.clone());
    let inode = node_at(&device, "/large", 0);
    // Byte of the inode, and the bits that are changed there.
    let fields = [
        ("type", 1, 0x80),
        ("inline data", 3, 0x02),
        ("size", 17, 0x10),
        ("blocks", 25, 0x02),
        ("generation", 68, 0x01),
        ("size of inline xattrs", 362, 0x08),
        ("size of inline xattrs", 362, 0x32),
        ("address", 500, 0x04),
        ("checksum", 368, 0x40),
    ];
    for (name, at, bits) in fields {
        change(&device, inode + at, |byte| byte ^ bits);
        let result = rescued(device.clone(), &Options::default());
        assert!(result.tree.contains_key("large"), "{name}: {:?}", result.losses);
        assert!(is_same(&result, &expected), "{name}: {:?}", result.losses);
        assert_eq!(certainty(&result, "large").grade(), Grade::Doubtful, "{name}");
        change(&device, inode + at, |byte| byte ^ bits);
    }
    (0..2).for_each(|at| change(&device, inode + at, |_| 0));
    let result = rescued(device, &Options::default());
    assert!(is_same(&result, &expected), "mode 0: {:?}", result.losses);
}

#[test]
fn an_inode_without_a_mode_has_the_kind_of_its_entry() {
    let device = sound(0);
    let expected = tree_of(device.clone());
    for path in ["large", "link", "a", "dir-3", "small"] {
        let inode = {
            let volume = Engine::open(device.clone(), VolumeOptions::read_only()).expect("a sound volume");
            let ino = volume.resolve(path.as_bytes(), FinalSymlink::NoFollow).expect("it exists");
            u64::from(volume.nat_entry(ino.into()).expect("a sound NAT").addr.0) * BLOCK
        };
        let was = block(&device, inode);
        device.write(inode, &[0; 2]).expect("in memory");
        let result = rescued(device.clone(), &Options::default());
        assert!(result.tree.contains_key(path), "{path}: {:?}", result.losses);
        assert!(result.tree[path].1 == expected[path].1, "{path}: {:?}", result.losses);
        assert_eq!(result.tree.len(), expected.len(), "{path}");
        assert_eq!(certainty(&result, path).grade(), Grade::Doubtful, "{path}");
        device.write(inode, &was).expect("in memory");
    }
}

#[test]
fn a_possible_but_wrong_size_is_doubtful() {
    let device = sound(0);
    let expected = tree_of(device.clone());
    // The size of the file is 60,003 bytes, that of the other one 100.
    for (path, byte, bits) in [
        ("dir-3/file-3", 0, 0x20),
        ("dir-3/file-3", 0, 0x40),
        ("dir-3/file-3", 2, 0x10),
        ("second name", 0, 0x04),
    ] {
        let inode = node_at(&device, &format!("/{path}"), 0) + 16 + byte;
        change(&device, inode, |byte| byte ^ bits);
        let result = rescued(device.clone(), &Options::default());
        assert!(result.tree[path].1.len() != expected[path].1.len());
        let certainty = certainty(&result, path);
        assert_eq!(certainty.grade(), Grade::Doubtful, "{path} {byte} {bits:#x}: {certainty}");
        change(&device, inode, |byte| byte ^ bits);
    }
    let result = rescued(device, &Options::default());
    assert!(result.found.iter().filter_map(|found| found.certainty).all(|it| it.grade() == Grade::Whole));
}

#[test]
fn an_address_of_a_node_or_of_a_free_block_is_doubtful() {
    for which in 0..FEATURES.len() {
        let device = sound(which);
        let (node, free) = {
            let volume = Engine::open(device.clone(), VolumeOptions::read_only()).expect("a sound volume");
            let last = volume.superblock().main.end() as u32 - 1;
            (blocks_of(&volume, "/large")[1], BlockAddr(last))
        };
        let place = u64::from(node.0) * BLOCK + 10 * 4;
        for (name, addr) in [("node", node), ("free", free)] {
            let was = block(&device, u64::from(node.0) * BLOCK);
            device.write(place, &addr.0.to_le_bytes()).expect("in memory");
            let result = rescued(device.clone(), &Options::default());
            let certainty = certainty(&result, "large");
            assert!(certainty.grade() >= Grade::Doubtful, "{which}, {name}: {certainty}");
            device.write(u64::from(node.0) * BLOCK, &was).expect("in memory");
        }
    }
}
