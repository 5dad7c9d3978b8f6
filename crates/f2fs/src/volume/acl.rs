//! Access control lists: inheritance by new inodes, and consistency of the list with the mode bits.

use super::{NewNode, SET_GID, Volume, XattrMode};
use crate::{
    Place, Result,
    format::{FileType, acl::Acl, xattr::index},
    units::Ino,
};

impl Volume {
    /// Creates an inode as the system call does. In a set-group-id directory it gets the directory's group.
    /// Its permissions are limited by the directory's default ACL or, without one, by `umask`.
    pub fn create_for(&mut self, dir: Ino, name: &[u8], new: &NewNode, umask: u16) -> Result<Ino> {
        let undo = |volume: &mut Volume, ino: Ino| match volume.inode(ino)?.is_directory() {
            true => volume.remove_dir(dir, name),
            false => volume.unlink(dir, name),
        };
        self.make_for(dir, new, umask, |volume, new| volume.create(dir, name, new), undo)
    }

    /// Creates a file without a name as the system call does; see [`create_nameless`](Self::create_nameless).
    pub fn create_nameless_for(&mut self, dir: Ino, new: &NewNode, umask: u16) -> Result<Ino> {
        self.make_for(dir, new, umask, |volume, new| volume.create_nameless(dir, new), Volume::release)
    }

    /// Creates an inode with its permissions and ACLs. If an ACL cannot be stored, `undo` removes the inode
    /// that `make` created.
    fn make_for(
        &mut self,
        dir: Ino,
        new: &NewNode,
        umask: u16,
        make: impl FnOnce(&mut Volume, &NewNode) -> Result<Ino>,
        undo: impl FnOnce(&mut Volume, Ino) -> Result<()>,
    ) -> Result<Ino> {
        let (new, default) = self.inherit(dir, new)?;
        let Some(default) = default else {
            return make(self, &NewNode { mode: new.mode & !(umask & 0o777), ..new });
        };
        let (access, mode) = default.for_new(new.mode);
        let ino = make(self, &NewNode { mode, ..new })?;
        let lists = [
            (index::ACL_ACCESS, Some(&access).filter(|access| !access.is_mode_only())),
            (
                index::ACL_DEFAULT,
                Some(&default).filter(|_| FileType::from_mode(mode) == Some(FileType::Directory)),
            ),
        ];
        for (index, acl) in lists {
            let Some(acl) = acl else { continue };
            if let Err(error) = self.change_xattr(ino, index, b"", Some(&acl.to_disk()), XattrMode::Set) {
                undo(self, ino)?;
                return Err(error);
            }
        }
        Ok(ino)
    }

    /// Creates a symbolic link as the system call does; see [`create_for`](Self::create_for).
    pub fn symlink_for(&mut self, dir: Ino, name: &[u8], target: &[u8], new: &NewNode) -> Result<Ino> {
        let (new, _) = self.inherit(dir, new)?;
        self.symlink(dir, name, target, &new)
    }

    /// Returns `new` with the group that it inherits from its directory, and the directory's default ACL if
    /// there is one.
    pub(super) fn inherit(&self, dir: Ino, new: &NewNode) -> Result<(NewNode, Option<Acl>)> {
        let mut new = new.clone();
        let parent = self.inode(dir)?;
        if parent.head().mode.get() & SET_GID != 0 {
            new.gid = parent.head().gid.get();
            if FileType::from_mode(new.mode) == Some(FileType::Directory) {
                new.mode |= SET_GID;
            }
        }
        let default = self.acl(dir, index::ACL_DEFAULT)?.filter(|acl| !acl.entries.is_empty());
        Ok((new, default))
    }

    /// Returns the ACL of an inode, if it has one.
    fn acl(&self, ino: Ino, index: u8) -> Result<Option<Acl>> {
        self.stored_xattr(ino, index, b"")?.map(|bytes| Acl::from_disk(&bytes, Place::Xattr(ino))).transpose()
    }

    /// Returns the xattr stream in which the access ACL matches new permissions, or `None` if the stream
    /// stays as it is (Linux, `posix_acl_chmod`).
    pub(super) fn limited_acl(&self, ino: Ino, permissions: u16) -> Result<Option<Vec<u8>>> {
        let Some(mut acl) = self.acl(ino, index::ACL_ACCESS)? else { return Ok(None) };
        acl.set_mode_bits(permissions);
        self.changed_xattrs(ino, index::ACL_ACCESS, b"", Some(&acl.to_disk()), XattrMode::Set)
    }

    /// Sets the access ACL and derives the permissions from it. The ACL is stored only if the mode bits
    /// cannot express it (Linux, `f2fs_set_acl`).
    pub(super) fn set_access_acl(&mut self, ino: Ino, acl: &Acl, mode: XattrMode) -> Result<()> {
        if acl.entries.is_empty() || acl.is_mode_only() {
            if self.acl(ino, index::ACL_ACCESS)?.is_some() {
                self.change_xattr(ino, index::ACL_ACCESS, b"", None, XattrMode::Set)?;
            }
        } else {
            self.change_xattr(ino, index::ACL_ACCESS, b"", Some(&acl.to_disk()), mode)?;
        }
        if !acl.entries.is_empty() {
            let now = self.time();
            let inode = self.inode_mut(ino)?;
            let bits = inode.head().mode.get() & !0o777 | acl.mode_bits();
            inode.head_mut().mode.set(bits);
            inode.set_ctime(now);
        }
        Ok(())
    }
}
