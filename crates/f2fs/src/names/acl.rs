//! Access control lists: inheritance by new inodes, and consistency of the list with the mode bits.

use super::{Names, NewNode, SET_GID, XattrMode};
use crate::{
    Error, Place, Result,
    format::{FileType, acl::Acl, inode::flag, xattr::index},
    units::Ino,
};

impl Names {
    /// Returns `new` with the group that it inherits from its directory, and the directory's default ACL if
    /// there is one.
    pub(crate) fn inherit(&self, dir: Ino, new: &NewNode) -> Result<(NewNode, Option<Acl>)> {
        let mut new = new.clone();
        let parent = self.nodes().inode(dir)?;
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
        if self.nodes().inode(ino)?.has_flag(flag::IMMUTABLE | flag::APPEND) {
            return Err(Error::NotPermitted);
        }
        if acl.entries.is_empty() || acl.is_mode_only() {
            if self.acl(ino, index::ACL_ACCESS)?.is_some() {
                self.change_xattr(ino, index::ACL_ACCESS, b"", None, XattrMode::Set)?;
            }
        } else {
            self.change_xattr(ino, index::ACL_ACCESS, b"", Some(&acl.to_disk()), mode)?;
        }
        if !acl.entries.is_empty() {
            let now = self.disk().time();
            let inode = self.nodes_mut().inode_mut(ino)?;
            let bits = inode.head().mode.get() & !0o777 | acl.mode_bits();
            inode.head_mut().mode.set(bits);
            inode.set_ctime(now);
        }
        Ok(())
    }
}
