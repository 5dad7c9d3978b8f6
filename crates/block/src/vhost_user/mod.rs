//! A virtio block device for a guest that speaks vhost-user: QEMU, or user-mode Linux.
//!
//! vhost-user is a socket over which a guest hands out its memory and the address of a queue of requests; what
//! serves it reads and answers the requests in that memory. [`Disk`] is the protocol alone and owns neither
//! the data nor the time: who drives it takes requests out, does with them what it likes as long as it likes,
//! and answers them. So the same front end serves a device in real time and a modelled one in virtual time.
//!
//! Notifications are *in band*, messages on the socket instead of events on file descriptors, where the guest
//! can do that. One thread that serves the socket then sees all that the guest does in one order, which makes
//! a run in virtual time repeatable.
//!
//! *Invariant*: a guest that breaks the protocol is an error; it never makes this side panic, or wait in the middle of a
//! message, and no access leaves the memory that it handed out. A memfd, which QEMU hands out, is sealed so that the guest
//! cannot make it shorter. A guest whose memory is another file, as that of user-mode Linux is, must be trusted not to
//! shorten it: the mapping of a file that becomes shorter ends this side with a signal.

mod config;
mod disk;
#[cfg(any(test, feature = "fake-guest"))]
pub mod fake_guest;
mod message;
mod request;

pub use config::Traits;
pub use disk::{Disk, Event};
pub use request::{Ask, Request};
