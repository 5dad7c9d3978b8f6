//! The ring where the library for io_uring does not know the processor: there is none.

use std::{io, os::fd::BorrowedFd};

use super::entry::Entry;

/// Never made.
pub enum Ring {}

/// Reason why the kernel has returned an entry without a request.
#[derive(Debug)]
pub struct Refused(pub io::Error);

impl Ring {
    /// Fails.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`].
    pub fn new(_: usize) -> io::Result<Ring> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Never called.
    pub fn register(&mut self, _: BorrowedFd<'_>, _: Entry) -> io::Result<()> {
        match *self {}
    }

    /// Never called.
    pub fn commit(&mut self, _: BorrowedFd<'_>, _: Entry) -> io::Result<()> {
        match *self {}
    }

    /// Never called.
    pub fn has_lent(&self) -> bool {
        match *self {}
    }

    /// Never called.
    pub fn wait(&mut self) -> io::Result<Result<Entry, Refused>> {
        match *self {}
    }
}
