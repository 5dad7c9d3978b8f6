//! The connection to the kernel: mounting, requests in, answers out.
//!
//! *Why not a library's*: `umount` must not return before the volume is clean. The kernel waits for a file system's
//! answer to its last request, DESTROY, where the file system has a block device (type `fuseblk`); fuser mounts none
//! and answers before it lets the file system know. Nor does it know O_TMPFILE, `syncfs` and times of birth.

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
    passage::{self, Passage},
    protocol::{INVALIDATE_INODE, InHeader, InvalidateInode, OutHeader},
};

/// How a file system is mounted.
pub struct How<'a> {
    /// What the table of mounts shows where there is no block device.
    pub source: &'a str,
    /// The image.
    pub image: &'a FileDevice,
    /// Flags of mount(2).
    pub flags: MountFlags,
    /// Everybody may use it.
    pub allow_other: bool,
}

/// An open `/dev/fuse` that belongs to a mount.
///
/// *Whoever kills us*, the kernel closes the device and the mount is dead; but only once no thread of ours waits in the
/// kernel for an answer of ours. One that waited would hold `umount`, and every `sync` of the machine, for ever. So what
/// asks us is asked for by other processes ([`unmount`], [`write_back`]), and we are not the last in a namespace of
/// mounts: the kernel leaves it, which unmounts, before it closes files; but an open one holds the namespace.
pub struct Connection {
    device: OwnedFd,
    /// Where there is no /proc there is none.
    _namespace: Option<File>,
}

/// Who mounted, and so can unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mounter {
    /// We, as root.
    Ourselves,
    /// The helper for everybody, `fusermount3`.
    Helper,
}

/// The type of our mounts with a block device. Their `umount` waits for us.
const WITH_DEVICE: &str = "fuseblk.flashkit";
/// The type of those without.
const WITHOUT_DEVICE: &str = "fuse.flashkit";
/// Both.
pub const TYPES: [&str; 2] = [WITH_DEVICE, WITHOUT_DEVICE];
/// Bytes of the largest read. With a head before them they fit a pipe as everybody may have one, of 1 MiB (pipe(7)).
pub const READ_BYTES: u32 = 512 << 10;
/// Bytes of a block as the kernel sees it; more than a page it would refuse.
const BLOCK_BYTES: u32 = 4096;

impl Connection {
    /// Mounts on a directory.
    ///
    /// Root gets a mount with a block device: the one that the volume lies on, or of an image, as mount(8) makes one, a
    /// loop device, which we do not read or write. Without the right to make one, the mount is one without.
    pub fn mount(dir: &Path, how: &How<'_>) -> io::Result<(Connection, Mounter)> {
        let namespace = File::open("/proc/self/ns/mnt").ok();
        let (device, mounter) = match mount_directly(dir, how) {
            Ok(device) => (device, Mounter::Ourselves),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                (mount_by_helper(dir, how)?, Mounter::Helper)
            }
            Err(error) => return Err(error),
        };
        Ok((Connection { device, _namespace: namespace }, mounter))
    }

    /// Waits for a request and puts it into `buffer`; `None` at the end of the mount.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<(InHeader, &'a [u8])>> {
        let count = loop {
            match rustix::io::read(&self.device, &mut *buffer) {
                Ok(count) => break count,
                // Interrupted, or the request was taken back.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                Err(Errno::NODEV) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        };
        let (header, rest) = InHeader::read_from_prefix(&buffer[..count])
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the kernel sent half a request"))?;
        Ok(Some((header, rest)))
    }

    /// Tells the kernel to write back what it has of a file from an offset on, and to forget it. It asks us while it
    /// does; with a negative offset it only forgets the attributes.
    pub fn invalidate(&self, node: u64, offset: i64) -> Result<(), Errno> {
        self.invalidate_part(node, offset, 0)
    }

    /// The same of so many bytes from there on; of all where that is 0.
    pub fn invalidate_part(&self, node: u64, offset: i64, length: i64) -> Result<(), Errno> {
        let what = InvalidateInode { ino: node, offset, length };
        self.send(0, INVALIDATE_INODE, what.as_bytes())
    }

    fn send(&self, unique: u64, error: i32, payload: &[u8]) -> Result<(), Errno> {
        let length_bytes = (size_of::<OutHeader>() + payload.len()) as u32;
        let header = OutHeader { length_bytes, error, unique };
        rustix::io::writev(&self.device, &[IoSlice::new(header.as_bytes()), IoSlice::new(payload)]).map(drop)
    }
}

/// The answer that a request waits for. One that is dropped says that something went wrong.
pub struct Reply {
    connection: Arc<Connection>,
    unique: u64,
    sent: bool,
}

impl Reply {
    /// To the request of this number.
    pub fn new(connection: Arc<Connection>, unique: u64) -> Reply {
        Reply { connection, unique, sent: false }
    }

    /// Sends it.
    pub fn send(mut self, answer: Result<&[u8], Errno>) {
        self.sent = true;
        // Failing, nobody waits for it any more.
        let _ = match answer {
            Ok(payload) => self.connection.send(self.unique, 0, payload),
            Err(errno) => self.connection.send(self.unique, -errno.raw_os_error(), &[]),
        };
    }

    /// Sends parts of a file on a passage; whether that could be done. If not it is to be sent otherwise: the kernel
    /// takes one answer and refuses what comes after it.
    pub fn pass(&mut self, passage: &mut Passage, file: BorrowedFd<'_>, ranges: &[Range<u64>]) -> bool {
        let length_bytes = (size_of::<OutHeader>() as u64 + passage::bytes(ranges)) as u32;
        let header = OutHeader { length_bytes, error: 0, unique: self.unique };
        let to = self.connection.device.as_fd();
        self.sent = passage.send(to, header.as_bytes(), file, ranges).is_ok();
        self.sent
    }

    /// Sends nothing: such requests have no answer.
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

/// Takes a mount out of the tree: for good, or as soon as nobody uses it any more.
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

/// Has the kernel write back what it has in its cache of the mount on a directory; of all mounts where it has none.
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

/// Runs a program, with a mount's directory as its last argument where there is one.
fn run_for(program: &str, flags: &[&str], dir: Option<&Path>) -> io::Result<()> {
    let run =
        Command::new(program).args(flags).args(dir).stdin(Stdio::null()).stderr(Stdio::null()).status()?;
    if run.success() { Ok(()) } else { Err(io::ErrorKind::ResourceBusy.into()) }
}

fn mount_directly(dir: &Path, how: &How<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())
        .map_err(|errno| named("/dev/fuse", errno.into()))?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,max_read={READ_BYTES}",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw()
    );
    if how.allow_other {
        data += ",allow_other";
    }
    let mount = |source: &[u8], kind: &str, data: String| -> io::Result<()> {
        let data = CString::new(data)?;
        let source = CString::new(source)?;
        Ok(rustix::mount::mount(&*source, dir, kind, how.flags, &*data)?)
    };
    let with_device = |path: &Path| {
        mount(path.as_os_str().as_bytes(), WITH_DEVICE, format!("{data},blksize={BLOCK_BYTES}"))
    };
    let is_mounted = if how.image.is_block_device() {
        let path = how.image.path().canonicalize()?;
        how.image.hand_over(|| with_device(&path))?
    } else {
        // It lives as long as the mount uses it, and must be as writable as the mount.
        let token = LoopDevice::attach(how.image.path(), !how.flags.contains(MountFlags::RDONLY));
        token.is_ok_and(|token| with_device(token.path()).is_ok())
    };
    if is_mounted {
        return Ok(device);
    }
    mount(how.source.as_bytes(), WITHOUT_DEVICE, data)?;
    Ok(device)
}

/// An error with the name of the file that it is about.
fn named(name: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{name}: {error}"))
}

/// What root's helper does for everybody: it mounts, and passes the open device through a socket.
fn mount_by_helper(dir: &Path, how: &How<'_>) -> io::Result<OwnedFd> {
    let names = [
        (MountFlags::RDONLY, "ro"),
        (MountFlags::NOEXEC, "noexec"),
        (MountFlags::NOSYMFOLLOW, "nosymfollow"),
        (MountFlags::SYNCHRONOUS, "sync"),
        (MountFlags::DIRSYNC, "dirsync"),
    ];
    // A comma or backslash in a name would end it (fusermount3).
    let source = how.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut options = format!("fsname={source},subtype=flashkit,default_permissions,max_read={READ_BYTES}");
    for (_, name) in names.iter().filter(|(flag, _)| how.flags.contains(*flag)) {
        options += &format!(",{name}");
    }
    if how.allow_other {
        options += ",allow_other";
    }
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        // The helper inherits its end.
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
