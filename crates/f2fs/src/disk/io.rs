//! Block I/O whose errors name the place that was accessed.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use block::Device;

use super::flusher::Flusher;
use crate::{Error, Place, Result, format::BlockSize, units::BlockAddr};

/// Access to the device in whole blocks. Every error carries the place that was accessed.
pub struct Io {
    device: Arc<dyn Device>,
    flusher: Flusher,
    block_size: BlockSize,
    written_blocks: AtomicU64,
    met_damage: AtomicBool,
}

impl Io {
    /// Creates access to `device` in blocks of `block_size`.
    pub fn new(device: Arc<dyn Device>, block_size: BlockSize) -> Io {
        Io {
            device,
            flusher: Flusher::default(),
            block_size,
            written_blocks: AtomicU64::new(0),
            met_damage: AtomicBool::new(false),
        }
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Size of a block.
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// Reads consecutive blocks from `addr` on into `buf`, which holds a whole number of blocks.
    ///
    /// # Errors
    /// [`Error::Io`] at `at` if the device fails.
    pub fn read(&self, addr: BlockAddr, at: Place, buf: &mut [u8]) -> Result<()> {
        self.device.read(self.offset(addr), buf).map_err(|source| Error::Io { at, source })
    }

    /// Reads consecutive blocks of the content of an encrypted file, which [metadata encryption](Device::read_stored)
    /// leaves out.
    ///
    /// # Errors
    /// [`Error::Io`] at `at` if the device fails.
    pub fn read_encrypted(&self, addr: BlockAddr, at: Place, buf: &mut [u8]) -> Result<()> {
        self.device.read_stored(self.offset(addr), buf).map_err(|source| Error::Io { at, source })
    }

    /// Reads one block.
    ///
    /// # Errors
    /// [`Error::Io`] at `at` if the device fails.
    pub fn read_block(&self, addr: BlockAddr, at: Place) -> Result<Box<[u8]>> {
        let mut block = vec![0; self.block_size.bytes()].into_boxed_slice();
        self.read(addr, at, &mut block)?;
        Ok(block)
    }

    /// Reads the bytes `range`, counted from the start of block `addr`. The device reads only the sectors
    /// that contain them.
    ///
    /// # Errors
    /// [`Error::Io`] at `at` if the device fails.
    pub fn read_bytes(&self, addr: BlockAddr, at: Place, range: Range<usize>) -> Result<Vec<u8>> {
        let sector = match self.device.geometry().sector_bytes as usize {
            sector if sector > 0 && self.block_size.bytes() % sector == 0 => sector,
            _ => self.block_size.bytes(),
        };
        let start = range.start / sector * sector;
        let mut bytes = vec![0; range.end.next_multiple_of(sector) - start];
        let offset = self.offset(addr) + start as u64;
        self.device.read(offset, &mut bytes).map_err(|source| Error::Io { at, source })?;
        bytes.truncate(range.end - start);
        bytes.drain(..range.start - start);
        Ok(bytes)
    }

    /// Writes `bytes`, a whole number of blocks, from `addr` on.
    ///
    /// # Errors
    /// [`Error::Io`] at `at` if the device fails.
    pub fn write(&self, addr: BlockAddr, at: Place, bytes: &[u8]) -> Result<()> {
        debug_assert_eq!(bytes.len() % self.block_size.bytes(), 0);
        self.written_blocks.fetch_add((bytes.len() / self.block_size.bytes()) as u64, Ordering::Relaxed);
        self.device.write(self.offset(addr), bytes).map_err(|source| Error::Io { at, source })
    }

    /// Flushes the device: makes all earlier writes durable. Calls that wait for a running flush share the next one.
    ///
    /// # Errors
    /// [`Error::Io`] if the device fails, or has failed in an earlier flush. The content of the device is unknown then.
    pub fn flush(&self) -> Result<()> {
        self.flusher.flush(&*self.device).map_err(|source| Error::Io { at: Place::Volume, source })
    }

    /// Discards `blocks` blocks from `addr` on.
    ///
    /// # Errors
    /// [`Error::Io`] if the device fails.
    pub fn discard(&self, addr: BlockAddr, blocks: u32) -> Result<()> {
        let length = u64::from(blocks) * self.block_size.bytes() as u64;
        self.device
            .discard(self.offset(addr), length)
            .map_err(|source| Error::Io { at: Place::Block(addr), source })
    }

    /// Blocks written since the volume was opened.
    pub fn written_blocks(&self) -> u64 {
        self.written_blocks.load(Ordering::Relaxed)
    }

    /// Returns `result` unchanged; if it reports damage, the next checkpoint asks for fsck (Linux,
    /// `SBI_NEED_FSCK`).
    ///
    /// # Errors
    /// The error of `result`.
    pub fn record_corruption<T>(&self, result: Result<T>) -> Result<T> {
        if matches!(result, Err(Error::Corrupt { .. })) {
            self.met_damage.store(true, Ordering::Relaxed);
        }
        result
    }

    /// Returns true if damage has been found.
    pub fn met_damage(&self) -> bool {
        self.met_damage.load(Ordering::Relaxed)
    }

    fn offset(&self, addr: BlockAddr) -> u64 {
        u64::from(addr.0) << self.block_size.log()
    }
}
