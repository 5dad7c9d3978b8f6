//! The two checkpoint packs: which of them are whole, and whether a newer one is lost.
//!
//! The last block of a pack is a copy of its first. It is written after everything else is durable, so it
//! proves that the checkpoint was committed, and it replaces a first block that is damaged.

use f2fs::{
    Place,
    engine::{Geometry, Io},
    format::{
        BLOCKS_PER_SEGMENT,
        checkpoint::{FIXED_BLOCKS, PackEnd},
        superblock::Superblock,
    },
    units::{BlockAddr, CheckpointVer},
};

/// The ends of a pack that are left.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PackEnds {
    /// The first block.
    head: Option<PackEnd>,
    /// The last block: that of the head, otherwise the newest in the pack that is in its place.
    tail: Option<PackEnd>,
}

impl PackEnds {
    /// Reads the ends of a pack.
    pub(crate) fn read(io: &Io, geometry: &Geometry, sb: &Superblock, pack: u8) -> PackEnds {
        let end = |index: u32| {
            let addr = BlockAddr(geometry.pack(pack).0.checked_add(index)?);
            let block = io.read_block(addr, Place::Checkpoint(pack)).ok()?;
            PackEnd::check(&block, sb.block_size, pack).ok()
        };
        let head = end(0);
        let own_tail = head.and_then(|head| end(head.pack_blocks - 1).filter(|tail| belongs(head, *tail)));
        let in_place = |index: u32| end(index).filter(|tail| tail.pack_blocks == index + 1);
        let tail = own_tail.or_else(|| {
            let tails = (FIXED_BLOCKS..BLOCKS_PER_SEGMENT).filter_map(in_place);
            tails.reduce(|best, tail| if tail.version.is_after(best.version) { tail } else { best })
        });
        PackEnds { head, tail }
    }

    /// Returns the last block, which describes the pack, if the checkpoint was committed.
    pub(crate) fn committed(&self) -> Option<PackEnd> {
        match (self.head, self.tail) {
            (Some(head), Some(tail)) if !belongs(head, tail) => None,
            (_, tail) => tail,
        }
    }

    /// Reads a committed pack. A lost first block is replaced by its copy.
    pub(crate) fn read_pack(
        &self,
        io: &Io,
        geometry: &Geometry,
        sb: &Superblock,
        pack: u8,
    ) -> Option<Vec<u8>> {
        let size = sb.block_size.bytes();
        let mut bytes = vec![0; size * self.committed()?.pack_blocks as usize];
        let (start, place) = (geometry.pack(pack), Place::Checkpoint(pack));
        if self.head.is_some() {
            io.read(start, place, &mut bytes).ok()?;
        } else {
            io.read(BlockAddr(start.0.checked_add(1)?), place, &mut bytes[size..]).ok()?;
            let tail = bytes.len() - size;
            bytes.copy_within(tail.., 0);
        }
        Some(bytes)
    }

    /// Returns true if the pack may have held a newer checkpoint than the version `used`.
    pub(crate) fn may_be_newer(&self, used: CheckpointVer) -> bool {
        match (self.head, self.tail) {
            (None, None) => true,
            // The checkpoint was not committed: the end of the one before it is still there.
            (Some(head), Some(tail)) if head.version.is_after(tail.version) => false,
            (head, tail) => [head, tail].into_iter().flatten().any(|end| end.version.is_after(used)),
        }
    }
}

/// Returns true if a first and a last block belong to one pack.
fn belongs(head: PackEnd, tail: PackEnd) -> bool {
    head.matches(&tail) && head.pack_blocks == tail.pack_blocks
}
