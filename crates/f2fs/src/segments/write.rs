//! Blocks on their way from the logs to the device, and blocks that are given up.

use super::Segments;
use crate::{Error, Place, Result, disk::OnError, format::sit::SegmentType, units::BlockAddr};

impl Segments {
    /// Returns true if something waits for a device that does not take it.
    pub(crate) fn has_failed_writes(&self) -> bool {
        self.logs.has_failed_writes()
    }

    /// Sends the pending run of a log to the device.
    pub(crate) fn write_log(&mut self, kind: SegmentType) -> Result<()> {
        let result = self.logs.write(self.disk.io(), kind);
        self.stop_on_error(result)
    }

    /// Sends the pending runs of all logs to the device.
    pub(crate) fn write_logs(&mut self) -> Result<()> {
        let result = self.logs.write_all(self.disk.io());
        self.stop_on_error(result)
    }

    /// Handles the result of adding a block to a log: an error comes from writing the run before it.
    pub(super) fn pushed(&mut self, result: Result<()>) -> Result<()> {
        match self.stop_on_error(result) {
            // The run stays in memory. The next fsync or checkpoint returns the error if it still cannot be
            // written.
            Err(Error::Io { .. }) if self.disk.read_only_reason().is_none() => Ok(()),
            result => result,
        }
    }

    /// Overwrites consecutive blocks of the main area in place. If the pending run of a data log begins
    /// directly behind them, both are written together.
    pub(crate) fn write_in_place(&mut self, addr: BlockAddr, at: Place, bytes: &[u8]) -> Result<()> {
        let size = self.disk.geometry().block_size.bytes();
        let blocks = bytes.len() / size;
        self.check_range(addr, blocks, at)?;
        self.dir_cache.forget(addr, blocks);
        if self.logs.holds_any(addr, blocks) {
            for (n, block) in (0..).zip(bytes.chunks_exact(size)) {
                let addr = BlockAddr(addr.0 + n);
                match self.logs.pending_mut(addr) {
                    Some(pending) => pending.copy_from_slice(block),
                    None => self.disk.io().write(addr, at, block)?,
                }
            }
        } else if !self.logs.prepend(addr, bytes) {
            self.disk.io().write(addr, at, bytes)?;
        }
        // The write has to be flushed. A write that the device refuses is no change, however often it is
        // tried.
        self.changed = true;
        Ok(())
    }

    /// Marks a block of the main area as no longer in use.
    pub(crate) fn release_block(&mut self, addr: BlockAddr, at: Place) -> Result<()> {
        if !self.disk.geometry().in_main(addr) {
            return self
                .disk
                .io()
                .record_corruption(Err(Error::corrupt(at, format!("{addr} is not in the main area"))));
        }
        self.sit.release(self.disk.io(), addr, self.disk.mounted_seconds())?;
        self.turnover.freed_blocks += 1;
        Ok(())
    }

    /// Makes the volume refuse changes after a failed write, unless [`OnError::Continue`] is set and the logs
    /// can keep more blocks. To continue is possible only for writes that can be repeated: the caller has
    /// kept the content.
    pub(crate) fn stop_on_error<T>(&mut self, result: Result<T>) -> Result<T> {
        match self.disk.options().on_error {
            OnError::Continue if !self.logs.is_choked() => result,
            _ => self.disk.fail_on_error(result),
        }
    }
}
