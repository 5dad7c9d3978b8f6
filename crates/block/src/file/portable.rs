//! Regular files through the standard library, for systems other than Linux.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{OpenOptions, ReadPattern};
use crate::{ATOMIC_BYTES, DiscardUnit, Geometry, InUse};

/// An open regular file.
///
/// The standard library has positional access on some systems only, so requests take turns with the one
/// position of the file.
#[derive(Debug)]
pub(super) struct Handle {
    file: Mutex<File>,
    writer: Option<InUse>,
}

impl Handle {
    pub(super) fn open(path: &Path, options: OpenOptions) -> io::Result<Handle> {
        if options.direct {
            let what = "only Linux has files that bypass the page cache";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        // The kind is checked by name first: opening a FIFO would block.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let mut open = File::options();
        open.read(true).write(options.write);
        share(&mut open, options);
        let file = open.open(path).map_err(busy)?;
        Handle::adopt(file, path, options)
    }

    /// Creates an empty file, open for writing.
    pub(super) fn new_file(path: &Path) -> io::Result<File> {
        let mut open = File::options();
        open.read(true).write(true).create_new(true);
        share(&mut open, OpenOptions { write: true, direct: false });
        open.open(path)
    }

    pub(super) fn adopt(file: File, _: &Path, options: OpenOptions) -> io::Result<Handle> {
        let writer = claim(&file, options)?;
        Ok(Handle { file: Mutex::new(file), writer })
    }

    fn file(&self) -> MutexGuard<'_, File> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn geometry(&self) -> io::Result<Geometry> {
        Ok(Geometry { size_bytes: self.file().metadata()?.len(), sector_bytes: ATOMIC_BYTES as u32 })
    }

    pub(super) fn is_block_device(&self) -> bool {
        false
    }

    pub(super) fn writer(&self) -> Option<&InUse> {
        self.writer.as_ref()
    }

    /// The standard library gives no advice.
    pub(super) fn expect_reads(&self, _: ReadPattern) {}

    pub(super) fn set_size(&self, size_bytes: u64) -> io::Result<()> {
        self.file().set_len(size_bytes)
    }

    pub(super) fn punch(&self, _: u64, _: u64) -> io::Result<bool> {
        Ok(false)
    }

    pub(super) fn extent(&self, _: u64, end_bytes: u64) -> (u64, bool) {
        (end_bytes, false)
    }

    pub(super) fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut file = self.file();
        file.seek(SeekFrom::Start(offset_bytes))?;
        file.read_exact(buf)
    }

    pub(super) fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        let mut file = self.file();
        file.seek(SeekFrom::Start(offset_bytes))?;
        file.write_all(buf)
    }

    pub(super) fn flush(&self) -> io::Result<()> {
        self.file().sync_data()
    }

    /// The standard library has no discards.
    pub(super) fn discard_unit(&self, _: Geometry) -> io::Result<Option<DiscardUnit>> {
        Ok(None)
    }

    pub(super) fn discard(&self, _: u64, _: u64) -> io::Result<bool> {
        Ok(false)
    }
}

/// Windows claims a file as it is opened: other programs may read it, but not write it beside a writer.
#[cfg(windows)]
fn share(open: &mut std::fs::OpenOptions, options: OpenOptions) {
    use std::os::windows::fs::OpenOptionsExt;
    // FILE_SHARE_READ and FILE_SHARE_WRITE of CreateFileW.
    open.share_mode(if options.write { 1 } else { 1 | 2 });
}

#[cfg(not(windows))]
fn share(_: &mut std::fs::OpenOptions, _: OpenOptions) {}

/// Names the user behind Windows' ERROR_SHARING_VIOLATION.
fn busy(error: io::Error) -> io::Error {
    const SHARING_VIOLATION: i32 = 32;
    match error.raw_os_error() {
        Some(SHARING_VIOLATION) if cfg!(windows) => InUse::Writer.into(),
        _ => error,
    }
}

/// Locks the file, beside other readers or exclusively. Returns the writer that a reader has met.
#[cfg(unix)]
fn claim(file: &File, options: OpenOptions) -> io::Result<Option<InUse>> {
    use rustix::{
        fs::{FlockOperation, flock},
        io::Errno,
    };
    let lock = match options.write {
        true => FlockOperation::NonBlockingLockExclusive,
        false => FlockOperation::NonBlockingLockShared,
    };
    match flock(file, lock) {
        Err(Errno::WOULDBLOCK) if options.write => Err(InUse::Writer.into()),
        Err(Errno::WOULDBLOCK) => Ok(Some(InUse::Writer)),
        locked => Ok(locked.map(|()| None)?),
    }
}

#[cfg(not(unix))]
fn claim(_: &File, _: OpenOptions) -> io::Result<Option<InUse>> {
    Ok(None)
}
