//! Direct writes of new file data: from the caller's buffer to the device, without a copy in the pending run
//! of a log ([`Options::write_through_bytes`](super::Options)).
//!
//! *Invariant*: the data is written after all blocks that its log allocated before.

use super::{Files, map_write::Slot};
use crate::{
    Result,
    format::{sit::SegmentType, summary::Owner},
    units::{BlockAddr, Ino},
};

impl Files {
    /// Number of whole blocks at the start of `data`, which begins at `slot`, that can be written directly:
    /// new blocks without a dirty page. Zero if they hold less than
    /// [`Options::write_through_bytes`](super::Options): a short write may soon be overwritten, which is cheapest
    /// in the pending run.
    pub(super) fn blocks_to_write_through(
        &self,
        ino: Ino,
        slot: Slot,
        block: u64,
        data: &[u8],
    ) -> Result<usize> {
        let Some(least) = self.options().write_through_bytes.filter(|least| data.len() >= *least) else {
            return Ok(0);
        };
        if self.segments().has_failed_writes() {
            return Ok(0);
        }
        let log = self.geometry().block_size.log();
        let mut count = slot.left.min(data.len() >> log);
        if let Some(page) = self.pages.blocks_of(ino, block, block + count as u64).first() {
            count = (page - block) as usize;
        }
        let node = self.nodes.node(slot.nid)?;
        let is_new = |addr: &BlockAddr| matches!(*addr, BlockAddr::NULL | BlockAddr::NEW);
        let count = node.addrs(slot.index..slot.index + count).take_while(is_new).count();
        Ok(if count << log < least { 0 } else { count })
    }

    /// Allocates consecutive blocks in a log for [such data](Self::blocks_to_write_through) and writes them. Returns
    /// the number of blocks written and the number of those that were holes before.
    pub(super) fn write_through_blocks(
        &mut self,
        ino: Ino,
        slot: Slot,
        block: u64,
        data: &[u8],
        kind: SegmentType,
    ) -> Result<(usize, u64)> {
        let version = self.nodes.version(slot.nid)?;
        // All steps that can fail come before the allocation.
        let stored = self.to_stored(ino, block, data)?;
        self.drop_extent(ino)?;
        self.nodes.node_mut(slot.nid)?;
        let owner = |n: usize| Owner { nid: slot.nid, version, offset: (slot.index + n) as u16 };
        let (first, count) = self.segments_mut().append_through(kind, owner, &stored)?;
        let node = self.nodes.node_mut(slot.nid)?;
        let mut gained = 0;
        for n in 0..count {
            gained += u64::from(node.addr(slot.index + n) == BlockAddr::NULL);
            node.set_addr(slot.index + n, BlockAddr(first.0 + n as u32));
        }
        Ok((count, gained))
    }
}
