//! Cleaning: moves the valid blocks of a section elsewhere, so that the section becomes free.
//!
//! *Invariants*: a moved block is copied, never changed. Its old place stays intact until a checkpoint is
//! committed, like that of every block. Moved blocks go to the logs, but never into the section that is being
//! cleaned.

use std::cmp::Reverse;

use rustc_hash::FxHashSet;

use super::{Candidate, Engine, Mode, Policy, benefit, by_age, checkpoint::Reason};
use crate::{
    Error, Result,
    format::{BLOCKS_PER_SEGMENT, bits, summary::Summary},
    segments::{CleaningUnit, SectionCounts, SectionFacts, Segment},
    units::{CheckpointVer, SecNo, SegNo},
};

use super::{
    cleaning_reads::ReadAhead,
    foreground::Rounds,
    pending::{PendingSync, Then, Work},
    write_dirty::{AfterDirtyWrite, SLICE_BLOCKS, Scope},
};

/// Result of cleaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cleaned {
    /// Number of sections that were emptied.
    pub sections: u32,
    /// Number of blocks that were moved.
    pub moved_blocks: u64,
}

/// Maximum number of sections that an operation cleans before it goes on.
pub(super) const FOREGROUND_SECTIONS: u32 = 8;
/// Number of moved blocks at which an operation stops cleaning and goes on; it empties one section in any
/// case.
const FOREGROUND_BLOCKS: u64 = FOREGROUND_SECTIONS as u64 * BLOCKS_PER_SEGMENT as u64;
/// Maximum number of victims tried for each section to be emptied, if the caller waits for another operation
/// or will try again.
pub(super) const TRIES: usize = 4;
/// Number of released blocks that make a checkpoint worthwhile during SSR, because it turns them into holes.
const FREED_BLOCKS: u64 = 2 * BLOCKS_PER_SEGMENT as u64;

/// Returns true if a checkpoint should be written to make released blocks usable.
pub(super) fn checkpoint_for_space(sections: SectionCounts, freed_blocks: u64) -> bool {
    (sections.free <= sections.least_free && freed_blocks > 0)
        || (sections.free <= sections.least_to_append() && freed_blocks >= FREED_BLOCKS)
}

/// Minimum time since the last change of a section, in seconds of mounted time (Linux,
/// `DEF_GC_THREAD_AGE_THRESHOLD`).
const AGE_SECONDS: u64 = 7 * 24 * 3600;

/// Sections that are considered as victims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victims {
    /// Sections without a failed attempt, or changed since their last one.
    New,
    /// Also sections without a failed attempt since the newest checkpoint: an unreadable block may be
    /// readable again.
    Older,
    /// All sections.
    All,
}

/// A failed attempt to empty a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Uncleanable {
    /// Number of valid blocks after the attempt.
    valid_blocks: u32,
    /// Newest checkpoint at the time of the attempt.
    version: CheckpointVer,
}

/// Purpose of cleaning, which determines the step after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A caller asked for empty sections: a failure is an error.
    Clean,
    /// An operation needs space: a block that cannot be moved is no error.
    Space,
    /// As `Space`, but before the logs have to fill holes, and only zones with few valid blocks.
    Append,
    /// As `Space`, for logs that only append: a round of several, each of which a checkpoint ends.
    Reserve(Rounds),
}

/// Step of the search for free sections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpaceStep {
    /// A checkpoint may free sections.
    Free,
    /// Sections may have to be cleaned.
    Clean,
    /// Another round of cleaning may be necessary.
    Again(Rounds),
    /// Nothing is left to do.
    End,
}

/// Cleaning in progress. It can pause between any two blocks to give readers a turn.
pub(super) struct Cleaning {
    pub(super) purpose: Purpose,
    policy: Policy,
    victims: Victims,
    /// Sections that are considered next if no block of `victims` was moved.
    others: Option<Victims>,
    /// Maximum number of sections to empty, and of victims to try.
    sections: u32,
    tries: usize,
    /// Number of moved blocks at which cleaning stops, once a section was emptied.
    blocks: u64,
    /// The other sections of the zone that is being cleaned, with [`Purpose::Append`].
    pub(super) zone: Vec<SecNo>,
    pub(super) tried: FxHashSet<SecNo>,
    victim: Option<Victim>,
    cleaned: Cleaned,
    failed: Option<Error>,
}

/// The section that is being cleaned.
pub(super) struct Victim {
    section: SecNo,
    /// The current segment, its state and summary when its cleaning began, and the next block to examine.
    number: SegNo,
    segment: Option<(Segment, Summary)>,
    offset: u16,
    ahead: ReadAhead,
    pub(super) moved_blocks: u64,
    /// Number of blocks that had to stay.
    pub(super) left_blocks: u64,
}

impl Victim {
    pub(super) fn new(section: SecNo, first: SegNo) -> Victim {
        Victim {
            section,
            number: first,
            segment: None,
            offset: 0,
            ahead: ReadAhead::default(),
            moved_blocks: 0,
            left_blocks: 0,
        }
    }
}

impl Cleaning {
    pub(super) fn new(purpose: Purpose, sections: u32, policy: Policy, tries: usize) -> Cleaning {
        Cleaning {
            purpose,
            policy,
            victims: Victims::New,
            others: None,
            sections,
            tries,
            blocks: u64::MAX,
            zone: Vec::new(),
            tried: FxHashSet::default(),
            victim: None,
            cleaned: Cleaned::default(),
            failed: None,
        }
    }

    /// Returns true if an operation needs the space.
    pub(super) fn is_for_space(&self) -> bool {
        self.purpose != Purpose::Clean
    }

    fn is_enough(&self) -> bool {
        let Cleaned { sections, moved_blocks } = self.cleaned;
        (sections >= self.sections && self.zone.is_empty())
            || self.tried.len() >= self.tries
            || sections > 0 && moved_blocks >= self.blocks
    }
}

impl Engine {
    /// Cleans up to `sections` sections, and writes a checkpoint that frees them.
    ///
    /// # Errors
    /// Those of [every change](Engine#errors).
    pub fn clean(&mut self, sections: u32, policy: Policy) -> Result<Cleaned> {
        let others = Some(Victims::All);
        let cleaning = Cleaning { others, ..Cleaning::new(Purpose::Clean, sections, policy, usize::MAX) };
        self.clean_all(cleaning)
    }

    /// Cleans one section without blocking other callers for long. It stops after a few sections that cannot
    /// be emptied, each of which may take seconds; the next call continues with others.
    ///
    /// # Errors
    /// Those of [every change](Engine#errors).
    pub fn clean_a_little(&mut self, policy: Policy) -> Result<Cleaned> {
        self.clean_all(Self::a_little(policy))
    }

    /// Begins to [clean one section](Self::clean_a_little); readers get a turn after every few blocks.
    ///
    /// # Errors
    /// Those of [every change](Engine#errors).
    pub fn begin_clean_a_little(&mut self, policy: Policy) -> Result<Option<PendingSync>> {
        self.start()?;
        self.write_dirty_then(Scope::Everything, AfterDirtyWrite::Clean(Box::new(Self::a_little(policy))))
    }

    fn a_little(policy: Policy) -> Cleaning {
        let others = Some(Victims::Older);
        Cleaning { others, ..Cleaning::new(Purpose::Clean, 1, policy, TRIES) }
    }

    fn clean_all(&mut self, mut cleaning: Cleaning) -> Result<Cleaned> {
        self.start()?;
        let pending = self.write_dirty_then(Scope::Everything, AfterDirtyWrite::End)?;
        self.complete(pending)?;
        while self.clean_slice(&mut cleaning, u32::MAX)? {}
        if cleaning.cleaned.sections > 0 {
            self.write_checkpoint(Reason::Sync)?;
        }
        Ok(cleaning.cleaned)
    }

    /// Continues cleaning, and then the operation that needs it.
    pub(super) fn go_on_cleaning(&mut self, mut cleaning: Box<Cleaning>) -> Result<Option<PendingSync>> {
        let is_for_space = cleaning.is_for_space();
        match self.clean_slice(&mut cleaning, SLICE_BLOCKS) {
            Ok(true) => return Ok(Some(self.pending(Work::Yield, Then::Clean(cleaning)))),
            Ok(false) => {}
            // An operation that only needs space ignores blocks that cannot be moved.
            Err(error) if is_for_space && self.disk().stays_in_place(&error) => cleaning.cleaned.sections = 0,
            Err(Error::NoSpace { .. }) if is_for_space => return Ok(None),
            Err(error) => return Err(error),
        }
        if let Purpose::Reserve(rounds) = cleaning.purpose {
            return match cleaning.cleaned.moved_blocks {
                0 => self.free_space_from(SpaceStep::End),
                _ => self.checkpoint_for(SpaceStep::Again(rounds)),
            };
        }
        match (cleaning.cleaned.sections, is_for_space) {
            (0, true) => self.free_space_from(SpaceStep::End),
            (0, false) => Ok(None),
            (_, true) => self.checkpoint_for(SpaceStep::End),
            (_, false) => self.checkpoint_then(Reason::Sync, Then::End),
        }
    }

    /// Returns true if cleaning in idle times is worthwhile: more than half of the free space is in segments
    /// that are in use.
    pub fn is_fragmented(&self) -> bool {
        let all = u64::from(self.geometry().segments) * u64::from(BLOCKS_PER_SEGMENT);
        let free = all.saturating_sub(self.counters().valid_blocks);
        let whole = u64::from(self.disk().checkpoint().free_segments) * u64::from(BLOCKS_PER_SEGMENT);
        whole < free / 2
    }

    /// Ensures that the logs find segments, after one of them has opened another. A checkpoint frees the
    /// blocks that only the last one needs; if that is not enough, sections are cleaned. A lack of space is
    /// not an error here, because the operation that follows may free some, as a removal does.
    pub(super) fn free_space(&mut self) -> Result<()> {
        let pending = self.free_space_from(SpaceStep::Free)?;
        self.complete(pending)
    }

    /// Continues [`free_space`](Self::free_space) from a step on.
    pub(super) fn free_space_from(&mut self, step: SpaceStep) -> Result<Option<PendingSync>> {
        if step == SpaceStep::Free
            && (!self.segments_mut().take_opened_segment() || self.options().checkpoint_when_asked)
        {
            return Ok(None);
        }
        match self.free_and_clean(step) {
            Err(Error::NoSpace { .. }) => Ok(None),
            result => result,
        }
    }

    fn free_and_clean(&mut self, step: SpaceStep) -> Result<Option<PendingSync>> {
        if step != SpaceStep::End {
            let sections = self.segments_mut().section_counts()?;
            if self.options().mode == Mode::Lfs {
                return self.free_to_append(step, sections);
            }
            let freed_blocks = self.segments().turnover().freed_blocks;
            if step == SpaceStep::Free && checkpoint_for_space(sections, freed_blocks) {
                return self.checkpoint_for(SpaceStep::Clean);
            }
            let missing = (sections.least_free + 1).saturating_sub(sections.free).min(FOREGROUND_SECTIONS);
            if missing > 0 {
                let cleaning =
                    Cleaning::new(Purpose::Space, missing, Policy::Greedy, TRIES * missing as usize);
                let cleaning = Box::new(Cleaning { blocks: FOREGROUND_BLOCKS, ..cleaning });
                return self.write_dirty_then(Scope::Everything, AfterDirtyWrite::Clean(cleaning));
            }
            if let Some(cleaning) = self.cleaning_to_append(sections)? {
                return self.write_dirty_then(Scope::Everything, AfterDirtyWrite::Clean(cleaning));
            }
        }
        self.end_free_space()
    }

    /// Ends the search for free sections. Segments that cleaning opened are no reason to look again.
    pub(super) fn end_free_space(&mut self) -> Result<Option<PendingSync>> {
        self.segments_mut().take_opened_segment();
        Ok(None)
    }

    /// Begins a checkpoint that frees the blocks that only the last one needs.
    pub(super) fn checkpoint_for(&mut self, then: SpaceStep) -> Result<Option<PendingSync>> {
        match self.checkpoint_then(Reason::Sync, Then::FreeSpace(then)) {
            Err(Error::NoSpace { .. }) => Ok(None),
            pending => pending,
        }
    }

    /// Cleans until about `budget_blocks` blocks were moved. Returns true if there is more to do. A section
    /// with a block that cannot be read stays; this is an error only if no other section was emptied.
    fn clean_slice(&mut self, cleaning: &mut Cleaning, budget_blocks: u32) -> Result<bool> {
        let mut budget_blocks = budget_blocks;
        loop {
            let Some(mut victim) = cleaning.victim.take() else {
                let ends = cleaning.is_enough()
                    || self.options().mode == Mode::Lfs
                        && self.ends_round(cleaning.purpose, cleaning.cleaned.sections)?;
                let victim = match (ends, cleaning.purpose) {
                    (true, _) => None,
                    (false, Purpose::Append) => self.next_in_cheap_zone(cleaning)?,
                    (false, _) => self.find_victim(cleaning.policy, cleaning.victims, &cleaning.tried)?,
                };
                let Some(section) = victim else {
                    if let Some(failed) = cleaning.failed.take().filter(|_| cleaning.cleaned.sections == 0) {
                        return Err(failed);
                    }
                    let Some(others) =
                        cleaning.others.take().filter(|_| cleaning.cleaned == Cleaned::default())
                    else {
                        return Ok(false);
                    };
                    (cleaning.victims, cleaning.tries) = (others, TRIES * cleaning.sections as usize);
                    cleaning.tried.clear();
                    continue;
                };
                cleaning.tried.insert(section);
                cleaning.victim =
                    Some(Victim::new(section, SegNo(section.0 * self.geometry().segments_per_section)));
                continue;
            };
            self.segments_mut().set_cleaning(Some(victim.section));
            let result = self.clean_section(&mut victim, &mut budget_blocks);
            self.segments_mut().set_cleaning(None);
            match result {
                Ok(false) => {
                    cleaning.victim = Some(victim);
                    return Ok(true);
                }
                Ok(true) => {
                    cleaning.cleaned.moved_blocks += victim.moved_blocks;
                    if victim.left_blocks == 0 {
                        cleaning.cleaned.sections += 1;
                        continue;
                    }
                }
                // There is no space to move blocks to. The old places of moved blocks become free with the
                // next checkpoint.
                Err(Error::NoSpace { .. }) => {
                    cleaning.cleaned.moved_blocks += victim.moved_blocks;
                    cleaning.sections = cleaning.cleaned.sections;
                    cleaning.others = None;
                    continue;
                }
                Err(error) => {
                    let error = self.io().record_corruption::<()>(Err(error)).unwrap_err();
                    if !self.disk().stays_in_place(&error) {
                        return Err(error);
                    }
                    cleaning.failed = cleaning.failed.take().or(Some(error));
                }
            }
            let valid_blocks = self.segments_mut().valid_blocks(victim.section)?;
            let uncleanable = Uncleanable { valid_blocks, version: self.disk().checkpoint().version };
            self.uncleanable.insert(victim.section, uncleanable);
        }
    }

    /// Returns the section that is most worth cleaning and was not tried yet.
    fn find_victim(
        &mut self,
        policy: Policy,
        victims: Victims,
        tried: &FxHashSet<SecNo>,
    ) -> Result<Option<SecNo>> {
        let (geometry, version) = (*self.geometry(), self.disk().checkpoint().version);
        let is_left_out = |section: SecNo, valid_blocks: u32| {
            let uncleanable =
                self.uncleanable.get(&section).filter(|uncleanable| uncleanable.valid_blocks == valid_blocks);
            uncleanable.is_some_and(|uncleanable| match victims {
                Victims::New => true,
                Victims::Older => uncleanable.version == version,
                Victims::All => false,
            })
        };
        let current: Vec<SecNo> =
            self.segments().log_segments().iter().map(|segment| geometry.section_of(*segment)).collect();
        let per_section = geometry.segments_per_section;
        let (now, blocks) = (self.disk().mounted_seconds(), per_section * BLOCKS_PER_SEGMENT);
        let can_be_cleaned = |section: SecNo, valid_blocks: u32| {
            (1..blocks).contains(&valid_blocks)
                && !current.contains(&section)
                && !tried.contains(&section)
                && !is_left_out(section, valid_blocks)
        };
        let segments = self.names.files_mut().nodes_mut().segments_mut();
        if policy != Policy::AgeThreshold {
            // Of equal sections the first one.
            let rank = |it: SectionFacts| {
                (benefit(policy, it.valid_blocks, blocks, it.mtime, now), Reverse(it.section))
            };
            let usable = |it: &SectionFacts| can_be_cleaned(it.section, it.valid_blocks);
            return segments
                .best_section(CleaningUnit::Section, rank, |it| Some(it).filter(usable).map(rank));
        }
        let mut candidates = Vec::new();
        // The segments of a section come one after the other.
        let (mut valid, mut newest) = (0, 0);
        segments.for_each(|number, segment: &Segment| {
            if number.0 % per_section == 0 {
                (valid, newest) = (0, 0);
            }
            valid += u32::from(segment.valid_blocks);
            newest = newest.max(segment.mtime);
            let section = geometry.section_of(number);
            if number.0 % per_section == per_section - 1 && can_be_cleaned(section, valid) {
                candidates.push(Candidate { section, valid_blocks: valid, mtime: newest });
            }
        })?;
        // On a volume that is younger than the threshold, no section could be old enough.
        let age_seconds = if now < AGE_SECONDS { 0 } else { AGE_SECONDS };
        Ok(by_age(&candidates, blocks, age_seconds))
    }

    /// Moves the valid blocks of a section until the budget is used up. Returns true if the whole section was
    /// examined.
    pub(super) fn clean_section(&mut self, victim: &mut Victim, budget_blocks: &mut u32) -> Result<bool> {
        let end = (victim.section.0 + 1) * self.geometry().segments_per_section;
        while victim.number.0 < end {
            let number = victim.number;
            let (segment, summary) = match victim.segment.take() {
                Some(known) => known,
                None => match self.segments_mut().segment_to_clean(number)? {
                    Some(found) => found,
                    None => {
                        (victim.number, victim.offset) = (SegNo(number.0 + 1), 0);
                        continue;
                    }
                },
            };
            while u32::from(victim.offset) < BLOCKS_PER_SEGMENT {
                let offset = victim.offset;
                if !bits::msb(&segment.map, usize::from(offset)) {
                    victim.offset += 1;
                    continue;
                }
                if *budget_blocks == 0 {
                    victim.segment = Some((segment, summary));
                    return Ok(false);
                }
                *budget_blocks -= 1;
                let owner = summary.owners[usize::from(offset)];
                let addr = self.geometry().block(number, offset);
                let done = match segment.kind.is_node() {
                    true => self.nodes_mut().move_node(number, addr, owner).map(|()| true)?,
                    false => {
                        let stored = self.read_to_move(&mut victim.ahead, &segment, addr, offset);
                        self.files_mut().move_data(number, addr, owner, stored)?
                    }
                };
                victim.offset += 1;
                victim.moved_blocks += u64::from(done);
                victim.left_blocks += u64::from(!done);
            }
            (victim.number, victim.offset) = (SegNo(number.0 + 1), 0);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, sync::Arc};

    use block::{MemoryDevice, Rng};

    use super::*;
    use crate::{
        engine::{Caller, NewNode, Options},
        mkfs::{self, DeviceContent, DeviceSize, NewVolume, Plan},
        units::Time,
    };

    /// A volume with many sections that are partly valid.
    fn fragmented(segments_per_section: u32) -> Engine {
        const BYTES: u64 = 1 << 30;
        let size = DeviceSize { path: String::new(), bytes: BYTES };
        let options = mkfs::Options { segments_per_section, ..mkfs::Options::new([7; 16]) };
        let plan = Plan::new(&options, &[size]).unwrap();
        let device = Arc::new(MemoryDevice::new(BYTES));
        let new =
            NewVolume::begin(device, &plan, DeviceContent::Zeroes, Options::new(Time::default)).unwrap();
        let mut volume = new.finish().unwrap();
        let root = volume.superblock().root_ino;
        let ino = volume.begin(Caller::ADMIN).create(root, b"file", &NewNode::new(0o100_644)).unwrap();
        for piece in 0..400 {
            volume.begin(Caller::ADMIN).write(ino, piece << 20, &vec![1; 1 << 20]).unwrap();
        }
        let mut rng = Rng::new(3);
        for _ in 0..20_000 {
            volume.begin(Caller::ADMIN).write(ino, rng.below(400 << 8) << 12, &[2; 4096]).unwrap();
        }
        volume
    }

    #[test]
    fn the_best_section_is_that_of_a_full_search_and_few_sections_are_examined() {
        for per_section in [1, 3] {
            let mut volume = fragmented(per_section);
            let (sections, blocks) = (volume.geometry().segments / per_section, per_section * 512);
            for policy in [Policy::Greedy, Policy::CostBenefit] {
                let segments = volume.segments_mut();
                let examined = Cell::new(0);
                let rank = |it: SectionFacts| {
                    (benefit(policy, it.valid_blocks, blocks, it.mtime, 9), Reverse(it.section))
                };
                let usable = |it: SectionFacts| {
                    examined.set(examined.get() + 1);
                    (1..blocks).contains(&it.valid_blocks).then(|| rank(it))
                };
                let mut all =
                    vec![
                        SectionFacts { section: SecNo(0), valid_blocks: 0, used_segments: 0, mtime: 0 };
                        sections as usize
                    ];
                let add = |number: SegNo, segment: &Segment| {
                    let Some(one) = all.get_mut((number.0 / per_section) as usize) else { return };
                    one.section = SecNo(number.0 / per_section);
                    one.valid_blocks += u32::from(segment.valid_blocks);
                    one.mtime = one.mtime.max(segment.mtime);
                };
                segments.for_each(add).unwrap();
                let best = all.into_iter().filter_map(usable).max().map(|(_, section)| section.0);
                examined.set(0);
                assert_eq!(
                    segments.best_section(CleaningUnit::Section, rank, usable).unwrap(),
                    best,
                    "{per_section} {policy:?}"
                );
                assert!(best.is_some());
                assert!(examined.get() < sections / 2, "{policy:?}: {} of {sections}", examined.get());
            }
        }
    }

    #[test]
    fn a_checkpoint_must_be_worth_its_blocks() {
        let sections =
            |free| SectionCounts { free, least_free: 8, reserved: 20, prefree_segments: 0, waiting: 0 };
        assert!(checkpoint_for_space(sections(8), 1) && !checkpoint_for_space(sections(8), 0));
        assert!(!checkpoint_for_space(sections(15), 1000) && checkpoint_for_space(sections(15), 1024));
        assert!(checkpoint_for_space(sections(24), 1024), "before the logs fill holes");
        assert!(!checkpoint_for_space(sections(25), 1 << 20));
    }
}
