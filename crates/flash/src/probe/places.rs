//! Costs of the place of a write: of another unit than before, and of a start that the device does not
//! remember.

use super::{
    Probe, STREAMS_MAX, Stop,
    fit::{Point, pooled, rise, steps_up},
};

/// Repetitions of the comparison of one stream with two.
const REPETITIONS: u64 = 4;

impl Probe<'_> {
    /// Finds the costs from the times of streams written in turn, by their number: from the second on, each
    /// write switches the unit; with more streams than the device remembers, each write starts a new one.
    /// Beyond the limit of open units, merges hide these costs.
    pub(super) fn places(&mut self, streams: &[Point]) -> Result<(), Stop> {
        let limit = self.findings.open_units.and_then(|estimate| estimate.value).unwrap_or(STREAMS_MAX);
        if limit < 2 {
            return Ok(());
        }
        let starts = [self.bench.place(0), self.bench.place(1)];
        let (mut one, mut two) = (Vec::new(), Vec::new());
        for _ in 0..REPETITIONS {
            self.bench.close_units(STREAMS_MAX)?;
            one.extend(self.bench.streams(&starts[..1], 1)?);
            self.bench.close_units(STREAMS_MAX)?;
            two.extend(self.bench.streams(&starts, 2)?);
        }
        self.findings.unit_switch_ns = Some(rise(&one, &two).unwrap_or(0.0));
        let several = streams.iter().filter(|point| (2..=limit).contains(&point.at));
        let several: Vec<Point> = several.cloned().collect();
        if several.len() < 3 {
            return Ok(());
        }
        let first_miss = steps_up(&several);
        let miss_ns = first_miss.and_then(|first| {
            let (known, missed): (Vec<_>, Vec<_>) = several.iter().partition(|point| point.at < first);
            rise(&pooled(known), &pooled(missed))
        });
        self.findings.streams = first_miss.map(|first| first - 1);
        self.findings.stream_miss_ns = Some(miss_ns.unwrap_or(0.0));
        Ok(())
    }
}
