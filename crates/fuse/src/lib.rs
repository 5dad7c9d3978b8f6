//! F2FS volumes mounted through FUSE.
//!
//! A request takes this way: `connection` (the kernel's device) → `backend` (what the kernel means, in the terms of
//! `protocol`) → [`FileSystem`] (what each operation means for a volume) → [`f2fs::Volume`]. Long reads take `passage`
//! from the image to the kernel.
//!
//! *Invariants*: no policy here, the engine decides; the engine's `&self` is shared by readers, its `&mut self` is
//! one writer's, and no flush or discard of the device keeps readers waiting (`volume_lock`); every error becomes an errno
//! in `errno` and nowhere else.

#![forbid(unsafe_code)]

mod backend;
mod background;
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
mod late_atimes;
mod mount;
mod mounts;
mod options;
mod passage;
mod protocol;
mod unwritten;
mod volume_lock;
mod waiting;
mod write_back;

pub use daemon::{Ready, spawn_daemon};
pub use errno::Errno;
pub use file_system::{FileSystem, Settings};
pub use mount::{Error, Mount, Result, remount};
pub use options::{Atime, BackgroundGc, FsyncMode, KNOWN as KNOWN_OPTIONS, MountOptions, OnError};
