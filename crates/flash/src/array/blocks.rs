//! Blocks that were ever touched, by number.
//!
//! Blocks are handed out in the order of their numbers, and neighbours are used together. Leaves keep them
//! together in memory, which saves a cache miss of the processor per block.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Blocks per leaf. A leaf takes memory once one of its blocks is touched, so it is small.
const LEAF: u32 = 16;

/// The state of one block.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Block {
    pub erases: u32,
    /// Pages below this can no longer be programmed.
    pub next: u32,
    /// Tags of the pages below `next`.
    pub tags: Vec<u32>,
}

/// A map from numbers to blocks.
#[derive(Debug, Clone, Default)]
pub struct Blocks {
    leaves: FxHashMap<u32, Box<[Option<Block>; LEAF as usize]>>,
}

impl Blocks {
    pub fn get(&self, number: u32) -> Option<&Block> {
        self.leaves.get(&(number / LEAF))?[(number % LEAF) as usize].as_ref()
    }

    pub fn get_mut(&mut self, number: u32) -> Option<&mut Block> {
        self.leaves.get_mut(&(number / LEAF))?[(number % LEAF) as usize].as_mut()
    }

    /// Returns the block of this number, and marks it as touched.
    pub fn touch(&mut self, number: u32) -> &mut Block {
        let leaf = self.leaves.entry(number / LEAF).or_default();
        leaf[(number % LEAF) as usize].get_or_insert_default()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Block)> {
        self.leaves.iter().flat_map(|(leaf, blocks)| {
            let numbered = (0..LEAF).zip(blocks.iter());
            numbered.filter_map(move |(n, block)| Some((leaf * LEAF + n, block.as_ref()?)))
        })
    }
}

impl Serialize for Blocks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Blocks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Blocks, D::Error> {
        let mut blocks = Blocks::default();
        for (number, block) in BTreeMap::<u32, Block>::deserialize(deserializer)? {
            *blocks.touch(number) = block;
        }
        Ok(blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_by_number_and_survive_a_file() {
        let mut blocks = Blocks::default();
        for number in [0, 15, 16, 1000, u32::MAX] {
            blocks.touch(number).next = number;
        }
        assert!(blocks.get(1).is_none() && blocks.get_mut(1001).is_none());
        blocks.get_mut(16).expect("touched").tags.push(7);
        let text = serde_json::to_string(&blocks).expect("figures");
        let again: Blocks = serde_json::from_str(&text).expect("its own text");
        let mut found: Vec<(u32, u32)> = again.iter().map(|(number, block)| (number, block.next)).collect();
        found.sort_unstable();
        assert_eq!(found, [0, 15, 16, 1000, u32::MAX].map(|number| (number, number)));
        assert_eq!(again.get(16).expect("touched").tags, [7]);
    }
}
