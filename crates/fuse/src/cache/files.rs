//! Per-file state of the kernel's page cache.

use std::sync::{Mutex, MutexGuard};

use f2fs::units::Ino;
use posix::{Errno, Limits};
use rustc_hash::FxHashMap;

const SHARDS: usize = 16;

/// The files that the kernel has opened since it looked them up.
#[derive(Default)]
pub struct Files {
    shards: [Mutex<FxHashMap<Ino, State>>; SHARDS],
}

#[derive(Default)]
struct State {
    /// True if it was read or written through the page cache, which may contain some of its content.
    in_cache: bool,
    /// Limits for the last writer.
    limits: Limits,
    /// True if there is such a writer since the file was opened for writing.
    has_known_writer: bool,
    /// Last write-back error that has not been reported yet.
    failed: Option<Errno>,
    /// The same, of a write-back on behalf of another program, for the next process that writes to the file.
    kept: Option<Errno>,
    /// True if a write-back has failed since the file was opened for writing.
    has_failed: bool,
    /// Number of requests under way after which the file may accept no more writes.
    protections: u32,
}

impl Files {
    /// Notes that a file is opened. Returns true if it was opened before, so that the kernel may have its
    /// content cached, and may read it without asking us.
    pub fn open(&self, ino: Ino) -> bool {
        let mut was_known = true;
        self.shard(ino).entry(ino).or_insert_with(|| {
            was_known = false;
            State::default()
        });
        was_known
    }

    /// Notes that no open for writing is left. The close(2) of each writer has reported failures of its data.
    pub fn close_last_writer(&self, ino: Ino) {
        self.change(ino, |state| {
            (state.kept, state.has_failed, state.has_known_writer) = (None, false, false);
        });
    }

    /// Drops the state of a file that the kernel has forgotten.
    pub fn forget(&self, ino: Ino) {
        self.shard(ino).remove(&ino);
    }

    /// Notes that a file is read or written through the page cache.
    pub fn mark_cached(&self, ino: Ino) {
        self.change(ino, |state| state.in_cache = true);
    }

    /// Returns true if the file [was accessed](Self::mark_cached) through the page cache since the kernel
    /// looked it up.
    pub fn may_be_cached(&self, ino: Ino) -> bool {
        self.shard(ino).get(&ino).is_some_and(|state| state.in_cache)
    }

    /// Notes that a process with these limits writes to the file or may do so. All data that enters the page
    /// cache from now on counts as written by it. Returns true if a write-back has
    /// [failed](Self::record_failure) since the file was opened for writing.
    pub fn set_writer(&self, ino: Ino, limits: Limits) -> bool {
        let mut shard = self.shard(ino);
        let Some(state) = shard.get_mut(&ino) else { return false };
        (state.limits, state.has_known_writer) = (limits, true);
        state.has_failed
    }

    /// Returns true if the [writer](Self::set_writer) of a file is known, and none of its write-backs has failed.
    pub fn may_writer_go_on(&self, ino: Ino) -> bool {
        self.shard(ino).get(&ino).is_some_and(|state| state.has_known_writer && !state.has_failed)
    }

    /// Returns the limits for the last writer.
    pub fn limits_of_writer(&self, ino: Ino) -> Limits {
        self.shard(ino).get(&ino).map(|state| state.limits).unwrap_or_default()
    }

    /// Notes the start of a request after which the file may accept no more writes.
    pub fn begin_protection(&self, ino: Ino) {
        self.change(ino, |state| state.protections += 1);
    }

    /// Notes the end of such a request.
    pub fn end_protection(&self, ino: Ino) {
        self.change(ino, |state| state.protections = state.protections.saturating_sub(1));
    }

    /// Returns true while such a request is under way.
    pub fn is_being_protected(&self, ino: Ino) -> bool {
        self.shard(ino).get(&ino).is_some_and(|state| state.protections > 0)
    }

    /// Records a write-back error.
    pub fn record_failure(&self, ino: Ino, errno: Errno) {
        self.change(ino, |state| (state.failed, state.has_failed) = (Some(errno), true));
    }

    /// Keeps an error that has not been reported yet for the next process that writes to the file: the write-back was on
    /// behalf of another program.
    pub fn keep_failure(&self, ino: Ino) {
        self.change(ino, |state| state.kept = state.failed.take().or(state.kept));
    }

    /// Drops an error that has not been reported yet, unless it is [kept](Self::keep_failure).
    pub fn drop_failure(&self, ino: Ino) {
        self.change(ino, |state| state.failed = None);
    }

    /// Takes the last write-back error that has not been reported yet.
    pub fn take_failure(&self, ino: Ino) -> Option<Errno> {
        let mut shard = self.shard(ino);
        let state = shard.get_mut(&ino)?;
        let kept = state.kept.take();
        state.failed.take().or(kept)
    }

    /// Changes the state of a file if it has one.
    fn change(&self, ino: Ino, change: impl FnOnce(&mut State)) {
        if let Some(state) = self.shard(ino).get_mut(&ino) {
            change(state);
        }
    }

    fn shard(&self, ino: Ino) -> MutexGuard<'_, FxHashMap<Ino, State>> {
        self.shards[ino.index() % SHARDS].lock().expect("no code panics while it holds this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_may_be_cached_from_the_second_open_to_the_forget() {
        let (files, ino) = (Files::default(), Ino(7));
        assert!(!files.open(ino));
        assert!(files.open(ino));
        assert!(!files.may_be_cached(ino));
        files.mark_cached(ino);
        assert!(files.may_be_cached(ino));
        files.forget(ino);
        assert!(!files.may_be_cached(ino) && !files.open(ino));
    }

    #[test]
    fn a_file_is_being_protected_until_the_last_such_request_ends() {
        let (files, ino) = (Files::default(), Ino(7));
        files.open(ino);
        files.begin_protection(ino);
        files.begin_protection(ino);
        files.end_protection(ino);
        assert!(files.is_being_protected(ino));
        files.end_protection(ino);
        assert!(!files.is_being_protected(ino));
    }

    #[test]
    fn a_failure_on_behalf_of_another_program_waits_for_the_next_writer() {
        let (files, ino) = (Files::default(), Ino(7));
        files.open(ino);
        files.record_failure(ino, Errno::NOSPC);
        files.keep_failure(ino);
        files.keep_failure(ino);
        files.record_failure(ino, Errno::IO);
        files.drop_failure(ino);
        assert_eq!((files.take_failure(ino), files.take_failure(ino)), (Some(Errno::NOSPC), None));
    }

    #[test]
    fn a_failure_is_reported_once() {
        let (files, ino) = (Files::default(), Ino(7));
        files.open(ino);
        assert!(!files.may_writer_go_on(ino), "nobody has told who writes");
        assert!(!files.set_writer(ino, Limits::Exempt) && files.may_writer_go_on(ino));
        files.record_failure(ino, Errno::NOSPC);
        assert!(!files.may_writer_go_on(ino));
        assert_eq!(files.limits_of_writer(ino), Limits::Exempt);
        assert_eq!((files.take_failure(ino), files.take_failure(ino)), (Some(Errno::NOSPC), None));
        assert!(files.set_writer(ino, Limits::Exempt));
        files.close_last_writer(ino);
        assert!(!files.may_writer_go_on(ino));
        assert!(!files.set_writer(ino, Limits::Exempt));
    }

    #[test]
    fn a_new_writer_does_not_get_failures_of_writers_that_have_closed_the_file() {
        let (files, ino) = (Files::default(), Ino(7));
        files.open(ino);
        files.record_failure(ino, Errno::NOSPC);
        files.keep_failure(ino);
        files.close_last_writer(ino);
        assert_eq!(files.take_failure(ino), None);
    }
}
