//! The search for the section to clean, in the segment table. Free sections are found in `search`.

use std::collections::BinaryHeap;

use super::{Facts, Sit};
use crate::{
    Result,
    disk::Io,
    units::{SecNo, SegNo},
};

/// The facts by which sections are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SectionFacts {
    /// The section.
    pub section: SecNo,
    /// Number of its valid blocks.
    pub valid_blocks: u32,
    /// Time of its last change, in seconds of mounted time.
    pub mtime: u64,
}

impl Sit {
    /// Returns the section with the highest rank, or `None` if no section has one. `rank` gets the facts of a
    /// section, and must not rise with its number, its valid blocks or its time. It is also asked for an upper bound
    /// of the ranks in a SIT block, with facts that are lower bounds, by `bound`. So most blocks are skipped.
    pub(in crate::segments) fn best_section<R: Ord>(
        &mut self,
        io: &Io,
        bound: impl Fn(SectionFacts) -> R,
        rank: impl Fn(SectionFacts) -> Option<R>,
    ) -> Result<Option<SecNo>> {
        let mut blocks = Vec::new();
        for index in 0..self.geometry.sit_blocks() {
            let sections = self.sections(index);
            let Some(least) = self.least_of(io, index, &sections)? else { continue };
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
            for section in self.sections(index).map(SecNo) {
                let Some(rank) = rank(self.section_facts(io, section)?) else { continue };
                if best.as_ref().is_none_or(|(high, _)| rank > *high) {
                    best = Some((rank, section));
                }
            }
        }
        Ok(best.map(|(_, section)| section))
    }

    /// The sections that begin in a SIT block.
    fn sections(&self, index: u32) -> std::ops::Range<u32> {
        let (numbers, per_section) = (self.numbers(index), self.geometry.segments_per_section);
        let whole = self.geometry.segments / per_section;
        numbers.start.div_ceil(per_section).min(whole)..numbers.end.div_ceil(per_section).min(whole)
    }

    /// Lower bounds of the facts of the sections that begin in a SIT block, or `None` if no segment of theirs has a
    /// valid block.
    fn least_of(
        &mut self,
        io: &Io,
        index: u32,
        sections: &std::ops::Range<u32>,
    ) -> Result<Option<SectionFacts>> {
        let Some(last) = sections.end.checked_sub(1).filter(|_| !sections.is_empty()) else {
            return Ok(None);
        };
        let last = (last + 1) * self.geometry.segments_per_section - 1;
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
            section: SecNo(sections.start),
            valid_blocks: least.into(),
            mtime: facts.oldest.into(),
        }))
    }

    fn section_facts(&mut self, io: &Io, section: SecNo) -> Result<SectionFacts> {
        let per_section = self.geometry.segments_per_section;
        let mut facts = SectionFacts { section, valid_blocks: 0, mtime: 0 };
        for number in (section.0 * per_section..(section.0 + 1) * per_section).map(SegNo) {
            let segment = self.segment(io, number)?;
            facts.valid_blocks += u32::from(segment.valid_blocks);
            facts.mtime = facts.mtime.max(segment.mtime);
        }
        Ok(facts)
    }
}
