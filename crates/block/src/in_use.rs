//! The uses of a device or image file that a writer must not disturb.

#[cfg(not(target_os = "linux"))]
use std::path::Path;
use std::{io, path::PathBuf};

/// A user of a device or image file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InUse {
    /// The device, a part of it, or a device made of it is mounted.
    Mounted {
        /// Directory of the mount.
        at: PathBuf,
        /// True if the file system writes nothing.
        read_only: bool,
    },
    /// Mounted at this directory by a FUSE file system whose program has ended. It writes nothing, and the
    /// device is unusable until it is unmounted.
    Dead(PathBuf),
    /// The host uses it as swap space.
    Swap,
    /// Another block device of this name is made of it (RAID, LVM, dm-crypt).
    Holder(String),
    /// A program, or a mount in another namespace, has opened a block device exclusively.
    Held {
        /// Name of the device.
        name: String,
        /// True if the device is read-only.
        read_only: bool,
    },
    /// Another program has locked it for writing.
    Writer,
    /// Another program has locked it for reading.
    Reader,
    /// An unused loop device of this name is made of the regular file. Writing in place does no harm, but the
    /// loop device would not show a new file in its place.
    Loop(String),
}

impl InUse {
    /// Returns true if the user may write, so that a reader may get old or half-written data.
    pub fn writes(&self) -> bool {
        match self {
            InUse::Mounted { read_only, .. } | InUse::Held { read_only, .. } => !read_only,
            InUse::Swap | InUse::Holder(_) | InUse::Writer => true,
            InUse::Dead(_) | InUse::Reader | InUse::Loop(_) => false,
        }
    }

    /// Returns true if the user will not let go soon: one that the host's tables list.
    pub fn stays(&self) -> bool {
        matches!(self, InUse::Mounted { .. } | InUse::Dead(_) | InUse::Swap | InUse::Holder(_))
    }
}

impl std::fmt::Display for InUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            InUse::Mounted { at, read_only: false } => write!(f, "mounted at {}", at.display()),
            InUse::Mounted { at, read_only: true } => write!(f, "mounted read-only at {}", at.display()),
            InUse::Dead(at) => {
                let at = at.display();
                write!(f, "mounted at {at} by a program that has ended; umount {at} and try again")
            }
            InUse::Swap => write!(f, "used for swapping"),
            InUse::Holder(name) | InUse::Loop(name) => write!(f, "used by {name}"),
            InUse::Held { name, .. } => {
                write!(f, "in use as {name}, by another program or by a mount in another namespace")
            }
            InUse::Writer => write!(f, "another program is writing to it"),
            InUse::Reader => write!(f, "another program is reading it"),
        }
    }
}

impl std::error::Error for InUse {}

impl From<InUse> for io::Error {
    fn from(user: InUse) -> io::Error {
        io::Error::new(io::ErrorKind::ResourceBusy, user)
    }
}

/// Returns the user of a file or block device. Only Linux lists them: elsewhere, opening the file for writing meets a
/// writer.
///
/// # Errors
/// None; on Linux there are some.
#[cfg(not(target_os = "linux"))]
pub fn in_use(_: &Path) -> io::Result<Option<InUse>> {
    Ok(None)
}
