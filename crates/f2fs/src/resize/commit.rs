//! Carries out a plan on a closed volume. The order of the writes is in docs/DESIGN.md, "Resizing".

use std::sync::Arc;

use block::Device;

use super::{
    Plan, Snapshot,
    plan::{Layout, Method, home_layout},
    tables::{NewSit, SitPlace, Tables},
};
use crate::{
    Place, Result,
    disk::{Geometry, Io, superblock_copies},
    format::{
        LOG_BLOCKS_PER_SEGMENT,
        checkpoint::{Checkpoint, Flags},
        summary::{DataSummaries, journals_mut},
        superblock::Superblock,
    },
    units::{BlockAddr, CheckpointVer, SegNo},
};

/// Flags that are not true of the new size: the maps of free nids, and that all free space was discarded.
const STALE: Flags = Flags(Flags::NAT_BITS.0 | Flags::TRIMMED.0);

/// Brings the metadata to the start of the volume after a resize that was interrupted between its two switches.
pub(super) fn go_home(device: Arc<dyn Device>) -> Result<()> {
    let snapshot = Snapshot::read(device)?;
    superblock_copies::make_alike(&snapshot.io, &snapshot.raw)?;
    match home_layout(&snapshot.raw, &snapshot.superblock, snapshot.checkpoint.flags)? {
        Some(layout) => move_metadata(&snapshot, &layout),
        None => Ok(()),
    }
}

/// Gives a closed volume the geometry of a plan.
pub(super) fn carry_out(device: Arc<dyn Device>, plan: &Plan) -> Result<()> {
    match plan.method {
        Method::Relocate => plan.layouts.iter().try_for_each(|layout| {
            let snapshot = Snapshot::read(device.clone())?;
            superblock_copies::make_alike(&snapshot.io, &snapshot.raw)?;
            move_metadata(&snapshot, layout)
        }),
        Method::InPlace | Method::Nothing => {
            let snapshot = Snapshot::read(device)?;
            superblock_copies::make_alike(&snapshot.io, &snapshot.raw)?;
            plan.layouts.iter().try_for_each(|layout| change_in_place(&snapshot, layout))
        }
    }
}

/// Changes the size with the metadata areas where they are. The table of segments goes to its other copies, and is
/// right for both sizes.
fn change_in_place(snapshot: &Snapshot, layout: &Layout) -> Result<()> {
    let (io, geometry) = (&snapshot.io, Geometry::of(&layout.superblock));
    let tables = Tables { from: snapshot, to: &geometry, first: 0 };
    let sit = tables.write_sit(SitPlace::OtherCopies, snapshot.checkpoint.sit_bitmap.len())?;
    let body = without_journals(snapshot, Journals::OfSegments);
    let mut pack = Pack { io, slot: 1 - snapshot.pack, body: &body, next: next_checkpoint(snapshot) };
    pack.next.sit_bitmap = sit.bitmap.clone();
    if geometry.segments < snapshot.geometry.segments {
        superblock_copies::write(io, 1, &layout.raw)?;
        describe(&mut pack.next, layout, &sit);
        pack.write(&layout.superblock)?;
        return superblock_copies::write(io, 0, &layout.raw);
    }
    // With the old size first: the entries of new segments are there before the segments.
    pack.next.free_segments = free_segments(snapshot.geometry.segments, &pack.next, &sit);
    pack.write(&snapshot.superblock)?;
    superblock_copies::write(io, 0, &layout.raw)?;
    pack = Pack { slot: 1 - pack.slot, ..pack };
    pack.next.version = CheckpointVer(pack.next.version.0.wrapping_add(1));
    describe(&mut pack.next, layout, &sit);
    pack.write(&layout.superblock)?;
    superblock_copies::write(io, 1, &layout.raw)
}

/// Writes the metadata of a layout to a place that the volume does not use, and switches to it.
fn move_metadata(snapshot: &Snapshot, layout: &Layout) -> Result<()> {
    let (io, geometry) = (&snapshot.io, Geometry::of(&layout.superblock));
    let before = i64::from(layout.superblock.main.start.0) - i64::from(snapshot.superblock.main.start.0);
    let first = before >> LOG_BLOCKS_PER_SEGMENT;
    let tables = Tables { from: snapshot, to: &geometry, first };
    let sit = tables.write_sit(SitPlace::NewArea, layout.superblock.sit_blocks() as usize / 8)?;
    tables.write_nat()?;
    tables.write_summaries(&sit.used)?;
    let body = without_journals(snapshot, Journals::All);
    let mut pack = Pack { io, slot: 1, body: &body, next: next_checkpoint(snapshot) };
    pack.next.sit_bitmap = sit.bitmap.clone();
    pack.next.nat_bitmap = vec![0; layout.superblock.nat_blocks() as usize / 8];
    for log in &mut pack.next.logs {
        log.segment = SegNo((i64::from(log.segment.0) - first) as u32);
    }
    describe(&mut pack.next, layout, &sit);
    // Both packs are valid, and each of them alone describes the volume.
    pack.write(&layout.superblock)?;
    pack = Pack { slot: 0, ..pack };
    pack.next.version = CheckpointVer(pack.next.version.0.wrapping_add(1));
    pack.write(&layout.superblock)?;
    superblock_copies::write_both(io, &layout.raw)
}

/// The next checkpoint, with the counts of the newest one.
fn next_checkpoint(snapshot: &Snapshot) -> Checkpoint {
    let mut next = snapshot.checkpoint.clone();
    next.version = CheckpointVer(next.version.0.wrapping_add(1));
    next.flags = next.flags.without(STALE).with(Flags::CRC_RECOVERY);
    next
}

/// Puts the capacity of a layout and its free segments into a checkpoint.
fn describe(next: &mut Checkpoint, layout: &Layout, sit: &NewSit) {
    next.user_blocks = layout.user_blocks;
    next.reserved_segments = layout.set_aside.reserved_segments;
    next.overprovision_segments = layout.set_aside.overprovision_segments;
    next.free_segments = free_segments(layout.superblock.main.segments, next, sit);
}

/// Segments without a valid block that hold no log.
fn free_segments(segments: u32, checkpoint: &Checkpoint, sit: &NewSit) -> u32 {
    let is_empty = |number: SegNo| sit.used.binary_search(&number).is_err();
    let logs = checkpoint.logs.iter().filter(|log| is_empty(log.segment)).count();
    segments - (sit.used.len() + logs) as u32
}

/// Journals that a pack no longer needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Journals {
    /// The SIT's.
    OfSegments,
    /// The NAT's and the SIT's.
    All,
}

/// Orphans and summaries of the newest pack, with empty journals.
fn without_journals(snapshot: &Snapshot, emptied: Journals) -> Vec<u8> {
    let mut body = snapshot.body.clone();
    let orphans = snapshot.checkpoint.summaries_start - 1 - snapshot.superblock.cp_payload;
    let at = orphans as usize * snapshot.superblock.block_size.bytes();
    let form = match snapshot.checkpoint.flags.has(Flags::COMPACT_SUM) {
        true => DataSummaries::Compact,
        false => DataSummaries::Full,
    };
    let (nat, sit) = journals_mut(&mut body[at..], snapshot.geometry.summary, form);
    sit.fill(0);
    if emptied == Journals::All {
        nat.fill(0);
    }
    body
}

/// A checkpoint pack to be written.
struct Pack<'a> {
    io: &'a Io,
    slot: u8,
    /// Orphans and summaries.
    body: &'a [u8],
    next: Checkpoint,
}

impl Pack<'_> {
    /// Writes the pack, its last block after a flush, and flushes.
    fn write(&mut self, sb: &Superblock) -> Result<()> {
        let block_bytes = sb.block_size.bytes();
        let old_payload = self.payload_of_next(sb);
        self.next.summaries_start = self.next.summaries_start + sb.cp_payload - old_payload;
        self.next.pack_blocks = 2 + sb.cp_payload + (self.body.len() / block_bytes) as u32;
        let mut bytes = self.next.encode(sb);
        let last = bytes[..block_bytes].to_vec();
        bytes.extend(self.body);
        let (start, at) = (Geometry::of(sb).pack(self.slot), Place::Checkpoint(self.slot));
        self.io.write(start, at, &bytes)?;
        self.io.flush()?;
        let end = BlockAddr(start.0 + self.next.pack_blocks - 1);
        self.io.write(end, at, &last)?;
        self.io.flush()
    }

    /// Blocks of the payload that the counts of the checkpoint stand for.
    fn payload_of_next(&self, sb: &Superblock) -> u32 {
        let body = (self.body.len() / sb.block_size.bytes()) as u32;
        self.next.pack_blocks - 2 - body
    }
}
