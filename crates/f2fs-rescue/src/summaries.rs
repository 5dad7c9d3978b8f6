//! Segment summaries: the owner of each block, from the SSA or from the checkpoint pack.

use std::{cell::RefCell, sync::Arc};

use f2fs::{
    Place,
    engine::Geometry,
    format::{
        summary::{Owner, Summary},
        superblock::Features,
    },
    units::{BlockAddr, SegNo},
};

use crate::{evidence::Evidence, shape::Shape};

/// Summaries that are kept in memory; each takes 4 KiB.
const SLOTS: usize = 1024;

/// Owner of a block according to a summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owned {
    /// A node: its own number.
    Node(Owner),
    /// Data: the node that maps it, and the index there.
    Data(Owner),
}

/// A summary that is in memory: `None` if it could not be read.
type Slot = Option<(SegNo, Option<Arc<Summary>>)>;

/// All summaries of a volume.
pub(crate) struct Summaries {
    geometry: Option<Geometry>,
    /// Segments of the logs, with their summaries from the pack.
    logs: Vec<(SegNo, Option<Arc<Summary>>)>,
    slots: RefCell<Vec<Slot>>,
}

impl Summaries {
    /// Prepares the summaries of a volume. Without a superblock there are none.
    pub(crate) fn new(shape: &Shape, evidence: Option<&Evidence>) -> Summaries {
        let known = shape.known.as_ref();
        let has_ssa =
            |sb: &f2fs::format::superblock::Superblock| sb.ssa.segments > 0 && !sb.features.has(Features::RO);
        Summaries {
            geometry: known.filter(|(sb, ..)| has_ssa(sb)).map(|(_, _, geometry)| *geometry),
            logs: evidence.map(Evidence::log_summaries).unwrap_or_default(),
            slots: RefCell::new(vec![None; SLOTS]),
        }
    }

    /// Returns the owner of a block; `None` if the summary cannot be read.
    pub(crate) fn owner(&self, shape: &Shape, addr: BlockAddr) -> Option<Owned> {
        let geometry = self.geometry.as_ref().filter(|geometry| geometry.in_main(addr))?;
        let (segment, offset) = geometry.position(addr);
        let summary = self.summary(shape, geometry, segment)?;
        let owner = summary.owners[usize::from(offset)];
        match owner.nid.0 {
            0 => None,
            _ if summary.is_node => Some(Owned::Node(owner)),
            _ => Some(Owned::Data(owner)),
        }
    }

    fn summary(&self, shape: &Shape, geometry: &Geometry, segment: SegNo) -> Option<Arc<Summary>> {
        if let Some((_, summary)) = self.logs.iter().find(|(log, _)| *log == segment) {
            return summary.clone();
        }
        let slot = &mut self.slots.borrow_mut()[segment.index() % SLOTS];
        if let Some((cached, summary)) = slot {
            if *cached == segment {
                return summary.clone();
            }
        }
        let (block, offset) = geometry.summary_block(segment);
        let bytes = shape.io.read_block(block, Place::Ssa(segment)).ok();
        let summary = bytes.map(|bytes| Arc::new(Summary::parse(&bytes[offset..], geometry.summary)));
        *slot = Some((segment, summary.clone()));
        summary
    }
}
