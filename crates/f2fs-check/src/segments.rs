//! The SIT (segment information table), and the blocks that nodes and files name.

use std::collections::BTreeSet;

use f2fs::{
    Place,
    engine::{Geometry, Io},
    format::{
        BLOCKS_PER_SEGMENT, TableCopy, bits,
        sit::{self, ENTRY_BYTES, MAP_BYTES, SegmentType},
    },
    units::{BlockAddr, SecNo, SegNo},
};

use rustc_hash::FxHashSet;

use crate::{Finding, Kind, Progress, Report, Stage, bitmap::Bitmap, packs::Pack, reader::read_again};

/// Blocks of the table that are read together.
const PIECE_BLOCKS: u32 = 128;

/// Content of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// A node.
    Node,
    /// Data of a file or directory.
    Data,
}

impl Content {
    /// Content of the blocks of a log.
    pub fn of(log: SegmentType) -> Content {
        if log.is_node() { Content::Node } else { Content::Data }
    }

    /// Name of the content, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Content::Node => "nodes",
            Content::Data => "data",
        }
    }

    /// The content of most blocks, by the numbers of nodes and of data blocks; `None` if there are none.
    pub fn of_most(nodes: u64, data: u64) -> Option<Content> {
        match (nodes, data) {
            (0, 0) => None,
            (nodes, data) => Some(if nodes > data { Content::Node } else { Content::Data }),
        }
    }
}

/// The content of segments and sections, by the numbers of their blocks.
pub trait Contents {
    /// The segments and sections.
    fn geometry(&self) -> &Geometry;

    /// Numbers of nodes and data blocks of a segment.
    fn contents(&self, segment: SegNo) -> (u16, u16);

    /// Numbers of nodes and data blocks of a section.
    fn section_contents(&self, section: SecNo) -> (u64, u64) {
        let segments = self.geometry().segments_of(section).map(|segment| self.contents(segment));
        segments.fold((0, 0), |sum, (nodes, data)| (sum.0 + u64::from(nodes), sum.1 + u64::from(data)))
    }

    /// Content of most blocks of a segment; `None` if it has none.
    fn content(&self, segment: SegNo) -> Option<Content> {
        let (nodes, data) = self.contents(segment);
        Content::of_most(nodes.into(), data.into())
    }

    /// Content of most blocks of a section; `None` if it has none.
    fn section_content(&self, section: SecNo) -> Option<Content> {
        let (nodes, data) = self.section_contents(section);
        Content::of_most(nodes, data)
    }

    /// Content that the type of a segment has to fit: that of its blocks. Linux takes the type of a whole section from its
    /// first segment, so an empty first segment has to fit the blocks of the section.
    fn typed_content(&self, segment: SegNo) -> Option<Content> {
        let section = self.geometry().section_of(segment);
        let is_first = self.geometry().first_segment(section) == segment;
        self.content(segment).or_else(|| if is_first { self.section_content(section) } else { None })
    }
}

/// A segment according to its SIT entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    /// Type, if it is one.
    kind: Option<SegmentType>,
    /// Stored number of valid blocks.
    count: u16,
    /// Claimed blocks that hold nodes.
    nodes: u16,
    /// Claimed blocks that hold data.
    data: u16,
    /// True if the entry contradicted itself before a correction.
    was_wrong: bool,
}

/// All segments.
pub struct Segments {
    geometry: Geometry,
    entries: Vec<Entry>,
    /// Blocks that the SIT marks as valid.
    valid: Bitmap,
    /// Blocks that the NAT or a node names.
    claimed: Bitmap,
    /// Blocks of the table without a usable entry, by index.
    lost: BTreeSet<u32>,
    /// Blocks that a correction marked.
    corrected: Option<Bitmap>,
    /// Blocks of the table that are older than the NAT, by index.
    pub old: FxHashSet<u32>,
    /// Blocks of the table that are older than the nodes, by index.
    pub stale: FxHashSet<u32>,
}

impl Contents for Segments {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn contents(&self, segment: SegNo) -> (u16, u16) {
        let entry = self.entries[segment.index()];
        (entry.nodes, entry.data)
    }
}

impl Segments {
    /// Reads the current copy of every SIT block, and the journal over them.
    pub fn read(
        io: &Io,
        geometry: &Geometry,
        pack: &Pack,
        report: &mut Report,
        progress: &mut dyn FnMut(Progress),
    ) -> Segments {
        let count = geometry.segments as usize;
        let bits = u64::from(geometry.segments) * u64::from(BLOCKS_PER_SEGMENT);
        let none = Entry { kind: Some(SegmentType::HotData), count: 0, nodes: 0, data: 0, was_wrong: false };
        let mut segments = Segments {
            geometry: *geometry,
            entries: vec![none; count],
            valid: Bitmap::new(bits),
            claimed: Bitmap::new(bits),
            lost: BTreeSet::new(),
            corrected: None,
            old: FxHashSet::default(),
            stale: FxHashSet::default(),
        };
        let size = io.block_size().bytes();
        let (blocks, per_block) = (geometry.sit_blocks(), io.block_size().sit_entries());
        let mut halves = [vec![0; PIECE_BLOCKS as usize * size], vec![0; PIECE_BLOCKS as usize * size]];
        for start in (0..blocks).step_by(PIECE_BLOCKS as usize) {
            let of = |blocks: u32| u64::from(blocks) * size as u64;
            progress(Progress { stage: Stage::Sit, done_bytes: of(start), total_bytes: of(blocks) });
            let length = PIECE_BLOCKS.min(blocks - start) as usize;
            let mut whole = [false; 2];
            for (copy, half) in TableCopy::BOTH.into_iter().zip(&mut halves) {
                let addr = geometry.sit_block(start, copy);
                whole[copy as usize] = io.read(addr, Place::Block(addr), &mut half[..length * size]).is_ok();
            }
            for at in 0..length {
                let index = start + at as u32;
                let copy = TableCopy::current(&pack.checkpoint.sit_bitmap, index);
                let block = &mut halves[copy as usize][at * size..(at + 1) * size];
                let addr = geometry.sit_block(index, copy);
                if !whole[copy as usize] {
                    if let Err(error) = read_again(io, addr, block) {
                        let known = format!("SIT block {index} cannot be read: {error}");
                        report.add(Finding::new(Kind::TableUnreadable, Place::Block(addr), known));
                        block.fill(0);
                    }
                }
                let first = index as usize * per_block;
                for (n, bytes) in block.chunks_exact(ENTRY_BYTES).take(per_block).enumerate() {
                    segments.set(first + n, bytes.try_into().expect("an entry's bytes"));
                }
                let mut entries = (first..count.min(first + per_block)).map(|n| SegNo(n as u32));
                if !entries.any(|segment| segments.is_usable(segment)) {
                    segments.lost.insert(index);
                }
            }
        }
        for (segment, bytes) in &pack.sit_journal {
            segments.check_below_journal(*segment, report);
            segments.set(segment.index(), bytes);
        }
        segments
    }

    /// Takes over the doubts of an earlier check, which a roll-forward over its corrections hides: blocks that had no mark have
    /// none, and entries and blocks of the table that were wrong tell no more than they did.
    pub fn doubted_as(mut self, earlier: Option<&Segments>) -> Segments {
        // With another geometry, another superblock counts.
        let Some(earlier) = earlier.filter(|earlier| earlier.geometry == self.geometry) else { return self };
        let mut corrected = earlier.claimed.clone();
        let maps = corrected.bytes_mut().iter_mut().zip(earlier.valid.bytes()).zip(self.valid.bytes_mut());
        for (n, ((corrected, marked), valid)) in maps.enumerate() {
            *corrected &= !marked & *valid;
            *valid &= !*corrected;
            let count = &mut self.entries[n / MAP_BYTES].count;
            *count = count.saturating_sub(corrected.count_ones() as u16);
        }
        for segment in earlier.all().filter(|segment| earlier.contradicts_itself(*segment)) {
            self.entries[segment.index()].was_wrong = true;
        }
        self.corrected = Some(corrected);
        self.lost.extend(&earlier.lost);
        self.old.extend(&earlier.old);
        self.stale.extend(&earlier.stale);
        self
    }

    /// Checks an entry of the table that the journal is about to override. Linux checks it, too, and refuses the volume
    /// (`build_sit_entries`).
    fn check_below_journal(&self, segment: SegNo, report: &mut Report) {
        let Some(entry) = self.entries.get(segment.index()) else { return };
        if entry.kind.is_none() {
            let known = "below its entry in the journal, the type is none of 0 to 5";
            report.add(Finding::new(Kind::SitType, Place::Sit(segment), known));
        }
        let marked: u32 = self.maps(segment).0.iter().map(|byte| byte.count_ones()).sum();
        if marked != u32::from(entry.count) {
            let known =
                format!("below its entry in the journal, {} valid blocks, {marked} bits set", entry.count);
            report.add(Finding::new(Kind::SitCount, Place::Sit(segment), known));
        }
    }

    fn set(&mut self, segment: usize, bytes: &[u8; ENTRY_BYTES]) {
        let Some(entry) = self.entries.get_mut(segment) else { return };
        let word = u16::from_le_bytes([bytes[0], bytes[1]]);
        entry.kind = SegmentType::ALL.get(usize::from(word >> 10)).copied();
        entry.count = word & 0x3FF;
        let map = &mut self.valid.bytes_mut()[segment * MAP_BYTES..][..MAP_BYTES];
        match is_erased(bytes) {
            true => map.fill(0),
            false => map.copy_from_slice(&bytes[2..2 + MAP_BYTES]),
        }
    }

    /// Returns true if the entry of a segment has blocks, and type and count that fit its map.
    fn is_usable(&self, segment: SegNo) -> bool {
        self.count(segment) > 0 && !self.contradicts_itself(segment)
    }

    /// Returns true if a segment has no usable entry, and lies in a block of the table without one: then nothing tells
    /// its blocks in use.
    pub fn is_lost(&self, segment: SegNo) -> bool {
        let (block, _) = sit::position(segment, self.geometry.block_size);
        self.lost.contains(&block) && !self.is_usable(segment)
    }

    /// Number of the block in the main area.
    fn index(&self, addr: BlockAddr) -> usize {
        let (segment, offset) = self.geometry.position(addr);
        segment.index() * BLOCKS_PER_SEGMENT as usize + usize::from(offset)
    }

    /// Marks a block of the main area as named by a node or the NAT. Returns true if it was named before.
    pub fn claim(&mut self, addr: BlockAddr, content: Content) -> bool {
        let index = self.index(addr);
        let entry = &mut self.entries[index / BLOCKS_PER_SEGMENT as usize];
        let count = if content == Content::Node { &mut entry.nodes } else { &mut entry.data };
        *count = count.saturating_add(1);
        self.claimed.set(index)
    }

    /// Takes a mark back.
    pub fn unclaim(&mut self, addr: BlockAddr, content: Content) {
        let index = self.index(addr);
        let entry = &mut self.entries[index / BLOCKS_PER_SEGMENT as usize];
        let count = if content == Content::Node { &mut entry.nodes } else { &mut entry.data };
        *count = count.saturating_sub(1);
        self.claimed.clear(index);
    }

    /// Returns true if the SIT marks the block as valid.
    pub fn is_valid(&self, addr: BlockAddr) -> bool {
        self.valid.get(self.index(addr))
    }

    /// Returns true if a block lies in the main area and the SIT marks it as valid.
    pub fn is_marked(&self, addr: BlockAddr) -> bool {
        self.geometry.in_main(addr) && self.is_valid(addr)
    }

    /// Iterates over the blocks of a segment that the SIT marks as valid.
    pub fn marked(&self, segment: SegNo) -> impl Iterator<Item = BlockAddr> + '_ {
        let (valid, _) = self.maps(segment);
        let offsets = (0..BLOCKS_PER_SEGMENT as usize).filter(|n| bits::msb(valid, *n));
        offsets.map(move |offset| self.geometry.block(segment, offset as u16))
    }

    /// Number of blocks that the SIT marks as valid.
    pub fn marked_blocks(&self) -> u64 {
        self.valid.bytes().iter().map(|byte| u64::from(byte.count_ones())).sum()
    }

    /// Returns true if a node or the NAT names the block.
    pub fn is_claimed(&self, addr: BlockAddr) -> bool {
        self.claimed.get(self.index(addr))
    }

    /// Number of claimed blocks of a segment.
    pub fn claims(&self, segment: SegNo) -> u16 {
        let entry = self.entries[segment.index()];
        entry.nodes.saturating_add(entry.data)
    }

    /// Type of a segment, if it is one.
    pub fn kind(&self, segment: SegNo) -> Option<SegmentType> {
        self.entries[segment.index()].kind
    }

    /// Stored number of valid blocks of a segment.
    pub fn count(&self, segment: SegNo) -> u16 {
        self.entries[segment.index()].count
    }

    /// Returns true if the SIT entry of a segment has, or had before a correction, an impossible type, or another count than
    /// its map.
    pub fn contradicts_itself(&self, segment: SegNo) -> bool {
        let marked: u32 = self.maps(segment).0.iter().map(|byte| byte.count_ones()).sum();
        let was_wrong = self.entries[segment.index()].was_wrong;
        was_wrong || self.kind(segment).is_none() || u32::from(self.count(segment)) != marked
    }

    /// The maps of a segment: valid and claimed.
    pub fn maps(&self, segment: SegNo) -> (&[u8], &[u8]) {
        let range = segment.index() * MAP_BYTES..(segment.index() + 1) * MAP_BYTES;
        (&self.valid.bytes()[range.clone()], &self.claimed.bytes()[range])
    }

    /// Blocks that the SIT marks as valid, or that a node or the NAT names.
    pub fn in_use(&self) -> Bitmap {
        let mut used = self.valid.clone();
        for (used, claimed) in used.bytes_mut().iter_mut().zip(self.claimed.bytes()) {
            *used |= claimed;
        }
        let corrected = self.corrected.iter().flat_map(|corrected| corrected.bytes());
        for (used, corrected) in used.bytes_mut().iter_mut().zip(corrected) {
            *used |= corrected;
        }
        used
    }

    /// All segments.
    pub fn all(&self) -> impl Iterator<Item = SegNo> + use<> {
        (0..self.geometry.segments).map(SegNo)
    }

    /// Iterates over the blocks of a segment that are valid but not claimed.
    pub fn unused(&self, segment: SegNo) -> Vec<BlockAddr> {
        let (valid, claimed) = self.maps(segment);
        if valid == claimed {
            return Vec::new();
        }
        let unused = |n: &usize| bits::msb(valid, *n) && !bits::msb(claimed, *n);
        let offsets = (0..BLOCKS_PER_SEGMENT as usize).filter(unused);
        offsets.map(|offset| self.geometry.block(segment, offset as u16)).collect()
    }
}

/// Returns true if the bytes of an entry of NAT or SIT are all ones, as erased flash reads. No entry in use has them: they are
/// no address and no type.
pub fn is_erased(entry: &[u8]) -> bool {
    entry.iter().all(|byte| *byte == 0xFF)
}
