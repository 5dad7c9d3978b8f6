//! Code shared by the judge's host and its guest: one vocabulary of operations, the manifest of a tree, and
//! the code that executes the operations and makes manifests. The same code runs as init in the virtual
//! machine (`guest-agent`) and on the host, so a source directory and a mounted volume are examined in the
//! same way.
//!
//! *Invariant*: an operation never panics. A refusal of the kernel is an error with its errno.

pub mod bytes;
pub mod compare;
pub mod content;
pub mod examine;
pub mod fsck;
pub mod host;
pub mod ioctl;
pub mod mailbox;
pub mod manifest;
mod mount;
pub mod nbd;
pub mod op;
pub mod overwrite;
pub mod pager;
pub mod pattern;
pub mod room;
pub mod run;
pub mod stamp;
pub mod threads;
pub mod tree;
pub mod ubi;
pub mod workload;

pub use bytes::Bytes;
pub use compare::{Scope, differences};
pub use content::Content;
pub use manifest::{Entry, Kind, Manifest};
pub use op::{Op, Reply};
pub use overwrite::Overwrites;
pub use pattern::Pattern;
pub use run::Runner;
pub use tree::Tree;
pub use workload::Workload;
