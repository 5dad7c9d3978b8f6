//! Facts and services of the host beyond the standard library, in one implementation for each system. No other file asks for the
//! system, except to leave out verbs.

#[cfg(unix)]
#[path = "linux/mod.rs"]
mod system;
#[cfg(windows)]
#[path = "windows/mod.rs"]
mod system;

pub use system::*;
