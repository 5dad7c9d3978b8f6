//! Mounts of F2FS volumes, and requests to the file systems behind them.

// The ioctls carry numbers and structures that the kernel accesses through a pointer.
#![allow(unsafe_code)]

use std::{fs::File, io, os::fd::AsFd, os::unix::fs::MetadataExt, path::Path};

use rustix::{fs::Dev, io::Errno, ioctl};

use crate::mounted::{Driver, MountOf};

/// Type of a mount by Linux's own driver.
const LINUX_TYPE: &str = "f2fs";
/// Types of the mounts by `flashkit mount`.
const OWN_TYPES: [&str; 2] = ["fuse.flashkit", "fuseblk.flashkit"];

/// Returns the mount of an F2FS volume that a file or directory lies on.
pub fn mount_of(path: &Path) -> io::Result<Option<MountOf>> {
    let path = path.canonicalize()?;
    let mut mounts = block::mounts()?;
    // A later mount hides an earlier one on the same directory, and the longest directory is the nearest.
    mounts.retain(|mount| path.starts_with(&mount.dir));
    let nearest = mounts.into_iter().rev().reduce(|best, next| {
        let depth = |mount: &block::Mount| mount.dir.components().count();
        if depth(&next) > depth(&best) { next } else { best }
    });
    let Some(mount) = nearest else { return Ok(None) };
    let driver = match mount.kind.as_str() {
        LINUX_TYPE => Driver::Linux,
        kind if OWN_TYPES.contains(&kind) => Driver::Flashkit,
        _ => return Ok(None),
    };
    let source = backing_file(&mount.source).unwrap_or(mount.source);
    Ok(Some(MountOf { at: mount.dir, source: source.into(), driver }))
}

/// Returns the file behind a loop device, by its name.
fn backing_file(device: &str) -> Option<String> {
    let number: Dev = std::fs::metadata(device).ok()?.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let name = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/loop/backing_file")).ok()?;
    Some(name.trim_end_matches('\n').to_owned())
}

/// `struct fsuuid2`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Told {
    length: u8,
    uuid: [u8; 16],
}

/// Returns the UUID of the F2FS volume that is mounted at a directory. `None` if its driver does not tell.
pub fn mounted_uuid(at: &Path) -> io::Result<Option<[u8; 16]>> {
    // Linux, include/uapi/linux/fs.h: FS_IOC_GETFSUUID is _IOR(0x15, 0, struct fsuuid2). FUSE does not pass it on.
    const GET_UUID: ioctl::Opcode = ioctl::opcode::read::<Told>(0x15, 0);
    /// The number under which `flashkit mount` answers.
    const GET_OWN_UUID: ioctl::Opcode = ioctl::opcode::read::<Told>(0xF5, 200);
    let dir = File::open(at)?;
    let told = match ask_uuid::<GET_OWN_UUID>(&dir)? {
        None => ask_uuid::<GET_UUID>(&dir)?,
        told => told,
    };
    Ok(told.filter(|told| told.length == 16).map(|told| told.uuid))
}

/// Asks by one of the two numbers. Returns `None` if the file system does not know it.
fn ask_uuid<const NUMBER: ioctl::Opcode>(dir: &File) -> io::Result<Option<Told>> {
    // SAFETY: both opcodes write one `struct fsuuid2`, of which all bytes are valid, and read nothing.
    let request = unsafe { ioctl::Getter::<NUMBER, Told>::new() };
    // SAFETY: as above. A file system without this ioctl refuses it.
    match unsafe { ioctl::ioctl(dir, request) } {
        Ok(told) => Ok(Some(told)),
        Err(Errno::NOTTY | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Asks the F2FS volume mounted at a directory to resize to this number of blocks.
pub fn resize_mounted(at: &Path, blocks: u64) -> io::Result<()> {
    // Linux, include/uapi/linux/f2fs.h: F2FS_IOC_RESIZE_FS is _IOW(0xF5, 16, __u64).
    const RESIZE: ioctl::Opcode = ioctl::opcode::write::<u64>(0xF5, 16);
    // SAFETY: the opcode reads one u64 from the pointer and writes nothing, which is what `Setter` promises.
    let request = unsafe { ioctl::Setter::<RESIZE, u64>::new(blocks) };
    // SAFETY: as above. A directory of another file system refuses the ioctl.
    unsafe { ioctl::ioctl(File::open(at)?, request) }?;
    Ok(())
}

/// Asks F2FS to move the first `length_bytes` of a file, whole blocks, into order. Returns the number of bytes that were moved.
pub fn defragment(file: &File, length_bytes: u64) -> io::Result<u64> {
    // Linux, include/uapi/linux/f2fs.h: F2FS_IOC_DEFRAGMENT is _IOWR(0xF5, 8, struct f2fs_defragment), a start and a length.
    const DEFRAGMENT: ioctl::Opcode = ioctl::opcode::read_write::<[u64; 2]>(0xF5, 8);
    let mut range = [0, length_bytes];
    // SAFETY: the opcode reads and writes two u64, for which all values are valid.
    let request = unsafe { ioctl::Updater::<DEFRAGMENT, [u64; 2]>::new(&mut range) };
    // SAFETY: as above. A file of another file system refuses the ioctl.
    unsafe { ioctl::ioctl(file, request) }?;
    Ok(range[1])
}

/// Writes what the mount at a directory has in memory to its device.
pub fn sync_mount(at: &Path) -> io::Result<()> {
    let dir = File::open(at)?;
    rustix::fs::syncfs(dir.as_fd())?;
    // FUSE passes syncfs(2) on for block devices only. The sync of a directory is a checkpoint.
    dir.sync_all()
}
