//! Answers from samples: pure functions that are robust against disturbed measurements.
//!
//! Noise on a device only adds time (other work of the card or the host), and rarely much. So medians and
//! lower quartiles are used. If some requests are expensive by nature, the mean is used, with the longest
//! times capped. The confidence of an answer comes from resampling: it is the share of resamples of the same
//! measurements that give the same answer.

use block::Rng;

/// Number of resamples for a confidence.
const RESAMPLES: usize = 200;

/// Returns an interpolated quantile: `q` = 0.5 is the median. `samples` must not be empty.
pub fn quantile(samples: &[f64], q: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = q * (sorted.len() - 1) as f64;
    let (low, share) = (at.floor() as usize, at.fract());
    let high = (low + 1).min(sorted.len() - 1);
    sorted[low] * (1.0 - share) + sorted[high] * share
}

/// Returns the median.
pub fn median(samples: &[f64]) -> f64 {
    quantile(samples, 0.5)
}

/// Returns a capped mean. It suits operations of which some are expensive by nature, such as merges, so that
/// the median says little. No sample counts for more than the 95th percentile, because one stall could distort
/// the result.
pub fn usual_mean(samples: &[f64]) -> f64 {
    let most = quantile(samples, 0.95);
    samples.iter().map(|sample| sample.min(most)).sum::<f64>() / samples.len() as f64
}

/// Samples taken at one setting (a distance, a number of streams, a size).
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// The setting.
    pub at: u64,
    /// Times of single requests, in nanoseconds.
    pub samples: Vec<f64>,
}

impl Point {
    /// Returns the median time.
    pub fn median(&self) -> f64 {
        median(&self.samples)
    }
}

/// An answer with its confidence: the share of resamples that agree with it.
pub fn resampled<T: PartialEq>(points: &[Point], seed: u64, answer: impl Fn(&[Point]) -> T) -> (T, f64) {
    let best = answer(points);
    let mut rng = Rng::new(seed);
    let mut agreeing = 0;
    for _ in 0..RESAMPLES {
        let again: Vec<Point> = points
            .iter()
            .map(|point| {
                let count = point.samples.len() as u64;
                let pick = |_| point.samples[rng.below(count) as usize];
                Point { at: point.at, samples: (0..count).map(pick).collect() }
            })
            .collect();
        agreeing += usize::from(answer(&again) == best);
    }
    (best, agreeing as f64 / RESAMPLES as f64)
}

/// Returns a line between two times: at equal ratio from both, but not above their mean.
pub fn between(fast: f64, slow: f64) -> f64 {
    (fast * slow).sqrt().min(fast + (slow - fast) * 0.5)
}

/// Finds the jump in the cost of streams. Returns the largest number of streams without merges, or `None` if
/// there is no jump. A jump is a merge if it costs more than writing `factor` times as much would.
pub fn stream_limit(points: &[Point], program_ns: f64, factor: f64) -> Option<u64> {
    let least = points.iter().map(Point::median).fold(f64::INFINITY, f64::min);
    let most = points.iter().map(Point::median).fold(0.0, f64::max);
    if most - least < program_ns * factor {
        return None;
    }
    // From the first point on whose ratio to the highest cost is smaller than to the lowest.
    let line = between(least, most);
    let first = points.iter().position(|point| point.median() > line)?;
    let stays = points[first..].iter().all(|point| point.median() > line);
    (first > 0 && stays).then(|| points[first - 1].at)
}

/// Finds the point where the cost rises above the line and stays there; `None` if it does not.
pub fn rises(points: &[Point], line: f64) -> Option<u64> {
    let first = points.iter().rposition(|point| point.median() <= line)? + 1;
    let below = points[..first].iter().all(|point| point.median() <= line);
    (below && first < points.len()).then(|| points[first].at)
}

/// Finds the point where the cost falls below the line for the last time; `None` if it does not.
pub fn falls(points: &[Point], line: f64) -> Option<u64> {
    let last_above = points.iter().rposition(|point| point.median() > line)?;
    points.get(last_above + 1).map(|point| point.at)
}

/// Returns the median of the samples and the sum of their distances from it.
fn deviation(samples: &[f64]) -> (f64, f64) {
    let middle = median(samples);
    (middle, samples.iter().map(|sample| (sample - middle).abs().min(middle)).sum())
}

/// Returns by how much the median of `high` is above that of `low`, and the least difference that noise does not explain.
fn difference(low: &[f64], high: &[f64]) -> (f64, f64) {
    let ((below, one), (above, two)) = (deviation(low), deviation(high));
    let error = one / (low.len() as f64).powf(1.5) + two / (high.len() as f64).powf(1.5);
    (above - below, (8.0 * error).max(0.015 * below))
}

/// Returns by how much the median of `high` is above that of `low`; `None` if noise may explain the difference.
pub fn rise(low: &[f64], high: &[f64]) -> Option<f64> {
    let (difference, least) = difference(low, high);
    (difference > least).then_some(difference)
}

/// Returns the samples of all points.
pub fn pooled<'a>(points: impl IntoIterator<Item = &'a Point>) -> Vec<f64> {
    points.into_iter().flat_map(|point| point.samples.iter().copied()).collect()
}

/// Finds a small step up in the cost that noise does not explain: the split of the points into lower and
/// higher ones with the least absolute deviations. `None` if the two halves do not differ significantly.
pub fn steps_up(points: &[Point]) -> Option<u64> {
    // A single point at the end does not make a step.
    let splits = (1..points.len() - 1).map(|at| {
        let (low, high) = (pooled(&points[..at]), pooled(&points[at..]));
        (deviation(&low).1 + deviation(&high).1, points[at].at, rise(&low, &high).is_some())
    });
    let (_, at, differs) = splits.min_by(|one, two| one.0.total_cmp(&two.0))?;
    differs.then_some(at)
}

/// Returns true if the cost may rise at some point by less than [`steps_up`] finds: by a third of it.
pub fn may_step_up(points: &[Point]) -> bool {
    (1..points.len().saturating_sub(1)).any(|at| {
        let (difference, least) = difference(&pooled(&points[..at]), &pooled(&points[at..]));
        difference > least / 3.0
    })
}

/// Finds the block in which a forward jump copies the gap, from the times of jumps by distance. Before each
/// jump, `written` bytes were written at a block's start. A jump within the block copies the gap. A jump out
/// of it copies the rest of the block and the start of the target block.
pub fn copied_block(points: &[Point], written: u64) -> u64 {
    let errors = points.iter().map(|candidate| {
        let block = candidate.at;
        let copied = |distance: u64| match distance < block {
            true => distance - written,
            false => block - written + distance % block,
        };
        let rows = points.iter().map(|point| (copied(point.at) as f64, point.median()));
        (block, line_through(rows).2)
    });
    errors.min_by(|one, two| one.1.total_cmp(&two.1)).expect("there are points").0
}

/// Cost of a write by its size: `command + per_byte * size in whole stripes`, and more if it is short.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WriteCost {
    /// Writes below this size, in bytes, cost the same.
    pub stripe_bytes: u64,
    /// Fixed cost of a write, in nanoseconds.
    pub command_ns: f64,
    /// Cost of each byte, in nanoseconds.
    pub byte_ns: f64,
    /// Writes below this size, in bytes, cost more; 0 if none do.
    pub short_bytes: u64,
    /// Extra cost of a short write, in nanoseconds.
    pub short_ns: f64,
}

impl WriteCost {
    /// Time of a write, in nanoseconds.
    pub fn of(&self, bytes: u64) -> f64 {
        let short_ns = if bytes < self.short_bytes { self.short_ns } else { 0.0 };
        self.command_ns + self.byte_ns * bytes.next_multiple_of(self.stripe_bytes) as f64 + short_ns
    }
}

/// Maximum root mean square of the relative errors of an accepted fit.
const MISFIT: f64 = 0.1;

/// If the largest size costs at most this many times the smallest, all sizes are within one stripe.
const FLAT: f64 = 1.1;

/// Fits a cost to times by size, weighted by relative error. If no line fits, short writes may cost more than
/// the rest; `large` is then one more size, of writes that are certainly not short. If all sizes cost the
/// same, the stripe is the smallest power of two that no size exceeds.
pub fn write_cost(points: &[Point], large: Option<&Point>) -> WriteCost {
    let rows = |points: &[Point]| -> Vec<(u64, f64)> {
        points.iter().map(|point| (point.at, quantile(&point.samples, 0.3).max(1.0))).collect()
    };
    let all = rows(points);
    let stripes = || points[..points.len() - 1].iter().map(|point| point.at);
    let line = |rows: &[(u64, f64)], stripe_bytes: u64| {
        line_through(rows.iter().map(|(at, ns)| (at.next_multiple_of(stripe_bytes) as f64, *ns)))
    };
    let plain = stripes().map(|stripe_bytes| {
        let (command_ns, byte_ns, error) = line(&all, stripe_bytes);
        (WriteCost { stripe_bytes, command_ns, byte_ns, short_bytes: 0, short_ns: 0.0 }, error)
    });
    let (first, last) = (all[0], all[all.len() - 1]);
    if last.1 < first.1 * FLAT {
        let stripe_bytes = last.0.next_power_of_two();
        let ends = [(last.0, last.1)].into_iter().chain(large.map(|large| (large.at, large.median())));
        let (command_ns, byte_ns, _) = line(&ends.collect::<Vec<_>>(), stripe_bytes);
        return WriteCost { stripe_bytes, command_ns, byte_ns, short_bytes: 0, short_ns: 0.0 };
    }
    let better = |one: &(WriteCost, f64), two: &(WriteCost, f64)| one.1.total_cmp(&two.1);
    let (plain, error) = plain.min_by(better).expect("there are at least three sizes");
    let Some(large) = large.filter(|_| error > MISFIT * MISFIT * all.len() as f64) else { return plain };
    let with_large: Vec<(u64, f64)> = all.iter().copied().chain(rows(std::slice::from_ref(large))).collect();
    let cuts = 1..all.len();
    let stepped = cuts.flat_map(|cut| stripes().map(move |stripe_bytes| (cut, stripe_bytes))).map(
        |(cut, stripe_bytes)| {
            let (command_ns, byte_ns, _) = line(&with_large[cut..], stripe_bytes);
            let base = WriteCost { stripe_bytes, command_ns, byte_ns, short_bytes: 0, short_ns: 0.0 };
            let more: Vec<f64> = all[..cut].iter().map(|(at, ns)| ns - base.of(*at)).collect();
            let cost = WriteCost { short_bytes: all[cut].0, short_ns: median(&more), ..base };
            let error = with_large.iter().map(|(at, ns)| (cost.of(*at) / ns - 1.0).powi(2)).sum();
            (cost, error)
        },
    );
    match stepped.filter(|(cost, _)| cost.short_ns > 0.0).min_by(better) {
        Some((cost, stepped)) if stepped < error / 4.0 => cost,
        _ => plain,
    }
}

/// Returns the intercept and the slope, neither negative, with the least squared relative error, and that
/// error.
pub fn line_through(rows: impl Iterator<Item = (f64, f64)>) -> (f64, f64, f64) {
    // A clock may be too coarse for the write, so no time is below a nanosecond.
    let rows: Vec<(f64, f64)> = rows.map(|(x, y)| (x, y.max(1.0))).collect();
    let fit = |with_intercept: bool| {
        let (mut w, mut wx, mut wy, mut wxx, mut wxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (x, y) in &rows {
            let weight = 1.0 / (y * y);
            w += weight;
            wx += weight * x;
            wy += weight * y;
            wxx += weight * x * x;
            wxy += weight * x * y;
        }
        if !with_intercept {
            return (0.0, wxy / wxx);
        }
        let spread = w * wxx - wx * wx;
        // All points have the same size, so there is no slope.
        let slope = if spread > 1e-12 * w * wxx { (w * wxy - wx * wy) / spread } else { 0.0 };
        ((wy - slope * wx) / w, slope)
    };
    let (mut intercept, mut slope) = fit(true);
    if intercept < 0.0 {
        (intercept, slope) = fit(false);
    }
    if slope < 0.0 {
        (intercept, slope) = (median(&rows.iter().map(|(_, y)| *y).collect::<Vec<_>>()), 0.0);
    }
    let error = rows.iter().map(|(x, y)| ((intercept + slope * x) / y - 1.0).powi(2)).sum();
    (intercept, slope, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stick of bergmann-2012: 4.4 ms more below 64 KiB.
    #[test]
    fn short_writes_may_cost_more() {
        let ms = |kib: u64| 0.3 + kib as f64 / 4.0 * 0.27 + if kib < 64 { 4.4 } else { 0.0 };
        let sizes: Vec<(u64, f64)> = [4, 8, 16, 32, 64, 96].map(|kib| (kib << 10, ms(kib) * 1e6)).to_vec();
        let large = Point { at: 1 << 20, samples: vec![ms(1024) * 1e6; 9] };
        let cost = write_cost(&points(&sizes), Some(&large));
        assert_eq!((cost.stripe_bytes, cost.short_bytes), (4096, 64 << 10));
        assert!((cost.short_ns / 4.4e6 - 1.0).abs() < 0.01 && (cost.command_ns / 0.3e6 - 1.0).abs() < 0.01);
        // If a line fits, no size counts as short.
        let sizes: Vec<(u64, f64)> = sizes.iter().map(|(at, _)| (*at, 3e5 + *at as f64 * 66.0)).collect();
        assert_eq!(write_cost(&points(&sizes), Some(&large)).short_bytes, 0);
    }

    fn points(values: &[(u64, f64)]) -> Vec<Point> {
        values.iter().map(|(at, value)| Point { at: *at, samples: vec![*value; 9] }).collect()
    }

    #[test]
    fn quantiles_ignore_the_outliers() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[1.0, 2.0, 3.0, 1e9]), 2.5);
        assert_eq!(quantile(&[1.0], 0.3), 1.0);
        let half_dear: Vec<f64> = (0..100).map(|n| if n % 2 == 0 { 1.0 } else { 9.0 }).collect();
        assert_eq!(usual_mean(&half_dear), 5.0);
        assert_eq!(usual_mean(&[&half_dear[..], &[1e6]].concat()).round(), 5.0, "a stall");
    }

    #[test]
    fn a_device_without_delays_gives_finite_results() {
        let (intercept, slope, error) = line_through([(4096.0, 0.0), (8192.0, 0.0)].into_iter());
        assert!(intercept.is_finite() && slope.is_finite() && error.is_finite());
        let sizes = [4, 8, 16, 32, 64, 96].map(|kib| (kib << 10, 0.0));
        let cost = write_cost(&points(&sizes), None);
        assert!(cost.command_ns.is_finite() && cost.byte_ns.is_finite());
    }

    #[test]
    fn a_limit_is_a_jump_in_cost_above_that_of_a_switch() {
        let steps =
            |at: u64| points(&[(1, 10.0), (2, 12.0), (3, if at < 3 { 90.0 } else { 12.0 }), (4, 95.0)]);
        assert_eq!(stream_limit(&steps(2), 10.0, 1.5), Some(2));
        assert_eq!(stream_limit(&steps(3), 10.0, 1.5), Some(3));
        assert_eq!(stream_limit(&points(&[(1, 10.0), (2, 13.0), (3, 13.0)]), 10.0, 1.5), None);
        assert_eq!(stream_limit(&points(&[(1, 10.0), (2, 90.0), (3, 91.0)]), 10.0, 1.5), Some(1));
    }

    #[test]
    fn steps_are_found_up_and_down() {
        let up = points(&[(1, 1.0), (2, 1.1), (3, 9.0), (4, 9.5)]);
        assert_eq!((rises(&up, 3.0), falls(&up, 3.0)), (Some(3), None));
        let down = points(&[(1, 1.0), (2, 9.0), (3, 9.0), (4, 1.0)]);
        assert_eq!((rises(&down, 3.0), falls(&down, 3.0)), (None, Some(4)));
        assert_eq!(rises(&points(&[(1, 9.0), (2, 9.0)]), 3.0), None);
    }

    #[test]
    fn small_steps_are_distinguished_from_noise() {
        let noisy = |step: f64, seed: u64| -> Vec<Point> {
            let mut rng = Rng::new(seed);
            let mut sample = |level: f64| (0..24).map(|_| level * (1.0 + 0.1 * rng.unit())).collect();
            (0..10).map(|n| Point { at: n, samples: sample(if n < 4 { 1.0 } else { 1.0 + step }) }).collect()
        };
        for seed in 0..20 {
            assert_eq!(steps_up(&noisy(0.05, seed)), Some(4));
            assert_eq!(steps_up(&noisy(0.0, seed)), None);
        }
    }

    #[test]
    fn a_step_that_is_too_small_to_be_found_is_not_excluded() {
        let steps = |step: f64| -> Vec<Point> {
            let level = |n: u64| if n < 4 { 1.0 } else { 1.0 + step };
            (0..10).map(|n| Point { at: n, samples: vec![level(n); 24] }).collect()
        };
        assert!(steps_up(&steps(0.012)).is_none() && may_step_up(&steps(0.012)));
        assert!(!may_step_up(&steps(0.0)) && !may_step_up(&[]));
    }

    #[test]
    fn the_erase_block_is_found_by_its_jumps() {
        for block in [4u64, 8, 12] {
            let copied = |d: u64| if d < block { d } else { block + d % block };
            let times: Vec<(u64, f64)> = [1u64, 2, 3, 4, 6, 8, 12, 16, 24, 32]
                .iter()
                .map(|d| (*d, 5.0 + 2.0 * copied(*d) as f64))
                .collect();
            assert_eq!(copied_block(&points(&times), 0), block);
        }
    }

    #[test]
    fn the_page_is_the_size_below_which_writes_get_no_cheaper() {
        for page in [4096u64, 16384, 32768, 65536] {
            let cost = |size: u64| 500.0 + 0.1 * size.next_multiple_of(page) as f64;
            let sizes = [4, 8, 16, 32, 64, 96].map(|kib| (kib << 10, cost(kib << 10)));
            let fitted = write_cost(&points(&sizes), None);
            assert_eq!(fitted.stripe_bytes, page);
            assert!((fitted.command_ns - 500.0).abs() < 1.0 && (fitted.byte_ns - 0.1).abs() < 1e-4);
        }
    }

    #[test]
    fn without_a_costlier_size_the_page_exceeds_all_sizes() {
        let cost = |size: u64| 500.0 + 0.1 * size.next_multiple_of(128 << 10) as f64;
        let sizes = [4, 8, 16, 32, 64, 96].map(|kib| (kib << 10, cost(kib << 10)));
        let large = Point { at: 1 << 20, samples: vec![cost(1 << 20); 9] };
        let fitted = write_cost(&points(&sizes), Some(&large));
        assert_eq!(fitted.stripe_bytes, 128 << 10);
        assert!((fitted.command_ns - 500.0).abs() < 1.0 && (fitted.byte_ns - 0.1).abs() < 1e-4);
    }

    #[test]
    fn confidence_falls_as_noise_grows() {
        let noisy = |spread: f64| -> Vec<Point> {
            let mut rng = Rng::new(4);
            let mut sample = |level: f64| (0..9).map(|_| level + spread * rng.unit()).collect();
            [10.0, 10.0, 20.0, 20.0]
                .into_iter()
                .zip(1..)
                .map(|(level, at)| Point { at, samples: sample(level) })
                .collect()
        };
        let (answer, sure) = resampled(&noisy(1.0), 1, |points| rises(points, 15.0));
        assert_eq!((answer, sure), (Some(3), 1.0));
        let mean = |spread: f64| {
            let sure = (0..20).map(|seed| resampled(&noisy(spread), seed, |points| rises(points, 15.0)).1);
            sure.sum::<f64>() / 20.0
        };
        assert!(mean(11.0) < 0.99 && mean(11.0) < mean(1.0), "{}", mean(11.0));
    }
}
