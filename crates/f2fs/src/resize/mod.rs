//! Resizing: growing and shrinking of a closed volume, and growing of an open one.
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
mod mounted;
mod plan;
mod snapshot;
mod tables;

use std::sync::Arc;

use block::Device;

pub use mounted::{Grown, Growth, begin_growth, finish_growth, grow};
pub use plan::{Method, Plan, smallest_bytes};

use crate::{Error, Result, engine::Engine};
use snapshot::Snapshot;

/// Resizes a volume to `bytes` bytes, all its devices together. `open` opens the volume for changes; it is called again
/// after each stage. `tell` gets the number of blocks that were moved so far. Returns the plan that was carried out.
///
/// The device must already have the new size if the volume grows. If the volume shrinks, the caller may cut the device
/// afterwards.
///
/// After an error, the volume has its old size or its new size, and all its files. There is one exception: if the
/// metadata areas must grow, a size between the two can remain: if the device fails, or if the way back to the old size finds
/// no space or is refused. The superblock has the size; another call completes the resize.
///
/// # Errors
/// [`Error::Invalid`] if the size is refused, with the reason; [`Error::ReadOnly`] if the volume cannot be changed;
/// [`Error::NoSpace`] if blocks that must move find no place.
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
    let plan = Plan::new(&mut volume, bytes)?;
    plan.require_device(volume.device().geometry().size_bytes)?;
    let Some(first_bytes) = plan.first_bytes else {
        finish(volume, &plan, tell)?;
        return Ok(plan);
    };
    let first = Plan::new(&mut volume, first_bytes)?;
    let old_blocks_bytes = volume.superblock().volume_bytes();
    match grow_in_two_steps(open, volume, &first, bytes, tell) {
        Ok(last) => Ok(Plan { old_bytes: plan.old_bytes, ..last }),
        Err(error) => {
            // The second step is usually refused for a reason that does not prevent this. If this fails too, the size
            // between the two remains, and the first error is the one to report.
            let _ = shrink_back(open, &first, old_blocks_bytes);
            Err(error)
        }
    }
}

/// Moves blocks out of the way, closes the volume, and switches it to the geometry of a plan.
fn finish(mut volume: Engine, plan: &Plan, tell: &mut dyn FnMut(u64)) -> Result<()> {
    if !plan.evacuated.is_empty() {
        volume.evacuate(plan.evacuated.clone(), plan.free_sections(), tell)?;
    }
    commit::carry_out(close(volume)?, plan)
}

/// Grows in place by the `first` plan, which makes room to move the metadata areas, then to `bytes` bytes.
fn grow_in_two_steps(
    open: &mut dyn FnMut() -> Result<Engine>,
    volume: Engine,
    first: &Plan,
    bytes: u64,
    tell: &mut dyn FnMut(u64),
) -> Result<Plan> {
    commit::carry_out(close(volume)?, first)?;
    let mut volume = open()?;
    refuse_read_only(&volume)?;
    let plan = Plan::new(&mut volume, bytes)?;
    finish(volume, &plan, tell)?;
    Ok(plan)
}

/// Undoes the `first` of two steps of a growth, if the volume has the size that this step gave it.
fn shrink_back(open: &mut dyn FnMut() -> Result<Engine>, first: &Plan, old_bytes: u64) -> Result<()> {
    let mut volume = open()?;
    refuse_read_only(&volume)?;
    let plan = Plan::new(&mut volume, old_bytes)?;
    if plan.old_bytes != first.new_bytes || plan.new_bytes != first.old_bytes {
        return Ok(());
    }
    finish(volume, &plan, &mut |_| {})
}

pub(crate) fn refuse_read_only(volume: &Engine) -> Result<()> {
    match volume.read_only_reason() {
        Some(reason) => Err(Error::ReadOnly(reason.to_owned().into())),
        None => Ok(()),
    }
}

/// Unmounts a volume. Returns its device.
pub(crate) fn close(mut volume: Engine) -> Result<Arc<dyn Device>> {
    let device = volume.device().clone();
    volume.unmount()?;
    Ok(device)
}
