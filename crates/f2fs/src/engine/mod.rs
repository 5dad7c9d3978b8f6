//! The engine: an open volume.
//!
//! *Invariants*: methods that take `&self` only read and may run in several threads; methods that take `&mut
//! self` change the volume. Caches that reads fill are guarded by small internal locks. Changes gather in
//! memory and in the logs until [`checkpoint`](Engine::checkpoint) commits them atomically. After a failed
//! write of metadata the volume refuses changes until it is opened again.

mod attributes_api;
mod census;
mod cheap_zones;
mod checkpoint;
mod cleaning_reads;
mod defragment;
mod evacuate;
mod files_api;
mod foreground;
mod fsync;
mod gc;
mod keys_api;
mod label;
mod make;
mod names_api;
mod nodes_api;
mod open;
mod pending;
mod quota;
mod quota_files;
mod quota_sync;
mod recovery;
mod reopen;
mod space;
mod transaction;
mod trim;
mod verity_api;
mod victim;
mod write_dirty;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use rustc_hash::FxHashMap;

pub use crate::{
    disk::{
        ActiveLogs, Clock, FsyncNames, Geometry, InPlace, Io, Mode, OnError, Options, RawPack, Upkeep,
        device_bytes, join, read_raw_superblock, read_superblock,
    },
    files::{
        Cluster, Extent, ExtentKind, FileSize, Fragmentation, Hidden, Run, SavedBlocks, SavedChange,
        SealedDamage, SealedPart, SealedPlace, Seek, SeekPart, SeekTarget, SpaceCheck,
    },
    names::{
        DirCursor, DirEntry, FinalSymlink, Found, NewNode, PathEnd, RenameMode, SET_GID, SeenBlocks, SetAttr,
        Stat, Times, XattrMode, without_privilege,
    },
    nodes::Limits,
    segments::{Counters, Discards},
};
pub use fsync::SyncScope;
pub use gc::Cleaned;
pub use make::Blank;
pub use pending::{PendingSync, SyncOutcome};
pub use quota::QuotaLimits;
pub use space::Space;
pub use transaction::{Caller, Transaction};
pub use verity_api::Sealing;
pub use victim::{Candidate, Policy, benefit, by_age};

pub(crate) use census::Census;
pub(crate) use reopen::Lent;

use gc::SpaceStep;
use pending::Then;
use write_dirty::{AfterDirtyWrite, Crowding, Scope};

use crate::{
    Error, Place, Result,
    disk::Disk,
    files::Files,
    format::{
        checkpoint::{Checkpoint, Flags},
        node::NodeFormat,
        quota::{Located, QuotaKind},
        sit::SitEntry,
        summary::Summary,
        superblock::Superblock,
    },
    names::Names,
    nodes::Nodes,
    segments::Segments,
    units::{BlockAddr, CheckpointVer, Ino, SecNo, SegNo},
};

/// An open volume, by inode numbers: the engine below the [front door](crate::Volume).
///
/// # Errors
/// Errors of every operation, beside those that its own documentation names:
///
/// - Reading: [`Error::Corrupt`] if bytes on the way are impossible, and [`Error::Io`] if the device fails. Both name the
///   place. Damage that is met makes the next checkpoint ask for fsck.
/// - Every change, in addition: [`Error::ReadOnly`] if the volume [refuses changes](Self::read_only_reason);
///   [`Error::Invalid`] while a [`PendingSync`] waits for [`finish`](Self::finish); [`Error::NoSpace`] if changes that wait in
///   memory find no place. After a failed write the volume refuses further changes, unless [`OnError`] says otherwise.
pub struct Engine {
    names: Names,
    /// Sections that cleaning could not empty.
    uncleanable: FxHashMap<SecNo, gc::Uncleanable>,
    /// True while a [`PendingSync`] is outstanding that is more than a flush; nothing may change.
    is_syncing: bool,
    /// The records of the quota file that is being written.
    quota_in_write: Option<(QuotaKind, BTreeMap<u32, Located>)>,
    /// A checkpoint newer than the one in use, whose head is damaged or older.
    headless: Option<CheckpointVer>,
}

impl Engine {
    fn new(names: Names, headless: Option<CheckpointVer>) -> Engine {
        Engine { names, uncleanable: FxHashMap::default(), is_syncing: false, quota_in_write: None, headless }
    }

    /// The superblock.
    pub fn superblock(&self) -> &Superblock {
        self.disk().superblock()
    }

    /// The layout of the volume.
    pub fn geometry(&self) -> &Geometry {
        self.disk().geometry()
    }

    /// The newest checkpoint on the device.
    pub fn last_checkpoint(&self) -> &Checkpoint {
        self.disk().checkpoint()
    }

    /// The pack that the newest checkpoint is in, 0 or 1.
    pub fn last_pack(&self) -> u8 {
        self.disk().pack()
    }

    /// Version of a checkpoint that is newer than the [last one](Self::last_checkpoint): it was complete, and the head of its
    /// pack is damaged, or that of an older checkpoint. The volume shows older files and [refuses changes](Self::read_only_reason), and a repair restores it.
    pub fn headless_checkpoint(&self) -> Option<CheckpointVer> {
        self.headless
    }

    /// Returns true if the newest checkpoint asks for fsck (`CP_FSCK_FLAG`), which fsck.f2fs clears after a
    /// repair.
    pub fn asks_for_fsck(&self) -> bool {
        self.disk().checkpoint().flags.has(Flags::FSCK)
    }

    /// The current counters.
    pub fn counters(&self) -> Counters {
        self.segments().counters()
    }

    /// Orphan inodes: they have no name but are still in use.
    pub fn orphans(&self) -> &BTreeSet<Ino> {
        self.names.orphans()
    }

    /// The options that the volume was opened with.
    pub fn options(&self) -> &Options {
        self.disk().options()
    }

    /// The properties that all node blocks of the volume share.
    pub fn node_format(&self) -> NodeFormat {
        self.disk().node_format()
    }

    /// The device, so that it can be flushed without a lock on the volume.
    pub fn device(&self) -> &Arc<dyn block::Device> {
        self.io().device()
    }

    /// Access to the device in blocks.
    pub fn io(&self) -> &Io {
        self.disk().io()
    }

    /// The reason why the volume refuses changes; `None` if it accepts them.
    pub fn read_only_reason(&self) -> Option<&str> {
        self.disk().read_only_reason()
    }

    /// The kind of the write to the device whose failure made the volume [refuse changes](Self::read_only_reason), if one
    /// did.
    pub fn write_failure(&self) -> Option<std::io::ErrorKind> {
        self.disk().write_failure()
    }

    fn disk(&self) -> &Disk {
        self.segments().disk()
    }

    fn disk_mut(&mut self) -> &mut Disk {
        self.segments_mut().disk_mut()
    }

    fn segments(&self) -> &Segments {
        self.nodes().segments()
    }

    fn segments_mut(&mut self) -> &mut Segments {
        self.nodes_mut().segments_mut()
    }

    fn nodes(&self) -> &Nodes {
        self.files().nodes()
    }

    fn nodes_mut(&mut self) -> &mut Nodes {
        self.files_mut().nodes_mut()
    }

    fn files(&self) -> &Files {
        self.names.files()
    }

    fn files_mut(&mut self) -> &mut Files {
        self.names.files_mut()
    }

    fn names(&self) -> &Names {
        &self.names
    }

    fn names_mut(&mut self) -> &mut Names {
        &mut self.names
    }

    /// Returns the current summary of a segment.
    ///
    /// # Errors
    /// Those of [reading](Engine#errors).
    pub fn summary(&self, segment: SegNo) -> Result<Summary> {
        self.segments().summary(segment)
    }

    /// Blocks still available to users.
    pub fn free_user_blocks(&self) -> u64 {
        self.segments().free_user_blocks()
    }

    /// Nodes that can still be allocated.
    pub fn free_nodes(&self) -> u32 {
        self.segments().free_nodes()
    }

    /// The current SIT entry of a segment.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a segment that the volume does not have; those of [reading](Engine#errors).
    pub fn sit_entry(&self, segment: SegNo) -> Result<SitEntry> {
        self.segments().sit_entry(segment)
    }

    /// Bytes of memory that the SIT takes: cached blocks, and segments that changed since the newest
    /// checkpoint.
    pub fn segment_table_bytes(&self) -> usize {
        self.segments().table_bytes()
    }

    /// Reads one block of the main area, from the device or from a log that has not been written yet.
    ///
    /// # Errors
    /// [`Error::Corrupt`] at `at` if the block is not in the main area, [`Error::Io`] at `at` if the device fails.
    pub fn read_block(&self, addr: BlockAddr, at: Place, buf: &mut [u8]) -> Result<()> {
        self.read_blocks(addr, at, buf)
    }

    /// Reads consecutive blocks of the main area; `buf` holds a whole number of blocks.
    ///
    /// # Errors
    /// [`Error::Corrupt`] at `at` if a block is not in the main area, [`Error::Io`] at `at` if the device fails.
    pub fn read_blocks(&self, addr: BlockAddr, at: Place, buf: &mut [u8]) -> Result<()> {
        self.segments().read_blocks(addr, at, buf)
    }

    /// A dirty page of a file or directory: new content that is neither in a log nor on the device. It
    /// overrides the block that the file's node points to. Overwritten blocks, parts of compressed clusters
    /// and directory blocks may wait as pages; other blocks go to their log at once.
    pub fn dirty_page(&self, ino: Ino, block: u64) -> Option<&[u8]> {
        self.files().dirty_page(ino, block)
    }

    /// Prepares for a write: fails if the volume is read-only or a [`PendingSync`] is outstanding.
    fn start(&mut self) -> Result<()> {
        self.disk().require_writable()?;
        if self.is_syncing {
            return Err(Error::Invalid(
                "device work is pending; give its outcome to `Engine::finish`".into(),
            ));
        }
        self.disk_mut().advance_time();
        self.segments_mut().prepare_logs()
    }

    /// Admits a change: fails where [`start`](Self::start) does, reads the quota limits that hold, and marks the volume
    /// as changed. With [`Upkeep::ByChange`] it first does the upkeep that is due. The volume is consistent here, between two
    /// changes, so that the upkeep may write a checkpoint.
    fn admit_change(&mut self) -> Result<()> {
        self.start()?;
        self.load_limits()?;
        self.segments_mut().mark_changed();
        if self.options().upkeep == Upkeep::ByChange {
            let upkeep = self.next_upkeep()?;
            self.complete(upkeep)?;
            self.segments_mut().mark_changed();
        }
        Ok(())
    }

    /// Decides who does the upkeep before changes from now on.
    pub fn set_upkeep(&mut self, upkeep: Upkeep) {
        self.disk_mut().set_upkeep(upkeep);
    }

    /// Begins the upkeep that is due before a change: it writes dirty pages, cleans sections, and frees
    /// blocks by a checkpoint. Every change does this itself, unless it is [left to the caller](Upkeep), who
    /// can let others read meanwhile.
    ///
    /// # Errors
    /// Those of [every change](Engine#errors).
    pub fn begin_upkeep(&mut self) -> Result<Option<PendingSync>> {
        if self.read_only_reason().is_some() {
            return Ok(None);
        }
        self.start()?;
        self.next_upkeep()
    }

    fn next_upkeep(&mut self) -> Result<Option<PendingSync>> {
        let is_crowded = self.segments_mut().is_crowded()?;
        let crowding = if is_crowded { Crowding::Crowded } else { Crowding::Fits };
        if self.files().page_count() > self.files().most_pages() || is_crowded {
            return self.write_dirty_then(Scope::Pages, AfterDirtyWrite::UpkeepOfNodes(crowding));
        }
        self.upkeep_of_nodes(crowding)
    }

    /// Continues the upkeep when the dirty pages are written, if that was due.
    fn upkeep_of_nodes(&mut self, crowding: Crowding) -> Result<Option<PendingSync>> {
        let most = self.files().most_pages();
        if self.files().page_count() > most {
            self.files_mut().write_waiting()?;
        }
        if self.nodes().dirty_count() > most || crowding == Crowding::Crowded {
            return self.write_dirty_then(Scope::Nodes, AfterDirtyWrite::UpkeepOfSpace);
        }
        self.upkeep_of_space()
    }

    /// Continues the upkeep when the dirty nodes are written, if that was due.
    fn upkeep_of_space(&mut self) -> Result<Option<PendingSync>> {
        if self.nodes().need_checkpoint() && !self.options().checkpoint_when_asked {
            return self.checkpoint_then(checkpoint::Reason::Sync, Then::FreeSpace(SpaceStep::Free));
        }
        self.free_space_from(SpaceStep::Free)
    }
}
