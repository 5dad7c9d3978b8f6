//! Owners and permissions of new entries, through the C library: fakeroot and pseudo wrap its functions, but not the system
//! calls that rustix makes.

use std::{
    fs::{File, Permissions},
    io,
    os::{
        fd::BorrowedFd,
        unix::fs::{PermissionsExt, fchown},
    },
};

use rustix::io::Errno;

use crate::Metadata;

/// Returns the owner and the group of an entry. Fails for a number that stands for no change in the system calls: the
/// entry would stay with its maker, and keep its set-id bits.
pub(super) fn owner_of(meta: &Metadata) -> Result<(u32, u32), Errno> {
    if meta.uid == u32::MAX || meta.gid == u32::MAX { Err(Errno::INVAL) } else { Ok((meta.uid, meta.gid)) }
}

/// Sets owner and group.
pub(super) fn set_owner(fd: BorrowedFd<'_>, (uid, gid): (u32, u32)) -> Result<(), Errno> {
    fchown(fd, Some(uid), Some(gid)).map_err(|error| errno_of(&error))
}

/// Sets permissions.
pub(super) fn set_permissions(fd: BorrowedFd<'_>, permissions: u16) -> Result<(), Errno> {
    let set = |file: File| file.set_permissions(Permissions::from_mode(permissions.into()));
    fd.try_clone_to_owned().map(File::from).and_then(set).map_err(|error| errno_of(&error))
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
