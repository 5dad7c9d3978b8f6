//! Extended attributes.

use std::sync::atomic::Ordering;

use f2fs::{
    engine::{SET_GID, XattrMode},
    format::xattr,
    units::Ino,
};

use super::{Credentials, FileSystem, Result, SelinuxLabels, to_errno};
use crate::{Errno, credentials::Capability};

/// The extended attribute that holds the access ACL.
pub(super) const ACL_ACCESS: &[u8] = b"system.posix_acl_access";

/// The extended attribute that holds the label of SELinux.
const SELINUX_LABEL: &[u8] = b"security.selinux";

/// Effect of a new access control list on the set-group-id bit of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupIdBit {
    /// The bit is cleared.
    Cleared,
    /// The bit stays.
    Kept,
    /// The bit is cleared unless the caller is in the group of the file (Linux, `posix_acl_update_mode`).
    ByGroup,
}

impl FileSystem {
    /// Returns the value of an extended attribute.
    pub fn get_xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.check_xattr_name(name)?;
        let value = if self.inodes.has_no_xattrs(ino) {
            // Programs such as ls(1) ask this for every file, and the kernel does not cache the answer.
            self.requests.fetch_add(1, Ordering::Relaxed);
            Err(if self.volume.is_poisoned() { Errno::IO } else { Errno::NODATA })
        } else {
            self.read_lock()?.get_xattr(ino, name).map_err(to_errno)
        };
        let unused = name == SELINUX_LABEL && self.settings.selinux_labels == SelinuxLabels::Unused;
        value.map_err(|errno| if unused && errno == Errno::NODATA { Errno::OPNOTSUPP } else { errno })
    }

    /// Returns the names of all extended attributes, each followed by a zero byte.
    pub fn list_xattrs(&self, caller: Credentials, ino: Ino) -> Result<Vec<u8>> {
        if self.inodes.has_no_xattrs(ino) {
            self.requests.fetch_add(1, Ordering::Relaxed);
            return if self.volume.is_poisoned() { Err(Errno::IO) } else { Ok(Vec::new()) };
        }
        let names = self.read_lock()?.list_xattrs(ino).map_err(to_errno)?;
        let is_trusted = |name: &[u8]| name.starts_with(b"trusted.");
        let hides = names.iter().any(|name| is_trusted(name)) && !caller.has(Capability::SysAdmin);
        let mut list = Vec::new();
        let is_hidden = |name: &[u8]| hides && is_trusted(name) || self.hides_label(name);
        for name in names.iter().filter(|name| !is_hidden(name)) {
            list.extend_from_slice(name);
            list.push(0);
        }
        Ok(list)
    }

    /// Sets an extended attribute.
    pub fn set_xattr(
        &self,
        caller: Credentials,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        group_id_bit: GroupIdBit,
    ) -> Result<()> {
        self.check_xattr_name(name)?;
        let mut volume = self.write_lock_for(caller)?;
        self.inodes.mark_with_xattrs(ino);
        let stat = self.stat_in(&volume, ino)?;
        let is_cleared = match group_id_bit {
            GroupIdBit::Cleared => true,
            GroupIdBit::Kept => false,
            GroupIdBit::ByGroup => name == ACL_ACCESS && stat.mode & SET_GID != 0 && !caller.is_in(stat.gid),
        };
        let change = volume.begin();
        let done = match is_cleared {
            true => change.set_xattr_and_clear_set_gid(ino, name, value, mode),
            false => change.set_xattr(ino, name, value, mode),
        };
        done.map_err(to_errno)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.check_xattr_name(name)?;
        match self.write_lock()?.begin().remove_xattr(ino, name).map_err(to_errno) {
            // Removing an ACL that does not exist succeeds (Linux, `vfs_remove_acl`).
            Err(Errno::NODATA) if name.starts_with(b"system.posix_acl_") => Ok(()),
            done => done,
        }
    }

    /// Refuses invalid names of extended attributes, as the VFS does for in-kernel file systems, and hidden ones.
    fn check_xattr_name(&self, name: &[u8]) -> Result<()> {
        match name {
            b"user." | b"trusted." | b"security." => Err(Errno::INVAL),
            _ if xattr::split_name(name).is_none() || self.hides_label(name) => Err(Errno::OPNOTSUPP),
            _ => Ok(()),
        }
    }

    /// Returns true for the label of SELinux on a mount that has none.
    fn hides_label(&self, name: &[u8]) -> bool {
        name == SELINUX_LABEL && self.settings.selinux_labels == SelinuxLabels::Hidden
    }
}
