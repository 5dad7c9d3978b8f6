//! Inodes that are older than the blocks of their files.
//!
//! An older version of an inode in the place of the newest names no blocks that the file got since, and its i_blocks and
//! i_size are as old as its addresses. The SIT marks these blocks, their summaries name holes, and the checkpoint counts more
//! blocks than the nodes name. The blocks of an old block of the SIT were freed: the checkpoint does not count them.

use std::collections::BTreeMap;

use f2fs::{
    Place,
    format::{FileType, checkpoint::Checkpoint},
    units::{BlockAddr, Ino, Nid},
};
use rustc_hash::FxHashSet;

use crate::{
    Certainty, Finding, Fix, Kind, Loss, Slot,
    addresses::Doubt,
    checker::{Checker, Counts, ODD_MAX},
    emptied::Emptied,
    freed::Freed,
    inodes::{SIZE, may_pass_end},
    owners::NamedPlace,
    segments::Content,
    table::fact,
};

/// Marked blocks whose summaries name places in files that do not count them.
#[derive(Default)]
pub struct Uncounted {
    /// Holes, each with its only block.
    pub holes: Vec<((Nid, u16), Emptied)>,
    /// Numbers of the blocks of other places, by file.
    pub others: BTreeMap<Ino, u64>,
    /// Number of places in files that name blocks of others: their counts may be right by chance.
    pub doubtful: u64,
}

impl Uncounted {
    /// Adds a place and its blocks.
    pub fn add(&mut self, key: (Nid, u16), place: Emptied) {
        match place.originals.len() {
            1 => self.holes.push((key, place)),
            count => self.add_others(place.ino, count as u64),
        }
    }

    /// Adds blocks of a file that cannot get their place back.
    pub fn add_others(&mut self, ino: Ino, count: u64) {
        if self.others.len() < ODD_MAX || self.others.contains_key(&ino) {
            *self.others.entry(ino).or_default() += count;
        }
    }
}

/// A place, and a block that may belong there.
pub type Undecided = (NamedPlace, BlockAddr);

/// Facts about inodes that may be older than the blocks of their files.
pub struct Outdated {
    /// Origin of the counts in the checkpoint.
    counts: Counts,
    /// Nodes whose newest block a log tells: no mark and no summary speaks against their addresses.
    pub newest: FxHashSet<Nid>,
    /// Number of places that are reserved and have no block.
    pub reserved_blocks: u64,
    /// Places that name a block without a mark, with a marked one that belongs there, as long as nothing decides between them;
    /// `None` if there are several.
    pub undecided: BTreeMap<(Nid, u16), Option<Undecided>>,
    /// Files that get back nodes which no parent names.
    pub attached: FxHashSet<Ino>,
    /// Nodes that are too old to name blocks which they get back.
    pub nodes: FxHashSet<Nid>,
    /// Files whose inode names an older block than the marked one, which no checksum confirms.
    pub displaced: FxHashSet<Ino>,
    /// Files that have given up blocks which their nodes name.
    pub freed: Freed,
    /// Number of addresses that are cleared, because nothing tells their blocks.
    pub cleared_blocks: u64,
    /// The files of `nodes`, with the block behind the last one that comes back.
    ends: BTreeMap<Ino, u64>,
}

impl Outdated {
    /// Begins without facts.
    pub fn new(counts: Counts, newest: FxHashSet<Nid>) -> Outdated {
        Outdated {
            counts,
            newest,
            reserved_blocks: 0,
            undecided: BTreeMap::new(),
            attached: FxHashSet::default(),
            nodes: FxHashSet::default(),
            displaced: FxHashSet::default(),
            freed: Freed::default(),
            cleared_blocks: 0,
            ends: BTreeMap::new(),
        }
    }

    /// Origin of the counts in the checkpoint.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

/// Blocks with data past the size of a file.
#[derive(Debug, Clone, Copy, Default)]
pub struct PastSize {
    /// Their number.
    pub blocks: u64,
    /// The block of the file behind the last one.
    pub end: u64,
}

impl Checker<'_> {
    /// The file that the summary of a block names, if the place is none that an address can have: the content of the inode
    /// has no addresses, or no parent names the node.
    pub fn file_without_place(&mut self, addr: BlockAddr) -> Option<Ino> {
        let owner =
            self.summaries.owner(&self.io, addr).filter(|owned| owned.content == Content::Data)?.owner;
        let entry = self.table.find(owner.nid)?;
        let is_usable = !self.table.has(entry, fact::BROKEN | fact::INVALID | fact::EMPTIED);
        let ino = self.table.ino(entry);
        let is_file = is_usable && self.table.version(entry) == owner.version && self.inode_of(ino).is_some();
        (is_file && self.named_place(owner).is_none()).then_some(ino)
    }

    /// Restores the holes if the checkpoint counts just these blocks beside those that the nodes name, and as many marks as
    /// there are. Otherwise tells the blocks that it counts as lost. Returns the blocks that come back.
    pub fn conclude_uncounted(&mut self, uncounted: Uncounted) -> FxHashSet<BlockAddr> {
        let Uncounted { holes, others, doubtful } = uncounted;
        let count = holes.len() as u64 + others.values().sum::<u64>();
        let lacking = if count > 0 { self.lacking_blocks() } else { 0 };
        if lacking == 0 {
            (0..doubtful).for_each(|_| self.lose(Loss::Block));
            return FxHashSet::default();
        }
        if others.is_empty()
            && count == lacking
            && self.do_marks_fit()
            && self.odd.len() + holes.len() <= ODD_MAX
        {
            return holes.into_iter().map(|(key, place)| self.fill_hole(key, &place)).collect();
        }
        (0..count.min(lacking).max(doubtful)).take(ODD_MAX).for_each(|_| self.lose(Loss::Block));
        let mut files = others;
        for (_, place) in &holes {
            *files.entry(place.ino).or_default() += 1;
        }
        for (ino, count) in files {
            let known = format!(
                "the summaries of {count} marked blocks name places in it that have no address; valid_block_count counts \
                 {lacking} more blocks than the nodes name"
            );
            let finding = Finding::new(Kind::SitUnused, Place::Inode(ino), known);
            self.report.add(finding.with_certainty(Certainty::Unclear));
        }
        FxHashSet::default()
    }

    /// Puts the block of a hole there. Returns the block.
    fn fill_hole(&mut self, key: (Nid, u16), place: &Emptied) -> BlockAddr {
        let original = place.originals[0];
        self.note_emptied(key, place, original, Doubt::Older(Certainty::Unclear));
        self.outdated.nodes.insert(key.0);
        let end = self.outdated.ends.entry(place.ino).or_default();
        *end = (*end).max(place.block + 1);
        original
    }

    /// Returns true if the file system counted just these nodes, and just the blocks that they name or get back. The nodes of an
    /// old block of the NAT are others.
    pub fn are_all_counted(&self) -> bool {
        let Checkpoint { valid_blocks, valid_nodes, .. } = self.checkpoint;
        let sums = &self.report.sums;
        self.outdated.counts == Counts::Stored
            && (valid_blocks, u64::from(valid_nodes)) == (sums.blocks, sums.nodes)
            && self.are_nodes_known()
    }

    /// Number of blocks that valid_block_count counts and that no node names; 0 if a node is damaged, which may name them.
    fn lacking_blocks(&self) -> u64 {
        match self.are_nodes_known() {
            true => self.checkpoint.valid_blocks.saturating_sub(self.report.sums.blocks),
            false => 0,
        }
    }

    /// Returns true if all nodes in use were found, and can be read.
    pub fn are_nodes_known(&self) -> bool {
        self.lost.is_empty()
            && !self.table.iter().any(|(_, entry)| self.table.has(entry, fact::BROKEN | fact::INVALID))
    }

    /// Returns true if the SIT marks as many blocks as the checkpoint counts. It marks none of those that are only reserved.
    pub fn do_marks_fit(&self) -> bool {
        self.segments.marked_blocks() + self.outdated.reserved_blocks == self.checkpoint.valid_blocks
    }

    /// Returns true if a file has more blocks than its i_blocks counts.
    pub fn has_more_blocks(&self, ino: Ino) -> bool {
        // The number wraps then.
        self.table.find_inode(ino).is_some_and(|entry| self.table.blocks_left(entry) >= 1 << 31)
    }

    /// Reports files with data past their size. If i_blocks does not count all blocks either, and the checkpoint does, the
    /// inode is older than the data, and gets the size of the data.
    pub fn conclude_sizes(&mut self) {
        let are_counted = self.are_all_counted();
        let ends = std::mem::take(&mut self.outdated.ends);
        let mut past: BTreeMap<Ino, PastSize> = self.past_size.drain().collect();
        for (ino, end) in ends {
            let past = past.entry(ino).or_default();
            past.end = past.end.max(end);
        }
        for (ino, PastSize { blocks, end }) in past {
            let Some(inode) = self.inode_of(ino) else { continue };
            let size = inode.head().size.get();
            let new_size = end * self.geometry.block_size.bytes() as u64;
            let is_older = are_counted && self.has_more_blocks(ino);
            let is_file = inode.file_type() == FileType::Regular && !may_pass_end(&inode);
            if is_older && is_file && new_size > size {
                let known = format!("i_size {size}, the data ends at {new_size}");
                let finding = Finding::new(Kind::PastSize, Place::Inode(ino), known);
                self.report.add(finding.repaired_by("set the size to the end of the data"));
                self.fix(Fix::Node(Slot { nid: ino.into(), at: SIZE }, new_size.to_le_bytes().to_vec()));
                self.lose(Loss::Size);
            } else if blocks > 0 {
                let known = format!("i_size {size}, {blocks} blocks with data lie past it");
                self.add(Kind::PastSize, Place::Inode(ino), known);
            }
        }
    }
}
