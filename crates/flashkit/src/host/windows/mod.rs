//! The host is Windows.

mod mounted;
mod unfinished;

use std::{
    ffi::OsString,
    fs::{self, File, FileType, Metadata, Permissions},
    io,
    ops::Range,
    os::windows::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    str::FromStr,
};

use block::MemoryDevice;
use f2fs::units::Time;
use f2fs_tree::DirSink;
pub use mounted::{DAMAGED, defragment, mount_of, mounted_uuid, resize_mounted, sync_mount};
pub use unfinished::Unfinished;

/// FILE_SHARE_READ, FILE_SHARE_WRITE and FILE_SHARE_DELETE of CreateFileW.
const SHARE_ALL: u32 = 1 | 2 | 4;
/// FILE_FLAG_DELETE_ON_CLOSE.
const DELETE_ON_CLOSE: u32 = 0x0400_0000;

/// True if a file can get the name of another one that is open. Some versions and file systems of Windows refuse.
pub const REPLACES_OPEN_FILES: bool = false;

/// Does nothing on an interrupt: on Windows a sink removes an entry before it makes the new one.
pub fn keep_on_interrupt(_: &DirSink) {}

/// Returns a name of a volume as a name of the host. Names of Windows are Unicode.
pub fn name_of(bytes: &[u8]) -> io::Result<OsString> {
    let what = "the name is not UTF-8, and names of Windows are Unicode";
    let name = std::str::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, what))?;
    Ok(name.into())
}

/// Returns the number of bytes at the start of a host's path in which a colon belongs to the path: those of a drive (`C:`),
/// behind the prefix of a path that Windows does not interpret (`\\?\C:`).
pub fn drive_bytes(path: &[u8]) -> usize {
    let start = if path.starts_with(br"\\?\") { 4 } else { 0 };
    match &path[start..] {
        [drive, b':', ..] if drive.is_ascii_alphabetic() => start + 2,
        _ => 0,
    }
}

/// Returns the user and group that own what the calling user makes: root, since Windows has no such numbers.
pub fn caller() -> (u32, u32) {
    (0, 0)
}

/// Returns the permissions and the time of a file of the host. Windows has no permissions of Linux.
pub fn permissions_and_time(facts: &Metadata) -> (u16, Time) {
    let permissions = if facts.permissions().readonly() { 0o444 } else { 0o644 };
    (permissions, facts.modified().map(Time::from).unwrap_or_default())
}

/// Returns true if a file may have holes. The standard library does not tell.
pub fn may_have_holes(_: &Metadata) -> bool {
    false
}

/// Returns the first range of data from `offset` on in a file of `size` bytes. The standard library does not report holes, so
/// all is data.
pub fn next_data(_: &File, offset: u64, size: u64) -> io::Result<Option<Range<u64>>> {
    Ok((offset < size).then_some(offset..size))
}

/// Returns true for a file that passes data on instead of keeping it.
pub fn is_stream(_: FileType) -> bool {
    false
}

/// Makes a file without a name in this directory, which Windows does not have.
pub fn unnamed_file(_: &Path) -> io::Result<(File, PathBuf)> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Returns the directory for large temporary files.
pub fn temporary_folder() -> PathBuf {
    std::env::temp_dir()
}

/// Makes a temporary file in this directory. Returns it and a path that reaches it while it is open.
pub fn temporary_file(folder: &Path) -> io::Result<(File, PathBuf)> {
    let make = |path: &Path| {
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        options.share_mode(SHARE_ALL).custom_flags(DELETE_ON_CLOSE).open(path)
    };
    let (file, path) = tempfile::Builder::new().make_in(folder, make)?.into_parts();
    Ok((file, path.keep()?))
}

/// Returns the free bytes of a file's file system, which the standard library does not tell.
pub fn free_bytes(_: &File) -> io::Result<Option<u64>> {
    Ok(None)
}

/// Gives a file without a name a new one.
pub fn name_file(_: &File, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Returns the permissions of a new file, if it does not have them by itself.
pub fn new_file_permissions() -> Option<Permissions> {
    None
}

/// Returns true if two paths lead to one file.
pub fn is_same(one: &Path, other: &Path) -> bool {
    matches!((fs::canonicalize(one), fs::canonicalize(other)), (Ok(one), Ok(other)) if one == other)
}

/// Returns true if a directory lies on a mount of an image. Windows mounts no F2FS.
pub fn lies_on(_: &Path, _: &Path) -> bool {
    false
}

/// Returns the model of a zoned block device. Only files are devices here.
pub fn zone_model(_: &Path) -> io::Result<Option<String>> {
    Ok(None)
}

/// Address of an NBD server. The client needs Unix, so no text is one.
#[derive(Debug, Clone)]
pub enum Address {}

impl FromStr for Address {
    type Err = io::Error;

    fn from_str(_: &str) -> io::Result<Address> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The client of an NBD server, which needs Unix.
pub struct Client;

impl Client {
    /// Connects to a server, of which there is none.
    pub fn connect(address: &Address) -> io::Result<MemoryDevice> {
        match *address {}
    }
}
