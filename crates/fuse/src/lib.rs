//! F2FS volumes mounted through FUSE.
//!
//! A request passes through these layers: [`fuse_protocol`] (the kernel's device) → `backend` (decoding) →
//! [`posix::FileSystem`] (each operation on a volume) → [`f2fs::engine::Engine`]. Long reads are spliced from the
//! image to the kernel.
//!
//! *Invariant*: the only policy in this crate is that of the kernel's cache (`cache`); the engine decides
//! everything else.

#![forbid(unsafe_code)]

mod backend;
mod background;
mod cache;
mod clock;
mod event;
mod mount;
mod mounts;
mod options;
mod source;
#[cfg(test)]
mod tests;
mod watched;

pub use event::{Event, Report};
pub use mount::{Error, Mount, Result, remount};
pub use options::{IoUring, KNOWN as KNOWN_OPTIONS, Medium, MountOptions, OnError, Reads};
pub use posix::{Atime, BackgroundGc, FsyncMode};
pub use watched::Watched;
