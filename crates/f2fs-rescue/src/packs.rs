//! The two checkpoint packs: which of them are whole, and whether a newer one is lost.
//!
//! The last block of a pack is a copy of its first. It is written after everything else is durable, so it
//! proves that the checkpoint was committed, and it replaces a first block that is damaged.

use std::borrow::Cow;

use f2fs::{
    engine::{Geometry, Io, RawPack},
    format::checkpoint::PackEnd,
    units::CheckpointVer,
};

/// A pack, and the ends of it that are left.
pub(crate) struct PackEnds {
    raw: RawPack,
    /// The first block.
    head: Option<PackEnd>,
    /// The last block: that of the head, otherwise the newest in the pack that is in its place.
    tail: Option<PackEnd>,
}

impl PackEnds {
    /// Reads a pack.
    pub(crate) fn read(io: &Io, geometry: &Geometry, pack: u8) -> PackEnds {
        let raw = RawPack::read(io, geometry, pack);
        let head = raw.end(0).ok();
        let own_tail =
            head.and_then(|head| raw.end(head.pack_blocks - 1).ok().filter(|tail| belongs(head, *tail)));
        let tail = own_tail.or_else(|| raw.newest_copy().map(|(_, tail)| tail));
        PackEnds { raw, head, tail }
    }

    /// Returns the last block, which describes the pack, if the checkpoint was committed.
    pub(crate) fn committed(&self) -> Option<PackEnd> {
        match (self.head, self.tail) {
            (Some(head), Some(tail)) if !belongs(head, tail) => None,
            (_, tail) => tail,
        }
    }

    /// Returns true if the first block is lost.
    pub(crate) fn lacks_head(&self) -> bool {
        self.head.is_none()
    }

    /// The blocks of a committed pack. A lost first block is replaced by its copy.
    pub(crate) fn bytes(&self) -> Option<Cow<'_, [u8]>> {
        let blocks = self.committed()?.pack_blocks;
        if self.head.is_some() {
            return self.raw.blocks(0..blocks).ok().map(Cow::Borrowed);
        }
        let (tail, rest) = (self.raw.blocks(blocks - 1..blocks).ok()?, self.raw.blocks(1..blocks).ok()?);
        Some([tail, rest].concat().into())
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
