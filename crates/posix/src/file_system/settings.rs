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
    /// Only the order: the device is not flushed.
    NoBarrier,
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
    /// Files have labels of SELinux. Otherwise they are hidden and kept, and calls for them are not supported.
    pub selinux_labels: bool,
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
            selinux_labels: true,
            cleaning: Policy::CostBenefit,
        }
    }
}
