//! Blocks of entries that a write put into the wrong directory.
//!
//! Their names fit the hashes, and the inodes that they name are in use, but have more names than they count. In their own
//! directory, the same names lie in the same slots, and the inodes carry them with that directory as their parent.

use std::collections::BTreeMap;

use f2fs::units::Ino;
use rustc_hash::FxHashSet;

use crate::{
    areas::Held,
    checker::{Checker, ODD_MAX},
};

/// A name in an area: its inode, its slot and its hash.
type Place = (Ino, usize, u32);

/// Names of an area.
#[derive(Debug)]
struct Area {
    dir: Ino,
    /// Number of all names.
    names: usize,
    /// Names of inodes that have too many and that do not carry this one.
    strange: Vec<Place>,
}

impl Checker<'_> {
    /// Finds areas that are copies of those of another directory, and notes that they show damage.
    pub fn doubt_copied_areas(&mut self) {
        let mut many: FxHashSet<Ino> = FxHashSet::default();
        self.for_each_inode(|checker, nid, entry| {
            if checker.has_too_many_names(entry) && many.len() < ODD_MAX {
                many.insert(Ino::from(nid));
            }
        });
        if many.len() < 2 {
            return;
        }
        let mut copies: Vec<(Held, Area)> = Vec::new();
        let mut own: FxHashSet<Place> = FxHashSet::default();
        let mut strange = 0;
        for number in 0..self.directories.len() {
            let dir = self.directories[number].ino;
            let Some(inode) = self.inode_of(dir) else { continue };
            let mut areas: BTreeMap<Held, Area> = BTreeMap::new();
            self.edit_areas(&inode, |checker, held, entry, _| {
                let area = areas.entry(held).or_insert(Area { dir, names: 0, strange: Vec::new() });
                area.names += 1;
                let place = (entry.ino, entry.slot, entry.hash);
                if !many.contains(&entry.ino) || own.len() + strange >= ODD_MAX {
                    return;
                }
                match checker.carries(entry.ino, entry.name, dir) {
                    true => drop(own.insert(place)),
                    false => {
                        area.strange.push(place);
                        strange += 1;
                    }
                }
            });
            let is_most = |area: &Area| area.strange.len() > 1 && 2 * area.strange.len() > area.names;
            copies.extend(areas.into_iter().filter(|(_, area)| is_most(area)));
        }
        for (held, area) in copies {
            if area.strange.iter().all(|place| own.contains(place)) {
                self.doubt_area(held, area.dir);
            }
        }
    }
}
