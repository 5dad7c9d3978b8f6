//! Statistics of repeated runs: the median, its confidence interval, and outliers.
//!
//! No distribution is assumed, and no figure is discarded.

use serde::{Deserialize, Serialize};

/// Required confidence of an interval.
const WANTED: f64 = 0.95;
/// A figure is an outlier if its distance from the interquartile range exceeds this multiple of the range
/// (Tukey's fences).
const FENCE: f64 = 1.5;

/// Maximum number of runs: the smallest probability of [`Sample::interval`] is still a normal number.
pub const RUNS_MAX: usize = 1000;

/// The figures of repeated runs, in their order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Stored")]
pub struct Sample {
    /// Figures of all runs.
    pub runs: Vec<f64>,
}

/// A sample in a file, which may be wrong.
#[derive(Deserialize)]
struct Stored {
    runs: Vec<f64>,
}

impl TryFrom<Stored> for Sample {
    type Error = String;

    fn try_from(Stored { runs }: Stored) -> Result<Sample, String> {
        match runs.len() {
            1..=RUNS_MAX => Ok(Sample { runs }),
            count => Err(format!("a sample of {count} runs, must be 1 to {RUNS_MAX}")),
        }
    }
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
    /// Creates a sample of 1 to [`RUNS_MAX`] runs.
    pub fn new(runs: Vec<f64>) -> Sample {
        assert!((1..=RUNS_MAX).contains(&runs.len()), "a sample of {} runs", runs.len());
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
        // The probability that exactly `cut` figures are below the median, and that at most so many are.
        let mut exactly = 0.5_f64.powi(n as i32);
        let mut at_most = exactly;
        let mut best = (0, 1.0 - 2.0 * at_most);
        for cut in 1..n / 2 {
            exactly *= (n - cut + 1) as f64 / cut as f64;
            at_most += exactly;
            let confidence = 1.0 - 2.0 * at_most;
            if confidence < WANTED {
                break;
            }
            best = (cut, confidence);
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

    /// 0.5 to the power of more runs than the limit is no number, and an empty sample has no median.
    #[test]
    fn a_file_has_one_to_a_thousand_runs() {
        let of = |runs: usize| {
            let stored = serde_json::json!({ "runs": vec![1.5; runs] });
            serde_json::from_value::<Sample>(stored).map(|sample| sample.interval().confidence)
        };
        assert!(of(0).is_err() && of(RUNS_MAX + 1).is_err());
        let most = of(RUNS_MAX).expect("it is read");
        assert!((0.95..0.96).contains(&most), "{most}");
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
