//! Damage of one field, or of one block by its role.

use std::collections::BTreeSet;

use block::Rng;
use f2fs::{
    format::{BlockSize, TableCopy, nat, node::NodeFooter},
    units::{BlockAddr, Ino, Nid},
};

use crate::{
    aged::{Aged, Node, Role},
    volume::{BLOCK, Damaged},
};

/// Offsets of the fields of a footer in its block: nid, ino, flags with the offset, version, next address.
const FOOTER: [(usize, usize, &str); 5] =
    [(4072, 4, "nid"), (4076, 4, "ino"), (4080, 4, "ofs"), (4084, 8, "cp_ver"), (4092, 4, "next")];
/// Tries to find a place that the damage changes.
const TRIES: usize = 40;

/// A kind of damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    InodeBit,
    DirectoryBit,
    MapBit,
    Footer,
    OldInode,
    OldDirectory,
    OldMap,
    OldEntries,
    OldNat,
    OldSit,
    ZeroedNat,
    ZeroedSit,
    SwappedNodes,
    SwappedDirectories,
    SwappedPackBlocks,
    OldJournals,
    ZeroedJournals,
    PackEnd,
    PackHead,
    Superblock,
}

impl Kind {
    pub const ALL: [Kind; 20] = [
        Kind::InodeBit,
        Kind::DirectoryBit,
        Kind::MapBit,
        Kind::Footer,
        Kind::OldInode,
        Kind::OldDirectory,
        Kind::OldMap,
        Kind::OldEntries,
        Kind::OldNat,
        Kind::OldSit,
        Kind::ZeroedNat,
        Kind::ZeroedSit,
        Kind::SwappedNodes,
        Kind::SwappedDirectories,
        Kind::SwappedPackBlocks,
        Kind::OldJournals,
        Kind::ZeroedJournals,
        Kind::PackEnd,
        Kind::PackHead,
        Kind::Superblock,
    ];

    /// The kind of this name.
    pub fn named(name: &str) -> Kind {
        let found = Kind::ALL.into_iter().find(|kind| format!("{kind:?}") == name);
        found.unwrap_or_else(|| panic!("{name} is none of {:?}", Kind::ALL))
    }
}

/// The inodes whose files a damage may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Touched {
    /// Those below these inodes.
    Inodes(BTreeSet<Ino>),
    /// Any.
    All,
}

/// Damage that was done: a text on the place, and the files that it may change.
pub struct Done {
    pub what: String,
    pub touched: Touched,
}

impl Done {
    fn all(what: String) -> Option<Done> {
        Some(Done { what, touched: Touched::All })
    }

    fn of(what: String, inodes: impl IntoIterator<Item = Ino>) -> Option<Done> {
        Some(Done { what, touched: Touched::Inodes(inodes.into_iter().collect()) })
    }
}

/// Damages a volume. Returns `None` if it has no place for this kind.
pub fn damage(aged: &Aged, d: &Damaged, kind: Kind, rng: &mut Rng) -> Option<Done> {
    let done = (0..TRIES).find_map(|_| Damage { aged, d, rng: &mut *rng }.once(kind))?;
    Some(Done { what: format!("{kind:?}: {}", done.what), ..done })
}

struct Damage<'a> {
    aged: &'a Aged,
    d: &'a Damaged,
    rng: &'a mut Rng,
}

impl Damage<'_> {
    fn once(&mut self, kind: Kind) -> Option<Done> {
        match kind {
            Kind::InodeBit => self.bit_of_node(Role::File),
            Kind::DirectoryBit => self.bit_of_node(Role::Directory),
            Kind::MapBit => self.bit_of_node(Role::Map),
            Kind::Footer => self.footer(),
            Kind::OldInode => self.old_node(Role::File),
            Kind::OldDirectory => self.old_node(Role::Directory),
            Kind::OldMap => self.old_node(Role::Map),
            Kind::OldEntries => self.old_entries(),
            Kind::OldNat | Kind::OldSit | Kind::ZeroedNat | Kind::ZeroedSit => self.table(kind),
            Kind::SwappedNodes => self.swapped_nodes(),
            Kind::SwappedDirectories => self.swapped_directories(),
            Kind::SwappedPackBlocks => self.swapped_pack_blocks(),
            Kind::OldJournals | Kind::ZeroedJournals => self.journals(kind),
            Kind::PackEnd | Kind::PackHead => self.pack(kind),
            Kind::Superblock => self.superblock(),
        }
    }

    fn below(&mut self, end: usize) -> usize {
        self.rng.below(end as u64) as usize
    }

    fn pick<'t, T>(&mut self, all: &'t [T]) -> Option<&'t T> {
        if all.is_empty() { None } else { all.get(self.below(all.len())) }
    }

    /// A node with this use, or any node. Nodes after the checkpoint come as often as the others.
    fn node(&mut self, role: Option<Role>) -> Option<(Nid, Node)> {
        let is_pending = self.rng.chance(0.3) && self.aged.has_pending;
        let fits = |(_, node): &&(Nid, Node)| {
            node.is_pending == is_pending && role.is_none_or(|role| role == node.role)
        };
        let nodes: Vec<_> = self.aged.nodes.iter().filter(fits).collect();
        self.pick(&nodes).map(|found| (*found).clone())
    }

    /// The damage of a node: one after the checkpoint leads to all that follow it.
    fn done(node: &Node, what: String) -> Option<Done> {
        match node.is_pending {
            true => Done::all(what + ", after the checkpoint"),
            false => Done::of(what, [node.ino]),
        }
    }

    fn flip(&mut self, addr: BlockAddr, range: std::ops::Range<usize>) -> (usize, u8) {
        let (at, bit) = (range.start + self.below(range.len()), self.below(8) as u8);
        self.d.put(addr, at, &[self.d.block(addr)[at] ^ 1 << bit]);
        (at, bit)
    }

    fn bit_of_node(&mut self, role: Role) -> Option<Done> {
        let (nid, node) = self.node(Some(role))?;
        // Half of the bits are among the fields, and the others anywhere.
        let end = if self.rng.chance(0.5) && role != Role::Map { 400 } else { FOOTER[0].0 };
        let (at, bit) = self.flip(node.addr, 0..end);
        Self::done(&node, format!("bit {bit} of byte {at} of {nid} at {}", node.addr))
    }

    fn footer(&mut self) -> Option<Done> {
        let (nid, node) = self.node(None)?;
        let (at, bytes, name) = *self.pick(&FOOTER)?;
        let mut field = self.d.block(node.addr)[at..at + bytes].to_vec();
        match self.rng.chance(0.5) {
            true => field[self.rng.below(bytes as u64) as usize] ^= 1 << self.rng.below(8),
            false => {
                let (_, other) = self.node(None)?;
                field = self.d.block(other.addr)[at..at + bytes].to_vec();
            }
        }
        if self.d.block(node.addr)[at..at + bytes] == field {
            return None;
        }
        self.d.put(node.addr, at, &field);
        Self::done(&node, format!("footer field {name} of {nid} at {}: {field:?}", node.addr))
    }

    /// Writes an older version of a node over the newest one.
    fn old_node(&mut self, role: Role) -> Option<Done> {
        let (nid, node) = self.node(Some(role))?;
        let newest = self.d.block(node.addr);
        let earlier = self.aged.earlier.iter().filter_map(|earlier| {
            let old = earlier.nodes.get(&nid).filter(|old| old.ino == node.ino && old.role == role)?;
            Some(earlier.volume.block(old.addr))
        });
        let checkpointed = self.aged.nodes.iter().filter(|(other, old)| *other == nid && !old.is_pending);
        let checkpointed = checkpointed.map(|(_, old)| self.d.block(old.addr));
        let mut olds: Vec<Vec<u8>> = earlier.chain(checkpointed).filter(|old| *old != newest).collect();
        olds.dedup();
        let old = self.pick(&olds)?;
        self.d.put(node.addr, 0, old);
        let version = |block: &[u8]| NodeFooter::of(block).cp_ver as u32;
        let versions = (version(old), version(&newest));
        Self::done(&node, format!("{nid} at {}: version {versions:?}", node.addr))
    }

    fn directories(&self) -> Vec<Ino> {
        let is_directory = |(_, node): &&(Nid, Node)| node.role == Role::Directory && !node.is_pending;
        self.aged.nodes.iter().filter(is_directory).map(|(_, node)| node.ino).collect()
    }

    /// The block of a directory that has one.
    fn entries(volume: &Damaged, dir: Ino, block: u64) -> Option<BlockAddr> {
        let inode = volume.volume().inode(dir).ok().filter(|inode| inode.is_directory())?;
        if inode.has_inline(f2fs::format::inode::inline::DENTRY) {
            return None;
        }
        let addr = volume.volume().address(&inode, block).ok()?;
        volume.volume().geometry().in_main(addr).then_some(addr)
    }

    /// Writes an older version of a block of a directory over the newest one.
    fn old_entries(&mut self) -> Option<Done> {
        let dir = *self.pick(&self.directories())?;
        let block = self.rng.below(4);
        let addr = Self::entries(self.d, dir, block)?;
        let earlier = self.pick(&self.aged.earlier)?;
        let old = earlier.volume.block(Self::entries(&earlier.volume, dir, block)?);
        if old == self.d.block(addr) {
            return None;
        }
        self.d.put(addr, 0, &old);
        Done::of(format!("block {block} of {dir} at {addr}"), [dir])
    }

    fn table(&mut self, kind: Kind) -> Option<Done> {
        let is_nat = matches!(kind, Kind::OldNat | Kind::ZeroedNat);
        let place = |volume: &Damaged, index: u32| {
            let (geometry, checkpoint) = (volume.volume().geometry(), volume.checkpoint().1);
            match is_nat {
                true => geometry.nat_block(index, TableCopy::current(&checkpoint.nat_bitmap, index)),
                false => geometry.sit_block(index, TableCopy::current(&checkpoint.sit_bitmap, index)),
            }
        };
        let used = match is_nat {
            true => {
                let nids = self.aged.nodes.iter().filter(|(_, node)| !node.is_pending).map(|(nid, _)| *nid);
                nids.map(|nid| nat::position(nid, BlockSize::B4K).0).max()? + 1
            }
            false => self.d.volume().geometry().sit_blocks(),
        };
        let index = self.rng.below(used.into()) as u32;
        let addr = place(self.d, index);
        let block = match kind {
            Kind::OldNat | Kind::OldSit => {
                let earlier = self.pick(&self.aged.earlier)?;
                earlier.volume.block(place(&earlier.volume, index))
            }
            _ => vec![0; BLOCK],
        };
        if block == self.d.block(addr) {
            return None;
        }
        self.d.put(addr, 0, &block);
        Done::all(format!("block {index} at {addr}"))
    }

    fn swap(&mut self, one: BlockAddr, other: BlockAddr) -> Option<()> {
        let blocks = (self.d.block(one), self.d.block(other));
        if blocks.0 == blocks.1 {
            return None;
        }
        self.d.put(one, 0, &blocks.1);
        self.d.put(other, 0, &blocks.0);
        Some(())
    }

    fn swapped_nodes(&mut self) -> Option<Done> {
        let ((nid, one), (other_nid, other)) = (self.node(None)?, self.node(None)?);
        self.swap(one.addr, other.addr)?;
        let what = format!("{nid} at {} and {other_nid} at {}", one.addr, other.addr);
        match one.is_pending || other.is_pending {
            true => Done::all(what),
            false => Done::of(what, [one.ino, other.ino]),
        }
    }

    fn swapped_directories(&mut self) -> Option<Done> {
        let all = self.directories();
        let with_block = all.iter().filter_map(|dir| Some((*dir, Self::entries(self.d, *dir, 0)?)));
        let all: Vec<(Ino, BlockAddr)> = with_block.collect();
        let (one, other) = (*self.pick(&all)?, *self.pick(&all)?);
        self.swap(one.1, other.1)?;
        Done::of(format!("{} at {} and {} at {}", one.0, one.1, other.0, other.1), [one.0, other.0])
    }

    fn swapped_pack_blocks(&mut self) -> Option<Done> {
        let (pack, checkpoint) = self.d.checkpoint();
        let (start, blocks) = (self.d.pack(pack).0, checkpoint.pack_blocks as usize);
        let (one, other) = (self.below(blocks) as u32, self.below(blocks) as u32);
        self.swap(BlockAddr(start + one), BlockAddr(start + other))?;
        Done::all(format!("blocks {one} and {other} of {blocks}"))
    }

    fn journals(&mut self, kind: Kind) -> Option<Done> {
        let bytes = self.d.volume().geometry().summary.journal_bytes();
        let which = self.below(3);
        let earlier = self.pick(&self.aged.earlier)?;
        let mut has_changed = false;
        for number in (0..2).filter(|number| which == 2 || which == *number) {
            let (addr, at) = self.d.journals()[number];
            let (old_addr, old_at) = earlier.volume.journals()[number];
            let new = match kind {
                Kind::OldJournals => earlier.volume.block(old_addr)[old_at..old_at + bytes].to_vec(),
                _ => vec![0; bytes],
            };
            has_changed |= self.d.block(addr)[at..at + bytes] != new;
            self.d.put(addr, at, &new);
        }
        has_changed.then(|| Done::all(["NAT", "SIT", "NAT and SIT"][which].into())).flatten()
    }

    fn pack(&mut self, kind: Kind) -> Option<Done> {
        let (pack, checkpoint) = self.d.checkpoint();
        let start = self.d.pack(pack);
        let addr = match kind {
            Kind::PackEnd => BlockAddr(start.0 + checkpoint.pack_blocks - 1),
            _ => start,
        };
        let (how, new) = match self.below(3) {
            0 => ("lost", vec![0; BLOCK]),
            1 => ("that of the other pack", self.d.block(self.d.pack(1 - pack))),
            _ => ("older", self.pick(&self.aged.earlier)?.volume.block(addr)),
        };
        if new == self.d.block(addr) {
            return None;
        }
        self.d.put(addr, 0, &new);
        Done::all(how.into())
    }

    fn superblock(&mut self) -> Option<Done> {
        let copy = self.below(2) as u32;
        let (at, bit) = self.flip(BlockAddr(copy), 1024..1024 + 3072);
        Done::all(format!("bit {bit} of byte {} of superblock {copy}", at - 1024))
    }
}
