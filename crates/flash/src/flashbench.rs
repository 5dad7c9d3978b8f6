//! The measurements of flashbench (A. Bergmann), on any device with a clock.
//!
//! The patterns are those of its options `-a` and `--open-au`, so that figures can be compared with published
//! ones.

use std::io;

use block::{Device, Rng};

use crate::clock::Clock;

/// The result of `-a` for one boundary, in nanoseconds: two reads before it, across it, after it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Alignment {
    /// The measured boundary: a power of two, at whose multiples the reads lie.
    pub boundary_bytes: u64,
    /// Reads that end at the boundary.
    pub before_ns: f64,
    /// Reads that lie across it.
    pub across_ns: f64,
    /// Reads that start at it.
    pub after_ns: f64,
}

impl Alignment {
    /// The cost of crossing the boundary.
    pub fn difference_ns(&self) -> f64 {
        self.across_ns - (self.before_ns + self.after_ns) / 2.0
    }
}

/// `flashbench -a`. For each power of two from half the device down to twice the read, measures the mean over
/// `count` boundaries of a read of `read_bytes` before, across and after the boundary.
///
/// # Errors
/// The device's.
pub fn align(
    device: &dyn Device,
    clock: &dyn Clock,
    read_bytes: u64,
    count: u32,
) -> io::Result<Vec<Alignment>> {
    let size_bytes = device.geometry().size_bytes;
    let mut buf = vec![0; read_bytes as usize];
    let mut timed = |offset: u64| -> io::Result<f64> {
        let start = clock.now_ns();
        device.read(offset, &mut buf)?;
        Ok((clock.now_ns() - start) as f64)
    };
    let mut rows = Vec::new();
    let mut boundary_bytes = (size_bytes / 2).next_power_of_two() / 2;
    while boundary_bytes >= read_bytes * 2 {
        let mut sums = [0.0; 3];
        for at in multiples(size_bytes, boundary_bytes, count) {
            for (sum, offset) in sums.iter_mut().zip([at - read_bytes, at - read_bytes / 2, at]) {
                *sum += timed(offset)?;
            }
        }
        let [before_ns, across_ns, after_ns] = sums.map(|sum| sum / f64::from(count));
        rows.push(Alignment { boundary_bytes, before_ns, across_ns, after_ns });
        boundary_bytes /= 2;
    }
    Ok(rows)
}

/// Returns the boundaries to measure: only odd multiples, because even ones are also boundaries of the next
/// power of two.
pub(crate) fn multiples(size_bytes: u64, boundary_bytes: u64, count: u32) -> impl Iterator<Item = u64> {
    let places = (size_bytes / boundary_bytes - 1).max(1);
    (0..u64::from(count)).map(move |n| (((n * 2 + 1) % places) | 1).min(places) * boundary_bytes)
}

/// The write pattern of `--open-au`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenUnits {
    /// `--erasesize`: the unit, which is written in full.
    pub unit_bytes: u64,
    /// `--open-au-nr`: number of units written in turn.
    pub units: u64,
    /// `--offset`: position of the first unit.
    pub offset_bytes: u64,
    /// Distance between written units, in units. 1 is flashbench's.
    pub stride: u64,
    /// `--random`: true if each unit is written out of order.
    pub random: bool,
}

/// `flashbench --open-au` for one size of writes. Returns bytes per second.
///
/// # Errors
/// The device's.
pub fn open_units(
    device: &dyn Device,
    clock: &dyn Clock,
    how: OpenUnits,
    write_bytes: u64,
) -> io::Result<f64> {
    let mut order: Vec<u64> = (0..how.unit_bytes / write_bytes).collect();
    if how.random {
        Rng::new(write_bytes).shuffle(&mut order);
    }
    let data = vec![0x5a; write_bytes as usize];
    let start = clock.now_ns();
    for piece in order {
        for unit in 0..how.units {
            let at = how.offset_bytes + unit * how.stride * how.unit_bytes + piece * write_bytes;
            device.write(at, &data)?;
        }
    }
    let elapsed_s = (clock.now_ns() - start) as f64 / 1e9;
    Ok((how.units * how.unit_bytes) as f64 / elapsed_s)
}
