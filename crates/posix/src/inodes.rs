//! Per-inode state of the kernel's references: lookup counts, opens for writing, and unlinked inodes that
//! must be held.

use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

use f2fs::units::Ino;
use rustc_hash::FxHashMap;

use crate::{Errno, OpenFor};

const SHARDS: usize = 16;

/// Effect of the first read after an open on the access time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstAccess {
    /// It counts as an access.
    Counts,
    /// It does not (O_NOATIME), or the file is new.
    Ignored,
}

/// The inodes that the kernel knows.
#[derive(Default)]
pub struct Inodes {
    shards: [Mutex<FxHashMap<Ino, Known>>; SHARDS],
    /// Number of files open for writing that were closed.
    closed_writers: AtomicU64,
}

#[derive(Default)]
struct Known {
    /// Lookup count: references that the kernel gives back with FORGET.
    lookups: u64,
    /// Number of opens for writing.
    writers: u32,
    /// True while no writer is admitted.
    denies_writers: bool,
    /// True if at least one open may write anywhere. That stays so even if the file has become append-only
    /// since, because Linux checks the flag only at open.
    overwritable: bool,
    /// True if the volume holds the inode beyond its last link.
    held: bool,
    /// True if the file was opened and its access time has not been checked since.
    atime_due: bool,
    /// True if it is known to have no extended attributes.
    no_xattrs: bool,
}

/// Denies writers of a file until it is dropped.
pub struct Denial<'a> {
    inodes: &'a Inodes,
    ino: Ino,
}

impl Drop for Denial<'_> {
    fn drop(&mut self) {
        if let Some(known) = self.inodes.shard(self.ino).get_mut(&self.ino) {
            known.denies_writers = false;
        }
    }
}

impl Inodes {
    /// Increments the lookup count.
    pub fn add_lookup(&self, ino: Ino) {
        self.shard(ino).entry(ino).or_default().lookups += 1;
    }

    /// Notes that an inode has no extended attributes. The caller holds the volume's lock, so that none is
    /// set meanwhile.
    pub fn mark_without_xattrs(&self, ino: Ino) {
        if let Some(known) = self.shard(ino).get_mut(&ino) {
            known.no_xattrs = true;
        }
    }

    /// Notes that an extended attribute is set. The caller holds the volume's lock exclusively.
    pub fn mark_with_xattrs(&self, ino: Ino) {
        if let Some(known) = self.shard(ino).get_mut(&ino) {
            known.no_xattrs = false;
        }
    }

    /// Returns true if the inode is known to have no extended attributes.
    pub fn has_no_xattrs(&self, ino: Ino) -> bool {
        self.shard(ino).get(&ino).is_some_and(|known| known.no_xattrs)
    }

    /// Decrements the lookup count. Calls `gone` under the lock if it becomes zero. Returns true if the volume has
    /// to release the inode.
    #[must_use]
    pub fn forget(&self, ino: Ino, lookups: u64, gone: impl FnOnce()) -> bool {
        let mut shard = self.shard(ino);
        let Some(known) = shard.get_mut(&ino) else { return false };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups > 0 {
            return false;
        }
        gone();
        shard.remove(&ino).is_some_and(|known| known.held)
    }

    /// Called before an inode loses its last link. Returns true if the volume has to hold it from now on.
    #[must_use]
    pub fn hold(&self, ino: Ino) -> bool {
        match self.shard(ino).get_mut(&ino) {
            Some(known) if known.lookups > 0 && !known.held => {
                known.held = true;
                true
            }
            _ => false,
        }
    }

    /// Notes that the volume holds a newly created inode without a name.
    pub fn mark_held(&self, ino: Ino) {
        self.shard(ino).entry(ino).or_default().held = true;
    }

    /// Notes that a file is opened.
    pub fn open(&self, ino: Ino, open_for: OpenFor, first_access: FirstAccess) {
        let mut shard = self.shard(ino);
        let known = shard.entry(ino).or_default();
        known.writers += u32::from(open_for == OpenFor::Writing);
        known.atime_due |= first_access == FirstAccess::Counts;
    }

    /// Notes that a file was opened for writing anywhere, not only for appending.
    pub fn mark_overwritable(&self, ino: Ino) {
        self.shard(ino).entry(ino).or_default().overwritable = true;
    }

    /// Returns true if at least one open may write anywhere in the file.
    pub fn is_overwritable(&self, ino: Ino) -> bool {
        self.shard(ino).get(&ino).is_some_and(|known| known.overwritable)
    }

    /// Notes that a file opened for writing is closed.
    pub fn close_writer(&self, ino: Ino) {
        self.closed_writers.fetch_add(1, Ordering::AcqRel);
        if let Some(known) = self.shard(ino).get_mut(&ino) {
            known.writers = known.writers.saturating_sub(1);
            known.overwritable &= known.writers > 0;
        }
    }

    /// Returns the number of files open for writing that were closed so far.
    pub fn closed_writers(&self) -> u64 {
        self.closed_writers.load(Ordering::Acquire)
    }

    /// Returns true if a file is open for writing. The kernel may then have data and a size that are not
    /// written back yet.
    pub fn has_writer(&self, ino: Ino) -> bool {
        self.writers(ino) > 0
    }

    /// Denies writers of a file as long as the result exists. A writer who is counted later sees it.
    ///
    /// # Errors
    /// [`Errno::TXTBSY`] if the file has a writer, [`Errno::BUSY`] if writers are denied already.
    pub fn deny_writers(&self, ino: Ino) -> Result<Denial<'_>, Errno> {
        let mut shard = self.shard(ino);
        let known = shard.entry(ino).or_default();
        match (known.writers, known.denies_writers) {
            (_, true) => Err(Errno::BUSY),
            (1.., false) => Err(Errno::TXTBSY),
            (0, false) => {
                known.denies_writers = true;
                Ok(Denial { inodes: self, ino })
            }
        }
    }

    /// Returns true while writers of a file are denied.
    pub fn denies_writers(&self, ino: Ino) -> bool {
        self.shard(ino).get(&ino).is_some_and(|known| known.denies_writers)
    }

    /// Returns the number of opens for writing.
    pub fn writers(&self, ino: Ino) -> u32 {
        self.shard(ino).get(&ino).map_or(0, |known| known.writers)
    }

    /// Returns all inodes open for writing.
    pub fn open_for_writing(&self) -> Vec<Ino> {
        self.those(|known| known.writers > 0)
    }

    /// Returns all inodes that are open for writing or deny writers.
    pub fn with_changes(&self) -> Vec<Ino> {
        self.those(|known| known.writers > 0 || known.denies_writers)
    }

    fn those(&self, are: impl Fn(&Known) -> bool) -> Vec<Ino> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().expect("no code panics while it holds this lock");
            found.extend(shard.iter().filter(|(_, known)| are(known)).map(|(ino, _)| *ino));
        }
        found
    }

    /// Returns true at the first access to the content since the file was opened.
    pub fn take_atime_due(&self, ino: Ino) -> bool {
        self.shard(ino).get_mut(&ino).is_some_and(|known| std::mem::take(&mut known.atime_due))
    }

    /// Forgets all inodes, and returns those that the volume holds.
    pub fn drain(&self) -> Vec<Ino> {
        let mut held = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock().expect("no code panics while it holds this lock");
            held.extend(shard.drain().filter(|(_, known)| known.held).map(|(ino, _)| ino));
        }
        held
    }

    fn shard(&self, ino: Ino) -> MutexGuard<'_, FxHashMap<Ino, Known>> {
        self.shards[ino.index() % SHARDS].lock().expect("no code panics while it holds this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unlinked_inode_is_released_with_the_last_lookup() {
        let (inodes, ino) = (Inodes::default(), Ino(9));
        assert!(!inodes.hold(ino), "the kernel does not know it");
        inodes.add_lookup(ino);
        inodes.add_lookup(ino);
        assert!(inodes.hold(ino));
        assert!(!inodes.hold(ino), "it is held once");
        assert!(!inodes.forget(ino, 1, || {}));
        assert!(inodes.forget(ino, 1, || {}));
        assert!(!inodes.forget(ino, 1, || {}));
        inodes.add_lookup(ino);
        assert!(!inodes.forget(ino, 1, || {}), "nothing holds it any more");
    }

    #[test]
    fn inodes_held_at_the_end_are_returned() {
        let inodes = Inodes::default();
        for ino in [4, 5, 6].map(Ino) {
            inodes.add_lookup(ino);
        }
        assert!(inodes.hold(Ino(5)));
        assert_eq!(inodes.drain(), [Ino(5)]);
        assert_eq!(inodes.drain(), []);
    }

    #[test]
    fn writers_and_first_reads_are_counted() {
        let (inodes, ino) = (Inodes::default(), Ino(7));
        assert!(!inodes.has_writer(ino) && !inodes.take_atime_due(ino));
        inodes.open(ino, OpenFor::Writing, FirstAccess::Ignored);
        assert!(!inodes.take_atime_due(ino));
        inodes.open(ino, OpenFor::Reading, FirstAccess::Counts);
        assert!(inodes.has_writer(ino) && inodes.take_atime_due(ino) && !inodes.take_atime_due(ino));
        inodes.close_writer(ino);
        assert!(!inodes.has_writer(ino));
    }
}
