//! Nodes that a damaged parent names at a wrong place.
//!
//! A node has its offset in its footer, and its parent names it at one. Where they differ, the parent counts, because one
//! wrong number in a footer is more probable than a parent whose numbers all moved. But a parent whose own footer is damaged
//! may have moved as a whole, and a place past the size of a file is none that a file needs.

use f2fs::{
    Place,
    format::node_path::NodeKind,
    units::{Ino, Nid},
};
use rustc_hash::FxHashSet;

use crate::{
    Certainty, Finding, Fix, Kind, Slot,
    checker::{Checker, ODD_MAX},
    table::{Entry, fact},
};

impl Checker<'_> {
    /// Notes that an indirect node names a node at a place that may be wrong.
    pub fn doubt_place(&mut self, child: Nid, offset: u32, ino: Ino, slot: Slot) {
        if slot.nid == Nid::from(ino) || self.doubtful_places.len() >= ODD_MAX {
            return;
        }
        let is_mended = self.table.find(slot.nid).is_some_and(|parent| self.table.has(parent, fact::MENDED));
        if is_mended || self.is_past_size(ino, offset) {
            self.doubtful_places.insert(child, slot);
        }
    }

    /// Returns true if the first block of the direct node at an offset of a file lies past the size of the file.
    fn is_past_size(&mut self, ino: Ino, offset: u32) -> bool {
        let Some(inode) = self.inode_of(ino) else { return false };
        let first =
            NodeKind::of(self.geometry.block_size, offset).and_then(|kind| kind.first_block(&inode.layout()));
        let end = inode.head().size.get().div_ceil(self.geometry.block_size.bytes() as u64);
        first.is_some_and(|first| first >= end)
    }

    /// Returns true if a node belongs to the offset in its footer, and not to that where its parent names it: the place is
    /// doubtful, and the other offset is one of such a node within the file.
    pub fn is_misplaced(&mut self, nid: Nid, entry: Entry, own: u32) -> bool {
        if !self.doubtful_places.contains_key(&nid) {
            return false;
        }
        let size = self.geometry.block_size;
        let kinds = (NodeKind::of(size, own), NodeKind::of(size, self.table.parent_offset(entry)));
        let is_alike = match kinds {
            (Some(NodeKind::Direct { .. }), Some(NodeKind::Direct { .. })) => true,
            (Some(own), Some(named)) => own == named,
            _ => false,
        };
        let ino = self.table.ino(entry);
        is_alike && !self.is_past_size(ino, own)
    }

    /// Has misplaced nodes named at the places in their footers, if those are free. Returns these nodes.
    pub fn conclude_places(&mut self) -> FxHashSet<Nid> {
        let mut doubtful: Vec<Nid> = self.doubtful_places.keys().copied().collect();
        doubtful.sort_unstable();
        let mut moving: Vec<(Nid, Entry)> = Vec::new();
        for nid in doubtful {
            let Some(entry) = self.table.find(nid) else { continue };
            let own = self.table.own_offset(entry);
            let is_seen =
                self.table.has(entry, fact::REACHED) && !self.table.has(entry, fact::BROKEN | fact::EMPTIED);
            if is_seen && own != self.table.parent_offset(entry) && self.is_misplaced(nid, entry, own) {
                moving.push((nid, entry));
            }
        }
        // A place is free, too, if its node moves away.
        let leaving: FxHashSet<Nid> = moving.iter().map(|(nid, _)| *nid).collect();
        let mut taken: FxHashSet<Slot> = FxHashSet::default();
        let mut placed: Vec<(Nid, Entry, Slot)> = Vec::new();
        for (nid, entry) in moving {
            let (ino, own) = (self.table.ino(entry), self.table.own_offset(entry));
            let Some(slot) = self.slot_of(ino, own) else { continue };
            let word = self.word_at(slot);
            let is_free = word.is_some_and(|word| word == 0 || leaving.contains(&Nid(word)))
                || self.bad_children.contains_key(&(ino, own));
            if is_free && taken.insert(slot) {
                placed.push((nid, entry, slot));
            }
        }
        for (nid, ..) in &placed {
            if let Some(slot) = self.doubtful_places.get(nid).copied() {
                self.fix(Fix::Node(slot, vec![0; 4]));
            }
        }
        for (nid, entry, slot) in &placed {
            self.place(*nid, *entry, *slot);
        }
        placed.into_iter().map(|(nid, ..)| nid).collect()
    }

    /// Has a misplaced node named at another place.
    fn place(&mut self, nid: Nid, entry: Entry, slot: Slot) {
        let (ino, own) = (self.table.ino(entry), self.table.own_offset(entry));
        self.bad_children.remove(&(ino, own));
        let known = format!(
            "its parent, which shows damage, names it at offset {}; its footer says {own}",
            self.table.parent_offset(entry)
        );
        let finding = Finding::new(Kind::NodeChild, Place::Node(nid, self.table.addr(entry)), known)
            .repaired_by("name it at the offset in its footer");
        self.report.add(finding.with_certainty(Certainty::Likely));
        self.fix(Fix::Node(slot, nid.0.to_le_bytes().to_vec()));
    }
}
