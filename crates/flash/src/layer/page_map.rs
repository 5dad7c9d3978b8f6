//! A page-mapped area: every page anywhere, garbage collection by the fewest valid pages.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
};

use serde::{Deserialize, Serialize};

use super::Cost;
use crate::{
    array::{Array, BlockNo, NOTHING},
    op::Refusal,
};

/// Pages whose places are kept together.
const LEAF_PAGES: u32 = 64;
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

    /// Whether this can be what became of `twin`, the area of a new card: it may come from a file that anybody
    /// wrote. `others` are pages of `twin` that were left to another area. Blocks that it holds go to `held`.
    /// Returns what is wrong.
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
            return Err("an area is another one than the profile's".into());
        }
        let own = |page: u32| self.pages.contains(&page) && !others.contains(&page);
        for (leaf, places) in &self.places {
            if places.len() != LEAF_PAGES as usize || *leaf > (self.pages.end - 1) / LEAF_PAGES {
                return Err(format!("leaf {leaf} of the map has {} places", places.len()));
            }
            for (n, place) in (0..).zip(places) {
                let page = leaf.checked_mul(LEAF_PAGES).and_then(|first| first.checked_add(n));
                let fine = match *place {
                    DEFAULT => true,
                    UNMAPPED => page.is_some_and(own),
                    place => page.is_some_and(|page| {
                        let place = place - BIAS;
                        let (block, at) = ((place >> 32) as u32, place as u32);
                        own(page)
                            && at < self.pages_per_block
                            && self.valid.contains_key(&block)
                            && array.tag(BlockNo(block), at) == page
                    }),
                };
                if !fine {
                    return Err(format!("page {n} of leaf {leaf} of the map is where it cannot be"));
                }
            }
        }
        // The home of pages that were said to be where they always were still holds them.
        let home = |block: u32| {
            let first = block.checked_mul(self.pages_per_block).filter(|first| own(*first));
            first.filter(|_| self.preconditioned && block < self.pages.end / self.pages_per_block)
        };
        for first in array.touched().filter_map(home) {
            let lost = |page: &u32| {
                self.places.get(&(page / LEAF_PAGES)).is_none_or(|leaf| leaf[slot(*page)] == DEFAULT)
            };
            if let Some(page) = (first..first + self.pages_per_block).find(lost) {
                return Err(format!("page {page} was erased, and the map does not know"));
            }
        }
        for (&block, &valid) in &self.valid {
            let here = |at: &u32| {
                let page = array.tag(BlockNo(block), *at);
                page != NOTHING && own(page) && self.location(array, page) == Some((BlockNo(block), *at))
            };
            let count = (0..array.next_page(BlockNo(block))).filter(here).count();
            let is_home = home(block).is_some() && array.is_implicit(BlockNo(block));
            if count != valid as usize || !(is_home || array.is_handed_out(BlockNo(block))) {
                return Err(format!("block {block} is said to hold {valid} pages, and it holds {count}"));
            }
            held.push(BlockNo(block));
        }
        let gone = array.touched().chain(self.valid.keys().copied()).filter(|block| home(*block).is_some());
        let gone = gone.collect::<HashSet<u32>>().len() as u32;
        if u64::from(self.untouched) + u64::from(gone) != u64::from(twin.untouched) {
            return Err(format!("{} blocks are said to be as they were", self.untouched));
        }
        match self.head {
            Some(head) if !self.valid.contains_key(&head.0) || !array.is_handed_out(head) => {
                Err(format!("block {} is written to, and not held", head.0))
            }
            _ => Ok(()),
        }
    }

    /// Logical pages that lie somewhere else than they always did.
    pub fn mapped(&self) -> impl Iterator<Item = u32> {
        let moved = |(_, place): &(u32, &u64)| **place >= BIAS;
        self.places.iter().flat_map(move |(leaf, places)| {
            (leaf * LEAF_PAGES..).zip(places).filter(moved).map(|(page, _)| page)
        })
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

    /// Forgets the pages of the block that is written to. Which they were.
    pub fn lose_head(&mut self, array: &Array) -> Vec<u32> {
        let Some(head) = self.head else { return Vec::new() };
        let here = (0..array.next_page(head)).map(|at| (at, array.tag(head, at)));
        let pages: Vec<u32> = here
            .filter(|(at, page)| *page != NOTHING && self.location(array, *page) == Some((head, *at)))
            .map(|(_, page)| page)
            .collect();
        pages.iter().for_each(|page| self.forget(*page));
        pages
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
