//! The changes since the last checkpoint that fsync depends on, because roll-forward recovery does not find them.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Nodes, number_set::NumberSet};
use crate::{Result, units::Ino};

/// Maximum number of changed names that are remembered for a directory.
const NAMES_MAX: usize = 16;
/// Maximum number of directories whose changed names are remembered.
const NAMED_DIRS_MAX: usize = 4096;

/// Changes since the last checkpoint, as far as fsync depends on them.
#[derive(Default)]
pub(crate) struct SinceCheckpoint {
    /// Inodes whose fsync must be a checkpoint, and directories for whose files it must be: after a rename,
    /// after the removal of a name that recovery would restore, or after a change of flags.
    renamed: FxHashSet<Ino>,
    /// New inodes that recovery would find with their name.
    named: FxHashSet<Ino>,
    /// Files with durable content that has a new block since their last fsync: it was overwritten out of place, cleaned,
    /// shifted, or copied out of the inode. If power failed after the fsync mark was written, and before the new
    /// block was, the durable content would be lost.
    moved: NumberSet,
    /// Files that lost a node of addresses or attributes that is on the device: recovery applies the nodes
    /// that it finds, and none of them records the removal.
    pub(super) shrunk: FxHashSet<Ino>,
    /// Files with nodes that were written without the fsync mark.
    unmarked: NumberSet,
    /// Directories in which names were created or removed, but not moved.
    names: FxHashMap<Ino, ChangedNames>,
    /// True if there are more such directories than are remembered.
    names_elsewhere: bool,
}

/// The names of a directory that have changed since the last checkpoint.
enum ChangedNames {
    /// The changed names, each with the new inode that it refers to, or `None` if it was removed.
    Few(BTreeMap<Box<[u8]>, Option<Ino>>),
    /// More names than are remembered, or names of inodes that are not new.
    Others,
}

impl SinceCheckpoint {
    /// Records that roll-forward does not find what has happened to these inodes or directories.
    pub(crate) fn note_renamed(&mut self, inos: impl IntoIterator<Item = Ino>) {
        self.renamed.extend(inos);
    }

    /// Returns true if anything was renamed.
    pub(crate) fn has_renamed(&self) -> bool {
        !self.renamed.is_empty()
    }

    /// Returns true if [`note_renamed`](Self::note_renamed) was told of an inode.
    pub(crate) fn is_renamed(&self, ino: Ino) -> bool {
        self.renamed.contains(&ino)
    }

    /// Returns true if roll-forward cannot restore the current state of an inode from its nodes.
    pub(crate) fn is_beyond_roll_forward(&self, ino: Ino) -> bool {
        self.renamed.contains(&ino) || self.shrunk.contains(&ino)
    }

    /// Returns true if recovery would find a new inode with its name.
    pub(crate) fn is_named(&self, ino: Ino) -> bool {
        self.named.contains(&ino)
    }

    /// Count of the new inodes that recovery would find with their names.
    pub(crate) fn named_count(&self) -> usize {
        self.named.len()
    }

    /// Records that an fsync has written a new inode so that recovery finds its name.
    pub(crate) fn note_named(&mut self, ino: Ino) {
        self.named.insert(ino);
    }

    /// Records that a node of a file was written without the fsync mark.
    pub(super) fn note_unmarked(&mut self, ino: Ino) {
        self.unmarked.insert(ino.0);
    }

    /// Records that an fsync has marked a file's last node.
    pub(crate) fn note_mark(&mut self, ino: Ino) {
        self.unmarked.remove(ino.0);
        self.moved.remove(ino.0);
    }

    /// Returns true if durable content of a file has new blocks, which must be flushed before an fsync mark refers to them.
    pub(crate) fn has_moved(&self, ino: Ino) -> bool {
        self.moved.contains(ino.0)
    }

    /// Returns true if nodes of a file were written without the fsync mark.
    pub(crate) fn is_unmarked(&self, ino: Ino) -> bool {
        self.unmarked.contains(ino.0)
    }

    /// Returns true if something has happened to an inode that is recorded here.
    fn concerns(&self, ino: Ino) -> bool {
        self.names.contains_key(&ino)
            || self.names_elsewhere
            || self.unmarked.contains(ino.0)
            || self.moved.contains(ino.0)
            || self.is_beyond_roll_forward(ino)
    }

    /// Records that a name was created for a new inode, or removed.
    pub(crate) fn note_name(&mut self, dir: Ino, name: &[u8], ino: Option<Ino>) {
        let Some(changed) = self.changed_names(dir) else { return };
        if let ChangedNames::Few(names) = changed {
            names.insert(name.into(), ino);
            if names.len() > NAMES_MAX {
                *changed = ChangedNames::Others;
            }
        }
    }

    /// Records that a name was created for an inode that has or had other names.
    pub(crate) fn note_link(&mut self, dir: Ino) {
        if let Some(changed) = self.changed_names(dir) {
            *changed = ChangedNames::Others;
        }
    }

    fn changed_names(&mut self, dir: Ino) -> Option<&mut ChangedNames> {
        if self.names.len() >= NAMED_DIRS_MAX && !self.names.contains_key(&dir) {
            self.names_elsewhere = true;
            return None;
        }
        Some(self.names.entry(dir).or_insert_with(|| ChangedNames::Few(BTreeMap::new())))
    }

    /// Returns true if recovery restores the names of a directory as they are now. It would also restore a
    /// name that was removed, unless a new file has that name.
    pub(crate) fn brings_names_back(&self, dir: Ino) -> bool {
        match self.names.get(&dir) {
            None => !self.names_elsewhere,
            Some(ChangedNames::Few(names)) => {
                names.values().all(|ino| ino.is_some_and(|ino| self.named.contains(&ino)))
            }
            Some(ChangedNames::Others) => false,
        }
    }
}

impl Nodes {
    /// The changes since the last checkpoint that roll-forward does not find.
    pub(crate) fn since_checkpoint(&self) -> &SinceCheckpoint {
        &self.since_checkpoint
    }

    /// The changes since the last checkpoint, to record another.
    pub(crate) fn since_checkpoint_mut(&mut self) -> &mut SinceCheckpoint {
        &mut self.since_checkpoint
    }

    /// Records that content of a file, which may be durable, gets a new block.
    pub(crate) fn content_moves(&mut self, ino: Ino) -> Result<()> {
        if !self.since_checkpoint.has_moved(ino) && self.is_durable(ino)? {
            self.since_checkpoint.moved.insert(ino.0);
        }
        Ok(())
    }

    /// Returns true if the nodes and names of an inode are as in the last checkpoint.
    pub(crate) fn is_as_checkpointed(&self, ino: Ino) -> bool {
        !self.nat.is_changed(ino.into())
            && self.cache.dirty_of(ino).is_empty()
            && !self.since_checkpoint.concerns(ino)
    }

    /// Returns true if an open after a power cut would find this inode, by the checkpoint or by an fsync.
    pub(crate) fn is_durable(&self, ino: Ino) -> Result<bool> {
        Ok(self.is_checkpointed(ino.into())? || self.since_checkpoint.named.contains(&ino))
    }
}
