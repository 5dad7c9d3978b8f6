//! Cleaning before the logs have to fill holes.
//!
//! A log that fills holes (SSR) leaves the valid blocks of its segment where they are, among blocks that are soon
//! overwritten again. A log that appends leaves whole sections behind, which become free without a copy. So as long as
//! there are zones that are cheap to empty, they are emptied before free sections run short. A card copies less then, too:
//! a card keeps few blocks free, and its own cleaning copies the rest of a block of which only a part was overwritten.
//!
//! Whole zones are emptied, because a zone corresponds to a unit of the card.

use std::cmp::Reverse;

use super::{
    Engine, Policy,
    gc::{Cleaning, Purpose, TRIES},
};
use crate::{
    Result,
    format::BLOCKS_PER_SEGMENT,
    segments::{CleaningUnit, SectionCounts, SectionFacts},
    units::SecNo,
};

/// Maximum share of the blocks of a zone's used segments that may be valid, in percent: three blocks are gained for each
/// copied one. Zones with more valid blocks lose some by themselves while they wait, or are left to SSR.
const VALID_PERCENT: u32 = 25;

/// Maximum number of sections that an operation empties to go on appending. It also empties the rest of the last zone, up to
/// [`TRIES`] sections for each of these in all: a later operation continues with a larger zone.
const SECTIONS_MAX: u32 = 2;

/// Returns true if a zone with these facts is emptied with few copies for the space that is gained.
fn is_cheap(facts: SectionFacts) -> bool {
    let used_blocks = facts.used_segments.saturating_mul(BLOCKS_PER_SEGMENT);
    facts.valid_blocks > 0
        && u64::from(facts.valid_blocks) * 100 <= u64::from(used_blocks) * u64::from(VALID_PERCENT)
}

impl Engine {
    /// Returns the cleaning that lets the logs go on appending, if free sections run short and there is a cheap zone.
    pub(super) fn cleaning_to_append(&mut self, sections: SectionCounts) -> Result<Option<Box<Cleaning>>> {
        let missing = (sections.least_to_append() + 1).saturating_sub(sections.free).min(SECTIONS_MAX);
        if missing == 0 {
            return Ok(None);
        }
        let mut cleaning = Cleaning::new(Purpose::Append, missing, Policy::Greedy, TRIES * missing as usize);
        let Some(first) = self.next_in_cheap_zone(&mut cleaning)? else { return Ok(None) };
        cleaning.zone.push(first);
        Ok(Some(Box::new(cleaning)))
    }

    /// Returns the next section to empty: of the zone that is being emptied, or of the one with the fewest valid blocks if
    /// that is cheap.
    pub(super) fn next_in_cheap_zone(&mut self, cleaning: &mut Cleaning) -> Result<Option<SecNo>> {
        if let Some(section) = cleaning.zone.pop() {
            return Ok(Some(section));
        }
        let geometry = *self.geometry();
        let zone_of = |section: SecNo| section.0 / geometry.sections_per_zone;
        let logs = self.segments().log_segments().map(|segment| zone_of(geometry.section_of(segment)));
        let excluded: Vec<u32> =
            cleaning.tried.iter().chain(self.uncleanable.keys()).map(|section| zone_of(*section)).collect();
        let can_be_cleaned = |facts: &SectionFacts| {
            let zone = zone_of(facts.section);
            is_cheap(*facts) && !logs.contains(&zone) && !excluded.contains(&zone)
        };
        let rank = |facts: SectionFacts| Reverse((facts.valid_blocks, facts.section));
        let segments = self.segments_mut();
        let found = segments
            .best_section(CleaningUnit::Zone, rank, |facts| Some(facts).filter(can_be_cleaned).map(rank))?;
        for section in found.into_iter().flat_map(|section| geometry.zone_of(section)) {
            if self.segments_mut().valid_blocks(section)? > 0 {
                cleaning.zone.push(section);
            }
        }
        cleaning.zone.reverse();
        Ok(cleaning.zone.pop())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_is_cheap_if_at_most_a_quarter_of_its_used_segments_is_valid() {
        let of = |valid_blocks, used_segments| SectionFacts {
            section: SecNo(1),
            valid_blocks,
            used_segments,
            mtime: 0,
        };
        assert!(is_cheap(of(1, 1)) && is_cheap(of(128, 1)) && !is_cheap(of(129, 1)));
        assert!(is_cheap(of(256, 2)) && !is_cheap(of(257, 2)));
        assert!(!is_cheap(of(0, 0)), "it is free already");
    }
}
