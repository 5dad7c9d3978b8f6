//! The content of a file as pieces: where its blocks lie, and which of them are lost.

use std::ops::Range;

use f2fs::{
    format::{NodeBlock, inode::inline, node::XATTR_NODE_OFFSET, node_path::NodeKind},
    units::{BlockAddr, Nid},
};

use crate::{
    nodes::{Inode, Nodes},
    versions::Standing,
};

/// A piece of a file, in blocks of the file. Holes are no pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Blocks that lie together on the device, and whose addresses lie together in a node.
    Data {
        /// First block of the file.
        block: u64,
        /// Blocks on the device.
        addrs: Range<u32>,
        /// Node with the addresses.
        nid: Nid,
        /// Index of the first address there.
        index: u16,
    },
    /// A compressed cluster.
    Cluster {
        /// First block of the file.
        block: u64,
        /// Blocks of the compressed stream.
        addrs: Vec<u32>,
        /// Node with the addresses.
        nid: Nid,
        /// Index of the first block's address there.
        index: u16,
    },
    /// Blocks whose addresses are lost with a node.
    Lost {
        /// Blocks of the file.
        blocks: Range<u64>,
    },
}

impl Piece {
    /// Calls `each` with the address of every block, the node that maps it, and the index there.
    pub(crate) fn for_each_addr(&self, mut each: impl FnMut(BlockAddr, Nid, u16)) {
        match self {
            Piece::Data { addrs, nid, index, .. } => {
                let indices = *index..;
                addrs.clone().zip(indices).for_each(|(addr, index)| each(BlockAddr(addr), *nid, index));
            }
            Piece::Cluster { addrs, nid, index, .. } => {
                addrs.iter().zip(*index..).for_each(|(addr, index)| each(BlockAddr(*addr), *nid, index));
            }
            Piece::Lost { .. } => {}
        }
    }
}

/// The content of a file, and the evidence on the nodes that map it.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    /// The pieces in ascending order, up to the size of the file. Inline content has none.
    pub(crate) all: Vec<Piece>,
    /// Number of further nodes of the file of which nothing tells whether they are the newest.
    pub(crate) unproven_nodes: u64,
    /// Number of further nodes of the file that are older ones: the address in the NAT holds something else.
    pub(crate) outdated_nodes: u64,
}

impl Pieces {
    fn count(&mut self, standing: Standing) {
        match standing {
            Standing::Confirmed => {}
            Standing::Unproven => self.unproven_nodes += 1,
            Standing::Outdated => self.outdated_nodes += 1,
        }
    }
}

/// Returns the content of a file.
pub(crate) fn pieces(nodes: Nodes<'_>, inode: &Inode) -> Pieces {
    let mut found = Pieces::default();
    let xattr_nid = inode.node.xattr_nid();
    if xattr_nid != Nid::NULL {
        if let Ok((_, standing)) = nodes.child(inode, xattr_nid, XATTR_NODE_OFFSET) {
            found.count(standing);
        }
    }
    if inode.node.has_inline(inline::DATA | inline::DENTRY) {
        return found;
    }
    let size = nodes.shape.block_size();
    let layout = inode.node.layout();
    let end = inode.node.head().size.get().div_ceil(size.bytes() as u64).min(layout.max_blocks());
    let cluster = layout.cluster_blocks();
    let direct = layout.direct_addrs();
    let mut reader = Reader { nodes, inode, end, cluster, direct, counted: 1, found };
    let in_inode = layout.addrs();
    reader.addrs(&inode.node, 0, in_inode);
    let n = layout.children() as u64;
    let direct = reader.direct as u64;
    let mut block = in_inode as u64;
    // Offsets and spans of the five children (Linux, `get_node_path`).
    let children = [
        (1, direct, Level::Direct),
        (2, direct, Level::Direct),
        (3, n * direct, Level::Indirect),
        (4 + n, n * direct, Level::Indirect),
        (5 + 2 * n, n * n * direct, Level::DoubleIndirect),
    ];
    for (child, (offset, span, level)) in children.into_iter().enumerate() {
        reader.child(inode.node.child(child), offset, block..block + span, level);
        block += span;
    }
    reader.conclude()
}

/// Kind of a node below an inode.
#[derive(Clone, Copy)]
enum Level {
    Direct,
    Indirect,
    DoubleIndirect,
}

struct Reader<'a> {
    nodes: Nodes<'a>,
    inode: &'a Inode,
    /// Blocks of the file.
    end: u64,
    /// Blocks of a cluster; 1 without compression.
    cluster: usize,
    /// Addresses of a direct node.
    direct: usize,
    /// Blocks of the file that were found, as `i_blocks` counts them.
    counted: u64,
    found: Pieces,
}

impl Reader<'_> {
    /// Reads the node `nid` that maps `blocks`.
    fn child(&mut self, nid: Nid, offset: u64, blocks: Range<u64>, level: Level) {
        if nid == Nid::NULL || blocks.start >= self.end {
            return;
        }
        self.counted += 1;
        let offset = u32::try_from(offset).expect("a file has fewer nodes");
        let Ok((node, standing)) = self.nodes.child(self.inode, nid, offset) else {
            self.search(offset, blocks, level);
            return;
        };
        self.found.count(standing);
        let below = match level {
            Level::Direct => return self.addrs(&node, blocks.start, self.direct),
            Level::Indirect => Level::Direct,
            Level::DoubleIndirect => Level::Indirect,
        };
        let count = node.child_count() as u64;
        let span = (blocks.end - blocks.start) / count;
        // An indirect node comes before its own children.
        let step = if matches!(level, Level::DoubleIndirect) { count + 1 } else { 1 };
        for child in 0..node.child_count() {
            let start = blocks.start + child as u64 * span;
            let offset = u64::from(offset) + 1 + child as u64 * step;
            self.child(node.child(child), offset, start..start + span, below);
        }
    }

    /// Searches for the direct nodes below a lost node. An fsync does not write indirect nodes.
    fn search(&mut self, offset: u32, blocks: Range<u64>, level: Level) {
        let layout = self.inode.node.layout();
        let n = u32::try_from(layout.children()).expect("a node has a few thousand children");
        let nodes = match level {
            Level::Direct => 1,
            Level::Indirect => 1 + n,
            Level::DoubleIndirect => 1 + n * (n + 1),
        };
        let mut at = blocks.start;
        for (node, standing) in self.nodes.without_parent(self.inode, offset..offset.saturating_add(nodes)) {
            let kind = NodeKind::of(self.nodes.shape.block_size(), node.footer().offset);
            let Some(first) = kind.and_then(|kind| kind.first_block(&layout)) else { continue };
            if first < at || first >= self.end {
                continue;
            }
            self.lose(at..first);
            self.found.count(standing);
            self.counted += 1;
            self.addrs(&node, first, self.direct);
            at = first + self.direct as u64;
        }
        self.lose(at..blocks.end.min(self.end));
    }

    /// Returns the pieces. Nothing is lost if the file has as many blocks as were found.
    fn conclude(mut self) -> Pieces {
        let head = self.inode.node.head();
        self.counted += u64::from(head.xattr_nid.get() != 0);
        if self.counted >= head.blocks.get() {
            self.found.all.retain(|piece| !matches!(piece, Piece::Lost { .. }));
        }
        self.found
    }

    fn lose(&mut self, blocks: Range<u64>) {
        if blocks.start >= blocks.end {
            return;
        }
        match self.found.all.last_mut() {
            Some(Piece::Lost { blocks: last }) if last.end == blocks.start => last.end = blocks.end,
            _ => self.found.all.push(Piece::Lost { blocks }),
        }
    }

    /// Takes the first `count` addresses of a node, which map the file from `first` on.
    fn addrs(&mut self, node: &NodeBlock, first: u64, count: usize) {
        let count = count.min(usize::try_from(self.end.saturating_sub(first)).unwrap_or(usize::MAX));
        // A cluster is stored as a whole, also past the end of the file.
        let count = count.next_multiple_of(self.cluster).min(node.addr_count());
        let addrs: Vec<u32> = node.addrs(0..count).map(|addr| addr.0).collect();
        let nid = node.nid();
        self.counted += addrs.iter().filter(|addr| **addr != BlockAddr::NULL.0).count() as u64;
        for (n, cluster) in addrs.chunks(self.cluster).enumerate() {
            let at = n * self.cluster;
            let block = first + at as u64;
            if cluster[0] == BlockAddr::COMPRESS.0 && self.cluster > 1 {
                let addrs =
                    cluster[1..].iter().copied().take_while(|addr| BlockAddr(*addr).is_real()).collect();
                self.found.all.push(Piece::Cluster { block, addrs, nid, index: small(at + 1) });
                continue;
            }
            for (n, addr) in cluster.iter().enumerate() {
                if block + (n as u64) < self.end && BlockAddr(*addr).is_real() {
                    self.data(block + n as u64, *addr, nid, small(at + n));
                }
            }
        }
    }

    fn data(&mut self, block: u64, addr: u32, nid: Nid, index: u16) {
        if let Some(Piece::Data { block: start, addrs, nid: last, .. }) = self.found.all.last_mut() {
            let length = u64::from(addrs.end - addrs.start);
            if *last == nid && addrs.end == addr && *start + length == block {
                addrs.end += 1;
                return;
            }
        }
        self.found.all.push(Piece::Data { block, addrs: addr..addr + 1, nid, index });
    }
}

/// Converts an index in a node.
fn small(index: usize) -> u16 {
    u16::try_from(index).expect("a node has a few thousand addresses")
}
