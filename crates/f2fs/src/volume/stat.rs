//! What an inode says about itself.

use super::Volume;
use crate::{
    Place, Result,
    format::{
        FileType,
        checkpoint::RESERVED_NIDS,
        inode::{Compression, DeviceNumber, advise, flag, inline},
        node::NodeBlock,
        xattr,
    },
    units::{Ino, Nid, Time},
};

/// The set-user-ID bit of a mode (`S_ISUID`).
const SET_UID: u16 = 0o4000;
/// The set-group-ID bit of a mode: new inodes of such a directory take over its group (`S_ISGID`).
pub const SET_GID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;

/// Facts of an inode, as `statx` gives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Its number.
    pub ino: Ino,
    /// Kind of the file.
    pub kind: FileType,
    /// Kind and permissions.
    pub mode: u16,
    /// Names that it has.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project.
    pub project: u32,
    /// Size in bytes.
    pub size: u64,
    /// Units of 512 bytes that it takes: its blocks without the inode's own, or of inline content the size.
    pub sectors: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Creation, where it is recorded.
    pub crtime: Option<Time>,
    /// The device that a device node stands for.
    pub device: Option<DeviceNumber>,
    /// Tells the inode from earlier ones of the same number.
    pub generation: u32,
    /// Flags as `chattr` shows them; see [`flag`](crate::format::inode::flag).
    pub flags: u32,
    /// Content, or names in the directory, are encrypted.
    pub encrypted: bool,
    /// The content, or the directory's entries, lie in the inode.
    pub inline: bool,
    /// Sealed with fs-verity.
    pub sealed: bool,
    /// The blocks must not move.
    pub pinned: bool,
    /// How the file is compressed.
    pub compression: Option<Compression>,
    /// Blocks that compression saves.
    pub saved_blocks: u64,
    /// The blocks that compression saves have been given back.
    pub released: bool,
    /// It has extended attributes, or may have some: those in a node of their own are not looked at.
    pub has_xattrs: bool,
}

impl Stat {
    /// The flags that `lsattr` shows: the stored ones that Linux passes on, and those that stand for other facts
    /// (Linux, `f2fs_fileattr_get`).
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

/// Returns true if an inode says that it may have extended attributes.
fn may_have_xattrs(inode: &NodeBlock) -> bool {
    let at = Place::Xattr(inode.ino());
    inode.xattr_nid() != Nid::NULL
        || xattr::entries(inode.inline_xattrs(), at).map_or(true, |mut entries| entries.next().is_some())
}

/// The permissions that are left when a mode loses its privilege, if it has any. The set-group-id bit of a file that
/// the group cannot execute stays when somebody of the group takes it (Linux, `setattr_should_drop_sgid`).
pub fn without_privilege(mode: u16, is_in_group: impl FnOnce() -> bool) -> Option<u16> {
    let mut lost = mode & SET_UID;
    if mode & SET_GID != 0 && (mode & GROUP_EXECUTE != 0 || !is_in_group()) {
        lost |= SET_GID;
    }
    (lost != 0).then_some(mode & !lost & 0o7777)
}

/// Room of a volume, as `statfs` gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Blocks from the checkpoint area on.
    pub blocks: u64,
    /// Blocks that files may still take.
    pub free_blocks: u64,
    /// Inodes that there can be.
    pub inodes: u64,
    /// Inodes that can still be made.
    pub free_inodes: u64,
}

impl Volume {
    /// Room of the volume (Linux, `f2fs_statfs`).
    pub fn space(&self) -> Space {
        let (sb, counters) = (self.superblock(), self.counters());
        let user_blocks = self.last_checkpoint().user_blocks;
        let free_blocks = user_blocks.saturating_sub(counters.valid_blocks);
        let all_nodes = u64::from(sb.nat_blocks()) * sb.block_size.nat_entries() as u64;
        let nodes = all_nodes.saturating_sub(u64::from(RESERVED_NIDS));
        let (inodes, free_inodes) = if nodes > user_blocks {
            (user_blocks, free_blocks)
        } else {
            (nodes, nodes.saturating_sub(u64::from(counters.valid_nodes)).min(free_blocks))
        };
        Space {
            blocks: sb.blocks.saturating_sub(u64::from(sb.checkpoint.start.0)),
            free_blocks,
            inodes,
            free_inodes,
        }
    }

    /// Facts of an inode.
    pub fn stat(&self, ino: Ino) -> Result<Stat> {
        let inode = self.inode(ino)?;
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
            // The size must be that of the target that readers see (Linux, fscrypt_symlink_getattr).
            stat.size = self.read_link(ino)?.len() as u64;
        }
        Ok(stat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privilege_is_lost_as_linux_has_it() {
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
