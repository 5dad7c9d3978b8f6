//! Writes the two copies of the superblock, one after the other, so that a whole one is readable at any time.

use zerocopy::{FromBytes, IntoBytes};

use super::{Geometry, Io};
use crate::{
    Place, Result,
    format::superblock::{self, Features, Superblock, raw},
    units::BlockAddr,
};

/// Unit that a power cut never tears.
const SECTOR_BYTES: usize = block::ATOMIC_BYTES;
/// Bytes of the magic number, at the start.
const MAGIC_BYTES: usize = 4;

/// Relation of the two copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copies {
    /// Both describe the same areas.
    Alike,
    /// One was invalid, or they described different areas: a resize was interrupted. They are alike now.
    Repaired,
}

/// Makes the copies alike if one is invalid, or if they describe different areas. Then the first one counts.
pub(crate) fn repair(io: &Io) -> Result<Copies> {
    let blocks = [0, 1].map(|copy: u8| io.read_block(BlockAddr(copy.into()), Place::Superblock(copy)));
    let [Ok(first), Ok(second)] = blocks else {
        // A copy that cannot be read is not written either. The other one has been enough to open the volume.
        return Ok(Copies::Alike);
    };
    // As in opening: a copy that does not fit the device is not the one that the volume was opened from.
    let size = io.device().geometry().size_bytes;
    let parse = |block: &[u8], copy: u8| {
        let bytes = block[superblock::OFFSET..][..superblock::BYTES].try_into().expect("3072 bytes");
        let checked = Superblock::check(bytes, copy, size).ok()?;
        Some((raw::Superblock::read_from_bytes(bytes).expect("3072 bytes"), Geometry::of(&checked)))
    };
    match (parse(&first, 0), parse(&second, 1)) {
        (Some((_, areas)), Some((_, others))) if areas == others => return Ok(Copies::Alike),
        (Some((first, _)), _) => write(io, 1, &first)?,
        (None, Some((second, _))) => write(io, 0, &second)?,
        (None, None) => return Ok(Copies::Alike),
    }
    Ok(Copies::Repaired)
}

/// Writes one copy durably, if it differs from `new`. The other copy must be valid, and fit the newest checkpoint.
///
/// If the power fails, the copy has its old or its new content, or is invalid: then the other one counts.
pub(crate) fn write(io: &Io, copy: u8, new: &raw::Superblock) -> Result<()> {
    for bytes in versions(io, copy, new)? {
        put(io, copy, &bytes)?;
        io.flush()?;
    }
    Ok(())
}

/// The contents that one copy gets one after the other, each durable before the next, to become `new`; none if it is that.
///
/// A checksum makes a torn copy invalid. Without one, a change of several sectors needs three writes: the copy loses its magic
/// number, gets its new content, and gets its magic number back. The first and the last write change one sector.
pub(crate) fn versions(io: &Io, copy: u8, new: &raw::Superblock) -> Result<Vec<Vec<u8>>> {
    let block = io.read_block(BlockAddr(copy.into()), Place::Superblock(copy))?;
    let mut old = block[superblock::OFFSET..][..superblock::BYTES].to_vec();
    let mut new = new.as_bytes().to_vec();
    let differs = |(old, new): &(&[u8], &[u8])| old != new;
    let sectors = old.chunks(SECTOR_BYTES).zip(new.chunks(SECTOR_BYTES)).filter(differs).count();
    // A torn copy may have the features of either.
    let has_checksum = |bytes: &[u8]| {
        raw::Superblock::read_from_bytes(bytes)
            .is_ok_and(|raw| Features(raw.feature.get()).has(Features::SB_CHECKSUM))
    };
    if sectors == 0 {
        return Ok(Vec::new());
    }
    if sectors == 1 || has_checksum(&old) && has_checksum(&new) {
        return Ok(vec![new]);
    }
    let last = new.clone();
    old[..MAGIC_BYTES].fill(0);
    new[..MAGIC_BYTES].fill(0);
    Ok(vec![old, new, last])
}

/// Writes one copy, not durably.
pub(crate) fn put(io: &Io, copy: u8, bytes: &[u8]) -> Result<()> {
    let (addr, at) = (BlockAddr(copy.into()), Place::Superblock(copy));
    let mut block = io.read_block(addr, at)?;
    block[superblock::OFFSET..][..superblock::BYTES].copy_from_slice(bytes);
    io.write(addr, at, &block)
}

/// Writes both copies, the first one first. Where the first one counts, this is the moment of the change.
pub(crate) fn write_both(io: &Io, new: &raw::Superblock) -> Result<()> {
    write(io, 0, new)?;
    write(io, 1, new)
}

/// Makes both copies like `valid`, the copy that the volume was opened from. The other one may be damaged, or left from
/// an interrupted resize.
pub(crate) fn make_alike(io: &Io, valid: &raw::Superblock) -> Result<()> {
    write(io, 1, valid)?;
    write(io, 0, valid)
}
