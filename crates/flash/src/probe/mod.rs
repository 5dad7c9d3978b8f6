//! The probe: finds the properties of a device from the times of its answers.
//!
//! *Invariants*: without permission to write, it only reads. It keeps the budget. An answer that the
//! measurements do not force is marked uncertain, and a property that could not be measured is absent.
//!
//! The measurements:
//! - *Reads*: times by size give command time and rate. Reads across boundaries, as in flashbench, show units on the
//!   cards that reveal them.
//! - *Open units*: streams far from each other are written in turn, one more each time. If the time jumps by more
//!   than a switch can cost, there were too many.
//! - *Unit*: two streams at a growing distance. On a card that takes a unit in order only, two streams in one unit
//!   are slow and two in different units fast. On a card that takes a unit in any order, the pair is written beside
//!   as many more streams as there may be open units: it is fast in one unit and slow in two.
//! - *FAT area*: one stream more than the limit, at the front, disturbs no other stream if the front has rules of
//!   its own.
//! - *Places*: the time of a write rises from one stream to two by a switch of the unit, and once more with more
//!   streams than the device remembers.
//! - *Page*: the size below which a sequential write gets no cheaper is the stripe of all channels; shifted writes
//!   show the pages in it.
//!
//! Each answer is checked at a second position, where a size between the tried ones ends differently. All
//! ranges are first written in full, because a card without data has nothing to copy and hides its limits.

mod advice;
mod findings;
pub mod fit;
mod fitted;
mod known;
mod measure;
mod page;
mod places;
mod report;

use block::Device;

use crate::{clock::Clock, flashbench};
pub use advice::{Advice, IpuPolicy, SEGMENT_BYTES, Shape};
pub use findings::{Bound, Estimate, Findings, SURE, Series};
use fit::{
    Point, WriteCost, between, copied_block, falls, may_step_up, median, pooled, quantile, resampled, rises,
    steps_up, stream_limit, usual_mean,
};
pub use measure::Stop;
use measure::{Bench, FILL_BYTES, STREAMS_MAX, WRITE_BYTES};

/// Maximum size of a unit in bytes.
const READ_UNIT_MAX: u64 = 64 << 20;
/// A jump in the cost of a stream is a merge if it costs more than writing this many times as much.
const MERGE_FACTOR: f64 = 1.5;

/// Without a limit, streams after the second cost no more than writing this many times as much would.
const LATE_FACTOR: f64 = 0.5;
/// Between two measurements, a single stream rises by less than writing this many times as much would cost.
const DRIFT: f64 = 0.4;
/// Maximum confidence of an answer that the measurements do not force.
const UNFORCED: f64 = 0.9;

/// Resolution in bytes of the length of the area at the front.
const AREA_STEP: u64 = 1 << 20;

/// Permissions and budget of the probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// True if the probe may destroy the data of the device.
    pub write: bool,
    /// Maximum number of bytes to write.
    pub budget_bytes: u64,
    /// Maximum time in nanoseconds of the given clock.
    pub budget_ns: u64,
    /// Seed of the resampling.
    pub seed: u64,
}

impl Default for Options {
    /// Read-only, with a budget of 8 GiB of writes and one hour.
    fn default() -> Options {
        Options { write: false, budget_bytes: 8 << 30, budget_ns: 3_600_000_000_000, seed: 1 }
    }
}

/// Progress callback: the name of the step, and its progress from 0 to 1.
pub type Progress<'a> = &'a mut dyn FnMut(&str, f64);

/// Probes a device. The clock is the one that times the device's answers.
///
/// # Errors
/// The device's. An exhausted budget is not an error: the findings say so.
pub fn probe(
    device: &dyn Device,
    clock: &dyn Clock,
    options: Options,
    progress: Progress,
) -> std::io::Result<Findings> {
    let start_ns = clock.now_ns();
    let budget_bytes = if options.write { options.budget_bytes } else { 0 };
    let bench = Bench::new(device, clock, budget_bytes, options.budget_ns);
    let findings = Findings { size_bytes: device.geometry().size_bytes, ..Findings::default() };
    let mut probe = Probe { bench, findings, seed: options.seed, progress };
    let ended = probe.reads().and_then(|()| if options.write { probe.writes() } else { Ok(()) });
    let mut findings = probe.findings;
    findings.written_bytes = probe.bench.written_bytes;
    findings.elapsed_ns = clock.now_ns() - start_ns;
    match ended {
        Ok(()) => {}
        Err(Stop::Budget) => findings.out_of_budget = true,
        Err(Stop::Io(error)) => return Err(error),
    }
    Ok(findings)
}

struct Probe<'a> {
    bench: Bench<'a>,
    findings: Findings,
    seed: u64,
    progress: Progress<'a>,
}

impl Probe<'_> {
    fn reads(&mut self) -> Result<(), Stop> {
        (self.progress)("reads by size", 0.0);
        let size_bytes = self.findings.size_bytes;
        let mut rng = block::Rng::new(self.seed);
        let mut points = Vec::new();
        for log2 in 12..=16 {
            let bytes = 1u64 << log2;
            if size_bytes < 128 << 10 {
                return Ok(());
            }
            let mut samples = Vec::new();
            for _ in 0..40 {
                samples.push(self.bench.read(rng.below(size_bytes / (64 << 10) - 1) * (64 << 10), bytes)?);
            }
            points.push(Point { at: bytes, samples });
        }
        let rows = points.iter().map(|point| (point.at as f64, quantile(&point.samples, 0.3)));
        let (command_ns, byte_ns, _) = fit::line_through(rows);
        self.findings.read_command_ns = Some(command_ns);
        self.findings.read_bytes_per_s = Some(1e9 / byte_ns.max(1e-6));
        self.findings.random_read_iops = Some(1e9 / points[0].median().max(1.0));
        self.record("reads by size", "bytes", &points);
        (self.progress)("reads across boundaries", 0.05);
        let rows = self.bench.boundaries(4096, 40)?;
        // A boundary within a page costs the same at every multiple. A unit's boundary costs more.
        let differences: Vec<f64> = rows.iter().map(flashbench::Alignment::difference_ns).collect();
        let usual = median(&rows.iter().map(|row| row.before_ns).collect::<Vec<_>>());
        let shows = |difference: f64| difference > 0.06 * usual;
        let low: Vec<f64> = rows
            .iter()
            .zip(&differences)
            .filter(|(row, _)| (64 << 10..512 << 10).contains(&row.boundary_bytes))
            .map(|(_, difference)| *difference)
            .collect();
        if !low.is_empty() {
            let base = median(&low);
            let above =
                rows.iter().zip(&differences).take_while(|(_, difference)| shows(**difference - base));
            let above: Vec<u64> = above.map(|(row, _)| row.boundary_bytes).collect();
            // Every multiple of a unit is a boundary. A cost at the largest boundary alone, of which there
            // are few, is noise.
            let unit = above.last().filter(|unit| above.len() > 1 && **unit <= READ_UNIT_MAX);
            self.findings.read_boundary_bytes = unit.copied();
        }
        let medians_ns =
            rows.iter().zip(differences).rev().map(|(row, ns)| (row.boundary_bytes, ns)).collect();
        let series = Series {
            name: "extra time of reads across a boundary".into(),
            setting: "bytes".into(),
            medians_ns,
        };
        self.findings.series.push(series);
        Ok(())
    }

    fn writes(&mut self) -> Result<(), Stop> {
        if !self.bench.is_large_enough() {
            return Ok(());
        }
        (self.progress)("filling the measured area", 0.1);
        self.precondition()?;
        (self.progress)("cache and flush", 0.3);
        self.cache()?;
        (self.progress)("writes by size", 0.35);
        let cost = self.page()?;
        (self.progress)("open units", 0.4);
        let program_ns = cost.byte_ns * self.bench.write_bytes as f64;
        let streams = self.open_units(cost, program_ns)?;
        (self.progress)("order within a unit", 0.6);
        self.order(program_ns)?;
        (self.progress)("unit", 0.65);
        self.unit(&streams, program_ns)?;
        (self.progress)("area at the front", 0.85);
        self.fat_area(&streams, program_ns)?;
        (self.progress)("cost of places", 0.93);
        self.places(&streams)?;
        (self.progress)("random writes", 0.95);
        self.random_writes()?;
        (self.progress)("done", 1.0);
        Ok(())
    }

    /// Fills every unit that a stream will use, so that merges have something to copy.
    fn precondition(&mut self) -> Result<(), Stop> {
        let most = self.bench.spacing_bytes().min(32 << 20);
        self.bench.fill(0, self.bench.front_bytes())?;
        for place in 0..2 * STREAMS_MAX + 1 {
            let start = self.bench.place(place);
            self.bench
                .fill(start, if place < 2 { self.bench.spacing_bytes().min(64 << 20) } else { most })?;
        }
        let fills_ns = &self.bench.fills_ns;
        let rate = || FILL_BYTES as f64 / median(fills_ns).max(1.0) * 1e9;
        self.findings.large_write_bytes_per_s = (!fills_ns.is_empty()).then(rate);
        Ok(())
    }

    fn cache(&mut self) -> Result<(), Stop> {
        let start = self.bench.place(0);
        let mut plain = Vec::new();
        let mut flushes = Vec::new();
        for n in 0..16 {
            plain.push(self.bench.write(start + n * WRITE_BYTES, WRITE_BYTES)?);
            flushes.push(self.bench.flush()?);
        }
        let (write_ns, flush_ns) = (median(&plain), median(&flushes));
        self.findings.flush_ns = Some(flush_ns);
        // Without a cache a flush completes at once.
        let cached = flush_ns > 0.25 * write_ns;
        self.findings.write_cache = Some(cached);
        self.bench.flushes = cached;
        Ok(())
    }

    fn open_units(&mut self, cost: WriteCost, program_ns: f64) -> Result<Vec<Point>, Stop> {
        let mut points = Vec::new();
        for streams in 1..=STREAMS_MAX {
            self.bench.close_units(STREAMS_MAX)?;
            let starts: Vec<u64> = (0..streams).map(|n| self.bench.place(n)).collect();
            let samples = self.bench.streams(&starts, starts.len())?;
            points.push(Point { at: streams, samples });
            // On a card that merges, measurements are slow. A few points beyond the limit are enough.
            let limit = stream_limit(&points, program_ns, MERGE_FACTOR);
            if limit.is_some_and(|limit| streams >= limit + 3) {
                break;
            }
        }
        let (limit, mut confidence) =
            resampled(&points, self.seed, |points| stream_limit(points, program_ns, MERGE_FACTOR));
        let spread_ns = |points: &[Point]| {
            let medians = || points.iter().map(Point::median);
            medians().fold(0.0, f64::max) - medians().fold(f64::INFINITY, f64::min)
        };
        // The times jump, but not at one clear point. A jump after the second stream is no switch of units.
        let jumps = spread_ns(&points) >= program_ns * MERGE_FACTOR
            || spread_ns(&points[1..]) >= program_ns * LATE_FACTOR;
        if limit.is_none() && jumps {
            confidence = 0.0;
        }
        // A device whose single stream has become slower, as behind an SLC cache that is full, shows no limit.
        if self.one_stream()? > points[0].median() + DRIFT * program_ns {
            confidence = 0.0;
        }
        if let Some(limit) = limit {
            let merge_ns = points[limit as usize].median() - points[limit as usize - 1].median();
            self.findings.merge_ns = Some(merge_ns);
            // A small jump after the first stream may be an expensive switch of units.
            if limit == 1 && merge_ns < 3.0 * cost.of(self.bench.write_bytes) {
                confidence = confidence.min(0.6);
            }
        }
        self.findings.open_units = Some(Estimate::new(limit, confidence));
        self.record("streams written in turn", "streams", &points);
        Ok(points)
    }

    /// Returns the usual time of a write of a single stream.
    fn one_stream(&mut self) -> Result<f64, Stop> {
        self.bench.close_units(STREAMS_MAX)?;
        Ok(median(&self.bench.streams(&[self.bench.place(0)], 1)?))
    }

    /// Writes pieces of a short range from its end to its start.
    fn order(&mut self, program_ns: f64) -> Result<(), Stop> {
        const PIECES: u64 = 4;
        let bytes = self.bench.write_bytes;
        let mut forwards = Vec::new();
        let mut backwards = Vec::new();
        for n in 0..6 {
            self.bench.close_units(STREAMS_MAX)?;
            let start = self.bench.place(n % 4);
            for piece in 0..PIECES {
                forwards.push(self.bench.write(start + piece * bytes, bytes)?);
            }
            self.bench.close_units(STREAMS_MAX)?;
            for piece in (0..PIECES).rev() {
                let ns = self.bench.write(start + piece * bytes, bytes)?;
                if piece + 1 < PIECES {
                    backwards.push(ns);
                }
            }
        }
        let points = [Point { at: 0, samples: forwards }, Point { at: 1, samples: backwards }];
        let (any_order, confidence) = resampled(&points, self.seed, |points| {
            points[1].median() - points[0].median() < program_ns * MERGE_FACTOR
        });
        self.findings.random_in_unit = Some(Estimate::new(any_order, confidence));
        Ok(())
    }

    fn unit(&mut self, streams: &[Point], program_ns: f64) -> Result<(), Stop> {
        let any_order = self.findings.takes_any_order();
        let limit = self.findings.open_units.and_then(|estimate| estimate.value);
        let distances: Vec<u64> = (18..28)
            .flat_map(|log2| [1u64 << log2, 3 << (log2 - 1)])
            .filter(|distance| *distance >= self.bench.stream_bytes())
            .filter(|distance| *distance <= (self.bench.spacing_bytes() / 3 * 2).min(48 << 20))
            .collect();
        let mut pairs = Vec::new();
        let mut crowded = Vec::new();
        for &at in &distances {
            pairs.push(self.pair(0, at, limit)?);
            if let Some(limit) = limit {
                crowded.push(self.crowded_pair(0, at, limit)?);
            }
        }
        self.record("two streams at a distance", "bytes", &pairs);
        self.record("as many streams as may be open, and one at a distance", "bytes", &crowded);
        let estimate = match limit {
            None => self.unit_by_switch(pairs)?,
            Some(1) if !any_order => self.unit_by_jumps(&distances)?,
            Some(limit) => {
                let (fast, slow) = (streams[limit as usize - 1].median(), streams[limit as usize].median());
                let line = between(fast, slow);
                let apart = fast.max(streams[1.min(streams.len() - 1)].median().min(slow));
                let pair_line = line.max(apart + program_ns * 0.5).min(slow);
                let by_pair = resampled(&pairs, self.seed, |points| falls(points, pair_line));
                // Blocks smaller than the unit make a pair within it slow.
                if !any_order || limit > 1 && by_pair.0.is_some() {
                    let together = |point: &Point| point.median() > pair_line;
                    self.checked(by_pair, |probe, at| Ok(together(&probe.pair(1, at, Some(limit))?)))?
                } else {
                    let by_crowd = resampled(&crowded, self.seed, |points| rises(points, line));
                    let together = |point: &Point| point.median() <= line;
                    let found =
                        self.checked(by_crowd, |probe, at| Ok(together(&probe.crowded_pair(1, at, limit)?)))?;
                    // Where a single unit is open, the merged range may be smaller than it, which shows nowhere.
                    let most = if limit == 1 { UNFORCED } else { 1.0 };
                    Estimate { confidence: found.confidence.min(most), ..found }
                }
            }
        };
        self.findings.unit_bytes = Some(self.given_limit(estimate));
        Ok(())
    }

    /// Lowers the confidence of an answer to that of the limit of open units from which it follows.
    fn given_limit<T>(&self, mut estimate: Estimate<T>) -> Estimate<T> {
        if let Some(limit) = self.findings.open_units {
            estimate.confidence = estimate.confidence.min(limit.confidence);
        }
        estimate
    }

    /// Writes two streams, the second at a distance from the first.
    fn pair(&mut self, place: u64, at: u64, limit: Option<u64>) -> Result<Point, Stop> {
        self.bench.close_units(limit.map_or(STREAMS_MAX, |limit| limit + 1))?;
        let start = self.bench.place(place);
        Ok(Point { at, samples: self.bench.streams(&[start, start + at], 2)? })
    }

    /// Writes as many streams as may be open, and one more at a distance from the first.
    fn crowded_pair(&mut self, place: u64, at: u64, limit: u64) -> Result<Point, Stop> {
        self.bench.close_units(limit + 1)?;
        let mut starts: Vec<u64> = (place..place + limit).map(|n| self.bench.place(n)).collect();
        starts.push(starts[0] + at);
        // The pair's own writes may be slow for other reasons, so the other streams are timed.
        starts.rotate_left(1);
        let timed = if limit > 1 { limit as usize - 1 } else { 2 };
        Ok(Point { at, samples: self.bench.streams(&starts, timed)? })
    }

    /// Checks a unit at a second position: it must end there too, and not earlier. A unit between two of the
    /// tried distances, or one that does not divide the positions, fails this check, and the answer becomes
    /// uncertain.
    fn checked(
        &mut self,
        (unit, confidence): (Option<u64>, f64),
        mut are_together: impl FnMut(&mut Self, u64) -> Result<bool, Stop>,
    ) -> Result<Estimate<Option<u64>>, Stop> {
        let Some(bytes) = unit else { return Ok(Estimate::new(None, 0.0)) };
        let step = self.bench.stream_bytes();
        let ends = are_together(self, bytes - step)? && !are_together(self, bytes)?;
        Ok(Estimate::new(unit, if ends { confidence } else { 0.0 }))
    }

    /// On a card without a limit, a unit is visible only if switching it has a cost, which may be small.
    fn unit_by_switch(&mut self, mut pairs: Vec<Point>) -> Result<Estimate<Option<u64>>, Stop> {
        for pair in &mut pairs {
            pair.samples = self.ways_back(0, pair.at)?;
        }
        let (value, confidence) = resampled(&pairs, self.seed, steps_up);
        let Some(unit) = value else {
            // A unit larger than all distances is visible between positions that are further apart.
            let most = pairs.last().map(|pair| pair.at);
            for at in [self.bench.spacing_bytes(), 2 * self.bench.spacing_bytes()] {
                pairs.push(Point { at, samples: self.ways_back(0, at)? });
            }
            let most_confidence = if may_step_up(&pairs) { UNFORCED } else { 1.0 };
            return Ok(match steps_up(&pairs) {
                Some(_) => Estimate::at_least(most),
                None => Estimate::new(None, confidence.min(most_confidence)),
            });
        };
        let low = median(&pooled(pairs.iter().filter(|pair| pair.at < unit)));
        let high = median(&pooled(pairs.iter().filter(|pair| pair.at >= unit)));
        let line = between(low, high);
        self.checked((value, confidence), |probe, at| Ok(median(&probe.ways_back(1, at)?) <= line))
    }

    /// Only the writes that go back are timed, because going forward into the next unit may be free.
    fn ways_back(&mut self, place: u64, at: u64) -> Result<Vec<f64>, Stop> {
        let start = self.bench.place(place);
        let mut samples = Vec::new();
        for _ in 0..4 {
            samples.extend(self.bench.streams(&[start, start + at], 1)?);
        }
        Ok(samples)
    }

    /// Finds the unit of a card that has one open unit and takes it in order only. Any two streams merge,
    /// whatever lies between them. A forward jump, however, copies the gap up to the end of the merged range.
    fn unit_by_jumps(&mut self, distances: &[u64]) -> Result<Estimate<Option<u64>>, Stop> {
        let mut points = Vec::new();
        let bytes = self.bench.write_bytes;
        for &at in distances {
            let mut samples = Vec::new();
            for n in 0..5 {
                self.bench.close_units(2)?;
                let start = self.bench.place(n % 2);
                self.bench.write(start, bytes)?;
                samples.push(self.bench.write(start + at, bytes)?);
            }
            points.push(Point { at, samples });
        }
        self.record("a jump forwards", "bytes", &points);
        let (block, confidence) = resampled(&points, self.seed, |points| copied_block(points, bytes));
        // The merged range may be smaller than a unit, which no measurement on such a card would show.
        Ok(Estimate::new(Some(block), confidence.min(UNFORCED)))
    }

    /// Tries a few offsets first, then halves the gap in which the area ends down to [`AREA_STEP`].
    fn fat_area(&mut self, streams: &[Point], program_ns: f64) -> Result<(), Stop> {
        let limit = self.findings.open_units.and_then(|estimate| estimate.value);
        let usual = streams[0].median();
        let as_elsewhere: Box<dyn Fn(f64) -> bool> = match limit {
            Some(limit) => {
                let line = between(streams[limit as usize - 1].median(), streams[limit as usize].median());
                Box::new(move |ns| ns > line)
            }
            None => Box::new(move |ns| (ns - usual).abs() < (0.15 * usual).max(0.1 * program_ns)),
        };
        // Returns the end of the area: None if there is no area, or a lower bound.
        let first = |points: &[Point]| points.iter().position(|point| as_elsewhere(point.median()));
        let length = |points: &[Point]| match first(points) {
            Some(0) => None,
            Some(first) => Some(points[first].at),
            None => points.last().map(|point| point.at),
        };
        let mut points = Vec::new();
        for mib in [0, 4, 8, 16, 32, 64] {
            if (mib << 20) + self.bench.stream_bytes() <= self.bench.front_bytes() {
                points.push(self.at_front(mib << 20, limit)?);
            }
        }
        while let Some(end) = first(&points).filter(|end| *end > 0) {
            let (low, high) = (points[end - 1].at, points[end].at);
            if high - low <= AREA_STEP {
                break;
            }
            points.insert(end, self.at_front(low + (high - low) / 2, limit)?);
        }
        let estimate = match first(&points) {
            None => Estimate::at_least(length(&points)),
            Some(_) => {
                let (value, confidence) = resampled(&points, self.seed, length);
                Estimate::new(value, confidence)
            }
        };
        // The offsets differ from elsewhere only if elsewhere is still as it was.
        let mut estimate = self.given_limit(estimate);
        if limit.is_none() && !as_elsewhere(self.one_stream()?) {
            estimate.confidence = 0.0;
        }
        self.findings.fat_area_bytes = Some(estimate);
        self.record("a stream at the front", "bytes", &points);
        Ok(())
    }

    /// Times a stream at an offset beside as many streams as may be open, to see if it closes one of them.
    fn at_front(&mut self, at: u64, limit: Option<u64>) -> Result<Point, Stop> {
        self.bench.close_units(limit.map_or(STREAMS_MAX, |limit| limit + 1))?;
        let mut starts: Vec<u64> = (0..limit.unwrap_or(0)).map(|n| self.bench.place(n)).collect();
        starts.push(at);
        let timed = limit.unwrap_or(1) as usize;
        Ok(Point { at, samples: self.bench.streams(&starts, timed)? })
    }

    fn random_writes(&mut self) -> Result<(), Stop> {
        let mut rng = block::Rng::new(self.seed);
        let mut samples = Vec::new();
        for _ in 0..128 {
            let place = self.bench.place(rng.below(STREAMS_MAX));
            samples.push(self.bench.write(place + rng.below(128) * 4096, 4096)?);
        }
        self.findings.random_write_iops = Some(1e9 / usual_mean(&samples).max(1.0));
        Ok(())
    }

    fn record(&mut self, name: &str, setting: &str, points: &[Point]) {
        if !points.is_empty() {
            let medians_ns = points.iter().map(|point| (point.at, point.median())).collect();
            self.findings.series.push(Series { name: name.into(), setting: setting.into(), medians_ns });
        }
    }
}
