//! Entries of the NAT that name the block of another node.
//!
//! A wrong number in an entry of the journal takes the newest block away from its node, and hides the block of the node whose
//! number it has. Footer and summary of the block tell its node. Without a summary, the entry may tell, which has the inode that
//! the block is or belongs to, while the node in the footer has no block that is in use; or another block carries the number of
//! the entry.

use f2fs::{
    Place,
    format::{node::NodeFooter, sit::MAP_BYTES},
    units::{BlockAddr, Ino, Nid},
};
use rustc_hash::FxHashSet;

use super::{Certainty, Finding, Found, Kind, ODD_MAX, Search, Sources, fact};

/// An entry that names the block of another node.
#[derive(Debug, Clone, Copy)]
pub struct Misnamed {
    /// The node in the block.
    pub other: Nid,
    /// Confidence in this.
    pub certainty: Certainty,
}

impl Misnamed {
    /// Returns the finding of a node at `addr` for which the NAT has the block `stored` of another node.
    pub fn finding(self, nid: Nid, stored: BlockAddr, addr: BlockAddr) -> Finding {
        let known = format!("it names {stored}, which holds {}; the node lies at {addr}", self.other);
        let finding = Finding::new(Kind::NatAddress, Place::Nat(nid), known);
        finding.repaired_by(format!("set the address to {addr}")).with_certainty(self.certainty)
    }
}

/// Entries of the NAT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entries {
    All,
    /// Those that the journal overrides.
    Journal,
}

impl Search<'_> {
    /// Finds the entries that name blocks of other nodes, and counts these blocks as not named. On a sound volume, only the
    /// entries of the journal are looked up: the SIT marks the nodes that the NAT names.
    pub fn find_misnamed(&mut self) {
        let entries = if self.fits_marks() { Entries::Journal } else { Entries::All };
        let mut doubtful = self.doubtful_entries(entries);
        if doubtful.is_empty() {
            return;
        }
        doubtful.sort_unstable();
        let carried = self.carried();
        let mut addrs: Vec<BlockAddr> = doubtful.iter().map(|(addr, _)| *addr).collect();
        addrs.dedup();
        let (blocks, _) = self.read(addrs);
        for block in blocks {
            let first = doubtful.partition_point(|(addr, _)| *addr < block.addr);
            for (_, nid) in doubtful[first..].iter().take_while(|(addr, _)| *addr == block.addr) {
                let Some(certainty) = self.contradicts(*nid, &block, &carried) else { continue };
                self.misnamed.insert(*nid, Misnamed { other: block.footer.nid, certainty });
            }
        }
        self.unname();
    }

    /// Returns true if the SIT marks exactly the nodes that the NAT names.
    fn fits_marks(&self) -> bool {
        let segments = self.sources.segments;
        segments.all().all(|segment| {
            let (valid, _) = segments.maps(segment);
            let named = &self.named.bytes()[segment.index() * MAP_BYTES..][..MAP_BYTES];
            match segments.kind(segment) {
                Some(kind) if !kind.is_node() => named.iter().all(|byte| *byte == 0),
                _ => named == valid,
            }
        })
    }

    /// Entries of which no summary confirms that their block is their node.
    fn doubtful_entries(&mut self, entries: Entries) -> Vec<(BlockAddr, Nid)> {
        let Sources { table, io, journal, .. } = self.sources;
        let usable = |(_, entry): &(Nid, _)| !table.has(*entry, fact::BROKEN);
        let mut doubtful = Vec::new();
        let mut look = |nid, addr| {
            let owned = self.summaries.owner(io, addr);
            if doubtful.len() < ODD_MAX && owned.is_none_or(|owned| owned.owner.nid != nid) {
                doubtful.push((addr, nid));
            }
        };
        if entries == Entries::All {
            table.iter().filter(usable).for_each(|(nid, entry)| look(nid, table.addr(entry)));
        } else {
            let journaled = journal.iter().filter_map(|(nid, _)| Some((*nid, table.find(*nid)?)));
            journaled.filter(usable).for_each(|(nid, entry)| look(nid, table.addr(entry)));
        }
        doubtful
    }

    /// Numbers in the footers of marked blocks that no entry names: at most [`ODD_MAX`], and those of one segment.
    fn carried(&mut self) -> FxHashSet<Nid> {
        let segments = self.sources.segments;
        let mut carried = FxHashSet::default();
        for segment in segments.all() {
            if segments.kind(segment).is_none_or(|kind| !kind.is_node()) {
                continue;
            }
            if carried.len() >= ODD_MAX {
                break;
            }
            let blocks = self.unnamed(segment);
            let whole = blocks.iter().filter(|block| block.is_whole && !block.is_denied());
            carried.extend(whole.map(|block| block.footer.nid));
        }
        carried
    }

    /// Returns how certainly a block that the NAT names for `nid` is another node, if it is.
    fn contradicts(&self, nid: Nid, block: &Found, carried: &FxHashSet<Nid>) -> Option<Certainty> {
        let NodeFooter { nid: other, ino, offset, .. } = block.footer;
        let Sources { table, segments, .. } = self.sources;
        if other == nid || !block.is_whole || !segments.is_marked(block.addr) {
            return None;
        }
        let stored = table.find(nid).map(|entry| table.ino(entry));
        let is_inode_of_entry =
            Ino::from(other) == ino && offset == 0 && stored == Some(ino) && Ino::from(nid) != ino;
        let lacks_block = table.find(other).is_some_and(|entry| {
            table.ino(entry) == ino && stored == Some(ino) && !segments.is_marked(table.addr(entry))
        });
        match block.owner {
            Some(owner) if owner == other => Some(Certainty::Certain),
            None if is_inode_of_entry || lacks_block || carried.contains(&nid) => Some(Certainty::Likely),
            _ => None,
        }
    }

    /// Takes the marks of the blocks back that only wrong entries name.
    fn unname(&mut self) {
        let Sources { table, .. } = self.sources;
        for (nid, Misnamed { other, .. }) in &self.misnamed {
            let Some(addr) = table.find(*nid).map(|entry| table.addr(entry)) else { continue };
            let is_named = table.find(*other).is_some_and(|entry| table.addr(entry) == addr);
            if !is_named {
                let index = self.index(addr);
                self.named.clear(index);
            }
        }
    }
}
