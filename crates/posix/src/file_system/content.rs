//! File content: open, read, write, copy, fallocate, and seeking data and holes.

use std::{ops::Range, os::fd::BorrowedFd};

use f2fs::{
    engine::{FileSize, Seek, SeekPart, SeekTarget, SetAttr, Stat, without_privilege},
    format::{FileType, inode::flag},
    units::Ino,
};

use super::{
    Change, Credentials, FileSystem, Limits, Result, durability::PART_BYTES, refuse_sealed, to_errno,
};
use crate::{Errno, inodes::FirstAccess, volume_lock::Writing};

/// Bytes that a copy moves per step. Each step locks the volume exclusively.
const COPY_BYTES: usize = 1 << 20;

/// The extended attribute with a program's capabilities, which a write to the file removes.
const CAPABILITY: &[u8] = b"security.capability";

/// Use of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OpenFor {
    /// Its content is not written.
    #[default]
    Reading,
    /// Its content may be written.
    Writing,
}

/// Properties of an open.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenMode {
    /// Use of the open file.
    pub open_for: OpenFor,
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
    /// Origin of the data.
    pub origin: WriteOrigin,
    /// The write clears the set-user-id and set-group-id bits.
    pub drops_privilege: bool,
    /// The write removes the file's capabilities.
    pub drops_capabilities: bool,
}

/// Origin of the data of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteOrigin {
    /// The caller writes it.
    #[default]
    Caller,
    /// A cache of the front end writes it back, on behalf of a writer with these limits.
    Cache(Limits),
}

impl FileSystem {
    /// Opens a file or directory.
    pub fn open(&self, caller: Credentials, ino: Ino, mode: OpenMode) -> Result<()> {
        // A writer is counted before the checks. So one who removes the key or seals the file sees the writer, or the checks
        // see what he has done.
        self.inodes.open(ino, mode.open_for, FirstAccess::Ignored);
        if let Err(errno) = self.prepare_open(caller, ino, mode) {
            self.close(ino, mode.open_for);
            return Err(errno);
        }
        if !mode.keeps_atime {
            self.inodes.open(ino, OpenFor::Reading, FirstAccess::Counts);
        }
        if mode.open_for == OpenFor::Writing && !mode.append {
            self.inodes.mark_overwritable(ino);
        }
        Ok(())
    }

    /// Checks that a file or directory can be opened, and removes its content if that is asked for.
    fn prepare_open(&self, caller: Credentials, ino: Ino, mode: OpenMode) -> Result<()> {
        // Asked before the attributes: a file whose sealing has ended meanwhile has them.
        if mode.open_for == OpenFor::Writing && self.inodes.denies_writers(ino) {
            return Err(Errno::TXTBSY);
        }
        let stat = self.stat(ino)?;
        if stat.kind == FileType::Regular && stat.encrypted {
            self.read_lock()?.require_key(ino).map_err(to_errno)?;
        }
        if mode.open_for == OpenFor::Writing {
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
        Ok(())
    }

    /// Returns true if writes to the content of a file with these attributes can succeed. It is for front ends whose cache
    /// accepts data before a write.
    pub fn accepts_writes(stat: &Stat) -> bool {
        !stat.sealed && !stat.released && stat.flags & (flag::IMMUTABLE | flag::DEVICE_ALIAS) == 0
    }

    /// Counts an access to the content of an open file: the first one after each open renews the access time
    /// if that is due. Returns true if it was renewed.
    pub fn access(&self, ino: Ino) -> bool {
        self.inodes.take_atime_due(ino) && self.renew_atime(ino)
    }

    /// Notes that a new file is open. The caller holds the volume's lock since the file was made.
    pub(super) fn open_new(&self, ino: Ino, open_for: OpenFor) {
        self.inodes.open(ino, open_for, FirstAccess::Ignored);
        if open_for == OpenFor::Writing {
            self.inodes.mark_overwritable(ino);
        }
    }

    /// Closes a file that was [opened](Self::open).
    pub fn close(&self, ino: Ino, open_for: OpenFor) {
        if open_for == OpenFor::Writing {
            self.inodes.close_writer(ino);
        }
    }

    /// Reads from a file, at most up to its end.
    pub fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.access(ino);
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
    ) -> Result<bool> {
        self.access(ino);
        let volume = self.read_lock()?;
        // The image is gone once the volume is closed.
        let Some(image) = self.image.upgrade() else { return Ok(false) };
        let Some(file) = image.file_to_read() else { return Ok(false) };
        let ranges = volume.ranges_on_device(ino, offset, length).map_err(to_errno)?;
        Ok(ranges.is_some_and(|ranges| splice(file, &ranges)))
    }

    /// Writes to a file.
    pub fn write(
        &self,
        caller: Credentials,
        ino: Ino,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<()> {
        let WriteMode { origin, drops_privilege, drops_capabilities } = mode;
        let limits = match origin {
            WriteOrigin::Cache(limits) => limits,
            WriteOrigin::Caller => self.limits_for(caller),
        };
        let mut volume = self.lock(limits)?;
        if drops_privilege {
            let Stat { mode, gid, .. } = self.stat_in(&volume, ino)?;
            if let Some(permissions) = without_privilege(mode, || caller.is_in(gid)) {
                let set = SetAttr { permissions: Some(permissions), ..SetAttr::default() };
                volume.begin().set_attr(ino, &set).map_err(to_errno)?;
            }
        }
        if drops_capabilities && volume.get_xattr(ino, CAPABILITY).is_ok() {
            volume.begin().remove_xattr(ino, CAPABILITY).map_err(to_errno)?;
        }
        let is_overwritable = self.inodes.is_overwritable(ino);
        let mut write = |offset, data: &[u8]| match origin {
            _ if is_overwritable => volume.begin().overwrite_cached(ino, offset, data),
            WriteOrigin::Cache(_) => volume.begin().write_cached(ino, offset, data),
            WriteOrigin::Caller => volume.begin().write(ino, offset, data),
        };
        match (origin, write(offset, data)) {
            (WriteOrigin::Cache(_), Err(f2fs::Error::FileTooLarge)) => write_what_fits(offset, data, write),
            (_, written) => written,
        }
        .map_err(to_errno)
    }

    /// Copies between files of the volume, or within one. Returns the number of bytes copied, which is less
    /// than requested at the end of the source. The kernel has refused overlapping ranges.
    pub fn copy(
        &self,
        caller: Credentials,
        (from, from_offset): (Ino, u64),
        (to, to_offset): (Ino, u64),
        length: u64,
    ) -> Result<u64> {
        self.renew_atime(from);
        let mut buf = vec![0; COPY_BYTES.min(length.try_into().unwrap_or(COPY_BYTES))];
        let mut done = 0;
        while done < length {
            let step = buf.len().min((length - done).try_into().unwrap_or(usize::MAX));
            let mut volume = match self.write_lock_for(caller) {
                Err(_) if done > 0 => break,
                locked => locked?,
            };
            let count = volume.read(from, from_offset + done, &mut buf[..step]).and_then(|count| {
                volume.begin().write(to, to_offset + done, &buf[..count])?;
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
    pub fn allocate(&self, caller: Credentials, ino: Ino, offset: u64, length: u64, mode: u32) -> Result<()> {
        const KEEP_SIZE: u32 = 1;
        const PUNCH_HOLE: u32 = 2;
        const COLLAPSE_RANGE: u32 = 8;
        const ZERO_RANGE: u32 = 0x10;
        const INSERT_RANGE: u32 = 0x20;
        let keep_size = mode & KEEP_SIZE != 0;
        let size = if keep_size { FileSize::Stays } else { FileSize::Grows };
        if length == 0 {
            return Err(Errno::INVAL);
        }
        let kind = mode & !KEEP_SIZE;
        let mut volume = match kind {
            PUNCH_HOLE => self.lock_to_free(self.limits_for(caller))?,
            _ => self.write_lock_for(caller)?,
        };
        match kind {
            COLLAPSE_RANGE if !keep_size => {
                return volume.begin().collapse_range(ino, offset, length).map_err(to_errno);
            }
            INSERT_RANGE if !keep_size => {
                return volume.begin().insert_range(ino, offset, length).map_err(to_errno);
            }
            0 | ZERO_RANGE => check_allocation(&mut volume, ino, offset, length)?,
            PUNCH_HOLE if keep_size => {}
            _ => return Err(Errno::OPNOTSUPP),
        }
        let mut at = offset;
        loop {
            // A range beyond all offsets is left to the volume, which refuses it.
            let part = (at / PART_BYTES + 1).saturating_mul(PART_BYTES) - at;
            let part = part.min(length - (at - offset));
            // If a later part fails, front ends such as the kernel's cache expect that the size has not changed.
            let size = if part == length - (at - offset) { size } else { FileSize::Stays };
            match kind {
                0 => volume.begin().allocate_range(ino, at, part, size),
                PUNCH_HOLE => volume.begin().punch_hole(ino, at, part),
                _ => volume.begin().zero_range(ino, at, part, size),
            }
            .map_err(to_errno)?;
            at += part;
            if at - offset == length {
                return Ok(());
            }
            match kind {
                PUNCH_HOLE => self.between_freed_parts(&mut volume)?,
                _ => self.between_parts(&mut volume)?,
            }
        }
    }

    /// Returns the offset of the first byte of data at or after `offset`.
    pub fn seek_data(&self, ino: Ino, offset: u64) -> Result<u64> {
        self.seek(Seek::new(ino, SeekTarget::Data, offset))
    }

    /// Returns the offset of the first hole at or after `offset`; the end of the file counts as a hole.
    pub fn seek_hole(&self, ino: Ino, offset: u64) -> Result<u64> {
        self.seek(Seek::new(ino, SeekTarget::Hole, offset))
    }

    /// Searches a file in parts, between which writers have turns.
    fn seek(&self, mut seek: Seek) -> Result<u64> {
        loop {
            match self.read_lock()?.seek_part(&mut seek).map_err(to_errno)? {
                SeekPart::Found(offset) => return Ok(offset),
                SeekPart::Nothing => return Err(Errno::NXIO),
                SeekPart::Unfinished => {}
            }
        }
    }
}

/// Checks that a range of a file can be allocated, in parts between which readers have turns. Nothing changes meanwhile.
fn check_allocation(volume: &mut Writing<'_>, ino: Ino, offset: u64, length: u64) -> Result<()> {
    let mut check = volume.begin_allocation_check(ino, offset, length).map_err(to_errno)?;
    while volume.allocation_check_part(&mut check).map_err(to_errno)? {
        volume.let_readers_in(|| ())?;
    }
    Ok(())
}

/// Writes the part of the data that lies before the largest size of a file, and returns the error of the rest. The kernel's
/// cache does not know that size, so one piece of it may have the data of several calls.
fn write_what_fits(
    offset: u64,
    data: &[u8],
    mut write: impl FnMut(u64, &[u8]) -> f2fs::Result<()>,
) -> f2fs::Result<()> {
    let mut fits = 0;
    // A refused write changes nothing.
    for step in (0..usize::BITS).rev().map(|bit| 1 << bit).filter(|step| *step < data.len()) {
        let end = (fits + step).min(data.len());
        match write(offset + fits as u64, &data[fits..end]) {
            Ok(()) => fits = end,
            Err(f2fs::Error::FileTooLarge) => {}
            Err(error) => return Err(error),
        }
    }
    Err(f2fs::Error::FileTooLarge)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use block::MemoryDevice;

    use super::*;
    use crate::{
        file_system::tests::{format, mounted},
        ioctl::{ByteRange, Request},
    };

    const ROOT_USER: Credentials = Credentials { uid: 0, gid: 0, pid: 0 };
    const KEEP_SIZE: u32 = 1;
    /// More than half of the volume, so that it is not free a second time.
    const LONG: u64 = 5 * PART_BYTES;

    /// Mounts a volume with an empty file.
    fn with_file() -> (FileSystem, Ino) {
        let fs = mounted(format(&Arc::new(MemoryDevice::new(512 << 20)), ""));
        let ino = fs.create(ROOT_USER, fs.root().unwrap(), b"file", 0o100_644, 0, None).unwrap().ino;
        (fs, ino)
    }

    /// Number of turns that readers have during `act`.
    fn turns(fs: &FileSystem, act: impl FnOnce()) -> u64 {
        let before = fs.volume.reader_turns();
        act();
        fs.volume.reader_turns() - before
    }

    #[test]
    fn readers_have_turns_while_blocks_past_the_end_are_freed() {
        let (fs, ino) = with_file();
        let allocate = || fs.allocate(ROOT_USER, ino, 0, LONG, KEEP_SIZE).unwrap();
        let sectors = || fs.stat(ino).unwrap().sectors;
        allocate();
        assert!(fs.stat(ino).unwrap().size == 0 && sectors() >= LONG / 512);
        let shorten = Change { size: Some(0), ..Change::default() };
        let turns_of = |act: &dyn Fn()| turns(&fs, act);
        assert!(turns_of(&|| _ = fs.change(ROOT_USER, ino, &shorten).unwrap()) >= LONG / PART_BYTES);
        assert_eq!(sectors(), 0);
        allocate();
        fs.unlink(fs.root().unwrap(), b"file").unwrap();
        assert!(turns_of(&|| fs.forget(ino, 1, || {})) >= LONG / PART_BYTES);
        fs.unmount().unwrap();
    }

    #[test]
    fn readers_have_turns_while_the_space_for_an_allocation_is_counted() {
        let (fs, ino) = with_file();
        let allocate = || turns(&fs, || fs.allocate(ROOT_USER, ino, 0, LONG, 0).unwrap());
        let (once, again) = (allocate(), allocate());
        // A part examines the addresses of some 32 MiB.
        assert!(again >= once + LONG / (40 << 20), "{once}, then {again} turns");
        fs.unmount().unwrap();
    }

    #[test]
    fn writers_have_turns_within_a_search_for_data_or_a_hole() {
        let (fs, ino) = with_file();
        fs.allocate(ROOT_USER, ino, 0, LONG, 0).unwrap();
        for (found, expected) in [
            (FileSystem::seek_data as fn(&FileSystem, Ino, u64) -> Result<u64>, Err(Errno::NXIO)),
            (FileSystem::seek_hole, Ok(LONG)),
        ] {
            let before = fs.requests();
            assert_eq!(found(&fs, ino, 5000), expected);
            let locks = fs.requests() - before;
            assert!(locks >= LONG / (40 << 20), "the volume is locked {locks} times");
            assert_eq!(found(&fs, ino, LONG), Err(Errno::NXIO));
        }
        // Defragmentation passes over what is not data.
        let (before, all) = (fs.requests(), ByteRange { start: 0, length: LONG });
        fs.ioctl(ROOT_USER, ino, OpenFor::Writing, &Request::Defragment(all)).unwrap();
        let locks = fs.requests() - before;
        assert!(locks >= LONG / (40 << 20), "the volume is locked {locks} times");
        fs.write(ROOT_USER, ino, LONG - 7, b"data", WriteMode::default()).unwrap();
        assert_eq!(fs.seek_data(ino, 0), Ok(LONG - 4096));
        fs.unmount().unwrap();
    }
}
