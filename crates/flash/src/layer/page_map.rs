//! A page-mapped area: every page anywhere, garbage collection by the fewest valid pages.

use std::{collections::HashMap, ops::Range};

use serde::{Deserialize, Serialize};

use super::Cost;
use crate::{
    array::{Array, BlockNo, NOTHING},
    op::Refusal,
};

/// Pages whose places are kept together.
const LEAF_PAGES: u32 = 512;
/// Nothing was said: the place is that of a card that was written before it was opened, or none.
const DEFAULT: u64 = 0;
/// The page holds nothing.
const UNMAPPED: u64 = 1;
/// Added to a place, so that no place is one of the two above.
const BIAS: u64 = 2;

/// A range of logical pages, each of which may lie on any flash page.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PageMap {
    pages: Range<u32>,
    pages_per_block: u32,
    /// Blocks that this area may hold before it collects garbage.
    limit_blocks: u32,
    /// Free blocks of the array below which it collects garbage.
    reserve_blocks: u32,
    places: HashMap<u32, Vec<u64>>,
    /// Valid pages of the blocks that this area holds. Blocks of before the card was opened are absent until
    /// one of their pages becomes invalid; they are then in `untouched` no longer.
    valid: HashMap<u32, u32>,
    untouched: u32,
    preconditioned: bool,
    head: Option<BlockNo>,
}

impl PageMap {
    /// An area of these pages.
    pub fn new(
        pages: Range<u32>,
        pages_per_block: u32,
        limit_blocks: u32,
        reserve_blocks: u32,
        preconditioned: bool,
    ) -> PageMap {
        let untouched = if preconditioned { pages.len() as u32 / pages_per_block } else { 0 };
        PageMap {
            pages,
            pages_per_block,
            limit_blocks,
            reserve_blocks,
            places: HashMap::new(),
            valid: HashMap::new(),
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

    /// Blocks that this area holds.
    pub fn held_blocks(&self) -> u32 {
        self.valid.len() as u32 + self.untouched
    }

    /// The logical pages of this area.
    pub fn pages(&self) -> Range<u32> {
        self.pages.clone()
    }

    /// Where a logical page lies, if anywhere.
    pub fn location(&self, array: &Array, page: u32) -> Option<(BlockNo, u32)> {
        let place = self.places.get(&(page / LEAF_PAGES)).map_or(DEFAULT, |leaf| leaf[slot(page)]);
        match place {
            DEFAULT => {
                let block = BlockNo(page / self.pages_per_block);
                let here = self.preconditioned && array.tag(block, page % self.pages_per_block) == page;
                here.then_some((block, page % self.pages_per_block))
            }
            UNMAPPED => None,
            place => Some((BlockNo(((place - BIAS) >> 32) as u32), (place - BIAS) as u32)),
        }
    }

    /// Writes the pages that a range of bytes touches; what it covers in part is read first.
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
        for page in pages {
            self.make_room(array, cost)?;
            self.append(array, page)?;
        }
        Ok(())
    }

    /// Forgets pages.
    pub fn trim(&mut self, pages: Range<u32>) {
        for page in pages {
            self.forget(page);
        }
    }

    /// Forgets one page that may or may not be there.
    fn forget(&mut self, page: u32) {
        let preconditioned = self.preconditioned;
        let place = self.place(page);
        let was = *place;
        *place = UNMAPPED;
        match was {
            DEFAULT if preconditioned => self.invalidate_untouched(page / self.pages_per_block),
            DEFAULT | UNMAPPED => {}
            was => self.invalidate(((was - BIAS) >> 32) as u32),
        }
    }

    /// Programs one page at the head. There is room, or a free block.
    fn append(&mut self, array: &mut Array, page: u32) -> Result<(), Refusal> {
        let head = match self.head {
            Some(head) if array.next_page(head) < self.pages_per_block => head,
            _ => {
                let head = array.take()?;
                self.valid.insert(head.0, 0);
                self.head = Some(head);
                head
            }
        };
        self.forget(page);
        let at = array.next_page(head);
        array.program(head, at, 1, page);
        *self.place(page) = (u64::from(head.0) << 32 | u64::from(at)) + BIAS;
        *self.valid.get_mut(&head.0).expect("put in when it became the head") += 1;
        Ok(())
    }

    /// Collects garbage until the head can take a page, or a new head can be taken.
    fn make_room(&mut self, array: &mut Array, cost: &mut Cost) -> Result<(), Refusal> {
        let mut wanted = match self.head_has_room(array) {
            true => return Ok(()),
            false => 1,
        };
        while self.held_blocks() + wanted > self.limit_blocks
            || array.free_blocks() < self.reserve_blocks + wanted
        {
            let sealed = self.valid.iter().filter(|(block, _)| self.head != Some(BlockNo(**block)));
            // By number among equals: a map has no order, and the same requests must cost the same.
            let victim = sealed.min_by_key(|(block, valid)| (**valid, **block));
            let Some((&block, &valid)) = victim.filter(|(_, valid)| **valid < self.pages_per_block) else {
                // Nothing can be gained: the reserve is there to be used.
                return if array.free_blocks() < wanted { Err(Refusal::WornOut) } else { Ok(()) };
            };
            self.collect(array, BlockNo(block), valid, cost)?;
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
        if valid > 0 {
            for at in 0..array.next_page(block) {
                let page = array.tag(block, at);
                if page != NOTHING && self.location(array, page) == Some((block, at)) {
                    array.read(1);
                    self.append(array, page)?;
                }
            }
        }
        self.valid.remove(&block.0);
        array.erase(block);
        cost.copied_pages += u64::from(valid);
        cost.erases += 1;
        cost.collections += 1;
        Ok(())
    }

    fn invalidate(&mut self, block: u32) {
        *self.valid.get_mut(&block).expect("a block with a valid page is held") -= 1;
    }

    fn invalidate_untouched(&mut self, block: u32) {
        let valid = self.valid.entry(block).or_insert_with(|| {
            self.untouched -= 1;
            self.pages_per_block
        });
        *valid -= 1;
    }

    fn place(&mut self, page: u32) -> &mut u64 {
        let leaf = self.places.entry(page / LEAF_PAGES).or_insert_with(|| vec![DEFAULT; LEAF_PAGES as usize]);
        &mut leaf[slot(page)]
    }
}

fn slot(page: u32) -> usize {
    (page % LEAF_PAGES) as usize
}
