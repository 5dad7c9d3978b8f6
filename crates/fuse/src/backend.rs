//! The adapter between the protocol and the file system: one function for each request.

mod attributes;
mod content;
mod extended;
mod init;
mod names;

use std::{
    io,
    path::Path,
    sync::{Arc, OnceLock},
    thread,
};

use f2fs::units::Ino;
use fuse_protocol::{
    Access, Connection, Handler, InitRequest, KernelWriteBack, MountArguments, Mounter, Problem,
    ReadyThreads, Request, RequestLimits, Response, Transport,
    abi::{self, InHeader, ROOT_NODE, init_flags, opcode},
};
use image::Image;
use posix::{Credentials, Errno, FileSystem, Result};

use crate::{
    IoUring, MountOptions, Reads,
    cache::KernelCache,
    event::{Event, Report},
    mount::SUBTYPE,
    mounts,
    options::Medium,
    source::{self, SourceAccess},
};

/// Largest payload of one request, in bytes.
const REQUEST_BYTES: u32 = 1 << 20;

/// A mounted file system that does not answer requests yet.
pub struct Session {
    session: fuse_protocol::Session<Adapter>,
    /// The threads without which no requests are answered.
    ready: ReadyThreads,
    threads: usize,
    mounter: Mounter,
}

/// Way of writes through the page cache of the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteCaching {
    /// The kernel keeps them as dirty pages.
    WriteBack,
    /// Files open for writing bypass the page cache (`FOPEN_DIRECT_IO`). The cache then holds only content
    /// that was read or mapped through other opens.
    Bypassed,
}

struct Adapter {
    fs: Arc<FileSystem>,
    cache: Arc<KernelCache>,
    root: Ino,
    /// Block size of the volume in bytes: the granularity of holes and the preferred I/O size.
    block_bytes: u32,
    connection: Arc<Connection>,
    kernel_write_back: KernelWriteBack,
    /// Write-backs before space is taken. They are in the order of their requests and may take as long as an
    /// allocation does, so other write-backs have a queue of their own.
    kernel_write_back_for_space: KernelWriteBack,
    /// Device number of the mount in the mount table.
    device: Option<(u32, u32)>,
    caching: WriteCaching,
    reads: Reads,
    io_uring: IoUring,
    /// Set when requests are answered.
    report: OnceLock<Arc<Report>>,
}

/// Mounts a file system. Requests are answered once [`Session::run`] runs.
pub fn mount(
    fs: Arc<FileSystem>,
    image: &Image,
    dir: &Path,
    options: &MountOptions,
    source: &str,
) -> io::Result<Session> {
    let (root, (_, block_bytes)) = (fs.root()?, fs.space()?);
    let limits = RequestLimits { payload_bytes: REQUEST_BYTES, ..RequestLimits::default() };
    let arguments = MountArguments {
        source,
        subtype: SUBTYPE,
        flags: options.mount_flags(),
        access: if options.allow_other { Access::All } else { Access::Owner },
        max_read_bytes: limits.read_bytes,
    };
    let access = if options.read_only { SourceAccess::Read } else { SourceAccess::Write };
    // Before the mount, which must not be there without them.
    let ready = ReadyThreads::start(fuse_protocol::Session::<Adapter>::THREADS_MIN)?;
    let for_write_back = ReadyThreads::start(2)?;
    let (connection, mounter) =
        Connection::mount_with_device(dir, &arguments, |mount| source::attach(image, access, mount))?;
    let connection = Arc::new(connection);
    let start_write_back = || {
        let fs = fs.clone();
        KernelWriteBack::start(connection.clone(), &for_write_back, move |message| fs.record_fault(message))
    };
    let (kernel_write_back, kernel_write_back_for_space) = (start_write_back()?, start_write_back()?);
    // At least two: one worker may wait for a write-back that another worker has to answer; see `KernelWriteBack`.
    let threads =
        options.threads.unwrap_or_else(|| thread::available_parallelism().map_or(4, |n| n.get() * 2));
    let adapter = Adapter {
        cache: Arc::new(KernelCache::new(fs.clone())),
        fs,
        root,
        block_bytes,
        connection: connection.clone(),
        kernel_write_back,
        kernel_write_back_for_space,
        device: block::mounts().ok().and_then(|all| mounts::device_on(&all, dir)),
        caching: if options.direct_write { WriteCaching::Bypassed } else { WriteCaching::WriteBack },
        reads: options.reads_on(Medium::of(image)),
        io_uring: options.io_uring,
        report: OnceLock::new(),
    };
    let transport = match options.io_uring {
        IoUring::Never => Transport::Device,
        IoUring::IfOffered | IoUring::Wanted => Transport::IoUring,
    };
    let session = fuse_protocol::Session::new(connection, limits, adapter).over(transport);
    Ok(Session { session, ready, threads, mounter })
}

impl Session {
    /// Returns which program mounted, and so has to unmount.
    pub fn mounter(&self) -> Mounter {
        self.mounter
    }

    /// Returns the device number of the mount in the mount table, if it is listed there.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.session.handler().device
    }

    /// Answers requests until the file system is unmounted.
    pub fn run(self, report: Arc<Report>) -> io::Result<()> {
        // It is set only once, because this takes the session.
        let _ = self.session.handler().report.set(report);
        self.session.run_on(self.ready, self.threads)
    }
}

impl Handler for Adapter {
    fn init_flags(&self, request: &InitRequest) -> u64 {
        let names = match self.fs.has_encryption() {
            true => init::Names::Encrypted,
            false => init::Names::Lasting,
        };
        init::flags(request, self.caching, names, self.reads)
    }

    fn handle(&self, request: &mut Request<'_>, response: &mut Response) -> Result<(), Errno> {
        let (fs, ino) = (&*self.fs, self.ino(request.header.node));
        let output = &mut response.output;
        match request.header.opcode {
            // `umount` returns when this is answered. `background` reports a failure.
            opcode::DESTROY => fs.unmount().map_err(|_| Errno::IO),
            opcode::FORGET | opcode::BATCH_FORGET => {
                response.suppress();
                self.forget(request)
            }
            opcode::LOOKUP => self.lookup(request, output),
            opcode::GETATTR => self.get_attr(request, response),
            opcode::SETATTR => self.set_attr(request, output),
            opcode::STATX => self.statx(request, output),
            opcode::STATFS => self.stat_fs(output),
            opcode::READLINK => fs.read_link(ino).map(|target| output.extend(&target)),
            opcode::SYMLINK => self.symlink(request, output),
            opcode::MKNOD => self.make_node(request, output),
            opcode::MKDIR => self.make_dir(request, output),
            opcode::LINK => self.link(request, output),
            opcode::UNLINK => fs.unlink(ino, request.arguments.name()?),
            opcode::RMDIR => fs.rmdir(ino, request.arguments.name()?),
            opcode::RENAME | opcode::RENAME2 => self.rename(request),
            opcode::OPEN => self.open(request, output),
            // The kernel then opens and closes directories without asking, as `open_dir` answers.
            opcode::OPENDIR if request.negotiated.has(init_flags::NO_OPENDIR_SUPPORT) => Err(Errno::NOSYS),
            opcode::OPENDIR => self.open_dir(request, output),
            opcode::CREATE | opcode::TMPFILE => self.create(request, output),
            opcode::RELEASE => self.release(request),
            opcode::RELEASEDIR => Ok(()),
            opcode::READ => self.read(request, response),
            opcode::WRITE => self.write(request, response),
            // The kernel writes dirty pages back before it sends FLUSH. If the first FLUSH is answered with
            // ENOSYS, it sends no more. Before Linux 5.9 (so surely before 7.32) it then skips that
            // write-back, too.
            opcode::FLUSH if request.negotiated.minor < 32 => Ok(()),
            opcode::FSYNC => self.fsync(request).map_err(|errno| fs.cause_of_loss(errno)),
            opcode::FSYNCDIR if self.is_remounted_read_only() => fs.rest(),
            opcode::FSYNCDIR => {
                fs.fsync(ino, content::sync_scope(request)?).map_err(|errno| fs.cause_of_loss(errno))
            }
            opcode::SYNCFS => fs.sync().map_err(|errno| fs.cause_of_loss(errno)),
            opcode::READDIR => self.list(request, output),
            opcode::READDIRPLUS => self.list_with_facts(request, output),
            opcode::SETXATTR => self.set_xattr(request),
            opcode::GETXATTR => self.get_xattr(request, output),
            opcode::LISTXATTR => self.list_xattrs(request, output),
            opcode::REMOVEXATTR => fs.remove_xattr(ino, request.arguments.name()?),
            opcode::IOCTL => self.ioctl(request, response),
            opcode::FALLOCATE => self.allocate(request, response),
            opcode::LSEEK => self.seek(request, response),
            opcode::COPY_FILE_RANGE => self.copy(request, response),
            // The kernel then falls back to its own implementation, if it has one.
            _ => Err(Errno::NOSYS),
        }
    }

    fn report(&self, problem: Problem) {
        match problem {
            Problem::Panic(message) => self.fs.record_fault(message),
            Problem::KernelTooOld { minor } => self.tell(&Event::KernelTooOld { minor }),
            Problem::NoIoUring(reason) if self.io_uring == IoUring::Wanted => {
                self.tell(&Event::NoIoUring(reason))
            }
            _ => {}
        }
    }
}

impl Adapter {
    fn tell(&self, event: &Event) {
        if let Some(report) = self.report.get() {
            report(event);
        }
    }

    fn forget(&self, request: &mut Request<'_>) -> Result<()> {
        if request.header.opcode == opcode::FORGET {
            let lookups = request.arguments.take::<abi::ForgetIn>()?.lookups;
            self.cache.forget(self.ino(request.header.node), lookups);
            return Ok(());
        }
        for _ in 0..request.arguments.take::<abi::BatchForgetIn>()?.count {
            let one: abi::ForgetOne = request.arguments.take()?;
            self.cache.forget(self.ino(one.node), one.lookups);
        }
        Ok(())
    }

    /// Makes the kernel ask for the attributes of an inode again.
    fn drop_attributes(&self, node: u64) {
        // An error means that it has none cached.
        let _ = self.connection.invalidate_attributes(node);
    }

    fn ino(&self, node: u64) -> Ino {
        match node {
            ROOT_NODE => self.root,
            // Node IDs are inode numbers, which have 32 bits; no inode has the number 0.
            other => Ino(u32::try_from(other).unwrap_or(0)),
        }
    }

    fn node(&self, ino: Ino) -> u64 {
        if ino == self.root { ROOT_NODE } else { ino.0.into() }
    }
}

/// Returns the process that a request comes from.
fn caller_of(header: &InHeader) -> Credentials {
    Credentials { uid: header.uid, gid: header.gid, pid: header.pid }
}
