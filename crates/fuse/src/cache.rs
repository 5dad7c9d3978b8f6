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

mod dirty_files;
mod dirty_pages;
mod files;

use std::{sync::Arc, time::Duration};

use f2fs::{engine::Stat, format::FileType, units::Ino};
use posix::{Caller, FileSystem, OpenFor, OpenMode, Result, WriteMode, WriteOrigin};

use self::{dirty_files::DirtyFiles, dirty_pages::DirtyPages, files::Files};

/// Validity of cached names and attributes; see the module.
pub const VALIDITY: Duration = Duration::from_secs(3600);
/// Validity of what the kernel must not cache.
pub const NO_VALIDITY: Duration = Duration::ZERO;
/// Validity of the attributes of a file that is being written. Asking before each of many small writes would
/// cost more than the writes. Within this time the kernel accepts less data than the margin that [counts as
/// short of space](KernelCache::about_to_write).
pub const VALIDITY_WRITING: Duration = Duration::from_millis(10);

/// Space is short if less than this is left besides the dirty pages in the kernel. It is more than the kernel
/// accepts until it asks for attributes again.
const SHORT_BYTES: u64 = 64 << 20;

/// The state of the kernel's cache as far as it is known.
pub struct KernelCache {
    fs: Arc<FileSystem>,
    files: Files,
    dirty_files: DirtyFiles,
    dirty_pages: DirtyPages,
}

impl KernelCache {
    /// Creates the state of an empty cache.
    pub fn new(fs: Arc<FileSystem>) -> KernelCache {
        KernelCache {
            fs,
            files: Files::default(),
            dirty_files: DirtyFiles::default(),
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
    pub fn open(&self, caller: Caller, ino: Ino, mode: OpenMode) -> Result<bool> {
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
    /// one has expired. Returns true if the kernel should write back its dirty pages before that; the caller
    /// then calls [`written_back`](Self::written_back). That is the case when space is short, and after a
    /// failed write-back: a process that only keeps writing would otherwise never learn of the failure.
    pub fn about_to_write(&self, caller: Caller, ino: Ino) -> bool {
        let fails = self.files.set_writer(ino, self.fs.limits_for(caller));
        let careful = self.leaves_short_of_space(0) || fails;
        if careful {
            // Earlier failures of the kernel's own write-back are reported by close(2) and fsync(2).
            self.files.drop_failure(ino);
        }
        careful
    }

    /// Returns the result of writing back this file, and with it all `files` that were [to be written
    /// back](Self::to_write_back). The failures of the others [are kept](Self::keep_failures).
    pub fn written_back(&self, ino: Ino, files: &[Ino]) -> Result<()> {
        if self.dirty_files.is_maintained() {
            self.dirty_pages.mark_clean();
        }
        let failure = self.files.take_failure(ino);
        self.keep_failures(files);
        failure.map_or(Ok(()), Err)
    }

    /// Keeps the failures of files that were written back on behalf of another program, each for the next process that
    /// writes to the file.
    pub fn keep_failures(&self, files: &[Ino]) {
        files.iter().for_each(|ino| self.files.keep_failure(*ino));
    }

    /// Returns the files that the kernel has to write back before a process that is [about to
    /// write](Self::about_to_write) does so: this file, and when space is short those whose data would no
    /// longer fit.
    pub fn to_write_back(&self, ino: Ino) -> Vec<Ino> {
        match self.leaves_short_of_space(0) {
            true => self.dirty_files.take_before_write(ino, || self.fs.open_for_writing()),
            false => vec![ino],
        }
    }

    /// Returns the files that the kernel has to write back before `bytes` are reserved: those whose data
    /// might no longer fit. The list is empty if an earlier request has taken them, which may still wait for
    /// their data. Their failures are then to be [kept](Self::keep_failures). Returns `None` if there is plenty of space.
    pub fn to_write_back_before_allocating(&self, bytes: u64) -> Option<Vec<Ino>> {
        self.leaves_short_of_space(bytes).then(|| self.dirty_files.take(|| self.fs.open_for_writing()))
    }

    /// Returns true if the kernel's dirty pages may not fit once `bytes` are taken.
    fn leaves_short_of_space(&self, bytes: u64) -> bool {
        let space = self.fs.space();
        let short = space.is_ok_and(|(space, block_bytes)| {
            let taken = self.dirty_pages.bytes().saturating_add(bytes);
            space.free_blocks < SHORT_BYTES.saturating_add(taken) / u64::from(block_bytes)
        });
        if !short {
            self.dirty_files.stop();
        }
        short
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
    ) -> Result<()> {
        let mode = WriteMode { origin: WriteOrigin::Cache(self.files.limits_of_writer(ino)), ..mode };
        let written = self.fs.write(caller, ino, offset, data, mode);
        written.inspect_err(|errno| self.files.record_failure(ino, *errno))
    }
}
