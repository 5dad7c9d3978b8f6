//! The probe's findings: each answer with its confidence.

use serde::Serialize;

use super::{Advice, Shape};

/// An answer is uncertain if the share of agreeing resamples is below this.
pub const SURE: f64 = 0.95;

/// Relation of the true value to an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The answer is the value.
    Exact,
    /// The value may be larger, because the measurements end there.
    AtLeast,
    /// The value may be smaller, because the measurements begin there.
    AtMost,
}

/// An answer with its confidence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate<T> {
    /// The answer.
    pub value: T,
    /// Share of resamples of the measurements that give the same answer. Lower if the measurements cannot
    /// tell two devices apart.
    pub confidence: f64,
    /// Relation of the true value to the answer.
    pub bound: Bound,
}

impl<T> Estimate<T> {
    /// Makes an answer from a value and the share of resamples that agree with it.
    pub fn new(value: T, confidence: f64) -> Estimate<T> {
        Estimate { value, confidence, bound: Bound::Exact }
    }

    /// Makes a lower bound: no larger value was measured.
    pub(super) fn at_least(value: T) -> Estimate<T> {
        Estimate { value, confidence: 0.0, bound: Bound::AtLeast }
    }

    /// Returns true if the answer is reliable.
    pub fn is_certain(&self) -> bool {
        self.confidence >= SURE
    }
}

/// One measurement, for plots: a name, and times by setting.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    /// The varied setting and the timed operation.
    pub name: String,
    /// Unit of the setting.
    pub setting: String,
    /// Setting and the median time in nanoseconds.
    pub medians_ns: Vec<(u64, f64)>,
}

/// Findings of the probe. An absent value was not measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Findings {
    /// Size of the device.
    pub size_bytes: u64,
    /// Fixed time of a read, before any data.
    pub read_command_ns: Option<f64>,
    /// Rate of reads, card to host.
    pub read_bytes_per_s: Option<f64>,
    /// Smallest unit whose boundary is visible in read times, if there is one.
    pub read_boundary_bytes: Option<u64>,
    /// Fixed time of a write, before any data.
    pub write_command_ns: Option<f64>,
    /// Rate of sequential writes without their commands.
    pub write_bytes_per_s: Option<f64>,
    /// Writes below this size cost more at any address; 0 if none do.
    pub short_write_bytes: u64,
    /// Extra time of a short write.
    pub short_write_ns: f64,
    /// Rate of sequential writes of 1 MiB.
    pub large_write_bytes_per_s: Option<f64>,
    /// Time of a flush after a write.
    pub flush_ns: Option<f64>,
    /// True if writes are faster than the flash until a flush is requested.
    pub write_cache: Option<bool>,
    /// The unit of programming.
    pub page_bytes: Option<Estimate<u64>>,
    /// Bytes of the pages that are programmed at once: a write smaller than this gets no cheaper.
    pub stripe_bytes: Option<u64>,
    /// Number of units that can be written in turn without merges; None if no limit was met.
    pub open_units: Option<Estimate<Option<u64>>>,
    /// True if a unit may be written in any order.
    pub random_in_unit: Option<Estimate<bool>>,
    /// The allocation unit (erase block); an inner `None` if no measurement shows one.
    pub unit_bytes: Option<Estimate<Option<u64>>>,
    /// Length of the area at the front with rules of its own; None if there is no such area.
    pub fat_area_bytes: Option<Estimate<Option<u64>>>,
    /// Time of a write if too many units are open.
    pub merge_ns: Option<f64>,
    /// Extra time of a write in another unit than the previous one; 0 if it costs nothing.
    pub unit_switch_ns: Option<f64>,
    /// Number of write ends that the device remembers; `None` if no limit was met.
    pub streams: Option<u64>,
    /// Extra time of a write that continues none of these; 0 if it costs nothing.
    pub stream_miss_ns: Option<f64>,
    /// Random writes of 4 KiB over the whole device, per second.
    pub random_write_iops: Option<f64>,
    /// Random reads of 4 KiB over the whole device, per second.
    pub random_read_iops: Option<f64>,
    /// Bytes that the probe wrote.
    pub written_bytes: u64,
    /// Time taken by the probe.
    pub elapsed_ns: u64,
    /// True if the budget ended the probe early.
    pub out_of_budget: bool,
    /// The measurements.
    pub series: Vec<Series>,
    /// The best placement on a model of the card, if it was measured. Advice follows it instead of the rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Shape>,
}

impl Findings {
    /// Returns the time of a read in nanoseconds, as far as it was measured.
    pub fn read_ns(&self, bytes: u64) -> Option<f64> {
        Some(self.read_command_ns? + bytes as f64 / self.read_bytes_per_s? * 1e9)
    }

    /// Returns the time in nanoseconds of a write that continues the previous one, as far as it was measured.
    pub fn write_ns(&self, bytes: u64) -> Option<f64> {
        let short_ns = if bytes < self.short_write_bytes { self.short_write_ns } else { 0.0 };
        let whole_stripes = bytes.next_multiple_of(self.stripe_bytes?);
        Some(self.write_command_ns? + whole_stripes as f64 / self.write_bytes_per_s? * 1e9 + short_ns)
    }

    /// Returns true if a unit was found to take writes in any order.
    pub(super) fn takes_any_order(&self) -> bool {
        self.random_in_unit.is_some_and(|found| found.value)
    }

    /// The advice for a file system that follows from the findings.
    pub fn advice(&self) -> Advice {
        Advice::of(self)
    }
}
