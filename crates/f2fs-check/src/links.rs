//! Names of inodes: link counts, parents, and inodes without a name.

use f2fs::{
    Place,
    format::{FileType, node::NodeFooter},
    units::{Ino, Nid},
};

use crate::{
    Certainty, Finding, Fix, Kind, Slot,
    checker::Checker,
    inodes::{LINKS, PARENT},
    table::{Entry, fact},
};

/// A directory's place in the tree.
#[derive(Debug, Clone, Copy)]
pub struct Directory {
    /// The directory.
    pub ino: Ino,
    /// Inode that its ".." names, if it has the entry.
    pub dotdot: Option<Ino>,
    /// Index of the directory that names it.
    pub parent: Option<u32>,
    /// True if its entries could not all be read.
    pub is_broken: bool,
    /// Number of the walk that visited it.
    visit: u32,
}

impl Directory {
    /// Makes a directory without a known place.
    pub fn new(ino: Ino) -> Directory {
        Directory { ino, dotdot: None, parent: None, is_broken: false, visit: 0 }
    }
}

impl Checker<'_> {
    /// Notes the inodes that need no name: quota files and orphans.
    pub fn note_special_inodes(&mut self) {
        for ino in self.superblock.quota_inos {
            // A damaged superblock may name a file of a user.
            let is_named = self.is_in_place(ino)
                && self.inode_of(ino).is_some_and(|inode| !inode.last_name().is_empty());
            if let Some(entry) = self.table.find(ino.into()).filter(|_| !is_named) {
                self.table.note(entry, fact::HIDDEN);
            }
        }
        let root = self.superblock.root_ino;
        for ino in std::mem::take(&mut self.orphans) {
            match self.table.find_inode(ino) {
                Some(entry) if ino == root || self.table.has(entry, fact::HIDDEN) => {
                    let known = "it is the root or a quota file, and the orphan list names it";
                    let finding = Finding::new(Kind::OrphanLinks, Place::Inode(ino), known)
                        .repaired_by("take the inode out of the list");
                    self.report.add(finding.with_certainty(Certainty::Certain));
                    self.fix(Fix::NoOrphan(ino));
                }
                Some(entry) => self.table.note(entry, fact::ORPHAN),
                None => {
                    let known = format!("the orphan list names {ino}, which is not in use");
                    self.add(Kind::OrphanInode, Place::Checkpoint(self.pack), known);
                    self.fix(Fix::NoOrphan(ino));
                }
            }
        }
    }

    /// Returns true if the block that the NAT names for an inode has its number. The block of another inode has that one's name.
    fn is_in_place(&mut self, ino: Ino) -> bool {
        let Some(entry) = self.table.find(ino.into()) else { return false };
        let block = self.cache.block(&self.io, self.table.addr(entry));
        block.is_ok_and(|bytes| NodeFooter::of(&bytes).nid == Nid::from(ino))
    }

    /// Notes that a directory, by its index, names another one.
    pub fn note_parent(&mut self, child: Ino, parent: usize) {
        if let Ok(number) = self.directories.binary_search_by_key(&child, |directory| directory.ino) {
            self.directories[number].parent = u32::try_from(parent).ok();
        }
    }

    /// Checks link counts, parents, and inodes without names.
    pub fn check_links(&mut self) {
        let root = self.superblock.root_ino;
        if let Some(entry) = self.table.find(root.into()) {
            self.table.take_links(entry, 1);
            self.table.note(entry, fact::REACHED);
        } else {
            self.add(Kind::DentryInode, Place::Inode(root), "the root directory is not in use");
            self.fix(Fix::Root);
        }
        self.conclude_names();
        self.check_parents();
        self.check_cycles();
        // The name of an inode may be in a directory that could not be read.
        let any_broken = self.directories.iter().any(|directory| directory.is_broken);
        let unreached = if any_broken { Certainty::Unclear } else { Kind::InodeUnreached.certainty() };
        self.for_each_inode(|checker, nid, entry| {
            checker.check_orphan(nid, entry);
            checker.check_count(nid, entry, unreached);
        });
        self.remove_noted_names();
    }

    /// Calls `each` with every inode.
    pub fn for_each_inode(&mut self, mut each: impl FnMut(&mut Self, Nid, Entry)) {
        let mut next = Nid(0);
        loop {
            let inodes = self.table.inodes_from(next);
            let Some((last, _)) = inodes.last() else { return };
            next = Nid(last.0.saturating_add(1));
            inodes.into_iter().for_each(|(nid, entry)| each(self, nid, entry));
        }
    }

    /// Checks that an orphan was removed: a list that is damaged must not remove files. Names are found elsewhere. An inode
    /// that never had a name may have links: its creation failed in Linux.
    fn check_orphan(&mut self, nid: Nid, entry: Entry) {
        let skipped = fact::BROKEN | fact::HIDDEN | fact::INVALID | fact::REACHED;
        if !self.table.has(entry, fact::ORPHAN) || self.table.has(entry, skipped) {
            return;
        }
        let ino = Ino::from(nid);
        let named = self.inode_of(ino).filter(|inode| !inode.last_name().is_empty());
        let links = named.map_or(0, |inode| inode.head().links.get());
        if links > 0 {
            self.add(Kind::OrphanLinks, Place::Inode(ino), format!("i_links {links}, and it is an orphan"));
            self.fix(Fix::NoOrphan(ino));
            self.fix(Fix::Attach(ino));
        }
    }

    /// Checks the link count of an inode. `unreached` is the certainty of the finding that it has no name.
    fn check_count(&mut self, nid: Nid, entry: Entry, unreached: Certainty) {
        let ino = Ino::from(nid);
        let skipped = fact::BROKEN | fact::HIDDEN | fact::ORPHAN | fact::INVALID;
        if self.table.has(entry, skipped) || self.table.kind(entry).is_none() {
            return;
        }
        if !self.table.has(entry, fact::REACHED) {
            let own = self.inode_of(ino);
            let own = own.map_or(String::new(), |inode| {
                let name = f2fs::printable::name(inode.last_name()).into_owned();
                format!("; it was entered as \"{name}\" into inode {}", inode.head().pino.get())
            });
            let known = format!("no directory names it{own}");
            let finding = Finding::new(Kind::InodeUnreached, Place::Inode(ino), known);
            let finding = finding.with_certainty(unreached);
            let links = self.inode_of(ino).map(|inode| inode.head().links.get());
            let (finding, fix) = match links {
                // It was removed while it was open.
                Some(0) => (
                    finding.repaired_by(
                        "enter it into the orphan list: without a link, the next mount removes it",
                    ),
                    Fix::Orphan(ino),
                ),
                _ => (finding, Fix::Attach(ino)),
            };
            self.report.add(finding);
            self.fix(fix);
            return;
        }
        if self.table.links_left(entry) != 0 {
            self.set_links(nid, entry);
        }
    }

    /// Reports a link count that is not the number of names that were found, and has it set. If a file has fewer names, a
    /// block of a directory may have lost them: a zeroed one shows nothing else.
    fn set_links(&mut self, nid: Nid, entry: Entry) {
        let ino = Ino::from(nid);
        let stored = self.inode_of(ino).map_or(0, |inode| inode.head().links.get());
        let found = stored.wrapping_sub(self.table.links_left(entry));
        let is_file = self.table.kind(entry) != Some(FileType::Directory);
        // Without a right checksum, the number itself may be damaged.
        let counts = is_file && !self.table.has(entry, fact::UNSEALED);
        let mut finding =
            Finding::new(Kind::LinkCount, Place::Inode(ino), format!("i_links {stored}, {found} found"));
        if counts {
            self.report.note_links(ino, stored, found);
            if found < stored {
                finding.known += "; a block of a directory may have lost the other names";
                finding = finding.with_certainty(Certainty::Unclear);
            }
        }
        self.report.add(finding);
        self.fix(Fix::Node(Slot { nid, at: LINKS }, found.to_le_bytes().to_vec()));
    }

    /// Compares each ".." with the directory that names its directory.
    fn check_parents(&mut self) {
        for number in 0..self.directories.len() {
            let directory = self.directories[number];
            let parent = match directory.parent {
                Some(parent) => self.directories[parent as usize].ino,
                None if directory.ino == self.superblock.root_ino => directory.ino,
                None => continue,
            };
            if let Some(dotdot) = directory.dotdot.filter(|dotdot| *dotdot != parent) {
                let known = format!("\"..\" names {dotdot}, {parent} names the directory");
                self.add(Kind::DotsWrong, Place::Dir(directory.ino, 0), known);
                self.set_dotdot(directory.ino, parent);
            }
            self.check_own_parent(directory.ino, parent);
        }
    }

    /// Compares the parent in a directory's inode with the directory that names it. The root has none.
    fn check_own_parent(&mut self, dir: Ino, parent: Ino) {
        let Some(inode) = self.inode_of(dir).filter(|_| dir != self.superblock.root_ino) else { return };
        let stored = inode.head().pino.get();
        if stored != parent.0 {
            let known = format!("i_pino {stored}, {parent} names the directory");
            self.add(Kind::DirParent, Place::Inode(dir), known);
            self.fix(Fix::Node(Slot { nid: dir.into(), at: PARENT }, parent.0.to_le_bytes().to_vec()));
        }
    }

    /// Finds directories whose parents lead back to themselves.
    fn check_cycles(&mut self) {
        for start in 0..self.directories.len() {
            let walk = u32::try_from(start + 1).unwrap_or(u32::MAX);
            let mut at = start;
            while self.directories[at].visit == 0 {
                self.directories[at].visit = walk;
                match self.directories[at].parent {
                    Some(parent) => at = parent as usize,
                    None => break,
                }
            }
            let closes = self.directories[at].parent.is_some() && self.directories[at].visit == walk;
            if closes && self.leads_to(at) {
                let ino = self.directories[at].ino;
                self.add(Kind::DirCycle, Place::Inode(ino), "its parents lead back to it, not to the root");
                if let Some(parent) = self.directories[at].parent {
                    self.note_removal(self.directories[parent as usize].ino, ino, 0);
                }
                // Later walks must not report the cycle again.
                self.directories[at].parent = None;
            }
        }
    }

    /// Returns true if the parents of a directory lead back to it.
    fn leads_to(&self, start: usize) -> bool {
        let mut at = start;
        for _ in 0..self.directories.len() {
            match self.directories[at].parent {
                Some(parent) => at = parent as usize,
                None => return false,
            }
            if at == start {
                return true;
            }
        }
        false
    }
}
