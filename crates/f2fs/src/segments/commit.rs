//! The segments' part of a checkpoint.

use super::{NodeSummaries, Segments, Turnover, discards::UNIT_BLOCKS, sit::Prefree};
use crate::{
    Error, Result,
    disk::journal::{Prepared, TableWrite},
    format::{
        checkpoint::{Checkpoint, Flags, LogPosition},
        sit::{SegmentType, SitEntry},
        summary::Journal,
    },
    units::SegNo,
};

impl Segments {
    /// Returns an error, and refuses changes from then on, if more blocks are in use than the volume has room for.
    /// Neither we nor Linux would open such a volume. The previous checkpoint, with the fsyncs since then, is whole.
    pub(crate) fn require_room_for_checkpoint(&mut self) -> Result<()> {
        let user_blocks = self.disk.checkpoint().user_blocks;
        if self.counters.valid_blocks <= user_blocks {
            return Ok(());
        }
        let needed_blocks = self.counters.valid_blocks - user_blocks;
        self.disk.refuse_changes("it holds more blocks than its capacity");
        Err(Error::no_space(self.disk.geometry().block_size, needed_blocks, 0))
    }

    /// Opens a segment for each full log, so that every log can go on. A log without a segment may
    /// [borrow](Turnover::borrowed) a prefree one, which the next checkpoint frees.
    pub(crate) fn open_full_logs(&mut self) -> Result<()> {
        SegmentType::ALL.into_iter().try_for_each(|kind| {
            if self.logs.get(kind).is_full() {
                self.open_segment(kind, Prefree::Included)?;
                let log = self.logs.get(kind);
                // SSR writes only to blocks that the last checkpoint does not need.
                let is_needed = self.sit.segment(self.disk.io(), log.segment)?.protected_blocks > 0;
                if is_needed && !log.mode.is_ssr() {
                    self.turnover.borrowed.push(log.segment);
                }
            }
            Ok(())
        })
    }

    /// Lists the changes of the segment table; only the next checkpoint makes them count.
    pub(crate) fn list_table(&self) -> TableWrite<SegNo> {
        self.sit.list_table()
    }

    /// Writes up to `most` blocks of the segment table, and returns their number. If it is smaller, all are written.
    pub(crate) fn write_some_of_table(
        &mut self,
        table: &mut TableWrite<SegNo>,
        most: usize,
    ) -> Result<usize> {
        self.sit.write_some(self.disk.io(), table, most)
    }

    /// Returns the state of the segment table once all its blocks are written.
    pub(crate) fn prepared_table(&self, table: TableWrite<SegNo>) -> Prepared<SegNo, SitEntry> {
        self.sit.prepared(table)
    }

    /// Puts the counts and the positions of the logs into a checkpoint. Returns the summary blocks of its pack.
    pub(crate) fn describe(
        &mut self,
        next: &mut Checkpoint,
        nat: &Journal,
        sit: &Journal,
        nodes: NodeSummaries,
    ) -> Result<Vec<u8>> {
        next.valid_blocks = self.counters.valid_blocks;
        next.valid_nodes = self.counters.valid_nodes;
        next.valid_inodes = self.counters.valid_inodes;
        next.free_segments = self.sit.free_segments(self.disk.io(), &self.logs.segments())?;
        next.logs = self.log_positions();
        let (is_compact, summaries) = self.encode_summaries(nat, sit, nodes);
        if is_compact {
            next.flags = next.flags.with(Flags::COMPACT_SUM);
        }
        Ok(summaries)
    }

    fn log_positions(&self) -> [LogPosition; 6] {
        SegmentType::ALL.map(|kind| self.logs.get(kind).position())
    }

    /// Goes on from a checkpoint that counts now.
    pub(crate) fn committed(&mut self, next: Checkpoint, table: Prepared<SegNo, SitEntry>) {
        self.disk.committed(next);
        self.changed = false;
        self.turnover = Turnover::default();
        self.spare_sections = None;
        let (geometry, logs, discards) = (*self.disk.geometry(), &self.logs, &self.discards);
        let wanted = self.disk.options().discard;
        self.sit.committed(table, |number, offset, blocks| {
            // Blocks that a log is about to write are not discarded.
            let end = u32::from(logs.written_part(number)) / UNIT_BLOCKS * UNIT_BLOCKS;
            let blocks = blocks.min(end.saturating_sub(offset.into()));
            if wanted && blocks > 0 {
                discards.add(geometry.block(number, offset), blocks);
            }
        });
        // A segment that is free now needs no summary.
        let (io, table) = (self.disk.io(), &mut self.sit);
        self.unreadable.retain(|number| table.segment(io, *number).is_ok_and(|segment| !segment.is_free()));
    }
}
