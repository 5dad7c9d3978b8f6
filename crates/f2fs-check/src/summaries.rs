//! Segment summaries: the owner of each block, from the SSA or from the checkpoint pack.

use std::sync::Arc;

use f2fs::{
    engine::{Geometry, Io},
    format::{
        checkpoint::Checkpoint,
        sit::SegmentType,
        summary::{Owner, Summary},
        superblock::{Features, Superblock},
    },
    units::{BlockAddr, SegNo},
};

use crate::{reader::read_block, segments::Content};

/// Summaries that are kept in memory; each takes 4 KiB.
const SLOTS: usize = 4096;

/// Owner of a block according to a summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owned {
    /// Its owner.
    pub owner: Owner,
    /// Content that the summary's footer states.
    pub content: Content,
}

/// A summary that is in memory: `None` if it could not be read.
type Slot = Option<(SegNo, Option<Arc<Summary>>)>;

/// All summaries of a volume.
pub struct Summaries {
    geometry: Geometry,
    /// Segments of the logs, with their summaries from the pack.
    logs: Vec<(SegNo, Option<Arc<Summary>>)>,
    slots: Vec<Slot>,
    has_ssa: bool,
    /// Segments whose summary could not be read.
    pub unreadable: Vec<SegNo>,
}

impl Summaries {
    /// Prepares the summaries of a volume.
    pub fn new(
        geometry: &Geometry,
        sb: &Superblock,
        checkpoint: &Checkpoint,
        packed: [Option<Summary>; 6],
    ) -> Summaries {
        let kinds = SegmentType::ALL.into_iter().zip(packed);
        // The footer of a log's summary in the compact form does not exist.
        let of_log = |(kind, summary): (SegmentType, Option<Summary>)| {
            let summary = summary.map(|summary| Arc::new(Summary { is_node: kind.is_node(), ..summary }));
            (checkpoint.logs[kind.index()].segment, summary)
        };
        Summaries {
            geometry: *geometry,
            logs: kinds.map(of_log).collect(),
            slots: vec![None; SLOTS],
            has_ssa: sb.ssa.segments > 0 && !sb.features.has(Features::RO),
            unreadable: Vec::new(),
        }
    }

    /// Returns the owner of a block of the main area; `None` if no summary tells.
    pub fn owner(&mut self, io: &Io, addr: BlockAddr) -> Option<Owned> {
        let (segment, offset) = self.geometry.position(addr);
        let summary = self.summary(io, segment)?;
        let content = if summary.is_node { Content::Node } else { Content::Data };
        Some(Owned { owner: summary.owners[usize::from(offset)], content })
    }

    fn summary(&mut self, io: &Io, segment: SegNo) -> Option<&Summary> {
        if let Some(at) = self.logs.iter().position(|(log, _)| *log == segment) {
            return self.logs[at].1.as_deref();
        }
        if !self.has_ssa {
            return None;
        }
        let at = segment.index() % SLOTS;
        let is_here = matches!(&self.slots[at], Some((cached, _)) if *cached == segment);
        if !is_here {
            let (block, offset) = self.geometry.summary_block(segment);
            let bytes = read_block(io, block);
            let summary =
                bytes.ok().map(|bytes| Arc::new(Summary::parse(&bytes[offset..], self.geometry.summary)));
            if summary.is_none() {
                self.unreadable.push(segment);
            }
            self.slots[at] = Some((segment, summary));
        }
        self.slots[at].as_ref().and_then(|(_, summary)| summary.as_deref())
    }
}
