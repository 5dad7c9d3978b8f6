//! Pending access times of files that were read.
//!
//! *Invariant*: a reader does not change the volume. The next writer applies these times before its own change; if
//! there is none, a background thread does within about a second. Attributes that leave this crate show the
//! [pending](PendingAtimes::stat) time.
//!
//! A pending time belongs to an inode number, which a later inode may get. So the change that creates an inode drops
//! the time of its number.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use f2fs::{
    engine::{Engine, Stat},
    units::{Ino, Time},
};

/// Maximum number of files with a pending access time.
pub const FILES_MAX: usize = 4096;

/// Pending access times.
#[derive(Default)]
pub struct PendingAtimes(Mutex<BTreeMap<Ino, Time>>);

impl PendingAtimes {
    /// Adds the time of an access to a file. Returns false if the table is full.
    pub fn add(&self, ino: Ino, atime: Time) -> bool {
        let mut waiting = self.lock();
        let has_room = waiting.len() < FILES_MAX || waiting.contains_key(&ino);
        if has_room {
            waiting.insert(ino, atime);
        }
        has_room
    }

    /// Returns true if no time is pending.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Returns the attributes of a file with its pending access time. Needs a locked volume: a writer could
    /// otherwise apply the time between the two look-ups, and neither would show it.
    pub fn stat(&self, volume: &Engine, ino: Ino) -> f2fs::Result<Stat> {
        let stat = volume.stat(ino)?;
        let atime = self.lock().get(&ino).copied();
        Ok(Stat { atime: atime.unwrap_or(stat.atime), ..stat })
    }

    /// Takes out one time for the caller to apply. No reader may enter the volume until it is applied.
    pub fn take_one(&self) -> Option<(Ino, Time)> {
        self.lock().pop_first()
    }

    /// Drops the time of a file because a caller sets another one.
    pub fn drop_of(&self, ino: Ino) {
        self.lock().remove(&ino);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Ino, Time>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
