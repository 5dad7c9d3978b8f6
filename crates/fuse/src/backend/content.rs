//! Requests for the content of files.

use std::os::fd::BorrowedFd;

use f2fs::units::Ino;
use fuse_protocol::{
    Errno, Output, Request, Response, WhenCrowded,
    abi::{self, opened},
};
use posix::{FileSystem, OpenFor, OpenMode, Result, SyncScope, WriteMode, WriteOrigin};
use rustix::fs::OFlags;

use super::{Adapter, REQUEST_BYTES, WriteCaching, caller_of};

/// Minimum length of a read that is spliced from the image to the kernel. For shorter reads two copies are
/// cheaper than a pipe.
const SPLICE_BYTES_MIN: u32 = 64 << 10;
/// Maximum length that one COPY_FILE_RANGE copies, in bytes, so that the caller can be interrupted in between.
const COPY_BYTES_MAX: u64 = 64 << 20;

/// Open flags of regular files: the page cache survives close, and direct writes may run in parallel.
const FILE_OPEN: u32 = opened::KEEP_CACHE | opened::PARALLEL_DIRECT_WRITES;
const DIRECTORY_OPEN: u32 = opened::KEEP_CACHE | opened::CACHE_DIR;

#[derive(Clone, Copy)]
enum Whence {
    Data,
    Hole,
}

impl Adapter {
    pub(super) fn open(&self, request: &mut Request<'_>, output: &mut Output) -> Result<()> {
        let (ino, caller) = (self.ino(request.header.node), caller_of(request.header));
        let abi::OpenIn { flags, open_flags } = request.arguments.take()?;
        let mode = open_mode(flags, open_flags);
        let accessed = self.cache.open(caller, ino, mode)?;
        if mode.open_for == OpenFor::Writing || accessed {
            // From now on the kernel has to ask for attributes before each write; see `cache`. An
            // access time that we have just set is a change that the kernel does not know of, either.
            self.drop_attributes(request.header.node);
        }
        output.put(&self.opened(mode.open_for));
        Ok(())
    }

    pub(super) fn open_dir(&self, request: &Request<'_>, output: &mut Output) -> Result<()> {
        self.fs.open(caller_of(request.header), self.ino(request.header.node), OpenMode::default())?;
        // The names of encrypted directories change with the keys.
        let open_flags = if self.fs.has_encryption() { 0 } else { DIRECTORY_OPEN };
        output.put(&abi::OpenOut { handle: 0, open_flags, padding: 0 });
        Ok(())
    }

    /// Returns the answer to OPEN of a regular file.
    pub(super) fn opened(&self, open_for: OpenFor) -> abi::OpenOut {
        let open_flags = if self.caching == WriteCaching::Bypassed && open_for == OpenFor::Writing {
            FILE_OPEN | opened::DIRECT_IO
        } else {
            FILE_OPEN
        };
        abi::OpenOut { handle: (open_for == OpenFor::Writing).into(), open_flags, padding: 0 }
    }

    pub(super) fn release(&self, request: &mut Request<'_>) -> Result<()> {
        let handle = request.arguments.take::<abi::ReleaseIn>()?.handle;
        self.cache.close(self.ino(request.header.node), use_of(handle));
        Ok(())
    }

    pub(super) fn read(&self, request: &mut Request<'_>, response: &mut Response) -> Result<()> {
        let ino = self.ino(request.header.node);
        let abi::ReadIn { offset, size, read_flags, .. } = request.arguments.take()?;
        let size = size.min(REQUEST_BYTES);
        if read_flags & abi::LOCK_OWNER == 0 {
            self.cache.mark_cached(ino);
        }
        let is_spliced = size >= SPLICE_BYTES_MIN && {
            let splice = |file: BorrowedFd<'_>, ranges: &[_]| response.splice(file, ranges);
            self.fs.with_ranges(ino, offset, size.into(), splice)?
        };
        if !is_spliced {
            response.output.fill(size as usize, |room| self.fs.read(ino, offset, room))?;
        }
        Ok(())
    }

    pub(super) fn write(&self, request: &mut Request<'_>, response: &mut Response) -> Result<()> {
        let (ino, caller) = (self.ino(request.header.node), caller_of(request.header));
        let abi::WriteIn { offset, size, write_flags, flags, .. } = request.arguments.take()?;
        let is_direct = write_flags & abi::LOCK_OWNER != 0;
        // For files that we opened with direct I/O, the kernel leaves dropping capabilities and
        // syncing to us.
        let is_ours = is_direct && self.caching == WriteCaching::Bypassed;
        let mode = WriteMode {
            origin: WriteOrigin::Caller,
            drops_privilege: write_flags & abi::WRITE_KILL_SUIDGID != 0,
            drops_capabilities: is_ours,
        };
        if !is_direct {
            self.cache.mark_cached(ino);
        }
        let data = request.arguments.bytes(size)?;
        let written = match write_flags & abi::WRITE_CACHE {
            0 => self.fs.write(caller, ino, offset, data, mode),
            _ => self.cache.write_dirty(caller, ino, offset, data, mode),
        };
        let written = written.and_then(|()| {
            if is_ours && flags & abi::O_DSYNC != 0 {
                let is_full = OFlags::from_bits_retain(flags).contains(OFlags::SYNC);
                self.fs.fsync(ino, if is_full { SyncScope::Everything } else { SyncScope::Data })?;
            }
            Ok(abi::WriteOut { size, padding: 0 })
        });
        if is_direct && self.cache.may_hold(ino) {
            // After an asynchronous direct write, the kernel invalidates only pages cached before the
            // write. Pages that were read during the write stay and may be stale. After a synchronous
            // direct write it invalidates both times, but we cannot tell the two apart. A failed
            // write may have written part of its data.
            let part = (offset.try_into().unwrap_or(i64::MAX), size.into());
            self.kernel_write_back.part_then(request.header.node, part, response.defer(), move |output| {
                output.put(&written?);
                Ok(())
            });
        } else {
            response.output.put(&written?);
        }
        Ok(())
    }

    pub(super) fn fsync(&self, request: &mut Request<'_>) -> Result<()> {
        let ino = self.ino(request.header.node);
        self.fs.fsync(ino, sync_scope(request)?)?;
        if self.fs.has_writer(ino) {
            // Its blocks can be counted now.
            self.drop_attributes(request.header.node);
        }
        Ok(())
    }

    pub(super) fn allocate(&self, request: &mut Request<'_>, response: &mut Response) -> Result<()> {
        let (ino, caller) = (self.ino(request.header.node), caller_of(request.header));
        let abi::FallocateIn { offset, length, mode, .. } = request.arguments.take()?;
        let fs = self.fs.clone();
        self.when_written_back(length, response, move |_| fs.allocate(caller, ino, offset, length, mode))
    }

    pub(super) fn seek(&self, request: &mut Request<'_>, response: &mut Response) -> Result<()> {
        let ino = self.ino(request.header.node);
        let abi::LseekIn { offset, whence, .. } = request.arguments.take()?;
        let whence = match whence {
            3 => Whence::Data,
            4 => Whence::Hole,
            _ => return Err(Errno::INVAL),
        };
        if self.fs.has_writer(ino) {
            let fs = self.fs.clone();
            let nodes = vec![request.header.node];
            self.kernel_write_back.then(nodes, response.defer(), WhenCrowded::Refuse, move |output| {
                output.put(&seek(&fs, ino, offset, whence)?);
                Ok(())
            });
        } else {
            response.output.put(&seek(&self.fs, ino, offset, whence)?);
        }
        Ok(())
    }

    pub(super) fn copy(&self, request: &mut Request<'_>, response: &mut Response) -> Result<()> {
        let abi::CopyFileRangeIn { offset_in, node_out, offset_out, length, .. } =
            request.arguments.take()?;
        let from = (self.ino(request.header.node), offset_in);
        let to = (self.ino(node_out), offset_out);
        let (fs, caller) = (self.fs.clone(), caller_of(request.header));
        let length = length.min(COPY_BYTES_MAX);
        let copy = move |output: &mut Output| {
            let size = fs.copy(caller, from, to, length)? as u32;
            output.put(&abi::WriteOut { size, padding: 0 });
            Ok(())
        };
        self.when_written_back(length, response, copy)
    }

    /// Answers a request that takes `bytes` of space. If they leave the space short, this waits until the kernel
    /// has written back its dirty pages and all earlier requests of this kind are answered, because the kernel
    /// has accepted that data before.
    fn when_written_back(
        &self,
        bytes: u64,
        response: &mut Response,
        answer: impl FnOnce(&mut Output) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        match self.cache.to_write_back_before_allocating(bytes) {
            None => answer(&mut response.output),
            Some(first) => {
                let cache = self.cache.clone();
                self.after_write_back_for_space(first, response, move |first, output| {
                    cache.keep_failures(first);
                    answer(output)
                });
                Ok(())
            }
        }
    }

    /// Answers a request when the kernel has written back these files, and earlier requests for space are answered. If it
    /// cannot wait, fsync(2) and close(2) report a lack of space.
    pub(super) fn after_write_back_for_space(
        &self,
        files: Vec<Ino>,
        response: &mut Response,
        answer: impl FnOnce(&[Ino], &mut Output) -> Result<()> + Send + 'static,
    ) {
        let nodes = files.iter().map(|ino| self.node(*ino)).collect();
        let reply = response.defer();
        let answer = move |output: &mut Output| answer(&files, output);
        self.kernel_write_back_for_space.then(nodes, reply, WhenCrowded::AnswerAtOnce, answer);
    }
}

fn seek(fs: &FileSystem, ino: Ino, offset: u64, whence: Whence) -> Result<abi::LseekOut> {
    let offset = match whence {
        Whence::Data => fs.seek_data(ino, offset)?,
        Whence::Hole => fs.seek_hole(ino, offset)?,
    };
    Ok(abi::LseekOut { offset })
}

/// Returns the use of an open file from its handle, which is 0 for reading and 1 for writing.
pub fn use_of(handle: u64) -> OpenFor {
    if handle == 0 { OpenFor::Reading } else { OpenFor::Writing }
}

/// Parses the arguments of FSYNC and FSYNCDIR.
pub fn sync_scope(request: &mut Request<'_>) -> Result<SyncScope> {
    match request.arguments.take::<abi::FsyncIn>()?.fsync_flags & abi::FSYNC_DATA {
        0 => Ok(SyncScope::Everything),
        _ => Ok(SyncScope::Data),
    }
}

/// Decodes the flags of an open.
pub fn open_mode(flags: u32, open_flags: u32) -> OpenMode {
    let flags = OFlags::from_bits_retain(flags);
    OpenMode {
        open_for: match flags.intersects(OFlags::WRONLY | OFlags::RDWR) {
            true => OpenFor::Writing,
            false => OpenFor::Reading,
        },
        // For the flags ioctls the kernel opens the file itself, without O_LARGEFILE
        // (`fuse_priv_ioctl_prepare`). A 32-bit program without large-file support looks the same.
        only_reads: !flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC)
            && flags.contains(OFlags::LARGEFILE),
        keeps_atime: flags.contains(OFlags::NOATIME),
        append: flags.contains(OFlags::APPEND),
        truncate: flags.contains(OFlags::TRUNC),
        drops_privilege: open_flags & abi::OPEN_KILL_SUIDGID != 0,
    }
}
