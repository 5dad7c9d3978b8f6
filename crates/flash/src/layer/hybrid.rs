//! The log-block layer of memory cards and sticks.
//!
//! Every block of addresses has at most one data block, whose pages lie in order. While its allocation unit
//! is open, it also has at most one log block for new writes. If a write would exceed the limit of open
//! units, a unit is closed: its log block becomes the data block. If the log was written in order, its
//! remaining pages are copied from the old data block first (a partial merge; with no page to copy, a
//! switch). Otherwise both are merged into a third block (a full merge). A layer that supports only
//! sequential writes also does this whenever a write goes back in its block or to another block of the unit.
//!
//! Writes that cover a page only partly, and small writes that do not continue the previous command, go to a
//! page-mapped buffer. Merges fetch them from there.

mod check;

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
};

use serde::{Deserialize, Serialize};

use super::{Access, Cost, page_map::PageMap};
use crate::{
    array::{Array, BlockNo},
    condition::Condition,
    op::Refusal,
    profile::{Layer, Profile},
};

/// Maximum number of blocks of the buffer of small writes.
const BUFFER_BLOCKS: u32 = 4;

/// The layer's state.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hybrid {
    page_bytes: u32,
    pages_per_block: u32,
    blocks_per_unit: u32,
    /// Blocks of addresses.
    chunks: u32,
    open_limit: usize,
    random_limit: usize,
    /// Limits of open units for writes of at least so many bytes, ascending.
    #[serde(default)]
    limits_by_size: Vec<(u64, usize)>,
    /// Pages of a granule of writes out of order; 0 without granules.
    #[serde(default)]
    granule_pages: u32,
    small_write_bytes: u64,
    preconditioned: bool,
    /// Data blocks by their number of addresses. An absent one is from before the card was opened, or does
    /// not exist.
    data: HashMap<u32, Data>,
    /// Open units, the last written one at the end.
    open: Vec<Unit>,
    buffer: PageMap,
    /// Pages in the buffer by their order of arrival, and the reverse.
    buffered: BTreeMap<u64, u32>,
    buffered_since: BTreeMap<u32, u64>,
    arrivals: u64,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Data {
    In(BlockNo),
    Nothing,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Unit {
    number: u32,
    log: Option<Log>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Log {
    /// Number of the block of addresses that it holds.
    chunk: u32,
    block: BlockNo,
    /// Position of each page, once they are out of order.
    places: Option<HashMap<u32, u32>>,
}

impl Hybrid {
    /// Makes the layer of a card of this profile.
    pub fn new(profile: &Profile, condition: Condition) -> Hybrid {
        let Layer::Hybrid {
            au_bytes,
            open_units,
            open_random,
            small_write_bytes,
            granule_bytes,
            ref open_by_size,
            ..
        } = profile.layer
        else {
            unreachable!("called for this layer only");
        };
        let pages_per_block = profile.pages_per_block();
        let all = 0..profile.data_blocks() * pages_per_block;
        Hybrid {
            page_bytes: profile.flash.page_bytes,
            pages_per_block,
            blocks_per_unit: au_bytes / profile.flash.block_bytes,
            chunks: profile.data_blocks(),
            open_limit: open_units as usize,
            random_limit: open_random as usize,
            limits_by_size: open_by_size
                .iter()
                .map(|limit| (u64::from(limit.from_bytes), limit.units as usize))
                .collect(),
            granule_pages: granule_bytes / profile.flash.page_bytes,
            small_write_bytes: u64::from(small_write_bytes),
            preconditioned: condition.is_preconditioned(),
            data: HashMap::new(),
            open: Vec::new(),
            buffer: PageMap::new(all, pages_per_block, BUFFER_BLOCKS, 0, Condition::Fresh),
            buffered: BTreeMap::new(),
            buffered_since: BTreeMap::new(),
            arrivals: 0,
        }
    }

    /// Writes a range of bytes.
    ///
    /// # Errors
    /// [`Refusal::WornOut`].
    pub fn write(
        &mut self,
        array: &mut Array,
        range: Range<u64>,
        access: Access,
        cost: &mut Cost,
    ) -> Result<(), Refusal> {
        let page_bytes = u64::from(self.page_bytes);
        if access == Access::Random && range.end - range.start < self.small_write_bytes {
            cost.small_writes += 1;
            for page in range.start / page_bytes..range.end.div_ceil(page_bytes) {
                self.put_into_buffer(array, page as u32, cost)?;
            }
            return Ok(());
        }
        let limit = self.limit_of(range.end - range.start);
        let block_bytes = page_bytes * u64::from(self.pages_per_block);
        for chunk in range.start / block_bytes..range.end.div_ceil(block_bytes) {
            let start = range.start.max(chunk * block_bytes);
            let end = range.end.min((chunk + 1) * block_bytes);
            self.open_unit(array, chunk as u32 / self.blocks_per_unit, limit, cost)?;
            let pages = (start / page_bytes) as u32..(end / page_bytes) as u32;
            if pages.start < pages.end {
                if start % page_bytes != 0 && !self.is_buffered(pages.start) {
                    self.fill(array, pages.start, cost);
                }
                self.append(array, chunk as u32, pages, cost)?;
            }
            if end % page_bytes != 0 {
                let last = (end / page_bytes) as u32;
                let begins_here = start <= u64::from(last) * page_bytes;
                if !begins_here && !self.is_buffered(last) {
                    self.fill(array, last, cost);
                }
                self.put_into_buffer(array, last, cost)?;
            }
        }
        Ok(())
    }

    /// Forgets the pages of whole blocks of addresses.
    pub fn trim(&mut self, array: &mut Array, pages: Range<u32>, cost: &mut Cost) {
        for chunk in pages.start.div_ceil(self.pages_per_block)..pages.end / self.pages_per_block {
            if let Some(log) = self.take_log(chunk) {
                array.erase(log.block);
                cost.erases += 1;
            }
            if let Some(block) = self.data_block(chunk) {
                array.erase(block);
                cost.erases += 1;
            }
            self.data.insert(chunk, Data::Nothing);
            for page in self.buffered_in(self.pages_of(chunk)) {
                self.take_from_buffer(page);
            }
        }
    }

    /// Returns the physical place of a logical page: the buffer is newer than the log, and the log than the
    /// data.
    pub fn location(&self, array: &Array, page: u32) -> Option<(BlockNo, u32)> {
        if let Some(place) = self.buffer.location(array, page) {
            return Some(place);
        }
        let (chunk, at) = (page / self.pages_per_block, page % self.pages_per_block);
        if let Some(log) = self.log(chunk) {
            let place = match &log.places {
                Some(places) => places.get(&at).copied(),
                None => (array.tag(log.block, at) == page).then_some(at),
            };
            if let Some(place) = place {
                return Some((log.block, place));
            }
        }
        let data = self.data_block(chunk)?;
        (array.tag(data, at) == page).then_some((data, at))
    }

    /// Returns the numbers of the open units, the last written one at the end.
    pub fn open_units(&self) -> Vec<u32> {
        self.open.iter().map(|unit| unit.number).collect()
    }

    /// Leaves whole blocks of pages to another area.
    pub fn exclude(&mut self, pages: Range<u32>) {
        for chunk in pages.start / self.pages_per_block..pages.end / self.pages_per_block {
            self.data.insert(chunk, Data::Nothing);
        }
    }

    /// Returns the number of blocks that the layer holds.
    pub fn held_blocks(&self) -> u32 {
        let data = self.data.values().filter(|data| matches!(data, Data::In(_))).count() as u32;
        let untouched = if self.preconditioned { self.chunks - self.data.len() as u32 } else { 0 };
        let logs = self.open.iter().filter(|unit| unit.log.is_some()).count() as u32;
        data + untouched + logs + self.buffer.held_blocks()
    }

    /// Erases the logs of all open units. Returns the pages whose newest content was in them.
    pub fn lose_logs(&mut self, array: &mut Array, cost: &mut Cost) -> Vec<u32> {
        let mut lost = Vec::new();
        for unit in std::mem::take(&mut self.open) {
            let Some(log) = &unit.log else { continue };
            let (block, chunk) = (log.block, log.chunk);
            self.open.push(unit);
            let in_log = |page: &u32| self.location(array, *page).is_some_and(|(place, _)| place == block);
            lost.extend(self.pages_of(chunk).filter(in_log));
            self.open.pop();
            array.erase(block);
            cost.erases += 1;
        }
        lost
    }

    /// Closes all units.
    ///
    /// # Errors
    /// [`Refusal::WornOut`].
    pub fn close_all(&mut self, array: &mut Array, cost: &mut Cost) -> Result<(), Refusal> {
        while !self.open.is_empty() {
            self.close_oldest(array, cost)?;
        }
        Ok(())
    }

    /// Returns the maximum number of open units that a write of this size leaves.
    fn limit_of(&self, bytes: u64) -> usize {
        let reached = self.limits_by_size.iter().take_while(|(from, _)| *from <= bytes);
        reached.last().map_or(self.open_limit, |(_, units)| *units)
    }

    /// Makes a unit the last written one. Closes others if more than `limit` would be open.
    fn open_unit(
        &mut self,
        array: &mut Array,
        number: u32,
        limit: usize,
        cost: &mut Cost,
    ) -> Result<(), Refusal> {
        if let Some(at) = self.open.iter().position(|unit| unit.number == number) {
            let unit = self.open.remove(at);
            self.open.push(unit);
            return Ok(());
        }
        while self.open.len() >= limit {
            self.close_oldest(array, cost)?;
        }
        self.open.push(Unit { number, log: None });
        Ok(())
    }

    fn close_oldest(&mut self, array: &mut Array, cost: &mut Cost) -> Result<(), Refusal> {
        let unit = self.open.remove(0);
        match unit.log {
            Some(log) => self.merge(array, log, cost),
            None => Ok(()),
        }
    }

    /// Writes whole pages of one block of addresses to the log of its unit, which is open.
    fn append(
        &mut self,
        array: &mut Array,
        chunk: u32,
        pages: Range<u32>,
        cost: &mut Cost,
    ) -> Result<(), Refusal> {
        let mut next = pages.start;
        while next < pages.end {
            let at = next % self.pages_per_block;
            let mut log = self.log_for(array, chunk, at, cost)?;
            let written = array.next_page(log.block);
            if log.places.is_none() && at > written {
                self.copy(array, log.block, chunk, written..at, cost);
            }
            let place = array.next_page(log.block).max(if log.places.is_none() { at } else { 0 });
            let count = (pages.end - next).min(self.pages_per_block - place);
            array.program(log.block, place, count, next);
            if let Some(places) = &mut log.places {
                places.extend((0..count).map(|n| (at + n, place + n)));
            }
            for page in self.buffered_in(next..next + count) {
                self.take_from_buffer(page);
            }
            cost.pages += u64::from(count);
            if log.places.is_some() {
                self.rewrite_granules(array, next..next + count, cost);
            }
            next += count;
            if log.places.is_none() && array.next_page(log.block) == self.pages_per_block {
                self.merge(array, log, cost)?;
            } else {
                self.current().log = Some(log);
            }
        }
        Ok(())
    }

    /// Counts the copies of the other pages of the granules that a write out of order touches.
    fn rewrite_granules(&self, array: &mut Array, pages: Range<u32>, cost: &mut Cost) {
        if let Some(granule) = pages.start.checked_div(self.granule_pages) {
            let from = granule * self.granule_pages;
            let to = pages.end.next_multiple_of(self.granule_pages);
            let copied = (to - from) - pages.len() as u32;
            array.read(copied);
            cost.copied_pages += u64::from(copied);
        }
    }

    /// Takes out the log of the last written unit if a page can be written to it at `at`. Otherwise merges
    /// that log and starts a new one.
    fn log_for(&mut self, array: &mut Array, chunk: u32, at: u32, cost: &mut Cost) -> Result<Log, Refusal> {
        if let Some(mut log) = self.current().log.take() {
            let written = array.next_page(log.block);
            let in_order = log.places.is_none();
            if log.chunk == chunk && in_order && at == written {
                return Ok(log);
            }
            if log.chunk == chunk && written < self.pages_per_block {
                if self.random_limit > 0 {
                    if in_order {
                        let (tag, pages) = (chunk * self.pages_per_block, array.pages(log.block));
                        let held = (0..written).filter(|n| pages.tag(*n) == tag + n);
                        log.places = Some(held.map(|n| (n, n)).collect());
                        self.limit_random(array, cost)?;
                    }
                    return Ok(log);
                }
                if at > written {
                    return Ok(log);
                }
            }
            self.merge(array, log, cost)?;
        }
        // A block that was closed early, and has no data to complete it from, continues at its end.
        if let Some(block) = self.data_block(chunk) {
            if at > 0 && array.next_page(block) == at {
                self.data.insert(chunk, Data::Nothing);
                return Ok(Log { chunk, block, places: None });
            }
        }
        let mut log = Log { chunk, block: array.take()?, places: None };
        if self.random_limit > 0 && at > 0 {
            log.places = Some(HashMap::new());
            self.limit_random(array, cost)?;
        }
        Ok(log)
    }

    /// Merges the oldest log that is out of order, if one more would exceed the limit.
    fn limit_random(&mut self, array: &mut Array, cost: &mut Cost) -> Result<(), Refusal> {
        let is_random = |unit: &Unit| unit.log.as_ref().is_some_and(|log| log.places.is_some());
        if self.open.iter().filter(|unit| is_random(unit)).count() >= self.random_limit {
            let oldest = self.open.iter().position(is_random).expect("at least one was counted");
            if let Some(log) = self.open[oldest].log.take() {
                self.merge(array, log, cost)?;
            }
        }
        Ok(())
    }

    /// Turns a log into the data block of its addresses.
    fn merge(&mut self, array: &mut Array, log: Log, cost: &mut Cost) -> Result<(), Refusal> {
        let (chunk, old) = (log.chunk, self.data_block(log.chunk));
        let written = array.next_page(log.block);
        let block = match log.places {
            None => {
                let rest = written..self.pages_per_block;
                if old.is_some() && !rest.is_empty() {
                    self.copy(array, log.block, chunk, rest, cost);
                    cost.partial_merges += 1;
                } else {
                    cost.switch_merges += 1;
                }
                log.block
            }
            Some(places) => {
                let block = array.take()?;
                self.merge_into(array, block, &log.block, &places, chunk, cost);
                array.erase(log.block);
                cost.erases += 1;
                cost.full_merges += 1;
                block
            }
        };
        if let Some(old) = old {
            array.erase(old);
            cost.erases += 1;
        }
        self.data.insert(chunk, Data::In(block));
        Ok(())
    }

    /// Programs a fresh block with the newest content of every page of its addresses.
    fn merge_into(
        &mut self,
        array: &mut Array,
        block: BlockNo,
        log: &BlockNo,
        places: &HashMap<u32, u32>,
        chunk: u32,
        cost: &mut Cost,
    ) {
        let first = chunk * self.pages_per_block;
        let mut held = vec![false; self.pages_per_block as usize];
        let in_log = array.pages(*log);
        for (at, place) in places {
            held[*at as usize] = in_log.tag(*place) == first + at;
        }
        if let Some(data) = self.data_block(chunk) {
            let in_data = array.pages(data);
            for (held, at) in held.iter_mut().zip(0..) {
                *held |= in_data.tag(at) == first + at;
            }
        }
        for page in self.buffered_in(self.pages_of(chunk)) {
            self.take_from_buffer(page);
            held[(page - first) as usize] = true;
        }
        let mut at = 0;
        for run in held.chunk_by(|one, next| one == next) {
            let count = run.len() as u32;
            if run[0] {
                array.read(count);
                array.program(block, at, count, first + at);
                cost.copied_pages += u64::from(count);
            }
            at += count;
        }
    }

    /// Copies pages of a block of addresses to their own positions in the log, if they hold data.
    fn copy(&mut self, array: &mut Array, log: BlockNo, chunk: u32, places: Range<u32>, cost: &mut Cost) {
        let data = self.data_block(chunk);
        let first = chunk * self.pages_per_block;
        let in_buffer = self.buffered_in(first + places.start..first + places.end);
        in_buffer.iter().for_each(|page| _ = self.take_from_buffer(*page));
        let mut in_buffer = in_buffer.into_iter().peekable();
        let mut at = places.start;
        while at < places.end {
            let page = first + at;
            let in_data = data.map_or(0, |data| array.pages(data).run(at, places.end - at, page));
            let count = in_data.max(u32::from(in_buffer.peek() == Some(&page)));
            while in_buffer.next_if(|buffered| *buffered < page + count.max(1)).is_some() {}
            if count > 0 {
                array.read(count);
                array.program(log, at, count, page);
                cost.copied_pages += u64::from(count);
            }
            at += count.max(1);
        }
    }

    /// Reads the page that a command covers only partly, if it holds data.
    fn fill(&self, array: &mut Array, page: u32, cost: &mut Cost) {
        if self.location(array, page).is_some() {
            array.read(1);
            cost.filled_pages += 1;
        }
    }

    fn put_into_buffer(&mut self, array: &mut Array, page: u32, cost: &mut Cost) -> Result<(), Refusal> {
        let room = ((BUFFER_BLOCKS - 2) * self.pages_per_block) as usize;
        while self.buffered.len() >= room && !self.is_buffered(page) {
            self.fold_oldest(array)?;
        }
        // The cost of the buffer's own upkeep is part of `small_write_ns`.
        self.buffer.write(array, page..page + 1, &mut Cost::default())?;
        if !self.is_buffered(page) {
            self.arrivals += 1;
            self.buffered.insert(self.arrivals, page);
            self.buffered_since.insert(page, self.arrivals);
        }
        cost.pages += 1;
        Ok(())
    }

    /// Merges the block of addresses with the oldest page in the buffer.
    fn fold_oldest(&mut self, array: &mut Array) -> Result<(), Refusal> {
        let (_, &page) = self.buffered.first_key_value().expect("called when the buffer is full");
        let chunk = page / self.pages_per_block;
        let cost = &mut Cost::default();
        if let Some(log) = self.take_log(chunk) {
            self.merge(array, log, cost)?;
        }
        if self.is_buffered(page) {
            let block = array.take()?;
            let old = self.data_block(chunk);
            self.merge_into(array, block, &block, &HashMap::new(), chunk, cost);
            if let Some(old) = old {
                array.erase(old);
            }
            self.data.insert(chunk, Data::In(block));
        }
        Ok(())
    }

    fn is_buffered(&self, page: u32) -> bool {
        self.buffered_since.contains_key(&page)
    }

    /// Returns those of these pages that are in the buffer.
    fn buffered_in(&self, pages: Range<u32>) -> Vec<u32> {
        self.buffered_since.range(pages).map(|(page, _)| *page).collect()
    }

    /// Forgets a page of the buffer. Returns true if it was there.
    fn take_from_buffer(&mut self, page: u32) -> bool {
        let since = self.buffered_since.remove(&page);
        if let Some(since) = since {
            self.buffered.remove(&since);
            self.buffer.trim(page..page + 1);
        }
        since.is_some()
    }

    /// Returns the last opened unit.
    fn current(&mut self) -> &mut Unit {
        self.open.last_mut().expect("a unit is opened before it is written")
    }

    fn log(&self, chunk: u32) -> Option<&Log> {
        let number = chunk / self.blocks_per_unit;
        let unit = self.open.iter().rev().find(|unit| unit.number == number)?;
        unit.log.as_ref().filter(|log| log.chunk == chunk)
    }

    fn take_log(&mut self, chunk: u32) -> Option<Log> {
        self.log(chunk)?;
        let number = chunk / self.blocks_per_unit;
        self.open.iter_mut().find(|unit| unit.number == number)?.log.take()
    }

    fn data_block(&self, chunk: u32) -> Option<BlockNo> {
        match self.data.get(&chunk) {
            Some(Data::In(block)) => Some(*block),
            Some(Data::Nothing) => None,
            None => self.preconditioned.then_some(BlockNo(chunk)),
        }
    }

    fn pages_of(&self, chunk: u32) -> Range<u32> {
        chunk * self.pages_per_block..(chunk + 1) * self.pages_per_block
    }
}
