//! From a block of a file to its address, through the file's tree of nodes.
//!
//! *Invariants*: a walk takes at most three steps, and each node on the way must say in its footer that it is
//! the node that belongs there; so cycles and shared nodes end in an error, not in a loop. Answers come as
//! runs, as long as one node can tell, and a subtree that is not there is one hole.

use std::{ops::Range, sync::Arc};

use super::Volume;
use crate::{
    Error, Place, Result,
    format::{
        inode::flag,
        node::NodeBlock,
        node_path::{NodePath, Step},
        superblock::Features,
    },
    units::{BlockAddr, Nid},
};

/// Blocks of a file that are mapped in one way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The blocks, at least one.
    pub blocks: Range<u64>,
    /// Address of the first where it is a real one, then the others follow it. [`BlockAddr::NULL`] is a hole,
    /// [`BlockAddr::NEW`] is reserved and reads as zeroes. [`BlockAddr::COMPRESS`] is always one block.
    pub addr: BlockAddr,
}

impl Run {
    /// Blocks in the run.
    pub fn len(&self) -> u64 {
        self.blocks.end - self.blocks.start
    }

    /// Whether there is nothing in it; no run that is handed out is.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The addresses that follow one another from the run's first.
    fn follows(&self, addr: BlockAddr) -> bool {
        if self.addr.is_real() {
            u64::from(addr.0) == u64::from(self.addr.0) + self.len()
        } else {
            self.addr == addr && addr != BlockAddr::COMPRESS
        }
    }
}

/// Blocks of a file whose addresses cannot be known, because a node above them cannot be read.
#[derive(Debug)]
pub(super) struct Unmapped {
    /// The blocks, at least one.
    pub blocks: Range<u64>,
    /// The reason.
    pub error: Error,
}

/// How a cluster of a compressed file is stored. A run that starts in a plain cluster never reaches into a
/// compressed one, which begins with an address that follows no other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cluster {
    /// As plain blocks.
    Plain,
    /// Compressed.
    Compressed {
        /// The blocks of the file that it stands for.
        blocks: Range<u64>,
        /// Where the compressed bytes are.
        addrs: Vec<BlockAddr>,
    },
}

impl Volume {
    /// The run that starts with `block` and ends before `limit` at the latest. What the format cannot address is
    /// a hole.
    pub fn run(&self, inode: &NodeBlock, block: u64, limit: u64) -> Result<Run> {
        self.run_or_unmapped(inode, block, limit).map_err(|unmapped| unmapped.error)
    }

    /// As [`run`](Self::run); an error says how many blocks it hides.
    pub(super) fn run_or_unmapped(&self, inode: &NodeBlock, block: u64, limit: u64) -> Result<Run, Unmapped> {
        debug_assert!(block < limit);
        if inode.has_flag(flag::DEVICE_ALIAS) && self.format.features.has(Features::DEVICE_ALIAS) {
            return Ok(alias_run(inode, block, limit));
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

    /// The address of one block of a file.
    pub fn address(&self, inode: &NodeBlock, block: u64) -> Result<BlockAddr> {
        Ok(self.run(inode, block, block + 1)?.addr)
    }

    /// How the cluster that `block` belongs to is stored.
    pub fn cluster(&self, inode: &NodeBlock, block: u64) -> Result<Cluster> {
        self.cluster_or_unmapped(inode, block).map_err(|unmapped| unmapped.error)
    }

    /// As [`cluster`](Self::cluster); an error says how many blocks it hides.
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

    /// A node below an inode: its footer must say that it is the one that `step` leads to.
    pub(super) fn child_node(&self, inode: &NodeBlock, nid: Nid, step: &Step) -> Result<Arc<NodeBlock>> {
        let node = self.node(nid)?;
        let footer = node.footer();
        if footer.ino != inode.ino() || footer.offset != step.offset {
            let at = Place::File(inode.ino(), step.blocks.start);
            let what = format!(
                "{nid} should be the node at offset {} of {}, its footer says {} of {}",
                step.offset,
                inode.ino(),
                footer.offset,
                footer.ino
            );
            return self.io.noted(Err(Error::corrupt(at, what)));
        }
        Ok(node)
    }
}

/// A file that stands for a device has no addresses; its extent is what counts.
fn alias_run(inode: &NodeBlock, block: u64, limit: u64) -> Run {
    let extent = inode.head().extent;
    let start = u64::from(extent.fofs.get());
    let end = start + u64::from(extent.len.get());
    if (start..end).contains(&block) {
        let addr = extent.blk.get().wrapping_add((block - start) as u32);
        Run { blocks: block..end.min(limit), addr: BlockAddr(addr) }
    } else {
        let next = if block < start { start } else { limit };
        Run { blocks: block..next.min(limit), addr: BlockAddr::NULL }
    }
}
