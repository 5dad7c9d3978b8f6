//! Directories: their blocks, and the entries in them.

use std::sync::Arc;

use f2fs::{
    Place,
    format::{
        FileType,
        dentry::{Dentries, Dentry, SlotUse, slots_for},
        dir_hash,
        inode::inline,
        node::NodeBlock,
    },
    units::{BlockAddr, Ino},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    Certainty, Finding, Fix, Kind, Loss, Slot, Stage,
    areas::{Held, edited},
    checker::{Checker, ODD_MAX},
    inodes::{DEPTH, SIZE},
    names::{Naming, is_plain},
    reader::read_runs,
    remake::Named,
    table::fact,
};

/// Maximum number of names of a directory among which duplicates are looked for.
const HASHES_MAX: usize = 1 << 24;
/// Maximum number of names that are compared because they share a hash.
const SHARED_MAX: usize = 1 << 18;

/// Facts about a directory while its entries are checked.
struct Walk {
    /// Index in the list of directories.
    number: usize,
    ino: Ino,
    naming: Naming,
    dir_level: u8,
    depth: u32,
    is_inline: bool,
    /// Number of entries "." and "..".
    dots: [u32; 2],
    /// Inode that ".." names.
    parent: Option<Ino>,
    hashes: Vec<u32>,
    /// Hashes that several names share, in the second pass over the directory.
    shared: FxHashSet<u32>,
    names: FxHashMap<(u32, Vec<u8>), u64>,
    /// Names among them that lie in a wrong bucket and are entered again, with their blocks.
    moved: Vec<((u32, Vec<u8>), u64)>,
    /// Highest level with entries that the depth does not cover.
    too_deep: Option<u32>,
    /// Highest level with entries.
    last_level: u32,
    /// Last block, if the size does not cover it.
    last_block: Option<u64>,
    /// Place of the current area.
    held: Held,
    /// The current area with its repairs.
    edited: Option<Vec<u8>>,
    is_broken: bool,
    /// True if no name can be an encrypted one.
    is_plain: bool,
}

impl Walk {
    /// Changes the current area, whose bytes are given.
    fn edit(&mut self, bytes: &[u8], change: impl FnOnce(&mut Dentries<&mut [u8]>)) {
        let copy = self.edited.get_or_insert_with(|| bytes.to_vec());
        change(&mut Dentries::new(copy.as_mut_slice(), Place::Volume));
    }

    /// Returns true if an entry lies in a wrong bucket, although nothing else is wrong with it, and is entered again.
    fn is_moved(&self, block: u64, entry: &Dentry<'_>) -> bool {
        let hash = self.naming.hash(entry.name, entry.hash);
        let is_in_place = || {
            let level = dir_hash::level_of(block, self.dir_level);
            level.is_some_and(|(level, bucket)| {
                u64::from(hash) % dir_hash::buckets(level, self.dir_level) == bucket
            })
        };
        let is_right = hash == entry.hash && self.naming.is_possible(entry.name);
        is_right && !self.is_inline && !is_in_place()
    }
}

impl Checker<'_> {
    /// Checks all directories, in the order of their inodes' addresses.
    pub fn check_directories(&mut self) {
        self.directories.sort_by_key(|directory| directory.ino);
        self.directories.dedup_by_key(|directory| directory.ino);
        let address = |(number, ino): (usize, Ino)| {
            let entry = self.table.find(ino.into()).expect("a directory is a node in use");
            (self.table.addr(entry), number)
        };
        let directories = self.directories.iter().map(|directory| directory.ino).enumerate();
        let mut order: Vec<(BlockAddr, usize)> = directories.map(address).collect();
        order.sort_unstable();
        let total = order.len() as u64;
        for (done, (_, number)) in order.into_iter().enumerate() {
            if done % 256 == 0 {
                self.tell(Stage::Directories, done as u64, total);
            }
            let ino = self.directories[number].ino;
            self.last_inode = None;
            if let Some(inode) = self.inode_of(ino) {
                self.check_directory(number, &inode);
            }
        }
        self.tell(Stage::Directories, total, total);
    }

    fn check_directory(&mut self, number: usize, inode: &Arc<NodeBlock>) {
        let ino = inode.ino();
        let depth = inode.head().current_depth.get();
        let mut walk = Walk {
            number,
            ino,
            naming: Naming::of(inode),
            dir_level: inode.head().dir_level,
            depth: depth.min(dir_hash::DEPTH_MAX),
            is_inline: inode.has_inline(inline::DENTRY),
            dots: [0; 2],
            parent: None,
            hashes: Vec::new(),
            shared: FxHashSet::default(),
            names: FxHashMap::default(),
            moved: Vec::new(),
            too_deep: None,
            last_level: 0,
            last_block: None,
            held: Held::of_inline(inode),
            edited: None,
            is_broken: false,
            is_plain: true,
        };
        if depth > dir_hash::DEPTH_MAX {
            self.add(Kind::DirDepth, Place::Inode(ino), format!("i_current_depth {depth}, at most 63"));
        }
        self.walk_blocks(inode, &mut walk, Self::check_area);
        if let Some(level) = walk.too_deep {
            let known = format!("i_current_depth {}, there are entries in level {level}", walk.depth);
            self.add(Kind::DirDepth, Place::Inode(ino), known);
        }
        if walk.too_deep.is_some() || depth > dir_hash::DEPTH_MAX {
            let slot = Slot { nid: ino.into(), at: DEPTH };
            self.fix(Fix::Node(slot, (walk.last_level + 1).to_le_bytes().to_vec()));
        }
        if let Some(block) = walk.last_block {
            let size = (block + 1) * self.geometry.block_size.bytes() as u64;
            self.fix(Fix::Node(Slot { nid: ino.into(), at: SIZE }, size.to_le_bytes().to_vec()));
        }
        self.check_dots(&walk, inode);
        self.directories[number].dotdot = walk.parent;
        self.directories[number].is_broken = walk.is_broken;
        if !walk.is_plain && self.without_context.contains(&ino) {
            self.encrypted_names.insert(ino);
        }
        self.check_shared(inode, &mut walk);
    }

    /// Calls `each` with every area of a directory.
    fn walk_blocks(
        &mut self,
        inode: &Arc<NodeBlock>,
        walk: &mut Walk,
        each: fn(&mut Self, &mut Walk, u64, &[u8]),
    ) {
        if walk.is_inline {
            each(self, walk, 0, inode.inline_area());
            self.fix_area(walk, inode.inline_area());
            return;
        }
        let end = inode.head().size.get().div_ceil(self.geometry.block_size.bytes() as u64);
        let io = self.io.clone();
        self.for_each_node(inode, |checker, first, addrs| {
            let real = addrs.iter().zip(first..).filter(|(addr, _)| checker.geometry.in_main(**addr));
            let mut blocks: Vec<(BlockAddr, u64)> = real.map(|(addr, block)| (*addr, block)).collect();
            let last = blocks.iter().map(|(_, block)| *block).filter(|block| *block >= end).max();
            walk.last_block = walk.last_block.max(last);
            if let Some((_, block)) = blocks.iter().find(|(_, block)| *block >= end) {
                if walk.hashes.len() < HASHES_MAX && walk.shared.is_empty() {
                    let known = format!("i_size covers {end} blocks, the directory has block {block}");
                    checker.add(Kind::DirSize, Place::Inode(walk.ino), known);
                }
            }
            blocks.truncate(usize::try_from(checker.dir_budget).unwrap_or(usize::MAX));
            checker.dir_budget -= blocks.len() as u64;
            blocks.sort_unstable();
            read_runs(&io, blocks, |addr, block, bytes| match bytes {
                Ok(bytes) => {
                    walk.held = Held::Block(addr);
                    each(checker, walk, block, bytes);
                    checker.fix_area(walk, bytes);
                }
                Err(error) => {
                    walk.is_broken = true;
                    let known = format!("{addr}: {error}");
                    checker.add(Kind::DirUnreadable, Place::Dir(walk.ino, block), known);
                    checker.lose(Loss::DirBlock);
                    if let Some(slot) = checker.address_slot(inode, block) {
                        checker.fix(Fix::Node(slot, vec![0; 4]));
                    }
                }
            });
        });
    }

    /// Adds the repairs of an area that was walked.
    fn fix_area(&mut self, walk: &mut Walk, bytes: &[u8]) {
        if let Some(new) = walk.edited.take() {
            if let Some(fix) = edited(walk.held, bytes, &new) {
                self.fix(fix);
            }
        }
    }

    /// Checks all entries of an area.
    fn check_area(&mut self, walk: &mut Walk, block: u64, bytes: &[u8]) {
        let at = Place::Dir(walk.ino, block);
        let area = Dentries::new(bytes, at);
        let mut slot = 0;
        while slot < area.slots() {
            if !area.is_used(slot) {
                slot += 1;
                continue;
            }
            let length = usize::from(area.raw(slot).name_len.get());
            let entry = match area.entries_from(slot).next() {
                Some(Ok(entry)) if length > 0 && entry.slot == slot => entry,
                _ => {
                    let known = format!("slot {slot} has a name of {length} bytes");
                    self.add(Kind::DentryName, at, known);
                    self.lose(Loss::Entry);
                    walk.is_broken = true;
                    walk.edit(bytes, |area| area.set_use(slot, SlotUse::Free));
                    slot += 1;
                    continue;
                }
            };
            let next = slot + slots_for(length);
            if let Some(free) = (slot..next).find(|slot| !area.is_used(*slot)) {
                let known = format!("the name in slot {slot} reaches into slot {free}, which is free");
                self.add(Kind::DentryName, at, known);
                walk.edit(bytes, |area| (slot..next).for_each(|slot| area.set_use(slot, SlotUse::Used)));
            }
            match entry.name {
                b"." => self.check_dot(walk, at, &entry, 0, bytes),
                b".." => self.check_dot(walk, at, &entry, 1, bytes),
                _ => self.check_entry(walk, block, &entry, bytes),
            }
            slot = next;
        }
    }

    fn check_dot(&mut self, walk: &mut Walk, at: Place, entry: &Dentry<'_>, which: usize, bytes: &[u8]) {
        walk.dots[which] += 1;
        if walk.dots[which] > 1 {
            let name = if which == 0 { "." } else { ".." };
            self.add(Kind::DotsTwice, at, format!("a second entry {name:?} in slot {}", entry.slot));
            walk.edit(bytes, |area| area.set_use(entry.slot, SlotUse::Free));
            return;
        }
        if which == 0 && entry.ino != walk.ino {
            self.add(Kind::DotsWrong, at, format!("\".\" names {}, must be {}", entry.ino, walk.ino));
            let own = walk.ino;
            walk.edit(bytes, |area| area.set_target(entry.slot, own, FileType::Directory));
        }
        if which == 1 {
            walk.parent = Some(entry.ino);
        }
        if entry.kind != Some(FileType::Directory) {
            self.add(Kind::DentryType, at, format!("the entry in slot {} is no directory", entry.slot));
            let target = if which == 0 { walk.ino } else { entry.ino };
            walk.edit(bytes, |area| area.set_target(entry.slot, target, FileType::Directory));
        }
    }

    fn check_dots(&mut self, walk: &Walk, inode: &Arc<NodeBlock>) {
        let missing: Vec<&str> = [".", ".."]
            .into_iter()
            .zip(walk.dots)
            .filter(|(_, count)| *count == 0)
            .map(|(name, _)| name)
            .collect();
        if !missing.is_empty() {
            let known = format!("no entry {}", missing.join(" and "));
            self.add(Kind::DotsMissing, Place::Dir(walk.ino, 0), known);
            self.enter_dots(inode, walk.dots);
        }
    }

    /// Checks an entry that is not a dot.
    fn check_entry(&mut self, walk: &mut Walk, block: u64, entry: &Dentry<'_>, bytes: &[u8]) {
        let at = Place::Dir(walk.ino, block);
        self.report.sums.entries += 1;
        let shown = walk.naming.shown(entry.name);
        let hash = walk.naming.hash(entry.name, entry.hash);
        let is_possible = walk.naming.is_possible(entry.name);
        walk.is_plain &= is_plain(entry.name);
        if !is_possible {
            let known = format!("the name {shown} in slot {} has a slash or a zero", entry.slot);
            self.add(Kind::DentryName, at, known);
        }
        let name = if is_possible && hash == entry.hash { None } else { Some(self.right_name(walk, entry)) };
        if hash != entry.hash {
            let known = format!("{shown} has hash {:#010x}, must be {hash:#010x}", entry.hash);
            // Otherwise the name may be damaged, and not the hash.
            let is_known = name.as_deref() != Some(entry.name) || self.is_own_name(entry);
            let certainty = if is_known { Certainty::Certain } else { Certainty::Unclear };
            self.report.add(Finding::new(Kind::DentryHash, at, known).with_certainty(certainty));
        }
        if let Some(name) = name {
            let hash = walk.naming.hash(&name, entry.hash);
            walk.edit(bytes, |area| {
                area.set_name(entry.slot, &name);
                area.set_hash(entry.slot, hash);
            });
        } else if !walk.is_inline {
            self.check_place(walk, block, hash, &shown, entry, bytes);
        }
        if walk.hashes.len() < HASHES_MAX {
            walk.hashes.push(hash);
        }
        self.check_target(walk, at, entry, &shown, bytes);
    }

    /// The name that an entry with a wrong hash or an impossible name should have: the inode may have it, and
    /// the hash confirms it. Otherwise the stored name, with a replacement for impossible bytes.
    fn right_name(&mut self, walk: &Walk, entry: &Dentry<'_>) -> Vec<u8> {
        let inode = self.inode_of(entry.ino);
        let own = inode.as_ref().map(|inode| inode.last_name()).filter(|name| {
            name.len() == entry.name.len() && walk.naming.hash(name, !entry.hash) == entry.hash
        });
        if let Some(own) = own {
            return own.to_vec();
        }
        let possible = |byte: &u8| if matches!(byte, b'/' | 0) { b'_' } else { *byte };
        match walk.naming {
            Naming::Plain | Naming::Folded => entry.name.iter().map(possible).collect(),
            Naming::Encrypted | Naming::EncryptedFolded => entry.name.to_vec(),
        }
    }

    /// Returns true if the inode of an entry carries the name of the entry.
    fn is_own_name(&mut self, entry: &Dentry<'_>) -> bool {
        self.inode_of(entry.ino).is_some_and(|inode| inode.last_name() == entry.name)
    }

    fn check_place(
        &mut self,
        walk: &mut Walk,
        block: u64,
        hash: u32,
        shown: &str,
        entry: &Dentry<'_>,
        bytes: &[u8],
    ) {
        let at = Place::Dir(walk.ino, block);
        let findings = self.report.count(Kind::DentryPlace);
        match dir_hash::level_of(block, walk.dir_level) {
            Some((level, bucket)) => {
                let right = u64::from(hash) % dir_hash::buckets(level, walk.dir_level);
                if right != bucket {
                    let known = format!("{shown} is in bucket {bucket} of level {level}, must be in {right}");
                    self.add(Kind::DentryPlace, at, known);
                } else {
                    walk.last_level = walk.last_level.max(level);
                    if level >= walk.depth {
                        walk.too_deep = walk.too_deep.max(Some(level));
                    }
                }
            }
            None => self.add(Kind::DentryPlace, at, format!("{shown} is in a block of no level")),
        }
        if self.report.count(Kind::DentryPlace) > findings {
            self.enter_again(walk, entry, bytes);
        }
    }

    /// Takes an entry out of its area, to be entered again.
    fn enter_again(&mut self, walk: &mut Walk, entry: &Dentry<'_>, bytes: &[u8]) {
        if matches!(walk.naming, Naming::Encrypted | Naming::EncryptedFolded) {
            // Only the key tells the name.
            return;
        }
        let found = self.table.find(entry.ino.into()).filter(|found| self.table.ino(*found) == entry.ino);
        let is_usable = found.is_some_and(|found| !self.table.has(found, fact::HIDDEN));
        if !is_usable || entry.ino == self.superblock.root_ino {
            // The entry is removed.
            return;
        }
        let slots = entry.slot..entry.slot + slots_for(entry.name.len());
        walk.edit(bytes, |area| slots.for_each(|slot| area.set_use(slot, SlotUse::Free)));
        self.fix(Fix::Enter { dir: walk.ino, name: entry.name.to_vec(), ino: entry.ino });
    }

    /// Checks the inode that an entry names, and counts the name.
    fn check_target(&mut self, walk: &mut Walk, at: Place, entry: &Dentry<'_>, shown: &str, bytes: &[u8]) {
        let slots = entry.slot..entry.slot + slots_for(entry.name.len());
        let remove =
            |area: &mut Dentries<&mut [u8]>| slots.for_each(|slot| area.set_use(slot, SlotUse::Free));
        let found = self.table.find(entry.ino.into()).filter(|found| self.table.ino(*found) == entry.ino);
        let Some(found) = found else {
            self.add(Kind::DentryInode, at, format!("{shown} names {}, which is not in use", entry.ino));
            self.lose(Loss::Name);
            walk.edit(bytes, remove);
            return;
        };
        if self.table.has(found, fact::INVALID | fact::BROKEN) && self.named.len() < ODD_MAX {
            if let Some(kind) = entry.kind {
                let name = matches!(walk.naming, Naming::Plain | Naming::Folded).then(|| entry.name.into());
                self.named.insert(entry.ino, Named { kind, dir: Some(walk.ino), name });
            }
        }
        if entry.ino == self.superblock.root_ino || self.table.has(found, fact::HIDDEN) {
            self.add(Kind::DentryInode, at, format!("{shown} names {}, which has no name", entry.ino));
            walk.edit(bytes, remove);
            return;
        }
        if self.table.has(found, fact::ORPHAN) {
            self.add(Kind::OrphanNamed, at, format!("{shown} names {}, an orphan", entry.ino));
            self.fix(Fix::NoOrphan(entry.ino));
        }
        self.table.take_links(found, 1);
        let was_named = self.table.has(found, fact::REACHED);
        self.table.note(found, fact::REACHED);
        let kind = self.table.kind(found);
        if let Some(kind) = kind.filter(|kind| Some(*kind) != entry.kind) {
            if self.check_kind(at, entry, shown, (found, kind)) {
                walk.edit(bytes, |area| area.set_target(entry.slot, entry.ino, kind));
            }
            // A directory that the kind of its inode hides is a link of this one.
            if entry.kind == Some(FileType::Directory) && self.table.has(found, fact::INVALID) {
                if let Some(own) = self.table.find(walk.ino.into()) {
                    self.table.take_links(own, 1);
                }
            }
        }
        if kind == Some(FileType::Directory) {
            if let Some(own) = self.table.find(walk.ino.into()) {
                self.table.take_links(own, 1);
            }
            if was_named {
                let known = format!("{shown} is another name of the directory {}", entry.ino);
                self.add(Kind::DirSecondName, at, known);
                self.drop_second_name(entry.ino, walk.number);
            } else {
                self.note_parent(entry.ino, walk.number);
            }
        }
    }

    /// Compares the names that share a hash.
    fn check_shared(&mut self, inode: &Arc<NodeBlock>, walk: &mut Walk) {
        walk.hashes.sort_unstable();
        let shared = walk.hashes.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        walk.shared = shared.take(SHARED_MAX).collect();
        walk.hashes = Vec::new();
        if !walk.shared.is_empty() {
            self.walk_blocks(inode, walk, |checker, walk, block, bytes| {
                let at = Place::Dir(walk.ino, block);
                for entry in Dentries::new(bytes, at).entries().flatten() {
                    let hash = walk.naming.hash(entry.name, entry.hash);
                    let is_dot = entry.name == b"." || entry.name == b"..";
                    if is_dot || !walk.shared.contains(&hash) || walk.names.len() >= SHARED_MAX {
                        continue;
                    }
                    let key = (hash, walk.naming.compared(entry.name));
                    if walk.is_moved(block, &entry) {
                        walk.moved.push((key, block));
                    } else if let Some(other) = walk.names.insert(key, block) {
                        checker.add_twice(at, &walk.naming.shown(entry.name), other);
                        checker.enter_again(walk, &entry, bytes);
                    }
                }
            });
        }
        for (key, block) in std::mem::take(&mut walk.moved) {
            let shown = walk.naming.shown(&key.1);
            if let Some(other) = walk.names.insert(key, block) {
                self.add_twice(Place::Dir(walk.ino, block), &shown, other);
            }
        }
    }

    fn add_twice(&mut self, at: Place, shown: &str, other: u64) {
        self.add(Kind::DentryTwice, at, format!("{shown} is also in block {other}"));
    }
}
