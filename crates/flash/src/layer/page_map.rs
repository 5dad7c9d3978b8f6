//! A page-mapped area: any logical page can lie on any flash page. Garbage collection takes the block with
//! the fewest valid pages.

use std::{collections::HashSet, ops::Range};

use serde::{Deserialize, Serialize};

use super::{
    Cost,
    mapping_table::{MappingTable, Place},
    victim_index::VictimIndex,
};
use crate::{
    array::{Array, BlockNo, NOTHING},
    condition::Condition,
    op::Refusal,
};

/// A range of logical pages, each of which may lie on any flash page.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PageMap {
    pages: Range<u32>,
    pages_per_block: u32,
    /// Blocks that this area may hold before it collects garbage.
    limit_blocks: u32,
    /// Free blocks of the array below which it collects garbage.
    reserve_blocks: u32,
    places: MappingTable,
    /// The blocks that this area holds, except `untouched` ones: those from before the card was opened that
    /// have lost no page yet.
    valid: VictimIndex,
    untouched: u32,
    preconditioned: bool,
    head: Option<BlockNo>,
}

impl PageMap {
    /// Makes an area of these pages.
    pub fn new(
        pages: Range<u32>,
        pages_per_block: u32,
        limit_blocks: u32,
        reserve_blocks: u32,
        condition: Condition,
    ) -> PageMap {
        let preconditioned = condition.is_preconditioned();
        let untouched = if preconditioned { pages.len() as u32 / pages_per_block } else { 0 };
        PageMap {
            pages,
            pages_per_block,
            limit_blocks,
            reserve_blocks,
            places: MappingTable::default(),
            valid: VictimIndex::default(),
            untouched,
            preconditioned,
            head: None,
        }
    }

    /// Leaves whole blocks of pages to another area.
    pub fn exclude(&mut self, pages: Range<u32>) {
        if self.preconditioned {
            self.untouched -= pages.len() as u32 / self.pages_per_block;
        }
    }

    /// Checks that this can be a later state of `twin`, the area of a new card, because it may come from an
    /// untrusted file. `others` are pages of `twin` that were left to another area. Adds the blocks that it
    /// holds to `held`. Returns a description of the first error.
    pub fn check(
        &self,
        twin: &PageMap,
        others: &Range<u32>,
        array: &Array,
        held: &mut Vec<BlockNo>,
    ) -> Result<(), String> {
        let same = self.pages == twin.pages
            && self.pages_per_block == twin.pages_per_block
            && self.limit_blocks == twin.limit_blocks
            && self.reserve_blocks == twin.reserve_blocks
            && self.preconditioned == twin.preconditioned;
        if !same {
            return Err("an area differs from the profile".into());
        }
        let own = |page: u32| self.pages.contains(&page) && !others.contains(&page);
        for (page, place) in self.places.iter() {
            let fine = match self.split(place) {
                None => place == Place::AS_BEFORE || own(page),
                Some((block, at)) => own(page) && self.valid.contains(block) && array.tag(block, at) == page,
            };
            if !fine {
                return Err(format!("page {page} is mapped to an impossible place"));
            }
        }
        // If the map leaves a page at its original position, its original block must be untouched.
        let home = |block: u32| {
            let first = block.checked_mul(self.pages_per_block).filter(|first| own(*first));
            first.filter(|_| self.preconditioned && block < self.pages.end / self.pages_per_block)
        };
        for first in array.touched().filter_map(home) {
            let lost = |page: &u32| self.places.get(*page) == Place::AS_BEFORE;
            if let Some(page) = (first..first + self.pages_per_block).find(lost) {
                return Err(format!("page {page} was erased, but is still mapped"));
            }
        }
        for (block, valid) in self.valid.iter() {
            let here = |at: &u32| {
                let page = array.tag(block, *at);
                page != NOTHING && own(page) && self.location(array, page) == Some((block, *at))
            };
            let count = (0..array.next_page(block)).filter(here).count();
            let is_home = home(block.0).is_some() && array.is_implicit(block);
            if count != valid as usize || !(is_home || array.is_handed_out(block)) {
                return Err(format!("block {} has a count of {valid} pages, but holds {count}", block.0));
            }
            held.push(block);
        }
        let gone = array.touched().chain(self.valid.iter().map(|(block, _)| block.0));
        let gone = gone.filter(|block| home(*block).is_some()).collect::<HashSet<u32>>().len() as u32;
        if u64::from(self.untouched) + u64::from(gone) != u64::from(twin.untouched) {
            return Err(format!("the count of {} untouched blocks is wrong", self.untouched));
        }
        match self.head {
            Some(head) if !self.valid.contains(head) || !array.is_handed_out(head) => {
                Err(format!("block {} is open for writing, but not held", head.0))
            }
            _ => Ok(()),
        }
    }

    /// Returns the logical pages that have left their original position.
    pub fn mapped(&self) -> impl Iterator<Item = u32> {
        self.places.iter().filter(|(_, place)| place.get().is_some()).map(|(page, _)| page)
    }

    /// Returns the number of blocks that this area holds.
    pub fn held_blocks(&self) -> u32 {
        self.valid.len() + self.untouched
    }

    /// The logical pages of this area.
    pub fn pages(&self) -> Range<u32> {
        self.pages.clone()
    }

    /// Returns the physical place of a logical page, if it has one.
    pub fn location(&self, array: &Array, page: u32) -> Option<(BlockNo, u32)> {
        let place = self.places.get(page);
        if place == Place::AS_BEFORE {
            let (block, at) = (BlockNo(page / self.pages_per_block), page % self.pages_per_block);
            return (self.preconditioned && array.tag(block, at) == page).then_some((block, at));
        }
        self.split(place)
    }

    /// Writes the pages that a range of bytes touches. First reads pages that it covers only partly.
    ///
    /// # Errors
    /// [`Refusal::WornOut`].
    pub fn write_bytes(
        &mut self,
        array: &mut Array,
        range: Range<u64>,
        page_bytes: u64,
        cost: &mut Cost,
    ) -> Result<(), Refusal> {
        let pages = (range.start / page_bytes) as u32..range.end.div_ceil(page_bytes) as u32;
        let partly = |page: u32| {
            let start = u64::from(page) * page_bytes;
            start < range.start || range.end < start + page_bytes
        };
        let last = pages.end - 1;
        for page in [pages.start, last].into_iter().take(if last == pages.start { 1 } else { 2 }) {
            if partly(page) && self.location(array, page).is_some() {
                array.read(1);
                cost.filled_pages += 1;
            }
        }
        cost.pages += u64::from(pages.end - pages.start);
        self.write(array, pages, cost)
    }

    /// Writes whole pages.
    ///
    /// # Errors
    /// [`Refusal::WornOut`].
    pub fn write(&mut self, array: &mut Array, pages: Range<u32>, cost: &mut Cost) -> Result<(), Refusal> {
        let mut page = pages.start;
        while page < pages.end {
            self.make_room(array, cost)?;
            let (head, at) = self.head(array)?;
            let count = (pages.end - page).min(self.pages_per_block - at);
            array.program(head, at, count, page);
            let place = self.place(head, at);
            let now = |of: u32| place.plus(of - page);
            let (places, leave) = self.mapping_and_leave();
            places.replace(page..page + count, now, leave);
            self.valid.gain(head, count);
            page += count;
        }
        Ok(())
    }

    /// Forgets pages.
    pub fn trim(&mut self, pages: Range<u32>) {
        let condition = Condition::from(self.preconditioned);
        let (places, leave) = self.mapping_and_leave();
        places.forget(pages, condition, leave);
    }

    /// Forgets the valid pages of the block in progress, and returns them.
    pub fn lose_head(&mut self, array: &Array) -> Vec<u32> {
        let Some(head) = self.head else { return Vec::new() };
        let here = (0..array.next_page(head)).map(|at| (at, array.tag(head, at)));
        let pages: Vec<u32> = here
            .filter(|(at, page)| *page != NOTHING && self.location(array, *page) == Some((head, *at)))
            .map(|(_, page)| page)
            .collect();
        pages.iter().for_each(|page| self.trim(*page..page + 1));
        pages
    }

    /// Collects garbage until the head has space for a page, or a new head is available.
    fn make_room(&mut self, array: &mut Array, cost: &mut Cost) -> Result<(), Refusal> {
        let mut wanted = match self.head_has_room(array) {
            true => return Ok(()),
            false => 1,
        };
        while self.held_blocks() + wanted > self.limit_blocks
            || array.free_blocks() < self.reserve_blocks + wanted
        {
            let victim = self.valid.emptiest(self.head);
            let Some((block, valid)) = victim.filter(|(_, valid)| *valid < self.pages_per_block) else {
                // No page can be gained, so the reserve is used.
                return if array.free_blocks() < wanted { Err(Refusal::WornOut) } else { Ok(()) };
            };
            self.collect(array, block, valid, cost)?;
            wanted = u32::from(!self.head_has_room(array));
        }
        Ok(())
    }

    fn head_has_room(&self, array: &Array) -> bool {
        self.head.is_some_and(|head| array.next_page(head) < self.pages_per_block)
    }

    /// Moves the valid pages of a block to the head and erases it.
    fn collect(
        &mut self,
        array: &mut Array,
        block: BlockNo,
        valid: u32,
        cost: &mut Cost,
    ) -> Result<(), Refusal> {
        let pages_per_block = self.pages_per_block;
        let is_home = array.is_implicit(block);
        let mut sources = 0..array.next_page(block);
        let mut left = valid;
        let mut moved = Vec::with_capacity(valid as usize);
        while left > 0 {
            let (head, at) = self.head(array)?;
            let room = left.min(pages_per_block - at);
            let pages = array.pages(block);
            let (from, to) = (self.place(block, 0), self.place(head, at));
            moved.clear();
            while moved.len() < room as usize {
                let source = sources.next().expect("a block has the valid pages that it is held with");
                let page = pages.tag(source);
                let from = if is_home { Place::AS_BEFORE } else { from.plus(source) };
                if self.places.relocate(page, from, to.plus(moved.len() as u32)) {
                    moved.push(page);
                }
            }
            array.read(room);
            array.program_each(head, at, &moved);
            self.valid.gain(head, room);
            self.valid.lose(block, room);
            left -= room;
        }
        self.valid.remove(block);
        array.erase(block);
        cost.copied_pages += u64::from(valid);
        cost.erases += 1;
        cost.collections += 1;
        Ok(())
    }

    /// Returns a block in progress with space, and its next page.
    fn head(&mut self, array: &mut Array) -> Result<(BlockNo, u32), Refusal> {
        if let Some(head) = self.head {
            let at = array.next_page(head);
            if at < self.pages_per_block {
                return Ok((head, at));
            }
        }
        let head = array.take()?;
        self.valid.insert(head, 0);
        self.head = Some(head);
        Ok((head, 0))
    }

    fn place(&self, block: BlockNo, page: u32) -> Place {
        Place::at(block.0 * self.pages_per_block + page)
    }

    /// Returns the block and page of a position, if it is mapped and holds data.
    fn split(&self, place: Place) -> Option<(BlockNo, u32)> {
        place.get().map(|page| (BlockNo(page / self.pages_per_block), page % self.pages_per_block))
    }

    /// Returns the positions, and a callback that updates the blocks that a page leaves.
    fn mapping_and_leave(&mut self) -> (&mut MappingTable, impl FnMut(u32, Place)) {
        let PageMap { places, valid, untouched, pages_per_block, preconditioned, .. } = self;
        let leave = |page: u32, was: Place| match was.get() {
            Some(at) => valid.lose(BlockNo(at / *pages_per_block), 1),
            None if was == Place::AS_BEFORE && *preconditioned => {
                let home = BlockNo(page / *pages_per_block);
                if !valid.contains(home) {
                    *untouched -= 1;
                    valid.insert(home, *pages_per_block);
                }
                valid.lose(home, 1);
            }
            None => {}
        };
        (places, leave)
    }
}
