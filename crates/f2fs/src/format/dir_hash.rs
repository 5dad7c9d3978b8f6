//! The hash table of a directory: levels of buckets of blocks.
//!
//! Level 0 has 2^`dir_level` buckets, and each further level has twice as many, up to a limit. A bucket has 2
//! blocks, in high levels 4. In every level, a name belongs to the bucket that its hash selects; a lookup
//! searches the levels in order. (Linux, `dir_buckets`, `bucket_blocks`, `dir_block_index`.)

use std::ops::Range;

/// Maximum number of levels.
pub const DEPTH_MAX: u32 = 63;
/// From this level on buckets have 4 blocks; from this `level + dir_level` on the number of buckets is fixed.
const HALF: u32 = DEPTH_MAX / 2;
const BUCKETS_MAX: u64 = 1 << (HALF - 1);

/// Returns the number of buckets in a level, for a directory with this `dir_level`.
#[must_use]
pub fn buckets(level: u32, dir_level: u8) -> u64 {
    let log = level + u32::from(dir_level);
    if log < HALF { 1 << log } else { BUCKETS_MAX }
}

/// Returns the number of blocks per bucket in a level.
#[must_use]
pub fn bucket_blocks(level: u32) -> u64 {
    if level < HALF { 2 } else { 4 }
}

/// Returns the first block of a level in the directory.
#[must_use]
pub fn level_start(level: u32, dir_level: u8) -> u64 {
    (0..level).map(|lower| buckets(lower, dir_level) * bucket_blocks(lower)).sum()
}

/// Returns the directory's blocks where a level may hold a name with this hash.
#[must_use]
pub fn bucket(level: u32, dir_level: u8, hash: u32) -> Range<u64> {
    let number = u64::from(hash) % buckets(level, dir_level);
    let start = level_start(level, dir_level) + number * bucket_blocks(level);
    start..start + bucket_blocks(level)
}

/// Returns the level of a directory's block, and the number of its bucket in that level.
#[must_use]
pub fn level_of(block: u64, dir_level: u8) -> Option<(u32, u64)> {
    let level = (0..DEPTH_MAX).find(|level| block < level_start(level + 1, dir_level))?;
    Some((level, (block - level_start(level, dir_level)) / bucket_blocks(level)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_double_and_follow_each_other() {
        assert_eq!(bucket(0, 0, 0xFFFF_FFFF), 0..2);
        assert_eq!(bucket(1, 0, 5), 4..6);
        assert_eq!(bucket(3, 0, 13), 14 + 10..14 + 12);
        assert_eq!(bucket(0, 3, 13), 10..12);
        for dir_level in [0, 2, 30, 255] {
            for level in 0..DEPTH_MAX {
                let next = level_start(level + 1, dir_level);
                assert_eq!(
                    level_start(level, dir_level) + buckets(level, dir_level) * bucket_blocks(level),
                    next
                );
                let place = bucket(level, dir_level, 0xDEAD_BEEF);
                assert!(place.end <= next);
                let number = 0xDEAD_BEEF % buckets(level, dir_level);
                assert_eq!(level_of(place.start, dir_level), Some((level, number)));
                assert_eq!(level_of(place.end - 1, dir_level), Some((level, number)));
            }
        }
    }

    #[test]
    fn high_levels_stop_growing() {
        assert_eq!((buckets(30, 0), buckets(31, 0), buckets(62, 255)), (1 << 30, 1 << 30, 1 << 30));
        assert_eq!((bucket_blocks(30), bucket_blocks(31)), (2, 4));
        assert_eq!(level_of(u64::MAX, 0), None);
    }
}
