//! Casefolded directories: the cost of a lookup, and names under both ways of folding.

mod support;

use std::sync::Arc;

use block::{Counted, Device, MemoryDevice};
use f2fs::{
    Error,
    engine::{Caller, Engine, NewNode, Options, SetAttr},
    format::{
        BlockSize,
        inode::{advise, flag},
    },
    units::Ino,
};

const ROOT: Ino = Ino(3);
const FILE: u16 = 0o100_644;
const BYTES: u64 = 256 << 20;
/// Offset of the flags in an inode, in bytes.
const FLAGS_AT: u64 = 80;

type Counting = Arc<Counted<MemoryDevice>>;

fn format() -> (Counting, Engine) {
    let device = Arc::new(Counted::new(MemoryDevice::new(BYTES)));
    let volume = support::format_on(device.clone(), &["casefold"], BlockSize::B4K);
    (device, volume)
}

fn options(cache_bytes: usize) -> Options {
    Options { cache_bytes, ..Options::new(|| support::NOW) }
}

fn make_dir(volume: &mut Engine, name: &[u8], flags: u32) -> Ino {
    let dir = volume.begin(Caller::ADMIN).create(ROOT, name, &NewNode::new(0o040_755)).unwrap();
    volume.begin(Caller::ADMIN).set_attr(dir, &SetAttr { flags: Some(flags), ..SetAttr::default() }).unwrap();
    dir
}

fn fill(volume: &mut Engine, dir: Ino, names: u32) {
    for n in 0..names {
        volume
            .begin(Caller::ADMIN)
            .create(dir, format!("Name {n} that takes a few slots").as_bytes(), &NewNode::new(FILE))
            .unwrap();
    }
}

/// Reopens a volume after turning a plain directory into a casefolded one. Its names then lie where a hash of
/// all their code points leads.
fn fold(device: &Counting, mut volume: Engine, dir: Ino, cache_bytes: usize) -> Engine {
    volume.unmount().unwrap();
    let block = u64::from(volume.nat_entry(dir.into()).unwrap().addr.0) * 4096;
    drop(volume);
    let mut inode = vec![0; 4096];
    device.read(block, &mut inode).unwrap();
    let at = FLAGS_AT as usize;
    let flags = u32::from_le_bytes(inode[at..at + 4].try_into().unwrap()) | flag::CASEFOLD;
    inode[at..at + 4].copy_from_slice(&flags.to_le_bytes());
    device.write(block, &inode).unwrap();
    Engine::open(device.clone(), options(cache_bytes)).unwrap()
}

#[test]
fn many_absent_names_cost_one_walk_through_a_directory() {
    const ABSENT: u64 = 200;
    let (device, mut volume) = format();
    let dir = make_dir(&mut volume, b"dir", flag::CASEFOLD);
    fill(&mut volume, dir, 5000);
    volume.unmount().unwrap();
    let inode = volume.inode(dir).unwrap();
    let blocks = inode.head().blocks.get();
    let by_hash = 2 * u64::from(inode.head().current_depth.get());
    drop((inode, volume));
    let volume = Engine::open(device.clone(), options(1 << 20)).unwrap();
    device.take_counts();
    for n in 0..ABSENT {
        assert!(matches!(volume.lookup(dir, format!("absent {n}").as_bytes()), Err(Error::NotFound)));
    }
    let reads = device.take_counts().reads;
    assert!(reads <= 2 * blocks + ABSENT * by_hash, "{reads} reads for {blocks} blocks");
    assert!(volume.lookup(dir, b"nAME 4999 tHAT takes a FEW slots").is_ok());
}

#[test]
fn names_of_a_new_casefolded_directory_cost_no_more_than_those_of_a_plain_one() {
    let reads = |flags: u32| {
        let (device, volume) = format();
        drop(volume);
        // The cache is so small that most blocks of the directory are only on the device.
        let mut volume = Engine::open(device.clone(), options(128 << 10)).unwrap();
        let dir = make_dir(&mut volume, b"dir", flags);
        device.take_counts();
        fill(&mut volume, dir, 2000);
        device.take_counts().reads
    };
    let (plain, folded) = (reads(0), reads(flag::CASEFOLD));
    assert!(folded <= plain + plain / 4, "{folded} reads beside {plain}");
}

#[test]
fn names_that_were_hashed_with_ignorable_code_points_are_found_without_a_walk_for_each() {
    const STRAYS: u64 = 100;
    let (device, mut volume) = format();
    let dir = make_dir(&mut volume, b"dir", 0);
    for n in 0..4000 {
        volume
            .begin(Caller::ADMIN)
            .create(dir, format!("name {n} that takes a few slots").as_bytes(), &NewNode::new(FILE))
            .unwrap();
    }
    let stray = |n: u64| format!("stray\u{200D}{n}");
    let strays: Vec<Ino> = (0..STRAYS)
        .map(|n| volume.begin(Caller::ADMIN).create(dir, stray(n).as_bytes(), &NewNode::new(FILE)).unwrap())
        .collect();
    let mut volume = fold(&device, volume, dir, 1 << 20);
    let inode = volume.inode(dir).unwrap();
    let blocks = inode.head().blocks.get();
    let by_hash = 2 * u64::from(inode.head().current_depth.get());
    drop(inode);
    device.take_counts();
    for (n, ino) in (0..).zip(&strays) {
        assert_eq!(volume.lookup(dir, stray(n).as_bytes()).unwrap(), *ino);
        assert_eq!(volume.lookup(dir, format!("STRAY{n}").as_bytes()).unwrap(), *ino);
    }
    let reads = device.take_counts().reads;
    assert!(reads <= 2 * blocks + 2 * STRAYS * (by_hash + 2), "{reads} reads for {blocks} blocks");

    let taken = volume.begin(Caller::ADMIN).create(dir, b"Stray7", &NewNode::new(FILE));
    assert!(matches!(taken, Err(Error::Exists)), "{taken:?}");
    volume.begin(Caller::ADMIN).unlink(dir, stray(7).as_bytes()).unwrap();
    assert!(matches!(volume.lookup(dir, b"stray7"), Err(Error::NotFound)));
    let new = volume.begin(Caller::ADMIN).create(dir, stray(7).as_bytes(), &NewNode::new(FILE)).unwrap();
    assert_eq!(volume.lookup(dir, b"stray7").unwrap(), new);
    assert_eq!(volume.lookup(dir, stray(8).as_bytes()).unwrap(), strays[8]);
}

#[test]
fn names_hashed_with_ignorable_code_points_are_found_once_their_directory_has_left_its_inode() {
    for level in [0, 2] {
        let (device, mut volume) = format();
        let dir = make_dir(&mut volume, b"dir", 0);
        let stray =
            volume.begin(Caller::ADMIN).create(dir, "stray\u{200D}".as_bytes(), &NewNode::new(FILE)).unwrap();
        let mut volume = fold(&device, volume, dir, 1 << 20);
        set_dir_level(&device, &mut volume, dir, level);
        fill(&mut volume, dir, 300);
        assert_eq!(volume.lookup(dir, b"STRAY").unwrap(), stray, "level {level}");
        volume.begin(Caller::ADMIN).unlink(dir, b"stray").unwrap();
        assert!(matches!(volume.lookup(dir, b"stray"), Err(Error::NotFound)));
        assert!(volume.lookup(dir, b"name 299 that takes a few slots").is_ok());
    }
}

/// Gives an inline directory several buckets in the lowest level of its future hash table.
fn set_dir_level(device: &Counting, volume: &mut Engine, dir: Ino, level: u8) {
    const DIR_LEVEL_AT: usize = 347;
    volume.checkpoint().unwrap();
    let block = u64::from(volume.nat_entry(dir.into()).unwrap().addr.0) * 4096;
    let mut inode = vec![0; 4096];
    device.read(block, &mut inode).unwrap();
    inode[DIR_LEVEL_AT] = level;
    device.write(block, &inode).unwrap();
    *volume = Engine::open(device.clone(), options(1 << 20)).unwrap();
    assert_eq!(volume.inode(dir).unwrap().head().dir_level, level);
}

/// The name in the inode is spelled as it was entered.
#[test]
fn an_inode_that_loses_its_name_in_another_spelling_is_marked() {
    let (_, mut volume) = format();
    let dir = make_dir(&mut volume, b"dir", flag::CASEFOLD);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"first", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).link(ino, dir, b"Second").unwrap();
    volume.begin(Caller::ADMIN).unlink(dir, b"sECOND").unwrap();
    assert!(volume.inode(ino).unwrap().has_advise(advise::LOST_PINO));
}
