//! F2FS, the flash-friendly file system, in user space.
//!
//! *Invariants*: this crate does not print, spawn threads or read the clock, and has no `unsafe`. Bytes from
//! a device are untrusted until a check turns them into a typed value. Hostile bytes cause a located
//! [`Error`], never a panic, a hang or an unbounded allocation.

#![forbid(unsafe_code)]

pub mod error;
pub mod format;
pub mod mkfs;
pub mod printable;
pub mod units;
pub mod volume;

pub use error::{Error, Place, Result};
pub use volume::Volume;
