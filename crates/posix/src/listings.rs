//! Directory listings in progress. A caller lists a directory in parts; the blocks that one part has met are handed to the
//! next one, so that a block of the device gives its names once, however often a hostile directory names it.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use f2fs::{engine::SeenBlocks, units::Ino};

/// Maximum number of listings that are remembered. A forgotten one goes on as if it began at its cookie.
const LISTINGS_MAX: usize = 16;

/// A listing between two parts.
struct Listing {
    dir: Ino,
    /// Position at which the next part begins.
    cookie: u64,
    seen: SeenBlocks,
}

/// The listings in progress, the latest last.
#[derive(Default)]
pub struct Listings(Mutex<VecDeque<Listing>>);

impl Listings {
    /// Takes the blocks that a listing has met before this position.
    pub fn take(&self, dir: Ino, cookie: u64) -> SeenBlocks {
        let mut listings = self.lock();
        let found = listings.iter().rposition(|listing| (listing.dir, listing.cookie) == (dir, cookie));
        let listing = found.and_then(|at| listings.remove(at));
        listing.map(|listing| listing.seen).unwrap_or_default()
    }

    /// Keeps the blocks that a listing has met for the part that begins at this position. The start of a directory needs
    /// none.
    pub fn keep(&self, dir: Ino, cookie: u64, seen: SeenBlocks) {
        if cookie == 0 {
            return;
        }
        let mut listings = self.lock();
        if listings.len() == LISTINGS_MAX {
            listings.pop_front();
        }
        listings.push_back(Listing { dir, cookie, seen });
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Listing>> {
        // A thread that panicked while it held the lock has added or removed one listing, or none.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
