//! Mounting and unmounting.
//!
//! The kernel waits for the answer to the last request, DESTROY, only for mounts with a block device (type
//! `fuseblk`). So root should mount with one: then umount(2) returns when the file system is clean.

use std::{
    ffi::CString,
    io::{self, IoSliceMut},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fs::{Mode, OFlags},
    mount::{MountFlags, UnmountFlags},
    net::{AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType},
};

/// Arguments of a mount.
#[derive(Debug, Clone, Copy)]
pub struct MountArguments<'a> {
    /// Source in the mount table, used if the mount has no block device.
    pub source: &'a str,
    /// Name of the file system. The mount has the type `fuseblk.NAME` or `fuse.NAME`.
    pub subtype: &'a str,
    /// Flags of mount(2).
    pub flags: MountFlags,
    /// Users that may access the mount.
    pub access: Access,
    /// Maximum length of a read, in bytes.
    pub max_read_bytes: u32,
}

/// Users that may access a mount. The kernel checks the permissions of files for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// The mounting user.
    #[default]
    Owner,
    /// All users.
    All,
}

/// The program that mounted, and so has to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mounter {
    /// This process, as root.
    Ourselves,
    /// The set-user-id helper `fusermount3`, without root.
    Helper,
}

/// Time at which a mount ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnmountMode {
    /// At once. Fails if the mount is in use.
    Now,
    /// As soon as it is no longer in use. It leaves the directory at once.
    Lazy,
}

/// Block size that the kernel sees, in bytes. It refuses more than a page.
const BLOCK_BYTES: u32 = 4096;

/// Maximum wait for a process that the host refuses, and the interval of the tries.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(1);
const PROCESS_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Returns the types of all mounts of a file system, with and without a block device.
#[must_use]
pub fn mount_types(subtype: &str) -> [String; 2] {
    [format!("fuseblk.{subtype}"), format!("fuse.{subtype}")]
}

/// Unmounts a directory.
///
/// # Errors
/// The mount is in use, or this process may not unmount it.
pub fn unmount(dir: &Path, mounter: Mounter, mode: UnmountMode) -> io::Result<()> {
    let (program, flags) = match (mounter, mode) {
        (Mounter::Ourselves, UnmountMode::Now) => ("umount", &[][..]),
        (Mounter::Ourselves, UnmountMode::Lazy) => ("umount", &["-l"][..]),
        (Mounter::Helper, UnmountMode::Now) => ("fusermount3", &["-uq", "--"][..]),
        (Mounter::Helper, UnmountMode::Lazy) => ("fusermount3", &["-uqz", "--"][..]),
    };
    match run_for(program, flags, Some(dir)) {
        Err(error) if !has_run(&error) && mounter == Mounter::Ourselves => {
            let flags = match mode {
                UnmountMode::Now => UnmountFlags::empty(),
                UnmountMode::Lazy => UnmountFlags::DETACH,
            };
            Ok(rustix::mount::unmount(dir, flags)?)
        }
        run => run,
    }
}

/// Makes the kernel write back the dirty pages of the mount on `dir`, or of all mounts if there is no `dir`.
///
/// # Errors
/// A page could not be written.
pub fn sync(dir: Option<&Path>) -> io::Result<()> {
    let Some(dir) = dir else { return run_for("sync", &[], None) };
    match run_for("sync", &["-f"], Some(dir)) {
        Err(error) if !has_run(&error) => {
            let root = rustix::fs::open(dir, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            Ok(rustix::fs::syncfs(&root)?)
        }
        run => run,
    }
}

/// Runs a program with `flags` and then `dir`, if any, as its arguments. While the host refuses a process, others may be
/// about to end.
fn run_for(program: &str, flags: &[&str], dir: Option<&Path>) -> io::Result<()> {
    let until = Instant::now() + PROCESS_TIMEOUT;
    let mut command = Command::new(program);
    command.args(flags).args(dir).stdin(Stdio::null()).stderr(Stdio::null());
    loop {
        match command.status() {
            Ok(status) if status.success() => return Ok(()),
            Ok(_) => return Err(io::ErrorKind::ResourceBusy.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {
                thread::sleep(PROCESS_POLL_INTERVAL);
            }
            Err(error) => return Err(named(program, error)),
        }
    }
}

/// Returns false for the error of [a program](run_for) that could not be started: it is missing, or a limit forbids it.
fn has_run(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ResourceBusy
}

/// Mounts directly, or through the helper if this process may not.
pub(crate) fn mount(
    dir: &Path,
    arguments: &MountArguments<'_>,
    attach: impl FnOnce(&DeviceMount<'_>) -> io::Result<bool>,
) -> io::Result<(OwnedFd, Mounter)> {
    match mount_directly(dir, arguments, attach) {
        Ok(device) => Ok((device, Mounter::Ourselves)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Ok((mount_by_helper(dir, arguments)?, Mounter::Helper))
        }
        Err(error) => Err(error),
    }
}

fn mount_directly(
    dir: &Path,
    arguments: &MountArguments<'_>,
    attach: impl FnOnce(&DeviceMount<'_>) -> io::Result<bool>,
) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())
        .map_err(|errno| named("/dev/fuse", errno.into()))?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,max_read={}",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
        arguments.max_read_bytes
    );
    if arguments.access == Access::All {
        data += ",allow_other";
    }
    let [with_device, without_device] = mount_types(arguments.subtype);
    let device_mount = DeviceMount {
        fuse: device.as_fd(),
        dir,
        kind: with_device,
        flags: arguments.flags,
        data: format!("{data},blksize={BLOCK_BYTES}"),
    };
    if !attach(&device_mount)? {
        mount_as(dir, arguments.source.as_bytes(), &without_device, arguments.flags, data)?;
    }
    Ok(device)
}

/// A mount that waits for its block device.
pub struct DeviceMount<'a> {
    fuse: BorrowedFd<'a>,
    dir: &'a Path,
    kind: String,
    flags: MountFlags,
    data: String,
}

impl DeviceMount<'_> {
    /// Mounts with a block device, which the kernel opens exclusively.
    ///
    /// # Errors
    /// Those of mount(2), and [`io::ErrorKind::ResourceBusy`] if another process has mounted the device read-only by
    /// FUSE: the kernel then shows that mount here, too, and would never send requests to this process.
    pub fn mount(&self, block_device: &Path) -> io::Result<()> {
        mount_as(self.dir, block_device.as_os_str().as_bytes(), &self.kind, self.flags, self.data.clone())?;
        let is_connected = is_connected(self.fuse);
        if let Ok(true) = is_connected {
            return Ok(());
        }
        rustix::mount::unmount(self.dir, UnmountFlags::DETACH)?;
        Err(is_connected.err().unwrap_or(io::ErrorKind::ResourceBusy.into()))
    }
}

/// Returns true if an open `/dev/fuse` belongs to a mount. Otherwise the kernel reports an error to poll(2)
/// (`fuse_dev_poll`).
fn is_connected(fuse: BorrowedFd<'_>) -> io::Result<bool> {
    let mut state = [PollFd::new(&fuse, PollFlags::IN)];
    rustix::event::poll(&mut state, Some(&Timespec::default()))?;
    Ok(!state[0].revents().contains(PollFlags::ERR))
}

fn mount_as(dir: &Path, source: &[u8], kind: &str, flags: MountFlags, data: String) -> io::Result<()> {
    let (source, data) = (CString::new(source)?, CString::new(data)?);
    Ok(rustix::mount::mount(&*source, dir, kind, flags, &*data)?)
}

/// Prefixes an error with the name of the file that it is about.
fn named(name: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{name}: {error}"))
}

/// Mounts through the set-user-id helper, which passes the open device through a socket.
fn mount_by_helper(dir: &Path, arguments: &MountArguments<'_>) -> io::Result<OwnedFd> {
    let names = [
        (MountFlags::RDONLY, "ro"),
        (MountFlags::NOEXEC, "noexec"),
        (MountFlags::NOSYMFOLLOW, "nosymfollow"),
        (MountFlags::SYNCHRONOUS, "sync"),
        (MountFlags::DIRSYNC, "dirsync"),
    ];
    // fusermount3 splits options at an unescaped comma.
    let source = arguments.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut options = format!(
        "fsname={source},subtype={},default_permissions,max_read={}",
        arguments.subtype, arguments.max_read_bytes
    );
    for (_, name) in names.iter().filter(|(flag, _)| arguments.flags.contains(*flag)) {
        options += &format!(",{name}");
    }
    if arguments.access == Access::All {
        options += ",allow_other";
    }
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        // No CLOEXEC: the helper inherits its end.
        SocketFlags::empty(),
        None,
    )?;
    rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC)?;
    let run = Command::new("fusermount3")
        .args(["-o", &options, "--"])
        .arg(dir)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| named("fusermount3", error))?;
    drop(theirs);
    if !run.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&run.stderr).trim().to_string()));
    }
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::net::recvmsg(&ours, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let device = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    device.ok_or_else(|| io::Error::other("fusermount3 passed no device"))
}
