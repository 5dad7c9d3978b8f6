//! How much waits in the kernel's cache to be written.
//!
//! It takes gigabytes before it writes any of them. It says how much that is of all file systems together, and never of
//! one: what is there once everything of ours is written is others'.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

/// How long an answer counts: asking takes longer than making a file.
const KEPT: Duration = Duration::from_millis(5);

/// How much of what waits is ours.
#[derive(Default)]
pub struct Waiting(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// What the kernel said last, and when.
    last: Option<(Instant, u64)>,
    /// Bytes of it that others wait for, as far as we know.
    of_others: u64,
}

impl Waiting {
    /// Bytes that may be ours.
    pub fn bytes(&self) -> u64 {
        let mut known = self.0.lock().expect("nothing panics under this lock");
        if known.last.is_none_or(|(at, _)| at.elapsed() >= KEPT) {
            known.learn(in_kernel());
        }
        known.ours()
    }

    /// Everything of ours is written.
    pub fn is_over(&self) {
        let mut known = self.0.lock().expect("nothing panics under this lock");
        known.of_others = u64::MAX;
        known.learn(in_kernel());
    }
}

impl Known {
    fn learn(&mut self, bytes: u64) {
        self.last = Some((Instant::now(), bytes));
        self.of_others = self.of_others.min(bytes);
    }

    fn ours(&self) -> u64 {
        self.last.map_or(0, |(_, bytes)| bytes - self.of_others)
    }
}

fn in_kernel() -> u64 {
    in_table(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default())
}

/// What the table of the memory's use says (proc(5)): dirty pages, and those that are just being written.
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
    fn what_others_wait_for_does_not_count() {
        let mut known = Known::default();
        known.learn(100);
        assert_eq!(known.ours(), 100, "nobody knows");
        known.of_others = u64::MAX;
        known.learn(70);
        assert_eq!(known.ours(), 0);
        known.learn(90);
        assert_eq!(known.ours(), 20);
        known.learn(50);
        known.learn(80);
        assert_eq!(known.ours(), 30, "others have written");
    }

    #[test]
    fn all_that_waits_is_added_up() {
        let table = "MemTotal:       24684580 kB\nDirty:              1024 kB\nWriteback:             1 kB\n\
                     AnonPages:          77 kB\nWritebackTmp:          2 kB\nHugePages_Total:       0\n";
        assert_eq!(in_table(table), 1027 * 1024);
        assert_eq!(in_table("Dirty: many kB\nDirty"), 0);
    }
}
