//! Steady state: a part is repeated until its rate stands.
//!
//! The criterion is that of SNIA's Solid State Storage Performance Test Specification: in a window of five rounds,
//! the range of the rates is at most 20 % of their mean, so each is within about 10 % of it, and the range of the line
//! fitted through them at most 10 %. After 25 rounds the part ends without it.

use guest::Op;
use serde::{Deserialize, Serialize};

use super::{Bench, Part, Phase};
use crate::vm::Failure;

/// Number of rounds over which the rate has to stand.
const WINDOW: usize = 5;
/// Maximum number of rounds.
const ROUNDS_MAX: usize = 25;
/// Maximum range of the rates in the window, relative to their mean.
const RANGE_MAX: f64 = 0.2;
/// Maximum range of the fitted line in the window, relative to their mean.
const DRIFT_MAX: f64 = 0.1;

/// Rounds of a part that was repeated until its rate stood. The part's figure and counts are those of the last five.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SteadyState {
    /// The figure of each round, in the part's unit.
    pub figures: Vec<f64>,
    /// True if the rate stood; false if the rounds were used up before.
    pub is_reached: bool,
}

impl Bench<'_> {
    /// Runs the operation of each round, which writes `records` records, until their rate stands.
    pub(super) fn measure_until_steady(
        &mut self,
        records: u64,
        round: &dyn Fn(u64) -> Op,
    ) -> Result<(), Failure> {
        let part = self.next_part();
        let mut rounds: Vec<Phase> = Vec::new();
        let mut rates = Vec::new();
        while rounds.len() < ROUNDS_MAX && !stands(&rates) {
            let phase = self.timed(part, records, &[round(rounds.len() as u64)])?;
            rates.push(records as f64 / phase.duration_ns.max(1) as f64);
            rounds.push(phase);
        }
        let figures = rounds.iter().map(|phase| phase.value).collect();
        let window = rounds.split_off(rounds.len().saturating_sub(WINDOW));
        if let Some(sum) = window.into_iter().reduce(|sum, next| sum.with(next, part)) {
            let steady = SteadyState { figures, is_reached: stands(&rates) };
            (self.done)(Phase { steady: Some(steady), ..sum });
        }
        Ok(())
    }
}

impl Phase {
    /// Returns this round and the next one as one part.
    fn with(mut self, next: Phase, part: &Part) -> Phase {
        self.records += next.records;
        self.duration_ns += next.duration_ns;
        self.value = part.unit.of(self.records, self.duration_ns);
        self.totals.add(&next.totals);
        self.flash.add(&next.flash);
        self
    }
}

/// Returns true if the rates of the last rounds meet the criterion.
fn stands(rates: &[f64]) -> bool {
    let Some(window) = rates.len().checked_sub(WINDOW).map(|from| &rates[from..]) else { return false };
    let mean = window.iter().sum::<f64>() / WINDOW as f64;
    let most = window.iter().copied().fold(f64::MIN, f64::max);
    let least = window.iter().copied().fold(f64::MAX, f64::min);
    // The slope of the line through the points (-2, a), (-1, b), (0, c), (1, d), (2, e) by least squares.
    let middle = (WINDOW / 2) as f64;
    let places = (0..WINDOW).map(|n| n as f64 - middle);
    let squares: f64 = places.clone().map(|at| at * at).sum();
    let slope = places.zip(window).map(|(at, rate)| at * rate).sum::<f64>() / squares;
    let drift = slope.abs() * (WINDOW - 1) as f64;
    most - least <= RANGE_MAX * mean && drift <= DRIFT_MAX * mean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_stands_if_five_rounds_are_alike_and_do_not_drift() {
        assert!(!stands(&[100.0; 4]), "too few rounds");
        assert!(stands(&[500.0, 100.0, 100.0, 100.0, 100.0, 100.0]), "the first one is out of the window");
        assert!(!stands(&[500.0, 100.0, 100.0, 100.0, 100.0]));
        assert!(stands(&[91.0, 109.0, 91.0, 109.0, 91.0]), "noise of 9 %");
        assert!(!stands(&[88.0, 112.0, 88.0, 112.0, 88.0]), "noise of 12 %");
        assert!(!stands(&[106.0, 103.0, 100.0, 97.0, 94.0]), "it falls by 12 %");
        assert!(stands(&[104.0, 102.0, 100.0, 98.0, 96.0]), "it falls by 8 %");
    }
}
