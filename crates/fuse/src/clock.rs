//! The clock for timestamps of files.

use f2fs::units::Time;
use rustix::time::{ClockId, clock_gettime};

/// Returns the current time of the kernel's coarse clock, which the kernel uses for timestamps and which
/// advances with its timer tick. With a finer clock our timestamps would be later than those that the kernel
/// writes a moment later.
pub fn now() -> Time {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    Time { seconds: now.tv_sec, nanoseconds: now.tv_nsec as u32 }
}
