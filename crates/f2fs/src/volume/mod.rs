//! The engine: an open volume.
//!
//! *Invariants*: methods that take `&self` only read and may run in several threads; methods that take `&mut
//! self` change the volume. Caches that reads fill are guarded by small internal locks. Changes gather in
//! memory and in the logs until [`checkpoint`](Volume::checkpoint) commits them atomically. After a failed
//! write of metadata the volume refuses changes until it is opened again.

mod acl;
mod allocate;
mod attributes;
mod checkpoint;
mod compress;
mod devices;
mod dir;
mod dir_index;
mod dir_strays;
mod dir_write;
mod discards;
mod file;
mod file_write;
mod fsync;
mod gc;
mod geometry;
mod hidden_name;
mod io;
mod journal;
mod label;
mod link;
mod log;
mod make;
mod map;
mod map_write;
mod namespace;
mod nat;
mod node_cache;
mod node_write;
mod open;
mod options;
mod pages;
mod pending;
mod quota;
mod ranges;
mod read_ahead;
mod recovery;
mod sit;
mod stat;
mod straight;
mod trim;
mod xattr;
mod zone;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use rustc_hash::{FxHashMap, FxHashSet};

pub use attributes::{SetAttr, XattrMode};
pub use devices::{device_bytes, join};
pub use dir::{DirCursor, DirEntry, Found};
pub use discards::Discards;
pub use file::{Extent, ExtentKind, Hidden};
pub use gc::{Candidate, Cleaned, Policy, benefit, by_age};
pub use geometry::Geometry;
pub use io::Io;
pub use link::PathEnd;
pub use make::Blank;
pub use map::{Cluster, Run};
pub use namespace::{NewNode, RenameMode, Times};
pub use open::{read_raw_superblock, read_superblock};
pub use options::{ActiveLogs, Clock, FsyncNames, InPlace, OnError, Options, Upkeep};
pub use pending::{PendingSync, SyncOutcome};
pub use quota::QuotaLimits;
pub use stat::{SET_GID, Space, Stat, without_privilege};

use gc::RoomStep;
use pending::Then;

use crate::{
    Error, Place, Result,
    format::{
        BLOCKS_PER_SEGMENT,
        checkpoint::{Checkpoint, Flags, RESERVED_NIDS},
        nat::NatEntry,
        node::{NodeBlock, NodeFormat},
        sit::SitEntry,
        summary::Summary,
        superblock::Superblock,
    },
    units::{BlockAddr, Ino, Nid, SecNo, SegNo},
};

/// Bytes of memory that a changed node takes in all tables together until the next checkpoint.
const CHANGED_NODE_BYTES: usize = 64;
/// Bytes of memory that a changed segment takes in a half-full table until the next checkpoint.
const CHANGED_SEGMENT_BYTES: usize = 256;
/// The upkeep asks for a checkpoint once more than one in this many nids has changed since the last one
/// (Linux, `DEF_NAT_CACHE_THRESHOLD` and `excess_dirty_nats`).
const CHANGED_NODES_SHARE: usize = 10;

/// An open volume.
pub struct Volume {
    superblock: Superblock,
    geometry: Geometry,
    format: NodeFormat,
    options: Options,
    io: Arc<Io>,
    access: Access,
    /// The newest checkpoint on the device; `pack` is the checkpoint pack that holds it.
    checkpoint: Checkpoint,
    pack: u8,
    counters: Counters,
    nat: nat::Nat,
    sit: sit::Sit,
    logs: log::Logs,
    /// Free blocks to discard on the device.
    discards: Arc<Discards>,
    nodes: node_cache::NodeCache,
    pages: pages::Pages,
    /// Orphan inodes: they have no name but are still in use.
    orphans: BTreeSet<Ino>,
    /// Orphan inodes that are no longer in use but could not be removed yet.
    leaving: BTreeSet<Ino>,
    /// Inodes that callers hold, so that they outlive their last name, with the number of holds.
    held: FxHashMap<Ino, u32>,
    dirs: dir_index::DirIndexes,
    strays: dir_strays::DirStrays,
    /// Summaries of closed segments that have not been written yet.
    summaries: BTreeMap<SegNo, Summary>,
    /// Time of the clock, in seconds, when the newest checkpoint was written or the volume was opened.
    opened_seconds: i64,
    /// Total time mounted, in seconds, at the start of the current operation.
    now: u64,
    since_checkpoint: fsync::SinceCheckpoint,
    /// Files that were fsynced recently. Their blocks are likely to be overwritten again.
    synced: FxHashSet<Ino>,
    unsaid: quota::Unsaid,
    /// Usage of the users, groups and projects that have limits; `None` until the first change.
    limited: Option<quota::Limited>,
    /// True if the caller may exceed quota limits.
    privileged: bool,
    /// Segments that are being cleaned; no log may open them.
    avoid: Vec<SegNo>,
    /// Segments whose summary could not be read. SSR avoids them as long as it finds others.
    unreadable: Vec<SegNo>,
    /// Set during roll-forward recovery, when a log that finds no free segment may use the segment of another
    /// log. Holds the segments that were free before recovery and whose summary has not been read yet: the
    /// summary on the device is stale.
    recovering: Option<FxHashSet<SegNo>>,
    /// Sections that cleaning could not empty.
    stuck: FxHashMap<SecNo, gc::Stuck>,
    /// True if anything changed since the newest checkpoint.
    changed: bool,
    /// True while a [`PendingSync`] is outstanding; nothing may change.
    is_syncing: bool,
    /// True if a log has opened a segment since the free sections were last counted.
    opened_segment: bool,
    /// Free sections beyond those that cleaning needs; `None` if they must be counted again.
    room_sections: Option<u32>,
    /// Blocks that the warm data log has allocated since the last fsync wrote a marked node.
    since_fsync_blocks: u32,
    /// True once the logs have been checked against the SIT.
    logs_ready: bool,
    /// KiB written over the volume's life before it was opened.
    written_before: u64,
}

/// Permitted access to the volume.
#[derive(Debug, Clone)]
enum Access {
    ReadWrite,
    ReadOnly(Cow<'static, str>),
}

/// Current values of the totals that a checkpoint stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Blocks in use, reserved ones included.
    pub valid_blocks: u64,
    /// Nodes in use.
    pub valid_nodes: u32,
    /// Inodes in use.
    pub valid_inodes: u32,
}

impl Volume {
    /// The superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The layout of the volume.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The newest checkpoint on the device.
    pub fn last_checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The pack that the newest checkpoint is in, 0 or 1.
    pub fn last_pack(&self) -> u8 {
        self.pack
    }

    /// Returns true if the newest checkpoint asks for fsck (`CP_FSCK_FLAG`), which fsck.f2fs clears after a
    /// repair.
    pub fn asks_for_fsck(&self) -> bool {
        self.checkpoint.flags.has(Flags::FSCK)
    }

    /// The current counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Orphan inodes: they have no name but are still in use.
    pub fn orphans(&self) -> &BTreeSet<Ino> {
        &self.orphans
    }

    /// The options that the volume was opened with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The properties that all node blocks of the volume share.
    pub fn node_format(&self) -> NodeFormat {
        self.format
    }

    /// The device, so that it can be flushed without a lock on the volume.
    pub fn device(&self) -> &Arc<dyn block::Device> {
        self.io.device()
    }

    /// Access to the device in blocks.
    pub fn io(&self) -> &Io {
        &self.io
    }

    /// The reason why the volume refuses changes; `None` if it accepts them.
    pub fn read_only_reason(&self) -> Option<&str> {
        match &self.access {
            Access::ReadWrite => None,
            Access::ReadOnly(reason) => Some(reason),
        }
    }

    /// The current NAT entry of a node.
    pub fn nat_entry(&self, nid: Nid) -> Result<NatEntry> {
        self.nat.get(&self.io, nid)
    }

    /// The current SIT entry of a segment.
    pub fn sit_entry(&self, segment: SegNo) -> Result<SitEntry> {
        if segment.0 >= self.geometry.segments {
            return Err(Error::Invalid(
                format!("{segment} is out of range; the volume has {} segments", self.geometry.segments)
                    .into(),
            ));
        }
        self.sit.peek(&self.io, segment)
    }

    /// Bytes of memory that the SIT takes: cached blocks, and segments that changed since the newest
    /// checkpoint.
    pub fn segment_table_bytes(&self) -> usize {
        self.sit.block_bytes() + self.sit.changed_segments() * CHANGED_SEGMENT_BYTES
    }

    /// Returns a node, checked against its NAT entry; see [`NodeBlock::check`].
    pub fn node(&self, nid: Nid) -> Result<Arc<NodeBlock>> {
        if let Some(node) = self.nodes.get(nid) {
            return Ok(node);
        }
        let node = Arc::new(self.read_node(nid)?);
        self.nodes.insert_clean(nid, node.clone());
        Ok(node)
    }

    /// Returns an inode; a node of any other kind is an error.
    pub fn inode(&self, ino: Ino) -> Result<Arc<NodeBlock>> {
        let node = self.node(ino.into())?;
        if !node.is_inode() {
            let what = format!("its node belongs to {}", node.ino());
            return self.io.noted(Err(Error::corrupt(Place::Inode(ino), what)));
        }
        Ok(node)
    }

    /// Returns true if a nid belongs to an inode. A stale handle may name a nid that does not; that is no
    /// damage.
    pub fn is_inode(&self, ino: Ino) -> Result<bool> {
        let nid = Nid::from(ino);
        if nid == Nid::NULL || nid >= self.geometry.nids_end() {
            return Ok(false);
        }
        let entry = self.nat.get(&self.io, nid)?;
        Ok(!entry.is_free() && entry.ino == ino)
    }

    /// Reads one block of the main area, from the device or from a log that has not been written yet.
    pub fn read_block(&self, addr: BlockAddr, at: Place, buf: &mut [u8]) -> Result<()> {
        self.read_blocks(addr, at, buf)
    }

    /// Reads consecutive blocks of the main area; `buf` holds a whole number of blocks.
    pub fn read_blocks(&self, addr: BlockAddr, at: Place, buf: &mut [u8]) -> Result<()> {
        let size = self.geometry.block_size.bytes();
        self.check_range(addr, buf.len() / size, at)?;
        if self.logs.holds_any(addr, buf.len() / size) {
            for (n, block) in buf.chunks_exact_mut(size).enumerate() {
                let addr = BlockAddr(addr.0 + n as u32);
                match self.logs.pending(addr) {
                    Some(bytes) => block.copy_from_slice(bytes),
                    None => self.io.read(addr, at, block)?,
                }
            }
            return Ok(());
        }
        self.io.read(addr, at, buf)
    }

    /// Checks that consecutive blocks are in the main area.
    fn check_range(&self, addr: BlockAddr, blocks: usize, at: Place) -> Result<()> {
        let last = addr.0.checked_add(blocks.saturating_sub(1) as u32);
        match self.geometry.in_main(addr) && last.is_some_and(|last| self.geometry.in_main(BlockAddr(last))) {
            true => Ok(()),
            false => self.io.noted(Err(Error::corrupt(at, format!("{addr} is not in the main area")))),
        }
    }

    /// A dirty page of a file that has no block in a log yet. It overrides the block that the file's node
    /// points to.
    pub fn dirty_page(&self, ino: Ino, block: u64) -> Option<&[u8]> {
        self.pages.get(ino, block)
    }

    fn read_node(&self, nid: Nid) -> Result<NodeBlock> {
        let entry = self.nat.get(&self.io, nid)?;
        if nid == Nid::NULL || !entry.addr.is_real() {
            return Err(Error::corrupt(Place::Nat(nid), "a node in use has no address"));
        }
        let mut bytes = vec![0; self.geometry.block_size.bytes()].into_boxed_slice();
        self.read_block(entry.addr, Place::Nat(nid), &mut bytes)?;
        self.io.noted(NodeBlock::check(self.format, bytes, nid, entry.ino, entry.addr))
    }

    /// Prepares for a write: fails if the volume is read-only or a [`PendingSync`] is outstanding.
    fn start(&mut self) -> Result<()> {
        if let Access::ReadOnly(reason) = &self.access {
            return Err(Error::ReadOnly(reason.clone()));
        }
        if self.is_syncing {
            return Err(Error::Invalid(
                "device work is pending; give its outcome to `Volume::finish`".into(),
            ));
        }
        let elapsed = (self.options.clock)().seconds.saturating_sub(self.opened_seconds).max(0) as u64;
        self.now = self.checkpoint.elapsed_seconds.saturating_add(elapsed);
        self.prepare_logs()
    }

    /// Prepares for an operation that changes the volume. The volume is consistent between operations, so
    /// this is the point to flush caches, and to write a checkpoint that frees blocks which only the previous
    /// one needs.
    fn begin(&mut self) -> Result<()> {
        self.start()?;
        self.load_limits()?;
        self.changed = true;
        if self.options.upkeep == Upkeep::ByChange {
            let upkeep = self.next_upkeep()?;
            self.complete(upkeep)?;
            self.changed = true;
        }
        Ok(())
    }

    /// Decides who does the upkeep before changes from now on.
    pub fn set_upkeep(&mut self, upkeep: Upkeep) {
        self.options.upkeep = upkeep;
    }

    /// Begins the upkeep that is due before a change: it writes dirty pages, cleans sections, and frees
    /// blocks by a checkpoint. Every change does this itself, unless it is [left to the caller](Upkeep), who
    /// can let others read meanwhile.
    pub fn begin_upkeep(&mut self) -> Result<Option<PendingSync>> {
        if self.read_only_reason().is_some() {
            return Ok(None);
        }
        self.start()?;
        self.next_upkeep()
    }

    fn next_upkeep(&mut self) -> Result<Option<PendingSync>> {
        let most = self.most_pages();
        let is_crowded = self.is_crowded()?;
        if self.pages.len() > most || is_crowded {
            self.write_pages()?;
            if self.pages.len() > most {
                self.write_waiting()?;
            }
        }
        if self.nodes.dirty_count() > most || is_crowded {
            self.write_needed_pages()?;
            self.write_nodes()?;
        }
        let (nodes, segments) = (self.nat.changed_entries(), self.sit.changed_segments());
        let changed_bytes = nodes * CHANGED_NODE_BYTES + segments * CHANGED_SEGMENT_BYTES;
        // Freed nids can be allocated again only after a checkpoint.
        let is_much = changed_bytes > self.options.cache_bytes
            || nodes > self.geometry.nids_end().0 as usize / CHANGED_NODES_SHARE;
        if is_much && !self.options.checkpoint_when_asked {
            let then = Then::MakeRoom(RoomStep::Free);
            return self.checkpoint_then(checkpoint::Reason::Sync, then).map(Some);
        }
        self.make_room_from(RoomStep::Free)
    }

    /// Maximum number of dirty pages, and of dirty nodes, in memory.
    fn most_pages(&self) -> usize {
        self.options.dirty_bytes() / self.geometry.block_size.bytes()
    }

    /// Returns true if writing all dirty pages and nodes would take more sections than are free beyond those
    /// that cleaning needs. More than that would find no place: the blocks they replace become free only with
    /// the next checkpoint, which must write them first. One section of dirty blocks is always allowed.
    fn is_crowded(&mut self) -> Result<bool> {
        if self.waiting_sections() <= 1 {
            return Ok(false);
        }
        let room_sections = match self.room_sections {
            Some(room) => room,
            None => self.free_sections()?.saturating_sub(self.least_free_sections()),
        };
        self.room_sections = Some(room_sections);
        Ok(self.waiting_sections() > room_sections)
    }

    /// Sections needed for the dirty pages and nodes if all were written to free segments (LFS, no SSR).
    fn waiting_sections(&self) -> u32 {
        let section_blocks = (BLOCKS_PER_SEGMENT * self.geometry.segments_per_section) as usize;
        (self.pages.blocks_to_write() + self.nodes.dirty_count()).div_ceil(section_blocks) as u32
    }

    /// Counts newly allocated blocks.
    fn count_blocks(&mut self, blocks: u64) {
        self.counters.valid_blocks += blocks;
        self.since_checkpoint.taken_blocks += blocks;
    }

    /// Segments that no log may open now.
    fn closed_segments(&self) -> Vec<SegNo> {
        let mut closed = [&self.logs.segments(), &*self.avoid, &*self.unreadable].concat();
        closed.extend(self.discarded_segments());
        closed
    }

    /// Blocks still available to users.
    pub fn free_user_blocks(&self) -> u64 {
        self.checkpoint.user_blocks.saturating_sub(self.counters.valid_blocks)
    }

    /// Nodes that can still be allocated.
    pub fn free_nodes(&self) -> u32 {
        (self.geometry.nids_end().0 - RESERVED_NIDS).saturating_sub(self.counters.valid_nodes)
    }

    /// Returns an error if fewer than `needed_blocks` blocks are available to users.
    fn require_space(&self, needed_blocks: u64) -> Result<()> {
        let free_blocks = self.free_user_blocks();
        if needed_blocks > free_blocks {
            return Err(Error::no_space(self.geometry.block_size, needed_blocks, free_blocks));
        }
        Ok(())
    }

    /// Makes the volume refuse changes after a failed write, unless [`OnError::Continue`] is set and the logs
    /// can keep more blocks. To continue is possible only for writes that can be repeated: the caller has
    /// kept the content.
    fn stop_on_error<T>(&mut self, result: Result<T>) -> Result<T> {
        match self.options.on_error {
            OnError::Continue if !self.logs.is_choked() => result,
            _ => self.fail_on_error(result),
        }
    }

    /// Returns true if an error concerns only the place where it occurred and the volume still accepts
    /// changes, so that other operations may go on.
    fn stays_in_place(&self, error: &Error) -> bool {
        matches!(error, Error::Io { .. } | Error::Corrupt { .. }) && self.read_only_reason().is_none()
    }

    /// Makes the volume refuse changes after a failed write: the content of the device is no longer known.
    fn fail_on_error<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error @ Error::Io { .. }) = &result {
            self.access = Access::ReadOnly(format!("a write failed: {error}").into());
        }
        result
    }
}
