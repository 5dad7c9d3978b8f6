//! Searches in the SIT: free sections, and the best segment by a rank.

use std::collections::{BTreeSet, BinaryHeap};

use super::Sit;
use crate::{
    Result,
    disk::Io,
    segments::segment::Segment,
    units::{SecNo, SegNo},
};

/// Treatment of prefree sections in a search for free ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::segments) enum Prefree {
    /// They count as in use, because the last checkpoint needs their blocks.
    Excluded,
    /// They count as free: only for a checkpoint, because nothing needs them once it is committed.
    Included,
}

/// Summary of a SIT block that lets searches skip it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::segments) struct Facts {
    /// Number of segments without a valid block.
    pub empty: u8,
    /// Lower bound of the valid blocks of each non-empty segment, by type; [`u16::MAX`] if the block has no
    /// such segment.
    pub least_valid: [u16; 6],
    /// Lower bound of the `mtime` of the non-empty segments, in seconds of mounted time.
    pub oldest: u32,
}

impl Facts {
    pub(in crate::segments) const NONE: Facts =
        Facts { empty: 0, least_valid: [u16::MAX; 6], oldest: u32::MAX };

    /// Updates the facts with a segment that is new or has changed.
    pub(in crate::segments) fn include(&mut self, segment: &Segment) {
        if segment.valid_blocks > 0 {
            let least = &mut self.least_valid[segment.kind.index()];
            *least = segment.valid_blocks.min(*least);
            self.oldest = self.oldest.min(u32::try_from(segment.mtime).unwrap_or(u32::MAX));
        }
    }
}

impl Sit {
    /// Finds the first section at or after `from`, wrapping around, without valid or protected blocks and
    /// without any of the segments `unavailable`. `prefree` decides on sections with protected blocks only.
    pub(in crate::segments) fn find_free_section(
        &mut self,
        io: &Io,
        from: SecNo,
        unavailable: &[SegNo],
        prefree: Prefree,
    ) -> Result<Option<SecNo>> {
        let (sections, per_block) = (self.geometry.sections, self.geometry.block_size.sit_entries() as u32);
        let mut tried = 0;
        while tried < sections {
            let section = SecNo((from.0 + tried) % sections);
            let first = section.0 * self.geometry.segments_per_section;
            let table = first / per_block;
            if self.facts_of(io, table)?.empty == 0 {
                // Every section that begins in this SIT block is in use.
                let next = ((table + 1) * per_block).div_ceil(self.geometry.segments_per_section);
                tried += (next - section.0).min(sections - section.0).max(1);
                continue;
            }
            if self.is_section_free(io, section, unavailable, prefree)? {
                return Ok(Some(section));
            }
            tried += 1;
        }
        Ok(None)
    }

    /// Returns true if a section has no valid or protected block and contains none of `unavailable`.
    /// `prefree` decides on a section with protected blocks only.
    pub(in crate::segments) fn is_section_free(
        &mut self,
        io: &Io,
        section: SecNo,
        unavailable: &[SegNo],
        prefree: Prefree,
    ) -> Result<bool> {
        for number in self.geometry.segments_of(section) {
            if self.is_disabled(number) {
                return Ok(false);
            }
            let segment = self.segment(io, number)?;
            let free = segment.is_free() || (prefree == Prefree::Included && segment.is_prefree());
            if !free || unavailable.contains(&number) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Counts the sections without valid or protected blocks that contain none of `unavailable` and are not disabled. The first
    /// call reads the whole SIT, unless a section is one segment.
    pub(in crate::segments) fn free_sections(&mut self, io: &Io, unavailable: &[SegNo]) -> Result<u32> {
        // Disabled sections are not counted, so those of logs must not be subtracted a second time.
        let enabled: Vec<SegNo> =
            unavailable.iter().copied().filter(|segment| !self.is_disabled(*segment)).collect();
        if self.geometry.segments_per_section == 1 {
            let unusable = self.prefree + self.disabled_free;
            return Ok(self.free_segments(io, &enabled)?.saturating_sub(unusable));
        }
        if self.busy.is_none() {
            let mut busy = vec![0; self.geometry.sections as usize];
            for number in (0..self.geometry.segments).map(SegNo) {
                let free = self.segment(io, number)?.is_free();
                busy[self.geometry.section_of(number).index()] += u32::from(!free);
            }
            self.busy = Some(busy);
        }
        let busy = self.busy.as_ref().expect("it was just counted");
        let held: BTreeSet<SecNo> =
            enabled.iter().map(|segment| self.geometry.section_of(*segment)).collect();
        let per_section = self.geometry.segments_per_section;
        let counts = (0..).zip(busy).filter(|(section, _)| !self.is_disabled(SegNo(section * per_section)));
        let free = counts.filter(|(_, count)| **count == 0).count();
        let held = held.iter().filter(|section| busy[section.index()] == 0).count();
        Ok((free - held) as u32)
    }

    /// Counts the segments without a valid block that are not in `except`.
    pub(in crate::segments) fn free_segments(&mut self, io: &Io, except: &[SegNo]) -> Result<u32> {
        let mut empty = 0;
        for number in except {
            empty += u32::from(self.segment(io, *number)?.valid_blocks == 0);
        }
        // The number of used segments started from the checkpoint's value, which may be wrong.
        Ok(self.geometry.segments.saturating_sub(self.used).saturating_sub(empty))
    }

    /// Finds the segment with the highest rank; disabled segments and those without a rank are skipped. `most` returns an upper
    /// bound of the ranks in a SIT block, given the block's first segment and its facts. The first call reads
    /// the whole SIT, later calls only the blocks that may contain the result.
    pub(in crate::segments) fn best_segment<R: Ord>(
        &mut self,
        io: &Io,
        most: impl Fn(SegNo, &Facts) -> Option<R>,
        rank: impl Fn(SegNo, &Segment) -> Option<R>,
    ) -> Result<Option<SegNo>> {
        let mut blocks = Vec::new();
        for index in 0..self.geometry.sit_blocks() {
            let (facts, first) = (self.facts_of(io, index)?, self.numbers(index).start);
            blocks.extend(most(SegNo(first), &facts).map(|most| (most, index)));
        }
        let mut blocks = BinaryHeap::from(blocks);
        let mut best: Option<(R, SegNo)> = None;
        while let Some((most, index)) = blocks.pop() {
            if best.as_ref().is_some_and(|(high, _)| *high >= most) {
                break;
            }
            let disabled = self.disabled.clone();
            self.show_block(io, index, |number, segment| {
                let is_enabled = !disabled.iter().any(|range| range.contains(&number.0));
                if let Some(rank) = is_enabled.then(|| rank(number, segment)).flatten() {
                    if best.as_ref().is_none_or(|(high, _)| rank > *high) {
                        best = Some((rank, number));
                    }
                }
            })?;
        }
        Ok(best.map(|(_, number)| number))
    }
}
