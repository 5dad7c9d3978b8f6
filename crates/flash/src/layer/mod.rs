//! Translation layers between the host's addresses and the flash.
//!
//! A layer turns each command into operations of the [`Array`] and returns their [`Cost`]. It has no notion
//! of time: the model prices the cost.

mod hybrid;
mod mapping_table;
mod page_map;
mod raw;
mod victim_index;

use std::{collections::HashSet, ops::Range};

use serde::{Deserialize, Serialize};

use crate::{
    array::{Array, BlockNo},
    condition::Condition,
    op::Refusal,
    profile::{self, Profile},
};
use hybrid::Hybrid;
use page_map::PageMap;
use raw::Raw;

/// Work of the card for a command, besides the transfer over the link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Pages programmed for the data of the command.
    pub pages: u64,
    /// The part of them in the FAT area.
    pub fat_pages: u64,
    /// Pages read because the command covers them only partly.
    pub filled_pages: u64,
    /// Pages copied by merges and garbage collection: each a read and a program.
    pub copied_pages: u64,
    /// Blocks erased.
    pub erases: u64,
    /// Log blocks that replaced their data block (switches).
    pub switch_merges: u64,
    /// Log blocks first completed from their data block (partial merges).
    pub partial_merges: u64,
    /// Log blocks merged with their data block into a third (full merges).
    pub full_merges: u64,
    /// Blocks emptied by garbage collection.
    pub collections: u64,
    /// Writes to the buffer of small writes.
    pub small_writes: u64,
}

/// The place of a write beside the previous one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It starts at the end of the previous write.
    Sequential,
    /// It starts anywhere else.
    Random,
}

/// A translation layer, with the FAT area in front of it if there is one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Layer {
    page_bytes: u32,
    fat: Option<PageMap>,
    main: Main,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
enum Main {
    Hybrid(Box<Hybrid>),
    Page(PageMap),
    Raw(Raw),
}

impl Layer {
    /// Makes the layer of a card of this profile, over an array made in the same condition.
    pub fn new(profile: &Profile, condition: Condition) -> Layer {
        let page_bytes = profile.flash.page_bytes;
        let page = |bytes: u64| bytes.div_ceil(u64::from(page_bytes)) as u32;
        let pages_per_block = profile.pages_per_block();
        let fat = profile.fat_area.as_ref().map(|fat| {
            let pages = page(fat.start_bytes)..page(fat.start_bytes + fat.length_bytes);
            let blocks = pages.len() as u32 / pages_per_block;
            PageMap::new(pages, pages_per_block, blocks + 2, 0, condition)
        });
        let all = 0..profile.data_blocks() * pages_per_block;
        let main = match profile.layer {
            profile::Layer::Hybrid { .. } => {
                let mut hybrid = Hybrid::new(profile, condition);
                if let Some(fat) = &fat {
                    hybrid.exclude(fat.pages());
                }
                Main::Hybrid(Box::new(hybrid))
            }
            profile::Layer::Page { reserve_blocks } => {
                let fat_blocks = fat.as_ref().map_or(0, |fat| fat.pages().len() as u32 / pages_per_block + 2);
                let good = profile.data_blocks() + profile.flash.spare_blocks - profile.flash.bad_blocks;
                let limit = good - fat_blocks - reserve_blocks;
                let mut map = PageMap::new(all, pages_per_block, limit, reserve_blocks, condition);
                if let Some(fat) = &fat {
                    map.exclude(fat.pages());
                }
                Main::Page(map)
            }
            profile::Layer::Nor => Main::Raw(Raw::nor(profile)),
            profile::Layer::Nand => Main::Raw(Raw::nand(profile)),
        };
        Layer { page_bytes, fat, main }
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// [`Refusal::WornOut`]; on a bare chip [`Refusal::NotErased`] and [`Refusal::Unaligned`].
    pub fn write(
        &mut self,
        array: &mut Array,
        range: Range<u64>,
        access: Access,
        cost: &mut Cost,
    ) -> Result<(), Refusal> {
        let page_bytes = u64::from(self.page_bytes);
        for (in_fat, part) in self.parts(range) {
            if in_fat {
                let fat = self.fat.as_mut().expect("only then is a part in it");
                let before = cost.pages;
                fat.write_bytes(array, part, page_bytes, cost)?;
                cost.fat_pages += cost.pages - before;
            } else {
                match &mut self.main {
                    Main::Hybrid(hybrid) => hybrid.write(array, part, access, cost)?,
                    Main::Page(map) => map.write_bytes(array, part, page_bytes, cost)?,
                    Main::Raw(raw) => raw.write(array, part, cost)?,
                }
            }
        }
        Ok(())
    }

    /// Forgets the pages that lie within the range; on a bare chip, erases its blocks.
    ///
    /// # Errors
    /// [`Refusal::WornOut`] on a bare chip.
    pub fn discard(&mut self, array: &mut Array, range: Range<u64>, cost: &mut Cost) -> Result<(), Refusal> {
        let page_bytes = u64::from(self.page_bytes);
        for (in_fat, part) in self.parts(range) {
            let pages = part.start.div_ceil(page_bytes) as u32..(part.end / page_bytes) as u32;
            match (&mut self.main, &mut self.fat) {
                (_, Some(fat)) if in_fat => fat.trim(pages),
                (Main::Hybrid(hybrid), _) => hybrid.trim(array, pages, cost),
                (Main::Page(map), _) => map.trim(pages),
                (Main::Raw(raw), _) => raw.erase(array, part, cost)?,
            }
        }
        Ok(())
    }

    /// Returns the physical place of a logical page, if it has one.
    pub fn location(&self, array: &Array, page: u32) -> Option<(BlockNo, u32)> {
        if let Some(fat) = self.fat.as_ref().filter(|fat| fat.pages().contains(&page)) {
            return fat.location(array, page);
        }
        match &self.main {
            Main::Hybrid(hybrid) => hybrid.location(array, page),
            Main::Page(map) => map.location(array, page),
            Main::Raw(raw) => raw.location(array, page),
        }
    }

    /// Checks that this can be a later state of the layer of a new card of this profile, over this array,
    /// because it may come from an untrusted file. Returns a description of the first error.
    pub(crate) fn check(&self, profile: &Profile, condition: Condition, array: &Array) -> Result<(), String> {
        let twin = Layer::new(profile, condition);
        let mut held = Vec::new();
        let mut others = 0..0;
        match (&self.fat, &twin.fat) {
            (Some(fat), Some(twin)) => {
                fat.check(twin, &(0..0), array, &mut held)?;
                others = twin.pages();
            }
            (None, None) => {}
            _ => return Err("the area at the front differs from the profile".into()),
        }
        match (&self.main, &twin.main) {
            (Main::Hybrid(own), Main::Hybrid(twin)) => own.check(twin, &others, array, &mut held)?,
            (Main::Page(own), Main::Page(twin)) => own.check(twin, &others, array, &mut held)?,
            (Main::Raw(own), Main::Raw(twin)) => return own.check(twin, profile.data_blocks()),
            _ => return Err("the kind of the layer differs from the profile".into()),
        }
        if self.page_bytes != twin.page_bytes {
            return Err("the page size of the layer differs from that of the flash".into());
        }
        held.extend(array.waiting());
        let count = held.len();
        if held.into_iter().collect::<HashSet<BlockNo>>().len() != count {
            return Err("a block is held twice, or held and free".into());
        }
        let all = u64::from(self.held_blocks())
            + u64::from(array.free_blocks())
            + u64::from(array.retired_blocks());
        let wanted = u64::from(profile.data_blocks() + profile.flash.spare_blocks - profile.flash.bad_blocks);
        if all != wanted {
            return Err(format!("{all} blocks are held, free or worn out, but the profile has {wanted}"));
        }
        Ok(())
    }

    /// Returns the array's blocks that the layer holds. All others are free or retired.
    pub fn held_blocks(&self) -> u32 {
        let main = match &self.main {
            Main::Hybrid(hybrid) => hybrid.held_blocks(),
            Main::Page(map) => map.held_blocks(),
            Main::Raw(_) => 0,
        };
        main + self.fat.as_ref().map_or(0, PageMap::held_blocks)
    }

    /// Returns the open allocation units, the last written one at the end.
    pub fn open_units(&self) -> Vec<u32> {
        match &self.main {
            Main::Hybrid(hybrid) => hybrid.open_units(),
            _ => Vec::new(),
        }
    }

    /// Applies a power cut, with the loss of mapping of a real card: closes the open units.
    ///
    /// # Errors
    /// [`Refusal::WornOut`].
    pub fn recover(&mut self, array: &mut Array, cost: &mut Cost) -> Result<(), Refusal> {
        match &mut self.main {
            Main::Hybrid(hybrid) => hybrid.close_all(array, cost),
            _ => Ok(()),
        }
    }

    /// Loses the mapping of the data written last, as a defective card does: the logs of open units, or the
    /// block in progress. Returns the logical pages that were there.
    pub(crate) fn lose_mapping(&mut self, array: &mut Array, cost: &mut Cost) -> Vec<u32> {
        match &mut self.main {
            Main::Hybrid(hybrid) => hybrid.lose_logs(array, cost),
            Main::Page(map) => map.lose_head(array),
            // The host keeps the mapping of a bare chip.
            Main::Raw(_) => Vec::new(),
        }
    }

    /// Splits a range into its parts within and outside the FAT area, in order.
    fn parts(&self, range: Range<u64>) -> impl Iterator<Item = (bool, Range<u64>)> + use<> {
        let page_bytes = u64::from(self.page_bytes);
        let fat = self.fat.as_ref().map_or(0..0, |fat| {
            u64::from(fat.pages().start) * page_bytes..u64::from(fat.pages().end) * page_bytes
        });
        let cut = |from: u64, to: u64| range.start.max(from)..range.end.min(to);
        let parts =
            [(false, cut(0, fat.start)), (true, cut(fat.start, fat.end)), (false, cut(fat.end, u64::MAX))];
        parts.into_iter().filter(|(_, part)| part.start < part.end)
    }
}
