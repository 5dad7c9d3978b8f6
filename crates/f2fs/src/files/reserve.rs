//! Space for a range of a file: the blocks and nodes that it lacks, and their reservation.

use std::{ops::Range, sync::Arc};

use super::{Files, has_map, map::PART_ADDRS};
use crate::{
    Error, Result,
    format::{
        inode::inline,
        node::NodeBlock,
        node_path::{NodePath, Step},
    },
    segments::Reservation,
    units::{BlockAddr, Ino, Nid},
};

/// Number of addresses that a missing node counts for, because it is passed over at once.
const MISSING_NODE_ADDRS: u64 = 64;

/// A check in parts that there is space for a range of a file.
#[derive(Debug)]
pub struct SpaceCheck {
    ino: Ino,
    /// Blocks of the file that remain to be examined.
    rest: Range<u64>,
    /// Blocks and nodes that the examined ones lack.
    lacks: Lack,
}

/// Blocks and nodes that a range of a file lacks.
#[derive(Debug, Clone, Copy)]
struct Lack {
    /// Holes, which become blocks.
    holes: u64,
    nodes: u64,
}

/// Blocks of a file below one node, or below one that is missing.
struct Examined {
    /// Their end in the file.
    end: u64,
    lacks: Lack,
    /// Number of addresses that they count for.
    addrs: u64,
}

impl Files {
    /// Reserves space for writing a range of blocks. It succeeds if there is space for a range that is
    /// completely new, and fails if there is not even space for the range less all blocks of the file. Only
    /// between the two, the holes are counted.
    pub(crate) fn reserve(&self, ino: Ino, blocks: Range<u64>) -> Result<Reservation> {
        let mut check = self.begin_space_check(ino, blocks)?;
        loop {
            if let Some(space) = self.space_check_part(&mut check)? {
                return Ok(space);
            }
        }
    }

    /// Fails if a range of bytes could not be [reserved](Self::reserve) now.
    pub(crate) fn require_space(&self, ino: Ino, offset: u64, end: u64) -> Result<()> {
        self.reserve(ino, self.blocks_around(offset, end)).map(drop)
    }

    /// Begins the check for a range of bytes that [`check_allocation`](Self::check_allocation) does at once.
    pub(crate) fn begin_allocation_check(&self, ino: Ino, offset: u64, length: u64) -> Result<SpaceCheck> {
        let end = self.end_of(&*self.writable_file(ino)?, offset, length)?;
        self.begin_space_check(ino, self.blocks_around(offset, end))
    }

    fn blocks_around(&self, offset: u64, end: u64) -> Range<u64> {
        let log = self.geometry().block_size.log();
        offset >> log..end.div_ceil(1 << log)
    }

    fn begin_space_check(&self, ino: Ino, blocks: Range<u64>) -> Result<SpaceCheck> {
        let nodes = self.nodes_for(ino, blocks.clone())? + 1;
        let length = blocks.end - blocks.start;
        if self.reserve_blocks(ino, length + nodes, nodes).is_ok() {
            return Ok(SpaceCheck {
                ino,
                rest: blocks.end..blocks.end,
                lacks: Lack { holes: length, nodes },
            });
        }
        let inode = self.nodes.inode(ino)?;
        let had_blocks = inode.head().blocks.get().saturating_add(inode.saved_blocks().unwrap_or(0));
        drop(self.reserve_blocks(ino, length.saturating_sub(had_blocks), 0)?);
        // Inline data goes to block 0.
        let holes = u64::from(inode.has_inline(inline::DATA) && blocks.start > 0);
        Ok(SpaceCheck { ino, rest: blocks, lacks: Lack { holes, nodes: 0 } })
    }

    /// Does the next part of a check, which examines about [`PART_ADDRS`] addresses. Returns the reservation after the last
    /// part. The caller changes nothing between two parts.
    pub(crate) fn space_check_part(&self, check: &mut SpaceCheck) -> Result<Option<Reservation>> {
        let SpaceCheck { ino, rest, lacks } = check;
        if !rest.is_empty() {
            let inode = self.nodes.inode(*ino)?;
            let mut examined = 0;
            while !rest.is_empty() && examined < PART_ADDRS {
                let found = self.examine(&inode, rest.clone())?;
                lacks.holes += found.lacks.holes;
                lacks.nodes += found.lacks.nodes;
                self.segments().require_space(lacks.holes)?;
                examined += found.addrs;
                rest.start = found.end;
            }
        }
        match rest.is_empty() {
            true => self.reserve_blocks(*ino, lacks.holes + lacks.nodes, lacks.nodes).map(Some),
            false => Ok(None),
        }
    }

    /// Counts what the blocks below the first node of a range lack: all of them and the nodes themselves, if the node or
    /// another one above it is missing.
    fn examine(&self, inode: &NodeBlock, blocks: Range<u64>) -> Result<Examined> {
        let layout = inode.layout();
        let path = NodePath::of(&layout, blocks.start).ok_or(Error::FileTooLarge)?;
        let mut holder: Option<Arc<NodeBlock>> = None;
        for (depth, step) in path.steps().iter().enumerate() {
            let nid = holder.as_deref().unwrap_or(inode).child(step.child);
            if nid == Nid::NULL {
                let end = step.blocks.end.min(blocks.end);
                let nodes = nodes_below(&path.steps()[depth..], blocks.start..end);
                let lacks = Lack { holes: end - blocks.start, nodes };
                return Ok(Examined { end, lacks, addrs: MISSING_NODE_ADDRS });
            }
            holder = Some(self.child_node(inode, nid, step)?);
        }
        let end = path.steps().last().map_or(layout.addrs() as u64, |step| step.blocks.end).min(blocks.end);
        let count = (end - blocks.start) as usize;
        let holes = match holder.as_deref().or_else(|| has_map(inode).then_some(inode)) {
            Some(node) => {
                let addrs = node.addrs(path.index..path.index + count);
                addrs.filter(|addr| *addr == BlockAddr::NULL).count() as u64
            }
            None => count as u64,
        };
        Ok(Examined { end, lacks: Lack { holes, nodes: 0 }, addrs: count as u64 })
    }

    /// Upper bound of the nodes that [`make_slot`](Self::make_slot) creates for a range of blocks.
    pub(super) fn nodes_for(&self, ino: Ino, blocks: Range<u64>) -> Result<u64> {
        if blocks.is_empty() {
            return Ok(0);
        }
        let layout = self.nodes.inode(ino)?.layout();
        if blocks.end <= layout.addrs() as u64 {
            return Ok(0);
        }
        let direct = (blocks.end - blocks.start).div_ceil(layout.direct_addrs() as u64) + 1;
        Ok(direct + direct.div_ceil(layout.children() as u64) + 2)
    }

    /// Reserves `blocks` more blocks, `nodes` of which are nodes. Fails if the volume has no space for them, or if a quota
    /// of the file's owners does not admit them.
    fn reserve_blocks(&self, ino: Ino, blocks: u64, nodes: u64) -> Result<Reservation> {
        let space = self.segments().reserve(blocks)?;
        if u64::from(self.segments().free_nodes()) < nodes {
            return Err(Error::NoInodes);
        }
        self.nodes.admit(ino, blocks)?;
        Ok(space)
    }
}

/// Number of nodes that a range of blocks takes below a child, the child included. `steps` lead from the
/// child to the first block.
fn nodes_below(steps: &[Step], blocks: Range<u64>) -> u64 {
    let start = steps[0].blocks.start;
    let touched = |step: &Step| {
        let span = step.blocks.end - step.blocks.start;
        (blocks.end - 1 - start) / span - (blocks.start - start) / span + 1
    };
    steps.iter().map(touched).sum()
}
