//! Changes to the addresses of a file's blocks: the write side of the map.
//!
//! *Invariants*: `i_blocks` counts the inode, every other node and every address that is not a hole; so does
//! the volume's count of valid blocks. The extent cached in the inode is dropped before any address changes.

use std::ops::Range;

use super::Files;
use crate::{
    Error, Place, Result,
    format::{
        FileType,
        inode::{advise, raw::Extent},
        node::NodeBlock,
        node_path::NodePath,
        sit::SegmentType,
        summary::Owner,
    },
    nodes::Change,
    segments::{OldBlock, log_for_data},
    units::{BlockAddr, Ino, Nid},
};

/// Location of a block address in the node tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    /// The inode or direct node.
    pub nid: Nid,
    /// Index of the address in the node.
    pub index: usize,
    /// Number of addresses in the node from this one on, inclusive.
    pub left: usize,
}

impl Files {
    /// Finds the slot of a block; `None` if there is no node for it.
    pub(super) fn slot(&self, ino: Ino, block: u64) -> Result<Option<Slot>> {
        let inode = self.nodes.inode(ino)?;
        let layout = inode.layout();
        let Some(path) = NodePath::of(&layout, block) else { return Ok(None) };
        let mut at = inode;
        for step in path.steps() {
            let nid = at.child(step.child);
            if nid == Nid::NULL {
                return Ok(None);
            }
            at = self.nodes.node(nid)?;
            check_child(&at, ino, step.offset)?;
        }
        let addrs = if path.steps().is_empty() { layout.addrs() } else { layout.direct_addrs() };
        Ok(Some(Slot { nid: at.nid(), index: path.index, left: addrs - path.index }))
    }

    /// Finds the slot of a block that is not a hole.
    pub(super) fn mapped_slot(&self, ino: Ino, block: u64) -> Result<Slot> {
        match self.slot(ino, block)? {
            Some(slot) => Ok(slot),
            None => self.damage(Place::File(ino, block), "no node has the address of this block".into()),
        }
    }

    /// Finds the slot of a block and creates missing nodes on the way. The caller has reserved the space for
    /// them.
    pub(crate) fn make_slot(&mut self, ino: Ino, block: u64) -> Result<Slot> {
        if let Some(slot) = self.slot(ino, block)? {
            return Ok(slot);
        }
        let inode = self.nodes.inode(ino)?;
        let (layout, kind) = (inode.layout(), inode.file_type());
        drop(inode);
        let path = NodePath::of(&layout, block).ok_or(Error::FileTooLarge)?;
        let mut at = Nid::from(ino);
        for step in path.steps() {
            let node = self.nodes.node(at)?;
            let mut child = node.child(step.child);
            drop(node);
            if child == Nid::NULL {
                child = self.nodes.add_child_node(ino, step.offset, kind)?;
                self.nodes.node_mut(at)?.set_child(step.child, child);
                self.add_blocks(ino, 1)?;
            } else {
                check_child(&*self.nodes.node(child)?, ino, step.offset)?;
            }
            at = child;
        }
        let addrs = if path.steps().is_empty() { layout.addrs() } else { layout.direct_addrs() };
        Ok(Slot { nid: at, index: path.index, left: addrs - path.index })
    }

    /// Allocates a new block in a log for a block of a file, writes `clear` to it, encrypted if the content of the file is,
    /// and releases the old block.
    pub(crate) fn relocate(
        &mut self,
        ino: Ino,
        slot: Slot,
        block: u64,
        kind: SegmentType,
        clear: &[u8],
    ) -> Result<BlockAddr> {
        let stored = self.to_stored(ino, block, clear)?;
        self.relocate_stored(ino, slot, block, kind, &stored)
    }

    /// As [`relocate`](Self::relocate), for a block in its stored form.
    pub(super) fn relocate_stored(
        &mut self,
        ino: Ino,
        slot: Slot,
        block: u64,
        kind: SegmentType,
        bytes: &[u8],
    ) -> Result<BlockAddr> {
        let version = self.nodes.version(slot.nid)?;
        // All steps that can fail come before the allocation.
        self.drop_extent(ino)?;
        let addr = self.nodes.node_mut(slot.nid)?.addr(slot.index);
        let old = OldBlock { addr, at: Place::File(ino, block) };
        if addr.is_real() {
            self.nodes.content_moves(ino)?;
        }
        let owner = Owner { nid: slot.nid, version, offset: slot.index as u16 };
        let addr = self.segments_mut().replace(old, kind, owner, bytes)?;
        self.nodes.node_mut(slot.nid)?.set_addr(slot.index, addr);
        Ok(addr)
    }

    /// Reserves the holes (`NEW_ADDR`) among the `left` addresses from a slot on.
    pub(super) fn occupy(&mut self, ino: Ino, slot: Slot) -> Result<()> {
        let node = self.nodes.node(slot.nid)?;
        let holes: Vec<usize> = (slot.index..slot.index + slot.left)
            .filter(|index| node.addr(*index) == BlockAddr::NULL)
            .collect();
        drop(node);
        if holes.is_empty() {
            return Ok(());
        }
        self.segments_mut().count_blocks(holes.len() as u64);
        self.add_blocks(ino, holes.len() as u64)?;
        let node = self.nodes.node_mut(slot.nid)?;
        for index in holes {
            node.set_addr(index, BlockAddr::NEW);
        }
        Ok(())
    }

    /// Adds to `i_blocks`; the caller updates the volume's count.
    pub(crate) fn add_blocks(&mut self, ino: Ino, blocks: u64) -> Result<()> {
        let head = self.nodes.inode_for(ino, Change::BLOCKS)?.head_mut();
        let sum = head.blocks.get() + blocks;
        head.blocks.set(sum);
        self.nodes.charge_blocks(ino, blocks as i64)
    }

    /// Subtracts from `i_blocks` and from the volume's count.
    pub(super) fn uncount_file_blocks(&mut self, ino: Ino, blocks: u64) -> Result<()> {
        self.segments_mut().uncount_blocks(blocks);
        self.drop_blocks(ino, blocks)
    }

    /// Subtracts from `i_blocks`; the caller updates the volume's count.
    pub(crate) fn drop_blocks(&mut self, ino: Ino, blocks: u64) -> Result<()> {
        let head = self.nodes.inode_mut(ino)?.head_mut();
        let before = head.blocks.get();
        let rest = before.saturating_sub(blocks).max(1);
        head.blocks.set(rest);
        self.nodes.charge_blocks(ino, rest as i64 - before as i64)
    }

    /// Drops the extent cached in the inode before it becomes stale.
    pub(super) fn drop_extent(&mut self, ino: Ino) -> Result<()> {
        if self.nodes.inode(ino)?.head().extent.len.get() != 0 {
            let none = Extent { fofs: 0.into(), blk: 0.into(), len: 0.into() };
            self.nodes.inode_mut(ino)?.head_mut().extent = none;
        }
        Ok(())
    }

    /// Frees a range of a file's blocks and leaves holes. Nodes are kept.
    pub(crate) fn free_blocks(&mut self, ino: Ino, blocks: Range<u64>) -> Result<()> {
        self.discard_pages(ino, blocks.start, blocks.end);
        let mut at = blocks.start;
        while at < blocks.end {
            let run = self.run(&*self.nodes.inode(ino)?, at, blocks.end)?;
            if run.addr == BlockAddr::NULL {
                at = run.blocks.end;
                continue;
            }
            let slot = self.mapped_slot(ino, at)?;
            let count = (slot.left as u64).min(blocks.end - at) as usize;
            self.free_addrs(ino, slot, count, at)?;
            at += count as u64;
        }
        Ok(())
    }

    /// Frees `count` addresses from a slot on; `block` is the file's block at the first address, for errors.
    /// An address that cannot be freed stays, but the others are still freed.
    fn free_addrs(&mut self, ino: Ino, slot: Slot, count: usize, block: u64) -> Result<()> {
        self.drop_extent(ino)?;
        let node = self.nodes.node_mut(slot.nid)?;
        let old: Vec<BlockAddr> = node.addrs(slot.index..slot.index + count).collect();
        let unreserved = match old.contains(&BlockAddr::COMPRESS) {
            true => self.forget_saved(ino, &old)?,
            false => 0,
        };
        let (mut freed, mut result) = (Vec::new(), Ok(()));
        for (n, addr) in old.into_iter().enumerate().filter(|(_, addr)| *addr != BlockAddr::NULL) {
            let released = match addr.is_real() {
                true => self.segments_mut().release_block(addr, Place::File(ino, block + n as u64)),
                false => Ok(()),
            };
            match released {
                Ok(()) => freed.push(slot.index + n),
                failed => result = result.and(failed),
            }
        }
        let blocks = (freed.len() as u64).saturating_sub(unreserved);
        let node = self.nodes.node_mut(slot.nid)?;
        freed.into_iter().for_each(|index| node.set_addr(index, BlockAddr::NULL));
        self.uncount_file_blocks(ino, blocks)?;
        result
    }

    /// Frees all blocks of a file from `from` on, and the nodes that become empty.
    pub(crate) fn free_from(&mut self, ino: Ino, from: u64) -> Result<()> {
        self.discard_pages(ino, from, u64::MAX);
        let layout = self.nodes.inode(ino)?.layout();
        let (direct, children) = (layout.direct_addrs() as u64, layout.children() as u64);
        let in_inode = layout.addrs() as u64;
        if from < in_inode {
            let slot = Slot { nid: ino.into(), index: from as usize, left: 0 };
            self.free_addrs(ino, slot, (in_inode - from) as usize, from)?;
        }
        let spans = [
            (0, direct),
            (0, direct),
            (1, children * direct),
            (1, children * direct),
            (2, children * children * direct),
        ];
        let mut start = in_inode;
        for (child, (height, span)) in spans.into_iter().enumerate() {
            if from < start + span {
                self.free_subtree(ino, ino.into(), child, height, start, from, direct, children)?;
            }
            start += span;
        }
        Ok(())
    }

    /// Frees all blocks at or after `from` below one child of a node, and the child itself if it becomes
    /// empty.
    #[allow(clippy::too_many_arguments)] // the position in the tree is five numbers
    fn free_subtree(
        &mut self,
        ino: Ino,
        parent: Nid,
        child: usize,
        height: u32,
        start: u64,
        from: u64,
        direct: u64,
        children: u64,
    ) -> Result<()> {
        let nid = self.nodes.node(parent)?.child(child);
        if nid == Nid::NULL {
            return Ok(());
        }
        let node = self.nodes.node(nid)?;
        if node.ino() != ino || node.is_inode() {
            let what = format!("the map of {ino} has {nid}, which belongs to another file or is an inode");
            return self.disk().io().record_corruption(Err(Error::corrupt(Place::Nat(nid), what)));
        }
        if height == 0 {
            drop(node);
            let first = from.saturating_sub(start);
            let slot = Slot { nid, index: first as usize, left: 0 };
            self.free_addrs(ino, slot, (direct - first) as usize, start + first)?;
        } else {
            let used: Vec<usize> = (0..children as usize).filter(|n| node.child(*n) != Nid::NULL).collect();
            drop(node);
            let span = direct * children.pow(height - 1);
            for n in used {
                let below = start + n as u64 * span;
                if from < below + span {
                    self.free_subtree(ino, nid, n, height - 1, below, from, direct, children)?;
                }
            }
        }
        if from <= start {
            self.nodes.remove_node(nid)?;
            self.nodes.node_mut(parent)?.set_child(child, Nid::NULL);
            // `remove_node` has already updated the volume's count.
            self.drop_blocks(ino, 1)?;
        }
        Ok(())
    }

    /// The log for a file's data, by type of file and the hints in its inode. Hot files are mostly databases,
    /// which are fsynced often. If a zone has several sections, an fsync puts data beside its nodes, so hot
    /// files use the warm data log as well.
    pub(crate) fn log_of_data(&self, inode: &NodeBlock) -> SegmentType {
        let kind = inode.file_type();
        let hot = inode.has_advise(advise::HOT) && self.geometry().sections_per_zone == 1;
        let best = if kind == FileType::Directory || hot {
            SegmentType::HotData
        } else if inode.has_advise(advise::COLD) || inode.compression().is_some() {
            SegmentType::ColdData
        } else {
            SegmentType::WarmData
        };
        log_for_data(self.options().active_logs, best, kind)
    }
}

fn check_child(node: &NodeBlock, ino: Ino, offset: u32) -> Result<()> {
    let footer = node.footer();
    if footer.ino != ino || footer.offset != offset || node.is_inode() {
        let what = format!(
            "{} has offset {} in {}, expected was offset {offset} in {ino}",
            footer.nid, footer.offset, footer.ino
        );
        return Err(Error::corrupt(Place::Inode(ino), what));
    }
    Ok(())
}
