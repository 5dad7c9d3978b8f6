//! A ring, through which one thread lends entries to the kernel and gets them back with a request.

#![allow(unsafe_code)]

use std::{
    io::{self, IoSliceMut},
    mem,
    os::fd::{AsRawFd, BorrowedFd},
};

use io_uring::{IoUring, opcode, squeue::Entry128, types::Fd};
use zerocopy::IntoBytes;

use super::entry::Entry;
use crate::abi::{URING_COMMIT_AND_FETCH, URING_REGISTER, UringCommand};

/// Offset of the field `len` in `struct io_uring_sqe`.
const LENGTH_OFFSET: usize = 24;
/// Number of buffers of an entry: its header and its payload.
const BUFFERS: u32 = 2;

/// The ring of one thread, which alone may use it.
pub struct Ring {
    ring: IoUring<Entry128>,
    /// Entries that the kernel has, each at the index that is its `user_data`.
    lent: Vec<Option<Entry>>,
}

/// Command with which an entry is lent to the kernel.
enum Command {
    Register,
    CommitAndFetch,
}

/// Reason why the kernel has returned an entry without a request.
#[derive(Debug)]
pub struct Refused(pub io::Error);

impl Ring {
    /// Creates a ring for `entries` entries, and checks that this process may use it.
    ///
    /// # Errors
    /// Those of io_uring_setup(2) and io_uring_enter(2), which the host can forbid.
    pub fn new(entries: usize) -> io::Result<Ring> {
        let slots = u32::try_from(entries).map_err(|_| io::ErrorKind::InvalidInput)?;
        // Only this thread submits, and the kernel fills an entry while this thread waits for it.
        let mut ring =
            IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_clamp().build(slots)?;
        let nothing = Entry128::from(opcode::Nop::new().build());
        // SAFETY: the operation has no buffers.
        unsafe { ring.submission().push(&nothing) }.map_err(io::Error::other)?;
        ring.submit_and_wait(1)?;
        ring.completion().next().ok_or(io::ErrorKind::WouldBlock)?;
        let lent = (0..entries).map(|_| None).collect();
        Ok(Ring { ring, lent })
    }

    /// Lends an entry to the kernel for the first time.
    ///
    /// # Errors
    /// Those of io_uring_enter(2). The entry is then lost.
    pub fn register(&mut self, fuse: BorrowedFd<'_>, entry: Entry) -> io::Result<()> {
        self.lend(fuse, entry, Command::Register)
    }

    /// Gives the kernel the answer in an entry, and lends it the entry for the next request.
    ///
    /// # Errors
    /// Those of [`register`](Self::register).
    pub fn commit(&mut self, fuse: BorrowedFd<'_>, entry: Entry) -> io::Result<()> {
        self.lend(fuse, entry, Command::CommitAndFetch)
    }

    /// Returns true if the kernel has an entry.
    pub fn has_lent(&self) -> bool {
        self.lent.iter().any(Option::is_some)
    }

    /// Waits until the kernel returns an entry with a request, or without one because the connection has ended.
    ///
    /// # Errors
    /// Those of io_uring_enter(2).
    pub fn wait(&mut self) -> io::Result<Result<Entry, Refused>> {
        loop {
            if let Some(done) = self.ring.completion().next() {
                let entry = self.lent.get_mut(done.user_data() as usize).and_then(Option::take);
                let entry = entry.ok_or(io::ErrorKind::InvalidData)?;
                return Ok(match done.result() {
                    0.. => Ok(entry),
                    error => Err(Refused(io::Error::from_raw_os_error(-error))),
                });
            }
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
    }

    fn lend(&mut self, fuse: BorrowedFd<'_>, mut entry: Entry, command: Command) -> io::Result<()> {
        let index = self.lent.iter().position(Option::is_none).ok_or(io::ErrorKind::StorageFull)?;
        let (operation, commit_id) = match command {
            Command::Register => (URING_REGISTER, 0),
            Command::CommitAndFetch => (URING_COMMIT_AND_FETCH, entry.commit_id()),
        };
        let arguments = UringCommand { flags: 0, commit_id, queue: entry.queue(), padding: [0; 3] };
        let mut bytes = [0; 80];
        bytes[..size_of::<UringCommand>()].copy_from_slice(arguments.as_bytes());
        // The type has the form of `struct iovec`.
        let buffers = entry.buffers().map(IoSliceMut::new);
        let mut asked = opcode::UringCmd80::new(Fd(fuse.as_raw_fd()), operation).cmd(bytes);
        if let Command::Register = command {
            asked = asked.addr(Some(buffers.as_ptr() as u64));
        }
        let mut asked = asked.build().user_data(index as u64);
        if let Command::Register = command {
            set_length(&mut asked, BUFFERS);
        }
        self.lent[index] = Some(entry);
        // SAFETY: the entry stays in `lent`, where nothing touches it until the kernel returns it, and is leaked
        // if that does not happen. `buffers` is only read during the submission below.
        unsafe { self.ring.submission().push(&asked) }.map_err(io::Error::other)?;
        match command {
            Command::Register => self.ring.submit().map(drop),
            // The next `wait` submits it.
            Command::CommitAndFetch => Ok(()),
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel may still write to what it has. It cancels after the ring is closed, and not at once.
        self.lent.drain(..).for_each(mem::forget);
    }
}

/// Sets the field `len`, for which the library has no setter.
fn set_length(asked: &mut Entry128, length: u32) {
    const { assert!(size_of::<Entry128>() == 128) };
    // SAFETY: the type is `struct io_uring_sqe` of the kernel (`repr(C)`), of 128 bytes, with a field of this
    // length and alignment there.
    unsafe { (&raw mut *asked).cast::<u8>().add(LENGTH_OFFSET).cast::<u32>().write(length) };
}
