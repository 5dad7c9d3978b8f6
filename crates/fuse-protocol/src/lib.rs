//! Linux's FUSE protocol, for file systems whose umount(2) waits until they are clean.
//!
//! *Why not another library*: the kernel waits for the answer to the last request, DESTROY, only for mounts with
//! a block device (type `fuseblk`). The `fuser` crate cannot mount this type, and it answers DESTROY before it
//! tells the file system. It also lacks O_TMPFILE, `syncfs` and birth times.

#![forbid(unsafe_code)]

pub mod abi;
mod connection;
mod interrupts;
mod message;
mod mount;
mod panics;
mod pool;
mod splice_pipe;
mod write_back;

pub use connection::{Connection, Reply};
pub use interrupts::{Interrupts, Watched};
pub use message::{Arguments, Output};
pub use mount::{Access, DeviceMount, MountArguments, Mounter, UnmountMode, mount_types, sync, unmount};
pub use panics::contain;
pub use pool::{Admission, CHANGING_MAX, Parked, Pool};
pub use rustix::{io::Errno, mount::MountFlags};
pub use splice_pipe::SplicePipe;
pub use write_back::WriteBack;
