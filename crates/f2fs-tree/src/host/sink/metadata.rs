//! The metadata of new entries: owner, attributes, permissions and times.

use std::{
    ffi::{CStr, OsStr},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::ffi::OsStrExt,
    },
};

use f2fs::{Error, Result, printable, units::Time};
use rustix::{
    fs::{self as host, AtFlags, FileType, Mode, Stat, Timespec, Timestamps, XattrFlags},
    io::Errno,
    process::{Gid, Uid},
};

use super::{
    super::{Owners, shown},
    DirSink, NODE,
    ownership::{owner_of, set_owner, set_permissions},
};
use crate::{Entry, Metadata, export::Loss, transform::capability};

/// Attributes that hold the ACLs of an entry.
const ACLS: [&CStr; 2] = [c"system.posix_acl_access", c"system.posix_acl_default"];

/// ACLs of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Acls {
    /// Those that the tree gives it.
    OfEntry,
    /// It may have some of the host: inherited ones, or its own if it existed before.
    OfHost,
}

/// Returns the ACLs of new entries in a directory.
pub(super) fn gives_acls(dir: impl AsFd) -> Acls {
    // Its existence is enough.
    match host::fgetxattr(dir, ACLS[1], &mut [0_u8]) {
        Ok(1..) | Err(Errno::RANGE) => Acls::OfHost,
        _ => Acls::OfEntry,
    }
}

impl DirSink {
    /// Returns the permissions at a file's creation. If the file stays with its creator, these are the final
    /// ones, which saves a system call. Otherwise only the creator has access until the owner is set.
    pub(super) fn first_mode(&self, meta: &Metadata, acls: Acls) -> Mode {
        let stays = self.owners == Owners::Caller || (meta.uid, meta.gid) == self.maker;
        let bits = if stays && meta.xattrs.is_empty() && acls == Acls::OfEntry {
            meta.permissions & 0o777
        } else {
            0
        };
        Mode::from_raw_mode(bits.into()) | Mode::RUSR | Mode::WUSR
    }

    /// Sets the metadata of a new entry as far as it differs. The owner comes first, because a change of the
    /// owner removes capabilities and set-id bits. The permissions come after the attributes, which can be
    /// set only while the file is writable. The times come last.
    pub(super) fn finish_fd(&mut self, fd: BorrowedFd<'_>, path: &[u8], meta: &Metadata, acls: Acls) {
        let made = host::fstat(fd).ok();
        let owner = made.as_ref().map(|made| (made.st_uid, made.st_gid));
        let mut given = self.owners;
        if given == Owners::Entry && owner != Some((meta.uid, meta.gid)) {
            if let Err(errno) = owner_of(meta).and_then(|owner| set_owner(fd, owner)) {
                given = Owners::Caller;
                self.lose(path, &format!("its owner {}:{}", meta.uid, meta.gid), errno);
            }
        }
        self.drop_acls(path, meta, acls, |name| host::fremovexattr(fd, name));
        self.set_xattrs(path, meta, given, |name, value| {
            host::fsetxattr(fd, name, value, XattrFlags::empty())
        });
        let permissions = self.permissions_of(path, meta, given);
        let had = made.map(|made| made.st_mode & 0o7777);
        // An access ACL changes the permissions, and a change of the owner removes set-id bits.
        if !meta.xattrs.is_empty()
            || acls == Acls::OfHost
            || had != Some(permissions.into())
            || permissions > 0o777
        {
            if let Err(errno) = set_permissions(fd, permissions) {
                self.lose(path, &format!("its permissions {permissions:o}"), errno);
            }
        }
        if let Err(errno) = host::futimens(fd, &times(meta)) {
            self.lose(path, "its times", errno);
        }
    }

    /// Returns the permissions to set: without set-id bits if the entry does not have its owner.
    fn permissions_of(&mut self, path: &[u8], meta: &Metadata, given: Owners) -> u16 {
        if given == Owners::Entry || meta.permissions & 0o6000 == 0 {
            return meta.permissions;
        }
        self.tolerate(path, "its set-user-id or set-group-id bit", Errno::PERM);
        meta.permissions & !0o6000
    }

    /// Removes the ACLs that the tree does not give to an entry.
    fn drop_acls(
        &mut self,
        path: &[u8],
        meta: &Metadata,
        acls: Acls,
        remove: impl Fn(&CStr) -> Result<(), Errno>,
    ) {
        let is_foreign = |name: &&CStr| !meta.xattrs.iter().any(|xattr| *xattr.name == *name.to_bytes());
        for name in ACLS.into_iter().filter(|_| acls == Acls::OfHost).filter(is_foreign) {
            match remove(name) {
                // There is none, or this kind of entry or file system has none.
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                Err(errno) => self.lose(path, "the removal of an ACL that it has from the host", errno),
            }
        }
    }

    /// Sets the attributes. Leaves out the capabilities of a program that does not have its owner, since
    /// capabilities grant more than set-id bits.
    fn set_xattrs(
        &mut self,
        path: &[u8],
        meta: &Metadata,
        given: Owners,
        set: impl Fn(&OsStr, &[u8]) -> Result<(), Errno>,
    ) {
        for xattr in &meta.xattrs {
            let set = match &*xattr.name {
                capability::NAME if given == Owners::Caller => Err(Errno::PERM),
                name => set(OsStr::from_bytes(name), &xattr.value),
            };
            let Err(errno) = set else { continue };
            let what = format!("its attribute {}", printable::name(&xattr.name));
            match errno {
                // The host cannot store it, or the caller lacks the right.
                Errno::PERM
                | Errno::ACCESS
                | Errno::OPNOTSUPP
                | Errno::NOSPC
                | Errno::RANGE
                | Errno::INVAL => {
                    self.tolerate(path, &what, errno);
                }
                _ => self.lose(path, &what, errno),
            }
        }
    }

    /// Does the work of [`finish_fd`](Self::finish_fd) for an entry that cannot be opened. It uses a handle
    /// that stands for the entry itself, even if another entry has taken its name. Calls that do not accept
    /// such a handle reach it through the process's table of open files, where a link is not followed
    /// further.
    pub(super) fn finish_node(
        &mut self,
        name: &[u8],
        entry: &Entry,
        kind: FileType,
        device: u64,
    ) -> Result<()> {
        let (path, meta) = (&entry.path, &entry.meta);
        let failed = |errno| self.failed(path, errno);
        let node = host::openat(self.top(), name, NODE, Mode::empty()).map_err(failed)?;
        let made = host::fstat(&node).map_err(failed)?;
        if (FileType::from_raw_mode(made.st_mode), made.st_rdev, made.st_nlink) != (kind, device, 1) {
            // Another process has replaced the entry.
            return Err(self.failed(path, Errno::STALE));
        }
        let mut given = self.owners;
        if given == Owners::Entry && (made.st_uid, made.st_gid) != (meta.uid, meta.gid) {
            let set = |(uid, gid)| {
                let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
                host::chownat(&node, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH)
            };
            if let Err(errno) = owner_of(meta).and_then(set) {
                given = Owners::Caller;
                self.lose(path, &format!("its owner {}:{}", meta.uid, meta.gid), errno);
            }
        }
        let open_file = format!("/proc/self/fd/{}", node.as_raw_fd());
        let acls = self.top_directory().given;
        self.drop_acls(path, meta, acls, |name| host::removexattr(&*open_file, name));
        self.set_xattrs(path, meta, given, |name, value| {
            host::setxattr(&*open_file, name, value, XattrFlags::empty())
        });
        if kind != FileType::Symlink {
            let mode = Mode::from_raw_mode(self.permissions_of(path, meta, given).into());
            // Not by `chmodat`, which is a system call of its own that fakeroot and pseudo do not see.
            if let Err(errno) = host::chmod(&*open_file, mode) {
                self.lose(path, &format!("its permissions {:o}", meta.permissions), errno);
            }
        }
        let times = times(meta);
        // An empty name works from Linux 5.8 on.
        let set = host::utimensat(&node, c"", &times, AtFlags::EMPTY_PATH);
        if set.or_else(|_| host::utimensat(host::CWD, &*open_file, &times, AtFlags::empty())).is_err() {
            self.lose(path, "its times", set.expect_err("the second try follows an error"));
        }
        Ok(())
    }

    /// Records the loss of a part of an entry.
    pub(super) fn lose(&mut self, path: &[u8], what: &str, errno: Errno) {
        let loss = self.loss(path, what, errno);
        self.losses.push(loss);
    }

    /// Records a loss that is expected because of the destination or the caller's rights.
    pub(super) fn tolerate(&mut self, path: &[u8], what: &str, errno: Errno) {
        let loss = self.loss(path, what, errno);
        self.losses.push(Loss { is_tolerated: true, ..loss });
    }

    fn loss(&self, path: &[u8], what: &str, errno: Errno) -> Loss {
        let error =
            Error::Host { path: format!("{}, {what}", shown(&self.root, path)), source: errno.into() };
        Loss { path: path.to_vec(), error, is_tolerated: false }
    }
}

/// Returns the times of an entry of the host.
pub(super) fn times_of(stat: &Stat) -> Timestamps {
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
