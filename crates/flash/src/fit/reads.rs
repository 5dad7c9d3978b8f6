//! Reads: a time a command and a time a byte.

use crate::{
    profile::Order,
    rows::{Key, Operation, Row},
};

use super::{HALF_WIDTH, Predicted};

/// Relative spread of rows that the fit meets exactly.
const LEAST_SPREAD: f64 = 0.05;
/// Rounds of the fit, after each of which rows that deviate weigh less.
const ROUNDS: usize = 20;
/// Relative deviation from which a row weighs less.
const OUTLIER: f64 = 0.2;
/// Spread of a prediction if rows of a single size cannot tell command and rate apart.
const ONE_SIZE_SPREAD: f64 = 0.7;

/// The fit to the reads of a card.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reads {
    /// Time of a command in nanoseconds, one at a time.
    pub command_ns: f64,
    /// Time of a byte in nanoseconds.
    pub byte_ns: f64,
    /// Part of the time of a command in nanoseconds during which no other one can run; as long as the command if
    /// only one at a time was measured.
    pub serial_ns: f64,
    /// Maximum number of concurrent reads that were measured.
    pub depth: u32,
    /// True if the rows have several sizes, so that command and rate can be told apart.
    pub has_sizes: bool,
    /// Standard deviation of the rows, as a logarithm.
    spread: f64,
}

impl Reads {
    /// Fits the reads among the rows; None without any.
    pub(super) fn new(rows: &[Row]) -> Option<Reads> {
        let reads: Vec<&Row> = rows.iter().filter(|row| row.key.op == Operation::Read).collect();
        let depth = reads.iter().map(|row| row.key.depth).max()?;
        let alone: Vec<&Row> = reads.iter().filter(|row| row.key.depth == 1).copied().collect();
        let base = if alone.is_empty() { &reads } else { &alone };
        let has_sizes = base.iter().any(|row| row.key.bytes != base[0].key.bytes);
        let (command_ns, byte_ns) = if has_sizes { line(base) } else { of_one_size(base) };
        let serial_ns = serial(&reads, command_ns, byte_ns);
        let mut found = Reads { command_ns, byte_ns, serial_ns, depth, has_sizes, spread: 0.0 };
        let squares: f64 = reads.iter().map(|row| (found.ns(&row.key) / row.request_ns()).ln().powi(2)).sum();
        let free = reads.len().saturating_sub(2).max(1) as f64;
        let least = if has_sizes { LEAST_SPREAD } else { ONE_SIZE_SPREAD };
        found.spread = (squares / free).sqrt().max(least);
        Some(found)
    }

    fn ns(&self, key: &Key) -> f64 {
        let transfer_ns = self.byte_ns * key.bytes as f64;
        let alone_ns = self.command_ns + transfer_ns;
        let depth = f64::from(key.depth.min(self.depth));
        (alone_ns / depth).max(transfer_ns).max(if depth > 1.0 { self.serial_ns } else { alone_ns })
    }

    /// Returns the predicted time of a read.
    pub(super) fn predict(&self, key: &Key) -> Predicted {
        let ns = self.ns(key).max(1.0);
        let factor = (HALF_WIDTH * self.spread).exp();
        Predicted { ns, from_ns: ns / factor, to_ns: ns * factor }
    }
}

/// Returns the time of a command and of a byte, guessed from rows of one size: small reads are mostly the command, large
/// ones mostly the bytes.
fn of_one_size(rows: &[&Row]) -> (f64, f64) {
    let mut ns: Vec<f64> = rows.iter().map(|row| row.request_ns()).collect();
    ns.sort_by(f64::total_cmp);
    let (ns, bytes) = (ns[ns.len() / 2], rows[0].key.bytes as f64);
    let command_share = if rows[0].key.order == Order::OutOfOrder { 0.5 } else { 0.0 };
    (ns * command_share, ns * (1.0 - command_share) / bytes)
}

/// Returns the time of a command and of a byte, by least squares of relative errors without outliers.
fn line(rows: &[&Row]) -> (f64, f64) {
    let mut weights = vec![1.0; rows.len()];
    let (mut command, mut byte) = (0.0, 0.0);
    for _ in 0..ROUNDS {
        let (mut a, mut b, mut c, mut x, mut y) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (row, weight) in rows.iter().zip(&weights) {
            let (one, bytes) = (1.0 / row.request_ns(), row.key.bytes as f64 / row.request_ns());
            a += weight * one * one;
            b += weight * one * bytes;
            c += weight * bytes * bytes;
            x += weight * one;
            y += weight * bytes;
        }
        let determinant = a * c - b * b;
        (command, byte) = ((x * c - y * b) / determinant, (a * y - b * x) / determinant);
        if command < 0.0 || !command.is_finite() {
            (command, byte) = (0.0, y / c);
        } else if byte < 0.0 {
            (command, byte) = (x / a, 0.0);
        }
        for (row, weight) in rows.iter().zip(&mut weights) {
            let error = ((command + byte * row.key.bytes as f64) / row.request_ns() - 1.0).abs();
            *weight = (OUTLIER / error).min(1.0);
        }
    }
    (command, byte)
}

/// Returns the time of a command during which no other runs: what the smallest concurrent reads take.
fn serial(rows: &[&Row], command_ns: f64, byte_ns: f64) -> f64 {
    let concurrent = rows.iter().filter(|row| row.key.depth > 1);
    let smallest = concurrent.min_by_key(|row| (row.key.bytes, u32::MAX - row.key.depth));
    let own = smallest.map(|row| row.request_ns()).filter(|ns| {
        let bytes = smallest.map_or(0.0, |row| row.key.bytes as f64);
        *ns > byte_ns * bytes
    });
    own.unwrap_or(command_ns).min(command_ns)
}
