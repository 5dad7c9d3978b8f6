//! The engine behind the vocabulary: operations on paths become calls of [`Volume`].

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use anyhow::Context;
use block::Device;
use f2fs::{
    Error, Result, Volume,
    format::inode::DeviceNumber,
    units::{Ino, Time},
    volume::{ActiveLogs, InPlace, NewNode, Options, RenameMode, SetAttr, XattrMode},
};
use guest::{Op, op::Allocate};
use rustix::io::Errno;

use crate::model::components;

/// Seconds at which the clock of every run starts.
const EPOCH: i64 = 1_700_000_000;

/// How the volume is opened, each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Logs to write to.
    pub active_logs: ActiveLogs,
    /// When to overwrite in place.
    pub in_place: InPlace,
    /// Memory for caches.
    pub cache_bytes: usize,
    /// Whether small files and directories, and attributes, live in inodes.
    pub inline: bool,
    /// Whether freed blocks are discarded.
    pub discard: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            active_logs: ActiveLogs::Six,
            in_place: InPlace::default(),
            cache_bytes: 1 << 20,
            inline: true,
            discard: true,
        }
    }
}

/// A clock that only moves when it is told to.
#[derive(Debug, Clone, Default)]
pub struct StepClock(Arc<AtomicI64>);

impl StepClock {
    /// The time.
    pub fn now(&self) -> Time {
        let steps = self.0.load(Ordering::Relaxed);
        Time { seconds: EPOCH + steps / 7, nanoseconds: (steps % 7 * 100_000_001) as u32 }
    }

    /// Goes on by one step.
    pub fn step(&self) -> Time {
        self.0.fetch_add(1, Ordering::Relaxed);
        self.now()
    }
}

/// A volume that is driven by operations.
pub struct Engine {
    device: Arc<dyn Device>,
    settings: Settings,
    clock: StepClock,
    volume: Volume,
    open: HashMap<u32, Ino>,
}

impl Engine {
    /// Opens the volume on a device.
    pub fn open(device: Arc<dyn Device>, settings: Settings, clock: StepClock) -> anyhow::Result<Engine> {
        let volume = open(&device, settings, &clock)?;
        Ok(Engine { device, settings, clock, volume, open: HashMap::new() })
    }

    /// The volume.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// The inode that is open under a handle.
    pub fn opened(&self, handle: u32) -> Option<Ino> {
        self.open.get(&handle).copied()
    }

    /// Ends cleanly.
    pub fn unmount(mut self) -> Result<()> {
        self.close_all()?;
        self.volume.unmount()
    }

    /// Does an operation. [`Op::Unmount`] unmounts and opens again; [`Op::DropCaches`] writes a checkpoint and
    /// opens again, so that the new volume begins with nothing in memory.
    pub fn apply(&mut self, op: &Op) -> Result<()> {
        let volume = &mut self.volume;
        match op {
            Op::Mkdir { path, mode } => make(volume, &path.0, 0o040_000 | mode & 0o7777, None).map(drop),
            Op::Rmdir { path } => {
                let (dir, name) = parent(volume, &path.0)?;
                volume.remove_dir(dir, name)
            }
            Op::Write { path, offset, content } => {
                let ino = match find(volume, &path.0) {
                    Err(Error::NotFound) => make(volume, &path.0, 0o100_644, None)?,
                    found => found?,
                };
                volume.write(ino, *offset, &content.to_vec())
            }
            Op::Truncate { path, size } => volume.truncate(find(volume, &path.0)?, *size),
            Op::Allocate { path, how, offset, length } => {
                let ino = find(volume, &path.0)?;
                match how {
                    Allocate::Extend => volume.allocate_range(ino, *offset, *length, false),
                    Allocate::KeepSize => volume.allocate_range(ino, *offset, *length, true),
                    Allocate::Punch => volume.punch_hole(ino, *offset, *length),
                    Allocate::Zero | Allocate::Collapse | Allocate::Insert => {
                        Err(Error::Unsupported("this kind of fallocate".into()))
                    }
                }
            }
            Op::Rename { from, to } => rename(volume, &from.0, &to.0, RenameMode::Replace),
            Op::RenameNew { from, to } => rename(volume, &from.0, &to.0, RenameMode::NoReplace),
            Op::Exchange { from, to } => rename(volume, &from.0, &to.0, RenameMode::Exchange),
            Op::Link { from, to } => {
                let ino = find(volume, &from.0)?;
                let (dir, name) = parent(volume, &to.0)?;
                volume.link(ino, dir, name)
            }
            Op::Symlink { target, path } => {
                let (dir, name) = parent(volume, &path.0)?;
                volume.symlink(dir, name, &target.0, &NewNode::new(0o777)).map(drop)
            }
            Op::Unlink { path } => {
                let (dir, name) = parent(volume, &path.0)?;
                volume.unlink(dir, name)
            }
            Op::Mknod { path, mode, major, minor } => {
                make(volume, &path.0, *mode, Some(DeviceNumber { major: *major, minor: *minor })).map(drop)
            }
            Op::SetXattr { path, name, value } => {
                volume.set_xattr(find(volume, &path.0)?, &name.0, &value.to_vec(), XattrMode::Set)
            }
            Op::RemoveXattr { path, name } => volume.remove_xattr(find(volume, &path.0)?, &name.0),
            Op::Chmod { path, mode } => {
                let set = SetAttr { permissions: Some((mode & 0o7777) as u16), ..SetAttr::default() };
                volume.set_attr(find(volume, &path.0)?, &set)
            }
            Op::Chown { path, uid, gid } => {
                let set = SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() };
                volume.set_attr(find(volume, &path.0)?, &set)
            }
            Op::Times { path, atime, mtime } => {
                let time = |t: &(i64, u32)| Some(Time { seconds: t.0, nanoseconds: t.1 });
                let set = SetAttr { atime: time(atime), mtime: time(mtime), ..SetAttr::default() };
                volume.set_attr(find(volume, &path.0)?, &set)
            }
            Op::Flags { path, set, clear } => {
                let ino = find(volume, &path.0)?;
                let flags = (volume.stat(ino)?.flags | set) & !clear;
                volume.set_attr(ino, &SetAttr { flags: Some(flags), ..SetAttr::default() })
            }
            Op::Open { path, handle } => {
                let ino = find(volume, &path.0)?;
                volume.read(ino, 0, &mut [])?;
                self.close(*handle)?;
                self.volume.hold(ino);
                self.open.insert(*handle, ino);
                Ok(())
            }
            Op::WriteOpen { handle, offset, content } => {
                let ino = self.open.get(handle).ok_or(Error::NotFound)?;
                volume.write(*ino, *offset, &content.to_vec())
            }
            Op::Close { handle } => self.close(*handle),
            Op::Fsync { path, data_only } => volume.fsync(find(volume, &path.0)?, *data_only),
            Op::FsyncOpen { handle } => {
                let ino = self.open.get(handle).ok_or(Error::NotFound)?;
                volume.fsync(*ino, false)
            }
            Op::Sync | Op::Checkpoint { .. } => volume.checkpoint(),
            Op::Unmount { .. } => {
                self.close_all()?;
                self.volume.unmount()?;
                self.reopen()
            }
            Op::DropCaches => {
                self.close_all()?;
                self.volume.checkpoint()?;
                self.reopen()
            }
            op => Err(Error::Unsupported(format!("{op:?}").into())),
        }
    }

    fn close(&mut self, handle: u32) -> Result<()> {
        match self.open.remove(&handle) {
            Some(ino) => self.volume.release(ino),
            None => Ok(()),
        }
    }

    fn close_all(&mut self) -> Result<()> {
        let handles: Vec<u32> = self.open.keys().copied().collect();
        handles.into_iter().try_for_each(|handle| self.close(handle))
    }

    fn reopen(&mut self) -> Result<()> {
        self.volume = open(&self.device, self.settings, &self.clock)?;
        Ok(())
    }
}

fn open(device: &Arc<dyn Device>, settings: Settings, clock: &StepClock) -> Result<Volume> {
    let clock = clock.clone();
    let options = Options {
        cache_bytes: settings.cache_bytes,
        active_logs: settings.active_logs,
        in_place: settings.in_place,
        inline_data: settings.inline,
        inline_dentry: settings.inline,
        inline_xattr: settings.inline,
        discard: settings.discard,
        ..Options::new(move || clock.now())
    };
    let volume = Volume::open(device.clone(), options)?;
    match volume.read_only_reason() {
        Some(reason) => Err(Error::ReadOnly(reason.to_owned().into())),
        None => Ok(volume),
    }
}

/// The inode at a path. Links are not followed.
pub fn find(volume: &Volume, path: &[u8]) -> Result<Ino> {
    let mut at = volume.superblock().root_ino;
    for name in components(path) {
        at = volume.lookup(at, name)?;
    }
    Ok(at)
}

fn parent<'a>(volume: &Volume, path: &'a [u8]) -> Result<(Ino, &'a [u8])> {
    let mut names: Vec<&[u8]> = components(path).collect();
    let last = names.pop().ok_or(Error::Exists)?;
    let mut at = volume.superblock().root_ino;
    for name in names {
        at = volume.lookup(at, name)?;
    }
    Ok((at, last))
}

fn make(volume: &mut Volume, path: &[u8], mode: u32, device: Option<DeviceNumber>) -> Result<Ino> {
    let (dir, name) = parent(volume, path)?;
    volume.create(dir, name, &NewNode { device, ..NewNode::new(mode as u16) })
}

fn rename(volume: &mut Volume, from: &[u8], to: &[u8], mode: RenameMode) -> Result<()> {
    let ((from_dir, from), (to_dir, to)) = (parent(volume, from)?, parent(volume, to)?);
    volume.rename(from_dir, from, to_dir, to, mode)
}

/// The number that a program sees for an error; `None` for errors that no correct volume gives.
pub fn errno(error: &Error) -> Option<Errno> {
    Some(match error {
        Error::NoSpace { .. } | Error::NoInodes => Errno::NOSPC,
        Error::Quota => Errno::DQUOT,
        Error::Invalid(_) => Errno::INVAL,
        Error::NotFound => Errno::NOENT,
        Error::NoAttribute => Errno::NODATA,
        Error::Exists => Errno::EXIST,
        Error::NotDirectory => Errno::NOTDIR,
        Error::IsDirectory => Errno::ISDIR,
        Error::NotEmpty => Errno::NOTEMPTY,
        Error::NameTooLong => Errno::NAMETOOLONG,
        Error::FileTooLarge => Errno::FBIG,
        Error::TooManyLinks => Errno::MLINK,
        Error::NotPermitted => Errno::PERM,
        _ => return None,
    })
}

/// What a volume can hold, found out on a file that is made for it and removed again.
pub fn rules(engine: &mut Engine) -> anyhow::Result<crate::model::Rules> {
    const PROBE: &[u8] = b"probe";
    let volume = &mut engine.volume;
    let root = volume.superblock().root_ino;
    let ino = volume.create(root, PROBE, &NewNode::new(0o100_600)).context("a first file")?;
    let block = volume.superblock().block_size.bytes();
    let node = volume.inode(ino)?;
    let rules = crate::model::Rules {
        block_bytes: block as u64,
        file_bytes_max: node.layout().reach_blocks() * block as u64,
        xattr_bytes_max: node.inline_xattrs().len() + block - f2fs::format::block_size::NODE_FOOTER_BYTES,
    };
    drop(node);
    volume.unlink(root, PROBE)?;
    Ok(rules)
}
