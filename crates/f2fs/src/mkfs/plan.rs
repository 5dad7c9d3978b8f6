//! The geometry of a volume, derived from options and sizes.

use zerocopy::{FromZeros, IntoBytes};

use super::{
    Encoding, Options,
    areas::{AreaSizes, BitmapLayout, CHECKPOINT_SEGMENTS, bitmap_bytes},
    extensions,
    overprovision::SetAside,
};
use crate::{
    Error, Result,
    format::{
        BLOCKS_PER_SEGMENT, LOG_BLOCKS_PER_SEGMENT, MAGIC,
        superblock::{self, DEVICES_MAX, Features, Superblock, raw},
    },
    units::{Ino, Nid, SegNo},
};

/// Maximum number of segments in Linux (`F2FS_MAX_SEGMENT`).
pub(crate) const SEGMENTS_MAX: u64 = 8_388_608;
/// Maximum number of zones tried for the smallest volume. Options that fit at all fit much earlier: with 0.01 %
/// overprovision, the reserves are ten thousand sections.
const ZONES_TRIED: u64 = 1 << 15;
/// Minimum number of segments (`F2FS_MIN_SEGMENTS`).
const SEGMENTS_MIN: u64 = 9;
/// First invalid block address: the last two mean NEW and COMPRESS.
pub(crate) const BLOCKS_MAX: u64 = u32::MAX as u64 - 1;
/// Version of the format, as f2fs-tools 1.16 write it.
const FORMAT_VERSION: (u16, u16) = (1, 16);
/// Value of `version` and `init_version` in the superblock, where mkfs.f2fs writes the kernel's version.
const MADE_BY: &str = concat!("flashkit ", env!("CARGO_PKG_VERSION"));
/// Maximum length of a device's path in bytes.
const DEVICE_PATH_BYTES: usize = 64;

/// A device for a new volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSize {
    /// Path, at most 64 bytes. The superblock of a multi-device volume records it.
    pub path: String,
    /// Usable size in bytes. A partial segment at the end is not used.
    pub bytes: u64,
}

/// First segment of each log, in segments of the main area. On a read-only volume only hot data and hot nodes
/// have a segment; the others are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Logs {
    /// Blocks of directories.
    pub hot_data: SegNo,
    /// Blocks of files.
    pub warm_data: SegNo,
    /// Blocks of media files, and blocks moved by cleaning.
    pub cold_data: SegNo,
    /// Nodes of directories.
    pub hot_node: SegNo,
    /// Nodes of files.
    pub warm_node: SegNo,
    /// Indirect nodes.
    pub cold_node: SegNo,
}

impl Logs {
    /// The logs in the order of the checkpoint's and the SIT's types: hot, warm, cold data, hot, warm, cold
    /// nodes.
    #[must_use]
    pub fn in_order(&self) -> [SegNo; 6] {
        [self.hot_data, self.warm_data, self.cold_data, self.hot_node, self.warm_node, self.cold_node]
    }
}

/// All decisions about a new volume before its first block is written.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The superblock.
    pub superblock: Superblock,
    /// Space set aside for cleaning.
    pub set_aside: SetAside,
    /// Blocks that users may fill, nodes included.
    pub user_blocks: u64,
    /// First segment of each log.
    pub logs: Logs,
    /// Bytes of the SIT's version bitmap.
    pub sit_bitmap_bytes: u32,
    /// Bytes of the NAT's version bitmap.
    pub nat_bitmap_bytes: u32,
    /// True if the checkpoint's checksum stands before the bitmaps, which may then fill several blocks.
    pub large_nat_bitmap: bool,
    /// Inode of lost+found, with that feature.
    pub lost_found: Option<Ino>,
    /// First unused nid.
    pub next_free_nid: Nid,
    /// Owner and group of the root directory.
    pub root_owner: (u32, u32),
    raw: raw::Superblock,
}

impl Plan {
    /// Plans a volume over these devices, the first of which holds the metadata. Fails if the options are
    /// invalid or a size is too small or too large; the error then states the nearest valid size.
    ///
    /// # Errors
    /// [`Error::Invalid`] if options contradict each other, or the size is too small or too large, with the nearest
    /// valid size; [`Error::Unsupported`] for features that cannot be made.
    pub fn new(options: &Options, devices: &[DeviceSize]) -> Result<Plan> {
        let features = options.check()?;
        check_devices(devices)?;
        let geometry = match Geometry::of(options, features, devices) {
            Ok(geometry) => geometry,
            Err(Misfit::TooSmall) => return Err(too_small(options, features, devices)),
            Err(Misfit::TooLarge) => {
                let most = Plan::largest_bytes(options);
                return Err(Error::Invalid(
                    format!(
                        "{} bytes are too large for a volume of {} byte blocks: at most {most}",
                        total(devices),
                        options.block_size.bytes()
                    )
                    .into(),
                ));
            }
        };
        geometry.into_plan(options, features, devices)
    }

    /// Returns the smallest size in bytes of a volume with these options, on one device.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no size is large enough, or if the options are invalid.
    pub fn smallest_bytes(options: &Options) -> Result<u64> {
        smallest_bytes(options, options.check()?)
    }

    /// Returns the largest size in bytes that a volume with these options can have, all devices together.
    #[must_use]
    pub fn largest_bytes(options: &Options) -> u64 {
        SEGMENTS_MAX * options.block_size.segment_bytes()
    }

    /// Returns the superblock as written, both copies alike, with its checksum if the features include one.
    #[must_use]
    pub fn superblock_bytes(&self) -> &[u8; superblock::BYTES] {
        self.raw.as_bytes().try_into().expect("the struct has the array's size")
    }

    /// The superblock's fields under their kernel names.
    #[must_use]
    pub fn raw_superblock(&self) -> &raw::Superblock {
        &self.raw
    }
}

fn smallest_bytes(options: &Options, features: Features) -> Result<u64> {
    let before = segment0_bytes(options, features);
    for zones in 1..=ZONES_TRIED {
        let bytes = before + zones * options.zone_bytes();
        match Geometry::of(options, features, &[DeviceSize { path: String::new(), bytes }]) {
            Ok(_) => return Ok(bytes),
            Err(Misfit::TooSmall) => continue,
            Err(Misfit::TooLarge) => break,
        }
    }
    Err(Error::Invalid("sections or overprovision too large for any volume".into()))
}

fn total(devices: &[DeviceSize]) -> u64 {
    devices.iter().fold(0, |sum, device| sum.saturating_add(device.bytes))
}

fn check_devices(devices: &[DeviceSize]) -> Result<()> {
    if devices.is_empty() || devices.len() > DEVICES_MAX {
        return Err(Error::Invalid(format!("{} devices, must be 1 to {DEVICES_MAX}", devices.len()).into()));
    }
    let named = |device: &&DeviceSize| device.path.len() > DEVICE_PATH_BYTES || device.path.is_empty();
    match devices.iter().find(named) {
        Some(device) if devices.len() > 1 => Err(Error::Invalid(
            format!("device path {:?} must have 1 to {DEVICE_PATH_BYTES} bytes", device.path).into(),
        )),
        _ => Ok(()),
    }
}

fn too_small(options: &Options, features: Features, devices: &[DeviceSize]) -> Error {
    let hint = match smallest_bytes(options, features) {
        Ok(bytes) if devices.len() == 1 => format!("at least {bytes} ({} MiB)", bytes.div_ceil(1 << 20)),
        Ok(bytes) => format!("at least {bytes} and a segment more for each further device"),
        Err(_) => "no size is large enough for these sections and this overprovision".into(),
    };
    Error::Invalid(format!("{} bytes are too small for a volume: {hint}", total(devices)).into())
}

/// Reason for the refusal of a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Misfit {
    TooSmall,
    TooLarge,
}

/// The numbers of a volume.
#[derive(Debug, Clone)]
pub(super) struct Geometry {
    blocks: u64,
    segment0: u32,
    device_segments: Vec<u32>,
    segments: u32,
    areas: AreaSizes,
    zones: u32,
    set_aside: SetAside,
}

impl Geometry {
    /// Computes the geometry like mkfs.f2fs (`f2fs_prepare_super_block`), with the differences listed in the
    /// module's documentation.
    pub(super) fn of(
        options: &Options,
        features: Features,
        devices: &[DeviceSize],
    ) -> Result<Geometry, Misfit> {
        let size = options.block_size;
        let read_only = features.has(Features::RO);
        let per_zone = options.segments_per_zone();
        if total(devices) > Plan::largest_bytes(options) {
            return Err(Misfit::TooLarge);
        }

        let segment0_bytes = segment0_bytes(options, features);
        let mut device_segments = Vec::with_capacity(devices.len());
        for (n, device) in devices.iter().enumerate() {
            let usable = device.bytes.checked_sub(if n == 0 { segment0_bytes } else { 0 });
            let segments = usable.ok_or(Misfit::TooSmall)? / size.segment_bytes();
            device_segments.push((segments / u64::from(per_zone)) as u32 * per_zone);
        }
        let blocks = devices.iter().map(|device| device.bytes / size.bytes() as u64).sum();
        let segment0 = (segment0_bytes / size.bytes() as u64) as u32;
        cap(&mut device_segments, segment0, per_zone);
        let segments: u32 = device_segments.iter().sum();
        if u64::from(segments) < SEGMENTS_MIN || device_segments.contains(&0) {
            return Err(Misfit::TooSmall);
        }

        let bitmaps = match options.large_nat_bitmap {
            true => BitmapLayout::Large,
            false => BitmapLayout::FirstBlock,
        };
        let areas = AreaSizes::of(size, features, segments, per_zone, bitmaps)?;
        let zones = (segments / per_zone).checked_sub(areas.total() / per_zone).ok_or(Misfit::TooSmall)?;
        let heads = if read_only { 2 } else { 6 };
        if zones <= heads {
            return Err(Misfit::TooSmall);
        }
        let set_aside = match read_only {
            true => SetAside::NOTHING,
            false => SetAside::decide(options.overprovision, zones * per_zone, options.segments_per_section)
                .ok_or(Misfit::TooSmall)?,
        };
        Ok(Geometry { blocks, segment0, device_segments, segments, areas, zones, set_aside })
    }

    fn into_plan(self, options: &Options, features: Features, devices: &[DeviceSize]) -> Result<Plan> {
        let raw = self.raw_superblock(options, features, devices)?;
        let bytes: &[u8; superblock::BYTES] =
            raw.as_bytes().try_into().expect("the struct has the array's size");
        let superblock = Superblock::check(bytes, 0, total(devices))?;
        let main_segments = self.zones * options.segments_per_zone();
        let quota = superblock.quota_inos.into_iter().max().filter(|ino| ino.0 != 0);
        let after_quota = quota.map_or(superblock.root_ino.0, |ino| ino.0) + 1;
        let lost_found = features.has(Features::LOST_FOUND).then_some(Ino(after_quota));
        Ok(Plan {
            set_aside: self.set_aside,
            user_blocks: u64::from(main_segments - self.set_aside.overprovision_segments)
                << LOG_BLOCKS_PER_SEGMENT,
            logs: logs(self.zones, options, features),
            sit_bitmap_bytes: bitmap_bytes(self.areas.sit / 2),
            nat_bitmap_bytes: bitmap_bytes(self.areas.nat / 2),
            large_nat_bitmap: options.large_nat_bitmap,
            lost_found,
            next_free_nid: Nid(after_quota + u32::from(lost_found.is_some())),
            root_owner: options.root_owner,
            superblock,
            raw,
        })
    }

    /// Sets the places of the areas, which follow one another without a gap.
    fn place_areas(&self, raw: &mut raw::Superblock, options: &Options) {
        raw.segment0_blkaddr.set(self.segment0);
        let mut next = self.segment0;
        for (start, count, segments) in [
            (&mut raw.cp_blkaddr, &mut raw.segment_count_ckpt, CHECKPOINT_SEGMENTS),
            (&mut raw.sit_blkaddr, &mut raw.segment_count_sit, self.areas.sit),
            (&mut raw.nat_blkaddr, &mut raw.segment_count_nat, self.areas.nat),
            (&mut raw.ssa_blkaddr, &mut raw.segment_count_ssa, self.areas.ssa),
            (&mut raw.main_blkaddr, &mut raw.segment_count_main, self.zones * options.segments_per_zone()),
        ] {
            start.set(next);
            count.set(segments);
            next += segments * BLOCKS_PER_SEGMENT;
        }
    }

    fn raw_superblock(
        &self,
        options: &Options,
        features: Features,
        devices: &[DeviceSize],
    ) -> Result<raw::Superblock> {
        let mut raw = raw::Superblock::new_zeroed();
        let (log_block, log_sector) = (options.block_size.log(), options.sector_bytes.ilog2());
        raw.magic.set(MAGIC);
        raw.major_version.set(FORMAT_VERSION.0);
        raw.minor_version.set(FORMAT_VERSION.1);
        raw.log_sector_bytes.set(log_sector);
        raw.log_sectors_per_block.set(log_block - log_sector);
        raw.log_block_bytes.set(log_block);
        raw.log_blocks_per_segment.set(LOG_BLOCKS_PER_SEGMENT);
        raw.segments_per_section.set(options.segments_per_section);
        raw.sections_per_zone.set(options.sections_per_zone);
        raw.block_count.set(self.blocks);
        raw.section_count.set(self.zones * options.sections_per_zone);
        raw.segment_count.set(self.segments);

        self.place_areas(&mut raw, options);

        let (node_ino, meta_ino, root_ino) = (1, 2, 3);
        raw.node_ino.set(node_ino);
        raw.meta_ino.set(meta_ino);
        raw.root_ino.set(root_ino);
        // Project quota alone adds no user and group quota, although it sets their feature bit.
        let quotas = [Features::QUOTA, Features::QUOTA, Features::PROJECT_QUOTA];
        let with_quota = raw.qf_ino.iter_mut().zip(quotas).filter(|(_, quota)| options.features.has(*quota));
        for (ino, (slot, _)) in (root_ino + 1..).zip(with_quota) {
            slot.set(ino);
        }

        raw.uuid = options.uuid;
        superblock::set_label(&mut raw, &options.label);
        let (cold, hot) = extensions::lists(&options.cold_extensions, &options.hot_extensions)?;
        extensions::store(&mut raw, &cold, &hot)?;
        raw.cp_payload.set(self.areas.cp_payload);
        for version in [&mut raw.version, &mut raw.init_version] {
            version[..MADE_BY.len()].copy_from_slice(MADE_BY.as_bytes());
        }
        raw.feature.set(features.0);
        if features.has(Features::CASEFOLD) {
            raw.s_encoding.set(Encoding::UTF8_12_1);
            raw.s_encoding_flags.set(options.encoding.flags());
        }
        if devices.len() > 1 {
            for ((entry, device), segments) in raw.devs.iter_mut().zip(devices).zip(&self.device_segments) {
                entry.path[..device.path.len()].copy_from_slice(device.path.as_bytes());
                entry.total_segments.set(*segments);
            }
        }
        superblock::seal(&mut raw);
        Ok(raw)
    }
}

/// Bytes before segment 0: two superblocks, then padding up to the start of a zone on the disk.
pub(super) fn segment0_bytes(options: &Options, features: Features) -> u64 {
    let superblocks = 2 * options.block_size.bytes() as u64;
    if features.has(Features::RO) {
        return superblocks;
    }
    let zone_bytes = u64::from(options.segments_per_zone()) * options.block_size.segment_bytes();
    (options.start_offset_bytes + superblocks).next_multiple_of(zone_bytes) - options.start_offset_bytes
}

/// Removes zones from the last device until every block has a valid address.
fn cap(device_segments: &mut [u32], segment0: u32, per_zone: u32) {
    let most = ((BLOCKS_MAX - u64::from(segment0)) >> LOG_BLOCKS_PER_SEGMENT).min(SEGMENTS_MAX);
    let all: u64 = device_segments.iter().map(|segments| u64::from(*segments)).sum();
    let over = (all.saturating_sub(most) as u32).next_multiple_of(per_zone);
    if let Some(last) = device_segments.last_mut() {
        *last = last.saturating_sub(over);
    }
}

/// Spreads the logs over the main area: nodes and directories at the start, data of files at a quarter and at
/// half of it, each in a zone of its own. If a zone has several sections, data and nodes of files share one,
/// so that an fsync writes to one zone, and those of directories share another, for checkpoints. mkfs.f2fs
/// does not do that.
fn logs(zones: u32, options: &Options, features: Features) -> Logs {
    let zone = |n: u32| SegNo(n * options.segments_per_zone());
    if features.has(Features::RO) {
        let last_section = (options.sections_per_zone - 1) * options.segments_per_section;
        return Logs { hot_node: SegNo(zone(zones - 1).0 + last_section), ..Logs::default() };
    }
    let cold_data = (zones / 4).saturating_sub(1).max(4);
    let (hot_data, warm_data) = match options.sections_per_zone {
        1 => (zone(3), zone((zones / 2).saturating_sub(1).max(cold_data + 1))),
        _ => {
            let beside = |n: u32| SegNo(zone(n).0 + options.segments_per_section);
            (beside(0), beside(1))
        }
    };
    Logs {
        hot_node: zone(0),
        warm_node: zone(1),
        cold_node: zone(2),
        hot_data,
        cold_data: zone(cold_data),
        warm_data,
    }
}
