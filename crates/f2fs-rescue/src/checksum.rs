//! Correction of one damaged field of an inode by the checksum of the inode.
//!
//! The checksum is linear: a changed bit changes it by a value that depends only on the bit's place, and no two bits of an
//! inode change it alike. So the difference between the stored and the right checksum tells which bit was changed.

use std::mem::offset_of;

use f2fs::{
    format::{
        BlockSize, FileType,
        block_size::INODE_HEAD_BYTES,
        crc::crc,
        inode::raw::{ExtraAttributes, InodeHead},
        node::NodeFormat,
    },
    units::Ino,
};
use rustc_hash::FxHashMap;

/// Place of the checksum in an inode.
const SUM: usize = INODE_HEAD_BYTES + offset_of!(ExtraAttributes, inode_checksum);
/// Places of the size of inline xattrs and of the mode, which have 16 bits.
const XATTR_WORDS: usize = INODE_HEAD_BYTES + offset_of!(ExtraAttributes, inline_xattr_words);
const MODE: usize = offset_of!(InodeHead, mode);
/// Place of the generation, which the checksum has twice.
const GENERATION: usize = offset_of!(InodeHead, generation);

/// Changes of the checksum by single bits of an inode.
pub(crate) struct Bits {
    /// The change by each bit, in the order of the bytes.
    changes: Vec<[u32; 8]>,
    by_change: FxHashMap<u32, (usize, u8)>,
}

impl Bits {
    pub(crate) fn new(size: BlockSize) -> Bits {
        let bytes = size.bytes();
        let mut bits: [u32; 8] = std::array::from_fn(|bit| crc(0, &[1 << bit]));
        // The generation lies in front of the block, too, from the last byte to the first.
        let mut all = vec![bits];
        while all.len() < bytes + 4 {
            bits = bits.map(|change| crc(change, &[0]));
            all.push(bits);
        }
        let (block, before) = all.split_at(bytes);
        let mut changes: Vec<[u32; 8]> = block.iter().rev().copied().collect();
        for (n, extra) in before.iter().rev().enumerate() {
            let own = changes[GENERATION + n];
            changes[GENERATION + n] = std::array::from_fn(|bit| own[bit] ^ extra[bit]);
        }
        // The checksum counts as zero, so a bit of it changes only the stored one.
        for n in 0..4 {
            changes[SUM + n] = std::array::from_fn(|bit| 1 << (8 * n + bit));
        }
        let places = changes.iter().enumerate();
        let by_change =
            places.flat_map(|(at, bits)| (0u8..).zip(bits).map(move |(bit, change)| (*change, (at, bit))));
        Bits { by_change: by_change.collect(), changes }
    }

    /// Returns the inode with the field that makes its checksum right: a single bit, the size of inline xattrs, or a mode that
    /// is impossible.
    pub(crate) fn corrected(&self, bytes: &[u8], ino: Ino, format: NodeFormat) -> Option<Box<[u8]>> {
        let change = difference(bytes, ino, format);
        let mut copy: Box<[u8]> = bytes.into();
        if let Some((at, bit)) = self.by_change.get(&change) {
            copy[*at] ^= 1 << bit;
            return Some(copy);
        }
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let max = u16::try_from(format.block_size.bytes() / 4).expect("a few thousand words");
        let is_right = |at: usize, value: u16| self.change_of(at, word(at) ^ value) == change;
        let words = (0..=max).find(|value| is_right(XATTR_WORDS, *value)).map(|value| (XATTR_WORDS, value));
        let mode = || {
            let is_possible = |mode: &u16| FileType::from_mode(*mode).is_some();
            let mut modes = (0..=u16::MAX).filter(|mode| !is_possible(&word(MODE)) && is_possible(mode));
            modes.find(|mode| is_right(MODE, *mode)).map(|mode| (MODE, mode))
        };
        let (at, value) = words.or_else(mode)?;
        copy[at..at + 2].copy_from_slice(&value.to_le_bytes());
        Some(copy)
    }

    /// Change of the checksum by some bits of a word.
    fn change_of(&self, at: usize, bits: u16) -> u32 {
        let set = (0..16).filter(|bit| bits >> bit & 1 == 1);
        set.fold(0, |sum, bit| sum ^ self.changes[at + bit / 8][bit % 8])
    }
}

/// Difference between the stored checksum of an inode and the right one.
fn difference(bytes: &[u8], ino: Ino, format: NodeFormat) -> u32 {
    let seed = crc(crc(format.checksum_seed, &ino.0.to_le_bytes()), &bytes[GENERATION..GENERATION + 4]);
    let sum = crc(crc(crc(seed, &bytes[..SUM]), &[0; 4]), &bytes[SUM + 4..]);
    let stored = bytes[SUM..SUM + 4].try_into().expect("four bytes");
    sum ^ u32::from_le_bytes(stored)
}
