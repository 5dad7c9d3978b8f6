//! Dispatches requests of the kernel to [`FileSystem`] and encodes the answers.

use std::{
    io,
    path::Path,
    sync::{Arc, OnceLock},
    thread,
    time::Duration,
};

use block::FileDevice;
use f2fs::{
    format::{FileType, inode::DeviceNumber},
    units::{Ino, Time},
    volume::{DirEntry, SetAttr, Stat, XattrMode},
};
use fuse_protocol::{
    Access, Admission, Arguments, Connection, Interrupts, MountArguments, Mounter, Output, Parked, Pool,
    Reply, SplicePipe, WriteBack,
    abi::{self as wire, InHeader, init_flags, opcode, opened, valid},
    contain,
};
use posix::{
    Answer, Caller, Change, Errno, FileSystem, OpenMode, TimesFrom, WriteMode, WriteOrigin, ioctl::Request,
};
use rustix::fs::{OFlags, RenameFlags};

use crate::{
    MountOptions,
    cache::{KernelCache, NO_VALIDITY, VALIDITY, VALIDITY_WRITING},
    mount::SUBTYPE,
    mounts,
    source::{self, SourceAccess},
};

/// Maximum length of a read, in bytes. Together with the header it fits a pipe of 1 MiB, the limit for
/// unprivileged users (pipe(7)).
const READ_BYTES: u32 = 512 << 10;
/// Largest payload of one request, in bytes and in pages.
const REQUEST_BYTES: u32 = 1 << 20;
const REQUEST_PAGES: u16 = 256;
/// Minimum length of a read that is spliced from the image to the kernel. For shorter reads two copies are
/// cheaper than a pipe.
const SPLICE_BYTES_MIN: u32 = 64 << 10;
/// Space for a request's header and arguments.
const HEAD_BYTES: usize = 64 << 10;
/// Maximum number of background requests (`max_background`): requests for which no process waits.
const BACKGROUND_REQUESTS: u16 = 64;
/// The offset of an inode invalidation that drops the attributes and keeps the cached content.
const ATTRIBUTES_ONLY: i64 = -1;
/// Node ID of the root directory (`FUSE_ROOT_ID`).
const ROOT: u64 = 1;

/// Init flags to negotiate if the kernel offers them.
const WANTED_FLAGS: u64 = init_flags::ASYNC_READ
    | init_flags::ATOMIC_O_TRUNC
    | init_flags::EXPORT_SUPPORT
    | init_flags::BIG_WRITES
    | init_flags::DONT_MASK
    | init_flags::HAS_IOCTL_DIR
    | init_flags::DO_READDIRPLUS
    | init_flags::READDIRPLUS_AUTO
    | init_flags::ASYNC_DIO
    | init_flags::WRITEBACK_CACHE
    | init_flags::PARALLEL_DIROPS
    | init_flags::POSIX_ACL
    | init_flags::MAX_PAGES
    | init_flags::CACHE_SYMLINKS
    | init_flags::HANDLE_KILLPRIV_V2
    | init_flags::SETXATTR_EXT
    | init_flags::INIT_EXT
    | init_flags::DIRECT_IO_ALLOW_MMAP;

/// Open flags of regular files: the page cache survives close, and direct writes may run in parallel.
const FILE_OPEN: u32 = opened::KEEP_CACHE | opened::PARALLEL_DIRECT_WRITES;
const DIRECTORY_OPEN: u32 = opened::KEEP_CACHE | opened::CACHE_DIR;

/// A mounted file system that does not answer requests yet.
pub struct Session {
    adapter: Arc<Adapter>,
    threads: usize,
    mounter: Mounter,
}

/// Mounts a file system. Requests are answered once [`Session::run`] runs.
pub fn mount(
    fs: Arc<FileSystem>,
    image: &FileDevice,
    dir: &Path,
    options: &MountOptions,
    source: &str,
) -> io::Result<Session> {
    let (root, (_, block_bytes)) = (fs.root()?, fs.space()?);
    let arguments = MountArguments {
        source,
        subtype: SUBTYPE,
        flags: options.mount_flags(),
        access: if options.allow_other { Access::All } else { Access::Owner },
        max_read_bytes: READ_BYTES,
    };
    let access = if options.read_only { SourceAccess::Read } else { SourceAccess::Write };
    let (connection, mounter) =
        Connection::mount_with_device(dir, &arguments, |mount| source::attach(image, access, mount))?;
    let connection = Arc::new(connection);
    let write_back = WriteBack::start(connection.clone(), {
        let fs = fs.clone();
        move |message| fs.record_fault(message)
    });
    // At least two: one worker may wait for a write-back that another worker has to answer; see `WriteBack`.
    let threads =
        options.threads.unwrap_or_else(|| thread::available_parallelism().map_or(4, |n| n.get() * 2));
    let device = block::mounts().ok().and_then(|all| mounts::device_on(&all, dir));
    let (negotiated, direct_write) = (OnceLock::new(), options.direct_write);
    let adapter = Arc::new(Adapter {
        cache: Arc::new(KernelCache::new(fs.clone())),
        interrupts: Interrupts::default(),
        fs,
        root,
        block_bytes,
        connection,
        write_back,
        negotiated,
        device,
        direct_write,
    });
    Ok(Session { adapter, threads, mounter })
}

impl Session {
    /// Returns which program mounted, and so has to unmount.
    pub fn mounter(&self) -> Mounter {
        self.mounter
    }

    /// Device number of the mount in the mount table, if it is listed there.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.adapter.device
    }

    /// Answers requests until the file system is unmounted.
    pub fn run(self) -> io::Result<()> {
        let adapter = self.adapter;
        Pool::run(self.threads, move |pool| adapter.serve(pool))
    }
}

#[derive(Clone, Copy)]
enum Whence {
    Data,
    Hole,
}

fn seek(fs: &FileSystem, ino: Ino, offset: u64, whence: Whence) -> Answer<wire::LseekOut> {
    let offset = match whence {
        Whence::Data => fs.seek_data(ino, offset)?,
        Whence::Hole => fs.seek_hole(ino, offset)?,
    };
    Ok(wire::LseekOut { offset })
}

/// Per-worker state for answering requests.
struct Worker {
    output: Output,
    /// The answer to the current request. It is taken out by code that answers in another way than with
    /// `output`.
    reply: Option<Reply>,
    splice_pipe: SplicePipe,
}

struct Adapter {
    fs: Arc<FileSystem>,
    cache: Arc<KernelCache>,
    root: Ino,
    /// Block size of the volume in bytes: the granularity of holes and the preferred I/O size.
    block_bytes: u32,
    connection: Arc<Connection>,
    write_back: WriteBack,
    interrupts: Interrupts,
    /// Set once the kernel has sent its init request.
    negotiated: OnceLock<Negotiated>,
    /// Device number of the mount in the mount table.
    device: Option<(u32, u32)>,
    /// Files open for writing bypass the page cache (`FOPEN_DIRECT_IO`). The cache then holds only content
    /// that was read or mapped through other opens.
    direct_write: bool,
}

impl Adapter {
    /// Answers requests until the file system is unmounted.
    fn serve(&self, pool: &Arc<Pool>) -> io::Result<()> {
        let mut buffer = vec![0; REQUEST_BYTES as usize + HEAD_BYTES];
        let mut worker = Worker {
            output: Output::new(REQUEST_BYTES as usize + HEAD_BYTES),
            reply: None,
            splice_pipe: SplicePipe::new(READ_BYTES as usize),
        };
        while let Some((header, arguments)) = self.connection.receive(&mut buffer)? {
            pool.mark_busy();
            let admission = pool.admit(&header, arguments);
            if admission != Admission::Park {
                self.answer(&header, arguments, &mut worker);
            }
            if admission == Admission::HandleChange {
                while let Some(Parked { header, arguments }) = pool.next_parked() {
                    self.answer(&header, &arguments, &mut worker);
                }
            }
            pool.mark_idle();
        }
        Ok(())
    }

    fn answer(&self, header: &InHeader, arguments: &[u8], worker: &mut Worker) {
        worker.output.clear();
        worker.reply = Some(Reply::new(self.connection.clone(), header.unique));
        let handled = contain(|| self.handle(header, Arguments(arguments), worker));
        let outcome = handled.unwrap_or_else(|fault| {
            self.fs.record_fault(fault);
            Err(Errno::IO)
        });
        if let Some(reply) = worker.reply.take() {
            reply.send(outcome.map(|()| worker.output.bytes()));
        }
    }

    fn handle(&self, header: &InHeader, mut arguments: Arguments<'_>, worker: &mut Worker) -> Answer<()> {
        let (fs, ino) = (&*self.fs, self.ino(header.node));
        let caller = Caller { uid: header.uid, gid: header.gid, pid: header.pid };
        let arguments = &mut arguments;
        let Worker { output: out, reply, splice_pipe } = worker;
        match header.opcode {
            opcode::INIT => {
                let request = InitRequest::parse(arguments)?;
                out.put(&init_answer(
                    &request,
                    self.negotiated.get_or_init(|| Negotiated::new(&request, self.direct_write)).flags,
                ));
            }
            opcode::DESTROY => {
                // `umount` returns when this is answered. `background` reports a failure.
                fs.unmount().map_err(|_| Errno::IO)?;
            }
            opcode::INTERRUPT => {
                no_reply(reply);
                self.interrupts.interrupt(arguments.take::<wire::InterruptIn>()?.unique);
            }
            opcode::FORGET => {
                no_reply(reply);
                self.cache.forget(ino, arguments.take::<wire::ForgetIn>()?.lookups);
            }
            opcode::BATCH_FORGET => {
                no_reply(reply);
                for _ in 0..arguments.take::<wire::BatchForgetIn>()?.count {
                    let one: wire::ForgetOne = arguments.take()?;
                    self.cache.forget(self.ino(one.node), one.lookups);
                }
            }
            opcode::LOOKUP => self.lookup(ino, arguments.name()?, out)?,
            opcode::GETATTR => {
                let wire::GetattrIn { getattr_flags, handle, .. } = arguments.take()?;
                // A process that has the file open for writing may be about to write.
                let writes = getattr_flags & wire::GETATTR_HANDLE != 0 && handle != 0;
                if writes && self.cache.about_to_write(caller, ino) {
                    let (reply, block_bytes) = (take_reply(reply), self.block_bytes);
                    let (fs, cache) = (self.fs.clone(), self.cache.clone());
                    let nodes = self.cache.to_write_back(ino).into_iter().map(|ino| self.node(ino)).collect();
                    self.write_back.then(nodes, reply, move |out| {
                        cache.written_back(ino)?;
                        put_attr(&fs.stat(ino)?, block_bytes, NO_VALIDITY, out);
                        Ok(())
                    });
                    return Ok(());
                }
                let stat = fs.stat(ino)?;
                let validity = if writes { VALIDITY_WRITING } else { self.cache.attr_validity(&stat) };
                put_attr(&stat, self.block_bytes, validity, out);
            }
            opcode::SETATTR => {
                let change = change(&arguments.take()?);
                let stat = fs.change(caller, ino, &change)?;
                put_attr(&stat, self.block_bytes, self.cache.attr_validity(&stat), out);
            }
            opcode::STATX => self.put_statx(&fs.stat(ino)?, out),
            opcode::READLINK => out.extend(&fs.read_link(ino)?),
            opcode::SYMLINK => {
                let (name, target) = (arguments.name()?, arguments.name()?);
                self.put_entry(ino, &fs.symlink(caller, ino, name, target)?, out);
            }
            opcode::MKNOD => {
                let wire::MknodIn { mode, rdev, umask, .. } = arguments.take()?;
                let device = Some(device_from_kernel(rdev));
                let made = fs.create(caller, ino, arguments.name()?, mode as u16, umask as u16, device)?;
                self.put_entry(ino, &made, out);
            }
            opcode::MKDIR => {
                let wire::MkdirIn { mode, umask } = arguments.take()?;
                let mode = FileType::Directory.mode_bits() | mode as u16 & 0o7777;
                let made = fs.create(caller, ino, arguments.name()?, mode, umask as u16, None)?;
                self.put_entry(ino, &made, out);
            }
            opcode::UNLINK => fs.unlink(ino, arguments.name()?)?,
            opcode::RMDIR => fs.rmdir(ino, arguments.name()?)?,
            opcode::RENAME | opcode::RENAME2 => {
                let (new_dir, flags) = match header.opcode {
                    opcode::RENAME => (arguments.take::<wire::RenameIn>()?.new_dir, 0),
                    _ => arguments.take().map(|wire::Rename2In { new_dir, flags, .. }| (new_dir, flags))?,
                };
                let (from, to) = (arguments.name()?, arguments.name()?);
                let flags = RenameFlags::from_bits_retain(flags);
                fs.rename(caller, (ino, from), (self.ino(new_dir), to), flags)?;
            }
            opcode::LINK => {
                let old = self.ino(arguments.take::<wire::LinkIn>()?.old_node);
                self.put_entry(ino, &fs.link(caller, old, ino, arguments.name()?)?, out);
            }
            opcode::OPEN => {
                let wire::OpenIn { flags, open_flags } = arguments.take()?;
                let mode = open_mode(flags, open_flags);
                let accessed = self.cache.open(caller, ino, mode)?;
                if mode.write || accessed {
                    // From now on the kernel has to ask for attributes before each write; see the module. An
                    // access time that we have just set is a change that the kernel does not know of, either.
                    // An error means that it has no attributes cached.
                    let _ = self.connection.invalidate(header.node, ATTRIBUTES_ONLY);
                }
                out.put(&self.opened(mode.write));
            }
            opcode::OPENDIR => {
                fs.open(caller, ino, OpenMode::default())?;
                out.put(&wire::OpenOut { handle: 0, open_flags: DIRECTORY_OPEN, padding: 0 });
            }
            opcode::CREATE | opcode::TMPFILE => {
                let wire::CreateIn { flags, mode, umask, open_flags } = arguments.take()?;
                let write = open_mode(flags, open_flags).write;
                let mode = FileType::Regular.mode_bits() | mode as u16 & 0o7777;
                let made = match header.opcode {
                    opcode::CREATE => fs.create(caller, ino, arguments.name()?, mode, umask as u16, None)?,
                    _ => fs.create_nameless(caller, ino, mode, umask as u16)?,
                };
                self.cache.open_new(made.ino, write);
                // A process that creates a file for writing is the known writer, so it need not ask before
                // its first write.
                let may_write = write && !self.cache.about_to_write(caller, made.ino);
                let validity = if may_write { VALIDITY_WRITING } else { self.cache.attr_validity(&made) };
                out.put(&self.entry(&made, self.cache.name_validity(ino), validity));
                out.put(&self.opened(write));
            }
            opcode::RELEASE => self.cache.close(ino, arguments.take::<wire::ReleaseIn>()?.handle != 0),
            opcode::RELEASEDIR => {}
            opcode::READ => {
                let wire::ReadIn { offset, size, read_flags, .. } = arguments.take()?;
                let size = size.min(REQUEST_BYTES);
                if read_flags & wire::LOCK_OWNER == 0 {
                    self.cache.mark_cached(ino);
                }
                if size < SPLICE_BYTES_MIN || !self.splice_read(ino, offset, size, reply, splice_pipe)? {
                    out.fill(size as usize, |room| fs.read(ino, offset, room))?;
                }
            }
            opcode::WRITE => {
                let wire::WriteIn { offset, size, write_flags, flags, .. } = arguments.take()?;
                let is_direct = write_flags & wire::LOCK_OWNER != 0;
                // For files that we opened with direct I/O, the kernel leaves dropping capabilities and
                // syncing to us.
                let is_ours = is_direct && self.direct_write;
                let mode = WriteMode {
                    origin: WriteOrigin::Caller,
                    drops_privilege: write_flags & wire::WRITE_KILL_SUIDGID != 0,
                    drops_capabilities: is_ours,
                };
                if !is_direct {
                    self.cache.mark_cached(ino);
                }
                let data = arguments.bytes(size)?;
                let written = match write_flags & wire::WRITE_CACHE {
                    0 => fs.write(caller, ino, offset, data, mode),
                    _ => self.cache.write_dirty(caller, ino, offset, data, mode),
                };
                let written = written.and_then(|()| {
                    if is_ours && flags & wire::O_DSYNC != 0 {
                        fs.fsync(ino, !OFlags::from_bits_retain(flags).contains(OFlags::SYNC))?;
                    }
                    Ok(wire::WriteOut { size, padding: 0 })
                });
                if is_direct && self.cache.may_hold(ino) {
                    // After an asynchronous direct write, the kernel invalidates only pages cached before the
                    // write. Pages that were read during the write stay and may be stale. After a synchronous
                    // direct write it invalidates both times, but we cannot tell the two apart. A failed
                    // write may have written part of its data.
                    let part = (offset.try_into().unwrap_or(i64::MAX), size.into());
                    self.write_back.part_then(header.node, part, take_reply(reply), move |out| {
                        out.put(&written?);
                        Ok(())
                    });
                } else {
                    out.put(&written?);
                }
            }
            // The kernel writes dirty pages back before it sends FLUSH. If the first FLUSH is answered with
            // ENOSYS, it sends no more. Before Linux 5.9 (so surely before 7.32) it then skips that
            // write-back, too.
            opcode::FLUSH if self.negotiated.get().is_some_and(|agreed| agreed.minor < 32) => {}
            opcode::FSYNC => {
                fs.fsync(ino, arguments.take::<wire::FsyncIn>()?.fsync_flags & wire::FSYNC_DATA != 0)?;
                if fs.has_writer(ino) {
                    // Its blocks can be counted now. An error means that the kernel has nothing of this inode
                    // cached.
                    let _ = self.connection.invalidate(header.node, ATTRIBUTES_ONLY);
                }
            }
            opcode::FSYNCDIR => {
                fs.fsync(ino, arguments.take::<wire::FsyncIn>()?.fsync_flags & wire::FSYNC_DATA != 0)?;
            }
            opcode::SYNCFS => fs.sync()?,
            opcode::READDIR => self.list(ino, &arguments.take()?, out)?,
            opcode::READDIRPLUS => self.list_with_facts(ino, &arguments.take()?, out)?,
            opcode::STATFS => {
                let (space, bytes) = fs.space()?;
                out.put(&wire::StatfsOut {
                    blocks: space.blocks,
                    free: space.free_blocks,
                    available: space.free_blocks,
                    inodes: space.inodes,
                    free_inodes: space.free_inodes,
                    block_bytes: bytes,
                    name_bytes: 255,
                    fragment_bytes: bytes,
                    ..Default::default()
                });
            }
            opcode::SETXATTR => {
                let asked = SetXattr::take(arguments, self.has_negotiated(init_flags::SETXATTR_EXT))?;
                fs.set_xattr(caller, ino, asked.name, asked.value, asked.mode, asked.drops_group_id)?;
            }
            opcode::GETXATTR => {
                let room = arguments.take::<wire::GetxattrIn>()?.size;
                put_xattr(&fs.get_xattr(ino, arguments.name()?)?, room, out)?;
            }
            opcode::LISTXATTR => {
                let room = arguments.take::<wire::GetxattrIn>()?.size;
                put_xattr(&fs.list_xattrs(caller, ino)?, room, out)?;
            }
            opcode::REMOVEXATTR => fs.remove_xattr(ino, arguments.name()?)?,
            opcode::IOCTL => {
                let wire::IoctlIn { handle, command, in_bytes, .. } = arguments.take()?;
                let request = Request::parse(command, arguments.bytes(in_bytes)?).ok_or(Errno::NOTTY)?;
                if request.changes() && self.is_remounted_read_only() {
                    return Err(Errno::ROFS);
                }
                if let Request::Trim(range) = request {
                    let watched = self.interrupts.watch(header.unique);
                    let trimmed = fs.trim(caller, range, &|| watched.is_interrupted())?;
                    put_ioctl(&range.done(trimmed), out);
                    return Ok(());
                }
                if request.protects() && fs.has_writer(ino) {
                    // Dirty pages from before this request can still be written back now; once the flag is
                    // set, the writes would be refused.
                    let (reply, fs) = (take_reply(reply), self.fs.clone());
                    let (connection, node) = (self.connection.clone(), header.node);
                    self.write_back.then(vec![node], reply, move |out| {
                        put_ioctl(&fs.ioctl(caller, ino, handle != 0, &request)?, out);
                        let _ = connection.invalidate(node, ATTRIBUTES_ONLY);
                        Ok(())
                    });
                    return Ok(());
                }
                put_ioctl(&fs.ioctl(caller, ino, handle != 0, &request)?, out);
                // Flags are attributes, and the kernel does not know that setting them changes others. An
                // error means that it has none cached.
                let _ = self.connection.invalidate(header.node, ATTRIBUTES_ONLY);
            }
            opcode::FALLOCATE => {
                let wire::FallocateIn { offset, length, mode, .. } = arguments.take()?;
                let first = self.cache.to_write_back_before_allocating(length);
                if !first.is_empty() {
                    let (reply, fs) = (take_reply(reply), self.fs.clone());
                    let nodes = first.into_iter().map(|ino| self.node(ino)).collect();
                    self.write_back
                        .then(nodes, reply, move |_| fs.allocate(caller, ino, offset, length, mode));
                    return Ok(());
                }
                fs.allocate(caller, ino, offset, length, mode)?;
            }
            opcode::LSEEK => {
                let wire::LseekIn { offset, whence, .. } = arguments.take()?;
                let whence = match whence {
                    3 => Whence::Data,
                    4 => Whence::Hole,
                    _ => return Err(Errno::INVAL),
                };
                if fs.has_writer(ino) {
                    let (reply, fs) = (take_reply(reply), self.fs.clone());
                    self.write_back.then(vec![header.node], reply, move |out| {
                        out.put(&seek(&fs, ino, offset, whence)?);
                        Ok(())
                    });
                } else {
                    out.put(&seek(fs, ino, offset, whence)?);
                }
            }
            opcode::COPY_FILE_RANGE => {
                /// Maximum length that one request copies, so that the caller can be interrupted in between.
                const MOST: u64 = 64 << 20;
                let wire::CopyFileRangeIn { offset_in, node_out, offset_out, length, .. } =
                    arguments.take()?;
                let (from, to) = ((ino, offset_in), (self.ino(node_out), offset_out));
                let size = fs.copy(caller, from, to, length.min(MOST))? as u32;
                out.put(&wire::WriteOut { size, padding: 0 });
            }
            // The kernel then falls back to its own implementation, if it has one.
            _ => return Err(Errno::NOSYS),
        }
        Ok(())
    }

    /// Answers a read by splicing the image's bytes to the kernel. Returns false if that is not possible;
    /// then the request is still unanswered.
    fn splice_read(
        &self,
        ino: Ino,
        offset: u64,
        size: u32,
        reply: &mut Option<Reply>,
        splice_pipe: &mut SplicePipe,
    ) -> Answer<bool> {
        let mut taken = take_reply(reply);
        let spliced = self
            .fs
            .with_ranges(ino, offset, size.into(), |file, ranges| taken.splice(splice_pipe, file, ranges));
        if spliced != Ok(true) {
            *reply = Some(taken);
        }
        spliced
    }

    fn lookup(&self, dir: Ino, name: &[u8], out: &mut Output) -> Answer<()> {
        match self.fs.lookup(dir, name) {
            Err(Errno::NOENT) if self.fs.negative_entries_last() => {
                // Node 0 is a negative entry: the kernel may cache that the name does not exist.
                out.put(&wire::EntryOut { name_valid_s: VALIDITY.as_secs(), ..Default::default() });
            }
            found => self.put_entry(dir, &found?, out),
        }
        Ok(())
    }

    fn list(&self, dir: Ino, read: &wire::ReadIn, out: &mut Output) -> Answer<()> {
        let room = read.size as usize;
        self.fs.list(dir, read.offset, |volume, entry| {
            // The kind is all that a listing needs of the inode, so a damaged inode does not hide its entry.
            let kind = entry.kind.or_else(|| volume.inode(entry.ino).ok().map(|inode| inode.file_type()));
            let fits = out.bytes().len() + dirent_bytes(&entry.name) <= room;
            if fits {
                put_dirent(entry.ino, entry.next_cookie, kind, &entry.name, out);
            }
            Ok(fits)
        })
    }

    fn list_with_facts(&self, dir: Ino, read: &wire::ReadIn, out: &mut Output) -> Answer<()> {
        let mut room = (read.size as usize).saturating_sub(out.bytes().len());
        let name_validity = self.cache.name_validity(dir);
        let fits = |entry: &DirEntry| {
            let left = room.checked_sub(size_of::<wire::EntryOut>() + dirent_bytes(&entry.name));
            left.map(|left| room = left).is_some()
        };
        self.fs.list_with_facts(dir, read.offset, fits, |entry, stat| {
            // Without attributes (node 0) the kernel lists only the name, and looks it up when a program asks
            // for more.
            let facts = stat.map(|stat| self.entry(stat, name_validity, self.cache.attr_validity(stat)));
            out.put(&facts.unwrap_or_default());
            let kind = stat.map(|stat| stat.kind).or(entry.kind);
            put_dirent(entry.ino, entry.next_cookie, kind, &entry.name, out);
        })
    }

    /// Returns true if the file system was remounted read-only (`mount -o remount,ro`). The kernel enforces
    /// that itself except for requests that it does not know to be changes.
    fn is_remounted_read_only(&self) -> bool {
        let is_read_only = |device| block::mounts().is_ok_and(|all| mounts::is_read_only(&all, device));
        self.device.is_some_and(is_read_only)
    }

    /// The answer to OPEN of a regular file.
    fn opened(&self, write: bool) -> wire::OpenOut {
        let open_flags = if self.direct_write && write { FILE_OPEN | opened::DIRECT_IO } else { FILE_OPEN };
        wire::OpenOut { handle: write.into(), open_flags, padding: 0 }
    }

    fn has_negotiated(&self, init_flags: u64) -> bool {
        self.negotiated.get().is_some_and(|agreed| agreed.flags & init_flags != 0)
    }

    fn ino(&self, node: u64) -> Ino {
        match node {
            ROOT => self.root,
            // Node IDs are inode numbers, which have 32 bits; no inode has the number 0.
            other => Ino(u32::try_from(other).unwrap_or(0)),
        }
    }

    fn node(&self, ino: Ino) -> u64 {
        if ino == self.root { ROOT } else { ino.0.into() }
    }

    fn entry(&self, stat: &Stat, name_validity: Duration, attr_validity: Duration) -> wire::EntryOut {
        wire::EntryOut {
            node: self.node(stat.ino),
            generation: stat.generation.into(),
            name_valid_s: name_validity.as_secs(),
            attr_valid_s: attr_validity.as_secs(),
            attr_valid_ns: attr_validity.subsec_nanos(),
            attr: attr(stat, self.block_bytes),
            ..Default::default()
        }
    }

    fn put_entry(&self, dir: Ino, stat: &Stat, out: &mut Output) {
        out.put(&self.entry(stat, self.cache.name_validity(dir), self.cache.attr_validity(stat)));
    }

    fn put_statx(&self, stat: &Stat, out: &mut Output) {
        let time = |time: Time| wire::StatxTime {
            seconds: time.seconds,
            nanoseconds: time.nanoseconds,
            reserved: 0,
        };
        let device = stat.device.unwrap_or(DeviceNumber { major: 0, minor: 0 });
        let basic = attr(stat, self.block_bytes);
        out.put(&wire::StatxOut {
            attr_valid_s: self.cache.attr_validity(stat).as_secs(),
            mask: wire::STATX_BASIC | if stat.crtime.is_some() { wire::STATX_BTIME } else { 0 },
            block_bytes: basic.block_bytes,
            links: basic.links,
            uid: basic.uid,
            gid: basic.gid,
            mode: stat.mode,
            ino: basic.ino,
            size: basic.size,
            blocks: basic.blocks,
            atime: time(stat.atime),
            btime: time(stat.crtime.unwrap_or_default()),
            ctime: time(stat.ctime),
            mtime: time(stat.mtime),
            rdev_major: device.major,
            rdev_minor: device.minor,
            ..Default::default()
        });
    }
}

fn put_attr(stat: &Stat, block_bytes: u32, validity: Duration, out: &mut Output) {
    let (attr_valid_s, attr_valid_ns) = (validity.as_secs(), validity.subsec_nanos());
    let attr = attr(stat, block_bytes);
    out.put(&wire::AttrOut { attr_valid_s, attr_valid_ns, attr, ..Default::default() });
}

fn put_ioctl(answer: &[u8], out: &mut Output) {
    out.put(&wire::IoctlOut::default());
    out.extend(answer);
}

/// Takes the pending answer out, for code that sends it itself or later.
fn take_reply(reply: &mut Option<Reply>) -> Reply {
    reply.take().expect("the request has no answer yet")
}

/// Marks the request as one that has no answer (FORGET).
fn no_reply(reply: &mut Option<Reply>) {
    if let Some(reply) = reply.take() {
        reply.none();
    }
}

/// The kernel's init request.
struct InitRequest {
    minor: u32,
    max_readahead: u32,
    flags: u64,
}

/// The negotiated version and init flags.
struct Negotiated {
    /// Minor protocol version of the kernel.
    minor: u32,
    flags: u64,
}

impl InitRequest {
    fn parse(arguments: &mut Arguments<'_>) -> Answer<InitRequest> {
        let wire::InitIn { minor, max_readahead, flags, .. } = arguments.take()?;
        if minor < wire::MINOR_LEAST {
            eprintln!(
                "flashkit: this kernel is too old: it has FUSE 7.{minor}, and 7.{} is needed",
                wire::MINOR_LEAST
            );
            return Err(Errno::PROTO);
        }
        let mut flags = u64::from(flags);
        if flags & init_flags::INIT_EXT != 0 {
            flags |= u64::from(arguments.take::<wire::InitMoreIn>()?.flags2) << 32;
        }
        Ok(InitRequest { minor, max_readahead, flags })
    }
}

impl Negotiated {
    /// Negotiates: selects the wanted flags from those that the kernel offers.
    fn new(request: &InitRequest, direct_write: bool) -> Negotiated {
        let mut flags = request.flags & WANTED_FLAGS;
        if direct_write {
            // With WRITEBACK_CACHE the kernel maintains times and sizes, also for writes that bypass its
            // cache, whose changes it would miss. With ATOMIC_O_TRUNC a truncating open does not wait for
            // mapped pages under write-back (`fuse_open`), so their data would reappear after it; a
            // truncation by SETATTR waits.
            flags &= !(init_flags::WRITEBACK_CACHE | init_flags::ATOMIC_O_TRUNC);
        }
        if flags & init_flags::HANDLE_KILLPRIV_V2 == 0 {
            // Without this flag a truncating open does not tell us to drop the set-user-id bits; a truncation
            // by SETATTR does.
            flags &= !init_flags::ATOMIC_O_TRUNC;
        }
        Negotiated { minor: request.minor, flags }
    }
}

/// The answer to the init request.
fn init_answer(request: &InitRequest, flags: u64) -> wire::InitOut {
    wire::InitOut {
        major: wire::MAJOR,
        minor: wire::MINOR,
        max_readahead: request.max_readahead.max(REQUEST_BYTES),
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: BACKGROUND_REQUESTS,
        congestion_threshold: BACKGROUND_REQUESTS / 4 * 3,
        max_write: REQUEST_BYTES,
        time_granularity_ns: 1,
        max_pages: REQUEST_PAGES,
        ..Default::default()
    }
}

/// Arguments of SETXATTR.
struct SetXattr<'a> {
    name: &'a [u8],
    value: &'a [u8],
    mode: XattrMode,
    /// True if setting the ACL clears the set-group-id bit; `None` if the kernel does not say.
    drops_group_id: Option<bool>,
}

impl<'a> SetXattr<'a> {
    fn take(arguments: &mut Arguments<'a>, with_more: bool) -> Answer<SetXattr<'a>> {
        let wire::SetxattrIn { size, flags } = arguments.take()?;
        let drops_group_id = match with_more {
            true => {
                let wire::SetxattrMoreIn { setxattr_flags, .. } = arguments.take()?;
                Some(setxattr_flags & wire::SETXATTR_ACL_KILL_SGID != 0)
            }
            false => None,
        };
        let (name, value) = (arguments.name()?, arguments.bytes(size)?);
        Ok(SetXattr { name, value, mode: xattr_mode(flags)?, drops_group_id })
    }
}

fn change(asked: &wire::SetattrIn) -> Change {
    let has = |bit: u32| asked.valid & bit != 0;
    let time = |given: u32, now: u32, seconds: i64, nanoseconds: u32| match (has(given), has(now)) {
        (_, true) => Some(crate::clock::now()),
        (true, false) => Some(Time { seconds, nanoseconds }),
        (false, false) => None,
    };
    let set = SetAttr {
        permissions: has(valid::MODE).then_some(asked.mode as u16 & 0o7777),
        uid: has(valid::UID).then_some(asked.uid),
        gid: has(valid::GID).then_some(asked.gid),
        atime: time(valid::ATIME, valid::ATIME_NOW, asked.atime, asked.atime_nanoseconds),
        mtime: time(valid::MTIME, valid::MTIME_NOW, asked.mtime, asked.mtime_nanoseconds),
        ctime: time(valid::CTIME, 0, asked.ctime, asked.ctime_nanoseconds),
        ..SetAttr::default()
    };
    Change {
        size: has(valid::SIZE).then_some(asked.size),
        drops_privilege: has(valid::KILL_SUIDGID),
        times: times_from(asked),
        set,
    }
}

/// Returns the origin of the times of a SETATTR. With WRITEBACK_CACHE the kernel maintains the times of
/// regular files and sends explicit values even for "now"; in that case all of them are equal.
fn times_from(asked: &wire::SetattrIn) -> TimesFrom {
    let has = |bits: u32| asked.valid & bits == bits;
    let is_status = asked.mtime == asked.ctime && asked.mtime_nanoseconds == asked.ctime_nanoseconds;
    let mtime_is_now = has(valid::MTIME | valid::MTIME_NOW) || has(valid::MTIME | valid::CTIME) && is_status;
    match (has(valid::ATIME), has(valid::ATIME_NOW)) {
        (true, true) if mtime_is_now => TimesFrom::Now,
        (true, _) => TimesFrom::Caller,
        (false, _) if !has(valid::MTIME) || has(valid::SIZE) => TimesFrom::Elsewhere,
        // The kernel flushes times through a handle open for writing (`fuse_write_inode`); no system call
        // that sets times does.
        (false, _) if has(valid::CTIME | valid::HANDLE) => TimesFrom::Elsewhere,
        (false, _) if has(valid::CTIME) => TimesFrom::CallerOrCache,
        (false, _) => TimesFrom::Caller,
    }
}

fn open_mode(flags: u32, open_flags: u32) -> OpenMode {
    let flags = OFlags::from_bits_retain(flags);
    OpenMode {
        write: flags.intersects(OFlags::WRONLY | OFlags::RDWR),
        // For the flags ioctls the kernel opens the file itself, without O_LARGEFILE
        // (`fuse_priv_ioctl_prepare`). A 32-bit program without large-file support looks the same.
        only_reads: !flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC)
            && flags.contains(OFlags::LARGEFILE),
        keeps_atime: flags.contains(OFlags::NOATIME),
        append: flags.contains(OFlags::APPEND),
        truncate: flags.contains(OFlags::TRUNC),
        drops_privilege: open_flags & wire::OPEN_KILL_SUIDGID != 0,
    }
}

fn xattr_mode(flags: u32) -> Answer<XattrMode> {
    match flags {
        0 => Ok(XattrMode::Set),
        1 => Ok(XattrMode::Create),
        2 => Ok(XattrMode::Replace),
        3 => Ok(XattrMode::CreateAndReplace),
        _ => Err(Errno::INVAL),
    }
}

/// Encodes a value or list of extended attributes, or only its length if the caller's buffer size is 0.
fn put_xattr(bytes: &[u8], room: u32, out: &mut Output) -> Answer<()> {
    match room {
        0 => out.put(&wire::GetxattrOut { size: bytes.len() as u32, padding: 0 }),
        room if bytes.len() <= room as usize => out.extend(bytes),
        _ => return Err(Errno::RANGE),
    }
    Ok(())
}

/// Bytes of one encoded directory entry, including padding.
fn dirent_bytes(name: &[u8]) -> usize {
    (size_of::<wire::Dirent>() + name.len()).next_multiple_of(8)
}

fn put_dirent(ino: Ino, next: u64, kind: Option<FileType>, name: &[u8], out: &mut Output) {
    // Kinds of readdir(3) are the type bits of a mode; 0 is unknown.
    let kind = kind.map_or(0, |kind| u32::from(kind.mode_bits() >> 12));
    out.put(&wire::Dirent { ino: ino.0.into(), next, name_bytes: name.len() as u32, kind });
    out.extend(name);
    let end = dirent_bytes(name) - size_of::<wire::Dirent>() - name.len();
    out.extend(&[0; 8][..end]);
}

fn attr(stat: &Stat, block_bytes: u32) -> wire::Attr {
    wire::Attr {
        ino: stat.ino.0.into(),
        size: stat.size,
        blocks: stat.sectors,
        atime: stat.atime.seconds,
        mtime: stat.mtime.seconds,
        ctime: stat.ctime.seconds,
        atime_nanoseconds: stat.atime.nanoseconds,
        mtime_nanoseconds: stat.mtime.nanoseconds,
        ctime_nanoseconds: stat.ctime.nanoseconds,
        mode: stat.mode.into(),
        links: stat.links,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.device.map_or(0, device_to_kernel),
        block_bytes,
        flags: 0,
    }
}

/// Decodes a device number from the 32 bits that the kernel passes (`new_decode_dev`).
fn device_from_kernel(number: u32) -> DeviceNumber {
    DeviceNumber { major: number >> 8 & 0xFFF, minor: number & 0xFF | number >> 12 & 0xF_FF00 }
}

fn device_to_kernel(device: DeviceNumber) -> u32 {
    device.minor & 0xFF | (device.major & 0xFFF) << 8 | (device.minor & 0xF_FF00) << 12
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_both_ways() {
        for (major, minor) in [(0, 0), (8, 1), (259, 70_000), (4095, (1 << 20) - 1)] {
            let device = DeviceNumber { major, minor };
            assert_eq!(device_from_kernel(device_to_kernel(device)), device);
        }
        assert_eq!(device_to_kernel(DeviceNumber { major: 8, minor: 1 }), 0x801);
    }

    #[test]
    fn entries_of_listings_are_padded() {
        for name in [&b"a"[..], b"12345678", b"a name that is longer"] {
            let mut out = Output::new(0);
            put_dirent(Ino(5), 9, Some(FileType::Directory), name, &mut out);
            assert_eq!(out.bytes().len(), dirent_bytes(name));
            assert_eq!(out.bytes()[20], 4, "DT_DIR");
        }
    }

    /// Parses an init request as a kernel of this minor version sends it.
    fn request(minor: u32, flags: u32, more: &[u32]) -> Answer<InitRequest> {
        let words = [&[7, minor, 128 << 10, flags], more].concat();
        let bytes: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
        InitRequest::parse(&mut Arguments(&bytes))
    }

    #[test]
    fn flags_that_the_kernel_does_not_offer_are_not_requested() {
        let both = (init_flags::WRITEBACK_CACHE | 1 << 1) as u32;
        assert_eq!(
            Negotiated::new(&request(30, both, &[]).unwrap(), false).flags,
            init_flags::WRITEBACK_CACHE
        );
        let taken = |flags| Negotiated::new(&InitRequest { minor: 36, max_readahead: 0, flags }, false).flags;
        assert_eq!(taken(0), 0);
        let direct =
            Negotiated::new(&InitRequest { minor: 36, max_readahead: 0, flags: u64::MAX }, true).flags;
        assert_eq!(direct, WANTED_FLAGS & !(init_flags::WRITEBACK_CACHE | init_flags::ATOMIC_O_TRUNC));
        assert_eq!(taken(u64::MAX), WANTED_FLAGS);
        assert_eq!(taken(init_flags::ATOMIC_O_TRUNC), 0, "privileges would stay");
    }

    #[test]
    fn old_and_new_kernels_are_understood() {
        // The request has 16 bytes up to Linux 5.16 (7.35), and 64 since.
        for minor in [23, 31, 34, 35] {
            let InitRequest { max_readahead, flags, .. } = request(minor, 1 << 5, &[]).unwrap();
            assert_eq!((max_readahead, flags), (128 << 10, 1 << 5), "7.{minor}");
        }
        let mut more = [0; 12];
        more[0] = 1 << 3;
        let newest = request(45, init_flags::INIT_EXT as u32 | 1, &more).unwrap();
        assert_eq!(newest.flags, init_flags::INIT_EXT | 1 | 1 << 35);
        assert_eq!(request(36, 1, &more).unwrap().flags, 1, "flags that are not announced do not count");
        assert_eq!(request(36, init_flags::INIT_EXT as u32, &[]).err(), Some(Errno::INVAL));
        assert_eq!(request(22, 1, &[]).err(), Some(Errno::PROTO));
    }

    #[test]
    fn attributes_are_set_by_old_and_new_kernels() {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let rest = b"user.comment\0abc";
        let old = [&words(&[3, 1])[..], rest].concat();
        let new = [&words(&[3, 1, 1, 0])[..], rest].concat();
        for (bytes, with_more, drops_group_id) in [(old, false, None), (new, true, Some(true))] {
            let asked = SetXattr::take(&mut Arguments(&bytes), with_more).unwrap();
            assert_eq!((asked.name, asked.value), (&b"user.comment"[..], &b"abc"[..]));
            assert_eq!((asked.mode, asked.drops_group_id), (XattrMode::Create, drops_group_id));
        }
        assert_eq!([xattr_mode(3), xattr_mode(4)], [Ok(XattrMode::CreateAndReplace), Err(Errno::INVAL)]);
    }
}
