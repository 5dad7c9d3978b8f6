//! State after a power cut: everything that fsync or a checkpoint promised, and no torn block.

mod costs;
mod cuts;
mod full;
mod zones;

#[path = "../support/mod.rs"]
mod support;

use std::{collections::BTreeMap, sync::Arc};

use block::{Device, MemoryDevice, Recording, Request, Rng, Survivors, Verb, power_cut};
use f2fs::{
    engine::{
        ActiveLogs, Caller, Engine, InPlace, NewNode, Options, Policy, RenameMode, SetAttr, SyncScope,
        XattrMode,
    },
    format::{
        BlockSize,
        inode::{flag, inline},
        sit::SegmentType,
    },
    units::{BlockAddr, Ino, Nid},
};
use model::setup::{copy, store};

const ROOT: Ino = Ino(3);
const FILE: u16 = 0o100_644;
const BYTES: u64 = 64 << 20;

fn read(volume: &Engine, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0; volume.stat(ino).unwrap().size as usize];
    volume.read(ino, 0, &mut bytes).unwrap();
    bytes
}

/// Opens an image again as after a crash. Also checks that reading alone shows the same.
fn reopen(path: &std::path::Path) -> Engine {
    let before = std::fs::read(path).unwrap();
    let shown = support::open_read_only(path);
    let seen: Vec<_> = shown.entries(ROOT, 0).unwrap().map(|entry| entry.unwrap().name).collect();
    drop(shown);
    assert!(std::fs::read(path).unwrap() == before, "opening for reading has written");
    let volume = support::open(path);
    let names: Vec<_> = volume.entries(ROOT, 0).unwrap().map(|entry| entry.unwrap().name).collect();
    assert_eq!(names, seen);
    volume
}

#[test]
fn fsynced_changes_come_back_and_others_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let mut volume = support::format(&path, BYTES, &["extra_attr", "inode_checksum"]);
    let old = volume.begin(Caller::ADMIN).create(ROOT, b"old", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(old, 0, &[1; 20_000]).unwrap();
    let shrinks = volume.begin(Caller::ADMIN).create(ROOT, b"shrinks", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(shrinks, 0, &[2; 5_000_000]).unwrap();
    let victim = volume.begin(Caller::ADMIN).create(ROOT, b"victim", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).set_xattr(old, b"user.a", &[7; 3000], XattrMode::Set).unwrap();
    volume.checkpoint().unwrap();

    volume.begin(Caller::ADMIN).write(old, 4096, &[3; 4096]).unwrap();
    volume.begin(Caller::ADMIN).remove_xattr(old, b"user.a").unwrap();
    volume.fsync(old, SyncScope::Everything).unwrap();
    // The two fsyncs before removed nodes, so they were checkpoints. From here on no checkpoint follows.
    volume.begin(Caller::ADMIN).truncate(shrinks, 100_000).unwrap();
    volume.fsync(shrinks, SyncScope::Everything).unwrap();
    volume.begin(Caller::ADMIN).write(old, 8192, &[4; 4096]).unwrap();
    let new = volume.begin(Caller::ADMIN).create(ROOT, b"new", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(new, 10, &[5; 5_000_000]).unwrap();
    volume.begin(Caller::ADMIN).set_xattr(new, b"user.b", &[8; 3500], XattrMode::Set).unwrap();
    volume.fsync(new, SyncScope::Data).unwrap();
    volume.begin(Caller::ADMIN).write(new, 0, &[6; 10]).unwrap();
    volume.fsync(new, SyncScope::Everything).unwrap();
    let small = volume.begin(Caller::ADMIN).create(ROOT, b"small", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(small, 0, b"inline").unwrap();
    volume.fsync(small, SyncScope::Everything).unwrap();
    volume.begin(Caller::ADMIN).unlink(ROOT, b"victim").unwrap();
    let heir = volume.begin(Caller::ADMIN).create(ROOT, b"victim", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(heir, 0, &[9; 9000]).unwrap();
    volume.fsync(heir, SyncScope::Everything).unwrap();
    volume.begin(Caller::ADMIN).create(ROOT, b"never synced", &NewNode::new(FILE)).unwrap();
    drop(volume);

    let mut volume = reopen(&path);
    let content = read(&volume, old);
    assert!(
        content[..4096] == [1; 4096] && content[4096..8192] == [3; 4096] && content[8192..] == [1; 11_808]
    );
    assert!(volume.list_xattrs(old).unwrap().is_empty());
    assert!(read(&volume, shrinks) == [2; 100_000]);
    let content = read(&volume, new);
    assert!(content[..10] == [6; 10] && content[10..] == [5; 5_000_000]);
    assert_eq!(volume.get_xattr(new, b"user.b").unwrap(), [8; 3500]);
    assert_eq!(read(&volume, small), b"inline");
    assert_eq!(volume.lookup(ROOT, b"victim").unwrap(), heir);
    assert!(heir != victim && read(&volume, heir) == [9; 9000]);
    assert!(volume.lookup(ROOT, b"never synced").is_err());
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);
}

#[test]
fn a_rename_is_not_undone_by_a_new_file_of_the_old_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let mut volume = support::format(&path, BYTES, &[]);
    let first = volume.begin(Caller::ADMIN).create(ROOT, b"log", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(first, 0, b"first").unwrap();
    volume.checkpoint().unwrap();
    volume.begin(Caller::ADMIN).rename(ROOT, b"log", ROOT, b"log.1", RenameMode::Replace).unwrap();
    let second = volume.begin(Caller::ADMIN).create(ROOT, b"log", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(second, 0, b"second").unwrap();
    volume.fsync(second, SyncScope::Everything).unwrap();
    drop(volume);
    let mut volume = reopen(&path);
    assert_eq!(read(&volume, volume.lookup(ROOT, b"log").unwrap()), b"second");
    assert_eq!(read(&volume, volume.lookup(ROOT, b"log.1").unwrap()), b"first");
    volume.unmount().unwrap();
    support::assert_clean(&path);
}

#[test]
fn orphans_are_removed_when_the_volume_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let mut volume = support::format(&path, BYTES, &[]);
    for n in 0..5 {
        let name = format!("file{n}");
        let ino = volume.begin(Caller::ADMIN).create(ROOT, name.as_bytes(), &NewNode::new(FILE)).unwrap();
        volume.begin(Caller::ADMIN).write(ino, 0, &[1; 50_000]).unwrap();
        volume.hold(ino);
        volume.begin(Caller::ADMIN).unlink(ROOT, name.as_bytes()).unwrap();
    }
    volume.checkpoint().unwrap();
    assert_eq!(volume.orphans().len(), 5);
    drop(volume);
    let mut volume = support::open(&path);
    assert_eq!((volume.orphans().len(), volume.counters().valid_inodes), (0, 1));
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);
}

/// If two fsyncs share a flush, or one fsync has several nodes, any part may have reached the device. The
/// state found by the next session stays, together with the fsyncs of that session before the power fails
/// again.
#[test]
fn a_chain_never_continues_into_that_of_an_earlier_session() {
    const NAMES: [&[u8]; 3] = [b"one", b"two", b"three"];
    let options = || Options { in_place: InPlace::Never, ..Options::new(|| support::NOW) };
    let open = |device: Arc<dyn Device>| Engine::open(device, options()).unwrap();
    let contents = |volume: &Engine| NAMES.map(|name| read(volume, volume.lookup(ROOT, name).unwrap()));
    let image = {
        let device = Arc::new(MemoryDevice::new(BYTES));
        let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
        for name in NAMES {
            let ino = volume.begin(Caller::ADMIN).create(ROOT, name, &NewNode::new(FILE)).unwrap();
            // The file is long enough to have a node of addresses besides the inode.
            volume.begin(Caller::ADMIN).write(ino, 0, &[1; 4_000_000]).unwrap();
        }
        volume.unmount().unwrap();
        device.to_vec()
    };
    let device = Arc::new(Recording::with_data(MemoryDevice::from_bytes(&image)));
    let mut volume = open(device.clone());
    for name in &NAMES[..2] {
        let ino = volume.lookup(ROOT, name).unwrap();
        volume.begin(Caller::ADMIN).write(ino, 0, &[2; 4096]).unwrap();
        volume.begin(Caller::ADMIN).write(ino, 3_900_000, &[2; 4096]).unwrap();
        // Runs all of the fsync except the final flush.
        let mut pending = volume.begin_fsync(ino, SyncScope::Everything).unwrap();
        while let Some(sync) = pending.filter(|sync| !sync.is_only_flush()) {
            pending = volume.finish(sync.run()).unwrap();
        }
    }
    let trace = device.take_trace();
    drop(volume);
    let mut cuts = 0;
    for at in 1..=trace.len() {
        let unflushed = block::unflushed_writes(&trace, at).len();
        for mask in 0..1 << unflushed.min(10) {
            let memory = Arc::new(MemoryDevice::from_bytes(&image));
            power_cut(&trace, at, &Survivors::Mask(mask), &*memory).unwrap();
            let mut volume = open(memory.clone());
            let found = contents(&volume);
            let three = volume.lookup(ROOT, NAMES[2]).unwrap();
            volume.begin(Caller::ADMIN).write(three, 4096, &[3; 4096]).unwrap();
            // This fsync writes as many nodes as the first one did before.
            volume.begin(Caller::ADMIN).write(three, 3_900_000, &[3; 4096]).unwrap();
            volume.fsync(three, SyncScope::Everything).unwrap();
            drop(volume);
            let after = contents(&open(memory));
            let what = format!("{at} of {} requests, survivors {mask:b}", trace.len());
            assert!(after[..2] == found[..2], "{what}: unchanged data differs");
            assert!(after[2][4096..8192] == [3; 4096], "{what}: an fsync is lost");
            cuts += 1;
        }
    }
    assert!(cuts > 20, "{cuts} cuts were tried");
}

/// Blocks written by fsync are recovered or ignored, but never overwritten.
#[test]
fn opening_without_roll_forward_is_read_only() {
    let device = Arc::new(MemoryDevice::new(BYTES));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.checkpoint().unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &[1; 9000]).unwrap();
    volume.fsync(ino, SyncScope::Everything).unwrap();
    drop(volume);
    let options = |read_only| Options { roll_forward: false, read_only, ..Options::new(|| support::NOW) };
    let refused = Engine::open(device.clone(), options(false)).err().unwrap();
    assert!(matches!(refused, f2fs::Error::Invalid(_)), "{refused}");
    assert!(read(&Engine::open(device.clone(), options(true)).unwrap(), ino).is_empty());
    let mut volume = Engine::open(device.clone(), Options::new(|| support::NOW)).unwrap();
    assert!(read(&volume, ino) == [1; 9000]);
    volume.unmount().unwrap();
    Engine::open(device, options(false)).unwrap();
}

/// A file whose name was removed while another link stayed survives a new file of that name.
#[test]
fn a_link_keeps_a_file_whose_name_is_taken_again() {
    let device = Arc::new(MemoryDevice::new(BYTES));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let old = volume.begin(Caller::ADMIN).create(ROOT, b"name", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(old, 0, b"old").unwrap();
    volume.checkpoint().unwrap();
    volume.begin(Caller::ADMIN).link(old, ROOT, b"other").unwrap();
    volume.begin(Caller::ADMIN).unlink(ROOT, b"name").unwrap();
    let new = volume.begin(Caller::ADMIN).create(ROOT, b"name", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(new, 0, b"new").unwrap();
    volume.fsync(new, SyncScope::Everything).unwrap();
    drop(volume);
    let volume = Engine::open(device, Options::new(|| support::NOW)).unwrap();
    let read_name = |name: &[u8]| read(&volume, volume.lookup(ROOT, name).unwrap());
    assert_eq!((read_name(b"name"), read_name(b"other")), (b"new".to_vec(), b"old".to_vec()));
}

#[test]
fn recovery_leaves_no_two_names_that_fold_alike() {
    let device = Arc::new(MemoryDevice::new(BYTES));
    let mut volume = support::format_on(device.clone(), &["casefold"], BlockSize::B4K);
    let dir = volume.begin(Caller::ADMIN).create(ROOT, b"dir", &NewNode::new(0o040_755)).unwrap();
    volume
        .begin(Caller::ADMIN)
        .set_attr(dir, &SetAttr { flags: Some(flag::CASEFOLD), ..SetAttr::default() })
        .unwrap();
    volume.begin(Caller::ADMIN).create(dir, b"name", &NewNode::new(FILE)).unwrap();
    volume.checkpoint().unwrap();
    volume.begin(Caller::ADMIN).unlink(dir, b"name").unwrap();
    let new = volume.begin(Caller::ADMIN).create(dir, b"NAME", &NewNode::new(FILE)).unwrap();
    volume.fsync(new, SyncScope::Everything).unwrap();
    drop(volume);
    let volume = Engine::open(device, Options::new(|| support::NOW)).unwrap();
    let names: Vec<_> = volume.entries(dir, 0).unwrap().map(|entry| entry.unwrap().name).collect();
    assert!(names.iter().any(|name| name == b"NAME") && !names.iter().any(|name| name == b"name"));
}

/// A link followed by an unlink is a rename: after fsync the file has its new name.
#[test]
fn a_file_that_was_linked_elsewhere_and_unlinked_is_durable_under_its_new_name() {
    for checkpointed in [true, false] {
        let device = Arc::new(MemoryDevice::new(BYTES));
        let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
        let [from, to] = [&b"from"[..], b"to"]
            .map(|name| volume.begin(Caller::ADMIN).create(ROOT, name, &NewNode::new(0o040_755)).unwrap());
        volume.checkpoint().unwrap();
        let ino = volume.begin(Caller::ADMIN).create(from, b"old", &NewNode::new(FILE)).unwrap();
        volume.begin(Caller::ADMIN).write(ino, 0, &[1; 9000]).unwrap();
        match checkpointed {
            true => volume.checkpoint().unwrap(),
            false => volume.fsync(ino, SyncScope::Everything).unwrap(),
        }
        volume.begin(Caller::ADMIN).link(ino, to, b"new").unwrap();
        volume.begin(Caller::ADMIN).unlink(from, b"old").unwrap();
        volume.fsync(ino, SyncScope::Everything).unwrap();
        drop(volume); // without an unmount

        let volume = Engine::open(device, Options::new(|| support::NOW)).unwrap();
        assert_eq!(volume.lookup(to, b"new").unwrap(), ino);
        assert!(volume.lookup(from, b"old").is_err());
        assert!(read(&volume, ino) == [1; 9000]);
    }
}

/// Blocks that an fsync overwrites in place may end right before a run of another log. They must not be
/// delayed together with that run.
#[test]
fn overwrites_before_a_run_of_directories_are_durable() {
    let device = Arc::new(MemoryDevice::new(BYTES));
    drop(support::format_on(device.clone(), &[], BlockSize::B4K));
    let options = Options { cache_bytes: 1 << 20, ..Options::new(|| support::NOW) };
    let mut volume = Engine::open(device.clone(), options).unwrap();
    let dir = volume.begin(Caller::ADMIN).create(ROOT, b"dir", &NewNode::new(0o040_755)).unwrap();
    // The file has a log of its own, right before the segment that the directories reach.
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file.db", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &[1; 4096]).unwrap();
    volume.checkpoint().unwrap();
    let mut made = Vec::new();
    let begins = |volume: &Engine, dir: &Ino| {
        let addr = volume.nat_entry(Nid::from(*dir)).unwrap().addr;
        Some(addr).filter(|addr| addr.is_real() && volume.geometry().position(*addr).1 == 0)
    };
    let first = loop {
        made.push(
            volume
                .begin(Caller::ADMIN)
                .create(dir, format!("{}", made.len()).as_bytes(), &NewNode::new(0o040_755))
                .unwrap(),
        );
        assert!(made.len() < 1000, "the log of the directories opens no segment");
        if let Some(first) = made.iter().find_map(|dir| begins(&volume, dir)) {
            break first;
        }
    };
    let mut last = 0;
    let is_before = |volume: &Engine, at: u64| {
        let place = volume.next_extent(ino, at).unwrap().unwrap().physical.unwrap();
        place / 4096 + 1 == u64::from(first.0)
    };
    while !is_before(&volume, last) {
        last += 4096;
        assert!(last < 512 * 4096, "the file comes to lie elsewhere");
        volume.begin(Caller::ADMIN).write(ino, last, &[1; 4096]).unwrap();
    }
    volume.fsync(ino, SyncScope::Everything).unwrap();
    volume.begin(Caller::ADMIN).write(ino, last, &[2; 4096]).unwrap();
    volume.fsync(ino, SyncScope::Everything).unwrap();
    assert!(is_before(&volume, last), "it is overwritten in place");
    drop(volume);

    let volume = Engine::open(device, Options::new(|| support::NOW)).unwrap();
    assert!(read(&volume, ino).ends_with(&[2; 4096]));
}
