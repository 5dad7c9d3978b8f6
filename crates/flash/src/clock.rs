//! Clocks for measuring durations.

use std::time::Instant;

/// A source of the time since some start.
pub trait Clock {
    /// Returns the time in nanoseconds. It never goes back.
    fn now_ns(&self) -> u64;
}

/// The host's clock, for real devices.
#[derive(Debug, Clone, Copy)]
pub struct WallClock(Instant);

impl WallClock {
    /// Makes a clock that starts now.
    pub fn start() -> WallClock {
        WallClock(Instant::now())
    }
}

impl Clock for WallClock {
    fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}
