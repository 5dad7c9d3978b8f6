//! Real kernels' file systems in virtual time.
//!
//! The guest is user-mode Linux with time travel: its clock stands still while it computes and is moved by a
//! *calendar*. One process of ours, with one thread, is the calendar and the guest's disks at once: when the
//! guest has nothing to do but wait, it is given the time of the next event, be that its own timer or the end
//! of a request to the modelled card. So a run takes as long as its computing takes, and device time comes out
//! exact and repeatable.
//!
//! *Invariant*: nothing here looks at the wall clock, except to give up on a guest that hangs; QEMU's does nothing
//! else, and its figures are called indicative wherever they are shown.
//!
//! [`Uml`] starts the program and is what to use; [`World`] is calendar and disks; [`Card`] gives each request
//! its time. [`Qemu`] is for machines where there is no such kernel: a stock one, in real time.

mod calendar;
mod card;
mod mailbox;
mod qemu;
mod uml;
mod world;

pub use card::{Card, EventModel, Totals};
pub use qemu::{KERNEL_LINE, MACHINE, Qemu, QemuSetup};
use uml::console_end;
pub use uml::{Measured, RANDOM_BYTES, Setup, Uml};
pub use world::{EPOCH_NS, Limits, World};

use std::{io, path::Path};

use guest::{Op, op::Message};

/// Why a guest did not do what it was to do. A study records it and goes on with another guest.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The guest ended, by a panic or by itself.
    #[error("the guest died at {at_ns} ns of its time\n{console}")]
    Died {
        /// When, on its clock.
        at_ns: u64,
        /// The end of what its kernel said.
        console: String,
    },
    /// The guest says nothing any more, and computes or sleeps outside of its time.
    #[error(
        "the guest hangs at {at_ns} ns of its time: silent for {silent_s} s, waits for a processor not counted\n{console}"
    )]
    Hung {
        /// When, on its clock.
        at_ns: u64,
        /// Seconds that it was waited for, without those in which it waited for a processor.
        silent_s: u64,
        /// The end of what its kernel said.
        console: String,
    },
    /// An operation took more of the guest's time than it may.
    #[error("the operation takes more than {limit_ns} ns of the guest's time\n{console}")]
    TooLong {
        /// What it may take.
        limit_ns: u64,
        /// The end of what its kernel said.
        console: String,
    },
    /// The guest waits, and nothing will ever happen.
    #[error("the guest waits at {at_ns} ns of its time, and nothing will happen\n{console}")]
    Stuck {
        /// When, on its clock.
        at_ns: u64,
        /// The end of what its kernel said.
        console: String,
    },
    /// The guest's kernel refused an operation.
    #[error("{op}: {error}")]
    Refused {
        /// The operation.
        op: String,
        /// Number of the error, 0 where it is not the kernel's.
        errno: i32,
        /// The error in words, and what the kernel logged.
        error: String,
    },
    /// It was wished that the work ends.
    #[error("stopped")]
    Stopped,
    /// A socket or a file of ours failed, or the guest broke a protocol.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Failure {
    /// What the agent says of an operation that was refused, with what the kernel logged.
    fn refused(op: &Op, errno: i32, mut error: String, log: Vec<Message>) -> Failure {
        for message in log {
            error += &format!("\n<{}> {}", message.level, message.text);
        }
        Failure::Refused { op: format!("{op:?}"), errno, error }
    }

    /// The same with what the guest's kernel said last.
    fn with_console(mut self, text: String) -> Failure {
        match &mut self {
            Failure::Died { console, .. }
            | Failure::Hung { console, .. }
            | Failure::TooLong { console, .. }
            | Failure::Stuck { console, .. } => *console = text,
            Failure::Refused { .. } | Failure::Stopped | Failure::Io(_) => {}
        }
        self
    }
}

pub use guest::host::program as host_program;

/// The operation that shows the host's files to the guest, read-only, for [`host_program`].
pub fn host_files() -> Op {
    Op::Mount {
        source: "host".into(),
        dir: guest::host::DIR.into(),
        fs: "hostfs".into(),
        options: "/".into(),
        read_only: true,
    }
}

/// The path of one of the host's files as the guest has it.
///
/// # Errors
/// There is no such file.
pub fn host_file(path: &Path) -> io::Result<String> {
    let path = std::fs::canonicalize(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    Ok(format!("{}{}", guest::host::DIR, path.display()))
}
