//! Compressed files whose inodes have lost their compression: the clusters tell it.

use block::Device;
use f2fs::{
    engine::{Caller, Engine, NewNode, Options, SetAttr},
    format::inode::{Compression, flag},
    units::BlockAddr,
};
use f2fs_check::repair::{Planned, plan};
use std::sync::Arc;

mod support;

#[path = "support/volume.rs"]
mod volume;

use volume::{BLOCK, Damaged, NOW};

/// Byte offsets in an inode.
const FLAGS: usize = 80;
const ALGORITHM: usize = 392;
const LOG_CLUSTER_SIZE: usize = 393;
const COMPRESS_FLAG: usize = 394;
const ADDRS: usize = 396;

fn planned(d: &Damaged) -> Planned {
    let device: Arc<dyn Device> = d.device.clone();
    plan(&device, NOW, &mut |_| {}).unwrap()
}

/// The flags of the compressed file with the one for compression inverted.
fn other_flags(d: &Damaged) -> Vec<u8> {
    let flags = d.volume().inode(d.ino("/compressed")).unwrap().head().flags.get();
    (flags ^ flag::COMPRESS).to_le_bytes().to_vec()
}

#[test]
fn the_compression_of_an_inode_comes_back_from_its_clusters() {
    let flags = other_flags(&Damaged::new());
    let cases = [
        (ALGORITHM, vec![7]),
        (LOG_CLUSTER_SIZE, vec![1]),
        (LOG_CLUSTER_SIZE, vec![3]),
        (FLAGS, flags),
        // The clusters have no checksums.
        (COMPRESS_FLAG, vec![1]),
    ];
    for (at, bytes) in cases {
        let d = Damaged::new();
        d.put_inode(d.ino("/compressed"), at, &bytes);
        let case = format!("{bytes:?} at {at}");
        let Planned::Repair(plan) = planned(&d) else { panic!("{case}: a repair") };
        assert_eq!(plan.losses, Vec::<String>::new(), "{case}");
        plan.apply(&*d.device).unwrap();
        let report = support::report(d.device.clone());
        assert!(report.is_clean(), "{case}: {}", support::lines(&report));
        let volume = f2fs::OpenOptions::new().open(d.device.clone()).unwrap();
        assert!(volume.read("/compressed").unwrap() == [9; 16 * BLOCK], "{case}");
        model::fsck::fsck(&d.device).unwrap_or_else(|error| panic!("{case}: {error:#}"));
    }
}

#[test]
fn clusters_that_are_longer_than_their_inode_says_get_their_length_back() {
    let d = Damaged::new();
    let compression = Compression { log_cluster_blocks: 3, ..Compression::default() };
    let options = Options { compression, ..Options::new(|| NOW) };
    let mut volume = Engine::open(d.device.clone(), options).unwrap();
    let root = volume.superblock().root_ino;
    let ino = volume.begin(Caller::ADMIN).create(root, b"long", &NewNode::new(0o100_644)).unwrap();
    let flags = SetAttr { flags: Some(flag::COMPRESS), ..SetAttr::default() };
    volume.begin(Caller::ADMIN).set_attr(ino, &flags).unwrap();
    let content: Vec<u8> = (0..32 * BLOCK).map(|n| (n / 700) as u8).collect();
    volume.begin(Caller::ADMIN).write(ino, 0, &content).unwrap();
    volume.unmount().unwrap();
    let addr = volume.nat_entry(ino.into()).unwrap().addr;
    drop(volume);
    d.put(addr, LOG_CLUSTER_SIZE, &[2]);
    d.seal_at(ino, addr);
    let report = support::report(d.device.clone());
    assert_eq!(support::errors(&report), ["cluster"], "{}", support::lines(&report));
    let Planned::Repair(plan) = planned(&d) else { panic!("a repair") };
    assert_eq!(plan.losses, Vec::<String>::new());
    plan.apply(&*d.device).unwrap();
    assert!(support::report(d.device.clone()).is_clean());
    let volume = f2fs::OpenOptions::new().open(d.device.clone()).unwrap();
    assert!(volume.read("/long").unwrap() == content);
}

#[test]
fn clusters_that_nothing_can_decompress_are_left_alone() {
    let d = Damaged::new();
    for cluster in 0..4 {
        d.put(d.data(d.ino("/compressed"), 4 * cluster + 1), 0, &[0xA5; BLOCK]);
    }
    d.put_inode(d.ino("/compressed"), FLAGS, &other_flags(&d));
    let Planned::Refused(refusal) = planned(&d) else { panic!("a refusal") };
    assert_eq!(refusal.report.count(f2fs_check::Kind::Cluster), 1);
}

#[test]
fn a_cluster_that_is_cleared_is_a_loss() {
    let d = Damaged::new();
    d.put_inode(d.ino("/compressed"), ADDRS + 4, &[0; 4]);
    let blocks = d.volume().inode(d.ino("/compressed")).unwrap().head().blocks.get();
    // Neither i_blocks nor the SIT knows of the block.
    d.put_inode(d.ino("/compressed"), 24, &(blocks - 1).to_le_bytes());
    let (segment, offset) = d.position(d.data(d.ino("/compressed"), 1));
    let byte = usize::from(offset) / 8;
    let map = d.sit(segment).map[byte] & !(0x80 >> (offset % 8));
    d.put_sit(segment, 2 + byte, &[map]);
    let Planned::Repair(plan) = planned(&d) else { panic!("a repair") };
    assert!(plan.losses.iter().any(|loss| loss.contains("compressed clusters")), "{:?}", plan.losses);
}

#[test]
fn a_compressed_file_whose_inode_is_lost_comes_back_compressed() {
    // The clusters of the second one need direct nodes.
    for blocks in [32, 1200] {
        let d = Damaged::new();
        let mut volume = Engine::open(d.device.clone(), Options::new(|| NOW)).unwrap();
        let root = volume.superblock().root_ino;
        let ino = volume.begin(Caller::ADMIN).create(root, b"small", &NewNode::new(0o100_644)).unwrap();
        let flags = SetAttr { flags: Some(flag::COMPRESS), ..SetAttr::default() };
        volume.begin(Caller::ADMIN).set_attr(ino, &flags).unwrap();
        let content: Vec<u8> = (0..blocks * BLOCK).map(|n| (n / 700) as u8).collect();
        volume.begin(Caller::ADMIN).write(ino, 0, &content).unwrap();
        volume.unmount().unwrap();
        let addr = volume.nat_entry(ino.into()).unwrap().addr;
        drop(volume);
        d.put(addr, 0, &[0; BLOCK]);
        let Planned::Repair(plan) = planned(&d) else { panic!("a repair") };
        assert!(!plan.losses.iter().any(|loss| loss.contains("clusters")), "{:?}", plan.losses);
        plan.apply(&*d.device).unwrap();
        assert!(support::report(d.device.clone()).is_clean());
        let volume = f2fs::OpenOptions::new().open(d.device.clone()).unwrap();
        assert!(volume.read("/small").unwrap() == content, "{blocks} blocks");
        model::fsck::fsck(&d.device).unwrap_or_else(|error| panic!("{blocks}: {error:#}"));
    }
}

#[test]
fn clusters_of_a_lost_inode_that_nothing_can_decompress_are_a_loss() {
    let d = Damaged::new();
    for cluster in 0..4 {
        d.put(d.data(d.ino("/compressed"), 4 * cluster + 1), 0, &[0xA5; BLOCK]);
    }
    d.put_node(d.ino("/compressed").into(), 0, &[0; BLOCK]);
    let Planned::Repair(plan) = planned(&d) else { panic!("a repair") };
    assert!(plan.losses.iter().any(|loss| loss.contains("4 compressed clusters")), "{:?}", plan.losses);
}

/// Makes a compressed file of a whole cluster, and behind it a hole, a block with the stored bytes of a cluster, and a hole.
fn with_twin() -> Damaged {
    let d = Damaged::new();
    let stored = d.block(d.data(d.ino("/compressed"), 1));
    let mut volume = Engine::open(d.device.clone(), Options::new(|| NOW)).unwrap();
    let root = volume.superblock().root_ino;
    let ino = volume.begin(Caller::ADMIN).create(root, b"twin", &NewNode::new(0o100_644)).unwrap();
    let attr = SetAttr { flags: Some(flag::COMPRESS), ..SetAttr::default() };
    volume.begin(Caller::ADMIN).set_attr(ino, &attr).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &[9; 4 * BLOCK]).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 5 * BLOCK as u64, &stored).unwrap();
    volume.begin(Caller::ADMIN).truncate(ino, 8 * BLOCK as u64).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    let d = Damaged::copy_of(&d.device);
    let addrs = |range: std::ops::Range<u64>| range.map(|n| d.data(d.ino("/twin"), n)).collect::<Vec<_>>();
    assert!(addrs(4..8).iter().map(|addr| addr.is_real()).eq([false, true, false, false]));
    assert_eq!(addrs(0..1), [BlockAddr::COMPRESS]);
    d
}

#[test]
fn an_intact_block_that_decompresses_is_no_cluster_without_a_mark() {
    let report = support::report(with_twin().device.clone());
    assert!(report.is_clean(), "{}", support::lines(&report));
}

#[test]
fn marks_of_clusters_come_back_where_the_counts_of_the_inode_lack_exactly_them() {
    let d = Damaged::new();
    for cluster in [0, 2] {
        d.put_inode(d.ino("/compressed"), ADDRS + 16 * cluster, &[0; 4]);
    }
    // Reserved places, too.
    d.put_inode(d.ino("/compressed"), ADDRS + 16 * 2 + 8, &[0; 8]);
    let Planned::Repair(plan) = planned(&d) else { panic!("a repair") };
    assert_eq!(plan.report.count(f2fs_check::Kind::Cluster), 2, "{}", support::lines(&plan.report));
    assert_eq!(plan.losses, Vec::<String>::new());
    plan.apply(&*d.device).unwrap();
    assert!(support::report(d.device.clone()).is_clean());
    let volume = f2fs::OpenOptions::new().open(d.device.clone()).unwrap();
    assert!(volume.read("/compressed").unwrap() == [9; 16 * BLOCK]);
}

#[test]
fn where_more_clusters_could_lack_their_mark_than_the_inode_counts_a_loss_is_told() {
    let d = with_twin();
    let read = |range: std::ops::Range<usize>| {
        let volume = f2fs::OpenOptions::new().open(d.device.clone()).unwrap();
        volume.read("/twin").unwrap()[range].to_vec()
    };
    let twin = read(4 * BLOCK..8 * BLOCK);
    d.put_inode(d.ino("/twin"), ADDRS, &[0; 4]);
    let Planned::Repair(plan) = planned(&d) else { panic!("a repair") };
    assert!(plan.losses.iter().any(|loss| loss.contains("1 compressed clusters")), "{:?}", plan.losses);
    assert_eq!(plan.report.count(f2fs_check::Kind::Cluster), 0, "{}", support::lines(&plan.report));
    plan.apply(&*d.device).unwrap();
    assert!(support::report(d.device.clone()).is_clean());
    assert!(read(4 * BLOCK..8 * BLOCK) == twin);
}
