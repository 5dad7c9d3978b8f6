//! A newest pack of which one log has an impossible segment: that of another log, or one outside the main area.
//!
//! The older pack tells the segment if the log has not moved since. Otherwise the log gets a free one: only its next blocks
//! depend on it, and the nodes name the owners of the blocks in its former segment. Fsyncs after the checkpoint begin at the
//! log of warm nodes, and their nodes have the checksum of the pack: with another one they are lost.

use std::{mem::offset_of, sync::Arc};

use block::Device;
use f2fs::{
    engine::Io,
    format::{
        checkpoint::{Checkpoint, raw},
        sit::SegmentType,
    },
    units::SegNo,
};

use super::{
    over,
    set_aside::{Mended, Newest, word_at},
    tables::Tables,
};
use crate::{
    Report,
    segments::{Content, Segments},
};

/// Returns the newest pack with another segment for the log whose segment is impossible.
pub fn mended(device: &Arc<dyn Device>, newest: &Newest<'_>) -> Option<Mended> {
    let choice = Choice { newest, segments: SegmentType::ALL.map(|kind| segment_of(newest.head, kind)) };
    let suspects = choice.suspects()?;
    let older = newest.older.and_then(|older| choice.in_older(&suspects, older));
    let older = older.and_then(|(kind, segment)| newest.written(choice.head(kind, segment)));
    let (requests, repair) = match older {
        Some(requests) => (requests, "take the segment of the log from the older pack"),
        None => {
            let (kind, segment) = choice.free_segment(device, &suspects)?;
            (newest.written(choice.head(kind, segment))?, "give the log a free segment")
        }
    };
    Some(Mended { requests, repair, loss: newest.loss() })
}

struct Choice<'a> {
    newest: &'a Newest<'a>,
    /// The segments of the logs.
    segments: [SegNo; 6],
}

impl Choice<'_> {
    /// The logs of which one has a wrong segment: one outside the main area, or the two in one segment. `None` if there are more
    /// or none.
    fn suspects(&self) -> Option<Vec<SegmentType>> {
        let is_outside = |kind: &SegmentType| self.segment(*kind).0 >= self.newest.geometry.segments;
        let is_shared = |kind: &SegmentType| self.others(*kind).any(|other| other == self.segment(*kind));
        let all = || SegmentType::ALL.into_iter();
        let (outside, shared): (Vec<_>, Vec<_>) =
            (all().filter(is_outside).collect(), all().filter(is_shared).collect());
        match (outside.len(), shared.len()) {
            (1, 0) => Some(outside),
            (0, 2) => Some(shared),
            _ => None,
        }
    }

    /// The log that has another segment in the older pack, beside the one that has the same there, and that segment.
    fn in_older(&self, suspects: &[SegmentType], older: &Checkpoint) -> Option<(SegmentType, SegNo)> {
        let segment = |kind: SegmentType| older.logs[kind.index()].segment;
        let mut moved = suspects.iter().filter(|kind| segment(**kind) != self.segment(**kind));
        let (Some(kind), None) = (moved.next(), moved.next()) else { return None };
        let is_taken = self.others(*kind).any(|other| other == segment(*kind));
        (!is_taken).then(|| (*kind, segment(*kind)))
    }

    /// The log that the SIT does not confirm, and a free segment.
    fn free_segment(
        &self,
        device: &Arc<dyn Device>,
        suspects: &[SegmentType],
    ) -> Option<(SegmentType, SegNo)> {
        // With any other segment for one of them, the tables can be read.
        let any = (0..self.newest.geometry.segments).map(SegNo).find(|segment| !self.is_log(*segment))?;
        let readable = self.newest.written(self.head(*suspects.first()?, any))?;
        let state = over(device, &readable).ok()?;
        let tables = Tables::read(state).ok()?;
        let io: &Io = &tables.io;
        let geometry = &tables.geometry;
        let segments = Segments::read(io, geometry, &tables.pack, &mut Report::default(), &mut |_| {});
        let kind = match suspects {
            [kind] => *kind,
            [first, second] => {
                let stored = segments.kind(self.segment(*first))?;
                let fits = |kind: SegmentType| (kind == stored, Content::of(kind) == Content::of(stored));
                match (fits(*first), fits(*second)) {
                    (first_fits, second_fits) if first_fits > second_fits => *second,
                    (first_fits, second_fits) if first_fits < second_fits => *first,
                    _ => return None,
                }
            }
            _ => return None,
        };
        let is_free = |segment: &SegNo| !self.is_log(*segment) && segments.marked(*segment).next().is_none();
        segments.all().find(is_free).map(|segment| (kind, segment))
    }

    fn segment(&self, kind: SegmentType) -> SegNo {
        self.segments[kind.index()]
    }

    /// The segments of the other logs.
    fn others(&self, kind: SegmentType) -> impl Iterator<Item = SegNo> {
        SegmentType::ALL.into_iter().filter(move |other| *other != kind).map(|other| self.segment(other))
    }

    fn is_log(&self, segment: SegNo) -> bool {
        self.segments.contains(&segment)
    }

    /// The head of the pack with another segment for a log.
    fn head(&self, kind: SegmentType, segment: SegNo) -> Vec<u8> {
        let (mut head, at) = (self.newest.head.to_vec(), segment_at(kind));
        head[at..at + 4].copy_from_slice(&segment.0.to_le_bytes());
        head
    }
}

/// Byte offset of the segment of a log in the head of a pack.
fn segment_at(kind: SegmentType) -> usize {
    let start = match kind.is_node() {
        true => offset_of!(raw::Checkpoint, cur_node_segno),
        false => offset_of!(raw::Checkpoint, cur_data_segno),
    };
    start + 4 * (kind.index() % 3)
}

/// The segment of a log in the head of a pack.
fn segment_of(head: &[u8], kind: SegmentType) -> SegNo {
    SegNo(word_at(head, segment_at(kind)))
}
