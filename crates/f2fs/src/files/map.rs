//! Mapping from a block of a file to its address, through the file's node tree.
//!
//! *Invariants*: a walk takes at most three steps. The footer of each node on the way must say that it is the
//! node at this position, so cycles and shared nodes end in an error, not in a loop. Results are runs, as
//! long as a single node can tell; a missing subtree is one hole.

use std::{ops::Range, sync::Arc};

use super::Files;
use crate::{
    Error, Place, Result,
    format::{
        FileType,
        inode::{flag, raw::Extent},
        node::NodeBlock,
        node_path::{NodePath, Step},
        superblock::Features,
    },
    units::{BlockAddr, Nid},
};

/// Number of addresses that one part of a long operation examines or changes: about eight nodes.
pub(super) const PART_ADDRS: u64 = 8192;
/// Number of addresses that one run counts for at most: about those of one node, of which a run tells at most.
pub(super) const RUN_ADDRS: u64 = 1024;

/// Consecutive blocks of a file with the same kind of mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The blocks of the file, at least one.
    pub blocks: Range<u64>,
    /// Address of the first block. If it is real, the addresses of the others follow it. [`BlockAddr::NULL`]
    /// is a hole; [`BlockAddr::NEW`] is reserved and reads as zeroes; [`BlockAddr::COMPRESS`] is always a
    /// single block.
    pub addr: BlockAddr,
}

impl Run {
    /// Number of blocks in the run.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.blocks.end - self.blocks.start
    }

    /// Returns true if the run has no blocks, which no returned run has.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Returns true if `addr` continues the run.
    fn follows(&self, addr: BlockAddr) -> bool {
        if self.addr.is_real() {
            u64::from(addr.0) == u64::from(self.addr.0) + self.len()
        } else {
            self.addr == addr && addr != BlockAddr::COMPRESS
        }
    }
}

/// Blocks of a file whose addresses are unknown because a node above them cannot be read.
#[derive(Debug)]
pub(crate) struct Unmapped {
    /// The blocks of the file, at least one.
    pub blocks: Range<u64>,
    /// The error that hides this part.
    pub error: Error,
}

/// Storage of a cluster of a compressed file. A run that starts in a plain cluster never reaches into a
/// compressed one, because a compressed cluster starts with [`BlockAddr::COMPRESS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cluster {
    /// Plain blocks.
    Plain,
    /// Compressed blocks.
    Compressed {
        /// The blocks of the file that the cluster contains.
        blocks: Range<u64>,
        /// The addresses of the compressed data.
        addrs: Vec<BlockAddr>,
    },
}

impl Files {
    /// Returns the run that starts at `block` and ends at `limit` at the latest.
    pub(crate) fn run(&self, inode: &NodeBlock, block: u64, limit: u64) -> Result<Run> {
        self.run_or_unmapped(inode, block, limit).map_err(|unmapped| unmapped.error)
    }

    /// Like [`run`](Self::run), but the error names the blocks that it hides.
    pub(crate) fn run_or_unmapped(&self, inode: &NodeBlock, block: u64, limit: u64) -> Result<Run, Unmapped> {
        debug_assert!(block < limit);
        if inode.has_flag(flag::DEVICE_ALIAS)
            && self.disk().node_format().features.has(Features::DEVICE_ALIAS)
        {
            let size = inode.head().size.get().div_ceil(self.geometry().block_size.bytes() as u64);
            let hidden = block..limit.max(size);
            return self.alias_run(inode, block, limit).map_err(|error| Unmapped { blocks: hidden, error });
        }
        let Some(path) = NodePath::of(&inode.layout(), block) else {
            return Ok(Run { blocks: block..limit, addr: BlockAddr::NULL });
        };
        let mut holder: Option<Arc<NodeBlock>> = None;
        for step in path.steps() {
            let node = holder.as_deref().unwrap_or(inode);
            let nid = node.child(step.child);
            if nid == Nid::NULL {
                return Ok(Run { blocks: block..step.blocks.end.min(limit), addr: BlockAddr::NULL });
            }
            let child = self.child_node(inode, nid, step);
            holder = Some(child.map_err(|error| Unmapped { blocks: block..step.blocks.end, error })?);
        }
        let (node, count) = match holder.as_deref() {
            Some(node) => (node, inode.layout().direct_addrs()),
            None => (inode, inode.layout().addrs()),
        };
        let wanted = usize::try_from(limit - block).unwrap_or(usize::MAX);
        let mut addrs = node.addrs(path.index..count.min(path.index.saturating_add(wanted)));
        let first = addrs.next().expect("the path leads to an address");
        let mut run = Run { blocks: block..block + 1, addr: first };
        for addr in addrs {
            if !run.follows(addr) {
                break;
            }
            run.blocks.end += 1;
        }
        Ok(run)
    }

    /// Maps a block of a device alias file, which has no block addresses, only its extent. Linux refuses an extent outside the
    /// main area (`sanity_check_extent_cache`). A device alias is pinned there, and a pinned file cannot become compressed.
    fn alias_run(&self, inode: &NodeBlock, block: u64, limit: u64) -> Result<Run> {
        if inode.file_type() != FileType::Regular || inode.compression().is_some() {
            let what = "a device alias that is compressed, or not a regular file";
            return self.damage(Place::Inode(inode.ino()), what.into());
        }
        let Extent { fofs, blk, len } = inode.head().extent;
        let (start, length, addr) = (u64::from(fofs.get()), u64::from(len.get()), BlockAddr(blk.get()));
        let last = blk.get().checked_add(len.get().saturating_sub(1)).map(BlockAddr);
        let in_main = |addr| self.geometry().in_main(addr);
        if length > 0 && !(in_main(addr) && last.is_some_and(in_main)) {
            let what =
                format!("a device alias with {length} blocks from {addr} on, not all in the main area");
            return self.damage(Place::Inode(inode.ino()), what);
        }
        let (end, addr) = match block {
            _ if block < start => (start, BlockAddr::NULL),
            _ if block < start + length => (start + length, BlockAddr(addr.0 + (block - start) as u32)),
            _ => (limit, BlockAddr::NULL),
        };
        Ok(Run { blocks: block..end.min(limit), addr })
    }

    /// The address of one block of a file.
    pub(crate) fn address(&self, inode: &NodeBlock, block: u64) -> Result<BlockAddr> {
        Ok(self.run(inode, block, block + 1)?.addr)
    }

    /// Returns the storage of the cluster that contains `block`.
    pub(crate) fn cluster(&self, inode: &NodeBlock, block: u64) -> Result<Cluster> {
        self.cluster_or_unmapped(inode, block).map_err(|unmapped| unmapped.error)
    }

    /// Like [`cluster`](Self::cluster), but the error names the blocks that it hides.
    pub(super) fn cluster_or_unmapped(&self, inode: &NodeBlock, block: u64) -> Result<Cluster, Unmapped> {
        let size = inode.layout().cluster_blocks() as u64;
        let start = block - block % size;
        if size == 1 {
            return Ok(Cluster::Plain);
        }
        if self.run_or_unmapped(inode, start, start + 1)?.addr != BlockAddr::COMPRESS {
            return Ok(Cluster::Plain);
        }
        let mut addrs = Vec::new();
        let mut next = start + 1;
        while next < start + size {
            let run = self.run_or_unmapped(inode, next, start + size)?;
            if !run.addr.is_real() {
                break;
            }
            addrs.extend((0..run.len()).map(|n| BlockAddr(run.addr.0 + n as u32)));
            next = run.blocks.end;
        }
        Ok(Cluster::Compressed { blocks: start..start + size, addrs })
    }

    /// Returns the end of the last block of a file that has an address or a node, also past the end of the content, or 0 if
    /// there is none. Without that node and that address the map ends earlier. Reads at most one node of each level.
    pub(super) fn end_of_map(&self, inode: &NodeBlock) -> Result<u64> {
        let layout = inode.layout();
        let Some(top) = last_child(inode) else {
            return Ok(last_addr(inode, layout.addrs()).map_or(0, |index| index as u64 + 1));
        };
        let children = layout.children() as u64;
        let spans =
            [1, 1, children, children, children * children].map(|nodes| nodes * layout.direct_addrs() as u64);
        // The first block below the last child.
        let mut start = layout.addrs() as u64 + spans[..top].iter().sum::<u64>();
        let (mut holder, mut child): (Option<Arc<NodeBlock>>, usize) = (None, top);
        for depth in 0.. {
            let path = NodePath::of(&layout, start).ok_or(Error::FileTooLarge)?;
            let nid = holder.as_deref().unwrap_or(inode).child(child);
            let node = self.child_node(inode, nid, &path.steps()[depth])?;
            let Some(below) = path.steps().get(depth + 1) else {
                return Ok(
                    start + last_addr(&node, layout.direct_addrs()).map_or(1, |index| index as u64 + 1)
                );
            };
            let Some(last) = last_child(&node) else { break };
            start += last as u64 * (below.blocks.end - below.blocks.start);
            (holder, child) = (Some(node), last);
        }
        // An indirect node without children.
        Ok(start + 1)
    }

    /// Reads a node below an inode and checks that its footer names the position that `step` leads to.
    pub(super) fn child_node(&self, inode: &NodeBlock, nid: Nid, step: &Step) -> Result<Arc<NodeBlock>> {
        let node = self.nodes.node(nid)?;
        let footer = node.footer();
        if footer.ino != inode.ino() || footer.offset != step.offset {
            let at = Place::File(inode.ino(), step.blocks.start);
            let what = format!(
                "{nid} should be the node at offset {} of {}, its footer has offset {} of {}",
                step.offset,
                inode.ino(),
                footer.offset,
                footer.ino
            );
            return self.disk().io().record_corruption(Err(Error::corrupt(at, what)));
        }
        Ok(node)
    }
}

/// Returns the index of the last address of an inode or direct node that is not a hole.
fn last_addr(node: &NodeBlock, count: usize) -> Option<usize> {
    let holes = node.addrs(0..count).rev().take_while(|addr| *addr == BlockAddr::NULL).count();
    (count - holes).checked_sub(1)
}

/// Returns the index of the last child of an inode or indirect node.
fn last_child(node: &NodeBlock) -> Option<usize> {
    (0..node.child_count()).rev().find(|index| node.child(*index) != Nid::NULL)
}
