//! Free blocks that the device is told of, and segments that discards keep from the logs meanwhile.

use super::Segments;
use crate::{
    Error, Result,
    format::BLOCKS_PER_SEGMENT,
    units::{BlockAddr, SegNo},
};

/// Segments per step of a trim: enough for large requests, few enough to hold the caller's lock only briefly.
const STEP_SEGMENTS: u32 = 16;

impl Segments {
    /// Adds the free blocks of some segments from `from` on to the discards, and returns how many blocks that are and the
    /// segment to go on with. Blocks that a log is about to write are left out.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device cannot discard.
    pub(crate) fn discard_free(&mut self, from: SegNo, least_blocks: u32) -> Result<(u64, Option<SegNo>)> {
        self.require_discards()?;
        let least_blocks = least_blocks.max(self.discards.unit_blocks());
        let segments = self.disk.geometry().segments;
        let end = segments.min(from.0.saturating_add(STEP_SEGMENTS));
        let mut trimmed = 0;
        for number in (from.0..end).map(SegNo) {
            let written = self.logs.written_part(number);
            let segment = self.sit.segment(self.disk.io(), number)?;
            let mut at = 0;
            while let Some(start) = segment.next_hole(at).filter(|start| *start < written) {
                let taken = |n: &u16| segment.next_hole(*n) != Some(*n);
                let run_end = (start..written).find(taken).unwrap_or(written);
                let blocks = u32::from(run_end - start);
                if blocks >= least_blocks {
                    self.discards.add(self.disk.geometry().block(number, start), blocks);
                    trimmed += u64::from(blocks);
                }
                at = run_end;
            }
        }
        Ok((trimmed, (end < segments).then_some(SegNo(end))))
    }

    /// Returns an error if the device cannot discard.
    fn require_discards(&self) -> Result<()> {
        match self.discards.is_stopped() {
            true => Err(Error::Unsupported("discards: the device cannot do them".into())),
            false => Ok(()),
        }
    }

    /// Lets the device be asked again although it has failed too often.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device cannot discard.
    pub(crate) fn retry_discards(&self) -> Result<()> {
        self.require_discards()?;
        self.discards.try_again();
        Ok(())
    }

    /// Removes the discards of a segment from the queue. Returns false if one is in flight.
    pub(super) fn try_claim_segment(&self, segment: SegNo) -> bool {
        self.discards.try_claim(self.disk.geometry().block(segment, 0), BLOCKS_PER_SEGMENT)
    }

    /// Removes the discards of a segment from the queue and waits for those in flight, before a log writes to
    /// the segment.
    pub(super) fn claim_segment(&self, segment: SegNo) {
        self.discards.claim(self.disk.geometry().block(segment, 0), BLOCKS_PER_SEGMENT);
    }

    /// The segments that discards in flight cover.
    pub(super) fn discarded_segments(&self) -> Vec<SegNo> {
        let segment_of = |block: u32| self.disk.geometry().position(BlockAddr(block)).0.0;
        let runs = self.discards.under_way().into_iter();
        runs.flat_map(|run| (segment_of(run.start)..=segment_of(run.end - 1)).map(SegNo)).collect()
    }
}
