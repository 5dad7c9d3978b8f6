//! fsync without a checkpoint: writes the file's data, and its dirty nodes to the warm node log, the last of
//! them with the fsync mark; then one flush. Roll-forward finds them when the volume is opened, see
//! [`recovery`](super::recovery).
//!
//! This chain of nodes holds no directory entries. Recovery restores only the names of new files, which are
//! in their inodes. So an fsync of a directory is a checkpoint, unless there are no other names to restore.

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

/// Maximum number of dirty pages that an fsync updates in place even if they are not adjacent (Linux,
/// `DEF_MIN_FSYNC_BLOCKS`).
pub(super) const IN_PLACE_BLOCKS_MAX: usize = 8;
/// Maximum number of files that are remembered as synced.
const SYNCED_MAX: usize = 4096;
/// Maximum number of changed names that are remembered for a directory.
const NAMES_MAX: usize = 16;
/// Maximum number of directories whose changed names are remembered.
const NAMED_DIRS_MAX: usize = 4096;

/// Changes since the last checkpoint, as far as fsync depends on them.
#[derive(Default)]
pub(super) struct SinceCheckpoint {
    /// Inodes whose fsync must be a checkpoint, and directories for whose files it must be: after a rename,
    /// after the removal of a name that recovery would restore, or after a change of flags.
    pub renamed: FxHashSet<Ino>,
    /// New inodes that recovery would find with their name.
    named: FxHashSet<Ino>,
    /// Files whose content was durable and was copied: out of the inode, or by cleaning. If power failed
    /// after the node that refers to the copy was written, and before the copy itself was, the durable
    /// content would be lost.
    moved_out: FxHashSet<Ino>,
    /// Files that lost a node of addresses or attributes that is on the device: recovery applies the nodes
    /// that it finds, and none of them records the removal.
    pub shrunk: FxHashSet<Ino>,
    /// Files with nodes that were written without the fsync mark.
    pub unmarked: FxHashSet<Ino>,
    /// Directories in which names were created or removed, but not moved.
    names: FxHashMap<Ino, ChangedNames>,
    /// True if there are more such directories than are remembered.
    names_elsewhere: bool,
    /// Number of blocks that were taken; blocks that were released are not subtracted.
    pub taken_blocks: u64,
    /// True if no zone was found that data and nodes of fsyncs could share.
    pub no_zone: bool,
    /// True if the last node of the chain has no address for a next one, so that the chain ends there.
    pub chain_ended: bool,
    /// Number of blocks that were released; the next checkpoint makes them usable.
    pub freed_blocks: u64,
}

/// The names of a directory that have changed since the last checkpoint.
enum ChangedNames {
    /// The changed names, each with the new inode that it refers to, or `None` if it was removed.
    Few(BTreeMap<Box<[u8]>, Option<Ino>>),
    /// More names than are remembered, or names of inodes that are not new.
    Others,
}

impl SinceCheckpoint {
    /// Records that a name was created for a new inode, or removed.
    fn note_name(&mut self, dir: Ino, name: &[u8], ino: Option<Ino>) {
        let Some(changed) = self.changed_names(dir) else { return };
        if let ChangedNames::Few(names) = changed {
            names.insert(name.into(), ino);
            if names.len() > NAMES_MAX {
                *changed = ChangedNames::Others;
            }
        }
    }

    /// Records that a name was created for an inode that has or had other names.
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

    /// Returns true if recovery restores the names of a directory as they are now. It would also restore a
    /// name that was removed, unless a new file has that name.
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
    /// Makes the content and the attributes of an inode durable. With `data_only`, only attributes that are
    /// needed to read the content are guaranteed.
    pub fn fsync(&mut self, ino: Ino, data_only: bool) -> Result<()> {
        let pending = self.begin_fsync(ino, data_only)?;
        self.complete(pending)
    }

    /// Begins an [`fsync`](Self::fsync): does all that needs access to the volume. The work that is left is
    /// none, a flush that several files can share, or a checkpoint.
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
            // The first fsync after a clean unmount becomes a checkpoint. So after a power cut, a volume with
            // a chain is never marked as unmounted: it gets a new checkpoint version when it is opened, and
            // no chain runs into nodes that an earlier session left.
            return self.checkpoint_then(Reason::Sync, Then::End).map(Some);
        }
        self.write_marked(ino, data_only).map(Some)
    }

    /// Writes the pages of a file that the checkpoint for its fsync could not write. Returns the error if
    /// they still cannot be written.
    pub(super) fn write_rest(&mut self, ino: Ino) -> Result<Option<PendingSync>> {
        if self.pages.has_fewer(ino, 1) {
            return Ok(None);
        }
        self.write_pages_of(ino)?;
        self.checkpoint_then(Reason::Sync, Then::End).map(Some)
    }

    /// Writes the logs. The flush is left to be done.
    fn flush_logs(&mut self) -> Result<PendingSync> {
        self.write_logs()?;
        Ok(self.pending(Work::Flush, Then::End))
    }

    /// Writes the pending runs of an fsync, data before the nodes that refer to it.
    fn write_logs(&mut self) -> Result<()> {
        for kind in
            [SegmentType::HotData, SegmentType::WarmData, SegmentType::ColdData, SegmentType::WarmNode]
        {
            let result = self.logs.write(&self.io, kind);
            self.stop_on_error(result)?;
        }
        Ok(())
    }

    /// Writes the dirty nodes of a file that roll-forward can use. The inode comes last, if it is written,
    /// and only the last node has the fsync mark, so that recovery applies all of them or none. An inode
    /// without a relevant change is left for the checkpoint.
    ///
    /// The xattr node has no checksum, and a torn one would hold a part of an attribute. So it is flushed
    /// before the mark is written, and the inode then has the mark.
    fn write_marked(&mut self, ino: Ino, data_only: bool) -> Result<PendingSync> {
        let own = Nid::from(ino);
        let is_new = !self.nat.is_checkpointed(&self.io, own)? && !self.since_checkpoint.named.contains(&ino);
        let attributes_first = self.has_unflushed_attributes(ino)?;
        if is_new || attributes_first || self.since_checkpoint.unmarked.contains(&ino) {
            // The inode must be written: the mark must follow all nodes that were written without it, and a
            // new inode must hold its name.
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

    /// Writes the last node of an fsync, with the fsync mark.
    pub(super) fn write_mark(&mut self, last: LastNode) -> Result<PendingSync> {
        let LastNode { ino, nid, is_new } = last;
        self.write_node(nid, Marks { fsync: true, dentry: nid == ino.into() && is_new })?;
        if is_new {
            self.since_checkpoint.named.insert(ino);
        }
        self.since_checkpoint.unmarked.remove(&ino);
        self.flush_logs()
    }

    /// Returns true if a file's xattr node has changed, or may have been written without the fsync mark.
    fn has_unflushed_attributes(&self, ino: Ino) -> Result<bool> {
        let nid = self.inode(ino)?.xattr_nid();
        Ok(nid != Nid::NULL
            && (self.nodes.change(nid).is_some() || self.since_checkpoint.unmarked.contains(&ino)))
    }

    /// Returns true if an inode has changes that recovery does not derive from the other nodes (Linux,
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

    /// Records that a name of a directory was created for a new inode, or removed.
    pub(super) fn note_name(&mut self, dir: Ino, name: &[u8], ino: Option<Ino>) -> Result<()> {
        match self.inode(dir)?.has_flag(flag::CASEFOLD) {
            // In a casefolded directory, names that differ may be the same.
            true => self.since_checkpoint.note_link(dir),
            false => self.since_checkpoint.note_name(dir, name, ino),
        }
        Ok(())
    }

    /// Records that content of a file is copied elsewhere without being changed.
    pub(super) fn content_moves_out(&mut self, ino: Ino) -> Result<()> {
        if self.is_durable(ino)? {
            self.since_checkpoint.moved_out.insert(ino);
        }
        Ok(())
    }

    /// Returns true if an inode and its content are as in the last checkpoint.
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

    /// Returns true if recovery finds all names of a directory once the logs are flushed. It does not find
    /// the times of the directory.
    fn names_are_written(&self, dir: Ino) -> Result<bool> {
        let since = &self.since_checkpoint;
        Ok(!since.renamed.contains(&dir)
            && since.brings_names_back(dir)
            && self.nat.is_checkpointed(&self.io, dir.into())?)
    }

    /// Returns true if an open after a power cut would find this inode, by the checkpoint or by an fsync.
    pub(super) fn is_durable(&self, ino: Ino) -> Result<bool> {
        Ok(self.nat.is_checkpointed(&self.io, ino.into())? || self.since_checkpoint.named.contains(&ino))
    }

    /// Returns true if roll-forward cannot restore the changes of a file (Linux, `need_do_checkpoint`, with
    /// stricter rules for renames).
    fn needs_checkpoint(&self, inode: &NodeBlock) -> Result<bool> {
        let head = inode.head();
        let parent = Ino(head.pino.get());
        let since = &self.since_checkpoint;
        let log = super::allocate::log_for(self.options.active_logs, SegmentType::WarmNode, false);
        // Recovery enters names into directories, which may need new blocks for them.
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
