//! Layout of an inode block, and its limits.

use std::ops::Range;

use super::{EXTRA_BYTES_MAX, EXTRA_BYTES_MIN, INLINE_XATTR_WORDS, inline};
use crate::format::{
    BlockSize,
    block_size::INODE_HEAD_BYTES,
    node::{NodeBlock, NodeFormat},
    superblock::Features,
};

/// Bytes of the smallest inline directory: "." and "..".
const INLINE_DENTRY_BYTES_MIN: usize = 40;
/// Words between the extra attributes and inline content.
const INLINE_RESERVED_WORDS: usize = 1;
/// Bytes of an xattr header, the minimum size of an inline xattr area in use.
const XATTR_HEADER_BYTES: usize = 24;
/// Maximum size of a file in bytes, whatever its nodes address. A 32-bit number counts its units of 4 KiB, as
/// encryption does, even if blocks are larger (Linux 6.12, `max_file_blocks`).
const REACH_BYTES: u64 = 4096 << 32;

/// Offsets of the parts of an inode block, and the numbers of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeLayout {
    block_size: BlockSize,
    extra_bytes: usize,
    xattr_words: usize,
    /// Blocks in a cluster; 1 if the file is not compressed.
    cluster_blocks: usize,
}

impl InodeLayout {
    /// Byte offset of address 0.
    #[must_use]
    pub fn addrs_at(&self) -> usize {
        INODE_HEAD_BYTES + self.extra_bytes
    }

    /// Addresses in the inode. Compressed files have whole clusters only.
    #[must_use]
    pub fn addrs(&self) -> usize {
        self.whole_clusters(self.words() - self.xattr_words)
    }

    /// Addresses that the file uses of each direct node.
    #[must_use]
    pub fn direct_addrs(&self) -> usize {
        self.whole_clusters(self.block_size.node_addrs())
    }

    /// Children of each indirect node.
    #[must_use]
    pub fn children(&self) -> usize {
        self.block_size.node_addrs()
    }

    /// Blocks in a compressed cluster; 1 if the file is not compressed.
    #[must_use]
    pub fn cluster_blocks(&self) -> usize {
        self.cluster_blocks
    }

    /// Number of blocks that the nodes of such a file can address.
    #[must_use]
    pub fn max_blocks(&self) -> u64 {
        let (direct, children) = (self.direct_addrs() as u64, self.children() as u64);
        self.addrs() as u64 + direct * (2 + 2 * children + children * children)
    }

    /// Largest number of blocks of the file. Linux does not count the inode's own addresses, so that the
    /// limit does not depend on the other content of the inode (Linux, `max_file_blocks`).
    #[must_use]
    pub fn reach_blocks(&self) -> u64 {
        (self.max_blocks() - self.addrs() as u64).min(REACH_BYTES >> self.block_size.log())
    }

    /// Bytes of inline content that the inode has room for.
    #[must_use]
    pub fn inline_bytes(&self) -> usize {
        4 * (self.words() - self.xattr_words - INLINE_RESERVED_WORDS)
    }

    /// Range of inline content in the block.
    #[must_use]
    pub fn inline_range(&self) -> Range<usize> {
        let start = self.addrs_at() + 4 * INLINE_RESERVED_WORDS;
        start..start + self.inline_bytes()
    }

    /// Range of inline xattrs in the block; it is reserved even while it is not in use.
    #[must_use]
    pub fn inline_xattr_range(&self) -> Range<usize> {
        let end = self.block_size.inode_nids_at();
        end - 4 * self.xattr_words..end
    }

    /// Words from the extra attributes to the node ids.
    fn words(&self) -> usize {
        self.block_size.inode_addrs() - self.extra_bytes / 4
    }

    fn whole_clusters(&self, addrs: usize) -> usize {
        addrs - addrs % self.cluster_blocks
    }
}

impl NodeBlock {
    /// Computes the layout. Fails with the reason if it is impossible.
    pub(super) fn find_layout(&self) -> Result<InodeLayout, String> {
        let NodeFormat { block_size, features, .. } = self.format();
        let has_extra = self.has_inline(inline::EXTRA_ATTR);
        if has_extra && !features.has(Features::EXTRA_ATTR) {
            return Err("extra attributes without the feature extra_attr".into());
        }
        let flexible = features.has(Features::FLEXIBLE_INLINE_XATTR);
        let extra_bytes = if has_extra { usize::from(self.extra().extra_isize.get()) } else { 0 };
        // Smaller extra attributes would overlap their own size field with address 0.
        let least = if has_extra || flexible { EXTRA_BYTES_MIN } else { 0 };
        if !(least..=EXTRA_BYTES_MAX).contains(&extra_bytes) || extra_bytes % 4 != 0 {
            return Err(format!("i_extra_isize {extra_bytes}"));
        }
        let xattr_words = if flexible {
            usize::from(self.extra().inline_xattr_words.get())
        } else if self.has_inline(inline::XATTR | inline::DENTRY) {
            // Inline directories reserve the area even if inline xattrs are off (Linux, do_read_inode).
            INLINE_XATTR_WORDS
        } else {
            0
        };
        let least = if self.has_inline(inline::XATTR) { XATTR_HEADER_BYTES / 4 } else { 0 };
        let most = block_size.inode_addrs()
            - EXTRA_BYTES_MAX / 4
            - INLINE_RESERVED_WORDS
            - INLINE_DENTRY_BYTES_MIN / 4;
        if !(least..=most).contains(&xattr_words) {
            return Err(format!("i_inline_xattr_size {xattr_words}, must be {least} to {most}"));
        }
        let cluster_blocks = self.find_compression()?.map_or(1, |settings| 1 << settings.log_cluster_blocks);
        Ok(InodeLayout { block_size, extra_bytes, xattr_words, cluster_blocks })
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{FULL, format},
        *,
    };
    use crate::units::Ino;

    #[test]
    fn inline_content_starts_one_word_after_the_addresses_and_has_the_formats_sizes() {
        let layout = |features, mode, inline| {
            NodeBlock::new_inode(format(features), Ino(9), mode, inline, 50).layout()
        };
        let plain = layout(Features::default(), 0o100_644, inline::XATTR);
        assert_eq!((plain.inline_range().start, plain.inline_bytes()), (364, 3488));
        let extra = layout(FULL, 0o100_644, inline::XATTR);
        assert_eq!((extra.inline_range().start, extra.inline_bytes()), (400, 3452));
        assert_eq!(extra.inline_xattr_range(), 3852..4052);
        assert_eq!((plain.addrs(), extra.addrs()), (873, 864));
        let without = layout(Features::default(), 0o100_644, 0);
        assert_eq!(without.addrs(), 923);
        let dir = layout(Features::default(), 0o040_755, inline::DENTRY);
        assert_eq!(dir.inline_bytes(), 3488, "an inline directory keeps the xattr area free");
        let reserved = layout(FULL, 0o100_644, 0);
        assert_eq!(reserved.addrs(), 864, "flexible: the size counts even where the flag is off");
        let big = NodeFormat::new(BlockSize::B16K, Features::default(), &[0; 16]);
        let big = NodeBlock::new_inode(big, Ino(9), 0o040_755, inline::DENTRY, 0).layout();
        assert_eq!(big.inline_bytes(), 4 * (3995 - 50 - 1));
        let reach = 1018 * (2 + 2 * 1018 + 1018 * 1018);
        assert_eq!((plain.reach_blocks(), big.reach_blocks()), (reach, 1 << 30), "no farther than 16 TiB");
    }
}
