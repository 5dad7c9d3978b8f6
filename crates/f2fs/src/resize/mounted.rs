//! Growing of an open volume, as a mount needs it.
//!
//! *Invariant*: while the tables change on the device, the volume can be read. They go to places that its newest checkpoint
//! does not use.

use super::{Method, Plan, commit, plan, refuse_read_only};
use crate::{
    Error, Place, Result,
    engine::{Engine, Lent},
};

/// The growth of an open volume: device work that needs no access to the volume.
///
/// The volume refuses changes until [`finish_growth`] has received the outcome.
#[must_use = "the volume refuses changes until `finish_growth` has the outcome"]
pub struct Growth {
    lent: Lent,
    plan: Plan,
}

/// The outcome of a [`Growth`], for [`finish_growth`].
#[must_use = "the volume refuses changes until `finish_growth` has it"]
pub struct Grown {
    plan: Plan,
    changed: Result<()>,
    fresh: Result<Engine>,
}

impl Growth {
    /// Changes the tables on the device, and reads the volume anew.
    pub fn run(self) -> Grown {
        let changed = commit::carry_out(self.lent.device.clone(), &self.plan);
        Grown { plan: self.plan, changed, fresh: self.lent.reopen() }
    }
}

/// Begins to let an open volume grow to `bytes` bytes, all its devices together. The device must already have the new size.
/// Unmounts the volume, without a write if [`Engine::begin_unmount`] has done so. Returns `None` if the volume has the size.
///
/// # Errors
/// Before the first write: [`Error::Invalid`] if the volume would shrink or the device is too small; [`Error::Unsupported`] if
/// its metadata areas would have to move; [`Error::Corrupt`] if damage is known; [`Error::ReadOnly`] if the volume cannot be
/// changed. Those of [unmounting](Engine::unmount).
pub fn begin_growth(volume: &mut Engine, bytes: u64) -> Result<Option<Growth>> {
    refuse_read_only(volume)?;
    if volume.asks_for_fsck() || volume.io().met_damage() {
        return Err(Error::corrupt(Place::Volume, "a repair must precede the growth"));
    }
    let plan = Plan::new(volume, bytes)?;
    if plan.new_bytes < plan.old_bytes {
        return Err(Error::Invalid("a mounted volume cannot shrink; unmount it first".into()));
    }
    if plan.method == Method::Relocate || plan::home_of(volume.superblock()).is_some() {
        let what = "growing a mounted volume whose metadata areas must move; unmount it first";
        return Err(Error::Unsupported(what.into()));
    }
    if plan.method == Method::Nothing {
        return Ok(None);
    }
    plan.require_device(volume.device().geometry().size_bytes)?;
    volume.unmount()?;
    Ok(Some(Growth { lent: volume.lend(), plan }))
}

/// Continues with a volume that has grown. Returns the plan that was carried out.
///
/// Inodes that are [held](Engine::hold) stay held. The [queue of discards](Engine::discards) is a new one.
///
/// # Errors
/// That of the device. The volume then has its old size or its new size, and all its files; it can be read, and refuses changes
/// until it is opened again.
pub fn finish_growth(volume: &mut Engine, grown: Grown) -> Result<Plan> {
    volume.replace(grown.changed, grown.fresh)?;
    Ok(grown.plan)
}

/// Lets an open volume grow at once, for callers that do not share it. Returns the plan, or `None` if the volume has the size.
///
/// # Errors
/// Those of [`begin_growth`] and [`finish_growth`].
pub fn grow(volume: &mut Engine, bytes: u64) -> Result<Option<Plan>> {
    match begin_growth(volume, bytes)? {
        Some(growth) => finish_growth(volume, growth.run()).map(Some),
        None => Ok(None),
    }
}
