//! Measurements: patterns of requests on a device, each request timed, within a budget.
//!
//! *Invariant*: no request starts once the budget is used up, so at most one request exceeds it.

use std::io;

use block::Device;

use super::fit::{Point, median};
use crate::{
    clock::Clock,
    flashbench::{Alignment, multiples},
};

/// Reason for the end of a measurement.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// The device failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The budget of time or bytes is used up.
    #[error("the budget is used up")]
    Budget,
}

/// A device under measurement.
pub struct Bench<'a> {
    device: &'a dyn Device,
    clock: &'a dyn Clock,
    /// True if writes are timed with the flush that makes them durable.
    pub flushes: bool,
    /// Bytes of a stream's write. Partly written pages alone would make some writes slow.
    pub write_bytes: u64,
    data: Vec<u8>,
    pub written_bytes: u64,
    /// Times of the large writes that filled ranges.
    pub fills_ns: Vec<f64>,
    budget_bytes: u64,
    deadline_ns: u64,
    /// Positions far from each other: no two lie in the same unit, whatever its size.
    spacing_bytes: u64,
    places: u64,
}

/// Size in bytes of a timed write whose size is not the subject. It suits pages up to this size.
pub const WRITE_BYTES: u64 = 32 << 10;
/// Size in bytes of a write that fills a range.
pub const FILL_BYTES: u64 = 1 << 20;
/// Maximum measured part of the front, in bytes.
const FRONT_BYTES: u64 = 96 << 20;
/// Rounds of streams. The first of them warm up.
const ROUNDS: u64 = 8;
const WARM_UP: u64 = 2;
/// Positions for streams. The same number again serves to close open units.
pub const STREAMS_MAX: u64 = 16;
/// Positions required for a measurement: the front, the streams and a neighbour, and those that close them.
const PLACES: u64 = 2 * STREAMS_MAX + 4;

impl<'a> Bench<'a> {
    /// Prepares measurements without reading or writing.
    pub fn new(device: &'a dyn Device, clock: &'a dyn Clock, budget_bytes: u64, budget_ns: u64) -> Bench<'a> {
        let size_bytes = device.geometry().size_bytes;
        // 3 * 2^k, so that units of 2^k and of 3 * 2^k bytes start at every position.
        let mut spacing_bytes = 192 << 20;
        while spacing_bytes > 3 << 19 && size_bytes / spacing_bytes < PLACES {
            spacing_bytes /= 2;
        }
        Bench {
            device,
            clock,
            flushes: false,
            write_bytes: WRITE_BYTES,
            data: Vec::new(),
            written_bytes: 0,
            fills_ns: Vec::new(),
            budget_bytes,
            deadline_ns: clock.now_ns().saturating_add(budget_ns),
            spacing_bytes,
            places: size_bytes / spacing_bytes,
        }
    }

    /// Returns true if the device is large enough for measurements with writes.
    pub fn is_large_enough(&self) -> bool {
        self.places >= PLACES
    }

    /// Returns the distance between positions in bytes. The first position is the front of the device.
    pub fn spacing_bytes(&self) -> u64 {
        self.spacing_bytes
    }

    /// Returns the number of bytes at the front that are first written and then measured.
    pub fn front_bytes(&self) -> u64 {
        self.spacing_bytes.min(FRONT_BYTES)
    }

    /// Returns the offset of a stream's position. 0 is the first one after the front.
    pub fn place(&self, stream: u64) -> u64 {
        (1 + stream) * self.spacing_bytes
    }

    /// Measures one read, in nanoseconds.
    pub fn read(&mut self, offset_bytes: u64, bytes: u64) -> Result<f64, Stop> {
        self.check(0)?;
        self.data.resize(bytes as usize, 0x5a);
        let start = self.clock.now_ns();
        self.device.read(offset_bytes, &mut self.data)?;
        let elapsed = self.clock.now_ns() - start;
        self.data.fill(0x5a);
        Ok(elapsed as f64)
    }

    /// Measures one write, in nanoseconds.
    pub fn write(&mut self, offset_bytes: u64, bytes: u64) -> Result<f64, Stop> {
        self.check(bytes)?;
        self.data.resize(bytes as usize, 0x5a);
        let start = self.clock.now_ns();
        self.device.write(offset_bytes, &self.data)?;
        if self.flushes {
            self.device.flush()?;
        }
        self.written_bytes += bytes;
        Ok((self.clock.now_ns() - start) as f64)
    }

    /// Measures one flush, in nanoseconds.
    pub fn flush(&mut self) -> Result<f64, Stop> {
        self.check(0)?;
        let start = self.clock.now_ns();
        self.device.flush()?;
        Ok((self.clock.now_ns() - start) as f64)
    }

    /// Writes a whole range, so that merges have data to copy there.
    pub fn fill(&mut self, offset_bytes: u64, bytes: u64) -> Result<(), Stop> {
        let mut done = 0;
        while done < bytes {
            let part = (bytes - done).min(FILL_BYTES);
            let ns = self.write(offset_bytes + done, part)?;
            // The first write may have to close an open unit.
            if part == FILL_BYTES && done > 0 {
                self.fills_ns.push(ns);
            }
            done += part;
        }
        Ok(())
    }

    /// Writes once at each of many other positions, which closes the units of all streams.
    pub fn close_units(&mut self, count: u64) -> Result<(), Stop> {
        for n in 0..count {
            let place = self.place(STREAMS_MAX + 1 + n % STREAMS_MAX);
            self.write(place, self.write_bytes)?;
        }
        Ok(())
    }

    /// Returns the number of bytes that a stream takes.
    pub fn stream_bytes(&self) -> u64 {
        ROUNDS * self.write_bytes
    }

    /// Writes streams from these offsets in turn. Returns the times of the writes after the warm-up, for the
    /// first `timed` streams.
    pub fn streams(&mut self, starts: &[u64], timed: usize) -> Result<Vec<f64>, Stop> {
        let mut samples = Vec::new();
        for round in 0..ROUNDS {
            for (n, start) in starts.iter().enumerate() {
                let ns = self.write(start + round * self.write_bytes, self.write_bytes)?;
                if round >= WARM_UP && n < timed {
                    samples.push(ns);
                }
            }
        }
        Ok(samples)
    }

    /// Reads like `flashbench -a`. For each power of two, from large to small, returns the medians of reads
    /// that end at one of its boundaries, that cross it, and that start there.
    pub fn boundaries(&mut self, read_bytes: u64, count: u32) -> Result<Vec<Alignment>, Stop> {
        let size_bytes = self.device.geometry().size_bytes;
        let mut rows = Vec::new();
        let mut boundary_bytes = (size_bytes / 2).next_power_of_two() / 2;
        while boundary_bytes >= read_bytes * 2 {
            let mut samples: [Vec<f64>; 3] = Default::default();
            for at in multiples(size_bytes, boundary_bytes, count) {
                for (samples, offset) in samples.iter_mut().zip([at - read_bytes, at - read_bytes / 2, at]) {
                    samples.push(self.read(offset, read_bytes)?);
                }
            }
            let [before_ns, across_ns, after_ns] = samples.map(|samples| median(&samples));
            rows.push(Alignment { boundary_bytes, before_ns, across_ns, after_ns });
            boundary_bytes /= 2;
        }
        Ok(rows)
    }

    /// Writes one stream in pieces of `bytes`.
    pub fn sequence(&mut self, start: u64, bytes: u64, count: u64) -> Result<Point, Stop> {
        let mut samples = Vec::new();
        for n in 0..count {
            let ns = self.write(start + n * bytes, bytes)?;
            if n > 0 {
                samples.push(ns);
            }
        }
        Ok(Point { at: bytes, samples })
    }

    fn check(&self, bytes: u64) -> Result<(), Stop> {
        if self.clock.now_ns() > self.deadline_ns || self.written_bytes + bytes > self.budget_bytes {
            return Err(Stop::Budget);
        }
        Ok(())
    }
}
