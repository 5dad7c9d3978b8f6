//! Foreground cleaning with [`Mode::Lfs`](super::Mode::Lfs), where logs only append.
//!
//! Before each change, sections are emptied until more are free than the logs and cleaning itself need. Cleaning takes
//! free sections for the blocks that it moves, and gets the emptied ones back with a checkpoint. So it goes on in rounds,
//! each of which leaves enough free sections for its checkpoint. (Linux, `f2fs_balance_fs` and `f2fs_gc`.)

use super::{
    Engine, Policy,
    gc::{Cleaning, FOREGROUND_SECTIONS, Purpose, SpaceStep, TRIES},
    pending::PendingSync,
    write_dirty::{AfterDirtyWrite, Scope},
};
use crate::{Result, segments::SectionCounts};

/// Number of free sections that a round of cleaning leaves for its checkpoint, beside those for dirty blocks (Linux,
/// `NR_GC_CHECKPOINT_SECS`).
const CHECKPOINT_SECTIONS: u32 = 3;

/// Number of prefree segments that make a checkpoint worthwhile before sections have to be cleaned.
const PREFREE_SEGMENTS: u32 = 2;

/// Maximum number of rounds one after the other that gain no block. A round may gain none because it has rewritten the
/// nodes of the data that it moved; the places that these have left are holes for the next round.
const ROUNDS_WITHOUT_GAIN: u8 = 3;

/// The course of foreground cleaning so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rounds {
    /// The most blocks that the logs could append after any round.
    most_blocks: u64,
    /// Number of rounds since then.
    without_gain: u8,
}

impl Rounds {
    fn new(appendable_blocks: u64) -> Rounds {
        Rounds { most_blocks: appendable_blocks, without_gain: 0 }
    }

    /// Returns the course with a round after which the logs can append `appendable_blocks`, or `None` if another round is
    /// not worthwhile.
    fn next(self, appendable_blocks: u64) -> Option<Rounds> {
        if appendable_blocks > self.most_blocks {
            return Some(Rounds::new(appendable_blocks));
        }
        let without_gain = self.without_gain + 1;
        (without_gain < ROUNDS_WITHOUT_GAIN).then_some(Rounds { without_gain, ..self })
    }
}

/// Returns true if too few sections are free for the logs, the dirty blocks and cleaning.
fn is_short(sections: SectionCounts, emptied: u32) -> bool {
    sections.free.saturating_add(emptied) <= sections.least_free.saturating_add(sections.waiting)
}

/// Returns true if the free sections are needed for a checkpoint.
fn is_low(sections: SectionCounts) -> bool {
    sections.free <= sections.waiting.saturating_add(CHECKPOINT_SECTIONS)
}

/// Returns true if a checkpoint should be written because it frees whole segments. Blocks that it frees in other segments
/// are of no use to a log that appends.
fn frees_enough(sections: SectionCounts) -> bool {
    let (free, prefree) = (sections.free, sections.prefree_segments);
    (is_short(sections, 0) && prefree > 0)
        || (free <= sections.least_to_append() && prefree >= PREFREE_SEGMENTS)
}

impl Engine {
    /// Frees sections by a checkpoint, and by rounds of cleaning until enough are free or no round gains any.
    pub(super) fn free_to_append(
        &mut self,
        step: SpaceStep,
        sections: SectionCounts,
    ) -> Result<Option<PendingSync>> {
        if step == SpaceStep::Free && frees_enough(sections) {
            return self.checkpoint_for(SpaceStep::Clean);
        }
        if !is_short(sections, 0) {
            return match self.cleaning_to_append(sections)? {
                Some(cleaning) => self.write_dirty_then(Scope::Everything, AfterDirtyWrite::Clean(cleaning)),
                None => self.end_free_space(),
            };
        }
        let blocks = self.segments_mut().appendable_blocks()?;
        let rounds = match step {
            SpaceStep::Again(rounds) => rounds.next(blocks),
            SpaceStep::Free | SpaceStep::Clean | SpaceStep::End => Some(Rounds::new(blocks)),
        };
        let Some(rounds) = rounds else { return self.end_free_space() };
        let tries = TRIES * FOREGROUND_SECTIONS as usize;
        let cleaning = Cleaning::new(Purpose::Reserve(rounds), FOREGROUND_SECTIONS, Policy::Greedy, tries);
        self.write_dirty_then(Scope::Everything, AfterDirtyWrite::Clean(Box::new(cleaning)))
    }

    /// Returns true if a round of cleaning that has emptied `emptied` sections ends here.
    pub(super) fn ends_round(&mut self, purpose: Purpose, emptied: u32) -> Result<bool> {
        let sections = self.segments_mut().section_counts()?;
        let is_enough = matches!(purpose, Purpose::Reserve(_)) && !is_short(sections, emptied);
        Ok(is_enough || emptied > 0 && is_low(sections))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTIONS: SectionCounts =
        SectionCounts { free: 9, least_free: 8, reserved: 20, prefree_segments: 0, waiting: 0 };

    #[test]
    fn cleaning_begins_when_free_sections_are_short() {
        assert!(!is_short(SECTIONS, 0) && is_short(SectionCounts { free: 8, ..SECTIONS }, 0));
        assert!(is_short(SectionCounts { waiting: 1, ..SECTIONS }, 0), "dirty blocks will take one");
        assert!(!is_short(SectionCounts { free: 6, ..SECTIONS }, 3), "emptied sections count");
        assert!(
            !is_low(SectionCounts { free: 4, ..SECTIONS }) && is_low(SectionCounts { free: 3, ..SECTIONS })
        );
    }

    #[test]
    fn a_checkpoint_must_free_whole_segments() {
        let frees =
            |free, prefree_segments| frees_enough(SectionCounts { free, prefree_segments, ..SECTIONS });
        assert!(!frees(8, 0) && frees(8, 1) && !frees(9, 1) && frees(24, 2) && !frees(25, 9));
    }

    #[test]
    fn cleaning_ends_when_rounds_gain_nothing() {
        let rounds = Rounds::new(100);
        assert_eq!(rounds.next(101), Some(Rounds::new(101)));
        let later = rounds.next(90).and_then(|rounds| rounds.next(100)).expect("two rounds without gain");
        assert_eq!((later.next(100), later.next(101)), (None, Some(Rounds::new(101))));
    }
}
