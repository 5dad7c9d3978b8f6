//! Blocks whose place names an older block of it.
//!
//! The summary of a block that was overwritten still names its place, so it confirms an address that went back to it. The SIT
//! marks the newer block, which nothing names then, and not the older one. It looks the same where the SIT is older than the
//! node. The checksum of an inode tells the two apart, and so does the block of the node: a block of the SIT that marks a node
//! marks the blocks that the node named. An old block of the SIT may mark the node's block all the same, for another node that lay
//! there; but then it lacks the marks of further blocks. Where this concerns many nodes that are marked themselves, the SIT is
//! older: one block of it explains what else needs as many old nodes.

use std::collections::BTreeMap;

use f2fs::{
    format::{sit::SegmentType, superblock::Features},
    units::{BlockAddr, Ino, Nid, SegNo},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    Certainty, Loss,
    addresses::{Doubt, Odd},
    checker::{Checker, ODD_MAX},
    outdated::Undecided,
    owners::NamedPlace,
    segments::{Content, Contents},
    table::fact,
};

/// Nodes that are marked and name blocks without a mark, from which on the block of the SIT that marks older ones is taken for an
/// old one.
const STALE_MIN: usize = 4;

/// A conclusion about a place that names a block without a mark, while a marked block belongs there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The marked block comes back.
    Older(Certainty),
    /// The address counts. If it is not certain, the marked block is a loss.
    Current(Certainty),
}

impl Checker<'_> {
    /// Finds the places that name an older block than an unused one, and takes the blocks that come back out of `unused`. The
    /// segments in `old` blocks of the SIT tell nothing.
    pub fn find_displaced(&mut self, old: &FxHashSet<u32>, unused: &mut Vec<(SegNo, Vec<BlockAddr>)>) {
        for (segment, blocks) in unused.iter_mut() {
            let is_usable = !old.contains(&self.sit_block(*segment))
                && self.segments.content(*segment) != Some(Content::Node);
            blocks.retain(|addr| !(is_usable && self.displaces(*addr, old)));
        }
        unused.retain(|(_, blocks)| !blocks.is_empty());
    }

    /// Returns true if an unused block takes its place from an older block.
    fn displaces(&mut self, unused: BlockAddr, old: &FxHashSet<u32>) -> bool {
        let owned = self.summaries.owner(&self.io, unused).filter(|owned| owned.content == Content::Data);
        let Some(owner) = owned.map(|owned| owned.owner) else { return false };
        let key = (owner.nid, owner.offset);
        if let Some(other) = self.odd.get_mut(&key) {
            // Of two marked blocks, nothing tells the newer one.
            if matches!(other.doubt, Doubt::Older(certainty) if certainty != Certainty::Certain) {
                other.doubt = Doubt::Older(Certainty::Unclear);
                self.lose(Loss::Block);
            }
            return false;
        }
        if self.outdated.newest.contains(&owner.nid) {
            return false;
        }
        let Some(place) = self.named_place(owner) else { return false };
        let certainty = match self.compare(&place, unused, old) {
            Verdict::Current(Certainty::Certain) => return false,
            Verdict::Older(certainty) if self.odd.len() < ODD_MAX => certainty,
            Verdict::Older(_) | Verdict::Current(_) => {
                self.note_undecided(key, place, unused);
                return false;
            }
        };
        if certainty == Certainty::Unclear {
            self.lose(Loss::Block);
        }
        // The whole inode may be an older one.
        if certainty != Certainty::Certain && place.slot.nid == Nid::from(place.ino) {
            self.outdated.displaced.insert(place.ino);
        }
        self.note_displaced(key, place, unused, certainty);
        true
    }

    /// Notes a place that gets an unused block back.
    fn note_displaced(
        &mut self,
        key: (Nid, u16),
        NamedPlace { ino, block, slot, stored }: NamedPlace,
        original: BlockAddr,
        certainty: Certainty,
    ) {
        self.discount_footer(stored);
        self.note_change_of_map(ino);
        let doubt = Doubt::Older(certainty);
        let odd = Odd { ino, block, addr: stored, slot, doubt, owner: key.0, original: Some(original) };
        self.odd.insert(key, odd);
    }

    /// Notes a place between whose block and an unused one nothing decides so far.
    fn note_undecided(&mut self, key: (Nid, u16), place: NamedPlace, unused: BlockAddr) {
        if let Some(other) = self.outdated.undecided.get_mut(&key) {
            // Of two marked blocks, nothing tells the newer one.
            *other = None;
            self.lose(Loss::Block);
        } else if self.outdated.undecided.len() < ODD_MAX {
            self.outdated.undecided.insert(key, Some((place, unused)));
        } else {
            self.lose(Loss::Block);
        }
    }

    /// Decides on the places that are left: in an inode that is known to be older than the blocks of its file, the unused block
    /// counts. Takes these blocks out of `unused`. The others are losses.
    pub fn conclude_displaced(&mut self, unused: &mut Vec<(SegNo, Vec<BlockAddr>)>) {
        let mut restored: FxHashSet<BlockAddr> = FxHashSet::default();
        let undecided = std::mem::take(&mut self.outdated.undecided);
        // An inode is older, too, if it neither names a node of its own nor counts its blocks.
        let are_counted = !undecided.is_empty() && self.are_all_counted();
        let stale = if are_counted { self.stale_sit_blocks(&undecided) } else { FxHashSet::default() };
        for (key, undecided) in undecided {
            let ino = Ino::from(key.0);
            let is_outdated = self.outdated.nodes.contains(&key.0)
                || are_counted && self.outdated.attached.contains(&ino) && self.has_more_blocks(ino);
            match undecided {
                Some((place, addr)) if is_outdated && self.odd.len() < ODD_MAX => {
                    self.note_displaced(key, place, addr, Certainty::Unclear);
                    restored.insert(addr);
                }
                // The file has given the block up.
                Some((_, addr)) if stale.contains(&self.sit_block(self.geometry.position(addr).0)) => {}
                _ => self.lose(Loss::Block),
            }
        }
        for (_, blocks) in unused.iter_mut() {
            blocks.retain(|addr| !restored.contains(addr));
        }
        unused.retain(|(_, blocks)| !blocks.is_empty());
    }

    /// The blocks of the SIT that are older than the nodes: they mark blocks of many nodes that name others, although the SIT
    /// marks these nodes themselves; or they were before a roll-forward.
    fn stale_sit_blocks(&mut self, undecided: &BTreeMap<(Nid, u16), Option<Undecided>>) -> FxHashSet<u32> {
        let mut nodes: FxHashMap<u32, FxHashSet<Nid>> = FxHashMap::default();
        for (key, undecided) in undecided {
            let Some((_, addr)) = undecided else { continue };
            let entry = self.table.find(key.0);
            if entry.is_some_and(|entry| self.segments.is_marked(self.table.addr(entry))) {
                nodes.entry(self.sit_block(self.geometry.position(*addr).0)).or_default().insert(key.0);
            }
        }
        let stale = nodes.into_iter().filter(|(_, nodes)| nodes.len() >= STALE_MIN);
        self.segments.stale.extend(stale.map(|(block, _)| block));
        self.segments.stale.clone()
    }

    /// Decides between the block that a place names and a marked one whose summary names the place.
    fn compare(&mut self, place: &NamedPlace, unused: BlockAddr, old: &FxHashSet<u32>) -> Verdict {
        let (stored, slot) = (place.stored, place.slot);
        if !self.geometry.in_main(stored) || stored == unused {
            return Verdict::Current(Certainty::Certain);
        }
        let is_marked = self.segments.is_valid(stored);
        let is_node = self.is_block_of_nodes(stored);
        if is_marked && !(is_node && self.shared.contains(stored)) {
            return Verdict::Current(Certainty::Certain);
        }
        let (from, to) = (self.geometry.position(stored).0, self.geometry.position(unused).0);
        if old.contains(&self.sit_block(from)) {
            return Verdict::Current(Certainty::Certain);
        }
        if is_node || self.is_sealed_with(slot, unused) {
            return Verdict::Older(Certainty::Certain);
        }
        let Some(entry) = self.table.find(slot.nid) else { return Verdict::Current(Certainty::Certain) };
        let has_checksum =
            self.table.ino(entry).0 == slot.nid.0 && self.format.features.has(Features::INODE_CHECKSUM);
        let is_damaged = [from, to].into_iter().any(|segment| self.segments.contradicts_itself(segment));
        let node = self.table.addr(entry);
        if has_checksum && !self.table.has(entry, fact::UNSEALED)
            || is_damaged
            || self.segments.is_lost(from)
            || !self.segments.is_marked(node)
        {
            return Verdict::Current(Certainty::Unclear);
        }
        // Where further blocks in use have no marks, the marks are older than the nodes.
        if !self.is_only_unmarked(stored) {
            return Verdict::Current(Certainty::Unclear);
        }
        // With the node, its block of the SIT would be as old, or two blocks of the SIT would be.
        let of_node = self.sit_block(self.geometry.position(node).0);
        match of_node == self.sit_block(from) || self.sit_block(from) != self.sit_block(to) {
            true => Verdict::Older(Certainty::Likely),
            false => Verdict::Older(Certainty::Unclear),
        }
    }

    /// Returns true if a summary and the SIT say that a block is a node.
    fn is_block_of_nodes(&mut self, addr: BlockAddr) -> bool {
        let kind = self.segments.kind(self.geometry.position(addr).0);
        kind.is_some_and(SegmentType::is_node)
            && self.summaries.owner(&self.io, addr).is_some_and(|owned| owned.content == Content::Node)
    }

    /// Returns true if no other block in use lacks its mark in the block of the SIT of this one.
    fn is_only_unmarked(&self, addr: BlockAddr) -> bool {
        let index = self.sit_block(self.geometry.position(addr).0);
        let segments = self.segments.all().filter(|segment| self.sit_block(*segment) == index);
        let unmarked = |segment| {
            let (valid, claimed) = self.segments.maps(segment);
            valid.iter().zip(claimed).map(|(valid, claimed)| (claimed & !valid).count_ones()).sum::<u32>()
        };
        segments.map(unmarked).sum::<u32>() == 1
    }
}
