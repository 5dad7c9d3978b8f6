//! The tree of nodes that holds a file's addresses.
//!
//! The inode has the first addresses; then come two direct nodes, two indirect nodes (of direct nodes) and one
//! double indirect node. Each node of a file has an offset, its number in that tree, kept in its footer: with
//! N children to an indirect node, 1 and 2 are the direct nodes, 3 is an indirect node with children 4 to
//! 3 + N, 4 + N the other, and 5 + 2N the double indirect one, followed by its indirect nodes, each before its
//! own children. (Linux, `get_node_path`.)

use std::ops::Range;

use super::{BlockSize, inode::InodeLayout, node::XATTR_NODE_OFFSET};

/// One step down the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Index of the child in the previous node; in the inode, index of one of its five nids.
    pub child: usize,
    /// Offset of that child, as in its footer.
    pub offset: u32,
    /// Blocks of the file below the child.
    pub blocks: Range<u64>,
}

/// The path from an inode to an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePath {
    steps: [Step; 3],
    depth: usize,
    /// Index of the address in the last node, or in the inode if there are no steps.
    pub index: usize,
}

impl NodePath {
    /// Returns the path to the address of a file's block; `None` past the largest block that the format can
    /// address.
    #[must_use]
    pub fn of(layout: &InodeLayout, file_block: u64) -> Option<NodePath> {
        let (direct, children) = (layout.direct_addrs() as u64, layout.children() as u64);
        let in_inode = layout.addrs() as u64;
        if file_block < in_inode {
            return Some(NodePath { steps: [NONE; 3], depth: 0, index: within(file_block) });
        }
        if file_block >= layout.max_blocks() {
            return None;
        }
        // Number of direct nodes before the wanted one, and index of the address in it.
        let (number, index) = ((file_block - in_inode) / direct, within((file_block - in_inode) % direct));
        let below = |first: u64, count: u64| {
            let start = in_inode + first * direct;
            start..start + count * direct
        };
        let step = |child: u64, offset: u64, first: u64, count: u64| Step {
            child: within(child),
            offset: u32::try_from(offset).expect("a file has fewer nodes"),
            blocks: below(first, count),
        };
        let n = children;
        let (steps, depth) = if number < 2 {
            ([step(number, 1 + number, number, 1), NONE, NONE], 1)
        } else if number < 2 + 2 * n {
            let (which, child) = ((number - 2) / n, (number - 2) % n);
            let offset = 3 + which * (n + 1);
            let own = step(child, offset + 1 + child, number, 1);
            ([step(2 + which, offset, 2 + which * n, n), own, NONE], 2)
        } else {
            let (middle, child) = ((number - 2 - 2 * n) / n, (number - 2 - 2 * n) % n);
            let top = 5 + 2 * n;
            let offset = top + 1 + middle * (n + 1);
            let steps = [
                step(4, top, 2 + 2 * n, n * n),
                step(middle, offset, 2 + (2 + middle) * n, n),
                step(child, offset + 1 + child, number, 1),
            ];
            (steps, 3)
        };
        Some(NodePath { steps, depth, index })
    }

    /// Returns the steps from the inode to the node with the address, none to three.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps[..self.depth]
    }
}

/// Converts a count within one node.
fn within(number: u64) -> usize {
    usize::try_from(number).expect("a node has a few thousand of anything")
}

const NONE: Step = Step { child: 0, offset: 0, blocks: 0..0 };

/// Kind of a node, determined by its offset in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind {
    /// The inode.
    Inode,
    /// A direct node; `number` direct nodes come before it.
    Direct {
        /// Direct nodes before this one.
        number: u64,
    },
    /// An indirect node: its children are direct nodes.
    Indirect,
    /// The double indirect node: its children are indirect nodes.
    DoubleIndirect,
    /// The node with the xattrs that do not fit inline.
    Xattr,
}

impl NodeKind {
    /// Returns the kind of the node at this offset; `None` if no node can have it.
    #[must_use]
    pub fn of(block_size: BlockSize, offset: u32) -> Option<NodeKind> {
        let (offset, n) = (u64::from(offset), block_size.node_addrs() as u64);
        let top = 5 + 2 * n;
        Some(match offset {
            0 => NodeKind::Inode,
            1 | 2 => NodeKind::Direct { number: offset - 1 },
            _ if offset < top => {
                let (which, place) = ((offset - 3) / (n + 1), (offset - 3) % (n + 1));
                match place {
                    0 => NodeKind::Indirect,
                    _ => NodeKind::Direct { number: 2 + which * n + place - 1 },
                }
            }
            _ if offset == top => NodeKind::DoubleIndirect,
            _ if offset <= top + n * (n + 1) => {
                let (which, place) = ((offset - top - 1) / (n + 1), (offset - top - 1) % (n + 1));
                match place {
                    0 => NodeKind::Indirect,
                    _ => NodeKind::Direct { number: 2 + (2 + which) * n + place - 1 },
                }
            }
            _ if offset == u64::from(XATTR_NODE_OFFSET) => NodeKind::Xattr,
            _ => return None,
        })
    }

    /// Returns the file's block that the first address of this node maps; `None` for nodes without addresses.
    #[must_use]
    pub fn first_block(self, layout: &InodeLayout) -> Option<u64> {
        match self {
            NodeKind::Inode => Some(0),
            NodeKind::Direct { number } => {
                Some(layout.addrs() as u64 + number * layout.direct_addrs() as u64)
            }
            NodeKind::Indirect | NodeKind::DoubleIndirect | NodeKind::Xattr => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            NodeBlock,
            inode::{Algorithm, Compression},
            node::NodeFormat,
            superblock::Features,
        },
        *,
    };
    use crate::units::Ino;

    fn plain(size: BlockSize) -> InodeLayout {
        let format = NodeFormat::new(size, Features::default(), &[0; 16]);
        NodeBlock::new_inode(format, Ino(9), 0o100_644, 0, 0).layout()
    }

    fn compressed() -> InodeLayout {
        let format = NodeFormat::new(
            BlockSize::B4K,
            Features(Features::EXTRA_ATTR.0 | Features::COMPRESSION.0),
            &[0; 16],
        );
        let mut node = NodeBlock::new_inode(format, Ino(9), 0o100_644, 0, 0);
        node.set_compression(Some(Compression {
            algorithm: Algorithm::Lz4,
            log_cluster_blocks: 2,
            checksum: false,
            level: 0,
        }));
        node.layout()
    }

    fn way(layout: &InodeLayout, block: u64) -> (Vec<(usize, u32)>, usize) {
        let path = NodePath::of(layout, block).expect("within the format");
        (path.steps().iter().map(|step| (step.child, step.offset)).collect(), path.index)
    }

    #[test]
    fn the_offsets_match_the_format() {
        let layout = plain(BlockSize::B4K);
        assert_eq!(way(&layout, 922), (vec![], 922));
        assert_eq!(way(&layout, 923), (vec![(0, 1)], 0));
        assert_eq!(way(&layout, 923 + 1018), (vec![(1, 2)], 0));
        let first = 923 + 2 * 1018;
        assert_eq!(way(&layout, first), (vec![(2, 3), (0, 4)], 0));
        assert_eq!(way(&layout, first + 1018 * 1018 - 1), (vec![(2, 3), (1017, 1021)], 1017));
        assert_eq!(way(&layout, first + 1018 * 1018), (vec![(3, 4 + 1018), (0, 5 + 1018)], 0));
        let double = first + 2 * 1018 * 1018;
        assert_eq!(way(&layout, double), (vec![(4, 2041), (0, 2042), (0, 2043)], 0));
        assert_eq!(
            way(&layout, double + 1018 * 1018),
            (vec![(4, 2041), (1, 2042 + 1019), (0, 2043 + 1019)], 0)
        );
        let last = layout.max_blocks() - 1;
        assert_eq!(last + 1, 1_057_053_439, "3.94 TiB, as the documentation of Linux says");
        assert_eq!(way(&layout, last).0[0], (4, 2041));
        assert_eq!(way(&layout, last).1, 1017);
        assert_eq!(NodePath::of(&layout, last + 1), None);
        assert_eq!(NodePath::of(&layout, u64::MAX), None);
    }

    #[test]
    fn offsets_lead_back_to_blocks() {
        for layout in [plain(BlockSize::B4K), plain(BlockSize::B16K), compressed()] {
            let size = if layout.children() == 1018 { BlockSize::B4K } else { BlockSize::B16K };
            let mut block = 0;
            while block < layout.max_blocks() {
                let path = NodePath::of(&layout, block).expect("within the format");
                for step in path.steps() {
                    assert!(step.blocks.contains(&block) && step.blocks.end <= layout.max_blocks());
                }
                let offset = path.steps().last().map_or(0, |step| step.offset);
                let kind = NodeKind::of(size, offset).expect("a node's offset");
                let first = kind.first_block(&layout).expect("a node with addresses");
                assert_eq!(first + path.index as u64, block);
                if let [.., parent, _] = path.steps() {
                    assert_eq!(NodeKind::of(size, parent.offset), Some(NodeKind::Indirect));
                }
                block = block * 3 / 2 + 1;
            }
        }
        assert_eq!(NodeKind::of(BlockSize::B4K, 2041), Some(NodeKind::DoubleIndirect));
        assert_eq!(NodeKind::of(BlockSize::B4K, XATTR_NODE_OFFSET), Some(NodeKind::Xattr));
        assert_eq!(NodeKind::of(BlockSize::B4K, XATTR_NODE_OFFSET - 1), None);
    }

    #[test]
    fn clusters_do_not_cross_nodes() {
        let layout = compressed();
        assert_eq!((layout.addrs(), layout.direct_addrs()), (912, 1016));
        assert_eq!(way(&layout, 912), (vec![(0, 1)], 0));
        assert_eq!(way(&layout, 912 + 1016), (vec![(1, 2)], 0));
    }
}
