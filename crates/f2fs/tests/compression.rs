//! Compressed files that are written, changed, released and reserved, judged by a copy in memory, by
//! fsck.f2fs and by counting the entries of their maps.

#[path = "support/golden.rs"]
mod golden;
mod support;

use std::path::Path;

use block::Rng;
use f2fs::{
    Error,
    engine::{Caller, Engine, ExtentKind, FileSize, NewNode, Options, Policy, SetAttr, SyncScope},
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

/// Makes random changes to a file and to its copy.
fn change(volume: &mut Engine, ino: Ino, copy: &mut Vec<u8>, rng: &mut Rng, most: u64) {
    let (offset, mask) = (rng.below(most), if rng.chance(0.3) { NOISE } else { SPARSE });
    let length = match rng.below(4) {
        0 => 1 + rng.below(5000),
        1 => BLOCK * (1 + rng.below(4)),
        _ => 1 + rng.below(200_000),
    };
    let offset = if rng.chance(0.5) { offset / BLOCK * BLOCK } else { offset };
    match rng.below(10) {
        0..=5 => {
            let data = content(rng, length as usize, mask);
            volume.begin(Caller::ADMIN).write(ino, offset, &data).unwrap();
            put(copy, offset as usize, &data);
        }
        6..=7 => {
            volume.begin(Caller::ADMIN).truncate(ino, offset).unwrap();
            copy.resize(offset as usize, 0);
        }
        8 => {
            volume.begin(Caller::ADMIN).punch_hole(ino, offset, length).unwrap();
            let end = copy.len().min((offset + length) as usize);
            if (offset as usize) < end {
                copy[offset as usize..end].fill(0);
            }
        }
        _ => {
            let size = if rng.chance(0.5) { FileSize::Stays } else { FileSize::Grows };
            volume.begin(Caller::ADMIN).allocate_range(ino, offset, length, size).unwrap();
            if size == FileSize::Grows {
                copy.resize(copy.len().max((offset + length) as usize), 0);
            }
        }
    }
}

#[test]
fn every_algorithm_is_written_changed_and_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let mut rng = Rng::new(3);
    for (n, algorithm) in ALL.into_iter().enumerate() {
        for log_cluster_blocks in [2, 4 + n as u8] {
            support::mkfs(&path, 100 << 20, &FEATURES);
            let settings =
                Compression { algorithm, log_cluster_blocks, checksum: n % 2 == 0, level: n as u8 };
            let mut volume = open(&path, settings, 1 << 20);
            let dir = compressed_dir(&mut volume, b"dir");
            let mut files: Vec<(Ino, Vec<u8>)> = (0..3)
                .map(|n| {
                    let name = format!("file{n}");
                    (
                        volume
                            .begin(Caller::ADMIN)
                            .create(dir, name.as_bytes(), &NewNode::new(FILE))
                            .unwrap(),
                        Vec::new(),
                    )
                })
                .collect();
            let (first, copy) = &mut files[0];
            let data = content(&mut rng, 3_000_000, SPARSE);
            volume.begin(Caller::ADMIN).write(*first, 0, &data).unwrap();
            put(copy, 0, &data);
            assert_eq!(volume.stat(*first).unwrap().compression, Some(settings));
            let whole = 3_000_000 / (BLOCK as usize * (1 << log_cluster_blocks));
            assert_eq!(check_map(&volume, *first), whole, "{settings:?}");
            for step in 0..120 {
                let (ino, copy) = &mut files[rng.below(3) as usize];
                change(&mut volume, *ino, copy, &mut rng, 6_000_000);
                if step % 40 == 39 {
                    volume.unmount().unwrap();
                    drop(volume);
                    support::assert_clean(&path);
                    volume = open(&path, lz4(), 1 << 20);
                }
                if step % 20 == 19 {
                    for (ino, copy) in &files {
                        assert!(read(&volume, *ino) == *copy, "{settings:?}, {ino} after {step}");
                        check_map(&volume, *ino);
                    }
                }
            }
            for (name, (ino, _)) in [b"file0", b"file1", b"file2"].into_iter().zip(&files) {
                assert_eq!(volume.lookup(dir, name).unwrap(), *ino);
                volume.begin(Caller::ADMIN).unlink(dir, name).unwrap();
            }
            volume.begin(Caller::ADMIN).remove_dir(ROOT, b"dir").unwrap();
            volume.unmount().unwrap();
            assert_eq!((volume.counters().valid_inodes, volume.counters().valid_nodes), (1, 1));
            drop(volume);
            support::assert_clean(&path);
        }
    }
}

#[test]
fn small_writes_one_after_the_other_become_whole_clusters() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &FEATURES);
    let mut volume = open(&path, lz4(), 16 << 20);
    let dir = compressed_dir(&mut volume, b"dir");
    let ino = volume.begin(Caller::ADMIN).create(dir, b"log", &NewNode::new(FILE)).unwrap();
    let line = b"the same line over and over, as logs are\n";
    for n in 0..4000 {
        volume.begin(Caller::ADMIN).write(ino, n * line.len() as u64, line).unwrap();
        if n % 500 == 0 {
            volume.fsync(ino, SyncScope::Everything).unwrap();
        }
    }
    volume.unmount().unwrap();
    let clusters = 4000 * line.len() / (4 * BLOCK as usize);
    assert_eq!(check_map(&volume, ino), clusters);
    assert_eq!(volume.stat(ino).unwrap().saved_blocks, 3 * clusters as u64);
    drop(volume);
    support::assert_clean(&path);
    let volume = support::open(&path);
    assert!(read(&volume, ino) == line.repeat(4000));
}

#[test]
fn released_space_can_be_used_and_reserved_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &FEATURES);
    let mut volume = open(&path, lz4(), 1 << 20);
    let dir = compressed_dir(&mut volume, b"dir");
    let plain = volume.begin(Caller::ADMIN).create(ROOT, b"plain", &NewNode::new(FILE)).unwrap();
    let ino = volume.begin(Caller::ADMIN).create(dir, b"file", &NewNode::new(FILE)).unwrap();
    let mut data = content(&mut Rng::new(5), 1_000_000, NOISE);
    data[100_000..900_000].fill(7);
    volume.begin(Caller::ADMIN).write(ino, 0, &data).unwrap();
    let before = volume.counters().valid_blocks;
    let saved = volume.stat(ino).unwrap().saved_blocks;
    assert!(saved > 100, "{saved}");

    assert!(matches!(volume.begin(Caller::ADMIN).release_saved(plain), Err(Error::Invalid(_))));
    assert!(matches!(volume.begin(Caller::ADMIN).reserve_saved(ino), Err(Error::Invalid(_))));
    assert_eq!(volume.begin(Caller::ADMIN).release_saved(ino).unwrap(), saved);
    assert!(matches!(volume.begin(Caller::ADMIN).release_saved(ino), Err(Error::Invalid(_))));
    assert_eq!(volume.counters().valid_blocks, before - saved);
    assert!(volume.stat(ino).unwrap().released);
    assert_eq!(volume.released_blocks(ino).unwrap(), saved);
    check_map(&volume, ino);
    for refused in [
        volume.begin(Caller::ADMIN).write(ino, 0, b"x"),
        volume.begin(Caller::ADMIN).punch_hole(ino, 0, BLOCK),
        volume.begin(Caller::ADMIN).allocate_range(ino, 0, 2_000_000, FileSize::Grows),
    ] {
        assert!(matches!(refused, Err(Error::NotPermitted)), "{refused:?}");
    }
    assert!(matches!(volume.begin(Caller::ADMIN).truncate(ino, 500_000), Err(Error::Invalid(_))));
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);

    let mut volume = open(&path, lz4(), 1 << 20);
    assert!(read(&volume, ino) == data);
    // The file can be truncated between clusters.
    volume.begin(Caller::ADMIN).truncate(ino, 50 * 4 * BLOCK).unwrap();
    data.truncate(50 * 4 * BLOCK as usize);
    check_map(&volume, ino);
    // On a full volume, no block is reserved.
    fill(&mut volume, b"filler");
    let full = volume.counters();
    assert!(matches!(volume.begin(Caller::ADMIN).reserve_saved(ino), Err(Error::NoSpace { .. })));
    assert_eq!(volume.counters(), full);
    assert!(volume.stat(ino).unwrap().released && read(&volume, ino) == data);
    volume.begin(Caller::ADMIN).unlink(ROOT, b"filler").unwrap();
    let reserved = volume.begin(Caller::ADMIN).reserve_saved(ino).unwrap();
    assert_eq!(volume.stat(ino).unwrap().saved_blocks, reserved);
    volume.begin(Caller::ADMIN).write(ino, 333, b"written").unwrap();
    put(&mut data, 333, b"written");
    check_map(&volume, ino);
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);

    let mut volume = open(&path, lz4(), 1 << 20);
    assert!(read(&volume, ino) == data);
    volume.begin(Caller::ADMIN).release_saved(ino).unwrap();
    volume.begin(Caller::ADMIN).truncate(ino, 0).unwrap();
    assert!(!volume.stat(ino).unwrap().released);
    volume.begin(Caller::ADMIN).write(ino, 0, &data).unwrap();
    volume.begin(Caller::ADMIN).release_saved(ino).unwrap();
    volume.begin(Caller::ADMIN).unlink(dir, b"file").unwrap();
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);
}

#[test]
fn compression_is_inherited_and_chosen_by_extension() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &FEATURES);
    let options = Options {
        compressed_extensions: vec!["so".into()],
        plain_extensions: vec!["zip".into()],
        ..Options::new(|| NOW)
    };
    let mut volume = Engine::open(support::device(&path), options).unwrap();
    let dir = compressed_dir(&mut volume, b"dir");
    let sub = volume.begin(Caller::ADMIN).create(dir, b"sub", &NewNode::new(DIR)).unwrap();
    let never = volume.begin(Caller::ADMIN).create(dir, b"never", &NewNode::new(DIR)).unwrap();
    with_flags(&mut volume, never, flag::NOCOMPRESS).unwrap();
    let mut is = |dir: Ino, name: &str, mode: u16| {
        let ino = volume.begin(Caller::ADMIN).create(dir, name.as_bytes(), &NewNode::new(mode)).unwrap();
        let stat = volume.stat(ino).unwrap();
        (stat.compression.is_some(), stat.flags & (flag::COMPRESS | flag::NOCOMPRESS))
    };
    assert_eq!(is(sub, "a", FILE), (true, flag::COMPRESS));
    assert_eq!(is(sub, "a.zip", FILE), (false, 0));
    // The name has a hot extension of mkfs.f2fs's list.
    assert_eq!(is(sub, "a.db", FILE), (false, 0));
    assert_eq!(is(sub, "fifo", 0o010_600), (false, 0));
    assert_eq!(is(ROOT, "a.so", FILE), (true, flag::COMPRESS));
    assert_eq!(is(ROOT, "a", FILE), (false, 0));
    assert_eq!(is(never, "a", FILE), (false, flag::NOCOMPRESS));
    assert_eq!(is(never, "a.so", FILE), (true, flag::COMPRESS));
    assert_eq!(is(never, "dir", DIR), (false, flag::NOCOMPRESS));
    let nameless = volume.begin(Caller::ADMIN).create_nameless(dir, &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).link(nameless, dir, b"a").unwrap();
    assert!(volume.stat(nameless).unwrap().compression.is_none(), "its name was not looked up before");
    volume.begin(Caller::ADMIN).release(nameless).unwrap();
    volume.begin(Caller::ADMIN).symlink(dir, b"link", b"a", &NewNode::new(0o777)).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);
}

#[test]
fn flags_change_only_while_there_is_nothing_to_convert() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &FEATURES);
    let mut volume = open(&path, lz4(), 1 << 20);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    let invalid = |result: f2fs::Result<()>| matches!(result, Err(Error::Invalid(_)));
    assert!(invalid(with_flags(&mut volume, ino, flag::COMPRESS | flag::NOCOMPRESS)));
    with_flags(&mut volume, ino, flag::COMPRESS).unwrap();
    volume.begin(Caller::ADMIN).choose_compression(ino, Algorithm::Zstd, 3).unwrap();
    assert!(invalid(volume.begin(Caller::ADMIN).choose_compression(ino, Algorithm::Zstd, 9)));
    volume.begin(Caller::ADMIN).write(ino, 0, &[1; 100_000]).unwrap();
    assert!(invalid(with_flags(&mut volume, ino, 0)));
    assert!(matches!(
        volume.begin(Caller::ADMIN).choose_compression(ino, Algorithm::Lz4, 2),
        Err(Error::FileTooLarge)
    ));
    assert_eq!(check_map(&volume, ino), 3);
    volume.begin(Caller::ADMIN).truncate(ino, 0).unwrap();
    with_flags(&mut volume, ino, 0).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &[1; 100_000]).unwrap();
    assert!(invalid(with_flags(&mut volume, ino, flag::COMPRESS)));
    let small = volume.begin(Caller::ADMIN).create(ROOT, b"small", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(small, 0, b"inline").unwrap();
    assert!(invalid(with_flags(&mut volume, small, flag::COMPRESS)));
    assert_eq!(read(&volume, small), b"inline");
    volume.fsync(ino, SyncScope::Everything).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);

    support::mkfs(&path, 64 << 20, &[]);
    let mut volume = open(&path, lz4(), 1 << 20);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    assert!(matches!(with_flags(&mut volume, ino, flag::COMPRESS), Err(Error::Unsupported(_))));
}

/// fsck.f2fs does not judge these volumes, because it takes a hole below an indirect node of a compressed
/// file for a longer one.
#[test]
fn clusters_lie_anywhere_up_to_the_last_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &FEATURES);
    let mut volume = open(&path, lz4(), 1 << 20);
    let dir = compressed_dir(&mut volume, b"dir");
    let ino = volume.begin(Caller::ADMIN).create(dir, b"far", &NewNode::new(FILE)).unwrap();
    let before = volume.counters();
    let layout = volume.inode(ino).unwrap().layout();
    let (own, direct, children) =
        (layout.addrs() as u64, layout.direct_addrs() as u64, layout.children() as u64);
    let last = layout.reach_blocks();
    let edges = [
        own,
        own + direct,
        own + 2 * direct,
        own + (2 + children) * direct,
        own + (2 + 2 * children) * direct,
    ];
    let data = content(&mut Rng::new(1), 12 * BLOCK as usize, SPARSE);
    for edge in edges.map(|edge| edge - 6).into_iter().chain([last - 12]) {
        volume.begin(Caller::ADMIN).write(ino, edge * BLOCK, &data).unwrap();
    }
    assert!(matches!(
        volume.begin(Caller::ADMIN).write(ino, last * BLOCK - 1, b"xx"),
        Err(Error::FileTooLarge)
    ));
    volume.unmount().unwrap();
    drop(volume);
    let mut volume = support::open(&path);
    for edge in edges.map(|edge| edge - 6).into_iter().chain([last - 12]) {
        let mut bytes = vec![0; data.len()];
        volume.read(ino, edge * BLOCK, &mut bytes).unwrap();
        assert!(bytes == data, "at block {edge}");
    }
    assert_eq!(volume.stat(ino).unwrap().size, last * BLOCK);
    assert!(volume.stat(ino).unwrap().saved_blocks >= 12);
    volume.begin(Caller::ADMIN).truncate(ino, 0).unwrap();
    assert_eq!((volume.counters(), volume.stat(ino).unwrap().saved_blocks), (before, 0));
}

#[test]
fn cleaning_moves_compressed_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &FEATURES);
    let mut volume = open(&path, lz4(), 256 << 10);
    let dir = compressed_dir(&mut volume, b"dir");
    let mut rng = Rng::new(9);
    let mut files = Vec::new();
    for n in 0..60 {
        let ino = volume
            .begin(Caller::ADMIN)
            .create(dir, format!("file{n}").as_bytes(), &NewNode::new(FILE))
            .unwrap();
        let data = content(&mut rng, 150_000, SPARSE);
        volume.begin(Caller::ADMIN).write(ino, 0, &data).unwrap();
        files.push((ino, data));
    }
    for n in (0..60).step_by(3) {
        volume.begin(Caller::ADMIN).unlink(dir, format!("file{n}").as_bytes()).unwrap();
    }
    // Data that is still to be compressed again is found, too.
    for (ino, data) in files.iter_mut().skip(1).step_by(3) {
        volume.begin(Caller::ADMIN).write(*ino, 77_777, b"changed").unwrap();
        put(data, 77_777, b"changed");
    }
    let cleaned = volume.clean(8, Policy::Greedy).unwrap();
    assert!(cleaned.moved_blocks > 100, "{cleaned:?}");
    for (n, (ino, data)) in files.iter().enumerate().filter(|(n, _)| n % 3 != 0) {
        assert!(read(&volume, *ino) == *data, "file{n}");
        assert_eq!(check_map(&volume, *ino), 9);
    }
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);
}

#[test]
fn files_compressed_by_the_kernel_are_changed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let mut rng = Rng::new(11);
    for name in golden::names().into_iter().filter(|name| name.starts_with("compress-")) {
        let device = golden::device(&name);
        let bytes = device.geometry().size_bytes;
        let mut all = vec![0; bytes as usize];
        device.read(0, &mut all).unwrap();
        std::fs::write(&path, &all).unwrap();
        let mut volume = open(&path, lz4(), 1 << 20);
        let mut files = Vec::new();
        let mut pending = vec![ROOT];
        while let Some(dir) = pending.pop() {
            for entry in volume.entries(dir, 0).unwrap().map(Result::unwrap) {
                let stat = volume.stat(entry.ino).unwrap();
                match entry.name.as_slice() {
                    b"." | b".." => {}
                    _ if volume.inode(entry.ino).unwrap().is_directory() => pending.push(entry.ino),
                    _ if stat.compression.is_some() && stat.size < 8 << 20 => {
                        check_map(&volume, entry.ino);
                        files.push((entry.ino, read(&volume, entry.ino), stat.released));
                    }
                    _ => {}
                }
            }
        }
        assert!(files.len() > 3, "{name}: {} files", files.len());
        for (ino, copy, released) in &mut files {
            if *released {
                volume.begin(Caller::ADMIN).reserve_saved(*ino).unwrap();
            }
            for _ in 0..6 {
                change(&mut volume, *ino, copy, &mut rng, 600_000);
            }
        }
        for (ino, copy, _) in &files {
            assert!(read(&volume, *ino) == *copy, "{name}: {ino}");
        }
        volume.unmount().unwrap();
        drop(volume);
        support::assert_clean(&path);
        let volume = support::open(&path);
        for (ino, copy, _) in &files {
            assert!(read(&volume, *ino) == *copy, "{name}: {ino}");
            check_map(&volume, *ino);
        }
    }
}

/// Returns content that compresses to nine tenths.
fn hardly_compressible(rng: &mut Rng, length: usize) -> Vec<u8> {
    let mut bytes = content(rng, length, NOISE);
    bytes[..length / 10].fill(0);
    bytes
}

#[test]
fn a_byte_in_each_large_cluster_of_a_full_volume_can_be_changed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 192 << 20, &[FEATURES[0], FEATURES[1], "-o", "10"]);
    let settings = Compression { log_cluster_blocks: 8, ..lz4() };
    let mut volume = open(&path, settings, 64 << 20);
    let dir = compressed_dir(&mut volume, b"dir");
    let mut rng = Rng::new(21);
    let ino = volume.begin(Caller::ADMIN).create(dir, b"file", &NewNode::new(FILE)).unwrap();
    let mut copy = Vec::new();
    let data = hardly_compressible(&mut rng, 1 << 20);
    loop {
        match volume.begin(Caller::ADMIN).write(ino, copy.len() as u64, &data) {
            Ok(()) => copy.extend_from_slice(&data),
            Err(error) => break assert!(matches!(error, Error::NoSpace { .. }), "{error}"),
        }
    }
    let clusters = copy.len() >> 20;
    assert!(clusters > 30 && volume.stat(ino).unwrap().saved_blocks > 20 * clusters as u64);
    let filler = volume.begin(Caller::ADMIN).create(ROOT, b"filler", &NewNode::new(FILE)).unwrap();
    let mut at = 0;
    while volume.begin(Caller::ADMIN).write(filler, at, &[1; 4096]).is_ok() {
        at += 4096;
    }
    volume.checkpoint().unwrap();
    for round in 0..4 {
        for n in 0..clusters {
            let offset = (n << 20) + 5000 * (round + 1);
            volume.begin(Caller::ADMIN).write(ino, offset as u64, &[round as u8; 3]).unwrap();
            put(&mut copy, offset, &[round as u8; 3]);
        }
        volume.fsync(ino, SyncScope::Everything).unwrap();
    }
    assert!(read(&volume, ino) == copy);
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);
}

#[test]
fn an_unreadable_cluster_is_not_written_in_part_and_delays_no_other_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &FEATURES);
    let mut volume = open(&path, lz4(), 1 << 20);
    let dir = compressed_dir(&mut volume, b"dir");
    let ino = volume.begin(Caller::ADMIN).create(dir, b"file", &NewNode::new(FILE)).unwrap();
    let whole = content(&mut Rng::new(1), 8 * BLOCK as usize, SPARSE);
    volume.begin(Caller::ADMIN).write(ino, 0, &whole).unwrap();
    volume.checkpoint().unwrap();
    let damage = |volume: &Engine, offset: u64| {
        let extent = volume.next_extent(ino, offset).unwrap().unwrap();
        assert_eq!(extent.kind, ExtentKind::Compressed);
        volume.device().write(extent.physical.unwrap(), &[0xFF; BLOCK as usize]).unwrap();
    };
    // The damage happens before a write, and while written data is in memory.
    damage(&volume, 0);
    let refused = volume.begin(Caller::ADMIN).write(ino, BLOCK, &[7; BLOCK as usize]);
    assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    volume.checkpoint().unwrap();
    volume.begin(Caller::ADMIN).write(ino, 5 * BLOCK, &[7; BLOCK as usize]).unwrap();
    damage(&volume, 4 * BLOCK);
    let other = volume.begin(Caller::ADMIN).create(ROOT, b"other", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(other, 0, b"other").unwrap();
    volume.begin(Caller::ADMIN).link(other, ROOT, b"second").unwrap();
    volume.fsync(other, SyncScope::Everything).unwrap();
    for told in [
        volume.fsync(ino, SyncScope::Everything),
        volume.checkpoint(),
        volume.fsync(ino, SyncScope::Everything),
    ] {
        assert!(matches!(told, Err(Error::Corrupt { .. })), "{told:?}");
    }
    // Overwriting the whole cluster works.
    volume.begin(Caller::ADMIN).write(ino, 0, &whole).unwrap();
    volume.fsync(ino, SyncScope::Everything).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    let volume = open(&path, lz4(), 1 << 20);
    assert!(read(&volume, ino) == whole && read(&volume, other) == b"other");
}
