//! Free blocks for a repair: those that neither the old checkpoint uses nor the new one.

use f2fs::{
    engine::Geometry,
    format::BLOCKS_PER_SEGMENT,
    units::{BlockAddr, SegNo},
};

use crate::{bitmap::Bitmap, segments::Content};

/// A bit for each block of the main area.
pub fn index(geometry: &Geometry, addr: BlockAddr) -> usize {
    let (segment, offset) = geometry.position(addr);
    segment.index() * BLOCKS_PER_SEGMENT as usize + usize::from(offset)
}

/// Free blocks of a volume.
pub struct Space<'a> {
    geometry: Geometry,
    /// Blocks that the old checkpoint uses.
    old: &'a Bitmap,
    /// Blocks that the new state uses, with those that were given out.
    new: Bitmap,
    /// Segments that give no block.
    excluded: Vec<SegNo>,
    /// The current segments for nodes and for data.
    open: [Option<SegNo>; 2],
}

impl<'a> Space<'a> {
    /// Prepares the search. `excluded` segments give no block.
    pub fn new(geometry: Geometry, old: &'a Bitmap, new: Bitmap, excluded: Vec<SegNo>) -> Space<'a> {
        Space { geometry, old, new, excluded, open: [None; 2] }
    }

    /// Takes a free block, from a free segment if there is one, else from one with the same content.
    /// `content` returns the content of a segment.
    pub fn take(&mut self, wanted: Content, content: &dyn Fn(SegNo) -> Option<Content>) -> Option<BlockAddr> {
        let slot = usize::from(wanted == Content::Data);
        if let Some(addr) = self.open[slot].and_then(|segment| self.hole(segment)) {
            return Some(self.give(addr));
        }
        let usable =
            |segment: &SegNo| !self.excluded.contains(segment) && !self.open.contains(&Some(*segment));
        let all = || (0..self.geometry.segments).map(SegNo);
        let free = all().filter(usable).find(|segment| self.is_free(*segment));
        let segment = free.or_else(|| {
            let same = |segment: &SegNo| content(*segment).is_none_or(|content| content == wanted);
            all().filter(usable).filter(same).find(|segment| self.hole(*segment).is_some())
        })?;
        self.open[slot] = Some(segment);
        let addr = self.hole(segment)?;
        Some(self.give(addr))
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
