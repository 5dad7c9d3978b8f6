//! A sink that writes to a directory of the host.
//!
//! *Invariants*: every path below the root is opened component by component, without following links, through
//! handles of directories that stay open. A component is never empty, `.` or `..`, and contains no slash.
//! Every entry is created under a free name. If the name is taken, that is an error. If the caller asked to
//! overwrite, the new entry is renamed over the old one when it is complete, and directories are merged. Owner,
//! permissions, attributes and times are set through a handle of the new entry. Therefore neither a hostile
//! volume nor another user with write access to the directory can redirect the export outside.
//!
//! A directory's own permissions and times are set when the sink leaves it, as late as possible. Where they keep its owner
//! from a later link into it, or those of an existing directory from its replacement, they are lifted meanwhile ([`access`]).
//! Entries have the ACLs of the tree only: those that they inherit from a directory of the host are removed. Metadata
//! that the host refuses is reported as a separate loss of its entry.

mod access;
mod metadata;
mod ownership;

use std::{
    borrow::Cow,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use f2fs::{Error, Result, format::inode::DeviceNumber};
use rustix::{
    fs::{self as host, AtFlags, FileType, Mode, OFlags, Stat, Timestamps},
    io::Errno,
};

use self::{
    access::{set_mode, unlock, with_access},
    metadata::{Acls, gives_acls, times_of},
};
use super::{Owners, Replacement, shown};
use crate::{
    Entry, Kind, Metadata,
    export::{Loss, Sink},
    path::{check_components, components, is_inside, joined, split},
};

/// Maximum number of directories kept open at once. Those further up are reopened through `..` when they are
/// needed.
const OPEN_MAX: usize = 128;
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);
/// Flags for a directory that is only searched, which needs no read permission.
const SEARCH: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);
/// Flags for a handle to any entry, used only to change its metadata.
const NODE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);
/// Permissions of a directory during its creation: access for the creator only.
const MAKING: Mode = Mode::RWXU;
/// Write permission bits of group and others.
const OTHERS_WRITE: u32 = 0o022;

/// A sink that fills a directory of the host. See the module.
pub struct DirSink {
    /// Path of the directory on the host, for messages.
    root: Vec<u8>,
    /// Path and handle of the directory that contains the target of the last hard link; initially the root.
    link_from: (Vec<u8>, OwnedFd),
    /// Handle through which hard links reopen the root.
    root_fd: OwnedFd,
    /// The directories from the root to the parent of the last entry.
    stack: Vec<OpenDirectory>,
    /// Path of the directory on top of the stack, relative to the root.
    path: Vec<u8>,
    file: Option<OpenFile>,
    owners: Owners,
    /// True if an existing entry of the same name is replaced.
    overwrite: bool,
    replacement: Replacement,
    /// User and group that new entries have at creation.
    maker: (u32, u32),
    losses: Vec<Loss>,
    /// True if a directory that still has to be filled could not be reopened.
    is_broken: bool,
}

struct OpenDirectory {
    /// None while too many directories below this one are open.
    fd: Option<OwnedFd>,
    id: (u64, u64),
    /// Length of the parent directory's path in bytes.
    parent_path: usize,
    leave: Leave,
    /// Permissions that it gets back if it is left without those of an entry.
    locked: Option<Mode>,
    /// ACLs that it may have.
    acls: Acls,
    /// ACLs that new entries in it get.
    given: Acls,
}

/// Action on leaving a directory.
enum Leave {
    /// Sets the metadata of its entry.
    Finish(Box<Metadata>),
    /// Restores the times of a directory that existed, or was finished, before.
    Restore(Timestamps),
}

struct OpenFile {
    fd: OwnedFd,
    path: Vec<u8>,
    size: u64,
    /// End of the last run in bytes.
    end: u64,
    meta: Box<Metadata>,
    acls: Acls,
}

impl DirSink {
    /// Makes a sink that writes to the directory `root`, and creates the directory if it does not exist.
    pub fn new(root: &Path, owners: Owners) -> Result<DirSink> {
        let opened = match make_private(host::CWD, root) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                host::open(root, DIRECTORY.difference(OFlags::NOFOLLOW), Mode::empty()).map_err(Into::into)
            }
            made => made,
        };
        let failed = |source| Error::Host { path: shown(root.as_os_str().as_bytes(), b""), source };
        DirSink::at(opened.map_err(failed)?, root, owners)
    }

    /// Makes a sink that writes to an open directory. Messages call it `root`.
    pub fn at(fd: OwnedFd, root: &Path, owners: Owners) -> Result<DirSink> {
        let name = root.as_os_str().as_bytes().to_vec();
        let failed = |errno: Errno| Error::Host { path: shown(&name, b""), source: errno.into() };
        // Not through its name, which may lead elsewhere by now.
        let again = || host::openat(&fd, c".", SEARCH, Mode::empty()).map_err(failed);
        let (root_fd, from) = (again()?, again()?);
        let stat = host::fstat(&fd).map_err(failed)?;
        let bottom = OpenDirectory {
            id: id(&stat),
            parent_path: 0,
            leave: Leave::Restore(times_of(&stat)),
            locked: None,
            acls: Acls::OfHost,
            given: gives_acls(&fd),
            fd: Some(fd),
        };
        Ok(DirSink {
            root: name,
            link_from: (Vec::new(), from),
            root_fd,
            stack: vec![bottom],
            path: Vec::new(),
            file: None,
            owners,
            overwrite: false,
            replacement: Replacement::default(),
            maker: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
            losses: Vec::new(),
            is_broken: false,
        })
    }

    /// Makes the sink replace an existing entry of the same name, once the new one is complete. Existing directories
    /// are merged with directories of the tree. An existing directory where the tree has another kind of entry is an
    /// error.
    pub fn overwriting(mut self) -> DirSink {
        self.overwrite = true;
        let root = &mut self.stack[0];
        root.locked = root.fd.as_ref().and_then(|fd| unlock(fd.as_fd(), self.maker));
        self
    }

    /// Returns a handle to the incomplete replacement of an entry, through which an interrupt can give it up.
    pub fn replacement(&self) -> Replacement {
        self.replacement.clone()
    }

    fn failed(&self, path: &[u8], errno: Errno) -> Error {
        Error::Host { path: shown(&self.root, path), source: errno.into() }
    }

    fn top_directory(&self) -> &OpenDirectory {
        self.stack.last().expect("the root stays on the stack")
    }

    fn top(&self) -> &OwnedFd {
        self.top_directory().fd.as_ref().expect("the directory on top is open")
    }

    /// Puts the directory at `path` on top of the stack.
    fn go_to(&mut self, path: &[u8]) -> Result<()> {
        while !is_inside(path, &self.path) {
            self.leave()?;
        }
        while self.path.len() < path.len() {
            let from = if self.path.is_empty() { 0 } else { self.path.len() + 1 };
            let name = path[from..].split(|byte| *byte == b'/').next().expect("a split has a first part");
            let name = name.to_vec();
            self.enter(&name, None, Acls::OfHost)?;
        }
        Ok(())
    }

    /// Opens a subdirectory of the top directory, which may have `acls`, and pushes it. Without `meta`, it is a directory
    /// that existed before.
    fn enter(&mut self, name: &[u8], meta: Option<Metadata>, acls: Acls) -> Result<()> {
        let path = joined(&self.path, name);
        let failed = |errno| self.failed(&path, errno);
        let (fd, locked) = self.open_directory(name).map_err(failed)?;
        let stat = host::fstat(&fd).map_err(failed)?;
        let leave = match meta {
            Some(meta) => Leave::Finish(Box::new(meta)),
            None => Leave::Restore(times_of(&stat)),
        };
        let given = if acls == Acls::OfHost { gives_acls(&fd) } else { Acls::OfEntry };
        let parent_path = std::mem::replace(&mut self.path, path).len();
        self.stack.push(OpenDirectory {
            fd: Some(fd),
            id: id(&stat),
            parent_path,
            leave,
            locked,
            acls,
            given,
        });
        if let Some(far) = self.stack.len().checked_sub(OPEN_MAX + 1) {
            self.stack[far].fd = None;
        }
        Ok(())
    }

    /// Opens a subdirectory of the top directory. If the sink overwrites, and the permissions of the directory forbid that
    /// to its owner, they are lifted and returned.
    fn open_directory(&self, name: &[u8]) -> Result<(OwnedFd, Option<Mode>), Errno> {
        match host::openat(self.top(), name, DIRECTORY, Mode::empty()) {
            Ok(fd) => {
                let locked = self.overwrite.then(|| unlock(fd.as_fd(), self.maker)).flatten();
                Ok((fd, locked))
            }
            Err(Errno::ACCESS) if self.overwrite => {
                let node = host::openat(self.top(), name, SEARCH, Mode::empty())?;
                let locked = unlock(node.as_fd(), self.maker).ok_or(Errno::ACCESS)?;
                let opened = host::openat(&node, c".", DIRECTORY, Mode::empty());
                if opened.is_err() {
                    set_mode(node.as_fd(), locked)?;
                }
                Ok((opened?, Some(locked)))
            }
            Err(errno) => Err(errno),
        }
    }

    /// Leaves the directory on top of the stack.
    fn leave(&mut self) -> Result<()> {
        let top = self.stack.pop().expect("the root stays on the stack");
        let fd = top.fd.expect("the directory on top is open");
        let path = self.path.clone();
        self.path.truncate(top.parent_path);
        if let Some(above) = self.stack.last_mut().filter(|above| above.fd.is_none()) {
            let opened = host::openat(&fd, c"..", DIRECTORY, Mode::empty());
            match opened.and_then(|opened| Ok((id(&host::fstat(&opened)?), opened))) {
                Ok((id, opened)) if id == above.id => above.fd = Some(opened),
                // The tree was moved during the export, or access to it was withdrawn.
                failed => {
                    self.is_broken = true;
                    return Err(self.failed(&path, failed.err().unwrap_or(Errno::STALE)));
                }
            }
        }
        match top.leave {
            Leave::Finish(meta) => self.finish_fd(fd.as_fd(), &path, &meta, top.acls),
            Leave::Restore(times) => {
                if let Err(errno) = host::futimens(&fd, &times) {
                    self.lose(&path, "its times", errno);
                }
                if let Some(Err(errno)) = top.locked.map(|locked| set_mode(fd.as_fd(), locked)) {
                    self.lose(&path, "its permissions", errno);
                }
            }
        }
        Ok(())
    }

    /// Creates an entry under its name or, if that is taken and the sink overwrites, under a temporary one. Returns
    /// the name that it has until it is [placed](Self::place).
    fn make<'n, T>(
        &self,
        name: &'n [u8],
        path: &[u8],
        make: impl Fn(BorrowedFd<'_>, &[u8]) -> Result<T, Errno>,
    ) -> Result<(T, Cow<'n, [u8]>)> {
        let top = self.top().as_fd();
        match make(top, name) {
            Err(Errno::EXIST) if self.overwrite => match self.is_directory(name) {
                true => Err(Errno::ISDIR),
                false => {
                    self.replacement.make(top, make).map(|(made, name)| (made, name.into_bytes().into()))
                }
            },
            made => made.map(|made| (made, name.into())),
        }
        .map_err(|errno| self.failed(path, errno))
    }

    /// Puts an entry that has a temporary name in its place.
    fn place(&self, name: &[u8], path: &[u8]) -> Result<()> {
        self.replacement.place(name).map_err(|errno| self.failed(path, errno))
    }

    /// Returns true if a name in the top directory is that of a directory.
    fn is_directory(&self, name: &[u8]) -> bool {
        let there = host::statat(self.top(), name, AtFlags::SYMLINK_NOFOLLOW);
        there.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }

    fn directory(&mut self, name: &[u8], entry: &Entry) -> Result<()> {
        let mut acls = self.top_directory().given;
        match host::mkdirat(self.top(), name, MAKING) {
            Ok(()) => {}
            Err(Errno::EXIST) if self.overwrite && !self.is_directory(name) => {
                let failed = |errno| self.failed(&entry.path, errno);
                host::unlinkat(self.top(), name, AtFlags::empty()).map_err(failed)?;
                host::mkdirat(self.top(), name, MAKING).map_err(failed)?;
            }
            Err(Errno::EXIST) => acls = Acls::OfHost,
            Err(errno) => return Err(self.failed(&entry.path, errno)),
        }
        self.enter(name, Some(entry.meta.clone()), acls)
    }

    fn begin_file(&mut self, name: &[u8], entry: &Entry, size: u64) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let acls = self.top_directory().given;
        let mode = self.first_mode(&entry.meta, acls);
        let (fd, _) = self.make(name, &entry.path, |top, name| host::openat(top, name, flags, mode))?;
        let meta = Box::new(entry.meta.clone());
        self.file = Some(OpenFile { fd, path: entry.path.clone(), size, end: 0, meta, acls });
        Ok(())
    }

    fn finish_file(&mut self) {
        let Some(file) = self.file.take() else { return };
        if file.end < file.size {
            if let Err(errno) = host::ftruncate(&file.fd, file.size) {
                self.lose(&file.path, &format!("its size of {} bytes", file.size), errno);
            }
        }
        self.finish_fd(file.fd.as_fd(), &file.path, &file.meta, file.acls);
        if let Err(errno) = self.replacement.place(split(&file.path).1) {
            self.lose(&file.path, "its new content", errno);
        }
    }

    fn symlink(&mut self, name: &[u8], entry: &Entry, target: &[u8]) -> Result<()> {
        let ((), working) = self.make(name, &entry.path, |top, name| host::symlinkat(target, top, name))?;
        self.finish_node(&working, entry, FileType::Symlink, 0)?;
        self.place(name, &entry.path)
    }

    /// Returns `false` for a device that the caller has no right to create.
    fn node(&mut self, name: &[u8], entry: &Entry, kind: FileType, number: DeviceNumber) -> Result<bool> {
        let device = host::makedev(number.major, number.minor);
        let mode = Mode::RUSR | Mode::WUSR;
        match self.make(name, &entry.path, |top, name| host::mknodat(top, name, kind, mode, device)) {
            Ok(((), working)) => {
                self.finish_node(&working, entry, kind, device)?;
                self.place(name, &entry.path).map(|()| true)
            }
            Err(Error::Host { source, .. }) if Errno::from_io_error(&source) == Some(Errno::PERM) => {
                self.tolerate(&entry.path, "a device node, which only root can create", Errno::PERM);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn hard_link(&mut self, name: &[u8], entry: &Entry, to: &[u8]) -> Result<()> {
        check_components(to)?;
        let (dir, first) = split(to);
        if dir != self.path && dir != self.link_from.0 {
            let opened = self.open_below(dir).map_err(|errno| self.failed(to, errno))?;
            self.link_from = (dir.to_vec(), opened);
        }
        let from = if dir == self.path { self.top() } else { &self.link_from.1 };
        self.make(name, &entry.path, |top, name| {
            with_access(from, self.maker, || host::linkat(from, first, top, name, AtFlags::empty()))
        })?;
        self.place(name, &entry.path)
    }

    /// Opens a directory below the root, component by component and without following links.
    fn open_below(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let mut at = host::openat(&self.root_fd, c".", SEARCH, Mode::empty())?;
        for name in components(path) {
            at = with_access(&at, self.maker, || host::openat(&at, name, SEARCH, Mode::empty()))?;
        }
        Ok(at)
    }
}

impl Drop for DirSink {
    fn drop(&mut self) {
        self.replacement.give_up();
        // After an error. Directories whose handle is closed are reopened from below, as in `leave`.
        let mut below: Option<OwnedFd> = None;
        while let Some(OpenDirectory { fd, id: wanted, locked, .. }) = self.stack.pop() {
            let reopened = || {
                let fd = host::openat(below.as_ref()?, c"..", DIRECTORY, Mode::empty()).ok()?;
                (id(&host::fstat(&fd).ok()?) == wanted).then_some(fd)
            };
            let Some(fd) = fd.or_else(reopened) else { return };
            if let Some(locked) = locked {
                // The error has been reported.
                let _ = set_mode(fd.as_fd(), locked);
            }
            below = Some(fd);
        }
    }
}

impl Sink for DirSink {
    fn entry(&mut self, entry: &Entry) -> Result<bool> {
        self.finish_file();
        if entry.path.is_empty() {
            if entry.kind != Kind::Directory {
                return Err(Error::Invalid("the root of a tree must be a directory".into()));
            }
            self.stack[0].leave = Leave::Finish(Box::new(entry.meta.clone()));
            return Ok(true);
        }
        check_components(&entry.path)?;
        let (dir, name) = split(&entry.path);
        self.go_to(dir)?;
        match &entry.kind {
            Kind::Directory => self.directory(name, entry)?,
            Kind::File { size, .. } => self.begin_file(name, entry, *size)?,
            Kind::HardLink { to } => self.hard_link(name, entry, to)?,
            Kind::Symlink { target } => self.symlink(name, entry, target)?,
            Kind::CharDevice(number) => return self.node(name, entry, FileType::CharacterDevice, *number),
            Kind::BlockDevice(number) => return self.node(name, entry, FileType::BlockDevice, *number),
            Kind::Fifo => return self.node(name, entry, FileType::Fifo, DeviceNumber::default()),
            Kind::Socket => return self.node(name, entry, FileType::Socket, DeviceNumber::default()),
        }
        Ok(true)
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
        self.finish_file();
        while !self.stack.is_empty() {
            self.leave()?;
        }
        Ok(())
    }

    fn losses(&mut self) -> Vec<Loss> {
        std::mem::take(&mut self.losses)
    }

    fn is_broken(&self) -> bool {
        self.is_broken
    }
}

/// Creates a directory that only its creator may write to, and opens it. Fails if another user has replaced
/// it meanwhile.
pub fn make_private(folder: impl AsFd, name: &Path) -> io::Result<OwnedFd> {
    host::mkdirat(&folder, name, MAKING)?;
    let made = host::openat(&folder, name, DIRECTORY, Mode::empty())?;
    let stat = host::fstat(&made)?;
    if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & OTHERS_WRITE != 0 {
        let what = "the new directory is not private: another process has changed it, or the file system stores \
                    no owners and permissions";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    Ok(made)
}

fn id(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

#[cfg(test)]
mod tests;
