//! The positions of the logs on a repaired volume.

use f2fs::{
    engine::Geometry,
    format::{
        BLOCKS_PER_SEGMENT,
        checkpoint::{AllocMode, LogPosition},
        sit::SegmentType,
    },
    units::{SecNo, SegNo},
};

use super::census::Census;
use crate::segments::{Content, Contents};

/// Chooses the positions of the logs: the current ones if they are possible, else free sections, else free places in sections
/// of the same content. `None` if there are none.
pub fn choose(geometry: &Geometry, census: &Census, current: &[LogPosition; 6]) -> Option<[LogPosition; 6]> {
    let mut choice = Choice { geometry, census, logs: [None; 6] };
    for kind in SegmentType::ALL {
        let log = current[kind.index()];
        if choice.is_possible(kind, log) {
            choice.logs[kind.index()] = Some(log);
        }
    }
    for kind in SegmentType::ALL {
        if choice.logs[kind.index()].is_none() {
            choice.logs[kind.index()] = Some(choice.open(kind)?);
        }
    }
    Some(choice.logs.map(|log| log.expect("each log was chosen")))
}

struct Choice<'a> {
    geometry: &'a Geometry,
    census: &'a Census,
    /// The logs that are chosen.
    logs: [Option<LogPosition>; 6],
}

impl Choice<'_> {
    fn is_possible(&self, kind: SegmentType, log: LogPosition) -> bool {
        let is_inside = log.segment.0 < self.geometry.segments && u32::from(log.offset) < BLOCKS_PER_SEGMENT;
        if !is_inside || self.is_log(log.segment) || !self.fits(log.segment, Content::of(kind)) {
            return false;
        }
        let end = if log.mode.is_ssr() { log.offset + 1 } else { BLOCKS_PER_SEGMENT as u16 };
        (log.offset..end).all(|offset| self.is_hole(log.segment, offset))
    }

    fn open(&self, kind: SegmentType) -> Option<LogPosition> {
        let append = |segment| LogPosition { segment, offset: 0, mode: AllocMode::Append };
        let mut sections = (0..self.geometry.sections).map(SecNo);
        if let Some(section) = sections.find(|section| self.is_free(*section)) {
            return Some(append(self.geometry.first_segment(section)));
        }
        let content = Content::of(kind);
        let all = || (0..self.geometry.segments).map(SegNo);
        let fitting = || all().filter(|segment| !self.is_log(*segment) && self.fits(*segment, content));
        if let Some(segment) = fitting().find(|segment| self.census.content(*segment).is_none()) {
            return Some(append(segment));
        }
        fitting().find_map(|segment| {
            let offset = (0..BLOCKS_PER_SEGMENT as u16).find(|offset| self.is_hole(segment, *offset))?;
            Some(LogPosition { segment, offset, mode: AllocMode::Ssr })
        })
    }

    fn is_log(&self, segment: SegNo) -> bool {
        self.logs.iter().flatten().any(|log| log.segment == segment)
    }

    /// Returns true if a section has neither blocks nor a log.
    fn is_free(&self, section: SecNo) -> bool {
        self.census.section_content(section).is_none()
            && !self.geometry.segments_of(section).any(|segment| self.is_log(segment))
    }

    /// Returns true if the section of a segment has no blocks and no log of the other content.
    fn fits(&self, segment: SegNo, wanted: Content) -> bool {
        let section = self.geometry.section_of(segment);
        let logs = SegmentType::ALL.into_iter().filter_map(|kind| Some((kind, self.logs[kind.index()]?)));
        let mut logs = logs.filter(|(_, log)| self.geometry.section_of(log.segment) == section);
        self.census.section_content(section).is_none_or(|content| content == wanted)
            && logs.all(|(kind, _)| Content::of(kind) == wanted)
    }

    fn is_hole(&self, segment: SegNo, offset: u16) -> bool {
        !self.census.is_claimed(self.geometry.block(segment, offset))
    }
}
