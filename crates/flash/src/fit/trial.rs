//! Judgement of fits by rows that they have not seen.

use block::Rng;
use serde::Serialize;

use super::{COVERAGE, Fit, FitError, export};
use crate::rows::{Key, Measured, Operation, simulate};

/// The rows to leave out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HoldOut {
    /// A share of the rows.
    Share(f64),
    /// A number of rows.
    Count(usize),
}

/// A row that was left out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrialRow {
    /// Conditions.
    #[serde(flatten)]
    pub key: Key,
    /// Measured rate in bytes per second.
    pub measured_bytes_per_s: f64,
    /// Rate of the model in bytes per second.
    pub model_bytes_per_s: f64,
    /// Ends of the interval that is to contain nine tenths of the rows, in bytes per second.
    pub from_bytes_per_s: f64,
    /// Its upper end.
    pub to_bytes_per_s: f64,
    /// Model over measured, less 1.
    pub error: f64,
}

/// The result of one trial.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trial {
    /// Seed of the choice of rows.
    pub seed: u64,
    /// Number of rows that the fit has seen.
    pub fitted_rows: usize,
    /// The others, with their predictions.
    pub rows: Vec<TrialRow>,
}

impl Trial {
    /// Returns the share of the rows whose error is at most this.
    pub fn share_within(&self, error: f64) -> f64 {
        let near = self.rows.iter().filter(|row| row.error.abs() <= error).count();
        near as f64 / self.rows.len().max(1) as f64
    }

    /// Returns the median of the errors without their signs.
    pub fn median_error(&self) -> f64 {
        let mut errors: Vec<f64> = self.rows.iter().map(|row| row.error.abs()).collect();
        errors.sort_by(f64::total_cmp);
        errors.get(errors.len() / 2).copied().unwrap_or(0.0)
    }

    /// Returns the share of the rows within their intervals; [`COVERAGE`] is intended.
    pub fn coverage(&self) -> f64 {
        let within =
            |row: &&TrialRow| (row.from_bytes_per_s..=row.to_bytes_per_s).contains(&row.measured_bytes_per_s);
        self.rows.iter().filter(within).count() as f64 / self.rows.len().max(1) as f64
    }

    /// Returns the row with the largest error, as a factor.
    pub fn worst(&self) -> Option<&TrialRow> {
        let factor = |row: &TrialRow| (row.model_bytes_per_s / row.measured_bytes_per_s).ln().abs();
        self.rows.iter().max_by(|one, other| factor(one).total_cmp(&factor(other)))
    }

    /// Formats the result in one line.
    pub fn to_text(&self) -> String {
        format!(
            "seed {}: fitted {} rows, judged {}: {:.0} % within 20 %, median error {:.1} %, {:.0} % within their \
             {:.0} % intervals",
            self.seed,
            self.fitted_rows,
            self.rows.len(),
            self.share_within(0.2) * 100.0,
            self.median_error() * 100.0,
            self.coverage() * 100.0,
            COVERAGE * 100.0
        )
    }
}

/// Splits the rows at random: a card with those to fit, and one with those left out.
pub fn split(measured: &Measured, how: HoldOut, seed: u64) -> (Measured, Measured) {
    let mut order: Vec<usize> = (0..measured.rows.len()).collect();
    Rng::new(seed).shuffle(&mut order);
    let count = match how {
        HoldOut::Share(share) => (order.len() as f64 * share).round() as usize,
        HoldOut::Count(count) => count,
    };
    let part = |of: &[usize]| {
        let mut of = of.to_vec();
        of.sort_unstable();
        let rows = of.into_iter().map(|n| measured.rows[n].clone()).collect();
        Measured { rows, ..measured.clone() }
    };
    let (out, kept) = order.split_at(count.min(order.len()));
    (part(kept), part(out))
}

/// Fits the rows without those left out, and judges the profile by these.
///
/// # Errors
/// [`FitError`].
pub fn hold_out(measured: &Measured, how: HoldOut, seed: u64) -> Result<Trial, FitError> {
    let (kept, out) = split(measured, how, seed);
    let has_writes = |rows: &Measured| rows.rows.iter().any(|row| row.key.op == Operation::Write);
    if kept.rows.len() < 2 || (has_writes(&out) && !has_writes(&kept)) {
        return Err(FitError::TooFew { name: measured.name.clone(), count: kept.rows.len(), least: 2 });
    }
    let fit = Fit::new(&kept, &mut |_| ())?;
    let profile = export(&fit, &kept)?;
    let mut rows = Vec::new();
    for row in &out.rows {
        let Some(predicted) = fit.predict(&row.key) else { continue };
        let model = simulate::rate(&profile, &row.key, measured.unit_bytes)?;
        let rate = |ns: f64| row.key.bytes as f64 / ns * 1e9;
        rows.push(TrialRow {
            key: row.key,
            measured_bytes_per_s: row.bytes_per_s,
            model_bytes_per_s: model,
            from_bytes_per_s: rate(predicted.to_ns),
            to_bytes_per_s: rate(predicted.from_ns),
            error: model / row.bytes_per_s - 1.0,
        });
    }
    Ok(Trial { seed, fitted_rows: kept.rows.len(), rows })
}
