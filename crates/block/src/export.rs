//! Properties of a device beyond [`Device`]: durable writes, zeroes and holes.

use std::{io, ops::Range, sync::Arc};

use crate::{Device, FileDevice, MemoryDevice};

/// Bytes of zeroes written at once.
const ZEROES: usize = 1 << 20;
/// Maximum number of extents in an answer. The client asks again for the rest.
const PARTS_MAX: usize = 4096;

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

    /// Returns the parts of a range in order, each with its length in bytes and true if it is a hole that
    /// reads as zeroes. There is at least one part and a bounded number of them. No part is empty, and
    /// together they do not exceed the range.
    fn allocation(&self, range: Range<u64>) -> Vec<(u64, bool)> {
        vec![(range.end - range.start, false)]
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

    fn allocation(&self, range: Range<u64>) -> Vec<(u64, bool)> {
        let held = self.allocated_pages_in(range.clone());
        let mut parts: Vec<(u64, bool)> = Vec::new();
        let mut at = range.start;
        for page in held {
            let (start, end) = (page.max(range.start), (page + 4096).min(range.end));
            push(&mut parts, (start - at, true));
            push(&mut parts, (end - start, false));
            at = end;
            if parts.len() >= PARTS_MAX {
                return parts;
            }
        }
        push(&mut parts, (range.end - at, true));
        parts
    }
}

impl Export for FileDevice {
    fn write_zeroes(&self, offset_bytes: u64, length_bytes: u64, space: Space) -> io::Result<()> {
        if space == Space::MayFree && self.punch(offset_bytes, length_bytes)? {
            return Ok(());
        }
        write_zero_bytes(self, offset_bytes, length_bytes)
    }

    fn allocation(&self, range: Range<u64>) -> Vec<(u64, bool)> {
        let mut parts = Vec::new();
        let mut at = range.start;
        while at < range.end && parts.len() < PARTS_MAX {
            let (end, is_hole) = self.extent(at, range.end);
            push(&mut parts, (end - at, is_hole));
            at = end;
        }
        parts
    }

    fn is_read_only(&self) -> bool {
        !self.is_writable()
    }
}

/// Adds a part, and merges it with the last one if both are holes or both are not.
fn push(parts: &mut Vec<(u64, bool)>, (length, is_hole): (u64, bool)) {
    match parts.last_mut() {
        _ if length == 0 => {}
        Some((last, kind)) if *kind == is_hole => *last += length,
        _ => parts.push((length, is_hole)),
    }
}

impl<E: Export + ?Sized> Export for Arc<E> {
    fn write_through(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        (**self).write_through(offset_bytes, buf)
    }

    fn write_zeroes(&self, offset_bytes: u64, length_bytes: u64, space: Space) -> io::Result<()> {
        (**self).write_zeroes(offset_bytes, length_bytes, space)
    }

    fn allocation(&self, range: Range<u64>) -> Vec<(u64, bool)> {
        (**self).allocation(range)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_status_reports_at_most_one_answer_of_extents() {
        let device = MemoryDevice::new(64 << 20);
        for page in 0..8192 {
            device.write(page * 8192, &[7; 4096]).expect("within the device");
        }
        let mut at = 0;
        while at < 64 << 20 {
            let parts = device.allocation(at..64 << 20);
            assert!((1..=PARTS_MAX + 1).contains(&parts.len()));
            for (length, is_hole) in parts {
                assert_eq!((length, is_hole), (4096, at % 8192 != 0));
                at += length;
            }
        }
    }
}
