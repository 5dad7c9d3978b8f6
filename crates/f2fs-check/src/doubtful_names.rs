//! Names in areas of entries that show damage. The link counts of inodes and the names that they carry decide on them, when
//! all directories are known.

use std::collections::BTreeMap;

use f2fs::{
    Place,
    format::{
        FileType,
        dentry::{Dentries, Dentry, SlotUse, slots_for},
        inode::advise,
        node::NodeBlock,
    },
    units::Ino,
};
use rustc_hash::FxHashMap;

use crate::{
    Finding, Fix, Kind, Loss,
    areas::Held,
    blank_areas::Blank,
    checker::{Checker, ODD_MAX},
    names::{Naming, is_dot},
    table::{Entry, fact},
};

/// Facts about names that damage casts doubt on, for the time when all directories were walked.
#[derive(Debug, Default)]
pub struct DoubtfulNames {
    /// Areas that show damage, with their directories: at most [`ODD_MAX`].
    areas: BTreeMap<Held, Ino>,
    /// Names that were taken out of their area, to be entered again: directory, name, hash and inode.
    entering: Vec<(Ino, Box<[u8]>, u32, Ino)>,
    /// Areas with names of inodes that are not in use: one for each name, at most [`ODD_MAX`].
    lost: Vec<Held>,
    /// Inodes by names whose bytes may be damaged and their directories: at most [`ODD_MAX`] names.
    damaged: BTreeMap<(Ino, Box<[u8]>), Vec<Ino>>,
    /// Blocks of entries without a bitmap, at most [`ODD_MAX`].
    blank: Vec<Blank>,
}

/// One name less, in arithmetic that wraps.
const LESS: u32 = 1u32.wrapping_neg();

impl Checker<'_> {
    /// Notes that an area shows damage.
    pub fn doubt_area(&mut self, held: Held, dir: Ino) {
        if self.doubtful_names.areas.len() < ODD_MAX {
            self.doubtful_names.areas.insert(held, dir);
        }
    }

    /// Notes a name of an inode that is not in use.
    pub fn note_lost_name(&mut self, held: Held) {
        match self.doubtful_names.lost.len() < ODD_MAX {
            true => self.doubtful_names.lost.push(held),
            false => self.lose(Loss::Name),
        }
    }

    /// Notes a block of entries without a bitmap.
    pub fn note_blank(&mut self, blank: Blank) {
        if self.doubtful_names.blank.len() < ODD_MAX {
            self.doubtful_names.blank.push(blank);
        }
    }

    /// Notes a name whose bytes may be damaged, and which nothing restores.
    pub fn note_damaged_name(&mut self, dir: Ino, name: &[u8], ino: Ino) {
        let key = (dir, name.into());
        match self.doubtful_names.damaged.len() < ODD_MAX || self.doubtful_names.damaged.contains_key(&key) {
            true => self.doubtful_names.damaged.entry(key).or_default().push(ino),
            false => self.lose(Loss::Entry),
        }
    }

    /// Notes a name that was taken out of its area, to be entered again.
    pub fn enter_later(&mut self, dir: Ino, name: &[u8], hash: u32, ino: Ino) {
        match self.doubtful_names.entering.len() < ODD_MAX {
            true => self.doubtful_names.entering.push((dir, name.into(), hash, ino)),
            false => self.fix(Fix::Enter { dir, name: name.to_vec(), hash, ino }),
        }
    }

    /// Decides on the names in areas that show damage, and on those that were taken out of their area.
    pub fn conclude_names(&mut self) {
        let blank = std::mem::take(&mut self.doubtful_names.blank);
        self.mark_names(blank);
        for held in std::mem::take(&mut self.doubtful_names.lost) {
            // In an area that shows damage, the number is damaged rather than the inode lost: the link count of another one
            // tells the loss.
            if !self.doubtful_names.areas.contains_key(&held) {
                self.lose(Loss::Name);
            }
        }
        self.doubt_copied_areas();
        self.give_names_back();
        for ((dir, name), inos) in std::mem::take(&mut self.doubtful_names.damaged) {
            for ino in inos {
                // Otherwise the entry is removed.
                if self.table.find_inode(ino).is_some() && !self.is_surplus(dir, &name, ino) {
                    self.lose(Loss::Entry);
                }
            }
        }
        for (held, dir) in std::mem::take(&mut self.doubtful_names.areas) {
            self.drop_surplus_names(held, dir);
        }
        for (dir, name, hash, ino) in std::mem::take(&mut self.doubtful_names.entering) {
            if self.is_surplus(dir, &name, ino) {
                self.drop_copy(dir, ino);
            } else {
                self.fix(Fix::Enter { dir, name: name.into_vec(), hash, ino });
            }
        }
    }

    /// Takes back that an entry of a directory was counted as a name of an inode.
    pub fn drop_copy(&mut self, dir: Ino, ino: Ino) {
        let Some(named) = self.table.find(ino.into()) else { return };
        self.table.take_links(named, LESS);
        self.count_parent(dir, named, LESS);
    }

    /// Counts a directory as a link of its parent.
    fn count_parent(&mut self, parent: Ino, child: Entry, links: u32) {
        if self.table.kind(child) == Some(FileType::Directory) {
            if let Some(parent) = self.table.find(parent.into()) {
                self.table.take_links(parent, links);
            }
        }
    }

    /// Returns true if an inode carries a name in a directory.
    pub fn carries(&mut self, ino: Ino, name: &[u8], dir: Ino) -> bool {
        self.inode_of(ino).is_some_and(|inode| is_carried(&inode, name, dir))
    }

    /// Returns true if more names of a file were found than it counts. A directory counts its children.
    pub fn has_too_many_names(&self, entry: Entry) -> bool {
        let is_file = self.table.kind(entry).is_some_and(|kind| kind != FileType::Directory);
        // The number wraps then.
        is_file && self.table.links_left(entry) > u32::MAX / 2
    }

    /// Returns true if an inode has all its names without this one, which it does not carry.
    fn is_surplus(&mut self, dir: Ino, name: &[u8], ino: Ino) -> bool {
        let Some(entry) = self.table.find(ino.into()) else { return false };
        if self.table.has(entry, fact::BROKEN | fact::INVALID) {
            return false;
        }
        if self.table.kind(entry) == Some(FileType::Directory) {
            return self.parent_of(ino).is_some_and(|parent| parent != dir);
        }
        self.has_too_many_names(entry)
            && self.inode_of(ino).is_some_and(|inode| inode.head().links.get() > 0)
            && !self.carries(ino, name, dir)
    }

    /// The directory that names a directory.
    fn parent_of(&self, dir: Ino) -> Option<Ino> {
        let number = self.directories.binary_search_by_key(&dir, |directory| directory.ino).ok()?;
        let parent = self.directories[number].parent?;
        Some(self.directories[parent as usize].ino)
    }

    /// Removes the names in an area that shows damage whose files have all their names without them: first those with a wrong
    /// hash.
    fn drop_surplus_names(&mut self, held: Held, dir: Ino) {
        let Some(inode) = self.inode_of(dir).filter(|_| self.dir_budget > 0) else { return };
        self.dir_budget -= 1;
        let (Some(stored), Some(old)) = (self.stored_area(&inode, held), self.area(&inode, held)) else {
            return;
        };
        let (stored, view) =
            (Dentries::new(&stored[..], Place::Volume), Dentries::new(&old[..], Place::Volume));
        let naming = Naming::of(&inode);
        let has_hash = |entry: &Dentry<'_>| {
            let hash = stored.raw(entry.slot).hash.get();
            naming.hash(entry.name, hash) == hash
        };
        let mut entries: Vec<Dentry<'_>> =
            view.entries().flatten().filter(|entry| !is_dot(entry.name)).collect();
        entries.sort_by_key(has_hash);
        let mut area = Dentries::new(old.clone(), Place::Volume);
        for entry in entries {
            let is_file = entry.kind != Some(FileType::Directory);
            if is_file && self.is_surplus(dir, entry.name, entry.ino) {
                let known = format!(
                    "{} names {}, which has all its names without it",
                    naming.shown(entry.name),
                    entry.ino
                );
                let finding = Finding::new(Kind::DentryInode, Place::Inode(dir), known);
                self.report.add(finding.repaired_by("remove the entry, in a damaged block"));
                let slots = entry.slot..entry.slot + slots_for(entry.name.len());
                slots.for_each(|slot| area.set_use(slot, SlotUse::Free));
                self.drop_copy(dir, entry.ino);
            }
        }
        self.change_area(held, &old, &area.into_inner());
    }

    /// Finds inodes with too few names whose own name leads to another inode: the number in the entry is wrong.
    fn give_names_back(&mut self) {
        let skipped = fact::BROKEN | fact::HIDDEN | fact::ORPHAN | fact::INVALID;
        let mut nameless: BTreeMap<Ino, Vec<Ino>> = BTreeMap::new();
        let mut count = 0;
        self.for_each_inode(|checker, nid, entry| {
            let left = checker.table.links_left(entry);
            let is_reached = checker.table.has(entry, fact::REACHED);
            let lacks_name = match checker.table.kind(entry) {
                None => false,
                Some(FileType::Directory) => !is_reached,
                Some(_) => !is_reached || (1..=u32::MAX / 2).contains(&left),
            };
            if !lacks_name || checker.table.has(entry, skipped) || count >= ODD_MAX {
                return;
            }
            let Some(inode) = checker.inode_of(Ino::from(nid)) else { return };
            let dir = Ino(inode.head().pino.get());
            let has_name = !inode.last_name().is_empty() && inode.head().links.get() > 0;
            if has_name && checker.directories.binary_search_by_key(&dir, |directory| directory.ino).is_ok() {
                nameless.entry(dir).or_default().push(Ino::from(nid));
                count += 1;
            }
        });
        for (dir, inodes) in nameless {
            self.give_names_of(dir, &inodes);
        }
    }

    /// Lets the names that inodes of a directory carry name them, if they name others by mistake.
    fn give_names_of(&mut self, dir: Ino, inodes: &[Ino]) {
        let Some(inode) = self.inode_of(dir) else { return };
        let mut own: FxHashMap<Vec<u8>, Ino> = FxHashMap::default();
        for ino in inodes {
            own.extend(self.inode_of(*ino).map(|inode| (inode.last_name().to_vec(), *ino)));
        }
        let naming = Naming::of(&inode);
        self.edit_areas(&inode, |checker, held, entry, area| {
            let Some(ino) = own.get(entry.name).copied().filter(|ino| *ino != entry.ino) else { return };
            let Some((right, wrong)) = checker.table.find_inode(ino).zip(checker.table.find_inode(entry.ino))
            else {
                return;
            };
            let Some(kind) = checker.table.kind(right) else { return };
            if !checker.is_mistaken(dir, held, entry, (ino, kind)) {
                return;
            }
            let shown = naming.shown(entry.name);
            let known = format!("{shown} names {}, and is the name of {ino}, which lacks one", entry.ino);
            let finding = Finding::new(Kind::DentryInode, Place::Inode(dir), known);
            checker.report.add(finding.repaired_by(format!("let it name {ino}")));
            area.set_target(entry.slot, ino, kind);
            // Its hash was damaged, and not the name.
            checker.doubtful_names.damaged.remove(&(dir, entry.name.into()));
            checker.take_name(dir, entry.ino, wrong);
            checker.table.take_links(right, 1);
            checker.table.note(right, fact::REACHED);
            checker.count_parent(dir, right, 1);
            if let Ok(number) = checker.directories.binary_search_by_key(&dir, |directory| directory.ino) {
                checker.note_parent(ino, number);
            }
            own.remove(entry.name);
        });
    }

    /// Returns true if an entry, whose name `right` carries and lacks, names another inode by mistake: its area shows damage, or
    /// that inode has too many names.
    fn is_mistaken(
        &mut self,
        dir: Ino,
        held: Held,
        entry: &Dentry<'_>,
        (right, kind): (Ino, FileType),
    ) -> bool {
        let Some(wrong) = self.table.find_inode(entry.ino) else { return false };
        if self.table.has(wrong, fact::BROKEN | fact::INVALID) || self.carries(entry.ino, entry.name, dir) {
            return false;
        }
        let is_certain = self.inode_of(right).is_some_and(|inode| !inode.has_advise(advise::LOST_PINO));
        let is_surplus = is_certain && entry.kind == Some(kind) && self.has_too_many_names(wrong);
        is_surplus || self.doubtful_names.areas.contains_key(&held)
    }

    /// Takes a name of a directory away from an inode.
    fn take_name(&mut self, dir: Ino, ino: Ino, named: Entry) {
        self.drop_copy(dir, ino);
        let is_last = match self.table.kind(named) {
            Some(FileType::Directory) => {
                self.parent_of(ino) == Some(dir) && !self.removals.contains_key(&(dir, ino))
            }
            _ => {
                let links = self.inode_of(ino).map(|inode| inode.head().links.get());
                links == Some(self.table.links_left(named))
            }
        };
        if is_last {
            self.table.forget(named, fact::REACHED);
            if let Ok(number) = self.directories.binary_search_by_key(&ino, |directory| directory.ino) {
                self.directories[number].parent = None;
            }
        }
    }
}

/// Returns true if an inode carries a name in a directory.
pub fn is_carried(inode: &NodeBlock, name: &[u8], dir: Ino) -> bool {
    inode.last_name() == name && inode.head().pino.get() == dir.0
}
