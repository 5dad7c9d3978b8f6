//! Segments during roll-forward: what recovery needs is protected, and a block can be taken where it already is.

use rustc_hash::FxHashSet;

use super::{Segments, sit::Prefree};
use crate::{
    Error, Result,
    format::{
        BLOCKS_PER_SEGMENT,
        checkpoint::AllocMode,
        sit::{SegmentType, ValidMap},
        summary::Owner,
    },
    units::{BlockAddr, SegNo},
};

/// The blocks of a segment that recovery needs.
pub(crate) struct Needed {
    /// The blocks.
    pub(crate) map: ValidMap,
    /// True if nodes of the chain are among them.
    pub(crate) has_nodes: bool,
}

impl Segments {
    /// Begins recovery. The blocks in `needed` are not given out until a checkpoint counts, and the logs go on
    /// elsewhere.
    pub(crate) fn begin_recovery<'a>(
        &mut self,
        needed: impl ExactSizeIterator<Item = (&'a SegNo, &'a Needed)>,
    ) -> Result<()> {
        self.changed = true;
        self.recovering = Some(FxHashSet::default());
        if needed.len() == 0 {
            return Ok(());
        }
        let mut fresh = FxHashSet::default();
        for (segment, Needed { map, has_nodes }) in needed {
            let kind = if *has_nodes { SegmentType::WarmNode } else { SegmentType::WarmData };
            if self.sit.segment(self.disk.io(), *segment)?.is_free() {
                fresh.insert(*segment);
            }
            self.sit.protect(self.disk.io(), *segment, map, kind)?;
        }
        self.recovering = Some(fresh);
        for kind in SegmentType::ALL {
            match self.open_segment(kind, Prefree::Excluded) {
                // No free segment is left: continue in the holes that the chain leaves in the log's
                // segment.
                Err(Error::NoSpace { .. }) => self.fill_holes(kind)?,
                result => result?,
            }
        }
        Ok(())
    }

    /// Ends recovery, once its checkpoint counts.
    pub(crate) fn end_recovery(&mut self) {
        self.recovering = None;
    }

    /// Lets a log continue in the holes of its current segment (SSR).
    fn fill_holes(&mut self, kind: SegmentType) -> Result<()> {
        let log = self.logs.get(kind);
        let hole = self.sit.segment(self.disk.io(), log.segment)?.next_hole(log.offset);
        let log = self.logs.get_mut(kind);
        (log.mode, log.offset) = (AllocMode::Ssr, hole.unwrap_or(BLOCKS_PER_SEGMENT as u16));
        Ok(())
    }

    /// Marks a block that was written after the checkpoint as valid.
    pub(crate) fn take_recovered(&mut self, addr: BlockAddr, kind: SegmentType) -> Result<()> {
        let block = self.sit.invalid_block(self.disk.io(), addr)?;
        self.sit.take(block, kind, self.disk.mounted_seconds());
        Ok(())
    }

    /// Records the owner of a block in the summary of its segment.
    pub(crate) fn set_owner(&mut self, segment: SegNo, offset: u16, owner: Owner) -> Result<()> {
        let kinds = SegmentType::ALL.into_iter();
        if let Some(kind) = kinds.into_iter().find(|kind| self.logs.get(*kind).segment == segment) {
            self.logs.get_mut(kind).summary.owners[usize::from(offset)] = owner;
            return Ok(());
        }
        let mut summary = self.summary_to_change(segment)?;
        summary.is_node = false;
        summary.owners[usize::from(offset)] = owner;
        self.summaries.insert(segment, summary);
        Ok(())
    }
}
