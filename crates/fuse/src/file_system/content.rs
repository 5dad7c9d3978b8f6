//! File content: open, read, write, copy, fallocate, and seeking data and holes.

use std::{ops::Range, os::fd::BorrowedFd};

use f2fs::{
    format::{FileType, inode::flag},
    units::Ino,
    volume::{SetAttr, Stat, without_privilege},
};

use super::{Answer, Caller, Change, FileSystem, refuse_sealed, to_errno};
use crate::Errno;

/// Bytes that a copy moves per step. Each step locks the volume exclusively.
const COPY_BYTES: usize = 1 << 20;

/// Space is short if less than this is left besides the dirty pages in the kernel. It is more than the kernel
/// accepts until it asks for attributes again.
const SHORT_BYTES: u64 = 64 << 20;

/// The extended attribute with a program's capabilities, which a write to the file removes.
const CAPABILITY: &[u8] = b"security.capability";

/// Properties of an open.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenMode {
    /// It is opened for writing.
    pub write: bool,
    /// A program opens it for reading only.
    pub only_reads: bool,
    /// Reading does not update the access time (O_NOATIME).
    pub keeps_atime: bool,
    /// Every write appends (O_APPEND).
    pub append: bool,
    /// The content is removed (O_TRUNC).
    pub truncate: bool,
    /// The truncation clears the set-user-id and set-group-id bits.
    pub drops_privilege: bool,
}

/// Properties of a write.
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteMode {
    /// A write-back from the page cache. The writing process is the one that [`FileSystem::about_to_write`]
    /// was told of last.
    pub from_cache: bool,
    /// The write clears the set-user-id and set-group-id bits.
    pub drops_privilege: bool,
    /// The write removes the file's capabilities.
    pub drops_capabilities: bool,
}

impl FileSystem {
    /// Opens a file or directory. Returns true if this updated the access time, of which the kernel does not
    /// know.
    pub fn open(&self, caller: Caller, ino: Ino, mode: OpenMode) -> Answer<bool> {
        let stat = self.stat(ino)?;
        if stat.kind == FileType::Regular && stat.encrypted {
            return Err(Errno::NOKEY);
        }
        if mode.write {
            refuse_sealed(&stat)?;
            let appends_only = stat.flags & flag::APPEND != 0;
            if stat.flags & flag::IMMUTABLE != 0 || appends_only && (!mode.append || mode.truncate) {
                return Err(Errno::PERM);
            }
            if let Some(_reason) = self.read_lock()?.read_only_reason() {
                return Err(Errno::ROFS);
            }
        }
        if mode.truncate && stat.kind == FileType::Regular {
            let drops_privilege = mode.drops_privilege;
            self.change(caller, ino, &Change { size: Some(0), drops_privilege, ..Change::default() })?;
        }
        let cached = self.inodes.opened(ino, mode.write, !mode.keeps_atime);
        if mode.write && !mode.append {
            self.inodes.mark_overwritable(ino);
        }
        // The kernel serves cached content without asking us. So an open for reading counts as the access.
        let reads_unseen = cached && mode.only_reads && !mode.keeps_atime;
        let accessed = reads_unseen && stat.kind == FileType::Regular && self.inodes.take_atime_due(ino);
        Ok(accessed && self.renew_atime(ino))
    }

    /// Notes that a new file is open.
    pub fn opened_new(&self, ino: Ino, write: bool) {
        self.inodes.opened(ino, write, false);
        if write {
            self.inodes.mark_overwritable(ino);
        }
    }

    /// Closes a file that was [opened](Self::open).
    pub fn close(&self, ino: Ino, written: bool) {
        if written {
            self.inodes.closed_writer(ino);
        }
    }

    /// Reads from a file, at most up to its end.
    pub fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Answer<usize> {
        if self.inodes.take_atime_due(ino) {
            self.renew_atime(ino);
        }
        self.read_lock()?.read(ino, offset, buf).map_err(to_errno)
    }

    /// Calls `splice` with the image and the ranges in it that hold a part of a file, at most up to its end.
    /// Nothing changes there meanwhile. Returns false if this is not possible or `splice` fails; then the
    /// caller uses [`read`](Self::read).
    pub fn with_ranges(
        &self,
        ino: Ino,
        offset: u64,
        length: u64,
        splice: impl FnOnce(BorrowedFd<'_>, &[Range<u64>]) -> bool,
    ) -> Answer<bool> {
        if self.inodes.take_atime_due(ino) {
            self.renew_atime(ino);
        }
        let volume = self.read_lock()?;
        // The image is gone once the volume is closed.
        let Some(image) = self.image.upgrade() else { return Ok(false) };
        let Some(file) = image.file_to_read() else { return Ok(false) };
        let ranges = volume.ranges_on_device(ino, offset, length).map_err(to_errno)?;
        Ok(ranges.is_some_and(|ranges| splice(file, &ranges)))
    }

    /// Called when a process may be about to write to a file: write(2) asks for the size first if the cached
    /// one has expired. Returns true if the kernel should write back its dirty pages before that; the caller
    /// then calls [`written_back`](Self::written_back). That is the case when space is short, and after a
    /// failed write-back: a process that only keeps writing would otherwise never learn of the failure.
    pub fn about_to_write(&self, caller: Caller, ino: Ino) -> bool {
        let fails = self.inodes.about_to_write(ino, self.may_exceed_limits(caller));
        let careful = self.leaves_short_of_space(0) || fails;
        if careful {
            // Earlier failures are reported by close(2) and fsync(2).
            self.inodes.take_failure(ino);
        }
        careful
    }

    /// Returns the result of writing back this file, and with it all files that were [to be written
    /// back](Self::to_write_back).
    pub fn written_back(&self, ino: Ino) -> Answer<()> {
        if self.dirty_files.is_maintained() {
            self.dirty_pages.mark_clean();
        }
        self.inodes.take_failure(ino).map_or(Ok(()), Err)
    }

    /// Returns the files that the kernel has to write back before a process that is [about to
    /// write](Self::about_to_write) does so: this file, and when space is short those whose data would no
    /// longer fit.
    pub fn to_write_back(&self, ino: Ino) -> Vec<Ino> {
        match self.leaves_short_of_space(0) {
            true => self.dirty_files.take_before_write(ino, || self.inodes.open_for_writing()),
            false => vec![ino],
        }
    }

    /// Returns the files that the kernel has to write back before `bytes` are reserved: those whose data
    /// might no longer fit.
    pub fn to_write_back_before_allocating(&self, bytes: u64) -> Vec<Ino> {
        match self.leaves_short_of_space(bytes) {
            true => self.dirty_files.take(|| self.inodes.open_for_writing()),
            false => Vec::new(),
        }
    }

    /// Returns true if the kernel's dirty pages may not fit once `bytes` are taken.
    fn leaves_short_of_space(&self, bytes: u64) -> bool {
        let space = self.space();
        let short = space.is_ok_and(|(space, block_bytes)| {
            let taken = self.dirty_pages.bytes().saturating_add(bytes);
            space.free_blocks < SHORT_BYTES.saturating_add(taken) / u64::from(block_bytes)
        });
        if !short {
            self.dirty_files.stop();
        }
        short
    }

    /// Writes to a file.
    pub fn write(&self, caller: Caller, ino: Ino, offset: u64, data: &[u8], how: WriteMode) -> Answer<()> {
        let WriteMode { from_cache, drops_privilege, drops_capabilities } = how;
        let privileged = match from_cache {
            true => self.inodes.writer_is_privileged(ino),
            false => self.may_exceed_limits(caller),
        };
        let mut volume = self.lock(privileged)?;
        let written = match from_cache {
            _ if self.inodes.is_overwritable(ino) => volume.overwrite_cached(ino, offset, data),
            true => volume.write_cached(ino, offset, data),
            false => volume.write(ino, offset, data),
        };
        if let Err(errno) = written.map_err(to_errno) {
            if from_cache {
                self.inodes.write_failed(ino, errno);
            }
            return Err(errno);
        }
        if drops_privilege {
            let Stat { mode, gid, .. } = volume.stat(ino).map_err(to_errno)?;
            if let Some(permissions) = without_privilege(mode, || caller.is_in(gid)) {
                let set = SetAttr { permissions: Some(permissions), ..SetAttr::default() };
                volume.set_attr(ino, &set).map_err(to_errno)?;
            }
        }
        if drops_capabilities && volume.get_xattr(ino, CAPABILITY).is_ok() {
            volume.remove_xattr(ino, CAPABILITY).map_err(to_errno)?;
        }
        Ok(())
    }

    /// Copies between files of the volume, or within one. Returns the number of bytes copied, which is less
    /// than requested at the end of the source. The kernel has refused overlapping ranges.
    pub fn copy(
        &self,
        caller: Caller,
        (from, from_offset): (Ino, u64),
        (to, to_offset): (Ino, u64),
        length: u64,
    ) -> Answer<u64> {
        self.renew_atime(from);
        let mut buf = vec![0; COPY_BYTES.min(length.try_into().unwrap_or(COPY_BYTES))];
        let mut done = 0;
        while done < length {
            let step = buf.len().min((length - done).try_into().unwrap_or(usize::MAX));
            let mut volume = self.write_lock_for(caller)?;
            let count = volume.read(from, from_offset + done, &mut buf[..step]).and_then(|count| {
                volume.write(to, to_offset + done, &buf[..count])?;
                Ok(count)
            });
            match count {
                // The kernel may have data that is not written back yet; with EXDEV it copies by itself.
                Ok(0) if done == 0 && self.inodes.has_writer(from) => return Err(Errno::XDEV),
                Ok(0) => break,
                Ok(count) => done += count as u64,
                // A partial copy succeeds; the next request returns the error.
                Err(_) if done > 0 => break,
                Err(error) => return Err(to_errno(error)),
            }
        }
        Ok(done)
    }

    /// Reserves, frees, zeroes or shifts a range (fallocate(2)). Linux's FUSE refuses the shifting modes
    /// itself and never sends them.
    pub fn allocate(&self, caller: Caller, ino: Ino, offset: u64, length: u64, mode: u32) -> Answer<()> {
        const KEEP_SIZE: u32 = 1;
        const PUNCH_HOLE: u32 = 2;
        const COLLAPSE_RANGE: u32 = 8;
        const ZERO_RANGE: u32 = 0x10;
        const INSERT_RANGE: u32 = 0x20;
        let keep_size = mode & KEEP_SIZE != 0;
        if length == 0 {
            return Err(Errno::INVAL);
        }
        let mut volume = self.write_lock_for(caller)?;
        match mode & !KEEP_SIZE {
            0 => volume.allocate_range(ino, offset, length, keep_size),
            PUNCH_HOLE if keep_size => volume.punch_hole(ino, offset, length),
            ZERO_RANGE => volume.zero_range(ino, offset, length, keep_size),
            COLLAPSE_RANGE if !keep_size => volume.collapse_range(ino, offset, length),
            INSERT_RANGE if !keep_size => volume.insert_range(ino, offset, length),
            _ => return Err(Errno::OPNOTSUPP),
        }
        .map_err(to_errno)
    }

    /// Returns the offset of the first byte of data at or after `offset`.
    pub fn seek_data(&self, ino: Ino, offset: u64) -> Answer<u64> {
        self.read_lock()?.seek_data(ino, offset).map_err(to_errno)?.ok_or(Errno::NXIO)
    }

    /// Returns the offset of the first hole at or after `offset`; the end of the file counts as a hole.
    pub fn seek_hole(&self, ino: Ino, offset: u64) -> Answer<u64> {
        self.read_lock()?.seek_hole(ino, offset).map_err(to_errno)?.ok_or(Errno::NXIO)
    }
}
