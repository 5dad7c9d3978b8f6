//! Entries of the NAT that differ from its blocks, in memory. A fill changes millions of them before its checkpoint, most
//! entries of each block it touches, so each block has a list in the order of its entries, with 12 bytes for each.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::{
    format::{
        BlockSize,
        nat::{self, NatEntry},
    },
    units::{BlockAddr, Ino, Nid},
};

/// A changed entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) entry: NatEntry,
    /// True if it changed since the last checkpoint.
    pub(super) dirty: bool,
    /// True if the nid is in use in the last checkpoint.
    pub(super) was_used: bool,
}

/// A changed entry as it is kept.
#[derive(Clone, Copy)]
struct Kept {
    /// Index in the NAT block.
    at: u16,
    version: u8,
    /// [`DIRTY`] and [`WAS_USED`].
    marks: u8,
    ino: Ino,
    addr: BlockAddr,
}

const DIRTY: u8 = 1;
const WAS_USED: u8 = 2;

impl Kept {
    fn of(at: u16, change: Change) -> Kept {
        let marks = u8::from(change.dirty) * DIRTY | u8::from(change.was_used) * WAS_USED;
        let NatEntry { version, ino, addr } = change.entry;
        Kept { at, version, marks, ino, addr }
    }

    fn change(self) -> Change {
        let entry = NatEntry { version: self.version, ino: self.ino, addr: self.addr };
        Change { entry, dirty: self.marks & DIRTY != 0, was_used: self.marks & WAS_USED != 0 }
    }
}

/// The changed entries of a NAT.
pub(super) struct Changes {
    block_size: BlockSize,
    /// Changed entries of each block, by their index in it.
    blocks: FxHashMap<u32, Vec<Kept>>,
    count: usize,
}

impl Changes {
    /// Begins without a change.
    pub(super) fn new(block_size: BlockSize) -> Changes {
        Changes { block_size, blocks: FxHashMap::default(), count: 0 }
    }

    /// The block of a nid, and the index of its entry there.
    fn position(&self, nid: Nid) -> (u32, u16) {
        let (block, at) = nat::position(nid, self.block_size);
        (block, u16::try_from(at).expect("a block has fewer entries"))
    }

    /// The change of a nid.
    pub(super) fn get(&self, nid: Nid) -> Option<Change> {
        let (block, at) = self.position(nid);
        let kept = self.blocks.get(&block)?;
        let index = kept.binary_search_by_key(&at, |kept| kept.at).ok()?;
        Some(kept[index].change())
    }

    /// Sets the change of a nid.
    pub(super) fn insert(&mut self, nid: Nid, change: Change) {
        let (block, at) = self.position(nid);
        let kept = self.blocks.entry(block).or_default();
        let new = Kept::of(at, change);
        match kept.binary_search_by_key(&at, |kept| kept.at) {
            Ok(index) => kept[index] = new,
            Err(index) => {
                kept.insert(index, new);
                self.count += 1;
            }
        }
    }

    /// Number of changed entries.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Forgets the changes of a block, and returns their nids.
    pub(super) fn forget(&mut self, block: u32) -> Vec<Nid> {
        let kept = self.blocks.remove(&block).unwrap_or_default();
        self.count -= kept.len();
        kept.into_iter().map(|kept| self.nid(block, kept)).collect()
    }

    /// The blocks with changes that all satisfy a condition, with the nids of these, in ascending order.
    pub(super) fn blocks_of(&self, condition: impl Fn(Change) -> bool) -> BTreeMap<u32, Vec<Nid>> {
        let satisfied = |(_, kept): &(&u32, &Vec<Kept>)| kept.iter().all(|kept| condition(kept.change()));
        let blocks = self.blocks.iter().filter(satisfied);
        blocks
            .map(|(block, kept)| (*block, kept.iter().map(|kept| self.nid(*block, *kept)).collect()))
            .collect()
    }

    /// The nid of a changed entry of a block.
    fn nid(&self, block: u32, kept: Kept) -> Nid {
        Nid(block * self.block_size.nat_entries() as u32 + u32::from(kept.at))
    }

    /// All changed nids with their blocks, in no order.
    pub(super) fn nids(&self) -> impl Iterator<Item = (u32, Nid)> + '_ {
        self.blocks
            .iter()
            .flat_map(move |(block, kept)| kept.iter().map(move |kept| (*block, self.nid(*block, *kept))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(n: u32) -> Change {
        let entry = NatEntry { version: n as u8, ino: Ino(n), addr: BlockAddr(n + 1) };
        Change { entry, dirty: n % 2 == 0, was_used: n % 3 == 0 }
    }

    #[test]
    fn an_entry_takes_twelve_bytes() {
        assert_eq!(size_of::<Kept>(), 12);
    }

    #[test]
    fn changes_are_found_whatever_the_order_in_which_they_came() {
        for size in [BlockSize::B4K, BlockSize::B16K] {
            let (mut changes, mut expected) = (Changes::new(size), BTreeMap::new());
            for n in 0..20_000u32 {
                let nid = Nid(n.wrapping_mul(2_654_435_761) % 9000);
                changes.insert(nid, change(n));
                expected.insert(nid, change(n));
            }
            assert_eq!(changes.len(), expected.len());
            assert!((0..9100).map(Nid).all(|nid| changes.get(nid) == expected.get(&nid).copied()));
            let mut nids: Vec<(u32, Nid)> = changes.nids().collect();
            nids.sort_unstable();
            let all = expected.keys().map(|nid| (nat::position(*nid, size).0, *nid));
            assert_eq!(nids, all.collect::<Vec<_>>());
        }
    }
}
