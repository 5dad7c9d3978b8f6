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
}
