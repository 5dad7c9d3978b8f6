//! Numbers of hostile volumes that no rule of the format bounds: none of them overflows, and none makes the work or the
//! memory of a reader larger than the volume.

mod support;

use std::sync::Arc;

use block::{Counted, Device, MemoryDevice};
use f2fs::{
    Error,
    engine::{Caller, Engine, NewNode, Options, SetAttr, SyncScope},
    format::{
        BlockSize,
        dentry::Dentries,
        inode::{Algorithm, Compression, flag},
        node::NodeBlock,
        quota::QuotaKind,
    },
    units::{BlockAddr, Ino},
    walk::Walk,
};

const ROOT: Ino = Ino(3);
const FILE: u16 = 0o100_644;
const DIR: u16 = 0o040_755;
const BLOCK: u64 = 4096;
const BYTES: u64 = 64 << 20;

fn format(features: &[&str]) -> (Arc<MemoryDevice>, Engine) {
    let device = Arc::new(MemoryDevice::new(BYTES));
    let volume = support::format_on(device.clone(), features, BlockSize::B4K);
    (device, volume)
}

fn open(device: &Arc<MemoryDevice>) -> Engine {
    Engine::open(device.clone(), Options::new(|| support::NOW)).expect("the volume opens")
}

fn at(addr: BlockAddr) -> u64 {
    u64::from(addr.0) * BLOCK
}

/// Changes an inode on the device of a volume that is closed.
fn change_inode(device: &Arc<MemoryDevice>, ino: Ino, change: impl FnOnce(&mut NodeBlock)) {
    let volume = Engine::open(device.clone(), Options::read_only()).expect("a sound volume");
    let addr = volume.nat_entry(ino.into()).expect("a sound NAT").addr;
    let mut node = NodeBlock::clone(&volume.inode(ino).expect("it is sound"));
    change(&mut node);
    device.write(at(addr), node.bytes()).expect("in memory");
}

/// The last checkpoint of each unmount added to this number.
#[test]
fn a_volume_that_claims_endless_writes_is_unmounted() {
    let (device, mut volume) = format(&[]);
    volume.unmount().unwrap();
    let pack = volume.geometry().pack(volume.last_pack());
    let hot_nodes = BlockAddr(pack.0 + volume.last_checkpoint().pack_blocks - 4);
    drop(volume);
    // Behind 512 entries of 7 bytes, and two bytes of the journal.
    device.write(at(hot_nodes) + 512 * 7 + 2, &[0xFF; 8]).unwrap();
    let mut volume = open(&device);
    volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.unmount().unwrap();
    assert!(open(&device).lookup(ROOT, b"file").is_ok());
}

/// The flags of a synced inode did not fit the extra attributes of the inode in the checkpoint.
#[test]
fn a_chain_of_fsyncs_cannot_make_an_inode_impossible() {
    let (device, mut volume) = format(&["extra_attr", "compression"]);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.checkpoint().unwrap();
    let version = volume.last_checkpoint().version;
    volume.begin(Caller::ADMIN).write(ino, 0, &[7; 10_000]).unwrap();
    volume.fsync(ino, SyncScope::Everything).unwrap();
    assert_eq!(volume.last_checkpoint().version, version, "the fsync is no checkpoint");
    let addr = volume.nat_entry(ino.into()).unwrap().addr;
    drop(volume);
    let mut bytes = vec![0; BLOCK as usize];
    device.read(at(addr), &mut bytes).unwrap();
    // The flags lie at byte 80, the algorithm and the size of clusters at the end of the extra attributes.
    let flags = u32::from_le_bytes(bytes[80..84].try_into().unwrap()) | flag::COMPRESS;
    bytes[80..84].copy_from_slice(&flags.to_le_bytes());
    bytes[360 + 32..360 + 34].copy_from_slice(&[1, 2]);
    device.write(at(addr), &bytes).unwrap();
    for options in [Options::read_only(), Options::new(|| support::NOW)] {
        match Engine::open(device.clone(), options) {
            Err(Error::Corrupt { what, .. }) => assert!(what.contains("i_log_cluster_size 0"), "{what}"),
            other => panic!("{:?}", other.err()),
        }
    }
}

#[test]
fn a_superblock_of_more_blocks_than_bytes_can_count_is_refused() {
    let (device, mut volume) = format(&[]);
    volume.unmount().unwrap();
    drop(volume);
    // The count of blocks lies at byte 36 of each copy.
    for copy in [0, BLOCK] {
        device.write(copy + 1024 + 36, &(1_u64 << 60).to_le_bytes()).unwrap();
    }
    let error = Engine::open(device, Options::read_only()).err().expect("impossible").to_string();
    assert!(error.contains("block_count 1152921504606846976"), "{error}");
}

/// Only compressed files have a rule for the number of blocks that compression saves.
#[test]
fn saved_blocks_of_a_plain_file_do_not_count_when_it_becomes_compressed() {
    let (device, mut volume) = format(&["extra_attr", "compression"]);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    change_inode(&device, ino, |node| {
        let flags = node.head().flags.get();
        let settings = Compression { algorithm: Algorithm::Lz4, ..Compression::default() };
        node.set_compression(Some(settings));
        node.set_saved_blocks(u64::MAX);
        node.head_mut().flags.set(flags);
    });
    let mut volume = open(&device);
    let set = SetAttr { flags: Some(flag::COMPRESS), ..SetAttr::default() };
    volume.begin(Caller::ADMIN).set_attr(ino, &set).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &[0; 4 * BLOCK as usize]).unwrap();
    assert_eq!(volume.stat(ino).unwrap().saved_blocks, 3);
    volume.unmount().unwrap();
}

#[test]
fn a_directory_with_all_links_takes_another_name() {
    let (device, mut volume) = format(&[]);
    let below = volume.begin(Caller::ADMIN).create(ROOT, b"below", &NewNode::new(DIR)).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    change_inode(&device, ROOT, |node| node.head_mut().links.set(u32::MAX));
    let mut volume = open(&device);
    volume.begin(Caller::ADMIN).enter_inode(ROOT, b"again", below).unwrap();
    assert_eq!(volume.stat(ROOT).unwrap().links, u32::MAX);
}

/// Each leaf of a quota file was kept in memory, also if one block of the device stood for all.
#[test]
fn a_block_of_the_device_stands_for_one_block_of_a_quota_file() {
    let (device, mut volume) = format(&["extra_attr", "quota"]);
    volume.unmount().unwrap();
    let ino = volume.quota_ino(QuotaKind::User).expect("the volume has quota");
    let first = volume.inode(ino).unwrap().addr(0);
    assert!(first.is_real());
    drop(volume);
    // Parts 0 to 3 of the file are in block 0, the last level of the tree and its leaf in block 1.
    change_inode(&device, ino, |node| {
        let second = node.addr(1);
        node.set_addr(2, second);
        node.head_mut().size.set(3 * BLOCK);
    });
    let mut blocks = [0; 4];
    device.read(at(first) + 20, &mut blocks).unwrap();
    assert_eq!(u32::from_le_bytes(blocks), 6, "the parts of a fresh file");
    device.write(at(first) + 20, &12_u32.to_le_bytes()).unwrap();
    // A second pointer of the last level, to part 9: the leaf again, at block 2 of the file.
    let volume = open(&device);
    let second = volume.inode(ino).unwrap().addr(1);
    assert!(volume.quota_records(QuotaKind::User).is_ok());
    drop(volume);
    device.write(at(second) + 4, &9_u32.to_le_bytes()).unwrap();
    let error = open(&device).quota_records(QuotaKind::User).unwrap_err().to_string();
    assert!(error.contains("twice"), "{error}");
}

/// Each pair of equal names was looked up, and each lookup walked the whole directory.
#[test]
fn equal_names_of_a_damaged_casefolded_directory_cost_a_bounded_number_of_walks() {
    const NAMES: u32 = 4000;
    let device = Arc::new(Counted::new(MemoryDevice::new(BYTES)));
    let mut volume = support::format_on(device.clone(), &["casefold"], BlockSize::B4K);
    let dir = volume.begin(Caller::ADMIN).create(ROOT, b"dir", &NewNode::new(DIR)).unwrap();
    for n in 0..NAMES {
        volume.begin(Caller::ADMIN).create(dir, format!("{n:08}").as_bytes(), &NewNode::new(FILE)).unwrap();
    }
    volume.unmount().unwrap();
    let areas: Vec<u64> =
        volume.directory_areas(dir).unwrap().map(|area| area.expect("it is sound").0).collect();
    let addrs: Vec<BlockAddr> = {
        let inode = volume.inode(dir).unwrap();
        areas.iter().map(|block| volume.address(&inode, *block).unwrap()).collect()
    };
    let inode_at = at(volume.nat_entry(dir.into()).unwrap().addr);
    let mut inode = NodeBlock::clone(&volume.inode(dir).unwrap());
    drop(volume);
    let (mut pairs, none) = (0, Ino(0x7FFF_FFFF));
    for addr in &addrs {
        let mut area = Dentries::new(vec![0; BLOCK as usize], f2fs::Place::Volume);
        let mut bytes = area.clone().into_inner();
        device.read(at(*addr), &mut bytes).unwrap();
        area = Dentries::new(bytes, f2fs::Place::Volume);
        let slots: Vec<usize> = area
            .entries()
            .map(|entry| entry.unwrap())
            .filter(|it| it.name.len() == 8)
            .map(|it| it.slot)
            .collect();
        for (n, slot) in slots.into_iter().enumerate() {
            // No hash leads to these names.
            area.set_name(slot, format!("p{:03}{:04}", addr.0 % 1000, n / 2).as_bytes());
            area.set_target(slot, none, f2fs::format::FileType::Regular);
            pairs += n % 2;
        }
        device.write(at(*addr), area.into_inner().as_slice()).unwrap();
    }
    assert!(pairs > 1500, "{pairs}");
    // The first entry of the last block is damaged: a name of 300 bytes.
    let last = at(*addrs.last().expect("it has blocks"));
    device.write(last, &[1]).unwrap();
    device.write(last + 30 + 8, &300_u16.to_le_bytes()).unwrap();
    let flags = inode.head().flags.get() | flag::CASEFOLD;
    inode.head_mut().flags.set(flags);
    device.write(inode_at, inode.bytes()).unwrap();
    let volume = Engine::open(device.clone(), Options::read_only()).unwrap();
    device.take_counts();
    let damage = Walk::default().enter(&volume, dir).unwrap();
    assert!(damage.iter().any(|error| error.to_string().contains("twice")));
    let reads = device.take_counts().reads;
    assert!(reads <= 100 * addrs.len() as u64, "{reads} reads of {} blocks", addrs.len());
}
