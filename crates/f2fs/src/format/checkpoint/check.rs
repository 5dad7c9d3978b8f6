//! The rules of a checkpoint, from the bytes of a pack to the trusted value.

use std::ops::Range;

use zerocopy::FromBytes;

use super::{
    AllocMode, Checkpoint, Flags, HEAD_BYTES, LogPosition, PackEnd, RESERVED_NIDS, bitmaps, raw, stored_crc,
};
use crate::{
    Error, Place, Result,
    format::{
        BLOCKS_PER_SEGMENT, LOG_BLOCKS_PER_SEGMENT,
        sit::SegmentType,
        superblock::{Features, Superblock},
    },
    units::{Nid, SegNo},
};

/// Metadata segments of the smallest volume.
const META_SEGMENTS_MIN: u32 = 8;
/// Blocks of a pack behind its first data summary, at least.
const PACK_END_BLOCKS: u32 = 1 + 6;

impl Checkpoint {
    /// Makes a trusted checkpoint of the first `1 + cp_payload` blocks of a pack.
    ///
    /// # Errors
    /// [`Error::Corrupt`] at checkpoint pack `pack` if a field is impossible, or contradicts the superblock.
    pub fn check(bytes: &[u8], sb: &Superblock, pack: u8) -> Result<Checkpoint> {
        let end = PackEnd::check(bytes, sb.block_size, pack)?;
        let (head, _) = raw::Checkpoint::ref_from_prefix(bytes)
            .map_err(|_| Error::corrupt(Place::Checkpoint(pack), "short block"))?;
        let rules = Rules { head, sb, pack };
        rules.check_segments()?;
        rules.check_counts()?;
        let logs = rules.logs()?;
        let flags = Flags(head.ckpt_flags.get());
        rules.check_summaries(flags, end)?;
        let (sit_at, nat_at) = rules.bitmaps(flags)?;
        let map = |range: Range<usize>| {
            let map = bytes.get(range).map(<[u8]>::to_vec);
            map.ok_or_else(|| rules.bad("the bitmaps exceed the payload".into()))
        };
        let checksum_offset = head.checksum_offset.get();
        Ok(Checkpoint {
            version: end.version,
            user_blocks: head.user_block_count.get(),
            valid_blocks: head.valid_block_count.get(),
            reserved_segments: head.rsvd_segment_count.get(),
            overprovision_segments: head.overprov_segment_count.get(),
            free_segments: head.free_segment_count.get(),
            logs,
            flags,
            pack_blocks: end.pack_blocks,
            summaries_start: head.cp_pack_start_sum.get(),
            valid_nodes: head.valid_node_count.get(),
            valid_inodes: head.valid_inode_count.get(),
            next_free_nid: Nid(head.next_free_nid.get()),
            elapsed_seconds: head.elapsed_time.get(),
            sit_bitmap: map(sit_at)?,
            nat_bitmap: map(nat_at)?,
            checksum_offset,
            crc: stored_crc(bytes, checksum_offset as usize),
        })
    }
}

/// The head of a pack under examination.
struct Rules<'a> {
    head: &'a raw::Checkpoint,
    sb: &'a Superblock,
    pack: u8,
}

impl Rules<'_> {
    fn bad(&self, what: String) -> Error {
        Error::corrupt(Place::Checkpoint(self.pack), what)
    }

    fn is_read_only(&self) -> bool {
        self.sb.features.has(Features::RO)
    }

    /// Checks the segments that are set aside.
    fn check_segments(&self) -> Result<()> {
        let (head, sb) = (self.head, self.sb);
        let (reserved, overprovision) = (head.rsvd_segment_count.get(), head.overprov_segment_count.get());
        let meta = u64::from(sb.checkpoint.segments + sb.sit.segments + sb.nat.segments + sb.ssa.segments)
            + u64::from(reserved);
        if meta >= u64::from(sb.segments) {
            let what = format!("rsvd_segment_count {reserved} leaves no segment of {}", sb.segments);
            return Err(self.bad(what));
        }
        let is_too_few = meta < u64::from(META_SEGMENTS_MIN) || overprovision == 0 || reserved == 0;
        if !self.is_read_only() && is_too_few {
            return Err(self.bad(format!("{reserved} segments reserved, {overprovision} overprovisioned")));
        }
        Ok(())
    }

    /// Checks the counts of blocks, nodes and free segments.
    fn check_counts(&self) -> Result<()> {
        let (head, sb, main) = (self.head, self.sb, self.sb.main.segments);
        let user_blocks = head.user_block_count.get();
        let most = u64::from(main + u32::from(self.is_read_only())) << LOG_BLOCKS_PER_SEGMENT;
        if user_blocks == 0 || user_blocks >= most {
            return Err(self.bad(format!("user_block_count {user_blocks} in {main} main segments")));
        }
        let valid_blocks = head.valid_block_count.get();
        if valid_blocks > user_blocks {
            return Err(self.bad(format!("valid_block_count {valid_blocks} exceeds {user_blocks}")));
        }
        let nids = u64::from(sb.nat_blocks()) * sb.block_size.nat_entries() as u64;
        let (valid_nodes, valid_inodes) = (head.valid_node_count.get(), head.valid_inode_count.get());
        if u64::from(valid_nodes) > nids - u64::from(RESERVED_NIDS) || valid_inodes > valid_nodes {
            return Err(self.bad(format!(
                "valid_node_count {valid_nodes}, valid_inode_count {valid_inodes} of {nids} nids"
            )));
        }
        let free_segments = head.free_segment_count.get();
        if free_segments > main {
            return Err(self.bad(format!("free_segment_count {free_segments} of {main}")));
        }
        Ok(())
    }

    /// The positions of the logs. Those of logs that the volume uses are in the main area, each in a segment of its own.
    fn logs(&self) -> Result<[LogPosition; 6]> {
        let (head, main) = (self.head, self.sb.main.segments);
        let logs = SegmentType::ALL.map(|kind| self.log(kind));
        for kind in SegmentType::ALL {
            let log = logs[kind.index()];
            if self.is_read_only() && !matches!(kind, SegmentType::HotData | SegmentType::HotNode) {
                continue;
            }
            if log.segment.0 >= main || u32::from(log.offset) >= BLOCKS_PER_SEGMENT {
                let what = format!("the {kind} log is at block {} of {}", log.offset, log.segment);
                return Err(self.bad(what));
            }
            let mode = head.alloc_type[kind.index()];
            if mode > 1 {
                return Err(self.bad(format!("alloc_type {mode} of the {kind} log")));
            }
            let is_shared = logs[..kind.index()].iter().any(|other| other.segment == log.segment);
            if is_shared && !self.is_read_only() {
                return Err(self.bad(format!("two logs are in {}", log.segment)));
            }
        }
        Ok(logs)
    }

    fn log(&self, kind: SegmentType) -> LogPosition {
        let (head, at) = (self.head, kind.index() % 3);
        let (segments, offsets) = match kind.is_node() {
            true => (&head.cur_node_segno, &head.cur_node_blkoff),
            false => (&head.cur_data_segno, &head.cur_data_blkoff),
        };
        LogPosition {
            segment: SegNo(segments[at].get()),
            offset: offsets[at].get(),
            mode: if head.alloc_type[kind.index()] == 1 { AllocMode::Ssr } else { AllocMode::Append },
        }
    }

    /// Checks that the summaries that the flags demand lie within the pack.
    fn check_summaries(&self, flags: Flags, end: PackEnd) -> Result<()> {
        let checksum_offset = self.head.checksum_offset.get();
        if flags.has(Flags::LARGE_NAT_BITMAP) && checksum_offset as usize != HEAD_BYTES {
            return Err(self.bad(format!("checksum_offset {checksum_offset} with large_nat_bitmap")));
        }
        let start = self.head.cp_pack_start_sum.get();
        if start < self.sb.cp_payload + 1 || start > BLOCKS_PER_SEGMENT - PACK_END_BLOCKS {
            return Err(self.bad(format!("cp_pack_start_sum {start}")));
        }
        let of_data = if flags.has(Flags::COMPACT_SUM) { 1 } else { 3 };
        let has_nodes = flags.0 & (Flags::UMOUNT.0 | Flags::FASTBOOT.0) != 0;
        let summaries = of_data + if has_nodes { 3 } else { 0 };
        if start + summaries + 1 > end.pack_blocks {
            return Err(self.bad(format!(
                "cp_pack_start_sum {start} and {summaries} summaries in a pack of {} blocks",
                end.pack_blocks
            )));
        }
        Ok(())
    }

    /// The byte ranges of the bitmaps of SIT and NAT.
    fn bitmaps(&self, flags: Flags) -> Result<(Range<usize>, Range<usize>)> {
        let (head, sb) = (self.head, self.sb);
        let sizes = (head.sit_ver_bitmap_bytesize.get(), head.nat_ver_bitmap_bytesize.get());
        let needed = (sb.sit_blocks() / 8, sb.nat_blocks() / 8);
        if sizes != needed {
            return Err(self.bad(format!("SIT and NAT bitmaps of {sizes:?} bytes, must be {needed:?}")));
        }
        bitmaps(sb, flags, head.checksum_offset.get()).map_err(|what| self.bad(what.into()))
    }
}
