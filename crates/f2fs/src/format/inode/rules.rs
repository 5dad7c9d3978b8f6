//! Rules for every inode.

use super::{FileType, NodeBlock, advise, flag, inline};
use crate::{
    Error, Place, Result,
    format::{NAME_MAX, superblock::Features},
};

impl NodeBlock {
    /// Checks that the layout is still possible after a change that took over fields of another block.
    ///
    /// # Errors
    /// [`Error::Corrupt`] at `at` with the field that is wrong.
    pub(crate) fn check_layout(&self, at: Place) -> Result<()> {
        self.find_layout().map(drop).map_err(|what| Error::corrupt(at, what))
    }

    /// The rules for inodes.
    pub(in crate::format) fn check_inode(&self, at: Place) -> Result<()> {
        let bad = |what: String| Error::corrupt(at, what);
        if let Some(stored) = self.checksum() {
            let computed = self.compute_checksum();
            if stored != computed {
                return Err(bad(format!("inode checksum {stored:#010x}, computed {computed:#010x}")));
            }
        }
        let head = self.head();
        let mode = head.mode.get();
        let kind =
            FileType::from_mode(mode).ok_or_else(|| bad(format!("mode {mode:#o} has no known file type")))?;
        let layout = self.find_layout().map_err(bad)?;
        let blocks = head.blocks.get();
        if blocks == 0 {
            return Err(bad("i_blocks is 0, the inode itself must be counted".into()));
        }
        if blocks > u64::from(u32::MAX) {
            return Err(bad(format!("i_blocks {blocks}, more than a volume can have")));
        }
        if head.xattr_nid.get() == self.ino().0 {
            return Err(bad("i_xattr_nid is the inode itself".into()));
        }
        let size = head.size.get();
        let block_size = self.format().block_size;
        if size > block_size.max_file_blocks() << block_size.log() {
            return Err(bad(format!("i_size {size} is more than the format can address")));
        }
        if head.namelen.get() as usize > NAME_MAX {
            return Err(bad(format!("i_namelen {}, at most 255", head.namelen.get())));
        }
        if self.has_inline(inline::DATA) {
            let encoded = self.has_advise(advise::ENCRYPT) || self.has_advise(advise::VERITY);
            match kind {
                FileType::Regular if encoded || self.has_flag(flag::COMPRESS) => {
                    return Err(bad("inline data in an encrypted, sealed or compressed file".into()));
                }
                FileType::Regular | FileType::Symlink => {}
                _ => return Err(bad(format!("inline data with mode {mode:#o}"))),
            }
            if size > layout.inline_bytes() as u64 {
                return Err(bad(format!(
                    "i_size {size} with inline data, which has space for {}",
                    layout.inline_bytes()
                )));
            }
        }
        if self.has_inline(inline::DENTRY) && kind != FileType::Directory {
            return Err(bad(format!("inline directory entries with mode {mode:#o}")));
        }
        if self.has_flag(flag::CASEFOLD) && !self.format().features.has(Features::CASEFOLD) {
            return Err(bad("a casefolded directory without the feature casefold".into()));
        }
        match (self.saved_blocks(), self.compression()) {
            (Some(saved), Some(_)) if saved >= blocks => {
                Err(bad(format!("i_compr_blocks {saved} with i_blocks {blocks}")))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{FULL, complaint, file},
        *,
    };

    #[test]
    fn impossible_inodes_are_corrupt() {
        let damaged = |damage: fn(&mut NodeBlock)| {
            let mut node = file(FULL, inline::XATTR);
            damage(&mut node);
            let sum = node.compute_checksum();
            node.extra_mut().inode_checksum.set(sum);
            complaint(&node)
        };
        assert!(damaged(|node| node.head_mut().blocks.set(0)).contains("i_blocks is 0"));
        assert!(damaged(|node| node.head_mut().blocks.set(1 << 32)).contains("i_blocks 4294967296"));
        assert!(damaged(|node| node.head_mut().xattr_nid.set(9)).contains("i_xattr_nid"));
        assert!(damaged(|node| node.head_mut().mode.set(0o644)).contains("no known file type"));
        assert!(damaged(|node| node.extra_mut().extra_isize.set(40)).contains("i_extra_isize 40"));
        assert!(damaged(|node| node.extra_mut().extra_isize.set(34)).contains("i_extra_isize 34"));
        assert!(damaged(|node| node.extra_mut().inline_xattr_words.set(5)).contains("i_inline_xattr_size 5"));
        assert!(
            damaged(|node| node.extra_mut().inline_xattr_words.set(904)).contains("i_inline_xattr_size 904")
        );
        assert!(
            damaged(|node| node.head_mut().inline |= inline::DENTRY).contains("inline directory entries")
        );
        assert!(damaged(|node| node.head_mut().size.set(1 << 60)).contains("i_size"));
        assert!(damaged(|node| node.head_mut().namelen.set(256)).contains("i_namelen"));
        assert!(damaged(|node| node.head_mut().flags.set(flag::CASEFOLD)).contains("casefold"));
        assert!(
            damaged(|node| {
                node.head_mut().inline |= inline::DATA;
                node.head_mut().size.set(3453);
            })
            .contains("space for 3452")
        );
        assert!(
            damaged(|node| {
                node.head_mut().inline |= inline::DATA;
                node.head_mut().advise = advise::VERITY;
            })
            .contains("sealed")
        );
        // Clear content, which a reader with the key would take for decrypted.
        assert!(
            damaged(|node| {
                node.head_mut().inline |= inline::DATA;
                node.head_mut().advise = advise::ENCRYPT;
            })
            .contains("encrypted")
        );
        assert!(
            damaged(|node| {
                node.head_mut().flags.set(flag::COMPRESS);
                node.extra_mut().compress_algorithm = 4;
            })
            .contains("algorithm 4")
        );
        assert!(damaged(|node| node.head_mut().flags.set(flag::COMPRESS)).contains("i_log_cluster_size 0"));
        assert!(damaged(|node| node.extra_mut().extra_isize.set(0)).contains("i_extra_isize 0"));
        let mut plain = file(Features::default(), 0);
        plain.head_mut().inline = inline::EXTRA_ATTR;
        assert!(complaint(&plain).contains("without the feature extra_attr"));
        let mut flexible = file(Features(Features::EXTRA_ATTR.0 | Features::FLEXIBLE_INLINE_XATTR.0), 0);
        flexible.head_mut().inline = 0;
        assert!(complaint(&flexible).contains("i_extra_isize 0"));
    }
}
