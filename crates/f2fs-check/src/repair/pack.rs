//! The checkpoint pack of a repaired volume.

use f2fs::{
    Error, Result,
    format::{
        BLOCKS_PER_SEGMENT,
        checkpoint::{Checkpoint, FIXED_BLOCKS, Flags},
        orphan,
        summary::{Journal, Summary},
    },
    units::{BlockAddr, CheckpointVer, Ino},
};

use super::tables::Tables;

/// Flags that the new checkpoint takes over. The others follow from the state, or ask for a repair.
const KEPT: Flags = Flags(Flags::LARGE_NAT_BITMAP.0 | Flags::DISABLED_QUICK.0);

/// A pack, in the form in which it is written.
pub struct NewPack {
    /// Its first block.
    pub start: BlockAddr,
    /// All blocks except the last.
    pub blocks: Vec<u8>,
    /// The last block, which makes it count.
    pub last: Vec<u8>,
}

/// Completes a checkpoint whose counts, logs and bitmaps are set, and encodes its pack: for the place beside the
/// pack that counts, without journals.
///
/// # Errors
/// [`Error::Invalid`] if there are more orphans than fit.
pub fn encode(
    start: &Tables,
    mut next: Checkpoint,
    orphans: &[Ino],
    summaries: &[Summary; 6],
) -> Result<NewPack> {
    let (sb, size, layout) = (&start.superblock, start.superblock.block_size, start.geometry.summary);
    if orphans.len() > orphan::most(sb.cp_payload, size) {
        return Err(Error::Invalid(format!("{} orphans do not fit into a pack", orphans.len()).into()));
    }
    let number = 1 - start.pack.number;
    next.version = next_version(start);
    next.flags = Flags(next.flags.0 & KEPT.0).with(Flags::UMOUNT).with(Flags::CRC_RECOVERY);
    if !orphans.is_empty() {
        next.flags = next.flags.with(Flags::ORPHAN_PRESENT);
    }
    next.summaries_start = 1 + sb.cp_payload + orphan::blocks(orphans.len(), size) as u32;
    next.pack_blocks = next.summaries_start + summaries.len() as u32 + (FIXED_BLOCKS - 1);
    assert!(next.pack_blocks <= BLOCKS_PER_SEGMENT, "a pack of {} blocks", next.pack_blocks);
    let mut blocks = next.encode(sb);
    let last = blocks[..size.bytes()].to_vec();
    blocks.extend(orphan::encode(orphans, size));
    let journals = [
        Some(Journal::Nat(Vec::new())),
        None,
        Some(Journal::Sit(Vec::new())),
        Some(Journal::Written(start.pack.written_kilobytes)),
        None,
        None,
    ];
    for (summary, journal) in summaries.iter().zip(&journals) {
        let mut block = summary.encode(layout, journal.as_ref());
        block.resize(size.bytes(), 0);
        blocks.extend(block);
    }
    Ok(NewPack { start: start.geometry.pack(number), blocks, last })
}

/// The version after all those of both packs, also of a pack whose head or copy is damaged: the other one must not
/// match the new head.
fn next_version(start: &Tables) -> CheckpointVer {
    let current = start.pack.checkpoint.version;
    let newest = start.pack.other_version.filter(|version| version.is_after(current));
    CheckpointVer(newest.unwrap_or(current).0.wrapping_add(1))
}
