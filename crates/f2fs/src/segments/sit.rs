//! The SIT (segment information table) in memory. Its blocks are cached; changes wait for the next
//! checkpoint.
//!
//! *Invariants*: each changed segment has two maps: the blocks valid now, and the protected blocks, which are
//! those valid in the last checkpoint or allocated since. A block may be allocated only if both maps have it
//! clear. Until the next checkpoint is durable, a crash brings back the last one and the fsynced changes
//! after it. All blocks that these refer to must still be intact, even if they have been replaced or freed
//! since. An entry in `changes`, else one in `journal`, overrides the SIT block. `facts` summarize each SIT
//! block that has been read once, so that searches can skip it; they stay valid after the block has left the
//! cache.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use rustc_hash::FxHashMap;

use super::discards::UNIT_BLOCKS;
use crate::{
    Error, Place, Result,
    disk::{
        Geometry, Io,
        journal::{self, Prepared},
    },
    format::{
        bits,
        checkpoint::Checkpoint,
        sit::{self, SegmentType, SitEntry, ValidMap},
    },
    units::{BlockAddr, SecNo, SegNo},
};

/// A segment in memory.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    /// The type of the segment; of an empty one, its last type.
    pub kind: SegmentType,
    /// Blocks that are valid now.
    pub valid_blocks: u16,
    /// Bitmap of the valid blocks.
    pub map: ValidMap,
    /// Blocks that a crash may bring back: valid in the last checkpoint, or allocated since.
    pub protected_blocks: u16,
    /// Bitmap of the protected blocks.
    pub protected: ValidMap,
    /// Time of its last change, in seconds of mounted time.
    pub mtime: u64,
}

impl Segment {
    fn of(entry: SitEntry) -> Segment {
        Segment {
            kind: entry.kind,
            valid_blocks: entry.valid_blocks,
            map: entry.map,
            protected_blocks: entry.valid_blocks,
            protected: entry.map,
            mtime: entry.mtime,
        }
    }

    fn entry(&self) -> SitEntry {
        SitEntry { kind: self.kind, valid_blocks: self.valid_blocks, map: self.map, mtime: self.mtime }
    }

    /// Returns true if no block is valid or protected.
    pub(crate) fn is_free(&self) -> bool {
        self.valid_blocks == 0 && self.protected_blocks == 0
    }

    /// Returns true if no block is valid but some are protected until the next checkpoint.
    pub(crate) fn is_prefree(&self) -> bool {
        self.valid_blocks == 0 && self.protected_blocks != 0
    }

    /// The first free block at or after `from`.
    pub(crate) fn next_hole(&self, from: u16) -> Option<u16> {
        (usize::from(from) / 8..self.map.len()).find_map(|byte| {
            let skip = usize::from(from).saturating_sub(byte * 8).min(8);
            let taken = self.map[byte] | self.protected[byte];
            let open = !taken & (0xFFu16 >> skip) as u8;
            (open != 0).then(|| (byte * 8) as u16 + open.leading_zeros() as u16)
        })
    }
}

/// Maximum number of SIT blocks in one read when they are read sequentially.
const AHEAD_MAX: u32 = 64;

/// Summary of a SIT block that lets searches skip it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Facts {
    /// Number of segments without a valid block.
    pub empty: u8,
    /// Lower bound of the valid blocks of each non-empty segment, by type; [`u16::MAX`] if the block has no
    /// such segment.
    pub least_valid: [u16; 6],
    /// Lower bound of the `mtime` of the non-empty segments, in seconds of mounted time.
    pub oldest: u32,
}

impl Facts {
    const NONE: Facts = Facts { empty: 0, least_valid: [u16::MAX; 6], oldest: u32::MAX };

    /// Updates the facts with a segment that is new or has changed.
    fn include(&mut self, segment: &Segment) {
        if segment.valid_blocks > 0 {
            let least = &mut self.least_valid[segment.kind.index()];
            *least = segment.valid_blocks.min(*least);
            self.oldest = self.oldest.min(u32::try_from(segment.mtime).unwrap_or(u32::MAX));
        }
    }
}

/// The SIT.
pub(super) struct Sit {
    geometry: Geometry,
    /// The current copy of each SIT block: a set bit means the second. Most significant bit first.
    bitmap: Vec<u8>,
    /// Segments that have changed since the last checkpoint.
    changes: FxHashMap<SegNo, Segment>,
    /// Entries of the last checkpoint's journal.
    journal: BTreeMap<SegNo, SitEntry>,
    cache: Cache,
    /// Facts by SIT block; `None` if the block has not been read yet.
    facts: Vec<Option<Facts>>,
    /// The SIT block after the last one read, and the number of blocks in the next sequential read.
    next_read: u32,
    ahead: u32,
    /// Segments with a valid block.
    used: u32,
    /// Segments that the next checkpoint will make free.
    prefree: u32,
    /// Segments of each section that are not free; `None` until they are first counted, and always if a
    /// section is one segment.
    busy: Option<Vec<u32>>,
}

/// SIT blocks as they are on the device, evicted first in, first out.
#[derive(Default)]
struct Cache {
    blocks: FxHashMap<u32, Box<[u8]>>,
    order: VecDeque<u32>,
    most: usize,
}

impl Cache {
    fn insert(&mut self, index: u32, block: Box<[u8]>) {
        if self.blocks.insert(index, block).is_some() {
            return;
        }
        self.order.push_back(index);
        while self.order.len() > self.most {
            let first = self.order.pop_front().expect("it is longer than something");
            self.blocks.remove(&first);
        }
    }
}

impl Sit {
    /// Creates the SIT from a checkpoint and its journal, with a cache of about `cache_bytes` bytes. The
    /// number of used segments must be set by [`set_used`](Self::set_used).
    pub(super) fn new(
        geometry: Geometry,
        checkpoint: &Checkpoint,
        journal: Vec<(SegNo, SitEntry)>,
        pack: u8,
        cache_bytes: usize,
    ) -> Result<Sit> {
        if let Some((segment, _)) = journal.iter().find(|(segment, _)| segment.0 >= geometry.segments) {
            let what = format!("the SIT journal has an entry for {segment} of {}", geometry.segments);
            return Err(Error::corrupt(Place::Checkpoint(pack), what));
        }
        let most = (cache_bytes / geometry.block_size.bytes()).max(1);
        Ok(Sit {
            geometry,
            bitmap: checkpoint.sit_bitmap.clone(),
            changes: FxHashMap::default(),
            journal: journal.into_iter().collect(),
            cache: Cache { most, ..Cache::default() },
            facts: vec![None; geometry.sit_blocks() as usize],
            next_read: 0,
            ahead: 1,
            used: 0,
            prefree: 0,
            busy: None,
        })
    }

    /// Sets the number of segments with a valid block.
    pub(super) fn set_used(&mut self, used: u32) {
        self.used = used;
    }

    /// Size of the cached blocks in bytes.
    pub(super) fn block_bytes(&self) -> usize {
        self.cache.blocks.len() * self.geometry.block_size.bytes()
    }

    /// Segments that have changed since the last checkpoint.
    pub(super) fn changed_segments(&self) -> usize {
        self.changes.len()
    }

    /// The current state of a segment.
    pub(super) fn segment(&mut self, io: &Io, number: SegNo) -> Result<Segment> {
        match self.known(number) {
            Some(segment) => Ok(segment),
            None => {
                let (index, at) = sit::position(number, self.geometry.block_size);
                let entry = sit::entry(self.block(io, index)?, at, number);
                io.record_corruption(entry).map(Segment::of)
            }
        }
    }

    /// The current state of a segment that is in `changes` or in the journal.
    fn known(&self, number: SegNo) -> Option<Segment> {
        let changed = self.changes.get(&number).cloned();
        changed.or_else(|| self.journal.get(&number).cloned().map(Segment::of))
    }

    /// A segment, to change it; from now on it is in `changes`.
    fn segment_mut(&mut self, io: &Io, number: SegNo) -> Result<&mut Segment> {
        if !self.changes.contains_key(&number) {
            // The facts of its SIT block must exist, because they change with the segment.
            self.facts_of(io, sit::position(number, self.geometry.block_size).0)?;
            let segment = self.segment(io, number)?;
            self.changes.insert(number, segment);
        }
        Ok(self.changes.get_mut(&number).expect("it was just inserted"))
    }

    /// The current entry of a segment. The SIT block is not cached, so readers can share the volume.
    pub(super) fn peek(&self, io: &Io, number: SegNo) -> Result<SitEntry> {
        if let Some(segment) = self.known(number) {
            return Ok(segment.entry());
        }
        let (index, at) = sit::position(number, self.geometry.block_size);
        match self.cache.blocks.get(&index) {
            Some(block) => io.record_corruption(sit::entry(block, at, number)),
            None => io.record_corruption(sit::entry(&self.read(io, index)?, at, number)),
        }
    }

    /// Marks a block as valid; `kind` is the type of the log that writes it.
    ///
    /// # Panics
    /// If the block is already valid, which is a bug in allocation.
    pub(super) fn take(&mut self, io: &Io, addr: BlockAddr, kind: SegmentType, now: u64) -> Result<()> {
        let (number, offset) = self.geometry.position(addr);
        let segment = self.segment_mut(io, number)?;
        assert!(!bits::msb(&segment.map, usize::from(offset)), "{addr} is allocated twice");
        bits::set_msb(&mut segment.map, usize::from(offset), true);
        segment.valid_blocks += 1;
        segment.kind = kind;
        segment.mtime = now;
        let (first, prefree) = (segment.valid_blocks == 1, segment.protected_blocks != 0);
        if !bits::msb(&segment.protected, usize::from(offset)) {
            bits::set_msb(&mut segment.protected, usize::from(offset), true);
            segment.protected_blocks += 1;
        }
        self.has_changed(number, if first { -1 } else { 0 });
        if first {
            self.used += 1;
            self.prefree -= u32::from(prefree);
            if !prefree {
                self.count_busy(number, 1);
            }
        }
        Ok(())
    }

    /// Protects blocks of a segment that an earlier session wrote after the last checkpoint: they are not
    /// allocated before the next checkpoint. `kind` becomes the type of the segment if it has no valid block.
    pub(super) fn protect(
        &mut self,
        io: &Io,
        number: SegNo,
        needed: &ValidMap,
        kind: SegmentType,
    ) -> Result<()> {
        let mut segment = self.segment(io, number)?;
        let was_free = segment.is_free();
        let before = segment.protected_blocks;
        for (own, needed) in segment.protected.iter_mut().zip(needed) {
            *own |= needed;
        }
        segment.protected_blocks = segment.protected.iter().map(|byte| byte.count_ones() as u16).sum();
        if segment.protected_blocks == before {
            return Ok(());
        }
        if segment.valid_blocks == 0 {
            segment.kind = kind;
        }
        *self.segment_mut(io, number)? = segment;
        if was_free {
            self.prefree += 1;
            self.count_busy(number, 1);
        }
        Ok(())
    }

    /// Sets the type of a segment that a log opens. The segment is empty, or has valid blocks if the log fills its
    /// holes (SSR).
    pub(super) fn set_kind(&mut self, io: &Io, number: SegNo, kind: SegmentType) -> Result<()> {
        self.segment_mut(io, number)?.kind = kind;
        self.has_changed(number, 0);
        Ok(())
    }

    /// Marks a block as invalid. It stays protected until the next checkpoint.
    pub(super) fn release(&mut self, io: &Io, addr: BlockAddr, now: u64) -> Result<()> {
        let (number, offset) = self.geometry.position(addr);
        let segment = self.segment_mut(io, number)?;
        if !bits::msb(&segment.map, usize::from(offset)) {
            let what = format!("{addr} is in use, but not marked valid");
            return io.record_corruption(Err(Error::corrupt(Place::Sit(number), what)));
        }
        bits::set_msb(&mut segment.map, usize::from(offset), false);
        segment.valid_blocks -= 1;
        segment.mtime = now;
        let (last, prefree) = (segment.valid_blocks == 0, segment.protected_blocks != 0);
        self.has_changed(number, i8::from(last));
        if last {
            self.used = self.used.saturating_sub(1);
            self.prefree += u32::from(prefree);
        }
        Ok(())
    }

    /// Updates the facts of a segment's SIT block; `more_empty` is the change of the number of empty
    /// segments.
    fn has_changed(&mut self, number: SegNo, more_empty: i8) {
        let (index, _) = sit::position(number, self.geometry.block_size);
        let facts = self.facts[index as usize].as_mut().expect("a changed segment's block was read");
        facts.empty = facts.empty.checked_add_signed(more_empty).expect("each segment is counted once");
        facts.include(&self.changes[&number]);
    }

    /// Finds the first section at or after `from`, wrapping around, without valid or protected blocks and
    /// without any of the segments `current`. With `even_prefree`, protected blocks are ignored.
    pub(super) fn find_free_section(
        &mut self,
        io: &Io,
        from: SecNo,
        current: &[SegNo],
        even_prefree: bool,
    ) -> Result<Option<SecNo>> {
        let (sections, per_block) = (self.geometry.sections, self.geometry.block_size.sit_entries() as u32);
        let mut tried = 0;
        while tried < sections {
            let section = SecNo((from.0 + tried) % sections);
            let first = section.0 * self.geometry.segments_per_section;
            let table = first / per_block;
            if self.facts_of(io, table)?.empty == 0 {
                // Every section that begins in this SIT block is in use.
                let next = ((table + 1) * per_block).div_ceil(self.geometry.segments_per_section);
                tried += (next - section.0).min(sections - section.0).max(1);
                continue;
            }
            if self.is_section_free(io, section, current, even_prefree)? {
                return Ok(Some(section));
            }
            tried += 1;
        }
        Ok(None)
    }

    /// Returns true if a section has no valid or protected block and contains none of `current`. With
    /// `even_prefree`, protected blocks are ignored.
    pub(super) fn is_section_free(
        &mut self,
        io: &Io,
        section: SecNo,
        current: &[SegNo],
        even_prefree: bool,
    ) -> Result<bool> {
        for number in self.geometry.segments_of(section) {
            let segment = self.segment(io, number)?;
            let free = segment.is_free() || (even_prefree && segment.valid_blocks == 0);
            if !free || current.contains(&number) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Counts the sections without valid or protected blocks that contain none of `current`. The first call
    /// reads the whole SIT, unless a section is one segment.
    pub(super) fn free_sections(&mut self, io: &Io, current: &[SegNo]) -> Result<u32> {
        if self.geometry.segments_per_section == 1 {
            return Ok(self.free_segments(io, current)?.saturating_sub(self.prefree));
        }
        if self.busy.is_none() {
            let mut busy = vec![0; self.geometry.sections as usize];
            for number in (0..self.geometry.segments).map(SegNo) {
                let free = self.segment(io, number)?.is_free();
                busy[self.geometry.section_of(number).index()] += u32::from(!free);
            }
            self.busy = Some(busy);
        }
        let busy = self.busy.as_ref().expect("it was just counted");
        let held: BTreeSet<SecNo> =
            current.iter().map(|segment| self.geometry.section_of(*segment)).collect();
        let free = busy.iter().filter(|count| **count == 0).count();
        let held = held.iter().filter(|section| busy[section.index()] == 0).count();
        Ok((free - held) as u32)
    }

    fn count_busy(&mut self, segment: SegNo, change: i32) {
        if let Some(busy) = &mut self.busy {
            let count = &mut busy[self.geometry.section_of(segment).index()];
            *count = count.checked_add_signed(change).expect("each segment is counted once");
        }
    }

    /// Counts the segments without a valid block that are not in `current`.
    pub(super) fn free_segments(&mut self, io: &Io, current: &[SegNo]) -> Result<u32> {
        let mut empty_current = 0;
        for number in current {
            empty_current += u32::from(self.segment(io, *number)?.valid_blocks == 0);
        }
        // The number of used segments started from the checkpoint's value, which may be wrong.
        Ok(self.geometry.segments.saturating_sub(self.used).saturating_sub(empty_current))
    }

    /// Finds the segment with the highest rank; segments without a rank are skipped. `most` returns an upper
    /// bound of the ranks in a SIT block, given the block's first segment and its facts. The first call reads
    /// the whole SIT, later calls only the blocks that may contain the result.
    pub(super) fn best_segment<R: Ord>(
        &mut self,
        io: &Io,
        most: impl Fn(SegNo, &Facts) -> Option<R>,
        rank: impl Fn(SegNo, &Segment) -> Option<R>,
    ) -> Result<Option<SegNo>> {
        let mut blocks = Vec::new();
        for index in 0..self.geometry.sit_blocks() {
            let (facts, first) = (self.facts_of(io, index)?, self.numbers(index).start);
            blocks.extend(most(SegNo(first), &facts).map(|most| (most, index)));
        }
        let mut blocks = BinaryHeap::from(blocks);
        let mut best: Option<(R, SegNo)> = None;
        while let Some((most, index)) = blocks.pop() {
            if best.as_ref().is_some_and(|(high, _)| *high >= most) {
                break;
            }
            self.show_block(io, index, |number, segment| {
                if let Some(rank) = rank(number, segment) {
                    if best.as_ref().is_none_or(|(high, _)| rank > *high) {
                        best = Some((rank, number));
                    }
                }
            })?;
        }
        Ok(best.map(|(_, number)| number))
    }

    /// Calls `show` for every segment in order. Reads the whole SIT.
    pub(super) fn for_each(&mut self, io: &Io, mut show: impl FnMut(SegNo, &Segment)) -> Result<()> {
        (0..self.geometry.sit_blocks()).try_for_each(|index| self.show_block(io, index, &mut show))
    }

    /// Calls `show` for each segment of a SIT block, and recomputes the facts of the block.
    fn show_block(&mut self, io: &Io, index: u32, mut show: impl FnMut(SegNo, &Segment)) -> Result<()> {
        let mut facts = Facts::NONE;
        for number in self.numbers(index).map(SegNo) {
            let segment = self.segment(io, number)?;
            facts.empty += u8::from(segment.valid_blocks == 0);
            facts.include(&segment);
            show(number, &segment);
        }
        self.facts[index as usize] = Some(facts);
        Ok(())
    }

    /// The facts of a SIT block.
    fn facts_of(&mut self, io: &Io, index: u32) -> Result<Facts> {
        if self.facts[index as usize].is_none() {
            self.show_block(io, index, |_, _| ())?;
        }
        Ok(self.facts[index as usize].expect("they were just learned"))
    }

    /// The numbers of the segments in a SIT block.
    fn numbers(&self, index: u32) -> std::ops::Range<u32> {
        let per_block = self.geometry.block_size.sit_entries() as u32;
        index * per_block..self.geometry.segments.min((index + 1) * per_block)
    }

    /// Writes the changed entries: those that fit go to the journal, the rest to the other copy of their SIT
    /// blocks. They take effect only with the next checkpoint; see [`committed`](Self::committed).
    pub(super) fn write_back(&mut self, io: &Io) -> Result<Prepared<SegNo, SitEntry>> {
        let size = self.geometry.block_size;
        let changed: BTreeSet<SegNo> = self.changes.keys().chain(self.journal.keys()).copied().collect();
        let keys = changed.into_iter().map(|segment| (sit::position(segment, size).0, segment));
        let split = journal::split(keys, self.geometry.summary.sit_journal_entries());
        let bitmap = self.write_blocks(io, &split.blocks)?;
        let entry = |number| (number, self.known(number).expect("it has changed").entry());
        Ok(Prepared { journal: split.journal.into_iter().map(entry).collect(), bitmap })
    }

    /// Writes these SIT blocks to their other copies and returns the resulting bitmap of current copies.
    fn write_blocks(&mut self, io: &Io, blocks: &BTreeMap<u32, Vec<SegNo>>) -> Result<Vec<u8>> {
        let before = self.bitmap.clone();
        let (geometry, mut bitmap) = (self.geometry, before.clone());
        let mut run = journal::TableRun::new(io);
        let addr = |index: u32| geometry.sit_block(index, !bits::msb(&before, index as usize));
        for (addr, index, segments) in journal::upwards(blocks, addr) {
            let mut block: Box<[u8]> = self.block(io, index)?.into();
            for number in segments {
                let (_, at) = sit::position(*number, geometry.block_size);
                sit::set_entry(&mut block, at, &self.known(*number).expect("it has changed").entry());
            }
            // Entries that go to the journal override the block in any case.
            run.push(addr, Place::Sit(segments[0]), &block)?;
            bits::set_msb(&mut bitmap, index as usize, !bits::msb(&before, index as usize));
            // If this copy never becomes current, `changes` or the journal still override every entry that
            // differs.
            self.cache.insert(index, block);
        }
        run.finish()?;
        Ok(bitmap)
    }

    /// Makes the prepared state current, after the checkpoint is durable: the blocks that it freed may be
    /// allocated and discarded. `freed` is called for each run of [units](UNIT_BLOCKS) that became free, with
    /// the segment, the first block in it and the number of blocks. Nothing may have changed since
    /// [`write_back`](Self::write_back).
    pub(super) fn committed(
        &mut self,
        prepared: Prepared<SegNo, SitEntry>,
        mut freed: impl FnMut(SegNo, u16, u32),
    ) {
        self.bitmap = prepared.bitmap;
        self.journal = prepared.journal.into_iter().collect();
        let mut changes: Vec<_> = std::mem::take(&mut self.changes).into_iter().collect();
        changes.sort_unstable_by_key(|(number, _)| *number);
        for (number, segment) in changes {
            for_each_freed_run(&segment.protected, &segment.map, |offset, count| {
                freed(number, offset, count);
            });
            if segment.is_prefree() {
                self.count_busy(number, -1);
            }
        }
        self.prefree = 0;
    }

    /// A SIT block as it is on the device.
    fn block(&mut self, io: &Io, index: u32) -> Result<&[u8]> {
        if !self.cache.blocks.contains_key(&index) {
            self.load(io, index)?;
        }
        Ok(&self.cache.blocks[&index])
    }

    /// Reads a SIT block into the cache; in a sequential scan also those that follow it on the device.
    fn load(&mut self, io: &Io, index: u32) -> Result<()> {
        self.ahead = if index == self.next_read { (2 * self.ahead).min(AHEAD_MAX) } else { 1 };
        let copy = |index: u32| bits::msb(&self.bitmap, index as usize);
        let is_needed = |other: &u32| copy(*other) == copy(index) && !self.cache.blocks.contains_key(other);
        let most = self.ahead.min(self.geometry.sit_blocks() - index) as usize;
        let count = (index..).take(most.min(self.cache.most)).take_while(is_needed).count();
        let size = self.geometry.block_size.bytes();
        let (addr, at) = (self.geometry.sit_block(index, copy(index)), self.place(index));
        let mut bytes = vec![0; count * size];
        if count == 1 || io.read(addr, at, &mut bytes).is_err() {
            // If the large read fails, the first block alone may still be readable. The others are read when
            // they are needed.
            bytes.truncate(size);
            io.read(addr, at, &mut bytes)?;
        }
        self.next_read = index + (bytes.len() / size) as u32;
        for (other, block) in (index..).zip(bytes.chunks_exact(size)) {
            self.cache.insert(other, block.into());
        }
        Ok(())
    }

    fn place(&self, index: u32) -> Place {
        Place::Sit(SegNo(self.numbers(index).start))
    }

    fn read(&self, io: &Io, index: u32) -> Result<Box<[u8]>> {
        let second = bits::msb(&self.bitmap, index as usize);
        io.read_block(self.geometry.sit_block(index, second), self.place(index))
    }
}

/// Calls `run` for each run of [units](UNIT_BLOCKS) that have a bit set in `before` and none in `after`.
fn for_each_freed_run(before: &ValidMap, after: &ValidMap, mut run: impl FnMut(u16, u32)) {
    const UNIT_BYTES: usize = UNIT_BLOCKS as usize / 8;
    let is_set = |byte: &u8| *byte != 0;
    let units = before.chunks_exact(UNIT_BYTES).zip(after.chunks_exact(UNIT_BYTES));
    let freed: Vec<bool> =
        units.map(|(before, after)| before.iter().any(is_set) && !after.iter().any(is_set)).collect();
    let mut at = 0;
    for units in freed.chunk_by(|one, other| one == other) {
        let blocks = units.len() as u32 * UNIT_BLOCKS;
        if units[0] {
            run(at, blocks);
        }
        at += blocks as u16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_a_hole_if_neither_map_has_its_bit() {
        let mut segment = Segment::of(SitEntry::EMPTY);
        assert_eq!(segment.next_hole(0), Some(0));
        segment.map[0] = 0b1010_0000;
        segment.protected[0] = 0b0101_0000;
        assert_eq!(
            (segment.next_hole(0), segment.next_hole(7), segment.next_hole(9)),
            (Some(4), Some(7), Some(9))
        );
        segment.map = [0xFF; 64];
        assert_eq!(segment.next_hole(0), None);
        segment.map[63] = 0xFE;
        assert_eq!(
            (segment.next_hole(3), segment.next_hole(511), segment.next_hole(512)),
            (Some(511), Some(511), None)
        );
    }

    #[test]
    fn units_that_became_free_as_a_whole_are_found() {
        let (mut before, mut after) = ([0u8; 64], [0u8; 64]);
        // Units 0 and 1 become free, unit 2 in part, unit 3 was free before, unit 31 becomes free by its last
        // block.
        before[..4].fill(0xFF);
        before[4..6].fill(0xFF);
        after[5] = 1;
        before[63] = 1;
        let mut runs = Vec::new();
        for_each_freed_run(&before, &after, |at, count| runs.push((at, count)));
        assert_eq!(runs, [(0, 32), (496, 16)]);
    }
}
