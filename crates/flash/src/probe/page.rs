//! The page, and the stripe of pages that the device programs at once.
//!
//! A write that is no longer than a stripe costs the same whatever its length, so times by length show the stripe
//! only. Its pages show by a shift: if writes of whole stripes begin at a page other than the first, each of the
//! channels still programs as many pages as before. If they begin within a page, one channel programs one more.

use super::{
    Bound, Estimate, Probe, STREAMS_MAX, Stop,
    fit::{Point, WriteCost, median, quantile, resampled, write_cost},
    measure::{FILL_BYTES, WRITE_BYTES},
};

/// Smallest timed write. Smaller pages are not told apart: no file system writes less.
const LEAST_BYTES: u64 = 4 << 10;
/// Timed writes of one shift.
const SHIFTED_WRITES: u64 = 48;
/// Maximum relative error of a time by the fitted cost; above it, the fit explains nothing.
const MISFIT: f64 = 0.08;

impl Probe<'_> {
    /// Measures the cost of sequential writes by length.
    pub(super) fn page(&mut self) -> Result<WriteCost, Stop> {
        let mut points = Vec::new();
        // The largest size is below the 120 KiB at which some hosts split requests.
        for kib in [4, 8, 16, 32, 64, 96] {
            let bytes = kib << 10;
            self.bench.close_units(STREAMS_MAX)?;
            let start = self.bench.place(u64::from(kib > 64));
            points.push(self.bench.sequence(start, bytes, 24)?);
        }
        let large = Point { at: FILL_BYTES, samples: self.bench.fills_ns.clone() };
        let large = Some(&large).filter(|large| !large.samples.is_empty());
        let (stripe_bytes, confidence) =
            resampled(&points, self.seed, |points| write_cost(points, large).stripe_bytes);
        let cost = write_cost(&points, large);
        let is_within = points.last().is_some_and(|last| stripe_bytes <= last.at);
        let fits = points
            .iter()
            .all(|point| (cost.of(point.at) / quantile(&point.samples, 0.3).max(1.0) - 1.0).abs() <= MISFIT);
        self.record("sequential writes by size", "bytes", &points);
        let mut estimate = match is_within {
            true => self.page_of(&cost)?,
            // All sizes cost the same: one page, or several channels with a page each.
            false => Estimate::new(stripe_bytes, 0.0),
        };
        estimate.confidence = if fits { estimate.confidence.min(confidence) } else { 0.0 };
        self.findings.page_bytes = Some(estimate);
        self.findings.stripe_bytes = Some(stripe_bytes);
        self.bench.write_bytes = WRITE_BYTES.max(stripe_bytes);
        self.findings.write_command_ns = Some(cost.command_ns);
        self.findings.write_bytes_per_s = Some(1e9 / cost.byte_ns.max(1e-6));
        self.findings.short_write_bytes = cost.short_bytes;
        self.findings.short_write_ns = cost.short_ns;
        Ok(cost)
    }

    /// Finds the page within a stripe: the smallest shift of whole stripes that costs nothing.
    fn page_of(&mut self, cost: &WriteCost) -> Result<Estimate<u64>, Stop> {
        let stripe_bytes = cost.stripe_bytes;
        let whole_bytes = stripe_bytes.max(WRITE_BYTES);
        let mut points = vec![self.shifted(whole_bytes, 0)?];
        let mut shift_bytes = LEAST_BYTES;
        while shift_bytes < stripe_bytes.max(2 * LEAST_BYTES) {
            points.push(self.shifted(whole_bytes, shift_bytes)?);
            shift_bytes *= 2;
        }
        points.push(self.exceeding(whole_bytes)?);
        // A wrong shift costs a stripe more, or a page of at least twice the smallest write.
        let line_ns = cost.byte_ns * stripe_bytes.max(2 * LEAST_BYTES) as f64 * 0.5;
        let (page, confidence) = resampled(&points, self.seed, |points| {
            let (aligned, rest) = points.split_first().expect("it was measured first");
            let (exceeding, shifted) = rest.split_last().expect("it was measured last");
            let is_dear = |point: &Point| median(&point.samples) - median(&aligned.samples) > line_ns;
            // A channel that is idle during a whole stripe would take more pages at no cost.
            let is_full = stripe_bytes == LEAST_BYTES || is_dear(exceeding);
            let free = shifted.iter().find(|point| !is_dear(point)).map(|point| point.at);
            // The smallest stripe is no longer than the smallest shift, so that costs nothing.
            let page = if stripe_bytes == LEAST_BYTES { free } else { Some(free.unwrap_or(stripe_bytes)) };
            // Each longer shift is a multiple of one that costs nothing.
            let agrees = shifted.iter().skip_while(|point| is_dear(point)).all(|point| !is_dear(point));
            page.filter(|_| is_full && agrees)
        });
        self.record("writes of whole stripes by shift", "bytes", &points[..points.len() - 1]);
        Ok(match page {
            Some(LEAST_BYTES) => Estimate { bound: Bound::AtMost, ..Estimate::new(LEAST_BYTES, confidence) },
            Some(page) => Estimate::new(page, confidence),
            None => Estimate::new(stripe_bytes, 0.0),
        })
    }

    /// Times writes of this length one after the other, the first of them `shift_bytes` after a boundary.
    fn shifted(&mut self, bytes: u64, shift_bytes: u64) -> Result<Point, Stop> {
        self.bench.close_units(STREAMS_MAX)?;
        let start = self.bench.place(0);
        if shift_bytes > 0 {
            self.bench.write(start, shift_bytes)?;
        }
        let mut samples = Vec::new();
        for n in 0..SHIFTED_WRITES {
            samples.push(self.bench.write(start + shift_bytes + n * bytes, bytes)?);
        }
        Ok(Point { at: shift_bytes, samples })
    }

    /// Times writes that begin at a boundary and are a little longer than `bytes`.
    fn exceeding(&mut self, bytes: u64) -> Result<Point, Stop> {
        self.bench.close_units(STREAMS_MAX)?;
        let start = self.bench.place(0);
        let mut samples = Vec::new();
        for n in 0..SHIFTED_WRITES / 2 {
            let at = start + n * 2 * bytes;
            samples.push(self.bench.write(at, bytes + LEAST_BYTES)?);
            self.bench.write(at + bytes + LEAST_BYTES, bytes - LEAST_BYTES)?;
        }
        Ok(Point { at: bytes + LEAST_BYTES, samples })
    }
}
