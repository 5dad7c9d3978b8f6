//! The public operations on attributes, extended attributes among them.

use super::{Engine, SET_GID, SetAttr, Stat, Transaction, XattrMode, without_privilege};
use crate::{Error, Result, format::FileType, names::Xattrs, units::Ino};

impl Engine {
    /// Attributes of an inode.
    ///
    /// # Errors
    /// Those of [reading](Engine#errors).
    pub fn stat(&self, ino: Ino) -> Result<Stat> {
        self.names().stat(ino)
    }

    /// The value of an attribute by its full name, such as `user.note`. An ACL is converted to the format of
    /// the system calls.
    ///
    /// # Errors
    /// [`Error::NoAttribute`]; those of [reading](Engine#errors).
    pub fn get_xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.names().get_xattr(ino, name)
    }

    /// The full names of all attributes visible to programs, in the order in which they are stored.
    ///
    /// # Errors
    /// Those of [reading](Engine#errors).
    pub fn list_xattrs(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.names().list_xattrs(ino)
    }

    /// All attributes visible to programs, with their values.
    ///
    /// # Errors
    /// Those of [reading](Engine#errors).
    pub fn xattrs(&self, ino: Ino) -> Result<Xattrs> {
        self.names().xattrs(ino)
    }

    /// All readable attributes visible to programs, with their values, and the errors that hide others.
    ///
    /// # Errors
    /// Those of [reading](Engine#errors) for the inode; damage of the attributes is in the second list.
    pub fn readable_xattrs(&self, ino: Ino) -> Result<(Xattrs, Vec<Error>)> {
        self.names().readable_xattrs(ino)
    }

    /// The value of an attribute as stored, by its index and short name; includes attributes that programs do
    /// not see.
    ///
    /// # Errors
    /// Those of [reading](Engine#errors).
    pub fn stored_xattr(&self, ino: Ino, index: u8, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.names().stored_xattr(ino, index, name)
    }
}

impl Transaction<'_> {
    /// Changes attributes of an inode: all that are given, or none.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a project without the feature project_quota, and for a compression that cannot be
    /// set; [`Error::NotPermitted`] and [`Error::NotEmpty`] for flags that the inode cannot have; [`Error::Quota`]
    /// if the new owner has no space left; those of [every change](Engine#errors).
    pub fn set_attr(mut self, ino: Ino, set: &SetAttr) -> Result<()> {
        self.step()?.names().set_attr(ino, set)
    }

    /// Sets an extended attribute by its full name, such as `user.note`. ACLs have the form of the system
    /// call.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an unknown prefix; [`Error::NameTooLong`]; [`Error::AttributeTooLarge`];
    /// [`Error::Invalid`] for an invalid ACL; [`Error::Exists`] and [`Error::NoAttribute`] as `mode` demands;
    /// [`Error::NotPermitted`] for an immutable or append-only file; [`Error::NoSpace`]; those of [every
    /// change](Engine#errors).
    pub fn set_xattr(mut self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.step()?.names().set_xattr(ino, name, value, mode)
    }

    /// Sets an extended attribute, such as an ACL, and clears the set-group-ID bit of the inode. A checkpoint has both
    /// changes or none.
    ///
    /// # Errors
    /// Those of [`set_xattr`](Self::set_xattr).
    pub fn set_xattr_and_clear_set_gid(
        mut self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let mut step = self.step()?;
        step.names().set_xattr(ino, name, value, mode)?;
        let permissions = step.engine().inode(ino)?.head().mode.get() & 0o7777 & !SET_GID;
        step.names().set_attr(ino, &SetAttr { permissions: Some(permissions), ..SetAttr::default() })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`]; [`Error::NotPermitted`] for an immutable or append-only file; those of [every
    /// change](Engine#errors).
    pub fn remove_xattr(mut self, ino: Ino, name: &[u8]) -> Result<()> {
        self.step()?.names().remove_xattr(ino, name)
    }

    /// Changes the owner, the group, or both, as chown(2) does: a file that is no directory loses its set-ID bits and its
    /// capabilities with the owner.
    ///
    /// # Errors
    /// [`Error::Quota`] if the new owner has no space left for the file, and those of [`set_attr`](Self::set_attr).
    pub fn change_owner(mut self, ino: Ino, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let stat = self.engine().stat(ino)?;
        let mut step = self.step()?;
        let mut set = SetAttr { uid, gid, ..SetAttr::default() };
        if stat.kind != FileType::Directory {
            set.permissions = without_privilege(stat.mode, || true);
            match step.names().remove_xattr(ino, b"security.capability") {
                Ok(()) | Err(Error::NoAttribute) => {}
                Err(error) => return Err(error),
            }
            step.renew()?;
        }
        step.names().set_attr(ino, &set)
    }
}
