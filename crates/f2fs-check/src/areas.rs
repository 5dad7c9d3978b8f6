//! Areas of directory entries: their places, and repairs of single entries.

use std::{collections::BTreeMap, sync::Arc};

use f2fs::{
    Place,
    format::{
        FileType,
        dentry::{Dentries, Dentry, SlotUse, slots_for},
        inode::inline,
        node::NodeBlock,
    },
    units::{BlockAddr, Ino},
};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    Fix, Loss, NewBlock, Slot,
    checker::{Checker, ODD_MAX},
    inodes::has_map,
    names::is_dot,
    reader::read_block,
};

/// Place of an area of directory entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Held {
    /// In the inode, from a byte on.
    Inode(Slot),
    /// A block of the directory.
    Block(BlockAddr),
}

impl Held {
    /// The inline area of a directory.
    pub fn of_inline(inode: &NodeBlock) -> Held {
        Held::Inode(Slot { nid: inode.nid(), at: inode.layout().inline_range().start })
    }
}

/// Returns true if an area begins with the entry "." of a directory.
pub fn begins_with_dot(area: &[u8], dir: Ino) -> bool {
    let area = Dentries::new(area, Place::Volume);
    let first = area.entries().next();
    matches!(first, Some(Ok(entry)) if entry.name == b"." && entry.ino == dir)
}

/// Makes a fix of the difference of two versions of an area.
fn edited(held: Held, old: &[u8], new: &[u8]) -> Option<Fix> {
    let first = old.iter().zip(new).position(|(old, new)| old != new)?;
    let last = old.iter().zip(new).rposition(|(old, new)| old != new)?;
    let bytes = new[first..=last].to_vec();
    Some(match held {
        Held::Inode(slot) => Fix::InlineData(Slot { at: slot.at + first, ..slot }, bytes),
        Held::Block(addr) => Fix::Data(addr, first, bytes),
    })
}

impl Checker<'_> {
    /// Places of all areas of a directory.
    pub fn areas_of(&mut self, inode: &Arc<NodeBlock>) -> Vec<Held> {
        if inode.has_inline(inline::DENTRY) {
            return vec![Held::of_inline(inode)];
        }
        let mut areas = Vec::new();
        if has_map(inode) {
            self.for_each_node(inode, |checker, _, addrs| {
                let real = addrs.iter().filter(|addr| checker.geometry.in_main(**addr));
                areas.extend(real.map(|addr| Held::Block(*addr)));
            });
        }
        areas
    }

    /// Reads an area, with the changes so far.
    pub fn area(&mut self, inode: &NodeBlock, held: Held) -> Option<Vec<u8>> {
        let bytes = self.stored_area(inode, held)?;
        Some(self.changed_area(held, &bytes).unwrap_or(bytes))
    }

    /// Reads an area as the device has it.
    pub fn stored_area(&mut self, inode: &NodeBlock, held: Held) -> Option<Vec<u8>> {
        match held {
            Held::Inode(_) => Some(inode.inline_area().to_vec()),
            Held::Block(addr) => read_block(&self.io, addr).ok().map(<[u8]>::into_vec),
        }
    }

    /// An area, whose bytes on the device are given, with the changes so far; `None` if there are none.
    pub fn changed_area(&self, held: Held, bytes: &[u8]) -> Option<Vec<u8>> {
        let changes = self.area_fixes.get(&held)?;
        let mut changed = bytes.to_vec();
        for number in changes {
            let (at, bytes) = match (&self.report.fixes()[*number], held) {
                (Fix::Data(_, at, bytes), _) => (*at, bytes),
                (Fix::InlineData(slot, bytes), Held::Inode(area)) => (slot.at - area.at, bytes),
                _ => unreachable!("the change of an area is one of bytes"),
            };
            changed[at..at + bytes.len()].copy_from_slice(bytes);
        }
        Some(changed)
    }

    /// Adds the change that makes `new` of an area, whose bytes with the changes so far are `old`.
    pub fn change_area(&mut self, held: Held, old: &[u8], new: &[u8]) {
        let Some(fix) = edited(held, old, new) else { return };
        let number = self.report.fixes().len();
        self.fix(fix);
        // A repair that is not whole is refused.
        if self.report.fixes().len() > number {
            self.area_fixes.entry(held).or_default().push(number);
        }
    }

    /// Notes that the names of an inode are removed from a directory, except the first `kept`. Damage beyond the number
    /// of notes is not repaired.
    pub fn note_removal(&mut self, dir: Ino, ino: Ino, kept: usize) {
        if let Some(noted) = self.removals.get_mut(&(dir, ino)) {
            *noted = kept.min(*noted);
        } else if self.removals.len() < ODD_MAX {
            self.removals.insert((dir, ino), kept);
        }
    }

    /// Removes the noted names, in one pass over each directory.
    pub fn remove_noted_names(&mut self) {
        let mut removals: BTreeMap<Ino, FxHashMap<Ino, usize>> = BTreeMap::new();
        for ((dir, ino), kept) in self.removals.drain() {
            removals.entry(dir).or_default().insert(ino, kept);
        }
        for (dir, kept) in removals {
            self.remove_names(dir, kept);
        }
    }

    /// Removes the names of inodes from a directory, except the first ones: `kept` has their number for each inode. The name
    /// that an inode carries comes first.
    fn remove_names(&mut self, dir: Ino, mut kept: FxHashMap<Ino, usize>) {
        let Some(inode) = self.inode_of(dir) else { return };
        let own = self.own_names_in(&inode, &kept);
        self.edit_areas(&inode, |_, _, entry, area| {
            let Some(kept) = kept.get_mut(&entry.ino) else { return };
            let is_first = own.get(&entry.ino).is_none_or(|own| own == entry.name);
            if *kept > 0 && is_first {
                *kept -= 1;
                return;
            }
            let slots = entry.slot..entry.slot + slots_for(entry.name.len());
            slots.for_each(|slot| area.set_use(slot, SlotUse::Free));
        });
    }

    /// The names that inodes carry, of those that a directory has and of which a name stays.
    fn own_names_in(
        &mut self,
        dir: &Arc<NodeBlock>,
        kept: &FxHashMap<Ino, usize>,
    ) -> FxHashMap<Ino, Vec<u8>> {
        let mut own: FxHashMap<Ino, Vec<u8>> = FxHashMap::default();
        for ino in kept.iter().filter(|(_, kept)| **kept > 0).map(|(ino, _)| *ino) {
            own.extend(self.inode_of(ino).map(|inode| (ino, inode.last_name().to_vec())));
        }
        let mut found: FxHashSet<Ino> = FxHashSet::default();
        if !own.is_empty() {
            self.edit_areas(dir, |_, _, entry, _| {
                if own.get(&entry.ino).is_some_and(|own| own == entry.name) {
                    found.insert(entry.ino);
                }
            });
        }
        own.retain(|ino, _| found.contains(ino));
        own
    }

    /// Calls `each` with every entry of a directory, except the dots, and with its area, which `each` may change.
    pub fn edit_areas(
        &mut self,
        dir: &Arc<NodeBlock>,
        mut each: impl FnMut(&mut Self, Held, &Dentry<'_>, &mut Dentries<Vec<u8>>),
    ) {
        for held in self.areas_of(dir) {
            if self.dir_budget == 0 {
                return;
            }
            self.dir_budget -= 1;
            let Some(old) = self.area(dir, held) else { continue };
            let mut area = Dentries::new(old.clone(), Place::Volume);
            for entry in Dentries::new(&old[..], Place::Volume).entries().flatten() {
                if !is_dot(entry.name) {
                    each(self, held, &entry, &mut area);
                }
            }
            self.change_area(held, &old, &area.into_inner());
        }
    }

    /// Keeps that one of two names of a directory which ".." confirms, else the one that its inode carries, else the first.
    pub fn drop_second_name(&mut self, child: Ino, second_number: usize) {
        let second = self.directories[second_number].ino;
        let place = self.directories.binary_search_by_key(&child, |directory| directory.ino);
        let first = place.ok().and_then(|number| self.directories[number].parent);
        let Some(first) = first.map(|number| self.directories[number as usize].ino) else { return };
        if self.removals.contains_key(&(second, child)) {
            return;
        }
        if first == second {
            self.note_removal(second, child, 1);
            return;
        }
        let dotdot = self.dotdot_of(child);
        let own = self.inode_of(child).map(|inode| Ino(inode.head().pino.get()));
        let confirmed = [dotdot, own].into_iter().flatten().find(|dir| *dir == first || *dir == second);
        if confirmed == Some(second) {
            self.note_removal(first, child, 0);
            self.note_parent(child, second_number);
        } else {
            self.note_removal(second, child, 0);
        }
    }

    /// The first area of a directory: its place and its bytes.
    fn first_area(&mut self, inode: &Arc<NodeBlock>) -> Option<(Held, Vec<u8>)> {
        let held = match inode.has_inline(inline::DENTRY) {
            true => Held::of_inline(inode),
            false => Held::Block(self.address_of(inode, 0).filter(|addr| self.geometry.in_main(*addr))?),
        };
        Some((held, self.area(inode, held)?))
    }

    /// The parent that a directory names.
    fn dotdot_of(&mut self, dir: Ino) -> Option<Ino> {
        let inode = self.inode_of(dir)?;
        let (_, bytes) = self.first_area(&inode)?;
        let area = Dentries::new(&bytes[..], Place::Volume);
        let mut entries = area.entries().flatten();
        entries.find(|entry| entry.name == b"..").map(|entry| entry.ino)
    }

    /// Sets the parent that a directory names.
    pub fn set_dotdot(&mut self, dir: Ino, parent: Ino) {
        let Some(inode) = self.inode_of(dir) else { return };
        for held in self.areas_of(&inode) {
            let Some(old) = self.area(&inode, held) else { continue };
            let view = Dentries::new(&old[..], Place::Volume);
            let slot = view.entries().flatten().find(|entry| entry.name == b"..").map(|entry| entry.slot);
            let Some(slot) = slot else { continue };
            let mut area = Dentries::new(old.clone(), Place::Volume);
            area.set_target(slot, parent, FileType::Directory);
            self.change_area(held, &old, &area.into_inner());
            return;
        }
    }

    /// Enters the dots that a directory lacks; `dots` counts those that it has. Names in their slots are entered again.
    pub fn enter_dots(&mut self, inode: &Arc<NodeBlock>, dots: [u32; 2]) {
        let ino = inode.ino();
        let parent = Ino(inode.head().pino.get());
        let is_directory = self.directories.binary_search_by_key(&parent, |directory| directory.ino).is_ok();
        let parent =
            if is_directory && ino != self.superblock.root_ino { parent } else { self.superblock.root_ino };
        let wanted = [(&b"."[..], ino), (b"..", parent)].into_iter().zip(dots);
        let mut missing: Vec<_> = wanted.filter(|(_, count)| *count == 0).map(|(dot, _)| dot).collect();
        let (held, old) = match self.first_area(inode) {
            Some((held, bytes)) => (Some(held), bytes),
            None => (None, vec![0; self.geometry.block_size.bytes()]),
        };
        let mut area = Dentries::new(old.clone(), Place::Volume);
        if area.slots() < dots.len() {
            return;
        }
        while let Some((name, target)) = missing.pop() {
            let slot = name.len() - 1;
            match self.vacate(inode, &mut area, slot) {
                Some((b".", target)) => missing.push((b".", target)),
                Some((b"..", target)) => missing.push((b"..", target)),
                _ => {}
            }
            area.insert(slot, 0, target, FileType::Directory, name);
        }
        let new = area.into_inner();
        match held {
            Some(held) => self.change_area(held, &old, &new),
            None => {
                if let Some(slot) = self.address_slot(inode, 0) {
                    self.fix(Fix::Block(slot, NewBlock::Bytes(new)));
                }
            }
        }
    }

    /// Frees a slot of an area. The name that it belongs to is entered again; if it is a dot, returns it with its inode.
    fn vacate(
        &mut self,
        dir: &NodeBlock,
        area: &mut Dentries<Vec<u8>>,
        slot: usize,
    ) -> Option<(&'static [u8], Ino)> {
        let copy = area.clone();
        let slots_of = |entry: &Dentry<'_>| entry.slot..entry.slot + slots_for(entry.name.len());
        let owner = copy.entries().flatten().find(|entry| slots_of(entry).contains(&slot));
        let Some(entry) = owner.filter(|_| area.is_used(slot)) else {
            area.set_use(slot, SlotUse::Free);
            return None;
        };
        slots_of(&entry).for_each(|slot| area.set_use(slot, SlotUse::Free));
        match entry.name {
            b"." => return Some((b".", entry.ino)),
            b".." => return Some((b"..", entry.ino)),
            _ => {}
        }
        if self.is_enterable(entry.ino) {
            self.enter_later(dir.ino(), entry.name, entry.hash, entry.ino);
        } else {
            self.lose(Loss::Entry);
        }
        None
    }
}
