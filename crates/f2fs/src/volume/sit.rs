//! The segment information table in memory: blocks are read when first needed, changes wait for the checkpoint.
//!
//! *Invariants*: each segment that was touched has two maps: what is valid now, and what is protected: valid in the
//! last checkpoint, or taken since. A block may be given out only where both are clear: until the next checkpoint
//! counts, a crash brings the last one back, with what was fsynced after it, and everything that these name must
//! still be there, even where it was replaced or removed since.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use super::{
    geometry::Geometry,
    io::Io,
    journal::{self, Prepared},
};
use crate::{
    Error, Place, Result,
    format::{
        BLOCKS_PER_SEGMENT, bits,
        checkpoint::Checkpoint,
        sit::{self, SegmentType, SitEntry, ValidMap},
    },
    units::{BlockAddr, SecNo, SegNo},
};

/// A segment in memory.
#[derive(Debug, Clone)]
pub struct Segment {
    /// What it holds, or held last.
    pub kind: SegmentType,
    /// Blocks that are valid now.
    pub valid_blocks: u16,
    /// Which those are.
    pub map: ValidMap,
    /// Blocks that the last checkpoint, or an fsync since then, may need.
    pub protected_blocks: u16,
    /// Which those are.
    pub protected: ValidMap,
    /// When it last changed, in seconds of mounted time.
    pub mtime: u64,
    dirty: bool,
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
            dirty: false,
        }
    }

    fn entry(&self) -> SitEntry {
        SitEntry { kind: self.kind, valid_blocks: self.valid_blocks, map: self.map, mtime: self.mtime }
    }

    /// Whether nothing of it is in use or protected.
    pub fn is_free(&self) -> bool {
        self.valid_blocks == 0 && self.protected_blocks == 0
    }

    /// Whether nothing of it is in use, but until the next checkpoint something is protected.
    pub fn is_prefree(&self) -> bool {
        self.valid_blocks == 0 && self.protected_blocks != 0
    }

    /// The first block from `from` on that may be written.
    pub fn next_hole(&self, from: u16) -> Option<u16> {
        (usize::from(from) / 8..self.map.len()).find_map(|byte| {
            let skip = usize::from(from).saturating_sub(byte * 8).min(8);
            let taken = self.map[byte] | self.protected[byte];
            let open = !taken & (0xFFu16 >> skip) as u8;
            (open != 0).then(|| (byte * 8) as u16 + open.leading_zeros() as u16)
        })
    }
}

/// Blocks of the table that stay loaded over a checkpoint: 8 KiB each in memory.
const TABLES_MAX: usize = 1024;

/// A block of the table.
struct Table {
    segments: Box<[Segment]>,
    /// Segments without a valid block: where there is none, no free one has to be looked for.
    empty: u32,
}

/// The table.
pub struct Sit {
    geometry: Geometry,
    /// Which copy of each block counts, most significant bit first.
    bitmap: Vec<u8>,
    tables: Vec<Option<Box<Table>>>,
    /// Entries of the last checkpoint's journal whose block has not been read yet.
    pending: FxHashMap<SegNo, SitEntry>,
    /// Segments in the last checkpoint's journal.
    in_journal: BTreeSet<SegNo>,
    dirty: Vec<SegNo>,
    /// Segments with a valid block.
    used: u32,
    /// Segments that the next checkpoint will make free.
    prefree: u32,
    /// Segments of each section that are not free, where sections have several and somebody asked.
    busy: Option<Vec<u32>>,
}

impl Sit {
    /// The table as a checkpoint and its journal say. `used` is made true by [`set_used`](Self::set_used).
    pub fn new(
        geometry: Geometry,
        checkpoint: &Checkpoint,
        journal: Vec<(SegNo, SitEntry)>,
        pack: u8,
    ) -> Result<Sit> {
        if let Some((segment, _)) = journal.iter().find(|(segment, _)| segment.0 >= geometry.segments) {
            let what = format!("the SIT journal has an entry for {segment} of {}", geometry.segments);
            return Err(Error::corrupt(Place::Checkpoint(pack), what));
        }
        Ok(Sit {
            geometry,
            bitmap: checkpoint.sit_bitmap.clone(),
            tables: (0..geometry.sit_blocks()).map(|_| None).collect(),
            in_journal: journal.iter().map(|(segment, _)| *segment).collect(),
            pending: journal.into_iter().collect(),
            dirty: Vec::new(),
            used: 0,
            prefree: 0,
            busy: None,
        })
    }

    /// Sets how many segments have a valid block.
    pub fn set_used(&mut self, used: u32) {
        self.used = used;
    }

    /// A segment.
    pub fn segment(&mut self, io: &Io, segment: SegNo) -> Result<&Segment> {
        let (table, index) = sit::position(segment, self.geometry.block_size);
        Ok(&self.table(io, table)?.segments[index])
    }

    /// A segment's entry as of now, without keeping the table's block: for readers that share the volume.
    pub fn peek(&self, io: &Io, segment: SegNo) -> Result<SitEntry> {
        let (table, index) = sit::position(segment, self.geometry.block_size);
        match (&self.tables[table as usize], self.pending.get(&segment)) {
            (Some(table), _) => Ok(table.segments[index].entry()),
            (None, Some(entry)) => Ok(entry.clone()),
            (None, None) => io.noted(sit::entry(&self.read(io, table)?, index, segment)),
        }
    }

    /// Marks a block as valid; `kind` is that of the log that writes it.
    ///
    /// # Panics
    /// Where it is valid already: allocation has a bug.
    pub fn take(&mut self, io: &Io, addr: BlockAddr, kind: SegmentType, now: u64) -> Result<()> {
        let (number, offset) = self.geometry.position(addr);
        let (table, index) = sit::position(number, self.geometry.block_size);
        let table = self.table(io, table)?;
        let segment = &mut table.segments[index];
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
        let was_dirty = std::mem::replace(&mut segment.dirty, true);
        if first {
            table.empty -= 1;
            self.used += 1;
            self.prefree -= u32::from(prefree);
            if !prefree {
                self.count_busy(number, 1);
            }
        }
        if !was_dirty {
            self.dirty.push(number);
        }
        Ok(())
    }

    /// Takes note of blocks of a segment that were written after the last checkpoint, by a session before: until the next
    /// one they are not given out. Where nothing of the segment is in use, `kind` is what they are.
    pub fn protect(&mut self, io: &Io, number: SegNo, needed: &ValidMap, kind: SegmentType) -> Result<()> {
        let (table, index) = sit::position(number, self.geometry.block_size);
        let segment = &mut self.table(io, table)?.segments[index];
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
        let was_dirty = std::mem::replace(&mut segment.dirty, true);
        if was_free {
            self.prefree += 1;
            self.count_busy(number, 1);
        }
        if !was_dirty {
            self.dirty.push(number);
        }
        Ok(())
    }

    /// Says what a segment that holds nothing is going to hold.
    pub fn set_kind(&mut self, io: &Io, number: SegNo, kind: SegmentType) -> Result<()> {
        let (table, index) = sit::position(number, self.geometry.block_size);
        let segment = &mut self.table(io, table)?.segments[index];
        segment.kind = kind;
        if !std::mem::replace(&mut segment.dirty, true) {
            self.dirty.push(number);
        }
        Ok(())
    }

    /// Marks a block as no longer valid. It stays untouched until the next checkpoint.
    pub fn release(&mut self, io: &Io, addr: BlockAddr, now: u64) -> Result<()> {
        let (number, offset) = self.geometry.position(addr);
        let (table, index) = sit::position(number, self.geometry.block_size);
        let table = self.table(io, table)?;
        let segment = &mut table.segments[index];
        if !bits::msb(&segment.map, usize::from(offset)) {
            let what = format!("{addr} is in use, but not marked valid");
            return io.noted(Err(Error::corrupt(Place::Sit(number), what)));
        }
        bits::set_msb(&mut segment.map, usize::from(offset), false);
        segment.valid_blocks -= 1;
        segment.mtime = now;
        let (last, prefree) = (segment.valid_blocks == 0, segment.protected_blocks != 0);
        let was_dirty = std::mem::replace(&mut segment.dirty, true);
        if last {
            table.empty += 1;
            self.used = self.used.saturating_sub(1);
            self.prefree += u32::from(prefree);
        }
        if !was_dirty {
            self.dirty.push(number);
        }
        Ok(())
    }

    /// The first section from `from` on, going round, of which nothing is in use, now or in the last checkpoint,
    /// and that holds none of the segments `current`. With `even_prefree`, the last checkpoint does not matter.
    pub fn find_free_section(
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
            if self.table(io, table)?.empty == 0 {
                // Every section that begins in this block of the table is in use.
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

    /// Whether nothing of a section is in use, now or in the last checkpoint, and it holds none of `current`.
    pub fn is_section_free(
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

    /// Sections of which nothing is in use, now or in the last checkpoint, and that hold none of `current`. Reads
    /// the whole table the first time, unless sections are single segments.
    pub fn free_sections(&mut self, io: &Io, current: &[SegNo]) -> Result<u32> {
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

    /// Segments without a valid block that are not `current`.
    pub fn free_segments(&mut self, io: &Io, current: &[SegNo]) -> Result<u32> {
        let mut empty_current = 0;
        for number in current {
            empty_current += u32::from(self.segment(io, *number)?.valid_blocks == 0);
        }
        // How many are used began with what the checkpoint said, which may be wrong.
        Ok(self.geometry.segments.saturating_sub(self.used).saturating_sub(empty_current))
    }

    /// The segment with the highest rank, of those that have one. Reads the whole table.
    pub fn best_segment<R: Ord>(
        &mut self,
        io: &Io,
        mut rank: impl FnMut(SegNo, &Segment) -> Option<R>,
    ) -> Result<Option<SegNo>> {
        let mut best: Option<(R, SegNo)> = None;
        self.for_each(io, |number, segment| {
            if let Some(rank) = rank(number, segment) {
                if best.as_ref().is_none_or(|(high, _)| rank > *high) {
                    best = Some((rank, number));
                }
            }
        })?;
        Ok(best.map(|(_, number)| number))
    }

    /// Shows each segment, in order. Reads the whole table.
    pub fn for_each(&mut self, io: &Io, mut show: impl FnMut(SegNo, &Segment)) -> Result<()> {
        for table in 0..self.tables.len() as u32 {
            let first = table * self.geometry.block_size.sit_entries() as u32;
            for (segment, number) in self.table(io, table)?.segments.iter().zip(first..) {
                show(SegNo(number), segment);
            }
        }
        Ok(())
    }

    /// Writes what changed: as much as fits is for the journal, the rest goes into the other copy of each block of
    /// the table. Only the next checkpoint makes it count; see [`committed`](Self::committed).
    pub fn write_back(&mut self, io: &Io) -> Result<Prepared<SegNo, SitEntry>> {
        let size = self.geometry.block_size;
        let changed: BTreeSet<SegNo> = self.dirty.iter().chain(&self.in_journal).copied().collect();
        let keys = changed.into_iter().map(|segment| (sit::position(segment, size).0, segment));
        let split = journal::split(keys, self.geometry.summary.sit_journal_entries());
        let bitmap = self.write_blocks(io, &split.blocks)?;
        let entries = split.journal.into_iter();
        let journal = entries
            .map(|number| Ok((number, self.segment(io, number)?.entry())))
            .collect::<Result<Vec<_>>>()?;
        Ok(Prepared { journal, bitmap })
    }

    /// Returns which copies count then.
    fn write_blocks(&mut self, io: &Io, blocks: &BTreeMap<u32, Vec<SegNo>>) -> Result<Vec<u8>> {
        let size = self.geometry.block_size;
        let before = self.bitmap.clone();
        let (geometry, mut bitmap) = (self.geometry, before.clone());
        let mut run = journal::TableRun::new(io);
        let addr = |index: u32| geometry.sit_block(index, !bits::msb(&before, index as usize));
        for (addr, index, segments) in journal::upwards(blocks, addr) {
            let table = self.table(io, index)?;
            let mut block = vec![0; size.bytes()];
            for (at, segment) in table.segments.iter().enumerate() {
                sit::set_entry(&mut block, at, &segment.entry());
            }
            // Entries that stay in the journal override the block in any case.
            run.push(addr, Place::Sit(segments[0]), &block)?;
            bits::set_msb(&mut bitmap, index as usize, !bits::msb(&before, index as usize));
        }
        run.finish()?;
        Ok(bitmap)
    }

    /// The checkpoint counts now: what it frees may be written, and discarded. `freed` is told each run of blocks
    /// that became free, as first block and count. Nothing has changed since [`write_back`](Self::write_back).
    pub fn committed(&mut self, prepared: Prepared<SegNo, SitEntry>, mut freed: impl FnMut(BlockAddr, u32)) {
        self.bitmap = prepared.bitmap;
        self.in_journal = prepared.journal.into_iter().map(|(number, _)| number).collect();
        for number in std::mem::take(&mut self.dirty) {
            let (table, index) = sit::position(number, self.geometry.block_size);
            let table = self.tables[table as usize].as_mut().expect("a dirty segment's block is loaded");
            let segment = &mut table.segments[index];
            for_each_run(&segment.protected, &segment.map, |offset, count| {
                freed(self.geometry.block(number, offset), count);
            });
            let freed = segment.is_prefree();
            segment.protected = segment.map;
            segment.protected_blocks = segment.valid_blocks;
            segment.dirty = false;
            if freed {
                self.count_busy(number, -1);
            }
        }
        self.prefree = 0;
        self.forget_some();
    }

    /// Drops blocks of the table when many are loaded. Right after a checkpoint they can be read again; only those
    /// that its journal overrides stay.
    fn forget_some(&mut self) {
        if self.tables.iter().flatten().count() <= TABLES_MAX {
            return;
        }
        let size = self.geometry.block_size;
        let kept: BTreeSet<u32> =
            self.in_journal.iter().map(|segment| sit::position(*segment, size).0).collect();
        for (table, index) in self.tables.iter_mut().zip(0..) {
            if !kept.contains(&index) {
                *table = None;
            }
        }
    }

    fn table(&mut self, io: &Io, index: u32) -> Result<&mut Table> {
        if self.tables[index as usize].is_none() {
            let block = self.read(io, index)?;
            let per_block = self.geometry.block_size.sit_entries() as u32;
            let first = index * per_block;
            let numbers = first..self.geometry.segments.min(first + per_block);
            let segments = numbers.clone().map(|number| match self.pending.get(&SegNo(number)) {
                Some(entry) => Ok(Segment::of(entry.clone())),
                None => sit::entry(&block, (number - first) as usize, SegNo(number)).map(Segment::of),
            });
            let segments: Box<[Segment]> = io.noted(segments.collect())?;
            for number in numbers {
                self.pending.remove(&SegNo(number));
            }
            let empty = segments.iter().filter(|segment| segment.valid_blocks == 0).count() as u32;
            self.tables[index as usize] = Some(Box::new(Table { segments, empty }));
        }
        Ok(self.tables[index as usize].as_mut().expect("it was just loaded"))
    }

    fn read(&self, io: &Io, index: u32) -> Result<Box<[u8]>> {
        let second = bits::msb(&self.bitmap, index as usize);
        let first = SegNo(index * self.geometry.block_size.sit_entries() as u32);
        io.read_block(self.geometry.sit_block(index, second), Place::Sit(first))
    }
}

/// Calls `run` for each run of bits that are set in `before` and clear in `after`.
fn for_each_run(before: &ValidMap, after: &ValidMap, mut run: impl FnMut(u16, u32)) {
    let gone = |n: usize| bits::msb(before, n) && !bits::msb(after, n);
    let mut at = 0;
    while at < BLOCKS_PER_SEGMENT as usize {
        if at % 8 == 0 && before[at / 8] & !after[at / 8] == 0 {
            at += 8;
        } else if gone(at) {
            let length = (at..BLOCKS_PER_SEGMENT as usize).take_while(|n| gone(*n)).count();
            run(at as u16, length as u32);
            at += length;
        } else {
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_is_where_neither_map_has_a_bit() {
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
    fn freed_runs_are_found() {
        let (mut before, mut after) = ([0u8; 64], [0u8; 64]);
        before[0] = 0b0111_1111;
        before[1] = 0b1000_0001;
        after[1] = 0b0000_0001;
        before[63] = 1;
        let mut runs = Vec::new();
        for_each_run(&before, &after, |at, count| runs.push((at, count)));
        assert_eq!(runs, [(1, 8), (511, 1)]);
    }
}
