//! A source that reads a directory of the host, depth first, with names in byte order whatever order the host
//! gives.
//!
//! It needs only read permission and leaves times of last access unchanged where the host allows that, except
//! those of symbolic links. The tree is followed through a bounded number of directory handles, so neither
//! its depth nor the length of its paths matters. Symbolic links are never followed; file systems mounted
//! inside the tree are.

// The types of the fields of stat(2) depend on the machine.
#![allow(clippy::unnecessary_cast)]

use std::{
    collections::{HashMap, VecDeque},
    ffi::{CStr, CString, OsStr},
    io,
    ops::Range,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use f2fs::{Error, Result, format::inode::DeviceNumber, units::Time};
use rustix::{
    fs::{self as host, Advice, AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom, Stat},
    io::Errno,
};

use super::shown;
use crate::{
    Entry, Exclusion, HostId, Kind, Metadata, PathId, PathTree, Run, Source, Xattr, entry::storable,
    exclude::Role, path::joined,
};

/// Buffer size in bytes for listing a directory.
const LISTING_BYTES: usize = 64 << 10;
/// Number of files opened ahead of the current one, so that the host prefetches their data.
const AHEAD_FILES: usize = 32;
/// Bytes at the start of each such file that the host is asked to prefetch.
const AHEAD_BYTES: u64 = 256 << 10;
/// Maximum number of directories kept open at once. Those further up are reopened through `..` when the walk
/// returns.
const OPEN_MAX: usize = 128;
/// Maximum number of looks at a name that other programs give to another object meanwhile.
const TRIES: u32 = 100;
/// Maximum size of an attribute's value on Linux, in bytes.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// Flags for opening a directory.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A walk of a directory. See the module.
pub struct DirSource {
    /// Path of the tree on the host, for messages.
    root: Vec<u8>,
    /// The directories from the root to the current one.
    stack: Vec<Listing>,
    /// Path of the directory on top of the stack, relative to the root.
    path: Vec<u8>,
    /// First paths of inodes with several links.
    links: HashMap<HostId, PathId>,
    paths: PathTree,
    /// The last entry, if it is a file with data.
    open: Option<OpenFile>,
    /// Entries read ahead, if the caller reads data. `error` comes after them.
    ahead: VecDeque<(Entry, Option<OpenFile>)>,
    error: Option<Error>,
    /// True once the caller reads data. A caller that only counts entries needs no read-ahead.
    reads: bool,
    /// The root's own entry, until it is returned.
    first: Option<Entry>,
    /// True while files can be opened without changing their time of last access.
    no_trace: bool,
    left_out: Vec<HostId>,
    exclusion: Arc<Exclusion>,
}

/// A directory and its remaining names.
struct Listing {
    /// None while too many directories below this one are open.
    fd: Option<OwnedFd>,
    id: HostId,
    /// Length of the parent directory's path in bytes.
    parent_path: usize,
    /// All names, each terminated by NUL.
    arena: Vec<u8>,
    /// Offsets of the remaining names in `arena`, the next one last.
    names: Vec<u32>,
}

/// The result of one look at a name.
enum Look {
    Found(Box<Entry>),
    Skipped,
    /// Another object took the name meanwhile.
    Replaced,
}

struct OpenFile {
    fd: OwnedFd,
    path: Vec<u8>,
    /// Remaining runs of data, the next one last. The current run shrinks from its start.
    data: Vec<Range<u64>>,
}

impl DirSource {
    /// Starts a walk of `root`, which must be a directory or a symbolic link to one.
    pub fn new(root: &Path) -> Result<DirSource> {
        let name = root.as_os_str().as_bytes();
        let failed = |errno: Errno| host_error(name, b"", errno);
        let fd = match host::open(root, DIRECTORY | OFlags::NOATIME, Mode::empty()) {
            Err(Errno::PERM) => host::open(root, DIRECTORY, Mode::empty()),
            opened => opened,
        };
        let fd = fd.map_err(failed)?;
        let stat = host::fstat(&fd).map_err(failed)?;
        let mut source = DirSource {
            root: name.to_vec(),
            stack: Vec::new(),
            path: Vec::new(),
            links: HashMap::new(),
            paths: PathTree::default(),
            open: None,
            ahead: VecDeque::new(),
            error: None,
            reads: false,
            first: None,
            no_trace: true,
            left_out: Vec::new(),
            exclusion: Arc::default(),
        };
        let mut meta = metadata(&stat);
        meta.xattrs = xattrs(&Attributed::Open(&fd)).map_err(failed)?;
        source.first = Some(Entry { path: Vec::new(), kind: Kind::Directory, meta });
        source.enter(fd, 0)?;
        Ok(source)
    }

    /// Skips these files under every name that they have, so that an output file inside the tree does not become a part
    /// of itself. A file that does not exist is skipped nowhere.
    #[must_use]
    pub fn leaving_out(self, files: &[PathBuf]) -> DirSource {
        let left_out = files.iter().filter_map(|file| host::stat(file).ok()).map(|stat| host_id(&stat));
        DirSource { left_out: left_out.collect(), ..self }
    }

    /// Leaves out the entries that match. The directories among them are not read.
    #[must_use]
    pub fn excluding(self, exclusion: Arc<Exclusion>) -> DirSource {
        DirSource { exclusion, ..self }
    }

    fn failed(&self, path: &[u8], errno: Errno) -> Error {
        host_error(&self.root, path, errno)
    }

    /// Reads the names of the directory at `self.path` and pushes it on the stack.
    fn enter(&mut self, fd: OwnedFd, parent_path: usize) -> Result<()> {
        let (mut arena, mut names) = (Vec::new(), Vec::new());
        let mut space = vec![std::mem::MaybeUninit::uninit(); LISTING_BYTES];
        let mut listing = RawDir::new(&fd, &mut space);
        while let Some(item) = listing.next() {
            let item = item.map_err(|errno| host_error(&self.root, &self.path, errno))?;
            let name = item.file_name().to_bytes_with_nul();
            if name != b".\0" && name != b"..\0" {
                names.push(
                    u32::try_from(arena.len())
                        .map_err(|_| host_error(&self.root, &self.path, Errno::FBIG))?,
                );
                arena.extend_from_slice(name);
            }
        }
        // NUL is below every other byte, so a prefix of another name comes first.
        names.sort_unstable_by(|a, b| name_at(&arena, *b).cmp(name_at(&arena, *a)));
        let stat = host::fstat(&fd).map_err(|errno| self.failed(&self.path, errno))?;
        self.stack.push(Listing { fd: Some(fd), id: host_id(&stat), parent_path, arena, names });
        if let Some(far) = self.stack.len().checked_sub(OPEN_MAX + 1) {
            self.stack[far].fd = None;
        }
        Ok(())
    }

    /// Leaves the directory on top of the stack.
    fn leave(&mut self) -> Result<()> {
        let Some(left) = self.stack.pop() else { return Ok(()) };
        self.path.truncate(left.parent_path);
        let Some(top) = self.stack.last_mut().filter(|top| top.fd.is_none()) else { return Ok(()) };
        let failed = |errno| host_error(&self.root, &self.path, errno);
        let below = left.fd.expect("the directory on top is open");
        let fd = host::openat(&below, c"..", DIRECTORY, Mode::empty()).map_err(failed)?;
        if host_id(&host::fstat(&fd).map_err(failed)?) != top.id {
            // The tree was moved during the walk.
            return Err(failed(Errno::STALE));
        }
        top.fd = Some(fd);
        Ok(())
    }

    /// Returns the directory on top of the stack.
    fn top(&self) -> &OwnedFd {
        let top = self.stack.last().expect("the walk is inside the root until it is over");
        top.fd.as_ref().expect("the directory on top is open")
    }

    /// Returns the next entry of the walk, with the open file if it is one with data.
    fn step(&mut self) -> Result<Option<(Entry, Option<OpenFile>)>> {
        self.open = None;
        if let Some(root) = self.first.take() {
            return Ok(Some((root, None)));
        }
        while let Some(top) = self.stack.last_mut() {
            let Some(at) = top.names.pop() else {
                self.leave()?;
                continue;
            };
            let name = CString::new(name_at(&top.arena, at)).expect("names end at their NUL");
            if let Some(entry) = self.entry_of(&name)? {
                return Ok(Some((entry, self.open.take())));
            }
        }
        Ok(None)
    }

    /// Returns the next entry like [`step`](Self::step), but keeps the walk ahead, so that the host
    /// prefetches data.
    fn next_with_more_ahead(&mut self) -> Result<Option<(Entry, Option<OpenFile>)>> {
        while self.ahead.len() < AHEAD_FILES && self.error.is_none() {
            match self.step() {
                Ok(Some((entry, open))) => {
                    if let Some(file) = &open {
                        // This is advice: nothing is lost if the host ignores it.
                        let length = std::num::NonZeroU64::new(AHEAD_BYTES);
                        let _ = host::fadvise(&file.fd, 0, length, Advice::WillNeed);
                    }
                    self.ahead.push_back((entry, open));
                }
                Ok(None) => break,
                Err(error) => self.error = Some(error),
            }
        }
        match self.ahead.pop_front() {
            Some(next) => Ok(Some(next)),
            None => self.error.take().map_or(Ok(None), Err),
        }
    }

    /// Returns the entry of a name in the top directory, or None if it is skipped.
    fn entry_of(&mut self, name: &CStr) -> Result<Option<Entry>> {
        let path = joined(&self.path, name.to_bytes());
        for _ in 0..TRIES {
            let stat = self.stat_of(name, &path)?;
            match self.look_at(name, &path, &stat)? {
                Look::Found(entry) => return Ok(Some(*entry)),
                Look::Skipped => return Ok(None),
                Look::Replaced => {}
            }
        }
        Err(replaced(&self.root, &path))
    }

    fn stat_of(&self, name: &CStr, path: &[u8]) -> Result<Stat> {
        host::statat(self.top(), name, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| self.failed(path, errno))
    }

    /// Reads the object under a name in the top directory, which had the status `seen`.
    fn look_at(&mut self, name: &CStr, path: &[u8], seen: &Stat) -> Result<Look> {
        let file_type = FileType::from_raw_mode(seen.st_mode);
        let id = host_id(seen);
        let role = if file_type == FileType::Directory { Role::Directory } else { Role::Leaf };
        if self.left_out.contains(&id) || self.exclusion.matches(path, role) {
            return Ok(Look::Skipped);
        }
        let may_be_linked = seen.st_nlink > 1 && file_type != FileType::Directory;
        if let Some(first) = self.links.get(&id).filter(|_| may_be_linked) {
            let (kind, meta) = (Kind::HardLink { to: self.paths.path(*first) }, metadata(seen));
            return Ok(Look::Found(Box::new(Entry { path: path.to_vec(), kind, meta })));
        }
        let read = match file_type {
            FileType::Directory => self.open_directory(name, path, seen)?,
            FileType::RegularFile if seen.st_size != 0 => self.open_file(name, path, seen)?,
            _ => self.read_by_name(name, path, seen)?,
        };
        let Some((kind, meta)) = read else { return Ok(Look::Replaced) };
        if may_be_linked {
            self.links.insert(id, self.paths.insert(path));
        }
        Ok(Look::Found(Box::new(Entry { path: path.to_vec(), kind, meta })))
    }

    /// Enters a directory. Returns None if it is not the one that was seen under this name.
    fn open_directory(&mut self, name: &CStr, path: &[u8], seen: &Stat) -> Result<Option<(Kind, Metadata)>> {
        let parent = self.path.len();
        let Some((fd, meta, _)) = self.open_seen(name, path, DIRECTORY, seen)? else { return Ok(None) };
        self.path = path.to_vec();
        self.enter(fd, parent)?;
        Ok(Some((Kind::Directory, meta)))
    }

    /// Opens a file with data, and its ranges that are not holes. Returns None if it is not the file that was seen under this
    /// name.
    fn open_file(&mut self, name: &CStr, path: &[u8], seen: &Stat) -> Result<Option<(Kind, Metadata)>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let Some((fd, meta, stat)) = self.open_seen(name, path, flags, seen)? else { return Ok(None) };
        let size = stat.st_size as u64;
        // Only a file with fewer blocks than its size needs can have holes that matter.
        let sparse = (stat.st_blocks as u64).saturating_mul(512) < size;
        let whole = std::iter::once(0..size).collect();
        let data = match sparse {
            true => data_ranges(&fd, size).map_err(|errno| self.failed(path, errno))?,
            false => whole,
        };
        if size > LISTING_BYTES as u64 {
            // This is advice: nothing is lost if the host ignores it.
            let _ = host::fadvise(&fd, 0, None, Advice::Sequential);
        }
        let dense = data == [Range { start: 0, end: size }];
        let runs = data.iter().rev().cloned().collect();
        self.open = Some(OpenFile { fd, path: path.to_vec(), data: runs });
        Ok(Some((Kind::File { size, data: (!dense).then_some(data) }, meta)))
    }

    /// Reads an object that needs no open file. Returns None if the name does not lead to the one that was seen.
    fn read_by_name(&mut self, name: &CStr, path: &[u8], seen: &Stat) -> Result<Option<(Kind, Metadata)>> {
        let failed = |errno| host_error(&self.root, path, errno);
        let mut meta = metadata(seen);
        meta.xattrs = xattrs(&Attributed::named(self.top(), name)).map_err(failed)?;
        let number = DeviceNumber { major: host::major(seen.st_rdev), minor: host::minor(seen.st_rdev) };
        let kind = match FileType::from_raw_mode(seen.st_mode) {
            FileType::RegularFile => Kind::File { size: 0, data: None },
            FileType::Symlink => match host::readlinkat(self.top(), name, Vec::new()) {
                Ok(target) => Kind::Symlink { target: target.into_bytes() },
                // It is a link no more.
                Err(Errno::INVAL) => return Ok(None),
                Err(errno) => return Err(failed(errno)),
            },
            FileType::CharacterDevice => Kind::CharDevice(number),
            FileType::BlockDevice => Kind::BlockDevice(number),
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            _ => return Err(failed(Errno::INVAL)),
        };
        let stays = is_same(seen, &self.stat_of(name, path)?);
        Ok(stays.then_some((kind, meta)))
    }

    /// Opens a name in the top directory. Returns its metadata and its status through the handle, or None if it is not the
    /// object that was seen under this name.
    fn open_seen(
        &mut self,
        name: &CStr,
        path: &[u8],
        flags: OFlags,
        seen: &Stat,
    ) -> Result<Option<(OwnedFd, Metadata, Stat)>> {
        let fd = match self.open_at(name, flags) {
            // A link, or no directory any more.
            Err(Errno::LOOP | Errno::NOTDIR) => return Ok(None),
            opened => opened.map_err(|errno| self.failed(path, errno))?,
        };
        let failed = |errno| host_error(&self.root, path, errno);
        let stat = host::fstat(&fd).map_err(failed)?;
        if !is_same(seen, &stat) {
            return Ok(None);
        }
        let mut meta = metadata(&stat);
        meta.xattrs = xattrs(&Attributed::Open(&fd)).map_err(failed)?;
        Ok(Some((fd, meta, stat)))
    }

    /// Opens a name in the top directory, without changing its time of last access where that is allowed.
    fn open_at(&mut self, name: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
        let open = |flags| host::openat(self.top(), name, flags | OFlags::NOFOLLOW, Mode::empty());
        if !self.no_trace {
            return open(flags);
        }
        match open(flags | OFlags::NOATIME) {
            // Only a file's owner may suppress the update of its time of last access.
            Err(Errno::PERM) => {
                let opened = open(flags)?;
                self.no_trace = false;
                Ok(opened)
            }
            opened => opened,
        }
    }
}

impl Source for DirSource {
    fn next_entry(&mut self) -> Result<Option<Entry>> {
        let next = match self.reads {
            true => self.next_with_more_ahead()?,
            false => self.step()?,
        };
        let Some((entry, open)) = next else { return Ok(None) };
        self.open = open;
        Ok(Some(entry))
    }

    fn next_run(&mut self, buf: &mut [u8]) -> Result<Option<Run>> {
        self.reads = true;
        let Some(file) = &mut self.open else { return Ok(None) };
        let Some(range) = file.data.last_mut() else { return Ok(None) };
        let wanted = buf.len().min(usize::try_from(range.end - range.start).unwrap_or(usize::MAX));
        let offset = range.start;
        let mut length = 0;
        while length < wanted {
            match rustix::io::pread(&file.fd, &mut buf[length..wanted], offset + length as u64) {
                // The file became shorter during the walk: a copy of it would be torn.
                Ok(0) => return Err(shrunk(&self.root, &file.path)),
                Ok(read) => length += read,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(host_error(&self.root, &file.path, errno)),
            }
        }
        range.start += length as u64;
        if range.start == range.end {
            file.data.pop();
        }
        Ok((length > 0).then_some(Run { offset, length }))
    }
}

/// An object of the host with extended attributes.
enum Attributed<'a> {
    Open(&'a OwnedFd),
    Named(Vec<u8>),
}

impl Attributed<'_> {
    /// Addresses a name in a directory through the process's table of open files, because no system call
    /// takes attributes relative to a directory.
    fn named(dir: &OwnedFd, name: &CStr) -> Attributed<'static> {
        let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
        path.extend_from_slice(name.to_bytes());
        Attributed::Named(path)
    }

    fn list(&self, names: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Attributed::Open(fd) => host::flistxattr(fd, names),
            Attributed::Named(path) => host::llistxattr(OsStr::from_bytes(path), names),
        }
    }

    fn get(&self, name: &[u8], value: &mut [u8]) -> Result<usize, Errno> {
        let name = OsStr::from_bytes(name);
        match self {
            Attributed::Open(fd) => host::fgetxattr(fd, name, value),
            Attributed::Named(path) => host::lgetxattr(OsStr::from_bytes(path), name, value),
        }
    }
}

/// Reads the attributes that F2FS can store.
fn xattrs(of: &Attributed<'_>) -> Result<Vec<Xattr>, Errno> {
    let mut small = [0u8; 512];
    let names = match of.list(&mut small) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Ok(length) => small[..length].to_vec(),
        Err(Errno::RANGE) => {
            let mut large = vec![0u8; XATTR_BYTES_MAX];
            let length = of.list(&mut large)?;
            large.truncate(length);
            large
        }
        Err(errno) => return Err(errno),
    };
    let mut xattrs = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| storable(name)) {
        let mut value = vec![0u8; 256];
        let length = loop {
            match of.get(name, &mut value) {
                Ok(length) => break Some(length),
                Err(Errno::RANGE) if value.len() < XATTR_BYTES_MAX => value.resize(XATTR_BYTES_MAX, 0),
                // Removed after the listing, or listed although it has no value of its own.
                Err(Errno::NODATA) => break None,
                Err(errno) => return Err(errno),
            }
        };
        if let Some(length) = length {
            value.truncate(length);
            xattrs.push(Xattr { name: name.to_vec(), value });
        }
    }
    xattrs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(xattrs)
}

/// Returns the name that starts at `at` and ends before the next NUL.
fn name_at(arena: &[u8], at: u32) -> &[u8] {
    let from = &arena[at as usize..];
    &from[..from.iter().position(|byte| *byte == 0).unwrap_or(from.len())]
}

/// Returns the ranges of a file that hold data, from SEEK_DATA and SEEK_HOLE. On a host without them the
/// whole file is data.
fn data_ranges(fd: &OwnedFd, size: u64) -> Result<Vec<Range<u64>>, Errno> {
    let (mut ranges, mut at) = (Vec::new(), 0);
    while at < size {
        let start = match host::seek(fd, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL) => return Ok(std::iter::once(0..size).collect()),
            Err(errno) => return Err(errno),
        };
        let end = host::seek(fd, SeekFrom::Hole(start))?.min(size);
        if start >= end || start < at {
            break;
        }
        ranges.push(start..end);
        at = end;
    }
    Ok(ranges)
}

fn host_id(stat: &Stat) -> HostId {
    HostId { device: stat.st_dev, ino: stat.st_ino }
}

/// Returns true if two statuses are those of one object. An inode number may be used again, for an object of another type.
fn is_same(one: &Stat, other: &Stat) -> bool {
    let file_type = |stat: &Stat| FileType::from_raw_mode(stat.st_mode);
    host_id(one) == host_id(other) && file_type(one) == file_type(other)
}

fn metadata(stat: &Stat) -> Metadata {
    let time = |seconds, nanoseconds| Time { seconds, nanoseconds };
    Metadata {
        permissions: (stat.st_mode & 0o7777) as u16,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: time(stat.st_mtime, stat.st_mtime_nsec as u32),
        atime: Some(time(stat.st_atime, stat.st_atime_nsec as u32)),
        ctime: Some(time(stat.st_ctime, stat.st_ctime_nsec as u32)),
        xattrs: Vec::new(),
        names: Default::default(),
        host: Some(host_id(stat)),
    }
}

fn host_error(root: &[u8], path: &[u8], errno: Errno) -> Error {
    Error::Host { path: shown(root, path), source: errno.into() }
}

fn shrunk(root: &[u8], path: &[u8]) -> Error {
    let source = io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter while it was read");
    Error::Host { path: shown(root, path), source }
}

fn replaced(root: &[u8], path: &[u8]) -> Error {
    let source = io::Error::other("the file was replaced again and again while it was read");
    Error::Host { path: shown(root, path), source }
}

#[cfg(test)]
mod tests;
