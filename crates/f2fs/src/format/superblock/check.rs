//! The rules of a superblock, from raw bytes to the trusted value.

use zerocopy::FromBytes;

use super::{
    Area, BYTES, CRC_OFFSET, EXTENSIONS_MAX, Features, Superblock, VolumeDevice, label_of, raw, until_nul,
};
use crate::{
    Error, Place, Result,
    format::{BLOCKS_PER_SEGMENT, BlockSize, LOG_BLOCKS_PER_SEGMENT, MAGIC, crc::f2fs_crc},
    units::{BlockAddr, Ino},
};

/// Maximum number of blocks, above which their size in bytes would not fit into 64 bits. Addresses have 32 bits.
const BLOCKS_MAX: u64 = 1 << 48;
/// Maximum number of segments.
const SEGMENTS_MAX: u32 = 8_388_608;
/// Blocks of a checkpoint pack that the payload leaves at least: head and copy, and six summaries.
const PACK_BLOCKS_LEFT: u32 = 2 + 6;

impl Superblock {
    /// Checks raw bytes and makes a trusted superblock of them. `copy` is 0 or 1, for the error;
    /// `device_bytes` is the size of the device (of all of them together).
    ///
    /// # Errors
    /// [`Error::NotF2fs`] without the magic number, [`Error::Corrupt`] at this copy of the superblock for impossible
    /// values.
    pub fn check(bytes: &[u8; BYTES], copy: u8, device_bytes: u64) -> Result<Superblock> {
        let raw = raw::Superblock::ref_from_bytes(bytes).expect("the array has the struct's size");
        let rules = Rules { raw, copy };
        rules.check_magic()?;
        let features = Features(raw.feature.get());
        if features.has(Features::SB_CHECKSUM) {
            rules.check_sum(bytes)?;
        }
        let block_size = rules.block_size()?;
        rules.check_counts()?;
        let areas = rules.areas()?;
        rules.check_ends(&areas, block_size, device_bytes)?;
        rules.check_tables(&areas, block_size)?;
        let (cold, hot) = rules.extension_counts()?;
        let extensions = |range: std::ops::Range<usize>| {
            raw.extension_list[range].iter().map(|slot| until_nul(slot)).collect()
        };
        let Areas { checkpoint, sit, nat, ssa, main } = areas;
        Ok(Superblock {
            block_size,
            log_sector_bytes: raw.log_sector_bytes.get(),
            segments_per_section: raw.segments_per_section.get(),
            sections_per_zone: raw.sections_per_zone.get(),
            blocks: raw.block_count.get(),
            segments: raw.segment_count.get(),
            sections: raw.section_count.get(),
            checkpoint,
            sit,
            nat,
            ssa,
            main,
            root_ino: Ino(raw.root_ino.get()),
            uuid: raw.uuid,
            label: label_of(raw),
            cold_extensions: extensions(0..cold),
            hot_extensions: extensions(cold..cold + hot),
            cp_payload: raw.cp_payload.get(),
            features,
            devices: rules.devices()?,
            // Linux reads the numbers only with the feature.
            quota_inos: raw.qf_ino.map(|ino| Ino(if features.has(Features::QUOTA) { ino.get() } else { 0 })),
            encoding: raw.s_encoding.get(),
            encoding_flags: raw.s_encoding_flags.get(),
        })
    }
}

/// The areas of a volume.
struct Areas {
    checkpoint: Area,
    sit: Area,
    nat: Area,
    ssa: Area,
    main: Area,
}

/// A raw superblock under examination.
struct Rules<'a> {
    raw: &'a raw::Superblock,
    copy: u8,
}

impl Rules<'_> {
    fn bad(&self, what: String) -> Error {
        Error::corrupt(Place::Superblock(self.copy), what)
    }

    fn check_magic(&self) -> Result<()> {
        let magic = self.raw.magic.get();
        if magic != MAGIC {
            let what = format!(
                "magic number {magic:#010x} instead of {MAGIC:#010x} in superblock copy {}",
                self.copy
            );
            return Err(Error::NotF2fs(what.into()));
        }
        Ok(())
    }

    fn check_sum(&self, bytes: &[u8; BYTES]) -> Result<()> {
        let (at, stored) = (self.raw.checksum_offset.get(), self.raw.crc.get());
        if at as usize != CRC_OFFSET {
            return Err(self.bad(format!("checksum_offset {at}, must be {CRC_OFFSET}")));
        }
        let computed = f2fs_crc(&bytes[..CRC_OFFSET]);
        if stored != computed {
            return Err(self.bad(format!("checksum {stored:#010x}, computed {computed:#010x}")));
        }
        Ok(())
    }

    /// The size of a block, which the sizes of segments and sectors fit.
    fn block_size(&self) -> Result<BlockSize> {
        let raw = self.raw;
        let log_block = raw.log_block_bytes.get();
        let block_size = BlockSize::from_log(log_block)
            .ok_or_else(|| self.bad(format!("log_blocksize {log_block}, must be 12 or 14")))?;
        let log_segment = raw.log_blocks_per_segment.get();
        if log_segment != LOG_BLOCKS_PER_SEGMENT {
            let what = format!("log_blocks_per_seg {log_segment}, must be {LOG_BLOCKS_PER_SEGMENT}");
            return Err(self.bad(what));
        }
        let (log_sector, log_ratio) = (raw.log_sector_bytes.get(), raw.log_sectors_per_block.get());
        if !(9..=log_block).contains(&log_sector) || log_ratio != log_block - log_sector {
            let what = format!("log_sectorsize {log_sector} with log_sectors_per_block {log_ratio}");
            return Err(self.bad(what));
        }
        Ok(block_size)
    }

    fn check_counts(&self) -> Result<()> {
        let raw = self.raw;
        let (per_section, per_zone) = (raw.segments_per_section.get(), raw.sections_per_zone.get());
        let (segments, sections) = (raw.segment_count.get(), raw.section_count.get());
        if !(9..=SEGMENTS_MAX).contains(&segments) {
            return Err(self.bad(format!("segment_count {segments}, must be 9 to {SEGMENTS_MAX}")));
        }
        if per_section == 0 || per_section > segments {
            return Err(self.bad(format!("segs_per_sec {per_section} with {segments} segments")));
        }
        if per_zone == 0 || per_zone > sections {
            return Err(self.bad(format!("secs_per_zone {per_zone} with {sections} sections")));
        }
        let main_segments = raw.segment_count_main.get();
        if sections == 0 || u64::from(sections) * u64::from(per_section) != u64::from(main_segments) {
            return Err(self.bad(format!(
                "segment_count_main {main_segments} is not section_count {sections} times segs_per_sec {per_section}"
            )));
        }
        let blocks = raw.block_count.get();
        if u64::from(segments) > blocks >> LOG_BLOCKS_PER_SEGMENT {
            return Err(self.bad(format!("segment_count {segments} exceeds block_count {blocks}")));
        }
        if blocks > BLOCKS_MAX {
            return Err(self.bad(format!("block_count {blocks}, at most {BLOCKS_MAX}")));
        }
        let cp_payload = raw.cp_payload.get();
        if cp_payload >= BLOCKS_PER_SEGMENT - PACK_BLOCKS_LEFT {
            let most = BLOCKS_PER_SEGMENT - PACK_BLOCKS_LEFT;
            return Err(self.bad(format!("cp_payload {cp_payload}, must be less than {most}")));
        }
        let inos = (raw.node_ino.get(), raw.meta_ino.get(), raw.root_ino.get());
        if inos != (1, 2, 3) {
            let what = format!("node, meta and root inode are {inos:?}, must be (1, 2, 3)");
            return Err(self.bad(what));
        }
        Ok(())
    }

    /// The areas, which follow each other without a gap.
    fn areas(&self) -> Result<Areas> {
        let raw = self.raw;
        let area = |start: u32, segments: u32| Area { start: BlockAddr(start), segments };
        let checkpoint = area(raw.cp_blkaddr.get(), raw.segment_count_ckpt.get());
        let sit = area(raw.sit_blkaddr.get(), raw.segment_count_sit.get());
        let nat = area(raw.nat_blkaddr.get(), raw.segment_count_nat.get());
        let ssa = area(raw.ssa_blkaddr.get(), raw.segment_count_ssa.get());
        let main = area(raw.main_blkaddr.get(), raw.segment_count_main.get());
        let (start, segment0) = (checkpoint.start.0, raw.segment0_blkaddr.get());
        if start != segment0 {
            return Err(self.bad(format!("cp_blkaddr {start} differs from segment0_blkaddr {segment0}")));
        }
        if start < 2 || checkpoint.segments != 2 {
            let what = format!("checkpoint area of {} segments at {}", checkpoint.segments, checkpoint.start);
            return Err(self.bad(what));
        }
        let areas = [("checkpoint", checkpoint), ("SIT", sit), ("NAT", nat), ("SSA", ssa), ("main", main)];
        for pair in areas.windows(2) {
            let ((before, a), (after, b)) = (pair[0], pair[1]);
            if a.end() != u64::from(b.start.0) {
                return Err(self.bad(format!(
                    "{before} area ends at block {}, {after} area starts at {}",
                    a.end(),
                    b.start
                )));
            }
        }
        Ok(Areas { checkpoint, sit, nat, ssa, main })
    }

    /// Checks that the main area lies within the segments, and these within the device.
    fn check_ends(&self, areas: &Areas, block_size: BlockSize, device_bytes: u64) -> Result<()> {
        let main = areas.main;
        let segments = u64::from(self.raw.segment_count.get());
        let end = u64::from(areas.checkpoint.start.0) + (segments << LOG_BLOCKS_PER_SEGMENT);
        if main.end() > end {
            let what = format!("main area ends at block {}, the segments at {end}", main.end());
            return Err(self.bad(what));
        }
        // mkfs.f2fs uses 16 TiB up to the last block, although that block's address is not valid in the map
        // of a file.
        let needed_bytes = main.end() * block_size.bytes() as u64;
        if end > 1 << 32 || needed_bytes > device_bytes {
            return Err(self.bad(format!(
                "the volume needs {needed_bytes} bytes, the device has {device_bytes}: truncated image?"
            )));
        }
        Ok(())
    }

    /// Checks that SIT and NAT have two copies, and that the SIT has an entry for each segment.
    fn check_tables(&self, areas: &Areas, block_size: BlockSize) -> Result<()> {
        let (sit, nat) = (areas.sit, areas.nat);
        let is_even = |segments: u32| segments > 0 && segments % 2 == 0;
        if !is_even(sit.segments) || !is_even(nat.segments) {
            return Err(self
                .bad(format!("{} SIT and {} NAT segments, both must be even", sit.segments, nat.segments)));
        }
        let capacity = sit.blocks() / 2 * block_size.sit_entries() as u64;
        let segments = areas.main.segments;
        if capacity < u64::from(segments) {
            let what = format!("SIT has entries for {capacity} segments, main has {segments}");
            return Err(self.bad(what));
        }
        Ok(())
    }

    /// The number of cold and of hot extensions.
    fn extension_counts(&self) -> Result<(usize, usize)> {
        let (cold, hot) = (self.raw.extension_count.get() as usize, usize::from(self.raw.hot_ext_count));
        if cold > EXTENSIONS_MAX || cold + hot > EXTENSIONS_MAX {
            return Err(self.bad(format!("{cold} cold and {hot} hot extensions, at most 64 together")));
        }
        Ok((cold, hot))
    }

    /// The devices, which together have the segments of the volume.
    fn devices(&self) -> Result<Vec<VolumeDevice>> {
        let raw = self.raw;
        let listed = raw.devs.iter().take_while(|dev| dev.path[0] != 0);
        let devices: Vec<VolumeDevice> = listed
            .map(|dev| VolumeDevice { path: until_nul(&dev.path), segments: dev.total_segments.get() })
            .collect();
        let on_devices: u64 = devices.iter().map(|dev| u64::from(dev.segments)).sum();
        let segments = raw.segment_count.get();
        if !devices.is_empty() && on_devices != u64::from(segments) {
            let what = format!("the devices have {on_devices} segments, the volume {segments}");
            return Err(self.bad(what));
        }
        Ok(devices)
    }
}
