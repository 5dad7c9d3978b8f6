//! Blocks of data whose addresses were overwritten with zeroes or ones.
//!
//! The SIT marks such a block, its summary names a place in a node in use, and that place has no address. Where an
//! address was cleared on purpose, the SIT does not mark the block; and i_blocks does not count it. The same holds for the
//! places in a node that is lost as a whole, and that a repair makes anew.

use std::collections::BTreeMap;

use f2fs::units::{BlockAddr, Ino, Nid, SegNo};
use rustc_hash::FxHashSet;

use crate::{
    Loss, Slot,
    addresses::{Doubt, Odd},
    checker::{Checker, ODD_MAX},
    outdated::Uncounted,
    owners::NamedPlace,
    segments::{Content, Contents},
};

/// A place without an address, and the blocks whose summaries name it.
pub struct Emptied {
    /// Inode of the file.
    pub ino: Ino,
    /// Block of the file.
    pub block: u64,
    slot: Slot,
    /// The reserved value in place of the address.
    stored: BlockAddr,
    /// The blocks, at most two.
    pub originals: Vec<BlockAddr>,
}

impl Checker<'_> {
    /// Finds the places of unused blocks that have no address, and takes the blocks that are restored out of `unused`. The
    /// segments in `old` blocks of the SIT tell nothing.
    pub fn find_emptied(&mut self, old: &FxHashSet<u32>, unused: &mut Vec<(SegNo, Vec<BlockAddr>)>) {
        let mut places: BTreeMap<(Nid, u16), Emptied> = BTreeMap::new();
        let mut uncounted = Uncounted::default();
        for (segment, blocks) in unused.iter() {
            if old.contains(&self.sit_block(*segment))
                || self.segments.content(*segment) == Some(Content::Node)
            {
                continue;
            }
            for addr in blocks {
                let Some((key, place)) = self.emptied(*addr) else {
                    if let Some(ino) = self.file_without_place(*addr) {
                        uncounted.add_others(ino, 1);
                    }
                    continue;
                };
                // Other content in a block of the SIT marks old blocks, and the file may have reserved the place.
                if place.stored == BlockAddr::NEW && self.segments.contradicts_itself(*segment) {
                    continue;
                }
                if places.len() >= ODD_MAX && !places.contains_key(&key) {
                    self.lose(Loss::Block);
                    continue;
                }
                let originals = &mut places.entry(key).or_insert(place).originals;
                // Two are as uncertain as more.
                if originals.len() < 2 {
                    originals.push(*addr);
                }
            }
        }
        let mut cleared: BTreeMap<Ino, u32> = BTreeMap::new();
        for place in places.values().filter(|place| place.stored == BlockAddr::NULL) {
            *cleared.entry(place.ino).or_default() += 1;
        }
        // Of a file that names blocks of others, the count may be right by chance.
        let doubtful: FxHashSet<Ino> =
            self.odd.values().filter(|odd| !matches!(odd.doubt, Doubt::Outside)).map(|odd| odd.ino).collect();
        let mut restored: FxHashSet<BlockAddr> = FxHashSet::default();
        for (key, place) in places {
            let missing = self.missing_blocks(place.ino);
            let is_counted = match place.stored {
                BlockAddr::NULL => cleared[&place.ino] <= missing,
                _ => true,
            };
            match (is_counted, &place.originals[..]) {
                (true, [original]) if self.odd.len() < ODD_MAX => {
                    restored.insert(*original);
                    self.note_emptied(key, &place, *original, Doubt::Outside);
                    cleared.entry(place.ino).and_modify(|count| *count = count.saturating_sub(1));
                }
                _ if missing > 0 => self.lose(Loss::Block),
                _ => {
                    uncounted.doubtful += u64::from(doubtful.contains(&place.ino));
                    uncounted.add(key, place);
                }
            }
        }
        restored.extend(self.conclude_uncounted(uncounted));
        for (_, blocks) in unused.iter_mut() {
            blocks.retain(|addr| !restored.contains(addr));
        }
        unused.retain(|(_, blocks)| !blocks.is_empty());
    }

    /// The place that the summary of a block names, if it lies in a node in use and has no address.
    fn emptied(&mut self, addr: BlockAddr) -> Option<((Nid, u16), Emptied)> {
        let owned = self.summaries.owner(&self.io, addr).filter(|owned| owned.content == Content::Data)?;
        if self.outdated.newest.contains(&owned.owner.nid) {
            return None;
        }
        let NamedPlace { ino, block, slot, stored } = self.named_place(owned.owner)?;
        let is_empty = [BlockAddr::NULL, BlockAddr::NEW].contains(&stored);
        let place = Emptied { ino, block, slot, stored, originals: Vec::new() };
        is_empty.then_some(((owned.owner.nid, owned.owner.offset), place))
    }

    /// Number of blocks that i_blocks of an inode counts and that were not found.
    fn missing_blocks(&self, ino: Ino) -> u32 {
        let left = self.table.find(ino.into()).map_or(0, |entry| self.table.blocks_left(entry));
        // The number wraps if more were found than i_blocks counts.
        if left < 1 << 31 { left } else { 0 }
    }

    /// Notes a place without an address whose block is known.
    pub fn note_emptied(&mut self, key: (Nid, u16), place: &Emptied, original: BlockAddr, doubt: Doubt) {
        let Emptied { ino, block, slot, stored, .. } = *place;
        self.note_change_of_map(ino);
        if let Some(inode) = self.inode_of(ino) {
            self.lose_unknown_mark(&inode, block);
        }
        if stored == BlockAddr::NULL {
            self.report.sums.blocks += 1;
            if let Some(entry) = self.table.find(ino.into()) {
                self.table.take_blocks(entry, 1);
            }
        }
        let odd = Odd { ino, block, addr: stored, slot, doubt, owner: key.0, original: Some(original) };
        self.odd.insert(key, odd);
    }
}
