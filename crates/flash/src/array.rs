//! The flash array: blocks of pages that are programmed once, in order, and erased as a whole.
//!
//! *Invariants*, asserted at every step: a page is programmed only when it and every later page of its block
//! are erased; only blocks without valid pages are erased; a bad block is never handed out. The array keeps
//! the tag of each programmed page (the logical page it was programmed for), which is how a layer finds its
//! data again and how a test proves that no data was lost.
//!
//! Only blocks that were touched take memory. A card that was written in full before it was opened
//! ([`Condition::Preconditioned`]) holds in block `n` the logical pages of block `n`, without memory for them.

mod blocks;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashSet},
    ops::Range,
};

use blocks::Blocks;
use serde::{Deserialize, Serialize};

use crate::{condition::Condition, op::Refusal, profile::Profile};

/// Tag of a page without data.
pub const NOTHING: u32 = u32::MAX;

/// Number of tags compared at once.
const PIECE: usize = 16;

/// Number of a block of the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlockNo(pub u32);

/// Tags of a block's pages.
#[derive(Debug, Clone)]
pub enum Pages<'a> {
    /// Tags of the programmed pages.
    Programmed(&'a [u32]),
    /// All pages, programmed before the card was opened for the logical pages of this range.
    Implicit(Range<u32>),
}

impl Pages<'_> {
    /// Returns the tag of a page.
    pub fn tag(&self, page: u32) -> u32 {
        match self {
            Pages::Programmed(tags) => tags.get(page as usize).copied().unwrap_or(NOTHING),
            Pages::Implicit(tags) => tags.start + page,
        }
    }

    /// Counts the pages from `page` on, at most `most`, that were programmed for consecutive logical pages
    /// from `tag` on.
    pub fn run(&self, page: u32, most: u32, tag: u32) -> u32 {
        match self {
            Pages::Programmed(tags) => {
                let tags = tags.get(page as usize..).unwrap_or_default();
                let tags = &tags[..tags.len().min(most as usize)];
                // Compares piece by piece, so that the compiler can vectorise the comparison.
                let is_run = |(piece, tag): (&[u32], u32)| {
                    piece.iter().zip(tag..).fold(true, |all, (found, wanted)| all & (*found == wanted))
                };
                let pieces = tags.chunks_exact(PIECE).zip((tag..).step_by(PIECE));
                let whole = pieces.take_while(|piece| is_run(*piece)).count() * PIECE;
                let rest = tags[whole..].iter().zip(tag + whole as u32..);
                (whole + rest.take_while(|(found, wanted)| *found == wanted).count()) as u32
            }
            Pages::Implicit(tags) if tags.start + page == tag => most.min(tags.end - tag),
            Pages::Implicit(_) => 0,
        }
    }
}

/// Operations since the last [`Array::take_work`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Pages programmed.
    pub programs: u64,
    /// Pages read.
    pub reads: u64,
    /// Blocks erased.
    pub erases: u64,
}

/// The flash of a card.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Array {
    pages_per_block: u32,
    block_count: u32,
    endurance_erases: u32,
    /// Blocks from here on were never handed out.
    fresh: u32,
    /// Blocks below this number hold their own logical pages until they are erased.
    implicit: u32,
    blocks: Blocks,
    /// Erased blocks by wear.
    free: BinaryHeap<Reverse<(u32, u32)>>,
    retired: u32,
    #[serde(skip)]
    work: Work,
}

impl Array {
    /// Makes the flash of a card of this profile.
    pub fn new(profile: &Profile, condition: Condition) -> Array {
        let data_blocks = profile.data_blocks();
        let block_count = data_blocks + profile.flash.spare_blocks - profile.flash.bad_blocks;
        let implicit = if condition.is_preconditioned() { data_blocks } else { 0 };
        Array {
            pages_per_block: profile.pages_per_block(),
            block_count,
            endurance_erases: profile.flash.endurance_erases,
            fresh: implicit,
            implicit,
            blocks: Blocks::default(),
            free: BinaryHeap::new(),
            retired: 0,
            work: Work::default(),
        }
    }

    /// Pages in a block.
    pub fn pages_per_block(&self) -> u32 {
        self.pages_per_block
    }

    /// Returns the number of blocks that can be handed out now.
    pub fn free_blocks(&self) -> u32 {
        self.free.len() as u32 + (self.block_count - self.fresh)
    }

    /// Returns the number of worn-out blocks.
    pub fn retired_blocks(&self) -> u32 {
        self.retired
    }

    /// Returns true if block `n` still holds the logical pages of block `n` from before the card was opened.
    pub fn is_implicit(&self, block: BlockNo) -> bool {
        block.0 < self.implicit && self.blocks.get(block.0).is_none()
    }

    /// Hands out an erased block, the least worn first.
    ///
    /// # Errors
    /// [`Refusal::WornOut`] if none is left.
    pub fn take(&mut self) -> Result<BlockNo, Refusal> {
        // A fresh block has no wear; a used one without wear cannot be in the pool.
        let number = if self.fresh < self.block_count {
            self.fresh += 1;
            self.fresh - 1
        } else {
            let Reverse((_, number)) = self.free.pop().ok_or(Refusal::WornOut)?;
            number
        };
        let block = self.blocks.touch(number);
        block.next = 0;
        block.tags = Vec::new();
        Ok(BlockNo(number))
    }

    /// Returns the page after the last programmed one.
    pub fn next_page(&self, block: BlockNo) -> u32 {
        match self.blocks.get(block.0) {
            Some(block) => block.next,
            None if block.0 < self.implicit => self.pages_per_block,
            None => 0,
        }
    }

    /// Programs `count` pages from `page` on for the logical pages from `tag` on.
    pub fn program(&mut self, block: BlockNo, page: u32, count: u32, tag: u32) {
        self.program_for(block, page, count, tag..tag + count);
    }

    /// Programs pages from `page` on, each for the logical page in its tag.
    pub fn program_each(&mut self, block: BlockNo, page: u32, tags: &[u32]) {
        self.program_for(block, page, tags.len() as u32, tags.iter().copied());
    }

    fn program_for(&mut self, block: BlockNo, page: u32, count: u32, tags: impl Iterator<Item = u32>) {
        let pages_per_block = self.pages_per_block;
        let block = self.blocks.get_mut(block.0).expect("only allocated blocks are programmed");
        assert!(page >= block.next, "page {page} is not erased: {} are programmed", block.next);
        assert!(page + count <= pages_per_block, "a block has {pages_per_block} pages");
        block.tags.resize(page as usize, NOTHING);
        block.tags.extend(tags);
        block.next = page + count;
        self.work.programs += u64::from(count);
    }

    /// Counts programmed pages of a chip whose tags the caller keeps.
    pub fn count_programs(&mut self, count: u32) {
        self.work.programs += u64::from(count);
    }

    /// Counts pages read.
    pub fn read(&mut self, count: u32) {
        self.work.reads += u64::from(count);
    }

    /// Returns the tag of a page.
    pub fn tag(&self, block: BlockNo, page: u32) -> u32 {
        self.pages(block).tag(page)
    }

    /// Returns the pages of a block, for access to many of them.
    pub fn pages(&self, block: BlockNo) -> Pages<'_> {
        match self.blocks.get(block.0) {
            Some(block) => Pages::Programmed(&block.tags),
            None if block.0 < self.implicit => {
                let first = block.0 * self.pages_per_block;
                Pages::Implicit(first..first + self.pages_per_block)
            }
            None => Pages::Programmed(&[]),
        }
    }

    /// Erases a block and takes it back. A block past its endurance is retired instead.
    pub fn erase(&mut self, block: BlockNo) {
        let number = block.0;
        let block = self.blocks.touch(number);
        block.erases += 1;
        block.next = 0;
        block.tags = Vec::new();
        self.work.erases += 1;
        if block.erases >= self.endurance_erases {
            self.retired += 1;
        } else {
            self.free.push(Reverse((block.erases, number)));
        }
    }

    /// Erases a block in place, as on a bare chip. Blocks past their endurance fail.
    ///
    /// # Errors
    /// [`Refusal::WornOut`].
    pub fn erase_in_place(&mut self, block: BlockNo) -> Result<(), Refusal> {
        let block = self.blocks.touch(block.0);
        if block.erases >= self.endurance_erases {
            return Err(Refusal::WornOut);
        }
        self.retired += u32::from(block.erases + 1 == self.endurance_erases);
        block.erases += 1;
        block.next = 0;
        block.tags = Vec::new();
        self.work.erases += 1;
        Ok(())
    }

    /// Makes a bare chip's block programmable.
    pub fn adopt(&mut self, block: BlockNo) {
        self.blocks.touch(block.0);
    }

    /// Checks that this can be the flash of a card of this profile, because it may come from an untrusted
    /// file. Returns a description of the first error.
    pub(crate) fn check(&self, profile: &Profile, condition: Condition) -> Result<(), String> {
        let twin = Array::new(profile, condition);
        let same = self.pages_per_block == twin.pages_per_block
            && self.block_count == twin.block_count
            && self.endurance_erases == twin.endurance_erases
            && self.implicit == twin.implicit;
        if !same {
            return Err("the flash differs from the profile".into());
        }
        if self.fresh < twin.fresh || self.fresh > self.block_count {
            return Err(format!("{} blocks of {} were allocated", self.fresh, self.block_count));
        }
        let last = if profile.is_raw() { self.block_count } else { self.fresh };
        for (number, block) in self.blocks.iter() {
            let fail = |what: &str| Err(format!("block {number} {what}"));
            if number >= last {
                return fail("was never allocated");
            }
            if block.next > self.pages_per_block || block.tags.len() != block.next as usize {
                return fail("has contradictory counts of pages");
            }
            if block.erases > self.endurance_erases {
                return fail("was erased more often than its endurance allows");
            }
        }
        let worn = self.blocks.iter().filter(|(_, block)| block.erases == self.endurance_erases).count();
        if worn != self.retired as usize {
            return Err(format!("the count of worn-out blocks is {}, but {worn} are worn out", self.retired));
        }
        let mut free = HashSet::new();
        for Reverse((erases, number)) in &self.free {
            let block = self.blocks.get(*number).filter(|block| block.erases == *erases && block.next == 0);
            if block.is_none() || *erases >= self.endurance_erases || !free.insert(*number) {
                return Err(format!("block {number} is listed as free but is not"));
            }
        }
        Ok(())
    }

    /// Returns true if a block was handed out once and can still be erased.
    pub(crate) fn is_handed_out(&self, block: BlockNo) -> bool {
        self.blocks.get(block.0).is_some_and(|block| block.erases < self.endurance_erases)
    }

    /// Returns the used blocks that are erased and not handed out.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = BlockNo> {
        self.free.iter().map(|Reverse((_, number))| BlockNo(*number))
    }

    /// Returns the number of blocks.
    pub fn block_count(&self) -> u32 {
        self.block_count
    }

    /// Returns the number of erases of each block that was ever touched.
    pub fn erases(&self) -> impl Iterator<Item = (BlockNo, u32)> {
        self.blocks.iter().map(|(number, block)| (BlockNo(number), block.erases))
    }

    /// Returns the numbers of the blocks that were ever touched.
    pub(crate) fn touched(&self) -> impl Iterator<Item = u32> {
        self.blocks.iter().map(|(number, _)| number)
    }

    /// Returns the operations since the last call.
    pub fn take_work(&mut self) -> Work {
        std::mem::take(&mut self.work)
    }

    /// Returns a histogram: number of erases -> number of blocks. Blocks that were never touched have none.
    pub fn wear(&self) -> BTreeMap<u32, u64> {
        let mut wear = BTreeMap::new();
        let mut untouched = u64::from(self.block_count);
        for (_, block) in self.blocks.iter() {
            *wear.entry(block.erases).or_insert(0) += 1;
            untouched -= 1;
        }
        if untouched > 0 {
            *wear.entry(0).or_insert(0) += untouched;
        }
        wear
    }
}
