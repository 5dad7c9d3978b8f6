//! The FUSE library, and nothing else: requests in its types become calls of [`FileSystem`], answers become its
//! replies. Another library takes another module like this one.
//!
//! *Caching*: nobody else changes the volume, so the kernel may keep names and attributes for long. It must not keep
//! attributes of files that are open for writing, whose blocks it does not count, nor names of casefolded
//! directories, where one name has several spellings.

use std::{
    cell::RefCell,
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::{Arc, Mutex, OnceLock, mpsc},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use f2fs::{
    format::{FileType, inode::DeviceNumber},
    units::{Ino, Time},
    volume::{RenameMode, SetAttr, Stat, XattrMode},
};
use fuser::{
    FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner,
    MountOption, Notifier, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, SessionACL, TimeOrNow, WriteFlags,
};
use rustix::fs::OFlags;

use crate::{
    Errno, FileSystem, MountOptions,
    file_system::{Answer, Caller, Change, OpenMode},
};

/// How long the kernel may keep what it was told; see the module.
const KEPT: Duration = Duration::from_secs(3600);
const NOT_KEPT: Duration = Duration::ZERO;

/// Bytes of the largest write request.
const WRITE_BYTES: u32 = 1 << 20;
/// Requests that the kernel may have under way without anybody waiting for them.
const BACKGROUND_REQUESTS: u16 = 64;
/// What the kernel calls the root directory.
const FUSE_ROOT: u64 = INodeNo::ROOT.0;

/// What we ask of the kernel, where it can. Not `FUSE_HANDLE_KILLPRIV`: its second version is the exact one.
const WANTED: [InitFlags; 11] = [
    InitFlags::FUSE_WRITEBACK_CACHE,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_HAS_IOCTL_DIR,
];

/// A mounted file system that does not answer yet.
pub struct Session {
    inner: fuser::Session<Adapter>,
}

/// Ends a mount from another thread.
pub struct Unmounter(fuser::SessionUnmounter);

/// Mounts a file system. It answers once [`Session::run`] runs.
pub fn mount(fs: Arc<FileSystem>, dir: &Path, options: &MountOptions, source: &str) -> io::Result<Session> {
    let either = |condition: bool, yes: MountOption, no: MountOption| if condition { yes } else { no };
    let mut config = fuser::Config::default();
    config.mount_options = vec![
        MountOption::FSName(source.into()),
        // The library keeps its own option for the subtype from the kernel.
        MountOption::CUSTOM("subtype=flashkit".into()),
        MountOption::DefaultPermissions,
        either(options.read_only, MountOption::RO, MountOption::RW),
        either(options.dev, MountOption::Dev, MountOption::NoDev),
        either(options.suid, MountOption::Suid, MountOption::NoSuid),
        either(options.exec, MountOption::Exec, MountOption::NoExec),
        either(options.sync, MountOption::Sync, MountOption::Async),
    ];
    if options.dirsync {
        config.mount_options.push(MountOption::DirSync);
    }
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    // One thread may wait for the volume while another answers what it waits for; see `Seeks`.
    let threads =
        options.threads.unwrap_or_else(|| thread::available_parallelism().map_or(4, |n| n.get() * 2));
    config.n_threads = Some(threads.clamp(2, 64));
    config.clone_fd = true;

    let notifier = Arc::new(OnceLock::new());
    let root = fs.root()?;
    let seeks = Seeks::start(fs.clone(), notifier.clone());
    let inner = fuser::Session::new(Adapter { fs, root, seeks }, dir, &config)?;
    // Nothing was answered yet, so nobody has looked for it.
    let _ = notifier.set(inner.notifier());
    Ok(Session { inner })
}

impl Session {
    /// What ends the mount.
    pub fn unmounter(&mut self) -> Unmounter {
        Unmounter(self.inner.unmount_callable())
    }

    /// Answers requests until the file system is unmounted.
    pub fn run(self) -> io::Result<()> {
        self.inner.run()
    }
}

impl Unmounter {
    /// Unmounts, which lets [`Session::run`] return.
    pub fn unmount(&mut self) -> io::Result<()> {
        self.0.unmount()
    }
}

/// `SEEK_DATA` and `SEEK_HOLE` in files that are open for writing. The kernel asks without writing its cache back
/// first, so what we know is too old; telling it to drop the cache makes it write. It waits for these writes to be
/// answered, hence the thread of its own.
struct Seeks {
    queue: Mutex<mpsc::Sender<Seek>>,
}

struct Seek {
    ino: Ino,
    number: INodeNo,
    offset: u64,
    whence: Whence,
    reply: ReplyLseek,
}

#[derive(Clone, Copy)]
enum Whence {
    Data,
    Hole,
}

impl Seeks {
    fn start(fs: Arc<FileSystem>, notifier: Arc<OnceLock<Notifier>>) -> Seeks {
        let (queue, jobs) = mpsc::channel();
        thread::spawn(move || {
            for Seek { ino, number, offset, whence, reply } in jobs {
                if let Some(notifier) = notifier.get() {
                    // Failing, it has nothing in its cache.
                    let _ = notifier.inval_inode(number, 0, 0);
                }
                answer_seek(&fs, ino, offset, whence, reply);
            }
        });
        Seeks { queue: Mutex::new(queue) }
    }

    fn push(&self, job: Seek) {
        let queue = self.queue.lock().expect("nothing panics under this lock");
        // Should the thread be gone, the reply says so by being dropped.
        let _ = queue.send(job);
    }
}

fn answer_seek(fs: &FileSystem, ino: Ino, offset: u64, whence: Whence, reply: ReplyLseek) {
    let found = match whence {
        Whence::Data => fs.seek_data(ino, offset),
        Whence::Hole => fs.seek_hole(ino, offset),
    };
    match found {
        Ok(at) => reply.offset(at as i64),
        Err(errno) => reply.error(out(errno)),
    }
}

struct Adapter {
    fs: Arc<FileSystem>,
    root: Ino,
    seeks: Seeks,
}

thread_local! {
    /// Where reads go before they are answered; one a thread, so that it is zeroed once.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Adapter {
    fn ino(&self, number: INodeNo) -> Ino {
        match number.0 {
            FUSE_ROOT => self.root,
            // Numbers come from us, and ours have 32 bits; node 0 is nobody's.
            other => Ino(u32::try_from(other).unwrap_or(0)),
        }
    }

    fn number(&self, ino: Ino) -> INodeNo {
        INodeNo(if ino == self.root { FUSE_ROOT } else { ino.0.into() })
    }

    /// What the kernel is told of an inode. It goes by the number in here.
    fn attr(&self, stat: &Stat) -> FileAttr {
        FileAttr { ino: self.number(stat.ino), ..attr(stat) }
    }

    fn attr_kept(&self, stat: &Stat) -> Duration {
        let written = stat.kind == FileType::Regular && self.fs.has_writer(stat.ino);
        if written { NOT_KEPT } else { KEPT }
    }

    fn name_kept(&self, dir: Ino) -> Duration {
        if self.fs.names_are_exact(dir) { KEPT } else { NOT_KEPT }
    }

    fn entry(&self, dir: INodeNo, made: Answer<Stat>, reply: ReplyEntry) {
        match made {
            Ok(stat) => {
                let name_kept = self.name_kept(self.ino(dir));
                let generation = Generation(stat.generation.into());
                reply.entry_with_ttls(&self.attr_kept(&stat), &name_kept, &self.attr(&stat), generation);
            }
            Err(errno) => reply.error(out(errno)),
        }
    }
}

fn empty(done: Answer<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(out(errno)),
    }
}

/// A value or list of extended attributes, or only its length where the caller has no room.
fn xattr(found: Answer<Vec<u8>>, room: u32, reply: ReplyXattr) {
    match found {
        Ok(bytes) if room == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() <= room as usize => reply.data(&bytes),
        Ok(_) => reply.error(out(Errno::RANGE)),
        Err(errno) => reply.error(out(errno)),
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in WANTED {
            // What the kernel cannot do, we do without.
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_write(WRITE_BYTES);
        let _ = config.set_max_background(BACKGROUND_REQUESTS);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let dir = self.ino(parent);
        match self.fs.lookup(dir, name.as_bytes()) {
            Err(Errno::NOENT) if self.fs.names_are_exact(dir) => {
                // Number 0: there is no such name, and the kernel may remember that.
                reply.entry(&KEPT, &FileAttr { ino: INodeNo(0), ..no_attr() }, Generation(0));
            }
            found => self.entry(parent, found, reply),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.fs.forget(self.ino(ino), nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.fs.stat(self.ino(ino)) {
            Ok(stat) => reply.attr(&self.attr_kept(&stat), &attr(&stat)),
            Err(errno) => reply.error(out(errno)),
        }
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let time = |time: TimeOrNow| match time {
            TimeOrNow::SpecificTime(time) => time_from_kernel(time),
            TimeOrNow::Now => time_from_kernel(SystemTime::now()),
        };
        let set = SetAttr {
            permissions: mode.map(|mode| mode as u16 & 0o7777),
            uid,
            gid,
            atime: atime.map(time),
            mtime: mtime.map(time),
            ctime: ctime.map(time_from_kernel),
            ..SetAttr::default()
        };
        match self.fs.change(caller(req), self.ino(ino), &Change { size, set }) {
            Ok(stat) => reply.attr(&self.attr_kept(&stat), &attr(&stat)),
            Err(errno) => reply.error(out(errno)),
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        match self.fs.read_link(self.ino(ino)) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(out(errno)),
        }
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let (dir, device) = (self.ino(parent), Some(device_from_kernel(rdev)));
        let made = self.fs.create(caller(req), dir, name.as_bytes(), mode as u16, umask as u16, device);
        self.entry(parent, made, reply);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let mode = FileType::Directory.mode_bits() | mode as u16 & 0o7777;
        let made = self.fs.create(caller(req), self.ino(parent), name.as_bytes(), mode, umask as u16, None);
        self.entry(parent, made, reply);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.fs.unlink(self.ino(parent), name.as_bytes()), reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.fs.rmdir(self.ino(parent), name.as_bytes()), reply);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        let made = self.fs.symlink(caller(req), self.ino(parent), name.as_bytes(), target);
        self.entry(parent, made, reply);
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            flags if flags.is_empty() => RenameMode::Replace,
            RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
            RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return reply.error(out(Errno::INVAL)),
        };
        let (from, to) = (self.ino(parent), self.ino(newparent));
        empty(self.fs.rename(from, name.as_bytes(), to, newname.as_bytes(), mode), reply);
    }

    fn link(&self, _req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let made = self.fs.link(self.ino(ino), self.ino(newparent), newname.as_bytes());
        self.entry(newparent, made, reply);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let mode = open_mode(flags.0);
        match self.fs.open(caller(req), self.ino(ino), mode) {
            Ok(()) => reply.opened(FileHandle(mode.write.into()), FILE_OPEN),
            Err(errno) => reply.error(out(errno)),
        }
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let mode = FileType::Regular.mode_bits() | mode as u16 & 0o7777;
        match self.fs.create(caller(req), self.ino(parent), name.as_bytes(), mode, umask as u16, None) {
            Ok(stat) => {
                let write = open_mode(flags).write;
                self.fs.opened_new(stat.ino, write);
                // The library has one time for name and attributes, so the stricter one counts.
                let kept = self.attr_kept(&stat).min(self.name_kept(self.ino(parent)));
                let generation = Generation(stat.generation.into());
                reply.created(&kept, &self.attr(&stat), generation, FileHandle(write.into()), FILE_OPEN);
            }
            Err(errno) => reply.error(out(errno)),
        }
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size as usize {
                buffer.resize(size as usize, 0);
            }
            match self.fs.read(self.ino(ino), offset, &mut buffer[..size as usize]) {
                Ok(count) => reply.data(&buffer[..count]),
                Err(errno) => reply.error(out(errno)),
            }
        });
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let drops_privilege = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        match self.fs.write(self.ino(ino), offset, data, drops_privilege) {
            Ok(()) => reply.written(data.len() as u32),
            Err(errno) => reply.error(out(errno)),
        }
    }

    // No `flush`: the kernel writes its cache back before it would ask, and stops asking after the first answer.

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.fs.close(self.ino(ino), fh.0 != 0);
        reply.ok();
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.error(out(Errno::NOSYS));
    }

    fn fsync(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        empty(self.fs.fsync(self.ino(ino), datasync), reply);
    }

    fn opendir(&self, req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.fs.open(caller(req), self.ino(ino), OpenMode::default()) {
            Ok(()) => reply.opened(FileHandle(0), FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE),
            Err(errno) => reply.error(out(errno)),
        }
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listed = self.fs.list(self.ino(ino), offset, |volume, entry| {
            let kind =
                entry.kind.map_or_else(|| volume.inode(entry.ino).map(|inode| inode.file_type()), Ok)?;
            let number = INodeNo(entry.ino.0.into());
            Ok(!reply.add(number, entry.next_cookie, kind_to_kernel(kind), OsStr::from_bytes(&entry.name)))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(out(errno)),
        }
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let name_kept = self.name_kept(self.ino(ino));
        let listed = self.fs.list(self.ino(ino), offset, |volume, entry| {
            let stat = volume.stat(entry.ino)?;
            let (name, cookie) = (OsStr::from_bytes(&entry.name), entry.next_cookie);
            let kept = self.attr_kept(&stat).min(name_kept);
            let full = reply.add(
                self.number(stat.ino),
                cookie,
                name,
                &kept,
                &self.attr(&stat),
                Generation(stat.generation.into()),
            );
            // With each entry the kernel gets a reference, but not with the two dots.
            if !full && entry.name != b"." && entry.name != b".." {
                self.fs.listed(stat.ino);
            }
            Ok(!full)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(out(errno)),
        }
    }

    fn fsyncdir(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        empty(self.fs.sync(), reply);
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        match self.fs.space() {
            Ok((space, size)) => {
                let free = space.free_blocks;
                reply.statfs(space.blocks, free, free, space.inodes, space.free_inodes, size, 255, size);
            }
            Err(errno) => reply.error(out(errno)),
        }
    }

    fn setxattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        const CREATE: i32 = 1;
        const REPLACE: i32 = 2;
        let mode = match flags {
            0 => XattrMode::Set,
            CREATE => XattrMode::Create,
            REPLACE => XattrMode::Replace,
            _ => return reply.error(out(Errno::INVAL)),
        };
        empty(self.fs.set_xattr(self.ino(ino), name.as_bytes(), value, mode), reply);
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        xattr(self.fs.get_xattr(self.ino(ino), name.as_bytes()), size, reply);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        xattr(self.fs.list_xattrs(caller(req), self.ino(ino)), size, reply);
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.fs.remove_xattr(self.ino(ino), name.as_bytes()), reply);
    }

    fn ioctl(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: fuser::IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        match self.fs.ioctl(self.ino(ino), fh.0 != 0, cmd, in_data) {
            Ok(data) => reply.ioctl(0, &data),
            Err(errno) => reply.error(out(errno)),
        }
    }

    fn fallocate(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        empty(self.fs.allocate(self.ino(ino), offset, length, mode as u32), reply);
    }

    fn lseek(
        &self,
        _req: &Request,
        number: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        const SEEK_DATA: i32 = 3;
        const SEEK_HOLE: i32 = 4;
        let whence = match whence {
            SEEK_DATA => Whence::Data,
            SEEK_HOLE => Whence::Hole,
            _ => return reply.error(out(Errno::INVAL)),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(out(Errno::NXIO)) };
        let ino = self.ino(number);
        match self.fs.has_writer(ino) {
            true => self.seeks.push(Seek { ino, number, offset, whence, reply }),
            false => answer_seek(&self.fs, ino, offset, whence, reply),
        }
    }

    fn copy_file_range(
        &self,
        _req: &Request,
        ino_in: INodeNo,
        _fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: fuser::CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        /// One request copies so much, so that the caller can be interrupted.
        const MOST: u64 = 64 << 20;
        match self.fs.copy(self.ino(ino_in), offset_in, self.ino(ino_out), offset_out, len.min(MOST)) {
            Ok(count) => reply.written(count as u32),
            Err(errno) => reply.error(out(errno)),
        }
    }
}

/// Files stay in the kernel's cache when they are closed, and direct writes need not wait for one another there.
const FILE_OPEN: FopenFlags = FopenFlags::FOPEN_KEEP_CACHE.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);

fn out(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw_os_error())
}

fn caller(req: &Request) -> Caller {
    Caller { uid: req.uid(), gid: req.gid() }
}

fn open_mode(flags: i32) -> OpenMode {
    let flags = OFlags::from_bits_retain(flags as u32);
    OpenMode {
        write: flags.intersects(OFlags::WRONLY | OFlags::RDWR),
        append: flags.contains(OFlags::APPEND),
        truncate: flags.contains(OFlags::TRUNC),
    }
}

fn attr(stat: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(stat.ino.0.into()),
        size: stat.size,
        blocks: stat.sectors,
        atime: time_to_kernel(stat.atime),
        mtime: time_to_kernel(stat.mtime),
        ctime: time_to_kernel(stat.ctime),
        crtime: UNIX_EPOCH,
        kind: kind_to_kernel(stat.kind),
        perm: stat.mode & 0o7777,
        nlink: stat.links,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.device.map_or(0, device_to_kernel),
        blksize: 4096,
        flags: 0,
    }
}

/// Attributes of nothing.
fn no_attr() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: fuser::FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

fn kind_to_kernel(kind: FileType) -> fuser::FileType {
    match kind {
        FileType::Regular => fuser::FileType::RegularFile,
        FileType::Directory => fuser::FileType::Directory,
        FileType::CharDevice => fuser::FileType::CharDevice,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
        FileType::Symlink => fuser::FileType::Symlink,
    }
}

/// The nearest time that the host's type can hold.
fn time_to_kernel(time: Time) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = match time.seconds < 0 {
        true => UNIX_EPOCH.checked_sub(seconds),
        false => UNIX_EPOCH.checked_add(seconds),
    };
    let exact = whole.and_then(|whole| whole.checked_add(Duration::from_nanos(time.nanoseconds.into())));
    exact.unwrap_or(UNIX_EPOCH)
}

/// A time that the library made of seconds and nanoseconds. Of negative seconds it makes the point that is the
/// nanoseconds *earlier*, not later; this takes that back.
fn time_from_kernel(time: SystemTime) -> Time {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Time {
            seconds: since.as_secs().try_into().unwrap_or(i64::MAX),
            nanoseconds: since.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            Time {
                seconds: i64::try_from(before.as_secs()).map_or(i64::MIN, |seconds| -seconds),
                nanoseconds: before.subsec_nanos(),
            }
        }
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
    fn times_before_1970_survive_both_ways() {
        for (seconds, nanoseconds) in [(0, 0), (1, 5), (-1, 0), (-1, 999_999_999), (-86_400, 1), (1 << 40, 7)]
        {
            let time = Time { seconds, nanoseconds };
            // As the library makes it of what the kernel says.
            let made = match seconds < 0 {
                true => UNIX_EPOCH - Duration::new(seconds.unsigned_abs(), nanoseconds),
                false => UNIX_EPOCH + Duration::new(seconds as u64, nanoseconds),
            };
            assert_eq!(time_from_kernel(made), time);
            let shown = time_to_kernel(time);
            let back = match shown.duration_since(UNIX_EPOCH) {
                Ok(since) => (since.as_secs() as i64, since.subsec_nanos()),
                Err(before) => {
                    let nanoseconds = before.duration().as_nanos() as i128;
                    let total = -nanoseconds;
                    (total.div_euclid(1_000_000_000) as i64, total.rem_euclid(1_000_000_000) as u32)
                }
            };
            assert_eq!(back, (seconds, nanoseconds));
        }
    }

    #[test]
    fn device_numbers_survive_both_ways() {
        for (major, minor) in [(0, 0), (8, 1), (259, 70_000), (4095, (1 << 20) - 1)] {
            let device = DeviceNumber { major, minor };
            assert_eq!(device_from_kernel(device_to_kernel(device)), device);
        }
        assert_eq!(device_to_kernel(DeviceNumber { major: 8, minor: 1 }), 0x801);
    }
}
