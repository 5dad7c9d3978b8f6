//! Distribution of changed entries between a checkpoint's journal and the table blocks, for both NAT and SIT.

use std::collections::BTreeMap;

use super::io::Io;
use crate::{Place, Result, units::BlockAddr};

/// Changed entries, divided between journal and table.
pub(crate) struct Split<K> {
    /// Entries for the journal, in table order.
    pub journal: Vec<K>,
    /// Entries for the table, by block.
    pub blocks: BTreeMap<u32, Vec<K>>,
}

/// Divides changed entries, each given with its table block. If all fit, all go to the journal. Otherwise the
/// table blocks with the fewest changes fill the journal, which leaves the fewest blocks to write (Linux,
/// `f2fs_flush_nat_entries`).
pub(crate) fn split<K: Ord + Copy>(entries: impl Iterator<Item = (u32, K)>, room: usize) -> Split<K> {
    let mut blocks: BTreeMap<u32, Vec<K>> = BTreeMap::new();
    for (block, key) in entries {
        blocks.entry(block).or_default().push(key);
    }
    let mut smallest: Vec<(usize, u32)> = blocks.iter().map(|(block, keys)| (keys.len(), *block)).collect();
    smallest.sort_unstable();
    let mut journal = Vec::new();
    for (count, block) in smallest {
        if journal.len() + count > room {
            break;
        }
        journal.extend(blocks.remove(&block).expect("it was listed"));
    }
    journal.sort_unstable();
    blocks.values_mut().for_each(|keys| keys.sort_unstable());
    Split { journal, blocks }
}

/// Table blocks in ascending order of the addresses that `addr` gives them. Adjacent blocks can then be
/// written together, and a card need not switch between the two copies.
pub(crate) fn upwards<K>(
    blocks: &BTreeMap<u32, Vec<K>>,
    addr: impl Fn(u32) -> BlockAddr,
) -> impl Iterator<Item = (BlockAddr, u32, &[K])> {
    let mut order: Vec<_> = blocks.iter().map(|(index, keys)| (addr(*index), *index, &keys[..])).collect();
    order.sort_unstable_by_key(|(addr, ..)| *addr);
    order.into_iter()
}

/// The part of a table that was written for a checkpoint which is not current yet.
pub(crate) struct Prepared<K, E> {
    /// Entries for the journal, in table order.
    pub journal: Vec<(K, E)>,
    /// The current copy of each block with that checkpoint: a set bit means the second.
    pub bitmap: Vec<u8>,
}

/// Writer for table blocks that joins adjacent blocks into one request.
pub(crate) struct TableRun<'a> {
    io: &'a Io,
    start: BlockAddr,
    at: Place,
    bytes: Vec<u8>,
}

/// Maximum size of a request in bytes.
const RUN_BYTES: usize = 1 << 20;

impl<'a> TableRun<'a> {
    /// Creates an empty run.
    pub(crate) fn new(io: &'a Io) -> TableRun<'a> {
        TableRun { io, start: BlockAddr::NULL, at: Place::Volume, bytes: Vec::new() }
    }

    /// Adds a block. If it does not follow the run, the run is written first.
    pub(crate) fn push(&mut self, addr: BlockAddr, at: Place, block: &[u8]) -> Result<()> {
        let end = self.start.index() + self.bytes.len() / self.io.block_size().bytes();
        if self.bytes.is_empty() || end != addr.index() || self.bytes.len() >= RUN_BYTES {
            self.write()?;
            (self.start, self.at) = (addr, at);
        }
        self.bytes.extend_from_slice(block);
        Ok(())
    }

    /// Writes the remaining blocks.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.write()
    }

    fn write(&mut self) -> Result<()> {
        if !self.bytes.is_empty() {
            self.io.write(self.start, self.at, &self.bytes)?;
            self.bytes.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_that_fit_go_into_the_journal() {
        let all = split([(3, 30), (1, 11), (1, 10)].into_iter(), 3);
        assert_eq!(all.journal, [10, 11, 30]);
        assert!(all.blocks.is_empty());
    }

    #[test]
    fn blocks_with_few_changes_fill_the_journal_first() {
        let mixed = split([(1, 10), (1, 11), (1, 12), (2, 20), (3, 30), (3, 31)].into_iter(), 3);
        assert_eq!(mixed.journal, [20, 30, 31]);
        assert_eq!(mixed.blocks, BTreeMap::from([(1, vec![10, 11, 12])]));
    }

    #[test]
    fn blocks_are_written_copy_by_copy() {
        let blocks = BTreeMap::from([1, 2, 3, 4].map(|index| (index, vec![10 * index])));
        let addr = |index| BlockAddr(index + if index % 2 == 0 { 100 } else { 0 });
        let order: Vec<_> =
            upwards(&blocks, addr).map(|(addr, index, keys)| (addr.0, index, keys[0])).collect();
        assert_eq!(order, [(1, 1, 10), (3, 3, 30), (102, 2, 20), (104, 4, 40)]);
    }
}
