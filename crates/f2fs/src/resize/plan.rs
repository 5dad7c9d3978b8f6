//! The plan of a resize: the new geometry, and the blocks that must move before it.

use std::ops::Range;

use zerocopy::IntoBytes;

use crate::{
    Error, Result,
    disk::read_raw_superblock,
    engine::Engine,
    format::{
        BLOCKS_PER_SEGMENT, LOG_BLOCKS_PER_SEGMENT,
        checkpoint::Flags,
        superblock::{self, Superblock, raw},
    },
    mkfs::{
        Overprovision,
        areas::{AreaSizes, BitmapLayout, CHECKPOINT_SEGMENTS},
        overprovision::SetAside,
        plan::{BLOCKS_MAX, SEGMENTS_MAX},
    },
    units::BlockAddr,
};

/// Blocks of the two superblocks.
const SUPERBLOCKS: u32 = 2;

/// The way in which a volume gets its new size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// The volume already has the size.
    Nothing,
    /// The metadata areas suffice and stay in their places.
    InPlace,
    /// The metadata areas must grow. They are written anew behind the old ones, then moved to the start of the volume.
    Relocate,
}

/// A geometry of the volume with its capacity.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) raw: raw::Superblock,
    pub(super) superblock: Superblock,
    pub(super) set_aside: SetAside,
    pub(super) user_blocks: u64,
}

/// All decisions about a resize before the first block is written.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Size of the volume in bytes before and after, from the start of its first device to the end of its last segment.
    pub old_bytes: u64,
    /// Size after the resize.
    pub new_bytes: u64,
    /// Blocks that must move.
    pub moved_blocks: u64,
    /// The way to the new size.
    pub method: Method,
    /// Size to which the volume grows in place first, so that there is room to move the metadata areas.
    pub(super) first_bytes: Option<u64>,
    /// Segments of the old main area that must be empty.
    pub(super) evacuated: Range<u32>,
    /// The geometries to switch to, one after the other.
    pub(super) layouts: Vec<Layout>,
}

/// Facts of the volume that a plan needs.
struct Facts {
    raw: raw::Superblock,
    superblock: Superblock,
    bitmaps: BitmapLayout,
    valid_blocks: u64,
    /// Space set aside at present, and blocks for users.
    present: (SetAside, u64),
}

impl Plan {
    /// Plans to give a volume the size of `bytes` bytes, all devices together. A partial zone at the end is not used.
    /// Reads the SIT, and writes nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the volume cannot have this size, with the reason and the smallest possible size;
    /// [`Error::Unsupported`] for a layout that cannot be resized; [`Error::ReadOnly`] for a volume that cannot be changed;
    /// those of [reading](crate::engine::Engine#errors).
    pub fn new(volume: &mut Engine, bytes: u64) -> Result<Plan> {
        volume.require_writable()?;
        let facts = Facts::of(volume)?;
        let mut plan = facts.plan(bytes)?;
        if !plan.evacuated.is_empty() {
            plan.moved_blocks = volume.valid_blocks_in(plan.evacuated.clone())?;
        }
        Ok(plan)
    }

    /// Refuses a device that is too small for the new size, of which a part at the end may remain unused.
    pub(super) fn require_device(&self, device_bytes: u64) -> Result<()> {
        let needed = self.layouts.iter().map(|layout| layout.superblock.volume_bytes()).max();
        let needed = needed.expect("a plan has a layout");
        match needed <= device_bytes {
            true => Ok(()),
            false => Err(Error::Invalid(
                format!("the new size needs {needed} bytes, the device has {device_bytes}").into(),
            )),
        }
    }

    /// Sections that should be free when the volume has its new size: those that cleaning needs.
    pub(super) fn free_sections(&self) -> u32 {
        let last = self.layouts.last().expect("a plan has a layout");
        last.set_aside.reserved_segments.div_ceil(last.superblock.segments_per_section)
    }
}

/// Returns the smallest size in bytes that [`Plan::new`] accepts for a volume with its present content: at most the present
/// one.
///
/// # Errors
/// Those of [`Plan::new`].
pub fn smallest_bytes(volume: &mut Engine) -> Result<u64> {
    Facts::of(volume).map(|facts| facts.smallest_or_present())
}

/// First block of the metadata in its usual place, if an interrupted resize has left it behind that.
pub(super) fn home_of(sb: &Superblock) -> Option<BlockAddr> {
    let home = sb.checkpoint.start.0.checked_sub(sizes_of(sb).total() << LOG_BLOCKS_PER_SEGMENT)?;
    (home >= SUPERBLOCKS).then_some(BlockAddr(home))
}

/// The layout that [`home_of`] stands for.
pub(super) fn home_layout(raw: &raw::Superblock, sb: &Superblock, flags: Flags) -> Result<Option<Layout>> {
    let Some(home) = home_of(sb) else { return Ok(None) };
    let facts = Facts {
        raw: raw.clone(),
        superblock: sb.clone(),
        bitmaps: bitmap_layout(flags),
        valid_blocks: 0,
        present: (SetAside::NOTHING, 0),
    };
    let areas = sizes_of(sb);
    facts.layout(home.0, areas, sb.main.segments + areas.total(), sb.blocks).map(Some)
}

fn bitmap_layout(flags: Flags) -> BitmapLayout {
    match flags.has(Flags::LARGE_NAT_BITMAP) {
        true => BitmapLayout::Large,
        false => BitmapLayout::FirstBlock,
    }
}

/// Sizes of the metadata areas of a volume.
fn sizes_of(sb: &Superblock) -> AreaSizes {
    AreaSizes { sit: sb.sit.segments, nat: sb.nat.segments, ssa: sb.ssa.segments, cp_payload: sb.cp_payload }
}

impl Facts {
    fn of(volume: &Engine) -> Result<Facts> {
        let device = &**volume.device();
        // The copy that the volume was opened from.
        let (_, copy) = crate::disk::read_superblock(device, device.geometry().size_bytes)?;
        let checkpoint = volume.last_checkpoint();
        let set_aside = SetAside {
            reserved_segments: checkpoint.reserved_segments,
            overprovision_segments: checkpoint.overprovision_segments,
            ..SetAside::NOTHING
        };
        Ok(Facts {
            present: (set_aside, checkpoint.user_blocks),
            raw: read_raw_superblock(device, copy)?,
            superblock: volume.superblock().clone(),
            bitmaps: bitmap_layout(volume.last_checkpoint().flags),
            valid_blocks: volume.counters().valid_blocks,
        })
    }

    fn per_zone(&self) -> u32 {
        self.superblock.segments_per_section * self.superblock.sections_per_zone
    }

    fn segment0(&self) -> u32 {
        self.superblock.checkpoint.start.0
    }

    /// Bytes from the start of the volume to the end of `segments` segments.
    fn bytes_of(&self, segments: u32) -> u64 {
        let blocks = u64::from(self.segment0()) + (u64::from(segments) << LOG_BLOCKS_PER_SEGMENT);
        blocks << self.superblock.block_size.log()
    }

    /// Segments of all areas in a volume of `blocks` blocks, whole zones.
    fn segments_in(&self, blocks: u64) -> Result<u32> {
        let per_zone = u64::from(self.per_zone());
        let usable = blocks.saturating_sub(self.segment0().into()) >> LOG_BLOCKS_PER_SEGMENT;
        let most = ((BLOCKS_MAX - u64::from(self.segment0())) >> LOG_BLOCKS_PER_SEGMENT).min(SEGMENTS_MAX);
        let segments = usable / per_zone * per_zone;
        if usable > SEGMENTS_MAX {
            let what = format!("at most {} bytes", SEGMENTS_MAX * self.superblock.block_size.segment_bytes());
            return Err(Error::Invalid(format!("the size is too large for a volume: {what}").into()));
        }
        Ok(segments.min(most / per_zone * per_zone) as u32)
    }

    fn plan(&self, bytes: u64) -> Result<Plan> {
        let sb = &self.superblock;
        let blocks = bytes >> sb.block_size.log();
        let segments = self.segments_in(blocks)?;
        let areas = sizes_of(sb);
        let main = self.main_segments(segments, areas);
        let fits = self.capacity(main).is_some_and(|(_, user_blocks)| user_blocks >= self.valid_blocks);
        if !fits && blocks != sb.blocks {
            return Err(self.too_small(bytes));
        }
        let mut plan = Plan {
            old_bytes: self.bytes_of(areas.total() + sb.main.segments),
            new_bytes: self.bytes_of(areas.total() + main),
            moved_blocks: 0,
            method: Method::InPlace,
            first_bytes: None,
            evacuated: main.min(sb.main.segments)..sb.main.segments,
            layouts: Vec::new(),
        };
        if !fits {
            // A volume with less space set aside than usual holds more than it would be given: it stays as it is.
            let (set_aside, user_blocks) = self.present;
            plan.method = Method::Nothing;
            plan.new_bytes = plan.old_bytes;
            plan.evacuated = 0..0;
            plan.layouts.push(Layout {
                raw: self.raw.clone(),
                superblock: sb.clone(),
                set_aside,
                user_blocks,
            });
            return Ok(plan);
        }
        if self.suffice(areas, main) {
            let layout = self.layout(self.segment0(), areas, main, blocks)?;
            if layout.raw.as_bytes() == self.raw.as_bytes() {
                plan.method = Method::Nothing;
            }
            plan.layouts.push(layout);
            return Ok(plan);
        }
        self.relocate(segments, blocks, plan)
    }

    /// Plans the growth of the metadata areas: first behind twice their new size, then at the start.
    fn relocate(&self, segments: u32, blocks: u64, mut plan: Plan) -> Result<Plan> {
        let (sb, old) = (&self.superblock, sizes_of(&self.superblock).total());
        let areas = self.grown(segments)?;
        let new = areas.total();
        let main = self.main_segments(segments, areas);
        let evacuated = 2 * new - old;
        if (new - old) % sb.segments_per_section != 0 {
            return Err(Error::Unsupported("the main area does not begin at a section".into()));
        }
        let last = self.layout(self.segment0(), areas, main, blocks)?;
        let start = self.segment0() + (new << LOG_BLOCKS_PER_SEGMENT);
        let user_blocks = |segments: u32| u64::from(segments) << LOG_BLOCKS_PER_SEGMENT;
        // The content must fit beside the metadata, before and after the first switch.
        let reachable = self.largest_in_place(segments).max(sb.main.segments);
        let before = reachable.checked_sub(evacuated + last.set_aside.reserved_segments);
        let between = main.checked_sub(new + last.set_aside.overprovision_segments);
        let fits = |room: Option<u32>| room.is_some_and(|room| user_blocks(room) >= self.valid_blocks);
        if !fits(before) || !fits(between) {
            let what = format!(
                "the metadata areas must grow, and {} segments must be empty for that: grow the volume in smaller \
                 steps, or remove files",
                evacuated + last.set_aside.reserved_segments
            );
            return Err(Error::Invalid(what.into()));
        }
        let mut first = self.layout(start, areas, main - new, blocks)?;
        first.set_aside = last.set_aside;
        first.user_blocks = user_blocks(between.unwrap_or_default());
        plan.new_bytes = self.bytes_of(new + main);
        plan.method = Method::Relocate;
        plan.first_bytes = (reachable > sb.main.segments).then(|| self.bytes_of(old + reachable));
        plan.evacuated = 0..evacuated;
        plan.layouts = vec![first, last];
        Ok(plan)
    }

    /// Segments of the main area, whole sections, behind metadata areas of these sizes.
    fn main_segments(&self, segments: u32, areas: AreaSizes) -> u32 {
        let per_section = self.superblock.segments_per_section;
        segments.saturating_sub(areas.total()) / per_section * per_section
    }

    /// Space set aside, and blocks for users, in a main area of this size. `None` if it is too small for a volume.
    fn capacity(&self, main_segments: u32) -> Option<(SetAside, u64)> {
        let sb = &self.superblock;
        let sections = main_segments / sb.segments_per_section;
        if sections < sb.sections_per_zone {
            return None;
        }
        let set_aside = SetAside::decide(Overprovision::Automatic, main_segments, sb.segments_per_section)?;
        let users = u64::from(main_segments - set_aside.overprovision_segments) << LOG_BLOCKS_PER_SEGMENT;
        Some((set_aside, users))
    }

    /// Returns true if metadata areas of these sizes have an entry and a summary for each segment.
    fn suffice(&self, areas: AreaSizes, main_segments: u32) -> bool {
        let blocks = |segments: u32| u64::from(segments) << LOG_BLOCKS_PER_SEGMENT;
        let entries = blocks(areas.sit / 2) * self.superblock.block_size.sit_entries() as u64;
        entries >= main_segments.into() && blocks(areas.ssa) >= main_segments.into()
    }

    /// Segments of the largest main area, whole zones and at most in a volume of `segments`, for which the present
    /// metadata areas suffice.
    fn largest_in_place(&self, segments: u32) -> u32 {
        let areas = sizes_of(&self.superblock);
        let entries = u64::from(areas.sit / 2) * u64::from(BLOCKS_PER_SEGMENT);
        let entries = entries * self.superblock.block_size.sit_entries() as u64;
        let most = entries.min(u64::from(areas.ssa) << LOG_BLOCKS_PER_SEGMENT).min(segments.into()) as u32;
        let per_zone = self.per_zone();
        let all = (areas.total().saturating_add(most) / per_zone * per_zone).min(segments);
        self.main_segments(all, areas)
    }

    /// Sizes of the metadata areas for a volume of `segments`; no table becomes smaller.
    fn grown(&self, segments: u32) -> Result<AreaSizes> {
        let (sb, old) = (&self.superblock, sizes_of(&self.superblock));
        let refused = || Error::Unsupported("the NAT is larger than mkfs.f2fs would make it".into());
        let areas = AreaSizes::of(sb.block_size, sb.features, segments, self.per_zone(), self.bitmaps)
            .map_err(|_| refused())?;
        match areas.nat >= old.nat && areas.sit >= old.sit && areas.total() >= old.total() {
            true => Ok(areas),
            false => Err(refused()),
        }
    }

    /// The superblock with these areas, from `segment0` on.
    fn layout(&self, segment0: u32, areas: AreaSizes, main: u32, blocks: u64) -> Result<Layout> {
        let (set_aside, user_blocks) = self.capacity(main).ok_or_else(|| self.too_small(0))?;
        let mut raw = self.raw.clone();
        raw.block_count.set(blocks);
        raw.section_count.set(main / self.superblock.segments_per_section);
        raw.segment_count.set(areas.total() + main);
        raw.cp_payload.set(areas.cp_payload);
        raw.segment0_blkaddr.set(segment0);
        let mut next = segment0;
        for (start, count, segments) in [
            (&mut raw.cp_blkaddr, &mut raw.segment_count_ckpt, CHECKPOINT_SEGMENTS),
            (&mut raw.sit_blkaddr, &mut raw.segment_count_sit, areas.sit),
            (&mut raw.nat_blkaddr, &mut raw.segment_count_nat, areas.nat),
            (&mut raw.ssa_blkaddr, &mut raw.segment_count_ssa, areas.ssa),
            (&mut raw.main_blkaddr, &mut raw.segment_count_main, main),
        ] {
            start.set(next);
            count.set(segments);
            next += segments * BLOCKS_PER_SEGMENT;
        }
        self.place_devices(&mut raw)?;
        superblock::seal(&mut raw);
        let bytes = raw.as_bytes().try_into().expect("the struct has the array's size");
        let superblock = Superblock::check(bytes, 0, u64::MAX)?;
        Ok(Layout { raw, superblock, set_aside, user_blocks })
    }

    /// Gives the first device the segments from segment 0 on, and the last device the rest. Metadata areas that move stay
    /// on the first device.
    fn place_devices(&self, raw: &mut raw::Superblock) -> Result<()> {
        let count = self.superblock.devices.len();
        if count < 2 {
            return Ok(());
        }
        let moved = (i64::from(raw.segment0_blkaddr.get()) - i64::from(self.segment0()))
            / i64::from(BLOCKS_PER_SEGMENT);
        let first = i64::from(raw.devs[0].total_segments.get()) - moved;
        let metadata = raw.segment_count.get() - raw.segment_count_main.get();
        let least = if moved == 0 { 1 } else { metadata };
        let Some(first) = u32::try_from(first).ok().filter(|first| *first >= least) else {
            let what = format!(
                "the metadata areas must grow to {metadata} segments, and the first device has no room for the old and \
                 the new ones: choose a smaller size"
            );
            return Err(Error::Invalid(what.into()));
        };
        raw.devs[0].total_segments.set(first);
        let before: u32 = raw.devs[..count - 1].iter().map(|device| device.total_segments.get()).sum();
        let last = raw.segment_count.get().checked_sub(before).filter(|last| *last > 0);
        let Some(last) = last else {
            return Err(Error::Invalid("a resize cannot remove the last device".into()));
        };
        raw.devs[count - 1].total_segments.set(last);
        Ok(())
    }

    /// Segments on all devices but the last one, which keeps at least one more.
    fn segments_before_last_device(&self) -> u32 {
        let others = self.superblock.devices.split_last().map_or(&[][..], |(_, others)| others);
        others.iter().map(|device| device.segments).sum()
    }

    /// Smallest size in bytes that holds the content with the metadata areas as they are.
    fn smallest(&self) -> Option<u64> {
        let (sb, areas) = (&self.superblock, sizes_of(&self.superblock));
        let per_zone = self.per_zone();
        let least = areas.total() + (self.valid_blocks >> LOG_BLOCKS_PER_SEGMENT) as u32;
        let most = (areas.total() + sb.main.segments).next_multiple_of(per_zone);
        let fits = |segments: &u32| {
            let capacity = self.capacity(self.main_segments(*segments, areas));
            let main = self.main_segments(*segments, areas);
            main <= sb.main.segments
                && capacity.is_some_and(|(_, user_blocks)| user_blocks >= self.valid_blocks)
        };
        let least = match self.superblock.devices.len() {
            0 | 1 => least,
            _ => least.max(self.segments_before_last_device() + 1),
        };
        let found = (least.next_multiple_of(per_zone)..=most).step_by(per_zone as usize).find(fits)?;
        Some(self.bytes_of(found))
    }

    /// The smallest size in bytes, or the present one if the content needs all of it.
    fn smallest_or_present(&self) -> u64 {
        self.smallest().unwrap_or_else(|| self.superblock.volume_bytes())
    }

    fn too_small(&self, bytes: u64) -> Error {
        let least = match self.smallest() {
            Some(least) => format!("it needs at least {least} ({} MiB)", least.div_ceil(1 << 20)),
            None => "it is already as small as possible".into(),
        };
        Error::Invalid(format!("{bytes} bytes are too small for the volume with its content: {least}").into())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use block::{Device, MemoryDevice};

    use super::*;
    use crate::{
        engine::Options,
        mkfs::{self, DeviceContent, DeviceSize, NewVolume},
        units::Time,
    };

    #[test]
    fn a_volume_with_more_content_than_the_usual_share_keeps_its_size_and_its_share() {
        const BYTES: u64 = 64 << 20;
        let now = || Time { seconds: 1_700_000_000, nanoseconds: 0 };
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(BYTES));
        let size = DeviceSize { path: String::new(), bytes: BYTES };
        let plan = mkfs::Plan::new(&mkfs::Options::new([7; 16]), &[size]).unwrap();
        let options = || Options::new(now);
        NewVolume::begin(device.clone(), &plan, DeviceContent::Zeroes, options()).unwrap().finish().unwrap();
        let mut facts = Facts::of(&Engine::open(device, options()).unwrap()).unwrap();
        // Other programs set less aside.
        let (set_aside, user_blocks) = facts.present;
        facts.present = (set_aside, user_blocks + 600);
        facts.valid_blocks = user_blocks + 500;
        assert_eq!(facts.smallest(), None);
        assert_eq!(facts.smallest_or_present(), BYTES);
        let plan = facts.plan(BYTES).unwrap();
        assert_eq!((plan.method, plan.old_bytes), (Method::Nothing, plan.new_bytes));
        assert_eq!(plan.layouts[0].user_blocks, user_blocks + 600);
        assert!(facts.plan(BYTES - (2 << 20)).is_err());
    }
}
