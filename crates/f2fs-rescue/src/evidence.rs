//! The newest checkpoint pack, as far as it is whole, and the NAT that belongs to it.

use std::{ops::Range, sync::Arc};

use f2fs::{
    Place,
    engine::Geometry,
    format::{
        BLOCKS_PER_SEGMENT, TableCopy, bits,
        checkpoint::{Checkpoint, Flags, RESERVED_NIDS, newest},
        nat::{self, NatEntry},
        sit::{self, SegmentType, SitEntry},
        summary::{Compact, Journal, Summary},
        superblock::{Features, Superblock},
    },
    units::{BlockAddr, Ino, Nid, SegNo},
};
use rustc_hash::FxHashMap;

use crate::{
    bitmap::Bitmap,
    chain::{Chain, Coverage},
    packs::PackEnds,
    shape::Shape,
    versions::{Version, Versions, fact},
};

/// State of the journals of a pack. They carry no checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Journals {
    /// The head of the pack is whole, and the journals are possible.
    Whole,
    /// The head or a journal is damaged: so may be all journals.
    Doubtful,
}

/// Content of the newest pack.
pub(crate) struct Evidence {
    pub(crate) checkpoint: Checkpoint,
    geometry: Geometry,
    /// NAT entries that override the table.
    journal: FxHashMap<u32, NatEntry>,
    /// SIT entries that override the table.
    sit_journal: FxHashMap<u32, SitEntry>,
    /// Summaries of the logs; `None` where the pack has none.
    summaries: [Option<Arc<Summary>>; 6],
    /// True if the other pack may have held a newer checkpoint, which is lost.
    is_overtaken: bool,
    journals: Journals,
}

/// Statement of the NAT about a node.
enum Entry {
    /// Its address.
    At(BlockAddr),
    /// The number was used and is free.
    Freed,
    /// Nothing: the entry was never written, or its block is lost.
    Unknown,
}

/// Relation of the NAT's entry of a node to the newest checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NatStanding {
    /// Nothing tells that it is not that of the checkpoint.
    Current,
    /// It is that of an older checkpoint.
    Outdated,
}

/// Inodes of the checkpoint of which there is no version.
#[derive(Debug, Default)]
pub(crate) struct LostInodes {
    /// Those that the NAT has, in ascending order.
    pub(crate) named: Vec<u32>,
    /// Number of others that the checkpoint counts.
    pub(crate) further: u64,
}

/// The block of a table that was read last: its index, and its bytes if it can be read.
type CachedBlock = Option<(u32, Option<Box<[u8]>>)>;

impl Evidence {
    /// Reads the newest committed pack whose numbers are possible.
    pub(crate) fn read(shape: &Shape) -> Option<Evidence> {
        let (sb, _, geometry) = shape.known.as_ref()?;
        let ends = [0, 1].map(|pack| PackEnds::read(&shape.io, geometry, pack));
        let committed = [0, 1].map(|pack: usize| ends[pack].committed());
        let version = |pack: usize| committed[pack].map(|end| end.version);
        let first = newest(version(0), version(1))?;
        let read = |pack: u8| Evidence::of_pack(&ends[usize::from(pack)].bytes()?, sb, geometry, pack);
        let (number, mut evidence) =
            [first, 1 - first].into_iter().find_map(|pack| Some((pack, read(pack)?)))?;
        if ends[usize::from(number)].lacks_head() {
            evidence.journals = Journals::Doubtful;
        }
        let used = evidence.checkpoint.version;
        evidence.is_overtaken = ends.iter().any(|ends| ends.may_be_newer(used));
        Some(evidence)
    }

    fn of_pack(bytes: &[u8], sb: &Superblock, geometry: &Geometry, pack: u8) -> Option<Evidence> {
        let size = sb.block_size.bytes();
        let checkpoint =
            Checkpoint::check(bytes.get(..size * (1 + sb.cp_payload as usize))?, sb, pack).ok()?;
        let end = checkpoint.pack_blocks.checked_sub(1)? as usize;
        let blocks = end.checked_sub(checkpoint.summaries_start as usize)?;
        let summaries = bytes.get(size * checkpoint.summaries_start as usize..size * end)?;
        let parts = Parts { geometry, sb, pack, checkpoint: &checkpoint, summaries };
        let is_whole = parts.wanted_blocks() <= blocks;
        let (nat, sit) = if is_whole { (parts.nat_journal(), parts.sit_journal()) } else { (None, None) };
        let journals = match nat.is_some() && sit.is_some() && !parts.is_blank() {
            true => Journals::Whole,
            false => Journals::Doubtful,
        };
        Some(Evidence {
            journal: nat.unwrap_or_default(),
            sit_journal: sit.unwrap_or_default(),
            summaries: if is_whole { parts.log_summaries() } else { Default::default() },
            geometry: *geometry,
            checkpoint,
            is_overtaken: false,
            journals,
        })
    }

    /// Segments of the logs, with their summaries.
    pub(crate) fn log_summaries(&self) -> Vec<(SegNo, Option<Arc<Summary>>)> {
        let logs = SegmentType::ALL.into_iter().zip(&self.summaries);
        logs.map(|(kind, summary)| (self.checkpoint.logs[kind.index()].segment, summary.clone())).collect()
    }

    /// Lower half of the version in footers of nodes that were written after the checkpoint.
    pub(crate) fn version(&self) -> u32 {
        low_half(self.checkpoint.version.0)
    }

    /// First block that a log writes after the checkpoint.
    pub(crate) fn log_start(&self, kind: SegmentType) -> BlockAddr {
        self.geometry.next_block(self.checkpoint.logs[kind.index()])
    }

    /// Calls `each` with every inode that the NAT names, and its address.
    fn for_each_inode(&self, shape: &Shape, mut each: impl FnMut(Ino, BlockAddr)) {
        self.for_each_node(shape, |nid, ino, addr| {
            if Nid::from(ino) == nid {
                each(ino, addr);
            }
        });
    }

    /// Calls `each` with every node that the NAT names, its inode and its address.
    pub(crate) fn for_each_node(&self, shape: &Shape, mut each: impl FnMut(Nid, Ino, BlockAddr)) {
        let mut visit = |nid: Nid, entry: NatEntry| {
            if !entry.is_free() {
                each(nid, entry.ino, entry.addr);
            }
        };
        let size = shape.block_size();
        for index in 0..self.geometry.nat_blocks() {
            let addr = self.geometry.nat_block(index, TableCopy::current(&self.checkpoint.nat_bitmap, index));
            let Ok(block) = shape.io.read_block(addr, Place::Block(addr)) else { continue };
            let first = index * size.nat_entries() as u32;
            for (slot, nid) in (0..size.nat_entries()).zip((first..).map(Nid)) {
                if nid < self.geometry.nids_end() && !self.journal.contains_key(&nid.0) {
                    visit(nid, nat::entry(&block, slot));
                }
            }
        }
        let mut journal: Vec<(u32, NatEntry)> =
            self.journal.iter().map(|(nid, entry)| (*nid, *entry)).collect();
        journal.sort_unstable_by_key(|(nid, _)| *nid);
        journal.into_iter().for_each(|(nid, entry)| visit(Nid(nid), entry));
    }

    /// The inodes of the checkpoint that have no version, or as many as nothing else tells. The versions must be sorted by nid.
    pub(crate) fn lost_inodes(&self, shape: &Shape, versions: &Versions) -> LostInodes {
        let mut lost = LostInodes::default();
        // A newer checkpoint may have removed them.
        if self.is_overtaken {
            return lost;
        }
        self.for_each_inode(shape, |ino, addr| {
            let is_possible = ino.0 >= RESERVED_NIDS && self.geometry.in_main(addr);
            if is_possible && versions.current(ino).is_none() {
                lost.named.push(ino.0);
            }
        });
        lost.named.sort_unstable();
        lost.named.dedup();
        let is_inode = |group: &Range<u32>| {
            let first = versions.get(group.start);
            first.is_inode() && !first.is_of_another_time()
        };
        let found = versions.groups().filter(is_inode).count() + lost.named.len();
        lost.further = u64::from(self.checkpoint.valid_inodes).saturating_sub(found as u64);
        lost
    }

    /// Adds the statements of the SIT, the NAT and the fsync chain to the versions, which must be sorted by nid. Returns true if
    /// the SIT tells which versions count.
    pub(crate) fn judge(&self, shape: &Shape, versions: &mut Versions, chain: &Chain) -> bool {
        let is_told = self.judge_by_sit(shape, versions);
        let (mut block, mut marks) = (None, None);
        let groups: Vec<Range<u32>> = versions.groups().collect();
        for group in groups {
            let nid = Nid(versions.get(group.start).nid);
            let entry = self.entry(shape, nid, &mut block);
            let standing = self.standing(shape, versions, (group.clone(), &entry), &mut marks);
            self.judge_node(versions, group, (&entry, standing), chain);
        }
        is_told
    }

    /// Notes which versions the SIT does not mark, if it is whole and that of the newest checkpoint. Returns true if it is.
    fn judge_by_sit(&self, shape: &Shape, versions: &mut Versions) -> bool {
        let is_newest = !self.is_overtaken && self.journals == Journals::Whole;
        if !is_newest || self.marked_nodes(shape) != Some(self.checkpoint.valid_nodes) {
            return false;
        }
        // In the order of their addresses, each block of the SIT is read once.
        let mut order: Vec<u32> = (0..versions.len() as u32).collect();
        order.sort_unstable_by_key(|at| versions.get(*at).addr());
        let mut marks = None;
        for at in order {
            let version = versions.get_mut(at);
            if !self.is_marked(shape, version.addr(), &mut marks) {
                version.add_unmarked();
            }
        }
        true
    }

    /// Adds the statements about the versions of one node.
    fn judge_node(
        &self,
        versions: &mut Versions,
        group: Range<u32>,
        (entry, standing): (&Entry, NatStanding),
        chain: &Chain,
    ) {
        let is_here = |version: &Version| matches!(entry, Entry::At(addr) if *addr == version.addr());
        if self.is_overtaken {
            let is_newer = |version: &Version| version.cp >= self.version() && !is_here(version);
            // A lost checkpoint may have committed them.
            if group.clone().any(|at| is_newer(versions.get(at))) {
                return;
            }
            group.clone().for_each(|at| versions.get_mut(at).add_if_inode(fact::UNSURE));
        }
        if standing == NatStanding::Outdated {
            group.for_each(|at| versions.get_mut(at).add_if_inode(fact::UNSURE));
            return;
        }
        let mut is_known = false;
        for at in group.clone() {
            let version = versions.get_mut(at);
            let coverage = chain.coverage(version.ino);
            let is_after = version.cp == self.version() && coverage.is_some();
            let counts = match chain.last(version.nid) {
                Some(last) => last == version.addr(),
                None => is_after || is_here(version),
            };
            if counts {
                version.add(fact::CONFIRMED);
                is_known = true;
            }
            if coverage == Some(Coverage::Part) {
                version.add_if_inode(fact::UNSURE);
            }
        }
        if is_known {
            return;
        }
        match entry {
            Entry::Freed => group.for_each(|at| versions.get_mut(at).add_if_inode(fact::FREED)),
            Entry::At(_) => group.for_each(|at| versions.get_mut(at).add_outdated()),
            Entry::Unknown => {}
        }
    }

    /// Decides if the entry of a node in the NAT is older than the checkpoint: the checkpoint committed a newer version than
    /// the one that the NAT names, or, of a node that the NAT does not name, one since the checkpoint before it. A version
    /// that a power cut dropped looks the same. So the SIT must mark it, unless the journals, which override both
    /// tables, are damaged.
    fn standing(
        &self,
        shape: &Shape,
        versions: &Versions,
        (group, entry): (Range<u32>, &Entry),
        marks: &mut CachedBlock,
    ) -> NatStanding {
        let named = |version: &Version| matches!(entry, Entry::At(addr) if *addr == version.addr());
        let before = self.version().wrapping_sub(2);
        let found = group.clone().map(|at| versions.get(at)).find(|version| named(version));
        let known = found.map_or(before, |version| version.cp);
        let mut newer = group
            .map(|at| versions.get(at))
            .filter(|version| version.cp > known && version.cp < self.version());
        let is_outdated = match self.journals {
            Journals::Doubtful => newer.next().is_some(),
            Journals::Whole => newer.any(|version| self.is_marked(shape, version.addr(), marks)),
        };
        if is_outdated { NatStanding::Outdated } else { NatStanding::Current }
    }

    /// Number of nodes that the SIT marks as valid. `None` if a part of it cannot be read or is impossible.
    fn marked_nodes(&self, shape: &Shape) -> Option<u32> {
        let mut nodes = 0;
        let mut cached: CachedBlock = None;
        for segment in (0..self.geometry.segments).map(SegNo) {
            let (kind, count) = match self.sit_journal.get(&segment.0) {
                Some(entry) => (entry.kind, entry.valid_blocks),
                None => {
                    let entry = self.sit_entry(shape, segment, &mut cached)?;
                    (entry.kind, entry.valid_blocks)
                }
            };
            nodes = if kind.is_node() { u32::saturating_add(nodes, count.into()) } else { nodes };
        }
        Some(nodes)
    }

    /// The blocks that the SIT marks as valid. `None` if a part of it cannot be read or is impossible.
    pub(crate) fn marked_blocks(&self, shape: &Shape) -> Option<Bitmap> {
        let mut blocks = Bitmap::new(shape.blocks.end);
        let mut cached: CachedBlock = None;
        for segment in (0..self.geometry.segments).map(SegNo) {
            let entry = match self.sit_journal.get(&segment.0) {
                Some(entry) => entry.clone(),
                None => self.sit_entry(shape, segment, &mut cached)?,
            };
            for offset in (0..BLOCKS_PER_SEGMENT).filter(|offset| bits::msb(&entry.map, *offset as usize)) {
                let offset = u16::try_from(offset).expect("a segment has 512 blocks");
                blocks.set(self.geometry.block(segment, offset));
            }
        }
        Some(blocks)
    }

    /// Reads an entry of the SIT, without the journal.
    fn sit_entry(&self, shape: &Shape, segment: SegNo, cached: &mut CachedBlock) -> Option<SitEntry> {
        let (index, slot) = sit::position(segment, shape.block_size());
        if cached.as_ref().is_none_or(|(cached, _)| *cached != index) {
            let addr = self.geometry.sit_block(index, TableCopy::current(&self.checkpoint.sit_bitmap, index));
            *cached = Some((index, shape.io.read_block(addr, Place::Sit(segment)).ok()));
        }
        let (_, block) = cached.as_ref()?;
        sit::entry(block.as_ref()?, slot, segment).ok()
    }

    /// Returns true if the SIT marks a block as valid.
    fn is_marked(&self, shape: &Shape, addr: BlockAddr, cached: &mut CachedBlock) -> bool {
        if !self.geometry.in_main(addr) {
            return false;
        }
        let (segment, offset) = self.geometry.position(addr);
        if let Some(entry) = self.sit_journal.get(&segment.0) {
            return bits::msb(&entry.map, usize::from(offset));
        }
        self.sit_entry(shape, segment, cached).is_some_and(|entry| bits::msb(&entry.map, usize::from(offset)))
    }

    fn entry(&self, shape: &Shape, nid: Nid, cached: &mut CachedBlock) -> Entry {
        if let Some(entry) = self.journal.get(&nid.0) {
            return statement(*entry);
        }
        if nid >= self.geometry.nids_end() {
            return Entry::Unknown;
        }
        let (index, slot) = nat::position(nid, shape.block_size());
        if cached.as_ref().is_none_or(|(cached, _)| *cached != index) {
            let addr = self.geometry.nat_block(index, TableCopy::current(&self.checkpoint.nat_bitmap, index));
            *cached = Some((index, shape.io.read_block(addr, Place::Nat(nid)).ok()));
        }
        match cached {
            Some((_, Some(block))) => statement(nat::entry(block, slot)),
            _ => Entry::Unknown,
        }
    }
}

/// The lower half of a checkpoint's version: the upper half of the versions in footers may be a checksum.
pub(crate) fn low_half(version: u64) -> u32 {
    (version & u64::from(u32::MAX)) as u32
}

/// The upper half of the version in a footer: a checksum of the checkpoint, or 0.
pub(crate) fn high_half(version: u64) -> u32 {
    (version >> 32) as u32
}

fn statement(entry: NatEntry) -> Entry {
    match entry {
        entry if !entry.is_free() => Entry::At(entry.addr),
        // A number that was freed has a version.
        NatEntry { version: 0, .. } => Entry::Unknown,
        _ => Entry::Freed,
    }
}

/// A pack, and the numbers that divide it.
struct Parts<'a> {
    geometry: &'a Geometry,
    sb: &'a Superblock,
    pack: u8,
    checkpoint: &'a Checkpoint,
    /// The bytes from the first summary on.
    summaries: &'a [u8],
}

impl Parts<'_> {
    fn is_compact(&self) -> bool {
        self.checkpoint.flags.has(Flags::COMPACT_SUM)
    }

    fn wanted_blocks(&self) -> usize {
        self.checkpoint.data_summary_blocks(self.geometry.summary)
            + 3 * usize::from(self.checkpoint.has_node_summaries())
    }

    /// Returns true if a summary of data has no entry although its log has blocks: it was overwritten, with the journals
    /// beside it.
    fn is_blank(&self) -> bool {
        if self.sb.features.has(Features::RO) {
            return false;
        }
        let size = self.sb.block_size.bytes();
        let entries = self.checkpoint.data_summary_entries();
        let is_blank = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        let mut blocks = self.summaries.chunks_exact(size);
        match self.is_compact() {
            true => entries != [0; 3] && blocks.next().is_some_and(is_blank),
            false => blocks.zip(entries).any(|(bytes, count)| count > 0 && is_blank(bytes)),
        }
    }

    /// The journal of the NAT; `None` if its count is impossible.
    fn nat_journal(&self) -> Option<FxHashMap<u32, NatEntry>> {
        let layout = self.geometry.summary;
        let bytes = match self.is_compact() {
            true => &self.summaries[..layout.journal_bytes()],
            false => Summary::journal_of(self.summaries, layout),
        };
        let entries = Journal::parse_nat(bytes, layout, self.pack).ok()?;
        Some(entries.into_iter().map(|(nid, entry)| (nid.0, entry)).collect())
    }

    /// The journal of the SIT; `None` if an entry or the count is impossible.
    fn sit_journal(&self) -> Option<FxHashMap<u32, SitEntry>> {
        let (layout, size) = (self.geometry.summary, self.sb.block_size.bytes());
        let bytes = match self.is_compact() {
            true => &self.summaries[layout.journal_bytes()..2 * layout.journal_bytes()],
            false => Summary::journal_of(self.summaries.get(2 * size..)?, layout),
        };
        let entries = Journal::parse_sit(bytes, layout, self.pack).ok()?;
        Some(entries.into_iter().map(|(segment, entry)| (segment.0, entry)).collect())
    }

    fn log_summaries(&self) -> [Option<Arc<Summary>>; 6] {
        if self.sb.features.has(Features::RO) {
            return Default::default();
        }
        let (layout, size) = (self.geometry.summary, self.sb.block_size.bytes());
        let block = |n: usize| &self.summaries[n * size..(n + 1) * size];
        let blocks = self.checkpoint.data_summary_blocks(self.geometry.summary);
        let data = match self.is_compact() {
            true => {
                Compact::parse(
                    &self.summaries[..blocks * size],
                    layout,
                    self.checkpoint.data_summary_entries(),
                )
                .summaries
            }
            false => [0, 1, 2].map(|n| Summary::parse(block(n), layout)),
        };
        let nodes = match self.checkpoint.has_node_summaries() {
            true => [0, 1, 2].map(|n| Some(Summary::parse(block(blocks + n), layout))),
            false => [None, None, None],
        };
        // The footer of a log's summary in the compact form does not exist.
        let [a, b, c] = data.map(|summary| Some(Arc::new(Summary { is_node: false, ..summary })));
        let [d, e, f] = nodes.map(|summary| summary.map(|it| Arc::new(Summary { is_node: true, ..it })));
        [a, b, c, d, e, f]
    }
}
