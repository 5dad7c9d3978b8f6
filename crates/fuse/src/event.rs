//! Events of a mount that users should learn of. Programs get only an errno.

use std::fmt;

/// An event of a mount. Its text names the cause and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Damage was found, and left unchanged.
    Damage {
        /// The image, for the advice.
        image: String,
    },
    /// A request failed because of an internal error.
    InternalError(String),
    /// The volume accepts no more changes.
    WritingStopped(String),
    /// The kernel is too old, and was refused.
    KernelTooOld {
        /// Minor version of the kernel's protocol.
        minor: u32,
    },
    /// The options ask for io_uring, which cannot be used for this reason. The mount goes on with `/dev/fuse`.
    NoIoUring(String),
    /// A metadata write failed, and `errors=panic` asks to end the process at once: the receiver should abort it.
    MustAbort,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Damage { image } => {
                write!(f, "found damage and left it unchanged; unmount it and run flashkit fsck {image}")
            }
            Event::InternalError(message) => {
                write!(f, "a request failed because of an internal error: {message}")
            }
            Event::WritingStopped(reason) => {
                write!(f, "writing has stopped, and changes that were not synced are lost: {reason}")
            }
            Event::KernelTooOld { minor } => {
                let least = fuse_protocol::abi::MINOR_LEAST;
                write!(f, "this kernel is too old: it has FUSE 7.{minor}, and 7.{least} is needed")
            }
            Event::NoIoUring(reason) => {
                write!(f, "requests go through /dev/fuse, because io_uring cannot be used: {reason}")
            }
            Event::MustAbort => write!(f, "writing metadata failed, and errors=panic ends the mount"),
        }
    }
}

/// A receiver of events. Any thread may call it.
pub type Report = dyn Fn(&Event) + Send + Sync;
