//! Deviations of rows from a mechanism, as a Gaussian process: rows that are alike deviate alike.
//!
//! Rows are alike if they have the same size, order and number of units, or are all beyond the limit of open units.
//! The process gives the deviation at any point with its standard deviation, and that of each row as predicted from
//! all others, in closed form.

use super::{Point, mechanism::Mechanism};

/// Variances of the parts of the process, as squares of logarithms of times. They are those that predict held-out
/// rows of the cards of `testdata/reference/cards-measured.txt` best, all cards together.
struct Variances {
    /// Octaves of size over which deviations become independent.
    octaves: f64,
    /// Share of the deviations that a size has alone.
    own_size: f64,
    common: f64,
    order: f64,
    regime: f64,
    order_and_regime: f64,
    /// Growth with each doubling of the units.
    units: f64,
    order_and_units: f64,
    /// Noise of a row.
    row: f64,
}

const VARIANCES: Variances = Variances {
    octaves: 7.2,
    own_size: 0.95,
    common: 0.03,
    order: 1.07,
    regime: 0.03,
    order_and_regime: 0.33,
    units: 0.02,
    order_and_units: 0.033,
    row: 0.0002,
};
/// A row that deviates by more standard deviations than this from all others has a noise of its own.
const OUTLIER: f64 = 3.0;
/// Largest deviation from the mechanism, as a logarithm.
const LARGEST: f64 = 3.0;
/// Least variance of a prediction.
const LEAST: f64 = 1e-4;

/// A mechanism with the deviations of the rows from it.
#[derive(Debug, Clone)]
pub(super) struct Process {
    pub(super) mechanism: Mechanism,
    points: Vec<Point>,
    weights: Vec<f64>,
    /// Lower triangle of the Cholesky decomposition of the rows' covariances.
    factor: Vec<Vec<f64>>,
    /// Deviation of each row from its prediction by all others, with its variance.
    pub(super) left_out: Vec<(f64, f64)>,
    /// Logarithm of the likelihood of the rows, each predicted from all others, with long tails.
    pub(super) likelihood: f64,
}

impl Process {
    /// Fits the process to the rows.
    pub(super) fn new(mechanism: Mechanism, points: &[Point], ns: &[f64]) -> Process {
        let deviations: Vec<f64> = points
            .iter()
            .zip(ns)
            .map(|(at, ns)| (ns / mechanism.ns(at)).ln().clamp(-LARGEST, LARGEST))
            .collect();
        let mut noise = vec![VARIANCES.row; points.len()];
        let covariances: Vec<Vec<f64>> = points
            .iter()
            .enumerate()
            .map(|(n, one)| points[..=n].iter().map(|other| covariance(&mechanism, one, other)).collect())
            .collect();
        let mut process = Process {
            mechanism,
            points: points.to_vec(),
            weights: Vec::new(),
            factor: Vec::new(),
            left_out: Vec::new(),
            likelihood: 0.0,
        };
        for _ in 0..2 {
            process.solve(&covariances, &noise, &deviations);
            for ((left_out, noise), _) in process.left_out.iter().zip(&mut noise).zip(ns) {
                let (deviation, variance) = *left_out;
                if deviation * deviation > OUTLIER * OUTLIER * variance {
                    *noise = VARIANCES.row + deviation * deviation;
                }
            }
        }
        let term = |(deviation, variance): &(f64, f64)| {
            let variance = variance + LEAST;
            -0.5 * variance.ln() - 2.0 * (deviation * deviation / variance / 3.0).ln_1p()
        };
        process.likelihood = process.left_out.iter().map(term).sum();
        process
    }

    fn solve(&mut self, covariances: &[Vec<f64>], noise: &[f64], deviations: &[f64]) {
        self.factor = cholesky(covariances, noise);
        self.weights = backward(&self.factor, forward(&self.factor, deviations));
        let count = deviations.len();
        self.left_out = (0..count)
            .map(|n| {
                let mut unit = vec![0.0; count];
                unit[n] = 1.0;
                let inverse: f64 = forward(&self.factor, &unit).iter().map(|it| it * it).sum();
                (self.weights[n] / inverse, 1.0 / inverse)
            })
            .collect();
    }

    /// Returns the logarithm of the time in nanoseconds at a point, and its variance.
    pub(super) fn log_ns(&self, at: &Point) -> (f64, f64) {
        let alike: Vec<f64> =
            self.points.iter().map(|point| covariance(&self.mechanism, at, point)).collect();
        let deviation: f64 = alike.iter().zip(&self.weights).map(|(a, b)| a * b).sum();
        let known: f64 = forward(&self.factor, &alike).iter().map(|it| it * it).sum();
        let variance = covariance(&self.mechanism, at, at) + VARIANCES.row - known;
        (self.mechanism.ns(at).ln() + deviation.clamp(-LARGEST, LARGEST), variance.max(LEAST))
    }
}

/// Returns the covariance of the deviations at two points.
fn covariance(mechanism: &Mechanism, one: &Point, other: &Point) -> f64 {
    let v = &VARIANCES;
    let octaves = (one.bytes.log2() - other.bytes.log2()).abs();
    let by_size = (1.0 - v.own_size) * (-octaves / v.octaves).exp();
    let by_size = by_size + if octaves < 0.01 { v.own_size } else { 0.0 };
    let regime = |at: &Point| (at.units <= 1.0, mechanism.structure.is_over(at.units));
    let doublings = one.units.min(other.units).log2();
    let mut sum = v.common + v.units * doublings;
    let same_regime = regime(one) == regime(other);
    if same_regime {
        sum += v.regime;
    }
    if one.out_of_order == other.out_of_order {
        sum += v.order + v.order_and_units * doublings;
        if same_regime {
            sum += v.order_and_regime;
        }
    }
    sum * by_size
}

/// Decomposes a symmetric matrix, given by its lower triangle, with the noise on its diagonal.
fn cholesky(covariances: &[Vec<f64>], noise: &[f64]) -> Vec<Vec<f64>> {
    let mut factor: Vec<Vec<f64>> = Vec::with_capacity(covariances.len());
    for (i, row) in covariances.iter().enumerate() {
        let mut new: Vec<f64> = Vec::with_capacity(i + 1);
        for (j, covariance) in row.iter().enumerate().take(i) {
            let done: f64 = new.iter().zip(&factor[j]).map(|(a, b)| a * b).sum();
            new.push((covariance - done) / factor[j][j]);
        }
        let done: f64 = new.iter().map(|it| it * it).sum();
        new.push((row[i] + noise[i] - done).max(1e-12).sqrt());
        factor.push(new);
    }
    factor
}

/// Solves `factor * x = right`.
fn forward(factor: &[Vec<f64>], right: &[f64]) -> Vec<f64> {
    let mut found: Vec<f64> = Vec::with_capacity(right.len());
    // Leading zeroes stay zeroes.
    let zeroes = right.iter().take_while(|it| **it == 0.0).count();
    found.resize(zeroes, 0.0);
    for i in zeroes..right.len() {
        let done: f64 = factor[i][zeroes..].iter().zip(&found[zeroes..]).map(|(a, b)| a * b).sum();
        found.push((right[i] - done) / factor[i][i]);
    }
    found
}

/// Solves `transposed factor * x = right`.
fn backward(factor: &[Vec<f64>], mut right: Vec<f64>) -> Vec<f64> {
    for i in (0..right.len()).rev() {
        right[i] /= factor[i][i];
        let found = right[i];
        for (j, left) in right.iter_mut().enumerate().take(i) {
            *left -= factor[i][j] * found;
        }
    }
    right
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_is_solved_by_its_decomposition() {
        let matrix = vec![vec![4.0], vec![2.0, 5.0], vec![1.0, 0.5, 3.0]];
        let factor = cholesky(&matrix, &[0.0, 0.5, 0.0]);
        let found = backward(&factor, forward(&factor, &[1.0, 2.0, 3.0]));
        let full = [[4.0, 2.0, 1.0], [2.0, 5.5, 0.5], [1.0, 0.5, 3.0]];
        for (row, right) in full.iter().zip([1.0, 2.0, 3.0]) {
            let left: f64 = row.iter().zip(&found).map(|(a, b)| a * b).sum();
            assert!((left - right).abs() < 1e-12, "{found:?}");
        }
    }
}
