//! Operations that change names: making, removing, linking, renaming.

use std::{collections::BTreeMap, sync::Arc};

use f2fs::{format::inode::flag, units::Time};
use rustix::io::Errno;

use super::{Body, Data, Dir, Id, Inode, Model, ROOT, Result};

/// The treatment of an existing target name by a rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rename {
    Replace,
    New,
    Exchange,
}

impl Model {
    pub(super) fn make(
        &mut self,
        path: &[u8],
        mode: u32,
        now: Time,
        body: impl FnOnce(Id) -> Body,
    ) -> Result<Id> {
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

    /// Adds an inode that inherits from `dir`.
    pub(super) fn add(&mut self, dir: Id, mode: u32, links: u32, now: Time, body: Body) -> Id {
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

    pub(super) fn rmdir(&mut self, path: &[u8], now: Time) -> Result {
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

    pub(super) fn unlink(&mut self, path: &[u8], now: Time) -> Result {
        let (dir, name) = self.parent(path)?;
        let id = self.lookup(dir, name)?.ok_or(Errno::NOENT)?;
        if self.dir(id).is_ok() {
            return Err(Errno::ISDIR);
        }
        self.leave(dir, name, now);
        self.drop_link(id, now);
        Ok(())
    }

    pub(super) fn link(&mut self, id: Id, to: &[u8], now: Time) -> Result {
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

    pub(super) fn rename(&mut self, from: &[u8], to: &[u8], how: Rename, now: Time) -> Result {
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
            self.retarget(from_dir, from, target, now);
            self.retarget(to_dir, to, source, now);
            self.moved(source, from_dir, to_dir, now);
            self.moved(target, to_dir, from_dir, now);
            return Ok(());
        }
        if let Some(target) = target {
            match (moved_is_dir, self.dir(target)) {
                (true, Err(_)) => return Err(Errno::NOTDIR),
                (false, Ok(_)) => return Err(Errno::ISDIR),
                (true, Ok(dir)) if !dir.names.is_empty() => return Err(Errno::NOTEMPTY),
                _ => {}
            }
            // The entry stays in place, and so does its name, which may differ in case.
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
        self.moved(source, from_dir, to_dir, now);
        Ok(())
    }

    /// Updates the inode that moves, and the link counts of the directories.
    fn moved(&mut self, id: Id, from_dir: Id, to_dir: Id, now: Time) {
        let inode = self.change(id);
        inode.ctime = now;
        let Body::Dir(dir) = &mut inode.body else { return };
        dir.parent = to_dir;
        if from_dir != to_dir {
            self.change(from_dir).links -= 1;
            self.change(to_dir).links += 1;
        }
    }

    pub(super) fn make_dir(&mut self, path: &[u8], mode: u32, now: Time) -> Result {
        let body = |parent| Body::Dir(Dir { parent, names: BTreeMap::new() });
        self.make(path, 0o040_000 | mode & 0o7777, now, body).map(drop)
    }

    /// Returns the inode at a path. Makes a file if there is none.
    pub(super) fn find_or_make(&mut self, path: &[u8], now: Time) -> Result<Id> {
        match self.find(path) {
            Err(Errno::NOENT) => self.make(path, 0o100_666, now, |_| Body::File(Data::default())),
            found => found,
        }
    }

    pub(super) fn make_symlink(&mut self, path: &[u8], target: &[u8], now: Time) -> Result {
        // An encrypted target has its length before it (Linux, `fscrypt_prepare_symlink`).
        let more = if self.rules.is_encrypted() { 2 } else { 0 };
        if target.len() as u64 + more >= self.rules.block_bytes.min(4096) {
            return Err(Errno::NAMETOOLONG);
        }
        let body = Body::Symlink(target.to_vec());
        self.make(path, 0o120_777, now, |_| body).map(drop)
    }

    /// Makes a file, a device (of a major and a minor number), a pipe or a socket.
    pub(super) fn make_node(&mut self, path: &[u8], mode: u32, device: (u32, u32), now: Time) -> Result {
        let is_device = matches!(mode & 0o170_000, 0o020_000 | 0o060_000);
        let body = match mode & 0o170_000 {
            0o100_000 => Body::File(Data::default()),
            _ if is_device => Body::Special(device.0, device.1),
            _ => Body::Special(0, 0),
        };
        self.make(path, mode, now, |_| body).map(drop)
    }

    pub(super) fn drop_link(&mut self, id: Id, now: Time) {
        let inode = self.change(id);
        (inode.links, inode.ctime) = (inode.links - 1, now);
        self.drop_unused(id);
    }

    pub(super) fn enter(&mut self, dir: Id, name: &[u8], id: Id, now: Time) {
        let key = self.key(dir, name);
        self.change_names(dir, now).insert(key, (name.to_vec(), id));
    }

    pub(super) fn leave(&mut self, dir: Id, name: &[u8], now: Time) {
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

    /// Returns true if `id` is `below` or one of its parents.
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
}
