//! Discards: queued after checkpoints, or of all free space at once (trim).

use std::sync::Arc;

use super::{
    Discards, Volume,
    checkpoint::Reason,
    pending::{PendingSync, Then},
};
use crate::{
    Error, Result,
    format::BLOCKS_PER_SEGMENT,
    units::{BlockAddr, SegNo},
};

/// Segments per step of a trim: enough for large requests, few enough to hold the caller's lock only briefly.
const STEP_SEGMENTS: u32 = 16;

impl Volume {
    /// The queue of discards. If [`Options::discard`](super::Options::discard) is set, each checkpoint adds
    /// the blocks that it frees. The caller issues them at any time, from any thread, without the volume.
    pub fn discards(&self) -> &Arc<Discards> {
        &self.discards
    }

    /// Discards all free space in runs of at least `least_blocks` within a segment, and returns the number of
    /// blocks.
    pub fn trim(&mut self, least_blocks: u32) -> Result<u64> {
        let pending = self.begin_trim()?;
        self.complete(pending)?;
        let (mut trimmed, mut from) = (0, Some(SegNo(0)));
        while let Some(segment) = from {
            while self.discards.issue()? > 0 {}
            let (blocks, next) = self.trim_from(segment, least_blocks)?;
            (trimmed, from) = (trimmed + blocks, next);
        }
        while self.discards.issue()? > 0 {}
        Ok(trimmed)
    }

    /// Begins a [`trim`](Self::trim) with a checkpoint, because blocks that the last checkpoint needs cannot
    /// be discarded.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device cannot discard.
    pub fn begin_trim(&mut self) -> Result<Option<PendingSync>> {
        self.start()?;
        self.require_discards()?;
        self.discards.try_again();
        if self.changed { self.checkpoint_then(Reason::Sync, Then::End).map(Some) } else { Ok(None) }
    }

    /// Queues [discards](Self::discards) for the free blocks of the next 16 segments from `from` on, except
    /// the blocks that a log is going to write. Returns the number of blocks, and the segment to continue at
    /// or `None` at the end.
    pub fn trim_from(&mut self, from: SegNo, least_blocks: u32) -> Result<(u64, Option<SegNo>)> {
        self.start()?;
        self.require_discards()?;
        let least_blocks = least_blocks.max(self.discards.unit_blocks());
        let end = self.geometry.segments.min(from.0.saturating_add(STEP_SEGMENTS));
        let mut trimmed = 0;
        for number in (from.0..end).map(SegNo) {
            let written = self.logs.written_part(number);
            let segment = self.sit.segment(&self.io, number)?;
            let mut at = 0;
            while let Some(start) = segment.next_hole(at).filter(|start| *start < written) {
                let taken = |n: &u16| segment.next_hole(*n) != Some(*n);
                let run_end = (start..written).find(taken).unwrap_or(written);
                let blocks = u32::from(run_end - start);
                if blocks >= least_blocks {
                    self.discards.add(self.geometry.block(number, start), blocks);
                    trimmed += u64::from(blocks);
                }
                at = run_end;
            }
        }
        Ok((trimmed, (end < self.geometry.segments).then_some(SegNo(end))))
    }

    fn require_discards(&self) -> Result<()> {
        match self.discards.is_stopped() {
            true => Err(Error::Unsupported("discards: the device cannot do them".into())),
            false => Ok(()),
        }
    }

    /// Removes the discards of a segment from the queue. Returns false if one is in flight.
    pub(super) fn try_claim_segment(&self, segment: SegNo) -> bool {
        self.discards.try_claim(self.geometry.block(segment, 0), BLOCKS_PER_SEGMENT)
    }

    /// Removes the discards of a segment from the queue and waits for those in flight, before a log writes to
    /// the segment.
    pub(super) fn claim_segment(&self, segment: SegNo) {
        self.discards.claim(self.geometry.block(segment, 0), BLOCKS_PER_SEGMENT);
    }

    /// The segments that discards in flight cover.
    pub(super) fn discarded_segments(&self) -> impl Iterator<Item = SegNo> + use<'_> {
        let segment_of = |block: u32| self.geometry.position(BlockAddr(block)).0.0;
        let runs = self.discards.under_way().into_iter();
        runs.flat_map(move |run| (segment_of(run.start)..=segment_of(run.end - 1)).map(SegNo))
    }
}
