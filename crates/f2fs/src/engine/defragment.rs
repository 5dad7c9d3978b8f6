//! Defragmentation: the blocks of a file move into the order of the file.
//!
//! *Invariant*: blocks move as in cleaning, out of place. So a power cut at any time leaves the content, and what an fsync
//! has promised.

use std::ops::Range;

use super::{Engine, Transaction};
use crate::{Error, Result, files::Fragmentation, format::LOG_BLOCKS_PER_SEGMENT, units::Ino};

/// Maximum number of blocks that move between two times at which a checkpoint can be written.
const STEP_BLOCKS: u64 = 512;

impl Engine {
    /// Counts the pieces in which the blocks of a file or directory lie on the device.
    ///
    /// # Errors
    /// Those of [reading](Engine#errors).
    pub fn fragmentation(&self, ino: Ino) -> Result<Fragmentation> {
        self.files().fragmentation(&*self.inode(ino)?)
    }

    /// Fails unless `blocks` blocks fit into wholly free sections, beside those that cleaning needs.
    pub(super) fn require_free_sections(&mut self, blocks: u64) -> Result<()> {
        let counts = self.segments_mut().section_counts()?;
        let free = u64::from(counts.free.saturating_sub(counts.least_free));
        let geometry = self.geometry();
        let section_blocks = u64::from(geometry.segments_per_section) << LOG_BLOCKS_PER_SEGMENT;
        match blocks < free * section_blocks {
            true => Ok(()),
            false => Err(Error::no_space(geometry.block_size, blocks, free * section_blocks)),
        }
    }
}

impl Transaction<'_> {
    /// Moves the blocks of a file or directory in a range of its blocks to adjacent places, in the order of the file. Content
    /// and attributes stay as they are, and so does a pinned file. Returns the number of moved blocks.
    ///
    /// A checkpoint may have a part of the moves. The dirty pages of the file are written first, all at once; a caller that
    /// shares the volume [writes them](Engine::begin_write_back) before.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if too few sections are wholly free; those of [every change](Engine#errors).
    pub fn defragment(mut self, ino: Ino, blocks: Range<u64>) -> Result<u64> {
        let mut step = self.step()?;
        // What waits in memory would go to another log than the rest.
        step.files().write_pages_of(ino)?;
        let end = step.files().mapped_end(ino)?.min(blocks.end);
        let (mut moved, mut at) = (0, blocks.start);
        while at < end {
            step.require_free_sections((end - at).min(STEP_BLOCKS))?;
            let (now, next) = step.files().move_in_order(ino, at..end, STEP_BLOCKS)?;
            (moved, at) = (moved + now, next);
            step.renew()?;
        }
        Ok(moved)
    }
}
