//! The block size and every count that follows from it.
//!
//! F2FS blocks are as large as the kernel's pages: 4096 bytes, or 16384 since Linux 6.7 on machines with 16
//! KiB pages.

/// Size of a block. Every method is a constant of the format for that size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum BlockSize {
    /// 4096 bytes: nearly every volume.
    #[default]
    B4K,
    /// 16384 bytes.
    B16K,
}

/// Bytes of the node footer at the end of each node block.
pub const NODE_FOOTER_BYTES: usize = 24;
/// Bytes of an inode before its address area (`i_addr`), without extra attributes.
pub const INODE_HEAD_BYTES: usize = 360;
/// Node ids in an inode: two direct, two indirect, one double indirect.
pub const INODE_NIDS: usize = 5;
/// Bytes of a dentry.
pub const DENTRY_BYTES: usize = 11;
/// Bytes of a name slot.
pub const NAME_SLOT_BYTES: usize = 8;

impl BlockSize {
    /// Returns the size with this base-2 logarithm, if F2FS supports it.
    #[must_use]
    pub const fn from_log(log: u32) -> Option<BlockSize> {
        match log {
            12 => Some(BlockSize::B4K),
            14 => Some(BlockSize::B16K),
            _ => None,
        }
    }

    /// log2 of [`bytes`](Self::bytes).
    #[must_use]
    pub const fn log(self) -> u32 {
        match self {
            BlockSize::B4K => 12,
            BlockSize::B16K => 14,
        }
    }

    /// Bytes in a block.
    #[must_use]
    pub const fn bytes(self) -> usize {
        1 << self.log()
    }

    /// Bytes in a segment.
    #[must_use]
    pub const fn segment_bytes(self) -> u64 {
        (self.bytes() as u64) << super::LOG_BLOCKS_PER_SEGMENT
    }

    /// Address words in an inode without extra attributes and inline xattrs: 923 or 3995.
    #[must_use]
    pub const fn inode_addrs(self) -> usize {
        (self.bytes() - INODE_HEAD_BYTES - INODE_NIDS * 4 - NODE_FOOTER_BYTES) / 4
    }

    /// Byte offset of the five node ids in an inode.
    #[must_use]
    pub const fn inode_nids_at(self) -> usize {
        self.bytes() - INODE_NIDS * 4 - NODE_FOOTER_BYTES
    }

    /// Address words in a direct node, nids in an indirect node: 1018 or 4090.
    #[must_use]
    pub const fn node_addrs(self) -> usize {
        (self.bytes() - NODE_FOOTER_BYTES) / 4
    }

    /// Maximum number of blocks of a file, which is the number that the nodes of an inode without extra
    /// attributes can address.
    #[must_use]
    pub const fn max_file_blocks(self) -> u64 {
        let words = self.node_addrs() as u64;
        self.inode_addrs() as u64 + words * (2 + words * (2 + words))
    }

    /// NAT entries in a block: 455 or 1820.
    #[must_use]
    pub const fn nat_entries(self) -> usize {
        self.bytes() / 9
    }

    /// SIT entries in a block: 55 or 221.
    #[must_use]
    pub const fn sit_entries(self) -> usize {
        self.bytes() / 74
    }

    /// Dentry slots in a directory block: 214 or 856.
    #[must_use]
    pub const fn dentries(self) -> usize {
        8 * self.bytes() / ((DENTRY_BYTES + NAME_SLOT_BYTES) * 8 + 1)
    }

    /// Inode numbers in an orphan block: 1020 or 4092.
    #[must_use]
    pub const fn orphans(self) -> usize {
        (self.bytes() - 16) / 4
    }
}

#[cfg(test)]
mod tests {
    use super::BlockSize::{B4K, B16K};

    #[test]
    fn counts_match_the_format() {
        for (size, counts) in
            [(B4K, [923, 1018, 455, 55, 214, 1020]), (B16K, [3995, 4090, 1820, 221, 856, 4092])]
        {
            assert_eq!(
                [
                    size.inode_addrs(),
                    size.node_addrs(),
                    size.nat_entries(),
                    size.sit_entries(),
                    size.dentries(),
                    size.orphans()
                ],
                counts
            );
        }
    }
}
