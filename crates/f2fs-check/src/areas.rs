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
    Finding, Fix, Kind, NewBlock, Slot,
    checker::{Checker, ODD_MAX},
    inodes::has_map,
    names::Naming,
    reader::read_block,
    table::{Table, fact},
};

/// Place of an area of directory entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// Makes a fix of the difference of two versions of an area.
pub fn edited(held: Held, old: &[u8], new: &[u8]) -> Option<Fix> {
    let first = old.iter().zip(new).position(|(old, new)| old != new)?;
    let last = old.iter().zip(new).rposition(|(old, new)| old != new)?;
    let bytes = new[first..=last].to_vec();
    Some(match held {
        Held::Inode(slot) => Fix::Node(Slot { at: slot.at + first, ..slot }, bytes),
        Held::Block(addr) => Fix::Data(addr, first, bytes),
    })
}

impl Checker<'_> {
    /// Places of all areas of a directory.
    fn areas_of(&mut self, inode: &Arc<NodeBlock>) -> Vec<Held> {
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

    /// Reads an area.
    fn area(&mut self, inode: &NodeBlock, held: Held) -> Option<Vec<u8>> {
        match held {
            Held::Inode(_) => Some(inode.inline_area().to_vec()),
            Held::Block(addr) => read_block(&self.io, addr).ok().map(<[u8]>::into_vec),
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
        self.edit_areas(&inode, |_, entry, area| {
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
            self.edit_areas(dir, |_, entry, _| {
                if own.get(&entry.ino).is_some_and(|own| own == entry.name) {
                    found.insert(entry.ino);
                }
            });
        }
        own.retain(|ino, _| found.contains(ino));
        own
    }

    /// Lets the names that inodes of a directory carry name them, if they name other files with too many names.
    pub fn give_names_of(&mut self, dir: Ino, inodes: &[Ino]) {
        let Some(inode) = self.inode_of(dir) else { return };
        let mut own: FxHashMap<Vec<u8>, Ino> = FxHashMap::default();
        for ino in inodes {
            own.extend(self.inode_of(*ino).map(|inode| (inode.last_name().to_vec(), *ino)));
        }
        let naming = Naming::of(&inode);
        self.edit_areas(&inode, |checker, entry, area| {
            let Some(ino) = own.get(entry.name).copied().filter(|ino| *ino != entry.ino) else { return };
            let entry_of =
                |table: &Table, ino: Ino| table.find(ino.into()).filter(|found| table.ino(*found) == ino);
            let found = entry_of(&checker.table, ino).zip(entry_of(&checker.table, entry.ino));
            let Some((right, wrong)) = found else { return };
            let kind = checker.table.kind(right);
            // The number wraps if more names were found than i_links counts.
            let has_too_many = checker.table.links_left(wrong) > u32::MAX / 2;
            let is_own = checker
                .inode_of(entry.ino)
                .is_some_and(|other| other.last_name() == entry.name && other.head().pino.get() == dir.0);
            let is_directory = checker.table.kind(wrong) == Some(FileType::Directory);
            let kind =
                kind.filter(|kind| Some(*kind) == entry.kind && has_too_many && !is_own && !is_directory);
            let Some(kind) = kind else { return };
            let shown = naming.shown(entry.name);
            let known = format!("{shown} names {}, and is the name of {ino}, which nothing names", entry.ino);
            let finding = Finding::new(Kind::DentryInode, Place::Inode(dir), known);
            checker.report.add(finding.repaired_by(format!("let it name {ino}")));
            area.set_target(entry.slot, ino, kind);
            checker.table.take_links(wrong, 1u32.wrapping_neg());
            checker.table.take_links(right, 1);
            checker.table.note(right, fact::REACHED);
            own.remove(entry.name);
        });
    }

    /// Calls `each` with every entry of a directory, except the dots, and with its area, which `each` may change.
    fn edit_areas(
        &mut self,
        dir: &Arc<NodeBlock>,
        mut each: impl FnMut(&mut Self, &Dentry<'_>, &mut Dentries<Vec<u8>>),
    ) {
        for held in self.areas_of(dir) {
            if self.dir_budget == 0 {
                return;
            }
            self.dir_budget -= 1;
            let Some(old) = self.area(dir, held) else { continue };
            let mut area = Dentries::new(old.clone(), Place::Volume);
            for entry in Dentries::new(&old[..], Place::Volume).entries().flatten() {
                if entry.name != b"." && entry.name != b".." {
                    each(self, &entry, &mut area);
                }
            }
            if let Some(fix) = edited(held, &old, &area.into_inner()) {
                self.fix(fix);
            }
        }
    }

    /// Keeps that one of two names of a directory which ".." confirms, else the one that its inode carries, else the first.
    pub fn drop_second_name(&mut self, child: Ino, second: usize) {
        let second = self.directories[second].ino;
        let place = self.directories.binary_search_by_key(&child, |directory| directory.ino);
        let first = place.ok().and_then(|number| self.directories[number].parent);
        let Some(first) = first.map(|number| self.directories[number as usize].ino) else { return };
        if self.removals.contains_key(&(second, child)) {
            return;
        }
        if first == second {
            self.note_removal(second, child, 1);
        } else if self.dotdot_of(child) == Some(second) {
            self.note_removal(first, child, 0);
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
            if let Some(fix) = edited(held, &old, &area.into_inner()) {
                self.fix(fix);
            }
            return;
        }
    }

    /// Enters the dots that a directory lacks; `dots` counts those that it has.
    pub fn enter_dots(&mut self, inode: &Arc<NodeBlock>, dots: [u32; 2]) {
        let ino = inode.ino();
        let parent = Ino(inode.head().pino.get());
        let is_directory = self.directories.binary_search_by_key(&parent, |directory| directory.ino).is_ok();
        let parent =
            if is_directory && ino != self.superblock.root_ino { parent } else { self.superblock.root_ino };
        let wanted = [(&b"."[..], ino), (b"..", parent)].into_iter().zip(dots);
        let missing: Vec<_> = wanted.filter(|(_, count)| *count == 0).map(|(dot, _)| dot).collect();
        let (held, old) = match self.first_area(inode) {
            Some((held, bytes)) => (Some(held), bytes),
            None => (None, vec![0; self.geometry.block_size.bytes()]),
        };
        let mut area = Dentries::new(old.clone(), Place::Volume);
        for (name, target) in missing {
            let preferred = name.len() - 1;
            let slot = if area.is_used(preferred) { area.room_for(1) } else { Some(preferred) };
            let Some(slot) = slot else { return };
            area.insert(slot, 0, target, FileType::Directory, name);
        }
        let new = area.into_inner();
        let fix = match held {
            Some(held) => edited(held, &old, &new),
            None => self.address_slot(inode, 0).map(|slot| Fix::Block(slot, NewBlock::Bytes(new))),
        };
        if let Some(fix) = fix {
            self.fix(fix);
        }
    }
}
