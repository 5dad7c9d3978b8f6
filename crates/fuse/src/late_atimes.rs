//! Access times of files that were read while a writer held the volume.
//!
//! *Invariant*: the next writer applies them before it changes anything, so an inode number still refers to
//! the file that was read.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use f2fs::{
    Volume,
    units::Ino,
    volume::{SetAttr, Stat},
};

/// Maximum number of files with a pending access time; further accesses are not recorded.
const FILES_MAX: usize = 4096;

/// Pending access times.
#[derive(Default)]
pub struct LateAtimes(Mutex<HashMap<Ino, SetAttr>>);

impl LateAtimes {
    /// Adds a pending change for a file. Returns false if the table is full.
    pub fn add(&self, ino: Ino, set: SetAttr) -> bool {
        let mut waiting = self.lock();
        let has_room = waiting.len() < FILES_MAX || waiting.contains_key(&ino);
        if has_room {
            waiting.insert(ino, set);
        }
        has_room
    }

    /// Returns the attributes of a file with its pending access time.
    pub fn seen(&self, stat: Stat) -> Stat {
        let atime = self.lock().get(&stat.ino).and_then(|set| set.atime);
        Stat { atime: atime.unwrap_or(stat.atime), ..stat }
    }

    /// Applies all pending access times. Errors are ignored: a full volume can still be read.
    pub fn apply(&self, volume: &mut Volume) {
        let waiting = std::mem::take(&mut *self.lock());
        for (ino, set) in waiting {
            let _ = volume.set_attr(ino, &set);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Ino, SetAttr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
