//! All versions of all nodes that lie on the device.

use std::{cell::OnceCell, cmp::Reverse, ops::Range};

use f2fs::{
    format::FileType,
    units::{BlockAddr, Ino, Nid},
};

use crate::{
    bitmap::Bitmap,
    lookup::{Generations, LINEAR_MAX, Places},
    volumes::Earlier,
};

/// Facts about a version, in the low bits of its `place`.
pub(crate) mod fact {
    /// The checksum of the inode is wrong, or its footer.
    pub(crate) const BAD_SUM: u32 = 1;
    /// The NAT has another address, where the node is no longer. Only nodes that are no inodes have this fact: it shares the
    /// bit of `BAD_SUM`.
    pub(crate) const OUTDATED: u32 = BAD_SUM;
    /// The NAT has this address, or the version was fsynced after the checkpoint.
    pub(crate) const CONFIRMED: u32 = 2;
    /// The segment's summary says that the block is not this node.
    pub(crate) const DENIED: u32 = 4;
    /// The inode was removed. Only inodes have this fact and the ones below.
    pub(crate) const REMOVED: u32 = 8;
    /// A directory of the tree has a name of the inode.
    pub(crate) const NAMED: u32 = 16;
    /// The NAT says that the number is free.
    pub(crate) const FREED: u32 = 32;
    /// The NAT has another address, where the inode is no longer.
    pub(crate) const STALE: u32 = 64;
    /// The SIT does not mark the block, or it belongs to an earlier volume. This fact of inodes lies above the kind; other nodes have it in `pino`.
    pub(crate) const UNMARKED: u32 = 1 << 16;
    /// `CONFIRMED` only orders the versions of the inode: a newer checkpoint or a part of the fsync chain is
    /// lost.
    pub(crate) const UNSURE: u32 = 128;
}

/// Evidence on the version of a node that is no inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The NAT has its address, or it was fsynced after the checkpoint.
    Confirmed,
    /// Nothing tells.
    Unproven,
    /// The NAT has another address, where the node is no longer.
    Outdated,
}

/// Position of the offset of a node, and of the file type of an inode, in `place`.
const OFFSET_SHIFT: u32 = 3;
const KIND_SHIFT: u32 = 8;
/// Bits of the file type, after the shift.
const KIND_MASK: u32 = 0xFF;

/// One version of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    /// Number of the node.
    pub(crate) nid: u32,
    /// Inode that it belongs to.
    pub(crate) ino: u32,
    /// Facts, and the offset of the node or the type of the inode.
    place: u32,
    /// Address.
    addr: u32,
    /// Version of the checkpoint before it, lower half.
    pub(crate) cp: u32,
    /// Seconds of the inode's last change, lower half.
    pub(crate) ctime: u32,
    /// Generation of the inode. Of other nodes, the upper half of the version in the footer: a checksum of the checkpoint.
    generation: u32,
    /// Directory of the inode.
    pub(crate) pino: u32,
}

const _: () = assert!(size_of::<Version>() == 32);

/// The part of a version that only inodes have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InodeFacts {
    pub(crate) kind: FileType,
    pub(crate) ctime: u32,
    pub(crate) generation: u32,
    pub(crate) pino: u32,
}

impl Version {
    /// The version of a node that is not an inode.
    pub(crate) fn node(nid: Nid, ino: Ino, offset: u32, addr: BlockAddr, cp: u32) -> Version {
        let place = offset << OFFSET_SHIFT;
        Version { nid: nid.0, ino: ino.0, place, addr: addr.0, cp, ctime: 0, generation: 0, pino: 0 }
    }

    /// The version of an inode.
    pub(crate) fn inode(ino: Ino, facts: InodeFacts, addr: BlockAddr, cp: u32) -> Version {
        let InodeFacts { kind, ctime, generation, pino } = facts;
        let place = u32::from(kind.dentry_code()) << KIND_SHIFT;
        Version { nid: ino.0, ino: ino.0, place, addr: addr.0, cp, ctime, generation, pino }
    }

    /// Sets the upper half of the version in the footer of a node that is no inode.
    pub(crate) fn with_checksum(self, checksum: u32) -> Version {
        Version { generation: checksum, ..self }
    }

    /// Checksum of the checkpoint before a node that is no inode.
    pub(crate) fn checksum(&self) -> Option<u32> {
        (!self.is_inode()).then_some(self.generation)
    }

    /// Generation of the inode; 0 for other nodes.
    pub(crate) fn generation(&self) -> u32 {
        if self.is_inode() { self.generation } else { 0 }
    }

    pub(crate) fn is_inode(&self) -> bool {
        self.nid == self.ino
    }

    /// Kind of an inode.
    pub(crate) fn kind(&self) -> Option<FileType> {
        let code = u8::try_from(self.place >> KIND_SHIFT & KIND_MASK).expect("eight bits");
        FileType::from_dentry_code(code).filter(|_| self.is_inode())
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind() == Some(FileType::Directory)
    }

    /// Offset of the node in its file, as in its footer.
    pub(crate) fn offset(&self) -> u32 {
        if self.is_inode() { 0 } else { self.place >> OFFSET_SHIFT }
    }

    pub(crate) fn addr(&self) -> BlockAddr {
        BlockAddr(self.addr)
    }

    /// Returns true if one of the facts is known.
    pub(crate) fn has(&self, facts: u32) -> bool {
        self.place & facts != 0
    }

    /// Returns true if evidence shows that this version of an inode is the newest.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.has(fact::CONFIRMED) && !(self.is_inode() && self.has(fact::UNSURE))
    }

    pub(crate) fn add(&mut self, facts: u32) {
        self.place |= facts;
    }

    /// Notes that the NAT has another address, where the node is no longer.
    pub(crate) fn add_outdated(&mut self) {
        self.add(if self.is_inode() { fact::STALE } else { fact::OUTDATED });
    }

    /// Notes that the SIT does not mark the block, or that it belongs to an earlier volume.
    pub(crate) fn add_unmarked(&mut self) {
        if self.is_inode() {
            self.add(fact::UNMARKED);
        } else {
            self.pino = fact::UNMARKED;
        }
    }

    /// Returns true if the SIT does not mark the block, or if it belongs to an earlier volume.
    pub(crate) fn is_unmarked(&self) -> bool {
        let facts = if self.is_inode() { self.place } else { self.pino };
        facts & fact::UNMARKED != 0
    }

    /// Returns true if an inode is [unmarked](Self::is_unmarked), and the NAT does not tell that there is a newer version.
    pub(crate) fn is_of_another_time(&self) -> bool {
        self.is_unmarked() && !self.has(fact::CONFIRMED | fact::STALE)
    }

    /// Standing of a node that is no inode.
    pub(crate) fn standing(&self) -> Standing {
        match self {
            version if version.has(fact::CONFIRMED) => Standing::Confirmed,
            version if version.has(fact::OUTDATED) => Standing::Outdated,
            _ => Standing::Unproven,
        }
    }

    /// Adds facts that only inodes have.
    pub(crate) fn add_if_inode(&mut self, facts: u32) {
        if self.is_inode() {
            self.add(facts);
        }
    }

    /// Sorts the versions of a node: the one that counts first.
    fn rank(&self) -> impl Ord + use<> {
        (self.nid, self.rank_of_node())
    }

    /// Doubts about a version: those with fewer come first.
    pub(crate) fn doubts(&self) -> (bool, bool, bool, bool) {
        let is_denied = self.has(fact::DENIED);
        (!self.has(fact::CONFIRMED), self.has(fact::BAD_SUM), self.is_unmarked(), is_denied)
    }

    fn rank_of_node(&self) -> impl Ord + use<> {
        (self.doubts(), Reverse((self.cp, self.ctime, self.addr)))
    }
}

/// The table of versions. After [`sort`](Versions::sort), the first version of each node counts.
#[derive(Debug, Default)]
pub(crate) struct Versions {
    all: Vec<Version>,
    /// Indices of the versions that are no inodes, by owner and offset, made when they are needed.
    by_owner: OnceCell<Vec<u32>>,
    /// Made when a node with many versions is searched.
    places: OnceCell<Places>,
    /// Knowledge about nodes of an earlier volume.
    pub(crate) earlier: Earlier,
    generations: OnceCell<Generations>,
}

impl Versions {
    pub(crate) fn push(&mut self, version: Version) {
        self.all.push(version);
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn sort(&mut self) {
        self.by_owner.take();
        self.places.take();
        self.generations.take();
        self.all.sort_unstable_by_key(Version::rank);
    }

    /// Keeps only the best versions of each node, to save memory.
    pub(crate) fn thin(&mut self, kept: usize) {
        self.sort();
        let (mut last, mut count) = (None, 0);
        self.all.retain(|version| {
            count = if last == Some(version.nid) { count + 1 } else { 1 };
            last = Some(version.nid);
            count <= kept
        });
    }

    /// The blocks of all versions, on a volume of this many blocks.
    pub(crate) fn blocks(&self, count: u64) -> Bitmap {
        let mut blocks = Bitmap::new(count);
        for version in &self.all {
            blocks.set(version.addr());
        }
        blocks
    }

    pub(crate) fn get(&self, index: u32) -> &Version {
        &self.all[index as usize]
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> &mut Version {
        &mut self.all[index as usize]
    }

    /// Groups of versions of one node each, as ranges of indices, in the order of the nids.
    pub(crate) fn groups(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let first = self.all.get(at)?;
            let group = self.group(Nid(first.nid));
            at = group.end as usize;
            Some(group)
        })
    }

    /// Indices of all versions of a node.
    pub(crate) fn group(&self, nid: Nid) -> Range<u32> {
        let start = self.all.partition_point(|version| version.nid < nid.0);
        let length = self.all[start..].partition_point(|version| version.nid == nid.0);
        index(start)..index(start + length)
    }

    /// Index of the version of an inode that counts.
    pub(crate) fn current(&self, ino: Ino) -> Option<u32> {
        let group = self.group(ino.into());
        group.clone().next().filter(|first| self.get(*first).is_inode())
    }

    /// The versions of an inode's further nodes with one of these offsets, the best of each first.
    pub(crate) fn nodes_of(&self, ino: Ino, offsets: Range<u32>) -> impl Iterator<Item = &Version> {
        let key = |index: &u32| {
            let version = self.get(*index);
            (version.ino, version.offset())
        };
        let all = self.by_owner.get_or_init(|| {
            let nodes = (0..index(self.all.len())).filter(|index| !self.get(*index).is_inode());
            let mut nodes: Vec<u32> = nodes.collect();
            nodes.sort_by_key(|index| (key(index), self.get(*index).rank_of_node()));
            nodes
        });
        let start = all.partition_point(|index| key(index) < (ino.0, offsets.start));
        let end = all.partition_point(|index| key(index) < (ino.0, offsets.end));
        all[start..end.max(start)].iter().map(|index| self.get(*index))
    }

    /// The best version of a node of an inode, written before checkpoint `until`.
    pub(crate) fn find(&self, nid: Nid, ino: Ino, offset: u32, until: u32) -> Option<Version> {
        let group = self.of(nid);
        if group.len() > LINEAR_MAX {
            let places = self.places.get_or_init(|| Places::new(&self.all));
            return places.find(&self.all, (nid.0, ino.0, offset), until);
        }
        let fits =
            |version: &&Version| version.ino == ino.0 && version.offset() == offset && version.cp <= until;
        group.iter().find(fits).copied()
    }

    /// The first checkpoint after that of an inode's version with another inode of the same number;
    /// `u32::MAX` without one.
    pub(crate) fn until(&self, version: &Version) -> u32 {
        let group = self.of(Nid(version.nid));
        if group.len() > LINEAR_MAX {
            let generations = self.generations.get_or_init(|| self.generations());
            return generations.until(version).expect("all large groups are there");
        }
        let is_later = |other: &&Version| other.generation() != version.generation() && other.cp > version.cp;
        group.iter().filter(is_later).map(|other| other.cp).min().unwrap_or(u32::MAX)
    }

    fn generations(&self) -> Generations {
        let mut generations = Generations::default();
        for group in self.groups().filter(|group| group.len() > LINEAR_MAX) {
            generations.add(&self.all[group.start as usize..group.end as usize]);
        }
        generations
    }

    /// All versions of a node.
    fn of(&self, nid: Nid) -> &[Version] {
        let group = self.group(nid);
        &self.all[group.start as usize..group.end as usize]
    }
}

fn index(at: usize) -> u32 {
    u32::try_from(at).expect("a volume has fewer blocks than 2^32")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inode(ino: u32, addr: u32, cp: u32) -> Version {
        let facts = InodeFacts { kind: FileType::Directory, ctime: 0, generation: 0, pino: 3 };
        Version::inode(Ino(ino), facts, BlockAddr(addr), cp)
    }

    #[test]
    fn the_newest_version_counts_unless_there_is_evidence() {
        let mut versions = Versions::default();
        for (addr, cp) in [(100, 5), (101, 7), (102, 6)] {
            versions.push(inode(9, addr, cp));
        }
        versions.push(Version::node(Nid(10), Ino(9), 1, BlockAddr(103), 5));
        let current = |versions: &mut Versions| {
            versions.sort();
            versions.get(versions.current(Ino(9)).expect("it is there")).addr().0
        };
        assert_eq!(current(&mut versions), 101);
        versions.get_mut(0).add(fact::BAD_SUM);
        assert_eq!(current(&mut versions), 102, "a wrong checksum");
        versions.get_mut(2).add(fact::CONFIRMED);
        assert_eq!(current(&mut versions), 101, "the NAT has the address");
        assert_eq!(versions.groups().collect::<Vec<_>>(), [0..3, 3..4]);
        assert_eq!(versions.current(Ino(10)), None, "not an inode");
    }

    #[test]
    fn a_version_that_the_sit_marks_comes_before_a_newer_one() {
        let mut versions = Versions::default();
        for (addr, cp) in [(100, 5), (101, 7)] {
            let mut all = [inode(9, addr, cp), Version::node(Nid(10), Ino(9), 1, BlockAddr(addr), cp)];
            if cp == 7 {
                all.iter_mut().for_each(Version::add_unmarked);
            }
            all.into_iter().for_each(|version| versions.push(version));
        }
        versions.sort();
        assert_eq!(versions.get(versions.current(Ino(9)).expect("it is there")).addr().0, 100);
        assert_eq!(versions.find(Nid(10), Ino(9), 1, u32::MAX).map(|version| version.addr().0), Some(100));
        assert!(versions.groups().all(|group| versions.get(group.end - 1).is_unmarked()));
        assert!(versions.get(1).is_directory());
    }

    #[test]
    fn a_node_is_found_by_its_owner_offset_and_age() {
        let mut versions = Versions::default();
        for (ino, addr, cp) in [(9, 100, 5), (8, 101, 6), (9, 102, 8)] {
            versions.push(Version::node(Nid(10), Ino(ino), 1, BlockAddr(addr), cp));
        }
        versions.sort();
        let find = |ino, offset, until| {
            versions.find(Nid(10), Ino(ino), offset, until).map(|version| version.addr().0)
        };
        assert_eq!(find(9, 1, u32::MAX), Some(102));
        assert_eq!(find(9, 1, 7), Some(100));
        assert_eq!(find(8, 1, u32::MAX), Some(101));
        assert_eq!((find(7, 1, u32::MAX), find(9, 2, u32::MAX)), (None, None));
    }

    #[test]
    fn a_thinned_table_keeps_the_best_versions() {
        let mut versions = Versions::default();
        for cp in 0..10 {
            versions.push(inode(9, 100 + cp, cp));
            versions.push(inode(4, 200 + cp, cp));
        }
        versions.thin(2);
        assert_eq!(versions.len(), 4);
        assert_eq!(versions.get(0).cp, 9);
    }
}
