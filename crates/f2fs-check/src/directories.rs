//! Directories: their blocks, and the entries in them.

use std::sync::Arc;

use f2fs::{
    Place,
    format::{
        dentry::{Dentries, Dentry, SlotUse, slots_for},
        dir_hash,
        inode::{advise, inline},
        node::NodeBlock,
    },
    units::{BlockAddr, Ino},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    Fix, Kind, Loss, Slot, Stage,
    areas::Held,
    checker::Checker,
    encryption::AreaOwner,
    inodes::{DEPTH, SIZE},
    names::{Naming, is_dot},
    reader::read_runs,
};

/// Maximum number of names of a directory among which duplicates are looked for.
pub const HASHES_MAX: usize = 1 << 24;
/// Maximum number of names that are compared because they share a hash.
const SHARED_MAX: usize = 1 << 18;

/// A hash, and the compared form of its name.
type HashedName = (u32, Vec<u8>);

/// Confidence in an entry by its inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// The inode carries another name for the directory.
    Contradicted,
    /// The inode tells nothing.
    Possible,
    /// The inode carries the name.
    Confirmed,
}

/// Facts about a directory while its entries are checked.
pub struct Walk {
    /// Index in the list of directories.
    pub number: usize,
    pub ino: Ino,
    pub naming: Naming,
    pub dir_level: u8,
    pub depth: u32,
    pub is_inline: bool,
    /// Number of entries "." and "..".
    pub dots: [u32; 2],
    /// Inode that ".." names.
    pub parent: Option<Ino>,
    pub hashes: Vec<u32>,
    /// Hashes that several names share, in the second pass over the directory.
    pub shared: FxHashSet<u32>,
    pub names: FxHashMap<HashedName, (u64, Ino)>,
    /// Of equal names, that one which stays, with its rank.
    pub kept: FxHashMap<HashedName, (Rank, u64, Ino)>,
    /// Names among them that lie in a wrong bucket and are entered again, with their blocks and inodes.
    pub moved: Vec<(HashedName, (u64, Ino))>,
    /// Highest level with entries that the depth does not cover.
    pub too_deep: Option<u32>,
    /// Highest level with entries.
    pub last_level: u32,
    /// Last block, if the size does not cover it.
    pub last_block: Option<u64>,
    /// Place of the current area.
    pub held: Held,
    /// Place of the first area.
    pub first: Option<Held>,
    /// The current area with the changes of earlier walks, if there are any.
    pub base: Option<Vec<u8>>,
    /// The current area with its repairs.
    pub edited: Option<Vec<u8>>,
    pub is_broken: bool,
    /// True if no name can be an encrypted one.
    pub is_plain: bool,
    /// Owner of the entries in the current area.
    pub owner: AreaOwner,
}

impl Walk {
    /// Changes the current area, whose bytes on the device are given.
    pub fn edit(&mut self, bytes: &[u8], change: impl FnOnce(&mut Dentries<&mut [u8]>)) {
        let base = self.base.as_deref().unwrap_or(bytes);
        let copy = self.edited.get_or_insert_with(|| base.to_vec());
        change(&mut Dentries::new(copy.as_mut_slice(), Place::Volume));
    }

    /// Returns true if an entry has the hash of its name.
    pub fn is_confirmed(&self, entry: &Dentry<'_>) -> bool {
        match entry.name {
            b"." | b".." => entry.hash == 0,
            name => self.naming.hash(name, entry.hash) == entry.hash,
        }
    }

    /// Returns true if an entry lies in a wrong bucket, although nothing else is wrong with it, and is entered again.
    fn is_moved(&self, block: u64, entry: &Dentry<'_>) -> bool {
        self.is_confirmed(entry) && self.naming.is_possible(entry.name) && !self.is_in_place(block, entry)
    }

    /// Returns true if an entry lies in the bucket that its name selects.
    pub fn is_in_place(&self, block: u64, entry: &Dentry<'_>) -> bool {
        self.has_bucket(block, self.naming.hash(entry.name, entry.hash))
    }

    /// Returns true if a block belongs to the bucket of a hash.
    pub fn has_bucket(&self, block: u64, hash: u32) -> bool {
        let level = dir_hash::level_of(block, self.dir_level);
        let is_right = level.is_some_and(|(level, bucket)| {
            u64::from(hash) % dir_hash::buckets(level, self.dir_level) == bucket
        });
        self.is_inline || is_right
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
            naming: self.naming_of(inode),
            dir_level: inode.head().dir_level,
            depth: depth.min(dir_hash::DEPTH_MAX),
            is_inline: inode.has_inline(inline::DENTRY),
            dots: [0; 2],
            parent: None,
            hashes: Vec::new(),
            shared: FxHashSet::default(),
            names: FxHashMap::default(),
            kept: FxHashMap::default(),
            moved: Vec::new(),
            too_deep: None,
            last_level: 0,
            last_block: None,
            held: Held::of_inline(inode),
            first: None,
            base: None,
            edited: None,
            is_broken: false,
            is_plain: true,
            owner: AreaOwner::Certain,
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
        if !walk.is_plain && self.marks.without_context.contains(&ino) {
            self.marks.encrypted_names.insert(ino);
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
            self.walk_area(walk, 0, inode.inline_area(), each);
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
                    checker.walk_area(walk, block, bytes, each);
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

    /// Calls `each` with an area, and adds the repairs that it makes.
    fn walk_area(
        &mut self,
        walk: &mut Walk,
        block: u64,
        bytes: &[u8],
        each: fn(&mut Self, &mut Walk, u64, &[u8]),
    ) {
        let swapped = if block == 0 { self.swapped_first(walk, bytes) } else { None };
        if let Some((addr, _)) = &swapped {
            walk.held = Held::Block(*addr);
        }
        let bytes = swapped.as_ref().map_or(bytes, |(_, bytes)| bytes);
        if block == 0 {
            walk.first = Some(walk.held);
        }
        walk.base = self.changed_area(walk.held, bytes);
        each(self, walk, block, bytes);
        if let Some(new) = walk.edited.take() {
            self.change_area(walk.held, walk.base.as_deref().unwrap_or(bytes), &new);
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
            if let Some(held) = walk.first {
                self.doubt_area(held, walk.ino);
            }
            self.enter_dots(inode, walk.dots);
        }
    }

    /// Compares the names that share a hash.
    fn check_shared(&mut self, inode: &Arc<NodeBlock>, walk: &mut Walk) {
        walk.hashes.sort_unstable();
        let shared = walk.hashes.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        walk.shared = shared.take(SHARED_MAX).collect();
        walk.hashes = Vec::new();
        if !walk.shared.is_empty() {
            self.walk_blocks(inode, walk, Self::note_kept);
            self.walk_blocks(inode, walk, Self::compare_names);
        }
        for (key, place) in std::mem::take(&mut walk.moved) {
            let shown = walk.naming.shown(&key.1);
            if let Some((other, ino)) = walk.names.insert(key, place) {
                self.add_twice(Place::Dir(walk.ino, place.0), &shown, other);
                if ino == place.1 {
                    // It is not entered beside the other one.
                    self.drop_copy(walk.ino, ino);
                }
            }
        }
    }

    /// Notes the names of an area that share a hash, and which one of equal ones stays: that one which its inode confirms, else
    /// the first that its inode does not contradict.
    fn note_kept(&mut self, walk: &mut Walk, block: u64, bytes: &[u8]) {
        let changed = walk.base.clone();
        let area = Dentries::new(changed.as_deref().unwrap_or(bytes), Place::Dir(walk.ino, block));
        for entry in area.entries().flatten() {
            let hash = walk.naming.hash(entry.name, entry.hash);
            if is_dot(entry.name) || !walk.shared.contains(&hash) || walk.kept.len() >= SHARED_MAX {
                continue;
            }
            let own = self.own_name(walk, entry.ino);
            let rank = match own {
                _ if self.carries(entry.ino, entry.name, walk.ino) => Rank::Confirmed,
                Some(_) => Rank::Contradicted,
                None => Rank::Possible,
            };
            let key = (hash, walk.naming.compared(entry.name));
            let kept = walk.kept.entry(key).or_insert((rank, block, entry.ino));
            if rank > kept.0 {
                *kept = (rank, block, entry.ino);
            }
        }
    }

    /// The name that a file or directory with one name carries, if it is one of a plain directory.
    fn own_name(&mut self, walk: &Walk, ino: Ino) -> Option<Vec<u8>> {
        let inode = self.inode_of(ino).filter(|_| !walk.naming.is_encrypted())?;
        let is_here = inode.head().pino.get() == walk.ino.0 && !inode.has_advise(advise::LOST_PINO);
        let has_one = inode.is_directory() || inode.head().links.get() == 1;
        let name = inode.last_name();
        (is_here && has_one && !name.is_empty() && walk.naming.is_possible(name)).then(|| name.to_vec())
    }

    /// Compares the names of an area that share a hash, as the changes so far leave them, and notes those that move.
    fn compare_names(&mut self, walk: &mut Walk, block: u64, bytes: &[u8]) {
        let at = Place::Dir(walk.ino, block);
        let changed = walk.base.clone();
        let area = Dentries::new(changed.as_deref().unwrap_or(bytes), at);
        let moved = Dentries::new(bytes, at);
        let moved = moved.entries().flatten().filter(|entry| !area.is_used(entry.slot));
        let moved: Vec<Dentry<'_>> = moved.filter(|entry| walk.is_moved(block, entry)).collect();
        for entry in area.entries().flatten().chain(moved) {
            let hash = walk.naming.hash(entry.name, entry.hash);
            if is_dot(entry.name) || !walk.shared.contains(&hash) || walk.names.len() >= SHARED_MAX {
                continue;
            }
            let key = (hash, walk.naming.compared(entry.name));
            let place = (block, entry.ino);
            let kept = walk.kept.get(&key).filter(|(.., ino)| *ino != entry.ino).copied();
            if !area.is_used(entry.slot) {
                walk.moved.push((key, place));
            } else if let Some((_, other, _)) = kept {
                self.add_twice(at, &walk.naming.shown(entry.name), other);
                self.enter_under_own_name(walk, &entry, bytes);
            } else if let Some((other, ino)) = walk.names.insert(key, place) {
                self.add_twice(at, &walk.naming.shown(entry.name), other);
                if ino == entry.ino {
                    let slots = entry.slot..entry.slot + slots_for(entry.name.len());
                    walk.edit(bytes, |area| slots.for_each(|slot| area.set_use(slot, SlotUse::Free)));
                    self.drop_copy(walk.ino, ino);
                } else {
                    self.enter_again(walk, &entry, bytes);
                }
            }
        }
    }

    /// Takes an entry with the name of another one out of its area, to be entered again: under the name that its inode carries
    /// for this directory, if there is one.
    fn enter_under_own_name(&mut self, walk: &mut Walk, entry: &Dentry<'_>, bytes: &[u8]) {
        let name = self.own_name(walk, entry.ino);
        let name = name.as_deref().unwrap_or(entry.name);
        let hash = walk.naming.hash(name, entry.hash);
        self.take_out(walk, entry, bytes, name, hash);
    }

    fn add_twice(&mut self, at: Place, shown: &str, other: u64) {
        self.add(Kind::DentryTwice, at, format!("{shown} is also in block {other}"));
    }
}
