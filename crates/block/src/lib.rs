//! Block devices as one small trait.
//!
//! *Invariant*: this crate knows no file system. A [`Device`] is an array of bytes with a size, a sector and
//! four verbs. Recording, counting, fault injection and overlays are wrappers that are `Device`s themselves.

mod allocation;
mod concat;
mod export;
mod file;
#[cfg(target_os = "linux")]
mod host;
mod in_use;
mod memory;
#[cfg(unix)]
pub mod nbd;
mod overlay;
mod rng;
#[cfg(all(feature = "vhost-user", target_os = "linux"))]
pub mod vhost_user;
mod wrapper;

use std::{io, ops::Range, sync::Arc};

pub use allocation::data_ranges;
pub use concat::Concat;
pub use export::{Export, Space};
pub use file::{FileDevice, OpenOptions, ReadPattern};
#[cfg(target_os = "linux")]
pub use host::{
    loop_device::LoopDevice,
    mounts::{Mount, mounts, mounts_in},
    users::in_use,
};
pub use in_use::InUse;
#[cfg(not(target_os = "linux"))]
pub use in_use::in_use;
pub use memory::MemoryDevice;
pub use overlay::Overlay;
pub use rng::Rng;
pub use wrapper::{
    Behind, Counted, Counts, Fault, Faulty, Hooked, Recording, Refillable, Request, Survivors, Verb,
    power_cut, replay, unflushed_writes,
};

/// Largest unit that a power cut never tears, in bytes: the classic sector.
pub const ATOMIC_BYTES: usize = 512;

/// Properties of a device that a file system needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Usable size in bytes.
    pub size_bytes: u64,
    /// Logical sector in bytes. It is the unit of offsets and lengths of [`Device::read`] and
    /// [`Device::write`] on real block devices, and the unit that a power cut never tears.
    pub sector_bytes: u32,
}

/// Unit of the discards of a device: aligned pieces of `bytes`, the first of which begins at `first_bytes`. The device
/// ignores smaller pieces, or takes as long for them as for a whole one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiscardUnit {
    /// Size of a piece in bytes.
    pub bytes: u64,
    /// Offset of the first piece in bytes, less than its size.
    pub first_bytes: u64,
}

impl Geometry {
    /// Returns true if `length_bytes` bytes at `offset_bytes` lie on the device.
    pub fn contains(&self, offset_bytes: u64, length_bytes: u64) -> bool {
        offset_bytes.checked_add(length_bytes).is_some_and(|end| end <= self.size_bytes)
    }

    /// Refuses a read past the end.
    pub fn check_read(&self, offset_bytes: u64, length: usize) -> io::Result<()> {
        self.check(offset_bytes, length, io::ErrorKind::UnexpectedEof, "read")
    }

    /// Refuses a write past the end.
    pub fn check_write(&self, offset_bytes: u64, length: usize) -> io::Result<()> {
        self.check(offset_bytes, length, io::ErrorKind::WriteZero, "write")
    }

    fn check(&self, offset_bytes: u64, length: usize, kind: io::ErrorKind, verb: &str) -> io::Result<()> {
        if self.contains(offset_bytes, length as u64) {
            return Ok(());
        }
        let size = self.size_bytes;
        Err(io::Error::new(
            kind,
            format!("{verb} of {length} bytes at {offset_bytes} passes the end of the device at {size}"),
        ))
    }
}

/// An array of bytes that several threads can read, write, flush and discard at once.
///
/// Reads and writes transfer the whole buffer or fail. A write is durable only after a later
/// [`flush`](Device::flush) has returned. Access past the end is [`io::ErrorKind::UnexpectedEof`] for reads
/// and [`io::ErrorKind::WriteZero`] for writes.
pub trait Device: Send + Sync {
    /// Returns the device's size and sector.
    fn geometry(&self) -> Geometry;
    /// Reads `buf.len()` bytes at `offset_bytes`.
    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()>;
    /// Reads what lies at `offset_bytes` without the decryption of [`read`](Device::read). They differ only on a device
    /// that is encrypted as a whole except the contents of encrypted files.
    fn read_stored(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read(offset_bytes, buf)
    }
    /// Writes all of `buf` at `offset_bytes`.
    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()>;
    /// Makes every write that has returned durable.
    fn flush(&self) -> io::Result<()>;
    /// Marks a range as unused. Its content is undefined afterwards. Has no effect on a device that cannot
    /// discard.
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()>;
    /// Unit of [`discard`](Device::discard). `None` if the device cannot discard, or has refused to.
    fn discard_unit(&self) -> Option<DiscardUnit> {
        Some(DiscardUnit { bytes: self.geometry().sector_bytes.max(1).into(), first_bytes: 0 })
    }
    /// Returns the parts of a range in order, each with its length in bytes and true if it is a hole that
    /// reads as zeroes. There is at least one part and a bounded number of them. No part is empty, and
    /// together they do not exceed the range. A device that cannot tell has no holes.
    fn allocation(&self, range: Range<u64>) -> Vec<(u64, bool)> {
        vec![(range.end - range.start, false)]
    }
}

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<D: Device + ?Sized> Device for $pointer {
            fn geometry(&self) -> Geometry {
                (**self).geometry()
            }
            fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
                (**self).read(offset_bytes, buf)
            }
            fn read_stored(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
                (**self).read_stored(offset_bytes, buf)
            }
            fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
                (**self).write(offset_bytes, buf)
            }
            fn flush(&self) -> io::Result<()> {
                (**self).flush()
            }
            fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
                (**self).discard(offset_bytes, length_bytes)
            }
            fn discard_unit(&self) -> Option<DiscardUnit> {
                (**self).discard_unit()
            }
            fn allocation(&self, range: Range<u64>) -> Vec<(u64, bool)> {
                (**self).allocation(range)
            }
        }
    )*};
}

forward!(&D, Box<D>, Arc<D>);

/// Splits a range at multiples of `piece_bytes`. Yields the piece's number, the offset in the piece, and the
/// part as offsets from the range's start.
fn pieces(
    offset_bytes: u64,
    length: usize,
    piece_bytes: usize,
) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == length {
            return None;
        }
        let at = offset_bytes + done as u64;
        let within = (at % piece_bytes as u64) as usize;
        let part = (piece_bytes - within).min(length - done);
        let range = done..done + part;
        done += part;
        Some((at / piece_bytes as u64, within, range))
    })
}
