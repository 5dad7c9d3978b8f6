//! Mounts of F2FS volumes, of which Windows has none.

use std::{fs::File, io, path::Path};

use crate::mounted::MountOf;

/// The number of the error of a file system that has found damage; no error has it.
pub const DAMAGED: i32 = -1;

/// Returns the mount of an F2FS volume that a file or directory lies on: none.
pub fn mount_of(_: &Path) -> io::Result<Option<MountOf>> {
    Ok(None)
}

/// Returns the UUID of a mounted volume: none.
pub fn mounted_uuid(_: &Path) -> io::Result<Option<[u8; 16]>> {
    Ok(None)
}

/// Fails: there is no mount that could grow.
pub fn resize_mounted(_: &Path, _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Fails: there is no file of a mount.
pub fn defragment(_: &File, _: u64) -> io::Result<u64> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Fails: there is no mount.
pub fn sync_mount(_: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
