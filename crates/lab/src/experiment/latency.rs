//! Experiment 8: durations of single writes while the file system has to make space for them.
//!
//! One file fills the file system. It is overwritten at random until all free space has been written once;
//! then the durations of writes are measured. A file system with background cleaning is measured again with
//! cleaning off.

use flash::latency::Latencies;
use guest::{
    Op, Overwrites,
    overwrite::Course,
    pattern::{Access, Order, Sync},
};

use super::{Bench, FILE, file, pattern};
use crate::{
    scale::{RECORD_BYTES, Scale},
    vm::Failure,
};

/// Fill level of a card, in percent.
const FULL_PERCENT: u64 = 95;
/// Fill level for nilfs2, which also reserves segments: above this level its cleaner frees no segment.
const NILFS2_FULL_PERCENT: u64 = 90;
/// Fill level of raw flash. The size of the file in 2003 is not known; but each write then cost no more than
/// its own erases, so there was little data to move.
const RAW_FULL_PERCENT: u64 = 25;
/// Number of shares into which progress is divided.
const SHARES: usize = 100;

/// The background cleaner of a file system, by the way to stop it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cleaner {
    /// A mount option disables it.
    Option(&'static str),
    /// It is a kernel thread, which is stopped.
    Thread(&'static str),
}

impl Cleaner {
    /// Returns the cleaner of a type of file system; `None` if it has none.
    pub(super) fn of(kind: &str) -> Option<Cleaner> {
        match kind {
            "f2fs" => Some(Cleaner::Option("background_gc=off")),
            "jffs2" => Some(Cleaner::Thread("jffs2_gcd_")),
            _ => None,
        }
    }
}

/// Returns the fill level for a file system of this type, in percent.
pub(super) fn full_percent(kind: &str) -> u64 {
    match kind {
        "jffs2" | "ubifs" => RAW_FULL_PERCENT,
        "nilfs2" => NILFS2_FULL_PERCENT,
        _ => FULL_PERCENT,
    }
}

impl Bench<'_> {
    pub(super) fn latencies(&mut self, scale: &Scale) -> Result<(), Failure> {
        self.target.run(&self.mount_op())?;
        let (total_bytes, free_bytes) = self.space()?;
        let full_bytes = total_bytes / 100 * full_percent(self.how.mount.0);
        let record = u64::from(RECORD_BYTES);
        let file_bytes = full_bytes.saturating_sub(total_bytes - free_bytes) / record * record;
        self.target.run(&file(pattern(Access::Create, Order::Sequential, file_bytes, Sync::End)))?;
        let how = self.how;
        let over = |course, writes| {
            // JFFS2's writes are durable when the call returns, and the test of 2003 called no fsync.
            let sync = !how.is_synchronous();
            let overwrites = Overwrites { course, file_bytes, record_bytes: RECORD_BYTES, writes, sync };
            Op::Overwrite { path: FILE.into(), overwrites }
        };
        let (_, free_bytes) = self.space()?;
        let seed = self.how.seed;
        self.target.run(&over(Course::Anywhere { seed: !seed }, free_bytes.div_ceil(record)))?;

        let courses = [Course::Round, Course::Anywhere { seed }];
        let mut writes = scale.timed_writes;
        for course in courses {
            self.measure(writes, &[over(course, writes)])?;
            writes = scale.timed_writes_later.unwrap_or(writes);
        }
        if let Some(cleaner) = Cleaner::of(self.how.mount.0) {
            self.unmount()?;
            match cleaner {
                Cleaner::Option(option) => drop(self.target.run(&self.mount_with(option))?),
                Cleaner::Thread(name) => {
                    self.target.run(&self.mount_op())?;
                    self.target.run(&Op::Threads { name: name.into(), go_on: false })?;
                }
            }
            for course in courses {
                self.measure(writes, &[over(course, writes)])?;
            }
        }
        self.unmount()
    }
}

/// Converts durations to a distribution.
pub(super) fn distribution(times: &[u64]) -> Latencies {
    let mut latencies = Latencies::default();
    times.iter().for_each(|ns| latencies.record(*ns));
    latencies
}

/// Returns the completion time of each of a hundred equal shares, or of each unit if there are fewer.
pub(super) fn progress(times: &[u64]) -> Vec<u64> {
    let shares = SHARES.min(times.len());
    let mut ends: Vec<u64> = Vec::with_capacity(shares);
    for n in 0..shares {
        let share = &times[times.len() * n / shares..times.len() * (n + 1) / shares];
        ends.push(ends.last().unwrap_or(&0) + share.iter().sum::<u64>());
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_the_running_sum_of_the_times() {
        assert_eq!(progress(&[]), Vec::<u64>::new());
        assert_eq!(progress(&[1, 2, 3]), [1, 3, 6]);
        let times: Vec<u64> = (0..1050).collect();
        let ends = progress(&times);
        assert_eq!((ends.len(), ends[0], ends[99]), (100, 45, 1050 * 1049 / 2));
    }
}
