//! A step of long work, reported on standard error while it runs, in whole lines because others write there
//! meanwhile.

use std::time::{Duration, Instant};

/// A step in progress. Its end is reported with its duration.
#[derive(Debug)]
pub struct Step {
    what: String,
    started: Instant,
}

impl Step {
    /// Reports the start of a step.
    pub fn begin(what: &str) -> Step {
        eprintln!("{what} ...");
        Step { what: what.to_owned(), started: Instant::now() }
    }

    /// Reports progress.
    pub fn tell(&self, progress: &str) {
        eprintln!("{}: {progress}, {}", self.what, seconds(self.started.elapsed()));
    }

    /// Reports the end, with the duration.
    pub fn end(self) {
        eprintln!("{}: {}", self.what, seconds(self.started.elapsed()));
    }
}

fn seconds(time: Duration) -> String {
    match time.as_secs() {
        0..120 => format!("{:.1} s", time.as_secs_f64()),
        s => format!("{} min {} s", s / 60, s % 60),
    }
}
