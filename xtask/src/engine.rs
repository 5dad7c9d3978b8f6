//! Our own engine, beside the guest: it makes volumes, and does the guest's operations on them.

use std::{path::Path, sync::Arc};

use anyhow::Context;
use block::{Concat, Device, FileDevice, OpenOptions};
use f2fs::{
    Error, Result, Volume,
    format::{
        FileType,
        inode::{DeviceNumber, flag},
    },
    mkfs::{self, DeviceSize, NewVolume, Plan},
    units::{Ino, Time},
    volume::{NewNode, Options, RenameMode, SetAttr, XattrMode, device_bytes},
};
use guest::{Bytes, Op, op::Allocate};

/// A time that stands still, so that runs repeat.
const NOW: Time = Time { seconds: 1_700_000_000, nanoseconds: 123_456_789 };

/// Begins a volume in a new file of `mib` MiB.
pub fn begin(path: &Path, mib: u64, options: &mkfs::Options) -> anyhow::Result<NewVolume> {
    let device: Arc<dyn Device> = Arc::new(FileDevice::create(path, mib << 20)?);
    let size = DeviceSize { path: String::new(), bytes: device.geometry().size_bytes };
    let plan = Plan::new(options, &[size])?;
    Ok(NewVolume::begin(device, &plan, true, Options::new(|| NOW))?)
}

/// Begins a volume on several new files, each with the path that the superblock has for it and its MiB.
pub fn begin_on(files: &[(&Path, &str, u64)], options: &mkfs::Options) -> anyhow::Result<NewVolume> {
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    for (path, _, mib) in files {
        devices.push(Arc::new(FileDevice::create(path, mib << 20)?));
    }
    let sizes = files.iter().map(|(_, name, mib)| DeviceSize { path: (*name).into(), bytes: mib << 20 });
    let plan = Plan::new(options, &sizes.collect::<Vec<_>>())?;
    let parts = devices.into_iter().zip(device_bytes(&plan.superblock));
    let device = Arc::new(Concat::new(parts.collect())?);
    Ok(NewVolume::begin(device, &plan, true, Options::new(|| NOW))?)
}

/// Opens a volume in one file for writing.
pub fn open(path: &Path) -> anyhow::Result<Volume> {
    let device = FileDevice::open(path, OpenOptions { write: true, direct: false })?;
    Volume::open(Arc::new(device), Options::new(|| NOW)).with_context(|| path.display().to_string())
}

/// Opens a volume in one file for reading.
pub fn open_read_only(path: &Path) -> anyhow::Result<Volume> {
    let device = FileDevice::open(path, OpenOptions::default())?;
    Volume::open(Arc::new(device), Options::read_only()).with_context(|| path.display().to_string())
}

/// Does `op` on `volume`, whose root is where the operation's absolute paths begin.
///
/// # Errors
/// Those of the volume; [`Error::Unsupported`] for what only a kernel does.
pub fn perform(volume: &mut Volume, op: &Op) -> Result<()> {
    let unsupported = || Err(Error::Unsupported(format!("{op:?}").into()));
    match op {
        Op::Mkdir { path, mode } => {
            let new = NewNode::new(FileType::Directory.mode_bits() | *mode as u16);
            create(volume, path, &new).map(drop)
        }
        Op::Rmdir { path } => {
            let (dir, name) = parent(volume, path)?;
            volume.remove_dir(dir, name)
        }
        Op::Write { path, offset, content } => {
            let ino = match volume.resolve(&path.0, true) {
                // What the guest's agent asks for, whose umask is 0.
                Err(Error::NotFound) => create(volume, path, &NewNode::new(0o100_666))?,
                found => found?,
            };
            volume.write(ino, *offset, &content.to_vec())
        }
        Op::Truncate { path, size } => {
            let ino = volume.resolve(&path.0, true)?;
            volume.truncate(ino, *size)
        }
        Op::Allocate { path, how, offset, length } => {
            let ino = volume.resolve(&path.0, true)?;
            match how {
                Allocate::Extend => volume.allocate_range(ino, *offset, *length, false),
                Allocate::KeepSize => volume.allocate_range(ino, *offset, *length, true),
                Allocate::Punch => volume.punch_hole(ino, *offset, *length),
                Allocate::Zero | Allocate::Collapse | Allocate::Insert => unsupported(),
            }
        }
        Op::Rename { from, to } => rename(volume, from, to, RenameMode::Replace),
        Op::Exchange { from, to } => rename(volume, from, to, RenameMode::Exchange),
        Op::Link { from, to } => {
            let ino = volume.resolve(&from.0, false)?;
            let (dir, name) = parent(volume, to)?;
            volume.link(ino, dir, name)
        }
        Op::Symlink { target, path } => {
            let (dir, name) = parent(volume, path)?;
            volume.symlink(dir, name, &target.0, &NewNode::new(0o120_777)).map(drop)
        }
        Op::Unlink { path } => {
            let (dir, name) = parent(volume, path)?;
            volume.unlink(dir, name)
        }
        Op::Mknod { path, mode, major, minor } => {
            let mut new = NewNode::new(*mode as u16);
            if matches!(FileType::from_mode(new.mode), Some(FileType::CharDevice | FileType::BlockDevice)) {
                new.device = Some(DeviceNumber { major: *major, minor: *minor });
            }
            create(volume, path, &new).map(drop)
        }
        Op::SetXattr { path, name, value } => {
            let ino = volume.resolve(&path.0, false)?;
            volume.set_xattr(ino, &name.0, &value.to_vec(), XattrMode::Set)
        }
        Op::RemoveXattr { path, name } => {
            let ino = volume.resolve(&path.0, false)?;
            volume.remove_xattr(ino, &name.0)
        }
        Op::Chmod { path, mode } => change(volume, path, |set, _| set.permissions = Some(*mode as u16)),
        Op::Chown { path, uid, gid } => {
            change(volume, path, |set, _| (set.uid, set.gid) = (Some(*uid), Some(*gid)))
        }
        Op::Times { path, atime, mtime } => {
            let time = |t: &(i64, u32)| Some(Time { seconds: t.0, nanoseconds: t.1 });
            change(volume, path, |set, _| (set.atime, set.mtime) = (time(atime), time(mtime)))
        }
        Op::Flags { path, set: more, clear } => {
            change(volume, path, |set, flags| set.flags = Some((flags | more) & !clear))
        }
        Op::Project { path, id, inherit } => change(volume, path, |set, flags| {
            set.project = Some(*id);
            set.flags = inherit.then_some(flags | flag::PROJECT_INHERIT);
        }),
        Op::Fsync { path, data_only } => {
            let ino = volume.resolve(&path.0, false)?;
            volume.fsync(ino, *data_only)
        }
        Op::Sync | Op::Checkpoint { .. } => volume.checkpoint(),
        _ => unsupported(),
    }
}

/// Does all of `ops` that the engine can do, and says how many it cannot.
///
/// # Errors
/// The first operation that fails otherwise.
pub fn perform_all(volume: &mut Volume, ops: &[Op]) -> anyhow::Result<usize> {
    let mut skipped = 0;
    for op in ops {
        match perform(volume, op) {
            Ok(()) => {}
            Err(Error::Unsupported(_)) => skipped += 1,
            Err(error) => anyhow::bail!("{op:?}: {error}"),
        }
    }
    Ok(skipped)
}

/// The directory of a path, and the name in it.
fn parent<'a>(volume: &Volume, path: &'a Bytes) -> Result<(Ino, &'a [u8])> {
    let slash = path.0.iter().rposition(|&byte| byte == b'/');
    let (dir, name) = slash.map_or((&[][..], &path.0[..]), |at| (&path.0[..at], &path.0[at + 1..]));
    Ok((volume.resolve(dir, true)?, name))
}

fn create(volume: &mut Volume, path: &Bytes, new: &NewNode) -> Result<Ino> {
    let (dir, name) = parent(volume, path)?;
    volume.create(dir, name, new)
}

fn rename(volume: &mut Volume, from: &Bytes, to: &Bytes, mode: RenameMode) -> Result<()> {
    let ((from_dir, from), (to_dir, to)) = (parent(volume, from)?, parent(volume, to)?);
    volume.rename(from_dir, from, to_dir, to, mode)
}

/// Changes attributes of the inode at a path, a symbolic link's too; `choose` is told the flags it has.
fn change(volume: &mut Volume, path: &Bytes, choose: impl FnOnce(&mut SetAttr, u32)) -> Result<()> {
    let ino = volume.resolve(&path.0, false)?;
    let mut set = SetAttr::default();
    choose(&mut set, volume.stat(ino)?.flags);
    volume.set_attr(ino, &set)
}
