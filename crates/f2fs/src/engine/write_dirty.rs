//! Writing of all dirty pages and nodes, in slices between which readers get a turn. Pages are written back by `Files`.
//!
//! *Invariant*: nothing changes between two slices, because a [`PendingSync`] is outstanding. So the blocks
//! that were listed at the beginning are all there are, and each is still dirty, unless another one of its
//! cluster was written.

use std::vec::IntoIter;

use super::{
    Engine,
    checkpoint::Reason,
    gc::Cleaning,
    pending::{PendingSync, Then, Work},
};
use crate::{
    Error, Result,
    nodes::Marks,
    units::{Ino, Nid},
};

/// Number of blocks that are written, or moved by cleaning, between two turns of readers. The device gets most of
/// them in runs of up to 960 KiB.
pub(super) const SLICE_BLOCKS: u32 = 32;

/// A write of dirty blocks in progress. It can pause between any two blocks.
pub(super) struct DirtyWrite {
    scope: Scope,
    pages: IntoIter<(Ino, u64)>,
    /// The nodes. They are listed when the pages are written, because that changes nodes.
    nodes: Option<IntoIter<Nid>>,
    next: AfterDirtyWrite,
}

/// The dirty blocks that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// All pages.
    Pages,
    /// The pages of encrypted files.
    EncryptedPages,
    /// All nodes, and before them the pages without which a checkpoint would be incomplete.
    Nodes,
    /// All pages and nodes. The pending runs of the logs go to the device at the end.
    Everything,
}

/// The work that follows a write of dirty blocks.
pub(super) enum AfterDirtyWrite {
    /// Nothing: everything is written.
    End,
    /// Writes the other blocks of a checkpoint, which the second step follows.
    Checkpoint(Reason, Then),
    /// Cleans sections.
    Clean(Box<Cleaning>),
    /// Continues the upkeep with the dirty nodes.
    UpkeepOfNodes(Crowding),
    /// Continues the upkeep with the free space.
    UpkeepOfSpace,
}

/// Relation of the dirty pages and nodes to the free sections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Crowding {
    /// The free sections take all of them.
    Fits,
    /// They must be written now ([`is_crowded`](crate::segments::Segments::is_crowded)).
    Crowded,
}

impl Engine {
    /// Begins to write the dirty pages of a file, without making them durable. Readers get a turn after every few.
    ///
    /// # Errors
    /// Those of [every change](Engine#errors).
    pub fn begin_write_back(&mut self, ino: Ino) -> Result<Option<PendingSync>> {
        self.start()?;
        let pages = self.files().dirty_pages_of(ino).into_iter();
        let (scope, next) = (Scope::Pages, AfterDirtyWrite::End);
        self.go_on_writing_dirty(Box::new(DirtyWrite { scope, pages, nodes: None, next }))
    }

    /// Begins to write dirty blocks; `next` follows.
    pub(super) fn write_dirty_then(
        &mut self,
        scope: Scope,
        next: AfterDirtyWrite,
    ) -> Result<Option<PendingSync>> {
        let pages = self.files().dirty_pages().into_iter();
        self.go_on_writing_dirty(Box::new(DirtyWrite { scope, pages, nodes: None, next }))
    }

    /// Continues a write of dirty blocks with its next slice, and after the last one with the work that follows.
    pub(super) fn go_on_writing_dirty(&mut self, mut work: Box<DirtyWrite>) -> Result<Option<PendingSync>> {
        for _ in 0..SLICE_BLOCKS {
            match self.write_next(&mut work) {
                Ok(true) => {}
                Ok(false) => return self.go_on_after_dirty_write(work.next),
                Err(error) => return self.give_up_dirty_write(error, &work.next),
            }
        }
        Ok(Some(self.pending(Work::Yield, Then::DirtyWrite(work))))
    }

    /// Writes the next block. Returns false if there is none left.
    fn write_next(&mut self, work: &mut DirtyWrite) -> Result<bool> {
        if let Some((ino, block)) = work.pages.next() {
            match work.scope {
                Scope::Nodes => self.files_mut().write_needed_page(ino, block)?,
                Scope::Pages | Scope::Everything => self.files_mut().write_dirty_page(ino, block)?,
                Scope::EncryptedPages => self.files_mut().write_encrypted_page(ino, block)?,
            }
            return Ok(true);
        }
        if matches!(work.scope, Scope::Pages | Scope::EncryptedPages) {
            return Ok(false);
        }
        let nodes = work.nodes.get_or_insert_with(|| self.nodes().dirty_by_log().into_iter());
        if let Some(nid) = nodes.next() {
            self.nodes_mut().write_node(nid, Marks::default())?;
            return Ok(true);
        }
        if work.scope == Scope::Everything {
            self.segments_mut().write_logs()?;
        }
        Ok(false)
    }

    fn go_on_after_dirty_write(&mut self, next: AfterDirtyWrite) -> Result<Option<PendingSync>> {
        match next {
            AfterDirtyWrite::End => Ok(None),
            AfterDirtyWrite::Checkpoint(reason, then) => self.go_on_with_checkpoint(reason, then),
            AfterDirtyWrite::Clean(cleaning) => Ok(Some(self.pending(Work::Yield, Then::Clean(cleaning)))),
            AfterDirtyWrite::UpkeepOfNodes(crowding) => self.upkeep_of_nodes(crowding),
            AfterDirtyWrite::UpkeepOfSpace => self.upkeep_of_space(),
        }
    }

    /// Ends an operation whose write of dirty blocks has failed. A lack of space is not an error if the operation only
    /// frees space, because the change that follows may free some.
    fn give_up_dirty_write(&mut self, error: Error, next: &AfterDirtyWrite) -> Result<Option<PendingSync>> {
        match next {
            AfterDirtyWrite::Checkpoint(_, then) => self.give_up_checkpoint(error, then),
            AfterDirtyWrite::Clean(cleaning)
                if cleaning.is_for_space() && matches!(error, Error::NoSpace { .. }) =>
            {
                Ok(None)
            }
            _ => Err(error),
        }
    }
}
