//! Writing volumes, judged by fsck.f2fs and by reading them back.

mod support;

use std::{collections::BTreeSet, sync::Arc};

use block::{Counted, MemoryDevice, Recording, Verb};
use f2fs::{
    Error,
    engine::{Caller, Engine, NewNode, Options, RenameMode, SetAttr, XattrMode},
    format::{
        BlockSize, TableCopy,
        inode::{DeviceNumber, flag},
    },
    mkfs::{self, DeviceContent, DeviceSize, NewVolume, Plan},
    units::{BlockAddr, Ino},
};

const ROOT: Ino = Ino(3);
const FILE: u16 = 0o100_644;
const DIR: u16 = 0o040_755;

/// Volumes of every writable layout: mkfs.f2fs's arguments and the size.
const LAYOUTS: [(u64, &[&str]); 5] = [
    (64 << 20, &[]),
    (128 << 20, &["-s", "2", "-z", "2"]),
    (100 << 20, &["-O", "extra_attr,inode_checksum,sb_checksum,inode_crtime,lost_found"]),
    (100 << 20, &["-O", "extra_attr,inode_checksum,flexible_inline_xattr,project_quota"]),
    (1 << 30, &["-i", "-O", "extra_attr,compression,casefold", "-C", "utf8"]),
];

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

fn read(volume: &Engine, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0; volume.stat(ino).unwrap().size as usize];
    let length = volume.read(ino, 0, &mut bytes).unwrap();
    assert_eq!(length, bytes.len());
    bytes
}

fn names(volume: &Engine, dir: Ino) -> Vec<String> {
    let mut names: Vec<String> = volume
        .entries(dir, 0)
        .unwrap()
        .map(|entry| String::from_utf8(entry.unwrap().name).unwrap())
        .filter(|name| name != "." && name != "..")
        .collect();
    names.sort();
    names
}

#[test]
fn a_formatted_volume_is_clean_and_takes_every_kind_of_entry() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let mut volume = support::format(&path, 64 << 20, &["extra_attr", "inode_checksum"]);
    volume.unmount().unwrap();
    support::assert_clean(&path);

    let sizes = [0, 1, 100, 3452, 3453, 4096, 4097, 100_000, 4_000_000];
    let files: Vec<Ino> = sizes
        .iter()
        .map(|size| {
            let ino = volume
                .begin(Caller::ADMIN)
                .create(ROOT, format!("file{size}").as_bytes(), &NewNode::new(FILE))
                .unwrap();
            volume.begin(Caller::ADMIN).write(ino, 0, &pattern(*size as u64, *size)).unwrap();
            ino
        })
        .collect();
    let sub = volume.begin(Caller::ADMIN).create(ROOT, b"sub", &NewNode::new(DIR)).unwrap();
    volume.begin(Caller::ADMIN).link(files[2], sub, b"hard").unwrap();
    let link =
        volume.begin(Caller::ADMIN).symlink(sub, b"link", b"../file100", &NewNode::new(0o777)).unwrap();
    let long =
        volume.begin(Caller::ADMIN).symlink(sub, b"long", &[b'x'; 4000], &NewNode::new(0o777)).unwrap();
    let device = DeviceNumber { major: 259, minor: 70_000 };
    let node = volume
        .begin(Caller::ADMIN)
        .create(sub, b"device", &NewNode { device: Some(device), ..NewNode::new(0o060_600) })
        .unwrap();
    volume.begin(Caller::ADMIN).create(sub, b"fifo", &NewNode::new(0o010_600)).unwrap();
    volume.begin(Caller::ADMIN).create(sub, b"socket", &NewNode::new(0o140_600)).unwrap();
    volume.begin(Caller::ADMIN).set_xattr(files[3], b"user.short", b"value", XattrMode::Create).unwrap();
    volume.begin(Caller::ADMIN).set_xattr(files[3], b"user.long", &pattern(7, 3000), XattrMode::Set).unwrap();
    volume.begin(Caller::ADMIN).set_xattr(sub, b"trusted.x", b"", XattrMode::Set).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);

    let volume = support::open(&path);
    for (ino, size) in files.iter().zip(sizes) {
        assert!(read(&volume, *ino) == pattern(size as u64, size), "{size} bytes");
    }
    assert_eq!(names(&volume, sub), ["device", "fifo", "hard", "link", "long", "socket"]);
    assert_eq!(volume.stat(files[2]).unwrap().links, 2);
    assert_eq!(volume.read_link(link).unwrap(), b"../file100");
    assert_eq!(volume.read_link(long).unwrap(), [b'x'; 4000]);
    assert_eq!(volume.stat(node).unwrap().device, Some(device));
    assert_eq!(volume.get_xattr(files[3], b"user.short").unwrap(), b"value");
    assert_eq!(volume.get_xattr(files[3], b"user.long").unwrap(), pattern(7, 3000));
    assert_eq!(volume.stat(ROOT).unwrap().links, 3);
}

#[test]
fn every_layout_is_written_and_stays_clean() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    for (bytes, arguments) in LAYOUTS {
        support::mkfs(&path, bytes, arguments);
        let mut volume = support::open(&path);
        assert_eq!(volume.read_only_reason(), None, "{arguments:?}");
        let mut inos = Vec::new();
        for n in 0..300u64 {
            let name = format!("some longer name, number {n}");
            let ino = volume.begin(Caller::ADMIN).create(ROOT, name.as_bytes(), &NewNode::new(FILE)).unwrap();
            volume.begin(Caller::ADMIN).write(ino, n * 13, &pattern(n, 5000 + 100 * n as usize)).unwrap();
            if n % 7 == 0 {
                volume
                    .begin(Caller::ADMIN)
                    .set_xattr(ino, b"user.n", &pattern(n, n as usize * 3), XattrMode::Set)
                    .unwrap();
            }
            inos.push(ino);
        }
        volume.checkpoint().unwrap();
        for n in (0..300u64).step_by(3) {
            volume
                .begin(Caller::ADMIN)
                .unlink(ROOT, format!("some longer name, number {n}").as_bytes())
                .unwrap();
        }
        for n in (1..300u64).step_by(3) {
            volume.begin(Caller::ADMIN).truncate(inos[n as usize], n * 50).unwrap();
        }
        volume.unmount().unwrap();
        drop(volume);
        support::assert_clean(&path);
        let volume = support::open(&path);
        assert!(names(&volume, ROOT).len() >= 200);
        let content = read(&volume, inos[2]);
        assert!(content[26..] == pattern(2, 5200) && content[..26] == [0; 26], "{arguments:?}");
        let shrunk = read(&volume, inos[100]);
        assert_eq!(shrunk.len(), 5000);
        assert!(shrunk[1300..] == pattern(100, 15_000)[..3700]);
    }
}

#[test]
fn sparse_and_deep_files_use_every_level_of_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 128 << 20, &[]);
    let mut volume = support::open(&path);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"sparse", &NewNode::new(FILE)).unwrap();
    let n = 1018u64;
    let places = [
        0,
        872,
        873,
        873 + n,
        873 + 2 * n,
        873 + 2 * n + n * n,
        873 + 2 * n + 2 * n * n,
        2 * n + 2 * n * n + n * n * n - 1,
    ];
    for block in places {
        volume.begin(Caller::ADMIN).write(ino, block * 4096 + 5, &block.to_le_bytes()).unwrap();
    }
    let end = volume.stat(ino).unwrap().size;
    assert!(matches!(volume.begin(Caller::ADMIN).write(ino, end + 4096, b"x"), Err(Error::FileTooLarge)));
    volume.unmount().unwrap();
    support::assert_clean(&path);
    let reopened = support::open_read_only(&path);
    for block in places {
        let mut buf = [1; 8];
        reopened.read(ino, block * 4096 + 5, &mut buf).unwrap();
        assert_eq!(u64::from_le_bytes(buf), block);
    }
    volume.begin(Caller::ADMIN).punch_hole(ino, 872 * 4096, 4096).unwrap();
    volume.begin(Caller::ADMIN).truncate(ino, (873 + 2 * n) * 4096 + 9).unwrap();
    volume.unmount().unwrap();
    support::assert_clean(&path);
    volume.begin(Caller::ADMIN).truncate(ino, 10).unwrap();
    volume.unmount().unwrap();
    support::assert_clean(&path);
    assert_eq!(volume.stat(ino).unwrap().sectors, 8);
    volume.begin(Caller::ADMIN).unlink(ROOT, b"sparse").unwrap();
    volume.unmount().unwrap();
    support::assert_clean(&path);
    assert_eq!(volume.counters().valid_nodes, 1);
}

#[test]
fn directories_grow_and_shrink() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 512 << 20, &[]);
    let mut volume = support::open(&path);
    let big = volume.begin(Caller::ADMIN).create(ROOT, b"big", &NewNode::new(DIR)).unwrap();
    let file = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    let name = |n: u32| format!("{n:x}-{}", "y".repeat(n as usize % 60)).into_bytes();
    for n in 0..20_000 {
        volume.begin(Caller::ADMIN).link(file, big, &name(n)).unwrap();
    }
    assert!(matches!(volume.begin(Caller::ADMIN).link(file, big, &name(77)), Err(Error::Exists)));
    volume.unmount().unwrap();
    support::assert_clean(&path);
    drop(volume);
    let mut volume = support::open(&path);
    assert_eq!(names(&volume, big).len(), 20_000);
    for n in 0..20_000 {
        assert_eq!(volume.lookup(big, &name(n)).unwrap(), file);
    }
    assert!(matches!(volume.begin(Caller::ADMIN).remove_dir(ROOT, b"big"), Err(Error::NotEmpty)));
    for n in 0..20_000 {
        volume.begin(Caller::ADMIN).unlink(big, &name(n)).unwrap();
    }
    volume.unmount().unwrap();
    support::assert_clean(&path);
    volume.begin(Caller::ADMIN).remove_dir(ROOT, b"big").unwrap();
    volume.unmount().unwrap();
    support::assert_clean(&path);
    assert_eq!(names(&volume, ROOT), ["file"]);
}

#[test]
fn renames_replace_exchange_and_refuse() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &[]);
    let mut volume = support::open(&path);
    let a = volume.begin(Caller::ADMIN).create(ROOT, b"a", &NewNode::new(DIR)).unwrap();
    let b = volume.begin(Caller::ADMIN).create(ROOT, b"b", &NewNode::new(DIR)).unwrap();
    let x = volume.begin(Caller::ADMIN).create(a, b"x", &NewNode::new(FILE)).unwrap();
    let y = volume.begin(Caller::ADMIN).create(b, b"y", &NewNode::new(DIR)).unwrap();
    use RenameMode::{Exchange, NoReplace, Replace};
    assert!(matches!(volume.begin(Caller::ADMIN).rename(a, b"x", b, b"y", NoReplace), Err(Error::Exists)));
    assert!(matches!(volume.begin(Caller::ADMIN).rename(a, b"x", b, b"y", Replace), Err(Error::IsDirectory)));
    assert!(matches!(
        volume.begin(Caller::ADMIN).rename(ROOT, b"a", a, b"z", Replace),
        Err(Error::Invalid(_))
    ));
    volume.begin(Caller::ADMIN).rename(a, b"x", b, b"y", Exchange).unwrap();
    assert_eq!((volume.lookup(a, b"x").unwrap(), volume.lookup(b, b"y").unwrap()), (y, x));
    assert_eq!(volume.lookup(y, b"..").unwrap(), a);
    assert_eq!((volume.stat(a).unwrap().links, volume.stat(b).unwrap().links), (3, 2));
    volume.begin(Caller::ADMIN).rename(a, b"x", ROOT, b"b2", NoReplace).unwrap();
    volume.begin(Caller::ADMIN).rename(ROOT, b"b2", ROOT, b"a", Replace).unwrap();
    assert_eq!(volume.lookup(ROOT, b"a").unwrap(), y);
    volume.unmount().unwrap();
    support::assert_clean(&path);
    assert_eq!(volume.stat(ROOT).unwrap().links, 4);
    assert_eq!(names(&volume, ROOT), ["a", "b"]);
}

#[test]
fn an_unlinked_open_file_is_removed_with_its_last_user() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &[]);
    let mut volume = support::open(&path);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"gone", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &pattern(1, 10_000)).unwrap();
    volume.hold(ino);
    volume.begin(Caller::ADMIN).unlink(ROOT, b"gone").unwrap();
    assert_eq!(read(&volume, ino).len(), 10_000);
    volume.checkpoint().unwrap();
    assert!(volume.orphans().contains(&ino));
    volume.begin(Caller::ADMIN).release(ino).unwrap();
    assert!(volume.stat(ino).is_err());
    volume.unmount().unwrap();
    support::assert_clean(&path);
}

#[test]
fn a_full_volume_refuses_cleanly_and_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &[]);
    let mut volume = support::open(&path);
    let chunk = pattern(3, 64 << 10);
    let mut count = 0;
    let error = loop {
        let name = format!("f{count}");
        let made = volume
            .begin(Caller::ADMIN)
            .create(ROOT, name.as_bytes(), &NewNode::new(FILE))
            .and_then(|ino| volume.begin(Caller::ADMIN).write(ino, 0, &chunk));
        match made {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    assert!(count > 50, "{count}");
    volume.unmount().unwrap();
    support::assert_clean(&path);
    for round in 0..5u64 {
        for n in (0..count).filter(|n| (n + round) % 3 == 0) {
            let ino = volume.lookup(ROOT, format!("f{n}").as_bytes()).unwrap();
            volume.begin(Caller::ADMIN).write(ino, 0, &pattern(round, 64 << 10)).unwrap();
        }
    }
    volume.unmount().unwrap();
    support::assert_clean(&path);
}

/// Many small files, mostly nodes, without an fsync. A card would have to keep the old data in the unwritten
/// part of a zone.
#[test]
fn no_zone_is_left_half_written() {
    let device = Arc::new(Recording::without_data(MemoryDevice::new(256 << 20)));
    let options = mkfs::Options { sections_per_zone: 2, ..mkfs::Options::new([7; 16]) };
    let plan = Plan::new(&options, &[DeviceSize { path: String::new(), bytes: 256 << 20 }]).unwrap();
    let new = NewVolume::begin(device.clone(), &plan, DeviceContent::Zeroes, Options::new(|| support::NOW))
        .unwrap();
    let mut volume = new.finish().unwrap();
    let geometry = *volume.geometry();
    device.take_trace();
    for n in 0..9000 {
        let file =
            volume.begin(Caller::ADMIN).create(ROOT, format!("{n}").as_bytes(), &NewNode::new(FILE)).unwrap();
        let length = if n % 5 == 0 { 6000 } else { 1000 };
        volume.begin(Caller::ADMIN).write(file, 0, &pattern(n, length)).unwrap();
        if n % 3000 == 2999 {
            volume.checkpoint().unwrap();
        }
    }
    let writes = device.take_trace().into_iter().filter(|request| request.verb == Verb::Write);
    let blocks = writes.flat_map(|request| {
        let start = (request.offset_bytes / 4096) as u32;
        (start..start + (request.length_bytes / 4096) as u32).map(BlockAddr)
    });
    let written: BTreeSet<u32> =
        blocks.filter(|block| geometry.in_main(*block)).map(|block| geometry.position(block).0.0).collect();
    let open: Vec<u32> =
        volume.last_checkpoint().logs.iter().map(|position| position.segment.0 / 2).collect();
    let half = written.iter().filter(|segment| !written.contains(&(**segment ^ 1)));
    let left: Vec<&u32> = half.filter(|segment| !open.contains(&(**segment / 2))).collect();
    assert!(written.len() > 25, "{written:?}");
    assert!(left.is_empty(), "of {written:?} these were left alone in their zones: {left:?}");
}

#[test]
#[should_panic(expected = "fsck.f2fs")]
fn fsck_reports_damage() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let mut volume = support::format(&path, 64 << 20, &[]);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.unmount().unwrap();
    let addr = volume.nat_entry(ino.into()).unwrap().addr;
    volume.device().write(u64::from(addr.0) * 4096 + 24, &[9]).unwrap();
    support::assert_clean(&path);
}

#[test]
fn long_data_is_written_at_once_and_after_earlier_data() {
    let (dir, mut left_bytes) = (tempfile::tempdir().unwrap(), Vec::new());
    for write_through_bytes in [None, Some(256 << 10)] {
        let path = dir.path().join("image");
        support::mkfs(&path, 64 << 20, &[]);
        let device =
            Arc::new(Recording::without_data(MemoryDevice::from_bytes(&std::fs::read(&path).unwrap())));
        let options = Options { write_through_bytes, ..Options::new(|| support::NOW) };
        let mut volume = Engine::open(device.clone(), options).unwrap();
        let file = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
        let content = pattern(1, (1 << 20) + 20_000);
        let writes = || {
            let mut requests = device.take_trace();
            requests.retain(|request| request.verb == block::Verb::Write);
            requests
        };
        writes();
        volume.begin(Caller::ADMIN).write(file, 0, &content[..8192]).unwrap();
        assert_eq!(writes().len(), 0, "it waits for more");
        volume.begin(Caller::ADMIN).write(file, 8192, &content[8192..]).unwrap();
        let writes = writes();
        assert!(writes.windows(2).all(|two| two[0].offset_bytes < two[1].offset_bytes), "{writes:?}");
        left_bytes.push(writes.iter().map(|write| write.length_bytes).sum::<u64>());
        assert!(read(&volume, file) == content);
        volume.unmount().unwrap();
        let mut bytes = vec![0; 64 << 20];
        block::Device::read(&*device, 0, &mut bytes).unwrap();
        std::fs::write(&path, &bytes).unwrap();
        support::assert_clean(&path);
        let volume = support::open_read_only(&path);
        assert!(read(&volume, file) == content);
    }
    assert_eq!(left_bytes, [960 << 10, (1 << 20) + 16_384], "whole commands, or all but the last block");
}

/// A write in several pieces, however short, is done as a whole or not at all on a full volume.
#[test]
fn data_that_does_not_fit_is_not_written_in_part() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &[]);
    let mut volume = support::open(&path);
    let filler = volume.begin(Caller::ADMIN).create(ROOT, b"filler", &NewNode::new(FILE)).unwrap();
    let file = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    let rest_blocks = 300;
    for block in 0.. {
        if volume.free_user_blocks() <= rest_blocks {
            break;
        }
        volume.begin(Caller::ADMIN).write(filler, block * 4096, &[1; 4096]).unwrap();
    }
    let error = volume.begin(Caller::ADMIN).write(file, 3 << 20, &vec![2; 2 << 20]).unwrap_err();
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    assert_eq!(volume.stat(file).unwrap().size, 0);
    volume.begin(Caller::ADMIN).write(file, 3 << 20, &vec![2; 1 << 20]).unwrap();
}

/// Counts the device's reads while 500 names enter the root, which has 4,000 names from before the last
/// checkpoint.
fn reads_of_entering(volume: &mut Engine, device: &Counted<MemoryDevice>) -> u64 {
    let file = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    for n in 0..4_000 {
        volume.begin(Caller::ADMIN).link(file, ROOT, format!("{n:07}").as_bytes()).unwrap();
    }
    volume.checkpoint().unwrap();
    device.take_counts();
    for n in 4_000..4_500 {
        volume.begin(Caller::ADMIN).link(file, ROOT, format!("{n:07}").as_bytes()).unwrap();
    }
    assert!(matches!(volume.begin(Caller::ADMIN).link(file, ROOT, b"0000007"), Err(Error::Exists)));
    device.counts().reads
}

#[test]
fn entering_a_name_reads_no_block_that_is_full() {
    // A root without names, and one with names from an earlier mount.
    for names_before in [0, 100] {
        let device = Arc::new(Counted::new(MemoryDevice::new(256 << 20)));
        let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
        for n in 0..names_before {
            volume
                .begin(Caller::ADMIN)
                .create(ROOT, format!("before{n}").as_bytes(), &NewNode::new(FILE))
                .unwrap();
        }
        if names_before > 0 {
            volume.unmount().unwrap();
            volume = Engine::open(device.clone(), Options::new(|| support::NOW)).unwrap();
        }
        let reads = reads_of_entering(&mut volume, &device);
        let blocks = volume.stat(ROOT).unwrap().size / 4096;
        assert!(reads <= blocks, "{reads} reads, {blocks} blocks");
        volume.unmount().unwrap();
        assert_eq!(names(&volume, ROOT).len(), 4_501 + names_before);
    }
}

/// A list that the mode expresses was not stored as an attribute, and passed the check of attributes by.
#[test]
fn a_list_for_the_mode_is_refused_where_a_mode_is() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(device, &[], BlockSize::B4K);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).expect("a file");
    let entries: [(u16, u16); 3] = [(1, 7), (4, 7), (32, 7)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions) in entries {
        list.extend([&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &[0xFF; 4]].concat());
    }
    for flags in [flag::IMMUTABLE, flag::APPEND] {
        let protect = SetAttr { flags: Some(flags), ..SetAttr::default() };
        volume.begin(Caller::ADMIN).set_attr(ino, &protect).expect("a flag");
        let set =
            volume.begin(Caller::ADMIN).set_xattr(ino, b"system.posix_acl_access", &list, XattrMode::Set);
        assert!(matches!(set, Err(Error::NotPermitted)), "{set:?}");
        assert_eq!(volume.stat(ino).expect("attributes").mode & 0o777, 0o644);
    }
    volume
        .begin(Caller::ADMIN)
        .set_attr(ino, &SetAttr { flags: Some(0), ..SetAttr::default() })
        .expect("no flag");
    volume
        .begin(Caller::ADMIN)
        .set_xattr(ino, b"system.posix_acl_access", &list, XattrMode::Set)
        .expect("a mode");
    assert_eq!(volume.stat(ino).expect("attributes").mode & 0o777, 0o777);
}

/// Entries of the NAT that do not fit into memory are written before the checkpoint that selects them.
#[test]
fn a_fill_without_checkpoints_writes_the_nat_ahead() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let memory = Arc::new(MemoryDevice::new(256 << 20));
    let device = Arc::new(Recording::without_data(memory.clone()));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let geometry = *volume.geometry();
    let create = |volume: &mut Engine, name: String| {
        let ino = volume.begin(Caller::ADMIN).create(ROOT, name.as_bytes(), &NewNode::new(FILE)).unwrap();
        volume.begin(Caller::ADMIN).write(ino, 0, name.as_bytes()).unwrap();
    };
    let remove = |volume: &mut Engine, name: String| {
        volume.begin(Caller::ADMIN).unlink(ROOT, name.as_bytes()).unwrap();
    };
    // Checks the volume as a power cut would leave it now.
    let judge = |expected: &BTreeSet<String>| {
        model::setup::store(&memory, &path).unwrap();
        support::assert_clean(&path);
        let volume = support::open_read_only(&path);
        assert_eq!(names(&volume, ROOT), expected.iter().cloned().collect::<Vec<_>>());
        for name in expected {
            assert_eq!(read(&volume, volume.lookup(ROOT, name.as_bytes()).unwrap()), name.as_bytes());
        }
    };
    let mut present: BTreeSet<String> = (0..300).map(|n| format!("old{n}")).collect();
    present.iter().for_each(|name| create(&mut volume, name.clone()));
    volume.unmount().unwrap();
    drop(volume);

    // Memory for 1024 changed entries.
    let options =
        Options { checkpoint_when_asked: true, cache_bytes: 64 << 10, ..Options::new(|| support::NOW) };
    let mut volume = Engine::open(device.clone(), options).unwrap();
    for round in 0..2 {
        device.take_trace();
        let checkpointed = present.clone();
        for n in 0..6000 {
            let name = format!("{round}.{n}");
            create(&mut volume, name.clone());
            present.insert(name);
            if n % 10 == 9 {
                // Some of these nodes have been written ahead, and some are of the last checkpoint.
                let removed = [format!("{round}.{}", n / 2), format!("old{}", 25 * round + n / 240)];
                for name in removed.into_iter().filter(|name| present.remove(name)) {
                    remove(&mut volume, name);
                }
            }
        }
        let written = device.take_trace().into_iter().filter(|request| request.verb == Verb::Write);
        let nat = geometry.nat_block(0, TableCopy::First).index()
            ..geometry.nat_block(geometry.nat_blocks(), TableCopy::First).index();
        let written =
            written.filter(|request| nat.contains(&((request.offset_bytes / 4096) as usize))).count();
        assert!(written > 1, "{written} requests");
        judge(&checkpointed);
        volume.checkpoint().unwrap();
        judge(&present);
    }
    volume.unmount().unwrap();
    judge(&present);
}
