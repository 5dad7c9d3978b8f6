//! Files and block devices through Linux.

// `BLKDISCARD` and `BLKROGET` have no safe wrappers.
#![allow(unsafe_code)]

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt},
    },
    path::Path,
};

use rustix::{
    fs::{Advice, FallocateFlags, OFlags},
    io::Errno,
    ioctl,
};

use super::{FileDevice, OpenOptions, ReadPattern, direct::Bounces, discard_limits::DiscardLimits};
use crate::{
    ATOMIC_BYTES, DiscardUnit, Geometry, InUse,
    host::{
        backing::{is_card, sys},
        claim::{Claim, unlock},
    },
};

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// An open file or block device, with the right to use it.
#[derive(Debug)]
pub(super) struct Handle {
    file: File,
    is_block_device: bool,
    sector_bytes: u32,
    claim: Claim,
    /// Present if requests bypass the page cache.
    bounces: Option<Bounces>,
}

/// Drops the clean pages that the host caches of a block device. A device that another process keeps open
/// keeps its pages, and they are stale after a write by another path: to the file behind a loop device, to
/// the whole disk of a partition.
fn drop_cached_pages(device: &File) {
    // A device that takes no advice has no pages of this kind.
    let _ = rustix::fs::fadvise(device, 0, None, Advice::DontNeed);
}

impl Handle {
    pub(super) fn open(path: &Path, options: OpenOptions) -> io::Result<Handle> {
        // The kind is checked by name first: opening a FIFO would block, and opening a tape would move it.
        let kind = std::fs::metadata(path)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            let what = "neither a regular file nor a block device";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let mut flags = OFlags::CLOEXEC;
        if options.direct {
            flags |= OFlags::DIRECT;
        }
        if options.write && kind.is_block_device() {
            // Some drivers and kernels allow opening a write-protected device for writing, and then fail the
            // writes.
            if is_write_protected(&File::open(path)?)? {
                return Err(io::Error::new(
                    io::ErrorKind::ReadOnlyFilesystem,
                    "the device is write-protected",
                ));
            }
        }
        let file =
            File::options().read(true).write(options.write).custom_flags(flags.bits() as i32).open(path)?;
        Handle::adopt(file, path, options)
    }

    /// Creates an empty file, open for writing.
    pub(super) fn new_file(path: &Path) -> io::Result<File> {
        File::options().read(true).write(true).create_new(true).open(path)
    }

    pub(super) fn adopt(file: File, path: &Path, options: OpenOptions) -> io::Result<Handle> {
        let is_block_device = file.metadata()?.file_type().is_block_device();
        let sector_bytes =
            if is_block_device { rustix::fs::ioctl_blksszget(&file)? } else { ATOMIC_BYTES as u32 };
        let claim = match options.write {
            true => Claim::to_write(&file, path),
            false => Claim::to_read(&file, path),
        };
        let claim = claim.inspect_err(|_| unlock(&file))?;
        if is_block_device && claim.writer().is_none() {
            drop_cached_pages(&file);
        }
        let bounces = options.direct.then(Bounces::default);
        Ok(Handle { file, is_block_device, sector_bytes, claim, bounces })
    }

    pub(super) fn geometry(&self) -> io::Result<Geometry> {
        // The end of a block device is its size (lseek(2)), as with a file.
        let size_bytes = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0))?;
        Ok(Geometry { size_bytes, sector_bytes: self.sector_bytes })
    }

    pub(super) fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    pub(super) fn is_card(&self) -> bool {
        self.is_block_device && self.file.metadata().is_ok_and(|facts| is_card(&sys(facts.rdev())))
    }

    pub(super) fn writer(&self) -> Option<&InUse> {
        self.claim.writer()
    }

    pub(super) fn expect_reads(&self, reads: ReadPattern) {
        let advice = match reads {
            ReadPattern::Scattered => Advice::Random,
            ReadPattern::Usual => Advice::Normal,
        };
        // This only affects speed, and some files accept no advice.
        let _ = rustix::fs::fadvise(&self.file, 0, None, advice);
    }

    pub(super) fn set_size(&self, size_bytes: u64) -> io::Result<()> {
        self.file.set_len(size_bytes)
    }

    pub(super) fn punch(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<bool> {
        match rustix::fs::fallocate(&self.file, PUNCH, offset_bytes, length_bytes) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    pub(super) fn extent(&self, offset_bytes: u64, end_bytes: u64) -> (u64, bool) {
        use rustix::fs::{SeekFrom, seek};
        match seek(&self.file, SeekFrom::Data(offset_bytes)) {
            Ok(data) if data > offset_bytes => (data.min(end_bytes), true),
            Ok(_) => match seek(&self.file, SeekFrom::Hole(offset_bytes)) {
                Ok(hole) if hole > offset_bytes => (hole.min(end_bytes), false),
                _ => (end_bytes, false),
            },
            Err(Errno::NXIO) => (end_bytes, true),
            Err(_) => (end_bytes, false),
        }
    }

    pub(super) fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        match &self.bounces {
            Some(bounces) => bounces.read(&self.file, offset_bytes, buf),
            None => self.file.read_exact_at(buf, offset_bytes),
        }
    }

    pub(super) fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        match &self.bounces {
            Some(bounces) => bounces.write(&self.file, self.sector_bytes, offset_bytes, buf),
            None => self.file.write_all_at(buf, offset_bytes),
        }
    }

    pub(super) fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Returns the unit of discards. `None` if the device has no discards.
    pub(super) fn discard_unit(&self, geometry: Geometry) -> io::Result<Option<DiscardUnit>> {
        Ok(DiscardLimits::of(&self.file)?.unit(geometry))
    }

    /// Discards whole sectors. Returns false if the host cannot do that.
    pub(super) fn discard(&self, start: u64, length: u64) -> io::Result<bool> {
        let done = match self.is_block_device {
            // The kernel also drops the range from its cache if the caller holds the device exclusively.
            true => block_discard(self.claim.alone().as_ref().unwrap_or(&self.file), start, length),
            false => rustix::fs::fallocate(&self.file, PUNCH, start, length),
        };
        match done {
            // Busy: a part of the range is dirty in the cache of a mounted device.
            Ok(()) | Err(Errno::BUSY) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        unlock(&self.file);
    }
}

/// Linux only.
impl FileDevice {
    /// Hands a block device over to a mount, which from then on holds it exclusively. The device can still be
    /// read and written here. Returns true if `mount`, which may be called several times, succeeded.
    /// Otherwise the device stays claimed here.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] if a writer has lost the device to another user. Nothing may be
    /// written any more.
    pub fn hand_over(&self, mount: impl Fn() -> io::Result<()>) -> io::Result<bool> {
        self.handle.claim.hand_over(mount)
    }

    /// Returns the open file to callers that transfer bytes without looking at them. This bypasses the
    /// device's checks and allows reads only. `None` if the device bypasses the page cache, which imposes its
    /// own rules.
    pub fn file_to_read(&self) -> Option<BorrowedFd<'_>> {
        (!self.options.direct).then(|| self.handle.file.as_fd())
    }
}

fn block_discard(file: &File, start: u64, length: u64) -> Result<(), Errno> {
    // Linux, include/uapi/linux/fs.h: BLKDISCARD is _IO(0x12, 119) and takes the start and length in bytes.
    const BLKDISCARD: ioctl::Opcode = ioctl::opcode::none(0x12, 119);
    // SAFETY: the opcode reads two u64 from the pointer and writes nothing, which is what `Setter` promises.
    let request = unsafe { ioctl::Setter::<BLKDISCARD, [u64; 2]>::new([start, length]) };
    // SAFETY: if the file is not a block device, the kernel refuses the opcode without touching the pointer.
    unsafe { ioctl::ioctl(file, request) }
}

/// Returns true if a block device is write-protected, such as a card with its switch set.
fn is_write_protected(file: &File) -> rustix::io::Result<bool> {
    // Linux, include/uapi/linux/fs.h: BLKROGET is _IO(0x12, 94) and gives an int.
    const BLKROGET: ioctl::Opcode = ioctl::opcode::none(0x12, 94);
    // SAFETY: the opcode writes one int to the pointer, which is what `Getter` promises.
    let request = unsafe { ioctl::Getter::<BLKROGET, i32>::new() };
    // SAFETY: if the file is not a block device, the kernel refuses the opcode without touching the pointer.
    unsafe { ioctl::ioctl(file, request) }.map(|answer| answer != 0)
}
