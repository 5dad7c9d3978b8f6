//! The nodes that were fsynced after the checkpoint, in the order in which they were written.
//!
//! The chain starts at the position of the warm node log. Each node contains the address of the next one.
//! A file is recovered up to its last marked node (Linux, `f2fs_recover_fsync_data`). The versions of a node
//! in the chain may be equally old by their checkpoint and their time of change, so only the chain orders
//! them.

use f2fs::{
    Place,
    format::{node::NodeFooter, sit::SegmentType},
    units::BlockAddr,
};
use rustc_hash::FxHashMap;

use crate::{bitmap::Bitmap, evidence::Evidence, shape::Shape};

/// The fsynced nodes.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    /// Inodes with a marked node, and whether the chain has all of them.
    synced: FxHashMap<u32, Coverage>,
    /// The version that counts of each node of the inodes that are covered: the last one up to the mark.
    last: FxHashMap<u32, BlockAddr>,
}

/// Part of an inode's marked nodes that the chain leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coverage {
    /// All of them.
    Whole,
    /// Not all: the chain is broken. The order of the versions is not known.
    Part,
}

/// A node of the chain.
struct Link {
    addr: BlockAddr,
    nid: u32,
    ino: u32,
}

/// Marked nodes of an inode in the chain.
#[derive(Debug, Default)]
struct Marks {
    count: u32,
    /// Position of the last one.
    last: usize,
}

impl Chain {
    /// Follows the chain to its end, or to a block that is damaged. `marked` has the numbers of marked nodes
    /// on the device, by inode.
    pub(crate) fn read(shape: &Shape, evidence: &Evidence, marked: &FxHashMap<u32, u32>) -> Chain {
        let mut links = Vec::new();
        let mut marks: FxHashMap<u32, Marks> = FxHashMap::default();
        let mut seen = Bitmap::new(shape.blocks.end);
        let mut addr = evidence.log_start(SegmentType::WarmNode);
        while !marked.is_empty() && shape.contains(addr) && !seen.set(addr) {
            let Ok(block) = shape.io.read_block(addr, Place::Block(addr)) else { break };
            let footer = NodeFooter::of(&block);
            if !evidence.checkpoint.is_written_after(footer.cp_ver) {
                break;
            }
            if footer.fsync {
                let marks = marks.entry(footer.ino.0).or_default();
                *marks = Marks { count: marks.count + 1, last: links.len() };
            }
            links.push(Link { addr, nid: footer.nid.0, ino: footer.ino.0 });
            addr = footer.next_addr;
        }
        let synced = marked.iter().map(|(ino, count)| {
            let found = marks.get(ino).map_or(0, |marks| marks.count);
            (*ino, if found >= *count { Coverage::Whole } else { Coverage::Part })
        });
        let synced: FxHashMap<u32, Coverage> = synced.collect();
        let counts = |(at, link): &(usize, Link)| {
            synced.get(&link.ino) == Some(&Coverage::Whole)
                && marks.get(&link.ino).is_some_and(|marks| *at <= marks.last)
        };
        let last = links.into_iter().enumerate().filter(counts);
        let last = last.map(|(_, link)| (link.nid, link.addr)).collect();
        Chain { synced, last }
    }

    /// Returns the coverage of an inode; `None` if it has no marked node.
    pub(crate) fn coverage(&self, ino: u32) -> Option<Coverage> {
        self.synced.get(&ino).copied()
    }

    /// Returns the version of a node that counts, if the chain decides on it.
    pub(crate) fn last(&self, nid: u32) -> Option<BlockAddr> {
        self.last.get(&nid).copied()
    }
}
