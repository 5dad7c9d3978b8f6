//! Several devices as one address space.

use std::sync::Arc;

use block::{Concat, Device};

use super::superblock::read_superblock;
use crate::{
    Error, Place, Result,
    format::{BLOCKS_PER_SEGMENT, superblock::Superblock},
    printable,
};

/// Joins `devices`, given in the volume's order, to the address space of the volume. A single device is
/// returned as it is.
///
/// Each device contributes as many segments as the superblock states. Those of the first device are counted
/// from segment 0, so the blocks before that segment come in addition (Linux, `f2fs_scan_devices`).
///
/// # Errors
/// [`Error::Invalid`] if the volume has another number of devices; [`Error::Io`] if one of several devices is
/// too small.
pub fn join(mut devices: Vec<Arc<dyn Device>>) -> Result<Arc<dyn Device>> {
    let given = devices.len();
    let Some(first) = devices.first() else {
        return Err(Error::Invalid("no device".into()));
    };
    // `open` checks that the volume fits; this only needs its list of devices.
    let (superblock, _) = read_superblock(&**first, u64::MAX)?;
    let wanted = superblock.devices.len().max(1);
    if given != wanted {
        let paths: Vec<_> =
            superblock.devices.iter().map(|device| printable::name(device.path.as_bytes())).collect();
        let names = if paths.is_empty() { String::new() } else { format!(": {}", paths.join(", ")) };
        return Err(Error::Invalid(format!("devices of the volume: {wanted}{names}; given: {given}").into()));
    }
    if given == 1 {
        return Ok(devices.remove(0));
    }
    let parts = devices.into_iter().zip(device_bytes(&superblock)).collect();
    let joined = Concat::new(parts).map_err(|source| Error::Io { at: Place::Volume, source })?;
    Ok(Arc::new(joined))
}

/// Returns the number of bytes that each device of a multi-device volume contributes to the address space.
pub fn device_bytes(superblock: &Superblock) -> impl Iterator<Item = u64> + '_ {
    let before = u64::from(superblock.checkpoint.start.0);
    let block_bytes = superblock.block_size.bytes() as u64;
    superblock.devices.iter().enumerate().map(move |(n, device)| {
        let blocks = u64::from(device.segments) * u64::from(BLOCKS_PER_SEGMENT);
        (blocks + if n == 0 { before } else { 0 }) * block_bytes
    })
}
