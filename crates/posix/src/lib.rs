//! F2FS volumes with the semantics that POSIX and Linux ask of a mounted file system, for any front end: FUSE,
//! a network protocol, or a virtual machine.
//!
//! [`FileSystem`] has one method for each operation. It adds to [`f2fs::engine::Engine`]: the set-user-id and
//! set-group-id rules, immutable and append-only files, access times, synchronous directories, files that are
//! unlinked while they are open, quota limits by caller, and the work of idle times. Each operation takes `&self` and may
//! run on any thread.
//!
//! *Invariants*: this crate contains no policy of a cache and no protocol. Readers share the engine's `&self`, one
//! writer has its `&mut self`, and readers never wait for a flush or discard of the device ([`volume_lock`]).
//! Every error becomes an errno in [`errno`] and nowhere else. The crate neither prints nor spawns.

#![forbid(unsafe_code)]

mod caller_memory;
pub mod credentials;
mod encryption;
pub mod errno;
mod file_system;
mod idle;
mod inodes;
pub mod ioctl;
mod listings;
mod pending_atimes;
mod verity;
pub mod volume_lock;

pub use caller_memory::CallerMemory;
pub use credentials::Credentials;
pub use encryption::{Claims, EncryptionRequest, KeyStatus, Removal};
pub use errno::Errno;
pub use file_system::{
    Atime, Call, Change, FileSystem, FsyncMode, GroupIdBit, Limits, OpenFor, OpenMode, Result, SelinuxLabels,
    Settings, ShownOwner, SyncScope, TimesFrom, WriteMode, WriteOrigin,
};
pub use idle::{BackgroundGc, IdleWork};
pub use verity::{AnswerBy, Metadata, MetadataRange, VerityAnswer, VerityRequest};
