//! A timeout for a silent program that counts only time in which the program could have run.
//!
//! *Invariant*: time in which a program waits for a processor does not count. So other load on the machine
//! slows a guest down, but never makes it look hung.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

/// Interval at which callers call [`Patience::is_spent`].
pub const TICK: Duration = Duration::from_millis(250);
/// At least one part in this many of the wall-clock time counts, so that the timeout also ends for a program
/// that never gets a processor.
const SMALLEST_SHARE: u32 = 20;

/// The timeout for one program.
#[derive(Debug)]
pub struct Patience {
    limit: Duration,
    process: Option<u32>,
    /// Time counted so far.
    spent: Duration,
    /// Time of the last count, and the total time that the program had waited for processors by then.
    counted: Instant,
    waited: Duration,
}

impl Patience {
    /// Starts a timeout of `limit` for the process `process` and its children. Without a process, all time
    /// counts.
    pub fn new(limit: Duration, process: Option<u32>) -> Patience {
        let waited = process.map_or(Duration::ZERO, waited_for_processors);
        Patience { limit, process, spent: Duration::ZERO, counted: Instant::now(), waited }
    }

    /// Counts the time since the last call. Returns true if the timeout has expired.
    pub fn is_spent(&mut self) -> bool {
        let (now, waited) = (Instant::now(), self.process.map_or(Duration::ZERO, waited_for_processors));
        self.spent += counted(now - self.counted, waited.saturating_sub(self.waited));
        (self.counted, self.waited) = (now, waited);
        self.spent >= self.limit
    }
}

/// Returns the part of the elapsed time that counts for a program that waited `waited` for processors.
/// Several of its threads may wait at once.
fn counted(passed: Duration, waited: Duration) -> Duration {
    passed.saturating_sub(waited).max(passed / SMALLEST_SHARE)
}

/// Returns the total time that the threads of a process and of its children have waited for processors; zero
/// if the kernel does not report it.
fn waited_for_processors(process: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    tasks.map(|task| waited_in(&task.path())).sum()
}

/// Returns that time for one thread and the child processes that it has started.
fn waited_in(task: &Path) -> Duration {
    let read = |name| fs::read_to_string(task.join(name)).unwrap_or_default();
    let own = waited(&read("schedstat"));
    own + read("children")
        .split_whitespace()
        .filter_map(|id| id.parse().ok())
        .map(waited_for_processors)
        .sum::<Duration>()
}

/// Parses the second figure of proc(5), schedstat: nanoseconds on a processor, nanoseconds waiting for one,
/// number of time slices.
fn waited(schedstat: &str) -> Duration {
    let waited_ns = schedstat.split_whitespace().nth(1).and_then(|ns| ns.parse().ok());
    Duration::from_nanos(waited_ns.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn time_in_which_a_program_waits_for_a_processor_does_not_count() {
        assert_eq!(counted(10 * SECOND, Duration::ZERO), 10 * SECOND, "it sleeps, or has a processor");
        assert_eq!(counted(10 * SECOND, 7 * SECOND), 3 * SECOND);
        assert_eq!(counted(10 * SECOND, 30 * SECOND), SECOND / 2, "three threads wait, and some time counts");
    }

    #[test]
    fn the_kernels_figure_of_a_wait_is_read() {
        assert_eq!(waited("813000000 2500000000 42\n"), SECOND * 5 / 2);
        assert_eq!(waited(""), Duration::ZERO, "a kernel without this figure");
    }

    #[test]
    fn patience_ends_at_its_limit_and_not_before() {
        let now = Instant::now();
        let spent =
            |passed| Patience { counted: now - passed, ..Patience::new(1000 * SECOND, None) }.is_spent();
        assert!(spent(1000 * SECOND) && !spent(SECOND));
        let mut patience = Patience { spent: 999 * SECOND, ..Patience::new(1000 * SECOND, None) };
        patience.counted = now - SECOND;
        assert!(patience.is_spent(), "the earlier count is kept: {patience:?}");
    }
}
