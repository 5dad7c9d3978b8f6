//! Access control lists: what new inodes take over, and that list and mode say the same.

use super::{NewNode, SET_GID, Volume, XattrMode};
use crate::{
    Place, Result,
    format::{FileType, acl::Acl, xattr::index},
    units::Ino,
};

impl Volume {
    /// Makes an inode as a program does: in a directory with the set-group-id bit it gets the directory's group; the
    /// directory's default access control list, or else `umask`, limits its permissions.
    pub fn create_for(&mut self, dir: Ino, name: &[u8], new: &NewNode, umask: u16) -> Result<Ino> {
        let undo = |volume: &mut Volume, ino: Ino| match volume.inode(ino)?.is_directory() {
            true => volume.remove_dir(dir, name),
            false => volume.unlink(dir, name),
        };
        self.make_for(dir, new, umask, |volume, new| volume.create(dir, name, new), undo)
    }

    /// Makes a file without a name as a program does; see [`create_nameless`](Self::create_nameless).
    pub fn create_nameless_for(&mut self, dir: Ino, new: &NewNode, umask: u16) -> Result<Ino> {
        self.make_for(dir, new, umask, |volume, new| volume.create_nameless(dir, new), Volume::release)
    }

    /// Makes an inode with its permissions and lists, or none: where a list cannot be stored, `undo` gives up what
    /// `make` has made.
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

    /// Makes a symbolic link as a program does; see [`create_for`](Self::create_for).
    pub fn symlink_for(&mut self, dir: Ino, name: &[u8], target: &[u8], new: &NewNode) -> Result<Ino> {
        let (new, _) = self.inherit(dir, new)?;
        self.symlink(dir, name, target, &new)
    }

    /// What a new inode takes over from its directory: the group, and the default list if there is one.
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

    /// The list that an inode has, if it has one.
    fn acl(&self, ino: Ino, index: u8) -> Result<Option<Acl>> {
        self.stored_xattr(ino, index, b"")?.map(|bytes| Acl::from_disk(&bytes, Place::Xattr(ino))).transpose()
    }

    /// The stream of attributes with which the access list says the same as other permissions, where it changes for
    /// that (Linux, `posix_acl_chmod`).
    pub(super) fn limited_acl(&self, ino: Ino, permissions: u16) -> Result<Option<Vec<u8>>> {
        let Some(mut acl) = self.acl(ino, index::ACL_ACCESS)? else { return Ok(None) };
        acl.set_mode_bits(permissions);
        self.changed_xattrs(ino, index::ACL_ACCESS, b"", Some(&acl.to_disk()), XattrMode::Set)
    }

    /// Sets an access list: the permissions follow it, and it is stored only where it says more than they
    /// (Linux, `f2fs_set_acl`).
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
