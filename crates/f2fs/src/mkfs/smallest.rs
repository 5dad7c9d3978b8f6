//! The smallest size that a volume with given options can have.

use super::{
    DeviceSize, Options,
    plan::{Geometry, Misfit},
};
use crate::{Error, Result, format::superblock::Features};

/// Zones that are tried. What fits at all fits long before: reserves of 0.01 % overprovision are ten
/// thousand sections.
const ZONES_TRIED: u64 = 1 << 15;

/// Smallest size in bytes on one device. Errors with [`Error::Invalid`] where none is large enough.
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
