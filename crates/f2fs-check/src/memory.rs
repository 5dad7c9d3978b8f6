//! Memory for the maps of blocks: it grows with the volume, not with its content.

use std::io;

use f2fs::{Error, Place, Result, engine::Geometry, format::sit::MAP_BYTES};

/// Maximum number of maps that a check has at once, and one for its other tables.
const MAPS_OF_CHECK: usize = 4;
/// Maximum number of maps that a repair has at once, with the checks in it.
const MAPS_OF_REPAIR: usize = 9;

/// Work that needs maps of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A check.
    Check,
    /// A repair, with the checks in it.
    Repair,
}

/// Returns an error if the memory for the maps of a volume cannot be had: it is too much for the system, or for a limit of the
/// process.
///
/// # Errors
/// [`OutOfMemory`](io::ErrorKind::OutOfMemory).
pub fn ensure(geometry: &Geometry, work: Work) -> Result<()> {
    ensure_for(u64::from(geometry.segments), work)
}

fn ensure_for(segments: u64, work: Work) -> Result<()> {
    let (count, name) = match work {
        Work::Check => (MAPS_OF_CHECK, "check"),
        Work::Repair => (MAPS_OF_REPAIR, "repair"),
    };
    let map_bytes = segments.saturating_mul(MAP_BYTES as u64);
    // Memory that is not written takes none of the system's, so all maps can be tried.
    let mut maps: Vec<Vec<u8>> = (0..count).map(|_| Vec::new()).collect();
    let length = usize::try_from(map_bytes).unwrap_or(usize::MAX);
    if maps.iter_mut().all(|map| map.try_reserve_exact(length).is_ok()) {
        return Ok(());
    }
    let needed_mib = map_bytes.saturating_mul(count as u64) >> 20;
    let what = format!(
        "the {name} of a volume of {segments} segments needs {needed_mib} MiB of memory, which the system or a limit of \
         the process (ulimit -v) refuses"
    );
    Err(Error::Io { at: Place::Volume, source: io::Error::new(io::ErrorKind::OutOfMemory, what) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_whose_maps_find_no_memory_is_an_error() {
        let error = ensure_for(u64::MAX >> 8, Work::Check).unwrap_err();
        assert!(error.to_string().contains("MiB of memory"), "{error}");
        assert!(ensure_for(1000, Work::Repair).is_ok());
    }
}
