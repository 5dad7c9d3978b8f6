//! Linux's FUSE protocol, for file systems whose umount(2) waits until they are clean.
//!
//! [`Connection`] mounts and talks to the kernel, in the structures of [`abi`]. A [`Session`] reads requests on
//! several threads and passes them to a [`Handler`], which is the file system.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use flashkit_fuse_protocol::{
//!     Access, Connection, Errno, Handler, InitRequest, MountArguments, MountFlags, Problem, Request,
//!     RequestLimits, Response, Session,
//!     abi::{self, opcode},
//! };
//!
//! /// An empty directory. `examples/hello.rs` has a file in it.
//! struct Empty;
//!
//! impl Handler for Empty {
//!     fn init_flags(&self, _: &InitRequest) -> u64 {
//!         abi::init_flags::ASYNC_READ
//!     }
//!
//!     fn handle(&self, request: &mut Request<'_>, response: &mut Response) -> Result<(), Errno> {
//!         match request.header.opcode {
//!             opcode::GETATTR => {
//!                 let attr = abi::Attr { ino: 1, mode: 0o040_555, links: 2, ..Default::default() };
//!                 response.output.put(&abi::AttrOut { attr, ..Default::default() });
//!             }
//!             opcode::FORGET => response.suppress(),
//!             opcode::LOOKUP => return Err(Errno::NOENT),
//!             opcode::DESTROY => {}
//!             _ => return Err(Errno::NOSYS),
//!         }
//!         Ok(())
//!     }
//!
//!     fn report(&self, problem: Problem) {
//!         eprintln!("{problem:?}");
//!     }
//! }
//!
//! let limits = RequestLimits::default();
//! let arguments = MountArguments {
//!     source: "empty",
//!     subtype: "empty",
//!     flags: MountFlags::RDONLY,
//!     access: Access::Owner,
//!     max_read_bytes: limits.read_bytes,
//! };
//! let (connection, _) = Connection::mount("/mnt".as_ref(), &arguments)?;
//! Session::new(Arc::new(connection), limits, Empty).run(2)?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! *Why not another library*: the kernel waits for the answer to the last request, DESTROY, only for mounts with
//! a [block device](Connection::mount_with_device) (type `fuseblk`). The `fuser` crate cannot mount this type, and
//! it answers DESTROY before it tells the file system. It also lacks O_TMPFILE, `syncfs` and birth times.
//!
//! *Invariants*: bytes of the kernel are parsed with checked lengths; a panic fails only its own request; some
//! threads are reserved for requests that change nothing. The crate does not print. Only `uring/ring.rs` and
//! `uring/memory.rs` have `unsafe`, for the memory that the kernel fills.

pub mod abi;
mod abort;
mod connection;
mod encoding;
mod interrupts;
mod kernel_write_back;
mod message;
mod mount;
mod negotiation;
mod panics;
mod pool;
mod ready_threads;
mod session;
mod splice_pipe;
mod uring;

pub use abort::{abort_at, abort_by, open_abort_file};
pub use connection::{Connection, Reply};
pub use encoding::{
    SetXattr, SetXattrForm, decode_device, dirent_bytes, encode_device, put_dirent, put_xattr,
};
pub use interrupts::Watched;
pub use kernel_write_back::{KernelWriteBack, WhenCrowded};
pub use message::{Arguments, Output};
pub use mount::{Access, DeviceMount, MountArguments, Mounter, UnmountMode, mount_types, sync, unmount};
pub use negotiation::{InitRequest, Negotiated, RequestLimits};
pub use panics::contain;
pub use pool::CHANGING_MAX;
pub use ready_threads::{ReadyThreads, Worker};
pub use rustix::{io::Errno, mount::MountFlags};
pub use session::{Handler, Problem, Request, Response, Session, Transport};
pub use splice_pipe::SplicePipe;
