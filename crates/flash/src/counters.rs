//! Counters of a card: operations, and the parts of the time they took.

use std::{collections::BTreeMap, fmt::Write as _, ops::Range};

use serde::{Deserialize, Serialize};

use crate::{layer::Cost, op::Command};

/// All counters. Times are those of the virtual clock.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Commands of the host.
    pub host: HostCounters,
    /// Operations of the flash.
    pub flash: FlashCounters,
    /// Counters of the translation layer.
    pub layer: LayerCounters,
    /// Time by cause. The parts add up to the time of the commands without queueing.
    pub time_ns: TimeCounters,
}

/// Commands of the host, after requests were split.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are clear and include the units")]
pub struct HostCounters {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
    pub discards: u64,
    pub discarded_bytes: u64,
    /// Writes that start or end within a flash page.
    pub unaligned_writes: u64,
    /// Writes that start at the end of the previous command.
    pub continuing_writes: u64,
    /// Number of reads by log2 of their bytes.
    pub reads_by_log2_bytes: BTreeMap<u32, u64>,
    /// Number of writes by log2 of their bytes.
    pub writes_by_log2_bytes: BTreeMap<u32, u64>,
    /// Number of reads by log2 of the largest unit in bytes that both start and end are multiples of.
    #[serde(default)]
    pub reads_by_log2_alignment: BTreeMap<u32, u64>,
    /// Number of writes by the same alignment.
    #[serde(default)]
    pub writes_by_log2_alignment: BTreeMap<u32, u64>,
}

/// Operations of the flash.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are clear")]
pub struct FlashCounters {
    pub page_programs: u64,
    pub page_reads: u64,
    pub block_erases: u64,
}

/// Counters of the translation layer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are clear")]
pub struct LayerCounters {
    pub switch_merges: u64,
    pub partial_merges: u64,
    pub full_merges: u64,
    pub collections: u64,
    pub copied_pages: u64,
    pub filled_pages: u64,
    pub small_writes: u64,
    /// Pages written to single-bit cells, and pages moved from there.
    #[serde(default)]
    pub slc_pages: u64,
    #[serde(default)]
    pub slc_moved_pages: u64,
    pub unit_switches: u64,
    pub stream_misses: u64,
}

/// Time by cause, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are clear")]
pub struct TimeCounters {
    pub command: u64,
    pub transfer: u64,
    pub page_read: u64,
    pub page_program: u64,
    /// Merges and garbage collection: copies and erases.
    pub merge: u64,
    pub small_write: u64,
    pub unit_switch: u64,
    pub stream_miss: u64,
    pub read_crossing: u64,
    pub flush: u64,
    pub discard: u64,
    /// Waiting for space in the write cache, or for busy chips.
    pub wait: u64,
    /// Planned stalls and noise.
    pub stall: u64,
}

impl TimeCounters {
    /// Returns the sum of all parts.
    pub fn total(&self) -> u64 {
        self.parts().iter().fold(0, |all: u64, (_, ns)| all.saturating_add(*ns))
    }

    /// Waits of concurrent requests may add up to more than the clock shows.
    pub(crate) fn waited(&mut self, ns: u64) {
        self.wait = self.wait.saturating_add(ns);
    }

    /// Returns each part with its name.
    pub fn parts(&self) -> [(&'static str, u64); 13] {
        [
            ("command", self.command),
            ("transfer", self.transfer),
            ("page read", self.page_read),
            ("page program", self.page_program),
            ("merge", self.merge),
            ("small write", self.small_write),
            ("unit switch", self.unit_switch),
            ("stream miss", self.stream_miss),
            ("read crossing", self.read_crossing),
            ("flush", self.flush),
            ("discard", self.discard),
            ("wait", self.wait),
            ("stall", self.stall),
        ]
    }
}

impl Counters {
    pub(crate) fn count_command(&mut self, command: Command, range: &Range<u64>) {
        let bytes = range.end - range.start;
        let log2 = bytes.max(1).ilog2();
        let alignment = (range.start | bytes.max(1)).trailing_zeros();
        match command {
            Command::Read => {
                self.host.reads += 1;
                self.host.read_bytes += bytes;
                *self.host.reads_by_log2_bytes.entry(log2).or_insert(0) += 1;
                *self.host.reads_by_log2_alignment.entry(alignment).or_insert(0) += 1;
            }
            Command::Write => {
                self.host.writes += 1;
                self.host.written_bytes += bytes;
                *self.host.writes_by_log2_bytes.entry(log2).or_insert(0) += 1;
                *self.host.writes_by_log2_alignment.entry(alignment).or_insert(0) += 1;
            }
            Command::Flush => self.host.flushes += 1,
            Command::Discard => {
                self.host.discards += 1;
                self.host.discarded_bytes += bytes;
            }
        }
    }

    pub(crate) fn count_cost(&mut self, cost: &Cost) {
        self.layer.switch_merges += cost.switch_merges;
        self.layer.partial_merges += cost.partial_merges;
        self.layer.full_merges += cost.full_merges;
        self.layer.collections += cost.collections;
        self.layer.copied_pages += cost.copied_pages;
        self.layer.filled_pages += cost.filled_pages;
        self.layer.small_writes += cost.small_writes;
    }

    /// Returns the largest counter.
    pub(crate) fn largest(&self) -> u64 {
        fn of(value: &serde_json::Value) -> u64 {
            match value {
                serde_json::Value::Object(parts) => parts.values().map(of).max().unwrap_or(0),
                number => number.as_u64().unwrap_or(0),
            }
        }
        of(&serde_json::to_value(self).expect("numbers and names"))
    }

    /// Returns the bytes programmed per byte written by the host; `None` before the first write.
    pub fn write_amplification(&self, page_bytes: u32) -> Option<f64> {
        let programmed = self.flash.page_programs as f64 * f64::from(page_bytes);
        (self.host.written_bytes > 0).then(|| programmed / self.host.written_bytes as f64)
    }

    /// Formats the counters as lines of text.
    pub fn to_text(&self, page_bytes: u32) -> String {
        let mut text = String::new();
        let host = &self.host;
        let mut line = |name: &str, value: String| {
            writeln!(text, "{name:<22}{value}").expect("writing to a string cannot fail");
        };
        line("reads", format!("{} ({} bytes)", host.reads, host.read_bytes));
        by_log2(&mut line, "of", &host.reads_by_log2_bytes);
        by_log2(&mut line, "aligned to", &host.reads_by_log2_alignment);
        line("writes", format!("{} ({} bytes)", host.writes, host.written_bytes));
        by_log2(&mut line, "of", &host.writes_by_log2_bytes);
        by_log2(&mut line, "aligned to", &host.writes_by_log2_alignment);
        line("  not whole pages", host.unaligned_writes.to_string());
        line("  continuing", host.continuing_writes.to_string());
        line("flushes", host.flushes.to_string());
        line("discards", format!("{} ({} bytes)", host.discards, host.discarded_bytes));
        line("page programs", self.flash.page_programs.to_string());
        line("page reads", self.flash.page_reads.to_string());
        line("block erases", self.flash.block_erases.to_string());
        let LayerCounters { switch_merges, partial_merges, full_merges, .. } = self.layer;
        line("merges", format!("{switch_merges} switch, {partial_merges} partial, {full_merges} full"));
        line("collections", self.layer.collections.to_string());
        line("pages copied", self.layer.copied_pages.to_string());
        line("small writes", self.layer.small_writes.to_string());
        if self.layer.slc_pages > 0 {
            let LayerCounters { slc_pages, slc_moved_pages, .. } = self.layer;
            line("pages in one-bit cells", format!("{slc_pages}, {slc_moved_pages} moved"));
        }
        line("unit switches", self.layer.unit_switches.to_string());
        line("stream misses", self.layer.stream_misses.to_string());
        if let Some(amplification) = self.write_amplification(page_bytes) {
            line("write amplification", format!("{amplification:.3}"));
        }
        line("busy", format!("{:.6} s", self.time_ns.total() as f64 / 1e9));
        for (name, ns) in self.time_ns.parts().into_iter().filter(|(_, ns)| *ns > 0) {
            line(&format!("  {name}"), format!("{:.6} s", ns as f64 / 1e9));
        }
        text
    }
}

/// Formats a line for each power of two. `of 4K` means requests of 4 KiB up to less than 8 KiB.
fn by_log2(line: &mut impl FnMut(&str, String), what: &str, counts: &BTreeMap<u32, u64>) {
    for (log2, count) in counts {
        let (unit, shift) = [("G", 30), ("M", 20), ("K", 10), ("", 0)]
            .into_iter()
            .find(|(_, shift)| log2 >= shift)
            .expect("every number is at least 2^0");
        line(&format!("  {what} {}{unit}", 1u64 << (log2 - shift)), count.to_string());
    }
}
