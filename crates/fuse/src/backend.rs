//! Requests of the kernel become calls of [`FileSystem`], and what comes of them becomes answers.
//!
//! *Caching*: nobody else changes the volume, so the kernel may keep names and attributes for long. It must not keep
//! attributes of files that are open for writing, or not for long: it does not count their blocks, and asking before
//! write(2) is how we know who writes, and say that what was written before could not be kept. Nor names of casefolded
//! directories, where one name has several spellings.

use std::{
    io,
    path::Path,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use block::FileDevice;
use f2fs::{
    format::{FileType, inode::DeviceNumber},
    units::{Ino, Time},
    volume::{DirEntry, SetAttr, Stat, XattrMode},
};
use rustix::fs::{OFlags, RenameFlags};

use crate::{
    Errno, FileSystem, MountOptions,
    connection::{Connection, How, Mounter, READ_BYTES, Reply},
    fault,
    file_system::{Answer, Caller, Change, OpenMode, TimesFrom, WriteMode},
    ioctl::Request,
    mounts,
    passage::Passage,
    protocol::{self as wire, Arguments, InHeader, Output, can, opcode, opened, valid},
    write_back::WriteBack,
};

/// How long the kernel may keep what it was told; see the module.
const KEPT: Duration = Duration::from_secs(3600);
const NOT_KEPT: Duration = Duration::ZERO;
/// How long who writes may keep what was told last: asking before each of many small writes would cost more than the
/// writes, and in this time the kernel takes less than what [counts as short](FileSystem::about_to_write).
const KEPT_WRITING: Duration = Duration::from_millis(10);

/// Bytes of the largest request, and its pages.
const REQUEST_BYTES: u32 = 1 << 20;
const REQUEST_PAGES: u16 = 256;
/// Reads of so many bytes are passed from the image to the kernel where that can be done: for less, two copies cost
/// less than a pipe.
const PASSED_BYTES: u32 = 64 << 10;
/// Threads that answer, at most, however many of them wait for a writer.
const THREADS_MAX: usize = 64;
/// Room for a request's head and arguments.
const HEAD_BYTES: usize = 64 << 10;
/// Requests that the kernel may have under way without anybody waiting for them.
const BACKGROUND_REQUESTS: u16 = 64;
/// The offset in a message about what is old that leaves the content alone.
const ATTRIBUTES_ONLY: i64 = -1;
/// What the kernel calls the root directory.
const ROOT: u64 = 1;

/// What we ask of the kernel, where it can.
const WANTED: u64 = can::ASYNC_READ
    | can::ATOMIC_O_TRUNC
    | can::EXPORT_SUPPORT
    | can::BIG_WRITES
    | can::DONT_MASK
    | can::HAS_IOCTL_DIR
    | can::DO_READDIRPLUS
    | can::READDIRPLUS_AUTO
    | can::ASYNC_DIO
    | can::WRITEBACK_CACHE
    | can::PARALLEL_DIROPS
    | can::POSIX_ACL
    | can::MAX_PAGES
    | can::CACHE_SYMLINKS
    | can::HANDLE_KILLPRIV_V2
    | can::SETXATTR_EXT
    | can::INIT_EXT
    | can::DIRECT_IO_ALLOW_MMAP;

/// Files stay in the kernel's cache when they are closed, and writes past it need not wait for one another there.
const FILE_OPEN: u32 = opened::KEEP_CACHE | opened::PARALLEL_DIRECT_WRITES;
const DIRECTORY_OPEN: u32 = opened::KEEP_CACHE | opened::CACHE_DIR;

/// A mounted file system that does not answer yet.
pub struct Session {
    adapter: Arc<Adapter>,
    threads: usize,
    mounter: Mounter,
}

/// Mounts a file system. It answers once [`Session::run`] runs.
pub fn mount(
    fs: Arc<FileSystem>,
    image: &FileDevice,
    dir: &Path,
    options: &MountOptions,
    source: &str,
) -> io::Result<Session> {
    let (root, (_, block_bytes)) = (fs.root()?, fs.space()?);
    let how = How { source, image, flags: options.mount_flags(), allow_other: options.allow_other };
    let (connection, mounter) = Connection::mount(dir, &how)?;
    let connection = Arc::new(connection);
    let write_back = WriteBack::start(connection.clone(), fs.clone());
    // One thread may wait for the volume while another answers what it waits for; see `WriteBack`.
    let threads =
        options.threads.unwrap_or_else(|| thread::available_parallelism().map_or(4, |n| n.get() * 2));
    let device = block::mounts().ok().and_then(|all| mounts::device_on(&all, dir));
    let (taken, direct_write) = (OnceLock::new(), options.direct_write);
    let adapter =
        Arc::new(Adapter { fs, root, block_bytes, connection, write_back, taken, device, direct_write });
    Ok(Session { adapter, threads: threads.clamp(2, 64), mounter })
}

impl Session {
    /// Who mounted.
    pub fn mounter(&self) -> Mounter {
        self.mounter
    }

    /// The number of the device that the table of mounts shows, where it shows one.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.adapter.device
    }

    /// Answers requests until the file system is unmounted.
    pub fn run(self) -> io::Result<()> {
        let pool =
            Arc::new(Pool { adapter: self.adapter, idle: AtomicUsize::new(0), threads: Mutex::default() });
        (0..self.threads).for_each(|_| pool.clone().start());
        let broke = || io::Error::other("a thread that answers requests panicked");
        let mut ended = Ok(());
        // All are waited for. A thread that starts another is not done before that one is on the list.
        while let Some(thread) = pool.last() {
            ended = ended.and(thread.join().unwrap_or_else(|_| Err(broke())));
        }
        ended
    }
}

/// The threads that answer.
struct Pool {
    adapter: Arc<Adapter>,
    /// Threads that wait for a request.
    idle: AtomicUsize,
    threads: Mutex<Vec<JoinHandle<io::Result<()>>>>,
}

impl Pool {
    fn start(self: Arc<Self>) {
        self.idle.fetch_add(1, Ordering::Relaxed);
        let pool = self.clone();
        let thread = thread::spawn(move || pool.adapter.clone().serve(&pool));
        self.threads.lock().expect("nothing panics under this lock").push(thread);
    }

    fn last(&self) -> Option<JoinHandle<io::Result<()>>> {
        self.threads.lock().expect("nothing panics under this lock").pop()
    }

    /// A thread has a request. Where no other waits for one, all may come to wait for a writer, and readers for them: then
    /// there is one more.
    fn taken(self: &Arc<Self>) {
        let was_last = self.idle.fetch_sub(1, Ordering::Relaxed) == 1;
        if was_last && self.threads.lock().expect("nothing panics under this lock").len() < THREADS_MAX {
            self.clone().start();
        }
    }

    /// A thread is about to wait for a request.
    fn done(&self) {
        self.idle.fetch_add(1, Ordering::Relaxed);
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

/// What a thread answers with.
struct Desk {
    output: Output,
    /// The answer to the request at hand; taken by whoever answers it otherwise than with the output.
    reply: Option<Reply>,
    passage: Passage,
}

struct Adapter {
    fs: Arc<FileSystem>,
    root: Ino,
    /// Bytes of the volume's blocks: what holes are made of, and what reading and writing should be multiples of.
    block_bytes: u32,
    connection: Arc<Connection>,
    write_back: WriteBack,
    /// There once the kernel has said what it can.
    taken: OnceLock<Taken>,
    /// The number of the device that the table of mounts shows.
    device: Option<(u32, u32)>,
    /// Who has opened a file to write to it does so past the kernel's cache, which has what others read or map.
    direct_write: bool,
}

impl Adapter {
    /// Answers until the end of the mount.
    fn serve(&self, pool: &Arc<Pool>) -> io::Result<()> {
        let mut buffer = vec![0; REQUEST_BYTES as usize + HEAD_BYTES];
        let mut desk = Desk {
            output: Output::new(REQUEST_BYTES as usize + HEAD_BYTES),
            reply: None,
            passage: Passage::new(READ_BYTES as usize),
        };
        while let Some((header, arguments)) = self.connection.receive(&mut buffer)? {
            pool.taken();
            desk.output.clear();
            desk.reply = Some(Reply::new(self.connection.clone(), header.unique));
            let handled = fault::contain(|| self.handle(&header, Arguments(arguments), &mut desk));
            let outcome = handled.unwrap_or_else(|fault| {
                self.fs.met_fault(fault);
                Err(Errno::IO)
            });
            if let Some(reply) = desk.reply.take() {
                reply.send(outcome.map(|()| desk.output.bytes()));
            }
            pool.done();
        }
        Ok(())
    }

    fn handle(&self, header: &InHeader, mut arguments: Arguments<'_>, desk: &mut Desk) -> Answer<()> {
        let (fs, ino) = (&*self.fs, self.ino(header.node));
        let caller = Caller { uid: header.uid, gid: header.gid, pid: header.pid };
        let arguments = &mut arguments;
        let Desk { output: out, reply, passage } = desk;
        match header.opcode {
            opcode::INIT => {
                let offer = Offer::take(arguments)?;
                out.put(&init(&offer, self.taken.get_or_init(|| Taken::of(&offer, self.direct_write)).flags));
            }
            opcode::DESTROY => {
                // `umount` returns when this is answered. Of a failure `background` tells.
                fs.unmount().map_err(|_| Errno::IO)?;
            }
            opcode::INTERRUPT => return Err(Errno::NOSYS),
            opcode::FORGET => {
                none(reply);
                fs.forget(ino, arguments.take::<wire::ForgetIn>()?.lookups);
            }
            opcode::BATCH_FORGET => {
                none(reply);
                for _ in 0..arguments.take::<wire::BatchForgetIn>()?.count {
                    let one: wire::ForgetOne = arguments.take()?;
                    fs.forget(self.ino(one.node), one.lookups);
                }
            }
            opcode::LOOKUP => self.lookup(ino, arguments.name()?, out)?,
            opcode::GETATTR => {
                let wire::GetattrIn { getattr_flags, handle, .. } = arguments.take()?;
                // Who has it open for writing may be about to write.
                let writes = getattr_flags & wire::GETATTR_HANDLE != 0 && handle != 0;
                if writes && fs.about_to_write(caller, ino) {
                    let (reply, fs, block_bytes) = (waiting(reply), self.fs.clone(), self.block_bytes);
                    let nodes = self.fs.to_write_back(ino).into_iter().map(|ino| self.node(ino)).collect();
                    self.write_back.then(nodes, reply, move |out| {
                        fs.written_back(ino)?;
                        put_attr(&fs.stat(ino)?, block_bytes, NOT_KEPT, out);
                        Ok(())
                    });
                    return Ok(());
                }
                let stat = fs.stat(ino)?;
                let kept = if writes { KEPT_WRITING } else { attr_kept(fs, &stat) };
                put_attr(&stat, self.block_bytes, kept, out);
            }
            opcode::SETATTR => {
                let change = change(&arguments.take()?);
                let stat = fs.change(caller, ino, &change)?;
                put_attr(&stat, self.block_bytes, attr_kept(fs, &stat), out);
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
                let accessed = fs.open(caller, ino, mode)?;
                if mode.write || accessed {
                    // From now on the kernel is to ask who writes, see the module; and an access that it will not tell
                    // us of is a change that it does not know of. Failing, it has no attributes.
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
                fs.opened_new(made.ino, write);
                // Who makes a file to write to it is known already, and need not be asked for at once.
                let may_write = write && !fs.about_to_write(caller, made.ino);
                let kept = if may_write { KEPT_WRITING } else { attr_kept(fs, &made) };
                out.put(&self.entry(&made, self.name_kept(ino), kept));
                out.put(&self.opened(write));
            }
            opcode::RELEASE => fs.close(ino, arguments.take::<wire::ReleaseIn>()?.handle != 0),
            opcode::RELEASEDIR => {}
            opcode::READ => {
                let wire::ReadIn { offset, size, read_flags, .. } = arguments.take()?;
                let size = size.min(REQUEST_BYTES);
                if read_flags & wire::LOCK_OWNER == 0 {
                    fs.goes_through_cache(ino);
                }
                if size < PASSED_BYTES || !self.pass(ino, offset, size, reply, passage)? {
                    out.fill(size as usize, |room| fs.read(ino, offset, room))?;
                }
            }
            opcode::WRITE => {
                let wire::WriteIn { offset, size, write_flags, flags, .. } = arguments.take()?;
                let is_direct = write_flags & wire::LOCK_OWNER != 0;
                // Of files that we have opened past its cache, the kernel leaves this to us, and syncing.
                let is_ours = is_direct && self.direct_write;
                let how = WriteMode {
                    from_cache: write_flags & wire::WRITE_CACHE != 0,
                    drops_privilege: write_flags & wire::WRITE_KILL_SUIDGID != 0,
                    drops_capabilities: is_ours,
                };
                if !is_direct {
                    fs.goes_through_cache(ino);
                }
                let written = fs.write(caller, ino, offset, arguments.bytes(size)?, how).and_then(|()| {
                    if is_ours && flags & wire::O_DSYNC != 0 {
                        fs.fsync(ino, !OFlags::from_bits_retain(flags).contains(OFlags::SYNC))?;
                    }
                    Ok(wire::WriteOut { size, padding: 0 })
                });
                if is_direct && fs.may_be_in_cache(ino) {
                    // Of asynchronous ones the kernel forgets only what it had before them, and not what it has got
                    // since and may be old. Of the others it does, but we cannot tell. Of those that fail, some of the
                    // data may be there.
                    let part = (offset.try_into().unwrap_or(i64::MAX), size.into());
                    self.write_back.part_then(header.node, part, waiting(reply), move |out| {
                        out.put(&written?);
                        Ok(())
                    });
                } else {
                    out.put(&written?);
                }
            }
            // The kernel writes its cache back before it asks. It stops asking where the first answer is that there is
            // no such request; before Linux 5.9 (so surely before 7.32) it stops writing back then, too.
            opcode::FLUSH if self.taken.get().is_some_and(|taken| taken.minor < 32) => {}
            opcode::FSYNC => {
                fs.fsync(ino, arguments.take::<wire::FsyncIn>()?.fsync_flags & wire::FSYNC_DATA != 0)?;
                if fs.has_writer(ino) {
                    // Now its blocks can be counted. Failing, the kernel keeps nothing of it.
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
                let asked = SetXattr::take(arguments, self.both_can(can::SETXATTR_EXT))?;
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
                if request.protects() && fs.has_writer(ino) {
                    // What was written before can be written back, and afterwards it would be refused.
                    let (reply, fs) = (waiting(reply), self.fs.clone());
                    let (connection, node) = (self.connection.clone(), header.node);
                    self.write_back.then(vec![node], reply, move |out| {
                        put_ioctl(&fs.ioctl(caller, ino, handle != 0, &request)?, out);
                        let _ = connection.invalidate(node, ATTRIBUTES_ONLY);
                        Ok(())
                    });
                    return Ok(());
                }
                put_ioctl(&fs.ioctl(caller, ino, handle != 0, &request)?, out);
                // Flags are attributes, and the kernel does not know that they change others. Failing, it has none.
                let _ = self.connection.invalidate(header.node, ATTRIBUTES_ONLY);
            }
            opcode::FALLOCATE => {
                let wire::FallocateIn { offset, length, mode, .. } = arguments.take()?;
                let first = fs.to_write_back_before_allocating(length);
                if !first.is_empty() {
                    let (reply, fs) = (waiting(reply), self.fs.clone());
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
                    let (reply, fs) = (waiting(reply), self.fs.clone());
                    self.write_back.then(vec![header.node], reply, move |out| {
                        out.put(&seek(&fs, ino, offset, whence)?);
                        Ok(())
                    });
                } else {
                    out.put(&seek(fs, ino, offset, whence)?);
                }
            }
            opcode::COPY_FILE_RANGE => {
                /// One request copies so much, so that the caller can be interrupted.
                const MOST: u64 = 64 << 20;
                let wire::CopyFileRangeIn { offset_in, node_out, offset_out, length, .. } =
                    arguments.take()?;
                let (from, to) = ((ino, offset_in), (self.ino(node_out), offset_out));
                let size = fs.copy(caller, from, to, length.min(MOST))? as u32;
                out.put(&wire::WriteOut { size, padding: 0 });
            }
            // The kernel then does without, where it can.
            _ => return Err(Errno::NOSYS),
        }
        Ok(())
    }

    /// Answers a read with what lies in the image as it is; whether that could be done.
    fn pass(
        &self,
        ino: Ino,
        offset: u64,
        size: u32,
        reply: &mut Option<Reply>,
        passage: &mut Passage,
    ) -> Answer<bool> {
        let mut waits = waiting(reply);
        let passed = self.fs.pass(ino, offset, size.into(), |file, ranges| waits.pass(passage, file, ranges));
        if passed != Ok(true) {
            *reply = Some(waits);
        }
        passed
    }

    fn lookup(&self, dir: Ino, name: &[u8], out: &mut Output) -> Answer<()> {
        match self.fs.lookup(dir, name) {
            Err(Errno::NOENT) if self.fs.absence_lasts() => {
                // Node 0: there is no such name, and the kernel may remember that.
                out.put(&wire::EntryOut { name_kept_s: KEPT.as_secs(), ..Default::default() });
            }
            found => self.put_entry(dir, &found?, out),
        }
        Ok(())
    }

    fn list(&self, dir: Ino, read: &wire::ReadIn, out: &mut Output) -> Answer<()> {
        let room = read.size as usize;
        self.fs.list(dir, read.offset, |volume, entry| {
            // Nothing else shows in a listing of what an inode says, so a damaged one hides nobody.
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
        let name_kept = self.name_kept(dir);
        let fits = |entry: &DirEntry| {
            let left = room.checked_sub(size_of::<wire::EntryOut>() + dirent_bytes(&entry.name));
            left.map(|left| room = left).is_some()
        };
        self.fs.list_with_facts(dir, read.offset, fits, |entry, stat| {
            // Without facts (node 0) the kernel lists the name alone, and asks for it when somebody wants to know more.
            let facts = stat.map(|stat| self.entry(stat, name_kept, attr_kept(&self.fs, stat)));
            out.put(&facts.unwrap_or_default());
            let kind = stat.map(|stat| stat.kind).or(entry.kind);
            put_dirent(entry.ino, entry.next_cookie, kind, &entry.name, out);
        })
    }

    /// Whether the file system may not be changed any more (`mount -o remount,ro`). The kernel sees to that itself, but for
    /// requests of which it does not know that they change something.
    fn is_remounted_read_only(&self) -> bool {
        let is_read_only = |device| block::mounts().is_ok_and(|all| mounts::is_read_only(&all, device));
        self.device.is_some_and(is_read_only)
    }

    /// What the kernel is told of a file that it opens.
    fn opened(&self, write: bool) -> wire::OpenOut {
        let open_flags = if self.direct_write && write { FILE_OPEN | opened::DIRECT_IO } else { FILE_OPEN };
        wire::OpenOut { handle: write.into(), open_flags, padding: 0 }
    }

    fn both_can(&self, what: u64) -> bool {
        self.taken.get().is_some_and(|taken| taken.flags & what != 0)
    }

    fn ino(&self, node: u64) -> Ino {
        match node {
            ROOT => self.root,
            // Numbers come from us, and ours have 32 bits; node 0 is nobody's.
            other => Ino(u32::try_from(other).unwrap_or(0)),
        }
    }

    fn node(&self, ino: Ino) -> u64 {
        if ino == self.root { ROOT } else { ino.0.into() }
    }

    fn name_kept(&self, dir: Ino) -> Duration {
        if self.fs.names_are_exact(dir) { KEPT } else { NOT_KEPT }
    }

    fn entry(&self, stat: &Stat, name_kept: Duration, attr_kept: Duration) -> wire::EntryOut {
        wire::EntryOut {
            node: self.node(stat.ino),
            generation: stat.generation.into(),
            name_kept_s: name_kept.as_secs(),
            attr_kept_s: attr_kept.as_secs(),
            attr_kept_ns: attr_kept.subsec_nanos(),
            attr: attr(stat, self.block_bytes),
            ..Default::default()
        }
    }

    fn put_entry(&self, dir: Ino, stat: &Stat, out: &mut Output) {
        out.put(&self.entry(stat, self.name_kept(dir), attr_kept(&self.fs, stat)));
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
            attr_kept_s: attr_kept(&self.fs, stat).as_secs(),
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

fn attr_kept(fs: &FileSystem, stat: &Stat) -> Duration {
    let written = stat.kind == FileType::Regular && fs.has_writer(stat.ino);
    if written { NOT_KEPT } else { KEPT }
}

fn put_attr(stat: &Stat, block_bytes: u32, kept: Duration, out: &mut Output) {
    let (attr_kept_s, attr_kept_ns) = (kept.as_secs(), kept.subsec_nanos());
    let attr = attr(stat, block_bytes);
    out.put(&wire::AttrOut { attr_kept_s, attr_kept_ns, attr, ..Default::default() });
}

fn put_ioctl(answer: &[u8], out: &mut Output) {
    out.put(&wire::IoctlOut::default());
    out.extend(answer);
}

/// The answer that is still to be given.
fn waiting(reply: &mut Option<Reply>) -> Reply {
    reply.take().expect("nobody has answered yet")
}

/// Such requests have no answer.
fn none(reply: &mut Option<Reply>) {
    if let Some(reply) = reply.take() {
        reply.none();
    }
}

/// What the kernel says of itself in its first request.
struct Offer {
    minor: u32,
    max_readahead: u32,
    flags: u64,
}

/// What both sides can do.
struct Taken {
    /// Of the kernel's version.
    minor: u32,
    flags: u64,
}

impl Offer {
    fn take(arguments: &mut Arguments<'_>) -> Answer<Offer> {
        let wire::InitIn { minor, max_readahead, flags, .. } = arguments.take()?;
        if minor < wire::MINOR_LEAST {
            eprintln!("flashkit: this kernel is too old: its FUSE is 7.{minor}, not 7.{}", wire::MINOR_LEAST);
            return Err(Errno::PROTO);
        }
        let mut flags = u64::from(flags);
        if flags & can::INIT_EXT != 0 {
            flags |= u64::from(arguments.take::<wire::InitMoreIn>()?.flags2) << 32;
        }
        Ok(Offer { minor, max_readahead, flags })
    }
}

impl Taken {
    /// What we take of what the kernel offers.
    fn of(offer: &Offer, direct_write: bool) -> Taken {
        let mut flags = offer.flags & WANTED;
        if direct_write {
            // With it the kernel keeps times and sizes, also those of writes that it does not take into its cache, and
            // does not count these. Without it a truncation by opening does not wait for what is just being written
            // back of a mapping, which would come back (`fuse_open`). As a request of its own it does.
            flags &= !(can::WRITEBACK_CACHE | can::ATOMIC_O_TRUNC);
        }
        if flags & can::HANDLE_KILLPRIV_V2 == 0 {
            // Nobody would tell us that a truncation by opening takes privileges away. As a request of its own it does.
            flags &= !can::ATOMIC_O_TRUNC;
        }
        Taken { minor: offer.minor, flags }
    }
}

/// The answer to the first request.
fn init(offer: &Offer, taken: u64) -> wire::InitOut {
    wire::InitOut {
        major: wire::MAJOR,
        minor: wire::MINOR,
        max_readahead: offer.max_readahead.max(REQUEST_BYTES),
        flags: taken as u32,
        flags2: (taken >> 32) as u32,
        max_background: BACKGROUND_REQUESTS,
        congestion_threshold: BACKGROUND_REQUESTS / 4 * 3,
        max_write: REQUEST_BYTES,
        time_granularity_ns: 1,
        max_pages: REQUEST_PAGES,
        ..Default::default()
    }
}

/// An extended attribute to be set.
struct SetXattr<'a> {
    name: &'a [u8],
    value: &'a [u8],
    mode: XattrMode,
    /// Whether an access list takes the set-group-id bit away, where the kernel says it.
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

/// Where times come from. Of a regular file, of which it keeps the times itself, the kernel says the new ones even where
/// it is asked for now; but then all are alike.
fn times_from(asked: &wire::SetattrIn) -> TimesFrom {
    let has = |bits: u32| asked.valid & bits == bits;
    let is_status = asked.mtime == asked.ctime && asked.mtime_nanoseconds == asked.ctime_nanoseconds;
    let mtime_is_now = has(valid::MTIME | valid::MTIME_NOW) || has(valid::MTIME | valid::CTIME) && is_status;
    match (has(valid::ATIME), has(valid::ATIME_NOW)) {
        (true, true) if mtime_is_now => TimesFrom::Now,
        (true, _) => TimesFrom::Caller,
        (false, _) if !has(valid::MTIME) || has(valid::SIZE) => TimesFrom::Elsewhere,
        // The kernel writes back by what is open for writing (`fuse_write_inode`), and no call that sets times does.
        (false, _) if has(valid::CTIME | valid::HANDLE) => TimesFrom::Elsewhere,
        (false, _) if has(valid::CTIME) => TimesFrom::CallerOrCache,
        (false, _) => TimesFrom::Caller,
    }
}

fn open_mode(flags: u32, open_flags: u32) -> OpenMode {
    let flags = OFlags::from_bits_retain(flags);
    OpenMode {
        write: flags.intersects(OFlags::WRONLY | OFlags::RDWR),
        // The kernel opens a file itself when it is asked for flags, and does not say then that it may be large
        // (`fuse_priv_ioctl_prepare`). A program of 32 bits that knows no large files looks the same.
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

/// A value or list of extended attributes, or only its length where the caller has no room.
fn put_xattr(bytes: &[u8], room: u32, out: &mut Output) -> Answer<()> {
    match room {
        0 => out.put(&wire::GetxattrOut { size: bytes.len() as u32, padding: 0 }),
        room if bytes.len() <= room as usize => out.extend(bytes),
        _ => return Err(Errno::RANGE),
    }
    Ok(())
}

/// Bytes of an entry of a listing.
fn dirent_bytes(name: &[u8]) -> usize {
    (size_of::<wire::Dirent>() + name.len()).next_multiple_of(8)
}

fn put_dirent(ino: Ino, next: u64, kind: Option<FileType>, name: &[u8], out: &mut Output) {
    // The kinds of readdir(3) are those of a mode, or 0 where nobody knows.
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

/// A device number from the 32 bits that the kernel passes (`new_decode_dev`).
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
    fn entries_of_listings_are_filled_up() {
        for name in [&b"a"[..], b"12345678", b"a name that is longer"] {
            let mut out = Output::new(0);
            put_dirent(Ino(5), 9, Some(FileType::Directory), name, &mut out);
            assert_eq!(out.bytes().len(), dirent_bytes(name));
            assert_eq!(out.bytes()[20], 4, "DT_DIR");
        }
    }

    /// The first request as a kernel of this minor version sends it.
    fn offer(minor: u32, flags: u32, more: &[u32]) -> Answer<Offer> {
        let words = [&[7, minor, 128 << 10, flags], more].concat();
        let bytes: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
        Offer::take(&mut Arguments(&bytes))
    }

    #[test]
    fn what_the_kernel_does_not_offer_is_not_taken() {
        let both = (can::WRITEBACK_CACHE | 1 << 1) as u32;
        assert_eq!(Taken::of(&offer(30, both, &[]).unwrap(), false).flags, can::WRITEBACK_CACHE);
        let taken = |flags| Taken::of(&Offer { minor: 36, max_readahead: 0, flags }, false).flags;
        assert_eq!(taken(0), 0);
        let direct = Taken::of(&Offer { minor: 36, max_readahead: 0, flags: u64::MAX }, true).flags;
        assert_eq!(direct, WANTED & !(can::WRITEBACK_CACHE | can::ATOMIC_O_TRUNC));
        assert_eq!(taken(u64::MAX), WANTED);
        assert_eq!(taken(can::ATOMIC_O_TRUNC), 0, "privileges would stay");
    }

    #[test]
    fn kernels_of_each_age_are_understood() {
        // The request had 16 bytes up to Linux 5.16 (7.35), and has 64 since.
        for minor in [23, 31, 34, 35] {
            let Offer { max_readahead, flags, .. } = offer(minor, 1 << 5, &[]).unwrap();
            assert_eq!((max_readahead, flags), (128 << 10, 1 << 5), "7.{minor}");
        }
        let mut more = [0; 12];
        more[0] = 1 << 3;
        let newest = offer(45, can::INIT_EXT as u32 | 1, &more).unwrap();
        assert_eq!(newest.flags, can::INIT_EXT | 1 | 1 << 35);
        assert_eq!(offer(36, 1, &more).unwrap().flags, 1, "what is not announced does not count");
        assert_eq!(offer(36, can::INIT_EXT as u32, &[]).err(), Some(Errno::INVAL));
        assert_eq!(offer(22, 1, &[]).err(), Some(Errno::PROTO));
    }

    #[test]
    fn attributes_are_set_by_kernels_of_each_age() {
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
