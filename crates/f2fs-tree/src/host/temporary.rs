//! Temporary names of entries that will replace others.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::{
    fs::{self as host, AtFlags},
    io::Errno,
};

/// Prefix of the names.
const PREFIX: &str = ".flashkit-";
/// Maximum number of names that are tried.
const TRIES: u32 = 1000;

/// An entry under a temporary name. The name is removed when this value is dropped.
struct Temporary {
    dir: OwnedFd,
    name: String,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename the name is gone, except if both names were links to one file.
        let _ = host::unlinkat(&self.dir, self.name.as_str(), AtFlags::empty());
    }
}

/// The entry that a sink is about to put in the place of another, if there is one.
#[derive(Clone, Default)]
pub struct Replacement(Arc<Mutex<Option<Temporary>>>);

impl Replacement {
    fn entry(&self) -> MutexGuard<'_, Option<Temporary>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the temporary name. The entry that was to be replaced stays.
    pub fn give_up(&self) {
        self.entry().take();
    }

    /// Creates an entry by `make` under a free temporary name of a directory. Gives up one that is still there.
    pub(super) fn make<T>(
        &self,
        dir: BorrowedFd<'_>,
        make: impl Fn(BorrowedFd<'_>, &[u8]) -> Result<T, Errno>,
    ) -> Result<(T, String), Errno> {
        let mut entry = self.entry();
        entry.take();
        let dir = rustix::io::fcntl_dupfd_cloexec(dir, 0)?;
        for n in 0..TRIES {
            let name = format!("{PREFIX}{}-{n}", rustix::process::getpid().as_raw_nonzero());
            match make(dir.as_fd(), name.as_bytes()) {
                Err(Errno::EXIST) => {}
                made => {
                    let made = made?;
                    *entry = Some(Temporary { dir, name: name.clone() });
                    return Ok((made, name));
                }
            }
        }
        Err(Errno::EXIST)
    }

    /// Gives the entry its final name, in the place of another entry. Does nothing if there is no such entry.
    pub(super) fn place(&self, name: &[u8]) -> Result<(), Errno> {
        match self.entry().take() {
            Some(entry) => host::renameat(&entry.dir, entry.name.as_str(), &entry.dir, name),
            None => Ok(()),
        }
    }
}
