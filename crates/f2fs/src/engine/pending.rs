//! Device work that an operation waits for: a flush, the end of a checkpoint, or a turn for readers.
//!
//! *Invariant*: between the `begin_*` method and [`Engine::finish`] the volume does not change, unless only a flush is left
//! ([`PendingSync::is_only_flush`]). A caller that shares the volume can therefore admit readers in the meantime, and must
//! keep writers waiting. The order of writes is that of a checkpoint written in one go: everything but the last block, a
//! flush, the last block, a flush.

use std::sync::Arc;

use super::{
    Engine, Io,
    checkpoint::{Prepared, Reason, TablesWrite},
    fsync::{FileSync, NodesWrite},
    gc::{Cleaning, SpaceStep},
    label::NewLabel,
    quota_sync::QuotaSync,
    write_dirty::DirtyWrite,
};
use crate::{
    Result,
    units::{Ino, Nid},
};

/// Device work that must be done before an operation can continue. It needs only the device, not the volume.
///
/// The volume refuses changes until [`Engine::finish`] has received the outcome, unless [only a flush](Self::is_only_flush)
/// is left.
#[must_use = "the volume refuses changes until `Engine::finish` has the outcome"]
pub struct PendingSync {
    io: Arc<Io>,
    work: Work,
    then: Then,
}

/// The outcome of a [`PendingSync`], for [`Engine::finish`].
#[must_use = "the volume refuses changes until `Engine::finish` has it"]
pub struct SyncOutcome {
    work: Work,
    then: Then,
    result: Result<()>,
}

/// Kinds of device work.
pub(super) enum Work {
    /// No work: gives readers a turn.
    Yield,
    /// One flush.
    Flush,
    /// A flush, the last block of a checkpoint, and another flush.
    Commit(Box<Prepared>),
}

/// The step that follows the device work.
pub(super) enum Then {
    /// Nothing: the operation is complete.
    End,
    /// Continues to write the quota files for a checkpoint.
    WriteQuotas(Box<QuotaSync>),
    /// Continues to write dirty blocks back.
    DirtyWrite(Box<DirtyWrite>),
    /// Continues to write the tables of a checkpoint.
    WriteTables(Box<TablesWrite>),
    /// Writes the pages that a checkpoint could not write, or returns the error.
    WriteWaiting(Reason),
    /// Writes the pages of a file that the checkpoint of an fsync could not write.
    WriteRest(Ino),
    /// Continues to write the pages of a file for its fsync.
    WritePages(Box<FileSync>),
    /// Continues to write the nodes of a file for its fsync.
    WriteNodes(Box<NodesWrite>),
    /// Writes the last node of an fsync, which carries the fsync mark.
    Mark(LastNode),
    /// Writes the label to the next copy of the superblock.
    WriteLabel(NewLabel),
    /// Continues the search for free sections.
    FreeSpace(SpaceStep),
    /// Continues cleaning.
    Clean(Box<Cleaning>),
}

/// The last node that an fsync writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct LastNode {
    pub ino: Ino,
    pub nid: Nid,
    /// True if recovery would have to enter the file's name.
    pub is_new: bool,
}

impl PendingSync {
    /// Returns true if only one flush of the device is left. The volume accepts changes in the meantime, and operations that
    /// wait in [`run`](Self::run) while a flush is under way share the next one. If it fails, report it to [`Engine::flushed`].
    #[must_use]
    pub fn is_only_flush(&self) -> bool {
        matches!((&self.work, &self.then), (Work::Flush, Then::End))
    }

    /// Does the work.
    pub fn run(self) -> SyncOutcome {
        let result = match &self.work {
            Work::Yield => Ok(()),
            Work::Flush => self.io.flush(),
            Work::Commit(prepared) => prepared.write_last(&self.io),
        };
        SyncOutcome { work: self.work, then: self.then, result }
    }

    /// As [`run`](Self::run), without the flush before an [fsync](Engine::begin_fsync) writes its mark: the device is
    /// trusted to keep the order of writes. The flushes of a checkpoint remain.
    pub fn run_without_barrier(self) -> SyncOutcome {
        match &self.then {
            Then::Mark(_) => SyncOutcome { work: self.work, then: self.then, result: Ok(()) },
            _ => self.run(),
        }
    }
}

impl SyncOutcome {
    /// Returns true if the device has done its work.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.result.is_ok()
    }
}

impl Engine {
    /// Continues an operation after its device work; returns `Some` if there is more to do. With `None` or an
    /// error the operation is complete.
    ///
    /// # Errors
    /// Those of the operation that is continued.
    pub fn finish(&mut self, outcome: SyncOutcome) -> Result<Option<PendingSync>> {
        self.is_syncing = false;
        let SyncOutcome { work, then, result } = outcome;
        match work {
            Work::Yield => {}
            Work::Flush => {
                let flushed = self.disk_mut().fail_on_error(result);
                if flushed.is_err() && matches!(then, Then::WriteLabel(_)) {
                    self.read_label();
                }
                flushed?;
            }
            Work::Commit(prepared) => self.commit(*prepared, result)?,
        }
        match then {
            Then::End => Ok(None),
            Then::WriteQuotas(sync) => self.go_on_with_quotas(sync),
            Then::DirtyWrite(work) => self.go_on_writing_dirty(work),
            Then::WriteTables(tables) => self.go_on_with_tables(tables),
            Then::WriteWaiting(reason) => self.write_what_waits(reason),
            Then::WriteRest(ino) => self.write_rest(ino),
            Then::WritePages(sync) => self.go_on_with_fsync(sync),
            Then::WriteNodes(nodes) => self.go_on_with_nodes(nodes),
            Then::Mark(last) => self.write_mark(last),
            Then::WriteLabel(new) => self.write_label(new),
            Then::FreeSpace(step) => self.free_space_from(step),
            Then::Clean(cleaning) => self.go_on_cleaning(cleaning),
        }
    }

    /// As [`finish`](Self::finish), but breaks off a [cleaning](Self::begin_clean_a_little) between two slices: blocks that
    /// have moved stay where they are, and the places that they left become free with the next checkpoint.
    ///
    /// # Errors
    /// Those of [`finish`](Self::finish).
    pub fn finish_without_cleaning(&mut self, outcome: SyncOutcome) -> Result<Option<PendingSync>> {
        match &outcome.then {
            Then::Clean(cleaning) if !cleaning.is_for_space() => {
                self.is_syncing = false;
                Ok(None)
            }
            _ => self.finish(outcome),
        }
    }

    /// Reports the outcome of a flush that was [the only work left](PendingSync::is_only_flush). After a failed flush the
    /// volume refuses changes, because the content of the device is unknown.
    ///
    /// # Errors
    /// The error of the flush.
    pub fn flushed(&mut self, outcome: SyncOutcome) -> Result<()> {
        self.disk_mut().fail_on_error(outcome.result)
    }

    /// Runs the rest of an operation at once, for callers that do not share the volume.
    pub(super) fn complete(&mut self, pending: Option<PendingSync>) -> Result<()> {
        let mut next = pending;
        while let Some(pending) = next {
            next = self.finish(pending.run())?;
        }
        Ok(())
    }

    pub(super) fn pending(&mut self, work: Work, then: Then) -> PendingSync {
        let pending = PendingSync { io: self.disk().io().clone(), work, then };
        self.is_syncing = !pending.is_only_flush();
        pending
    }
}
