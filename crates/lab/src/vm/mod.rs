//! File systems of real kernels in virtual time.
//!
//! The guest is user-mode Linux with time travel: its clock stands still while it computes, and a
//! *time-travel server* advances it. One single-threaded process of ours is both that server and the guest's
//! disks. When the guest only waits, its time advances to the next event: its own timer, or the end of a
//! request to the modelled card. So a run takes as long as its computation, and device time is exact and
//! repeatable.
//!
//! *Invariant*: nothing here reads the wall clock, except for timeouts of hanging guests. QEMU runs in
//! wall-clock time; its figures are called indicative wherever they are shown.
//!
//! [`Uml`] starts the guest and is the entry point; [`EventLoop`] is the event loop with the time-travel server
//! and the disks; [`Card`] determines the duration of each request. [`Qemu`] serves machines without such a
//! kernel: it runs a stock kernel in real time.

mod card;
mod event_loop;
mod mailbox;
mod qemu;
mod time_travel;
mod uml;

pub use card::{Card, EventModel, Totals};
pub use event_loop::{EPOCH_NS, EventLoop, Limits};
pub use qemu::{KERNEL_LINE, MACHINE, Qemu, QemuSetup};
use uml::console_end;
pub use uml::{Measured, RANDOM_BYTES, Setup, Uml};

use std::{io, path::Path};

use guest::{Op, op::Message};

/// Why an operation in a guest failed. A study records it and continues with another guest.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The guest ended, by a panic or by itself.
    #[error("the guest died at {at_ns} ns of its time\n{console}")]
    Died {
        /// Guest time of the end.
        at_ns: u64,
        /// Last lines of its console.
        console: String,
    },
    /// The guest no longer sends anything: it computes, or sleeps outside virtual time.
    #[error(
        "the guest hangs at {at_ns} ns of its time: silent for {silent_s} s, without waits for a processor\n{console}"
    )]
    Hung {
        /// Guest time.
        at_ns: u64,
        /// Seconds of silence, without those in which the guest waited for a processor.
        silent_s: u64,
        /// Last lines of its console.
        console: String,
    },
    /// An operation exceeded its limit of guest time.
    #[error("the operation takes more than {limit_ns} ns of the guest's time\n{console}")]
    TooLong {
        /// The limit.
        limit_ns: u64,
        /// Last lines of its console.
        console: String,
    },
    /// The guest waits, and no event is pending.
    #[error("the guest waits at {at_ns} ns of its time, and no event is pending\n{console}")]
    Stuck {
        /// Guest time.
        at_ns: u64,
        /// Last lines of its console.
        console: String,
    },
    /// The guest's kernel refused an operation.
    #[error("{op}: {error}")]
    Refused {
        /// The operation.
        op: String,
        /// The errno; 0 if the error is not one of the kernel.
        errno: i32,
        /// Error message, and the lines that the kernel logged.
        error: String,
    },
    /// A stop was requested.
    #[error("stopped")]
    Stopped,
    /// A socket or file of ours failed, or the guest violated a protocol.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Failure {
    /// Returns true if the reason lies with this machine at this time, so that another attempt may succeed: a
    /// lack of memory, space, processes or file handles, or a guest that was killed or hangs. A panic of the
    /// guest's kernel is a result.
    pub fn is_transient(&self) -> bool {
        match self {
            Failure::Hung { .. } => true,
            Failure::Died { console, .. } => !console.contains("panic"),
            Failure::Io(error) => is_shortage(error),
            Failure::TooLong { .. } | Failure::Stuck { .. } | Failure::Refused { .. } | Failure::Stopped => {
                false
            }
        }
    }

    /// Creates the failure for an operation that the agent reports as refused, with the kernel's log.
    fn refused(op: &Op, errno: i32, mut error: String, log: Vec<Message>) -> Failure {
        for message in log {
            error += &format!("\n<{}> {}", message.level, message.text);
        }
        Failure::Refused { op: format!("{op:?}"), errno, error }
    }

    /// Adds the last lines of the guest's console.
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

/// Returns true for an error of the host that may pass.
pub fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    const ERRORS: [Errno; 9] = [
        Errno::AGAIN,
        Errno::DQUOT,
        Errno::INTR,
        Errno::IO,
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOMEM,
        Errno::NOSPC,
        Errno::STALE,
    ];
    ERRORS.iter().any(|one| error.raw_os_error() == Some(one.raw_os_error()))
        || error.kind() == io::ErrorKind::OutOfMemory
}

pub use guest::host::program as host_program;

/// Returns the operation that mounts the host's files read-only in the guest, for [`host_program`].
pub fn host_files() -> Op {
    Op::Mount {
        source: "host".into(),
        dir: guest::host::DIR.into(),
        fs: "hostfs".into(),
        options: "/".into(),
        read_only: true,
    }
}

/// Returns the path of a host file as the guest sees it.
///
/// # Errors
/// The file does not exist.
pub fn host_file(path: &Path) -> io::Result<String> {
    let path = std::fs::canonicalize(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    Ok(format!("{}{}", guest::host::DIR, path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_of_the_machine_are_worth_another_attempt() {
        let full = || io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
        assert!(Failure::Io(full()).is_transient());
        assert!(!Failure::Io(io::ErrorKind::NotFound.into()).is_transient());
        let died = |console: &str| Failure::Died { at_ns: 1, console: console.into() };
        assert!(died("Killed").is_transient() && !died("Kernel panic - not syncing").is_transient());
        let refused = Failure::Refused { op: "Write".into(), errno: 28, error: "no space".into() };
        assert!(!refused.is_transient(), "the modelled card is full");
    }
}
