//! Telling the device what is free: after checkpoints, and all of it at once.

use std::sync::Arc;

use super::{
    Discards, Volume,
    checkpoint::Reason,
    pending::{PendingSync, Then},
};
use crate::{
    Result,
    format::BLOCKS_PER_SEGMENT,
    units::{BlockAddr, SegNo},
};

/// Segments that one step of trimming looks at: a device gets large requests, and a caller with a lock holds it briefly.
const STEP_SEGMENTS: u32 = 16;

impl Volume {
    /// The discards that wait to be issued. Where [`Options::discard`](super::Options::discard) is set, each checkpoint
    /// adds what it frees; the caller issues them when it likes, from any thread and without the volume.
    pub fn discards(&self) -> &Arc<Discards> {
        &self.discards
    }

    /// Tells the device about everything that is free, in runs of at least `least_blocks` within a segment, and says how
    /// many blocks that were.
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

    /// Begins a [`trim`](Self::trim) with a checkpoint: only what the newest one does not need is free on the device.
    pub fn begin_trim(&mut self) -> Result<Option<PendingSync>> {
        self.start()?;
        if self.changed { self.checkpoint_then(Reason::Sync, Then::End).map(Some) } else { Ok(None) }
    }

    /// Adds what is free in some segments from `from` on to the [discards](Self::discards), and says how many blocks that
    /// are, and where to go on. What a log is about to write is left out.
    pub fn trim_from(&mut self, from: SegNo, least_blocks: u32) -> Result<(u64, Option<SegNo>)> {
        self.start()?;
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
                if blocks >= least_blocks.max(1) {
                    self.discards.add(self.geometry.block(number, start), blocks);
                    trimmed += u64::from(blocks);
                }
                at = run_end;
            }
        }
        Ok((trimmed, (end < self.geometry.segments).then_some(SegNo(end))))
    }

    /// Before a log writes to a segment: no discard may reach what it writes.
    pub(super) fn claim_segment(&self, segment: SegNo) {
        self.discards.claim(self.geometry.block(segment, 0), BLOCKS_PER_SEGMENT);
    }

    /// The segments that discards are under way for.
    pub(super) fn discarded_segments(&self) -> impl Iterator<Item = SegNo> + use<'_> {
        let segment_of = |block: u32| self.geometry.position(BlockAddr(block)).0.0;
        let runs = self.discards.under_way().into_iter();
        runs.flat_map(move |run| (segment_of(run.start)..=segment_of(run.end - 1)).map(SegNo))
    }
}
