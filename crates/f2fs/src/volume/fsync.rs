//! fsync without a checkpoint: the file's data, and its changed nodes in the warm node log, the last of them
//! marked; then one flush. Opening the volume finds them there, see [`recovery`](super::recovery).

use rustc_hash::FxHashSet;

use super::{ActiveLogs, InPlace, Volume, checkpoint::Reason, node_cache::Change, node_write::Marks};
use crate::{
    Error, Place, Result,
    format::{FileType, inode::advise, node::NodeBlock, node_path::NodeKind, sit::SegmentType},
    units::{Ino, Nid},
};

/// An fsync of so many blocks overwrites in place (Linux, `DEF_MIN_FSYNC_BLOCKS`).
pub(super) const IN_PLACE_BLOCKS_MAX: usize = 8;
/// Files that are remembered as synced.
const SYNCED_MAX: usize = 4096;

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
    /// Blocks that were taken, whatever was given back.
    pub taken_blocks: u64,
    /// Blocks that were given back: the next checkpoint makes them usable.
    pub freed_blocks: u64,
}

impl Volume {
    /// Makes the content and the attributes of an inode durable. `data_only` promises no more than that the content
    /// can be read back.
    pub fn fsync(&mut self, ino: Ino, data_only: bool) -> Result<()> {
        if self.write_file(ino, data_only)? {
            let result = self.io.flush();
            self.fail_on_error(result)?;
        }
        Ok(())
    }

    /// How the flush went that [`write_file`](Self::write_file) asked for. After one that failed the volume refuses
    /// changes: nobody knows what is on the device.
    pub fn flushed(&mut self, result: std::io::Result<()>) -> Result<()> {
        self.fail_on_error(result.map_err(|source| Error::Io { at: Place::Volume, source }))
    }

    /// Does all of an [`fsync`](Self::fsync) but its flush, and says whether a flush of the
    /// [`device`](Self::device) is still needed: several files can share one, without holding the volume.
    pub fn write_file(&mut self, ino: Ino, data_only: bool) -> Result<bool> {
        self.start()?;
        let inode = self.inode(ino)?;
        if self.needs_checkpoint(&inode)? {
            drop(inode);
            if self.changed {
                self.write_checkpoint(Reason::Sync)?;
            }
            return Ok(false);
        }
        drop(inode);
        if self.synced.len() >= SYNCED_MAX {
            self.synced.clear();
        }
        self.synced.insert(ino);
        let in_place = self.options.in_place != InPlace::Never
            && (data_only || self.pages.has_fewer(ino, IN_PLACE_BLOCKS_MAX + 1));
        self.write_pages_of(ino, in_place)?;
        self.write_marked(ino, data_only)?;
        for kind in
            [SegmentType::HotData, SegmentType::WarmData, SegmentType::ColdData, SegmentType::WarmNode]
        {
            let result = self.logs.write(&self.io, kind);
            self.stop_on_error(result)?;
        }
        Ok(true)
    }

    /// Writes the changed nodes of a file that roll-forward can use: the inode last, and only the last one marked,
    /// so that recovery takes all of them or none. An inode that says nothing new is left for the checkpoint.
    fn write_marked(&mut self, ino: Ino, data_only: bool) -> Result<()> {
        let own = Nid::from(ino);
        let is_new = !self.nat.is_checkpointed(&self.io, own)? && !self.since_checkpoint.named.contains(&ino);
        if is_new || self.since_checkpoint.unmarked.contains(&ino) {
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
        let Some((last, others)) = nids.split_last() else { return Ok(()) };
        for nid in others {
            self.write_node(*nid, Marks::default())?;
        }
        self.write_node(*last, Marks { fsync: true, dentry: *last == own && is_new })?;
        if is_new {
            self.since_checkpoint.named.insert(ino);
        }
        self.since_checkpoint.unmarked.remove(&ino);
        Ok(())
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

    /// Notes that content of a file is copied elsewhere, without being changed.
    pub(super) fn content_moves_out(&mut self, ino: Ino) -> Result<()> {
        let is_durable =
            self.nat.is_checkpointed(&self.io, ino.into())? || self.since_checkpoint.named.contains(&ino);
        if is_durable {
            self.since_checkpoint.moved_out.insert(ino);
        }
        Ok(())
    }

    /// Whether what happened to a file is more than roll-forward can bring back (Linux, `need_do_checkpoint`; and
    /// more careful about renames).
    fn needs_checkpoint(&self, inode: &NodeBlock) -> Result<bool> {
        let head = inode.head();
        let parent = Ino(head.pino.get());
        let since = &self.since_checkpoint;
        let log = super::allocate::log_for(self.options.active_logs, SegmentType::WarmNode, false);
        Ok(inode.file_type() != FileType::Regular
            || inode.compression().is_some()
            || head.links.get() != 1
            || inode.has_advise(advise::LOST_PINO)
            || since.renamed.contains(&inode.ino())
            || since.moved_out.contains(&inode.ino())
            || since.shrunk.contains(&inode.ino())
            || since.renamed.contains(&parent)
            || !self.nat.is_checkpointed(&self.io, parent.into())?
            || self.checkpoint.valid_blocks + since.taken_blocks > self.checkpoint.user_blocks
            || self.options.active_logs == ActiveLogs::Two
            || log != SegmentType::WarmNode)
    }
}
