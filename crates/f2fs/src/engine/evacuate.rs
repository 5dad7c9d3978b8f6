//! Emptying a range of segments: the part of a resize that needs the engine, and moves of an area of the device.
//!
//! *Invariants*: blocks move as in cleaning, out of place. So the volume is whole after a power cut at any time.

use std::ops::Range;

use super::{Engine, Policy, checkpoint::Reason, gc::Victim};
use crate::{
    Error, Result,
    units::{SecNo, SegNo},
};

/// Maximum number of attempts to make space for the blocks of one section.
const TRIES: u32 = 64;
/// Maximum number of sections that are cleaned in one attempt to make space.
const CLEANED_SECTIONS: u32 = 8;

impl Engine {
    /// Number of valid blocks in a range of segments of the main area.
    ///
    /// # Errors
    /// Those of [reading](Engine#errors).
    pub fn valid_blocks_in(&mut self, segments: Range<u32>) -> Result<u64> {
        let mut blocks = 0;
        self.segments_mut().for_each(|number, segment| {
            if segments.contains(&number.0) {
                blocks += u64::from(segment.valid_blocks);
            }
        })?;
        Ok(blocks)
    }

    /// Moves all blocks out of `segments`, whole sections, and writes a checkpoint. Until the volume is opened again,
    /// nothing is allocated there. Then cleans until `free_sections` other sections are free, as far as possible. `tell`
    /// gets the number of moved blocks so far.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a pinned file in the range, [`Error::NoSpace`] if the rest of the volume has no place for
    /// the blocks; those of [every change](Engine#errors). The volume is whole, but some blocks have moved.
    pub(crate) fn evacuate(
        &mut self,
        segments: Range<u32>,
        free_sections: u32,
        tell: &mut dyn FnMut(u64),
    ) -> Result<()> {
        self.empty(segments.clone(), &[segments], tell)?;
        self.compact(free_sections)
    }

    /// Moves all blocks out of the segments `from` into free places of the segments `to`, and writes a checkpoint. Both are
    /// extended to whole sections of the main area. Until the volume is opened again, nothing is allocated anywhere else.
    /// `tell` gets the number of moved blocks so far. Returns that number.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a pinned file in `from`, [`Error::NoSpace`] if `to` has no place for the blocks; those of [every
    /// change](Engine#errors). The volume is whole, but some blocks may have moved.
    pub fn move_area(&mut self, from: Range<u32>, to: Range<u32>, tell: &mut dyn FnMut(u64)) -> Result<u64> {
        let (per_section, segments) = (self.geometry().segments_per_section, self.geometry().segments);
        let whole = |range: Range<u32>| {
            let start = range.start.min(segments) / per_section * per_section;
            start..range.end.min(segments).next_multiple_of(per_section).max(start)
        };
        let (from, to) = (whole(from), whole(to));
        let common = from.start.max(to.start)..from.end.min(to.end);
        let disabled = [0..to.start, common, to.end..segments];
        self.empty(from, &disabled, tell)
    }

    /// Moves all blocks out of `segments`, while nothing is allocated in the `disabled` ranges. Returns their number.
    fn empty(
        &mut self,
        segments: Range<u32>,
        disabled: &[Range<u32>],
        tell: &mut dyn FnMut(u64),
    ) -> Result<u64> {
        // Blocks that the last checkpoint does not need become usable first.
        self.admit_change()?;
        self.write_checkpoint(Reason::Sync)?;
        self.admit_change()?;
        self.segments_mut().disable_segments(disabled)?;
        let per_section = self.geometry().segments_per_section;
        let mut moved = 0;
        for section in (segments.start / per_section..segments.end / per_section).map(SecNo) {
            moved += self.empty_section(section)?;
            tell(moved);
        }
        self.write_checkpoint(Reason::Sync)?;
        match self.valid_blocks_in(segments)? {
            0 => Ok(moved),
            left => Err(Error::Invalid(format!("{left} blocks could not be moved").into())),
        }
    }

    /// Moves all blocks out of a section. Returns their number.
    fn empty_section(&mut self, section: SecNo) -> Result<u64> {
        let first = SegNo(section.0 * self.geometry().segments_per_section);
        let mut moved = 0;
        for tries in 0..TRIES {
            self.admit_change()?;
            let mut victim = Victim::new(section, first);
            let mut budget_blocks = u32::MAX;
            let result = self.clean_section(&mut victim, &mut budget_blocks);
            moved += victim.moved_blocks;
            match result {
                Ok(_) if victim.left_blocks == 0 => return Ok(moved),
                Ok(_) => {
                    let what = format!(
                        "{} blocks of pinned files would have to move; remove the files or their pin first",
                        victim.left_blocks
                    );
                    return Err(Error::Invalid(what.into()));
                }
                Err(error @ Error::NoSpace { .. }) => self.make_space(tries, error)?,
                Err(error) => return Err(error),
            }
        }
        Err(Error::no_space(self.geometry().block_size, 1, self.free_user_blocks()))
    }

    /// Makes space for blocks that must move, after the attempt number `tries` has failed with `error`.
    fn make_space(&mut self, tries: u32, error: Error) -> Result<()> {
        if tries == 0 {
            return self.write_checkpoint(Reason::Sync);
        }
        match self.clean(CLEANED_SECTIONS, Policy::Greedy)?.sections {
            0 => Err(error),
            _ => Ok(()),
        }
    }

    /// Cleans until `wanted` sections are free, as far as cleaning gets.
    fn compact(&mut self, wanted: u32) -> Result<()> {
        loop {
            let free = self.segments_mut().section_counts()?.free;
            let missing = wanted.saturating_sub(free);
            if missing == 0 {
                return Ok(());
            }
            let cleaned = self.clean(missing.min(CLEANED_SECTIONS), Policy::Greedy)?;
            if cleaned.sections == 0 || self.segments_mut().section_counts()?.free <= free {
                return Ok(());
            }
        }
    }
}
