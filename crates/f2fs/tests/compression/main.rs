//! Compressed files that are written, changed, released and reserved, judged by a copy in memory, by
//! fsck.f2fs and by counting the entries of their maps.

mod content;
mod flags;
mod space;

#[path = "../support/golden.rs"]
mod golden;
#[path = "../support/mod.rs"]
mod support;

use std::path::Path;

use block::Rng;
use f2fs::{
    Error,
    engine::{
        Caller, Engine, ExtentKind, FileSize, NewNode, Options, Policy, SavedBlocks, SetAttr, SyncScope,
    },
    format::inode::{Algorithm, Compression, flag, inline},
    units::{BlockAddr, Ino},
};
use support::NOW;

const ROOT: Ino = Ino(3);
const FILE: u16 = 0o100_644;
const DIR: u16 = 0o040_755;
const BLOCK: u64 = 4096;
const FEATURES: [&str; 2] = ["-O", "extra_attr,compression,inode_checksum"];
const ALL: [Algorithm; 4] = [Algorithm::Lzo, Algorithm::Lz4, Algorithm::Zstd, Algorithm::LzoRle];

fn open(path: &Path, compression: Compression, cache_bytes: usize) -> Engine {
    let options = Options { compression, cache_bytes, ..Options::new(|| NOW) };
    Engine::open(support::device(path), options).expect("the volume opens")
}

fn lz4() -> Compression {
    Compression { algorithm: Algorithm::Lz4, log_cluster_blocks: 2, checksum: false, level: 0 }
}

fn with_flags(volume: &mut Engine, ino: Ino, flags: u32) -> f2fs::Result<()> {
    volume.begin(Caller::ADMIN).set_attr(ino, &SetAttr { flags: Some(flags), ..SetAttr::default() })
}

/// Makes a directory in which everything is compressed.
fn compressed_dir(volume: &mut Engine, name: &[u8]) -> Ino {
    let dir = volume.begin(Caller::ADMIN).create(ROOT, name, &NewNode::new(DIR)).unwrap();
    with_flags(volume, dir, flag::COMPRESS).unwrap();
    dir
}

/// The bits that random bytes use: they compress to about a third.
const SPARSE: u8 = 0x03;

/// The bits that random bytes use: they do not compress.
const NOISE: u8 = 0xFF;

/// Returns random bytes that use the bits of `mask`.
fn content(rng: &mut Rng, length: usize, mask: u8) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend(rng.next_u64().to_le_bytes().map(|byte| byte & mask));
    }
    bytes.truncate(length);
    bytes
}

/// Makes a file that takes all free space.
fn fill(volume: &mut Engine, name: &[u8]) {
    let filler = volume.begin(Caller::ADMIN).create(ROOT, name, &NewNode::new(FILE)).unwrap();
    let mut at = 0;
    while volume.begin(Caller::ADMIN).write(filler, at, &[1; 4096]).is_ok() {
        at += 4096;
    }
}

/// Checks the counters of a file against its map, and returns the number of compressed clusters.
fn check_map(volume: &Engine, ino: Ino) -> usize {
    let inode = volume.inode(ino).unwrap();
    let size = inode.layout().cluster_blocks() as u64;
    let released = inode.has_inline(inline::COMPRESS_RELEASED);
    let end = inode.layout().reach_blocks();
    let (mut saved, mut blocks, mut clusters, mut at) = (0, 0, 0, 0);
    while at < end {
        let run = volume.run(&inode, at, end).unwrap();
        if run.addr == BlockAddr::COMPRESS {
            assert_eq!(at % size, 0, "{ino}: a cluster begins at {at}");
            let addrs: Vec<BlockAddr> =
                (at + 1..at + size).map(|block| volume.address(&inode, block).unwrap()).collect();
            let kept = addrs.iter().take_while(|addr| addr.is_real()).count();
            let rest = if released { BlockAddr::NULL } else { BlockAddr::NEW };
            assert!(kept > 0 && addrs[kept..].iter().all(|addr| *addr == rest), "{ino}, {at}: {addrs:?}");
            saved += if released { 0 } else { size - kept as u64 };
            blocks += if released { kept as u64 } else { size };
            clusters += 1;
            at += size;
        } else {
            blocks += if run.addr == BlockAddr::NULL { 0 } else { run.len() };
            at = run.blocks.end;
        }
    }
    assert_eq!(inode.saved_blocks(), Some(saved), "{ino}");
    // In these tests there is at most one node besides the inode; fsck.f2fs checks larger maps.
    let counted = inode.head().blocks.get() - 1;
    assert!((blocks..=blocks + 3).contains(&counted), "{ino} counts {counted} blocks, has {blocks}");
    clusters
}

fn read(volume: &Engine, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0xEE; volume.stat(ino).unwrap().size as usize];
    assert_eq!(volume.read(ino, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn put(copy: &mut Vec<u8>, offset: usize, data: &[u8]) {
    copy.resize(copy.len().max(offset + data.len()), 0);
    copy[offset..offset + data.len()].copy_from_slice(data);
}
