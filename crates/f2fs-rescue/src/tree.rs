//! The names of the selected inodes: which directory each belongs to, and which were removed.
//!
//! A walk from the root takes every name that the directories have. An inode that it does not reach carries
//! its own name and its directory. If that directory is whole and newer and does not name the inode, the
//! inode was removed; otherwise its directory entry is lost and it belongs there, or, without a directory,
//! into lost+found.

use std::collections::VecDeque;

use f2fs::units::Ino;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    Progress, Stage,
    claims::Claims,
    directory::{Listing, own_name},
    disputed::Disputed,
    judge::{Judge, OtherOwner, Used},
    nodes::{Inode, Nodes},
    shape::Shape,
    summaries::Summaries,
    versions::{Versions, fact},
    volumes::Earlier,
};

/// Largest number of a quota inode.
const QUOTA_INO_MAX: u32 = 16;

/// The parts of the tree that do not follow from directories.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// The directory that each directory belongs to.
    pub(crate) parents: FxHashMap<u32, u32>,
    /// Inodes whose entry in an existing directory is lost, by that directory.
    pub(crate) adopted: FxHashMap<u32, Vec<u32>>,
    /// Inodes whose directory is lost.
    pub(crate) lost: Vec<u32>,
    /// Names whose inodes are lost.
    pub(crate) dangling: u64,
    /// Directories with names that a damaged entry gives to another inode. An adopted one has the name.
    pub(crate) false_names: FxHashSet<(u32, Vec<u8>)>,
}

/// Fate of an inode that no directory names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Removed,
    /// It belongs into this directory.
    In(u32),
    Lost,
}

/// The evidence on the blocks of directories.
#[derive(Clone, Copy)]
pub(crate) struct Evidence<'a> {
    pub(crate) summaries: &'a Summaries,
    pub(crate) claims: &'a Claims,
    pub(crate) used: &'a Used,
    pub(crate) other_owner: OtherOwner,
}

/// The walk through all directories.
pub(crate) struct Builder<'a> {
    shape: &'a Shape,
    evidence: Evidence<'a>,
    versions: &'a mut Versions,
    tree: Tree,
    /// Directories of the tree with a lost part.
    damaged: FxHashSet<u32>,
    /// Inodes with several names, and the number of those behind the first.
    named_again: FxHashMap<u32, u32>,
    /// Directories with names of inodes that have their own name elsewhere, and count one.
    disputed: FxHashSet<(u32, Vec<u8>)>,
    waiting: VecDeque<u32>,
    walked: u64,
    progress: &'a mut dyn FnMut(Progress<'_>),
}

impl<'a> Builder<'a> {
    pub(crate) fn new(
        shape: &'a Shape,
        evidence: Evidence<'a>,
        versions: &'a mut Versions,
        progress: &'a mut dyn FnMut(Progress<'_>),
    ) -> Builder<'a> {
        Builder {
            shape,
            evidence,
            versions,
            tree: Tree::default(),
            damaged: FxHashSet::default(),
            named_again: FxHashMap::default(),
            disputed: FxHashSet::default(),
            waiting: VecDeque::new(),
            walked: 0,
            progress,
        }
    }

    /// Builds the tree, and adds the facts `NAMED` and `REMOVED` to the versions of inodes.
    pub(crate) fn build(mut self) -> Tree {
        if let Some(root) = self.versions.current(self.shape.root()) {
            self.name(root);
        }
        self.walk();
        let disputed = Disputed::find(self.judge(), &self.named_again);
        disputed.move_directories(&mut self.tree.parents);
        self.disputed = disputed.names;
        for directory in self.directories() {
            self.place_directory(directory);
        }
        for group in self.versions.groups().collect::<Vec<_>>() {
            let version = self.versions.get(group.start);
            if version.is_inode() && !version.has(fact::NAMED | fact::REMOVED | fact::FREED) {
                self.place(group.start);
            }
        }
        self.tree
    }

    fn nodes(&self) -> Nodes<'_> {
        Nodes { shape: self.shape, versions: self.versions }
    }

    fn judge(&self) -> Judge<'_> {
        let Evidence { summaries, claims, used, other_owner } = self.evidence;
        Judge { nodes: self.nodes(), summaries, claims, used, other_owner }
    }

    /// Marks an inode as part of the tree, once.
    fn name(&mut self, index: u32) {
        let version = self.versions.get_mut(index);
        let is_new = !version.has(fact::NAMED);
        version.add(fact::NAMED);
        if is_new && version.is_directory() {
            let ino = version.ino;
            self.waiting.push_back(ino);
        }
    }

    /// Names everything below the directories that wait.
    fn walk(&mut self) {
        while let Some(dir) = self.waiting.pop_front() {
            self.report();
            let Ok(inode) = self.nodes().current(Ino(dir)) else { continue };
            let listing = Listing::read(self.judge(), &inode);
            if listing.is_damaged {
                self.damaged.insert(dir);
            }
            for name in listing.names {
                let Some(child) = self.versions.current(name.ino) else {
                    self.tree.dangling += 1;
                    self.damaged.insert(dir);
                    continue;
                };
                let version = self.versions.get(child);
                match version.has(fact::NAMED) {
                    true => *self.named_again.entry(name.ino.0).or_default() += 1,
                    false if version.is_directory() => drop(self.tree.parents.insert(name.ino.0, dir)),
                    false => {}
                }
                self.name(child);
            }
        }
    }

    fn report(&mut self) {
        if self.walked % 64 == 0 {
            let bytes = self.shape.block_size().bytes() as u64;
            let total = self.walked + self.waiting.len() as u64 + 1;
            let (done_bytes, total_bytes) = (self.walked * bytes, total * bytes);
            let map = &self.shape.read;
            (self.progress)(Progress { stage: Stage::Names, done_bytes, total_bytes, map });
        }
        self.walked += 1;
    }

    /// Indices of the directories that nothing names.
    fn directories(&self) -> Vec<u32> {
        let is_open = |index: &u32| {
            let version = self.versions.get(*index);
            version.is_directory() && !version.has(fact::NAMED | fact::FREED)
        };
        self.versions.groups().map(|group| group.start).filter(is_open).collect()
    }

    /// Decides on a directory that nothing names, after the directories above it.
    fn place_directory(&mut self, index: u32) {
        let mut chain = vec![index];
        let mut seen = FxHashSet::default();
        while let Some(last) = chain.last() {
            let version = self.versions.get(*last);
            let is_new = seen.insert(*last);
            let above = self.versions.current(Ino(version.pino)).filter(|above| {
                let above = self.versions.get(*above);
                above.is_directory() && !above.has(fact::NAMED | fact::REMOVED | fact::FREED)
            });
            match above {
                // Directories that contain each other have no parent.
                Some(above) if is_new && !seen.contains(&above) => chain.push(above),
                _ => break,
            }
        }
        while let Some(index) = chain.pop() {
            if !self.versions.get(index).has(fact::NAMED | fact::REMOVED) {
                self.place(index);
                self.walk();
            }
        }
    }

    /// Decides on an inode that nothing names.
    fn place(&mut self, index: u32) {
        let version = *self.versions.get(index);
        let Ok(inode) = self.nodes().inode(index) else { return };
        if is_quota_file(&inode, self.shape.root()) {
            self.versions.get_mut(index).add(fact::NAMED);
            return;
        }
        match self.fate(index, &inode) {
            Fate::Removed => {
                self.versions.get_mut(index).add(fact::REMOVED);
                return;
            }
            Fate::In(dir) => {
                if let Some(name) = self.disputed.take(&(dir, own_name(&inode))) {
                    self.tree.false_names.insert(name);
                }
                self.tree.adopted.entry(dir).or_default().push(version.ino);
                if version.is_directory() {
                    self.tree.parents.insert(version.ino, dir);
                }
            }
            Fate::Lost => self.tree.lost.push(version.ino),
        }
        self.name(index);
    }

    fn fate(&self, index: u32, inode: &Inode) -> Fate {
        let version = self.versions.get(index);
        // What the SIT does not mark was removed, dropped by a power cut, or belongs to an earlier volume in the same place.
        let is_of_another_time = version.is_of_another_time() && self.versions.earlier == Earlier::Told;
        if inode.node.head().links.get() == 0 || is_of_another_time {
            return Fate::Removed;
        }
        let is_confirmed = version.is_confirmed();
        let Some(dir) = self.versions.current(Ino(version.pino)).map(|dir| self.versions.get(dir)) else {
            return Fate::Lost;
        };
        if !dir.is_directory() || dir.ino == version.ino {
            return Fate::Lost;
        }
        if dir.has(fact::REMOVED | fact::FREED) {
            return if is_confirmed { Fate::Lost } else { Fate::Removed };
        }
        if !dir.has(fact::NAMED) {
            return Fate::Lost;
        }
        let is_newer = version.cp > dir.cp;
        let is_disputed = || !self.disputed.is_empty() && self.disputed.contains(&(dir.ino, own_name(inode)));
        match is_confirmed || is_newer || self.damaged.contains(&dir.ino) || is_disputed() {
            true => Fate::In(dir.ino),
            false => Fate::Removed,
        }
    }
}

/// Returns true for a quota file. It has no name, and no directory or the root.
fn is_quota_file(inode: &Inode, root: Ino) -> bool {
    inode.ino().0 <= QUOTA_INO_MAX
        && inode.node.last_name().is_empty()
        && [0, root.0].contains(&inode.node.head().pino.get())
        && !inode.node.is_directory()
}
