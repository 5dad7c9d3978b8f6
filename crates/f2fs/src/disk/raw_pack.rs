//! A checkpoint pack as it lies on the device, for tools that examine damaged volumes.

use std::{collections::BTreeMap, ops::Range};

use super::{Geometry, Io};
use crate::{
    Error, Place, Result,
    format::{
        BLOCKS_PER_SEGMENT, BlockSize,
        checkpoint::{FIXED_BLOCKS, PackEnd, PackStart},
    },
    units::{BlockAddr, CheckpointVer},
};

/// All blocks of a pack's segment, each read once.
///
/// The last block of a pack is a copy of its head. It is written after everything else is durable, so it proves that the
/// checkpoint was committed, and it restores a damaged head.
pub struct RawPack {
    number: u8,
    block_size: BlockSize,
    bytes: Vec<u8>,
    /// Blocks that cannot be read, with the error of each.
    unreadable: BTreeMap<u32, String>,
}

impl RawPack {
    /// Reads a pack, 0 or 1. Blocks that cannot be read alone stay unknown.
    #[must_use]
    pub fn read(io: &Io, geometry: &Geometry, number: u8) -> RawPack {
        let (at, start, size) = (Place::Checkpoint(number), geometry.pack(number), geometry.block_size);
        let mut bytes = vec![0; size.bytes() * BLOCKS_PER_SEGMENT as usize];
        let mut unreadable = BTreeMap::new();
        if io.read(start, at, &mut bytes).is_err() {
            for (index, block) in (0..).zip(bytes.chunks_exact_mut(size.bytes())) {
                let addr = BlockAddr(start.0.saturating_add(index));
                if let Err(error) = io.read(addr, at, block) {
                    block.fill(0);
                    unreadable.insert(index, error.to_string());
                }
            }
        }
        RawPack { number, block_size: size, bytes, unreadable }
    }

    /// Number of the pack.
    #[must_use]
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Some of the blocks, by their numbers in the segment.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if one of them cannot be read.
    pub fn blocks(&self, blocks: Range<u32>) -> Result<&[u8]> {
        match self.unreadable.range(blocks.clone()).next() {
            Some((index, error)) => {
                let what = format!("block {index} cannot be read: {error}");
                Err(Error::corrupt(Place::Checkpoint(self.number), what))
            }
            None => {
                let size = self.block_size.bytes();
                Ok(&self.bytes[blocks.start as usize * size..blocks.end as usize * size])
            }
        }
    }

    /// The fields at the start of the head, whose checksum may be wrong.
    #[must_use]
    pub fn start(&self) -> Option<PackStart> {
        self.blocks(0..1).ok().map(PackStart::parse)
    }

    /// The head, which is block 0, or a copy of it.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the block cannot be read, or is not the head of a pack with its checksum.
    pub fn end(&self, block: u32) -> Result<PackEnd> {
        PackEnd::check(self.blocks(block..block + 1)?, self.block_size, self.number)
    }

    /// Returns the head, if its copy is at the end that it names.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if one of the two is damaged, or belongs to another checkpoint.
    pub fn whole(&self) -> Result<PackEnd> {
        let head = self.end(0)?;
        let copy = self.end(head.pack_blocks - 1)?;
        match head.matches(&copy) {
            true => Ok(head),
            false => {
                let what =
                    format!("it begins with version {} and ends with {}", head.version.0, copy.version.0);
                Err(Error::corrupt(Place::Checkpoint(self.number), what))
            }
        }
    }

    /// The newest copy of a head that lies where it has the end of its pack: the block and its content.
    #[must_use]
    pub fn newest_copy(&self) -> Option<(u32, PackEnd)> {
        let copies =
            (FIXED_BLOCKS..BLOCKS_PER_SEGMENT).filter_map(|block| Some((block, self.end(block).ok()?)));
        let in_place = copies.filter(|(block, copy)| copy.pack_blocks == block + 1);
        in_place.reduce(|best, copy| if copy.1.version.is_after(best.1.version) { copy } else { best })
    }

    /// Returns true if the pack ends with a copy of the head of this version, intact or not: then it was complete once.
    #[must_use]
    pub fn has_copy(&self, version: CheckpointVer) -> bool {
        let starts = (1..BLOCKS_PER_SEGMENT)
            .filter_map(|block| Some((block, PackStart::parse(self.blocks(block..block + 1).ok()?))));
        let mut copies = starts.filter(|(block, copy)| copy.pack_blocks == block + 1);
        copies.any(|(_, copy)| copy.version == version)
    }

    /// The newest version among the heads and copies that carry their checksum.
    #[must_use]
    pub fn newest_version(&self) -> Option<CheckpointVer> {
        let versions = (0..BLOCKS_PER_SEGMENT).filter_map(|block| Some(self.end(block).ok()?.version));
        versions.reduce(|best, version| if version.is_after(best) { version } else { best })
    }
}
