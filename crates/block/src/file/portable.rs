//! Regular files through the standard library, for systems other than Linux.

use std::{fs::File, io, path::Path};

use super::{OpenOptions, ReadPattern};
use crate::{ATOMIC_BYTES, DiscardUnit, Geometry, InUse};

/// An open regular file.
#[derive(Debug)]
pub(super) struct Handle {
    file: File,
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
        Ok(Handle { file, writer })
    }

    pub(super) fn geometry(&self) -> io::Result<Geometry> {
        Ok(Geometry { size_bytes: self.file.metadata()?.len(), sector_bytes: ATOMIC_BYTES as u32 })
    }

    pub(super) fn is_block_device(&self) -> bool {
        false
    }

    pub(super) fn is_card(&self) -> bool {
        false
    }

    pub(super) fn writer(&self) -> Option<&InUse> {
        self.writer.as_ref()
    }

    /// The standard library gives no advice.
    pub(super) fn expect_reads(&self, _: ReadPattern) {}

    pub(super) fn set_size(&self, size_bytes: u64) -> io::Result<()> {
        self.file.set_len(size_bytes)
    }

    pub(super) fn punch(&self, _: u64, _: u64) -> io::Result<bool> {
        Ok(false)
    }

    pub(super) fn extent(&self, _: u64, end_bytes: u64) -> (u64, bool) {
        (end_bytes, false)
    }

    pub(super) fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        positioned::read(&self.file, offset_bytes, buf)
    }

    pub(super) fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        positioned::write(&self.file, offset_bytes, buf)
    }

    pub(super) fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// The standard library has no discards.
    pub(super) fn discard_unit(&self, _: Geometry) -> io::Result<Option<DiscardUnit>> {
        Ok(None)
    }

    pub(super) fn discard(&self, _: u64, _: u64) -> io::Result<bool> {
        Ok(false)
    }
}

/// Reads and writes of whole buffers at a position.
#[cfg(unix)]
mod positioned {
    use std::{fs::File, io, os::unix::fs::FileExt};

    pub(super) fn read(file: &File, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        file.read_exact_at(buf, offset_bytes)
    }

    pub(super) fn write(file: &File, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        file.write_all_at(buf, offset_bytes)
    }
}

/// Reads and writes of whole buffers at a position.
#[cfg(windows)]
mod positioned {
    use std::{fs::File, io, os::windows::fs::FileExt};

    pub(super) fn read(file: &File, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match file.seek_read(&mut buf[done..], offset_bytes + done as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => done += read,
            }
        }
        Ok(())
    }

    pub(super) fn write(file: &File, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match file.seek_write(&buf[done..], offset_bytes + done as u64)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => done += written,
            }
        }
        Ok(())
    }
}

/// A system without positioned access has no files either (WebAssembly in a browser).
#[cfg(not(any(unix, windows)))]
mod positioned {
    use std::{fs::File, io};

    pub(super) fn read(_: &File, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn write(_: &File, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Windows claims a file as it is opened: other programs may read it, but not write it beside a writer.
#[cfg(windows)]
fn share(open: &mut std::fs::OpenOptions, options: OpenOptions) {
    use std::os::windows::fs::OpenOptionsExt;
    // FILE_SHARE_READ, FILE_SHARE_WRITE and FILE_SHARE_DELETE of CreateFileW. The last lets a reader open a temporary file that
    // is removed once it is closed.
    open.share_mode(if options.write { 1 } else { 1 | 2 | 4 });
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
