//! Orphan blocks: inodes without a name that were open when the checkpoint was written.
//!
//! A block holds inode numbers (le32), then reserved (le32), its own number from 1 (le16), the count of orphan
//! blocks (le16), the count of entries (le32) and an unused checksum.

use super::{BLOCKS_PER_SEGMENT, BlockSize};
use crate::{Error, Place, Result, units::Ino};

/// Bytes after the inode numbers.
const TAIL_BYTES: usize = 16;

/// The inode numbers of one block.
pub(crate) fn parse(block: &[u8], size: BlockSize, pack: u8) -> Result<Vec<Ino>> {
    let at = size.bytes() - TAIL_BYTES + 8;
    let entries = u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes")) as usize;
    if entries > size.orphans() {
        return Err(Error::corrupt(
            Place::Checkpoint(pack),
            format!("{entries} entries in an orphan block, at most {}", size.orphans()),
        ));
    }
    let inos = block[..entries * 4].chunks_exact(4);
    Ok(inos.map(|ino| Ino(u32::from_le_bytes(ino.try_into().expect("four bytes")))).collect())
}

/// Returns the number of blocks for `count` orphans.
#[must_use]
pub fn blocks(count: usize, size: BlockSize) -> usize {
    count.div_ceil(size.orphans())
}

/// Returns the maximum number of orphans in a checkpoint pack, beside two heads and six summaries.
#[must_use]
pub fn most(cp_payload: u32, size: BlockSize) -> usize {
    (BLOCKS_PER_SEGMENT - 2 - 6 - cp_payload) as usize * size.orphans()
}

/// Encodes the orphan blocks for `inos`, one after the other.
///
/// # Panics
/// If there are more than fit into a pack: a bug of the caller.
#[must_use]
pub fn encode(inos: &[Ino], size: BlockSize) -> Vec<u8> {
    let number = |count: usize| u16::try_from(count).expect("the capacity of a pack fits into 16 bits");
    let total = blocks(inos.len(), size);
    let mut bytes = vec![0; total * size.bytes()];
    let chunks = inos.chunks(size.orphans()).zip(bytes.chunks_exact_mut(size.bytes()));
    for (index, (chunk, block)) in chunks.enumerate() {
        for (ino, slot) in chunk.iter().zip(block.chunks_exact_mut(4)) {
            slot.copy_from_slice(&ino.0.to_le_bytes());
        }
        let tail = &mut block[size.bytes() - TAIL_BYTES..];
        tail[4..6].copy_from_slice(&number(index + 1).to_le_bytes());
        tail[6..8].copy_from_slice(&number(total).to_le_bytes());
        tail[8..12].copy_from_slice(&u32::from(number(chunk.len())).to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_numbered_from_one() {
        for size in [BlockSize::B4K, BlockSize::B16K] {
            let inos: Vec<Ino> = (10..10 + size.orphans() as u32 + 1).map(Ino).collect();
            let bytes = encode(&inos, size);
            assert_eq!(bytes.len(), 2 * size.bytes());
            let second = &bytes[size.bytes()..];
            assert_eq!(second[size.bytes() - 12..size.bytes() - 4], [2, 0, 2, 0, 1, 0, 0, 0]);
            let mut read = parse(&bytes, size, 0).unwrap();
            read.extend(parse(second, size, 0).unwrap());
            assert_eq!(read, inos);
        }
    }

    #[test]
    fn the_count_is_bounded() {
        let mut block = vec![0; 4096];
        block[4088..4092].copy_from_slice(&1021u32.to_le_bytes());
        assert!(parse(&block, BlockSize::B4K, 1).is_err());
        assert!(encode(&[], BlockSize::B4K).is_empty());
        assert_eq!(most(1, BlockSize::B4K), 503 * 1020);
    }
}
