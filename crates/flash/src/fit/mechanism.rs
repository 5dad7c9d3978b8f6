//! Mechanisms: kinds of translation layer whose times for a write are sums of a few costs, fitted to rows by
//! least squares of relative errors.
//!
//! The costs are: a command, and a time a byte; the switch to another unit; a buffer for small writes that do not
//! continue (a cost a write, and one a byte); a write out of order (a cost for each below the granule's limit, and
//! one a byte); a write beyond the limit of open units (a cost for each, one a byte, and one if also out of order).

use serde::Serialize;

use super::Point;

/// Number of costs.
pub(super) const COSTS: usize = 10;
/// Unit in bytes of the costs a byte, so that all costs are of similar size.
const PIECE_BYTES: f64 = 65536.0;
/// Errors beyond this, as logarithms, count linearly.
const OUTLIER: f64 = 0.2;
/// Number of times that the weights are computed again.
const ROUNDS: usize = 5;
/// Shortest time of a write in nanoseconds.
const SHORTEST_NS: f64 = 1000.0;
/// Penalty of a structure for each of its parts.
const PART_PENALTY: f64 = 2.0;

/// The parts of a translation layer that rows can tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Structure {
    /// Maximum number of open units; None if no limit shows.
    pub open_units: Option<u32>,
    /// Writes shorter than this that do not continue the previous one go to a buffer; 0 without a buffer.
    pub small_write_bytes: u64,
    /// True if the buffer takes writes to any number of units.
    pub buffer_takes_any: bool,
    /// Writes out of order shorter than this rewrite a granule at a fixed cost; 0 without granules.
    pub granule_below_bytes: u64,
    /// Writes shorter than this cost as much as one of this size.
    pub page_bytes: u64,
}

impl Structure {
    /// Returns the number of parts.
    fn parts(&self) -> usize {
        usize::from(self.open_units.is_some())
            + usize::from(self.small_write_bytes > 0)
            + usize::from(self.granule_below_bytes > 0)
            + usize::from(self.page_bytes > 4096)
    }

    /// Returns true if `units` written in turn are more than may be open.
    pub(super) fn is_over(&self, units: f64) -> bool {
        self.open_units.is_some_and(|limit| units > f64::from(limit))
    }

    /// Returns how often a write at this point has each cost.
    pub(super) fn counts(&self, at: &Point) -> [f64; COSTS] {
        let share = |holds: bool| f64::from(u8::from(holds));
        let pieces = at.bytes / PIECE_BYTES;
        let part = at.bytes < at.unit_bytes;
        let random = share(at.out_of_order && part);
        let over = share(self.is_over(at.units) && part);
        let switches = at.units > 1.0 && part;
        if at.bytes < self.small_write_bytes as f64 && (at.units > 1.0 || random > 0.0) {
            let over = if self.buffer_takes_any { 0.0 } else { over };
            return [0.0, 0.0, 0.0, 1.0, at.bytes / 4096.0, 0.0, 0.0, over, over * pieces, over * random];
        }
        let granule = if at.bytes < self.granule_below_bytes as f64 { random } else { 0.0 };
        let whole = at.bytes.max(self.page_bytes as f64) / PIECE_BYTES;
        [1.0, whole, share(switches), 0.0, 0.0, granule, random * pieces, over, over * pieces, over * random]
    }
}

/// A structure with its costs in nanoseconds.
#[derive(Debug, Clone)]
pub(super) struct Mechanism {
    pub(super) structure: Structure,
    pub(super) costs_ns: [f64; COSTS],
    /// The less, the better: logarithm of the mean loss, with a penalty for parts.
    pub(super) score: f64,
}

impl Mechanism {
    /// Returns the time of a write in nanoseconds.
    pub(super) fn ns(&self, at: &Point) -> f64 {
        dot(&self.structure.counts(at), &self.costs_ns).max(SHORTEST_NS)
    }
}

/// Fits every structure to the rows, the best first.
pub(super) fn candidates(points: &[Point], ns: &[f64]) -> Vec<Mechanism> {
    let most_units = points.iter().map(|at| at.units).fold(1.0, f64::max);
    let limits = (1..=super::rows::UNITS_MAX).filter(|limit| f64::from(*limit) < most_units).map(Some);
    let mut all = Vec::new();
    for open_units in limits.take(16).chain([None]) {
        for (small_write_bytes, buffer_takes_any) in
            [(0, false), (8192, false), (8192, true), (32768, false), (32768, true)]
        {
            if buffer_takes_any && open_units.is_none() {
                continue;
            }
            for granule_below_bytes in [0, 128 << 10, 2 << 20] {
                for page_bytes in [4096, 16384] {
                    let structure = Structure {
                        open_units,
                        small_write_bytes,
                        buffer_takes_any,
                        granule_below_bytes,
                        page_bytes,
                    };
                    all.push(fit(structure, points, ns));
                }
            }
        }
    }
    all.sort_by(|one, other| one.score.total_cmp(&other.score));
    all
}

/// Fits the costs of one structure.
pub(super) fn fit(structure: Structure, points: &[Point], ns: &[f64]) -> Mechanism {
    let counts: Vec<[f64; COSTS]> = points.iter().map(|at| structure.counts(at)).collect();
    let mut costs = [0.0; COSTS];
    // Rows of one size cannot tell command and rate apart: large writes are mostly the bytes.
    let one_size = points.iter().all(|at| at.bytes == points[0].bytes && at.bytes >= PIECE_BYTES);
    if one_size {
        costs[1] = ns.iter().fold(f64::INFINITY, |least, ns| least.min(*ns)) / counts[0][1].max(1.0);
    }
    let mut weights = vec![1.0; ns.len()];
    let mut loss = 0.0;
    for _ in 0..ROUNDS {
        non_negative(&counts, ns, &weights, &mut costs);
        loss = 0.0;
        for ((counts, ns), weight) in counts.iter().zip(ns).zip(&mut weights) {
            let found = dot(counts, &costs).max(ns / 1000.0).max(SHORTEST_NS);
            let (log, relative) = ((found / ns).ln(), found / ns - 1.0);
            // Least squares of the relative error become those of the logarithm, without outliers.
            let slope = if relative.abs() > 1e-6 { log / relative } else { 1.0 };
            *weight = slope * (OUTLIER / log.abs()).min(1.0);
            loss += if log.abs() < OUTLIER { log * log } else { OUTLIER * (2.0 * log.abs() - OUTLIER) };
        }
    }
    let count = ns.len() as f64;
    let score = count * (loss / count + 0.002).ln() + PART_PENALTY * structure.parts() as f64;
    Mechanism { structure, costs_ns: costs, score }
}

/// Minimises the weighted squares of the relative errors over costs that are not negative, one after the other.
fn non_negative(counts: &[[f64; COSTS]], ns: &[f64], weights: &[f64], costs: &mut [f64; COSTS]) {
    let (mut products, mut wanted) = ([[0.0; COSTS]; COSTS], [0.0; COSTS]);
    for ((counts, ns), weight) in counts.iter().zip(ns).zip(weights) {
        for i in (0..COSTS).filter(|i| counts[*i] != 0.0) {
            let share = weight * counts[i] / ns;
            wanted[i] += share;
            for j in 0..COSTS {
                products[i][j] += share * counts[j] / ns;
            }
        }
    }
    for _ in 0..15 {
        for i in (0..COSTS).filter(|i| products[*i][*i] > 0.0) {
            let left = wanted[i] - dot(&products[i], costs) + products[i][i] * costs[i];
            costs[i] = (left / products[i][i]).max(0.0);
        }
    }
}

fn dot(one: &[f64; COSTS], other: &[f64; COSTS]) -> f64 {
    one.iter().zip(other).map(|(a, b)| a * b).sum()
}
