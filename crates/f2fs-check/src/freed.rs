//! Addresses of blocks that a file has given up.
//!
//! An older version of a node in the place of the newest names blocks that its file has freed since: the SIT does not mark
//! them, or another owner has them now. Their summaries may still name their old places. It looks like a SIT that lacks marks;
//! but then the checkpoint counts more blocks than the SIT marks. Where it counts just the marked blocks, all of them have
//! their places, and the nodes name more, the surplus is content that the files no longer had.

use std::collections::BTreeMap;

use f2fs::{
    Place,
    format::{BLOCKS_PER_SEGMENT, FileType, bits, node::NodeFooter, node_path::NodeKind},
    units::{BlockAddr, Ino, Nid, SegNo},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    Certainty, Finding, Fix, Kind, Loss, Slot,
    addresses::{Doubt, Odd},
    checker::{Checker, Counts, ODD_MAX},
    inodes::{SIZE, address_at, has_map, may_pass_end},
    owners::NamedPlace,
    segments::Content,
};

/// Key of a place: its node, and the index there.
type Key = (Nid, u16);

/// Files that have given up blocks which their nodes name.
#[derive(Debug, Default)]
pub struct Freed {
    /// The blocks of each file.
    files: BTreeMap<Ino, FxHashSet<u64>>,
    /// Files whose inodes count them, too.
    older: Vec<Ino>,
}

impl Freed {
    /// Number of blocks that a file has given up.
    pub fn count(&self, ino: Ino) -> u64 {
        self.files.get(&ino).map_or(0, |blocks| blocks.len() as u64)
    }

    /// Notes a file whose inode counts the blocks.
    pub fn note_older(&mut self, ino: Ino) {
        self.older.push(ino);
    }
}

impl Checker<'_> {
    /// Has the addresses cleared that name freed blocks, if the counts prove it. The nodes that have them are older than their
    /// files. `unused` are the blocks that the SIT marks and nothing names.
    pub fn clear_freed(&mut self, unused: &[(SegNo, Vec<BlockAddr>)]) {
        if self.outdated.counts() != Counts::Stored || !self.are_nodes_known() || !self.do_marks_fit() {
            return;
        }
        let surplus = self.report.sums.blocks.saturating_sub(self.checkpoint.valid_blocks);
        let undecided = self.outdated.undecided.values().flatten();
        let waiting: FxHashSet<BlockAddr> = undecided.map(|(_, addr)| *addr).collect();
        let are_placed = unused.iter().flat_map(|(_, blocks)| blocks).all(|addr| waiting.contains(addr));
        if surplus == 0 || surplus > ODD_MAX as u64 || !are_placed {
            return;
        }
        let Some(places) = self.freed_places().filter(|places| places.len() as u64 == surplus) else {
            return;
        };
        let mut nodes: BTreeMap<Nid, (Ino, u64, u64)> = BTreeMap::new();
        for (key, place) in places {
            let node = nodes.entry(key.0).or_insert((place.ino, place.block, 0));
            node.2 += 1;
            self.clear_freed_place(key, &place);
        }
        for (nid, (ino, block, count)) in nodes {
            self.outdated.nodes.insert(nid);
            let known = format!(
                "{count} addresses in {nid} name blocks that were freed: valid_block_count counts just the marked blocks, and \
                 all have other places"
            );
            let finding = Finding::new(Kind::BlockAddress, Place::File(ino, block), known);
            let finding = finding.repaired_by("clear the addresses: the node is older than the file");
            self.report.add(finding.with_certainty(Certainty::Likely));
        }
    }

    /// Has an address cleared that names a freed block.
    fn clear_freed_place(&mut self, key: Key, place: &NamedPlace) {
        let NamedPlace { ino, block, slot, stored } = *place;
        self.odd.remove(&key);
        self.discount_footer(stored);
        if !self.shared.release(stored, slot) {
            self.segments.unclaim(stored, Content::Data);
        }
        self.report.sums.blocks -= 1;
        if let Some(entry) = self.table.find_inode(ino) {
            self.table.take_blocks(entry, 1u32.wrapping_neg());
        }
        // The next check finds what is left of them.
        self.past_size.remove(&ino);
        self.outdated.freed.files.entry(ino).or_default().insert(block);
        self.fix(Fix::Node(slot, vec![0; 4]));
    }

    /// The places that name blocks without a mark, or blocks of others, and for which there is no other block. `None` if one of
    /// them has another explanation.
    fn freed_places(&mut self) -> Option<BTreeMap<Key, NamedPlace>> {
        let paired = self.odd.values().filter(|odd| odd.original.is_some()).map(|odd| odd.addr);
        let undecided = self.outdated.undecided.values().flatten().map(|(place, _)| place.stored);
        let paired: FxHashSet<BlockAddr> = paired.chain(undecided).collect();
        let is_alone = |odd: &Odd| odd.original.is_none() && self.geometry.in_main(odd.addr);
        let alone = self.odd.iter().filter(|(_, odd)| is_alone(odd));
        let is_doubted = |odd: &Odd| matches!(odd.doubt, Doubt::Summary(..) | Doubt::Unmarked);
        let alone: Vec<(Key, NamedPlace, bool)> =
            alone.map(|(key, odd)| (*key, place_of(odd), is_doubted(odd))).collect();
        let mut by_addr: FxHashMap<BlockAddr, (Key, NamedPlace)> = FxHashMap::default();
        let mut places = BTreeMap::new();
        for (key, place, is_doubted) in alone {
            if !self.segments.is_valid(place.stored) && is_doubted {
                by_addr.insert(place.stored, (key, place));
            } else if self.belongs_to_another(key, place.stored) {
                places.insert(key, place);
            }
        }
        for addr in self.unmarked_blocks()?.into_iter().filter(|addr| !paired.contains(addr)) {
            let (key, place) = match by_addr.remove(&addr) {
                Some(found) => found,
                None => self.place_that_names(addr)?,
            };
            places.insert(key, place);
        }
        let inos: FxHashSet<Ino> = places.values().map(|place| place.ino).collect();
        let are_plain = inos
            .into_iter()
            .all(|ino| self.inode_of(ino).is_some_and(|inode| inode.layout().cluster_blocks() == 1));
        let is_marked = |key: &Key| {
            self.table.find(key.0).is_some_and(|entry| self.segments.is_marked(self.table.addr(entry)))
        };
        (are_plain && places.keys().all(is_marked)).then_some(places)
    }

    /// Blocks that are named and not marked, each by one owner. `None` if there are too many, or if their entries in the SIT
    /// are damaged.
    fn unmarked_blocks(&self) -> Option<Vec<BlockAddr>> {
        let mut blocks = Vec::new();
        for segment in self.segments.all() {
            let (valid, claimed) = self.segments.maps(segment);
            if valid == claimed {
                continue;
            }
            let is_unmarked = |at: &usize| bits::msb(claimed, *at) && !bits::msb(valid, *at);
            let found = (0..BLOCKS_PER_SEGMENT as usize).filter(is_unmarked);
            let before = blocks.len();
            blocks.extend(found.map(|at| self.geometry.block(segment, at as u16)));
            let is_damaged = blocks.len() > before && self.segments.contradicts_itself(segment);
            if is_damaged || blocks.len() > ODD_MAX {
                return None;
            }
        }
        (!blocks.iter().any(|addr| self.shared.contains(*addr))).then_some(blocks)
    }

    /// Returns true if another place than this one names a block, too, and the summary of the block confirms that one.
    fn belongs_to_another(&mut self, key: Key, addr: BlockAddr) -> bool {
        let owned = self.summaries.owner(&self.io, addr).filter(|_| self.shared.contains(addr));
        let Some(owned) = owned else { return false };
        match owned.content {
            Content::Node => {
                self.table.find(owned.owner.nid).is_some_and(|entry| self.table.addr(entry) == addr)
            }
            Content::Data => {
                (owned.owner.nid, owned.owner.offset) != key
                    && self.confirmed_place(owned.owner, addr).is_some()
            }
        }
    }

    /// The place that the summary of a block names, if that place names the block.
    fn place_that_names(&mut self, addr: BlockAddr) -> Option<(Key, NamedPlace)> {
        let owned = self.summaries.owner(&self.io, addr).filter(|owned| owned.content == Content::Data)?;
        let place = self.confirmed_place(owned.owner, addr)?;
        Some(((owned.owner.nid, owned.owner.offset), place))
    }

    /// Tells the files with older inodes, and sets the sizes of those that ended in freed blocks.
    pub fn conclude_freed(&mut self) {
        let Freed { files, older } = std::mem::take(&mut self.outdated.freed);
        let older: FxHashSet<Ino> = older.into_iter().collect();
        let displaced = std::mem::take(&mut self.outdated.displaced);
        older.union(&displaced).for_each(|_| self.lose(Loss::Older));
        let ends = self.ends_without(&files);
        for (ino, blocks) in files.into_iter().filter(|(ino, _)| older.contains(ino)) {
            let Some(inode) = self.inode_of(ino) else { continue };
            let (size, end) = (inode.head().size.get(), ends.get(&ino).copied().unwrap_or(0));
            let new_size = end * self.geometry.block_size.bytes() as u64;
            let ended_there = blocks.iter().all(|block| *block >= end);
            let is_file = inode.file_type() == FileType::Regular && !may_pass_end(&inode);
            if is_file && ended_there && new_size < size {
                let known = format!("i_size {size} is that of an older inode, the data ends at {new_size}");
                let finding = Finding::new(Kind::PastSize, Place::Inode(ino), known);
                let finding = finding.repaired_by("set the size to the end of the data");
                self.report.add(finding.with_certainty(Certainty::Unclear));
                self.fix(Fix::Node(Slot { nid: ino.into(), at: SIZE }, new_size.to_le_bytes().to_vec()));
            }
        }
    }

    /// The block behind the last one of each file, without those that it has given up.
    fn ends_without(&mut self, files: &BTreeMap<Ino, FxHashSet<u64>>) -> FxHashMap<Ino, u64> {
        if files.is_empty() {
            return FxHashMap::default();
        }
        let of_files = self.table.iter().filter(|(_, entry)| files.contains_key(&self.table.ino(*entry)));
        let nodes: Vec<(Ino, BlockAddr)> =
            of_files.map(|(_, entry)| (self.table.ino(entry), self.table.addr(entry))).collect();
        let mut ends: FxHashMap<Ino, u64> = FxHashMap::default();
        for (ino, addr) in nodes {
            let Some(inode) = self.inode_of(ino).filter(|inode| has_map(inode)) else { continue };
            let Ok(bytes) = self.cache.block(&self.io, addr) else { continue };
            let layout = inode.layout();
            let kind = NodeKind::of(self.geometry.block_size, NodeFooter::of(&bytes).offset);
            let (first, count, starts_at) = match kind {
                Some(NodeKind::Inode) => (Some(0), layout.addrs(), layout.addrs_at()),
                Some(kind) => (kind.first_block(&layout), layout.direct_addrs(), 0),
                None => continue,
            };
            let Some(first) = first else { continue };
            let is_left = |index: &usize| {
                address_at(&bytes, starts_at + 4 * index) != BlockAddr::NULL
                    && !files[&ino].contains(&(first + *index as u64))
            };
            if let Some(last) = (0..count).rev().find(is_left) {
                let end = ends.entry(ino).or_default();
                *end = (*end).max(first + last as u64 + 1);
            }
        }
        ends
    }
}

/// The place of an odd address.
fn place_of(odd: &Odd) -> NamedPlace {
    NamedPlace { ino: odd.ino, block: odd.block, slot: odd.slot, stored: odd.addr }
}
