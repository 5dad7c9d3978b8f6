//! Sizes of the metadata areas of a volume, as mkfs.f2fs chooses them (`f2fs_prepare_super_block`).

use super::plan::Misfit;
use crate::format::{BLOCKS_PER_SEGMENT, BlockSize, LOG_BLOCKS_PER_SEGMENT, superblock::Features};

/// Bytes of a checkpoint before its bitmaps.
const CHECKPOINT_HEAD_BYTES: u32 = 192;
/// Bytes of the checkpoint's checksum.
const CHECKSUM_BYTES: u32 = 4;
/// Bytes that the NAT's bitmap always has in the first block of a checkpoint: enough for one segment.
const NAT_BITMAP_MIN_BYTES: u32 = 64;
/// Percentage of the maximum number of nodes for which a large NAT has entries.
const LARGE_NAT_PERCENT: u32 = 20;
/// Segments of the two checkpoint packs.
pub(crate) const CHECKPOINT_SEGMENTS: u32 = 2;

/// Placement of the version bitmaps in a checkpoint, which limits the size of the NAT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BitmapLayout {
    /// The NAT's bitmap is in the first block.
    FirstBlock,
    /// Both bitmaps follow the checksum and may fill several blocks (`CP_LARGE_NAT_BITMAP_FLAG`).
    Large,
}

/// Sizes of the areas before the main area, in segments. SIT and NAT include both copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AreaSizes {
    pub(crate) sit: u32,
    pub(crate) nat: u32,
    pub(crate) ssa: u32,
    /// Blocks of a checkpoint pack for bitmaps that do not fit into its first block.
    pub(crate) cp_payload: u32,
}

impl AreaSizes {
    /// The sizes for a volume of `segments`, all areas together. The whole metadata is a multiple of `per_zone` segments.
    pub(crate) fn of(
        size: BlockSize,
        features: Features,
        segments: u32,
        per_zone: u32,
        bitmaps: BitmapLayout,
    ) -> Result<AreaSizes, Misfit> {
        let sit = segments.div_ceil(size.sit_entries() as u32).div_ceil(BLOCKS_PER_SEGMENT);
        let fixed = CHECKPOINT_SEGMENTS + 2 * sit;
        let rest = segments.checked_sub(fixed).ok_or(Misfit::TooSmall)?;
        let (nat, cp_payload) = nat_and_payload(size, rest, bitmap_bytes(sit), bitmaps);
        let fixed = fixed + 2 * nat;
        let rest = segments.checked_sub(fixed).ok_or(Misfit::TooSmall)?;
        let summary_blocks = match features {
            set if set.has(Features::RO) => 0,
            set if set.has(Features::PACKED_SSA) => {
                rest.div_ceil((size.bytes() / BlockSize::B4K.bytes()) as u32)
            }
            _ => rest,
        };
        let all = (fixed + summary_blocks.div_ceil(BLOCKS_PER_SEGMENT)).next_multiple_of(per_zone);
        // The rest of the last metadata zone belongs to the SSA.
        Ok(AreaSizes { sit: 2 * sit, nat: 2 * nat, ssa: all - fixed, cp_payload })
    }

    /// Segments of all metadata areas, the checkpoint packs included.
    pub(crate) fn total(self) -> u32 {
        CHECKPOINT_SEGMENTS + self.sit + self.nat + self.ssa
    }
}

/// Returns the bytes of the version bitmap of a table with one copy of `segments`: a bit for each block.
pub(crate) fn bitmap_bytes(segments: u32) -> u32 {
    segments * BLOCKS_PER_SEGMENT / 8
}

/// Returns the segments of one copy of the NAT, and the blocks for bitmaps that a checkpoint needs beyond its
/// first. `rest` is the number of segments left by checkpoints and SIT.
fn nat_and_payload(size: BlockSize, rest: u32, sit_bitmap: u32, bitmaps: BitmapLayout) -> (u32, u32) {
    let block_bytes = size.bytes() as u32;
    let room = block_bytes - CHECKPOINT_HEAD_BYTES - CHECKSUM_BYTES;
    let nat_blocks = (u64::from(rest) << LOG_BLOCKS_PER_SEGMENT).div_ceil(size.nat_entries() as u64);
    let wanted = nat_blocks.div_ceil(u64::from(BLOCKS_PER_SEGMENT)) as u32;
    if bitmaps == BitmapLayout::Large {
        let nat = (u64::from(wanted) * u64::from(LARGE_NAT_PERCENT) / 100).max(1) as u32;
        return (nat, (sit_bitmap + bitmap_bytes(nat)).saturating_sub(room).div_ceil(block_bytes));
    }
    // The NAT's bitmap stays in the first block. The SIT's leaves it if both do not fit.
    let (nat_room, payload) = match sit_bitmap > room - NAT_BITMAP_MIN_BYTES {
        true => (room, sit_bitmap.div_ceil(block_bytes)),
        false => (room - sit_bitmap, 0),
    };
    (wanted.min(nat_room * 8 / BLOCKS_PER_SEGMENT), payload)
}
