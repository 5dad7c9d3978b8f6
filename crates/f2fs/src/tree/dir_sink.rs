//! A directory of the host as a sink.
//!
//! Everything is made through handles of directories, and names are made new: a name that is taken is an
//! error, except that directories are merged into, and no symbolic link below the root is ever followed. So
//! a hostile volume cannot reach outside the directory. A directory's own permissions and times are set when
//! it is left, the latest that can be.

use std::{ffi::OsStr, os::fd::AsRawFd, os::fd::OwnedFd, os::unix::ffi::OsStrExt, path::Path};

use rustix::{
    fs::{self as host, AtFlags, FileType, Mode, OFlags, Stat, Timespec, Timestamps, XattrFlags},
    io::Errno,
    process::{Gid, Uid},
};

use super::{Entry, Kind, Metadata, dir_source::shown, export::Sink};
use crate::{Error, Result, format::inode::DeviceNumber, units::Time};

/// Directories that are kept open at once; those above are opened again through `..` when they are needed.
const OPEN_MAX: usize = 128;
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);
/// Permissions of what is being made, which only its maker may touch.
const MAKING: Mode = Mode::RWXU;

/// A directory that is being filled. See the module.
pub struct DirSink {
    /// Where it is on the host, for messages.
    root: Vec<u8>,
    /// Hard links are made from here.
    root_fd: OwnedFd,
    /// The directories from the root to where the last entry was made.
    stack: Vec<OpenDirectory>,
    /// Path of the last of them, from the root.
    path: Vec<u8>,
    file: Option<OpenFile>,
    /// Whether owners are set; else everything belongs to who runs this, and bits that give a program its owner's
    /// rights are left out.
    owners: bool,
    /// User and group that what is made belongs to at first.
    maker: (u32, u32),
    losses: Vec<(Vec<u8>, Error)>,
}

struct OpenDirectory {
    /// None while too many directories below it are open.
    fd: Option<OwnedFd>,
    id: (u64, u64),
    /// Length of the path of the directory above.
    parent_path: usize,
    leave: Leave,
}

/// What is done to a directory when it is left.
enum Leave {
    /// It becomes as its entry says.
    Finish(Box<Metadata>),
    /// It was there, or finished, before: only its times come back.
    Restore(Timestamps),
}

struct OpenFile {
    fd: OwnedFd,
    path: Vec<u8>,
    size: u64,
    /// Where the last run ended.
    end: u64,
    meta: Box<Metadata>,
}

impl DirSink {
    /// A sink to the directory `root`, which is made if it is not there. `owners` says whether owners are kept,
    /// which takes root's rights.
    pub fn new(root: &Path, owners: bool) -> Result<DirSink> {
        let name = root.as_os_str().as_bytes().to_vec();
        let failed = |errno: Errno| Error::Host { path: shown(&name, b""), source: errno.into() };
        match host::mkdir(root, MAKING) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed(errno)),
        }
        let open = || host::open(root, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let (root_fd, fd) = (open().map_err(failed)?, open().map_err(failed)?);
        let stat = host::fstat(&fd).map_err(failed)?;
        let bottom = OpenDirectory {
            fd: Some(fd),
            id: id(&stat),
            parent_path: 0,
            leave: Leave::Restore(times_of(&stat)),
        };
        Ok(DirSink {
            root: name,
            root_fd,
            stack: vec![bottom],
            path: Vec::new(),
            file: None,
            owners,
            maker: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
            losses: Vec::new(),
        })
    }

    fn failed(&self, path: &[u8], errno: Errno) -> Error {
        Error::Host { path: shown(&self.root, path), source: errno.into() }
    }

    fn top(&self) -> &OwnedFd {
        let top = self.stack.last().expect("the root stays on the stack");
        top.fd.as_ref().expect("the directory on top is open")
    }

    /// Makes the directory at `path` the one on top.
    fn go_to(&mut self, path: &[u8]) -> Result<()> {
        while !is_inside(path, &self.path) {
            self.leave()?;
        }
        while self.path.len() < path.len() {
            let from = if self.path.is_empty() { 0 } else { self.path.len() + 1 };
            let name = path[from..].split(|byte| *byte == b'/').next().expect("a split has a first part");
            let name = name.to_vec();
            self.enter(&name, None)?;
        }
        Ok(())
    }

    /// Opens a directory in the one on top, and puts it on top. Without metadata it is one that was there.
    fn enter(&mut self, name: &[u8], meta: Option<Metadata>) -> Result<()> {
        let path = joined(&self.path, name);
        let failed = |errno| self.failed(&path, errno);
        let fd = host::openat(self.top(), name, DIRECTORY, Mode::empty()).map_err(failed)?;
        let stat = host::fstat(&fd).map_err(failed)?;
        let leave = match meta {
            Some(meta) => Leave::Finish(Box::new(meta)),
            None => Leave::Restore(times_of(&stat)),
        };
        let parent_path = std::mem::replace(&mut self.path, path).len();
        self.stack.push(OpenDirectory { fd: Some(fd), id: id(&stat), parent_path, leave });
        if let Some(far) = self.stack.len().checked_sub(OPEN_MAX + 1) {
            self.stack[far].fd = None;
        }
        Ok(())
    }

    /// Leaves the directory on top.
    fn leave(&mut self) -> Result<()> {
        let top = self.stack.pop().expect("the root stays on the stack");
        let fd = top.fd.expect("the directory on top is open");
        let path = self.path.clone();
        if let Some(above) = self.stack.last().filter(|above| above.fd.is_none()) {
            let failed = |errno| self.failed(&path, errno);
            let opened = host::openat(&fd, c"..", DIRECTORY, Mode::empty()).map_err(failed)?;
            if id(&host::fstat(&opened).map_err(failed)?) != above.id {
                // The tree was moved under the export.
                return Err(failed(Errno::STALE));
            }
            self.stack.last_mut().expect("it was there").fd = Some(opened);
        }
        self.path.truncate(top.parent_path);
        match top.leave {
            Leave::Finish(meta) => self.finish_fd(&fd, &path, &meta),
            Leave::Restore(times) => host::futimens(&fd, &times).map_err(|errno| self.failed(&path, errno)),
        }
    }

    fn directory(&mut self, name: &[u8], entry: &Entry) -> Result<()> {
        match host::mkdirat(self.top(), name, MAKING) {
            Ok(()) | Err(Errno::EXIST) => self.enter(name, Some(entry.meta.clone())),
            Err(errno) => Err(self.failed(&entry.path, errno)),
        }
    }

    fn begin_file(&mut self, name: &[u8], entry: &Entry, size: u64) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = host::openat(self.top(), name, flags, self.first_mode(&entry.meta))
            .map_err(|errno| self.failed(&entry.path, errno))?;
        let meta = Box::new(entry.meta.clone());
        self.file = Some(OpenFile { fd, path: entry.path.clone(), size, end: 0, meta });
        Ok(())
    }

    fn finish_file(&mut self) -> Result<()> {
        let Some(file) = self.file.take() else { return Ok(()) };
        if file.end < file.size {
            host::ftruncate(&file.fd, file.size).map_err(|errno| self.failed(&file.path, errno))?;
        }
        self.finish_fd(&file.fd, &file.path, &file.meta)
    }

    /// Permissions that a file is made with: at once what it gets where it stays with its maker, which saves a
    /// system call; else only its maker may touch it until it has its owner.
    fn first_mode(&self, meta: &Metadata) -> Mode {
        let stays = !self.owners || (meta.uid, meta.gid) == self.maker;
        let bits = if stays && meta.xattrs.is_empty() { meta.permissions & 0o777 } else { 0 };
        Mode::from_raw_mode(bits.into()) | Mode::RUSR | Mode::WUSR
    }

    /// Gives what was made its metadata, as far as it does not have it. A change of the owner takes capabilities
    /// and set-id bits away, so it comes first; attributes can be set as long as the file may be written; times
    /// come last.
    fn finish_fd(&mut self, fd: &OwnedFd, path: &[u8], meta: &Metadata) -> Result<()> {
        let made = host::fstat(fd).map_err(|errno| self.failed(path, errno))?;
        if self.owners && (made.st_uid, made.st_gid) != (meta.uid, meta.gid) {
            let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
            host::fchown(fd, Some(uid), Some(gid)).map_err(|errno| self.failed(path, errno))?;
        }
        for xattr in &meta.xattrs {
            let name = OsStr::from_bytes(&xattr.name);
            if let Err(errno) = host::fsetxattr(fd, name, &xattr.value, XattrFlags::empty()) {
                self.lose(path, &xattr.name, errno)?;
            }
        }
        let mut permissions = meta.permissions;
        if !self.owners && permissions & 0o6000 != 0 {
            self.lose(path, b"the set-user-id or set-group-id bit", Errno::PERM)?;
            permissions &= !0o6000;
        }
        // An access ACL changes the permissions, a change of the owner takes set-id bits.
        if !meta.xattrs.is_empty() || made.st_mode & 0o7777 != u32::from(permissions) || permissions > 0o777 {
            host::fchmod(fd, Mode::from_raw_mode(permissions.into()))
                .map_err(|errno| self.failed(path, errno))?;
        }
        host::futimens(fd, &times(meta)).map_err(|errno| self.failed(path, errno))
    }

    /// The same for what cannot be opened: by its name in the directory on top.
    fn finish_name(&mut self, name: &[u8], entry: &Entry) -> Result<()> {
        let (path, meta) = (&entry.path, &entry.meta);
        let link = matches!(entry.kind, Kind::Symlink { .. });
        if self.owners {
            let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
            host::chownat(self.top(), name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|errno| self.failed(path, errno))?;
        }
        if !meta.xattrs.is_empty() {
            // There are no calls for attributes relative to a directory, so it is named through the process's
            // table of open files.
            let mut full = format!("/proc/self/fd/{}/", self.top().as_raw_fd()).into_bytes();
            full.extend_from_slice(name);
            for xattr in &meta.xattrs {
                let (full, key) = (OsStr::from_bytes(&full), OsStr::from_bytes(&xattr.name));
                if let Err(errno) = host::lsetxattr(full, key, &xattr.value, XattrFlags::empty()) {
                    self.lose(path, &xattr.name, errno)?;
                }
            }
        }
        if !link {
            // The name was made here and is no link, so there is nothing to follow.
            let mode = Mode::from_raw_mode(meta.permissions.into());
            host::chmodat(self.top(), name, mode, AtFlags::empty())
                .map_err(|errno| self.failed(path, errno))?;
        }
        host::utimensat(self.top(), name, &times(meta), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| self.failed(path, errno))
    }

    fn node(&mut self, name: &[u8], entry: &Entry, kind: FileType, number: DeviceNumber) -> Result<()> {
        let device = host::makedev(number.major, number.minor);
        match host::mknodat(self.top(), name, kind, Mode::RUSR | Mode::WUSR, device) {
            Ok(()) => self.finish_name(name, entry),
            Err(Errno::PERM) => self.lose(&entry.path, b"a device, which takes root's rights", Errno::PERM),
            Err(errno) => Err(self.failed(&entry.path, errno)),
        }
    }

    /// What the host refuses for want of rights or of a place to put it is lost; every other error is one.
    fn lose(&mut self, path: &[u8], what: &[u8], errno: Errno) -> Result<()> {
        match errno {
            Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::NOSPC | Errno::RANGE | Errno::INVAL => {
                let place = format!("{}, {}", shown(&self.root, path), super::entry::show(what));
                self.losses.push((path.to_vec(), Error::Host { path: place, source: errno.into() }));
                Ok(())
            }
            _ => Err(self.failed(path, errno)),
        }
    }
}

impl Sink for DirSink {
    fn entry(&mut self, entry: &Entry) -> Result<()> {
        self.finish_file()?;
        let Some(name) = entry.path.rsplit(|byte| *byte == b'/').next().filter(|name| !name.is_empty())
        else {
            if entry.kind != Kind::Directory {
                return Err(Error::Invalid("the root of a tree must be a directory".into()));
            }
            self.stack[0].leave = Leave::Finish(Box::new(entry.meta.clone()));
            return Ok(());
        };
        let parent = &entry.path[..entry.path.len() - name.len()];
        self.go_to(parent.strip_suffix(b"/").unwrap_or(parent))?;
        match &entry.kind {
            Kind::Directory => self.directory(name, entry),
            Kind::File { size, .. } => self.begin_file(name, entry, *size),
            Kind::HardLink { to } => {
                match host::linkat(&self.root_fd, &**to, self.top(), name, AtFlags::empty()) {
                    // The first name was lost, and told.
                    Err(Errno::NOENT) => self.lose(&entry.path, b"a link to what was lost", Errno::PERM),
                    linked => linked.map_err(|errno| self.failed(&entry.path, errno)),
                }
            }
            Kind::Symlink { target } => {
                host::symlinkat(&**target, self.top(), name)
                    .map_err(|errno| self.failed(&entry.path, errno))?;
                self.finish_name(name, entry)
            }
            Kind::CharDevice(number) => self.node(name, entry, FileType::CharacterDevice, *number),
            Kind::BlockDevice(number) => self.node(name, entry, FileType::BlockDevice, *number),
            Kind::Fifo => self.node(name, entry, FileType::Fifo, DeviceNumber::default()),
            Kind::Socket => self.node(name, entry, FileType::Socket, DeviceNumber::default()),
        }
    }

    fn run(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let file = self.file.as_mut().expect("runs come after a file's entry");
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pwrite(&file.fd, &bytes[done..], offset + done as u64) {
                Ok(written) => done += written,
                Err(Errno::INTR) => continue,
                Err(errno) => {
                    let path = shown(&self.root, &file.path);
                    return Err(Error::Host { path, source: errno.into() });
                }
            }
        }
        file.end = offset + bytes.len() as u64;
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.finish_file()?;
        while !self.stack.is_empty() {
            self.leave()?;
        }
        Ok(())
    }

    fn losses(&mut self) -> Vec<(Vec<u8>, Error)> {
        std::mem::take(&mut self.losses)
    }
}

/// Whether `path` is the directory `dir` or lies in it.
fn is_inside(path: &[u8], dir: &[u8]) -> bool {
    dir.is_empty()
        || path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.first() == Some(&b'/'))
}

fn joined(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

fn id(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn times_of(stat: &Stat) -> Timestamps {
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

fn times(meta: &Metadata) -> Timestamps {
    let time = |time: Time| Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
    Timestamps { last_access: time(meta.atime.unwrap_or(meta.mtime)), last_modification: time(meta.mtime) }
}
