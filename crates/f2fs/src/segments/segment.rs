//! A segment in memory: its valid and its protected blocks.

use crate::format::sit::{SegmentType, SitEntry, ValidMap};

/// A segment in memory.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    /// The type of the segment; of an empty one, its last type.
    pub kind: SegmentType,
    /// Blocks that are valid now.
    pub valid_blocks: u16,
    /// Bitmap of the valid blocks.
    pub map: ValidMap,
    /// Blocks that a crash may bring back: valid in the last checkpoint, or allocated since.
    pub protected_blocks: u16,
    /// Bitmap of the protected blocks.
    pub protected: ValidMap,
    /// Time of its last change, in seconds of mounted time.
    pub mtime: u64,
}

impl Segment {
    pub(super) fn of(entry: SitEntry) -> Segment {
        Segment {
            kind: entry.kind,
            valid_blocks: entry.valid_blocks,
            map: entry.map,
            protected_blocks: entry.valid_blocks,
            protected: entry.map,
            mtime: entry.mtime,
        }
    }

    pub(super) fn entry(&self) -> SitEntry {
        SitEntry { kind: self.kind, valid_blocks: self.valid_blocks, map: self.map, mtime: self.mtime }
    }

    /// Returns true if no block is valid or protected.
    pub(crate) fn is_free(&self) -> bool {
        self.valid_blocks == 0 && self.protected_blocks == 0
    }

    /// Returns true if no block is valid but some are protected until the next checkpoint.
    pub(crate) fn is_prefree(&self) -> bool {
        self.valid_blocks == 0 && self.protected_blocks != 0
    }

    /// The first free block at or after `from`.
    pub(crate) fn next_hole(&self, from: u16) -> Option<u16> {
        (usize::from(from) / 8..self.map.len()).find_map(|byte| {
            let skip = usize::from(from).saturating_sub(byte * 8).min(8);
            let taken = self.map[byte] | self.protected[byte];
            let open = !taken & (0xFFu16 >> skip) as u8;
            (open != 0).then(|| (byte * 8) as u16 + open.leading_zeros() as u16)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_a_hole_if_neither_map_has_its_bit() {
        let mut segment = Segment::of(SitEntry::EMPTY);
        assert_eq!(segment.next_hole(0), Some(0));
        segment.map[0] = 0b1010_0000;
        segment.protected[0] = 0b0101_0000;
        assert_eq!(
            (segment.next_hole(0), segment.next_hole(7), segment.next_hole(9)),
            (Some(4), Some(7), Some(9))
        );
        segment.map = [0xFF; 64];
        assert_eq!(segment.next_hole(0), None);
        segment.map[63] = 0xFE;
        assert_eq!(
            (segment.next_hole(3), segment.next_hole(511), segment.next_hole(512)),
            (Some(511), Some(511), None)
        );
    }
}
