//! Latencies of commands as distributions, which show the tail that a mean hides.

use std::fmt::Write as _;

use hdrhistogram::Histogram;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::op::Command;

/// Maximum recorded latency in nanoseconds. Longer ones count as this.
const LONGEST_NS: u64 = 1_000_000_000_000;
/// Maximum number of commands of one duration in a file, so that their sum has 64 bits.
const COUNT_MAX: u64 = 1 << 40;
/// Significant digits of a recorded time.
const DIGITS: u8 = 2;
/// Quantiles shown in text.
const SHARES: [(&str, f64); 4] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999)];

/// Times of one kind of command, from the host's request to its answer, to two digits.
///
/// Serialised as a list of times in nanoseconds with the number of commands that took each.
#[derive(Debug, Clone, PartialEq)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies(Histogram::new_with_max(LONGEST_NS, DIGITS).expect("the bounds are constants"))
    }
}

impl Latencies {
    /// Counts a command.
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Returns the number of commands.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the time in nanoseconds within which this share of the commands was done; 0 without any.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        self.0.value_at_quantile(share)
    }

    /// Returns the longest time in nanoseconds.
    pub fn max_ns(&self) -> u64 {
        self.0.max()
    }

    /// Returns the mean in nanoseconds; 0 without any.
    pub fn mean_ns(&self) -> f64 {
        self.0.mean()
    }

    /// Returns times in nanoseconds, the shortest first, with the number of commands that took each.
    pub fn steps(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value()))
    }

    /// Formats the quantiles in one line.
    pub fn to_text(&self) -> String {
        let ms = |ns: u64| format!("{:.3} ms", ns as f64 / 1e6);
        let mut text = format!("mean {}", ms(self.mean_ns() as u64));
        for (name, share) in SHARES {
            write!(text, ", {name} {}", ms(self.quantile_ns(share)))
                .expect("writing to a string cannot fail");
        }
        text + &format!(", max {}", ms(self.max_ns()))
    }
}

impl Serialize for Latencies {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.steps())
    }
}

impl<'de> Deserialize<'de> for Latencies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Latencies, D::Error> {
        let mut latencies = Latencies::default();
        for (ns, count) in Vec::<(u64, u64)>::deserialize(deserializer)? {
            latencies.0.saturating_record_n(ns, count.min(COUNT_MAX));
        }
        Ok(latencies)
    }
}

/// Times of each kind of command.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are clear")]
pub struct LatenciesByCommand {
    pub read: Latencies,
    pub write: Latencies,
    pub flush: Latencies,
    pub discard: Latencies,
}

impl LatenciesByCommand {
    pub(crate) fn of(&mut self, command: Command) -> &mut Latencies {
        match command {
            Command::Read => &mut self.read,
            Command::Write => &mut self.write,
            Command::Flush => &mut self.flush,
            Command::Discard => &mut self.discard,
        }
    }

    /// Formats a line for each kind with commands.
    pub fn to_text(&self) -> String {
        let all = [
            ("reads", &self.read),
            ("writes", &self.write),
            ("flushes", &self.flush),
            ("discards", &self.discard),
        ];
        let line = |(name, latencies): &(&str, &Latencies)| {
            format!("{:<22}{}\n", format!("time of {name}"), latencies.to_text())
        };
        all.iter().filter(|(_, latencies)| latencies.count() > 0).map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_equal_those_of_the_sorted_times() {
        let mut latencies = Latencies::default();
        (1..=1000).for_each(|n| latencies.record(n * 1_000_000));
        latencies.record(u64::MAX);
        let near = |ns: u64, ms: u64| ns.abs_diff(ms * 1_000_000) < ms * 10_000;
        assert!(near(latencies.quantile_ns(0.5), 501), "{}", latencies.quantile_ns(0.5));
        assert!(near(latencies.quantile_ns(0.99), 991), "{}", latencies.quantile_ns(0.99));
        assert!(latencies.max_ns() >= LONGEST_NS && latencies.count() == 1001);
    }

    #[test]
    fn times_survive_a_file_and_counts_do_not_overflow() {
        let mut by_command = LatenciesByCommand::default();
        for ns in [0, 1, 999, 123_456_789, 1 << 39] {
            by_command.of(Command::Write).record(ns);
        }
        let text = serde_json::to_string(&by_command).expect("numbers");
        let again: LatenciesByCommand = serde_json::from_str(&text).expect("its own text");
        assert_eq!(serde_json::to_string(&again).expect("numbers"), text);
        assert_eq!(again.write.count(), 5);
        let mut full: Latencies = serde_json::from_str("[[5,18446744073709551615],[5,7]]").expect("numbers");
        full.record(5);
        assert_eq!(full.quantile_ns(0.5), 5);
    }
}
