//! The decision which section to clean: pure functions of its valid blocks and its age.

use std::cmp::Reverse;

use crate::units::SecNo;

/// Policy for choosing the section to clean (the victim).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// Fewest valid blocks: fastest, for when space is needed at once.
    #[default]
    Greedy,
    /// Few valid blocks that have not changed for long: best in the long run, for idle times.
    CostBenefit,
    /// Like `CostBenefit`, but among the oldest sections only, and none that has changed within a week:
    /// sections that still change are left to empty themselves.
    AgeThreshold,
}

/// Share of the sufficiently old sections that is considered, oldest first, and the minimum number of them
/// (Linux, `DEF_GC_THREAD_CANDIDATE_RATIO`, `DEF_GC_THREAD_MAX_CANDIDATE_COUNT`).
const OLDEST_PERCENT: usize = 20;
const OLDEST_MIN: usize = 10;
/// Weight of the age in percent; the rest is the weight of the space gained (Linux,
/// `DEF_GC_THREAD_AGE_WEIGHT`).
const AGE_WEIGHT: u64 = 60;

/// A section that could be cleaned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The section.
    pub section: SecNo,
    /// Number of its valid blocks, which would have to be moved.
    pub valid_blocks: u32,
    /// Time of its last change, in seconds of mounted time.
    pub mtime: u64,
}

/// Returns the section to clean by age. Of the sections that last changed at least `age_seconds` before the
/// most recently changed one, the oldest are weighed by age and by the space gained. `blocks` is the number
/// of blocks in a section. (Linux, `atgc_lookup_victim`.)
#[must_use]
pub fn by_age(candidates: &[Candidate], blocks: u32, age_seconds: u64) -> Option<SecNo> {
    /// Fixed-point scale of shares.
    const WHOLE: u64 = 10_000;
    let newest = candidates.iter().map(|one| one.mtime).max()?;
    let oldest = candidates.iter().map(|one| one.mtime).min()?;
    let is_old = |one: &&Candidate| newest - one.mtime >= age_seconds;
    let mut old: Vec<&Candidate> = candidates.iter().filter(is_old).collect();
    old.sort_by_key(|one| (one.mtime, one.section));
    old.truncate(OLDEST_MIN.max(old.len() * OLDEST_PERCENT / 100));
    let worth = |one: &&Candidate| {
        let share = |of: u64| (u128::from(of) + 1) * u128::from(WHOLE) / (u128::from(newest - oldest) + 1);
        let age = share(newest - one.mtime) as u64;
        let free = u64::from(blocks.saturating_sub(one.valid_blocks)) * WHOLE / u64::from(blocks);
        (age * AGE_WEIGHT + free * (100 - AGE_WEIGHT), age, Reverse(one.section))
    };
    old.into_iter().max_by_key(worth).map(|one| one.section)
}

/// Returns the benefit of cleaning a section; more is better. `valid_blocks` of its `blocks` would have to be
/// moved. It last changed at `mtime`, and it is `now`, both in seconds of mounted time. (Rosenblum and
/// Ousterhout's formula: free space gained times age, divided by the cost of reading the section and writing
/// its valid blocks.)
#[must_use]
pub fn benefit(policy: Policy, valid_blocks: u32, blocks: u32, mtime: u64, now: u64) -> u64 {
    let free = u64::from(blocks - valid_blocks.min(blocks));
    match policy {
        Policy::Greedy => free,
        // `AgeThreshold` compares sections with one another, see [`by_age`]; this is the benefit of a single
        // one.
        Policy::CostBenefit | Policy::AgeThreshold => {
            let age = now.saturating_sub(mtime).min(1 << 32) + 1;
            // Scaled, so that quotients below one still differ.
            (free << 8).saturating_mul(age) / (u64::from(blocks) + u64::from(valid_blocks))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_policy_weighs_only_the_oldest_sections() {
        let of = |section, valid_blocks, mtime| Candidate { section: SecNo(section), valid_blocks, mtime };
        let choose = |candidates: &[Candidate]| by_age(candidates, 512, 100);
        assert_eq!(choose(&[]), None);
        assert_eq!(choose(&[of(1, 10, 950), of(2, 300, 1000)]), None, "both are young");
        assert_eq!(choose(&[of(1, 1, 950), of(2, 500, 900), of(3, 9, 1000)]), Some(SecNo(2)));
        // Among old sections, age and space both count.
        assert_eq!(choose(&[of(1, 500, 100), of(2, 10, 150), of(3, 1, 1000)]), Some(SecNo(2)));
        assert_eq!(choose(&[of(1, 300, 100), of(2, 290, 700), of(3, 1, 1000)]), Some(SecNo(1)));
        // Sections outside the oldest fifth are not considered, however empty they are.
        let mut many: Vec<Candidate> = (0..100).map(|n| of(n, 400, u64::from(n))).collect();
        many[50].valid_blocks = 1;
        assert!(by_age(&many, 512, 0).is_some_and(|section| section < SecNo(20)));
        // Extreme times do no harm.
        assert_eq!(by_age(&[of(1, 600, 0), of(2, 1, u64::MAX)], 512, 1), Some(SecNo(1)));
        assert_eq!(by_age(&[of(1, 600, u64::MAX)], 512, 0), Some(SecNo(1)));
    }

    #[test]
    fn greedy_weighs_space_and_cost_benefit_also_age() {
        let greedy = |valid| benefit(Policy::Greedy, valid, 512, 0, 100);
        assert!(greedy(10) > greedy(11) && greedy(512) == 0);
        let weighed = |valid, mtime| benefit(Policy::CostBenefit, valid, 512, mtime, 100_000);
        assert!(weighed(10, 500) > weighed(11, 500));
        assert!(weighed(300, 0) > weighed(100, 99_990), "old and half full beats young and nearly empty");
        assert_eq!(weighed(512, 0), 0);
        assert!(benefit(Policy::CostBenefit, 1, 512, 900, 100) > 0, "a clock that went back does no harm");
    }
}
