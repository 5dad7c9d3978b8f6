//! Space: blocks and nodes in use, free sections, and blocks that wait in memory.

use std::sync::Arc;

use super::{Counters, Segments};
use crate::{
    Error, Result,
    format::{BLOCKS_PER_SEGMENT, checkpoint::RESERVED_NIDS, sit::SegmentType},
    units::{Ino, Nid, SecNo, SegNo},
};

/// Number of free sections at which cleaning starts: each of the six logs can still open one, and two are
/// left.
const LEAST_FREE_SECTIONS: u32 = 8;

/// Number of free sections beyond the reserve that logs may open between two times of upkeep: a write of 4 MiB fills two
/// segments, and the log of nodes and that of moved data may open one each.
const SPARE_SECTIONS: u32 = 4;

/// Permission to take blocks, which the volume had when it was given. Only [`Segments::reserve`] gives it.
#[must_use = "the permission ends when the reservation is dropped"]
pub(crate) struct Reservation {
    _live: Arc<()>,
}

/// Free sections, and numbers of sections that have to be free.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SectionCounts {
    /// Sections of which nothing is in use, now or in the last checkpoint, and that hold no log.
    pub(crate) free: u32,
    /// Number of free sections at which cleaning starts.
    pub(crate) least_free: u32,
    /// Number of sections reserved for cleaning.
    pub(crate) reserved: u32,
    /// Number of segments that the next checkpoint frees as a whole.
    pub(crate) prefree_segments: u32,
    /// Number of sections that the dirty pages and nodes fill.
    pub(crate) waiting: u32,
}

impl SectionCounts {
    /// Number of free sections above which the logs append until the next upkeep.
    pub(crate) fn least_to_append(self) -> u32 {
        self.reserved.saturating_add(SPARE_SECTIONS)
    }
}

impl Segments {
    /// The current counters.
    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    /// Counts newly allocated blocks, for which the caller has a [`Reservation`].
    pub(crate) fn count_blocks(&mut self, blocks: u64) {
        // Recovery takes only blocks that the fsync has found room for.
        let is_reserved = Arc::strong_count(&self.reservations) > 1 || self.recovering.is_some();
        assert!(is_reserved, "space is taken that nobody has reserved");
        self.counters.valid_blocks += blocks;
        self.turnover.taken_blocks += blocks;
    }

    /// Counts blocks out.
    pub(crate) fn uncount_blocks(&mut self, blocks: u64) {
        self.counters.valid_blocks = self.counters.valid_blocks.saturating_sub(blocks);
    }

    /// Counts a new node of a file, and its block. It is an inode if it has the inode's number.
    pub(crate) fn count_node(&mut self, nid: Nid, ino: Ino) {
        self.count_blocks(1);
        self.counters.valid_nodes += 1;
        self.counters.valid_inodes += u32::from(nid == ino.into());
    }

    /// Counts a node of a file out, and its block.
    pub(crate) fn uncount_node(&mut self, nid: Nid, ino: Ino) {
        self.counters.valid_inodes = self.counters.valid_inodes.saturating_sub((nid == ino.into()).into());
        self.counters.valid_nodes = self.counters.valid_nodes.saturating_sub(1);
        self.uncount_blocks(1);
    }

    /// Blocks still available to users.
    pub(crate) fn free_user_blocks(&self) -> u64 {
        self.disk.checkpoint().user_blocks.saturating_sub(self.counters.valid_blocks)
    }

    /// Nodes that can still be allocated.
    pub(crate) fn free_nodes(&self) -> u32 {
        (self.disk.geometry().nids_end().0 - RESERVED_NIDS).saturating_sub(self.counters.valid_nodes)
    }

    /// Returns an error if fewer than `needed_blocks` blocks are available to users.
    pub(crate) fn require_space(&self, needed_blocks: u64) -> Result<()> {
        let free_blocks = self.free_user_blocks();
        if needed_blocks > free_blocks {
            return Err(Error::no_space(self.disk.geometry().block_size, needed_blocks, free_blocks));
        }
        Ok(())
    }

    /// Reserves space for `blocks` blocks, or fails if fewer are available to users. The permission to take them lasts as
    /// long as the result exists.
    pub(crate) fn reserve(&self, blocks: u64) -> Result<Reservation> {
        self.require_space(blocks)?;
        Ok(Reservation { _live: self.reservations.clone() })
    }

    /// Blocks that writing all dirty pages would take.
    pub(crate) fn set_waiting_pages(&mut self, blocks: usize) {
        self.waiting.pages = blocks;
    }

    /// Number of dirty nodes.
    pub(crate) fn set_waiting_nodes(&mut self, nodes: usize) {
        self.waiting.nodes = nodes;
    }

    /// Sections needed for the dirty pages and nodes if all were written to free segments (LFS, no SSR).
    pub(super) fn waiting_sections(&self) -> u32 {
        let section_blocks = (BLOCKS_PER_SEGMENT * self.disk.geometry().segments_per_section) as usize;
        (self.waiting.pages + self.waiting.nodes).div_ceil(section_blocks) as u32
    }

    /// Returns true if writing all dirty pages and nodes would take more sections than are free beyond those
    /// that cleaning needs. More than that would find no place: the blocks they replace become free only with
    /// the next checkpoint, which must write them first. One section of dirty blocks is always allowed.
    pub(crate) fn is_crowded(&mut self) -> Result<bool> {
        if self.waiting_sections() <= 1 {
            return Ok(false);
        }
        let spare_sections = match self.spare_sections {
            Some(spare) => spare,
            None => self.free_sections()?.saturating_sub(self.least_free_sections()),
        };
        self.spare_sections = Some(spare_sections);
        Ok(self.waiting_sections() > spare_sections)
    }

    /// Returns true if a log has opened a segment since this was last asked.
    pub(crate) fn take_opened_segment(&mut self) -> bool {
        std::mem::take(&mut self.opened_segment)
    }

    /// Number of sections reserved for cleaning.
    pub(super) fn reserved_sections(&self) -> u32 {
        self.disk.checkpoint().reserved_segments.div_ceil(self.disk.geometry().segments_per_section)
    }

    /// Number of free sections at which cleaning starts.
    pub(super) fn least_free_sections(&self) -> u32 {
        LEAST_FREE_SECTIONS.min(self.reserved_sections())
    }

    /// Sections of which nothing is in use, now or in the last checkpoint, and that hold no log.
    pub(super) fn free_sections(&mut self) -> Result<u32> {
        self.sit.free_sections(self.disk.io(), &self.logs.segments())
    }

    /// Counts the free sections, and those that have to be free.
    pub(crate) fn section_counts(&mut self) -> Result<SectionCounts> {
        Ok(SectionCounts {
            free: self.free_sections()?,
            least_free: self.least_free_sections(),
            reserved: self.reserved_sections(),
            prefree_segments: self.sit.prefree_segments(),
            waiting: self.waiting_sections(),
        })
    }

    /// Blocks that the logs can append before the next checkpoint: those of free sections, and the rest of the sections that
    /// the logs have open.
    pub(crate) fn appendable_blocks(&mut self) -> Result<u64> {
        let geometry = *self.disk.geometry();
        let section_blocks = u64::from(BLOCKS_PER_SEGMENT * geometry.segments_per_section);
        let mut blocks = u64::from(self.free_sections()?) * section_blocks;
        for kind in SegmentType::ALL {
            let log = self.logs.get(kind);
            let (segment, offset) = (log.segment, log.offset);
            if !log.mode.is_ssr() {
                blocks += u64::from(BLOCKS_PER_SEGMENT.saturating_sub(offset.into()));
            }
            let end = (geometry.section_of(segment).0 + 1) * geometry.segments_per_section;
            for next in (segment.0 + 1..end).map(SegNo) {
                let is_free = self.sit.segment(self.disk.io(), next)?.is_free();
                blocks += if is_free { u64::from(BLOCKS_PER_SEGMENT) } else { 0 };
            }
        }
        Ok(blocks)
    }

    /// Valid blocks of a section.
    pub(crate) fn valid_blocks(&mut self, section: SecNo) -> Result<u32> {
        let mut blocks = 0;
        for segment in self.disk.geometry().segments_of(section) {
            blocks += u32::from(self.sit.segment(self.disk.io(), segment)?.valid_blocks);
        }
        Ok(blocks)
    }
}
