//! The policy of the kernel's cache in front of a volume: how long names and attributes stay valid, when the
//! kernel has to write its dirty pages back, and on whose behalf it does.
//!
//! Only this mount changes the volume, so the kernel may cache names and attributes for long. There are two
//! exceptions:
//!
//! - Attributes of files open for writing are cached briefly or not at all. The kernel does not count their
//!   blocks. Its GETATTR before write(2) also tells us which process writes, and lets us report that earlier
//!   data could not be written back.
//! - Names in casefolded directories are not cached: one name has several spellings there.

mod dirty_data;
mod dirty_pages;
mod files;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use f2fs::{engine::Stat, format::FileType, units::Ino};
use posix::{Caller, FileSystem, OpenFor, OpenMode, WriteMode, WriteOrigin};

use self::{
    dirty_data::{DirtyData, Facts, Writer},
    dirty_pages::{DirtyPages, dirtied_by},
    files::Files,
};

pub use self::dirty_data::WriteBackFirst;

/// Validity of cached names and attributes; see the module.
pub const VALIDITY: Duration = Duration::from_secs(3600);
/// Validity of what the kernel must not cache.
pub const NO_VALIDITY: Duration = Duration::ZERO;
/// Validity of the attributes of a file that is being written. Asking before each of many small writes would
/// cost more than the writes. Within this time the kernel accepts less data than the margin that [counts as
/// short of space](KernelCache::about_to_write).
pub const VALIDITY_WRITING: Duration = Duration::from_millis(10);

/// Space is short if less than this is left besides the dirty pages in the kernel. It is more than the kernel
/// accepts until it asks for attributes again. Twice as much ends the shortage.
const SHORT_BYTES: u64 = 64 << 20;

/// The state of the kernel's cache as far as it is known.
pub struct KernelCache {
    fs: Arc<FileSystem>,
    files: Files,
    dirty_data: DirtyData,
    dirty_pages: DirtyPages,
}

impl KernelCache {
    /// Creates the state of an empty cache.
    pub fn new(fs: Arc<FileSystem>) -> KernelCache {
        KernelCache {
            fs,
            files: Files::default(),
            dirty_data: DirtyData::default(),
            dirty_pages: DirtyPages::default(),
        }
    }

    // Validity.

    /// Returns the validity of the attributes of an inode.
    pub fn attr_validity(&self, stat: &Stat) -> Duration {
        let written = stat.kind == FileType::Regular && self.fs.has_writer(stat.ino);
        if written { NO_VALIDITY } else { VALIDITY }
    }

    /// Returns the validity of the names in a directory.
    pub fn name_validity(&self, dir: Ino) -> Duration {
        if self.fs.names_are_exact(dir) { VALIDITY } else { NO_VALIDITY }
    }

    // Opening and closing.

    /// Opens a file. Returns true if this updated the access time, of which the kernel does not know.
    pub fn open(&self, caller: Caller, ino: Ino, mode: OpenMode) -> posix::Result<bool> {
        self.fs.open(caller, ino, mode)?;
        let may_have_content = self.files.open(ino);
        // The kernel serves cached content without asking us. So an open for reading counts as the access.
        let reads_unseen = may_have_content && mode.only_reads && !mode.keeps_atime;
        Ok(reads_unseen && self.fs.access(ino))
    }

    /// Notes that a new file is open.
    pub fn open_new(&self, ino: Ino, open_for: OpenFor) {
        self.fs.open_new(ino, open_for);
        self.files.open(ino);
    }

    /// Closes a file.
    pub fn close(&self, ino: Ino, open_for: OpenFor) {
        self.fs.close(ino, open_for);
        if open_for == OpenFor::Writing && !self.fs.has_writer(ino) {
            self.files.close_last_writer(ino);
            self.dirty_data.close(ino);
        }
    }

    /// Drops lookup references that the kernel gives back.
    pub fn forget(&self, ino: Ino, lookups: u64) {
        self.fs.forget(ino, lookups, || self.files.forget(ino));
    }

    /// Notes that a file is read or written through the page cache, which may contain some of its content
    /// from now on.
    pub fn mark_cached(&self, ino: Ino) {
        self.files.mark_cached(ino);
    }

    /// Returns true if the page cache may contain content of a file.
    pub fn may_hold(&self, ino: Ino) -> bool {
        self.files.may_be_cached(ino)
    }

    // Dirty pages.

    /// Called when a process may be about to write to a file: write(2) asks for the size first if the cached
    /// one has expired. Returns for how long the process need not ask again, or the write-back that has to end
    /// before it may write; the caller then calls [`written_back`](Self::written_back). A write-back is needed
    /// when space is short, and after a failed one: a process that only keeps writing would otherwise never
    /// learn of the failure.
    pub fn about_to_write(&self, caller: Caller, ino: Ino) -> Result<Duration, WriteBackFirst> {
        let has_failed = self.files.set_writer(ino, self.fs.limits_for(caller));
        let admitted = match self.short_space(0) {
            Some(facts) => {
                let writer = Writer { pid: caller.pid, ino, has_failed };
                self.dirty_data.admit(writer, facts, || self.fs.open_for_writing())
            }
            None if has_failed => Err(WriteBackFirst::of(ino)),
            None => Ok(VALIDITY_WRITING),
        };
        if admitted.is_err() {
            // Earlier failures are reported by close(2) and fsync(2).
            self.files.take_failure(ino);
        }
        admitted
    }

    /// Returns the validity of the attributes of a new file that is open for writing. When space is short, the
    /// process has to ask before its first write.
    pub fn validity_of_new(&self, caller: Caller, ino: Ino) -> Duration {
        self.files.set_writer(ino, self.fs.limits_for(caller));
        let writer = Writer { pid: caller.pid, ino, has_failed: false };
        let admit = |facts| self.dirty_data.admit_creator(writer, facts, || self.fs.open_for_writing());
        self.short_space(0).map_or(VALIDITY_WRITING, admit)
    }

    /// Notes that the kernel has written back files. Returns the error of `ino`, if a process is about to write
    /// to it.
    pub fn written_back(&self, first: &WriteBackFirst, ino: Option<Ino>) -> posix::Result<()> {
        self.dirty_data.written_back(first);
        if self.dirty_data.is_tracked() {
            self.dirty_pages.mark_clean();
        }
        ino.and_then(|ino| self.files.take_failure(ino)).map_or(Ok(()), Err)
    }

    /// Returns the write-back that has to end before a change other than a cached write takes `bytes`, because
    /// accepted data might no longer fit.
    pub fn before_taking(&self, bytes: u64) -> Option<WriteBackFirst> {
        self.dirty_data.before_taking(bytes, self.short_space(bytes)?, || self.fs.open_for_writing())
    }

    /// Returns the facts about the space if it may be short once `bytes` are taken.
    fn short_space(&self, bytes: u64) -> Option<Facts<'static>> {
        let (space, block_bytes) = self.fs.space().ok()?;
        let free_bytes = space.free_blocks.saturating_mul(block_bytes.into());
        let plenty = if self.dirty_data.is_tracked() { 2 * SHORT_BYTES } else { SHORT_BYTES };
        let taken = self.dirty_pages.bytes().saturating_add(bytes);
        if free_bytes >= plenty.saturating_add(taken) {
            self.dirty_data.stop();
            return None;
        }
        Some(Facts { now: Instant::now(), free_bytes, block_bytes, dirtied: &dirtied_by })
    }

    /// Writes dirty pages of the kernel to a file, on behalf of the process that was [last about to
    /// write](Self::about_to_write).
    pub fn write_dirty(
        &self,
        caller: Caller,
        ino: Ino,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> posix::Result<()> {
        let mode = WriteMode { origin: WriteOrigin::Cache(self.files.limits_of_writer(ino)), ..mode };
        let written = self.fs.write(caller, ino, offset, data, mode);
        self.dirty_data.wrote(ino, data.len() as u64);
        written.inspect_err(|errno| self.files.record_failure(ino, *errno))
    }
}
