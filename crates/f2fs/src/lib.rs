//! F2FS, the flash-friendly file system, in user space.
//!
//! *Invariants*: this crate neither prints, nor spawns, nor reads the clock; it has no `unsafe`; bytes from a
//! device are untrusted until a check has made a typed value of them, and hostile bytes give a located
//! [`Error`], never a panic, a hang or an unbounded allocation.

#![forbid(unsafe_code)]

pub mod error;
pub mod format;
pub mod mkfs;
pub mod printable;
pub mod tree;
pub mod units;
pub mod volume;

pub use error::{Error, Place, Result};
pub use volume::Volume;
