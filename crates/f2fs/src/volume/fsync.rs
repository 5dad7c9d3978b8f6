//! fsync without a checkpoint: the file's data, and its changed nodes in the warm node log, the last of them
//! marked; then one flush. Opening the volume finds them there, see [`recovery`](super::recovery).
//!
//! Names of directories are not in that chain but those of new files, each in its inode. So an fsync of a directory is
//! a checkpoint, unless nothing has to be brought back but such names.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    ActiveLogs, FsyncNames, Volume,
    checkpoint::Reason,
    dir_write::ENTRY_BLOCKS,
    node_cache::Change,
    node_write::Marks,
    pending::{LastNode, PendingSync, Then, Work},
};
use crate::{
    Result,
    format::{
        FileType,
        checkpoint::Flags,
        inode::{advise, flag},
        node::NodeBlock,
        node_path::NodeKind,
        sit::SegmentType,
    },
    units::{Ino, Nid},
};

/// An fsync of so many blocks overwrites in place (Linux, `DEF_MIN_FSYNC_BLOCKS`).
pub(super) const IN_PLACE_BLOCKS_MAX: usize = 8;
/// Files that are remembered as synced.
const SYNCED_MAX: usize = 4096;
/// Changed names that are remembered of a directory.
const NAMES_MAX: usize = 16;
/// Directories of which changed names are remembered.
const NAMED_DIRS_MAX: usize = 4096;

/// What fsync has to know about the time since the last checkpoint.
#[derive(Default)]
pub(super) struct SinceCheckpoint {
    /// Inodes that changed their name, and the directories that they moved between.
    pub renamed: FxHashSet<Ino>,
    /// New inodes that recovery would find with their name.
    named: FxHashSet<Ino>,
    /// Files whose content was durable and was copied: out of the inode, or by cleaning. A cut between the node that
    /// names the copy and the copy itself would lose what was durable.
    moved_out: FxHashSet<Ino>,
    /// Files that lost a node of addresses or attributes that the device has: recovery takes over what nodes say, and
    /// none says that this one has gone.
    pub shrunk: FxHashSet<Ino>,
    /// Files of which nodes were written without a mark.
    pub unmarked: FxHashSet<Ino>,
    /// Directories in which names were made or removed, but not moved.
    names: FxHashMap<Ino, ChangedNames>,
    /// There are more of them than are remembered.
    names_elsewhere: bool,
    /// Blocks that were taken, whatever was given back.
    pub taken_blocks: u64,
    /// No zone was found that data and nodes of fsyncs could share.
    pub no_zone: bool,
    /// A node of the chain found no place for one after it, so the chain ends there.
    pub chain_ended: bool,
    /// Blocks that were given back: the next checkpoint makes them usable.
    pub freed_blocks: u64,
}

/// The names of a directory that are not what they were in the last checkpoint.
enum ChangedNames {
    /// These: the new inode that has the name, or `None` where it was removed.
    Few(BTreeMap<Box<[u8]>, Option<Ino>>),
    /// More than are remembered, or others than of new inodes.
    Others,
}

impl SinceCheckpoint {
    /// Notes that a name was made for a new inode, or removed.
    fn note_name(&mut self, dir: Ino, name: &[u8], ino: Option<Ino>) {
        let Some(changed) = self.changed_names(dir) else { return };
        if let ChangedNames::Few(names) = changed {
            names.insert(name.into(), ino);
            if names.len() > NAMES_MAX {
                *changed = ChangedNames::Others;
            }
        }
    }

    /// Notes that a name was made for an inode that has or had others.
    pub fn note_link(&mut self, dir: Ino) {
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

    /// Whether recovery brings back the names of a directory as they are now. Of a name that was removed it would
    /// bring back what had it, unless a new file has it since.
    fn brings_names_back(&self, dir: Ino) -> bool {
        match self.names.get(&dir) {
            None => !self.names_elsewhere,
            Some(ChangedNames::Few(names)) => {
                names.values().all(|ino| ino.is_some_and(|ino| self.named.contains(&ino)))
            }
            Some(ChangedNames::Others) => false,
        }
    }
}

impl Volume {
    /// Makes the content and the attributes of an inode durable. `data_only` promises no more than that the content
    /// can be read back.
    pub fn fsync(&mut self, ino: Ino, data_only: bool) -> Result<()> {
        let pending = self.begin_fsync(ino, data_only)?;
        self.complete(pending)
    }

    /// Begins an [`fsync`](Self::fsync): writes all that needs the volume. What is left is nothing, a flush that several
    /// files can share, or a checkpoint.
    pub fn begin_fsync(&mut self, ino: Ino, data_only: bool) -> Result<Option<PendingSync>> {
        self.start()?;
        let inode = self.inode(ino)?;
        let is_directory = inode.is_directory();
        let renames_first =
            self.options.fsync_names == FsyncNames::Renamed && !self.since_checkpoint.renamed.is_empty();
        if is_directory && !renames_first {
            if self.is_as_checkpointed(ino) {
                return Ok(None);
            }
            if data_only && self.names_are_written(ino)? {
                drop(inode);
                return self.flush_logs().map(Some);
            }
        }
        if renames_first || self.needs_checkpoint(&inode)? && !self.is_as_checkpointed(ino) {
            drop(inode);
            return match self.changed {
                true => self.checkpoint_then(Reason::Sync, Then::WriteRest(ino)).map(Some),
                false => self.write_rest(ino),
            };
        }
        drop(inode);
        if self.synced.len() >= SYNCED_MAX {
            self.synced.clear();
        }
        self.synced.insert(ino);
        self.write_pages_of(ino)?;
        if self.changed && self.checkpoint.flags.has(Flags::UMOUNT) {
            // The first one after a clean end: now a volume that is cut with a chain is always one that was not
            // unmounted, which gets a new version when it is opened, and no chain runs into nodes that a session
            // before has left.
            return self.checkpoint_then(Reason::Sync, Then::End).map(Some);
        }
        self.write_marked(ino, data_only).map(Some)
    }

    /// Writes what the checkpoint of an fsync has left: it leaves what it cannot write. Who asks for it is told, unless it
    /// can be written now.
    pub(super) fn write_rest(&mut self, ino: Ino) -> Result<Option<PendingSync>> {
        if self.pages.has_fewer(ino, 1) {
            return Ok(None);
        }
        self.write_pages_of(ino)?;
        self.checkpoint_then(Reason::Sync, Then::End).map(Some)
    }

    /// Sends the logs on their way, and leaves the flush to be done.
    fn flush_logs(&mut self) -> Result<PendingSync> {
        self.write_logs()?;
        Ok(self.pending(Work::Flush, Then::End))
    }

    /// Sends what an fsync has put into the logs on its way, data before the nodes that name it.
    fn write_logs(&mut self) -> Result<()> {
        for kind in
            [SegmentType::HotData, SegmentType::WarmData, SegmentType::ColdData, SegmentType::WarmNode]
        {
            let result = self.logs.write(&self.io, kind);
            self.stop_on_error(result)?;
        }
        Ok(())
    }

    /// Writes the changed nodes of a file that roll-forward can use: the inode last, and only the last one marked,
    /// so that recovery takes all of them or none. An inode that says nothing new is left for the checkpoint.
    ///
    /// The xattr node has no checksum, and half of it would be half of an attribute. So it is on the device before the
    /// mark is, which the inode then has.
    fn write_marked(&mut self, ino: Ino, data_only: bool) -> Result<PendingSync> {
        let own = Nid::from(ino);
        let is_new = !self.nat.is_checkpointed(&self.io, own)? && !self.since_checkpoint.named.contains(&ino);
        let attributes_first = self.has_unflushed_attributes(ino)?;
        if is_new || attributes_first || self.since_checkpoint.unmarked.contains(&ino) {
            // The mark must follow all that was written without one, and the name must be in the inode.
            self.node_mut(own)?;
        }
        let mut nids = Vec::new();
        for nid in self.nodes.dirty_of(ino) {
            let offset = self.node(nid)?.footer().offset;
            let kind = NodeKind::of(self.geometry.block_size, offset);
            if nid != own && !matches!(kind, Some(NodeKind::Indirect | NodeKind::DoubleIndirect)) {
                nids.push(nid);
            }
        }
        if self.must_write_inode(ino, data_only)? {
            nids.push(own);
        }
        let Some((last, others)) = nids.split_last() else { return self.flush_logs() };
        for nid in others {
            self.write_node(*nid, Marks::default())?;
        }
        let last = LastNode { ino, nid: *last, is_new };
        if attributes_first {
            self.write_logs()?;
            return Ok(self.pending(Work::Flush, Then::Mark(last)));
        }
        self.write_mark(last)
    }

    /// Writes the last node of an fsync, with the mark.
    pub(super) fn write_mark(&mut self, last: LastNode) -> Result<PendingSync> {
        let LastNode { ino, nid, is_new } = last;
        self.write_node(nid, Marks { fsync: true, dentry: nid == ino.into() && is_new })?;
        if is_new {
            self.since_checkpoint.named.insert(ino);
        }
        self.since_checkpoint.unmarked.remove(&ino);
        self.flush_logs()
    }

    /// Whether the node with a file's attributes has changed, or may have been written without a mark.
    fn has_unflushed_attributes(&self, ino: Ino) -> Result<bool> {
        let nid = self.inode(ino)?.xattr_nid();
        Ok(nid != Nid::NULL
            && (self.nodes.change(nid).is_some() || self.since_checkpoint.unmarked.contains(&ino)))
    }

    /// Whether an inode has changed in what recovery does not find out from the other nodes (Linux,
    /// `f2fs_skip_inode_update`).
    fn must_write_inode(&self, ino: Ino, data_only: bool) -> Result<bool> {
        let Some(change) = self.nodes.change(ino.into()) else { return Ok(false) };
        let inode = self.inode(ino)?;
        let size = inode.head().size.get();
        let tells_size =
            size % self.geometry.block_size.bytes() as u64 == 0 && !inode.has_advise(advise::KEEP_SIZE);
        Ok(change.has(Change::REST)
            || (change.has(Change::TIMES) && !data_only)
            || (change.has(Change::SIZE) && !tells_size))
    }

    /// Notes that a name of a directory was made for a new inode, or removed.
    pub(super) fn note_name(&mut self, dir: Ino, name: &[u8], ino: Option<Ino>) -> Result<()> {
        match self.inode(dir)?.has_flag(flag::CASEFOLD) {
            // There names that differ may be the same.
            true => self.since_checkpoint.note_link(dir),
            false => self.since_checkpoint.note_name(dir, name, ino),
        }
        Ok(())
    }

    /// Notes that content of a file is copied elsewhere, without being changed.
    pub(super) fn content_moves_out(&mut self, ino: Ino) -> Result<()> {
        if self.is_durable(ino)? {
            self.since_checkpoint.moved_out.insert(ino);
        }
        Ok(())
    }

    /// Whether an inode and what it holds are as in the last checkpoint.
    fn is_as_checkpointed(&self, ino: Ino) -> bool {
        let since = &self.since_checkpoint;
        !self.nat.is_changed(ino.into())
            && self.nodes.dirty_of(ino).is_empty()
            && self.pages.has_fewer(ino, 1)
            && !since.names.contains_key(&ino)
            && !since.names_elsewhere
            && ![&since.renamed, &since.moved_out, &since.shrunk, &since.unmarked]
                .iter()
                .any(|set| set.contains(&ino))
    }

    /// Whether recovery finds all names of a directory once the logs are flushed. Its times it does not find.
    fn names_are_written(&self, dir: Ino) -> Result<bool> {
        let since = &self.since_checkpoint;
        Ok(!since.renamed.contains(&dir)
            && since.brings_names_back(dir)
            && self.nat.is_checkpointed(&self.io, dir.into())?)
    }

    /// Whether opening the volume after a cut would find this inode, by the checkpoint or by an fsync.
    pub(super) fn is_durable(&self, ino: Ino) -> Result<bool> {
        Ok(self.nat.is_checkpointed(&self.io, ino.into())? || self.since_checkpoint.named.contains(&ino))
    }

    /// Whether what happened to a file is more than roll-forward can bring back (Linux, `need_do_checkpoint`; and
    /// more careful about renames).
    fn needs_checkpoint(&self, inode: &NodeBlock) -> Result<bool> {
        let head = inode.head();
        let parent = Ino(head.pino.get());
        let since = &self.since_checkpoint;
        let log = super::allocate::log_for(self.options.active_logs, SegmentType::WarmNode, false);
        // Recovery enters names into directories that may have no room for them.
        let names_blocks = (since.named.len() as u64 + 1) * ENTRY_BLOCKS;
        Ok(inode.file_type() != FileType::Regular
            || inode.compression().is_some()
            || head.links.get() != 1
            || inode.has_advise(advise::LOST_PINO)
            || since.renamed.contains(&inode.ino())
            || since.moved_out.contains(&inode.ino())
            || since.shrunk.contains(&inode.ino())
            || since.renamed.contains(&parent)
            || !self.nat.is_checkpointed(&self.io, parent.into())?
            || self.checkpoint.valid_blocks + since.taken_blocks + names_blocks > self.checkpoint.user_blocks
            || self.options.active_logs == ActiveLogs::Two
            || since.chain_ended
            || log != SegmentType::WarmNode)
    }
}
