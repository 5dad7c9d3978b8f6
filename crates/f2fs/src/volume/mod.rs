//! The engine: an open volume.
//!
//! *Invariants*: `&self` reads and may be shared by threads; `&mut self` changes the volume. What reading must
//! cache sits behind small locks inside. Changes gather in memory and in the logs until
//! [`checkpoint`](Volume::checkpoint) makes them one. After a failed write of metadata the volume refuses
//! changes until it is opened again.

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
pub use make::Blank;
pub use map::{Cluster, Run};
pub use namespace::{NewNode, RenameMode, Times};
pub use open::{read_raw_superblock, read_superblock};
pub use options::{ActiveLogs, Clock, FsyncNames, InPlace, OnError, Options};
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

/// Memory that a changed node takes until the next checkpoint, in bytes, in all tables together.
const CHANGED_NODE_BYTES: usize = 64;
/// Memory that a changed segment takes until the next checkpoint, in bytes, in a table that is half full.
const CHANGED_SEGMENT_BYTES: usize = 256;
/// Of all numbers of nodes one in so many may have changed since the last checkpoint (Linux, `DEF_NAT_CACHE_THRESHOLD`
/// and `excess_dirty_nats`).
const CHANGED_NODES_SHARE: usize = 10;

/// An open volume.
pub struct Volume {
    superblock: Superblock,
    geometry: Geometry,
    format: NodeFormat,
    options: Options,
    io: Arc<Io>,
    access: Access,
    /// The newest checkpoint on the device, and its pack.
    checkpoint: Checkpoint,
    pack: u8,
    counters: Counters,
    nat: nat::Nat,
    sit: sit::Sit,
    logs: log::Logs,
    /// Free blocks that the device is to be told of.
    discards: Arc<Discards>,
    nodes: node_cache::NodeCache,
    pages: pages::Pages,
    /// Inodes without a name that are still in use.
    orphans: BTreeSet<Ino>,
    /// Those of them that nobody uses any more, but that could not be removed yet.
    leaving: BTreeSet<Ino>,
    /// Inodes that stay although they may lose their last name, and how often they are held.
    held: FxHashMap<Ino, u32>,
    dirs: dir_index::DirIndexes,
    strays: dir_strays::DirStrays,
    /// Summaries of closed segments that have not been written yet.
    summaries: BTreeMap<SegNo, Summary>,
    /// Seconds of the clock when the newest checkpoint was written, or the volume was opened.
    opened_seconds: i64,
    /// Seconds for which the volume was mounted, ever, as of the operation that runs.
    now: u64,
    since_checkpoint: fsync::SinceCheckpoint,
    /// Files that were fsynced: what is overwritten in them is likely to be again.
    synced: FxHashSet<Ino>,
    unsaid: quota::Unsaid,
    /// What users, groups and projects with limits use; `None` until somebody changes something.
    limited: Option<quota::Limited>,
    /// Whether who asks may exceed limits of quota.
    privileged: bool,
    /// Segments that no log may open: they are being cleaned.
    avoid: Vec<SegNo>,
    /// Segments with holes that no log opens as long as it finds others: their summaries could not be read.
    unreadable: Vec<SegNo>,
    /// What was fsynced is being brought back: a log that finds no segment may go on in another's. Of these segments, of
    /// which nothing was in use, nobody has asked for the summary yet: all that it says of them is old.
    recovering: Option<FxHashSet<SegNo>>,
    /// Sections that could not be emptied.
    stuck: FxHashMap<SecNo, gc::Stuck>,
    /// Something was changed since the newest checkpoint.
    changed: bool,
    /// A [`PendingSync`] is under way: nothing may change.
    is_syncing: bool,
    /// A log has opened a segment since free sections were last looked at.
    opened_segment: bool,
    /// Free sections beyond those that cleaning needs; `None` where that has to be found out anew.
    room_sections: Option<u32>,
    /// Blocks that the data log has given out since an fsync last marked a node.
    since_fsync_blocks: u32,
    /// The logs have been held against the segment table.
    logs_ready: bool,
    /// Kilobytes that were written before the volume was opened.
    written_before: u64,
}

/// What may be done with the volume.
#[derive(Debug, Clone)]
enum Access {
    ReadWrite,
    ReadOnly(Cow<'static, str>),
}

/// What the checkpoint counts, as of now.
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

    /// Where things lie.
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

    /// Whether the newest checkpoint says that damage was met, which fsck.f2fs has not repaired since.
    pub fn asks_for_fsck(&self) -> bool {
        self.checkpoint.flags.has(Flags::FSCK)
    }

    /// What the volume counts, as of now.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Inodes without a name that are still in use.
    pub fn orphans(&self) -> &BTreeSet<Ino> {
        &self.orphans
    }

    /// How the volume was opened.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// What all node blocks of the volume have in common.
    pub fn node_format(&self) -> NodeFormat {
        self.format
    }

    /// The device, to flush it without holding the volume.
    pub fn device(&self) -> &Arc<dyn block::Device> {
        self.io.device()
    }

    /// Access to the device in blocks.
    pub fn io(&self) -> &Io {
        &self.io
    }

    /// Why the volume refuses changes, if it does.
    pub fn read_only_reason(&self) -> Option<&str> {
        match &self.access {
            Access::ReadWrite => None,
            Access::ReadOnly(reason) => Some(reason),
        }
    }

    /// The NAT entry of a node, as of now.
    pub fn nat_entry(&self, nid: Nid) -> Result<NatEntry> {
        self.nat.get(&self.io, nid)
    }

    /// The SIT entry of a segment, as of now.
    pub fn sit_entry(&self, segment: SegNo) -> Result<SitEntry> {
        if segment.0 >= self.geometry.segments {
            return Err(Error::Invalid(format!("{segment} of {}", self.geometry.segments).into()));
        }
        self.sit.peek(&self.io, segment)
    }

    /// Bytes that blocks of the segment table take in memory, and what has changed in it since the newest checkpoint.
    pub fn segment_table_bytes(&self) -> usize {
        self.sit.block_bytes() + self.sit.changed_segments() * CHANGED_SEGMENT_BYTES
    }

    /// A node. What the NAT says about it holds; see [`NodeBlock::check`].
    pub fn node(&self, nid: Nid) -> Result<Arc<NodeBlock>> {
        if let Some(node) = self.nodes.get(nid) {
            return Ok(node);
        }
        let node = Arc::new(self.read_node(nid)?);
        self.nodes.insert_clean(nid, node.clone());
        Ok(node)
    }

    /// An inode: a node that is its own inode.
    pub fn inode(&self, ino: Ino) -> Result<Arc<NodeBlock>> {
        let node = self.node(ino.into())?;
        if !node.is_inode() {
            let what = format!("it is a node of {}", node.ino());
            return self.io.noted(Err(Error::corrupt(Place::Inode(ino), what)));
        }
        Ok(node)
    }

    /// Whether a number is an inode's. Asking for one that is not, by a handle that has become stale, is no damage.
    pub fn is_inode(&self, ino: Ino) -> Result<bool> {
        let nid = Nid::from(ino);
        if nid == Nid::NULL || nid >= self.geometry.nids_end() {
            return Ok(false);
        }
        let entry = self.nat.get(&self.io, nid)?;
        Ok(!entry.is_free() && entry.ino == ino)
    }

    /// Reads one block of the main area, whether it is on the device already or still in a log.
    pub fn read_block(&self, addr: BlockAddr, at: Place, buf: &mut [u8]) -> Result<()> {
        self.read_blocks(addr, at, buf)
    }

    /// Reads consecutive blocks of the main area: `buf` is a whole number of blocks.
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

    /// Makes sure that consecutive blocks are in the main area.
    fn check_range(&self, addr: BlockAddr, blocks: usize, at: Place) -> Result<()> {
        let last = addr.0.checked_add(blocks.saturating_sub(1) as u32);
        match self.geometry.in_main(addr) && last.is_some_and(|last| self.geometry.in_main(BlockAddr(last))) {
            true => Ok(()),
            false => self.io.noted(Err(Error::corrupt(at, format!("{addr} is not in the main area")))),
        }
    }

    /// A block of a file that has changed and is not in a log yet. It overrides what the file's map says.
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

    /// Before anything that writes: refuses where nothing may be written.
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

    /// Before each operation that changes the volume: between operations the volume is whole, so this is where
    /// caches are emptied, and where a checkpoint frees what only the last one needs.
    fn begin(&mut self) -> Result<()> {
        self.start()?;
        self.load_limits()?;
        self.changed = true;
        let upkeep = self.next_upkeep()?;
        self.complete(upkeep)?;
        self.changed = true;
        Ok(())
    }

    /// Begins the upkeep that is due before a change: dirty pages are written, sections are cleaned, a checkpoint frees
    /// blocks. Each change does so by itself; a caller that does it before finds nothing left of it under its lock.
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
        // Numbers that are free again can be given out after a checkpoint only.
        let is_much = changed_bytes > self.options.cache_bytes
            || nodes > self.geometry.nids_end().0 as usize / CHANGED_NODES_SHARE;
        if is_much && !self.options.checkpoint_when_asked {
            let then = Then::MakeRoom(RoomStep::Free);
            return self.checkpoint_then(checkpoint::Reason::Sync, then).map(Some);
        }
        self.make_room_from(RoomStep::Free)
    }

    /// Changed pages, and changed nodes, that wait in memory at most.
    fn most_pages(&self) -> usize {
        self.options.dirty_bytes() / self.geometry.block_size.bytes()
    }

    /// Whether what waits in memory takes more than free sections hold, beyond those that cleaning needs and
    /// one of these. More would not find a place; and what they replace is free only with the next checkpoint, which
    /// has to write them before.
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

    /// Sections that would be needed for what waits in memory, if there were no holes for it.
    fn waiting_sections(&self) -> u32 {
        let section_blocks = (BLOCKS_PER_SEGMENT * self.geometry.segments_per_section) as usize;
        (self.pages.blocks_to_write() + self.nodes.dirty_count()).div_ceil(section_blocks) as u32
    }

    /// Counts blocks that were taken.
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

    /// Blocks that users may still take.
    pub fn free_user_blocks(&self) -> u64 {
        self.checkpoint.user_blocks.saturating_sub(self.counters.valid_blocks)
    }

    /// Nodes that there may still be.
    pub fn free_nodes(&self) -> u32 {
        (self.geometry.nids_end().0 - RESERVED_NIDS).saturating_sub(self.counters.valid_nodes)
    }

    /// Refuses an operation that may take so many blocks where there are fewer.
    fn require_space(&self, needed_blocks: u64) -> Result<()> {
        let free_blocks = self.free_user_blocks();
        if needed_blocks > free_blocks {
            return Err(Error::no_space(self.geometry.block_size, needed_blocks, free_blocks));
        }
        Ok(())
    }

    /// After a write that failed and that can be repeated: the volume refuses changes, unless it is to go on. Then
    /// the caller has kept what is to be written.
    fn stop_on_error<T>(&mut self, result: Result<T>) -> Result<T> {
        match self.options.on_error {
            OnError::Continue if !self.logs.is_choked() => result,
            _ => self.fail_on_error(result),
        }
    }

    /// Whether an error is that of the place where it was met, and the volume takes changes all the same: nobody else
    /// has to wait for it.
    fn stays_in_place(&self, error: &Error) -> bool {
        matches!(error, Error::Io { .. } | Error::Corrupt { .. }) && self.read_only_reason().is_none()
    }

    /// After a write that failed, the volume refuses changes: what is on the device is no longer known.
    fn fail_on_error<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error @ Error::Io { .. }) = &result {
            self.access = Access::ReadOnly(format!("a write failed: {error}").into());
        }
        result
    }
}
