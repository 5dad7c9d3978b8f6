//! A file system that is as simple as one can be: everything in maps, nothing on a device.
//!
//! *Invariant*: an operation that is refused changes nothing, except that a write to a missing file which is
//! refused for its size leaves the file, as open(2) and then write(2) do.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use f2fs::{
    Volume,
    format::{FileType, NAME_MAX, casefold::fold, inode::flag},
    units::Time,
    volume::Stat,
};
use guest::{Op, op::Allocate};
use rustix::io::Errno;

/// What a volume can hold, as far as a program notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Bytes that a file can have.
    pub file_bytes_max: u64,
    /// Bytes that a compressed file can have: its nodes hold whole clusters.
    pub compressed_bytes_max: u64,
    /// Bytes that all attributes of an inode can take as they are stored.
    pub xattr_bytes_max: usize,
}

/// Number of an inode in the model; the volume has its own.
pub type Id = u64;

/// The root directory.
pub const ROOT: Id = 1;

/// log2 of the blocks that a cluster of a compressed file has, unless told otherwise.
const CLUSTER_LOG: u32 = 2;
/// Symbolic links on the way to an inode, at most (Linux, `MAXSYMLINKS`).
const FOLLOW_MAX: u32 = 40;

/// The model.
#[derive(Debug, Clone)]
pub struct Model {
    rules: Rules,
    inodes: BTreeMap<Id, Arc<Inode>>,
    next: Id,
    open: HashMap<u32, Id>,
}

/// An inode of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// Kind and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names; of a directory also its own dot and its children's.
    pub links: u32,
    /// Flags that a program has set, and those that it took over from its directory.
    pub flags: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Creation.
    pub crtime: Time,
    /// Extended attributes by their full names.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What it holds.
    pub body: Body,
}

/// What an inode holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// A regular file.
    File(Data),
    /// A directory.
    Dir(Dir),
    /// A symbolic link.
    Symlink(Vec<u8>),
    /// A device, FIFO or socket, with its number.
    Special(u32, u32),
}

/// Names in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dir {
    /// The directory above.
    pub parent: Id,
    /// Under the name's key (folded, where case does not count): the name and the inode.
    pub names: BTreeMap<Vec<u8>, (Vec<u8>, Id)>,
}

/// Content of a regular file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Data {
    /// Size in bytes.
    pub size: u64,
    /// Blocks that were written or reserved; all others are holes.
    pub blocks: BTreeMap<u64, Arc<Vec<u8>>>,
    /// What compression saves has been given back: the content cannot change.
    pub released: bool,
}

type Result<T = (), E = Errno> = std::result::Result<T, E>;

impl Model {
    /// An empty file system whose root was made at `time`.
    pub fn new(rules: Rules, time: Time) -> Model {
        let dir = Body::Dir(Dir { parent: ROOT, names: BTreeMap::new() });
        let root = Inode { links: 2, ..Inode::new(0o040_755, 0, time, dir) };
        Model { rules, inodes: [(ROOT, Arc::new(root))].into(), next: ROOT + 1, open: HashMap::new() }
    }

    /// What is on a volume: the tree with its attributes, and of files the sizes and the places that have data, but
    /// not the contents.
    ///
    /// # Errors
    /// Those of reading the volume.
    pub fn of_volume(volume: &Volume, rules: Rules) -> f2fs::Result<Model> {
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

    /// What holds for the volume.
    pub fn rules(&self) -> Rules {
        self.rules
    }

    /// All inodes.
    pub fn inodes(&self) -> impl Iterator<Item = (Id, &Inode)> {
        self.inodes.iter().map(|(id, inode)| (*id, &**inode))
    }

    /// An inode.
    pub fn inode(&self, id: Id) -> &Inode {
        &self.inodes[&id]
    }

    /// Makes what an inode says of itself what it says on a volume.
    pub fn imitate(&mut self, id: Id, stat: &Stat) {
        let inode = self.change(id);
        (inode.mode, inode.uid, inode.gid) = (stat.mode.into(), stat.uid, stat.gid);
        (inode.links, inode.flags) = (stat.links, stat.flags);
        (inode.atime, inode.mtime, inode.ctime) = (stat.atime, stat.mtime, stat.ctime);
        inode.crtime = stat.crtime.unwrap_or(stat.ctime);
    }

    /// Count of inodes.
    pub fn count(&self) -> usize {
        self.inodes.len()
    }

    /// Blocks that contents take, about.
    pub fn data_blocks(&self) -> u64 {
        self.inodes().map(|(_, inode)| inode.data().map_or(1, |data| 1 + data.blocks.len() as u64)).sum()
    }

    /// Files that are open, by handle.
    pub fn open_files(&self) -> &HashMap<u32, Id> {
        &self.open
    }

    /// The model as it is when nobody has a file open any more.
    pub fn at_rest(&self) -> Model {
        let mut rest = self.clone();
        let handles: Vec<u32> = rest.open.keys().copied().collect();
        handles.into_iter().for_each(|handle| rest.close(handle));
        rest
    }

    /// A place that an inode has a name at: the directory and the name.
    pub fn name_of(&self, id: Id) -> Option<(Id, Vec<u8>)> {
        self.inodes().find_map(|(dir, inode)| match &inode.body {
            Body::Dir(names) => {
                let entry = names.names.values().find(|(_, child)| *child == id)?;
                Some((dir, entry.0.clone()))
            }
            _ => None,
        })
    }

    /// Makes a file what it was when it was fsynced, under the name that it had then if it has none; what has that
    /// name loses it. Says of which inodes that changes the times.
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

    /// Does an operation at a time. Those that a file system does not see do nothing.
    pub fn apply(&mut self, op: &Op, now: Time) -> Result {
        match op {
            Op::Mkdir { path, mode } => {
                let body = |parent| Body::Dir(Dir { parent, names: BTreeMap::new() });
                self.make(&path.0, 0o040_000 | mode & 0o7777, now, body).map(drop)
            }
            Op::Rmdir { path } => self.rmdir(&path.0, now),
            Op::Write { path, offset, content } => {
                let id = match self.find(&path.0) {
                    Err(Errno::NOENT) => {
                        self.make(&path.0, 0o100_666, now, |_| Body::File(Data::default()))?
                    }
                    found => found?,
                };
                self.write(id, *offset, &content.to_vec(), now)
            }
            Op::Truncate { path, size } => {
                let id = self.find(&path.0)?;
                self.truncate(id, *size, now)
            }
            Op::Allocate { path, how, offset, length } => {
                let id = self.find(&path.0)?;
                self.allocate(id, *how, *offset, *length, now)
            }
            Op::Rename { from, to } => self.rename(&from.0, &to.0, Rename::Replace, now),
            Op::RenameNew { from, to } => self.rename(&from.0, &to.0, Rename::New, now),
            Op::Exchange { from, to } => self.rename(&from.0, &to.0, Rename::Exchange, now),
            Op::Link { from, to } => {
                let id = self.find(&from.0)?;
                self.link(id, &to.0, now)
            }
            Op::Symlink { target, path } => {
                if target.0.len() as u64 >= self.rules.block_bytes.min(4096) {
                    return Err(Errno::NAMETOOLONG);
                }
                let body = Body::Symlink(target.0.clone());
                self.make(&path.0, 0o120_777, now, |_| body).map(drop)
            }
            Op::Unlink { path } => self.unlink(&path.0, now),
            Op::Mknod { path, mode, major, minor } => {
                let is_device = matches!(mode & 0o170_000, 0o020_000 | 0o060_000);
                let body = match mode & 0o170_000 {
                    0o100_000 => Body::File(Data::default()),
                    _ if is_device => Body::Special(*major, *minor),
                    _ => Body::Special(0, 0),
                };
                self.make(&path.0, *mode, now, |_| body).map(drop)
            }
            Op::SetXattr { path, name, value } => self.set_xattr(&path.0, &name.0, value.to_vec(), now),
            Op::RemoveXattr { path, name } => {
                let id = self.find(&path.0)?;
                let inode = self.change(id);
                inode.xattrs.remove(&name.0).ok_or(Errno::NODATA)?;
                inode.ctime = now;
                Ok(())
            }
            Op::Chmod { path, mode } => {
                let inode = self.change_at(&path.0)?;
                (inode.mode, inode.ctime) = (inode.mode & !0o7777 | mode & 0o7777, now);
                Ok(())
            }
            Op::Chown { path, uid, gid } => {
                let inode = self.change_at(&path.0)?;
                (inode.uid, inode.gid, inode.ctime) = (*uid, *gid, now);
                Ok(())
            }
            Op::Times { path, atime, mtime } => {
                let time = |t: &(i64, u32)| Time { seconds: t.0, nanoseconds: t.1 };
                let inode = self.change_at(&path.0)?;
                (inode.atime, inode.mtime, inode.ctime) = (time(atime), time(mtime), now);
                Ok(())
            }
            Op::Flags { path, set, clear } => self.set_flags(&path.0, *set, *clear, now),
            Op::Release { path } => self.release(&path.0, true, now),
            Op::Reserve { path } => self.release(&path.0, false, now),
            Op::Open { path, handle } => {
                let id = self.find(&path.0)?;
                self.file(id)?;
                self.close(*handle);
                self.open.insert(*handle, id);
                Ok(())
            }
            Op::OpenNameless { dir, mode, handle } => {
                let dir = self.resolve(&dir.0, true)?;
                self.dir(dir)?;
                let body = Body::File(Data::default());
                let id = self.add(dir, 0o100_000 | mode & 0o7777, 0, now, body);
                self.close(*handle);
                self.open.insert(*handle, id);
                Ok(())
            }
            Op::LinkOpen { handle, to } => {
                let id = *self.open.get(handle).ok_or(Errno::BADF)?;
                self.link(id, &to.0, now)
            }
            Op::WriteOpen { handle, offset, content } => {
                let id = *self.open.get(handle).ok_or(Errno::BADF)?;
                self.write(id, *offset, &content.to_vec(), now)
            }
            Op::FsyncOpen { handle } => self.open.get(handle).map(drop).ok_or(Errno::BADF),
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

    /// The inode at a path. A symbolic link at its end is not followed.
    pub fn find(&self, path: &[u8]) -> Result<Id> {
        self.resolve(path, false)
    }

    /// The size of the regular file at a path.
    pub fn size_of(&self, path: &[u8]) -> Option<u64> {
        let id = self.find(path).ok()?;
        self.inode(id).data().map(|data| data.size)
    }

    /// Whether the inode at a path is compressed, or a directory that hands that on.
    pub fn is_compressed(&self, path: &[u8]) -> bool {
        self.find(path).is_ok_and(|id| self.inode(id).flags & flag::COMPRESS != 0)
    }

    /// Whether it is a file that has given back what compression saves.
    pub fn is_released(&self, path: &[u8]) -> bool {
        let file = self.find(path).ok().and_then(|id| self.inode(id).data());
        file.is_some_and(|file| file.released)
    }

    /// Whether the file at a path is open.
    pub fn is_open(&self, path: &[u8]) -> bool {
        self.find(path).is_ok_and(|id| self.open.values().any(|open| *open == id))
    }

    fn resolve(&self, path: &[u8], follow: bool) -> Result<Id> {
        let mut at = ROOT;
        let mut rest: Vec<&[u8]> = components(path).rev().collect();
        let mut followed = 0;
        while let Some(name) = rest.pop() {
            let found = self.lookup(at, name)?.ok_or(Errno::NOENT)?;
            match &self.inodes[&found].body {
                Body::Symlink(target) if follow || !rest.is_empty() => {
                    followed += 1;
                    if followed > FOLLOW_MAX {
                        // The library's own walk says so; a mount leaves the walking to the kernel.
                        return Err(Errno::INVAL);
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

    /// What tells names of a directory apart.
    fn key(&self, dir: Id, name: &[u8]) -> Vec<u8> {
        let folds = self.inodes[&dir].flags & flag::CASEFOLD != 0;
        folds.then(|| fold(name)).flatten().unwrap_or_else(|| name.to_vec())
    }

    /// The directory and the last name of a path.
    fn parent<'a>(&self, path: &'a [u8]) -> Result<(Id, &'a [u8])> {
        let (dir, name) = split_last(path).ok_or(Errno::EXIST)?;
        Ok((self.resolve(dir, true)?, name))
    }

    fn make(&mut self, path: &[u8], mode: u32, now: Time, body: impl FnOnce(Id) -> Body) -> Result<Id> {
        let (dir, name) = self.parent(path)?;
        if self.lookup(dir, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        let body = body(dir);
        let is_dir = matches!(body, Body::Dir(_));
        let id = self.add(dir, mode, if is_dir { 2 } else { 1 }, now, body);
        self.enter(dir, name, id, now);
        if is_dir {
            self.change(dir).links += 1;
        }
        Ok(id)
    }

    /// Adds an inode that takes over what `dir` hands on.
    fn add(&mut self, dir: Id, mode: u32, links: u32, now: Time, body: Body) -> Id {
        const COMPRESSION: u32 = flag::COMPRESS | flag::NOCOMPRESS;
        let inherited = match body {
            Body::Dir(_) => {
                flag::NODUMP | flag::NOATIME | flag::CASEFOLD | flag::PROJECT_INHERIT | COMPRESSION
            }
            Body::File(_) => flag::NODUMP | flag::NOATIME | COMPRESSION,
            _ => flag::NODUMP | flag::NOATIME,
        };
        let flags = self.inodes[&dir].flags & inherited;
        let id = self.next;
        self.next += 1;
        self.inodes.insert(id, Arc::new(Inode { links, ..Inode::new(mode, flags, now, body) }));
        id
    }

    fn rmdir(&mut self, path: &[u8], now: Time) -> Result {
        let (dir, name) = self.parent(path)?;
        let id = self.lookup(dir, name)?.ok_or(Errno::NOENT)?;
        if !self.dir(id)?.names.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.leave(dir, name, now);
        self.change(dir).links -= 1;
        self.inodes.remove(&id);
        Ok(())
    }

    fn unlink(&mut self, path: &[u8], now: Time) -> Result {
        let (dir, name) = self.parent(path)?;
        let id = self.lookup(dir, name)?.ok_or(Errno::NOENT)?;
        if self.dir(id).is_ok() {
            return Err(Errno::ISDIR);
        }
        self.leave(dir, name, now);
        self.drop_link(id, now);
        Ok(())
    }

    fn link(&mut self, id: Id, to: &[u8], now: Time) -> Result {
        let (dir, name) = self.parent(to)?;
        if self.lookup(dir, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        if self.dir(id).is_ok() {
            return Err(Errno::PERM);
        }
        self.enter(dir, name, id, now);
        let inode = self.change(id);
        (inode.links, inode.ctime) = (inode.links + 1, now);
        Ok(())
    }

    fn rename(&mut self, from: &[u8], to: &[u8], how: Rename, now: Time) -> Result {
        let ((from_dir, from), (to_dir, to)) = (self.parent(from)?, self.parent(to)?);
        let source = self.lookup(from_dir, from)?.ok_or(Errno::NOENT)?;
        let target = self.lookup(to_dir, to)?;
        match (how, target) {
            (Rename::New, Some(_)) => return Err(Errno::EXIST),
            (Rename::Exchange, None) => return Err(Errno::NOENT),
            _ => {}
        }
        if self.is_above(source, to_dir) {
            return Err(Errno::INVAL);
        }
        if let Some(target) = target {
            if self.is_above(target, from_dir) {
                return Err(if how == Rename::Exchange { Errno::INVAL } else { Errno::NOTEMPTY });
            }
            if target == source {
                return Ok(());
            }
        }
        let moved_is_dir = self.dir(source).is_ok();
        if how == Rename::Exchange {
            let target = target.expect("it was looked at");
            let other_is_dir = self.dir(target).is_ok();
            self.retarget(from_dir, from, target, now);
            self.retarget(to_dir, to, source, now);
            for (id, is_dir, old, new) in
                [(source, moved_is_dir, from_dir, to_dir), (target, other_is_dir, to_dir, from_dir)]
            {
                self.moved(id, is_dir, old, new, now);
            }
            return Ok(());
        }
        if let Some(target) = target {
            match (moved_is_dir, self.dir(target)) {
                (true, Err(_)) => return Err(Errno::NOTDIR),
                (false, Ok(_)) => return Err(Errno::ISDIR),
                (true, Ok(dir)) if !dir.names.is_empty() => return Err(Errno::NOTEMPTY),
                _ => {}
            }
            // The entry stays where it is, and so does its name, which may differ in case.
            self.retarget(to_dir, to, source, now);
            match moved_is_dir {
                true => {
                    self.change(to_dir).links -= 1;
                    self.inodes.remove(&target);
                }
                false => self.drop_link(target, now),
            }
        } else {
            self.enter(to_dir, to, source, now);
        }
        self.leave(from_dir, from, now);
        self.moved(source, moved_is_dir, from_dir, to_dir, now);
        Ok(())
    }

    /// What a move changes in the inode that moves, and in the directories' links.
    fn moved(&mut self, id: Id, is_dir: bool, from_dir: Id, to_dir: Id, now: Time) {
        let inode = self.change(id);
        inode.ctime = now;
        if let Body::Dir(dir) = &mut inode.body {
            dir.parent = to_dir;
        }
        if is_dir && from_dir != to_dir {
            self.change(from_dir).links -= 1;
            self.change(to_dir).links += 1;
        }
    }

    fn write(&mut self, id: Id, offset: u64, data: &[u8], now: Time) -> Result {
        let rules = self.rules;
        if self.file(id)?.released {
            return Err(Errno::PERM);
        }
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::FBIG)?;
        if data.is_empty() {
            return Ok(());
        }
        if end > self.bytes_max(id) {
            return Err(Errno::FBIG);
        }
        let inode = self.change(id);
        (inode.mtime, inode.ctime) = (now, now);
        let Body::File(file) = &mut inode.body else { unreachable!("it is a file") };
        file.put(rules.block_bytes, offset, data);
        file.size = file.size.max(end);
        Ok(())
    }

    fn truncate(&mut self, id: Id, size: u64, now: Time) -> Result {
        let rules = self.rules;
        let released = self.file(id)?.released;
        if size > self.bytes_max(id) {
            return Err(Errno::FBIG);
        }
        if released && size % (rules.block_bytes << CLUSTER_LOG) != 0 {
            return Err(Errno::INVAL);
        }
        let inode = self.change(id);
        (inode.mtime, inode.ctime) = (now, now);
        let Body::File(file) = &mut inode.body else { unreachable!("it is a file") };
        if size <= file.size {
            file.zero(rules.block_bytes, size, u64::MAX);
        }
        file.size = size;
        file.released &= size > 0;
        Ok(())
    }

    fn release(&mut self, path: &[u8], released: bool, now: Time) -> Result {
        let id = self.find(path)?;
        let compressed = self.inode(id).flags & flag::COMPRESS != 0;
        let inode = self.change(id);
        match &mut inode.body {
            Body::File(file) if compressed && file.released != released => file.released = released,
            _ => return Err(Errno::INVAL),
        }
        inode.ctime = now;
        Ok(())
    }

    fn allocate(&mut self, id: Id, how: Allocate, offset: u64, length: u64, now: Time) -> Result {
        let rules = self.rules;
        let Data { size, released, .. } = *self.file(id)?;
        if released {
            return Err(Errno::PERM);
        }
        if matches!(how, Allocate::Collapse | Allocate::Insert) {
            if self.inodes[&id].flags & flag::COMPRESS != 0 {
                return Err(Errno::OPNOTSUPP);
            }
            if (offset | length) % rules.block_bytes != 0 {
                return Err(Errno::INVAL);
            }
        }
        let end = offset.checked_add(length).ok_or(Errno::FBIG)?;
        let too_far = match how {
            Allocate::Collapse if end >= size => return Err(Errno::INVAL),
            Allocate::Insert if offset >= size => return Err(Errno::INVAL),
            Allocate::Insert => size.checked_add(length).is_none_or(|end| end > self.bytes_max(id)),
            _ => end > self.bytes_max(id),
        };
        if too_far {
            return Err(Errno::FBIG);
        }
        let inode = self.change(id);
        (inode.mtime, inode.ctime) = (now, now);
        let Body::File(file) = &mut inode.body else { unreachable!("it is a file") };
        match how {
            Allocate::Extend | Allocate::KeepSize => {
                file.reserve(rules.block_bytes, offset, end);
                if how == Allocate::Extend {
                    file.size = file.size.max(end);
                }
            }
            Allocate::Punch => file.zero(rules.block_bytes, offset, end),
            Allocate::Zero => {
                file.zero(rules.block_bytes, offset, end);
                file.reserve(rules.block_bytes, offset, end);
                file.size = file.size.max(end);
            }
            Allocate::Collapse => {
                let (start, end) = (offset / rules.block_bytes, end / rules.block_bytes);
                file.shift(rules.block_bytes, |block| match block {
                    block if block < start => Some(block),
                    block => (block >= end).then(|| block - (end - start)),
                });
                file.size -= length;
            }
            Allocate::Insert => {
                let (start, end) = (offset / rules.block_bytes, end / rules.block_bytes);
                file.shift(rules.block_bytes, |block| {
                    Some(if block < start { block } else { block + (end - start) })
                });
                file.size += length;
            }
        }
        Ok(())
    }

    fn set_xattr(&mut self, path: &[u8], name: &[u8], value: Vec<u8>, now: Time) -> Result {
        let most = self.rules.xattr_bytes_max;
        let id = self.find(path)?;
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

    fn drop_link(&mut self, id: Id, now: Time) {
        let inode = self.change(id);
        (inode.links, inode.ctime) = (inode.links - 1, now);
        self.drop_unused(id);
    }

    fn drop_unused(&mut self, id: Id) {
        if self.inodes[&id].links == 0 && !self.open.values().any(|open| *open == id) {
            self.inodes.remove(&id);
        }
    }

    fn enter(&mut self, dir: Id, name: &[u8], id: Id, now: Time) {
        let key = self.key(dir, name);
        self.change_names(dir, now).insert(key, (name.to_vec(), id));
    }

    fn leave(&mut self, dir: Id, name: &[u8], now: Time) {
        let key = self.key(dir, name);
        self.change_names(dir, now).remove(&key);
    }

    fn retarget(&mut self, dir: Id, name: &[u8], id: Id, now: Time) {
        let key = self.key(dir, name);
        self.change_names(dir, now).get_mut(&key).expect("the name is there").1 = id;
    }

    fn change_names(&mut self, dir: Id, now: Time) -> &mut BTreeMap<Vec<u8>, (Vec<u8>, Id)> {
        let inode = self.change(dir);
        (inode.mtime, inode.ctime) = (now, now);
        match &mut inode.body {
            Body::Dir(dir) => &mut dir.names,
            _ => unreachable!("names are in directories"),
        }
    }

    /// Whether `id` is `below` or a directory above it.
    fn is_above(&self, id: Id, below: Id) -> bool {
        let mut at = below;
        loop {
            if at == id {
                return true;
            }
            if at == ROOT {
                return false;
            }
            at = self.dir(at).expect("only directories are above").parent;
        }
    }

    fn change_at(&mut self, path: &[u8]) -> Result<&mut Inode> {
        let id = self.find(path)?;
        Ok(self.change(id))
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

    fn bytes_max(&self, id: Id) -> u64 {
        match self.inodes[&id].flags & flag::COMPRESS {
            0 => self.rules.file_bytes_max,
            _ => self.rules.compressed_bytes_max,
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

impl Inode {
    fn new(mode: u32, flags: u32, time: Time, body: Body) -> Inode {
        Inode {
            mode,
            uid: 0,
            gid: 0,
            links: 1,
            flags,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            xattrs: BTreeMap::new(),
            body,
        }
    }

    /// The content of a regular file.
    pub fn data(&self) -> Option<&Data> {
        match &self.body {
            Body::File(data) => Some(data),
            _ => None,
        }
    }
}

impl Data {
    /// The bytes of a range, at most up to the end of the file.
    pub fn read(&self, block_bytes: u64, offset: u64, length: u64) -> Vec<u8> {
        let end = (offset + length).min(self.size).max(offset);
        let mut out = vec![0; (end - offset) as usize];
        for (block, bytes) in self.blocks.range(offset / block_bytes..end.div_ceil(block_bytes)) {
            let start = block * block_bytes;
            let (from, to) = (start.max(offset), (start + block_bytes).min(end));
            out[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&bytes[(from - start) as usize..(to - start) as usize]);
        }
        out
    }

    fn put(&mut self, block_bytes: u64, offset: u64, data: &[u8]) {
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let inside = at % block_bytes;
            let length = rest.len().min((block_bytes - inside) as usize);
            let block = self.blocks.entry(at / block_bytes).or_insert_with(|| zeroes(block_bytes));
            Arc::make_mut(block)[inside as usize..inside as usize + length].copy_from_slice(&rest[..length]);
            at += length as u64;
            rest = &rest[length..];
        }
    }

    fn reserve(&mut self, block_bytes: u64, from: u64, to: u64) {
        for block in from / block_bytes..to.div_ceil(block_bytes) {
            self.blocks.entry(block).or_insert_with(|| zeroes(block_bytes));
        }
    }

    /// Gives each block its new place, or none. What lies past the end goes.
    fn shift(&mut self, block_bytes: u64, place: impl Fn(u64) -> Option<u64>) {
        // It may be there without having been written: inline data moved to it.
        self.blocks.entry(0).or_insert_with(|| zeroes(block_bytes));
        let end = self.size.div_ceil(block_bytes);
        let old = std::mem::take(&mut self.blocks).into_iter().filter(|(block, _)| *block < end);
        self.blocks = old.filter_map(|(block, bytes)| Some((place(block)?, bytes))).collect();
    }

    /// Zeroes a range; whole blocks of it become holes.
    fn zero(&mut self, block_bytes: u64, from: u64, to: u64) {
        let touched: Vec<u64> = self
            .blocks
            .range(from / block_bytes..to.div_ceil(block_bytes))
            .map(|(block, _)| *block)
            .collect();
        for block in touched {
            let start = block * block_bytes;
            let (first, last) = (from.max(start), to.min(start + block_bytes));
            if last - first == block_bytes {
                self.blocks.remove(&block);
            } else {
                let bytes = Arc::make_mut(self.blocks.get_mut(&block).expect("it was listed"));
                bytes[(first - start) as usize..(last - start) as usize].fill(0);
            }
        }
    }
}

fn body_of(volume: &Volume, stat: &Stat, dir: Id, rules: Rules) -> f2fs::Result<Body> {
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rename {
    Replace,
    New,
    Exchange,
}

fn zeroes(bytes: u64) -> Arc<Vec<u8>> {
    Arc::new(vec![0; bytes as usize])
}

/// Names of a path, first to last.
pub fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
}

/// The path of the directory, and the last name; nothing for the root.
pub fn split_last(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.iter().rposition(|byte| *byte != b'/')? + 1;
    let start = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    Some((&path[..start], &path[start..end]))
}

/// Bytes that attributes take as F2FS stores them: a header, then each with four bytes before it, filled up to
/// four; the end is a word of zeroes.
fn stored_bytes(xattrs: &BTreeMap<Vec<u8>, Vec<u8>>) -> usize {
    let short =
        |name: &[u8]| name.iter().position(|byte| *byte == b'.').map_or(0, |dot| name.len() - dot - 1);
    let each = xattrs.iter().map(|(name, value)| (4 + short(name) + value.len()).next_multiple_of(4));
    24 + each.sum::<usize>() + 4
}
