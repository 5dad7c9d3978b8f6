//! Nodes of an earlier volume in the place of the present one: mkfs overwrites few of them.
//!
//! The version in a node's footer is that of the checkpoint before it, with the checkpoint's checksum in its upper half. So
//! the nodes of a volume form intervals between checkpoints. mkfs.f2fs begins with a random version, so the intervals of two
//! volumes lie far apart. Where both began with the same version, one version has two checksums. Only then there are two
//! volumes; the time at which mkfs made the root, or the newest checkpoint, tells which intervals are the present one's.

use std::ops::RangeInclusive;

use f2fs::units::Time;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::versions::{Version, Versions};

/// Smallest distance between the versions of two volumes. A volume has fewer checkpoints: one a minute for 30 years.
const GAP: u32 = 1 << 24;
/// Fewest nodes of a group of versions: a damaged footer has any version.
const GROUP_NODES_MIN: u32 = 3;
/// Fewest nodes of an interval that counts beside another one of the same version.
const INTERVAL_NODES_MIN: u32 = 2;
/// Most intervals that are kept.
const INTERVALS_MAX: usize = 1 << 18;
/// Largest version in the footers of nodes that mkfs wrote.
const MADE_MAX: u64 = 1;

/// Result of the search for an earlier volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Earlier {
    /// There is none, or its nodes are known.
    #[default]
    Told,
    /// There is one, and nothing proves which nodes are its.
    Untold,
}

/// Nodes between two checkpoints.
#[derive(Debug, Clone, Copy, Default)]
struct Interval {
    nodes: u32,
    /// Newest change of an inode.
    newest: Option<Time>,
}

/// The intervals between checkpoints, by the version in the footers of their nodes.
#[derive(Debug, Default)]
pub(crate) struct Intervals {
    all: FxHashMap<u64, Interval>,
    /// Time at which the newest root was made that mkfs wrote.
    made: Option<Time>,
    is_full: bool,
}

/// Versions between those of two volumes.
struct Group {
    versions: RangeInclusive<u32>,
    nodes: u32,
    newest: Option<Time>,
}

/// The nodes of earlier volumes.
#[derive(Default)]
struct Found {
    /// Groups of versions.
    groups: Vec<RangeInclusive<u32>>,
    /// Intervals.
    intervals: FxHashSet<u64>,
    /// Their versions.
    versions: FxHashSet<u32>,
    /// Inodes that were changed later are not among them.
    until: Option<Time>,
    /// Newest change of all. Inodes of an mkfs that were changed later are of the present volume's mkfs.
    newest: Option<Time>,
}

impl Intervals {
    /// Adds a node: the version in its footer, and the time of its last change if it is an inode.
    pub(crate) fn add(&mut self, cp_ver: u64, changed: Option<Time>) {
        if self.all.len() >= INTERVALS_MAX && !self.all.contains_key(&cp_ver) {
            self.is_full = true;
            return;
        }
        let interval = self.all.entry(cp_ver).or_default();
        interval.nodes = interval.nodes.saturating_add(1);
        interval.newest = interval.newest.max(changed);
    }

    /// Adds the root directory in one of its versions.
    pub(crate) fn add_root(&mut self, cp_ver: u64, changed: Time) {
        if cp_ver <= MADE_MAX {
            self.made = self.made.max(Some(changed));
        }
    }

    /// Marks the versions of earlier volumes. `newest` is the version of the newest checkpoint, if it is known.
    pub(crate) fn judge(&self, versions: &mut Versions, newest: Option<u32>) -> Earlier {
        if self.is_full {
            return Earlier::Told;
        }
        let mut found = Found { until: self.made, ..Found::default() };
        let (present, apart) = self.split_by_gaps(newest, &mut found);
        let collided = self.split_by_checksums(&present, &mut found);
        for index in 0..versions.len() as u32 {
            let version = versions.get_mut(index);
            if found.has(version) {
                version.add_unmarked();
            }
        }
        if (apart, collided) == (Earlier::Told, Earlier::Told) { Earlier::Told } else { Earlier::Untold }
    }

    /// Groups of versions with gaps between them.
    fn groups(&self) -> Vec<Group> {
        let mut all: Vec<(u32, Interval)> = self.written().map(|(cp, of)| (low(cp), of)).collect();
        all.sort_unstable_by_key(|(version, _)| *version);
        let mut groups: Vec<Group> = Vec::new();
        for (version, Interval { nodes, newest }) in all {
            match groups.last_mut() {
                Some(last) if version - last.versions.end() < GAP => {
                    last.versions = *last.versions.start()..=version;
                    last.nodes = last.nodes.saturating_add(nodes);
                    last.newest = last.newest.max(newest);
                }
                _ => groups.push(Group { versions: version..=version, nodes, newest }),
            }
        }
        groups.retain(|group| group.nodes >= GROUP_NODES_MIN);
        groups
    }

    /// Finds volumes with versions far apart. Returns the versions of the present one.
    fn split_by_gaps(&self, newest: Option<u32>, found: &mut Found) -> (RangeInclusive<u32>, Earlier) {
        let groups = self.groups();
        if groups.len() < 2 {
            return (0..=u32::MAX, Earlier::Told);
        }
        let holds = |group: &&Group| {
            newest.is_some_and(|newest| {
                let distance = |end: &u32| end.abs_diff(newest);
                group.versions.contains(&newest)
                    || distance(group.versions.start()).min(distance(group.versions.end())) < GAP
            })
        };
        let by_time = || groups.iter().max_by_key(|group| group.newest);
        let Some(present) = groups.iter().find(holds).or_else(by_time) else {
            return (0..=u32::MAX, Earlier::Told);
        };
        let is_other = |group: &&Group| group.versions != present.versions;
        let agrees = |made: Time| {
            present.newest >= Some(made)
                && groups.iter().filter(is_other).all(|group| group.newest < Some(made))
        };
        let told = match self.made {
            _ if holds(&present) => Earlier::Told,
            Some(made) if agrees(made) => Earlier::Told,
            // The times contradict each other: a clock was wrong.
            Some(_) => return (0..=u32::MAX, Earlier::Untold),
            None => Earlier::Untold,
        };
        found.groups = groups.iter().filter(is_other).map(|group| group.versions.clone()).collect();
        found.newest = groups.iter().filter(is_other).filter_map(|group| group.newest).max();
        (present.versions.clone(), told)
    }

    /// Finds volumes whose versions overlap: some version has two checksums.
    fn split_by_checksums(&self, present: &RangeInclusive<u32>, found: &mut Found) -> Earlier {
        let in_present = |(cp, _): &(u64, Interval)| present.contains(&low(*cp)) && *cp >> 32 != 0;
        let all: Vec<(u64, Interval)> = self.written().filter(in_present).collect();
        if !collide(all.iter().copied()) {
            // The present volume may have overwritten the intervals of its own versions, or the clock was wrong.
            let is_before = |interval: &Interval| {
                interval.nodes >= INTERVAL_NODES_MIN
                    && interval.newest.is_some()
                    && interval.newest < self.made
            };
            let has_earlier = all.iter().any(|(_, interval)| is_before(interval));
            return if has_earlier { Earlier::Untold } else { Earlier::Told };
        }
        let Some(made) = self.made else { return Earlier::Untold };
        let is_later = |(_, interval): &&(u64, Interval)| interval.newest >= Some(made);
        let last = all.iter().filter(is_later).map(|(cp, _)| low(*cp)).max();
        // Without a later interval the clock was wrong, or nothing was written after mkfs.
        let Some(last) = last.filter(|_| !collide(all.iter().filter(is_later).copied())) else {
            return Earlier::Untold;
        };
        let is_earlier = |(cp, interval): &&(u64, Interval)| match interval.newest {
            Some(newest) => newest < made,
            None => low(*cp) > last,
        };
        found.intervals = all.iter().filter(is_earlier).map(|(cp, _)| *cp).collect();
        let newest = all.iter().filter(is_earlier).filter_map(|(_, interval)| interval.newest).max();
        found.newest = found.newest.max(newest);
        found.versions = found.intervals.iter().map(|cp| low(*cp)).collect();
        let later: FxHashSet<u32> = all.iter().filter(is_later).map(|(cp, _)| low(*cp)).collect();
        let mut earlier: Vec<(u64, Interval)> = all.iter().filter(is_earlier).copied().collect();
        earlier.sort_unstable_by_key(|(cp, interval)| (low(*cp), interval.newest));
        // Of a version that the present volume lacks, it may have the interval itself, of a time when the clock was wrong.
        let is_out_of_order = |pair: &[(u64, Interval)]| {
            let [(first, before), (second, after)] = pair else { return false };
            let is_lacking =
                [first, second].iter().any(|cp| low(**cp) <= last && !later.contains(&low(**cp)));
            is_lacking && (low(*first) == low(*second) || before.newest > after.newest)
        };
        match earlier.windows(2).any(is_out_of_order) {
            true => Earlier::Untold,
            false => Earlier::Told,
        }
    }

    /// The intervals after the first checkpoint.
    fn written(&self) -> impl Iterator<Item = (u64, Interval)> + '_ {
        self.all.iter().filter(|(cp, _)| **cp > MADE_MAX).map(|(cp, interval)| (*cp, *interval))
    }
}

impl Found {
    /// Returns true for a version of an earlier volume.
    fn has(&self, version: &Version) -> bool {
        if self.groups.iter().any(|group| group.contains(&version.cp)) {
            return true;
        }
        match version.checksum() {
            Some(checksum) => self.intervals.contains(&(u64::from(checksum) << 32 | u64::from(version.cp))),
            // The table has no checksum of an inode, but its time.
            None => {
                let seconds = |time: Option<Time>| time.map_or(i64::MIN, |time| time.seconds);
                let is_of_mkfs = u64::from(version.cp) <= MADE_MAX;
                let is_before = i64::from(version.ctime) < seconds(self.until);
                self.versions.contains(&version.cp) && is_before
                    || is_of_mkfs && i64::from(version.ctime) <= seconds(self.newest)
            }
        }
    }
}

/// Returns true if two intervals have one version.
fn collide(intervals: impl Iterator<Item = (u64, Interval)>) -> bool {
    let mut seen = FxHashSet::default();
    let mut counted = intervals.filter(|(_, interval)| interval.nodes >= INTERVAL_NODES_MIN);
    !counted.all(|(cp, _)| seen.insert(low(cp)))
}

/// The lower half of a version in a footer.
fn low(cp_ver: u64) -> u32 {
    crate::evidence::low_half(cp_ver)
}

#[cfg(test)]
mod tests {
    use f2fs::{
        format::FileType,
        units::{BlockAddr, Ino},
    };

    use super::*;
    use crate::versions::InodeFacts;

    /// Writes inodes from `first` on, one in each second, three to a checkpoint. Each is (version in the footer, second).
    fn inodes(first: u64, start: i64, count: i64) -> Vec<(u64, i64)> {
        (0..count).map(|n| (first + n as u64 / 3, start + n)).collect()
    }

    /// Judges inodes with these versions, and a root of mkfs. Returns the indices of those of an earlier volume.
    fn judged(nodes: &[(u64, i64)], made: Option<i64>, newest: Option<u32>) -> (Vec<u32>, Earlier) {
        let (mut intervals, mut versions) = (Intervals::default(), Versions::default());
        let time = |seconds| Time { seconds, nanoseconds: 0 };
        for (n, (cp, second)) in (0u32..).zip(nodes) {
            intervals.add(*cp, Some(time(*second)));
            let (kind, ctime) = (FileType::Regular, *second as u32);
            let facts = InodeFacts { kind, ctime, generation: 0, pino: 3 };
            versions.push(Version::inode(Ino(10 + n), facts, BlockAddr(n), low(*cp)));
        }
        made.into_iter().for_each(|made| intervals.add_root(1, time(made)));
        let earlier = intervals.judge(&mut versions, newest);
        let marked = (0..versions.len() as u32).filter(|n| versions.get(*n).is_unmarked());
        (marked.collect(), earlier)
    }

    #[test]
    fn versions_far_apart_are_of_two_volumes() {
        let (old, new) = (inodes(900_000_000, 1000, 9), inodes(70_000_000, 2000, 6));
        let nodes = [old, new].concat();
        let old: Vec<u32> = (0..9).collect();
        assert_eq!(judged(&nodes, Some(1999), None), (old.clone(), Earlier::Told));
        assert_eq!(judged(&nodes, None, Some(70_000_002)), (old.clone(), Earlier::Told));
        assert_eq!(judged(&nodes, None, None), (old, Earlier::Untold), "the times alone");
        let (nothing, contradiction) = judged(&nodes, Some(3000), None);
        assert!(nothing.is_empty() && contradiction == Earlier::Untold, "mkfs had another clock");
    }

    #[test]
    fn damaged_footers_and_a_wrong_clock_are_no_volume() {
        let mut nodes = inodes(70_000_000, 2000, 30);
        nodes[4].0 ^= 1 << 30;
        nodes[9].0 ^= 1 << 50;
        nodes[14].0 ^= 1 << 27;
        nodes[20..].iter_mut().for_each(|(_, second)| *second -= 2000);
        for made in [None, Some(1999)] {
            assert_eq!(judged(&nodes, made, None), (Vec::new(), Earlier::Told));
        }
    }

    #[test]
    fn a_version_with_two_checksums_is_of_two_volumes() {
        let with_sums = |sum: u64, nodes: Vec<(u64, i64)>| {
            let nodes = nodes.into_iter().map(move |(cp, second)| (cp | (sum + cp) << 32, second));
            nodes.collect::<Vec<_>>()
        };
        let old = with_sums(100, inodes(2, 1000, 12));
        let new = with_sums(900, inodes(2, 2000, 9));
        let nodes = [old, new].concat();
        let old: Vec<u32> = (0..12).collect();
        assert_eq!(judged(&nodes, Some(1999), None), (old, Earlier::Told));
        assert_eq!(judged(&nodes, None, None), (Vec::new(), Earlier::Untold));
        assert_eq!(judged(&nodes, Some(3000), None), (Vec::new(), Earlier::Untold));
        let overwritten = &nodes[6..];
        assert_eq!(
            judged(&[&nodes[12..15], &overwritten[..6]].concat(), Some(1999), None),
            (Vec::new(), Earlier::Untold)
        );
        let mut reset = nodes.clone();
        reset[15..18].iter_mut().for_each(|(_, second)| *second = 0);
        assert_eq!(
            judged(&reset, Some(1999), None).1,
            Earlier::Untold,
            "version 3 was written by a wrong clock"
        );
    }
}
