//! A wrapper that counts requests.

use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{Device, DiscardUnit, Geometry};

/// Counts of successful requests. Slot `n` of a histogram counts the requests of 2^n to 2^(n+1) - 1 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Bytes discarded.
    pub discarded_bytes: u64,
    /// Reads by the logarithm of their size.
    pub reads_by_log2_bytes: [u64; 64],
    /// Writes by the logarithm of their size.
    pub writes_by_log2_bytes: [u64; 64],
}

impl Default for Counts {
    fn default() -> Counts {
        Counts {
            reads: 0,
            read_bytes: 0,
            writes: 0,
            written_bytes: 0,
            flushes: 0,
            discards: 0,
            discarded_bytes: 0,
            reads_by_log2_bytes: [0; 64],
            writes_by_log2_bytes: [0; 64],
        }
    }
}

/// A device that counts the requests that reach it.
pub struct Counted<D> {
    inner: D,
    counts: Mutex<Counts>,
}

impl<D: Device> Counted<D> {
    /// Starts with all counts at zero.
    pub fn new(inner: D) -> Counted<D> {
        Counted { inner, counts: Mutex::default() }
    }

    /// Returns the device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> Counts {
        self.lock().clone()
    }

    /// Returns the counts so far and resets them to zero.
    pub fn take_counts(&self) -> Counts {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Device> Device for Counted<D> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset_bytes, buf)?;
        let mut counts = self.lock();
        counts.reads += 1;
        counts.read_bytes += buf.len() as u64;
        counts.reads_by_log2_bytes[slot(buf.len())] += 1;
        Ok(())
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        self.inner.write(offset_bytes, buf)?;
        let mut counts = self.lock();
        counts.writes += 1;
        counts.written_bytes += buf.len() as u64;
        counts.writes_by_log2_bytes[slot(buf.len())] += 1;
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()?;
        self.lock().flushes += 1;
        Ok(())
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.inner.discard(offset_bytes, length_bytes)?;
        let mut counts = self.lock();
        counts.discards += 1;
        counts.discarded_bytes += length_bytes;
        Ok(())
    }

    fn discard_unit(&self) -> Option<DiscardUnit> {
        self.inner.discard_unit()
    }
}

/// Returns the slot of a histogram. Empty requests count in the first.
fn slot(length: usize) -> usize {
    length.max(1).ilog2() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn successful_requests_are_counted() {
        let device = Counted::new(MemoryDevice::new(1 << 20));
        device.write(0, &[1; 4096]).expect("within the device");
        device.write(0, &[1; 8191]).expect("within the device");
        device.read(0, &mut [0; 512]).expect("within the device");
        device.flush().expect("memory");
        device.discard(0, 4096).expect("within the device");
        assert!(device.read(1 << 20, &mut [0; 1]).is_err());
        let counts = device.take_counts();
        assert_eq!((counts.reads, counts.read_bytes, counts.reads_by_log2_bytes[9]), (1, 512, 1));
        assert_eq!((counts.writes, counts.written_bytes, counts.writes_by_log2_bytes[12]), (2, 12287, 2));
        assert_eq!((counts.flushes, counts.discards, counts.discarded_bytes), (1, 1, 4096));
        assert_eq!(device.counts(), Counts::default());
    }
}
