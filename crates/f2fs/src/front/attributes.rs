//! Attributes by paths.

use super::{Metadata, Volume};
use crate::{
    Result,
    engine::{Caller, FinalSymlink, SetAttr, XattrMode},
};

impl Volume {
    /// Facts about a file. A symbolic link at the end of the path is followed.
    ///
    /// # Errors
    /// [`Error::NotFound`](crate::Error::NotFound), [`Error::NotDirectory`](crate::Error::NotDirectory) if the path leads
    /// through a file, [`Error::TooManySymlinks`](crate::Error::TooManySymlinks) for more than 40;
    /// [`Error::Corrupt`](crate::Error::Corrupt) and [`Error::Io`](crate::Error::Io) with the place if something on the
    /// way is damaged or cannot be read.
    pub fn metadata(&self, path: impl AsRef<[u8]>) -> Result<Metadata> {
        let engine = self.engine()?;
        Ok(engine.stat(engine.resolve(path.as_ref(), FinalSymlink::Follow)?)?.into())
    }

    /// Facts about a file; of a symbolic link at the end of the path, the link's own.
    ///
    /// # Errors
    /// Those of [`metadata`](Self::metadata).
    pub fn symlink_metadata(&self, path: impl AsRef<[u8]>) -> Result<Metadata> {
        let engine = self.engine()?;
        Ok(engine.stat(engine.resolve(path.as_ref(), FinalSymlink::NoFollow)?)?.into())
    }

    /// Changes the permissions of a file: the lowest twelve bits of the mode. An access control list follows.
    ///
    /// # Errors
    /// [`Error::ReadOnly`](crate::Error::ReadOnly) if the volume refuses changes,
    /// [`Error::NoSpace`](crate::Error::NoSpace), and those of [`metadata`](Self::metadata).
    pub fn set_permissions(&self, path: impl AsRef<[u8]>, permissions: u16) -> Result<()> {
        let mut engine = self.engine_mut()?;
        let ino = engine.resolve(path.as_ref(), FinalSymlink::Follow)?;
        engine
            .begin(Caller::ADMIN)
            .set_attr(ino, &SetAttr { permissions: Some(permissions), ..SetAttr::default() })
    }

    /// Changes the owner, the group, or both. As with chown(2), a file that is no directory loses its set-ID bits and its
    /// capabilities.
    ///
    /// # Errors
    /// [`Error::Quota`](crate::Error::Quota), and those of [`set_permissions`](Self::set_permissions).
    pub fn set_owner(&self, path: impl AsRef<[u8]>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let mut engine = self.engine_mut()?;
        let ino = engine.resolve(path.as_ref(), FinalSymlink::Follow)?;
        engine.begin(Caller::ADMIN).change_owner(ino, uid, gid)
    }

    /// As [`set_owner`](Self::set_owner); of a symbolic link at the end of the path, the link's own.
    ///
    /// # Errors
    /// Those of [`set_owner`](Self::set_owner).
    pub fn set_symlink_owner(
        &self,
        path: impl AsRef<[u8]>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<()> {
        let mut engine = self.engine_mut()?;
        let ino = engine.resolve(path.as_ref(), FinalSymlink::NoFollow)?;
        engine.begin(Caller::ADMIN).change_owner(ino, uid, gid)
    }

    /// The value of an extended attribute by its full name, such as `user.note`. Access control lists have the form that
    /// programs use.
    ///
    /// # Errors
    /// [`Error::NoAttribute`](crate::Error::NoAttribute), and those of [`metadata`](Self::metadata).
    pub fn get_xattr(&self, path: impl AsRef<[u8]>, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let engine = self.engine()?;
        engine.get_xattr(engine.resolve(path.as_ref(), FinalSymlink::Follow)?, name.as_ref())
    }

    /// The full names of all extended attributes, in the order in which they are stored.
    ///
    /// # Errors
    /// Those of [`metadata`](Self::metadata).
    pub fn list_xattrs(&self, path: impl AsRef<[u8]>) -> Result<Vec<Vec<u8>>> {
        let engine = self.engine()?;
        engine.list_xattrs(engine.resolve(path.as_ref(), FinalSymlink::Follow)?)
    }

    /// Sets an extended attribute by its full name, whether it is there or not.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) for an unknown prefix,
    /// [`Error::AttributeTooLarge`](crate::Error::AttributeTooLarge) if the inode has no room for it,
    /// [`Error::NotPermitted`](crate::Error::NotPermitted) if the file is immutable or append-only, and those of
    /// [`set_permissions`](Self::set_permissions).
    pub fn set_xattr(
        &self,
        path: impl AsRef<[u8]>,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        let mut engine = self.engine_mut()?;
        let ino = engine.resolve(path.as_ref(), FinalSymlink::Follow)?;
        engine.begin(Caller::ADMIN).set_xattr(ino, name.as_ref(), value.as_ref(), XattrMode::Set)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`](crate::Error::NoAttribute), and those of [`set_xattr`](Self::set_xattr).
    pub fn remove_xattr(&self, path: impl AsRef<[u8]>, name: impl AsRef<[u8]>) -> Result<()> {
        let mut engine = self.engine_mut()?;
        let ino = engine.resolve(path.as_ref(), FinalSymlink::Follow)?;
        engine.begin(Caller::ADMIN).remove_xattr(ino, name.as_ref())
    }
}
