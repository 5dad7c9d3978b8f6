//! Reading blocks of the main area, whether they are on the device already or still in a log.

use super::Segments;
use crate::{Error, Place, Result, disk::Io, units::BlockAddr};

impl Segments {
    /// Reads consecutive blocks of the main area; `buf` holds a whole number of blocks.
    pub(crate) fn read_blocks(&self, addr: BlockAddr, at: Place, buf: &mut [u8]) -> Result<()> {
        self.read_by(addr, at, buf, Io::read)
    }

    /// Reads consecutive blocks of the content of an encrypted file.
    pub(crate) fn read_encrypted(&self, addr: BlockAddr, at: Place, buf: &mut [u8]) -> Result<()> {
        self.read_by(addr, at, buf, Io::read_encrypted)
    }

    fn read_by(
        &self,
        addr: BlockAddr,
        at: Place,
        buf: &mut [u8],
        read: fn(&Io, BlockAddr, Place, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let size = self.disk.geometry().block_size.bytes();
        self.check_range(addr, buf.len() / size, at)?;
        if self.logs.holds_any(addr, buf.len() / size) {
            for (n, block) in buf.chunks_exact_mut(size).enumerate() {
                let addr = BlockAddr(addr.0 + n as u32);
                match self.logs.pending(addr) {
                    Some(bytes) => block.copy_from_slice(bytes),
                    None => read(self.disk.io(), addr, at, block)?,
                }
            }
            return Ok(());
        }
        read(self.disk.io(), addr, at, buf)
    }

    /// Checks that consecutive blocks are in the main area.
    pub(super) fn check_range(&self, addr: BlockAddr, blocks: usize, at: Place) -> Result<()> {
        let geometry = self.disk.geometry();
        let last = addr.0.checked_add(blocks.saturating_sub(1) as u32);
        match geometry.in_main(addr) && last.is_some_and(|last| geometry.in_main(BlockAddr(last))) {
            true => Ok(()),
            false => self
                .disk
                .io()
                .record_corruption(Err(Error::corrupt(at, format!("{addr} is not in the main area")))),
        }
    }

    /// Returns true if consecutive blocks are in the main area, and none of them is still in a log.
    pub(crate) fn are_on_device(&self, addr: BlockAddr, blocks: usize, at: Place) -> bool {
        self.check_range(addr, blocks, at).is_ok() && !self.logs.holds_any(addr, blocks)
    }

    /// The content of a block that is still in a log.
    pub(crate) fn pending(&self, addr: BlockAddr) -> Option<&[u8]> {
        self.logs.pending(addr)
    }

    /// The content of a block that is still in a log, to overwrite it.
    pub(crate) fn pending_mut(&mut self, addr: BlockAddr) -> Option<&mut [u8]> {
        self.logs.pending_mut(addr)
    }
}
