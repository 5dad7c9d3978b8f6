//! Opening volumes, most of them made by f2fs-tools.

mod support;

use std::sync::Arc;

use block::{Counted, Fault, Faulty, MemoryDevice, Verb};
use f2fs::{
    Error,
    engine::{Caller, Engine, NewNode, Options},
    format::BlockSize,
    units::{Ino, Nid, SegNo, Time},
};

#[test]
fn a_fresh_volume_opens_and_has_a_root() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    for (bytes, arguments) in [
        (64 << 20, &[][..]),
        (256 << 20, &["-O", "extra_attr,inode_checksum,sb_checksum,compression", "-s", "2"][..]),
        (1 << 36, &["-i"][..]),
        (100 << 20, &["-g", "android"][..]),
    ] {
        support::mkfs(&path, bytes, arguments);
        support::assert_clean(&path);
        let volume = support::open(&path);
        assert_eq!(volume.read_only_reason(), None);
        let root = volume.inode(volume.superblock().root_ino).unwrap();
        assert!(root.is_directory());
        assert_eq!(volume.nat_entry(Nid(3)).unwrap().ino, Ino(3));
        assert!(volume.nat_entry(Nid(100)).unwrap().is_free());
        let position = volume.geometry().position(volume.nat_entry(Nid(3)).unwrap().addr);
        assert!(volume.sit_entry(position.0).unwrap().valid_blocks >= 1);
        assert!(volume.sit_entry(SegNo(u32::MAX)).is_err());
    }
}

#[test]
fn the_second_superblock_replaces_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &[]);
    let device = support::device(&path);
    device.write(1024, &[0; 16]).unwrap();
    let volume = Engine::open(device, Options::read_only()).unwrap();
    assert!(volume.inode(Ino(3)).unwrap().is_directory());
}

#[test]
fn an_unreadable_pack_does_not_count_as_older_for_a_writer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &[]);
    let volume = support::open(&path);
    let [newer, older] = [0, 1].map(|pack| u64::from(volume.geometry().pack(pack).0) * 4096);
    drop(volume);
    let open = |at: u64, options: Options| {
        let fault = Fault::ErrorIn { verb: Verb::Read, range: at..at + 4096 };
        Engine::open(Arc::new(Faulty::new(support::device(&path), vec![fault])), options)
    };
    let clock = || Time { seconds: 0, nanoseconds: 0 };
    for at in [newer, newer + 4096, older] {
        let error = open(at, Options::new(clock)).err().unwrap();
        assert!(matches!(error, Error::Io { .. }), "{at}: {error}");
    }
    assert_eq!(open(newer, Options::read_only()).unwrap().last_pack(), 1);
    assert_eq!(open(older, Options::read_only()).unwrap().last_pack(), 0);
}

#[test]
fn the_older_pack_counts_if_the_newer_is_torn() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &[]);
    let device = support::device(&path);
    let open = || Engine::open(device.clone(), Options::read_only());
    let volume = open().unwrap();
    assert_eq!(volume.last_pack(), 0, "mkfs's second pack is older");
    let (start, blocks) = (volume.geometry().pack(0), volume.last_checkpoint().pack_blocks);
    let head = u64::from(start.0) * 4096;
    let copy = head + u64::from(blocks - 1) * 4096;
    // The pack's first sector is missing or claims a newer version, or a later part was not written.
    for (at, torn) in
        [(head, [0; 512]), (head, [0x7F; 512]), (head + 1024, [1; 512]), (copy + 3584, [1; 512])]
    {
        let mut whole = [0; 512];
        device.read(at, &mut whole).unwrap();
        device.write(at, &torn).unwrap();
        assert_eq!(open().unwrap().last_pack(), 1, "{at}");
        device.write(at, &whole).unwrap();
        assert_eq!(open().unwrap().last_pack(), 0, "{at}");
    }
    device.write(head, &[0; 512]).unwrap();
    device.write(u64::from(volume.geometry().pack(1).0) * 4096, &[0; 512]).unwrap();
    let error = open().err().expect("no pack is left");
    assert!(error.to_string().starts_with("corrupt checkpoint pack 0"), "{error}");
}

#[test]
fn opening_reads_up_to_the_journals_and_no_summary() {
    let device = Arc::new(Counted::new(MemoryDevice::new(1 << 30)));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.begin(Caller::ADMIN).create(Ino(3), b"file", &NewNode::new(0o100_644)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &[1; 100_000]).unwrap();
    volume.unmount().unwrap();
    let (log, root) = (volume.last_checkpoint().logs[4], volume.nat_entry(Nid(ino.0)).unwrap().addr);
    assert_eq!(log.segment, volume.geometry().position(root).0, "the file's inode is in a log's segment");
    drop(volume);
    let before = device.counts();
    let volume = Engine::open(device.clone(), Options::read_only()).unwrap();
    let after = device.counts();
    assert_eq!((after.reads - before.reads, after.flushes), (7, before.flushes));
    // The superblock, two first sectors, a head with its journals, its copy, the first sector of the copy in the other pack,
    // and the sector of a node's footer.
    assert_eq!(after.read_bytes - before.read_bytes, 3072 + 2 * 512 + 4096 + 1024 + 4096 + 2 * 512);
    let owner = volume.summary(log.segment).unwrap().owners[usize::from(log.offset) - 1];
    assert_eq!(owner.nid, Nid(ino.0), "a summary is read when it is needed");
}

#[test]
fn opening_a_large_volume_reads_few_blocks() {
    let device = Arc::new(Counted::new(MemoryDevice::new(1 << 40)));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    for n in 0..1000 {
        let name = format!("file {n}");
        volume.begin(Caller::ADMIN).create(Ino(3), name.as_bytes(), &NewNode::new(0o100_644)).unwrap();
    }
    volume.unmount().unwrap();
    drop(volume);
    for read_only in [true, false] {
        let before = device.counts();
        let options = Options { read_only, ..Options::new(|| support::NOW) };
        let mut volume = Engine::open(device.clone(), options).unwrap();
        assert!(volume.lookup(Ino(3), b"file 999").is_ok());
        if !read_only {
            volume.begin(Caller::ADMIN).create(Ino(3), b"one more", &NewNode::new(0o100_644)).unwrap();
        }
        let after = device.counts();
        let blocks = (after.read_bytes - before.read_bytes) / 4096;
        assert!(blocks < 100, "{blocks} blocks were read");
    }
}
