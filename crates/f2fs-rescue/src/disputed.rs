//! Names that a damaged entry gives to another inode.
//!
//! A wrong inode number in a directory entry gives the name to an inode that has its own ones, too, and leaves the real
//! owner without a name. Each inode counts its names, and carries the last one with its directory. So an inode with more
//! names than it counts has one too many, which is not the one that it carries. If another inode carries such a name, it has
//! it.

use f2fs::units::Ino;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    directory::{Listing, Name, own_name},
    judge::Judge,
    versions::fact,
};

/// Maximum number of disputed names: a volume with more has other damage.
const NAMES_MAX: usize = 1 << 16;
/// Maximum number of directories that are moved, and of directories above one: the time on a hostile volume is their product.
const MOVES_MAX: usize = 1 << 12;
const DEPTH_MAX: usize = 1 << 14;

/// The result of a second walk through all directories of the tree.
#[derive(Debug, Default)]
pub(crate) struct Disputed {
    /// Directories with the names that are disputed.
    pub(crate) names: FxHashSet<(u32, Vec<u8>)>,
    /// Inodes with too many names, each with the directory that it carries.
    own: FxHashMap<u32, u32>,
}

impl Disputed {
    /// Finds the disputed names of inodes that have more names than they count. `named_again` has the inodes with several
    /// names and the number of those behind the first.
    pub(crate) fn find(judge: Judge<'_>, named_again: &FxHashMap<u32, u32>) -> Disputed {
        let mut disputed = Disputed::default();
        let surplus = named_again.iter().filter(|(ino, further)| has_too_many(judge, Ino(**ino), **further));
        let surplus: FxHashSet<u32> = surplus.map(|(ino, _)| *ino).collect();
        if surplus.is_empty() {
            return disputed;
        }
        // The root carries no name, and has none.
        let root = judge.nodes.shape.root().0;
        let (mut own, mut others) = (FxHashMap::from_iter([(root, root)]), Vec::new());
        for dir in directories(judge) {
            let Ok(inode) = judge.nodes.current(dir) else { continue };
            let names = Listing::read(judge, &inode).names.into_iter();
            for name in names.filter(|name| surplus.contains(&name.ino.0)) {
                match is_own(judge, dir, &name) {
                    true => drop(own.insert(name.ino.0, dir.0)),
                    false if others.len() < NAMES_MAX => others.push((dir.0, name)),
                    false => {}
                }
            }
        }
        let others = others.into_iter().filter(|(_, name)| own.contains_key(&name.ino.0));
        disputed.names = others.map(|(dir, name)| (dir, name.name)).collect();
        disputed.own = own;
        disputed
    }

    /// Moves directories with several names to the directories that they carry. `parents` are the ones where they were found
    /// first; a directory is not moved into itself.
    pub(crate) fn move_directories(&self, parents: &mut FxHashMap<u32, u32>) {
        for (ino, dir) in self.own.iter().take(MOVES_MAX) {
            if parents.contains_key(ino) && !is_in(*dir, *ino, parents) {
                parents.insert(*ino, *dir);
            }
        }
    }
}

/// Returns true if an inode counts fewer names than one and these further ones. A directory has one, the root none.
fn has_too_many(judge: Judge<'_>, ino: Ino, further: u32) -> bool {
    let inode = judge.nodes.current(ino);
    inode.is_ok_and(|inode| inode.node.is_directory() || inode.node.head().links.get() <= further)
}

/// The directories of the tree.
fn directories(judge: Judge<'_>) -> impl Iterator<Item = Ino> + '_ {
    let versions = judge.nodes.versions;
    let current = versions.groups().map(|group| versions.get(group.start));
    current
        .filter(|version| version.is_directory() && version.has(fact::NAMED))
        .map(|version| Ino(version.ino))
}

/// Returns true if the inode carries this name and directory.
fn is_own(judge: Judge<'_>, dir: Ino, name: &Name) -> bool {
    let inode = judge.nodes.current(name.ino);
    inode.is_ok_and(|inode| inode.node.head().pino.get() == dir.0 && own_name(&inode) == name.name)
}

/// Returns true if a directory is the other one or lies in it, or lies too deep to tell.
fn is_in(dir: u32, other: u32, parents: &FxHashMap<u32, u32>) -> bool {
    let mut above = std::iter::successors(Some(dir), |dir| parents.get(dir).copied());
    above.by_ref().take(DEPTH_MAX).any(|above| above == other) || above.next().is_some()
}
