//! Block devices as one small trait.
//!
//! *Invariant*: nothing here knows a file system. A [`Device`] is an array of bytes with a size, a sector
//! and four verbs; everything else (recording, counting, failing, overlaying) is a wrapper that is itself a
//! `Device`.

use std::io;

/// What a device is, as far as a file system must know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Usable size in bytes.
    pub size_bytes: u64,
    /// Logical sector in bytes: the unit of [`Device::read`] and [`Device::write`] offsets and lengths on
    /// real block devices, and the unit that a power cut never tears.
    pub sector_bytes: u32,
}

/// An array of bytes that can be read, written, flushed and discarded from several threads at once.
///
/// Reads and writes are whole: they do all of the buffer or fail. A write is durable only after a later
/// [`flush`](Device::flush) returned. Access past the end is [`io::ErrorKind::UnexpectedEof`] for reads and
/// [`io::ErrorKind::WriteZero`] for writes.
pub trait Device: Send + Sync {
    /// Size and sector of the device.
    fn geometry(&self) -> Geometry;
    /// Fills `buf` from `offset_bytes`.
    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()>;
    /// Writes all of `buf` at `offset_bytes`.
    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()>;
    /// Makes every write that has returned durable.
    fn flush(&self) -> io::Result<()>;
    /// Tells the device that a range holds nothing any more; its content is undefined afterwards. A device
    /// that cannot discard does nothing.
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()>;
}
