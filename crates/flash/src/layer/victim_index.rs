//! The blocks of an area, ordered by their number of valid pages: garbage collection takes the emptiest.
//!
//! Most blocks lose pages many times between two queries, so a query first updates the order.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::array::BlockNo;

/// Blocks and their valid pages.
#[derive(Debug, Clone, Default)]
pub struct VictimIndex {
    blocks: FxHashMap<u32, Block>,
    /// Valid pages and number of each block, as of the last update of the order.
    order: BTreeSet<(u32, u32)>,
    /// Blocks whose number of valid pages changed since the last update.
    changed: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    valid: u32,
    in_order_as: u32,
    is_changed: bool,
}

impl VictimIndex {
    /// Number of blocks.
    pub fn len(&self) -> u32 {
        self.blocks.len() as u32
    }

    pub fn contains(&self, block: BlockNo) -> bool {
        self.blocks.contains_key(&block.0)
    }

    /// Returns each block with its number of valid pages.
    pub fn iter(&self) -> impl Iterator<Item = (BlockNo, u32)> {
        self.blocks.iter().map(|(number, block)| (BlockNo(*number), block.valid))
    }

    /// Adds a block with `valid` valid pages.
    pub fn insert(&mut self, block: BlockNo, valid: u32) {
        self.order.insert((valid, block.0));
        self.blocks.insert(block.0, Block { valid, in_order_as: valid, is_changed: false });
    }

    /// Removes a block.
    pub fn remove(&mut self, block: BlockNo) {
        let gone = self.blocks.remove(&block.0).expect("only blocks that are held are given away");
        self.order.remove(&(gone.in_order_as, block.0));
        self.changed.retain(|changed| *changed != block.0);
    }

    /// Counts newly programmed pages of a block.
    pub fn gain(&mut self, block: BlockNo, pages: u32) {
        self.change(block, |valid| valid + pages);
    }

    /// Counts pages of a block that have become invalid.
    pub fn lose(&mut self, block: BlockNo, pages: u32) {
        self.change(block, |valid| valid - pages);
    }

    /// Returns the block with the fewest valid pages, and their number. Among equals it returns the lowest
    /// number, since the same requests must have the same cost.
    pub fn emptiest(&mut self, except: Option<BlockNo>) -> Option<(BlockNo, u32)> {
        for number in self.changed.drain(..) {
            let block = self.blocks.get_mut(&number).expect("a changed block is held");
            self.order.remove(&(block.in_order_as, number));
            self.order.insert((block.valid, number));
            (block.in_order_as, block.is_changed) = (block.valid, false);
        }
        let mut wanted = self.order.iter().map(|(valid, number)| (BlockNo(*number), *valid));
        wanted.find(|(block, _)| Some(*block) != except)
    }

    fn change(&mut self, block: BlockNo, change: impl FnOnce(u32) -> u32) {
        let held = self.blocks.get_mut(&block.0).expect("a block with a valid page is held");
        if !std::mem::replace(&mut held.is_changed, true) {
            self.changed.push(block.0);
        }
        held.valid = change(held.valid);
    }
}

/// Serialised as a map from numbers to valid pages.
impl Serialize for VictimIndex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(block, valid)| (block.0, valid)))
    }
}

impl<'de> Deserialize<'de> for VictimIndex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<VictimIndex, D::Error> {
        let mut held = VictimIndex::default();
        for (number, valid) in FxHashMap::<u32, u32>::deserialize(deserializer)? {
            held.insert(BlockNo(number), valid);
        }
        Ok(held)
    }
}

#[cfg(test)]
mod tests {
    use block::Rng;

    use super::*;

    /// Computes the answer of `emptiest` by linear search.
    fn by_search(held: &VictimIndex, except: Option<BlockNo>) -> Option<(BlockNo, u32)> {
        let others = held.iter().filter(|(block, _)| Some(*block) != except);
        others.min_by_key(|(block, valid)| (*valid, *block))
    }

    #[test]
    fn the_index_gives_the_same_block_as_a_search() {
        let mut held = VictimIndex::default();
        assert_eq!(held.emptiest(None), None);
        let mut rng = Rng::new(3);
        for round in 0..20_000 {
            let block = BlockNo(rng.below(60) as u32);
            let valid = held.iter().find(|(other, _)| *other == block).map(|(_, valid)| valid);
            match (valid, rng.below(40)) {
                (None, _) => held.insert(block, rng.below(30) as u32),
                (Some(_), 0) => held.remove(block),
                (Some(valid), 1..20) if valid > 0 => held.lose(block, 1 + rng.below(u64::from(valid)) as u32),
                _ => held.gain(block, 1),
            }
            if round % 7 == 0 {
                let except = rng.chance(0.5).then(|| BlockNo(rng.below(60) as u32));
                let wanted = by_search(&held, except);
                assert_eq!(held.emptiest(except), wanted);
            }
            assert!(held.changed.len() <= 60);
        }
        let text = serde_json::to_string(&held).expect("figures");
        let mut again: VictimIndex = serde_json::from_str(&text).expect("its own text");
        assert_eq!(again.emptiest(None), held.emptiest(None));
        assert_eq!(again.len(), held.len());
    }
}
