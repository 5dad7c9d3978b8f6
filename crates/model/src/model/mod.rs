//! A file system that is as simple as possible: maps in memory, without a device.
//!
//! *Invariant*: a refused operation has no effect, with one exception. A write to a missing file that is
//! refused for its size leaves the file, as open(2) and then write(2) do.

mod content;
mod inode;
mod names;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use f2fs::{
    engine::{Engine, Stat},
    format::{FileType, NAME_MAX, casefold::fold, inode::flag},
    units::Time,
};
use guest::Op;
use rustix::io::Errno;

pub use self::inode::{Body, Data, Dir, Inode};
use self::names::Rename;

/// Limits of a volume that are visible to a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Maximum size of a file in bytes.
    pub file_bytes_max: u64,
    /// Maximum size of a compressed file in bytes. Its nodes hold whole clusters.
    pub compressed_bytes_max: u64,
    /// Maximum size of all attributes of an inode in stored form, in bytes.
    pub xattr_bytes_max: usize,
    /// Bytes of these that the encryption context of a file takes, 0 if nothing is encrypted.
    pub context_bytes: usize,
}

impl Rules {
    /// Returns true if everything is encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.context_bytes > 0
    }
}

/// Number of an inode in the model; the volume has its own.
pub type Id = u64;

/// The root directory.
pub const ROOT: Id = 1;

/// Default log2 of the blocks of a compressed file's cluster.
const CLUSTER_LOG: u32 = 2;
/// Maximum number of symbolic links followed to an inode (Linux, `MAXSYMLINKS`).
const FOLLOW_MAX: u32 = 40;

/// The model.
#[derive(Debug, Clone)]
pub struct Model {
    rules: Rules,
    inodes: BTreeMap<Id, Arc<Inode>>,
    next: Id,
    open: HashMap<u32, Id>,
}

type Result<T = (), E = Errno> = std::result::Result<T, E>;

/// The rule for a symlink at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastLink {
    Follow,
    NoFollow,
}

impl Model {
    /// Makes an empty file system whose root was created at `time`.
    pub fn new(rules: Rules, time: Time) -> Model {
        let dir = Body::Dir(Dir { parent: ROOT, names: BTreeMap::new() });
        let root = Inode { links: 2, ..Inode::new(0o040_755, 0, time, dir) };
        Model { rules, inodes: [(ROOT, Arc::new(root))].into(), next: ROOT + 1, open: HashMap::new() }
    }

    /// Makes a model of a volume: the tree with its attributes, and for files the sizes and the ranges with
    /// data, but not the contents.
    ///
    /// # Errors
    /// Those of reading the volume.
    pub fn of_volume(volume: &Engine, rules: Rules) -> f2fs::Result<Model> {
        let mut model = Model::new(rules, Time::default());
        let mut ids = HashMap::from([(volume.superblock().root_ino, ROOT)]);
        let mut pending = vec![(volume.superblock().root_ino, ROOT)];
        model.imitate(ROOT, &volume.stat(volume.superblock().root_ino)?);
        model.change(ROOT).xattrs = volume.xattrs(volume.superblock().root_ino)?.into_iter().collect();
        while let Some((dir_ino, dir)) = pending.pop() {
            for entry in volume.entries(dir_ino, 0)? {
                let entry = entry?;
                if entry.name == b"." || entry.name == b".." {
                    continue;
                }
                let id = match ids.get(&entry.ino) {
                    Some(id) => *id,
                    None => {
                        let stat = volume.stat(entry.ino)?;
                        let body = body_of(volume, &stat, dir, rules)?;
                        let id = model.next;
                        model.next += 1;
                        ids.insert(entry.ino, id);
                        if stat.kind == FileType::Directory {
                            pending.push((entry.ino, id));
                        }
                        let mut inode = Inode::new(0, 0, Time::default(), body);
                        inode.xattrs = volume.xattrs(entry.ino)?.into_iter().collect();
                        model.inodes.insert(id, Arc::new(inode));
                        model.imitate(id, &stat);
                        id
                    }
                };
                let key = model.key(dir, &entry.name);
                let Body::Dir(names) = &mut model.change(dir).body else { unreachable!("it has entries") };
                names.names.insert(key, (entry.name, id));
            }
        }
        Ok(model)
    }

    /// Returns the limits of the volume.
    pub fn rules(&self) -> Rules {
        self.rules
    }

    /// Returns all inodes.
    pub fn inodes(&self) -> impl Iterator<Item = (Id, &Inode)> {
        self.inodes.iter().map(|(id, inode)| (*id, &**inode))
    }

    /// Returns an inode.
    pub fn inode(&self, id: Id) -> &Inode {
        &self.inodes[&id]
    }

    /// Gives an inode its attributes on a volume.
    pub fn imitate(&mut self, id: Id, stat: &Stat) {
        let inode = self.change(id);
        (inode.mode, inode.uid, inode.gid) = (stat.mode.into(), stat.uid, stat.gid);
        (inode.links, inode.flags) = (stat.links, stat.flags);
        (inode.atime, inode.mtime, inode.ctime) = (stat.atime, stat.mtime, stat.ctime);
        inode.crtime = stat.crtime.unwrap_or(stat.ctime);
    }

    /// Returns the number of inodes.
    pub fn count(&self) -> usize {
        self.inodes.len()
    }

    /// Returns the approximate number of blocks of all contents.
    pub fn data_blocks(&self) -> u64 {
        self.inodes().map(|(_, inode)| inode.data().map_or(1, |data| 1 + data.blocks.len() as u64)).sum()
    }

    /// Returns the open files by handle.
    pub fn open_files(&self) -> &HashMap<u32, Id> {
        &self.open
    }

    /// Returns the model after all files were closed.
    pub fn at_rest(&self) -> Model {
        let mut rest = self.clone();
        let handles: Vec<u32> = rest.open.keys().copied().collect();
        handles.into_iter().for_each(|handle| rest.close(handle));
        rest
    }

    /// Returns one name of an inode: the directory and the name.
    pub fn name_of(&self, id: Id) -> Option<(Id, Vec<u8>)> {
        self.inodes().find_map(|(dir, inode)| match &inode.body {
            Body::Dir(names) => {
                let entry = names.names.values().find(|(_, child)| *child == id)?;
                Some((dir, entry.0.clone()))
            }
            _ => None,
        })
    }

    /// Restores a file to its state at its fsync. If it has no name now, restores its name of that time;
    /// another file with that name loses it. Returns the inodes whose times change.
    pub fn bring_back(&mut self, id: Id, file: &Inode, name: &(Id, Vec<u8>)) -> Vec<Id> {
        let links = self.inodes.get(&id).map_or(1, |inode| inode.links);
        let is_new = self.inodes.insert(id, Arc::new(Inode { links, ..file.clone() })).is_none();
        let (dir, name) = (name.0, &name.1);
        if !is_new || !self.inodes.contains_key(&dir) {
            return Vec::new();
        }
        let now = self.inodes[&dir].mtime;
        let mut changed = vec![dir];
        if let Ok(Some(victim)) = self.lookup(dir, name) {
            self.leave(dir, name, now);
            self.drop_link(victim, now);
            // It may have other names.
            changed.push(victim);
        }
        self.enter(dir, name, id, now);
        changed
    }

    /// Applies an operation at a time. Operations that do not reach a file system have no effect.
    pub fn apply(&mut self, op: &Op, now: Time) -> Result {
        match op {
            Op::Mkdir { path, mode } => self.make_dir(&path.0, *mode, now),
            Op::Rmdir { path } => self.rmdir(&path.0, now),
            Op::Write { path, offset, content } => {
                let id = self.find_or_make(&path.0, now)?;
                self.write(id, *offset, &content.to_vec(), now)
            }
            Op::Truncate { path, size } => self.truncate(self.find(&path.0)?, *size, now),
            Op::Allocate { path, how, offset, length } => {
                self.allocate(self.find(&path.0)?, *how, *offset, *length, now)
            }
            Op::Rename { from, to } => self.rename(&from.0, &to.0, Rename::Replace, now),
            Op::RenameNew { from, to } => self.rename(&from.0, &to.0, Rename::New, now),
            Op::Exchange { from, to } => self.rename(&from.0, &to.0, Rename::Exchange, now),
            Op::Link { from, to } => self.link(self.find(&from.0)?, &to.0, now),
            Op::Symlink { target, path } => self.make_symlink(&path.0, &target.0, now),
            Op::Unlink { path } => self.unlink(&path.0, now),
            Op::Mknod { path, mode, major, minor } => self.make_node(&path.0, *mode, (*major, *minor), now),
            Op::SetXattr { path, name, value } => self.set_xattr(&path.0, &name.0, value.to_vec(), now),
            Op::RemoveXattr { path, name } => self.remove_xattr(&path.0, &name.0, now),
            Op::Chmod { path, mode } => self.change_at(&path.0, now, |inode| {
                inode.mode = inode.mode & !0o7777 | mode & 0o7777;
            }),
            Op::Chown { path, uid, gid } => self.change_at(&path.0, now, |inode| {
                (inode.uid, inode.gid) = (*uid, *gid);
            }),
            Op::Times { path, atime, mtime } => self.change_at(&path.0, now, |inode| {
                let time = |t: &(i64, u32)| Time { seconds: t.0, nanoseconds: t.1 };
                (inode.atime, inode.mtime) = (time(atime), time(mtime));
            }),
            Op::Flags { path, set, clear } => self.set_flags(&path.0, *set, *clear, now),
            Op::Release { path } => self.release(&path.0, now),
            Op::Reserve { path } => self.reserve(&path.0, now),
            Op::Open { path, handle } => self.open(&path.0, *handle),
            Op::OpenNameless { dir, mode, handle } => self.open_nameless(&dir.0, *mode, *handle, now),
            Op::LinkOpen { handle, to } => self.link(self.opened(*handle)?, &to.0, now),
            Op::WriteOpen { handle, offset, content } => {
                self.write(self.opened(*handle)?, *offset, &content.to_vec(), now)
            }
            Op::FsyncOpen { handle } => self.opened(*handle).map(drop),
            Op::Close { handle } => {
                self.close(*handle);
                Ok(())
            }
            Op::Fsync { path, .. } => self.find(&path.0).map(drop),
            Op::Unmount { .. } | Op::DropCaches => {
                let handles: Vec<u32> = self.open.keys().copied().collect();
                handles.into_iter().for_each(|handle| self.close(handle));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns the open file of a handle.
    fn opened(&self, handle: u32) -> Result<Id> {
        self.open.get(&handle).copied().ok_or(Errno::BADF)
    }

    /// Opens a regular file, in place of the handle's last one.
    fn open(&mut self, path: &[u8], handle: u32) -> Result {
        let id = self.find(path)?;
        self.file(id)?;
        self.close(handle);
        self.open.insert(handle, id);
        Ok(())
    }

    /// Opens a new file without a name.
    fn open_nameless(&mut self, dir: &[u8], mode: u32, handle: u32, now: Time) -> Result {
        let dir = self.resolve(dir, LastLink::Follow)?;
        self.dir(dir)?;
        let body = Body::File(Data::default());
        let id = self.add(dir, 0o100_000 | mode & 0o7777, 0, now, body);
        // Linux checks names for that, even if the directory is compressed.
        self.change(id).flags &= !(flag::COMPRESS | flag::NOCOMPRESS);
        self.close(handle);
        self.open.insert(handle, id);
        Ok(())
    }

    fn remove_xattr(&mut self, path: &[u8], name: &[u8], now: Time) -> Result {
        let id = self.find(path)?;
        let inode = self.change(id);
        inode.xattrs.remove(name).ok_or(Errno::NODATA)?;
        inode.ctime = now;
        Ok(())
    }

    /// Returns the inode at a path. Does not follow a symbolic link at its end.
    pub fn find(&self, path: &[u8]) -> Result<Id> {
        self.resolve(path, LastLink::NoFollow)
    }

    /// Returns the size of the regular file at a path.
    pub fn size_of(&self, path: &[u8]) -> Option<u64> {
        let id = self.find(path).ok()?;
        self.inode(id).data().map(|data| data.size)
    }

    /// Returns true if the inode at a path is compressed, or a directory whose new files become compressed.
    pub fn is_compressed(&self, path: &[u8]) -> bool {
        self.find(path).is_ok_and(|id| self.inode(id).flags & flag::COMPRESS != 0)
    }

    /// Returns true if the path is that of a file with released blocks.
    pub fn is_released(&self, path: &[u8]) -> bool {
        let file = self.find(path).ok().and_then(|id| self.inode(id).data());
        file.is_some_and(|file| file.released)
    }

    /// Returns true if the file at a path is open.
    pub fn is_open(&self, path: &[u8]) -> bool {
        self.find(path).is_ok_and(|id| self.open.values().any(|open| *open == id))
    }

    fn resolve(&self, path: &[u8], last: LastLink) -> Result<Id> {
        let mut at = ROOT;
        let mut rest: Vec<&[u8]> = components(path).rev().collect();
        let mut followed = 0;
        while let Some(name) = rest.pop() {
            let found = self.lookup(at, name)?.ok_or(Errno::NOENT)?;
            match &self.inodes[&found].body {
                Body::Symlink(target) if last == LastLink::Follow || !rest.is_empty() => {
                    followed += 1;
                    if followed > FOLLOW_MAX {
                        return Err(Errno::LOOP);
                    }
                    rest.extend(components(target).rev());
                }
                _ => at = found,
            }
        }
        Ok(at)
    }

    fn lookup(&self, dir: Id, name: &[u8]) -> Result<Option<Id>> {
        let Body::Dir(names) = &self.inodes[&dir].body else { return Err(Errno::NOTDIR) };
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        Ok(names.names.get(&self.key(dir, name)).map(|(_, id)| *id))
    }

    /// Returns the key for comparing names of a directory.
    fn key(&self, dir: Id, name: &[u8]) -> Vec<u8> {
        let folds = self.inodes[&dir].flags & flag::CASEFOLD != 0;
        folds.then(|| fold(name)).flatten().unwrap_or_else(|| name.to_vec())
    }

    /// Returns the directory and the last name of a path.
    fn parent<'a>(&self, path: &'a [u8]) -> Result<(Id, &'a [u8])> {
        let (dir, name) = split_last(path).ok_or(Errno::EXIST)?;
        Ok((self.resolve(dir, LastLink::Follow)?, name))
    }

    fn set_xattr(&mut self, path: &[u8], name: &[u8], value: Vec<u8>, now: Time) -> Result {
        let (mut most, id) = (self.rules.xattr_bytes_max, self.find(path)?);
        if matches!(self.inode(id).body, Body::File(_) | Body::Dir(_) | Body::Symlink(_)) {
            most -= self.rules.context_bytes;
        }
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let inode = self.change(id);
        if inode.xattrs.get(name) == Some(&value) {
            return Ok(());
        }
        let mut next = inode.xattrs.clone();
        next.insert(name.to_vec(), value);
        if stored_bytes(&next) > most {
            return Err(Errno::TOOBIG);
        }
        (inode.xattrs, inode.ctime) = (next, now);
        Ok(())
    }

    fn set_flags(&mut self, path: &[u8], set: u32, clear: u32, now: Time) -> Result {
        let id = self.find(path)?;
        let inode = self.inode(id);
        let flags = (inode.flags | set) & !clear;
        if (flags ^ inode.flags) & flag::CASEFOLD != 0 {
            match &inode.body {
                Body::Dir(dir) if !dir.names.is_empty() => return Err(Errno::NOTEMPTY),
                Body::Dir(_) => {}
                _ => return Err(Errno::PERM),
            }
        }
        let inode = self.change(id);
        (inode.flags, inode.ctime) = (flags, now);
        Ok(())
    }

    fn close(&mut self, handle: u32) {
        if let Some(id) = self.open.remove(&handle) {
            self.drop_unused(id);
        }
    }

    fn drop_unused(&mut self, id: Id) {
        if self.inodes[&id].links == 0 && !self.open.values().any(|open| *open == id) {
            self.inodes.remove(&id);
        }
    }

    /// Changes attributes of the inode at a path.
    fn change_at(&mut self, path: &[u8], now: Time, change: impl FnOnce(&mut Inode)) -> Result {
        let inode = self.change(self.find(path)?);
        change(inode);
        inode.ctime = now;
        Ok(())
    }

    fn change(&mut self, id: Id) -> &mut Inode {
        Arc::make_mut(self.inodes.get_mut(&id).expect("the inode exists"))
    }

    fn dir(&self, id: Id) -> Result<&Dir> {
        match &self.inodes[&id].body {
            Body::Dir(dir) => Ok(dir),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn file(&self, id: Id) -> Result<&Data> {
        match &self.inodes[&id].body {
            Body::File(data) => Ok(data),
            Body::Dir(_) => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }
}

fn body_of(volume: &Engine, stat: &Stat, dir: Id, rules: Rules) -> f2fs::Result<Body> {
    Ok(match stat.kind {
        FileType::Directory => Body::Dir(Dir { parent: dir, names: BTreeMap::new() }),
        FileType::Symlink => Body::Symlink(volume.read_link(stat.ino)?),
        FileType::Regular => {
            let mut data = Data { size: stat.size, blocks: BTreeMap::new(), released: stat.released };
            let mut at = 0;
            while let Some(extent) = volume.next_extent(stat.ino, at)? {
                at = extent.offset + extent.length;
                data.reserve(rules.block_bytes, extent.offset, at);
            }
            Body::File(data)
        }
        _ => stat.device.map_or(Body::Special(0, 0), |device| Body::Special(device.major, device.minor)),
    })
}

/// Returns the names of a path, first to last.
pub fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
}

/// Splits a path into its directory and its last name; `None` for the root.
pub fn split_last(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.iter().rposition(|byte| *byte != b'/')? + 1;
    let start = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    Some((&path[..start], &path[start..end]))
}

/// Returns the size of attributes as F2FS stores them: a header, then each attribute with four bytes before
/// it and padded to four, then a word of zeroes.
fn stored_bytes(xattrs: &BTreeMap<Vec<u8>, Vec<u8>>) -> usize {
    let short =
        |name: &[u8]| name.iter().position(|byte| *byte == b'.').map_or(0, |dot| name.len() - dot - 1);
    let each = xattrs.iter().map(|(name, value)| (4 + short(name) + value.len()).next_multiple_of(4));
    24 + each.sum::<usize>() + 4
}
