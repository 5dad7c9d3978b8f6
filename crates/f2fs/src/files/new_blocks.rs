//! Runs of new file data: the node with its addresses, its version and the cipher are looked up once for a run. A long run
//! goes from the caller's buffer to the device, without a copy in the pending run of a log
//! ([`Options::write_through_bytes`](super::Options)); a short one may soon be overwritten, which is cheapest in the
//! pending run.
//!
//! *Invariant*: the data is written after all blocks that its log allocated before.

use super::{Files, map_write::Slot};
use crate::{
    Result,
    format::{sit::SegmentType, summary::Owner},
    units::{BlockAddr, Ino},
};

impl Files {
    /// Number of whole blocks at the start of `data`, which begins at `slot`, that are new and have no dirty page.
    pub(super) fn new_blocks(&self, ino: Ino, slot: Slot, block: u64, data: &[u8]) -> Result<usize> {
        let mut count = slot.left.min(data.len() >> self.geometry().block_size.log());
        if let Some(page) = self.pages.blocks_of(ino, block, block + count as u64).first() {
            count = (page - block) as usize;
        }
        let node = self.nodes.node(slot.nid)?;
        let is_new = |addr: &BlockAddr| matches!(*addr, BlockAddr::NULL | BlockAddr::NEW);
        Ok(node.addrs(slot.index..slot.index + count).take_while(is_new).count())
    }

    /// Writes [such blocks](Self::new_blocks) to a log, in as many runs as its free places form. Returns the number of blocks
    /// written, at least one, and the number of those that were holes before. An error behind the first run is left to the
    /// next call, which meets it again.
    pub(super) fn write_new_blocks(
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
        let log = self.geometry().block_size.log();
        let (mut written, mut gained) = (0, 0);
        while written << log < stored.len() {
            let begin = slot.index + written;
            let owner = |n: usize| Owner { nid: slot.nid, version, offset: (begin + n) as u16 };
            let (first, count) = match self.append_new(kind, owner, &stored[written << log..]) {
                Ok(run) => run,
                Err(error) if written == 0 => return Err(error),
                Err(_) => break,
            };
            let node = self.nodes.node_mut(slot.nid)?;
            for n in 0..count {
                gained += u64::from(node.addr(begin + n) == BlockAddr::NULL);
                node.set_addr(begin + n, BlockAddr(first.0 + n as u32));
            }
            written += count;
        }
        Ok((written, gained))
    }

    /// Writes a run of blocks to consecutive places of a log. Returns the first address and the number of blocks.
    fn append_new(
        &mut self,
        kind: SegmentType,
        owner: impl Fn(usize) -> Owner,
        stored: &[u8],
    ) -> Result<(BlockAddr, usize)> {
        let is_long = self.options().write_through_bytes.is_some_and(|least| stored.len() >= least);
        match is_long && !self.segments().has_failed_writes() {
            true => self.segments_mut().append_through(kind, owner, stored),
            false => self.segments_mut().append_run(kind, owner, stored),
        }
    }
}
