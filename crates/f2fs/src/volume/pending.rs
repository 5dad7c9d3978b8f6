//! Work in progress on the device that a volume waits for: the flushes of a checkpoint, the first flush of an fsync.
//!
//! *Invariant*: between the volume's `begin_*` method and [`Volume::finish`] nothing of the volume changes, so whoever
//! shares it lets readers go on meanwhile and keeps writers waiting. The order on the device is that of a checkpoint
//! written in one go: everything but the last block, a flush, the last block, a flush.

use std::{io, sync::Arc};

use super::{
    Io, Volume,
    checkpoint::{Prepared, Reason},
    gc::{Cleaning, RoomStep},
    label::NewLabel,
};
use crate::{
    Error, Place, Result,
    units::{Ino, Nid},
};

/// Device work that has to be done before an operation goes on. It needs the device only, not the volume.
///
/// The volume refuses changes until [`Volume::finish`] has the outcome.
#[must_use = "the volume refuses changes until `Volume::finish` has the outcome"]
pub struct PendingSync {
    io: Arc<Io>,
    work: Work,
    then: Then,
}

/// The outcome of a [`PendingSync`], for [`Volume::finish`].
#[must_use = "the volume refuses changes until `Volume::finish` has it"]
pub struct SyncOutcome {
    work: Work,
    then: Then,
    result: Result<()>,
}

/// Work on the device.
pub(super) enum Work {
    /// None: readers have a turn.
    Yield,
    /// One flush.
    Flush,
    /// A flush, the last block of a checkpoint, a flush.
    Commit(Box<Prepared>),
}

/// The step that follows once the work is done.
pub(super) enum Then {
    /// None.
    End,
    /// Writes what a checkpoint could not write, or tells of it.
    WriteWaiting(Reason),
    /// Writes what a checkpoint left of a file.
    WriteRest(Ino),
    /// Writes the last node of an fsync, which has the mark.
    Mark(LastNode),
    /// Writes a label to the next copy of the superblock.
    WriteLabel(NewLabel),
    /// Goes on with the search for free sections.
    MakeRoom(RoomStep),
    /// Goes on with cleaning.
    Clean(Box<Cleaning>),
}

/// The last node that an fsync writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct LastNode {
    pub ino: Ino,
    pub nid: Nid,
    /// Recovery would have to enter the file's name.
    pub is_new: bool,
}

impl PendingSync {
    /// Whether all that is left is one flush of the device. Several such share one flush, and the volume takes changes
    /// meanwhile; a flush that failed is reported to [`Volume::flushed`].
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
}

impl Volume {
    /// Goes on with an operation once its device work is done; `Some` where there is more to do. An operation is
    /// complete, successfully or not, with `None` or an error.
    pub fn finish(&mut self, outcome: SyncOutcome) -> Result<Option<PendingSync>> {
        self.is_syncing = false;
        let SyncOutcome { work, then, result } = outcome;
        match work {
            Work::Yield => {}
            Work::Flush => self.fail_on_error(result)?,
            Work::Commit(prepared) => self.commit(*prepared, result)?,
        }
        match then {
            Then::End => Ok(None),
            Then::WriteWaiting(reason) => self.write_what_waits(reason),
            Then::WriteRest(ino) => self.write_rest(ino),
            Then::Mark(last) => self.write_mark(last).map(Some),
            Then::WriteLabel(new) => self.write_label(new),
            Then::MakeRoom(step) => self.make_room_from(step),
            Then::Clean(cleaning) => self.go_on_cleaning(cleaning),
        }
    }

    /// How the flush went that was [all that was left](PendingSync::is_only_flush) and that others shared. After one
    /// that failed the volume refuses changes: nobody knows what is on the device.
    pub fn flushed(&mut self, result: io::Result<()>) -> Result<()> {
        self.fail_on_error(result.map_err(|source| Error::Io { at: Place::Volume, source }))
    }

    /// Does all that is left of an operation at once, for callers that share the volume with nobody.
    pub(super) fn complete(&mut self, pending: Option<PendingSync>) -> Result<()> {
        let mut next = pending;
        while let Some(pending) = next {
            next = self.finish(pending.run())?;
        }
        Ok(())
    }

    pub(super) fn pending(&mut self, work: Work, then: Then) -> PendingSync {
        let pending = PendingSync { io: self.io.clone(), work, then };
        self.is_syncing = !pending.is_only_flush();
        pending
    }

    /// Begins a checkpoint, and what follows it.
    pub(super) fn checkpoint_then(&mut self, reason: Reason, then: Then) -> Result<PendingSync> {
        let prepared = self.prepare_checkpoint(reason)?;
        Ok(self.pending(Work::Commit(Box::new(prepared)), then))
    }
}
