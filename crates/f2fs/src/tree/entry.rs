//! What a tree consists of.

use std::borrow::Cow;

use crate::{format::inode::DeviceNumber, printable, units::Time};

/// One name of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Path from the root of the tree, components parted by `/`; empty for the root itself.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// Everything else about it.
    pub meta: Metadata,
}

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File {
        /// Size in bytes, holes included.
        size: u64,
        /// Ranges in bytes that hold data, where not all of it does; ascending, disjoint, not past the size.
        data: Option<Vec<std::ops::Range<u64>>>,
    },
    /// A symbolic link.
    Symlink {
        /// Its target.
        target: Vec<u8>,
    },
    /// Another name of an entry that came before; it has that one's metadata.
    HardLink {
        /// Path of that entry.
        to: Vec<u8>,
    },
    /// A character device.
    CharDevice(DeviceNumber),
    /// A block device.
    BlockDevice(DeviceNumber),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// An extended attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xattr {
    /// Name with its prefix: `user.`, `trusted.`, `security.`, or the whole of `system.posix_acl_access` and
    /// `system.posix_acl_default`. Nothing else can be stored on F2FS.
    pub name: Vec<u8>,
    /// Value, as Linux's system calls give and take it.
    pub value: Vec<u8>,
}

/// Where an entry lies on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HostId {
    /// Number of the host's device.
    pub device: u64,
    /// Inode number there.
    pub ino: u64,
}

/// Names of owner and group, where the source has them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Names {
    /// Name of the owner.
    pub user: Option<String>,
    /// Name of the group.
    pub group: Option<String>,
}

/// What entries of every kind have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Metadata {
    /// Permissions with setuid, setgid and sticky: the low 12 bits of a mode.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time of the last change of the content.
    pub mtime: Time,
    /// Time of the last access, where the source has it.
    pub atime: Option<Time>,
    /// Time of the last change of the inode, where the source has it.
    pub ctime: Option<Time>,
    /// Extended attributes, sorted by name.
    pub xattrs: Vec<Xattr>,
    /// Names of owner and group.
    pub names: Names,
    /// Where it lies on the host, if it does.
    pub host: Option<HostId>,
}

impl Metadata {
    /// Sets an attribute, replacing one of that name.
    pub fn set_xattr(&mut self, name: &[u8], value: Vec<u8>) {
        match self.xattrs.binary_search_by(|xattr| xattr.name.as_slice().cmp(name)) {
            Ok(at) => self.xattrs[at].value = value,
            Err(at) => self.xattrs.insert(at, Xattr { name: name.to_vec(), value }),
        }
    }
}

/// Whether F2FS has a place for an attribute of this name.
pub(super) fn storable(name: &[u8]) -> bool {
    let prefixes: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    prefixes.iter().any(|prefix| name.len() > prefix.len() && name.starts_with(prefix))
        || name == b"system.posix_acl_access"
        || name == b"system.posix_acl_default"
}

/// A path as text that a terminal may show.
pub fn show(path: &[u8]) -> Cow<'_, str> {
    if path.is_empty() { "/".into() } else { printable::name(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_stay_sorted_and_single() {
        let mut meta = Metadata::default();
        for (name, value) in [("user.b", "1"), ("user.a", "2"), ("user.b", "3")] {
            meta.set_xattr(name.as_bytes(), value.into());
        }
        let flat: Vec<_> = meta.xattrs.iter().map(|x| (show(&x.name), show(&x.value))).collect();
        assert_eq!(flat, [("user.a".into(), "2".into()), ("user.b".into(), "3".into())]);
    }

    #[test]
    fn only_what_f2fs_can_store_is_storable() {
        for (name, expected) in [
            ("user.x", true),
            ("user.", false),
            ("trusted.overlay.opaque", true),
            ("security.capability", true),
            ("system.posix_acl_access", true),
            ("system.posix_acl_default", true),
            ("system.nfs4_acl", false),
            ("btrfs.compression", false),
        ] {
            assert_eq!(storable(name.as_bytes()), expected, "{name}");
        }
    }
}
