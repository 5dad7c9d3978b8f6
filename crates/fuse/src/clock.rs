//! The time that files get.

use f2fs::units::Time;
use rustix::time::{ClockId, clock_gettime};

/// Now, by the clock that the kernel uses for the times of files: it goes in the steps of the kernel's timer. With a
/// finer one, what we make would be newer than what the kernel writes a moment later.
pub fn now() -> Time {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    Time { seconds: now.tv_sec, nanoseconds: now.tv_nsec as u32 }
}
