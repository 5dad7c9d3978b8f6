//! Faults found by the model, each reduced to the smallest case.

mod support;

use std::sync::Arc;

use block::{Counted, Device, MemoryDevice, Recording, Survivors, Verb, power_cut};
use f2fs::{
    Error,
    engine::{
        Engine, FileSize, Geometry, InPlace, NewNode, Options, Policy, RenameMode, SetAttr, SyncScope,
        XattrMode,
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
    let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.write(ino, 0, b"inline").unwrap();
    volume.hold(ino);
    volume.unlink(ROOT, b"file").unwrap();
    volume.checkpoint().unwrap();
    volume.release(ino).unwrap();
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
        let ino = volume.create(ROOT, name, &NewNode::new(FILE)).unwrap();
        volume.write(ino, 0, &[1; 5000]).unwrap();
        ino
    });
    for block in 2..BLOCKS {
        volume.write(pinned, block * 4096, &[1; 4096]).unwrap();
        volume.write(moved, block * 4096, &[1; 4096]).unwrap();
    }
    // The log must continue in another section, because its current section is not cleaned.
    let filler = volume.create(ROOT, b"filler", &NewNode::new(FILE)).unwrap();
    volume.write(filler, 0, &[1; 3 << 20]).unwrap();
    volume.punch_hole(filler, 0, 50 * 4096).unwrap();
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
    volume.set_attr(moved, &SetAttr { permissions: Some(0o600), ..SetAttr::default() }).unwrap();
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
    let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    for block in 0..BLOCKS {
        volume.write(ino, u64::from(block) * 4096, &[block + 1; 4096]).unwrap();
    }
    volume.unmount().unwrap();
    drop(volume);

    let before = copy(&device).unwrap();
    let recording = Arc::new(Recording::with_data(device));
    let mut volume = Engine::open(recording.clone(), Options::new(Time::default)).unwrap();
    volume.collapse_range(ino, 4096, 2 * 4096).unwrap();
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

/// A file of a damaged volume claims a block of the superblock. An overwrite in place must not write there.
#[test]
fn blocks_outside_the_main_area_are_never_overwritten_in_place() {
    let device = Arc::new(MemoryDevice::new(96 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.write(ino, 0, &[1; 20_000]).unwrap();
    volume.unmount().unwrap();
    let addrs = u64::from(volume.nat_entry(ino.into()).unwrap().addr.0) * 4096 + 360;
    drop(volume);
    device.write(addrs + 4, &1_u32.to_le_bytes()).unwrap();
    let mut superblock = [0; 4096];
    device.read(4096, &mut superblock).unwrap();

    let mut volume = Engine::open(device.clone(), Options::new(Time::default)).unwrap();
    volume.fsync(ino, SyncScope::Everything).unwrap();
    let written = volume.write(ino, 4096, &[2; 4096]).and_then(|()| volume.fsync(ino, SyncScope::Everything));
    assert!(matches!(written, Err(Error::Corrupt { .. })), "{written:?}");
    let mut now = [0; 4096];
    device.read(4096, &mut now).unwrap();
    assert!(now == superblock);
}

/// A truncation freed a node of addresses. Roll-forward sees only existing nodes, so it restored the node of
/// the checkpoint, or of an earlier fsync, and with it the old content of the hole.
#[test]
fn truncated_content_does_not_return_after_a_cut() {
    const HOLE: u64 = 1200 * 4096;
    for (checkpointed, attribute) in [(true, false), (false, false), (true, true), (false, true)] {
        let device = Arc::new(MemoryDevice::new(96 << 20));
        let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
        let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
        volume.checkpoint().unwrap();
        volume.write(ino, HOLE, &[1; 4096]).unwrap();
        volume.set_xattr(ino, b"user.large", &[1; 3000], XattrMode::Set).unwrap();
        match checkpointed {
            true => volume.checkpoint().unwrap(),
            false => volume.fsync(ino, SyncScope::Everything).unwrap(),
        }
        match attribute {
            true => volume.remove_xattr(ino, b"user.large").unwrap(),
            false => volume.truncate(ino, 0).unwrap(),
        }
        volume.write(ino, 2 * HOLE, &[2; 4096]).unwrap();
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
    let dir = volume.create(ROOT, b"name", &NewNode::new(0o040_755)).unwrap();
    volume.create(dir, b"file", &NewNode::new(FILE)).unwrap();
    volume.checkpoint().unwrap();
    volume.unlink(dir, b"file").unwrap();
    volume.remove_dir(ROOT, b"name").unwrap();
    let ino = volume.create(ROOT, b"name", &NewNode::new(FILE)).unwrap();
    volume.write(ino, 0, b"content").unwrap();
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
    let dir = volume.create(ROOT, b"d", &NewNode::new(0o040_755)).unwrap();
    volume.create(dir, b"file", &NewNode::new(FILE)).unwrap();
    volume.checkpoint().unwrap();
    let ino = volume.create(ROOT, b"f", &NewNode::new(FILE)).unwrap();
    volume.write(ino, 0, b"content").unwrap();
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
        volume.create(ROOT, b"name", &NewNode::new(FILE)).unwrap();
        volume.unlink(ROOT, b"name").unwrap();
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
    let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    let mut waits = |what: &str, change: &mut dyn FnMut(&mut Engine) -> f2fs::Result<()>| {
        device.take_counts();
        change(&mut volume).unwrap();
        // A node for each 1018 blocks has changed.
        let changed_bytes = LONG / 1018;
        let written_bytes = device.take_counts().written_bytes;
        assert!(changed_bytes - written_bytes.min(changed_bytes) < CACHE, "{what}: {written_bytes} written");
    };
    waits("reserve", &mut |volume| volume.allocate_range(ino, 0, LONG, FileSize::Grows));
    waits("zero", &mut |volume| volume.zero_range(ino, 0, LONG, FileSize::Grows));
    waits("punch", &mut |volume| volume.punch_hole(ino, 1, LONG - 2));
    assert_eq!(volume.stat(ino).unwrap().size, LONG);
}

/// Counts the blocks that the segment table marks as valid.
fn blocks_in_use(volume: &Engine) -> u64 {
    let segments = 0..volume.geometry().segments;
    segments.map(|n| u64::from(volume.sit_entry(SegNo(n)).unwrap().valid_blocks)).sum()
}

/// Damage on the device: a block, an offset in it, and the new bytes.
type Damage = (BlockAddr, usize, Vec<u8>);

/// Chooses the damage to a file.
type Damager<'a> = &'a dyn Fn(&Engine, Ino) -> Damage;

/// Unlinks an open file, cuts the power, and changes one of the file's nodes on the device.
fn damaged_orphan(damage: impl FnOnce(&Engine, Ino) -> Damage) -> (Arc<MemoryDevice>, Ino) {
    let device = Arc::new(MemoryDevice::new(96 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.create(ROOT, b"gone", &NewNode::new(FILE)).unwrap();
    // Large enough for blocks below the inode and below two more nodes.
    volume.write(ino, 0, &vec![1; 8 << 20]).unwrap();
    volume.set_xattr(ino, b"user.large", &[2; 3000], XattrMode::Set).unwrap();
    let other = volume.create(ROOT, b"other", &NewNode::new(FILE)).unwrap();
    volume.write(other, 0, &[3; 100_000]).unwrap();
    volume.set_xattr(other, b"user.large", &[4; 3000], XattrMode::Set).unwrap();
    volume.hold(ino);
    volume.unlink(ROOT, b"gone").unwrap();
    volume.checkpoint().unwrap();
    let (addr, at, bytes) = damage(&volume, ino);
    drop(volume);
    device.write(u64::from(addr.0) * 4096 + at as u64, &bytes).unwrap();
    (device, ino)
}

/// Its blocks were freed one by one up to the damage without being counted. The node that it named as its own
/// xattr node was freed with it.
#[test]
fn a_damaged_orphan_harms_no_other_file() {
    let node = |volume: &Engine, nid: Nid| volume.nat_entry(nid).unwrap().addr;
    let far = 0x7FFF_FFFF_u32.to_le_bytes().to_vec();
    // Offsets of a node's addresses, and of the inode's xattr nid.
    let (in_inode, xattr_nid) = (360, 76);
    let cases: [(&str, Damager<'_>); 4] = [
        ("an address in the inode", &|volume, ino| (node(volume, ino.into()), in_inode + 40, far.clone())),
        ("an address in a node", &|volume, ino| {
            let child = Nid(volume.inode(ino).unwrap().child(1).0);
            (node(volume, child), 40, far.clone())
        }),
        ("a node", &|volume, ino| {
            let child = Nid(volume.inode(ino).unwrap().child(1).0);
            (node(volume, child), 0, vec![0xA5; 4096])
        }),
        ("another's attributes", &|volume, ino| {
            let other = volume.lookup(ROOT, b"other").unwrap();
            let nid = volume.inode(other).unwrap().xattr_nid();
            (node(volume, ino.into()), xattr_nid, nid.0.to_le_bytes().to_vec())
        }),
    ];
    for (case, damage) in cases {
        let (device, ino) = damaged_orphan(damage);
        for round in 0..3 {
            let mut volume = Engine::open(device.clone(), Options::new(|| support::NOW)).unwrap();
            assert!(volume.orphans().contains(&ino), "{case}: its remains are lost");
            let valid = volume.counters().valid_blocks;
            assert_eq!(valid, blocks_in_use(&volume), "{case}, round {round}");
            let name = format!("new{round}");
            let new = volume.create(ROOT, name.as_bytes(), &NewNode::new(FILE)).unwrap();
            volume.write(new, 0, &vec![round; 3 << 20]).unwrap();
            let other = volume.lookup(ROOT, b"other").unwrap();
            assert_eq!(volume.get_xattr(other, b"user.large").unwrap(), [4; 3000], "{case}");
            let mut content = vec![0; 100_000];
            assert_eq!(volume.read(other, 0, &mut content).unwrap(), content.len());
            assert!(content.iter().all(|byte| *byte == 3), "{case}");
            volume.unmount().unwrap();
        }
    }
}

/// The name was gone, the error said that it was not, and the inode was lost.
#[test]
fn a_damaged_file_that_loses_its_name_becomes_an_orphan() {
    let device = Arc::new(MemoryDevice::new(96 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    for name in [&b"removed"[..], b"replaced", b"new"] {
        let ino = volume.create(ROOT, name, &NewNode::new(FILE)).unwrap();
        volume.write(ino, 0, &vec![1; 8 << 20]).unwrap();
    }
    volume.unmount().unwrap();
    let damaged = [&b"removed"[..], b"replaced"].map(|name| {
        let ino = volume.lookup(ROOT, name).unwrap();
        let child = Nid(volume.inode(ino).unwrap().child(1).0);
        let addr = volume.nat_entry(child).unwrap().addr;
        device.write(u64::from(addr.0) * 4096, &[0xA5; 4096]).unwrap();
        ino
    });
    drop(volume);
    let mut volume = Engine::open(device.clone(), Options::new(|| support::NOW)).unwrap();
    volume.unlink(ROOT, b"removed").unwrap();
    volume.rename(ROOT, b"new", ROOT, b"replaced", RenameMode::Replace).unwrap();
    assert!(damaged.iter().all(|ino| volume.orphans().contains(ino)));
    assert_eq!(volume.counters().valid_blocks, blocks_in_use(&volume));
    volume.unmount().unwrap();
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
        let dir = volume.create(ROOT, b"dir", &NewNode::new(0o040_755)).unwrap();
        for name in [&b"old"[..], b"victim", b"other"] {
            volume.create(dir, name, &NewNode::new(FILE)).unwrap();
        }
        let large = volume.create(ROOT, b"large", &NewNode::new(FILE)).unwrap();
        volume.set_xattr(large, b"user.first", &[1; 100], XattrMode::Set).unwrap();
        let mut at = 0;
        for step in [1 << 20, 4096] {
            while volume.write(large, at, &vec![7; step]).is_ok() {
                at += step as u64;
            }
        }
        assert_eq!(volume.free_user_blocks(), 0);

        volume.rename(dir, b"old", dir, b"new", RenameMode::NoReplace).unwrap();
        volume.rename(dir, b"new", dir, b"victim", RenameMode::Replace).unwrap();
        volume.rename(dir, b"victim", ROOT, b"moved", RenameMode::Replace).unwrap();
        volume.rename(dir, b"other", ROOT, b"moved", RenameMode::Exchange).unwrap();
        let other = volume.lookup(dir, b"other").unwrap();
        // The victim's blocks are free again, and are taken again.
        while volume.write(large, at, &[7; 4096]).is_ok() {
            at += 4096;
        }
        assert_eq!(volume.free_user_blocks(), 0);
        volume.link(other, dir, b"linked").unwrap();
        let refused = |result: f2fs::Result<()>| matches!(result, Err(Error::NoSpace { .. }));
        assert!(refused(volume.create(dir, b"more", &NewNode::new(FILE)).map(drop)));
        // Links until the directory is full. The next call has no effect.
        let mut links = 2;
        let full = loop {
            let name = format!("{links}{}", "n".repeat(200));
            match volume.link(other, dir, name.as_bytes()) {
                Ok(()) => links += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(full, Error::NoSpace { .. }) && links > 3, "{links} links: {full}");
        assert_eq!(volume.stat(other).unwrap().links, links);
        let name = "m".repeat(255);
        assert!(refused(volume.rename(ROOT, b"moved", dir, name.as_bytes(), RenameMode::Replace)));
        assert!(volume.lookup(ROOT, b"moved").is_ok() && volume.lookup(dir, name.as_bytes()).is_err());
        // The inode has space for a small attribute. A large one would need space elsewhere.
        volume.set_xattr(large, b"user.first", &[2; 100], XattrMode::Set).unwrap();
        assert!(refused(volume.set_xattr(large, b"user.more", &[1; 2000], XattrMode::Set)));
        volume.unmount().unwrap();
        drop(volume);
        support::assert_clean(&path);
    }
}

/// Such attributes were reported as a full volume, not as too large (Linux, `__f2fs_setxattr`).
#[test]
fn attributes_that_can_never_fit_are_distinguished_from_a_full_volume() {
    let mut volume = support::format_on(Arc::new(MemoryDevice::new(64 << 20)), &[], BlockSize::B4K);
    let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    let mut set =
        |name: &str, bytes: usize, mode| volume.set_xattr(ino, name.as_bytes(), &vec![1; bytes], mode);
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

/// A damaged volume accepted changes without a message. Now damaged structures are left alone, and the
/// checkpoint requests fsck.f2fs once damage has been met, as on Linux.
#[test]
fn damage_is_left_alone_and_requests_fsck() {
    const MIB: u64 = 1 << 20;
    let base = Arc::new(MemoryDevice::new(384 * MIB));
    let mut volume = support::format_on(base.clone(), &[], BlockSize::B4K);
    let big = volume.create(ROOT, b"big", &NewNode::new(FILE)).unwrap();
    volume.write(big, 0, &vec![1; 260 * MIB as usize]).unwrap();
    let mut last = big;
    for n in 0..500 {
        last = volume.create(ROOT, format!("file{n}").as_bytes(), &NewNode::new(FILE)).unwrap();
    }
    volume.unmount().unwrap();
    let geometry = *volume.geometry();
    let (node, per_nat, per_sit) = (volume.nat_entry(last.into()).unwrap().addr, 455, 55);
    drop(volume);
    assert!(last.0 > per_nat && geometry.segments > 2 * per_sit);

    let both = |block: fn(&f2fs::engine::Geometry, u32, TableCopy) -> BlockAddr| {
        TableCopy::BOTH.map(|copy| block(&geometry, 1, copy)).to_vec()
    };
    type Act = fn(&mut Engine, Ino, Ino) -> f2fs::Result<()>;
    let damaged: [(&str, Vec<BlockAddr>, Act); 3] = [
        ("SIT", both(|geometry, index, copy| geometry.sit_block(index, copy)), |volume, big, _| {
            volume.truncate(big, 0)
        }),
        ("NAT", both(|geometry, index, copy| geometry.nat_block(index, copy)), |volume, _, last| {
            for n in 0..400 {
                volume.create(ROOT, format!("new{n}").as_bytes(), &NewNode::new(FILE))?;
            }
            volume.stat(last).map(drop)
        }),
        ("node", vec![node], |volume, _, last| volume.stat(last).map(drop)),
    ];
    for (what, blocks, act) in damaged {
        let device = Arc::new(copy(&base).unwrap());
        for addr in &blocks {
            device.write(u64::from(addr.0) * 4096, &[0xA5; 4096]).unwrap();
        }
        let mut volume = Engine::open(device.clone(), Options::new(|| support::NOW)).unwrap();
        volume.create(ROOT, b"before", &NewNode::new(FILE)).unwrap();
        volume.checkpoint().unwrap();
        // The search for a free number starts after the last one, so it has already met that block.
        let met = volume.last_checkpoint().flags.has(Flags::FSCK);
        assert_eq!(met, what == "NAT", "{what}: not before it is met");
        let refused = act(&mut volume, big, last);
        assert!(matches!(refused, Err(Error::Corrupt { .. })), "{what}: {refused:?}");
        volume.create(ROOT, b"after", &NewNode::new(FILE)).unwrap();
        volume.unmount().unwrap();
        assert!(volume.last_checkpoint().flags.has(Flags::FSCK), "{what}");
        drop(volume);
        for addr in &blocks {
            let mut block = [0; 4096];
            device.read(u64::from(addr.0) * 4096, &mut block).unwrap();
            assert!(block == [0xA5; 4096], "{what}: it was written to");
        }
        let mut volume = Engine::open(device, Options::new(|| support::NOW)).unwrap();
        volume.create(ROOT, b"again", &NewNode::new(FILE)).unwrap();
        volume.unmount().unwrap();
        assert!(volume.last_checkpoint().flags.has(Flags::FSCK), "{what}: until fsck.f2fs takes it back");
    }
}

/// Offsets in an inode of 4 KiB: its flags, its extent, its directory level.
const FLAGS_AT: u64 = 80;
const EXTENT_AT: u64 = 348;
const DIR_LEVEL_AT: u64 = 347;

/// A directory that spreads its names over many blocks needs as many when it leaves its inode. On a volume
/// with fewer free blocks, the name is refused, and the volume can still be opened.
#[test]
fn a_directory_that_spreads_its_names_leaves_its_inode_only_if_there_is_space() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let dir = volume.create(ROOT, b"dir", &NewNode::new(0o040_755)).unwrap();
    let full = volume.create(ROOT, b"full", &NewNode::new(FILE)).unwrap();
    volume.unmount().unwrap();
    let inode = u64::from(volume.nat_entry(dir.into()).unwrap().addr.0) * 4096;
    drop(volume);
    device.write_part(inode + DIR_LEVEL_AT, &[7]);

    let mut volume = Engine::open(device.clone(), Options::new(|| support::NOW)).unwrap();
    let mut size = 0;
    while volume.space().free_blocks > 210 {
        volume.write(full, size, &[7; 4096]).unwrap();
        size += 4096;
    }
    let mut refused = None;
    for n in 0..200 {
        match volume.create(dir, format!("{n}").as_bytes(), &NewNode::new(FILE)) {
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
    volume.truncate(full, 0).unwrap();
    for n in 500..520 {
        volume.create(dir, format!("{n}").as_bytes(), &NewNode::new(FILE)).unwrap();
    }
}

/// The flag of a device alias has no meaning on a volume without that feature.
#[test]
fn an_alias_of_a_device_without_the_feature_is_a_file() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.write(ino, 0, &[5; 20_000]).unwrap();
    volume.unmount().unwrap();
    let inode = u64::from(volume.nat_entry(ino.into()).unwrap().addr.0) * 4096;
    drop(volume);
    let alias = [4096_u32, 100, 1].map(u32::to_le_bytes).concat();
    device.write_part(inode + FLAGS_AT, &0x8000_0000_u32.to_le_bytes());
    device.write_part(inode + EXTENT_AT, &alias);

    let mut volume = Engine::open(device, Options::new(|| support::NOW)).unwrap();
    let mut bytes = vec![0; 20_000];
    assert_eq!(volume.read(ino, 0, &mut bytes).unwrap(), 20_000);
    assert!(bytes == [5; 20_000]);
    let before = volume.space().free_blocks;
    volume.unlink(ROOT, b"file").unwrap();
    assert!(volume.space().free_blocks >= before + 5, "its blocks are free");
}

/// A stale file handle may contain any number. A request for it is not damage.
#[test]
fn looking_up_a_number_that_is_not_an_inode_is_not_damage() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(device, &[], BlockSize::B4K);
    let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.write(ino, 8 << 20, &[1; 4096]).unwrap();
    let direct = Ino(ino.0 + 1);
    assert_eq!(volume.nat_entry(direct.into()).unwrap().ino, ino);
    for (number, is) in [(ROOT, true), (ino, true), (direct, false), (Ino(0), false), (Ino(u32::MAX), false)]
    {
        assert_eq!(volume.is_inode(number).unwrap(), is, "{number}");
    }
    volume.unmount().unwrap();
    assert!(!volume.last_checkpoint().flags.has(Flags::FSCK));
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

/// A block that the segment table marks as invalid can be rewritten like a valid one, so its file does not
/// prevent a checkpoint.
#[test]
fn a_damaged_segment_table_stops_no_checkpoint() {
    let device = Arc::new(MemoryDevice::new(96 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.write(ino, 0, &[1; 20 * 4096]).unwrap();
    for n in 0..20 {
        let other = volume.create(ROOT, format!("other{n}").as_bytes(), &NewNode::new(FILE)).unwrap();
        volume.write(other, 0, &vec![1; 600 * 4096]).unwrap();
    }
    volume.unmount().unwrap();
    let geometry = *volume.geometry();
    let damaged =
        [volume.nat_entry(ino.into()).unwrap().addr, volume.address(&volume.inode(ino).unwrap(), 5).unwrap()];
    drop(volume);
    unmark(&device, &geometry, &damaged);
    let options = || Options { in_place: InPlace::Never, ..Options::new(|| support::NOW) };
    let mut volume = Engine::open(device.clone(), options()).unwrap();
    for addr in damaged {
        let (segment, offset) = geometry.position(addr);
        let entry = volume.sit_entry(segment).unwrap();
        assert!(entry.map[usize::from(offset / 8)] & (0x80 >> (offset % 8)) == 0);
    }
    let free = volume.free_user_blocks();
    volume.write(ino, 5 * 4096, &[2; 4096]).unwrap();
    volume.link(ino, ROOT, b"second").unwrap();
    let other = volume.create(ROOT, b"new", &NewNode::new(FILE)).unwrap();
    volume.fsync(other, SyncScope::Everything).unwrap();
    volume.checkpoint().unwrap();
    assert_eq!(volume.free_user_blocks(), free - 1);
    volume.unmount().unwrap();
    assert!(volume.last_checkpoint().flags.has(Flags::FSCK));
    drop(volume);
    let volume = Engine::open(device, options()).unwrap();
    let mut found = [0; 4096];
    volume.read(volume.lookup(ROOT, b"second").unwrap(), 5 * 4096, &mut found).unwrap();
    assert!(found == [2; 4096]);
}

/// Makes the segment table mark blocks as invalid.
fn unmark(device: &MemoryDevice, geometry: &Geometry, damaged: &[BlockAddr]) {
    // Layout of an entry: the number of valid blocks, and their map.
    const ENTRY_BYTES: u64 = 74;
    for addr in damaged {
        let (segment, offset) = geometry.position(*addr);
        for copy in TableCopy::BOTH {
            let table = u64::from(geometry.sit_block(0, copy).0) * 4096;
            let at = table + u64::from(segment.0) * ENTRY_BYTES;
            let mut entry = [0; ENTRY_BYTES as usize];
            device.read(at, &mut entry).unwrap();
            let (byte, bit) = (2 + usize::from(offset / 8), 0x80 >> (offset % 8));
            // In one of the copies, the block may not have been marked yet.
            if entry[byte] & bit != 0 {
                entry[byte] &= !bit;
                let counted = u16::from_le_bytes([entry[0], entry[1]]) - 1;
                entry[..2].copy_from_slice(&counted.to_le_bytes());
                device.write(at, &entry).unwrap();
            }
        }
    }
}

/// A damaged segment table does not lose the content of a compressed cluster that is opened or rewritten.
#[test]
fn a_damaged_segment_table_takes_no_cluster_away() {
    let device = Arc::new(MemoryDevice::new(96 << 20));
    let features = ["extra_attr", "compression"];
    let mut volume = support::format_on(device.clone(), &features, BlockSize::B4K);
    let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    let compressed = SetAttr { flags: Some(flag::COMPRESS), ..SetAttr::default() };
    volume.set_attr(ino, &compressed).unwrap();
    volume.write(ino, 0, &[1; 12 * 4096]).unwrap();
    for n in 0..20 {
        let other = volume.create(ROOT, format!("other{n}").as_bytes(), &NewNode::new(FILE)).unwrap();
        volume.write(other, 0, &vec![1; 600 * 4096]).unwrap();
    }
    volume.unmount().unwrap();
    let geometry = *volume.geometry();
    // The first address of each cluster marks it as compressed.
    let damaged = [1, 5].map(|block| volume.address(&volume.inode(ino).unwrap(), block).unwrap());
    drop(volume);
    unmark(&device, &geometry, &damaged);
    let mut volume = Engine::open(device.clone(), Options::new(|| support::NOW)).unwrap();
    volume.punch_hole(ino, 2 * 4096, 4096).unwrap();
    volume.write(ino, 6 * 4096, &[2; 4096]).unwrap();
    volume.fsync(ino, SyncScope::Everything).unwrap();
    volume.unmount().unwrap();
    assert!(volume.last_checkpoint().flags.has(Flags::FSCK));
    drop(volume);
    let volume = Engine::open(device, Options::read_only()).unwrap();
    let mut found = [0; 12 * 4096];
    volume.read(ino, 0, &mut found).unwrap();
    for (n, block) in found.chunks(4096).enumerate() {
        let wanted = [1, 0, 2][usize::from(n == 2) + 2 * usize::from(n == 6)];
        assert!(block.iter().all(|byte| *byte == wanted), "block {n}");
    }
}
