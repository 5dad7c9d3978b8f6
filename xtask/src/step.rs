//! A step of long work, told on standard error while it runs: whole lines, since others write there meanwhile.

use std::time::{Duration, Instant};

/// A step that has begun; its end is told with the time that it took.
#[derive(Debug)]
pub struct Step {
    what: String,
    started: Instant,
}

impl Step {
    /// Says what begins.
    pub fn begin(what: &str) -> Step {
        eprintln!("{what} ...");
        Step { what: what.to_owned(), started: Instant::now() }
    }

    /// Says how far it has come.
    pub fn tell(&self, progress: &str) {
        eprintln!("{}: {progress}, {}", self.what, seconds(self.started.elapsed()));
    }

    /// Says how long it took.
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
