//! F2FS volumes mounted through FUSE.
//!
//! A request passes through these layers: `connection` (the kernel's device) → `backend` (decoding, with the
//! structures of `protocol`) → [`FileSystem`] (each operation on a volume) → [`f2fs::volume::Volume`]. Long reads are
//! spliced from the image to the kernel by `splice_pipe`.
//!
//! *Invariants*: this crate contains no policy, the engine decides. Readers share the engine's `&self`, one
//! writer has its `&mut self`, and readers never wait for a flush or discard of the device (`volume_lock`).
//! Every error becomes an errno in `errno` and nowhere else.

#![forbid(unsafe_code)]

mod backend;
mod background;
mod cache;
mod caller;
mod clock;
mod connection;
mod daemon;
mod errno;
mod fault;
mod file_system;
mod flusher;
mod inodes;
mod ioctl;
mod mount;
mod mounts;
mod options;
mod pending_atimes;
mod pool;
mod protocol;
mod splice_pipe;
mod volume_lock;
mod write_back;

pub use daemon::{Ready, spawn_daemon};
pub use errno::Errno;
pub use file_system::{FileSystem, Settings};
pub use mount::{Error, Mount, Result, remount};
pub use options::{Atime, BackgroundGc, FsyncMode, KNOWN as KNOWN_OPTIONS, MountOptions, OnError};
