//! A mount as a process sees it that watches over the one which serves it.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fs::inotify,
};

use crate::mounts;

/// The means to end the connection of one mount, in a process of its own.
///
/// A thread of the serving process which waits for the kernel's write-back waits for answers of the other threads. If the
/// process is killed at that time, the thread keeps the connection to the kernel open, and nobody answers: it never ends,
/// and neither do the programs that wait for an answer, and each sync(2) of the machine.
///
/// The serving process opens it and passes it on, as [parts](Self::into_parts). So it stands for that mount, however late
/// the other process comes.
#[derive(Debug)]
pub struct Watched(Way);

#[derive(Debug)]
enum Way {
    /// The file of the connection in the file system fusectl.
    Control(File),
    /// Without fusectl: an inotify object that has an event once the mount has ended, and the number of its device.
    Place(OwnedFd, (u32, u32)),
}

/// Word for a file of fusectl, among the parts.
const CONTROL: &str = "control";

impl Watched {
    /// Opens it for the mount of a device on a directory. This may need an answer of the mount.
    ///
    /// # Errors
    /// This process may not end the connection of that mount.
    pub fn open(dir: &Path, device: (u32, u32)) -> io::Result<Watched> {
        fuse_protocol::open_abort_file(device).map(Way::Control).map(Watched).or_else(|_| {
            let notices = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
            // Of all things, the end of the mount is told, too.
            inotify::add_watch(&notices, dir, inotify::WatchFlags::DELETE_SELF)?;
            Ok(Watched(Way::Place(notices, device)))
        })
    }

    /// Returns a file that another process inherits, and a word that tells it the rest.
    #[must_use]
    pub fn into_parts(self) -> (OwnedFd, String) {
        match self.0 {
            Way::Control(file) => (file.into(), CONTROL.into()),
            Way::Place(notices, (major, minor)) => (notices, format!("{major}:{minor}")),
        }
    }

    /// Makes it of the parts. Returns `None` if the word is another one.
    #[must_use]
    pub fn from_parts(file: OwnedFd, word: &str) -> Option<Watched> {
        if word == CONTROL {
            return Some(Watched(Way::Control(file.into())));
        }
        let (major, minor) = word.split_once(':')?;
        Some(Watched(Way::Place(file, (major.parse().ok()?, minor.parse().ok()?))))
    }

    /// Ends the connection of the mount after the process that served it was killed. Requests that wait, and all later ones,
    /// fail; the mount stays. Nothing is done if the mount has ended, or, without the file system fusectl, if it is in no
    /// visible place any more.
    ///
    /// # Errors
    /// This process may not end it.
    pub fn abort(&self) -> io::Result<()> {
        match &self.0 {
            Way::Control(file) => fuse_protocol::abort_by(file),
            // It may have been moved, or another file system mounted over it.
            Way::Place(notices, device) => match mounts::places_of(&block::mounts()?, *device).first() {
                Some(place) => fuse_protocol::abort_at(place, *device, || has_event(notices)),
                None => Ok(()),
            },
        }
    }
}

/// Returns true if a file can be read, or if that cannot be told.
fn has_event(file: impl AsFd) -> bool {
    let mut state = [PollFd::new(&file, PollFlags::IN)];
    !matches!(rustix::event::poll(&mut state, Some(&Timespec::default())), Ok(0))
}
