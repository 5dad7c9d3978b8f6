//! Access of the caller to directories of its own whose permissions forbid it. Root needs none of this.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::{
    fs::{self as host, Mode},
    io::Errno,
};

/// Gives the caller all access to a directory of its own, and returns the permissions before that. Returns `None` if they
/// allow all access, or cannot be changed and set again.
pub(super) fn unlock(dir: BorrowedFd<'_>, (uid, gid): (u32, u32)) -> Option<Mode> {
    let stat = host::fstat(dir).ok()?;
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    // Linux drops the bit if the group is a foreign one.
    let is_final = mode.contains(Mode::SGID) && stat.st_gid != gid;
    if stat.st_uid != uid || mode.contains(Mode::RWXU) || is_final {
        return None;
    }
    set_mode(dir, mode | Mode::RWXU).ok()?;
    Some(mode)
}

/// Sets the permissions of a directory, also through a handle that stands only for it.
pub(super) fn set_mode(dir: BorrowedFd<'_>, mode: Mode) -> Result<(), Errno> {
    host::chmod(format!("/proc/self/fd/{}", dir.as_raw_fd()), mode)
}

/// A directory that is [unlocked](unlock) until this is dropped.
pub(super) struct Unlocked<'a> {
    dir: BorrowedFd<'a>,
    locked: Mode,
}

impl<'a> Unlocked<'a> {
    /// Unlocks a directory.
    pub(super) fn new(dir: &'a impl AsFd, maker: (u32, u32)) -> Option<Unlocked<'a>> {
        let dir = dir.as_fd();
        unlock(dir, maker).map(|locked| Unlocked { dir, locked })
    }
}

impl Drop for Unlocked<'_> {
    fn drop(&mut self) {
        // The caller could change them before.
        let _ = set_mode(self.dir, self.locked);
    }
}

/// Calls `call`, and again with access to `dir` if it lacks that.
pub(super) fn with_access<T>(
    dir: &impl AsFd,
    maker: (u32, u32),
    call: impl Fn() -> Result<T, Errno>,
) -> Result<T, Errno> {
    match call() {
        Err(Errno::ACCESS) => {
            let Some(_unlocked) = Unlocked::new(dir, maker) else { return Err(Errno::ACCESS) };
            call()
        }
        called => called,
    }
}
