//! Directories of the host: of Linux in this folder, of Windows in `windows/`.

#[cfg(target_os = "linux")]
mod sink;
#[cfg(target_os = "linux")]
mod source;
#[cfg(target_os = "linux")]
mod temporary;
#[cfg(any(windows, test))]
mod windows;

use f2fs::printable;
#[cfg(target_os = "linux")]
pub use sink::{DirSink, make_private};
#[cfg(target_os = "linux")]
pub use source::DirSource;
#[cfg(target_os = "linux")]
pub use temporary::Replacement;
#[cfg(windows)]
pub use windows::{DirSink, DirSource};

/// The owners of what a sink makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owners {
    /// Each entry has its owner, which requires root's rights.
    Entry,
    /// Everything belongs to the calling user. Set-id bits and capabilities are left out.
    Caller,
}

impl Owners {
    /// Returns the owners that the calling user may set.
    #[cfg(target_os = "linux")]
    pub fn permitted() -> Owners {
        if rustix::process::geteuid().is_root() { Owners::Entry } else { Owners::Caller }
    }

    /// Returns the owners that the calling user may set: on Windows, users and groups of a volume do not exist.
    #[cfg(windows)]
    pub fn permitted() -> Owners {
        Owners::Caller
    }
}

/// Formats the host's path of an entry for messages.
fn shown(root: &[u8], path: &[u8]) -> String {
    let root = printable::name(root);
    if path.is_empty() {
        root.into_owned()
    } else {
        format!("{}/{}", root.trim_end_matches('/'), printable::path(path))
    }
}
