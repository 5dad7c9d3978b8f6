//! Names of casefolded directories that a search by hash misses.
//!
//! Names on disk were folded in two ways: for some time Linux kept default-ignorable code points and hashed
//! names with them ("unicode: Don't special case ignorable code points", since reverted). Therefore Linux
//! searches the whole directory for each name that its hash does not lead to ("f2fs: Introduce linear search
//! for dentries"). Here a directory is walked once, and its stray names are remembered.
//!
//! *Invariant*: for a directory that was walked, every name that its own hash does not lead to is recorded
//! here with that hash and its block. The memory for all directories together is bounded: when the limit is
//! reached, everything is forgotten.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustc_hash::FxHashMap;

use crate::units::Ino;

/// Memory for a directory, and for one name, in bytes.
const DIR_BYTES: usize = 64;
const NAME_BYTES: usize = 32;

/// Hash and block of each stray name of a directory.
pub(super) type Strays = BTreeSet<(u32, u64)>;

/// Memory for the stray names of one directory in bytes.
fn bytes_of(strays: &Strays) -> usize {
    DIR_BYTES + strays.len() * NAME_BYTES
}

/// The stray names of the directories that were walked, shared by readers.
pub(super) struct DirStrays {
    known: Mutex<Known>,
    most_bytes: usize,
}

#[derive(Default)]
struct Known {
    dirs: FxHashMap<Ino, Strays>,
    bytes: usize,
}

impl DirStrays {
    /// Creates an empty record of all directories, which takes at most about `most_bytes` bytes.
    pub(super) fn new(most_bytes: usize) -> DirStrays {
        DirStrays { known: Mutex::default(), most_bytes }
    }

    /// Returns the blocks of a directory that may have a stray name with this hash, or `None` if the
    /// directory was not walked.
    pub(super) fn blocks(&self, dir: Ino, hash: u32) -> Option<Vec<u64>> {
        let known = self.lock();
        let strays = known.dirs.get(&dir)?;
        Some(strays.range((hash, 0)..=(hash, u64::MAX)).map(|(_, block)| *block).collect())
    }

    /// Returns true if the stray names of one directory fit into the memory for all.
    pub(super) fn has_room(&self, strays: &Strays) -> bool {
        bytes_of(strays) <= self.most_bytes
    }

    /// Records all stray names of a directory.
    pub(super) fn learn(&self, dir: Ino, strays: Strays) {
        let mut known = self.lock();
        known.forget(dir);
        known.make_room(bytes_of(&strays), self.most_bytes);
        if self.has_room(&strays) {
            known.bytes += bytes_of(&strays);
            known.dirs.insert(dir, strays);
        }
    }

    /// Records a stray name that was entered into a block of a directory.
    pub(super) fn entered(&self, dir: Ino, hash: u32, block: u64) {
        let mut known = self.lock();
        if known.dirs.get_mut(&dir).is_some_and(|strays| strays.insert((hash, block))) {
            known.bytes += NAME_BYTES;
            known.make_room(0, self.most_bytes);
        }
    }

    /// Forgets a directory.
    pub(super) fn forget(&self, dir: Ino) {
        self.lock().forget(dir);
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // A thread that panicked while it held the lock may have left a wrong count of bytes, but whole sets.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn forget(&mut self, dir: Ino) {
        if let Some(strays) = self.dirs.remove(&dir) {
            self.bytes -= bytes_of(&strays);
        }
    }

    fn make_room(&mut self, bytes: usize, most_bytes: usize) {
        if self.bytes + bytes > most_bytes {
            *self = Known::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Ino = Ino(7);

    #[test]
    fn only_a_directory_that_was_walked_is_known() {
        let strays = DirStrays::new(1 << 20);
        assert_eq!(strays.blocks(DIR, 1), None);
        strays.entered(DIR, 1, 5);
        assert_eq!(strays.blocks(DIR, 1), None, "there may be others");
        strays.learn(DIR, [(1, 5), (2, 6), (1, 9)].into());
        assert_eq!(strays.blocks(DIR, 1), Some(vec![5, 9]));
        assert_eq!(strays.blocks(DIR, 3), Some(vec![]));
        strays.entered(DIR, 3, 8);
        assert_eq!(strays.blocks(DIR, 3), Some(vec![8]));
        strays.forget(DIR);
        assert_eq!((strays.blocks(DIR, 1), strays.lock().bytes), (None, 0));
    }

    #[test]
    fn memory_is_bounded() {
        let strays = DirStrays::new(4 << 10);
        for dir in 0..10_000 {
            strays.learn(Ino(dir), [(1, 1)].into());
            strays.entered(Ino(dir), 2, 1);
            assert!(strays.lock().bytes <= 4 << 10);
        }
        strays.learn(DIR, (0..1000).map(|n| (n, 1)).collect());
        assert_eq!(strays.blocks(DIR, 5), None, "more than fits");
    }
}
