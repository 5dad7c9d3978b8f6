//! The content of files: opening, reading, writing, copying, ranges and holes.

use std::{ops::Range, os::fd::BorrowedFd};

use f2fs::{
    format::{FileType, inode::flag},
    units::Ino,
    volume::{SetAttr, Stat, without_privilege},
};

use super::{Answer, Caller, Change, FileSystem, refuse_sealed, to_errno};
use crate::Errno;

/// Bytes that one step of a copy within the volume moves while it has the volume for itself.
const COPY_BYTES: usize = 1 << 20;

/// Space is short where so much is not left beside what waits in the kernel's cache: as much as it may take before
/// somebody asks again.
const SHORT_BYTES: u64 = 64 << 20;

/// The extended attribute with a program's capabilities, which go when it is written to.
const CAPABILITY: &[u8] = b"security.capability";

/// How a file is opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenMode {
    /// For writing.
    pub write: bool,
    /// By a program, for reading and nothing else.
    pub only_reads: bool,
    /// Reading it is no access.
    pub keeps_atime: bool,
    /// Every write goes to the end.
    pub append: bool,
    /// What it holds goes.
    pub truncate: bool,
    /// The truncation takes set-user-id and set-group-id bits away.
    pub drops_privilege: bool,
}

/// How data is written.
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteMode {
    /// From the kernel's cache: who put it there is known as well as [`FileSystem::about_to_write`] was told.
    pub from_cache: bool,
    /// Set-user-id and set-group-id bits go.
    pub drops_privilege: bool,
    /// And so do the file's capabilities.
    pub drops_capabilities: bool,
}

impl FileSystem {
    /// Opens a file or directory. Says whether that counted as an access, of which the kernel does not know.
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
            self.inodes.opened_to_overwrite(ino);
        }
        // What the kernel has is read without our knowing. Who opens a file to read it will.
        let reads_unseen = cached && mode.only_reads && !mode.keeps_atime;
        let accessed = reads_unseen && stat.kind == FileType::Regular && self.inodes.take_atime_due(ino);
        Ok(accessed && self.renew_atime(ino))
    }

    /// A new file is open already.
    pub fn opened_new(&self, ino: Ino, write: bool) {
        self.inodes.opened(ino, write, false);
        if write {
            self.inodes.opened_to_overwrite(ino);
        }
    }

    /// Closes what [`open`](Self::open) has opened.
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

    /// Gives `pass` the image and where in it a part of a file lies, at most up to its end, while nothing changes
    /// there; whether that could be done, and `pass` did it. [`read`](Self::read) is the way where not.
    pub fn pass(
        &self,
        ino: Ino,
        offset: u64,
        length: u64,
        pass: impl FnOnce(BorrowedFd<'_>, &[Range<u64>]) -> bool,
    ) -> Answer<bool> {
        if self.inodes.take_atime_due(ino) {
            self.renew_atime(ino);
        }
        let volume = self.read_lock()?;
        // It is gone once the volume is closed.
        let Some(image) = self.image.upgrade() else { return Ok(false) };
        let Some(file) = image.file_to_read() else { return Ok(false) };
        let ranges = volume.ranges_on_device(ino, offset, length).map_err(to_errno)?;
        Ok(ranges.is_some_and(|ranges| pass(file, &ranges)))
    }

    /// Somebody may be about to write to a file: write(2) asks for its size first, where that is not kept any more.
    /// Says whether the kernel had better write back what it has before that, and then ask for
    /// [`written_back`](Self::written_back): when space is short, and where writing has failed. Who only writes on
    /// would not be told by anybody else that nothing of it can be kept.
    pub fn about_to_write(&self, caller: Caller, ino: Ino) -> bool {
        let fails = self.inodes.about_to_write(ino, self.may_exceed_limits(caller));
        let careful = self.leaves_short_of_space(0) || fails;
        if careful {
            // Of what failed before, close(2) and fsync(2) tell.
            self.inodes.take_failure(ino);
        }
        careful
    }

    /// How writing back went, of this file and of all that was [to be](Self::to_write_back).
    pub fn written_back(&self, ino: Ino) -> Answer<()> {
        if self.unwritten.is_kept() {
            self.waiting.is_over();
        }
        self.inodes.take_failure(ino).map_or(Ok(()), Err)
    }

    /// What the kernel is to write back before somebody who is [about to write](Self::about_to_write) does: this file,
    /// and what would not fit any more.
    pub fn to_write_back(&self, ino: Ino) -> Vec<Ino> {
        match self.leaves_short_of_space(0) {
            true => self.unwritten.take_before_write(ino, || self.inodes.open_for_writing()),
            false => vec![ino],
        }
    }

    /// What the kernel is to write back before so many bytes are reserved: what might not fit any more.
    pub fn to_write_back_before_allocating(&self, bytes: u64) -> Vec<Ino> {
        match self.leaves_short_of_space(bytes) {
            true => self.unwritten.take(|| self.inodes.open_for_writing()),
            false => Vec::new(),
        }
    }

    /// Whether what the kernel has in its cache may not fit once so many bytes are taken.
    fn leaves_short_of_space(&self, bytes: u64) -> bool {
        let space = self.space();
        let short = space.is_ok_and(|(space, block_bytes)| {
            let taken = self.waiting.bytes().saturating_add(bytes);
            space.free_blocks < SHORT_BYTES.saturating_add(taken) / u64::from(block_bytes)
        });
        if !short {
            self.unwritten.forget();
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

    /// Copies between files of the volume, or within one; says how many bytes, fewer than asked for at the end of
    /// the source. The kernel has refused ranges that overlap.
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
                // The kernel may have more of it than is here: then it copies by itself.
                Ok(0) if done == 0 && self.inodes.has_writer(from) => return Err(Errno::XDEV),
                Ok(0) => break,
                Ok(count) => done += count as u64,
                // What was copied counts, and who asks for the rest is told.
                Err(_) if done > 0 => break,
                Err(error) => return Err(to_errno(error)),
            }
        }
        Ok(done)
    }

    /// Reserves, frees, zeroes or shifts a range, with the modes of fallocate(2). Those that shift do not come from
    /// Linux's FUSE, which refuses them before it asks.
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

    /// The first byte of data at or after `offset`.
    pub fn seek_data(&self, ino: Ino, offset: u64) -> Answer<u64> {
        self.read_lock()?.seek_data(ino, offset).map_err(to_errno)?.ok_or(Errno::NXIO)
    }

    /// The first byte of a hole at or after `offset`; the end of the file is one.
    pub fn seek_hole(&self, ino: Ino, offset: u64) -> Answer<u64> {
        self.read_lock()?.seek_hole(ino, offset).map_err(to_errno)?.ok_or(Errno::NXIO)
    }
}
