//! New data of files, straight from where it is to the device: past the pending run of its log, where a copy of it would
//! wait for neighbours ([`Options::straight_bytes`](super::Options)).
//!
//! *Invariant*: it leaves behind what its log gave out before.

use super::{Volume, map_write::Slot};
use crate::{
    Result,
    format::{sit::SegmentType, summary::Owner},
    units::{BlockAddr, Ino},
};

impl Volume {
    /// How many whole blocks of `data`, which goes to a file from `slot` on, may leave straight: those that get a place for
    /// the first time, so that nothing in memory is about them. None where they are few: what is short may change again
    /// soon, which is cheapest in the run.
    pub(super) fn straight_blocks(&self, ino: Ino, slot: Slot, block: u64, data: &[u8]) -> Result<usize> {
        let Some(least) = self.options.straight_bytes.filter(|least| data.len() >= *least) else {
            return Ok(0);
        };
        if self.logs.is_stuck() {
            return Ok(0);
        }
        let log = self.geometry.block_size.log();
        let mut count = slot.left.min(data.len() >> log);
        if let Some(page) = self.pages.blocks_of(ino, block, block + count as u64).first() {
            count = (page - block) as usize;
        }
        let node = self.node(slot.nid)?;
        let is_new = |addr: &BlockAddr| matches!(*addr, BlockAddr::NULL | BlockAddr::NEW);
        let count = node.addrs(slot.index..slot.index + count).take_while(is_new).count();
        Ok(if count << log < least { 0 } else { count })
    }

    /// Gives [such blocks](Self::straight_blocks) neighbouring places in a log and writes them. Says how many of them had
    /// places there, and how many blocks the file has gained.
    pub(super) fn write_straight(
        &mut self,
        ino: Ino,
        slot: Slot,
        data: &[u8],
        kind: SegmentType,
    ) -> Result<(usize, u64)> {
        let log = self.geometry.block_size.log();
        let version = self.nat.get(&self.io, slot.nid)?.version;
        // Everything that may fail comes before a block is given out.
        self.drop_extent(ino)?;
        self.node_mut(slot.nid)?;
        let owner = |n: usize| Owner { nid: slot.nid, version, offset: (slot.index + n) as u16 };
        let first = self.allocate(kind, owner(0))?;
        let (mut count, mut next) = (1, first.next);
        while count < data.len() >> log && next.0 == first.addr.0 + count as u32 {
            // Who wants the next one gets the error.
            let Ok(place) = self.allocate(kind, owner(count)) else { break };
            (count, next) = (count + 1, place.next);
        }
        let result = self.logs.write_through(&self.io, kind, first.addr, &data[..count << log]);
        self.pushed(result)?;
        let node = self.node_mut(slot.nid)?;
        let mut gained = 0;
        for n in 0..count {
            gained += u64::from(node.addr(slot.index + n) == BlockAddr::NULL);
            node.set_addr(slot.index + n, BlockAddr(first.addr.0 + n as u32));
        }
        Ok((count, gained))
    }
}
