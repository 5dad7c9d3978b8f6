//! Indices of the table of versions for nodes with many versions, which a search would have to read each time.

use rustc_hash::FxHashMap;

use crate::versions::Version;

/// Versions of a node that are searched one by one.
pub(crate) const LINEAR_MAX: usize = 64;

/// The versions of each node by owner and offset, best first, as indices.
#[derive(Debug)]
pub(crate) struct Places(Vec<u32>);

impl Places {
    pub(crate) fn new(all: &[Version]) -> Places {
        let indices = (0u32..).zip(all).filter(|(_, version)| !version.is_inode());
        let mut places: Vec<u32> = indices.map(|(index, _)| index).collect();
        // The table is sorted by nid and rank, so the order of indices is that of the ranks.
        places.sort_unstable_by_key(|index| (key(&all[*index as usize]), *index));
        Places(places)
    }

    /// The best version of a node of an inode, written before checkpoint `until`.
    pub(crate) fn find(&self, all: &[Version], wanted: (u32, u32, u32), until: u32) -> Option<Version> {
        let version = |index: &u32| &all[*index as usize];
        let start = self.0.partition_point(|index| key(version(index)) < wanted);
        let length = self.0[start..].partition_point(|index| key(version(index)) == wanted);
        let mut rest = &self.0[start..start + length];
        // Versions with equal doubts are in descending order of their checkpoints.
        while let Some(first) = rest.first() {
            let doubts = version(first).doubts();
            let (alike, others) = rest.split_at(rest.partition_point(|at| version(at).doubts() == doubts));
            let found = alike.partition_point(|index| version(index).cp > until);
            if let Some(found) = alike.get(found) {
                return Some(*version(found));
            }
            rest = others;
        }
        None
    }
}

/// Number, owner and offset of a node.
fn key(version: &Version) -> (u32, u32, u32) {
    (version.nid, version.ino, version.offset())
}

/// The generations of the numbers with many versions.
#[derive(Debug, Default)]
pub(crate) struct Generations(FxHashMap<u32, Vec<Span>>);

/// A version of an inode, in the order of the checkpoints.
#[derive(Debug)]
struct Span {
    cp: u32,
    generation: u32,
    /// Checkpoint of the first one behind it with another generation.
    other: u32,
}

impl Generations {
    /// Adds the versions of one number.
    pub(crate) fn add(&mut self, group: &[Version]) {
        let span =
            |version: &Version| Span { cp: version.cp, generation: version.generation(), other: u32::MAX };
        let mut spans: Vec<Span> = group.iter().map(span).collect();
        spans.sort_unstable_by_key(|span| (span.cp, span.generation));
        for at in (1..spans.len()).rev() {
            let next = &spans[at];
            let is_other = next.generation != spans[at - 1].generation;
            spans[at - 1].other = if is_other { next.cp } else { next.other };
        }
        self.0.insert(group[0].nid, spans);
    }

    /// The first checkpoint after that of a version with another generation of the number; `u32::MAX` without
    /// one.
    pub(crate) fn until(&self, version: &Version) -> Option<u32> {
        let spans = self.0.get(&version.nid)?;
        let next = spans.get(spans.partition_point(|span| span.cp <= version.cp));
        Some(match next {
            None => u32::MAX,
            Some(next) if next.generation != version.generation() => next.cp,
            Some(next) => next.other,
        })
    }
}

#[cfg(test)]
mod tests {
    use f2fs::{
        format::FileType,
        units::{BlockAddr, Ino, Nid},
    };

    use super::*;
    use crate::versions::{InodeFacts, Versions};

    #[test]
    fn many_versions_are_found_like_few() {
        let mut versions = Versions::default();
        let mut random = 1u32;
        let mut below = |end: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 16) % end
        };
        for addr in 0..2000 {
            let (ino, offset, cp) = (20 + below(4), 1 + below(4), below(500));
            versions.push(Version::node(Nid(10), Ino(ino), offset, BlockAddr(addr), cp));
            let facts = InodeFacts { kind: FileType::Regular, ctime: 0, generation: below(3), pino: 3 };
            versions.push(Version::inode(Ino(9), facts, BlockAddr(5000 + addr), cp));
        }
        versions.sort();
        let group = versions.group(Nid(10));
        let all: Vec<Version> = group.map(|index| *versions.get(index)).collect();
        for (ino, offset, until) in (0..500).map(|n| (20 + n % 5, 1 + n % 3, n)) {
            let fits =
                |version: &&Version| version.ino == ino && version.offset() == offset && version.cp <= until;
            let found = versions.find(Nid(10), Ino(ino), offset, until);
            assert_eq!(found, all.iter().find(fits).copied(), "{ino} {offset} {until}");
        }
        let inodes: Vec<Version> = versions.group(Nid(9)).map(|index| *versions.get(index)).collect();
        for version in &inodes {
            let later =
                inodes.iter().filter(|it| it.generation() != version.generation() && it.cp > version.cp);
            assert_eq!(versions.until(version), later.map(|it| it.cp).min().unwrap_or(u32::MAX));
        }
    }

    #[test]
    fn a_search_does_not_read_all_versions_of_a_number() {
        const COUNT: u32 = 200_000;
        let mut versions = Versions::default();
        for n in 0..COUNT {
            versions.push(Version::node(Nid(10), Ino(1000 + n), 1, BlockAddr(n), n));
            let facts = InodeFacts { kind: FileType::Regular, ctime: 0, generation: n, pino: 3 };
            versions.push(Version::inode(Ino(9), facts, BlockAddr(COUNT + n), n));
        }
        versions.sort();
        // One by one, these are 80 000 000 000 versions.
        for n in 0..COUNT {
            assert!(versions.find(Nid(10), Ino(1000 + n), 1, u32::MAX).is_some());
        }
        for index in versions.group(Nid(9)) {
            let version = versions.get(index);
            let next = if version.cp + 1 < COUNT { version.cp + 1 } else { u32::MAX };
            assert_eq!(versions.until(version), next);
        }
    }
}
