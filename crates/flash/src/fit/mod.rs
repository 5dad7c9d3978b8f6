//! Profiles from measured rates.
//!
//! Writes: the time of a write is that of a [mechanism](Structure), times a deviation that rows alike share. Each
//! mechanism is judged by predicting every row from all others, and predictions are means over the mechanisms,
//! weighted by that. The profile has the predicted times as a table (`write_costs`). Reads: a time a command and a
//! time a byte.

mod export;
mod mechanism;
mod reads;
mod report;
mod residual;
mod trial;
pub mod unmeasured;

pub use export::export;
pub use mechanism::Structure;
pub use reads::Reads;
pub use report::{CellReport, FitReport, LimitReport, RowReport, compare, report, table};
use residual::Process;
pub use trial::{HoldOut, Trial, TrialRow, hold_out, split};

use crate::{
    profile::Order,
    rows::{self, Key, Measured, Operation},
};

/// Number of mechanisms that are fitted with deviations.
const MECHANISMS: usize = 6;
/// Least weight of a mechanism in predictions.
const LEAST_WEIGHT: f64 = 0.02;
/// Number of units that requests to any place of a large area count as.
const LARGE_AREA_UNITS: f64 = 16.0;
/// Share of the rows that an interval is to contain.
pub const COVERAGE: f64 = 0.9;
/// Half the width of an interval of [`COVERAGE`], in standard deviations of a normal distribution.
const HALF_WIDTH: f64 = 1.645;

/// Error of a fit.
#[derive(Debug, thiserror::Error)]
pub enum FitError {
    /// There are too few rows.
    #[error(
        "{name}: {count} rows are too few; at least {least} are needed, two of them writes or reads of different \
         sizes"
    )]
    TooFew {
        /// Name of the card.
        name: String,
        /// Number of rows.
        count: usize,
        /// Number needed.
        least: usize,
    },
    /// The rows cannot be read.
    #[error(transparent)]
    Rows(#[from] rows::RowsError),
    /// The figures make no profile.
    #[error("{0}")]
    Profile(#[from] crate::profile::ProfileError),
    /// The model refuses a request.
    #[error("the model of the card: {0}")]
    Refusal(#[from] crate::op::Refusal),
}

/// A write as the mechanisms see it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    bytes: f64,
    unit_bytes: f64,
    /// Number of units written in turn.
    units: f64,
    out_of_order: bool,
}

impl Point {
    fn new(key: &Key, unit_bytes: u64) -> Point {
        Point {
            bytes: key.bytes as f64,
            unit_bytes: unit_bytes as f64,
            units: key.units.map_or(LARGE_AREA_UNITS, f64::from),
            out_of_order: key.order == Order::OutOfOrder,
        }
    }
}

/// A predicted time of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Predicted {
    /// The time in nanoseconds.
    pub ns: f64,
    /// Ends of the interval that contains the share [`COVERAGE`] of the rows.
    pub from_ns: f64,
    /// Its upper end.
    pub to_ns: f64,
}

impl Predicted {
    /// Returns the factor between the time and an end of the interval.
    pub fn factor(&self) -> f64 {
        (self.to_ns / self.from_ns).sqrt()
    }
}

/// The fit to the rows of one card.
#[derive(Debug, Clone)]
pub struct Fit {
    unit_bytes: u64,
    /// Mechanisms with their weights, the heaviest first.
    processes: Vec<(f64, Process)>,
    /// Factor of the standard deviations, so that intervals contain their share of the rows, each left out.
    widening: f64,
    /// The fit to the reads, if there are any.
    pub reads: Option<Reads>,
    /// Writes at random, if no row has any and other rows say something about them.
    pub random_writes: Option<unmeasured::RandomWrites>,
}

impl Fit {
    /// Fits the rows. `progress` is called with the share done.
    ///
    /// # Errors
    /// [`FitError::TooFew`].
    pub fn new(measured: &Measured, progress: &mut dyn FnMut(f64)) -> Result<Fit, FitError> {
        let unit_bytes = measured.unit_bytes;
        let writes = measured.rows.iter().filter(|row| row.key.op == Operation::Write);
        let (points, ns): (Vec<Point>, Vec<f64>) =
            writes.map(|row| (Point::new(&row.key, unit_bytes), row.request_ns())).unzip();
        let reads = Reads::new(&measured.rows);
        if points.is_empty() && reads.is_none() {
            let (name, count) = (measured.name.clone(), measured.rows.len());
            return Err(FitError::TooFew { name, count, least: 2 });
        }
        let mut processes = Vec::new();
        if !points.is_empty() {
            let candidates = mechanism::candidates(&points, &ns);
            progress(0.5);
            for (n, mechanism) in candidates.into_iter().take(MECHANISMS).enumerate() {
                processes.push((0.0, Process::new(mechanism, &points, &ns)));
                progress(0.5 + (n + 1) as f64 / MECHANISMS as f64 / 2.0);
            }
        }
        let processes = weigh(processes);
        let widening = processes.first().map_or(1.0, |(_, process)| widening(&process.left_out));
        let random_writes = unmeasured::RandomWrites::new(measured);
        Ok(Fit { unit_bytes, processes, widening, reads, random_writes })
    }

    /// Returns the predicted time of a request; None if no row has its direction.
    pub fn predict(&self, key: &Key) -> Option<Predicted> {
        if key.op == Operation::Read {
            return self.reads.as_ref().map(|reads| reads.predict(key));
        }
        if let Some(random_writes) = self.random_writes.filter(|_| key.order == Order::OutOfOrder) {
            let in_order = |bytes| Key { order: Order::InOrder, bytes, units: Some(1), ..*key };
            let (own, small) = (self.predict(&in_order(key.bytes))?, self.predict(&in_order(4096))?);
            let (ns, factor) = (random_writes.ns(own.ns, small.ns), unmeasured::factor());
            return Some(Predicted { ns, from_ns: ns / factor, to_ns: ns * factor });
        }
        let at = Point::new(key, self.unit_bytes);
        let all: Vec<(f64, f64, f64)> = self
            .processes
            .iter()
            .map(|(weight, process)| {
                let (log, variance) = process.log_ns(&at);
                (*weight, log, variance)
            })
            .collect();
        if all.is_empty() {
            return None;
        }
        let mean: f64 = all.iter().map(|(weight, log, _)| weight * log).sum();
        // The mechanisms' own variances, and that between them.
        let variance: f64 =
            all.iter().map(|(weight, log, variance)| weight * (variance + (log - mean).powi(2))).sum();
        let half = HALF_WIDTH * self.widening * variance.sqrt();
        Some(Predicted { ns: mean.exp(), from_ns: (mean - half).exp(), to_ns: (mean + half).exp() })
    }

    /// Returns the structures with their weights, the heaviest first.
    pub fn structures(&self) -> impl Iterator<Item = (f64, Structure)> {
        self.processes.iter().map(|(weight, process)| (*weight, process.mechanism.structure))
    }

    /// Returns the share of the weight of each limit of open units, the heaviest first.
    pub fn limits(&self) -> Vec<(Option<u32>, f64)> {
        let mut limits: Vec<(Option<u32>, f64)> = Vec::new();
        for (weight, structure) in self.structures() {
            match limits.iter_mut().find(|(limit, _)| *limit == structure.open_units) {
                Some((_, sum)) => *sum += weight,
                None => limits.push((structure.open_units, weight)),
            }
        }
        limits.sort_by(|one, other| other.1.total_cmp(&one.1));
        limits
    }

    /// Returns the median deviation of the rows, each predicted from all others, as a share: of the best mechanism.
    /// None for two rows and fewer.
    pub fn left_out_error(&self) -> Option<f64> {
        let (_, process) = self.processes.first().filter(|(_, process)| process.left_out.len() > 2)?;
        let mut errors: Vec<f64> = process.left_out.iter().map(|(log, _)| (-log).exp_m1().abs()).collect();
        errors.sort_by(f64::total_cmp);
        errors.get(errors.len() / 2).copied()
    }
}

/// Returns the processes with weights by their likelihoods, without the light ones.
fn weigh(mut processes: Vec<(f64, Process)>) -> Vec<(f64, Process)> {
    let best = processes.iter().map(|(_, process)| process.likelihood).fold(f64::NEG_INFINITY, f64::max);
    for (weight, process) in &mut processes {
        *weight = (process.likelihood - best).exp();
    }
    let sum: f64 = processes.iter().map(|(weight, _)| weight).sum();
    processes.retain(|(weight, _)| *weight >= LEAST_WEIGHT * sum);
    let sum: f64 = processes.iter().map(|(weight, _)| weight).sum();
    processes.iter_mut().for_each(|(weight, _)| *weight /= sum);
    processes.sort_by(|one, other| other.0.total_cmp(&one.0));
    processes
}

/// Returns the factor by which standard deviations are too small for the deviations of rows that were left out.
fn widening(left_out: &[(f64, f64)]) -> f64 {
    let mut scores: Vec<f64> =
        left_out.iter().map(|(deviation, variance)| deviation.abs() / variance.sqrt()).collect();
    scores.sort_by(f64::total_cmp);
    // One more than the rows, as of an unknown row.
    let at = ((scores.len() + 1) as f64 * COVERAGE).ceil() as usize;
    match scores.get(at.saturating_sub(1)).or(scores.last()) {
        Some(score) if scores.len() >= 5 => (score / HALF_WIDTH).max(0.5),
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests;
