//! Resizing of a closed volume: growing and shrinking.
//!
//! The [`Plan`] is pure: it follows from the superblock and the counts of the checkpoint. Then the engine moves blocks out
//! of the way, and closes the volume. The rest works on the tables of the closed volume ([`snapshot`], [`tables`]), and
//! switches to the new size by the superblock. docs/DESIGN.md has the order of the writes, and the state after a power
//! cut at each of them.
//!
//! *Invariants*: a block that the old size needs is overwritten only after both superblocks have the new one. At any time
//! the first readable superblock and the newest checkpoint describe all files. The count of free segments in a checkpoint
//! is never larger than the true one.

mod commit;
mod plan;
mod snapshot;
mod tables;

use std::sync::Arc;

use block::Device;

pub use plan::{Method, Plan, smallest_bytes};

use crate::{Error, Result, engine::Engine};
use snapshot::Snapshot;

/// Resizes a volume to `bytes` bytes, all its devices together. `open` opens the volume for changes; it is called again
/// after each stage. `tell` gets the number of blocks that were moved so far. Returns the plan that was carried out.
///
/// The device must already have the new size if the volume grows. If the volume shrinks, the caller may cut the device
/// afterwards.
///
/// # Errors
/// [`Error::Invalid`] if the size is refused, with the reason; [`Error::ReadOnly`] if the volume cannot be changed;
/// [`Error::NoSpace`] if blocks that must move find no place. The volume has its old size or its new size after any error.
pub fn resize(
    open: &mut dyn FnMut() -> Result<Engine>,
    bytes: u64,
    tell: &mut dyn FnMut(u64),
) -> Result<Plan> {
    let mut volume = open()?;
    refuse_read_only(&volume)?;
    if plan::home_of(volume.superblock()).is_some() {
        let device = close(volume)?;
        commit::go_home(device)?;
        volume = open()?;
    }
    let mut plan = Plan::new(&mut volume, bytes)?;
    plan.require_device(volume.device().geometry().size_bytes)?;
    if let Some(first_bytes) = plan.first_bytes {
        let first = Plan::new(&mut volume, first_bytes)?;
        commit::carry_out(close(volume)?, &first)?;
        volume = open()?;
        plan = Plan { old_bytes: plan.old_bytes, ..Plan::new(&mut volume, bytes)? };
    }
    if !plan.evacuated.is_empty() {
        volume.evacuate(plan.evacuated.clone(), plan.free_sections(), tell)?;
    }
    let device = close(volume)?;
    commit::carry_out(device, &plan)?;
    Ok(plan)
}

fn refuse_read_only(volume: &Engine) -> Result<()> {
    match volume.read_only_reason() {
        Some(reason) => Err(Error::ReadOnly(reason.to_owned().into())),
        None => Ok(()),
    }
}

/// Unmounts a volume. Returns its device.
fn close(mut volume: Engine) -> Result<Arc<dyn Device>> {
    let device = volume.device().clone();
    volume.unmount()?;
    Ok(device)
}
