//! Positions at which names were found or entered, to look there before a search.
//!
//! A position may be that of another name, or of none any more. So whoever follows it compares the entry there with the
//! name, and searches if it is another one.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use super::{
    Names,
    dir::{Comparison, Found, Wanted},
};
use crate::{
    Place,
    format::{dentry::Dentries, inode::inline, node::NodeBlock},
    units::Ino,
};

/// Bits of a position that are the slot; the others are the block.
const SLOT_BITS: u32 = 10;
/// Bits of a position.
const POSITION_BITS: u32 = 32;

/// Places that a name may have. With one, names drive each other out long before the table is full.
const WAYS: usize = 4;

/// A table of fixed size. Each name has one of a few places in it, and the latest names of those places stay.
pub(super) struct NameHints {
    /// Position in the lower half, tag of the directory and hash in the upper half; 0 is an empty place. It is made for the
    /// first name.
    table: OnceLock<Box<[AtomicU64]>>,
    /// Binary logarithm of the number of groups of places.
    log: u32,
}

impl NameHints {
    /// Makes an empty table of at most `most_bytes` bytes.
    pub(super) fn new(most_bytes: usize) -> NameHints {
        let groups = most_bytes / (WAYS * size_of::<AtomicU64>());
        NameHints { table: OnceLock::new(), log: groups.max(2).ilog2() }
    }

    /// Records the block and the slot of a name with this hash.
    pub(super) fn note(&self, dir: Ino, hash: u32, block: u64, slot: usize) {
        if block >> (POSITION_BITS - SLOT_BITS) > 0 || slot >> SLOT_BITS > 0 {
            return;
        }
        let places = WAYS << self.log;
        let table = self.table.get_or_init(|| (0..places).map(|_| AtomicU64::new(0)).collect());
        let (group, tag) = self.group(dir, hash);
        let mut next = tag | block << SLOT_BITS | slot as u64;
        for place in &table[group..group + WAYS] {
            let before = place.load(Relaxed);
            place.store(next, Relaxed);
            if before == 0 || has_tag(before, tag) {
                break;
            }
            next = before;
        }
    }

    /// Returns the block and the slot that may have a name with this hash.
    pub(super) fn get(&self, dir: Ino, hash: u32) -> Option<(u64, usize)> {
        let (group, tag) = self.group(dir, hash);
        let places = &self.table.get()?[group..group + WAYS];
        let there = places.iter().map(|place| place.load(Relaxed)).find(|there| has_tag(*there, tag))?;
        let position = there & u64::from(u32::MAX);
        Some((position >> SLOT_BITS, (position & ((1 << SLOT_BITS) - 1)) as usize))
    }

    /// The index of a name's first place, and its tag.
    fn group(&self, dir: Ino, hash: u32) -> (usize, u64) {
        let key = (u64::from(dir.0) << 32 | u64::from(hash)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        // The tag is the lower half with a bit set, the index comes from the upper half.
        ((key >> (u64::BITS - self.log)) as usize * WAYS, (key | 1) << POSITION_BITS)
    }
}

impl Names {
    /// Returns the entry at the position at which a name was met last, if it is still there.
    pub(super) fn hinted(&self, dir: &NodeBlock, wanted: &Wanted<'_>) -> Option<Found> {
        let (block, slot) = self.hints.get(dir.ino(), wanted.hash())?;
        if dir.has_inline(inline::DENTRY) || block >= self.dir_end(dir) {
            return None;
        }
        // The search reports errors.
        let bytes = self.files.dir_block(dir, block).ok()??;
        let area = Dentries::new(&*bytes, Place::Dir(dir.ino(), block));
        let entry = area.entry_at(slot).filter(|entry| wanted.is(entry, Comparison::HashAndName))?;
        Some(Found { ino: entry.ino, kind: entry.kind, block, slot })
    }
}

fn has_tag(place: u64, tag: u64) -> bool {
    place >> POSITION_BITS == tag >> POSITION_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_position_of_a_name_is_found_and_other_names_have_none() {
        let hints = NameHints::new(1 << 16);
        assert_eq!(hints.get(Ino(5), 9), None);
        hints.note(Ino(5), 9, 3, 7);
        hints.note(Ino(5), 9, (1 << 22) - 1, 855);
        assert_eq!(hints.get(Ino(5), 9), Some(((1 << 22) - 1, 855)));
        assert_eq!((hints.get(Ino(6), 9), hints.get(Ino(5), 8)), (None, None));
        hints.note(Ino(5), 9, 1 << 22, 0);
        assert_eq!(hints.get(Ino(5), 9), Some(((1 << 22) - 1, 855)), "a block beyond the table's reach");
    }

    #[test]
    fn the_latest_names_stay_and_the_table_keeps_its_size() {
        // 16 groups of 4 places.
        let hints = NameHints::new(1000);
        for hash in 0..10_000 {
            hints.note(Ino(5), hash, 0, 1);
            assert!(hints.get(Ino(5), hash).is_some());
        }
        let kept: Vec<u32> = (0..10_000).filter(|hash| hints.get(Ino(5), *hash).is_some()).collect();
        assert_eq!(kept.len(), 64);
        assert!(kept[0] > 9000, "{}", kept[0]);
    }
}
