//! The host's clock. Only this file reads it.

use std::time::{SystemTime, UNIX_EPOCH};

use f2fs::units::Time;

/// Returns the current time.
pub fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
}
