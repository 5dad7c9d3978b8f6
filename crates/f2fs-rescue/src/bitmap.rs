//! One bit for each block of a volume.

use f2fs::units::BlockAddr;

/// A map of blocks.
#[derive(Debug, Default)]
pub(crate) struct Bitmap(Vec<u64>);

impl Bitmap {
    /// Makes a map of this many clear bits.
    pub(crate) fn new(blocks: u64) -> Bitmap {
        Bitmap(vec![0; usize::try_from(blocks.div_ceil(64)).expect("a map fits into memory")])
    }

    /// Sets the bit of a block and returns its old value. Blocks past the map are ignored and count as clear.
    pub(crate) fn set(&mut self, addr: BlockAddr) -> bool {
        let Some(word) = self.0.get_mut(addr.index() / 64) else { return false };
        let bit = 1 << (addr.0 % 64);
        let was = *word & bit != 0;
        *word |= bit;
        was
    }

    /// Returns the bit of a block; false for blocks past the map.
    pub(crate) fn has(&self, addr: BlockAddr) -> bool {
        self.0.get(addr.index() / 64).is_some_and(|word| word >> (addr.0 % 64) & 1 != 0)
    }

    /// Returns the blocks whose bits are set, in order.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = BlockAddr> + '_ {
        let words = (0u32..).step_by(64).zip(&self.0).filter(|(_, word)| **word != 0);
        words.flat_map(|(first, word)| {
            (0..64).filter(move |bit| word >> bit & 1 != 0).map(move |bit| BlockAddr(first + bit))
        })
    }
}
