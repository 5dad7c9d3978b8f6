//! Blocks with two owners: one of them keeps the block.
//!
//! A word that became the address of another file's block stands in a hole, or in place of the file's own address. i_blocks
//! tells them apart: it counts no block for a hole. A hole comes back; in the other case the file's own content is lost.

use f2fs::{
    Place,
    format::{node::NodeFooter, node_path::NodeKind, summary::Owner, superblock::Features},
    units::{BlockAddr, Ino, Nid},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    Certainty, Finding, Fix, Kind, Loss, NewBlock, Slot,
    addresses::{Doubt, Odd},
    checker::Checker,
    inodes::{address_at, has_map, is_alias},
    reader::parse_node,
    shared::Claim,
    table::fact,
};

/// A place for an address.
#[derive(Debug, Clone, Copy)]
pub struct NamedPlace {
    /// Inode of the file.
    pub ino: Ino,
    /// Block of the file.
    pub block: u64,
    /// The place.
    pub slot: Slot,
    /// The address there.
    pub stored: BlockAddr,
}

impl Checker<'_> {
    /// Finds the place that a summary names, if it lies in a node in use. A node that is made anew has no addresses.
    pub fn named_place(&mut self, owner: Owner) -> Option<NamedPlace> {
        let (nid, index) = (owner.nid, usize::from(owner.offset));
        let entry = self.table.find(nid)?;
        let is_made_anew = self.table.has(entry, fact::EMPTIED);
        let is_doubtful = self.table.has(entry, fact::BROKEN | fact::INVALID);
        if is_doubtful && !is_made_anew || self.table.version(entry) != owner.version {
            return None;
        }
        let ino = self.table.ino(entry);
        let features = self.format.features;
        let inode = self.inode_of(ino).filter(|inode| has_map(inode) && !is_alias(inode, features))?;
        let layout = inode.layout();
        let (first, count, starts_at) = match Nid::from(ino) == nid {
            true => (0, layout.addrs(), layout.addrs_at()),
            false => {
                let offset = self.table.has(entry, fact::REACHED).then(|| self.table.parent_offset(entry))?;
                let kind = NodeKind::of(self.geometry.block_size, offset)?;
                (kind.first_block(&layout)?, layout.direct_addrs(), 0)
            }
        };
        let slot = Slot { nid, at: starts_at + 4 * index };
        if index >= count {
            return None;
        }
        let stored = match is_made_anew {
            true => BlockAddr::NULL,
            false => address_at(&self.cache.block(&self.io, self.table.addr(entry)).ok()?, slot.at),
        };
        Some(NamedPlace { ino, block: first + index as u64, slot, stored })
    }

    /// Finds the place that the summary of a block names, if that place names the block.
    pub fn confirmed_place(&mut self, owner: Owner, addr: BlockAddr) -> Option<NamedPlace> {
        self.named_place(owner).filter(|place| place.stored == addr)
    }

    /// Returns true if an address in an inode with a wrong checksum is the only fault: the checksum is right with `addr` there.
    pub fn is_sealed_with(&mut self, slot: Slot, addr: BlockAddr) -> bool {
        let ino = Ino::from(slot.nid);
        let entry = self.table.find_inode(ino).filter(|entry| self.table.has(*entry, fact::UNSEALED));
        let Some(entry) = entry.filter(|_| self.format.features.has(Features::INODE_CHECKSUM)) else {
            return false;
        };
        let Ok(bytes) = self.cache.block(&self.io, self.table.addr(entry)) else { return false };
        let mut copy = NodeFooter::with_inode(&bytes, ino);
        let Some(word) = copy.get_mut(slot.at..slot.at + 4) else { return false };
        word.copy_from_slice(&addr.0.to_le_bytes());
        matches!(parse_node(self.format, &copy, slot.nid, self.table.addr(entry)), (Ok(_), None))
    }

    /// Finds the files in which all addresses that may stand in holes do: i_blocks counts none of them.
    pub fn files_with_filled_holes(&self, all: &[((Nid, u16), Odd)]) -> FxHashSet<Ino> {
        let mut suspects: FxHashMap<Ino, u32> = FxHashMap::default();
        for (_, odd) in all {
            let is_suspect = match odd.doubt {
                Doubt::Outside => odd.addr != BlockAddr::NEW,
                Doubt::Summary(..) => self.shared.contains(odd.addr) || !self.segments.is_valid(odd.addr),
                Doubt::NodeLog | Doubt::Unmarked | Doubt::Older(_) => false,
            };
            if is_suspect && odd.original.is_none() {
                *suspects.entry(odd.ino).or_default() += 1;
            }
        }
        let skipped = fact::BROKEN | fact::INVALID | fact::TAINTED;
        let are_uncounted = |(ino, count): &(Ino, u32)| {
            let entry = self.table.find_inode(*ino).filter(|entry| !self.table.has(*entry, skipped));
            // The number wraps if more blocks were found than i_blocks counts.
            let more = entry.map_or(0, |entry| 0u32.wrapping_sub(self.table.blocks_left(entry)));
            (*count..1 << 31).contains(&more)
        };
        suspects.into_iter().filter(are_uncounted).map(|(ino, _)| ino).collect()
    }

    /// Returns the evidence that an address stands in a hole, if there is enough.
    pub fn evidence_of_hole(&mut self, odd: &Odd, filled: &FxHashSet<Ino>) -> Option<String> {
        let Doubt::Summary(..) = odd.doubt else { return None };
        if self.is_sealed_with(odd.slot, BlockAddr::NULL) {
            return Some("without it, the checksum of the inode is right".to_owned());
        }
        if !filled.contains(&odd.ino) {
            return None;
        }
        if !self.shared.contains(odd.addr) {
            let is_free = !self.segments.is_valid(odd.addr);
            return is_free.then(|| {
                "which is not marked and whose summary names another place; i_blocks does not count it"
                    .to_owned()
            });
        }
        let owner = self.summaries.owner(&self.io, odd.addr)?.owner;
        self.confirmed_place(owner, odd.addr)
            .map(|_| format!("which belongs to {}; i_blocks does not count it", owner.nid))
    }

    /// Has an address cleared that stands in a hole.
    pub fn restore_hole(&mut self, odd: &Odd, evidence: &str) {
        self.note_change_of_map(odd.ino);
        let known = format!("it names {}, {evidence}", odd.addr);
        let finding = Finding::new(Kind::BlockAddress, Place::File(odd.ino, odd.block), known);
        let finding = finding.repaired_by("clear the address: there is a hole");
        self.report.add(finding.with_certainty(Certainty::Certain));
        self.fix(Fix::Node(odd.slot, vec![0; 4]));
        *self.cleared.entry(odd.ino).or_default() += 1;
    }

    /// Separates the owners of blocks that several name, all but the first of each.
    pub fn separate_owners(&mut self) {
        for Claim { addr, claimant, slot } in self.shared.take() {
            self.add(Kind::BlockTwice, Place::Block(addr), format!("{claimant} and another owner name it"));
            if let Some(slot) = slot {
                self.separate(addr, slot);
            }
        }
    }

    /// Gives one of two owners of a block a copy of it; an address in a node's block is cleared.
    pub fn separate(&mut self, addr: BlockAddr, slot: Slot) {
        let footer = self.cache.block(&self.io, addr).map(|bytes| NodeFooter::of(&bytes));
        let node = footer.ok().and_then(|footer| self.table.find(footer.nid));
        if node.is_some_and(|entry| self.table.addr(entry) == addr) {
            self.fix(Fix::Node(slot, vec![0; 4]));
            self.lose(Loss::Address);
        } else {
            self.fix(Fix::Block(slot, NewBlock::Copy(addr)));
            self.lose(Loss::Copy);
        }
    }
}
