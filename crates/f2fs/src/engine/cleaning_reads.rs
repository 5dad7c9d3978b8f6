//! Reads of the blocks that cleaning moves: adjacent blocks together, because a command on a card costs more than a block.

use super::Engine;
use crate::{
    Place,
    format::{BLOCKS_PER_SEGMENT, bits},
    segments::Segment,
    units::BlockAddr,
};

/// Maximum number of adjacent blocks that are read at once: 128 KiB with blocks of 4 KiB, as many as are moved between two
/// turns of readers.
const RUN_BLOCKS: usize = 32;

/// Adjacent blocks that were read at once.
///
/// *Invariant*: they are as on the device, because only cleaning changes the volume as long as they are kept, and it
/// overwrites no valid block.
#[derive(Default)]
pub(super) struct ReadAhead {
    start: BlockAddr,
    bytes: Vec<u8>,
    /// End of a run that could not be read as a whole.
    failed_end: BlockAddr,
}

impl ReadAhead {
    /// Returns a block if it was read.
    fn get(&self, addr: BlockAddr, block_bytes: usize) -> Option<&[u8]> {
        let block = addr.0.checked_sub(self.start.0).and_then(|block| usize::try_from(block).ok())?;
        let at = block.checked_mul(block_bytes)?;
        self.bytes.get(at..at.checked_add(block_bytes)?)
    }
}

impl Engine {
    /// Returns the content of a valid block of a segment, read together with the valid blocks behind it, or `None` if it is
    /// better read alone: if it has no neighbour, or if its run could not be read. Then only the bad block fails, and a bad
    /// sector, which may take seconds, is not read once for each neighbour.
    pub(super) fn read_to_move<'a>(
        &self,
        ahead: &'a mut ReadAhead,
        segment: &Segment,
        addr: BlockAddr,
        offset: u16,
    ) -> Option<&'a [u8]> {
        let block_bytes = self.geometry().block_size.bytes();
        if ahead.get(addr, block_bytes).is_none() && addr >= ahead.failed_end {
            let is_valid = |offset: &u32| bits::msb(&segment.map, *offset as usize);
            let rest = u32::from(offset)..BLOCKS_PER_SEGMENT;
            let blocks = rest.take_while(is_valid).take(RUN_BLOCKS).count();
            if blocks < 2 {
                return None;
            }
            (ahead.start, ahead.bytes) = (addr, vec![0; blocks * block_bytes]);
            if self.segments().read_blocks(addr, Place::Block(addr), &mut ahead.bytes).is_err() {
                ahead.bytes.clear();
                ahead.failed_end = BlockAddr(addr.0 + blocks as u32);
            }
        }
        ahead.get(addr, block_bytes)
    }
}
