//! Clocks that durations are measured with.

use std::time::Instant;

/// Something that tells the time since some start.
pub trait Clock {
    /// Nanoseconds. Never goes back.
    fn now_ns(&self) -> u64;
}

/// The host's clock, for devices that are real.
#[derive(Debug, Clone, Copy)]
pub struct WallClock(Instant);

impl WallClock {
    /// A clock that starts now.
    pub fn start() -> WallClock {
        WallClock(Instant::now())
    }
}

impl Clock for WallClock {
    fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}
