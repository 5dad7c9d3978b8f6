//! A virtio block device for a guest that speaks vhost-user: QEMU, or user-mode Linux.
//!
//! vhost-user is a socket over which a guest shares its memory and the address of a request queue. The server
//! reads and answers the requests in that memory. [`Disk`] is only the protocol and has neither the data nor
//! a clock: its caller takes requests out, executes them in its own time, and answers them. So the same front
//! end serves a device in real time and a modelled one in virtual time.
//!
//! Notifications are *in band* if the guest supports it: messages on the socket instead of events on file
//! descriptors. One thread that serves the socket then sees all actions of the guest in one order, which
//! makes a run in virtual time repeatable.
//!
//! *Invariant*: a guest that breaks the protocol causes an error. It never causes a panic or a wait within a
//! message, and no access leaves the shared memory. A memfd, as QEMU uses, is sealed so that the guest cannot
//! shrink it. A guest whose memory is another kind of file, as with user-mode Linux, must be trusted not to
//! shrink it: access to the mapping of a shrunken file ends this process with a signal.

mod config;
mod disk;
#[cfg(any(test, feature = "fake-guest"))]
pub mod fake_guest;
mod message;
mod request;

pub use config::Traits;
pub use disk::{Disk, Event};
pub use request::{Ask, Request};
