//! What an inode says about itself.

use super::Volume;
use crate::{
    Result,
    format::{
        FileType,
        inode::{Compression, DeviceNumber, advise, inline},
    },
    units::{Ino, Time},
};

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
    /// Blocks without the inode's own, in units of 512 bytes.
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
}

impl Volume {
    /// Facts of an inode.
    pub fn stat(&self, ino: Ino) -> Result<Stat> {
        let inode = self.inode(ino)?;
        let head = inode.head();
        let blocks = head.blocks.get().saturating_sub(1);
        let mut stat = Stat {
            ino,
            kind: inode.file_type(),
            mode: head.mode.get(),
            links: head.links.get(),
            uid: head.uid.get(),
            gid: head.gid.get(),
            project: inode.project().unwrap_or(0),
            size: head.size.get(),
            sectors: blocks.saturating_mul(self.superblock().block_size.bytes() as u64 / 512),
            atime: inode.atime(),
            mtime: inode.mtime(),
            ctime: inode.ctime(),
            crtime: inode.crtime(),
            device: inode.device_number(),
            generation: head.generation.get(),
            flags: head.flags.get(),
            encrypted: inode.has_advise(advise::ENCRYPT),
            sealed: inode.has_advise(advise::VERITY),
            pinned: inode.has_inline(inline::PIN),
            compression: inode.compression(),
            saved_blocks: inode.saved_blocks().unwrap_or(0),
            released: inode.has_inline(inline::COMPRESS_RELEASED),
        };
        if stat.kind == FileType::Symlink && stat.encrypted {
            // The size must be that of the target that readers see (Linux, fscrypt_symlink_getattr).
            stat.size = self.read_link(ino)?.len() as u64;
        }
        Ok(stat)
    }
}
