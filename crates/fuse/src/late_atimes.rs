//! Access times of files that were read while a writer had the volume.
//!
//! *Invariant*: the next writer sets them before it changes anything, so each belongs to the file that was read.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use f2fs::{
    Volume,
    units::Ino,
    volume::{SetAttr, Stat},
};

/// Files whose times wait at most; more readers than that leave no trace.
const FILES_MAX: usize = 4096;

/// The times that wait.
#[derive(Default)]
pub struct LateAtimes(Mutex<HashMap<Ino, SetAttr>>);

impl LateAtimes {
    /// Keeps what is to be set of a file, if there is room for it; whether there is.
    pub fn add(&self, ino: Ino, set: SetAttr) -> bool {
        let mut waiting = self.lock();
        let has_room = waiting.len() < FILES_MAX || waiting.contains_key(&ino);
        if has_room {
            waiting.insert(ino, set);
        }
        has_room
    }

    /// The facts of a file with the time of access that waits for it.
    pub fn seen(&self, stat: Stat) -> Stat {
        let atime = self.lock().get(&stat.ino).and_then(|set| set.atime);
        Stat { atime: atime.unwrap_or(stat.atime), ..stat }
    }

    /// Sets what waits. A volume without room for it can still be read.
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
