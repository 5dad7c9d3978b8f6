//! The walk through the rescued tree, depth first, with names in byte order.

use std::collections::BTreeSet;

use f2fs::{
    Error, Place,
    format::FileType,
    units::{BlockAddr, Ino, Time},
};
use f2fs_tree::{PathId, PathTree};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    Certainty,
    directory::{Listing, Name, nameless, own_name},
    nodes::Inode,
    pieces::{Piece, pieces},
    rescue::Rescue,
    volumes::Earlier,
};

/// Selection of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// Files and directories of the volume.
    Present,
    /// Removed files and directories at their former places, and the directories above them.
    Removed,
}

/// Name of the directory for inodes whose directory is lost.
const LOST_FOUND: &[u8] = b"lost+found";
/// Number of blocks of a file from which on it is judged only under its first name.
const LONG_BLOCKS: u64 = 1024;
/// Bytes of the longest path. A directory below it moves to lost+found.
const PATH_BYTES_MAX: usize = 1 << 15;

/// A rescued inode, under one of its names.
#[derive(Debug, Clone)]
pub struct Found {
    /// Path from the root of the tree; empty for the root itself.
    pub path: Vec<u8>,
    /// Inode number; `None` for a directory that the rescue adds.
    pub ino: Option<Ino>,
    /// Kind of the file.
    pub kind: FileType,
    /// Kind and permissions, as `st_mode`.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names according to the inode.
    pub links: u32,
    /// Size in bytes.
    pub size: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Creation, if the inode records it.
    pub crtime: Option<Time>,
    /// Version of the checkpoint before the inode was written, lower half.
    pub checkpoint: u32,
    /// Certainty of the inode and its content.
    pub certainty: Option<Certainty>,
}

impl Found {
    fn added(path: Vec<u8>) -> Found {
        let zero = Time::default();
        Found {
            path,
            ino: None,
            kind: FileType::Directory,
            mode: FileType::Directory.mode_bits() | 0o700,
            uid: 0,
            gid: 0,
            links: 2,
            size: 0,
            atime: zero,
            mtime: zero,
            ctime: zero,
            crtime: None,
            checkpoint: 0,
            certainty: None,
        }
    }

    fn of(path: Vec<u8>, inode: &Inode, certainty: Certainty) -> Found {
        let (node, head) = (&inode.node, inode.node.head());
        Found {
            path,
            ino: Some(inode.ino()),
            kind: node.file_type(),
            mode: head.mode.get(),
            uid: head.uid.get(),
            gid: head.gid.get(),
            links: head.links.get(),
            size: head.size.get(),
            atime: node.atime(),
            mtime: node.mtime(),
            ctime: node.ctime(),
            crtime: node.crtime(),
            checkpoint: inode.version.cp,
            certainty: Some(certainty),
        }
    }
}

/// A step of the walk: the rescued inode, its block, and the pieces of its content, unless an earlier step of the same inode had
/// them.
pub(crate) struct Step {
    pub(crate) found: Found,
    pub(crate) inode: Option<(Inode, Option<Vec<Piece>>)>,
}

/// An entry of a directory of the tree.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Child {
    /// An inode, by the index of its version; `None` if it is lost.
    Inode { name: Vec<u8>, ino: u32, index: Option<u32> },
    /// A directory that the rescue adds, with inodes under their own names.
    Folder { name: Vec<u8>, inodes: Vec<u32> },
    /// lost+found, with the folders in it.
    LostFound { name: Vec<u8> },
}

impl Child {
    fn name(&self) -> &[u8] {
        match self {
            Child::Inode { name, .. } | Child::Folder { name, .. } | Child::LostFound { name } => name,
        }
    }
}

/// A directory on the path of the walk.
struct Level {
    /// Bytes of the directory's path.
    path_bytes: usize,
    /// Remaining entries, the next one last.
    children: Vec<Child>,
}

/// The walk. Errors are [`Error::Lost`], and cost only the entry that they name.
pub(crate) struct Walk<'a> {
    rescue: &'a Rescue,
    selection: Selection,
    path: Vec<u8>,
    levels: Vec<Level>,
    is_started: bool,
    /// Name of the directory for what has no place, until it is entered.
    lost_name: Option<Vec<u8>>,
    /// Directories that were entered; each has one place.
    entered: FxHashSet<u32>,
    /// Inodes whose directory is lost.
    lost: Vec<u32>,
    /// Directories whose path would be too long.
    deferred: Vec<u32>,
    /// Certainties and sizes of long files, by the addresses of the versions of their inodes.
    judged: FxHashMap<BlockAddr, (Certainty, u64)>,
    /// Lost inodes under one of their names.
    named_lost: FxHashSet<u32>,
    /// Files that count several names: the path of the first, and the number of those that were not found yet.
    missing_names: FxHashMap<u32, (PathId, u32)>,
    paths: PathTree,
    /// Losses that belong to no name, the next one last; `None` before the end of the tree.
    nameless_losses: Option<Vec<Error>>,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(rescue: &'a Rescue, selection: Selection) -> Walk<'a> {
        let lost = match (selection, &rescue.removed) {
            (Selection::Removed, Some((removed, _))) => removed.lost.clone(),
            (Selection::Removed, None) => Vec::new(),
            (Selection::Present, _) => {
                rescue.tree.lost.iter().filter_map(|ino| rescue.versions.current(Ino(*ino))).collect()
            }
        };
        Walk {
            rescue,
            selection,
            lost,
            path: Vec::new(),
            levels: Vec::new(),
            is_started: false,
            lost_name: None,
            entered: FxHashSet::default(),
            deferred: Vec::new(),
            judged: FxHashMap::default(),
            named_lost: FxHashSet::default(),
            missing_names: FxHashMap::default(),
            paths: PathTree::default(),
            nameless_losses: None,
        }
    }

    /// Returns the next entry, or None at the end.
    pub(crate) fn next(&mut self) -> Option<Result<Step, Error>> {
        if !self.is_started {
            self.is_started = true;
            return Some(self.root());
        }
        loop {
            let Some(level) = self.levels.last_mut() else { return self.nameless_loss().map(Err) };
            self.path.truncate(level.path_bytes);
            let Some(child) = level.children.pop() else {
                self.leave();
                continue;
            };
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(child.name());
            match child {
                Child::LostFound { .. } => {
                    let children = self.lost_folders();
                    return Some(Ok(self.enter_added(children)));
                }
                Child::Folder { inodes, .. } => {
                    let children = self.own_names(&inodes);
                    return Some(Ok(self.enter_added(children)));
                }
                Child::Inode { ino, index, .. } => match self.inode(Ino(ino), index) {
                    Ok(Some(step)) => return Some(Ok(step)),
                    Ok(None) => {}
                    Err(error) => return Some(Err(Error::lost(&self.path, error))),
                },
            }
        }
    }

    fn root(&mut self) -> Result<Step, Error> {
        let root = self.rescue.shape.root();
        let nodes = self.rescue.nodes();
        let step = match nodes.current(root).ok().filter(|inode| inode.node.is_directory()) {
            Some(inode) => self.enter(inode),
            None => self.enter_added(Vec::new()),
        };
        let children = &self.levels.last().expect("the root was entered").children;
        let names: FxHashSet<&[u8]> = children.iter().map(Child::name).collect();
        self.lost_name = Some(free_name(LOST_FOUND, &mut { FIRST_NUMBER }, |name| names.contains(name)));
        Ok(step)
    }

    /// Leaves a directory without further entries. The root gets lost+found before.
    fn leave(&mut self) {
        let has_lost = !self.lost.is_empty() || !self.deferred.is_empty();
        if self.levels.len() == 1 && has_lost {
            if let Some(name) = self.lost_name.take() {
                self.levels[0].children.push(Child::LostFound { name });
                return;
            }
        }
        self.levels.pop();
    }

    /// Returns the next of the inodes that are lost with their names.
    fn nameless_loss(&mut self) -> Option<Error> {
        let (lost, named) = (&self.rescue.lost_inodes, &self.named_lost);
        let is_present = self.selection == Selection::Present;
        let losses = self.nameless_losses.get_or_insert_with(|| {
            let inodes = lost.named.iter().filter(|ino| is_present && !named.contains(ino));
            let inodes = inodes.map(|ino| {
                let what = "the NAT has the inode, and no version of it was found";
                Error::lost(&nameless(Ino(*ino)), Error::corrupt(Place::Inode(Ino(*ino)), what))
            });
            let further = (lost.further > 0 && is_present).then(|| {
                let what = format!(
                    "the checkpoint counts {} inodes that were not found, and nothing tells which ones",
                    lost.further
                );
                Error::lost(LOST_FOUND, Error::corrupt(Place::Volume, what))
            });
            let earlier = (self.rescue.versions.earlier == Earlier::Untold && is_present).then(|| {
                let what = "there are nodes of several volumes in one place, one made over the other, and nothing proves which \
                            ones belong together: files may be of an earlier volume, or have content of one";
                Error::lost(b"", Error::corrupt(Place::Volume, what))
            });
            let names = lost_names(&self.missing_names, &self.paths);
            earlier.into_iter().chain(further).chain(inodes.rev()).chain(names).collect()
        });
        losses.pop()
    }

    fn inode(&mut self, ino: Ino, index: Option<u32>) -> Result<Option<Step>, Error> {
        let Some(index) = index else {
            self.named_lost.insert(ino.0);
            return Err(Error::corrupt(Place::Inode(ino), "the inode is lost"));
        };
        let inode = self.rescue.nodes().inode(index)?;
        if !inode.node.is_directory() {
            self.count_name(&inode);
            return Ok(Some(self.step(inode)));
        }
        if self.entered.contains(&ino.0) {
            return Ok(match self.selection {
                Selection::Present => None,
                // Another inode of the same number. The entries name only the number, and have their place.
                Selection::Removed => Some(self.step(inode)),
            });
        }
        if self.path.len() > PATH_BYTES_MAX {
            if self.lost_name.is_none() {
                return Err(Error::Invalid("the path is too long".into()));
            }
            self.deferred.push(index);
            return Ok(None);
        }
        Ok(Some(self.enter(inode)))
    }

    /// Counts a name of a file that has several. An older checkpoint's tree has inodes of other times.
    fn count_name(&mut self, inode: &Inode) {
        let links = inode.node.head().links.get();
        let is_newest = self.selection == Selection::Present && self.rescue.is_newest();
        if links <= 1 || !is_newest {
            return;
        }
        let Walk { missing_names, paths, path, .. } = self;
        let (_, missing) = missing_names.entry(inode.ino().0).or_insert_with(|| (paths.insert(path), links));
        *missing = missing.saturating_sub(1);
    }

    /// Makes a step of an inode.
    fn step(&mut self, mut inode: Inode) -> Step {
        let (rescue, version) = (self.rescue, inode.version.addr());
        if let Some((certainty, size)) = self.judged.get(&version) {
            inode.node.head_mut().size.set(*size);
            return Step {
                found: Found::of(self.path.clone(), &inode, *certainty),
                inode: Some((inode, None)),
            };
        }
        let all = pieces(rescue.nodes(), &inode);
        let certainty = Certainty::of(rescue.judge(self.selection), &inode, &all);
        inode.node.head_mut().size.set(all.size);
        if certainty.blocks() >= LONG_BLOCKS {
            self.judged.insert(version, (certainty, all.size));
        }
        Step { found: Found::of(self.path.clone(), &inode, certainty), inode: Some((inode, Some(all.all))) }
    }

    fn enter(&mut self, inode: Inode) -> Step {
        let ino = inode.ino().0;
        self.entered.insert(ino);
        let children = match self.selection {
            Selection::Present => self.present(&inode),
            Selection::Removed => self.removed(ino),
        };
        let step = self.step(inode);
        self.push(children);
        step
    }

    /// The entries of a directory of the tree.
    fn present(&self, inode: &Inode) -> Vec<Child> {
        let (rescue, ino) = (self.rescue, inode.ino().0);
        let listing = Listing::read(rescue.judge(self.selection), inode);
        let names = listing.names.into_iter();
        // A directory has one place.
        let is_here = |name: &Name| rescue.tree.parents.get(&name.ino.0).is_none_or(|parent| *parent == ino);
        let adopted = rescue.tree.adopted.get(&ino).into_iter().flatten();
        let adopted = adopted.filter_map(|child| Some((*child, rescue.versions.current(Ino(*child))?)));
        let adopted: Vec<_> =
            adopted.map(|(child, index)| (self.name_of(index), child, Some(index))).collect();
        let adopted_names: FxHashSet<&[u8]> = adopted.iter().map(|(name, ..)| name.as_slice()).collect();
        let mut children: Vec<(Vec<u8>, u32, Option<u32>)> = names
            .filter(is_here)
            .map(|name| (name.name, name.ino.0, rescue.versions.current(name.ino)))
            // An adopted inode has the name of a damaged entry.
            .filter(|(name, _, index)| {
                let is_adopted = adopted_names.contains(name.as_slice());
                !is_adopted || index.is_some() && !rescue.tree.false_names.contains(&(ino, name.clone()))
            })
            .collect();
        drop(adopted_names);
        children.extend(adopted);
        named(children)
    }

    /// The removed entries of a directory.
    fn removed(&self, ino: u32) -> Vec<Child> {
        let all = self.rescue.removed.as_ref().and_then(|(removed, _)| removed.children.get(&ino));
        self.own_names(all.map_or(&[], Vec::as_slice))
    }

    fn enter_added(&mut self, children: Vec<Child>) -> Step {
        self.push(children);
        Step { found: Found::added(self.path.clone()), inode: None }
    }

    fn push(&mut self, mut children: Vec<Child>) {
        children.sort_unstable_by(|a, b| b.name().cmp(a.name()));
        self.levels.push(Level { path_bytes: self.path.len(), children });
    }

    fn name_of(&self, index: u32) -> Vec<u8> {
        let ino = Ino(self.rescue.versions.get(index).ino);
        self.rescue.nodes().inode(index).map_or_else(|_| nameless(ino), |inode| own_name(&inode))
    }

    fn own_names(&self, inodes: &[u32]) -> Vec<Child> {
        let ino = |index: u32| self.rescue.versions.get(index).ino;
        named(inodes.iter().map(|index| (self.name_of(*index), ino(*index), Some(*index))).collect())
    }

    /// The folders of lost+found: one for each lost directory, with the inodes that belong to it.
    fn lost_folders(&mut self) -> Vec<Child> {
        let mut folders: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
        let lost = std::mem::take(&mut self.lost).into_iter().chain(std::mem::take(&mut self.deferred));
        for index in lost {
            folders.entry(self.rescue.versions.get(index).pino).or_default().push(index);
        }
        let folders = folders.into_iter();
        folders.map(|(pino, inodes)| Child::Folder { name: nameless(Ino(pino)), inodes }).collect()
    }
}

/// Returns the losses of files that count more names than were found, the first one last.
fn lost_names(missing: &FxHashMap<u32, (PathId, u32)>, paths: &PathTree) -> Vec<Error> {
    let mut incomplete: Vec<_> = missing.iter().filter(|(_, (_, count))| *count > 0).collect();
    incomplete.sort_unstable_by(|a, b| b.0.cmp(a.0));
    let error = |(ino, (first, count)): (&u32, &(PathId, u32))| {
        let what = format!("{count} of the names that the inode counts were not found");
        Error::lost(&paths.path(*first), Error::corrupt(Place::Inode(Ino(*ino)), what))
    };
    incomplete.into_iter().map(error).collect()
}

/// Number of the second of several equal names.
const FIRST_NUMBER: u32 = 2;

/// Makes entries with different names.
fn named(children: Vec<(Vec<u8>, u32, Option<u32>)>) -> Vec<Child> {
    let mut names: BTreeSet<Vec<u8>> = BTreeSet::new();
    // The next number of each name: a search from the first would make many equal names expensive.
    let mut numbers: FxHashMap<Vec<u8>, u32> = FxHashMap::default();
    let mut all = Vec::with_capacity(children.len());
    for (name, ino, index) in children {
        let number = numbers.entry(stem(&name).to_vec()).or_insert(FIRST_NUMBER);
        let name = free_name(&name, number, |name| names.contains(name));
        names.insert(name.clone());
        all.push(Child::Inode { name, ino, index });
    }
    all
}

/// The start of a name that leaves room for a number.
fn stem(name: &[u8]) -> &[u8] {
    &name[..name.len().min(f2fs::format::NAME_MAX - 12)]
}

/// Returns the name, with a number if it is taken: the first free one from `number` on, which is moved behind it.
fn free_name(name: &[u8], number: &mut u32, is_taken: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut free = name.to_vec();
    while is_taken(&free) {
        free = [stem(name), format!("~{number}").as_bytes()].concat();
        *number = number.checked_add(1).expect("a directory has fewer names");
    }
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_in_a_directory_get_numbers() {
        let twice = [&b"a"[..], b"a", b"a~2"].map(|name| (name.to_vec(), 4, None)).to_vec();
        let names: Vec<_> = named(twice).iter().map(|child| child.name().to_vec()).collect();
        assert_eq!(names, [b"a".to_vec(), b"a~2".to_vec(), b"a~2~2".to_vec()]);
        // With a search from the first number each time, these are 5 000 000 000 names.
        let many = named(vec![(b"a".to_vec(), 4, None); 100_000]);
        assert_eq!(many.last().map(Child::name), Some(&b"a~100000"[..]));
        let long = vec![(vec![b'x'; 255], 4, None); 2];
        assert!(named(long).iter().all(|child| child.name().len() <= 255));
    }
}
