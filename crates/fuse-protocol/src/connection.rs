//! The connection to the kernel: receiving requests, sending answers and notifications.

use std::{
    fs::File,
    io::{self, IoSlice},
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
};

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use crate::{
    DeviceMount, MountArguments, Mounter,
    abi::{INVALIDATE_INODE, InHeader, InvalidateInode, OutHeader},
    mount,
    splice_pipe::{self, SplicePipe},
    uring::Slot,
};

/// An open `/dev/fuse` that belongs to a mount.
///
/// *If this process is killed*, the kernel closes the device and aborts the connection, but only if no thread
/// of ours is blocked in the kernel on a request that we must answer. Such a thread would block `umount` and
/// every `sync` on the machine for ever. Therefore operations that send us requests run in child processes
/// ([`unmount`](crate::unmount), [`sync`](crate::sync)). For the same reason we hold our mount namespace open: the last process that
/// leaves a namespace unmounts its mounts before it closes its files; an open file on the namespace prevents
/// that.
pub struct Connection {
    device: OwnedFd,
    /// `None` without /proc.
    _namespace: Option<File>,
}

impl Connection {
    /// Mounts on a directory, without a block device.
    ///
    /// # Errors
    /// Those of `/dev/fuse`, of mount(2), and of the helper `fusermount3`.
    pub fn mount(dir: &Path, arguments: &MountArguments<'_>) -> io::Result<(Connection, Mounter)> {
        Connection::mount_with_device(dir, arguments, |_| Ok(false))
    }

    /// Mounts on a directory with a block device, so that umount(2) waits for the answer to DESTROY. `attach`
    /// prepares the block device and [mounts](DeviceMount::mount) it. If it returns false, or if this process
    /// is not privileged to mount, the mount has no block device.
    ///
    /// # Errors
    /// Those of `attach`, of `/dev/fuse`, of mount(2), and of the helper `fusermount3`.
    pub fn mount_with_device(
        dir: &Path,
        arguments: &MountArguments<'_>,
        attach: impl FnOnce(&DeviceMount<'_>) -> io::Result<bool>,
    ) -> io::Result<(Connection, Mounter)> {
        let namespace = File::open("/proc/self/ns/mnt").ok();
        let (device, mounter) = mount::mount(dir, arguments, attach)?;
        Ok((Connection { device, _namespace: namespace }, mounter))
    }

    /// Creates a connection that notifies nobody.
    #[cfg(test)]
    pub(crate) fn to_nowhere() -> Connection {
        let device = File::options().write(true).open("/dev/null").expect("/dev/null can be opened");
        Connection { device: device.into(), _namespace: None }
    }

    /// Returns the open `/dev/fuse`, for commands through io_uring.
    pub(crate) fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// Receives the next request into `buffer`. Returns `None` when the file system has been unmounted.
    ///
    /// # Errors
    /// Those of read(2), and a request without a whole header.
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

    /// Tells the kernel to write back and invalidate its cache of a part of a file: `length` bytes from
    /// `offset` on, or all of the rest if `length` is 0. The kernel sends us WRITE requests meanwhile.
    ///
    /// # Errors
    /// ENOENT if the kernel has nothing of the inode cached.
    pub fn invalidate_content(&self, node: u64, offset: i64, length: i64) -> Result<(), Errno> {
        let notification = InvalidateInode { ino: node, offset, length };
        self.send(0, INVALIDATE_INODE, notification.as_bytes())
    }

    /// Tells the kernel to drop its cached attributes of an inode. Cached content stays.
    ///
    /// # Errors
    /// ENOENT if the kernel has nothing of the inode cached.
    pub fn invalidate_attributes(&self, node: u64) -> Result<(), Errno> {
        // A negative offset means the attributes alone.
        self.invalidate_content(node, -1, 0)
    }

    fn send(&self, unique: u64, error: i32, payload: &[u8]) -> Result<(), Errno> {
        let length_bytes = (size_of::<OutHeader>() + payload.len()) as u32;
        let header = OutHeader { length_bytes, error, unique };
        rustix::io::writev(&self.device, &[IoSlice::new(header.as_bytes()), IoSlice::new(payload)]).map(drop)
    }
}

/// The pending answer to one request. Dropping it unsent answers with EIO.
pub struct Reply {
    way: Way,
    unique: u64,
    sent: bool,
}

/// Way of an answer to the kernel.
enum Way {
    /// It is written to the device.
    Device(Arc<Connection>),
    /// The worker that has the request's entry of io_uring gives it to the kernel.
    Entry(Arc<Slot>),
}

impl Reply {
    /// Creates the answer to the request with this number.
    pub fn new(connection: Arc<Connection>, unique: u64) -> Reply {
        Reply { way: Way::Device(connection), unique, sent: false }
    }

    /// Creates the answer to a request that a worker has in an entry.
    pub(crate) fn by_entry(slot: Arc<Slot>, unique: u64) -> Reply {
        Reply { way: Way::Entry(slot), unique, sent: false }
    }

    /// Sends the answer.
    pub fn send(mut self, answer: Result<&[u8], Errno>) {
        self.finish(answer);
    }

    fn finish(&mut self, answer: Result<&[u8], Errno>) {
        self.sent = true;
        match &self.way {
            Way::Entry(slot) => slot.put(answer),
            Way::Device(connection) => {
                // An error means that the request is no longer waited for.
                let _ = match answer {
                    Ok(payload) => connection.send(self.unique, 0, payload),
                    Err(errno) => connection.send(self.unique, -errno.raw_os_error(), &[]),
                };
            }
        }
    }

    /// Sends ranges of a file through a splice pipe. Returns false on failure; the caller must then answer in
    /// another way. A second answer is harmless: the kernel refuses it.
    pub fn splice(
        &mut self,
        splice_pipe: &mut SplicePipe,
        file: BorrowedFd<'_>,
        ranges: &[Range<u64>],
    ) -> bool {
        let Way::Device(connection) = &self.way else { return false };
        let length_bytes = (size_of::<OutHeader>() as u64 + splice_pipe::bytes(ranges)) as u32;
        let header = OutHeader { length_bytes, error: 0, unique: self.unique };
        self.sent = splice_pipe.send(connection.device(), header.as_bytes(), file, ranges).is_ok();
        self.sent
    }

    /// Returns true if this answer may wait for other requests of the mount, for which the kernel must have entries
    /// of io_uring left.
    pub(crate) fn may_wait(&self) -> bool {
        match &self.way {
            Way::Device(_) => true,
            Way::Entry(slot) => slot.may_wait(),
        }
    }

    /// Ends a request that has no answer. An entry of io_uring is given back nevertheless.
    pub fn none(mut self) {
        match self.way {
            Way::Device(_) => self.sent = true,
            Way::Entry(_) => self.finish(Ok(&[])),
        }
    }

    /// Ends a request whose answer its worker puts into the entry itself.
    pub(crate) fn leave_to_worker(mut self) {
        self.sent = true;
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.sent {
            self.finish(Err(Errno::IO));
        }
    }
}
