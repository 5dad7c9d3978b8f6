//! The chain of nodes that fsyncs wrote after the checkpoint.
//!
//! No block that is in use at a checkpoint goes to another file before the next one: Linux frees it only then, and copies blocks
//! of the checkpoint where it moves ranges. Atomic writes take blocks over from an orphan, which roll-forward removes first. So a
//! node of the chain that names a block of another file is damaged. Roll-forward would take the block from its owner.

use std::{collections::BTreeMap, sync::Arc};

use f2fs::{
    Place,
    engine::Geometry,
    format::{
        BLOCKS_PER_SEGMENT, BlockSize, bits,
        checkpoint::Flags,
        node::{NodeBlock, NodeFooter},
        node_path::NodeKind,
        sit::{MAP_BYTES, SegmentType},
        superblock::Features,
    },
    units::{BlockAddr, Ino, SegNo},
};

use crate::{
    Certainty, Finding, Kind,
    checker::Checker,
    inodes::{address_at, has_map},
    reader::read_runs,
    segments::Content,
    table::fact,
};

/// The blocks of a chain in a segment.
struct Visited {
    blocks: [u8; MAP_BYTES],
    /// First offset behind which later nodes lie.
    first: u16,
}

/// The blocks of a chain.
#[derive(Default)]
struct Visits(BTreeMap<SegNo, Visited>);

impl Visits {
    /// Adds a block of the main area. Returns true if it is a new one.
    fn add(&mut self, geometry: &Geometry, addr: BlockAddr) -> bool {
        let (visited, offset) = self.look_behind(geometry, addr);
        let is_new = !bits::msb(&visited.blocks, offset);
        bits::set_msb(&mut visited.blocks, offset);
        is_new
    }

    /// Lets nodes behind a block be later ones. Returns its segment, and its offset there.
    fn look_behind(&mut self, geometry: &Geometry, addr: BlockAddr) -> (&mut Visited, usize) {
        let (segment, offset) = geometry.position(addr);
        let visited = self.0.entry(segment).or_insert(Visited { blocks: [0; MAP_BYTES], first: offset });
        visited.first = offset.min(visited.first);
        (visited, offset.into())
    }

    /// The blocks behind those of the chain, in their segments, that do not belong to it.
    fn others(&self, geometry: &Geometry) -> Vec<(BlockAddr, ())> {
        let behind = |(segment, visited): (&SegNo, &Visited)| {
            let offsets = visited.first..BLOCKS_PER_SEGMENT as u16;
            let others = offsets.filter(|offset| !bits::msb(&visited.blocks, usize::from(*offset)));
            others.map(|offset| (geometry.block(*segment, offset), ())).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(behind).collect()
    }
}

impl Checker<'_> {
    /// Follows the chain. While checkpoints are disabled, Linux does not follow it: nodes after the checkpoint are none of the
    /// volume.
    pub fn check_chain(&mut self) {
        if self.superblock.features.has(Features::RO) || self.checkpoint.flags.has(Flags::DISABLED) {
            return;
        }
        let start = self.geometry.next_block(self.checkpoint.logs[SegmentType::WarmNode.index()]);
        let (mut addr, mut visits) = (start, Visits::default());
        let (mut fsynced, mut wrong, mut loops, mut last) = (0u64, false, false, start);
        while let Some(node) = self.chain_node(addr) {
            if !visits.add(&self.geometry, addr) {
                loops = true;
                break;
            }
            last = addr;
            if !wrong {
                wrong = self.check_chain_node(addr, &node);
            }
            self.check_owners_of_chain(addr, &node);
            // A mount rolls files with such a mark forward. Other nodes were written without an fsync.
            fsynced += u64::from(node.footer().fsync);
            addr = node.footer().next_addr;
        }
        if fsynced > 0 {
            let known = format!("fsyncs wrote {fsynced} nodes after the checkpoint, from {start} on");
            self.add(Kind::ChainPending, Place::Block(start), known);
        }
        // After an unmount there is no chain.
        let may_have_more = loops || fsynced > 0 || !self.checkpoint.flags.has(Flags::UMOUNT);
        let behind = if may_have_more { self.check_end_of_chain(addr, visits) } else { 0 };
        if loops {
            let behind = behind + self.check_copy(start, last);
            let known = "the chain of fsynced nodes leads back to this node";
            let finding = Finding::new(Kind::ChainLoop, Place::Block(addr), known);
            self.report.add(match behind {
                0 => finding,
                _ => finding.with_certainty(Certainty::Unclear),
            });
        }
    }

    /// Tells that the node at `last`, which leads back, is a copy of an earlier one of the chain from `start` on: the node that was
    /// there is lost. Returns 1 then, or else 0.
    fn check_copy(&mut self, start: BlockAddr, last: BlockAddr) -> u64 {
        let Some(copy) = self.chain_node(last) else { return 0 };
        let mut addr = start;
        while addr != last {
            let Some(node) = self.chain_node(addr) else { return 0 };
            if node.bytes() == copy.bytes() {
                let known = format!(
                    "it is a copy of the fsynced node at {addr}, and the node that was there is lost"
                );
                self.add(Kind::ChainGap, Place::Node(copy.nid(), last), known);
                return 1;
            }
            addr = node.footer().next_addr;
        }
        0
    }

    /// Tells nodes that fsyncs wrote and to which the chain does not lead, in its segments and in that of its end, and returns
    /// their count. A node before them was damaged or names a wrong block, or a power cut tore it and kept later ones.
    fn check_end_of_chain(&mut self, end: BlockAddr, mut visits: Visits) -> u64 {
        if self.geometry.in_main(end) {
            visits.look_behind(&self.geometry, end);
        }
        let io = self.io.clone();
        let mut count = 0;
        read_runs(&io, visits.others(&self.geometry), |addr, (), bytes| {
            let Ok(bytes) = bytes else { return };
            let footer = NodeFooter::of(bytes);
            let is_later = footer.fsync && self.checkpoint.is_written_after(footer.cp_ver);
            count += u64::from(
                is_later && NodeBlock::check(self.format, bytes.into(), footer.nid, footer.ino, addr).is_ok(),
            );
        });
        if count > 0 {
            let known = format!(
                "the chain of fsynced nodes ends at this block, which is damaged or was not written, or a node of it names a \
                 wrong block; fsyncs wrote {count} nodes to which it does not lead, which no mount rolls forward"
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
            if is_own || !self.geometry.in_main(addr) || !self.segments.is_claimed(addr) {
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
