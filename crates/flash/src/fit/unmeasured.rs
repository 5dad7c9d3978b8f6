//! Random writes of a card whose rows have none.
//!
//! Of 15 cards (`testdata/reference/pidramble-pi4.csv`) the rate of random writes of 4 KiB grows with that of random
//! reads and with the size of the card. Sequential rates add nothing to that. `crates/flash/tests/pidramble.rs` makes
//! the figures, and judges them with each card left out.

use super::HALF_WIDTH;
use crate::{
    profile::Order,
    rows::{Measured, Operation},
};

/// Logarithm of the rate of random writes in MB/s of a card of 1 GB with random reads of 1 MB/s.
pub const CONSTANT: f64 = -2.7353;
/// Its growth with the logarithm of the rate of random reads.
pub const BY_READS: f64 = 0.8711;
/// Its growth with the logarithm of the size in GB.
pub const BY_SIZE: f64 = 0.4688;
/// Standard deviation of the logarithm, each card left out.
pub const SPREAD: f64 = 0.867;
/// Size of the requests in bytes.
const BYTES: u64 = 4096;

/// The predicted time of random writes of 4 KiB.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomWrites {
    /// The time in nanoseconds.
    pub ns: f64,
}

impl RandomWrites {
    /// Predicts the random writes of a card; None if rows have them, or if random reads of 4 KiB or the size of the
    /// card are missing.
    pub(super) fn new(measured: &Measured) -> Option<RandomWrites> {
        let at_random = |op: Operation| {
            measured.rows.iter().filter(move |row| row.key.op == op && row.key.order == Order::OutOfOrder)
        };
        if at_random(Operation::Write).next().is_some() {
            return None;
        }
        let reads = at_random(Operation::Read).find(|row| row.key.bytes == BYTES && row.key.depth == 1)?;
        let mb_per_s = mb_per_s(reads.bytes_per_s / 1e6, measured.size_bytes? as f64 / 1e9);
        Some(RandomWrites { ns: BYTES as f64 / mb_per_s * 1e3 })
    }

    /// Returns the time in nanoseconds of a random write of any size, from those of sequential writes of this size
    /// and of 4 KiB.
    pub(super) fn ns(self, sequential_ns: f64, sequential_4k_ns: f64) -> f64 {
        sequential_ns + (self.ns - sequential_4k_ns).max(0.0)
    }
}

/// Returns the factor between the predicted time and an end of its interval.
pub(super) fn factor() -> f64 {
    (HALF_WIDTH * SPREAD).exp()
}

/// Returns the rate of random writes in MB/s for that of random reads in MB/s and the size in GB.
pub fn mb_per_s(reads_mb_per_s: f64, size_gb: f64) -> f64 {
    (CONSTANT + BY_READS * reads_mb_per_s.ln() + BY_SIZE * size_gb.ln()).exp()
}
