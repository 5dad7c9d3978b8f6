//! The amount of dirty data in the kernel's page cache.
//!
//! The kernel collects gigabytes of dirty pages before it writes back any. It reports only the total of all
//! file systems. The amount that remains after all of our data was written back belongs to other file
//! systems.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

/// Amounts of dirty data in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amounts {
    /// Bytes that are probably ours. They are more if other file systems have written back since the report before.
    pub probably_ours: u64,
    /// Bytes of all file systems.
    pub of_all: u64,
}

/// Our share of the dirty data.
#[derive(Default)]
pub struct DirtyPages(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// Time and value of the last report of the kernel.
    last: Option<(Instant, u64)>,
    /// Bytes that are taken to belong to other file systems.
    of_others: u64,
}

impl DirtyPages {
    /// Returns the amounts by a report of the kernel that is at most `max_age` old.
    pub fn amounts(&self, max_age: Duration) -> Amounts {
        let mut known = self.0.lock().expect("no code panics while it holds this lock");
        if known.last.is_none_or(|(at, _)| at.elapsed() >= max_age) {
            known.record(in_kernel());
        }
        known.amounts()
    }

    /// Notes that all of our dirty data has been written back.
    pub fn mark_clean(&self) {
        let mut known = self.0.lock().expect("no code panics while it holds this lock");
        known.of_others = u64::MAX;
        known.record(in_kernel());
    }
}

impl Known {
    fn record(&mut self, bytes: u64) {
        self.last = Some((Instant::now(), bytes));
        self.of_others = self.of_others.min(bytes);
    }

    fn amounts(&self) -> Amounts {
        let of_all = self.last.map_or(0, |(_, bytes)| bytes);
        Amounts { probably_ours: of_all - self.of_others.min(of_all), of_all }
    }
}

fn in_kernel() -> u64 {
    in_table(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default())
}

/// Parses /proc/meminfo (proc(5)) and returns the bytes of dirty pages and of pages under write-back.
fn in_table(text: &str) -> u64 {
    let counts = |name: &str| ["Dirty", "Writeback", "WritebackTmp"].contains(&name);
    let kibibytes = |line: &str| {
        let (name, value) = line.split_once(':')?;
        counts(name).then(|| value.trim().trim_end_matches(" kB").parse::<u64>().ok())?
    };
    text.lines().filter_map(kibibytes).fold(0, |sum: u64, one| sum.saturating_add(one)).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dirty_data_of_other_file_systems_does_not_count() {
        let mut known = Known::default();
        known.record(100);
        assert_eq!(known.amounts().probably_ours, 100, "nobody knows");
        known.of_others = u64::MAX;
        known.record(70);
        assert_eq!(known.amounts(), Amounts { probably_ours: 0, of_all: 70 });
        known.record(90);
        assert_eq!(known.amounts().probably_ours, 20);
        known.record(50);
        known.record(80);
        assert_eq!(known.amounts().probably_ours, 30, "others have written");
    }

    #[test]
    fn all_kinds_of_dirty_memory_are_added_up() {
        let table = "MemTotal:       24684580 kB\nDirty:              1024 kB\nWriteback:             1 kB\n\
                     AnonPages:          77 kB\nWritebackTmp:          2 kB\nHugePages_Total:       0\n";
        assert_eq!(in_table(table), 1027 * 1024);
        assert_eq!(in_table("Dirty: many kB\nDirty"), 0);
    }
}
