//! The segment manager: which blocks are valid, protected or free, where the six logs write, and how much space is
//! left.
//!
//! *Invariants*: a block is given out only if it is neither valid nor protected
//! ([`FreeBlock`](sit::FreeBlock)). The call that takes a block writes it (`Allocated`), and blocks are counted only
//! while space is reserved ([`Reservation`]). Blocks that the layers above keep in memory
//! are known here by their [number](Segments::set_waiting_pages) only.

mod allocate;
mod commit;
mod dir_cache;
mod discards;
mod evacuate;
mod log;
mod read;
mod recovery;
mod replace;
mod segment;
mod sit;
mod space;
mod summaries;
mod trim;
mod write;
mod zone;

use std::{collections::BTreeMap, sync::Arc};

use rustc_hash::FxHashSet;

pub(crate) use allocate::{log_for_data, log_for_node};
pub use discards::Discards;
pub(crate) use recovery::Needed;
pub(crate) use replace::{FsyncMark, OldBlock, Replaced};
pub(crate) use segment::Segment;
pub(crate) use sit::{CleaningUnit, SectionFacts};
pub(crate) use space::{Reservation, SectionCounts};
pub(crate) use summaries::{NodeSummaries, SummariesWrite};

use dir_cache::DirCache;
use log::{Log, Logs};
use sit::Sit;

use crate::{
    Error, Result,
    disk::Disk,
    format::{
        checkpoint::LogPosition,
        sit::{SegmentType, SitEntry},
        summary::Summary,
    },
    units::{SecNo, SegNo},
};

/// Bytes of memory that a changed segment takes in a half-full table until the next checkpoint.
const CHANGED_SEGMENT_BYTES: usize = 256;

/// The segments of the main area, and the logs that fill them.
pub(crate) struct Segments {
    disk: Disk,
    counters: Counters,
    sit: Sit,
    logs: Logs,
    /// True once the logs have been checked against the SIT.
    logs_ready: bool,
    /// Summaries of segments that the logs have left; they have not been written yet.
    summaries: BTreeMap<SegNo, Summary>,
    /// Blocks of directories that were read.
    dir_cache: DirCache,
    /// Free blocks to discard on the device.
    discards: Arc<Discards>,
    /// Segments that are being cleaned; no log may open them.
    avoid: Vec<SegNo>,
    /// Segments whose summary could not be read. SSR avoids them as long as it finds others.
    unreadable: Vec<SegNo>,
    /// Set during roll-forward recovery, when a log that finds no free segment may use the segment of another
    /// log. Holds the segments that were free before recovery and whose summary has not been read yet: the
    /// summary on the device is stale.
    recovering: Option<FxHashSet<SegNo>>,
    /// True if anything changed since the newest checkpoint.
    changed: bool,
    /// True if a log has opened a segment since upkeep last asked (`take_opened_segment`).
    opened_segment: bool,
    /// Free sections beyond those that cleaning needs; `None` if they must be counted again.
    spare_sections: Option<u32>,
    waiting: Waiting,
    turnover: Turnover,
    /// Shared by the [`Reservation`]s that exist.
    reservations: Arc<()>,
    /// Blocks that the warm data log has allocated since the last fsync wrote a marked node.
    since_fsync_blocks: u32,
    /// Fsyncs whose data and nodes were in two zones since both logs were in one.
    fsyncs_apart: u32,
    /// KiB written over the volume's life before it was opened.
    written_before: u64,
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

/// Blocks that wait in memory for a place in a log.
#[derive(Default)]
struct Waiting {
    pages: usize,
    nodes: usize,
}

/// Changes of the segments since the last checkpoint.
#[derive(Default)]
pub(crate) struct Turnover {
    /// Number of blocks that were taken; blocks that were released are not subtracted.
    pub(crate) taken_blocks: u64,
    /// Number of blocks that were released; the next checkpoint makes them usable.
    pub(crate) freed_blocks: u64,
    /// True if no zone was found that data and nodes of fsyncs could share.
    no_zone: bool,
    /// True if the last node of the chain has no address for a next one, so that the chain ends there.
    pub(crate) chain_ended: bool,
    /// Segments that a checkpoint opened for its logs although the last checkpoint needs blocks of them.
    pub(crate) borrowed: Vec<SegNo>,
}

impl Segments {
    /// The segments of a volume as its newest checkpoint says, with the entries of the checkpoint's journal.
    pub(crate) fn open(disk: Disk, journal: Vec<(SegNo, SitEntry)>) -> Result<Segments> {
        let positions = disk.checkpoint().logs;
        let mut segments = Segments::new(disk, positions, journal)?;
        let checkpoint = segments.disk.checkpoint();
        segments.counters = Counters {
            valid_blocks: checkpoint.valid_blocks,
            valid_nodes: checkpoint.valid_nodes,
            valid_inodes: checkpoint.valid_inodes,
        };
        Ok(segments)
    }

    /// The segments of a volume that holds nothing yet. Logs of the `kinds` begin at `positions`.
    pub(crate) fn blank(disk: Disk, positions: [LogPosition; 6], kinds: &[SegmentType]) -> Result<Segments> {
        let mut segments = Segments::new(disk, positions, Vec::new())?;
        for &kind in kinds {
            segments.sit.set_kind(segments.disk.io(), positions[kind.index()].segment, kind)?;
        }
        (segments.changed, segments.logs_ready) = (true, true);
        Ok(segments)
    }

    fn new(disk: Disk, positions: [LogPosition; 6], journal: Vec<(SegNo, SitEntry)>) -> Result<Segments> {
        let logs = SegmentType::ALL.map(|kind| Log::new(positions[kind.index()], Summary::empty(kind)));
        let geometry = *disk.geometry();
        let table_bytes = disk.options().sit_bytes();
        let dir_blocks = disk.options().dir_block_bytes() / geometry.block_size.bytes();
        Ok(Segments {
            counters: Counters::default(),
            sit: Sit::new(geometry, disk.checkpoint(), journal, disk.pack(), table_bytes)?,
            logs: Logs::new(logs, geometry.block_size.bytes()),
            logs_ready: false,
            summaries: BTreeMap::new(),
            dir_cache: DirCache::new(dir_blocks),
            discards: Discards::new(disk.io().clone()),
            disk,
            avoid: Vec::new(),
            unreadable: Vec::new(),
            recovering: None,
            changed: false,
            opened_segment: true,
            spare_sections: None,
            waiting: Waiting::default(),
            turnover: Turnover::default(),
            reservations: Arc::default(),
            since_fsync_blocks: 0,
            fsyncs_apart: 0,
            written_before: 0,
        })
    }

    pub(crate) fn disk(&self) -> &Disk {
        &self.disk
    }

    pub(crate) fn disk_mut(&mut self) -> &mut Disk {
        &mut self.disk
    }

    /// The discards that wait to be issued.
    pub(crate) fn discards(&self) -> &Arc<Discards> {
        &self.discards
    }

    /// Returns true if something was changed since the newest checkpoint.
    pub(crate) fn is_changed(&self) -> bool {
        self.changed
    }

    /// The changes since the newest checkpoint.
    pub(crate) fn turnover(&self) -> &Turnover {
        &self.turnover
    }

    /// Notes that something changes.
    pub(crate) fn mark_changed(&mut self) {
        self.changed = true;
    }

    /// The current state of a segment.
    pub(crate) fn segment(&mut self, number: SegNo) -> Result<Segment> {
        self.sit.segment(self.disk.io(), number)
    }

    /// Returns an error if a caller asks for a segment that does not exist.
    fn check_segment(&self, segment: SegNo) -> Result<()> {
        let segments = self.disk.geometry().segments;
        if segment.0 >= segments {
            let what = format!("{segment} is out of range; the volume has {segments} segments");
            return Err(Error::Invalid(what.into()));
        }
        Ok(())
    }

    /// The current SIT entry of a segment.
    pub(crate) fn sit_entry(&self, segment: SegNo) -> Result<SitEntry> {
        self.check_segment(segment)?;
        self.sit.peek(self.disk.io(), segment)
    }

    /// Calls `show` for every segment in order. Reads the whole SIT.
    pub(crate) fn for_each(&mut self, show: impl FnMut(SegNo, &Segment)) -> Result<()> {
        self.sit.for_each(self.disk.io(), show)
    }

    /// The section with the highest [rank](sit::Sit::best_section), or the first one of the zone with the highest rank.
    pub(crate) fn best_section<R: Ord>(
        &mut self,
        unit: CleaningUnit,
        bound: impl Fn(SectionFacts) -> R,
        rank: impl Fn(SectionFacts) -> Option<R>,
    ) -> Result<Option<SecNo>> {
        self.sit.best_section(self.disk.io(), unit, bound, rank)
    }

    /// The current segments of the logs.
    pub(crate) fn log_segments(&self) -> [SegNo; 6] {
        self.logs.segments()
    }

    /// Memory that what has changed in the segment table takes until the next checkpoint, in bytes.
    pub(crate) fn changed_bytes(&self) -> usize {
        self.sit.changed_segments() * CHANGED_SEGMENT_BYTES
    }

    /// Bytes of memory that the SIT takes: cached blocks, and segments that changed since the newest
    /// checkpoint.
    pub(crate) fn table_bytes(&self) -> usize {
        self.sit.block_bytes() + self.changed_bytes()
    }
}

#[cfg(test)]
impl Segments {
    /// Takes all blocks of a segment that holds none.
    pub(crate) fn take_segment(&mut self, number: SegNo) {
        for offset in 0..crate::format::BLOCKS_PER_SEGMENT as u16 {
            let addr = self.disk.geometry().block(number, offset);
            let block = self.sit.free_block(self.disk.io(), addr).unwrap();
            self.sit.take(block, SegmentType::ColdData, 0);
        }
    }

    /// Allocates a block and leaves it without content.
    pub(crate) fn allocate_only(&mut self, kind: SegmentType) {
        let owner = crate::format::summary::Owner { nid: crate::units::Nid(3), version: 0, offset: 0 };
        drop(self.allocate(kind, owner).unwrap());
    }

    /// Takes all blocks of a log's segment: the log is full.
    pub(crate) fn fill_log(&mut self, kind: SegmentType) {
        self.take_segment(self.logs.get(kind).segment);
        self.logs.get_mut(kind).offset = crate::format::BLOCKS_PER_SEGMENT as u16;
    }
}
