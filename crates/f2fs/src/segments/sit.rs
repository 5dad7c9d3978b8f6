//! The SIT (segment information table) in memory. Its blocks are cached; changes wait for the next
//! checkpoint.
//!
//! *Invariants*: each changed segment has two maps: the blocks valid now, and the protected blocks, which are
//! those valid in the last checkpoint or allocated since. A block may be allocated only if both maps have it
//! clear, which a [`FreeBlock`] stands for. Until the next checkpoint is durable, a crash brings back the last one and the fsynced changes
//! after it. All blocks that these refer to must still be intact, even if they have been replaced or freed
//! since. An entry in `changes`, else one in `journal`, overrides the SIT block. `facts` summarize each SIT
//! block that has been read once, so that searches can skip it; they stay valid after the block has left the
//! cache.

mod search;
mod sections;

pub(super) use search::{Facts, Prefree};
pub(crate) use sections::{CleaningUnit, SectionFacts};

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
};

use rustc_hash::FxHashMap;

use super::{discards::UNIT_BLOCKS, segment::Segment};
use crate::{
    Error, Place, Result,
    disk::{
        Geometry, Io,
        journal::{self, Prepared, TableBlock, TableWrite},
    },
    format::{
        TableCopy, bits,
        checkpoint::Checkpoint,
        sit::{self, SegmentType, SitEntry, ValidMap},
    },
    units::{BlockAddr, SegNo},
};

/// Maximum number of SIT blocks in one read when they are read sequentially.
const AHEAD_MAX: u32 = 64;

/// A block that may be taken. Only the SIT makes one, after a look at its maps; [`Sit::take`] consumes it.
#[must_use = "the block stays free until it is taken"]
pub(super) struct FreeBlock(BlockAddr);

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
    /// Segments in which nothing is allocated while others are emptied: ranges without a common segment.
    disabled: Vec<Range<u32>>,
    /// Number of disabled segments that are free; kept only if a section is one segment.
    disabled_free: u32,
}

/// SIT blocks as they are on the device, evicted first in, first out.
#[derive(Default)]
struct Cache {
    blocks: FxHashMap<u32, Cached>,
    order: VecDeque<u32>,
    most: usize,
}

/// A cached SIT block.
struct Cached {
    bytes: Box<[u8]>,
    /// The copy that was read or written. Until a checkpoint makes the other copy current, `changes` or the journal
    /// override the entries in which the two differ.
    copy: TableCopy,
}

impl Cache {
    /// Drops the copies that are not current.
    fn keep_current(&mut self, bitmap: &[u8]) {
        self.blocks.retain(|index, block| block.copy == TableCopy::current(bitmap, *index));
        self.order.retain(|index| self.blocks.contains_key(index));
    }

    fn insert(&mut self, index: u32, bytes: Box<[u8]>, copy: TableCopy) {
        if self.blocks.insert(index, Cached { bytes, copy }).is_some() {
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
            disabled: Vec::new(),
            disabled_free: 0,
        })
    }

    /// Sets the number of segments with a valid block.
    pub(super) fn set_used(&mut self, used: u32) {
        self.used = used;
    }

    /// Keeps allocation out of `ranges`, whole sections without a common one, until this is called with others.
    pub(super) fn disable(&mut self, io: &Io, ranges: &[Range<u32>]) -> Result<()> {
        let mut free = 0;
        for number in ranges.iter().cloned().flatten().map(SegNo) {
            free += u32::from(self.segment(io, number)?.is_free());
        }
        (self.disabled, self.disabled_free) = (ranges.to_vec(), free);
        Ok(())
    }

    /// Returns true if nothing may be allocated in a segment.
    pub(super) fn is_disabled(&self, number: SegNo) -> bool {
        self.disabled.iter().any(|range| range.contains(&number.0))
    }

    /// Size of the cached blocks in bytes.
    pub(super) fn block_bytes(&self) -> usize {
        self.cache.blocks.len() * self.geometry.block_size.bytes()
    }

    /// Segments that have changed since the last checkpoint.
    pub(super) fn changed_segments(&self) -> usize {
        self.changes.len()
    }

    /// Segments that hold only blocks that the last checkpoint needs.
    pub(super) fn prefree_segments(&self) -> u32 {
        self.prefree
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
            Some(block) => io.record_corruption(sit::entry(&block.bytes, at, number)),
            None => io.record_corruption(sit::entry(&self.read(io, index)?, at, number)),
        }
    }

    /// Reads the entry of a segment that is about to change, so that the change cannot fail for the device.
    pub(super) fn prepare_change(&mut self, io: &Io, number: SegNo) -> Result<()> {
        self.segment_mut(io, number).map(drop)
    }

    /// Returns a block that nothing refers to, now or after a crash.
    ///
    /// # Panics
    /// If the block is valid or protected, which is a bug in allocation.
    pub(super) fn free_block(&mut self, io: &Io, addr: BlockAddr) -> Result<FreeBlock> {
        let (number, offset) = self.geometry.position(addr);
        let segment = self.segment_mut(io, number)?;
        let [is_protected, is_valid] =
            [&segment.protected, &segment.map].map(|map| bits::msb(map, usize::from(offset)));
        assert!(!is_protected, "{addr} is allocated although the last checkpoint needs it");
        assert!(!is_valid, "{addr} is allocated twice");
        Ok(FreeBlock(addr))
    }

    /// Returns a block that is not valid, even if it is protected: for a checkpoint that has borrowed its segment, and for
    /// recovery, which itself protects the blocks that it takes.
    ///
    /// # Panics
    /// If the block is valid, which is a bug in allocation.
    pub(super) fn invalid_block(&mut self, io: &Io, addr: BlockAddr) -> Result<FreeBlock> {
        let (number, offset) = self.geometry.position(addr);
        let is_valid = bits::msb(&self.segment_mut(io, number)?.map, usize::from(offset));
        assert!(!is_valid, "{addr} is allocated twice");
        Ok(FreeBlock(addr))
    }

    /// Marks a block as valid; `kind` is the type of the log that writes it.
    pub(super) fn take(&mut self, block: FreeBlock, kind: SegmentType, now: u64) {
        let (number, offset) = self.geometry.position(block.0);
        let segment = self.changes.get_mut(&number).expect("a free block's segment is about to change");
        bits::set_msb(&mut segment.map, usize::from(offset));
        segment.valid_blocks += 1;
        segment.kind = kind;
        segment.mtime = now;
        let (first, prefree) = (segment.valid_blocks == 1, segment.protected_blocks != 0);
        if !bits::msb(&segment.protected, usize::from(offset)) {
            bits::set_msb(&mut segment.protected, usize::from(offset));
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
        bits::clear_msb(&mut segment.map, usize::from(offset));
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

    fn count_busy(&mut self, segment: SegNo, change: i32) {
        if let Some(busy) = &mut self.busy {
            let count = &mut busy[self.geometry.section_of(segment).index()];
            *count = count.checked_add_signed(change).expect("each segment is counted once");
        }
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

    /// Divides the changed entries: those that fit go to the journal, the rest to the other copy of their SIT
    /// blocks. They take effect only with the next checkpoint; see [`committed`](Self::committed).
    pub(super) fn list_table(&self) -> TableWrite<SegNo> {
        let size = self.geometry.block_size;
        let changed: BTreeSet<SegNo> = self.changes.keys().chain(self.journal.keys()).copied().collect();
        let keys = changed.into_iter().map(|segment| (sit::position(segment, size).0, segment));
        let split = journal::split(keys, self.geometry.summary.sit_journal_entries());
        TableWrite::new(split, &self.bitmap, |index, copy| self.geometry.sit_block(index, copy))
    }

    /// Writes up to `most` of the blocks that are left, and returns their number. If it is smaller, all are written.
    pub(super) fn write_some(
        &mut self,
        io: &Io,
        table: &mut TableWrite<SegNo>,
        most: usize,
    ) -> Result<usize> {
        let mut written = 0;
        for TableBlock { addr, index, copy, keys } in table.blocks.by_ref().take(most) {
            let mut block: Box<[u8]> = self.block(io, index)?.into();
            for number in &keys {
                let (_, at) = sit::position(*number, self.geometry.block_size);
                sit::set_entry(&mut block, at, &self.known(*number).expect("it has changed").entry());
            }
            // Entries that go to the journal override the block in any case.
            table.run.push(io, addr, Place::Sit(keys[0]), &block)?;
            copy.select(&mut table.bitmap, index);
            // If this copy never becomes current, `changes` or the journal still override every entry that
            // differs.
            self.cache.insert(index, block, copy);
            written += 1;
        }
        if written < most {
            table.run.write(io)?;
        }
        Ok(written)
    }

    /// Returns the state of the table once all its blocks are written.
    pub(super) fn prepared(&self, table: TableWrite<SegNo>) -> Prepared<SegNo, SitEntry> {
        let entry = |number| (number, self.known(number).expect("it has changed").entry());
        Prepared { journal: table.journal.into_iter().map(entry).collect(), bitmap: table.bitmap }
    }

    /// Makes the prepared state current, after the checkpoint is durable: the blocks that it freed may be
    /// allocated and discarded. `freed` is called for each run of [units](UNIT_BLOCKS) that became free, with
    /// the segment, the first block in it and the number of blocks. Nothing may have changed since
    /// [`list_table`](Self::list_table).
    pub(super) fn committed(
        &mut self,
        prepared: Prepared<SegNo, SitEntry>,
        mut freed: impl FnMut(SegNo, u16, u32),
    ) {
        self.bitmap = prepared.bitmap;
        // An old copy may have been read again after the new one was written and left the cache.
        self.cache.keep_current(&self.bitmap);
        self.journal = prepared.journal.into_iter().collect();
        let mut changes: Vec<_> = std::mem::take(&mut self.changes).into_iter().collect();
        changes.sort_unstable_by_key(|(number, _)| *number);
        for (number, segment) in changes {
            for_each_freed_run(&segment.protected, &segment.map, |offset, count| {
                freed(number, offset, count);
            });
            if segment.is_prefree() {
                self.count_busy(number, -1);
                self.disabled_free += u32::from(self.is_disabled(number));
            }
        }
        self.prefree = 0;
    }

    /// A SIT block as it is on the device.
    fn block(&mut self, io: &Io, index: u32) -> Result<&[u8]> {
        if !self.cache.blocks.contains_key(&index) {
            self.load(io, index)?;
        }
        Ok(&self.cache.blocks[&index].bytes)
    }

    /// Reads a SIT block into the cache; in a sequential scan also those that follow it on the device.
    fn load(&mut self, io: &Io, index: u32) -> Result<()> {
        self.ahead = if index == self.next_read { (2 * self.ahead).min(AHEAD_MAX) } else { 1 };
        let copy = |index: u32| TableCopy::current(&self.bitmap, index);
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
            self.cache.insert(other, block.into(), TableCopy::current(&self.bitmap, other));
        }
        Ok(())
    }

    fn place(&self, index: u32) -> Place {
        Place::Sit(SegNo(self.numbers(index).start))
    }

    fn read(&self, io: &Io, index: u32) -> Result<Box<[u8]>> {
        let copy = TableCopy::current(&self.bitmap, index);
        io.read_block(self.geometry.sit_block(index, copy), self.place(index))
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
