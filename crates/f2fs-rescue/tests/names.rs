//! Damaged entries of directories: inodes carry their names, and entries the hashes of theirs.

mod support;

#[path = "support/volume.rs"]
mod volume;

use std::sync::Arc;

use block::{Device, MemoryDevice};
use f2fs::{
    Place,
    engine::{Engine, FinalSymlink, Options as VolumeOptions},
    format::{dentry::Dentries, inode::advise},
    units::Ino,
};
use f2fs_rescue::{Grade, Options};
use support::{Rescued, Tree, compare, overwrite, rescued, tree_of};
use volume::{BLOCK, content, open, sound};

/// Bytes before the dentries and before the names of a directory block of 4 KiB with its 214 slots.
const DENTRIES: u64 = 4096 - 214 * (8 + 11);
const NAMES: u64 = 4096 - 214 * 8;

/// A volume with a directory whose names fill several blocks.
fn many() -> (Arc<MemoryDevice>, Tree) {
    let device = sound(0);
    let volume = open(device.clone());
    volume.create_dir_all("/many").expect("there is space");
    (0..600).for_each(|n| volume.write(format!("/many/name-{n}"), content(n, 10)).expect("there is space"));
    volume.close().expect("in memory");
    let expected = tree_of(device.clone());
    (device, expected)
}

fn engine(device: &Arc<MemoryDevice>) -> Engine {
    Engine::open(device.clone(), VolumeOptions::read_only()).expect("a sound volume")
}

fn ino(device: &Arc<MemoryDevice>, path: &str) -> Ino {
    engine(device).resolve(path.as_bytes(), FinalSymlink::NoFollow).expect("it exists")
}

/// Block of the device with the entry of a name of "/many", and the slot of the entry.
fn entry(device: &Arc<MemoryDevice>, name: &str) -> (u64, u64) {
    let volume = engine(device);
    let dir = volume.inode(ino(device, "/many")).expect("it is sound");
    let blocks = (0..dir.head().size.get() / BLOCK).map(|block| volume.address(&dir, block).expect("sound"));
    let mut found = blocks.filter(|addr| addr.is_real()).filter_map(|addr| {
        let mut bytes = vec![0; BLOCK as usize];
        device.read(u64::from(addr.0) * BLOCK, &mut bytes).expect("in memory");
        let entries = Dentries::new(&bytes[..], Place::Volume);
        let slot = entries.entries().flatten().find(|entry| entry.name == name.as_bytes())?.slot;
        Some((u64::from(addr.0), slot as u64))
    });
    found.next().expect("it has the name")
}

fn set_ino(device: &Arc<MemoryDevice>, name: &str, ino: Ino) {
    let (block, slot) = entry(device, name);
    let at = block * BLOCK + DENTRIES + slot * 11 + 4;
    device.write(at, &ino.0.to_le_bytes()).expect("in memory");
}

fn expect_all(expected: &Tree, result: &Rescued, what: &str) {
    let (_, missing) = compare(expected, &result.tree);
    assert_eq!(missing, Vec::<String>::new(), "{what}: {:?}", result.losses);
    assert_eq!((result.tree.len(), result.losses.len()), (expected.len(), 0), "{what}: {:?}", result.losses);
}

/// Overwrites the superblocks, the packs and all tables.
fn overwrite_metadata(device: &Arc<MemoryDevice>) {
    let main = u64::from(engine(device).superblock().main.start.0);
    overwrite(device, 0..main * BLOCK, 0);
}

#[test]
fn a_damaged_name_is_that_of_its_inode() {
    let (device, expected) = many();
    let (block, slot) = entry(&device, "name-77");
    for byte in [b'x', 0, b'/', b'n' | 0x80] {
        device.write(block * BLOCK + NAMES + slot * 8, &[byte]).expect("in memory");
        expect_all(&expected, &rescued(device.clone(), &Options::default()), &format!("byte {byte}"));
    }
}

#[test]
fn an_entry_of_a_lost_inode_hides_no_name() {
    let (device, expected) = many();
    set_ino(&device, "name-77", Ino(70_000));
    expect_all(&expected, &rescued(device.clone(), &Options::default()), "with the tables");
    overwrite_metadata(&device);
    expect_all(&expected, &rescued(device, &Options::default()), "without them");
}

#[test]
fn an_entry_of_another_file_or_directory_costs_neither() {
    for other in ["/dir-3/file-3", "/many/name-5", "/small", "/a/b", "/many", "/"] {
        let (device, expected) = many();
        set_ino(&device, "name-77", if other == "/" { Ino(3) } else { ino(&device, other) });
        expect_all(&expected, &rescued(device.clone(), &Options::default()), other);
        overwrite_metadata(&device);
        expect_all(&expected, &rescued(device, &Options::default()), other);
    }
}

#[test]
fn a_wrong_bit_for_encryption_costs_neither_names_nor_content() {
    for which in 0..volume::FEATURES.len() {
        for path in ["/dir-3", "/dir-3/file-3", "/small", "/link"] {
            let device = sound(which);
            let expected = tree_of(device.clone());
            let addr = engine(&device).nat_entry(ino(&device, path).into()).expect("a sound NAT").addr;
            let at = u64::from(addr.0) * BLOCK + 2;
            device.write(at, &[advise::ENCRYPT | advise::ENC_NAME]).expect("in memory");
            let result = rescued(device, &Options::default());
            expect_all(&expected, &result, path);
            let found = result.found.iter().find(|found| found.path == path.as_bytes()[1..]);
            let grade = found.and_then(|found| found.certainty).map(|certainty| certainty.grade());
            assert!(grade <= Some(Grade::Doubtful), "{path}: {grade:?}");
        }
    }
}

#[test]
fn a_lost_name_of_a_file_with_another_one_is_told() {
    let device = sound(0);
    let volume = open(device.clone());
    volume.create_dir_all("/many").expect("there is space");
    (0..600).for_each(|n| volume.write(format!("/many/name-{n}"), content(n, 10)).expect("there is space"));
    volume.hard_link("/many/name-77", "/many/further").expect("there is space");
    volume.close().expect("in memory");
    for name in ["name-77", "further"] {
        let (block, slot) = entry(&device, name);
        let mut bitmap = vec![0; 214usize.div_ceil(8)];
        device.read(block * BLOCK, &mut bitmap).expect("in memory");
        let was = bitmap.clone();
        bitmap[slot as usize / 8] &= !(1 << (slot % 8));
        device.write(block * BLOCK, &bitmap).expect("in memory");
        let result = rescued(device.clone(), &Options::default());
        let is_told =
            result.losses.iter().any(|loss| loss.starts_with("many/") && loss.contains("1 of the names"));
        assert!(is_told, "{name}: {:?}", result.losses);
        device.write(block * BLOCK, &was).expect("in memory");
    }
    assert_eq!(rescued(device, &Options::default()).losses, Vec::<String>::new());
}
