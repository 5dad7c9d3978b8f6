//! What the kernel holds on to: lookups, files open for writing, and unlinked inodes that must stay.

use std::sync::{Mutex, MutexGuard};

use f2fs::units::Ino;
use rustc_hash::FxHashMap;

use crate::Errno;

const SHARDS: usize = 16;

/// The inodes that the kernel knows.
#[derive(Default)]
pub struct Inodes {
    shards: [Mutex<FxHashMap<Ino, Known>>; SHARDS],
}

#[derive(Default)]
struct Known {
    /// References that the kernel has and gives back with `forget`.
    lookups: u64,
    /// Times that it is open for writing.
    writers: u32,
    /// Somebody has it open who may write anywhere, also where it has become append-only since (Linux asks when a file
    /// is opened).
    overwritable: bool,
    /// The volume has been told to keep it although it loses its last name.
    held: bool,
    /// It was opened, and its access time has not been looked at since.
    atime_due: bool,
    /// It was opened before: the kernel may have its content.
    cached: bool,
    /// It was read or written through the kernel's cache, which may have some of its content.
    in_cache: bool,
    /// Who wrote to it last is an administrator.
    privileged: bool,
    /// How writing what the kernel had in its cache failed last, until somebody asks.
    failed: Option<Errno>,
    /// That has happened since it was opened for writing.
    fails: bool,
    /// It has no extended attributes.
    bare: bool,
}

impl Inodes {
    /// The kernel has got one more reference.
    pub fn looked_up(&self, ino: Ino) {
        self.shard(ino).entry(ino).or_default().lookups += 1;
    }

    /// It has no extended attributes. The caller holds the volume's lock, so that none is set meanwhile.
    pub fn has_no_xattrs(&self, ino: Ino) {
        if let Some(known) = self.shard(ino).get_mut(&ino) {
            known.bare = true;
        }
    }

    /// An extended attribute is set. The caller has the volume to itself.
    pub fn gets_xattr(&self, ino: Ino) {
        if let Some(known) = self.shard(ino).get_mut(&ino) {
            known.bare = false;
        }
    }

    /// Returns true if it is known that it has no extended attributes.
    pub fn is_bare(&self, ino: Ino) -> bool {
        self.shard(ino).get(&ino).is_some_and(|known| known.bare)
    }

    /// The kernel gives references back. Says whether the volume has to release the inode.
    #[must_use]
    pub fn forgotten(&self, ino: Ino, lookups: u64) -> bool {
        let mut shard = self.shard(ino);
        let Some(known) = shard.get_mut(&ino) else { return false };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups > 0 {
            return false;
        }
        shard.remove(&ino).is_some_and(|known| known.held)
    }

    /// An inode is about to lose its last name. Says whether the volume has to hold it from now on.
    #[must_use]
    pub fn must_hold(&self, ino: Ino) -> bool {
        match self.shard(ino).get_mut(&ino) {
            Some(known) if known.lookups > 0 && !known.held => {
                known.held = true;
                true
            }
            _ => false,
        }
    }

    /// An inode without a name has been made, which the volume holds.
    pub fn holds(&self, ino: Ino) {
        self.shard(ino).entry(ino).or_default().held = true;
    }

    /// A file is opened; `counts` is whether reading it is an access. Says whether the kernel may have its content
    /// already, and read it without asking.
    pub fn opened(&self, ino: Ino, for_writing: bool, counts: bool) -> bool {
        let mut shard = self.shard(ino);
        let known = shard.entry(ino).or_default();
        known.writers += u32::from(for_writing);
        known.atime_due |= counts;
        std::mem::replace(&mut known.cached, true)
    }

    /// Who opened a file for writing may do so anywhere in it.
    pub fn opened_to_overwrite(&self, ino: Ino) {
        self.shard(ino).entry(ino).or_default().overwritable = true;
    }

    /// Whether somebody has it open who may.
    pub fn is_overwritable(&self, ino: Ino) -> bool {
        self.shard(ino).get(&ino).is_some_and(|known| known.overwritable)
    }

    /// A file that was open for writing is closed.
    pub fn closed_writer(&self, ino: Ino) {
        if let Some(known) = self.shard(ino).get_mut(&ino) {
            known.writers = known.writers.saturating_sub(1);
            known.fails &= known.writers > 0;
            known.overwritable &= known.writers > 0;
        }
    }

    /// Whether a file is open for writing: the kernel may have data and a size that we do not.
    pub fn has_writer(&self, ino: Ino) -> bool {
        self.writers(ino) > 0
    }

    /// How often a file is open for writing.
    pub fn writers(&self, ino: Ino) -> u32 {
        self.shard(ino).get(&ino).map_or(0, |known| known.writers)
    }

    /// Everything that is open for writing.
    pub fn open_for_writing(&self) -> Vec<Ino> {
        let mut open = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().expect("nothing panics under this lock");
            open.extend(shard.iter().filter(|(_, known)| known.writers > 0).map(|(ino, _)| *ino));
        }
        open
    }

    /// Whether this is the first access to content since the file was opened.
    pub fn take_atime_due(&self, ino: Ino) -> bool {
        self.shard(ino).get_mut(&ino).is_some_and(|known| std::mem::take(&mut known.atime_due))
    }

    /// It is read or written through the kernel's cache.
    pub fn goes_through_cache(&self, ino: Ino) {
        if let Some(known) = self.shard(ino).get_mut(&ino) {
            known.in_cache = true;
        }
    }

    /// Whether it [was](Self::goes_through_cache) since the kernel knows it.
    pub fn may_be_in_cache(&self, ino: Ino) -> bool {
        self.shard(ino).get(&ino).is_some_and(|known| known.in_cache)
    }

    /// Somebody writes to it, or may: what the kernel has in its cache from now on counts as theirs. Says whether
    /// writing what it had there has [failed](Self::write_failed) since the file was opened for writing.
    pub fn about_to_write(&self, ino: Ino, privileged: bool) -> bool {
        let mut shard = self.shard(ino);
        let Some(known) = shard.get_mut(&ino) else { return false };
        known.privileged = privileged;
        known.fails
    }

    /// Whether who wrote to it last is an administrator.
    pub fn writer_is_privileged(&self, ino: Ino) -> bool {
        self.shard(ino).get(&ino).is_some_and(|known| known.privileged)
    }

    /// What the kernel had in its cache could not be written.
    pub fn write_failed(&self, ino: Ino, errno: Errno) {
        if let Some(known) = self.shard(ino).get_mut(&ino) {
            (known.failed, known.fails) = (Some(errno), true);
        }
    }

    /// How writing failed since this was asked last.
    pub fn take_failure(&self, ino: Ino) -> Option<Errno> {
        self.shard(ino).get_mut(&ino).and_then(|known| known.failed.take())
    }

    /// Forgets everything, and says what the volume holds.
    pub fn drain(&self) -> Vec<Ino> {
        let mut held = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock().expect("nothing panics under this lock");
            held.extend(shard.drain().filter(|(_, known)| known.held).map(|(ino, _)| ino));
        }
        held
    }

    fn shard(&self, ino: Ino) -> MutexGuard<'_, FxHashMap<Ino, Known>> {
        self.shards[ino.index() % SHARDS].lock().expect("nothing panics under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unlinked_inode_is_released_with_the_last_lookup() {
        let (inodes, ino) = (Inodes::default(), Ino(9));
        assert!(!inodes.must_hold(ino), "nobody knows it");
        inodes.looked_up(ino);
        inodes.looked_up(ino);
        assert!(inodes.must_hold(ino));
        assert!(!inodes.must_hold(ino), "it is held once");
        assert!(!inodes.forgotten(ino, 1));
        assert!(inodes.forgotten(ino, 1));
        assert!(!inodes.forgotten(ino, 1));
        inodes.looked_up(ino);
        assert!(!inodes.forgotten(ino, 1), "nothing holds it any more");
    }

    #[test]
    fn what_is_held_at_the_end_is_told() {
        let inodes = Inodes::default();
        for ino in [4, 5, 6].map(Ino) {
            inodes.looked_up(ino);
        }
        assert!(inodes.must_hold(Ino(5)));
        assert_eq!(inodes.drain(), [Ino(5)]);
        assert_eq!(inodes.drain(), []);
    }

    #[test]
    fn writers_and_first_reads_are_counted() {
        let (inodes, ino) = (Inodes::default(), Ino(7));
        assert!(!inodes.has_writer(ino) && !inodes.take_atime_due(ino));
        assert!(!inodes.opened(ino, true, false) && !inodes.take_atime_due(ino));
        assert!(inodes.opened(ino, false, true), "its content may be cached");
        assert!(inodes.has_writer(ino) && inodes.take_atime_due(ino) && !inodes.take_atime_due(ino));
        inodes.closed_writer(ino);
        assert!(!inodes.has_writer(ino));
    }

    #[test]
    fn a_failure_is_told_once() {
        let (inodes, ino) = (Inodes::default(), Ino(7));
        inodes.opened(ino, true, false);
        assert!(!inodes.about_to_write(ino, true));
        inodes.write_failed(ino, Errno::NOSPC);
        assert!(inodes.writer_is_privileged(ino));
        assert_eq!((inodes.take_failure(ino), inodes.take_failure(ino)), (Some(Errno::NOSPC), None));
        assert!(inodes.about_to_write(ino, true));
        inodes.closed_writer(ino);
        assert!(!inodes.about_to_write(ino, true));
    }
}
