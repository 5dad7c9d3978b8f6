//! Distribution of changed entries between a checkpoint's journal and the table blocks, for both NAT and SIT.

use std::{collections::BTreeMap, vec::IntoIter};

use super::io::Io;
use crate::{Place, Result, format::TableCopy, units::BlockAddr};

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

/// A table that is being written for a checkpoint. It can pause between any two blocks if nothing changes meanwhile.
pub(crate) struct TableWrite<K> {
    /// Entries for the journal, in table order.
    pub journal: Vec<K>,
    /// The blocks that are left, in the order of [`upwards`].
    pub blocks: IntoIter<TableBlock<K>>,
    /// The current copy of each block with the checkpoint: a set bit means the second.
    pub bitmap: Vec<u8>,
    /// The blocks that are not on the device yet.
    pub run: TableRun,
}

/// A block of a table with changed entries.
pub(crate) struct TableBlock<K> {
    /// Address of the copy that is written.
    pub addr: BlockAddr,
    /// Number of the block in the table.
    pub index: u32,
    /// The copy that is written.
    pub copy: TableCopy,
    /// The entries that have changed, in table order.
    pub keys: Vec<K>,
}

impl<K> TableWrite<K> {
    /// Lists the blocks to be written. `bitmap` has the current copies; `addr` gives the address of a copy.
    pub(crate) fn new(
        split: Split<K>,
        bitmap: &[u8],
        addr: impl Fn(u32, TableCopy) -> BlockAddr,
    ) -> TableWrite<K> {
        let block = |(index, keys)| {
            let copy = TableCopy::current(bitmap, index).other();
            TableBlock { addr: addr(index, copy), index, copy, keys }
        };
        let blocks = upwards(split.blocks.into_iter().map(block).collect());
        TableWrite {
            journal: split.journal,
            blocks: blocks.into_iter(),
            bitmap: bitmap.to_vec(),
            run: TableRun::default(),
        }
    }
}

/// Sorts table blocks by their addresses. Adjacent blocks can then be written together, and a card need not switch
/// between the two copies.
fn upwards<K>(mut blocks: Vec<TableBlock<K>>) -> Vec<TableBlock<K>> {
    blocks.sort_unstable_by_key(|block| block.addr);
    blocks
}

/// The part of a table that was written for a checkpoint which is not current yet.
pub(crate) struct Prepared<K, E> {
    /// Entries for the journal, in table order.
    pub journal: Vec<(K, E)>,
    /// The current copy of each block with that checkpoint: a set bit means the second.
    pub bitmap: Vec<u8>,
}

/// Adjacent table blocks that go to the device in one request.
pub(crate) struct TableRun {
    start: BlockAddr,
    at: Place,
    bytes: Vec<u8>,
}

/// Maximum size of a request in bytes.
const RUN_BYTES: usize = 1 << 20;

impl Default for TableRun {
    fn default() -> TableRun {
        TableRun { start: BlockAddr::NULL, at: Place::Volume, bytes: Vec::new() }
    }
}

impl TableRun {
    /// Adds a block. If it does not follow the run, the run is written first.
    pub(crate) fn push(&mut self, io: &Io, addr: BlockAddr, at: Place, block: &[u8]) -> Result<()> {
        let end = self.start.index() + self.bytes.len() / io.block_size().bytes();
        if self.bytes.is_empty() || end != addr.index() || self.bytes.len() >= RUN_BYTES {
            self.write(io)?;
            (self.start, self.at) = (addr, at);
        }
        self.bytes.extend_from_slice(block);
        Ok(())
    }

    /// Writes the blocks of the run, which is empty afterwards.
    pub(crate) fn write(&mut self, io: &Io) -> Result<()> {
        if !self.bytes.is_empty() {
            io.write(self.start, self.at, &self.bytes)?;
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
        // The first copies of the blocks 2 and 4 are current.
        let bitmap = [0b0101_0000];
        let addr = |index, copy| BlockAddr(index + if copy == TableCopy::Second { 100 } else { 0 });
        let write = TableWrite::new(Split { journal: Vec::new(), blocks }, &bitmap, addr);
        let order: Vec<_> =
            write.blocks.map(|block| (block.addr.0, block.index, block.keys[0], block.copy)).collect();
        let (first, second) = (TableCopy::First, TableCopy::Second);
        let wanted = [(1, 1, 10, first), (3, 3, 30, first), (102, 2, 20, second), (104, 4, 40, second)];
        assert_eq!(order, wanted);
    }
}
