//! The smallest size of a volume with given options or given content.

use super::{
    DeviceSize, Options, Plan,
    plan::{Geometry, Misfit, SEGMENTS_MAX},
};
use crate::{
    Error, Result,
    format::{BLOCKS_PER_SEGMENT, superblock::Features},
    tree::{Need, SLACK_BLOCKS, Source, Transform, count},
    volume,
};

/// Maximum number of zones tried. A source that fits at all fits much earlier: with 0.01 % overprovision, the
/// reserves are ten thousand sections.
const ZONES_TRIED: u64 = 1 << 15;

/// Returns the smallest size in bytes on one device. Fails with [`Error::Invalid`] if no size is large
/// enough.
pub fn bytes(options: &Options, features: Features) -> Result<u64> {
    let zone_bytes = u64::from(options.segments_per_zone()) * options.block_size.segment_bytes();
    let before = super::plan::segment0_bytes(options, features.has(Features::RO));
    for zones in 1..=ZONES_TRIED {
        let bytes = before + zones * zone_bytes;
        match Geometry::of(options, features, &[DeviceSize { path: String::new(), bytes }]) {
            Ok(_) => return Ok(bytes),
            Err(Misfit::TooSmall) => continue,
            Err(Misfit::TooLarge) => break,
        }
    }
    Err(Error::Invalid("sections or overprovision too large for any volume".into()))
}

/// Returns the smallest size in bytes of a volume, on one device, that holds the content of a source plus
/// `free_percent` of that as free space. `engine` has the options for opening the volume to fill it.
pub fn smallest_for(
    source: &mut dyn Source,
    transform: &Transform,
    options: &Options,
    engine: &volume::Options,
    free_percent: f64,
) -> Result<u64> {
    if !(0.0..=1e6).contains(&free_percent) {
        return Err(Error::Invalid(format!("free space of {free_percent} %").into()));
    }
    let least = Plan::smallest_bytes(options)?;
    let empty = plan(options, least)?;
    let need = count(source, transform, &empty.superblock, engine)?;
    let own = own_need(options, &need);
    let free = (need.blocks as f64 * free_percent / 100.0).ceil() as u64;
    let blocks = need.blocks + own.blocks + free + SLACK_BLOCKS;

    let zone_bytes = u64::from(options.segments_per_zone()) * options.block_size.segment_bytes();
    // A volume is never smaller than its blocks.
    let zones = (blocks / u64::from(BLOCKS_PER_SEGMENT) / u64::from(options.segments_per_zone()))
        .saturating_sub(least / zone_bytes);
    let mut bytes = least + zones * zone_bytes;
    loop {
        // Because the formula for overprovision has steps, a size just above a sufficient one can be
        // insufficient again. A size that is too large ends the search.
        match plan(options, bytes) {
            Ok(plan) if holds(&plan, blocks, need.nodes + own.nodes) => return Ok(bytes),
            Err(error) if bytes > SEGMENTS_MAX * options.block_size.segment_bytes() => return Err(error),
            _ => bytes += zone_bytes,
        }
    }
}

fn plan(options: &Options, bytes: u64) -> Result<Plan> {
    Plan::new(options, &[DeviceSize { path: String::new(), bytes }])
}

fn holds(plan: &Plan, blocks: u64, nodes: u64) -> bool {
    /// nids 0 to 2 are not nodes.
    const RESERVED: u64 = 3;
    let nids = u64::from(plan.superblock.nat_blocks()) * plan.superblock.block_size.nat_entries() as u64;
    plan.user_blocks >= blocks && nids - RESERVED >= nodes
}

/// Space for the volume itself: quota files and lost+found. For each further id, a quota file has at most
/// five blocks of its own, of 1 KiB each.
fn own_need(options: &Options, need: &Need) -> Need {
    const QUOTA_FILES: u64 = 3;
    let quota = options.features.has(Features::QUOTA) || options.features.has(Features::PROJECT_QUOTA);
    let blocks = if quota { QUOTA_FILES * (3 + 5 * need.ids / 4) } else { 0 };
    Need { blocks: blocks + 2, nodes: QUOTA_FILES + 1, ..Need::default() }
}
