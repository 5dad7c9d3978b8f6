//! Discards: queued after checkpoints, or of all free space at once (trim).

use std::sync::Arc;

use super::{
    Discards, Engine,
    checkpoint::Reason,
    pending::{PendingSync, Then},
};
use crate::{Result, units::SegNo};

impl Engine {
    /// The queue of discards. If [`Options::discard`](super::Options::discard) is set, each checkpoint adds
    /// the blocks that it frees. The caller issues them at any time, from any thread, without the volume.
    pub fn discards(&self) -> &Arc<Discards> {
        self.segments().discards()
    }

    /// Discards all free space in runs of at least `least_blocks` within a segment, and returns the number of
    /// blocks.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the device refuses discards; those of [every
    /// change](Engine#errors).
    pub fn trim(&mut self, least_blocks: u32) -> Result<u64> {
        let pending = self.begin_trim()?;
        self.complete(pending)?;
        let (mut trimmed, mut from) = (0, Some(SegNo(0)));
        while let Some(segment) = from {
            while self.discards().issue()? > 0 {}
            let (blocks, next) = self.trim_from(segment, least_blocks)?;
            (trimmed, from) = (trimmed + blocks, next);
        }
        while self.discards().issue()? > 0 {}
        Ok(trimmed)
    }

    /// Begins a [`trim`](Self::trim) with a checkpoint, because blocks that the last checkpoint needs cannot
    /// be discarded.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the device cannot discard.
    pub fn begin_trim(&mut self) -> Result<Option<PendingSync>> {
        self.start()?;
        self.segments().retry_discards()?;
        if self.segments().is_changed() { self.checkpoint_then(Reason::Sync, Then::End) } else { Ok(None) }
    }

    /// Queues [discards](Self::discards) for the free blocks of the next 16 segments from `from` on, except
    /// the blocks that a log is going to write. Returns the number of blocks, and the segment to continue at
    /// or `None` at the end.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the device refuses discards; those of [every
    /// change](Engine#errors).
    pub fn trim_from(&mut self, from: SegNo, least_blocks: u32) -> Result<(u64, Option<SegNo>)> {
        self.start()?;
        self.segments_mut().discard_free(from, least_blocks)
    }
}
