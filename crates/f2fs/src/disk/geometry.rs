//! Layout of the areas: pure arithmetic on the numbers of the superblock.

use crate::{
    format::{
        BLOCKS_PER_SEGMENT, BlockSize, LOG_BLOCKS_PER_SEGMENT, TableCopy,
        checkpoint::LogPosition,
        summary::Layout,
        superblock::{Area, Superblock},
    },
    units::{BlockAddr, Nid, SecNo, SegNo},
};

/// The geometry of a volume. All counts are of the main area unless their name says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Size of a block.
    pub block_size: BlockSize,
    /// Segments of the main area.
    pub segments: u32,
    /// Sections of the main area.
    pub sections: u32,
    /// Segments in a section.
    pub segments_per_section: u32,
    /// Sections in a zone.
    pub sections_per_zone: u32,
    /// Layout of summary blocks.
    pub summary: Layout,
    checkpoint: Area,
    sit: Area,
    nat: Area,
    ssa: Area,
    main: Area,
}

impl Geometry {
    /// The geometry that a superblock describes.
    #[must_use]
    pub fn of(sb: &Superblock) -> Geometry {
        Geometry {
            block_size: sb.block_size,
            segments: sb.main.segments,
            sections: sb.sections,
            segments_per_section: sb.segments_per_section,
            sections_per_zone: sb.sections_per_zone,
            summary: Layout::new(sb.block_size, sb.features),
            checkpoint: sb.checkpoint,
            sit: sb.sit,
            nat: sb.nat,
            ssa: sb.ssa,
            main: sb.main,
        }
    }

    /// Returns true if a block lies in the main area.
    #[must_use]
    pub fn in_main(&self, addr: BlockAddr) -> bool {
        addr >= self.main.start && u64::from(addr.0) < self.main.end()
    }

    /// Segment of a block of the main area, and the block's index in it.
    ///
    /// # Panics
    /// Panics if the block is not in the main area, which is a bug of the caller.
    #[must_use]
    pub fn position(&self, addr: BlockAddr) -> (SegNo, u16) {
        assert!(self.in_main(addr), "{addr} is not in the main area");
        let offset = addr.0 - self.main.start.0;
        (SegNo(offset >> LOG_BLOCKS_PER_SEGMENT), (offset % BLOCKS_PER_SEGMENT) as u16)
    }

    /// Block `offset` of a segment of the main area.
    #[must_use]
    pub fn block(&self, segment: SegNo, offset: u16) -> BlockAddr {
        BlockAddr(self.main.start.0 + (segment.0 << LOG_BLOCKS_PER_SEGMENT) + u32::from(offset))
    }

    /// The block that a log takes next.
    #[must_use]
    pub fn next_block(&self, log: LogPosition) -> BlockAddr {
        self.block(log.segment, log.offset)
    }

    /// The section that a segment belongs to.
    #[must_use]
    pub fn section_of(&self, segment: SegNo) -> SecNo {
        SecNo(segment.0 / self.segments_per_section)
    }

    /// The segments of a section.
    pub fn segments_of(&self, section: SecNo) -> impl Iterator<Item = SegNo> + use<> {
        let first = self.first_segment(section).0;
        (first..first + self.segments_per_section).map(SegNo)
    }

    /// The first segment of a section.
    #[must_use]
    pub fn first_segment(&self, section: SecNo) -> SegNo {
        SegNo(section.0 * self.segments_per_section)
    }

    /// The sections of the zone that a section belongs to.
    pub fn zone_of(&self, section: SecNo) -> impl Iterator<Item = SecNo> + use<> {
        let first = section.0 - section.0 % self.sections_per_zone;
        (first..self.sections.min(first.saturating_add(self.sections_per_zone))).map(SecNo)
    }

    /// First block of a checkpoint pack, 0 or 1.
    #[must_use]
    pub fn pack(&self, pack: u8) -> BlockAddr {
        BlockAddr(self.checkpoint.start.0 + u32::from(pack) * BLOCKS_PER_SEGMENT)
    }

    /// Number of SIT blocks that hold entries, in one copy.
    #[must_use]
    pub fn sit_blocks(&self) -> u32 {
        self.segments.div_ceil(self.block_size.sit_entries() as u32)
    }

    /// Address of one of the two copies of a SIT block: the copies are the two halves of the area.
    #[must_use]
    pub fn sit_block(&self, index: u32, copy: TableCopy) -> BlockAddr {
        let half = self.sit.segments / 2 * BLOCKS_PER_SEGMENT;
        BlockAddr(self.sit.start.0 + index + if copy == TableCopy::Second { half } else { 0 })
    }

    /// Number of NAT blocks, in one copy.
    #[must_use]
    pub fn nat_blocks(&self) -> u32 {
        self.nat.segments / 2 * BLOCKS_PER_SEGMENT
    }

    /// Address of one of the two copies of a NAT block: the copies alternate segment by segment.
    #[must_use]
    pub fn nat_block(&self, index: u32, copy: TableCopy) -> BlockAddr {
        let base = 2 * index - index % BLOCKS_PER_SEGMENT;
        let half = if copy == TableCopy::Second { BLOCKS_PER_SEGMENT } else { 0 };
        BlockAddr(self.nat.start.0 + base + half)
    }

    /// The first nid that has no entry in the NAT.
    #[must_use]
    pub fn nids_end(&self) -> Nid {
        let end = u64::from(self.nat_blocks()) * self.block_size.nat_entries() as u64;
        Nid(u32::try_from(end).unwrap_or(u32::MAX))
    }

    /// SSA block that holds the summary of a segment, and the byte offset of the summary in it.
    #[must_use]
    pub fn summary_block(&self, segment: SegNo) -> (BlockAddr, usize) {
        let per_block = (self.block_size.bytes() / self.summary.bytes()) as u32;
        let offset = (segment.0 % per_block) as usize * self.summary.bytes();
        (BlockAddr(self.ssa.start.0 + segment.0 / per_block), offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::superblock::Features;

    fn geometry(block_size: BlockSize, features: Features) -> Geometry {
        let area = |start: u32, segments| Area { start: BlockAddr(start), segments };
        Geometry {
            block_size,
            segments: 100,
            sections: 50,
            segments_per_section: 2,
            sections_per_zone: 1,
            summary: Layout::new(block_size, features),
            checkpoint: area(512, 2),
            sit: area(1536, 4),
            nat: area(3584, 8),
            ssa: area(7680, 2),
            main: area(8704, 100),
        }
    }

    #[test]
    fn sit_copies_are_halves_and_nat_copies_alternate() {
        let g = geometry(BlockSize::B4K, Features::default());
        assert_eq!(g.sit_block(3, TableCopy::First), BlockAddr(1539));
        assert_eq!(g.sit_block(3, TableCopy::Second), BlockAddr(1539 + 1024));
        assert_eq!(g.nat_block(511, TableCopy::First), BlockAddr(3584 + 511));
        assert_eq!(g.nat_block(511, TableCopy::Second), BlockAddr(3584 + 1023));
        assert_eq!(g.nat_block(512, TableCopy::First), BlockAddr(3584 + 1024));
        assert_eq!(g.nat_block(513, TableCopy::Second), BlockAddr(3584 + 1537));
        assert_eq!(g.nids_end(), Nid(4 * 512 * 455));
    }

    #[test]
    fn main_addresses_and_segments_convert_both_ways() {
        let g = geometry(BlockSize::B4K, Features::default());
        let addr = g.block(SegNo(7), 9);
        assert_eq!(addr, BlockAddr(8704 + 7 * 512 + 9));
        assert_eq!(g.position(addr), (SegNo(7), 9));
        assert!(
            !g.in_main(BlockAddr(8703)) && !g.in_main(g.block(SegNo(100), 0)) && !g.in_main(BlockAddr::NEW)
        );
        assert_eq!(g.section_of(SegNo(7)), SecNo(3));
        assert_eq!(g.segments_of(SecNo(3)).collect::<Vec<_>>(), [SegNo(6), SegNo(7)]);
        assert_eq!(g.pack(1), BlockAddr(1024));
    }

    #[test]
    fn packed_summaries_share_a_block() {
        assert_eq!(
            geometry(BlockSize::B16K, Features::default()).summary_block(SegNo(6)),
            (BlockAddr(7686), 0)
        );
        assert_eq!(
            geometry(BlockSize::B16K, Features::PACKED_SSA).summary_block(SegNo(6)),
            (BlockAddr(7681), 8192)
        );
    }
}
