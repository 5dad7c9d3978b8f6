//! In-memory index of directories in which names are entered, so that entering a million names does not
//! search all levels a million times.
//!
//! *Invariants*: a hash that is missing in a complete index is not in the directory, and a bucket that is
//! recorded as full is full; everything else is looked up in the directory. The memory of all indexes
//! together is bounded: when the limit is reached, all are forgotten.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::units::Ino;

/// Memory for one hash or bucket in bytes: a number and a control byte in a hash table that is half full.
const ITEM_BYTES: usize = 8;
/// Memory for a directory, in items of `ITEM_BYTES`.
const DIR_ITEMS: usize = 16;

/// Index of one directory.
#[derive(Default)]
struct DirIndex {
    /// Hashes of all names, if all are known: for directories that were indexed while they were small.
    hashes: Option<FxHashSet<u32>>,
    /// Hashes that several names have or had. They stay, because the names with a hash are not counted.
    shared: FxHashSet<u32>,
    /// By level and bucket: the smallest number of contiguous slots that is known not to fit there.
    room: Vec<FxHashMap<u32, u8>>,
}

impl DirIndex {
    fn items(&self) -> usize {
        let hashes = self.hashes.as_ref().map_or(0, FxHashSet::len) + self.shared.len();
        DIR_ITEMS + hashes + self.room.iter().map(FxHashMap::len).sum::<usize>()
    }
}

/// The indexes of the directories that were written to.
pub(super) struct DirIndexes {
    map: FxHashMap<Ino, DirIndex>,
    /// Items in all indexes together.
    items: usize,
    items_max: usize,
}

impl DirIndexes {
    /// Creates an empty index of all directories, which takes at most about `most_bytes` bytes.
    pub(super) fn new(most_bytes: usize) -> DirIndexes {
        DirIndexes { map: FxHashMap::default(), items: 0, items_max: most_bytes / ITEM_BYTES }
    }

    /// Begins to track all names of a directory, given the hashes of its present names.
    pub(super) fn learn(&mut self, dir: Ino, hashes: impl IntoIterator<Item = u32>) {
        self.forget(dir);
        self.map.insert(dir, DirIndex { hashes: Some(FxHashSet::default()), ..DirIndex::default() });
        self.add(DIR_ITEMS);
        hashes.into_iter().for_each(|hash| self.entered(dir, hash));
    }

    /// Forgets a directory.
    pub(super) fn forget(&mut self, dir: Ino) {
        if let Some(index) = self.map.remove(&dir) {
            self.items -= index.items();
        }
    }

    /// Returns true if all names of a directory are known.
    pub(super) fn knows(&self, dir: Ino) -> bool {
        self.map.get(&dir).is_some_and(|index| index.hashes.is_some())
    }

    /// Returns true if a directory certainly has no name with this hash.
    pub(super) fn lacks(&self, dir: Ino, hash: u32) -> bool {
        let hashes = self.map.get(&dir).and_then(|index| index.hashes.as_ref());
        hashes.is_some_and(|hashes| !hashes.contains(&hash))
    }

    /// Returns true if a bucket certainly has no room for `slots` contiguous slots.
    pub(super) fn is_full(&self, dir: Ino, level: u32, bucket: u32, slots: usize) -> bool {
        let known = self.map.get(&dir).and_then(|index| index.room.get(level as usize)?.get(&bucket));
        known.is_some_and(|room| slots >= usize::from(*room))
    }

    /// Records that a bucket has no room for `slots` contiguous slots.
    pub(super) fn set_full(&mut self, dir: Ino, level: u32, bucket: u32, slots: usize) {
        let mut more = 0;
        let index = self.map.entry(dir).or_insert_with(|| {
            more += DIR_ITEMS;
            DirIndex::default()
        });
        if index.room.len() <= level as usize {
            index.room.resize_with(level as usize + 1, FxHashMap::default);
        }
        more += usize::from(index.room[level as usize].insert(bucket, slots as u8).is_none());
        self.add(more);
    }

    /// Records that a name was entered.
    pub(super) fn entered(&mut self, dir: Ino, hash: u32) {
        let Some(index) = self.map.get_mut(&dir) else { return };
        let Some(hashes) = &mut index.hashes else { return };
        let is_new = hashes.insert(hash) || index.shared.insert(hash);
        self.add(is_new.into());
    }

    /// Records that a name was removed. If it was in a bucket of a level, that bucket has room again.
    pub(super) fn left(&mut self, dir: Ino, hash: u32, bucket: Option<(u32, u64)>) {
        let Some(index) = self.map.get_mut(&dir) else { return };
        if let Some(hashes) = index.hashes.as_mut().filter(|_| !index.shared.contains(&hash)) {
            self.items -= usize::from(hashes.remove(&hash));
        }
        let Some((level, bucket)) = bucket else { return };
        if let Some(rooms) = index.room.get_mut(level as usize) {
            self.items -= usize::from(rooms.remove(&(bucket as u32)).is_some());
        }
    }

    fn add(&mut self, more: usize) {
        self.items += more;
        if self.items > self.items_max {
            (self.map, self.items) = Default::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Ino = Ino(7);

    fn counted(indexes: &DirIndexes) -> usize {
        indexes.map.values().map(DirIndex::items).sum()
    }

    #[test]
    fn removed_names_leave_no_entry_in_the_index() {
        let mut indexes = DirIndexes::new(1 << 20);
        indexes.learn(DIR, [1, 2]);
        let before = indexes.items;
        for hash in 10..100_000 {
            indexes.entered(DIR, hash);
            indexes.set_full(DIR, 1, hash % 3, 2);
            assert!(!indexes.lacks(DIR, hash) && indexes.is_full(DIR, 1, hash % 3, 2));
            indexes.left(DIR, hash, Some((1, u64::from(hash % 3))));
            assert!(indexes.lacks(DIR, hash) && !indexes.is_full(DIR, 1, hash % 3, 2));
        }
        assert_eq!((indexes.items, counted(&indexes)), (before, before));
        assert!(!indexes.lacks(DIR, 1) && indexes.lacks(DIR, 3));
        indexes.forget(DIR);
        assert_eq!(indexes.items, 0);
        assert!(!indexes.lacks(DIR, 3), "a forgotten name is looked up again");
    }

    #[test]
    fn a_hash_that_two_names_have_stays_when_one_goes() {
        let mut indexes = DirIndexes::new(1 << 20);
        indexes.learn(DIR, [5, 5]);
        indexes.left(DIR, 5, None);
        assert!(!indexes.lacks(DIR, 5));
        assert_eq!(indexes.items, counted(&indexes));
    }

    #[test]
    fn an_index_above_its_limit_is_dropped() {
        let mut indexes = DirIndexes::new(8 << 10);
        for dir in 0..10_000 {
            indexes.learn(Ino(dir), [1]);
            indexes.set_full(Ino(dir), 0, 0, 1);
            assert!(indexes.items <= 1 << 10 && indexes.items == counted(&indexes));
        }
        indexes.learn(DIR, 0..2000);
        assert!(!indexes.lacks(DIR, 2001), "more than fits");
    }
}
