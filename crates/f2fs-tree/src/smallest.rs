//! The smallest volume that holds a given tree.

use f2fs::{
    Error, Result, engine,
    format::{checkpoint::RESERVED_NIDS, superblock::Features},
    mkfs::{DeviceSize, Options, Plan},
};

use crate::{Need, SLACK_BLOCKS, Source, Transform, count};

/// Returns the smallest size in bytes of a volume, on one device, that holds the content of a source plus
/// `free_percent` of that as free space. `engine_options` are those for opening the volume to fill it.
pub fn smallest_for(
    source: &mut dyn Source,
    transform: &Transform,
    options: &Options,
    engine_options: &engine::Options,
    free_percent: f64,
) -> Result<u64> {
    if !(0.0..=1e6).contains(&free_percent) {
        return Err(Error::Invalid(format!("free space of {free_percent} %").into()));
    }
    let least = Plan::smallest_bytes(options)?;
    let empty = plan(options, least)?;
    let need = count(source, transform, &empty.superblock, engine_options)?;
    let own = own_need(options, &need);
    let free = (need.blocks as f64 * free_percent / 100.0).ceil() as u64;
    let blocks = need.blocks + own.blocks + free + SLACK_BLOCKS;

    let zone_bytes = options.zone_bytes();
    // A volume is never smaller than its blocks.
    let zones =
        (blocks / (zone_bytes / options.block_size.bytes() as u64)).saturating_sub(least / zone_bytes);
    let mut bytes = least + zones * zone_bytes;
    loop {
        // Because the formula for overprovision has steps, a size just above a sufficient one can be
        // insufficient again. A size that is too large ends the search.
        match plan(options, bytes) {
            Ok(plan) if holds(&plan, blocks, need.nodes + own.nodes) => return Ok(bytes),
            Err(error) if bytes > Plan::largest_bytes(options) => return Err(error),
            _ => bytes += zone_bytes,
        }
    }
}

fn plan(options: &Options, bytes: u64) -> Result<Plan> {
    Plan::new(options, &[DeviceSize { path: String::new(), bytes }])
}

fn holds(plan: &Plan, blocks: u64, nodes: u64) -> bool {
    let nids = u64::from(plan.superblock.nat_blocks()) * plan.superblock.block_size.nat_entries() as u64;
    plan.user_blocks >= blocks && nids - u64::from(RESERVED_NIDS) >= nodes
}

/// Space for the volume itself: quota files and lost+found. For each further id, a quota file has at most
/// five blocks of its own, of 1 KiB each.
fn own_need(options: &Options, need: &Need) -> Need {
    const QUOTA_FILES: u64 = 3;
    let quota = options.features.has(Features::QUOTA) || options.features.has(Features::PROJECT_QUOTA);
    let blocks = if quota { QUOTA_FILES * (3 + 5 * need.ids / 4) } else { 0 };
    Need { blocks: blocks + 2, nodes: QUOTA_FILES + 1, ..Need::default() }
}
