//! File attributes (`stat`) and volume statistics (`statfs`).

use super::Names;
use crate::{
    Place, Result,
    format::{
        FileType,
        inode::{Compression, DeviceNumber, advise, flag, inline},
        node::NodeBlock,
        xattr,
    },
    units::{Ino, Nid, Time},
};

/// The set-user-ID bit of a mode (`S_ISUID`).
const SET_UID: u16 = 0o4000;
/// The set-group-ID bit of a mode (`S_ISGID`): new inodes in such a directory inherit its group.
pub const SET_GID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;

/// Attributes of an inode, as in `statx`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Inode number.
    pub ino: Ino,
    /// File type.
    pub kind: FileType,
    /// File type and permissions.
    pub mode: u16,
    /// Number of links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project.
    pub project: u32,
    /// Size in bytes.
    pub size: u64,
    /// Allocated size in units of 512 bytes: the blocks except the inode's own, or the size of inline
    /// content.
    pub sectors: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Creation, if the inode stores it.
    pub crtime: Option<Time>,
    /// Device number, for a device node.
    pub device: Option<DeviceNumber>,
    /// Generation number, which distinguishes the inode from earlier ones with the same number.
    pub generation: u32,
    /// Flags as `chattr` shows them; see [`flag`](mod@crate::format::inode::flag).
    pub flags: u32,
    /// True if the content, or the names in the directory, are encrypted.
    pub encrypted: bool,
    /// True if the content, or the directory entries, are stored in the inode.
    pub inline: bool,
    /// True if the file is sealed with fs-verity.
    pub sealed: bool,
    /// True if the file is pinned: its blocks must not move.
    pub pinned: bool,
    /// Compression settings of a compressed file.
    pub compression: Option<Compression>,
    /// Blocks saved by compression.
    pub saved_blocks: u64,
    /// True if the blocks saved by compression have been released.
    pub released: bool,
    /// True if the inode has extended attributes, or has an xattr node, whose content is not checked.
    pub has_xattrs: bool,
}

impl Stat {
    /// The flags that `lsattr` shows: the stored ones that Linux passes on, and those derived from other
    /// attributes (Linux, `f2fs_fileattr_get`).
    #[must_use]
    pub fn shown_flags(&self) -> u32 {
        let facts = [
            (self.encrypted, flag::ENCRYPT),
            (self.sealed, flag::VERITY),
            (self.pinned, flag::NOCOW),
            (self.inline, flag::INLINE_DATA),
        ];
        let stored =
            if self.kind == FileType::Regular { self.flags & !flag::PROJECT_INHERIT } else { self.flags };
        facts.into_iter().filter(|(fact, _)| *fact).fold(stored & flag::SHOWN, |flags, (_, bit)| flags | bit)
    }
}

/// Returns true if an inode may have extended attributes.
fn may_have_xattrs(inode: &NodeBlock) -> bool {
    let at = Place::Xattr(inode.ino());
    inode.xattr_nid() != Nid::NULL
        || xattr::entries(inode.inline_xattrs(), at).map_or(true, |mut entries| entries.next().is_some())
}

/// Returns the permissions that remain after the set-user-ID and set-group-ID bits are dropped; `None` if
/// neither is dropped. The set-group-ID bit of a file that is not executable by its group stays if the caller
/// belongs to the group (Linux, `setattr_should_drop_sgid`).
pub fn without_privilege(mode: u16, is_in_group: impl FnOnce() -> bool) -> Option<u16> {
    let mut lost = mode & SET_UID;
    if mode & SET_GID != 0 && (mode & GROUP_EXECUTE != 0 || !is_in_group()) {
        lost |= SET_GID;
    }
    (lost != 0).then_some(mode & !lost & 0o7777)
}

impl Names {
    /// Attributes of an inode.
    pub(crate) fn stat(&self, ino: Ino) -> Result<Stat> {
        let inode = self.nodes().inode(ino)?;
        let head = inode.head();
        let kind = inode.file_type();
        let inline = inode.has_inline(inline::DATA | inline::DENTRY);
        let mut sectors = (head.blocks.get().saturating_sub(1))
            .saturating_mul(self.superblock().block_size.bytes() as u64 / 512);
        if inline && kind != FileType::Symlink {
            sectors = sectors.saturating_add(head.size.get().div_ceil(512));
        }
        let mut stat = Stat {
            ino,
            kind,
            mode: head.mode.get(),
            links: head.links.get(),
            uid: head.uid.get(),
            gid: head.gid.get(),
            project: inode.project().unwrap_or(0),
            size: head.size.get(),
            sectors,
            atime: inode.atime(),
            mtime: inode.mtime(),
            ctime: inode.ctime(),
            crtime: inode.crtime(),
            device: inode.device_number(),
            generation: head.generation.get(),
            flags: head.flags.get(),
            encrypted: inode.has_advise(advise::ENCRYPT),
            inline,
            sealed: inode.has_advise(advise::VERITY),
            pinned: inode.has_inline(inline::PIN),
            compression: inode.compression(),
            saved_blocks: inode.saved_blocks().unwrap_or(0),
            released: inode.has_inline(inline::COMPRESS_RELEASED),
            has_xattrs: may_have_xattrs(&inode),
        };
        if stat.kind == FileType::Symlink && stat.encrypted {
            // The size must be that of the target as readers see it (Linux, `fscrypt_symlink_getattr`).
            stat.size = self.read_link(ino)?.len() as u64;
        }
        Ok(stat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privileges_are_dropped_as_on_linux() {
        assert_eq!(without_privilege(0o106_755, || true), Some(0o755));
        assert_eq!(
            without_privilege(0o106_745, || true),
            Some(0o2745),
            "without group execute the bit stays"
        );
        assert_eq!(without_privilege(0o106_745, || false), Some(0o745), "for those of the group");
        assert_eq!(without_privilege(0o102_745, || true), None);
        assert_eq!(without_privilege(0o100_644, || false), None);
    }
}
