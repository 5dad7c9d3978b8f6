//! The chain of nodes that fsyncs wrote after the checkpoint.
//!
//! No block that is in use at a checkpoint goes to another file before the next one: Linux frees it only then, and copies blocks
//! of the checkpoint where it moves ranges. Atomic writes take blocks over from an orphan, which roll-forward removes first. So a
//! node of the chain that names a block of another file is damaged. Roll-forward would take the block from its owner.

use std::sync::Arc;

use f2fs::{
    Place,
    format::{
        BLOCKS_PER_SEGMENT, BlockSize,
        checkpoint::Flags,
        node::{NodeBlock, NodeFooter},
        node_path::NodeKind,
        sit::SegmentType,
        superblock::Features,
    },
    units::{BlockAddr, Ino},
};

use crate::{
    Certainty, Finding, Kind,
    checker::Checker,
    inodes::{address_at, has_map},
    reader::read_runs,
    segments::Content,
    table::fact,
};

impl Checker<'_> {
    /// Follows the chain. A loop is found without a list of the visited nodes (Brent's algorithm). While checkpoints are
    /// disabled, Linux does not follow it: nodes after the checkpoint are none of the volume.
    pub fn check_chain(&mut self) {
        if self.superblock.features.has(Features::RO) || self.checkpoint.flags.has(Flags::DISABLED) {
            return;
        }
        let start = self.geometry.next_block(self.checkpoint.logs[SegmentType::WarmNode.index()]);
        let (mut addr, mut mark, mut steps, mut limit) = (start, None, 0u64, 1u64);
        let (mut fsynced, mut wrong, mut loops) = (0u64, false, false);
        while let Some(node) = self.chain_node(addr) {
            if mark == Some(addr) {
                self.tell_loop(addr, steps);
                loops = true;
                break;
            }
            if !wrong {
                wrong = self.check_chain_node(addr, &node);
            }
            self.check_owners_of_chain(addr, &node);
            if steps == limit {
                (mark, steps, limit) = (Some(addr), 0, limit * 2);
            }
            mark = mark.or(Some(addr));
            // A mount rolls files with such a mark forward. Other nodes were written without an fsync.
            fsynced += u64::from(node.footer().fsync);
            steps += 1;
            addr = node.footer().next_addr;
        }
        if fsynced > 0 {
            let known = format!("fsyncs wrote {fsynced} nodes after the checkpoint, from {start} on");
            self.add(Kind::ChainPending, Place::Block(start), known);
        }
        // After an unmount there is no chain.
        if !loops && (fsynced > 0 || !self.checkpoint.flags.has(Flags::UMOUNT)) {
            self.check_end_of_chain(addr);
        }
    }

    /// Tells a loop of `count` nodes, which begins at `addr`, and the nodes behind it. A node of the loop was damaged, and the
    /// chain may have continued there.
    fn tell_loop(&mut self, addr: BlockAddr, count: u64) {
        let (mut at, mut last) = (addr, addr);
        for _ in 0..count {
            let Some(node) = self.chain_node(at) else { break };
            at = node.footer().next_addr;
            last = last.max(at);
        }
        let known = "the chain of fsynced nodes leads back to this node";
        let finding = Finding::new(Kind::ChainLoop, Place::Block(addr), known);
        let finding = match self.check_end_of_chain(last) {
            0 => finding,
            _ => finding.with_certainty(Certainty::Unclear),
        };
        self.report.add(finding);
    }

    /// Tells nodes that fsyncs wrote behind the end of the chain, in its segment, and returns their count. The block there was
    /// damaged, or a power cut tore it and kept later ones.
    fn check_end_of_chain(&mut self, end: BlockAddr) -> u64 {
        if !self.geometry.in_main(end) {
            return 0;
        }
        let (segment, offset) = self.geometry.position(end);
        let behind = (offset + 1..BLOCKS_PER_SEGMENT as u16).map(|at| self.geometry.block(segment, at));
        let behind: Vec<(BlockAddr, ())> = behind.map(|addr| (addr, ())).collect();
        let io = self.io.clone();
        let mut count = 0;
        read_runs(&io, behind, |addr, (), bytes| {
            let Ok(bytes) = bytes else { return };
            let footer = NodeFooter::of(bytes);
            let is_later = footer.fsync && self.checkpoint.is_written_after(footer.cp_ver);
            count += u64::from(
                is_later && NodeBlock::check(self.format, bytes.into(), footer.nid, footer.ino, addr).is_ok(),
            );
        });
        if count > 0 {
            let known = format!(
                "the chain of fsynced nodes ends at this block, which is damaged or was not written; fsyncs wrote {count} \
                 nodes behind it, which no mount rolls forward"
            );
            self.add(Kind::ChainGap, Place::Block(end), known);
        }
        count
    }

    /// Reads a node of the chain; `None` at its end, or for a node that a power cut tore.
    fn chain_node(&self, addr: BlockAddr) -> Option<NodeBlock> {
        if !self.geometry.in_main(addr) {
            return None;
        }
        let bytes = self.io.read_block(addr, Place::Block(addr)).ok()?;
        let footer = NodeFooter::of(&bytes);
        if !self.checkpoint.is_written_after(footer.cp_ver) {
            return None;
        }
        NodeBlock::check(self.format, bytes, footer.nid, footer.ino, addr).ok()
    }

    /// Checks the addresses in a node of the chain. Linux does not mount a volume with a wrong one.
    fn check_chain_node(&mut self, at: BlockAddr, node: &NodeBlock) -> bool {
        let count = named_count(self.geometry.block_size, node);
        let outside = node.addrs(0..count).find(|addr| addr.is_real() && !self.geometry.in_main(*addr));
        let Some(outside) = outside else { return false };
        let known = format!("it names {outside}, outside the main area");
        self.add(Kind::ChainAddress, Place::Node(node.nid(), at), known);
        true
    }

    /// Tells the addresses in a node of the chain that name blocks of other files.
    fn check_owners_of_chain(&mut self, at: BlockAddr, node: &NodeBlock) {
        let before = self.table.find(node.nid()).map(|entry| self.table.addr(entry));
        let before = before.and_then(|addr| self.cache.block(&self.io, addr).ok());
        let starts_at = if node.is_inode() { node.layout().addrs_at() } else { 0 };
        let (mut first, mut count) = (None, 0);
        let named = node.addrs(0..named_count(self.geometry.block_size, node));
        for (index, addr) in named.enumerate() {
            // Most addresses are those of the checkpoint.
            let is_old = |before: &Arc<[u8]>| address_at(before, starts_at + 4 * index) == addr;
            let is_own = before.as_ref().is_some_and(is_old) && !self.shared.contains(addr);
            if is_own || !self.segments.is_marked(addr) || !self.segments.is_claimed(addr) {
                continue;
            }
            let Some(owner) = self.owner_before_chain(addr).filter(|owner| *owner != node.ino()) else {
                continue;
            };
            if self.report.note_foreign(at, index) {
                first.get_or_insert((addr, owner));
                count += 1;
            }
        }
        let Some((addr, owner)) = first else { return };
        let known =
            format!("it names {addr}, which belongs to {owner} at the checkpoint; so do {count} addresses");
        let finding = Finding::new(Kind::ChainAddress, Place::Node(node.nid(), at), known);
        self.report.add(finding.repaired_by("clear the addresses"));
    }

    /// The file that has a block at the checkpoint: by the summary of the block and the node that this names, or by the NAT.
    /// `None` for an orphan.
    fn owner_before_chain(&mut self, addr: BlockAddr) -> Option<Ino> {
        let owned = self.summaries.owner(&self.io, addr);
        let ino = match owned.filter(|owned| owned.content == Content::Data) {
            Some(owned) => self.confirmed_place(owned.owner, addr)?.ino,
            None => {
                // A checkpoint without an unmount has no summaries of the node logs.
                let footer = NodeFooter::of(&self.cache.block(&self.io, addr).ok()?);
                let entry = self.table.find(footer.nid)?;
                (self.table.addr(entry) == addr).then(|| self.table.ino(entry))?
            }
        };
        let entry = self.table.find_inode(ino)?;
        (!self.table.has(entry, fact::ORPHAN)).then_some(ino)
    }
}

/// Number of addresses of blocks that a node of the chain has.
pub fn named_count(size: BlockSize, node: &NodeBlock) -> usize {
    match NodeKind::of(size, node.footer().offset) {
        Some(NodeKind::Inode) if has_map(node) => node.addr_count(),
        Some(NodeKind::Direct { .. }) => node.addr_count(),
        _ => 0,
    }
}
