//! Checks of a layer's state from an untrusted file.

use std::{collections::HashSet, ops::Range};

use super::{BUFFER_BLOCKS, Data, Hybrid, Log, Unit};
use crate::array::{Array, BlockNo, NOTHING};

impl Hybrid {
    /// Checks that this can be a later state of `twin`, the layer of a new card, because it may come from an
    /// untrusted file. `others` are pages that were left to another area. Adds the blocks that it holds,
    /// except unchanged ones, to `held`. Returns a description of the first error.
    pub fn check(
        &self,
        twin: &Hybrid,
        others: &Range<u32>,
        array: &Array,
        held: &mut Vec<BlockNo>,
    ) -> Result<(), String> {
        let fixed = |layer: &Hybrid| {
            (
                (layer.page_bytes, layer.pages_per_block, layer.blocks_per_unit, layer.chunks),
                (layer.open_limit, layer.random_limit, layer.small_write_bytes, layer.preconditioned),
                (layer.limits_by_size.clone(), layer.granule_pages),
            )
        };
        if fixed(self) != fixed(twin) {
            return Err("the layer differs from the profile".into());
        }
        for (&chunk, data) in &self.data {
            if chunk >= self.chunks {
                return Err(format!("chunk {chunk} of {}", self.chunks));
            }
            if let Data::In(block) = data {
                if !array.is_handed_out(*block) || !self.is_in_order(array, *block, chunk) {
                    return Err(format!(
                        "block {} is listed for chunk {chunk} but does not hold it",
                        block.0
                    ));
                }
                held.push(*block);
            }
        }
        let elsewhere = others.start / self.pages_per_block..others.end / self.pages_per_block;
        if elsewhere.clone().any(|chunk| !matches!(self.data.get(&chunk), Some(Data::Nothing))) {
            return Err("the layer holds data of another area".into());
        }
        let homeless =
            |block: &u32| self.preconditioned && *block < self.chunks && !self.data.contains_key(block);
        if let Some(chunk) = array.touched().find(homeless) {
            return Err(format!("chunk {chunk} was erased, but the layer still maps it"));
        }
        self.check_open(&elsewhere, array, held)?;
        self.buffer.check(&twin.buffer, &(0..0), array, held)?;
        let room = ((BUFFER_BLOCKS - 2) * self.pages_per_block) as usize;
        let paired = |(since, page): (&u64, &u32)| {
            *since <= self.arrivals && self.buffered_since.get(page) == Some(since)
        };
        let fine = self.buffered.iter().all(paired)
            && self.buffered.len() == self.buffered_since.len()
            && self.buffered.len() <= room
            && self.arrivals < u64::MAX >> 1
            && self.buffered.values().all(|page| self.buffer.location(array, *page).is_some())
            && self.buffer.mapped().count() == self.buffered.len();
        if fine { Ok(()) } else { Err("the buffer has contradictory lists of pages".into()) }
    }

    fn check_open(
        &self,
        elsewhere: &Range<u32>,
        array: &Array,
        held: &mut Vec<BlockNo>,
    ) -> Result<(), String> {
        let mut numbers = HashSet::new();
        let mut out_of_order = 0;
        for Unit { number, log } in &self.open {
            let fail = |what: &str| Err(format!("open unit {number} {what}"));
            if *number > (self.chunks - 1) / self.blocks_per_unit || !numbers.insert(*number) {
                return fail("does not exist");
            }
            let Some(Log { chunk, block, places }) = log else { continue };
            if *chunk >= self.chunks || chunk / self.blocks_per_unit != *number || elsewhere.contains(chunk) {
                return fail("has a log for a chunk outside it");
            }
            if !array.is_handed_out(*block) {
                return fail("has a log in a block that was never allocated");
            }
            let (written, first) = (array.next_page(*block), chunk * self.pages_per_block);
            let own = |at: u32| {
                let tag = array.tag(*block, at);
                tag == NOTHING || (first..first + self.pages_per_block).contains(&tag)
            };
            let fine = match places {
                None => written < self.pages_per_block && self.is_in_order(array, *block, *chunk),
                Some(places) => {
                    out_of_order += 1;
                    let there = |(at, place): (&u32, &u32)| {
                        *at < self.pages_per_block
                            && *place < written
                            && array.tag(*block, *place) == first + at
                    };
                    (0..written).all(own) && places.iter().all(there)
                }
            };
            if !fine {
                return fail("has a log that contradicts its pages");
            }
            held.push(*block);
        }
        match self.open.len() <= self.open_limit && out_of_order <= self.random_limit {
            true => Ok(()),
            false => Err(format!("{} units are open", self.open.len())),
        }
    }

    /// Returns true if every page of a block is at its own position or without data.
    fn is_in_order(&self, array: &Array, block: BlockNo, chunk: u32) -> bool {
        (0..array.next_page(block).min(self.pages_per_block))
            .all(|at| [NOTHING, chunk * self.pages_per_block + at].contains(&array.tag(block, at)))
    }
}
