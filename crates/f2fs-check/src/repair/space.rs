//! Free blocks for a repair: those that neither the old checkpoint uses nor the new one.

use std::collections::BTreeMap;

use f2fs::{
    engine::Geometry,
    format::{BLOCKS_PER_SEGMENT, checkpoint::LogPosition, sit::SegmentType},
    units::{BlockAddr, SecNo, SegNo},
};

use crate::{bitmap::Bitmap, segments::Content};

/// A bit for each block of the main area.
pub fn index(geometry: &Geometry, addr: BlockAddr) -> usize {
    let (segment, offset) = geometry.position(addr);
    segment.index() * BLOCKS_PER_SEGMENT as usize + usize::from(offset)
}

/// Free blocks of a volume. A section gets nodes or data, as Linux cleans it.
pub struct Space<'a> {
    geometry: Geometry,
    /// Blocks that the old checkpoint uses.
    old: &'a Bitmap,
    /// Blocks that the new state uses, with those that were given out.
    new: Bitmap,
    /// Segments of the logs, which give no block, with the content of the logs.
    logs: Vec<(SegNo, Content)>,
    /// Content of the sections that gave blocks.
    given: BTreeMap<SecNo, Content>,
    /// The current segments for nodes and for data.
    open: [Option<SegNo>; 2],
}

impl<'a> Space<'a> {
    /// Prepares the search. The segments of the logs give no block.
    pub fn new(geometry: Geometry, old: &'a Bitmap, new: Bitmap, logs: &[LogPosition; 6]) -> Space<'a> {
        let logs = SegmentType::ALL.map(|kind| (logs[kind.index()].segment, Content::of(kind)));
        Space { geometry, old, new, logs: logs.into(), given: BTreeMap::new(), open: [None; 2] }
    }

    /// Takes a free block, from a free section if there is one, else from one with the same content. `content` returns the
    /// content of a section.
    pub fn take(&mut self, wanted: Content, content: &dyn Fn(SecNo) -> Option<Content>) -> Option<BlockAddr> {
        let slot = usize::from(wanted == Content::Data);
        if let Some(addr) = self.open[slot].and_then(|segment| self.hole(segment)) {
            return Some(self.give(addr));
        }
        let segment = self.next_segment(slot).or_else(|| self.free_section()).or_else(|| {
            let mut all = (0..self.geometry.segments).map(SegNo);
            all.find(|segment| {
                self.fits(*segment, wanted, content)
                    && !self.is_log(*segment)
                    && self.hole(*segment).is_some()
            })
        })?;
        self.open[slot] = Some(segment);
        self.given.insert(self.geometry.section_of(segment), wanted);
        let addr = self.hole(segment)?;
        Some(self.give(addr))
    }

    /// The next segment in the section of the current one that has a free block.
    fn next_segment(&self, slot: usize) -> Option<SegNo> {
        let section = self.geometry.section_of(self.open[slot]?);
        let mut segments = self.geometry.segments_of(section);
        segments.find(|segment| !self.is_log(*segment) && self.hole(*segment).is_some())
    }

    /// The first segment of a section without blocks and logs.
    fn free_section(&self) -> Option<SegNo> {
        let is_free = |segment: SegNo| self.is_free(segment) && !self.is_log(segment);
        let mut sections = (0..self.geometry.sections).map(SecNo);
        let section = sections.find(|section| self.geometry.segments_of(*section).all(is_free))?;
        Some(self.geometry.first_segment(section))
    }

    /// Returns true if the section of a segment has no blocks and no log of the other content.
    fn fits(&self, segment: SegNo, wanted: Content, content: &dyn Fn(SecNo) -> Option<Content>) -> bool {
        let section = self.geometry.section_of(segment);
        let mut logs = self.logs.iter().filter(|(log, _)| self.geometry.section_of(*log) == section);
        let own = self.given.get(&section).copied().or_else(|| content(section));
        own.is_none_or(|content| content == wanted) && logs.all(|(_, content)| *content == wanted)
    }

    fn is_log(&self, segment: SegNo) -> bool {
        self.logs.iter().any(|(log, _)| *log == segment)
    }

    fn give(&mut self, addr: BlockAddr) -> BlockAddr {
        self.new.set(index(&self.geometry, addr));
        addr
    }

    fn bytes(&self, map: &'a Bitmap, segment: SegNo) -> &'a [u8] {
        let bytes = BLOCKS_PER_SEGMENT as usize / 8;
        &map.bytes()[segment.index() * bytes..][..bytes]
    }

    fn is_free(&self, segment: SegNo) -> bool {
        let bytes = BLOCKS_PER_SEGMENT as usize / 8;
        let new = &self.new.bytes()[segment.index() * bytes..][..bytes];
        self.bytes(self.old, segment).iter().chain(new).all(|byte| *byte == 0)
    }

    fn hole(&self, segment: SegNo) -> Option<BlockAddr> {
        let blocks = (0..BLOCKS_PER_SEGMENT as u16).map(|offset| self.geometry.block(segment, offset));
        blocks.into_iter().find(|addr| {
            let index = index(&self.geometry, *addr);
            !self.old.get(index) && !self.new.get(index)
        })
    }
}
