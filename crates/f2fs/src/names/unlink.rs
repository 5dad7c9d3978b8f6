//! Additional names, and removal of names.
//!
//! *Invariant*: each operation checks everything that may make it fail, space included, before it changes anything.

use super::Names;
use crate::{
    Error, Result,
    format::{
        FileType,
        inode::{advise, flag},
    },
    units::Ino,
};

impl Names {
    /// Adds a name to an inode.
    pub(crate) fn link(&mut self, ino: Ino, dir: Ino, name: &[u8]) -> Result<()> {
        self.check_change(dir, name)?;
        let inode = self.nodes().inode(ino)?;
        let kind = inode.file_type();
        if kind == FileType::Directory || inode.has_flag(flag::IMMUTABLE | flag::APPEND) {
            return Err(Error::NotPermitted);
        }
        if inode.head().links.get() == u32::MAX {
            return Err(Error::TooManyLinks);
        }
        if inode.head().links.get() == 0
            && (!self.orphans.contains(&ino) || self.pending_evictions.contains(&ino))
        {
            return Err(Error::NotFound);
        }
        drop(inode);
        if self.find_entry(dir, name)?.is_some() {
            return Err(Error::Exists);
        }
        self.check_project(dir, ino)?;
        let stored = self.to_stored_name(&*self.nodes().inode(dir)?, name)?;
        self.check_policy(dir, ino)?;
        let _space = self.reserve_entry(dir, &stored, 0)?;
        self.enter(dir, &stored, ino, kind)?;
        self.nodes_mut().since_checkpoint_mut().note_link(dir);
        if self.nodes().is_durable(ino)? {
            // Recovery would find the inode under its earlier name; if that name is removed, this one is like
            // any other new name.
            self.nodes_mut().since_checkpoint_mut().note_renamed([ino]);
        }
        let (now, parent) = (self.disk().time(), self.nodes().inode(dir)?);
        let inode = self.nodes_mut().inode_mut(ino)?;
        let links = inode.head().links.get();
        inode.head_mut().links.set(links + 1);
        stored.record(inode, &parent);
        inode.set_ctime(now);
        if self.orphans.remove(&ino) {
            // The last checkpoint may list it as an orphan, and roll-forward skips orphans.
            self.nodes_mut().since_checkpoint_mut().note_renamed([ino, dir]);
        }
        self.touch_dir(dir)
    }

    /// Removes the name of an inode that is not a directory.
    pub(crate) fn unlink(&mut self, dir: Ino, name: &[u8]) -> Result<()> {
        self.check_change(dir, name)?;
        let found = self.find_entry(dir, name)?.ok_or(Error::NotFound)?;
        let inode = self.nodes().inode(found.ino)?;
        if inode.is_directory() {
            return Err(Error::IsDirectory);
        }
        if inode.has_flag(flag::IMMUTABLE | flag::APPEND) || self.nodes().inode(dir)?.has_flag(flag::APPEND) {
            return Err(Error::NotPermitted);
        }
        self.require_orphan_room(found.ino)?;
        let stays = inode.head().links.get() > 1;
        // The inode has its name as it is stored in the directory.
        let loses_name = stays
            && inode.head().pino.get() == dir.0
            && inode.last_name() == self.stored_name(dir, &found)?.as_slice();
        drop(inode);
        let folds = self.nodes().inode(dir)?.has_flag(flag::CASEFOLD);
        if (stays || folds) && self.nodes().is_durable(found.ino)? {
            // Recovery brings the name back. A new file of that name would then take the last link of the old
            // one, even if other links have been created since. A new name that differs only in case would
            // stand beside it.
            self.nodes_mut().since_checkpoint_mut().note_renamed([dir]);
        }
        if loses_name {
            // Recovery would enter the inode under the name that is being removed.
            self.nodes_mut().inode_mut(found.ino)?.head_mut().advise |= advise::LOST_PINO;
        }
        self.leave(dir, &found)?;
        self.note_name(dir, name, None);
        self.touch_dir(dir)?;
        self.drop_link(found.ino)
    }

    /// Removes an empty directory.
    pub(crate) fn remove_dir(&mut self, dir: Ino, name: &[u8]) -> Result<()> {
        self.check_change(dir, name)?;
        if name == b"." {
            return Err(Error::Invalid("`.` cannot be removed".into()));
        }
        if name == b".." {
            return Err(Error::NotEmpty);
        }
        let found = self.find_entry(dir, name)?.ok_or(Error::NotFound)?;
        let inode = self.directory(found.ino)?;
        if inode.has_flag(flag::IMMUTABLE | flag::APPEND) || self.nodes().inode(dir)?.has_flag(flag::APPEND) {
            return Err(Error::NotPermitted);
        }
        drop(inode);
        if !self.is_empty_dir(found.ino)? {
            return Err(Error::NotEmpty);
        }
        self.require_orphan_room(found.ino)?;
        if self.nodes().is_checkpointed(found.ino.into())? {
            // Recovery brings the directory back with its content; a new file must not take its name.
            self.nodes_mut().since_checkpoint_mut().note_renamed([dir]);
        }
        self.leave(dir, &found)?;
        self.note_name(dir, name, None);
        self.touch_dir(dir)?;
        self.add_links(dir, -1)?;
        self.add_links(found.ino, -1)?;
        self.drop_link(found.ino)
    }

    /// Drops one link of an inode. Without links the inode is removed, or becomes an orphan if it is held.
    pub(super) fn drop_link(&mut self, ino: Ino) -> Result<()> {
        self.add_links(ino, -1)?;
        let now = self.disk().time();
        self.nodes_mut().inode_mut(ino)?.set_ctime(now);
        if self.nodes().inode(ino)?.head().links.get() > 0 {
            return Ok(());
        }
        if self.held.contains_key(&ino) {
            self.orphans.insert(ino);
            return Ok(());
        }
        match self.try_evict(ino) {
            // The name has been removed nevertheless.
            Err(error) if self.disk().stays_in_place(&error) => Ok(()),
            result => result,
        }
    }

    pub(super) fn add_links(&mut self, ino: Ino, change: i32) -> Result<()> {
        let head = self.nodes_mut().inode_mut(ino)?.head_mut();
        let links = head.links.get().saturating_add_signed(change);
        head.links.set(links);
        Ok(())
    }

    pub(super) fn touch_dir(&mut self, dir: Ino) -> Result<()> {
        let now = self.disk().time();
        let inode = self.nodes_mut().inode_mut(dir)?;
        inode.set_mtime(now);
        inode.set_ctime(now);
        Ok(())
    }
}
