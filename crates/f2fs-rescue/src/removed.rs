//! The tree of removed files: inodes that no name leads to any more, at their former places.
//!
//! A removed inode stays on the device until its block is overwritten, and names its directory. A number
//! that was used again has several generations: each older one is a removed inode, too.

use f2fs::units::Nid;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::versions::{Versions, fact};

/// Removed inodes, with the directories above them. Inodes are indices of versions.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    /// All removed inodes.
    pub(crate) inodes: Vec<u32>,
    /// Entries of each directory.
    pub(crate) children: FxHashMap<u32, Vec<u32>>,
    /// Inodes whose directory is lost.
    pub(crate) lost: Vec<u32>,
}

impl Removed {
    /// Collects the removed inodes, and marks them.
    pub(crate) fn collect(versions: &mut Versions, root: u32) -> Removed {
        let mut removed = Removed::default();
        for group in versions.groups().collect::<Vec<_>>() {
            removed.generations(versions, group);
        }
        let mut placed = FxHashSet::default();
        let mut directories = FxHashMap::default();
        for index in removed.inodes.clone() {
            let mut directory =
                |ino: u32| *directories.entry(ino).or_insert_with(|| directory(versions, ino));
            removed.place(versions, root, index, &mut placed, &mut directory);
        }
        removed
    }

    /// Takes the newest version of each generation that is not in use.
    fn generations(&mut self, versions: &mut Versions, group: std::ops::Range<u32>) {
        let mut seen: FxHashSet<u32> = FxHashSet::default();
        for index in group {
            let version = versions.get(index);
            let is_in_use = version.is_inode() && version.has(fact::NAMED);
            if !version.is_inode() || !seen.insert(version.generation()) || is_in_use {
                continue;
            }
            versions.get_mut(index).add(fact::REMOVED);
            self.inodes.push(index);
        }
    }

    /// Enters an inode and the directories above it into the tree. `directory` finds that of a number.
    fn place(
        &mut self,
        versions: &Versions,
        root: u32,
        index: u32,
        placed: &mut FxHashSet<u32>,
        directory: &mut dyn FnMut(u32) -> Option<u32>,
    ) {
        let mut chain = FxHashSet::default();
        let mut child = index;
        while placed.insert(child) {
            let version = versions.get(child);
            chain.insert(version.ino);
            let above = directory(version.pino);
            match above {
                _ if version.ino == root => return,
                Some(above) if !chain.contains(&version.pino) => {
                    self.children.entry(version.pino).or_default().push(child);
                    child = above;
                }
                _ => return self.lost.push(child),
            }
        }
    }
}

/// The newest version of an inode as a directory.
fn directory(versions: &Versions, ino: u32) -> Option<u32> {
    versions.group(Nid(ino)).find(|index| versions.get(*index).is_directory())
}

#[cfg(test)]
mod tests {
    use f2fs::{
        format::FileType,
        units::{BlockAddr, Ino},
    };

    use super::*;
    use crate::versions::{InodeFacts, Version};

    fn push(versions: &mut Versions, ino: u32, pino: u32, generation: u32, facts: u32) {
        let facts_of = InodeFacts { kind: FileType::Directory, ctime: 0, generation, pino };
        let addr = BlockAddr(100 * ino + generation);
        let mut version = Version::inode(Ino(ino), facts_of, addr, 10 - generation);
        version.add(facts);
        versions.push(version);
    }

    #[test]
    fn older_generations_and_unnamed_inodes_are_removed() {
        let mut versions = Versions::default();
        push(&mut versions, 3, 3, 1, fact::NAMED);
        push(&mut versions, 9, 3, 1, fact::NAMED);
        push(&mut versions, 9, 3, 2, 0);
        push(&mut versions, 9, 3, 2, 0);
        push(&mut versions, 10, 9, 1, fact::FREED);
        versions.sort();
        let removed = Removed::collect(&mut versions, 3);
        let of = |index: &u32| (versions.get(*index).ino, versions.get(*index).generation());
        assert_eq!(removed.inodes.iter().map(of).collect::<Vec<_>>(), [(9, 2), (10, 1)]);
        assert_eq!(removed.children[&9].iter().map(of).collect::<Vec<_>>(), [(10, 1)]);
        assert!(removed.lost.is_empty());
    }

    #[test]
    fn directories_that_contain_each_other_have_no_directory() {
        let mut versions = Versions::default();
        push(&mut versions, 9, 10, 1, fact::FREED);
        push(&mut versions, 10, 9, 1, fact::FREED);
        push(&mut versions, 11, 77, 1, fact::FREED);
        versions.sort();
        let removed = Removed::collect(&mut versions, 3);
        assert_eq!(removed.lost.len(), 2, "one of the cycle, and the one without a directory");
    }
}
