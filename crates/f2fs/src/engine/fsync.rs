//! fsync without a checkpoint: writes the file's data, and its dirty nodes to the warm node log, the last of
//! them with the fsync mark; then one flush. Roll-forward finds them when the volume is opened, see
//! [`recovery`](super::recovery).
//!
//! *Invariant*: the blocks that hold durable content are on the device before a marked node refers to them. So if durable
//! content has moved since the last fsync of the file, another flush comes before the mark: without it, a power cut could
//! leave the node without its data, and content that an earlier fsync promised would be lost. An overwrite in place and new
//! content need no such flush.
//!
//! This chain of nodes holds no directory entries. Recovery restores only the names of new files, which are
//! in their inodes. So an fsync of a directory is a checkpoint, unless there are no other names to restore.

use std::vec::IntoIter;

use super::{
    ActiveLogs, Engine, FsyncNames,
    checkpoint::Reason,
    pending::{LastNode, PendingSync, Then, Work},
    write_dirty::SLICE_BLOCKS,
};
use crate::{
    Result,
    files::PagesOfFile,
    format::{
        FileType, checkpoint::Flags, inode::advise, node::NodeBlock, node_path::NodeKind, sit::SegmentType,
    },
    names::ENTRY_BLOCKS,
    nodes::{Change, Marks},
    segments::log_for_node,
    units::{Ino, Nid},
};

/// The parts of an inode that an fsync makes durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncScope {
    /// Content and all attributes (fsync(2)).
    Everything,
    /// Content, and the attributes that reading it needs (fdatasync(2)).
    Data,
}

/// An fsync that writes the pages of its file. It can pause between any two of them to give readers a turn.
pub(super) struct FileSync {
    pages: PagesOfFile,
    scope: SyncScope,
}

/// An fsync that writes the nodes of its file except the last one. It can pause between any two of them: nothing
/// changes meanwhile, because a [`PendingSync`] is outstanding, so no other chain comes between the nodes of this one.
pub(super) struct NodesWrite {
    others: IntoIter<Nid>,
    last: LastNode,
    before_mark: BeforeMark,
}

/// The step before an fsync writes its mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BeforeMark {
    /// A flush.
    Flush,
    /// None.
    Nothing,
}

impl Engine {
    /// Makes the parts of an inode durable that `scope` names.
    ///
    /// # Errors
    /// Those of [every change](Engine#errors).
    pub fn fsync(&mut self, ino: Ino, scope: SyncScope) -> Result<()> {
        let pending = self.begin_fsync(ino, scope)?;
        self.complete(pending)
    }

    /// Begins an [`fsync`](Self::fsync). Returns its next work on the device, if any; [`finish`](Self::finish) takes the outcome
    /// and returns the work after that.
    ///
    /// # Errors
    /// Those of [every change](Engine#errors).
    pub fn begin_fsync(&mut self, ino: Ino, scope: SyncScope) -> Result<Option<PendingSync>> {
        self.start()?;
        let inode = self.inode(ino)?;
        let is_directory = inode.is_directory();
        let renames_first = self.options().fsync_names == FsyncNames::Renamed
            && self.nodes().since_checkpoint().has_renamed();
        if is_directory && !renames_first {
            if self.is_as_checkpointed(ino) {
                return Ok(None);
            }
            if scope == SyncScope::Data && self.names_are_written(ino)? {
                drop(inode);
                return self.write_then_flush();
            }
        }
        if renames_first || self.needs_checkpoint(&inode)? && !self.is_as_checkpointed(ino) {
            drop(inode);
            return match self.segments().is_changed() {
                true => self.checkpoint_then(Reason::Sync, Then::WriteRest(ino)),
                false => self.write_rest(ino),
            };
        }
        drop(inode);
        self.files_mut().note_synced(ino);
        self.go_on_with_fsync(Box::new(FileSync { pages: self.files().pages_of(ino), scope }))
    }

    /// Continues an fsync with the next pages of the file, and after the last one with its nodes.
    pub(super) fn go_on_with_fsync(&mut self, mut sync: Box<FileSync>) -> Result<Option<PendingSync>> {
        if self.files_mut().write_some_pages(&mut sync.pages, SLICE_BLOCKS as usize)? {
            return Ok(Some(self.pending(Work::Yield, Then::WritePages(sync))));
        }
        let (ino, scope) = (sync.pages.ino(), sync.scope);
        if self.segments().is_changed() && self.disk().checkpoint().flags.has(Flags::UMOUNT) {
            // The first fsync after a clean unmount becomes a checkpoint. So after a power cut, a volume with
            // a chain is never marked as unmounted: it gets a new checkpoint version when it is opened, and
            // no chain runs into nodes that an earlier session left.
            return self.checkpoint_then(Reason::Sync, Then::End);
        }
        self.write_marked(ino, scope)
    }

    /// Writes the pages of a file that the checkpoint for its fsync could not write. Returns the error if
    /// they still cannot be written.
    pub(super) fn write_rest(&mut self, ino: Ino) -> Result<Option<PendingSync>> {
        if !self.files().has_dirty_pages(ino) {
            return Ok(None);
        }
        self.files_mut().write_pages_of(ino)?;
        self.checkpoint_then(Reason::Sync, Then::End)
    }

    /// Writes the logs. The flush is the work that is left.
    fn write_then_flush(&mut self) -> Result<Option<PendingSync>> {
        self.write_logs_of_fsync()?;
        Ok(Some(self.pending(Work::Flush, Then::End)))
    }

    /// Writes the pending runs of an fsync, data before the nodes that refer to it.
    fn write_logs_of_fsync(&mut self) -> Result<()> {
        for kind in
            [SegmentType::HotData, SegmentType::WarmData, SegmentType::ColdData, SegmentType::WarmNode]
        {
            self.segments_mut().write_log(kind)?;
        }
        Ok(())
    }

    /// Writes the dirty nodes of a file that roll-forward can use. The inode comes last, if it is written,
    /// and only the last node has the fsync mark, so that recovery applies all of them or none. An inode
    /// without a relevant change is left for the checkpoint.
    ///
    /// The xattr node has no checksum, and a torn one would hold a part of an attribute. So it is flushed
    /// before the mark is written, and the inode then has the mark. Durable content that has moved is flushed
    /// before the mark as well.
    fn write_marked(&mut self, ino: Ino, scope: SyncScope) -> Result<Option<PendingSync>> {
        let own = Nid::from(ino);
        let is_new = !self.nodes().is_checkpointed(own)? && !self.nodes().since_checkpoint().is_named(ino);
        let attributes_first = self.has_unflushed_attributes(ino)?;
        if is_new || attributes_first || self.nodes().since_checkpoint().is_unmarked(ino) {
            // The inode must be written: the mark must follow all nodes that were written without it, and a
            // new inode must hold its name.
            self.nodes_mut().node_mut(own)?;
        }
        let mut nids = Vec::new();
        for nid in self.nodes().dirty_of(ino) {
            let offset = self.node(nid)?.footer().offset;
            let kind = NodeKind::of(self.geometry().block_size, offset);
            if nid != own && !matches!(kind, Some(NodeKind::Indirect | NodeKind::DoubleIndirect)) {
                nids.push(nid);
            }
        }
        if self.must_write_inode(ino, scope)? {
            nids.push(own);
        }
        let Some(nid) = nids.pop() else { return self.write_then_flush() };
        let before_mark = match attributes_first || self.nodes().since_checkpoint().has_moved(ino) {
            true => BeforeMark::Flush,
            false => BeforeMark::Nothing,
        };
        let last = LastNode { ino, nid, is_new };
        self.go_on_with_nodes(Box::new(NodesWrite { others: nids.into_iter(), last, before_mark }))
    }

    /// Continues an fsync with the next nodes of the file, and after them with the last one.
    pub(super) fn go_on_with_nodes(&mut self, mut nodes: Box<NodesWrite>) -> Result<Option<PendingSync>> {
        for nid in nodes.others.by_ref().take(SLICE_BLOCKS as usize) {
            self.nodes_mut().write_node(nid, Marks::default())?;
        }
        if nodes.others.len() > 0 {
            return Ok(Some(self.pending(Work::Yield, Then::WriteNodes(nodes))));
        }
        let NodesWrite { last, before_mark, .. } = *nodes;
        if before_mark == BeforeMark::Flush {
            self.write_logs_of_fsync()?;
            return Ok(Some(self.pending(Work::Flush, Then::Mark(last))));
        }
        self.write_mark(last)
    }

    /// Writes the last node of an fsync, with the fsync mark. If the chain has ended at one of the other nodes, recovery
    /// would not find this one, and the fsync becomes a checkpoint.
    pub(super) fn write_mark(&mut self, last: LastNode) -> Result<Option<PendingSync>> {
        let LastNode { ino, nid, is_new } = last;
        if self.segments().turnover().chain_ended {
            return self.checkpoint_then(Reason::Sync, Then::WriteRest(ino));
        }
        self.nodes_mut().write_node(nid, Marks { fsync: true, dentry: nid == ino.into() && is_new })?;
        if is_new {
            self.nodes_mut().since_checkpoint_mut().note_named(ino);
        }
        self.nodes_mut().since_checkpoint_mut().note_mark(ino);
        self.write_then_flush()
    }

    /// Returns true if a file's xattr node has changed, or may have been written without the fsync mark.
    fn has_unflushed_attributes(&self, ino: Ino) -> Result<bool> {
        let nid = self.inode(ino)?.xattr_nid();
        Ok(nid != Nid::NULL
            && (self.nodes().change(nid).is_some() || self.nodes().since_checkpoint().is_unmarked(ino)))
    }

    /// Returns true if an inode has changes that recovery does not derive from the other nodes (Linux,
    /// `f2fs_skip_inode_update`).
    fn must_write_inode(&self, ino: Ino, scope: SyncScope) -> Result<bool> {
        let Some(change) = self.nodes().change(ino.into()) else { return Ok(false) };
        let inode = self.inode(ino)?;
        let size = inode.head().size.get();
        let tells_size =
            size % self.geometry().block_size.bytes() as u64 == 0 && !inode.has_advise(advise::KEEP_SIZE);
        Ok(change.has(Change::REST)
            || (change.has(Change::TIMES) && scope == SyncScope::Everything)
            || (change.has(Change::SIZE) && !tells_size))
    }

    /// Returns true if an inode and its content are as in the last checkpoint.
    fn is_as_checkpointed(&self, ino: Ino) -> bool {
        self.nodes().is_as_checkpointed(ino) && !self.files().has_dirty_pages(ino)
    }

    /// Returns true if recovery finds all names of a directory once the logs are flushed. It does not find
    /// the times of the directory.
    fn names_are_written(&self, dir: Ino) -> Result<bool> {
        let since = self.nodes().since_checkpoint();
        Ok(!since.is_renamed(dir)
            && since.brings_names_back(dir)
            && self.nodes().is_checkpointed(dir.into())?)
    }

    /// Returns true if roll-forward cannot restore the changes of a file (Linux, `need_do_checkpoint`, with
    /// stricter rules for renames).
    fn needs_checkpoint(&self, inode: &NodeBlock) -> Result<bool> {
        let head = inode.head();
        let parent = Ino(head.pino.get());
        let since = self.nodes().since_checkpoint();
        let log = log_for_node(self.options().active_logs, SegmentType::WarmNode);
        // Recovery enters names into directories, which may need new blocks for them.
        let names_blocks = (since.named_count() as u64 + 1) * ENTRY_BLOCKS;
        Ok(inode.file_type() != FileType::Regular
            || inode.compression().is_some()
            || head.links.get() != 1
            || inode.has_advise(advise::LOST_PINO)
            || since.is_beyond_roll_forward(inode.ino())
            || since.is_renamed(parent)
            || !self.nodes().is_checkpointed(parent.into())?
            || self.disk().checkpoint().valid_blocks + self.segments().turnover().taken_blocks + names_blocks
                > self.disk().checkpoint().user_blocks
            || self.options().active_logs == ActiveLogs::Two
            || self.segments().turnover().chain_ended
            || log != SegmentType::WarmNode)
    }
}
