//! Faults found by the model, each reduced to the smallest case.

mod damage;

#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;

use block::{Counted, Device, MemoryDevice, Recording, Survivors, Verb, power_cut};
use f2fs::{
    Error,
    engine::{
        Caller, Engine, FileSize, Geometry, InPlace, NewNode, Options, Policy, RenameMode, SetAttr,
        SyncScope, XattrMode,
    },
    format::{
        BlockSize, TableCopy,
        checkpoint::Flags,
        inode::{flag, inline},
    },
    units::{BlockAddr, Ino, Nid, SegNo, Time},
};
use model::setup::copy;

const ROOT: Ino = Ino(3);
const FILE: u16 = 0o100_644;

/// A file's last name was removed before a checkpoint, and its last user closed it after that. In between,
/// the inode did not change.
#[test]
fn quota_forgets_a_file_that_was_held_over_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 96 << 20, &["-O", "extra_attr,quota"]);
    let mut volume = support::open(&path);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, b"inline").unwrap();
    volume.hold(ino);
    volume.begin(Caller::ADMIN).unlink(ROOT, b"file").unwrap();
    volume.checkpoint().unwrap();
    volume.begin(Caller::ADMIN).release(ino).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);
}

/// Opens the volume after a power cut at each of the recorded requests: the newest writes are present, some
/// earlier ones are not.
fn each_cut(before: &MemoryDevice, recording: &Recording<Arc<MemoryDevice>>, check: impl Fn(&Engine, &str)) {
    let mut trace = recording.take_trace();
    trace.retain(|request| request.verb != Verb::Read);
    for at in 0..=trace.len() {
        for survivors in (0..6).map(|lost| Survivors::Mask(u64::MAX << lost)) {
            let cut = copy(before).unwrap();
            power_cut(&trace, at, &survivors, &cut).unwrap();
            let volume = Engine::open(Arc::new(cut), Options::new(Time::default)).unwrap();
            check(&volume, &format!("cut {at} of {}, {survivors:?}", trace.len()));
        }
    }
}

/// A pinned file kept its section from becoming free, so cleaning ended without a checkpoint. An fsync of
/// another file that had been moved out of there then named copies that a power cut could lose.
#[test]
fn blocks_moved_by_cleaning_survive_a_cut_in_the_next_fsync() {
    const BLOCKS: u64 = 200;
    let device = Arc::new(MemoryDevice::new(96 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let [pinned, moved] = [&b"pinned"[..], b"moved"].map(|name| {
        let ino = volume.begin(Caller::ADMIN).create(ROOT, name, &NewNode::new(FILE)).unwrap();
        volume.begin(Caller::ADMIN).write(ino, 0, &[1; 5000]).unwrap();
        ino
    });
    for block in 2..BLOCKS {
        volume.begin(Caller::ADMIN).write(pinned, block * 4096, &[1; 4096]).unwrap();
        volume.begin(Caller::ADMIN).write(moved, block * 4096, &[1; 4096]).unwrap();
    }
    // The log must continue in another section, because its current section is not cleaned.
    let filler = volume.begin(Caller::ADMIN).create(ROOT, b"filler", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(filler, 0, &[1; 3 << 20]).unwrap();
    volume.begin(Caller::ADMIN).punch_hole(filler, 0, 50 * 4096).unwrap();
    volume.unmount().unwrap();
    let at = u64::from(volume.nat_entry(pinned.into()).unwrap().addr.0) * 4096 + 3;
    drop(volume);
    let mut bits = [0];
    device.read(at, &mut bits).unwrap();
    device.write(at, &[bits[0] | inline::PIN]).unwrap();

    let before = copy(&device).unwrap();
    let recording = Arc::new(Recording::with_data(device));
    let mut volume = Engine::open(recording.clone(), Options::new(Time::default)).unwrap();
    let cleaned = volume.clean(1, Policy::Greedy).unwrap();
    assert!(cleaned.moved_blocks > 0 && cleaned.sections == 0, "{cleaned:?}");
    volume
        .begin(Caller::ADMIN)
        .set_attr(moved, &SetAttr { permissions: Some(0o600), ..SetAttr::default() })
        .unwrap();
    volume.fsync(moved, SyncScope::Everything).unwrap();
    drop(volume);
    each_cut(&before, &recording, |volume, cut| {
        let mut bytes = vec![0; 4096];
        for block in 2..BLOCKS {
            volume.read(moved, block * 4096, &mut bytes).unwrap();
            assert!(bytes == [1; 4096], "{cut}: block {block}");
        }
    });
}

/// Collapsing copies durable data. An fsync that names the copies must not survive without them.
#[test]
fn blocks_moved_by_collapsing_survive_a_cut_in_the_next_fsync() {
    const BLOCKS: u8 = 60;
    let device = Arc::new(MemoryDevice::new(96 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    for block in 0..BLOCKS {
        volume.begin(Caller::ADMIN).write(ino, u64::from(block) * 4096, &[block + 1; 4096]).unwrap();
    }
    volume.unmount().unwrap();
    drop(volume);

    let before = copy(&device).unwrap();
    let recording = Arc::new(Recording::with_data(device));
    let mut volume = Engine::open(recording.clone(), Options::new(Time::default)).unwrap();
    volume.begin(Caller::ADMIN).collapse_range(ino, 4096, 2 * 4096).unwrap();
    volume.fsync(ino, SyncScope::Everything).unwrap();
    drop(volume);
    each_cut(&before, &recording, |volume, cut| {
        let collapsed = volume.stat(ino).unwrap().size < u64::from(BLOCKS) * 4096;
        let mut bytes = vec![0; 4096];
        for block in 1..BLOCKS - 2 {
            volume.read(ino, u64::from(block) * 4096, &mut bytes).unwrap();
            let wanted = block + if collapsed { 3 } else { 1 };
            assert!(bytes == [wanted; 4096], "{cut}: block {block}");
        }
    });
}

/// A truncation freed a node of addresses. Roll-forward sees only existing nodes, so it restored the node of
/// the checkpoint, or of an earlier fsync, and with it the old content of the hole.
#[test]
fn truncated_content_does_not_return_after_a_cut() {
    const HOLE: u64 = 1200 * 4096;
    for (checkpointed, attribute) in [(true, false), (false, false), (true, true), (false, true)] {
        let device = Arc::new(MemoryDevice::new(96 << 20));
        let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
        let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
        volume.checkpoint().unwrap();
        volume.begin(Caller::ADMIN).write(ino, HOLE, &[1; 4096]).unwrap();
        volume.begin(Caller::ADMIN).set_xattr(ino, b"user.large", &[1; 3000], XattrMode::Set).unwrap();
        match checkpointed {
            true => volume.checkpoint().unwrap(),
            false => volume.fsync(ino, SyncScope::Everything).unwrap(),
        }
        match attribute {
            true => volume.begin(Caller::ADMIN).remove_xattr(ino, b"user.large").unwrap(),
            false => volume.begin(Caller::ADMIN).truncate(ino, 0).unwrap(),
        }
        volume.begin(Caller::ADMIN).write(ino, 2 * HOLE, &[2; 4096]).unwrap();
        volume.fsync(ino, SyncScope::Everything).unwrap();
        drop(volume);
        let volume = Engine::open(device, Options::new(Time::default)).unwrap();
        let mut bytes = vec![0xEE; 4096];
        volume.read(ino, HOLE, &mut bytes).unwrap();
        assert_eq!(bytes == [0; 4096], !attribute, "after a checkpoint: {checkpointed}");
        assert_eq!(volume.get_xattr(ino, b"user.large").is_err(), attribute);
        volume.read(ino, 2 * HOLE, &mut bytes).unwrap();
        assert_eq!(bytes, [2; 4096]);
    }
}

/// A directory was emptied and removed after the checkpoint, and a file with its name was fsynced. Recovery
/// met the directory with its entries, and the volume could not be opened.
#[test]
fn a_file_may_take_the_name_of_a_directory_and_be_fsynced() {
    let device = Arc::new(MemoryDevice::new(96 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let dir = volume.begin(Caller::ADMIN).create(ROOT, b"name", &NewNode::new(0o040_755)).unwrap();
    volume.begin(Caller::ADMIN).create(dir, b"file", &NewNode::new(FILE)).unwrap();
    volume.checkpoint().unwrap();
    volume.begin(Caller::ADMIN).unlink(dir, b"file").unwrap();
    volume.begin(Caller::ADMIN).remove_dir(ROOT, b"name").unwrap();
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"name", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, b"content").unwrap();
    volume.fsync(ino, SyncScope::Everything).unwrap();
    drop(volume);
    let volume = Engine::open(device, Options::new(Time::default)).unwrap();
    assert_eq!(volume.lookup(ROOT, b"name").unwrap(), ino);
    let mut bytes = [0; 7];
    volume.read(ino, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"content");
    assert_eq!(volume.counters().valid_inodes, 2);
}

/// The same state as left by Linux, which writes no checkpoint for that fsync and recovers without the
/// directory.
#[test]
fn a_directory_whose_name_was_taken_without_a_checkpoint_gives_way() {
    const NAME_OFFSET: u64 = 92;
    let device = Arc::new(MemoryDevice::new(96 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let dir = volume.begin(Caller::ADMIN).create(ROOT, b"d", &NewNode::new(0o040_755)).unwrap();
    volume.begin(Caller::ADMIN).create(dir, b"file", &NewNode::new(FILE)).unwrap();
    volume.checkpoint().unwrap();
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"f", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, b"content").unwrap();
    volume.fsync(ino, SyncScope::Everything).unwrap();
    let at = u64::from(volume.nat_entry(ino.into()).unwrap().addr.0) * 4096 + NAME_OFFSET;
    drop(volume);
    let mut name = [0];
    device.read(at, &mut name).unwrap();
    assert_eq!(&name, b"f");
    device.write(at, b"d").unwrap();
    let volume = Engine::open(device, Options::new(Time::default)).unwrap();
    assert_eq!(volume.lookup(ROOT, b"d").unwrap(), ino);
    assert_eq!(volume.stat(ROOT).unwrap().links, 2);
}

/// Freed node numbers can be allocated again, whatever is made and removed between two checkpoints.
#[test]
fn files_that_come_and_go_do_not_use_up_inodes() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(device, &[], BlockSize::B4K);
    for _ in 0..300_000 {
        volume.begin(Caller::ADMIN).create(ROOT, b"name", &NewNode::new(FILE)).unwrap();
        volume.begin(Caller::ADMIN).unlink(ROOT, b"name").unwrap();
    }
}

/// Blocks reserved by one call do not stay in memory as a whole, and neither do freed ones.
#[test]
fn operations_on_long_ranges_use_bounded_memory() {
    const CACHE: u64 = 4 << 20;
    const LONG: u64 = 40 << 30;
    let device = Arc::new(Counted::new(MemoryDevice::new(64 << 30)));
    drop(support::format_on(device.clone(), &[], BlockSize::B4K));
    let options = Options { cache_bytes: CACHE as usize, ..Options::new(|| support::NOW) };
    let mut volume = Engine::open(device.clone(), options).unwrap();
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    let mut waits = |what: &str, change: &mut dyn FnMut(&mut Engine) -> f2fs::Result<()>| {
        device.take_counts();
        change(&mut volume).unwrap();
        // A node for each 1018 blocks has changed.
        let changed_bytes = LONG / 1018;
        let written_bytes = device.take_counts().written_bytes;
        assert!(changed_bytes - written_bytes.min(changed_bytes) < CACHE, "{what}: {written_bytes} written");
    };
    waits("reserve", &mut |volume| volume.begin(Caller::ADMIN).allocate_range(ino, 0, LONG, FileSize::Grows));
    waits("zero", &mut |volume| volume.begin(Caller::ADMIN).zero_range(ino, 0, LONG, FileSize::Grows));
    waits("punch", &mut |volume| volume.begin(Caller::ADMIN).punch_hole(ino, 1, LONG - 2));
    assert_eq!(volume.stat(ino).unwrap().size, LONG);
}

/// Counts the blocks that the segment table marks as valid.
fn blocks_in_use(volume: &Engine) -> u64 {
    let segments = 0..volume.geometry().segments;
    segments.map(|n| u64::from(volume.sit_entry(SegNo(n)).unwrap().valid_blocks)).sum()
}

/// Moving and linking required six free blocks, although the directory had space.
#[test]
fn a_full_volume_moves_and_links_files() {
    for inline_dentry in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        support::mkfs(&path, 64 << 20, &[]);
        let options = Options { inline_dentry, ..Options::new(|| support::NOW) };
        let mut volume = Engine::open(support::device(&path), options).unwrap();
        let dir = volume.begin(Caller::ADMIN).create(ROOT, b"dir", &NewNode::new(0o040_755)).unwrap();
        for name in [&b"old"[..], b"victim", b"other"] {
            volume.begin(Caller::ADMIN).create(dir, name, &NewNode::new(FILE)).unwrap();
        }
        let large = volume.begin(Caller::ADMIN).create(ROOT, b"large", &NewNode::new(FILE)).unwrap();
        volume.begin(Caller::ADMIN).set_xattr(large, b"user.first", &[1; 100], XattrMode::Set).unwrap();
        let mut at = 0;
        for step in [1 << 20, 4096] {
            while volume.begin(Caller::ADMIN).write(large, at, &vec![7; step]).is_ok() {
                at += step as u64;
            }
        }
        assert_eq!(volume.free_user_blocks(), 0);

        volume.begin(Caller::ADMIN).rename(dir, b"old", dir, b"new", RenameMode::NoReplace).unwrap();
        volume.begin(Caller::ADMIN).rename(dir, b"new", dir, b"victim", RenameMode::Replace).unwrap();
        volume.begin(Caller::ADMIN).rename(dir, b"victim", ROOT, b"moved", RenameMode::Replace).unwrap();
        volume.begin(Caller::ADMIN).rename(dir, b"other", ROOT, b"moved", RenameMode::Exchange).unwrap();
        let other = volume.lookup(dir, b"other").unwrap();
        // The victim's blocks are free again, and are taken again.
        while volume.begin(Caller::ADMIN).write(large, at, &[7; 4096]).is_ok() {
            at += 4096;
        }
        assert_eq!(volume.free_user_blocks(), 0);
        volume.begin(Caller::ADMIN).link(other, dir, b"linked").unwrap();
        let refused = |result: f2fs::Result<()>| matches!(result, Err(Error::NoSpace { .. }));
        assert!(refused(volume.begin(Caller::ADMIN).create(dir, b"more", &NewNode::new(FILE)).map(drop)));
        // Links until the directory is full. The next call has no effect.
        let mut links = 2;
        let full = loop {
            let name = format!("{links}{}", "n".repeat(200));
            match volume.begin(Caller::ADMIN).link(other, dir, name.as_bytes()) {
                Ok(()) => links += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(full, Error::NoSpace { .. }) && links > 3, "{links} links: {full}");
        assert_eq!(volume.stat(other).unwrap().links, links);
        let name = "m".repeat(255);
        assert!(refused(volume.begin(Caller::ADMIN).rename(
            ROOT,
            b"moved",
            dir,
            name.as_bytes(),
            RenameMode::Replace
        )));
        assert!(volume.lookup(ROOT, b"moved").is_ok() && volume.lookup(dir, name.as_bytes()).is_err());
        // The inode has space for a small attribute. A large one would need space elsewhere.
        volume.begin(Caller::ADMIN).set_xattr(large, b"user.first", &[2; 100], XattrMode::Set).unwrap();
        assert!(refused(volume.begin(Caller::ADMIN).set_xattr(
            large,
            b"user.more",
            &[1; 2000],
            XattrMode::Set
        )));
        volume.unmount().unwrap();
        drop(volume);
        support::assert_clean(&path);
    }
}

/// Such attributes were reported as a full volume, not as too large (Linux, `__f2fs_setxattr`).
#[test]
fn attributes_that_can_never_fit_are_distinguished_from_a_full_volume() {
    let mut volume = support::format_on(Arc::new(MemoryDevice::new(64 << 20)), &[], BlockSize::B4K);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    let mut set = |name: &str, bytes: usize, mode| {
        volume.begin(Caller::ADMIN).set_xattr(ino, name.as_bytes(), &vec![1; bytes], mode)
    };
    let too_large = |result| matches!(result, Err(Error::AttributeTooLarge));
    assert!(too_large(set("user.a", 5000, XattrMode::Set)));
    assert!(too_large(set("user.a", 65_536, XattrMode::Replace)), "before it is looked for");
    assert!(matches!(set("user.a", 10, XattrMode::Replace), Err(Error::NoAttribute)));
    assert!(matches!(set("user.a", 10, XattrMode::CreateAndReplace), Err(Error::NoAttribute)));
    set("user.a", 3000, XattrMode::Create).unwrap();
    assert!(too_large(set("user.a", 5000, XattrMode::Create)));
    assert!(matches!(set("user.a", 10, XattrMode::Create), Err(Error::Exists)));
    assert!(matches!(set("user.a", 10, XattrMode::CreateAndReplace), Err(Error::Exists)));
    assert!(too_large(set("user.b", 2000, XattrMode::Set)), "beside the other");
    set("user.b", 1000, XattrMode::Set).unwrap();
}

/// Offsets in an inode of 4 KiB: its size, its flags, its extent, its directory level.
const SIZE_AT: u64 = 16;
const FLAGS_AT: u64 = 80;
const EXTENT_AT: u64 = 348;
const DIR_LEVEL_AT: u64 = 347;

/// A directory that spreads its names over many blocks needs as many when it leaves its inode. On a volume
/// with fewer free blocks, the name is refused, and the volume can still be opened.
#[test]
fn a_directory_that_spreads_its_names_leaves_its_inode_only_if_there_is_space() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let dir = volume.begin(Caller::ADMIN).create(ROOT, b"dir", &NewNode::new(0o040_755)).unwrap();
    let full = volume.begin(Caller::ADMIN).create(ROOT, b"full", &NewNode::new(FILE)).unwrap();
    volume.unmount().unwrap();
    let inode = u64::from(volume.nat_entry(dir.into()).unwrap().addr.0) * 4096;
    drop(volume);
    device.write_part(inode + DIR_LEVEL_AT, &[7]);

    let mut volume = Engine::open(device.clone(), Options::new(|| support::NOW)).unwrap();
    let mut size = 0;
    while volume.space().free_blocks > 210 {
        volume.begin(Caller::ADMIN).write(full, size, &[7; 4096]).unwrap();
        size += 4096;
    }
    let mut refused = None;
    for n in 0..200 {
        match volume.begin(Caller::ADMIN).create(dir, format!("{n}").as_bytes(), &NewNode::new(FILE)) {
            Ok(_) => {}
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    assert!(matches!(refused, Some(Error::NoSpace { .. })), "{refused:?}");
    assert!(volume.inode(dir).unwrap().has_inline(inline::DENTRY));
    volume.unmount().unwrap();
    drop(volume);
    let mut volume = Engine::open(device, Options::new(|| support::NOW)).unwrap();
    volume.begin(Caller::ADMIN).truncate(full, 0).unwrap();
    for n in 500..520 {
        volume.begin(Caller::ADMIN).create(dir, format!("{n}").as_bytes(), &NewNode::new(FILE)).unwrap();
    }
}

trait WritePart {
    fn write_part(&self, offset_bytes: u64, bytes: &[u8]);
}

impl WritePart for MemoryDevice {
    fn write_part(&self, offset_bytes: u64, bytes: &[u8]) {
        let mut block = [0; 4096];
        let (start, inside) = (offset_bytes / 4096 * 4096, (offset_bytes % 4096) as usize);
        self.read(start, &mut block).unwrap();
        block[inside..inside + bytes.len()].copy_from_slice(bytes);
        self.write(start, &block).unwrap();
    }
}
