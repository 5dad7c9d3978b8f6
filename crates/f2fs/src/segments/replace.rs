//! New blocks for the layers above, each together with its content, and the release of the blocks that they replace.
//!
//! *Invariants*: the call that takes a block also gives its content to the log. A block is released after its
//! replacement has been taken. The SIT entry that the release changes is in memory before, so the replacement cannot end
//! half way because of the device.

use super::{Segments, allocate::Allocated};
use crate::{
    Error, Place, Result,
    format::{sit::SegmentType, summary::Owner},
    units::{BlockAddr, SegNo},
};

/// A block that gets a replacement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OldBlock {
    /// Its address; ignored if it is that of no block.
    pub(crate) addr: BlockAddr,
    /// The place that errors name.
    pub(crate) at: Place,
}

/// A block that [`Segments::release`] can release, whether or not the device works.
#[must_use = "the block stays valid until it is released"]
pub(crate) struct Replaced(OldBlock);

/// The part of a node in the chain of fsyncs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FsyncMark {
    /// An fsync marks the node: recovery takes it into account.
    Set,
    /// The node has no mark.
    Clear,
}

impl Segments {
    /// Gives a block a new place: takes the next block of a log for `owner`, adds `bytes` to the log, and releases the
    /// old block. Returns the new address.
    pub(crate) fn replace(
        &mut self,
        old: OldBlock,
        log: SegmentType,
        owner: Owner,
        bytes: &[u8],
    ) -> Result<BlockAddr> {
        let old = self.prepare_release(old)?;
        let addr = self.append(log, owner, bytes)?;
        self.release(old)?;
        Ok(addr)
    }

    /// As [`replace`](Self::replace), for a node. `seal` returns its content, given the address of the next node of the
    /// log, which is null if there is none.
    pub(crate) fn replace_node<'a>(
        &mut self,
        old: OldBlock,
        log: SegmentType,
        owner: Owner,
        mark: FsyncMark,
        seal: impl FnOnce(BlockAddr) -> &'a [u8],
    ) -> Result<BlockAddr> {
        let old = self.prepare_release(old)?;
        let block = self.allocate_node(log, owner, mark)?;
        let bytes = seal(block.next);
        let addr = self.push(log, block, bytes)?;
        self.release(old)?;
        Ok(addr)
    }

    /// Takes the next block of a log for `owner` and adds `bytes` to the log. Returns the address of the block.
    pub(crate) fn append(&mut self, log: SegmentType, owner: Owner, bytes: &[u8]) -> Result<BlockAddr> {
        let block = self.allocate(log, owner)?;
        self.push(log, block, bytes)
    }

    /// Takes consecutive blocks of a log and adds `bytes` to the log. `owner` returns the owner of each block. Returns the
    /// first address, and the number of blocks: at least one, and at most those that `bytes` holds.
    pub(crate) fn append_run(
        &mut self,
        log: SegmentType,
        owner: impl Fn(usize) -> Owner,
        bytes: &[u8],
    ) -> Result<(BlockAddr, usize)> {
        let (head, rest) = bytes.split_at(self.disk.geometry().block_size.bytes());
        let block = self.allocate(log, owner(0))?;
        let mut next = block.next;
        let first = self.push(log, block, head)?;
        let mut count = 1;
        for bytes in rest.chunks_exact(head.len()) {
            if next.0 != first.0 + count as u32 {
                break;
            }
            // An error is left to the next call, which meets it again.
            let Ok(block) = self.allocate(log, owner(count)) else { break };
            next = block.next;
            // No next call meets the failure of a write: the volume then refuses changes.
            self.push(log, block, bytes)?;
            count += 1;
        }
        Ok((first, count))
    }

    /// Takes consecutive blocks of a log and writes them from `bytes` past its pending run. `owner` returns the owner of
    /// each block. Returns the first address, and the number of blocks: at least one, and at most those that `bytes` holds.
    pub(crate) fn append_through(
        &mut self,
        log: SegmentType,
        owner: impl Fn(usize) -> Owner,
        bytes: &[u8],
    ) -> Result<(BlockAddr, usize)> {
        let block_log = self.disk.geometry().block_size.log();
        let mut run = self.allocate(log, owner(0))?;
        let mut count = 1;
        while count < bytes.len() >> block_log && run.next.0 == run.addr.0 + count as u32 {
            // An error is left to the next allocation, which meets it again.
            let Ok(block) = self.allocate(log, owner(count)) else { break };
            run.join(block);
            count += 1;
        }
        let first = run.written();
        self.dir_cache.forget(first, count);
        let result = self.logs.write_through(self.disk.io(), log, first, &bytes[..count << block_log]);
        self.pushed(result)?;
        Ok((first, count))
    }

    /// Adds the content of an allocated block to its log. Returns the address of the block.
    fn push(&mut self, log: SegmentType, block: Allocated, bytes: &[u8]) -> Result<BlockAddr> {
        let addr = block.written();
        self.dir_cache.forget(addr, 1);
        let result = self.logs.push(self.disk.io(), log, addr, bytes);
        self.pushed(result)?;
        Ok(addr)
    }

    /// Reads the SIT entry that releasing a block changes. Damage of the entry is no error, see [`release`](Self::release).
    pub(crate) fn prepare_release(&mut self, old: OldBlock) -> Result<Replaced> {
        if let Some(segment) = self.segment_to_release(old.addr) {
            device_error(self.sit.prepare_change(self.disk.io(), segment))?;
        }
        Ok(Replaced(old))
    }

    /// Releases a block after its replacement was taken. If the SIT is damaged, the block stays marked there for fsck,
    /// because the replacement has to take effect all the same.
    pub(crate) fn release(&mut self, Replaced(old): Replaced) -> Result<()> {
        if !old.addr.is_real() {
            return Ok(());
        }
        match self.release_block(old.addr, old.at) {
            Err(Error::Corrupt { .. }) => Ok(()),
            result => result,
        }
    }

    /// Returns an error if the device does not return the SIT entry of a block, which a later release of the block needs.
    pub(crate) fn check_release(&mut self, addr: BlockAddr) -> Result<()> {
        match self.segment_to_release(addr) {
            Some(segment) => device_error(self.sit.segment(self.disk.io(), segment).map(drop)),
            None => Ok(()),
        }
    }

    fn segment_to_release(&self, addr: BlockAddr) -> Option<SegNo> {
        let geometry = self.disk.geometry();
        (addr.is_real() && geometry.in_main(addr)).then(|| geometry.position(addr).0)
    }
}

/// Returns the error of a device, and no other error.
fn device_error(result: Result<()>) -> Result<()> {
    match result {
        Err(Error::Io { .. }) => result,
        _ => Ok(()),
    }
}
