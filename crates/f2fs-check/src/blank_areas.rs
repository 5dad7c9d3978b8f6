//! Blocks of entries whose bitmap is zeroes, although a directory keeps no block without a name.
//!
//! Names of inodes that lack some come back, if their hashes confirm them. The block may have names that were removed
//! before: of an inode with more names there than it lacks, only the one that it carries comes back.

use std::collections::BTreeMap;

use f2fs::{
    Place,
    format::{
        FileType,
        dentry::{Dentries, SlotUse, slots_for},
    },
    units::Ino,
};

use crate::{
    Certainty, Finding, Kind,
    areas::Held,
    checker::{Checker, ODD_MAX},
    names::{Naming, is_dot},
    table::fact,
};

/// A block of entries without a bitmap.
#[derive(Debug, Clone, Copy)]
pub struct Blank {
    /// Its place.
    pub held: Held,
    /// The directory.
    pub dir: Ino,
    /// Number of the block in the directory.
    pub block: u64,
}

/// A name in a block without a bitmap.
struct Unmarked {
    slot: usize,
    name: Vec<u8>,
    is_carried: bool,
}

impl Checker<'_> {
    /// Marks the names in blocks without a bitmap of inodes that lack names.
    pub fn mark_names(&mut self, blanks: Vec<Blank>) {
        let mut names: BTreeMap<Ino, Vec<(usize, Unmarked)>> = BTreeMap::new();
        let mut count = 0;
        for (number, blank) in blanks.iter().enumerate() {
            for (ino, unmarked) in self.unmarked(blank) {
                if count < ODD_MAX {
                    names.entry(ino).or_default().push((number, unmarked));
                    count += 1;
                }
            }
        }
        let mut marked: BTreeMap<usize, Vec<(Ino, Unmarked)>> = BTreeMap::new();
        for (ino, mut names) in names {
            let Some(entry) = self.table.find(ino.into()) else { continue };
            let lacking = self.table.links_left(entry);
            let has_own = names.iter().any(|(_, name)| name.is_carried);
            // Without any name, the carried one is among those that are lost.
            let is_own_lost = !has_own && !self.table.has(entry, fact::REACHED);
            if names.len() as u32 > lacking.saturating_sub(u32::from(is_own_lost)) {
                names.retain(|(_, name)| name.is_carried);
                names.truncate(lacking as usize);
            }
            if !names.is_empty() {
                self.table.take_links(entry, names.len() as u32);
                self.table.note(entry, fact::REACHED);
            }
            for (number, name) in names {
                marked.entry(number).or_default().push((ino, name));
            }
        }
        for (number, names) in marked {
            self.mark(&blanks[number], names);
        }
    }

    /// The names in a block of inodes that lack names.
    fn unmarked(&mut self, blank: &Blank) -> Vec<(Ino, Unmarked)> {
        let Some(inode) = self.inode_of(blank.dir).filter(|_| self.dir_budget > 0) else { return Vec::new() };
        self.dir_budget -= 1;
        let Some(mut bytes) = self.stored_area(&inode, blank.held) else { return Vec::new() };
        let naming = Naming::of(&inode);
        let mut area = Dentries::new(&mut bytes[..], Place::Volume);
        (0..area.slots()).for_each(|slot| area.set_use(slot, SlotUse::Used));
        let skipped = fact::BROKEN | fact::HIDDEN | fact::ORPHAN | fact::INVALID;
        let mut found = Vec::new();
        // A removed name may reach over the slots of a later one.
        for entry in (0..area.slots()).filter_map(|slot| area.entry_at(slot)) {
            let Some(named) = self.table.find_inode(entry.ino) else { continue };
            let kind = self.table.kind(named).filter(|kind| *kind != FileType::Directory);
            let lacks_names = (1..=u32::MAX / 2).contains(&self.table.links_left(named));
            let is_sound = !is_dot(entry.name)
                && naming.is_possible(entry.name)
                && naming.hash(entry.name, !entry.hash) == entry.hash;
            if kind.is_some()
                && kind == entry.kind
                && lacks_names
                && is_sound
                && !self.table.has(named, skipped)
            {
                let is_carried = self.carries(entry.ino, entry.name, blank.dir);
                let name = entry.name.to_vec();
                found.push((entry.ino, Unmarked { slot: entry.slot, name, is_carried }));
            }
        }
        found
    }

    /// Marks the slots of names.
    fn mark(&mut self, blank: &Blank, names: Vec<(Ino, Unmarked)>) {
        let Some(inode) = self.inode_of(blank.dir) else { return };
        let Some(old) = self.area(&inode, blank.held) else { return };
        let naming = Naming::of(&inode);
        let mut area = Dentries::new(old.clone(), Place::Volume);
        for (ino, Unmarked { slot, name, is_carried }) in names {
            let shown = naming.shown(&name);
            let known = format!("slot {slot} has {shown} of {ino}, which lacks a name, and no bit is set");
            let finding = Finding::new(Kind::DentryName, Place::Dir(blank.dir, blank.block), known);
            let certainty = if is_carried { Certainty::Likely } else { Certainty::Unclear };
            self.report.add(finding.repaired_by("mark the slots as used").with_certainty(certainty));
            (slot..slot + slots_for(name.len())).for_each(|slot| area.set_use(slot, SlotUse::Used));
        }
        self.change_area(blank.held, &old, &area.into_inner());
    }
}
