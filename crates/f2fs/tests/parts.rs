//! Long operations on one file in parts. The nodes that each part reads are counted: others wait for the volume meanwhile.

mod support;

use std::{path::PathBuf, sync::Arc};

use block::{Counted, Device};
use f2fs::{
    Error,
    engine::{Caller, Engine, FileSize, NewNode, Options, Seek, SeekPart, SeekTarget},
    units::Ino,
};

const ROOT: Ino = Ino(3);
const FILE: u16 = 0o100_644;
const BLOCK: u64 = 4096;
/// Bytes of the addresses of one node.
const NODE_BYTES: u64 = 1018 * BLOCK;
/// Number of nodes with addresses that the file of a test has.
const NODES: u64 = 80;
/// Bytes of one part of a truncation, which has the addresses of five nodes at most.
const PART_BYTES: u64 = 16 << 20;
/// Maximum number of reads in one part: those of its nodes, and of the tables that lead to them.
const READS_MAX: u64 = 20;

/// A volume on a device that counts reads.
struct Counting {
    device: Arc<Counted<Arc<dyn Device>>>,
    volume: Engine,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Counting {
    fn new() -> Counting {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        drop(support::format(&path, 512 << 20, &[]));
        let device = Arc::new(Counted::new(support::device(&path)));
        let volume = Engine::open(device.clone(), Options::new(|| support::NOW)).unwrap();
        Counting { device, volume, path, _dir: dir }
    }

    fn create(&mut self, name: &[u8]) -> Ino {
        self.volume.begin(Caller::ADMIN).create(ROOT, name, &NewNode::new(FILE)).unwrap()
    }

    /// Opens the volume again, so that no node is in memory except that of a file.
    fn reopen(&mut self, ino: Ino) {
        self.volume.unmount().unwrap();
        self.volume = Engine::open(self.device.clone(), Options::new(|| support::NOW)).unwrap();
        self.volume.stat(ino).unwrap();
        self.device.take_counts();
    }

    /// Number of reads since the last call, of one part.
    fn take_reads(&self) -> u64 {
        let reads = self.device.take_counts().reads;
        assert!(reads <= READS_MAX, "{reads} reads in one part");
        reads
    }

    /// Number of blocks of a file, with its nodes.
    fn blocks(&self, ino: Ino) -> u64 {
        self.volume.inode(ino).unwrap().head().blocks.get()
    }

    fn close(self) {
        let Counting { device, mut volume, path, _dir } = self;
        volume.unmount().unwrap();
        drop((volume, device));
        support::assert_clean(&path);
    }
}

/// Performs all parts of a search. Returns the result, and the number of parts.
fn search(on: &Counting, ino: Ino, target: SeekTarget, from: u64) -> (SeekPart, u64) {
    let (mut seek, mut parts) = (Seek::new(ino, target, from), 1);
    loop {
        let before = seek.at();
        match on.volume.seek_part(&mut seek).unwrap() {
            SeekPart::Unfinished => assert!(seek.at() > before),
            done => return (done, parts),
        }
        on.take_reads();
        parts += 1;
    }
}

#[test]
fn blocks_that_are_reserved_past_the_end_are_freed_in_parts() {
    for size in [0, 5000, 2 * PART_BYTES + 5000, 3 * PART_BYTES] {
        let mut on = Counting::new();
        let ino = on.create(b"file");
        on.volume.begin(Caller::ADMIN).truncate(ino, size).unwrap();
        let begin = |on: &mut Counting| {
            let length = NODES * NODE_BYTES;
            on.volume.begin(Caller::ADMIN).allocate_range(ino, 0, length, FileSize::Stays).unwrap();
            on.reopen(ino);
        };
        begin(&mut on);
        let free = on.volume.free_user_blocks();
        assert!(!on.volume.begin(Caller::ADMIN).shorten(ino, size + 1, PART_BYTES).unwrap(), "it grows");
        assert_eq!(on.volume.free_user_blocks(), free);
        let mut parts = 0;
        while on.volume.begin(Caller::ADMIN).shorten(ino, size, PART_BYTES).unwrap() {
            assert_eq!(on.volume.stat(ino).unwrap().size, size);
            on.take_reads();
            parts += 1;
        }
        on.volume.begin(Caller::ADMIN).truncate(ino, size).unwrap();
        on.take_reads();
        let left = on.blocks(ino);
        assert!(
            left <= size.div_ceil(BLOCK) + size.div_ceil(NODE_BYTES) + 1,
            "{left} blocks for {size} bytes"
        );
        let expected = (NODES * NODE_BYTES - size) / PART_BYTES;
        assert!(parts >= expected - 1, "{parts} parts of {expected}");

        begin(&mut on);
        on.volume.hold(ino);
        on.volume.begin(Caller::ADMIN).unlink(ROOT, b"file").unwrap();
        on.device.take_counts();
        let mut parts = 0;
        while on.volume.begin(Caller::ADMIN).shrink_nameless(ino, PART_BYTES).unwrap() {
            on.take_reads();
            parts += 1;
        }
        on.volume.begin(Caller::ADMIN).release(ino).unwrap();
        on.take_reads();
        let expected = NODES * NODE_BYTES / PART_BYTES;
        assert!(parts >= expected - 1, "{parts} parts of {expected}");
        assert!(on.volume.inode(ino).is_err());
        on.close();
    }
}

/// Holes need no parts, but the nodes of a file that was punched do.
#[test]
fn nodes_without_addresses_are_freed_in_parts() {
    let mut on = Counting::new();
    let ino = on.create(b"file");
    let length = NODES * NODE_BYTES;
    on.volume.begin(Caller::ADMIN).allocate_range(ino, 0, length, FileSize::Grows).unwrap();
    on.volume.begin(Caller::ADMIN).punch_hole(ino, 0, length).unwrap();
    // A block behind a hole of a terabyte.
    on.volume.begin(Caller::ADMIN).write(ino, 1 << 40, b"far").unwrap();
    on.reopen(ino);
    let mut parts = 0;
    while on.volume.begin(Caller::ADMIN).shorten(ino, 5000, PART_BYTES).unwrap() {
        on.take_reads();
        parts += 1;
    }
    on.volume.begin(Caller::ADMIN).truncate(ino, 5000).unwrap();
    on.take_reads();
    let expected = length / PART_BYTES;
    assert!((expected - 4..expected + 3).contains(&parts), "{parts} parts of {expected}");
    assert_eq!((on.volume.stat(ino).unwrap().size, on.blocks(ino)), (5000, 1));
    on.close();
}

#[test]
fn the_space_for_an_allocation_is_checked_in_parts() {
    let mut on = Counting::new();
    let ino = on.create(b"file");
    let length = NODES * NODE_BYTES;
    on.volume.begin(Caller::ADMIN).allocate_range(ino, 0, length, FileSize::Grows).unwrap();
    // Holes in some nodes, and a node that is missing.
    on.volume.begin(Caller::ADMIN).punch_hole(ino, 3 * BLOCK, 2 * BLOCK).unwrap();
    on.volume.begin(Caller::ADMIN).punch_hole(ino, 50 << 20, 1 << 20).unwrap();
    on.volume.begin(Caller::ADMIN).truncate(ino, length - NODE_BYTES).unwrap();
    on.reopen(ino);
    assert!(on.volume.free_user_blocks() * BLOCK < length, "the free space is not enough without a count");
    let check = |on: &Counting, length| {
        let mut check = on.volume.begin_allocation_check(ino, 0, length)?;
        let mut parts = 1;
        while on.volume.allocation_check_part(&mut check)? {
            on.take_reads();
            parts += 1;
        }
        Ok::<u64, Error>(parts)
    };
    let parts = check(&on, length).unwrap();
    assert!(parts >= NODES / 9, "{parts} parts for {NODES} nodes");
    // What the check allows just fits: it counts each hole and each missing node.
    let most = {
        let fits = |blocks: u64| check(&on, length + blocks * BLOCK).is_ok();
        let (mut least, mut most) = (0, on.volume.free_user_blocks());
        while least + 1 < most {
            let middle = (least + most) / 2;
            if fits(middle) {
                least = middle
            } else {
                most = middle
            }
            on.device.take_counts();
        }
        least
    };
    assert!(matches!(check(&on, length + (most + 1) * BLOCK), Err(Error::NoSpace { .. })));
    on.volume.begin(Caller::ADMIN).allocate_range(ino, 0, length + most * BLOCK, FileSize::Grows).unwrap();
    assert!(on.volume.free_user_blocks() < 2, "{} blocks are left", on.volume.free_user_blocks());
    on.close();
}

#[test]
fn data_and_holes_are_searched_in_parts() {
    let mut on = Counting::new();
    let ino = on.create(b"file");
    let length = NODES * NODE_BYTES;
    on.volume.begin(Caller::ADMIN).allocate_range(ino, 0, length, FileSize::Grows).unwrap();
    for target in [SeekTarget::Data, SeekTarget::Hole] {
        on.reopen(ino);
        let (found, parts) = search(&on, ino, target, 5000);
        let expected = if target == SeekTarget::Hole { SeekPart::Found(length) } else { SeekPart::Nothing };
        assert_eq!(found, expected);
        assert!((NODES / 10..NODES).contains(&parts), "{parts} parts for {NODES} nodes");
    }
    // Data and a hole near the end.
    let at = length - 10 * BLOCK;
    on.volume.begin(Caller::ADMIN).write(ino, at + 7, b"data").unwrap();
    on.volume.begin(Caller::ADMIN).punch_hole(ino, at + 4 * BLOCK, BLOCK).unwrap();
    let found = |on: &Counting, target, from| search(on, ino, target, from).0;
    assert_eq!(found(&on, SeekTarget::Data, 1), SeekPart::Found(at));
    assert_eq!(found(&on, SeekTarget::Data, at + 9), SeekPart::Found(at + 9));
    assert_eq!(found(&on, SeekTarget::Hole, 1), SeekPart::Found(at + 4 * BLOCK));
    assert_eq!(found(&on, SeekTarget::Hole, at + 4 * BLOCK + 1), SeekPart::Found(at + 4 * BLOCK + 1));
    assert_eq!(found(&on, SeekTarget::Hole, length), SeekPart::Nothing);
    // Nodes without addresses.
    on.volume.begin(Caller::ADMIN).punch_hole(ino, 0, at).unwrap();
    on.reopen(ino);
    let (found, parts) = search(&on, ino, SeekTarget::Data, 0);
    assert_eq!(found, SeekPart::Found(at));
    assert!(parts >= NODES / 10, "{parts} parts for {NODES} nodes");
    on.close();
}

#[test]
fn a_search_meets_the_changes_between_its_parts() {
    let mut on = Counting::new();
    let ino = on.create(b"file");
    let length = NODES * NODE_BYTES;
    on.volume.begin(Caller::ADMIN).allocate_range(ino, 0, length, FileSize::Grows).unwrap();
    let mut searches =
        [SeekTarget::Data, SeekTarget::Hole].map(|target| (Seek::new(ino, target, 6000), target));
    for (seek, _) in &mut searches {
        assert_eq!(on.volume.seek_part(seek).unwrap(), SeekPart::Unfinished);
    }
    // The file is shorter than what was examined.
    on.volume.begin(Caller::ADMIN).truncate(ino, 8000).unwrap();
    for (seek, target) in &mut searches {
        let expected = if *target == SeekTarget::Hole { SeekPart::Found(8000) } else { SeekPart::Nothing };
        assert_eq!(on.volume.seek_part(seek).unwrap(), expected);
    }
    on.volume.begin(Caller::ADMIN).truncate(ino, 100).unwrap();
    for (seek, _) in &mut searches {
        assert_eq!(on.volume.seek_part(seek).unwrap(), SeekPart::Nothing, "it began past the end");
    }
    on.close();
}
