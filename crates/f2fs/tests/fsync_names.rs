//! Names made durable by an fsync, under each policy.

mod support;

use std::sync::Arc;

use block::{MemoryDevice, Recording, Survivors, power_cut};
use f2fs::{
    engine::{Caller, Engine, FsyncNames, NewNode, Options, RenameMode, SyncScope},
    format::BlockSize,
    units::Ino,
};

const ROOT: Ino = Ino(3);
const FILE: u16 = 0o100_644;
const DIR: u16 = 0o040_755;
const BYTES: u64 = 64 << 20;

fn options(fsync_names: FsyncNames) -> Options {
    Options { fsync_names, ..Options::new(|| support::NOW) }
}

/// Runs `act` on an empty volume and cuts the power. Returns the volume as the next mount finds it, without
/// any unflushed write.
fn after_a_power_cut(fsync_names: FsyncNames, act: impl FnOnce(&mut Engine)) -> Engine {
    let device = Arc::new(Recording::with_data(MemoryDevice::new(BYTES)));
    drop(support::format_on(device.clone(), &[], BlockSize::B4K));
    let mut volume = Engine::open(device.clone(), options(fsync_names)).unwrap();
    act(&mut volume);
    let trace = device.take_trace();
    let left = Arc::new(MemoryDevice::new(BYTES));
    power_cut(&trace, trace.len(), &Survivors::None, &*left).unwrap();
    Engine::open(left, options(fsync_names)).unwrap()
}

/// Returns the inode at a path, if there is one.
fn at(volume: &Engine, path: &[&[u8]]) -> Option<Ino> {
    path.iter().try_fold(ROOT, |dir, name| volume.lookup(dir, name)).ok()
}

#[test]
fn an_fsync_that_keeps_renames_keeps_those_of_directories_above_the_file() {
    for scope in [SyncScope::Everything, SyncScope::Data] {
        for policy in [FsyncNames::Own, FsyncNames::Renamed] {
            let mut ino = Ino(0);
            let volume = after_a_power_cut(policy, |volume| {
                let top = volume.begin(Caller::ADMIN).create(ROOT, b"top", &NewNode::new(DIR)).unwrap();
                let old = volume.begin(Caller::ADMIN).create(top, b"old", &NewNode::new(DIR)).unwrap();
                let dir = volume.begin(Caller::ADMIN).create(old, b"dir", &NewNode::new(DIR)).unwrap();
                ino = volume.begin(Caller::ADMIN).create(dir, b"file", &NewNode::new(FILE)).unwrap();
                volume.begin(Caller::ADMIN).write(ino, 0, &[1; 8192]).unwrap();
                volume.checkpoint().unwrap();
                volume.begin(Caller::ADMIN).rename(top, b"old", top, b"new", RenameMode::Replace).unwrap();
                volume.begin(Caller::ADMIN).write(ino, 0, &[2; 8192]).unwrap();
                volume.fsync(ino, scope).unwrap();
            });
            let (old, new) =
                (&[&b"top"[..], b"old", b"dir", b"file"], &[&b"top"[..], b"new", b"dir", b"file"]);
            let kept = match policy {
                FsyncNames::Own => at(&volume, old),
                FsyncNames::Renamed => at(&volume, new),
            };
            assert_eq!(kept, Some(ino), "{policy:?}");
            let mut content = [0; 8192];
            volume.read(ino, 0, &mut content).unwrap();
            assert_eq!(content, [2; 8192], "{policy:?}");
        }
    }
}

#[test]
fn an_fsync_that_keeps_renames_does_so_for_unchanged_files() {
    let volume = after_a_power_cut(FsyncNames::Renamed, |volume| {
        let file = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
        let dir = volume.begin(Caller::ADMIN).create(ROOT, b"dir", &NewNode::new(DIR)).unwrap();
        volume.begin(Caller::ADMIN).create(ROOT, b"old", &NewNode::new(DIR)).unwrap();
        volume.checkpoint().unwrap();
        volume.begin(Caller::ADMIN).rename(ROOT, b"old", ROOT, b"new", RenameMode::Replace).unwrap();
        volume.fsync(file, SyncScope::Data).unwrap();
        volume.begin(Caller::ADMIN).rename(ROOT, b"new", ROOT, b"newer", RenameMode::Replace).unwrap();
        volume.fsync(dir, SyncScope::Data).unwrap();
    });
    assert!(at(&volume, &[b"newer"]).is_some() && at(&volume, &[b"new"]).is_none());
}

/// xfstests generic/342.
#[test]
fn a_file_that_was_renamed_stays_when_a_new_one_of_its_old_name_is_fsynced() {
    for policy in [FsyncNames::Own, FsyncNames::Renamed] {
        let (mut first, mut second) = (Ino(0), Ino(0));
        let volume = after_a_power_cut(policy, |volume| {
            let dir = volume.begin(Caller::ADMIN).create(ROOT, b"a", &NewNode::new(DIR)).unwrap();
            first = volume.begin(Caller::ADMIN).create(dir, b"foo", &NewNode::new(FILE)).unwrap();
            volume.begin(Caller::ADMIN).write(first, 0, &[1; 16_384]).unwrap();
            volume.checkpoint().unwrap();
            volume.begin(Caller::ADMIN).rename(dir, b"foo", dir, b"bar", RenameMode::Replace).unwrap();
            second = volume.begin(Caller::ADMIN).create(dir, b"foo", &NewNode::new(FILE)).unwrap();
            volume.begin(Caller::ADMIN).write(second, 0, &[2; 16_384]).unwrap();
            volume.fsync(second, SyncScope::Everything).unwrap();
        });
        assert_eq!(at(&volume, &[b"a", b"bar"]), Some(first), "{policy:?}");
        assert_eq!(at(&volume, &[b"a", b"foo"]), Some(second), "{policy:?}");
    }
}

#[test]
fn an_fsync_that_keeps_renames_writes_one_checkpoint_for_all_of_them() {
    after_a_power_cut(FsyncNames::Renamed, |volume| {
        let file = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
        volume.checkpoint().unwrap();
        for (from, to) in [(b"file", b"next"), (b"next", b"last")] {
            volume.begin(Caller::ADMIN).rename(ROOT, from, ROOT, to, RenameMode::Replace).unwrap();
        }
        let before = volume.last_checkpoint().version;
        volume.fsync(file, SyncScope::Everything).unwrap();
        let after = volume.last_checkpoint().version;
        assert_eq!(after.0, before.0 + 1);
        volume.begin(Caller::ADMIN).write(file, 0, b"more").unwrap();
        volume.fsync(file, SyncScope::Everything).unwrap();
        assert_eq!(volume.last_checkpoint().version, after, "nothing was renamed since");
    });
}
