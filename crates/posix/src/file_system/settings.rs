//! The options that affect operations.

use f2fs::engine::Policy;

use super::ShownOwner;

/// When reading updates access times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Atime {
    /// If the access time is not later than the last change, or is a day old (Linux, `relatime_need_update`).
    #[default]
    Relative,
    /// At the first read after each open.
    Strict,
    /// Never.
    Never,
}

/// Guarantees of fsync.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FsyncMode {
    /// Those of POSIX.
    #[default]
    Posix,
    /// In addition, all earlier renames become durable.
    Strict,
    /// Only the order: the device is not flushed, except by a checkpoint.
    NoBarrier,
}

/// Labels of SELinux.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SelinuxLabels {
    /// Files may have them.
    #[default]
    Used,
    /// The host has no use for them: those of the volume are there, but the answer for a file without one is that labels are
    /// not supported. A program that looks for them, like ls(1), then does not ask for every other file.
    Unused,
    /// They are hidden and kept, and calls for them are not supported.
    Hidden,
}

/// The options that affect operations.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// When reading updates access times.
    pub atime: Atime,
    /// Reading a directory updates its access time, too.
    pub dir_atime: bool,
    /// Guarantees of fsync.
    pub fsync: FsyncMode,
    /// Changes of all directories are synchronous.
    pub dirsync: bool,
    /// Checkpoints are written. Otherwise all changes are dropped at the end.
    pub checkpoints: bool,
    /// The volume is not changed.
    pub read_only: bool,
    /// The owner that files have on the mount.
    pub owner: ShownOwner,
    /// Labels of SELinux.
    pub selinux_labels: SelinuxLabels,
    /// Selection of the sections that are cleaned in idle times.
    pub cleaning: Policy,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            atime: Atime::default(),
            dir_atime: true,
            fsync: FsyncMode::default(),
            dirsync: false,
            checkpoints: true,
            read_only: false,
            owner: ShownOwner::default(),
            selinux_labels: SelinuxLabels::default(),
            cleaning: Policy::CostBenefit,
        }
    }
}
