//! The checkpoint: the state of the volume at one moment, in two packs of which the newest valid one counts.
//!
//! A pack is: the head block, `cp_payload` blocks, orphan blocks, data summaries (1 to 3), node summaries (3,
//! only if the flags UMOUNT or FASTBOOT are set) and a copy of the head. It is valid only if head and copy
//! both hold their checksum and carry the same version. Rules: those of Linux (`f2fs_get_valid_checkpoint`,
//! `f2fs_sanity_check_ckpt`).

mod check;
mod flags;

use zerocopy::{FromBytes, IntoBytes};

pub use flags::Flags;

use super::{
    BLOCKS_PER_SEGMENT, BlockSize,
    crc::{crc, f2fs_crc},
    sit::SegmentType,
    summary,
    superblock::Superblock,
};
use crate::{
    Error, Place, Result,
    units::{CheckpointVer, Nid, SegNo},
};

/// Bytes before the version bitmaps; also the smallest checksum offset.
pub const HEAD_BYTES: usize = 192;
/// Blocks present in every pack: head and copy.
pub const FIXED_BLOCKS: u32 = 2;
/// Node ids that are never allocated: 0, the node inode and the meta inode.
pub const RESERVED_NIDS: u32 = 3;

/// Raw bytes.
pub mod raw {
    use std::mem::{offset_of, size_of};

    use zerocopy::{
        FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
        little_endian::{U16, U32, U64},
    };

    /// The head of a checkpoint as it lies on the device.
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
    #[repr(C)]
    pub struct Checkpoint {
        /// Version, one more than the checkpoint before.
        pub checkpoint_ver: U64,
        /// Blocks that users may take.
        pub user_block_count: U64,
        /// Blocks in use, reserved ones included.
        pub valid_block_count: U64,
        /// Segments reserved for cleaning.
        pub rsvd_segment_count: U32,
        /// Segments of overprovision, reserved ones included.
        pub overprov_segment_count: U32,
        /// Free segments of the main area.
        pub free_segment_count: U32,
        /// Current segments of the node logs: hot, warm, cold, then unused.
        pub cur_node_segno: [U32; 8],
        /// Next block in each of them.
        pub cur_node_blkoff: [U16; 8],
        /// Current segments of the data logs: hot, warm, cold, then unused.
        pub cur_data_segno: [U32; 8],
        /// Next block in each of them.
        pub cur_data_blkoff: [U16; 8],
        /// Flags.
        pub ckpt_flags: U32,
        /// Blocks of this pack.
        pub cp_pack_total_block_count: U32,
        /// Offset in blocks of the first data summary in the pack.
        pub cp_pack_start_sum: U32,
        /// Nodes in use.
        pub valid_node_count: U32,
        /// Inodes in use.
        pub valid_inode_count: U32,
        /// First nid of the search for a free one.
        pub next_free_nid: U32,
        /// Bytes of the SIT version bitmap.
        pub sit_ver_bitmap_bytesize: U32,
        /// Bytes of the NAT version bitmap.
        pub nat_ver_bitmap_bytesize: U32,
        /// Offset in bytes of the checksum in the block.
        pub checksum_offset: U32,
        /// Seconds for which the volume was mounted, ever.
        pub elapsed_time: U64,
        /// Allocation of each log: 0 appends (LFS), 1 fills holes (SSR).
        pub alloc_type: [u8; 16],
    }

    const _: () = assert!(
        size_of::<Checkpoint>() == super::HEAD_BYTES
            && offset_of!(Checkpoint, cur_node_segno) == 36
            && offset_of!(Checkpoint, cur_data_segno) == 84
            && offset_of!(Checkpoint, ckpt_flags) == 132
            && offset_of!(Checkpoint, next_free_nid) == 152
            && offset_of!(Checkpoint, checksum_offset) == 164
            && offset_of!(Checkpoint, elapsed_time) == 168
            && offset_of!(Checkpoint, alloc_type) == 176
    );
}

/// The way in which a log takes the blocks of its segment (Linux, `LFS` and `SSR`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AllocMode {
    /// One after the other: the segment was free when the log opened it.
    #[default]
    Append,
    /// The holes of a segment that is in use (slack space recycling).
    Ssr,
}

impl AllocMode {
    /// Returns true for [`AllocMode::Ssr`].
    #[must_use]
    pub fn is_ssr(self) -> bool {
        self == AllocMode::Ssr
    }
}

/// Position of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogPosition {
    /// Its current segment.
    pub segment: SegNo,
    /// Next block in the segment.
    pub offset: u16,
    /// The way in which it takes blocks of the segment.
    pub mode: AllocMode,
}

impl LogPosition {
    /// Returns the number of summary entries of the log that a checkpoint stores.
    #[must_use]
    pub fn summary_entries(&self) -> usize {
        if self.mode.is_ssr() { BLOCKS_PER_SEGMENT as usize } else { usize::from(self.offset) }
    }
}

/// A checkpoint whose numbers are consistent with each other and with the superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Version.
    pub version: CheckpointVer,
    /// Blocks that users may take.
    pub user_blocks: u64,
    /// Blocks in use, reserved ones included.
    pub valid_blocks: u64,
    /// Segments reserved for cleaning.
    pub reserved_segments: u32,
    /// Segments of overprovision, reserved ones included.
    pub overprovision_segments: u32,
    /// Free segments of the main area.
    pub free_segments: u32,
    /// The six logs, indexed by [`SegmentType`]. A read-only volume has only the hot ones.
    pub logs: [LogPosition; 6],
    /// Flags.
    pub flags: Flags,
    /// Blocks of the pack.
    pub pack_blocks: u32,
    /// Offset in blocks of the first data summary in the pack.
    pub summaries_start: u32,
    /// Nodes in use.
    pub valid_nodes: u32,
    /// Inodes in use.
    pub valid_inodes: u32,
    /// First nid of the search for a free one.
    pub next_free_nid: Nid,
    /// Seconds for which the volume was mounted, ever.
    pub elapsed_seconds: u64,
    /// Version bitmap of the SIT: the valid copy of each of its blocks, most significant bit first.
    pub sit_bitmap: Vec<u8>,
    /// Version bitmap of the NAT: the valid copy of each of its blocks, most significant bit first.
    pub nat_bitmap: Vec<u8>,
    /// Offset in bytes of the checksum.
    pub checksum_offset: u32,
    /// The checksum, which is also the upper half of the versions in node footers.
    pub crc: u32,
}

/// Fields of the first sector of a pack, before its checksum is verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackStart {
    /// Version.
    pub version: CheckpointVer,
    /// Flags.
    pub flags: Flags,
    /// Blocks of the pack.
    pub pack_blocks: u32,
    /// Offset in blocks of the first data summary.
    pub summaries_start: u32,
}

impl PackStart {
    /// Reads the first [`HEAD_BYTES`] of a pack.
    ///
    /// # Panics
    /// If there are fewer: a bug of the caller.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> PackStart {
        let (head, _) = raw::Checkpoint::ref_from_prefix(bytes).expect("the head's bytes");
        PackStart {
            version: CheckpointVer(head.checkpoint_ver.get()),
            flags: Flags(head.ckpt_flags.get()),
            pack_blocks: head.cp_pack_total_block_count.get(),
            summaries_start: head.cp_pack_start_sum.get(),
        }
    }
}

/// Head or copy of a pack, its checksum verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackEnd {
    /// Version.
    pub version: CheckpointVer,
    /// Blocks of the pack: more than 2, at most 512.
    pub pack_blocks: u32,
}

impl PackEnd {
    /// Verifies the checksum of a pack's head or copy.
    ///
    /// # Errors
    /// [`Error::Corrupt`] at checkpoint pack `pack` if the checksum is wrong or lies outside the block.
    pub fn check(block: &[u8], size: BlockSize, pack: u8) -> Result<PackEnd> {
        let bad = |what: String| Error::corrupt(Place::Checkpoint(pack), what);
        let (head, _) = raw::Checkpoint::ref_from_prefix(block).map_err(|_| bad("short block".into()))?;
        let at = head.checksum_offset.get() as usize;
        if !(HEAD_BYTES..=size.bytes() - 4).contains(&at) || block.len() < size.bytes() {
            return Err(bad(format!("checksum_offset {at}, must be 192 to {}", size.bytes() - 4)));
        }
        let (stored, computed) = (stored_crc(block, at), block_crc(&block[..size.bytes()], at));
        if stored != computed {
            return Err(bad(format!("checksum {stored:#010x}, computed {computed:#010x}")));
        }
        let pack_blocks = head.cp_pack_total_block_count.get();
        if pack_blocks <= FIXED_BLOCKS || pack_blocks > BLOCKS_PER_SEGMENT {
            return Err(bad(format!("cp_pack_total_block_count {pack_blocks}, must be 3 to 512")));
        }
        Ok(PackEnd { version: CheckpointVer(head.checkpoint_ver.get()), pack_blocks })
    }

    /// Returns true if `copy`, read from the pack's last block, belongs to this head.
    #[must_use]
    pub fn matches(&self, copy: &PackEnd) -> bool {
        self.version == copy.version
    }
}

/// Returns the newer of the two packs, given the versions of the valid ones. In a tie, returns the first.
#[must_use]
pub fn newest(first: Option<CheckpointVer>, second: Option<CheckpointVer>) -> Option<u8> {
    match (first, second) {
        (Some(a), Some(b)) => Some(u8::from(b.is_after(a))),
        (Some(_), None) => Some(0),
        (None, Some(_)) => Some(1),
        (None, None) => None,
    }
}

impl Checkpoint {
    /// Encodes the first `1 + cp_payload` blocks of the pack and sets [`crc`](Self::crc). The copy at the
    /// pack's end is the first block again.
    ///
    /// # Panics
    /// If the bitmaps do not have the superblock's sizes: a bug of the caller.
    pub fn encode(&mut self, sb: &Superblock) -> Vec<u8> {
        let block = sb.block_size.bytes();
        let bitmap_bytes = |bitmap: &[u8]| u32::try_from(bitmap.len()).expect("a bitmap fits into a pack");
        let mut bytes = vec![0u8; block * (1 + sb.cp_payload as usize)];
        let (head, _) =
            raw::Checkpoint::mut_from_prefix(&mut bytes).expect("a block is larger than the head");
        head.checkpoint_ver.set(self.version.0);
        head.user_block_count.set(self.user_blocks);
        head.valid_block_count.set(self.valid_blocks);
        head.rsvd_segment_count.set(self.reserved_segments);
        head.overprov_segment_count.set(self.overprovision_segments);
        head.free_segment_count.set(self.free_segments);
        head.cur_node_segno.as_mut_bytes().fill(0xFF);
        head.cur_data_segno.as_mut_bytes().fill(0xFF);
        for kind in SegmentType::ALL {
            let (at, log) = (kind.index() % 3, self.logs[kind.index()]);
            let (segments, offsets) = match kind.is_node() {
                true => (&mut head.cur_node_segno, &mut head.cur_node_blkoff),
                false => (&mut head.cur_data_segno, &mut head.cur_data_blkoff),
            };
            segments[at].set(log.segment.0);
            offsets[at].set(log.offset);
            head.alloc_type[kind.index()] = u8::from(log.mode.is_ssr());
        }
        head.ckpt_flags.set(self.flags.0);
        head.cp_pack_total_block_count.set(self.pack_blocks);
        head.cp_pack_start_sum.set(self.summaries_start);
        head.valid_node_count.set(self.valid_nodes);
        head.valid_inode_count.set(self.valid_inodes);
        head.next_free_nid.set(self.next_free_nid.0);
        head.sit_ver_bitmap_bytesize.set(bitmap_bytes(&self.sit_bitmap));
        head.nat_ver_bitmap_bytesize.set(bitmap_bytes(&self.nat_bitmap));
        head.checksum_offset.set(self.checksum_offset);
        head.elapsed_time.set(self.elapsed_seconds);
        let (sit_at, nat_at) =
            bitmaps(sb, self.flags, self.checksum_offset).expect("the layout was checked or planned");
        bytes[sit_at].copy_from_slice(&self.sit_bitmap);
        bytes[nat_at].copy_from_slice(&self.nat_bitmap);
        let at = self.checksum_offset as usize;
        self.crc = block_crc(&bytes[..block], at);
        bytes[at..at + 4].copy_from_slice(&self.crc.to_le_bytes());
        bytes
    }

    /// Returns the version in footers of nodes written after this checkpoint.
    #[must_use]
    pub fn node_version(&self) -> u64 {
        match self.flags.has(Flags::CRC_RECOVERY) {
            true => self.version.0 | u64::from(self.crc) << 32,
            false => self.version.0,
        }
    }

    /// Returns true if a footer's version shows that the node was written after this checkpoint.
    #[must_use]
    pub fn is_written_after(&self, footer_version: u64) -> bool {
        match self.flags.has(Flags::NOCRC_RECOVERY) {
            true => (self.version.0 ^ footer_version) & u64::from(u32::MAX) == 0,
            false => self.node_version() == footer_version,
        }
    }

    /// Returns the numbers of summary entries of the data logs that a pack stores in the compact form.
    #[must_use]
    pub fn data_summary_entries(&self) -> [usize; 3] {
        SegmentType::DATA.map(|kind| self.logs[kind.index()].summary_entries())
    }

    /// Returns the number of blocks in a pack that hold the summaries of the data logs.
    #[must_use]
    pub fn data_summary_blocks(&self, layout: summary::Layout) -> usize {
        match self.flags.has(Flags::COMPACT_SUM) {
            true => layout.compact_blocks(self.data_summary_entries().iter().sum()),
            false => SegmentType::DATA.len(),
        }
    }

    /// Returns true if the pack has node summaries.
    #[must_use]
    pub fn has_node_summaries(&self) -> bool {
        self.flags.0 & (Flags::UMOUNT.0 | Flags::FASTBOOT.0) != 0
    }
}

/// Byte ranges of the SIT and the NAT bitmap in the head and payload blocks.
fn bitmaps(
    sb: &Superblock,
    flags: Flags,
    checksum_offset: u32,
) -> Result<(std::ops::Range<usize>, std::ops::Range<usize>), &'static str> {
    let (block, all) = (sb.block_size.bytes(), sb.block_size.bytes() * (1 + sb.cp_payload as usize));
    let (sit, nat) = (sb.sit_blocks() as usize / 8, sb.nat_blocks() as usize / 8);
    let (sit_at, nat_at, head_end) = if flags.has(Flags::LARGE_NAT_BITMAP) {
        let nat_at = HEAD_BYTES + 4;
        (nat_at + nat, nat_at, all)
    } else if sb.cp_payload > 0 {
        (block, HEAD_BYTES, checksum_offset as usize)
    } else {
        (HEAD_BYTES, HEAD_BYTES + sit, checksum_offset as usize)
    };
    if nat_at + nat > head_end || sit_at + sit > all || (sit_at < block && sit_at + sit > head_end) {
        return Err("the bitmaps exceed the payload");
    }
    Ok((sit_at..sit_at + sit, nat_at..nat_at + nat))
}

/// Computes the checksum of a head block, which lies at byte `at`. If it is not the block's last word, the computation
/// continues after its own bytes.
#[must_use]
pub fn block_crc(block: &[u8], at: usize) -> u32 {
    let sum = f2fs_crc(&block[..at]);
    if at + 4 < block.len() { crc(sum, &block[at + 4..]) } else { sum }
}

fn stored_crc(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        format::superblock::{Area, Features},
        units::{BlockAddr, Ino},
    };

    fn superblock(block_size: BlockSize, nat_segments: u32, cp_payload: u32) -> Superblock {
        let area = |start: u32, segments| Area { start: BlockAddr(start), segments };
        let nat = 512 + 2 * 512 + 2 * 512;
        let ssa = nat + nat_segments * 512;
        let main = 1000;
        Superblock {
            block_size,
            log_sector_bytes: 9,
            segments_per_section: 1,
            sections_per_zone: 1,
            blocks: u64::from(ssa + (2 + main) * 512),
            segments: 2 + 2 + nat_segments + 2 + main,
            sections: main,
            checkpoint: area(512, 2),
            sit: area(512 + 2 * 512, 2),
            nat: area(nat, nat_segments),
            ssa: area(ssa, 2),
            main: area(ssa + 1024, main),
            root_ino: Ino(3),
            uuid: [7; 16],
            label: String::new(),
            cold_extensions: vec![],
            hot_extensions: vec![],
            cp_payload,
            features: Features::default(),
            devices: vec![],
            quota_inos: [Ino(0); 3],
            encoding: 0,
            encoding_flags: 0,
        }
    }

    fn checkpoint(sb: &Superblock, flags: Flags) -> Checkpoint {
        let mut sit_bitmap = vec![0; sb.sit_blocks() as usize / 8];
        let mut nat_bitmap = vec![0; sb.nat_blocks() as usize / 8];
        sit_bitmap[0] = 0x81;
        *nat_bitmap.last_mut().unwrap() = 0x42;
        let logs = [0, 1, 2, 3, 4, 5].map(|n| LogPosition {
            segment: SegNo(n * 7),
            offset: n as u16,
            mode: if n == 1 { AllocMode::Ssr } else { AllocMode::Append },
        });
        let large = flags.has(Flags::LARGE_NAT_BITMAP);
        Checkpoint {
            version: CheckpointVer(17),
            user_blocks: 400_000,
            valid_blocks: 300,
            reserved_segments: 20,
            overprovision_segments: 40,
            free_segments: 990,
            logs,
            flags,
            pack_blocks: 1 + sb.cp_payload + 1 + 3 + 1,
            summaries_start: 1 + sb.cp_payload,
            valid_nodes: 9,
            valid_inodes: 5,
            next_free_nid: Nid(12),
            elapsed_seconds: 99,
            sit_bitmap,
            nat_bitmap,
            checksum_offset: if large { 192 } else { sb.block_size.bytes() as u32 - 4 },
            crc: 0,
        }
    }

    const CLEAN: Flags = Flags(Flags::UMOUNT.0 | Flags::COMPACT_SUM.0 | Flags::CRC_RECOVERY.0);

    #[test]
    fn every_layout_of_the_bitmaps_survives_a_round_trip() {
        for size in [BlockSize::B4K, BlockSize::B16K] {
            for (nat_segments, payload, large) in
                [(4, 0, false), (100, 1, false), (100, 2, true), (4, 0, true)]
            {
                let sb = superblock(size, nat_segments, payload);
                let mut written =
                    checkpoint(&sb, if large { CLEAN.with(Flags::LARGE_NAT_BITMAP) } else { CLEAN });
                let bytes = written.encode(&sb);
                assert_eq!(Checkpoint::check(&bytes, &sb, 1).unwrap(), written);
                let sit = written.sit_bitmap.len();
                let (sit_at, nat_end) = match (large, payload) {
                    (true, _) => (196 + written.nat_bitmap.len(), 196 + written.nat_bitmap.len()),
                    (false, 0) => (192, 192 + sit + written.nat_bitmap.len()),
                    (false, _) => (size.bytes(), 192 + written.nat_bitmap.len()),
                };
                assert_eq!((bytes[sit_at], bytes[nat_end - 1]), (0x81, 0x42));
            }
        }
    }

    #[test]
    fn the_checksum_continues_after_its_own_bytes() {
        let sb = superblock(BlockSize::B4K, 4, 0);
        let mut bytes = checkpoint(&sb, CLEAN.with(Flags::LARGE_NAT_BITMAP)).encode(&sb);
        assert!(PackEnd::check(&bytes, sb.block_size, 0).is_ok());
        bytes[4095] ^= 1;
        assert!(PackEnd::check(&bytes, sb.block_size, 0).is_err());
    }

    #[test]
    fn damage_is_an_error_with_its_place() {
        let sb = superblock(BlockSize::B4K, 4, 0);
        let good = checkpoint(&sb, CLEAN);
        let spoilt: [fn(&mut Checkpoint); 12] = [
            |cp| cp.user_blocks = 0,
            |cp| cp.valid_blocks = cp.user_blocks + 1,
            |cp| cp.logs[2].segment = SegNo(1000),
            |cp| cp.logs[5].offset = 512,
            |cp| cp.logs[4].segment = cp.logs[0].segment,
            |cp| cp.reserved_segments = 0,
            |cp| cp.reserved_segments = 5000,
            |cp| cp.valid_nodes = u32::MAX,
            |cp| cp.summaries_start = 0,
            |cp| cp.pack_blocks = 2,
            |cp| cp.free_segments = 1001,
            |cp| cp.flags = Flags::LARGE_NAT_BITMAP,
        ];
        for (n, spoil) in spoilt.iter().enumerate() {
            let mut cp = good.clone();
            spoil(&mut cp);
            let mut bytes = vec![0; 4096];
            if cp.flags == Flags::LARGE_NAT_BITMAP {
                // The deprecated layout cannot be encoded, so the test sets the flag and the checksum itself.
                bytes = good.clone().encode(&sb);
                bytes[132..136].copy_from_slice(&Flags::LARGE_NAT_BITMAP.0.to_le_bytes());
                let sum = block_crc(&bytes, 4092);
                bytes[4092..].copy_from_slice(&sum.to_le_bytes());
            } else {
                bytes.copy_from_slice(&cp.encode(&sb));
            }
            let error = Checkpoint::check(&bytes, &sb, 1).unwrap_err();
            assert!(matches!(error, Error::Corrupt { at: Place::Checkpoint(1), .. }), "{n}: {error}");
        }
        for offset in [0u32, 191, 4093, u32::MAX] {
            let mut bytes = good.clone().encode(&sb);
            bytes[164..168].copy_from_slice(&offset.to_le_bytes());
            assert!(PackEnd::check(&bytes, sb.block_size, 0).is_err());
        }
    }

    #[test]
    fn the_pack_is_chosen_by_version_never_by_parity() {
        let ver = |n: u64| Some(CheckpointVer(n));
        assert_eq!(newest(ver(5), ver(5)), Some(0), "a tie goes to the first");
        assert_eq!(newest(ver(4), ver(5)), Some(1));
        assert_eq!(newest(ver(5), ver(4)), Some(0));
        assert_eq!(newest(ver(1), ver(0)), Some(0), "mkfs's second pack has version 0 and is valid");
        assert_eq!(newest(ver(u64::MAX), ver(1)), Some(1), "versions wrap");
        assert_eq!(newest(None, ver(2)), Some(1));
        assert_eq!(newest(None, None), None);
    }

    #[test]
    fn flags_have_the_kernels_numbers() {
        let bits: Vec<u32> = Flags::NAMED.iter().map(|(flag, _)| flag.0).collect();
        assert_eq!(bits, (0..15).map(|n| 1 << n).collect::<Vec<u32>>());
    }

    #[test]
    fn footers_carry_the_checksum_in_their_upper_half() {
        let sb = superblock(BlockSize::B4K, 4, 0);
        let mut cp = checkpoint(&sb, CLEAN);
        cp.encode(&sb);
        assert_eq!(cp.node_version(), 17 | u64::from(cp.crc) << 32);
        assert!(cp.is_written_after(cp.node_version()) && !cp.is_written_after(17));
        cp.flags = Flags::UMOUNT.with(Flags::NOCRC_RECOVERY);
        assert!(cp.is_written_after(17 | 9 << 32) && !cp.is_written_after(18));
    }
}
