//! A device without the parts that a map calls bad.

use std::{io, ops::Range};

use block::{Device, Geometry};

use crate::Map;

/// A copy of a failing device: a read that touches a bad part of the map is an error, as on the device itself.
pub struct Masked<D> {
    inner: D,
    map: Map,
}

impl<D: Device> Masked<D> {
    /// Makes a device from a copy and the map of its bytes.
    pub fn new(inner: D, map: Map) -> Masked<D> {
        Masked { inner, map }
    }
}

fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "a rescue does not write to the image")
}

impl<D: Device> Device for Masked<D> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        if self.map.is_bad(&(offset_bytes..offset_bytes.saturating_add(buf.len() as u64))) {
            return Err(io::Error::other(format!("the map calls bytes from {offset_bytes} on bad")));
        }
        self.inner.read(offset_bytes, buf)
    }

    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(read_only())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Err(read_only())
    }

    /// A copy may have holes where the device could not be read.
    fn allocation(&self, range: Range<u64>) -> Vec<(u64, bool)> {
        match self.map.is_bad(&range) {
            true => vec![(range.end - range.start, false)],
            false => self.inner.allocation(range),
        }
    }
}
