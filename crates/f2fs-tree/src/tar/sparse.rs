//! Maps of sparse files in tar streams: GNU's old map in headers, and the three pax formats.

use std::ops::Range;

use super::header::{BLOCK_BYTES, number};

/// Maximum number of data ranges in the map of a sparse file.
pub const RANGES_MAX: usize = 1 << 20;

/// Checks a map of (offset, length) pairs: they must ascend, be disjoint, lie inside `size`, and cover
/// `stored` bytes in all. Leaves out empty ranges, which mark the end. Returns None if the map is invalid.
pub fn checked(pairs: &[(u64, u64)], size: u64, stored: u64) -> Option<Vec<Range<u64>>> {
    let (mut ranges, mut end, mut sum) = (Vec::with_capacity(pairs.len()), 0u64, 0u64);
    for (offset, length) in pairs {
        let range = *offset..offset.checked_add(*length)?;
        if range.start < end || range.end > size {
            return None;
        }
        (end, sum) = (range.end, sum.checked_add(*length)?);
        if *length > 0 {
            ranges.push(range);
        }
    }
    (sum == stored).then_some(ranges)
}

/// Merges ranges of data until there are at most `most`, over the smallest holes first: every reader takes so many.
pub fn fewer(data: &[Range<u64>], most: usize) -> Vec<Range<u64>> {
    let (mut ranges, mut hole_bytes) = (data.to_vec(), 1u64);
    while ranges.len() > most.max(1) {
        ranges.dedup_by(|next, last| {
            let is_near = next.start - last.end <= hole_bytes;
            if is_near {
                last.end = next.end;
            }
            is_near
        });
        hole_bytes = hole_bytes.saturating_mul(2);
    }
    ranges
}

/// Parses the pairs in a GNU header or an extension of it, 12 bytes each for offset and length. Stops at the
/// first pair without an offset.
pub fn gnu_pairs(bytes: &[u8]) -> Option<Vec<(u64, u64)>> {
    let mut pairs = Vec::new();
    for pair in bytes.chunks_exact(24).take_while(|pair| pair[0] != 0 && pair[12] != 0) {
        let (offset, length) = (number(&pair[..12])?, number(&pair[12..])?);
        pairs.push((u64::try_from(offset).ok()?, u64::try_from(length).ok()?));
    }
    Some(pairs)
}

/// Layout of the map in a GNU header: four pairs, then a flag that extensions follow, then the file's size.
pub mod gnu {
    use std::ops::Range;

    /// The pairs.
    pub const MAP: Range<usize> = 386..482;
    /// Flag that an extension follows.
    pub const EXTENDED: usize = 482;
    /// Size of the file, including its holes.
    pub const SIZE: Range<usize> = 483..495;
    /// The pairs in an extension.
    pub const MORE: Range<usize> = 0..504;
    /// Flag that a further extension follows.
    pub const MORE_EXTENDED: usize = 504;
}

/// Parses the map of pax format 0.1: all numbers in one value, separated by commas.
pub fn comma_pairs(value: &[u8]) -> Option<Vec<(u64, u64)>> {
    let text = std::str::from_utf8(value).ok()?;
    let numbers: Vec<u64> = text.split(',').map(|number| number.parse().ok()).collect::<Option<_>>()?;
    (numbers.len() % 2 == 0).then(|| numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
}

/// Reads the map of pax format 1.0 from the first blocks of the data. The map is one decimal number per line,
/// the count of pairs first, padded to whole blocks. `next_block` reads a block. Returns the pairs and the
/// number of bytes that they took, or None if they are malformed.
#[allow(clippy::type_complexity)]
pub fn leading_pairs<E>(
    mut next_block: impl FnMut() -> Result<[u8; BLOCK_BYTES], E>,
) -> Result<Option<(Vec<(u64, u64)>, u64)>, E> {
    let mut numbers = Numbers::default();
    for taken in (BLOCK_BYTES as u64..).step_by(BLOCK_BYTES) {
        for byte in next_block()? {
            match numbers.take(byte) {
                Some(false) => continue,
                Some(true) => {
                    let pairs = numbers.complete.chunks_exact(2).map(|pair| (pair[0], pair[1]));
                    return Ok(Some((pairs.collect(), taken)));
                }
                None => return Ok(None),
            }
        }
    }
    Ok(None)
}

/// Parser of decimal numbers, one per line. The first is the count of pairs that follow.
#[derive(Default)]
struct Numbers {
    wanted: Option<usize>,
    complete: Vec<u64>,
    current: Option<u64>,
}

impl Numbers {
    /// Takes a character. Returns true once all numbers are complete, and None if the character is invalid.
    fn take(&mut self, byte: u8) -> Option<bool> {
        match byte {
            b'0'..=b'9' => {
                let digit = u64::from(byte - b'0');
                self.current = Some(self.current.unwrap_or(0).checked_mul(10)?.checked_add(digit)?);
            }
            b'\n' => match (self.wanted, self.current.take()?) {
                (None, count) if count <= RANGES_MAX as u64 => self.wanted = Some(2 * count as usize),
                (None, _) => return None,
                (Some(_), number) => self.complete.push(number),
            },
            _ => return None,
        }
        Some(self.wanted == Some(self.complete.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_ascend_and_match_the_stored_data() {
        assert_eq!(checked(&[(0, 2), (5, 3), (10, 0)], 10, 5), Some(vec![0..2, 5..8]));
        assert_eq!(checked(&[], 10, 0), Some(vec![]));
        for (pairs, size, stored) in [
            (&[(5, 3), (0, 2)][..], 10, 5),
            (&[(0, 4), (3, 3)], 10, 7),
            (&[(8, 3)], 10, 3),
            (&[(u64::MAX, 2)], u64::MAX, 2),
            (&[(0, 2)], 10, 3),
        ] {
            assert_eq!(checked(pairs, size, stored), None, "{pairs:?}");
        }
    }

    #[test]
    fn too_many_ranges_are_merged_over_the_smallest_holes() {
        let data = [0..4, 5..9, 100..104, 106..110, 1000..1001];
        assert_eq!(fewer(&data, 5), data);
        assert_eq!(fewer(&data, 4), [0..9, 100..104, 106..110, 1000..1001]);
        assert_eq!(fewer(&data, 3), [0..9, 100..110, 1000..1001]);
        assert_eq!(fewer(&data, 0), [Range { start: 0, end: 1001 }]);
        assert_eq!(fewer(&[], 0), []);
    }

    #[test]
    fn a_leading_map_may_span_blocks_and_is_bounded() {
        let pairs: Vec<(u64, u64)> = (0..100).map(|n| (n * 100_000, 4096)).collect();
        let mut text = format!("{}\n", pairs.len()).into_bytes();
        for (offset, length) in &pairs {
            text.extend(format!("{offset}\n{length}\n").bytes());
        }
        text.resize(text.len().next_multiple_of(BLOCK_BYTES), 0);
        let mut blocks = text.chunks_exact(BLOCK_BYTES);
        let got = leading_pairs::<()>(|| Ok(blocks.next().unwrap().try_into().unwrap())).unwrap();
        assert_eq!(got, Some((pairs, text.len() as u64)));
        for text in ["9999999999\n", "1\nx\n", "\n", "99999999999999999999999\n"] {
            let mut block = [b'0'; BLOCK_BYTES];
            block[..text.len()].copy_from_slice(text.as_bytes());
            assert_eq!(leading_pairs::<()>(|| Ok(block)), Ok(None), "{text:?}");
        }
    }
}
