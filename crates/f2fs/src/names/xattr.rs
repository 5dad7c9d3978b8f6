//! Extended attributes.

use super::Names;
use crate::{
    Error, Place, Result,
    format::{
        acl::Acl,
        xattr::{self, index},
    },
    units::Ino,
};

/// Full names of attributes, with their values.
pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

impl Names {
    /// The value of an attribute by its full name, such as `user.note`.
    pub(crate) fn get_xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let (index, short) = xattr::split_name(name).ok_or(Error::NoAttribute)?;
        self.stored_xattr(ino, index, short)?
            .map_or(Err(Error::NoAttribute), |value| shown_value(index, value, ino))
    }

    /// The full names of all attributes visible to programs, in the order in which they are stored.
    pub(crate) fn list_xattrs(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let stream = self.nodes().xattr_stream(&*self.nodes().inode(ino)?)?;
        let mut names = Vec::new();
        for entry in xattr::entries(&stream, Place::Xattr(ino))? {
            names.extend(entry?.full_name());
        }
        Ok(names)
    }

    /// All attributes visible to programs, with their values.
    pub(crate) fn xattrs(&self, ino: Ino) -> Result<Xattrs> {
        let stream = self.nodes().xattr_stream(&*self.nodes().inode(ino)?)?;
        let mut found = Vec::new();
        for entry in xattr::entries(&stream, Place::Xattr(ino))? {
            let entry = entry?;
            if let Some(name) = entry.full_name() {
                found.push((name, shown_value(entry.index, entry.value.to_vec(), ino)?));
            }
        }
        Ok(found)
    }

    /// All readable attributes visible to programs, with their values, and the errors that hide others.
    pub(crate) fn readable_xattrs(&self, ino: Ino) -> Result<(Xattrs, Vec<Error>)> {
        let inode = self.nodes().inode(ino)?;
        let (mut found, mut damage) = (Vec::new(), Vec::new());
        // Without the xattr node, the entries in the inode are still complete, except possibly the last one.
        let stream = self.nodes().xattr_stream(&inode).unwrap_or_else(|error| {
            damage.push(error);
            inode.inline_xattrs().to_vec()
        });
        let entries = match xattr::entries(&stream, Place::Xattr(ino)) {
            Ok(entries) => entries,
            Err(error) => {
                damage.push(error);
                return Ok((found, damage));
            }
        };
        let is_cut = !damage.is_empty();
        for entry in entries {
            let shown = entry.and_then(|entry| {
                let Some(name) = entry.full_name() else { return Ok(None) };
                Ok(Some((name, shown_value(entry.index, entry.value.to_vec(), ino)?)))
            });
            match shown {
                Ok(shown) => found.extend(shown),
                // An entry that continues in the xattr node is cut by the error already reported.
                Err(_) if is_cut => {}
                Err(error) => {
                    damage.push(self.io().record_corruption::<()>(Err(error)).expect_err("it is an error"))
                }
            }
        }
        Ok((found, damage))
    }

    /// The value of an attribute as stored, by its index and short name; includes attributes that programs do not
    /// see.
    pub(crate) fn stored_xattr(&self, ino: Ino, index: u8, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.nodes().stored_xattr(&*self.nodes().inode(ino)?, index, name)
    }
}

/// Converts a stored value to the form that programs see.
fn shown_value(index: u8, value: Vec<u8>, ino: Ino) -> Result<Vec<u8>> {
    match index {
        index::ACL_ACCESS | index::ACL_DEFAULT => Ok(Acl::from_disk(&value, Place::Xattr(ino))?.to_system()),
        _ => Ok(value),
    }
}
