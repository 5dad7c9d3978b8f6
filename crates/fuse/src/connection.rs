//! The connection to the kernel: mounting, receiving requests, sending answers.
//!
//! *Why not a library*: `umount` must not return before the volume is clean. The kernel waits for the answer
//! to the last request, DESTROY, only for mounts with a block device (type `fuseblk`). The `fuser` crate
//! cannot mount this type, and it answers DESTROY before it tells the file system. It also lacks O_TMPFILE,
//! `syncfs` and birth times.

use std::{
    ffi::CString,
    fs::File,
    io::{self, IoSlice, IoSliceMut},
    ops::Range,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use block::{FileDevice, LoopDevice};
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    mount::{MountFlags, UnmountFlags},
    net::{AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType},
};
use zerocopy::{FromBytes, IntoBytes};

use crate::{
    protocol::{INVALIDATE_INODE, InHeader, InvalidateInode, OutHeader},
    splice_pipe::{self, SplicePipe},
};

/// Mount arguments.
pub struct MountArguments<'a> {
    /// Source in the mount table, used if the mount has no block device.
    pub source: &'a str,
    /// The image file or block device.
    pub image: &'a FileDevice,
    /// Flags of mount(2).
    pub flags: MountFlags,
    /// All users may access the mount.
    pub allow_other: bool,
}

/// An open `/dev/fuse` that belongs to a mount.
///
/// *If this process is killed*, the kernel closes the device and aborts the connection, but only if no thread
/// of ours is blocked in the kernel on a request that we must answer. Such a thread would block `umount` and
/// every `sync` on the machine for ever. Therefore operations that send us requests run in child processes
/// ([`unmount`], [`write_back`]). For the same reason we hold our mount namespace open: the last process that
/// leaves a namespace unmounts its mounts before it closes its files; an open file on the namespace prevents
/// that.
pub struct Connection {
    device: OwnedFd,
    /// `None` without /proc.
    _namespace: Option<File>,
}

/// The program that mounted, and so has to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mounter {
    /// This process, as root.
    Ourselves,
    /// The set-user-id helper `fusermount3`, without root.
    Helper,
}

/// Type of mounts with a block device. Their `umount` waits for our answer.
const WITH_DEVICE: &str = "fuseblk.flashkit";
/// Type of mounts without a block device.
const WITHOUT_DEVICE: &str = "fuse.flashkit";
/// All types of our mounts.
pub const TYPES: [&str; 2] = [WITH_DEVICE, WITHOUT_DEVICE];
/// Maximum length of a read. Together with the header it fits a pipe of 1 MiB, the limit for unprivileged
/// users (pipe(7)).
pub const READ_BYTES: u32 = 512 << 10;
/// Block size that the kernel sees. It refuses more than a page.
const BLOCK_BYTES: u32 = 4096;

impl Connection {
    /// Mounts on a directory.
    ///
    /// Root gets a mount with a block device: the device that holds the volume, or for an image file a loop
    /// device, as mount(8) creates one. We do not read or write that loop device. Without permission to
    /// create a loop device, the mount has none.
    pub fn mount(dir: &Path, arguments: &MountArguments<'_>) -> io::Result<(Connection, Mounter)> {
        let namespace = File::open("/proc/self/ns/mnt").ok();
        let (device, mounter) = match mount_directly(dir, arguments) {
            Ok(device) => (device, Mounter::Ourselves),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                (mount_by_helper(dir, arguments)?, Mounter::Helper)
            }
            Err(error) => return Err(error),
        };
        Ok((Connection { device, _namespace: namespace }, mounter))
    }

    /// Receives the next request into `buffer`. Returns `None` when the file system has been unmounted.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<(InHeader, &'a [u8])>> {
        let count = loop {
            match rustix::io::read(&self.device, &mut *buffer) {
                Ok(count) => break count,
                // Interrupted by a signal, or the kernel withdrew the request.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                Err(Errno::NODEV) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        };
        let (header, rest) = InHeader::read_from_prefix(&buffer[..count]).map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidData, "the kernel sent an incomplete request")
        })?;
        Ok(Some((header, rest)))
    }

    /// Tells the kernel to write back and invalidate its cache of a file from an offset on. The kernel sends
    /// us WRITE requests meanwhile. With a negative offset it invalidates only the attributes.
    pub fn invalidate(&self, node: u64, offset: i64) -> Result<(), Errno> {
        self.invalidate_part(node, offset, 0)
    }

    /// Like [`invalidate`](Self::invalidate), for `length` bytes from the offset; 0 means all.
    pub fn invalidate_part(&self, node: u64, offset: i64, length: i64) -> Result<(), Errno> {
        let notification = InvalidateInode { ino: node, offset, length };
        self.send(0, INVALIDATE_INODE, notification.as_bytes())
    }

    fn send(&self, unique: u64, error: i32, payload: &[u8]) -> Result<(), Errno> {
        let length_bytes = (size_of::<OutHeader>() + payload.len()) as u32;
        let header = OutHeader { length_bytes, error, unique };
        rustix::io::writev(&self.device, &[IoSlice::new(header.as_bytes()), IoSlice::new(payload)]).map(drop)
    }
}

/// The pending answer to one request. Dropping it unsent answers with EIO.
pub struct Reply {
    connection: Arc<Connection>,
    unique: u64,
    sent: bool,
}

impl Reply {
    /// Creates the answer to the request with this number.
    pub fn new(connection: Arc<Connection>, unique: u64) -> Reply {
        Reply { connection, unique, sent: false }
    }

    /// Sends the answer.
    pub fn send(mut self, answer: Result<&[u8], Errno>) {
        self.sent = true;
        // An error means that the request is no longer waited for.
        let _ = match answer {
            Ok(payload) => self.connection.send(self.unique, 0, payload),
            Err(errno) => self.connection.send(self.unique, -errno.raw_os_error(), &[]),
        };
    }

    /// Sends ranges of a file through a splice pipe. Returns false on failure; the caller must then answer in
    /// another way. A second answer is harmless: the kernel refuses it.
    pub fn splice(
        &mut self,
        splice_pipe: &mut SplicePipe,
        file: BorrowedFd<'_>,
        ranges: &[Range<u64>],
    ) -> bool {
        let length_bytes = (size_of::<OutHeader>() as u64 + splice_pipe::bytes(ranges)) as u32;
        let header = OutHeader { length_bytes, error: 0, unique: self.unique };
        let to = self.connection.device.as_fd();
        self.sent = splice_pipe.send(to, header.as_bytes(), file, ranges).is_ok();
        self.sent
    }

    /// Ends a request that has no answer.
    pub fn none(mut self) {
        self.sent = true;
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.sent {
            let _ = self.connection.send(self.unique, -Errno::IO.raw_os_error(), &[]);
        }
    }
}

/// Unmounts a directory, either now or, if `lazily`, as soon as it is no longer in use.
pub fn unmount(dir: &Path, mounter: Mounter, lazily: bool) -> io::Result<()> {
    let (program, flags) = match (mounter, lazily) {
        (Mounter::Ourselves, false) => ("umount", &[][..]),
        (Mounter::Ourselves, true) => ("umount", &["-l"][..]),
        (Mounter::Helper, false) => ("fusermount3", &["-uq", "--"][..]),
        (Mounter::Helper, true) => ("fusermount3", &["-uqz", "--"][..]),
    };
    match run_for(program, flags, Some(dir)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && mounter == Mounter::Ourselves => {
            let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
            Ok(rustix::mount::unmount(dir, flags)?)
        }
        run => run,
    }
}

/// Makes the kernel write back the dirty pages of the mount on `dir`, or of all mounts if there is no `dir`.
pub fn write_back(dir: Option<&Path>) -> io::Result<()> {
    let Some(dir) = dir else { return run_for("sync", &[], None) };
    match run_for("sync", &["-f"], Some(dir)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let root = rustix::fs::open(dir, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            Ok(rustix::fs::syncfs(&root)?)
        }
        run => run,
    }
}

/// Runs a program with `flags` and then `dir`, if any, as its arguments.
fn run_for(program: &str, flags: &[&str], dir: Option<&Path>) -> io::Result<()> {
    let run =
        Command::new(program).args(flags).args(dir).stdin(Stdio::null()).stderr(Stdio::null()).status()?;
    if run.success() { Ok(()) } else { Err(io::ErrorKind::ResourceBusy.into()) }
}

fn mount_directly(dir: &Path, arguments: &MountArguments<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())
        .map_err(|errno| named("/dev/fuse", errno.into()))?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,max_read={READ_BYTES}",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw()
    );
    if arguments.allow_other {
        data += ",allow_other";
    }
    let mount = |source: &[u8], kind: &str, data: String| -> io::Result<()> {
        let data = CString::new(data)?;
        let source = CString::new(source)?;
        Ok(rustix::mount::mount(&*source, dir, kind, arguments.flags, &*data)?)
    };
    let with_device = |path: &Path| {
        mount(path.as_os_str().as_bytes(), WITH_DEVICE, format!("{data},blksize={BLOCK_BYTES}"))
    };
    let is_mounted = if arguments.image.is_block_device() {
        let path = arguments.image.path().canonicalize()?;
        arguments.image.hand_over(|| with_device(&path))?
    } else {
        // The loop device lives as long as the mount uses it, and must allow writes if the mount does.
        let token = LoopDevice::attach(arguments.image.path(), !arguments.flags.contains(MountFlags::RDONLY));
        token.is_ok_and(|token| with_device(token.path()).is_ok())
    };
    if is_mounted {
        return Ok(device);
    }
    mount(arguments.source.as_bytes(), WITHOUT_DEVICE, data)?;
    Ok(device)
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
    let mut options = format!("fsname={source},subtype=flashkit,default_permissions,max_read={READ_BYTES}");
    for (_, name) in names.iter().filter(|(flag, _)| arguments.flags.contains(*flag)) {
        options += &format!(",{name}");
    }
    if arguments.allow_other {
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
