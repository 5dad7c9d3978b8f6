//! The engine behind the vocabulary: operations on paths become calls of [`Engine`].

use f2fs::{
    EncryptionPolicy, Error, Key, KeyError, KeyName, Result,
    engine::{
        Caller, Engine, FileSize, FinalSymlink, NewNode, Policy, RenameMode, SetAttr, SyncScope, XattrMode,
    },
    format::{
        FileType,
        inode::{Algorithm, DeviceNumber, flag},
    },
    units::{Ino, Time},
};
use guest::{Bytes, Op, op::Allocate};

use crate::model::split_last;

/// Applies `op` to `volume`. The operation's absolute paths begin at the volume's root.
///
/// # Errors
/// Those of the volume; [`Error::Unsupported`] for operations that only a kernel has.
pub fn perform(volume: &mut Engine, op: &Op) -> Result<()> {
    match op {
        Op::Mkdir { path, mode } => {
            let new = NewNode::new(FileType::Directory.mode_bits() | (mode & 0o7777) as u16);
            create(volume, path, &new).map(drop)
        }
        Op::Rmdir { path } => {
            let (dir, name) = parent(volume, path)?;
            volume.begin(Caller::ADMIN).remove_dir(dir, name)
        }
        Op::Rename { from, to } => rename(volume, from, to, RenameMode::Replace),
        Op::RenameNew { from, to } => rename(volume, from, to, RenameMode::NoReplace),
        Op::Exchange { from, to } => rename(volume, from, to, RenameMode::Exchange),
        Op::Link { from, to } => {
            let ino = volume.resolve(&from.0, FinalSymlink::NoFollow)?;
            let (dir, name) = parent(volume, to)?;
            volume.begin(Caller::ADMIN).link(ino, dir, name)
        }
        Op::Symlink { target, path } => {
            let (dir, name) = parent(volume, path)?;
            volume.begin(Caller::ADMIN).symlink(dir, name, &target.0, &NewNode::new(0o120_777)).map(drop)
        }
        Op::Unlink { path } => {
            let (dir, name) = parent(volume, path)?;
            volume.begin(Caller::ADMIN).unlink(dir, name)
        }
        Op::Mknod { path, mode, major, minor } => {
            let mut new = NewNode::new(*mode as u16);
            if matches!(FileType::from_mode(new.mode), Some(FileType::CharDevice | FileType::BlockDevice)) {
                new.device = Some(DeviceNumber { major: *major, minor: *minor });
            }
            create(volume, path, &new).map(drop)
        }
        Op::Encrypt { dir, byte, policy } => encrypt(volume, dir, *byte, policy),
        Op::Collect { .. } => volume.clean(1, Policy::Greedy).map(drop),
        Op::Sync | Op::Checkpoint { .. } => volume.checkpoint(),
        _ => change_content(volume, op),
    }
}

/// Adds a key of the guest, and sets a policy with it on an empty directory.
fn encrypt(volume: &mut Engine, dir: &Bytes, byte: u8, policy: &guest::op::Policy) -> Result<()> {
    let unusable = |error: KeyError| Error::Invalid(error.to_string().into());
    let key = Key::new(&policy.key(byte)).map_err(unusable)?;
    let (name, key) = match policy.descriptor {
        Some(descriptor) => (KeyName::Descriptor(descriptor), key.with_descriptor(descriptor)),
        None => (KeyName::Identifier(key.identifier()), key),
    };
    if !volume.has_key(&name) {
        volume.add_key(key);
    }
    let policy = EncryptionPolicy::from_program(&policy.argument(&name_bytes(&name))).map_err(unusable)?;
    let dir = volume.resolve(&dir.0, FinalSymlink::Follow)?;
    volume.begin(Caller::ADMIN).set_encryption_policy(dir, &policy)
}

fn name_bytes(name: &KeyName) -> Vec<u8> {
    match name {
        KeyName::Descriptor(name) => name.to_vec(),
        KeyName::Identifier(name) => name.to_vec(),
    }
}

/// Applies operations on the content of files; the others go to [`change_attributes`].
fn change_content(volume: &mut Engine, op: &Op) -> Result<()> {
    match op {
        Op::Write { path, offset, content } => {
            let ino = match volume.resolve(&path.0, FinalSymlink::Follow) {
                // The mode that the guest's agent uses, with a umask of 0.
                Err(Error::NotFound) => create(volume, path, &NewNode::new(0o100_666))?,
                found => found?,
            };
            volume.begin(Caller::ADMIN).write(ino, *offset, &content.to_vec())
        }
        Op::Truncate { path, size } => {
            let ino = volume.resolve(&path.0, FinalSymlink::Follow)?;
            volume.begin(Caller::ADMIN).truncate(ino, *size)
        }
        Op::Allocate { path, how, offset, length } => {
            let ino = volume.resolve(&path.0, FinalSymlink::Follow)?;
            let change = volume.begin(Caller::ADMIN);
            match how {
                Allocate::Extend => change.allocate_range(ino, *offset, *length, FileSize::Grows),
                Allocate::KeepSize => change.allocate_range(ino, *offset, *length, FileSize::Stays),
                Allocate::Punch => change.punch_hole(ino, *offset, *length),
                Allocate::Zero => change.zero_range(ino, *offset, *length, FileSize::Grows),
                Allocate::Collapse => change.collapse_range(ino, *offset, *length),
                Allocate::Insert => change.insert_range(ino, *offset, *length),
            }
        }
        Op::Fsync { path, data_only } => {
            let ino = volume.resolve(&path.0, FinalSymlink::NoFollow)?;
            volume.fsync(ino, if *data_only { SyncScope::Data } else { SyncScope::Everything })
        }
        Op::Compression { path, algorithm, log_cluster } => {
            let ino = volume.resolve(&path.0, FinalSymlink::NoFollow)?;
            let algorithm = Algorithm::from_code(*algorithm)
                .ok_or_else(|| Error::Invalid(format!("algorithm {algorithm}").into()))?;
            volume.begin(Caller::ADMIN).choose_compression(ino, algorithm, *log_cluster)
        }
        Op::Release { path } => {
            let ino = volume.resolve(&path.0, FinalSymlink::NoFollow)?;
            volume.begin(Caller::ADMIN).release_saved(ino).map(drop)
        }
        Op::Reserve { path } => {
            let ino = volume.resolve(&path.0, FinalSymlink::NoFollow)?;
            volume.begin(Caller::ADMIN).reserve_saved(ino).map(drop)
        }
        _ => change_attributes(volume, op),
    }
}

/// Applies operations on attributes, and refuses those that only a kernel has.
fn change_attributes(volume: &mut Engine, op: &Op) -> Result<()> {
    match op {
        Op::SetXattr { path, name, value } => {
            let ino = volume.resolve(&path.0, FinalSymlink::NoFollow)?;
            volume.begin(Caller::ADMIN).set_xattr(ino, &name.0, &value.to_vec(), XattrMode::Set)
        }
        Op::RemoveXattr { path, name } => {
            let ino = volume.resolve(&path.0, FinalSymlink::NoFollow)?;
            volume.begin(Caller::ADMIN).remove_xattr(ino, &name.0)
        }
        Op::Chmod { path, mode } => {
            change(volume, path, |set, _| set.permissions = Some((mode & 0o7777) as u16))
        }
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
        _ => Err(Error::Unsupported(format!("{op:?}").into())),
    }
}

/// Returns the directory of a path, and the name in it.
pub(crate) fn parent<'a>(volume: &Engine, path: &'a Bytes) -> Result<(Ino, &'a [u8])> {
    let (dir, name) = split_last(&path.0).ok_or(Error::Exists)?;
    Ok((volume.resolve(dir, FinalSymlink::Follow)?, name))
}

fn create(volume: &mut Engine, path: &Bytes, new: &NewNode) -> Result<Ino> {
    let (dir, name) = parent(volume, path)?;
    volume.begin(Caller::ADMIN).create(dir, name, new)
}

fn rename(volume: &mut Engine, from: &Bytes, to: &Bytes, mode: RenameMode) -> Result<()> {
    let ((from_dir, from), (to_dir, to)) = (parent(volume, from)?, parent(volume, to)?);
    volume.begin(Caller::ADMIN).rename(from_dir, from, to_dir, to, mode)
}

/// Changes attributes of the inode at a path, even of a symbolic link. `choose` gets the inode's flags.
fn change(volume: &mut Engine, path: &Bytes, choose: impl FnOnce(&mut SetAttr, u32)) -> Result<()> {
    let ino = volume.resolve(&path.0, FinalSymlink::NoFollow)?;
    let mut set = SetAttr::default();
    choose(&mut set, volume.stat(ino)?.flags);
    volume.begin(Caller::ADMIN).set_attr(ino, &set)
}
