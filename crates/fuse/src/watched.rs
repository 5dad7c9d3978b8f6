//! A mount as a process sees it that watches over the one which serves it.

use std::{io, path::Path};

use crate::{mount::SUBTYPE, mounts};

/// A mount that another process serves.
///
/// A thread of that process which waits for the kernel's write-back waits for answers of the other threads. If the process
/// is killed at that time, the thread keeps the connection to the kernel open, and nobody answers: it never ends, and
/// neither do the programs that wait for an answer, and each sync(2) of the machine.
#[derive(Debug)]
pub struct Watched {
    device: (u32, u32),
}

impl Watched {
    /// Finds our mount on a directory, without a request to it.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound) if there is none.
    pub fn on(dir: &Path) -> io::Result<Watched> {
        let (all, types) = (block::mounts()?, fuse_protocol::mount_types(SUBTYPE));
        let found = mounts::on(&all, dir).filter(|mount| types.contains(&mount.kind));
        let device = found.ok_or(io::ErrorKind::NotFound)?.device;
        Ok(Watched { device })
    }

    /// Ends the connection of the mount after the process that served it was killed. Requests that wait, and all later ones,
    /// fail; the mount stays. If the mount is in no visible place any more, nothing is done.
    ///
    /// # Errors
    /// This process may not end it.
    pub fn abort(&self) -> io::Result<()> {
        // It may have been moved, or another file system mounted over it.
        match mounts::places_of(&block::mounts()?, self.device).first() {
            Some(place) => fuse_protocol::abort(place, self.device),
            None => Ok(()),
        }
    }
}
