//! Recognition of node blocks by their content alone.

use f2fs::{
    format::{
        BlockSize, FileType, NAME_MAX,
        checkpoint::RESERVED_NIDS,
        inode::{advise, raw::InodeHead},
        node::NodeFooter,
        node_path::NodeKind,
    },
    units::BlockAddr,
};
use zerocopy::FromBytes;

/// Maximum ratio of a volume to its truncated image.
const TRUNCATED_MAX: u64 = 16;
/// Nanoseconds in a second.
pub(crate) const SECOND_NS: u32 = 1_000_000_000;

/// Numbers that no node of the volume exceeds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// First nid that the volume cannot have.
    pub(crate) nids_end: u32,
    /// First block after the volume.
    pub(crate) blocks_end: u64,
}

impl Limits {
    /// The limits of a volume of which only the number of blocks of its image is known.
    pub(crate) fn of_image(blocks: u64) -> Limits {
        // A truncated image may be a part of a larger volume. A volume has fewer nids than blocks.
        let blocks_end = blocks.saturating_mul(TRUNCATED_MAX).min(u64::from(u32::MAX - 1));
        Limits { nids_end: u32::try_from(blocks_end).unwrap_or(u32::MAX), blocks_end }
    }

    fn has_nid(self, nid: u32) -> bool {
        (RESERVED_NIDS..self.nids_end).contains(&nid)
    }
}

/// Returns the footer of a block that looks like a node.
pub(crate) fn footer(bytes: &[u8], size: BlockSize, limits: Limits) -> Option<NodeFooter> {
    let footer = NodeFooter::of(bytes);
    if !limits.has_nid(footer.nid.0) || !limits.has_nid(footer.ino.0) {
        return None;
    }
    let kind = NodeKind::of(size, footer.offset)?;
    let is_plausible = match kind {
        NodeKind::Inode => footer.is_inode() && is_inode(bytes, limits),
        _ if footer.is_inode() => false,
        _ => bad_words(bytes, size, limits, kind).is_some_and(|(bad, _)| bad == 0),
    };
    is_plausible.then_some(footer)
}

/// Numbers of words of a node that are impossible, and that are in use. `None` for an inode.
pub(crate) fn bad_words(
    bytes: &[u8],
    size: BlockSize,
    limits: Limits,
    kind: NodeKind,
) -> Option<(usize, usize)> {
    let is_good = |word: u32| match kind {
        NodeKind::Direct { .. } => is_address(word, limits),
        _ => limits.has_nid(word),
    };
    match kind {
        NodeKind::Inode => return None,
        NodeKind::Xattr => return Some((0, 0)),
        NodeKind::Direct { .. } | NodeKind::Indirect | NodeKind::DoubleIndirect => {}
    }
    let used = || words(bytes, size).filter(|word| *word != 0);
    Some((used().filter(|word| !is_good(*word)).count(), used().count()))
}

fn words(bytes: &[u8], size: BlockSize) -> impl Iterator<Item = u32> + '_ {
    let words = bytes.chunks_exact(4).take(size.node_addrs());
    words.map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
}

fn is_address(word: u32, limits: Limits) -> bool {
    !BlockAddr(word).is_real() || u64::from(word) < limits.blocks_end
}

/// The fixed head of an inode block, unchecked.
pub(crate) fn head(bytes: &[u8]) -> &InodeHead {
    InodeHead::ref_from_prefix(bytes).expect("a block is longer than the head").0
}

fn is_inode(bytes: &[u8], limits: Limits) -> bool {
    let head = head(bytes);
    let name = &head.name[..(head.namelen.get() as usize).min(NAME_MAX)];
    let nanoseconds = [head.atime_nsec, head.ctime_nsec, head.mtime_nsec];
    FileType::from_mode(head.mode.get()).is_some()
        && head.namelen.get() as usize <= NAME_MAX
        && (head.advise & advise::ENC_NAME != 0 || !name.contains(&0))
        && (1..=u64::from(u32::MAX)).contains(&head.blocks.get())
        && nanoseconds.iter().all(|part| part.get() < SECOND_NS)
        && head.pino.get() < limits.nids_end
        && head.xattr_nid.get() < limits.nids_end
}

#[cfg(test)]
mod tests {
    use f2fs::{
        format::{NodeBlock, node::NodeFormat, superblock::Features},
        units::{Ino, Nid},
    };

    use super::*;

    const LIMITS: Limits = Limits { nids_end: 1000, blocks_end: 5000 };

    fn found(node: &NodeBlock) -> bool {
        footer(node.bytes(), BlockSize::B4K, LIMITS).is_some()
    }

    #[test]
    fn nodes_are_recognised_and_other_blocks_are_not() {
        let format = NodeFormat::new(BlockSize::B4K, Features::default(), &[0; 16]);
        let mut inode = NodeBlock::new_inode(format, Ino(9), 0o100_644, 0, 0);
        inode.set_last_name(Ino(3), b"a");
        assert!(found(&inode));
        inode.head_mut().mtime_nsec.set(SECOND_NS);
        assert!(!found(&inode), "a second has fewer nanoseconds");
        let mut direct = NodeBlock::new(format, Nid(10), Ino(9), 1, FileType::Regular);
        direct.set_addr(5, BlockAddr(4999));
        assert!(found(&direct));
        direct.set_addr(5, BlockAddr(5000));
        assert!(!found(&direct), "the address is past the volume");
        assert!(!found(&NodeBlock::new(format, Nid(2000), Ino(9), 1, FileType::Regular)), "no such nid");
        assert!(
            !found(&NodeBlock::new(format, Nid(9), Ino(9), 1, FileType::Regular)),
            "an inode has offset 0"
        );
        assert!(footer(&[0; 4096], BlockSize::B4K, LIMITS).is_none());
    }
}
