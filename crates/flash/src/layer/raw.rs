//! A bare chip: the host erases blocks and programs pages itself.

use std::{collections::HashMap, ops::Range};

use serde::{Deserialize, Serialize};

use super::Cost;
use crate::{
    array::{Array, BlockNo},
    op::Refusal,
    profile::Profile,
};

/// A bare NOR or NAND chip. The host's addresses are those of the flash.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Raw {
    page_bytes: u32,
    pages_per_block: u32,
    /// True for NAND, which takes whole pages in order. NOR takes any piece of an erased page.
    in_order: bool,
    /// Programmed pages of the touched NOR blocks.
    programmed: HashMap<u32, Vec<bool>>,
}

impl Raw {
    /// A NOR chip.
    pub fn nor(profile: &Profile) -> Raw {
        Raw { in_order: false, ..Raw::nand(profile) }
    }

    /// A NAND chip.
    pub fn nand(profile: &Profile) -> Raw {
        Raw {
            page_bytes: profile.flash.page_bytes,
            pages_per_block: profile.pages_per_block(),
            in_order: true,
            programmed: HashMap::new(),
        }
    }

    /// Programs whole erased pages.
    ///
    /// # Errors
    /// [`Refusal::Unaligned`] or [`Refusal::NotErased`], before any page is programmed.
    pub fn write(&mut self, array: &mut Array, range: Range<u64>, cost: &mut Cost) -> Result<(), Refusal> {
        let page_bytes = u64::from(self.page_bytes);
        if range.start % page_bytes != 0 || range.end % page_bytes != 0 {
            return Err(Refusal::Unaligned { page_bytes: self.page_bytes });
        }
        let pages = (range.start / page_bytes) as u32..(range.end / page_bytes) as u32;
        if let Some(page) = pages.clone().find(|page| !self.is_erased(array, *page)) {
            return Err(Refusal::NotErased { offset_bytes: u64::from(page) * page_bytes });
        }
        for page in pages {
            let (block, at) = self.split(page);
            array.adopt(block);
            if self.in_order {
                array.program(block, at, 1, page);
            } else {
                let count = self.pages_per_block as usize;
                self.programmed.entry(block.0).or_insert_with(|| vec![false; count])[at as usize] = true;
                array.count_programs(1);
            }
            cost.pages += 1;
        }
        Ok(())
    }

    /// Erases the blocks within the range.
    ///
    /// # Errors
    /// [`Refusal::WornOut`].
    pub fn erase(&mut self, array: &mut Array, range: Range<u64>, cost: &mut Cost) -> Result<(), Refusal> {
        let block_bytes = u64::from(self.page_bytes) * u64::from(self.pages_per_block);
        for block in range.start.div_ceil(block_bytes)..range.end / block_bytes {
            array.erase_in_place(BlockNo(block as u32))?;
            self.programmed.remove(&(block as u32));
            cost.erases += 1;
        }
        Ok(())
    }

    /// Checks that this can be a later state of `twin`, a new chip. Returns a description of the first error.
    pub fn check(&self, twin: &Raw, blocks: u32) -> Result<(), String> {
        let same = (self.page_bytes, self.pages_per_block, self.in_order)
            == (twin.page_bytes, twin.pages_per_block, twin.in_order);
        if !same {
            return Err("the chip differs from the profile".into());
        }
        let wrong = |(block, pages): &(&u32, &Vec<bool>)| {
            **block >= blocks || pages.len() != self.pages_per_block as usize
        };
        match self.programmed.iter().find(wrong) {
            Some((block, _)) => Err(format!(
                "block {block} of the chip does not exist or has a wrong number of \
                pages"
            )),
            None => Ok(()),
        }
    }

    /// Returns the physical place of a page, if it is programmed.
    pub fn location(&self, array: &Array, page: u32) -> Option<(BlockNo, u32)> {
        let (block, at) = self.split(page);
        let programmed = match self.in_order {
            true => array.tag(block, at) == page,
            false => self.programmed.get(&block.0).is_some_and(|pages| pages[at as usize]),
        };
        programmed.then_some((block, at))
    }

    fn is_erased(&self, array: &Array, page: u32) -> bool {
        let (block, at) = self.split(page);
        match self.in_order {
            true => at >= array.next_page(block),
            false => self.location(array, page).is_none(),
        }
    }

    fn split(&self, page: u32) -> (BlockNo, u32) {
        (BlockNo(page / self.pages_per_block), page % self.pages_per_block)
    }
}
