//! The policy of the kernel's cache in front of a volume: how long names and attributes stay valid, when the
//! kernel has to write its dirty pages back, and on whose behalf it does.
//!
//! Only this mount changes the volume, so the kernel may cache names and attributes for long. There are three
//! exceptions:
//!
//! - Attributes of files open for writing are cached briefly or not at all. The kernel does not count their
//!   blocks. Its GETATTR before write(2) also tells us which process writes, and lets us report that earlier
//!   data could not be written back.
//! - Names in casefolded directories are not cached: one name has several spellings there.
//! - Nor are names in encrypted directories, which change with their keys.

mod dirty_files;
mod dirty_pages;
mod files;
mod free_space;
mod system_call;

use std::{sync::Arc, time::Duration};

use f2fs::{engine::Stat, format::FileType, units::Ino};
use posix::{Credentials, Errno, FileSystem, OpenFor, OpenMode, Result, WriteMode, WriteOrigin};

use self::{
    dirty_files::DirtyFiles,
    dirty_pages::DirtyPages,
    files::Files,
    free_space::{FreeSpace, Margin},
};

pub use self::system_call::is_known_to_read;

/// Validity of cached names and attributes; see the module.
pub const VALIDITY: Duration = Duration::from_secs(3600);
/// Validity of what the kernel must not cache.
pub const NO_VALIDITY: Duration = Duration::ZERO;

/// The answer to a process that may be about to write to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BeforeWrite {
    /// The kernel may accept data, and asks again after this time.
    Accept(Duration),
    /// The kernel has to write back its dirty pages first.
    WriteBack,
    /// A request that may [end all writes](Protection) to the file has to be answered first.
    Wait,
}

/// A time in the history of a mount, as the number of writers that have closed their file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadFrom(u64);

/// A request under way after which a file may accept no more writes. It ends on drop.
pub struct Protection {
    cache: Arc<KernelCache>,
    ino: Ino,
}

impl Protection {
    /// Returns an error of the kernel's write-back of the file since the request began.
    pub fn failure(&self) -> Option<Errno> {
        self.cache.files.take_failure(self.ino)
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        self.cache.files.end_protection(self.ino);
    }
}

/// The state of the kernel's cache as far as it is known.
pub struct KernelCache {
    fs: Arc<FileSystem>,
    files: Files,
    dirty_files: DirtyFiles,
    dirty_pages: DirtyPages,
    margin: Margin,
}

impl KernelCache {
    /// Creates the state of an empty cache.
    pub fn new(fs: Arc<FileSystem>) -> KernelCache {
        KernelCache {
            fs,
            files: Files::default(),
            dirty_files: DirtyFiles::default(),
            dirty_pages: DirtyPages::default(),
            margin: Margin::of_this_machine(),
        }
    }

    // Validity.

    /// Returns the time from which attributes are about to be read, for [`attr_validity`](Self::attr_validity).
    pub fn now(&self) -> ReadFrom {
        ReadFrom(self.fs.closed_writers())
    }

    /// Returns the validity of attributes of an inode that were read after `from`. If a writer has closed a file since, they
    /// may lack its last data, and nobody would tell the kernel.
    pub fn attr_validity(&self, stat: &Stat, from: ReadFrom) -> Duration {
        let is_written = || self.fs.has_writer(stat.ino) || self.now() != from;
        if stat.kind == FileType::Regular && is_written() { NO_VALIDITY } else { VALIDITY }
    }

    /// Returns the validity of attributes in the answer to a change of them, which were read after `from`. A known writer
    /// of the file may go on without a question for as long as after [its own one](Self::about_to_write): many programs
    /// set the mode of a new file before they write to it.
    pub fn validity_after_change(&self, stat: &Stat, from: ReadFrom) -> Duration {
        let is_written = self.fs.has_writer(stat.ino) && self.files.may_writer_go_on(stat.ino);
        match is_written.then(|| self.space_left_after(0)) {
            Some(FreeSpace::Enough { ask_again_after }) => ask_again_after,
            Some(FreeSpace::Short) => NO_VALIDITY,
            None => self.attr_validity(stat, from),
        }
    }

    /// Returns the validity of the names in a directory.
    pub fn name_validity(&self, dir: Ino) -> Duration {
        if self.fs.names_are_exact(dir) { VALIDITY } else { NO_VALIDITY }
    }

    // Opening and closing.

    /// Opens a file. Returns true if this updated the access time, of which the kernel does not know.
    pub fn open(&self, caller: Credentials, ino: Ino, mode: OpenMode) -> Result<bool> {
        self.fs.open(caller, ino, mode)?;
        let may_have_content = self.files.open(ino);
        // The kernel serves cached content without asking us. So an open for reading counts as the access.
        let reads_unseen = may_have_content && mode.only_reads && !mode.keeps_atime;
        Ok(reads_unseen && self.fs.access(ino))
    }

    /// Notes that a new file was opened when it was made.
    pub fn note_opened(&self, ino: Ino) {
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
    /// one has expired. If the answer is to write back, the caller calls [`written_back`](Self::written_back)
    /// after that. That is the case when space is short, and after a failed write-back: a process that only keeps
    /// writing would otherwise never learn of the failure.
    pub fn about_to_write(&self, caller: Credentials, ino: Ino) -> BeforeWrite {
        let fails = self.files.set_writer(ino, self.fs.limits_for(caller));
        if self.files.is_being_protected(ino) {
            return BeforeWrite::Wait;
        }
        match self.space_left_after(0) {
            FreeSpace::Enough { ask_again_after } if !fails => BeforeWrite::Accept(ask_again_after),
            _ => {
                // Earlier failures of the kernel's own write-back are reported by close(2) and fsync(2).
                self.files.drop_failure(ino);
                BeforeWrite::WriteBack
            }
        }
    }

    /// Begins a request after which a file may accept no more writes. Until the result is dropped, writers
    /// [wait](BeforeWrite::Wait).
    pub fn begin_protection(self: &Arc<Self>, ino: Ino) -> Protection {
        self.files.begin_protection(ino);
        // Earlier failures of the kernel's own write-back are reported by close(2) and fsync(2).
        self.files.drop_failure(ino);
        Protection { cache: self.clone(), ino }
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
        match self.space_left_after(0) {
            FreeSpace::Short => self.dirty_files.take_before_write(ino, || self.fs.open_for_writing()),
            FreeSpace::Enough { .. } => vec![ino],
        }
    }

    /// Returns the files that the kernel has to write back before `bytes` are reserved: those whose data
    /// might no longer fit. The list is empty if an earlier request has taken them, which may still wait for
    /// their data. Their failures are then to be [kept](Self::keep_failures). Returns `None` if there is plenty of space.
    pub fn to_write_back_before_allocating(&self, bytes: u64) -> Option<Vec<Ino>> {
        let is_short = self.space_left_after(bytes) == FreeSpace::Short;
        is_short.then(|| self.dirty_files.take(|| self.fs.open_for_writing()))
    }

    /// Returns the state of the space once `bytes` are taken, besides the kernel's dirty pages. A space that is
    /// not known counts as enough: the write reports the reason.
    fn space_left_after(&self, bytes: u64) -> FreeSpace {
        let free = self.fs.space().map_or(u64::MAX, |(space, block_bytes)| {
            space.free_blocks.saturating_mul(block_bytes.into()).saturating_sub(bytes)
        });
        let state = self.margin.judge(free, |max_age| self.dirty_pages.amounts(max_age));
        if matches!(state, FreeSpace::Enough { .. }) {
            self.dirty_files.stop();
        }
        state
    }

    /// Writes dirty pages of the kernel to a file, on behalf of the process that was [last about to
    /// write](Self::about_to_write).
    pub fn write_dirty(
        &self,
        caller: Credentials,
        ino: Ino,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<()> {
        let mode = WriteMode { origin: WriteOrigin::Cache(self.files.limits_of_writer(ino)), ..mode };
        let written = self.fs.write(caller, ino, offset, data, mode);
        let written = written.map_err(|errno| self.fs.cause_of_loss(errno));
        written.inspect_err(|errno| self.files.record_failure(ino, *errno))
    }
}
