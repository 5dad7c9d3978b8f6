//! Entries of a tree.

use f2fs::{format::inode::DeviceNumber, units::Time};

/// One name in a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Path from the root of the tree, with components separated by `/`; empty for the root itself.
    pub path: Vec<u8>,
    /// Kind of the entry.
    pub kind: Kind,
    /// Metadata.
    pub meta: Metadata,
}

impl Entry {
    /// Number of bytes of the parts that can be long: paths, targets, ranges, attributes and names.
    pub(crate) fn heap_bytes(&self) -> usize {
        let kind = match &self.kind {
            Kind::File { data: Some(ranges), .. } => size_of_val(&**ranges),
            Kind::Symlink { target: bytes } | Kind::HardLink { to: bytes } => bytes.len(),
            _ => 0,
        };
        let xattrs: usize = self.meta.xattrs.iter().map(|xattr| xattr.name.len() + xattr.value.len()).sum();
        let names = [&self.meta.names.user, &self.meta.names.group];
        self.path.len() + kind + xattrs + names.into_iter().flatten().map(String::len).sum::<usize>()
    }
}

/// Kind of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File {
        /// Size in bytes, including holes.
        size: u64,
        /// Byte ranges that hold data, ascending, disjoint and inside the size; None if the file has no
        /// holes.
        data: Option<Vec<std::ops::Range<u64>>>,
    },
    /// A symbolic link.
    Symlink {
        /// Its target.
        target: Vec<u8>,
    },
    /// Another name of an earlier entry, with that entry's metadata.
    HardLink {
        /// Path of the earlier entry.
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
    /// Name with its prefix: `user.`, `trusted.`, `security.`, or exactly `system.posix_acl_access` or
    /// `system.posix_acl_default`. F2FS cannot store any other.
    pub name: Vec<u8>,
    /// Value in the form of Linux's system calls.
    pub value: Vec<u8>,
}

/// Identity of a file on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HostId {
    /// Device number on the host.
    pub device: u64,
    /// Inode number on that device.
    pub ino: u64,
}

/// Names of owner and group, if the source has them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Names {
    /// Name of the owner.
    pub user: Option<String>,
    /// Name of the group.
    pub group: Option<String>,
}

/// Metadata of an entry of any kind.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Metadata {
    /// Permissions with the set-user-id, set-group-id and sticky bits: the low 12 bits of a mode.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time of the last change of the content.
    pub mtime: Time,
    /// Time of the last access, if the source has it.
    pub atime: Option<Time>,
    /// Time of the last change of the inode, if the source has it.
    pub ctime: Option<Time>,
    /// Extended attributes, sorted by name.
    pub xattrs: Vec<Xattr>,
    /// Names of owner and group.
    pub names: Names,
    /// Identity on the host, if the entry comes from there.
    pub host: Option<HostId>,
}

impl Metadata {
    /// Sets an attribute and replaces one of the same name.
    pub fn set_xattr(&mut self, name: &[u8], value: Vec<u8>) {
        match self.xattrs.binary_search_by(|xattr| xattr.name.as_slice().cmp(name)) {
            Ok(at) => self.xattrs[at].value = value,
            Err(at) => self.xattrs.insert(at, Xattr { name: name.to_vec(), value }),
        }
    }
}

/// Returns true if F2FS can store an attribute of this name.
pub(crate) fn storable(name: &[u8]) -> bool {
    let prefixes: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    prefixes.iter().any(|prefix| name.len() > prefix.len() && name.starts_with(prefix))
        || name == b"system.posix_acl_access"
        || name == b"system.posix_acl_default"
}

#[cfg(test)]
mod tests {
    use f2fs::printable;

    use super::*;

    #[test]
    fn attributes_stay_sorted_and_single() {
        let mut meta = Metadata::default();
        for (name, value) in [("user.b", "1"), ("user.a", "2"), ("user.b", "3")] {
            meta.set_xattr(name.as_bytes(), value.into());
        }
        let flat: Vec<_> =
            meta.xattrs.iter().map(|x| (printable::name(&x.name), printable::name(&x.value))).collect();
        assert_eq!(flat, [("user.a".into(), "2".into()), ("user.b".into(), "3".into())]);
    }

    #[test]
    fn only_entries_that_f2fs_can_hold_are_storable() {
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
