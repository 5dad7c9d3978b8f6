//! A step of long work, told on standard error while it runs.

use std::{
    io::Write,
    time::{Duration, Instant},
};

/// A step that has begun; its end is told with the time that it took.
#[derive(Debug)]
pub struct Step {
    started: Instant,
}

impl Step {
    /// Says what begins.
    pub fn begin(what: &str) -> Step {
        eprint!("{what} ... ");
        let _ = std::io::stderr().flush();
        Step { started: Instant::now() }
    }

    /// Says how long it took.
    pub fn end(self) {
        eprintln!("{}", seconds(self.started.elapsed()));
    }
}

fn seconds(time: Duration) -> String {
    match time.as_secs() {
        0..120 => format!("{:.1} s", time.as_secs_f64()),
        s => format!("{} min {} s", s / 60, s % 60),
    }
}
