//! Reading the newest checkpoint pack: opening needs no more of it than its journals and orphans.

use std::collections::BTreeSet;

use super::{Geometry, Io, Options, RawPack};
use crate::{
    Error, Place, Result,
    format::{
        BLOCKS_PER_SEGMENT,
        checkpoint::{Checkpoint, Flags, HEAD_BYTES, PackEnd, PackStart, newest},
        nat::NatEntry,
        orphan,
        sit::{SegmentType, SitEntry},
        summary::{Journal, Summary},
        superblock::Superblock,
    },
    units::{BlockAddr, CheckpointVer, Ino, Nid, SegNo},
};

/// The checkpoint pack that counts.
pub(crate) struct NewestPack {
    /// Its number.
    pub(crate) number: u8,
    /// Its bytes up to the end of its journals.
    pub(crate) bytes: Vec<u8>,
    /// A newer checkpoint in the other pack, which was complete and whose head is damaged or older.
    pub(crate) headless: Option<CheckpointVer>,
}

impl NewestPack {
    /// The reason to refuse changes: the next checkpoint would overwrite a newer one.
    pub(crate) fn refusal(&self) -> Option<String> {
        let version = self.headless?.0;
        Some(format!(
            "the head of the newest checkpoint, {version}, is damaged or older; flashkit fsck -p restores it"
        ))
    }
}

/// Reads the newest valid checkpoint pack up to the end of its journals. The first sectors of the packs tell which
/// one is newer. The rest takes two requests, since on a card a request costs more than its data: one for the head up to
/// the journals, one for the copy of the head at the end.
///
/// A pack that cannot be read may be the newest. Then only a read-only volume falls back to the other pack:
/// writing from the older one would overwrite blocks of the newest.
pub(crate) fn read_newest_pack(io: &Io, geometry: &Geometry, options: &Options) -> Result<NewestPack> {
    let at = Place::Checkpoint;
    let start = |pack: u8| -> Result<PackStart> {
        Ok(PackStart::parse(&io.read_bytes(geometry.pack(pack), at(pack), 0..HEAD_BYTES)?))
    };
    let [first, second] = match [0, 1].map(start) {
        [Err(error), _] | [_, Err(error)] if !options.read_only => return Err(error),
        starts => starts,
    };
    let starts = [&first, &second].map(|start| start.as_ref().ok().copied());
    let [one, two] = starts.map(|start| start.map(|start| start.version));
    let (newer, other) = match newest(one, two) {
        Some(1) => ((1, second), (0, first)),
        _ => ((0, first), (1, second)),
    };
    let (number, version, bytes) = match whole_pack(io, geometry, newer.0, newer.1) {
        Err(error @ Error::Io { .. }) if !options.read_only => Err(error),
        Err(error) => whole_pack(io, geometry, other.0, other.1).map_err(|_| error),
        pack => pack,
    }?;
    let other = 1 - number;
    // The packs take turns.
    let is_previous = |start: &PackStart| start.version.0.wrapping_add(1) == version.0;
    let is_older = starts[usize::from(other)]
        .is_some_and(|start| is_previous(&start) && ends_as_it_begins(io, geometry, other, &start));
    let copy = if is_older { None } else { copy_without_head(io, geometry, other, version) };
    // Any other version is left from an earlier checkpoint, or from an earlier volume on the device.
    Ok(NewestPack { number, bytes, headless: copy.filter(|copy| copy.0 == version.0.wrapping_add(1)) })
}

/// Returns true if the end that the start of a pack names begins like the start.
fn ends_as_it_begins(io: &Io, geometry: &Geometry, pack: u8, start: &PackStart) -> bool {
    let last = start.pack_blocks.clamp(1, BLOCKS_PER_SEGMENT) - 1;
    let end = BlockAddr(geometry.pack(pack).0 + last);
    let end = io.read_bytes(end, Place::Checkpoint(pack), 0..HEAD_BYTES);
    end.is_ok_and(|end| PackStart::parse(&end) == *start)
}

/// Version of the newest copy at the end of a pack whose head does not belong to it. The copy is written after all else, so
/// a head that is newer than the checkpoint that counts is that of an unfinished pack.
fn copy_without_head(
    io: &Io,
    geometry: &Geometry,
    pack: u8,
    counted: CheckpointVer,
) -> Option<CheckpointVer> {
    let head = io.read_block(geometry.pack(pack), Place::Checkpoint(pack));
    let head = head.and_then(|head| PackEnd::check(&head, geometry.block_size, pack));
    if head.is_ok_and(|head| head.version.is_after(counted)) {
        return None;
    }
    let raw = RawPack::read(io, geometry, pack);
    let copy = if raw.whole().is_ok() { None } else { raw.newest_copy() };
    copy.map(|(_, copy)| copy.version)
}

/// Reads a pack whose head has the copy that it names. Returns its number, its version, and its bytes up to the end of its
/// journals.
fn whole_pack(
    io: &Io,
    geometry: &Geometry,
    pack: u8,
    start: Result<PackStart>,
) -> Result<(u8, CheckpointVer, Vec<u8>)> {
    let (at, start) = (Place::Checkpoint(pack), start?);
    let bytes = io.read_bytes(geometry.pack(pack), at, 0..journals_end(&start, geometry))?;
    let head = PackEnd::check(&bytes, geometry.block_size, pack)?;
    if PackStart::parse(&bytes) != start {
        return Err(Error::corrupt(at, "the pack changes while it is read"));
    }
    let copy = BlockAddr(geometry.pack(pack).0 + head.pack_blocks - 1);
    let copy = PackEnd::check(&io.read_block(copy, at)?, geometry.block_size, pack)?;
    if !head.matches(&copy) {
        let what =
            format!("the pack begins with version {} and ends with {}", head.version.0, copy.version.0);
        return Err(Error::corrupt(at, what));
    }
    Ok((pack, head.version, bytes))
}

/// The end of a pack's journals, in bytes from its start; implausible values are clamped.
fn journals_end(start: &PackStart, geometry: &Geometry) -> usize {
    let size = geometry.block_size.bytes();
    let end = match start.flags.has(Flags::COMPACT_SUM) {
        true => start.summaries_start as usize * size + 2 * geometry.summary.journal_bytes(),
        false => (start.summaries_start as usize + SegmentType::DATA.len()) * size,
    };
    end.clamp(size, size * BLOCKS_PER_SEGMENT as usize)
}

/// The contents of the first part of a pack besides the checkpoint itself.
pub(crate) struct PackTail {
    pub(crate) nat_journal: Vec<(Nid, NatEntry)>,
    pub(crate) sit_journal: Vec<(SegNo, SitEntry)>,
    pub(crate) orphans: BTreeSet<Ino>,
}

impl PackTail {
    pub(crate) fn parse(
        bytes: &[u8],
        geometry: &Geometry,
        sb: &Superblock,
        pack: u8,
        checkpoint: &Checkpoint,
    ) -> Result<PackTail> {
        let (size, layout) = (sb.block_size.bytes(), geometry.summary);
        let wanted = checkpoint.data_summary_blocks(geometry.summary)
            + 3 * usize::from(checkpoint.has_node_summaries());
        if ((checkpoint.pack_blocks - 1 - checkpoint.summaries_start) as usize) < wanted {
            let what = format!("the pack is too short for the {wanted} blocks of its summaries");
            return Err(Error::corrupt(Place::Checkpoint(pack), what));
        }
        let summaries_at = size * checkpoint.summaries_start as usize;
        let mut orphans = BTreeSet::new();
        if checkpoint.flags.has(Flags::ORPHAN_PRESENT) {
            for block in bytes[size * (1 + sb.cp_payload as usize)..summaries_at].chunks_exact(size) {
                orphans.extend(orphan::parse(block, sb.block_size, pack)?);
            }
        }
        let summaries = &bytes[summaries_at..];
        let (nat, sit) = match checkpoint.flags.has(Flags::COMPACT_SUM) {
            true => summaries.split_at(layout.journal_bytes()),
            false => {
                let journal = |n: usize| Summary::journal_of(&summaries[n * size..], layout);
                (journal(SegmentType::HotData.index()), journal(SegmentType::ColdData.index()))
            }
        };
        Ok(PackTail {
            nat_journal: Journal::parse_nat(nat, layout, pack)?,
            sit_journal: Journal::parse_sit(sit, layout, pack)?,
            orphans,
        })
    }
}
