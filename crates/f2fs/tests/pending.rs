//! Operations in steps, with reads of the volume in between.

mod support;

use std::sync::Arc;

use block::{Counted, Device, MemoryDevice};
use f2fs::{
    Error,
    engine::{Caller, Engine, NewNode, Options, PendingSync, Policy, SyncScope, Upkeep},
    format::{BlockSize, quota::QuotaKind},
    units::{Ino, Time},
};

const ROOT: Ino = Ino(3);
const FILE: u16 = 0o100_644;

fn volume_of(bytes: u64, options: Options) -> Engine {
    let device = Arc::new(MemoryDevice::new(bytes));
    drop(support::format_on(device.clone(), &[], BlockSize::B4K));
    Engine::open(device, options).unwrap()
}

/// Performs all steps, with a call of `read` before and after each. Returns the number of steps.
fn finish(volume: &mut Engine, pending: Option<PendingSync>, mut read: impl FnMut(&Engine)) -> usize {
    let (mut next, mut steps) = (pending, 0);
    while let Some(pending) = next {
        read(volume);
        let outcome = pending.run();
        read(volume);
        next = volume.finish(outcome).unwrap();
        steps += 1;
    }
    steps
}

#[test]
fn nothing_changes_while_device_work_is_pending() {
    let mut volume = volume_of(64 << 20, Options::new(Time::default));
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    let pending = volume.begin_checkpoint().unwrap();
    assert!(matches!(volume.begin(Caller::ADMIN).write(ino, 0, b"x"), Err(Error::Invalid(_))));
    assert!(matches!(volume.begin_fsync(ino, SyncScope::Everything), Err(Error::Invalid(_))));
    let steps = finish(&mut volume, pending, |volume| assert_eq!(volume.lookup(ROOT, b"file").unwrap(), ino));
    assert_eq!(steps, 1);
    volume.begin(Caller::ADMIN).write(ino, 0, b"x").unwrap();
    // One flush, shared by other fsyncs, while changes continue.
    let pending = volume.begin_fsync(ino, SyncScope::Everything).unwrap().unwrap();
    assert!(pending.is_only_flush());
    volume.begin(Caller::ADMIN).write(ino, 0, b"y").unwrap();
    volume.flushed(pending.run()).unwrap();
}

/// Readers may read blocks of the node address table that a checkpoint is about to replace.
#[test]
fn nodes_are_found_after_readers_read_the_table_during_a_checkpoint() {
    const FILES: u32 = 16_000;
    let options = Options { cache_bytes: 64 << 10, ..Options::new(Time::default) };
    let mut volume = volume_of(256 << 20, options);
    let name = |n: u32| format!("file{n}").into_bytes();
    let files: Vec<Ino> = (0..FILES)
        .map(|n| volume.begin(Caller::ADMIN).create(ROOT, &name(n), &NewNode::new(FILE)).unwrap())
        .collect();
    volume.checkpoint().unwrap();
    for round in 1..3_u16 {
        for ino in files.iter().step_by(5) {
            let set = f2fs::engine::SetAttr { permissions: Some(0o600 + round), ..Default::default() };
            volume.begin(Caller::ADMIN).set_attr(*ino, &set).unwrap();
        }
        let pending = volume.begin_checkpoint().unwrap();
        let check = |volume: &Engine, n: usize| {
            let expected = if n % 5 == 0 { 0o600 + round } else { 0o644 };
            assert_eq!(volume.stat(files[n]).unwrap().mode & 0o777, expected, "file {n}, round {round}");
        };
        finish(&mut volume, pending, |volume| (0..files.len()).for_each(|n| check(volume, n)));
        // First checks the files whose blocks of the table were read last.
        (0..files.len()).rev().for_each(|n| check(&volume, n));
    }
}

/// A volume on a device, with files of one block whose inodes and blocks have changed since the checkpoint.
struct Changed {
    device: Arc<MemoryDevice>,
    volume: Engine,
    files: Vec<Ino>,
}

/// The mode and the second byte of each file, before and after the change.
const BEFORE: (u16, u8) = (0o644, 1);
const AFTER: (u16, u8) = (0o600, 2);

impl Changed {
    /// Changes `files` files. The cache holds a quarter of `cache_bytes` of dirty nodes.
    fn new(files: u32, cache_bytes: usize) -> Changed {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        drop(support::format_on(device.clone(), &[], BlockSize::B4K));
        let options = Options { cache_bytes, upkeep: Upkeep::ByCaller, ..Options::new(Time::default) };
        let mut volume = Engine::open(device.clone(), options).unwrap();
        let name = |n: u32| format!("file{n}").into_bytes();
        let make = |n| {
            let ino = volume.begin(Caller::ADMIN).create(ROOT, &name(n), &NewNode::new(FILE)).unwrap();
            volume.begin(Caller::ADMIN).write(ino, 0, &[BEFORE.1; 4096]).unwrap();
            ino
        };
        let files: Vec<Ino> = (0..files).map(make).collect();
        volume.checkpoint().unwrap();
        for ino in &files {
            let set = f2fs::engine::SetAttr { permissions: Some(AFTER.0), ..Default::default() };
            volume.begin(Caller::ADMIN).set_attr(*ino, &set).unwrap();
            // A part of a block waits as a page.
            volume.begin(Caller::ADMIN).write(*ino, 1, &[AFTER.1]).unwrap();
        }
        Changed { device, volume, files }
    }

    /// Performs all steps. Before each, readers see the new content, a change is refused, and a power cut
    /// would leave the old content. Returns the number of steps.
    fn finish(&mut self, pending: Option<PendingSync>) -> usize {
        let (mut next, mut steps) = (pending, 0);
        while let Some(pending) = next {
            (0..self.files.len()).step_by(7).for_each(|n| assert_eq!(self.state(&self.volume, n), AFTER));
            let refused = self.volume.begin(Caller::ADMIN).write(self.files[0], 0, b"x");
            assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
            if steps % 20 == 0 {
                let cut = self.after_power_cut();
                (0..self.files.len()).step_by(50).for_each(|n| assert_eq!(self.state(&cut, n), BEFORE));
            }
            next = self.volume.finish(pending.run()).unwrap();
            steps += 1;
        }
        steps
    }

    fn state(&self, volume: &Engine, n: usize) -> (u16, u8) {
        let mut content = [0; 4096];
        assert_eq!(volume.read(self.files[n], 0, &mut content).unwrap(), content.len());
        (volume.stat(self.files[n]).unwrap().mode & 0o777, content[1])
    }

    fn after_power_cut(&self) -> Engine {
        let mut content = vec![0; 64 << 20];
        self.device.read(0, &mut content).unwrap();
        let copy = MemoryDevice::new(64 << 20);
        copy.write(0, &content).unwrap();
        Engine::open(Arc::new(copy), Options::new(Time::default)).unwrap()
    }
}

#[test]
fn a_checkpoint_gives_readers_a_turn_after_every_few_blocks() {
    const FILES: usize = 1000;
    let mut changed = Changed::new(FILES as u32, 64 << 20);
    let pending = changed.volume.begin_checkpoint().unwrap();
    let steps = changed.finish(pending);
    assert!(steps >= 2 * FILES / 32, "{steps} steps for {FILES} pages and {FILES} nodes");
    let cut = changed.after_power_cut();
    (0..FILES).for_each(|n| assert_eq!(changed.state(&cut, n), AFTER, "file {n}"));
}

/// Writes of a device while the caller has the volume to itself, at most.
#[derive(Debug, Default)]
struct LongestHold {
    writes: u64,
    blocks: u64,
    /// Number of holds.
    holds: u64,
}

impl LongestHold {
    /// Performs all steps of an operation that `begin` begins.
    fn of(
        device: &Counted<Arc<MemoryDevice>>,
        volume: &mut Engine,
        begin: impl FnOnce(&mut Engine) -> Option<PendingSync>,
    ) -> LongestHold {
        let mut longest = LongestHold::default();
        device.take_counts();
        let mut next = begin(volume);
        loop {
            let counts = device.take_counts();
            longest.writes = longest.writes.max(counts.writes);
            longest.blocks = longest.blocks.max(counts.written_bytes / 4096);
            longest.holds += 1;
            let Some(pending) = next else { return longest };
            let outcome = pending.run();
            device.take_counts();
            next = volume.finish(outcome).unwrap();
        }
    }

    /// Asserts that a hold has at most 32 blocks that are not adjacent, and a full run of each of two logs.
    fn assert_short(&self) {
        assert!(self.writes <= 32 + 4 && self.blocks <= 32 + 2 * 240, "{self:?}");
    }
}

fn counted_volume(bytes: u64) -> (Arc<Counted<Arc<MemoryDevice>>>, Engine) {
    let base = Arc::new(MemoryDevice::new(bytes));
    drop(support::format_on(base.clone(), &[], BlockSize::B4K));
    let device = Arc::new(Counted::new(base));
    let volume = Engine::open(device.clone(), Options::new(Time::default)).unwrap();
    (device, volume)
}

/// The blocks of a file are so far apart that each has a node for itself.
#[test]
fn an_fsync_of_many_nodes_gives_readers_a_turn_after_every_few() {
    const NODES: u64 = 2000;
    let (device, mut volume) = counted_volume(128 << 20);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    let offset = |n: u64| n * 1018 * 4096;
    for round in 1..=2_u8 {
        for n in 0..NODES {
            volume.begin(Caller::ADMIN).write(ino, offset(n), &[round; 4096]).unwrap();
        }
        if round == 1 {
            volume.checkpoint().unwrap();
        }
    }
    let longest = LongestHold::of(&device, &mut volume, |volume| {
        volume.begin_fsync(ino, SyncScope::Everything).unwrap()
    });
    longest.assert_short();
    assert!(longest.holds >= NODES / 32, "{longest:?}");
    // Only the content of the device is left, as after a power cut.
    drop(volume);
    let volume = Engine::open(device.inner().clone(), Options::new(Time::default)).unwrap();
    let mut content = [0; 4096];
    for n in 0..NODES {
        volume.read(ino, offset(n), &mut content).unwrap();
        assert_eq!(content, [2; 4096], "block {n}");
    }
}

/// The files of every second block of the node address table change, so that no two blocks to be written are adjacent.
#[test]
fn a_checkpoint_gives_readers_a_turn_after_every_few_blocks_of_its_tables() {
    const FILES: usize = 80_000;
    const ENTRIES: u32 = 455;
    let (device, mut volume) = counted_volume(2 << 30);
    let name = |n: usize| format!("file{n}").into_bytes();
    let files: Vec<Ino> = (0..FILES)
        .map(|n| volume.begin(Caller::ADMIN).create(ROOT, &name(n), &NewNode::new(FILE)).unwrap())
        .collect();
    volume.checkpoint().unwrap();
    let changed = |ino: Ino| ino.0 / ENTRIES % 2 == 0;
    for ino in files.iter().filter(|ino| changed(**ino)) {
        let set = f2fs::engine::SetAttr { permissions: Some(AFTER.0), ..Default::default() };
        volume.begin(Caller::ADMIN).set_attr(*ino, &set).unwrap();
    }
    let longest = LongestHold::of(&device, &mut volume, |volume| volume.begin_checkpoint().unwrap());
    longest.assert_short();
    drop(volume);
    let volume = Engine::open(device.inner().clone(), Options::new(Time::default)).unwrap();
    for ino in &files {
        let expected = if changed(*ino) { AFTER.0 } else { BEFORE.0 };
        assert_eq!(volume.stat(*ino).unwrap().mode & 0o777, expected, "{ino}");
    }
}

/// The records are far apart, so that each has a block of the file's tree for itself.
#[test]
fn quota_files_are_read_and_written_with_turns_for_readers() {
    const USERS: u32 = 2000;
    let user = |n: u32| (n + 1) << 8;
    let base = Arc::new(MemoryDevice::new(128 << 20));
    drop(support::format_on(base.clone(), &["quota"], BlockSize::B4K));
    let device = Arc::new(Counted::new(base.clone()));
    let mut volume = Engine::open(device.clone(), Options::new(Time::default)).unwrap();
    let files: Vec<Ino> = (0..USERS)
        .map(|n| {
            let name = format!("file{n}").into_bytes();
            let new = NewNode { uid: user(n), ..NewNode::new(FILE) };
            volume.begin(Caller::ADMIN).create(ROOT, &name, &new).unwrap()
        })
        .collect();
    volume.unmount().unwrap();
    drop(volume);
    let mut volume = Engine::open(device.clone(), Options::new(Time::default)).unwrap();
    // The record of a new user changes the whole file, that of a known one a block.
    for owner in [user(USERS), user(7)] {
        let expected = volume.quota_of(QuotaKind::User, owner).unwrap().inodes.get() + 1;
        volume.begin(Caller::ADMIN).change_owner(files[1], Some(owner), None).unwrap();
        device.take_counts();
        let (mut next, mut steps) = (volume.begin_checkpoint().unwrap(), 0);
        while let Some(pending) = next {
            let counts = device.take_counts();
            assert!(counts.reads <= 40, "{} reads in one step", counts.reads);
            assert_eq!(volume.quota_of(QuotaKind::User, owner).unwrap().inodes.get(), expected);
            assert_eq!(volume.quota_of(QuotaKind::User, user(9)).unwrap().inodes.get(), 1);
            device.take_counts();
            next = volume.finish(pending.run()).unwrap();
            steps += 1;
        }
        let blocks = USERS as usize / 4;
        let written = if owner == user(USERS) { blocks } else { 0 };
        assert!(steps >= (blocks + written) / 32, "{steps} steps for {blocks} blocks and {written}");
    }
    volume.unmount().unwrap();
    drop(volume);
    model::fsck::fsck(&base).unwrap();
}

/// Most of the changed inodes have left the cache when the checkpoint begins.
#[test]
fn a_checkpoint_of_a_volume_with_quota_reads_no_changed_inode_again() {
    const FILES: u64 = 1500;
    let base = Arc::new(MemoryDevice::new(128 << 20));
    drop(support::format_on(base.clone(), &["quota"], BlockSize::B4K));
    let device = Arc::new(Counted::new(base.clone()));
    let options = Options { cache_bytes: 512 << 10, ..Options::new(Time::default) };
    let mut volume = Engine::open(device.clone(), options).unwrap();
    let name = |n: u64| format!("file{n}").into_bytes();
    for n in 0..FILES {
        let new = NewNode { uid: 1000, ..NewNode::new(FILE) };
        volume.begin(Caller::ADMIN).create(ROOT, &name(n), &new).unwrap();
    }
    for (uid, others) in [(1000, 0), (1001, FILES - 1)] {
        if uid == 1001 {
            for n in 1..FILES {
                let ino = volume.lookup(ROOT, &name(n)).unwrap();
                volume.begin(Caller::ADMIN).change_owner(ino, Some(uid), None).unwrap();
            }
        }
        device.take_counts();
        let (mut next, mut reads) = (volume.begin_checkpoint().unwrap(), device.take_counts().reads);
        while let Some(pending) = next {
            assert!(reads <= 40, "{reads} reads in one step");
            next = volume.finish(pending.run()).unwrap();
            reads = device.take_counts().reads;
        }
        let used = |uid| volume.quota_of(QuotaKind::User, uid).unwrap().inodes.get();
        assert_eq!((used(1000), used(1001)), (FILES - others, others));
    }
    volume.unmount().unwrap();
    drop(volume);
    model::fsck::fsck(&base).unwrap();
}

#[test]
fn upkeep_gives_readers_a_turn_after_every_few_blocks() {
    const FILES: usize = 1000;
    let mut changed = Changed::new(FILES as u32, 1 << 20);
    let pending = changed.volume.begin_upkeep().unwrap();
    let steps = changed.finish(pending);
    assert!(steps >= 2 * FILES / 32, "{steps} steps for {FILES} pages and {FILES} nodes");
    (0..FILES).for_each(|n| assert_eq!(changed.state(&changed.volume, n), AFTER, "file {n}"));
}

#[test]
fn cleaning_gives_readers_a_turn_after_every_few_blocks() {
    let mut volume = volume_of(128 << 20, Options::new(Time::default));
    let name = |n: u32| format!("file{n}").into_bytes();
    let files: Vec<Ino> = (0..800_u32)
        .map(|n| {
            let ino = volume.begin(Caller::ADMIN).create(ROOT, &name(n), &NewNode::new(FILE)).unwrap();
            volume.begin(Caller::ADMIN).write(ino, 0, &[n as u8; 30_000]).unwrap();
            ino
        })
        .collect();
    volume.checkpoint().unwrap();
    (0..800).filter(|n| n % 2 == 0).for_each(|n| volume.begin(Caller::ADMIN).unlink(ROOT, &name(n)).unwrap());
    volume.checkpoint().unwrap();
    let free = volume.last_checkpoint().free_segments;
    let pending = volume.begin_clean_a_little(Policy::Greedy).unwrap();
    let steps = finish(&mut volume, pending, |volume| {
        let mut content = [0; 40_000];
        assert_eq!(volume.read(files[1], 0, &mut content).unwrap(), 30_000);
        assert!(content[..30_000].iter().all(|byte| *byte == 1));
    });
    // The moved blocks have taken at most one other segment.
    assert!(volume.last_checkpoint().free_segments >= free);
    assert!(steps >= 512 / 2 / 32, "{steps} steps for half a segment");
}
