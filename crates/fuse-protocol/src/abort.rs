//! Ends the connection of a mount, also from another process than the one that serves it.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, StatxFlags},
    io::Errno,
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, UnmountFlags},
};

/// Place of the file system fusectl, which has a directory for each connection.
const CONTROL: &str = "/sys/fs/fuse/connections";
/// Flag of statx(2) for attributes without a request to the file system (Linux, `AT_STATX_DONT_SYNC` in
/// `include/uapi/linux/fcntl.h`). The libraries for musl lack its name.
const STATX_DONT_SYNC: u32 = 0x4000;

/// Opens the file that ends the connection of a mount, given by the major and minor number of its device. It belongs to
/// that mount alone: after the mount has ended, a [write](abort_by) to it has no effect, also if a later mount has the
/// same number. It does not keep the mount from being unmounted, and needs no visible place of it.
///
/// # Errors
/// fusectl is not mounted, and this process may not mount it; or the mount is another user's.
pub fn open_abort_file((major, minor): (u32, u32)) -> io::Result<File> {
    // A connection has the name of the kernel's own number of the device (Linux, fs/fuse/control.c).
    let name = format!("{}/abort", (u64::from(major) << 20) | u64::from(minor));
    let file = File::options().write(true).open(Path::new(CONTROL).join(&name));
    file.or_else(|error| match mount_control() {
        Ok(root) => {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            Ok(rustix::fs::openat(&root, &name, flags, Mode::empty())?.into())
        }
        Err(_) => Err(error),
    })
}

/// Mounts fusectl nowhere, as long as something of it is open.
fn mount_control() -> Result<OwnedFd, Errno> {
    let fs = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&fs)?;
    rustix::mount::fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

/// Ends a connection by its [file](open_abort_file). All requests that wait, and all later ones, fail. The mount stays.
///
/// # Errors
/// Those of write(2).
pub fn abort_by(mut file: &File) -> io::Result<()> {
    file.write_all(b"1")
}

/// Ends the connection of the mount on `dir` like [`abort_by`], given the number of its device, without fusectl. Nothing
/// is done if another device is mounted there by now, or if `has_ended` returns true, because that mount has ended and a
/// later one may have its number.
///
/// # Errors
/// This process may not unmount it.
pub fn abort_at(dir: &Path, device: (u32, u32), has_ended: impl FnOnce() -> bool) -> io::Result<()> {
    // A forced unmount begins with it, and stays without effect while a file of the mount is open. That file also keeps the
    // mount, so that its number stays its own.
    let root = rustix::fs::open(dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    // Without a request to the mount, which nobody would answer.
    let flags = AtFlags::EMPTY_PATH | AtFlags::from_bits_retain(STATX_DONT_SYNC);
    let found = rustix::fs::statx(&root, "", flags, StatxFlags::empty())?;
    if (found.stx_dev_major, found.stx_dev_minor) != device || has_ended() {
        return Ok(());
    }
    match rustix::mount::unmount(format!("/proc/self/fd/{}", root.as_raw_fd()), UnmountFlags::FORCE) {
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
