//! The content of a file as pieces: where its blocks lie, and which of them are lost.

use std::ops::Range;

use f2fs::{
    format::{
        NodeBlock,
        inode::{advise, inline},
        node::XATTR_NODE_OFFSET,
        node_path::NodeKind,
    },
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

    /// Number of blocks whose addresses are lost.
    pub(crate) fn lost_blocks(&self) -> u64 {
        match self {
            Piece::Lost { blocks } => blocks.end - blocks.start,
            Piece::Data { .. } | Piece::Cluster { .. } => 0,
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
    /// Blocks that the inode counts, and that neither a node maps nor a lost node can have mapped.
    pub(crate) uncharted: u64,
    /// Block of the file after the last one that was found.
    pub(crate) mapped_end: u64,
    /// Size of the file in bytes: that of the inode, or the end of the last block that was found if the size is too small.
    pub(crate) size: u64,
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
    let size = inode.node.head().size.get();
    let mut found = Pieces { size, ..Pieces::default() };
    let xattr_nid = inode.node.xattr_nid();
    if xattr_nid != Nid::NULL {
        if let Ok((_, standing)) = nodes.child(inode, xattr_nid, XATTR_NODE_OFFSET) {
            found.count(standing);
        }
    }
    if inode.node.has_inline(inline::DATA | inline::DENTRY) {
        return found;
    }
    let block_size = nodes.shape.block_size();
    let end = size.div_ceil(block_size.bytes() as u64).min(inode.node.layout().max_blocks());
    let nodes_before = (found.unproven_nodes, found.outdated_nodes);
    let mut reader = Reader::read(nodes, inode, end, Holes::Trusted, found);
    let counted = inode.node.head().blocks.get();
    // The last cluster is stored as a whole. An address that the inode does not count is a stray one.
    let is_long = reader.mapped_end > end.next_multiple_of(reader.cluster as u64)
        && reader.counted <= counted
        && !explains_blocks_past_end(nodes, inode);
    let is_short = reader.counted < counted;
    if is_long || is_short {
        let end = if is_long { reader.mapped_end } else { end };
        let size = if is_long { end << block_size.log() } else { size };
        let holes = if is_short { Holes::Searched } else { Holes::Trusted };
        let (unproven_nodes, outdated_nodes) = nodes_before;
        let found = Pieces { unproven_nodes, outdated_nodes, size, ..Pieces::default() };
        reader = Reader::read(nodes, inode, end, holes, found);
    }
    reader.conclude()
}

/// Returns true if blocks past the end of a file say nothing against its size: a checksum confirms the size, or a mark tells
/// that the blocks are reserved, left over or those of a Merkle tree.
fn explains_blocks_past_end(nodes: Nodes<'_>, inode: &Inode) -> bool {
    nodes.has_proven_size(inode) || inode.node.has_advise(advise::PAST_END | advise::VERITY)
}

/// Meaning of a child that a node does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holes {
    /// A hole.
    Trusted,
    /// A node may be there, because the inode counts more blocks.
    Searched,
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
    /// Blocks of the file that were found, as `i_blocks` counts them: also those past its end.
    counted: u64,
    /// End of the last block with an address.
    mapped_end: u64,
    holes: Holes,
    found: Pieces,
}

impl<'a> Reader<'a> {
    /// Reads the addresses of the first `end` blocks of a file, and counts the others.
    fn read(nodes: Nodes<'a>, inode: &'a Inode, end: u64, holes: Holes, found: Pieces) -> Reader<'a> {
        let layout = inode.node.layout();
        let (cluster, direct) = (layout.cluster_blocks(), layout.direct_addrs());
        let counted = 1 + u64::from(inode.node.xattr_nid() != Nid::NULL);
        let mut reader = Reader { nodes, inode, end, cluster, direct, counted, mapped_end: 0, holes, found };
        let in_inode = layout.addrs();
        reader.addrs(&inode.node, 0, in_inode);
        let (n, direct) = (layout.children() as u64, direct as u64);
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
        reader
    }

    /// Reads the node `nid` that maps `blocks`.
    fn child(&mut self, nid: Nid, offset: u64, blocks: Range<u64>, level: Level) {
        let offset = u32::try_from(offset).expect("a file has fewer nodes");
        if nid == Nid::NULL {
            if self.holes == Holes::Searched && blocks.start < self.end {
                self.search_hole(offset, blocks, level);
            }
            return;
        }
        self.counted += 1;
        let Ok((node, standing)) = self.nodes.child(self.inode, nid, offset) else {
            if blocks.start < self.end {
                self.search(offset, blocks, level);
            }
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

    /// Number of nodes from a node on to the last one below it.
    fn node_count(&self, level: Level) -> u32 {
        let n = self.inode.node.layout().children();
        let n = u32::try_from(n).expect("a node has a few thousand children");
        match level {
            Level::Direct => 1,
            Level::Indirect => 1 + n,
            Level::DoubleIndirect => 1 + n * (n + 1),
        }
    }

    /// Searches for the direct nodes below a lost node. An fsync does not write indirect nodes.
    fn search(&mut self, offset: u32, blocks: Range<u64>, level: Level) {
        let offsets = offset..offset.saturating_add(self.node_count(level));
        let mut at = blocks.start;
        let mut parent = None;
        for (node, standing) in self.nodes.without_parent(self.inode, offsets) {
            if matches!(level, Level::DoubleIndirect) {
                // The indirect node that it is, or that it lies below.
                let own =
                    (node.footer().offset - offset).saturating_sub(1) / self.node_count(Level::Indirect);
                self.counted += u64::from(parent.replace(own) != Some(own));
            }
            let Some(first) = self.first_block(&node).filter(|first| (at..self.end).contains(first)) else {
                continue;
            };
            self.lose(at..first);
            self.found.count(standing);
            self.counted += 1;
            self.addrs(&node, first, self.direct);
            at = first + self.direct as u64;
        }
        self.lose(at..blocks.end.min(self.end));
    }

    /// Searches for the nodes of a child that a node does not have: those that the NAT or the chain of fsyncs has, as nodes of
    /// the inode at these offsets.
    fn search_hole(&mut self, offset: u32, blocks: Range<u64>, level: Level) {
        let offsets = offset..offset.saturating_add(self.node_count(level));
        let mut at = blocks.start;
        for (node, standing) in self.nodes.without_parent(self.inode, offsets) {
            if standing != Standing::Confirmed {
                continue;
            }
            self.counted += 1;
            let Some(first) = self.first_block(&node).filter(|first| (at..self.end).contains(first)) else {
                continue;
            };
            self.addrs(&node, first, self.direct);
            at = first + self.direct as u64;
        }
    }

    /// First block of the file that a direct node maps.
    fn first_block(&self, node: &NodeBlock) -> Option<u64> {
        let kind = NodeKind::of(self.nodes.shape.block_size(), node.footer().offset)?;
        kind.first_block(&self.inode.node.layout())
    }

    /// Returns the pieces. Nothing is lost if the file has as many blocks as were found.
    fn conclude(mut self) -> Pieces {
        let head = self.inode.node.head();
        self.found.mapped_end = self.mapped_end;
        if self.counted >= head.blocks.get() {
            self.found.all.retain(|piece| !matches!(piece, Piece::Lost { .. }));
            return self.found;
        }
        let lost: u64 = self.found.all.iter().map(Piece::lost_blocks).sum();
        self.found.uncharted = (head.blocks.get() - self.counted).saturating_sub(lost);
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

    /// Takes the first `count` addresses of a node, which map the file from `first` on. Those past the end of the file are only
    /// counted.
    fn addrs(&mut self, node: &NodeBlock, first: u64, count: usize) {
        let all = || node.addrs(0..count.min(node.addr_count()));
        self.counted += all().filter(|addr| *addr != BlockAddr::NULL).count() as u64;
        let is_compressed = self.cluster > 1;
        let is_mapped = |addr: BlockAddr| addr.is_real() || (is_compressed && addr == BlockAddr::COMPRESS);
        if let Some((block, _)) = (first..).zip(all()).filter(|(_, addr)| is_mapped(*addr)).last() {
            self.mapped_end = self.mapped_end.max(block + 1);
        }
        let count = count.min(usize::try_from(self.end.saturating_sub(first)).unwrap_or(usize::MAX));
        // A cluster is stored as a whole, also past the end of the file.
        let count = count.next_multiple_of(self.cluster).min(node.addr_count());
        let addrs: Vec<u32> = node.addrs(0..count).map(|addr| addr.0).collect();
        let nid = node.nid();
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
