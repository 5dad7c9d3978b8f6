//! The host is Linux.

mod mounted;
mod unfinished;

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File, FileType, Metadata, Permissions},
    io,
    ops::Range,
    os::{
        fd::AsRawFd,
        unix::{
            ffi::OsStrExt,
            fs::{FileTypeExt, MetadataExt, PermissionsExt},
        },
    },
    path::{Path, PathBuf},
};

pub use block::nbd::{Address, Client};
use f2fs::units::Time;
use f2fs_tree::DirSink;
pub use mounted::{defragment, mount_of, mounted_uuid, resize_mounted, sync_mount};
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, SeekFrom, seek},
    io::Errno,
};
pub use unfinished::Unfinished;

use crate::interrupt;

/// The number of the error of a file system that has found damage (Linux, `EFSCORRUPTED`).
pub const DAMAGED: i32 = Errno::UCLEAN.raw_os_error();

/// True if a file can get the name of another one that is open.
pub const REPLACES_OPEN_FILES: bool = true;

/// Makes an interrupt keep the entry that a sink is about to replace.
pub fn keep_on_interrupt(sink: &DirSink) {
    let replacement = sink.replacement();
    interrupt::clean_up(move || replacement.give_up());
}

/// Returns a name of a volume as a name of the host.
pub fn name_of(bytes: &[u8]) -> io::Result<OsString> {
    Ok(OsStr::from_bytes(bytes).to_owned())
}

/// Returns the number of bytes at the start of a host's path in which a colon belongs to the path.
pub fn drive_bytes(_: &[u8]) -> usize {
    0
}

/// Returns the user and group that own what the calling user makes.
pub fn caller() -> (u32, u32) {
    (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw())
}

/// Returns the permissions and the time of a file of the host.
pub fn permissions_and_time(facts: &Metadata) -> (u16, Time) {
    let mtime = Time { seconds: facts.mtime(), nanoseconds: facts.mtime_nsec() as u32 };
    ((facts.mode() & 0o777) as u16, mtime)
}

/// Returns true if a file may have holes: it has fewer blocks than bytes. Files that the kernel generates look the same,
/// and only a read finds their end.
pub fn may_have_holes(facts: &Metadata) -> bool {
    facts.blocks() * 512 < facts.len()
}

/// Returns the first range of data from `offset` on in a file of `size` bytes; `None` if a hole reaches to the end. All is data
/// if the file system does not report holes. The position of the file changes.
pub fn next_data(file: &File, offset: u64, size: u64) -> io::Result<Option<Range<u64>>> {
    let start = match seek(file, SeekFrom::Data(offset)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => offset,
        Err(errno) => return Err(errno.into()),
    };
    let end = seek(file, SeekFrom::Hole(start)).ok().filter(|hole| *hole > start).unwrap_or(size);
    Ok(Some(start..end))
}

/// Returns true for a file that passes data on instead of keeping it: a terminal, a pipe.
pub fn is_stream(kind: FileType) -> bool {
    kind.is_char_device() || kind.is_fifo()
}

/// Makes a file without a name in this directory. Returns it and a path that reaches it.
pub fn unnamed_file(folder: &Path) -> io::Result<(File, PathBuf)> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR)?);
    let working = reached_by(&file);
    // Without /proc the file could neither be opened again nor be given a name.
    fs::metadata(&working)?;
    Ok((file, working))
}

/// Returns the directory for large temporary files (file-hierarchy(7)).
pub fn temporary_folder() -> PathBuf {
    std::env::var_os("TMPDIR").unwrap_or_else(|| "/var/tmp".into()).into()
}

/// Makes a temporary file in this directory. Returns it and a path that reaches it while it is open.
pub fn temporary_file(folder: &Path) -> io::Result<(File, PathBuf)> {
    let file = tempfile::tempfile_in(folder)?;
    let path = reached_by(&file);
    Ok((file, path))
}

/// Returns the free bytes of a file's file system that the caller may use, if the system tells them.
pub fn free_bytes(file: &File) -> io::Result<Option<u64>> {
    let facts = rustix::fs::fstatvfs(file)?;
    Ok(facts.f_bavail.checked_mul(facts.f_frsize))
}

/// Gives a file without a name a new one.
pub fn name_file(file: &File, path: &Path) -> io::Result<()> {
    Ok(rustix::fs::linkat(CWD, reached_by(file), CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

/// Returns a path that reaches an open file, even one without a name.
fn reached_by(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Returns the permissions of a new file, if it does not have them by itself.
pub fn new_file_permissions() -> Option<Permissions> {
    let mask = rustix::process::umask(Mode::empty());
    rustix::process::umask(mask);
    Some(Permissions::from_mode(0o666 & !mask.bits()))
}

/// Returns true if two paths lead to one file or block device.
pub fn is_same(one: &Path, other: &Path) -> bool {
    let (Ok(one), Ok(other)) = (fs::metadata(one), fs::metadata(other)) else { return false };
    let are_devices = one.file_type().is_block_device() && other.file_type().is_block_device();
    (one.dev(), one.ino()) == (other.dev(), other.ino()) || (are_devices && one.rdev() == other.rdev())
}

/// Returns true if a directory lies on the file system of a block device, or on a mount of an image.
pub fn lies_on(folder: &Path, image: &Path) -> bool {
    let (Ok(folder), Ok(facts)) = (fs::metadata(folder), fs::metadata(image)) else { return false };
    let is_on_mount = match block::in_use(image) {
        Ok(Some(block::InUse::Mounted { at, .. })) => {
            fs::metadata(at).is_ok_and(|mount| mount.dev() == folder.dev())
        }
        _ => false,
    };
    is_on_mount || (facts.file_type().is_block_device() && facts.rdev() == folder.dev())
}

/// Returns the model of a zoned block device: `host-aware`, `host-managed`.
pub fn zone_model(path: &Path) -> io::Result<Option<String>> {
    let facts = fs::metadata(path)?;
    let device = facts.rdev();
    let of = format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    // A partition has the queue of its disk.
    let queues = ["queue/zoned", "../queue/zoned"].map(|queue| format!("{of}/{queue}"));
    let model = queues.iter().find_map(|queue| fs::read_to_string(queue).ok());
    let model = model.map(|model| model.trim().to_owned()).filter(|model| model != "none");
    Ok(model.filter(|_| facts.file_type().is_block_device()))
}
