//! The segment information table: which blocks of each segment are in use.
//!
//! An entry has 74 bytes: type and count (le16), the valid map (64 bytes, most significant bit first) and the
//! time of the last change (le64). The two copies are the two halves of the area; the checkpoint's SIT bitmap
//! says which copy of each block counts.

use std::fmt;

use super::{BLOCKS_PER_SEGMENT, BlockSize};
use crate::{Error, Place, Result, units::SegNo};

/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 74;
/// Bytes of a valid map.
pub const MAP_BYTES: usize = BLOCKS_PER_SEGMENT as usize / 8;

/// A valid map: one bit per block of a segment, most significant bit of each byte first.
pub type ValidMap = [u8; MAP_BYTES];

/// Kind of the blocks of a segment, and so the log that fills it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SegmentType {
    /// Directory blocks.
    HotData,
    /// File blocks.
    WarmData,
    /// File blocks that are rarely rewritten.
    ColdData,
    /// Inodes and direct nodes of directories.
    HotNode,
    /// Inodes and direct nodes of other files.
    WarmNode,
    /// Indirect nodes.
    ColdNode,
}

impl SegmentType {
    /// All six, in the order of their numbers.
    pub const ALL: [SegmentType; 6] = [
        SegmentType::HotData,
        SegmentType::WarmData,
        SegmentType::ColdData,
        SegmentType::HotNode,
        SegmentType::WarmNode,
        SegmentType::ColdNode,
    ];

    /// Those of data, in the order of their numbers.
    pub const DATA: [SegmentType; 3] = [SegmentType::HotData, SegmentType::WarmData, SegmentType::ColdData];

    /// Its number on disk, 0 to 5.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns true if it holds nodes.
    #[must_use]
    pub const fn is_node(self) -> bool {
        self as usize >= 3
    }
}

impl fmt::Display for SegmentType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["hot data", "warm data", "cold data", "hot node", "warm node", "cold node"];
        f.write_str(names[self.index()])
    }
}

/// A segment's entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SitEntry {
    /// Kind of its blocks, now or last.
    pub kind: SegmentType,
    /// Valid blocks, 0 to 512: the bits that are set in the map.
    pub valid_blocks: u16,
    /// Map of the valid blocks.
    pub map: ValidMap,
    /// Time of the segment's last change, in seconds of mounted time.
    pub mtime: u64,
}

impl SitEntry {
    /// An empty segment.
    pub const EMPTY: SitEntry =
        SitEntry { kind: SegmentType::HotData, valid_blocks: 0, map: [0; MAP_BYTES], mtime: 0 };

    /// Parses an entry of 74 bytes and checks it.
    ///
    /// # Errors
    /// [`Error::Corrupt`] at the entry of `segment` if its type is unknown, or its count differs from its bitmap.
    pub fn check(bytes: &[u8; ENTRY_BYTES], segment: SegNo) -> Result<SitEntry> {
        let bad = |what: String| Error::corrupt(Place::Sit(segment), what);
        let word = u16::from_le_bytes([bytes[0], bytes[1]]);
        let (kind, valid_blocks) = (word >> 10, word & 0x3FF);
        let kind = *SegmentType::ALL
            .get(usize::from(kind))
            .ok_or_else(|| bad(format!("type {kind}, must be 0 to 5")))?;
        let map: ValidMap = bytes[2..2 + MAP_BYTES].try_into().expect("a map's bytes");
        let set = count(&map);
        if set != u32::from(valid_blocks) {
            return Err(bad(format!("{valid_blocks} valid blocks, {set} bits set")));
        }
        let mtime = u64::from_le_bytes(bytes[66..].try_into().expect("eight bytes"));
        Ok(SitEntry { kind, valid_blocks, map, mtime })
    }

    /// The 74 bytes of the entry.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        let word = (self.kind as u16) << 10 | self.valid_blocks;
        bytes[..2].copy_from_slice(&word.to_le_bytes());
        bytes[2..66].copy_from_slice(&self.map);
        bytes[66..].copy_from_slice(&self.mtime.to_le_bytes());
        bytes
    }
}

/// Bits set in a valid map.
#[must_use]
pub fn count(map: &ValidMap) -> u32 {
    map.iter().map(|byte| byte.count_ones()).sum()
}

/// Returns the block of the table and the index in it of a segment's entry.
#[must_use]
pub fn position(segment: SegNo, size: BlockSize) -> (u32, usize) {
    let per_block = u32::try_from(size.sit_entries()).expect("a block has few entries");
    (segment.0 / per_block, (segment.0 % per_block) as usize)
}

/// Entry `index` of a block of the table, which is that of `segment`.
///
/// # Errors
/// Those of [`SitEntry::check`].
pub fn entry(block: &[u8], index: usize, segment: SegNo) -> Result<SitEntry> {
    let bytes = block[index * ENTRY_BYTES..][..ENTRY_BYTES].try_into().expect("an entry's bytes");
    SitEntry::check(bytes, segment)
}

/// Stores entry `index` of a block of the table.
pub fn set_entry(block: &mut [u8], index: usize, entry: &SitEntry) {
    block[index * ENTRY_BYTES..][..ENTRY_BYTES].copy_from_slice(&entry.to_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::bits::set_msb;

    #[test]
    fn the_map_counts_from_the_most_significant_bit() {
        let mut entry =
            SitEntry { kind: SegmentType::ColdNode, valid_blocks: 2, mtime: 5, ..SitEntry::EMPTY };
        set_msb(&mut entry.map, 0);
        set_msb(&mut entry.map, 511);
        let bytes = entry.to_bytes();
        assert_eq!((bytes[0], bytes[1], bytes[2], bytes[65]), (2, 5 << 2, 0x80, 0x01));
        assert_eq!(SitEntry::check(&bytes, SegNo(3)).unwrap(), entry);
    }

    #[test]
    fn a_wrong_count_or_type_is_an_error_with_its_segment() {
        for (at, value) in [(0, 1), (1, 7 << 2)] {
            let mut bytes = SitEntry::EMPTY.to_bytes();
            bytes[at] = value;
            let error = SitEntry::check(&bytes, SegNo(3)).unwrap_err();
            assert!(matches!(error, Error::Corrupt { at: Place::Sit(SegNo(3)), .. }));
        }
    }

    #[test]
    fn positions_follow_the_block_size() {
        assert_eq!(position(SegNo(55), BlockSize::B4K), (1, 0));
        assert_eq!(position(SegNo(222), BlockSize::B16K), (1, 1));
    }
}
