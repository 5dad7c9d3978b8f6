//! Units of figures.

use serde::{Deserialize, Serialize};

use crate::scale::RECORD_BYTES;

/// Unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Unit {
    /// Megabytes (10^6) per second.
    #[serde(rename = "MB/s")]
    MbPerS,
    /// Kibibytes per second, the unit of iozone.
    #[serde(rename = "KB/s")]
    KbPerS,
    /// Records per second.
    #[serde(rename = "IOPS")]
    Iops,
    /// Units of a workload per second.
    #[serde(rename = "1/s")]
    PerS,
    /// Milliseconds per unit.
    #[serde(rename = "ms")]
    Ms,
    /// Seconds.
    #[serde(rename = "s")]
    S,
}

impl Unit {
    /// Symbol of the unit.
    pub fn sign(self) -> &'static str {
        match self {
            Unit::MbPerS => "MB/s",
            Unit::KbPerS => "KB/s",
            Unit::Iops => "IOPS",
            Unit::PerS => "1/s",
            Unit::Ms => "ms",
            Unit::S => "s",
        }
    }

    /// Returns true if more is better.
    pub fn more_is_better(self) -> bool {
        matches!(self, Unit::MbPerS | Unit::KbPerS | Unit::Iops | Unit::PerS)
    }

    /// Ratio of a figure to `other`; above 1 if it is better.
    pub fn times_as_good(self, figure: f64, other: f64) -> f64 {
        if self.more_is_better() { figure / other } else { other / figure }
    }

    /// Converts a number of records in a time to a figure.
    pub(crate) fn of(self, records: u64, duration_ns: u64) -> f64 {
        let seconds = duration_ns.max(1) as f64 / 1e9;
        let rate = records as f64 / seconds;
        match self {
            Unit::MbPerS => rate * f64::from(RECORD_BYTES) / 1e6,
            Unit::KbPerS => rate * f64::from(RECORD_BYTES) / 1024.0,
            Unit::Iops | Unit::PerS => rate,
            Unit::Ms => seconds * 1e3 / records.max(1) as f64,
            Unit::S => seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_come_in_their_units() {
        assert_eq!(Unit::MbPerS.of(2500, 1_000_000_000), 10.24);
        assert_eq!(Unit::KbPerS.of(100, 1_000_000_000), 400.0);
        assert_eq!(Unit::Ms.of(1, 2_500_000), 2.5);
        assert!(Unit::Iops.of(1, 0).is_finite());
        assert_eq!((Unit::Iops.times_as_good(6.0, 3.0), Unit::Ms.times_as_good(6.0, 3.0)), (2.0, 0.5));
    }
}
