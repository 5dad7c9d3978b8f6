//! A channel to the host for machines without a port: a disk whose blocks are messages.
//!
//! A write appends to the guest's messages. A read from [`CHANNEL_OFFSET`] on waits for the host's message
//! and fills the rest of the block with zeroes. The kernel reads the start of each disk in search of
//! partitions; there it finds zeroes without waiting.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

use rustix::fs::OFlags;

/// Name of the disk: its serial number.
pub const SERIAL: &str = "mailbox";
/// Offset of the host's messages, in bytes.
pub const CHANNEL_OFFSET: u64 = 512 << 10;
/// Size of the disk.
pub const SIZE_BYTES: u64 = 1 << 20;
/// Maximum size of a read or write of messages, in bytes.
const BLOCK_BYTES: usize = 64 << 10;
/// Size of a read in bytes. A command is short.
const READ_BYTES: usize = 4096;
/// Messages are whole sectors, padded with zeroes.
const SECTOR_BYTES: usize = 512;
/// Alignment of memory that the kernel requires for direct I/O.
const ALIGNMENT: usize = 4096;

/// The guest's end.
#[derive(Debug)]
pub struct Mailbox {
    disk: File,
    /// Memory for a block at an aligned position.
    memory: Vec<u8>,
    /// Bytes that were read but not yet taken.
    waiting: Vec<u8>,
}

impl Mailbox {
    /// Opens the disk at `path`.
    pub fn open(path: &Path) -> io::Result<Mailbox> {
        let mut options = OpenOptions::new();
        let disk = options.read(true).write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path)?;
        Ok(Mailbox { disk, memory: vec![0; BLOCK_BYTES + ALIGNMENT], waiting: Vec::new() })
    }

    /// Opens another handle. Data read by this one stays here.
    pub fn try_clone(&self) -> io::Result<Mailbox> {
        let disk = self.disk.try_clone()?;
        Ok(Mailbox { disk, memory: self.memory.clone(), waiting: Vec::new() })
    }
}

/// Returns `length` bytes of `memory` at an aligned position.
fn aligned(memory: &mut [u8], length: usize) -> &mut [u8] {
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    &mut memory[start..start + length]
}

impl Read for Mailbox {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.waiting.is_empty() {
            let block = aligned(&mut self.memory, READ_BYTES);
            self.disk.read_exact_at(block, CHANNEL_OFFSET)?;
            self.waiting = block.iter().copied().filter(|byte| *byte != 0).collect();
        }
        let length = buf.len().min(self.waiting.len());
        buf[..length].copy_from_slice(&self.waiting[..length]);
        self.waiting.drain(..length);
        Ok(length)
    }
}

impl Write for Mailbox {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let length = buf.len().min(BLOCK_BYTES);
        let block = aligned(&mut self.memory, length.next_multiple_of(SECTOR_BYTES));
        block[..length].copy_from_slice(&buf[..length]);
        block[length..].fill(0);
        self.disk.write_all_at(block, CHANNEL_OFFSET)?;
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
