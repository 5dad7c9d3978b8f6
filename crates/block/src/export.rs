//! Properties of a device beyond [`Device`]: durable writes and zeroes.

use std::{io, sync::Arc};

use crate::{Device, FileDevice, MemoryDevice};

/// Bytes of zeroes written at once.
const ZEROES: usize = 1 << 20;

/// The space of a range that is made zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// The range becomes a hole if the device can do that.
    MayFree,
    /// The range stays allocated.
    Keep,
}

/// A device as a server exports it. The defaults work for every device.
pub trait Export: Device {
    /// Writes data that is durable when the call returns.
    ///
    /// # Errors
    /// The device's.
    fn write_through(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        self.write(offset_bytes, buf)?;
        self.flush()
    }

    /// Makes a range read as zeroes.
    ///
    /// # Errors
    /// The device's.
    fn write_zeroes(&self, offset_bytes: u64, length_bytes: u64, space: Space) -> io::Result<()> {
        let _ = space;
        write_zero_bytes(self, offset_bytes, length_bytes)
    }

    /// Returns true if a flush makes the writes of all connections durable.
    fn is_shared(&self) -> bool {
        true
    }

    /// Returns true if writes are refused.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Returns a description for people and clients, in one line.
    fn description(&self) -> Option<String> {
        None
    }
}

/// Writes zeroes as bytes.
fn write_zero_bytes(device: &(impl Device + ?Sized), offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
    let zeroes = vec![0; ZEROES.min(length_bytes as usize)];
    let mut done = 0;
    while done < length_bytes {
        let part = (length_bytes - done).min(ZEROES as u64);
        device.write(offset_bytes + done, &zeroes[..part as usize])?;
        done += part;
    }
    Ok(())
}

impl Export for MemoryDevice {
    fn write_zeroes(&self, offset_bytes: u64, length_bytes: u64, space: Space) -> io::Result<()> {
        // A discarded range of memory reads as zeroes.
        if space == Space::MayFree {
            return self.discard(offset_bytes, length_bytes);
        }
        write_zero_bytes(self, offset_bytes, length_bytes)
    }
}

impl Export for FileDevice {
    fn write_zeroes(&self, offset_bytes: u64, length_bytes: u64, space: Space) -> io::Result<()> {
        if space == Space::MayFree && self.punch(offset_bytes, length_bytes)? {
            return Ok(());
        }
        write_zero_bytes(self, offset_bytes, length_bytes)
    }

    fn is_read_only(&self) -> bool {
        !self.is_writable()
    }
}

impl<E: Export + ?Sized> Export for Arc<E> {
    fn write_through(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        (**self).write_through(offset_bytes, buf)
    }

    fn write_zeroes(&self, offset_bytes: u64, length_bytes: u64, space: Space) -> io::Result<()> {
        (**self).write_zeroes(offset_bytes, length_bytes, space)
    }

    fn is_shared(&self) -> bool {
        (**self).is_shared()
    }

    fn is_read_only(&self) -> bool {
        (**self).is_read_only()
    }

    fn description(&self) -> Option<String> {
        (**self).description()
    }
}
