//! Costs of operations, in requests to the device and in bytes of memory. They must not grow with data that
//! the operation does not need.

mod support;

use std::sync::Arc;

use block::{Counted, Device, MemoryDevice};
use f2fs::{
    Error,
    engine::{Caller, Engine, FileSize, NewNode, Options, RenameMode},
    format::{BlockSize, inode::advise},
    units::Ino,
};

const ROOT: Ino = Ino(3);
const FILE: u16 = 0o100_644;
const DIR: u16 = 0o040_755;
const BLOCK: u64 = 4096;

type Counting = Arc<Counted<MemoryDevice>>;

fn format(bytes: u64) -> (Counting, Engine) {
    let device = Arc::new(Counted::new(MemoryDevice::new(bytes)));
    let volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    (device, volume)
}

fn options(cache_bytes: usize) -> Options {
    Options { cache_bytes, ..Options::new(|| support::NOW) }
}

fn reopen(device: &Counting, mut volume: Engine, options: Options) -> Engine {
    volume.unmount().unwrap();
    drop(volume);
    let volume = Engine::open(device.clone(), options).unwrap();
    device.take_counts();
    volume
}

#[test]
fn an_allocation_that_cannot_fit_is_refused_before_a_node_of_the_file_is_read() {
    const NODES: u64 = 300;
    let (device, mut volume) = format(256 << 20);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    for node in 0..NODES {
        // One block in each node of addresses.
        volume
            .begin(Caller::ADMIN)
            .write(ino, node * 1018 * BLOCK + (4 << 20), &[1; BLOCK as usize])
            .unwrap();
    }
    let mut volume = reopen(&device, volume, options(64 << 20));
    let length = NODES * 1018 * BLOCK;
    for _ in 0..2 {
        let refused = volume.begin(Caller::ADMIN).allocate_range(ino, 0, length, FileSize::Grows);
        assert!(matches!(refused, Err(Error::NoSpace { .. })), "{refused:?}");
    }
    let reads = device.take_counts().reads;
    assert!(reads < NODES / 4, "{reads} reads");
}

/// A file that was reserved in parts, as front ends do, had its new part searched for content, node by node.
#[test]
fn growing_into_reserved_blocks_reads_no_node_of_them() {
    const NODES: u64 = 24;
    let (device, mut volume) = format(320 << 20);
    let end = NODES * 1018 * BLOCK;
    let mut reserved = Vec::new();
    for name in [b"truncated", b"allocated"] {
        let ino = volume.begin(Caller::ADMIN).create(ROOT, name, &NewNode::new(FILE)).unwrap();
        volume.begin(Caller::ADMIN).allocate_range(ino, 0, end, FileSize::Stays).unwrap();
        volume.begin(Caller::ADMIN).write(ino, 0, b"content").unwrap();
        reserved.push(ino);
    }
    let mut volume = reopen(&device, volume, options(64 << 20));
    volume.begin(Caller::ADMIN).truncate(reserved[0], end).unwrap();
    let reads = device.take_counts().reads;
    assert!(reads < NODES / 4, "{reads} reads");
    // The end of the reserved blocks is looked up.
    volume.begin(Caller::ADMIN).allocate_range(reserved[1], end - BLOCK, BLOCK, FileSize::Grows).unwrap();
    let reads = device.take_counts().reads;
    assert!(reads < NODES / 4, "{reads} reads");
    let has_more = |ino| volume.inode(ino).unwrap().has_advise(advise::KEEP_SIZE);
    assert!(!has_more(reserved[1]), "nothing is past its end any more");
}

#[test]
fn an_allocation_that_mostly_exists_already_is_not_refused() {
    let (_device, mut volume) = format(96 << 20);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    let free_bytes = volume.free_user_blocks() * BLOCK;
    // The length is more than half of the free space, so that not all of it would fit if it were new.
    let length = (free_bytes * 3 / 5) / (1 << 20) * (1 << 20);
    volume.begin(Caller::ADMIN).allocate_range(ino, 0, length, FileSize::Grows).unwrap();
    volume.begin(Caller::ADMIN).punch_hole(ino, 5 * BLOCK, 3 * BLOCK).unwrap();
    volume.begin(Caller::ADMIN).punch_hole(ino, 10 << 20, 5 << 20).unwrap();
    let before = volume.free_user_blocks();
    volume.begin(Caller::ADMIN).allocate_range(ino, 0, length, FileSize::Grows).unwrap();
    assert_eq!(before - volume.free_user_blocks(), 3 + (5 << 20) / BLOCK);
    let rest = volume.free_user_blocks() * BLOCK;
    assert!(matches!(
        volume.begin(Caller::ADMIN).allocate_range(ino, 0, length + rest, FileSize::Grows),
        Err(Error::NoSpace { .. })
    ));
    // Twenty blocks are left for nodes, each of which has the addresses of 4 MiB.
    volume.begin(Caller::ADMIN).allocate_range(ino, 0, length + rest - 20 * BLOCK, FileSize::Grows).unwrap();
}

#[test]
fn a_cycle_of_directories_is_met_after_a_few_steps_on_a_volume_with_many_inodes() {
    let (device, volume) = format(256 << 20);
    drop(volume);
    let mut volume =
        Engine::open(device.clone(), Options { inline_dentry: false, ..options(64 << 20) }).unwrap();
    let outer = volume.begin(Caller::ADMIN).create(ROOT, b"outer", &NewNode::new(DIR)).unwrap();
    let inner = volume.begin(Caller::ADMIN).create(outer, b"inner", &NewNode::new(DIR)).unwrap();
    let moved = volume.begin(Caller::ADMIN).create(ROOT, b"moved", &NewNode::new(DIR)).unwrap();
    for n in 0..2000 {
        volume
            .begin(Caller::ADMIN)
            .create(moved, format!("file {n}").as_bytes(), &NewNode::new(FILE))
            .unwrap();
    }
    volume.unmount().unwrap();
    let addr = volume.address(&volume.inode(outer).unwrap(), 0).unwrap();
    drop(volume);
    // The parent of the outer directory becomes the inner one: ".." is the second entry.
    const DENTRIES_AT: usize = 30;
    const DENTRY_BYTES: usize = 11;
    let mut block = vec![0; BLOCK as usize];
    device.read(u64::from(addr.0) * BLOCK, &mut block).unwrap();
    let ino_at = DENTRIES_AT + DENTRY_BYTES + 4;
    assert_eq!(block[ino_at..ino_at + 4], ROOT.0.to_le_bytes());
    block[ino_at..ino_at + 4].copy_from_slice(&inner.0.to_le_bytes());
    device.write(u64::from(addr.0) * BLOCK, &block).unwrap();
    let mut volume = Engine::open(device.clone(), options(64 << 20)).unwrap();
    device.take_counts();
    let refused = volume.begin(Caller::ADMIN).rename(ROOT, b"moved", inner, b"moved", RenameMode::Replace);
    assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    let reads = device.take_counts().reads;
    assert!(reads < 100, "{reads} reads");
    assert!(volume.lookup(ROOT, b"moved").is_ok());
}

#[test]
fn the_segment_table_takes_a_share_of_the_cache_and_is_read_in_long_runs() {
    const CACHE: usize = 4 << 20;
    let (device, volume) = format(64 << 30);
    let mut volume = reopen(&device, volume, options(CACHE));
    let blocks = u64::from(volume.geometry().sit_blocks());
    volume.trim(1).unwrap();
    let reads = device.take_counts().reads;
    assert!(blocks > 500 && reads < blocks / 8, "{reads} reads of {blocks} blocks");
    assert!(volume.segment_table_bytes() <= CACHE / 8, "{} bytes", volume.segment_table_bytes());
    // Changed blocks stay in memory until a checkpoint, and are counted.
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &vec![1; 8 << 20]).unwrap();
    volume.unmount().unwrap();
    assert!(volume.segment_table_bytes() <= CACHE / 8, "{} bytes", volume.segment_table_bytes());
}

#[test]
fn segments_that_change_all_over_a_volume_are_written_before_they_take_the_memory() {
    const CACHE: usize = 32 << 10;
    const SIZE: u64 = 512 << 20;
    let (device, volume) = format(2 << 30);
    let mut volume = reopen(&device, volume, options(CACHE));
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &vec![1; SIZE as usize]).unwrap();
    volume.checkpoint().unwrap();
    // A block of every segment.
    for at in (0..SIZE).step_by(2 << 20) {
        volume.begin(Caller::ADMIN).write(ino, at, &[2; BLOCK as usize]).unwrap();
        let bytes = volume.segment_table_bytes();
        assert!(bytes <= CACHE + 4 * BLOCK as usize, "{bytes} bytes");
    }
    let mut found = [0; 2 * BLOCK as usize];
    volume.read(ino, 8 << 20, &mut found).unwrap();
    assert!(found[..BLOCK as usize] == [2; BLOCK as usize] && found[BLOCK as usize..] == [1; BLOCK as usize]);
}

#[test]
fn a_directory_in_which_names_are_searched_is_read_once() {
    const FILES: u32 = 3000;
    let (device, mut volume) = format(256 << 20);
    let dir = volume.begin(Caller::ADMIN).create(ROOT, b"dir", &NewNode::new(DIR)).unwrap();
    let name = |n: u32| format!("a name {n}").into_bytes();
    let inos: Vec<Ino> = (0..FILES)
        .map(|n| volume.begin(Caller::ADMIN).create(dir, &name(n), &NewNode::new(FILE)).unwrap())
        .collect();
    let volume = reopen(&device, volume, options(64 << 20));
    let blocks = volume.inode(dir).unwrap().head().size.get() / BLOCK;
    device.take_counts();
    let look =
        || (0..FILES).for_each(|n| assert_eq!(volume.lookup(dir, &name(n)).unwrap(), inos[n as usize]));
    look();
    let reads = device.take_counts().reads;
    assert!(reads <= blocks, "{reads} reads of {blocks} blocks");
    look();
    assert!(volume.find_entry(dir, b"missing").unwrap().is_none());
    assert_eq!(device.take_counts().reads, 0, "everything is known");
}
