//! The search for the section or zone to clean, in the segment table. Free sections are found in `search`.

use std::collections::BinaryHeap;

use super::{Facts, Sit};
use crate::{
    Result,
    disk::Io,
    units::{SecNo, SegNo},
};

/// The facts by which sections are compared, or zones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SectionFacts {
    /// The section, or the first one of the zone.
    pub section: SecNo,
    /// Number of its valid blocks.
    pub valid_blocks: u32,
    /// Number of its segments with a valid block.
    pub used_segments: u32,
    /// Time of its last change, in seconds of mounted time.
    pub mtime: u64,
}

/// The unit in which segments are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CleaningUnit {
    /// Section by section.
    Section,
    /// Zone by zone.
    Zone,
}

impl Sit {
    /// Returns the section with the highest rank, or the first section of the zone with the highest rank, or `None` if
    /// none has one. `rank` gets the facts of a section or zone, and must not rise with its number, its valid blocks or
    /// its time. It is also asked for an upper bound of the ranks in a SIT block, with facts that are lower bounds, by
    /// `bound`. So most blocks are skipped.
    pub(in crate::segments) fn best_section<R: Ord>(
        &mut self,
        io: &Io,
        unit: CleaningUnit,
        bound: impl Fn(SectionFacts) -> R,
        rank: impl Fn(SectionFacts) -> Option<R>,
    ) -> Result<Option<SecNo>> {
        let per_unit = match unit {
            CleaningUnit::Section => self.geometry.segments_per_section,
            CleaningUnit::Zone => {
                self.geometry.segments_per_section.saturating_mul(self.geometry.sections_per_zone)
            }
        };
        let mut blocks = Vec::new();
        for index in 0..self.geometry.sit_blocks() {
            let units = self.units(index, per_unit);
            let Some(least) = self.least_of(io, index, &units, per_unit)? else { continue };
            blocks.push((bound(least), index));
        }
        let mut blocks = BinaryHeap::from(blocks);
        let mut best: Option<(R, SecNo)> = None;
        while let Some((most, index)) = blocks.pop() {
            if best.as_ref().is_some_and(|(high, _)| *high >= most) {
                break;
            }
            // Renews the facts of the block, which may be too low.
            self.show_block(io, index, |_, _| ())?;
            for number in self.units(index, per_unit) {
                let facts = self.unit_facts(io, number, per_unit)?;
                let Some(rank) = rank(facts) else { continue };
                if best.as_ref().is_none_or(|(high, _)| rank > *high) {
                    best = Some((rank, facts.section));
                }
            }
        }
        Ok(best.map(|(_, section)| section))
    }

    /// The units of `per_unit` segments that begin in a SIT block. A last one that is not whole is left out.
    fn units(&self, index: u32, per_unit: u32) -> std::ops::Range<u32> {
        let (numbers, whole) = (self.numbers(index), self.geometry.segments / per_unit);
        numbers.start.div_ceil(per_unit).min(whole)..numbers.end.div_ceil(per_unit).min(whole)
    }

    /// Lower bounds of the facts of the units that begin in a SIT block, or `None` if no segment of theirs has a
    /// valid block.
    fn least_of(
        &mut self,
        io: &Io,
        index: u32,
        units: &std::ops::Range<u32>,
        per_unit: u32,
    ) -> Result<Option<SectionFacts>> {
        let Some(last) = units.end.checked_sub(1).filter(|_| !units.is_empty()) else {
            return Ok(None);
        };
        let last = (last + 1) * per_unit - 1;
        let per_block = self.geometry.block_size.sit_entries() as u32;
        let mut facts = Facts::NONE;
        for index in index..=last / per_block {
            let more = self.facts_of(io, index)?;
            facts.oldest = facts.oldest.min(more.oldest);
            facts
                .least_valid
                .iter_mut()
                .zip(more.least_valid)
                .for_each(|(one, other)| *one = other.min(*one));
        }
        let least = facts.least_valid.into_iter().min().filter(|least| *least < u16::MAX);
        Ok(least.map(|least| SectionFacts {
            section: self.geometry.section_of(SegNo(units.start * per_unit)),
            valid_blocks: least.into(),
            used_segments: 1,
            mtime: facts.oldest.into(),
        }))
    }

    fn unit_facts(&mut self, io: &Io, unit: u32, per_unit: u32) -> Result<SectionFacts> {
        let section = self.geometry.section_of(SegNo(unit * per_unit));
        let mut facts = SectionFacts { section, valid_blocks: 0, used_segments: 0, mtime: 0 };
        for number in (unit * per_unit..(unit + 1) * per_unit).map(SegNo) {
            let segment = self.segment(io, number)?;
            facts.valid_blocks += u32::from(segment.valid_blocks);
            facts.used_segments += u32::from(segment.valid_blocks > 0);
            facts.mtime = facts.mtime.max(segment.mtime);
        }
        Ok(facts)
    }
}
