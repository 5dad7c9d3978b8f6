//! Statistics of repeated runs: the median, its confidence interval, and outliers.
//!
//! No distribution is assumed, and no figure is discarded.

use serde::{Deserialize, Serialize};

/// Required confidence of an interval.
const WANTED: f64 = 0.95;
/// A figure is an outlier if its distance from the interquartile range exceeds this multiple of the range
/// (Tukey's fences).
const FENCE: f64 = 1.5;

/// The figures of repeated runs, in their order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Figures of all runs.
    pub runs: Vec<f64>,
}

/// Confidence interval of the population median.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
    /// Confidence of the interval: at least 0.95 for six or more runs.
    pub confidence: f64,
}

impl Sample {
    /// Creates a sample of at least one run.
    pub fn new(runs: Vec<f64>) -> Sample {
        assert!(!runs.is_empty(), "a sample has runs");
        Sample { runs }
    }

    /// Returns the median.
    pub fn median(&self) -> f64 {
        quantile(&self.sorted(), 0.5)
    }

    /// Returns the narrowest interval between two of the figures that contains the population median with 95
    /// % confidence, or else the full range. The number of figures below the median is binomially
    /// distributed.
    pub fn interval(&self) -> Interval {
        let sorted = self.sorted();
        let n = sorted.len();
        let mut best = (0, 1.0 - 2.0 * below(n, 0));
        for cut in 1..n / 2 {
            let confidence = 1.0 - 2.0 * below(n, cut);
            if confidence >= WANTED {
                best = (cut, confidence);
            }
        }
        Interval { low: sorted[best.0], high: sorted[n - 1 - best.0], confidence: best.1.max(0.0) }
    }

    /// Returns the number of outliers.
    pub fn outliers(&self) -> usize {
        let sorted = self.sorted();
        let (first, third) = (quantile(&sorted, 0.25), quantile(&sorted, 0.75));
        let reach = FENCE * (third - first);
        self.runs.iter().filter(|&&run| run < first - reach || run > third + reach).count()
    }

    /// Returns true if the medians of two samples differ significantly; `None` if either has too few runs.
    pub fn differs(&self, other: &Sample) -> Option<bool> {
        let (one, two) = (self.interval(), other.interval());
        let is_sure = one.confidence >= WANTED && two.confidence >= WANTED;
        is_sure.then_some(one.high < two.low || two.high < one.low)
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.runs.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

/// Returns the probability that at most `cut` of `n` figures are below the median.
fn below(n: usize, cut: usize) -> f64 {
    let mut term = 0.5_f64.powi(n as i32);
    let mut sum = term;
    for k in 0..cut {
        term *= (n - k) as f64 / (k + 1) as f64;
        sum += term;
    }
    sum
}

/// Returns the quantile of sorted figures, with linear interpolation.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = share * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_that_of_the_tables() {
        let of = |n: i32| Sample::new((1..=n).map(f64::from).collect()).interval();
        // The ranks in tables of the sign test for 95 %.
        for (n, low) in [(6, 1.0), (8, 1.0), (9, 2.0), (12, 3.0), (20, 6.0)] {
            let interval = of(n);
            assert_eq!((interval.low, interval.high), (low, f64::from(n) + 1.0 - low), "{n}");
            assert!((0.95..0.995).contains(&interval.confidence), "{n}: {interval:?}");
        }
        assert_eq!((of(5).low, of(5).high, of(5).confidence), (1.0, 5.0, 0.9375));
        assert_eq!(of(1).confidence, 0.0, "one run gives no interval");
    }

    #[test]
    fn outliers_are_counted_and_kept() {
        let sample = Sample::new(vec![10.0, 11.0, 10.5, 90.0, 10.2, 10.8, 10.4]);
        assert_eq!((sample.outliers(), sample.median(), sample.runs.len()), (1, 10.5, 7));
        assert_eq!(Sample::new(vec![1.0, 3.0]).median(), 2.0);
    }

    #[test]
    fn samples_differ_if_their_intervals_do_not_touch() {
        let of = |from: f64| Sample::new((0..6).map(|n| from + f64::from(n)).collect());
        assert_eq!((of(1.0).differs(&of(7.0)), of(7.0).differs(&of(1.0))), (Some(true), Some(true)));
        assert_eq!(of(1.0).differs(&of(6.0)), Some(false));
        assert_eq!(of(1.0).differs(&Sample::new(vec![100.0; 5])), None, "five runs are too few");
    }
}
