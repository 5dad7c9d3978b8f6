//! States of a device after a power cut, computed from a trace of the requests before the cut.
//!
//! *Invariant*: the image has all data written before the last flush of the prefix. A later write is present,
//! absent or partial; the cut tears it at [`ATOMIC_BYTES`]. A later write may survive although an earlier one
//! is lost, because a cache reorders. Overlapping survivors keep their order, because a cache never replaces
//! its own newer sector with an older one. Discards after the last flush have not happened.

use std::io;

use crate::{ATOMIC_BYTES, Device, Request, Rng, Verb};

/// Unflushed writes that survive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Survivors {
    /// No write: the cache is lost.
    None,
    /// All writes.
    All,
    /// The writes whose bit is set. Bit 0 is the oldest unflushed write. Writes beyond the 64th are lost.
    Mask(u64),
    /// Each write is whole, lost or torn. The seed decides, for a torn write sector by sector.
    Torn {
        /// Seed of the random source.
        seed: u64,
    },
}

/// Returns the indices of the writes in `trace[..at]` that no flush of the prefix follows.
pub fn unflushed_writes(trace: &[Request], at: usize) -> Vec<usize> {
    (last_flush(&trace[..at])..at).filter(|&n| trace[n].verb == Verb::Write).collect()
}

/// Applies `trace[..at]` to `device`, including the unflushed writes that survive the cut. `device` must have
/// its content from the start of the trace.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] for a trace without data; the device's errors.
pub fn power_cut(
    trace: &[Request],
    at: usize,
    survivors: &Survivors,
    device: &(impl Device + ?Sized),
) -> io::Result<()> {
    replay(&trace[..last_flush(&trace[..at])], device)?;
    let mut rng = match survivors {
        Survivors::Torn { seed } => Rng::new(*seed),
        _ => Rng::new(0),
    };
    for (nth, &index) in unflushed_writes(trace, at).iter().enumerate() {
        let survives = match survivors {
            Survivors::None => false,
            Survivors::All => true,
            Survivors::Mask(mask) => nth < 64 && mask >> nth & 1 == 1,
            Survivors::Torn { .. } => match rng.below(3) {
                0 => false,
                1 => true,
                _ => {
                    tear(&trace[index], &mut rng, device)?;
                    false
                }
            },
        };
        if survives {
            device.write(trace[index].offset_bytes, data_of(&trace[index])?)?;
        }
    }
    Ok(())
}

/// Repeats the writes and discards of `trace`, then flushes.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] for a trace without data; the device's errors.
pub fn replay(trace: &[Request], device: &(impl Device + ?Sized)) -> io::Result<()> {
    for request in trace {
        match request.verb {
            Verb::Write => device.write(request.offset_bytes, data_of(request)?)?,
            Verb::Discard => device.discard(request.offset_bytes, request.length_bytes)?,
            Verb::Read | Verb::Flush => {}
        }
    }
    device.flush()
}

/// Returns the number of requests up to and including the last flush.
fn last_flush(trace: &[Request]) -> usize {
    trace.iter().rposition(|request| request.verb == Verb::Flush).map_or(0, |index| index + 1)
}

fn data_of(request: &Request) -> io::Result<&[u8]> {
    let missing = || io::Error::new(io::ErrorKind::InvalidInput, "the trace was recorded without data");
    request.data.as_deref().ok_or_else(missing)
}

/// Writes a random choice of the sectors of a write. Sectors are the device's, so a write that starts within
/// a sector shares its fate with the sector's previous content.
fn tear(request: &Request, rng: &mut Rng, device: &(impl Device + ?Sized)) -> io::Result<()> {
    let data = data_of(request)?;
    for (_, _, part) in crate::pieces(request.offset_bytes, data.len(), ATOMIC_BYTES) {
        if rng.chance(0.5) {
            device.write(request.offset_bytes + part.start as u64, &data[part])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{MemoryDevice, Recording};

    /// Sector 0 is flushed; sectors 1, 2 (two sectors long) and 1 again are not.
    fn trace() -> Vec<Request> {
        let device = Recording::with_data(MemoryDevice::new(2048));
        device.write(0, &[1; 512]).expect("within the device");
        device.flush().expect("memory");
        device.write(512, &[2; 512]).expect("within the device");
        device.read(0, &mut [0; 1]).expect("within the device");
        device.write(1024, &[3; 1024]).expect("within the device");
        device.write(512, &[4; 512]).expect("within the device");
        device.take_trace()
    }

    fn image(at: usize, survivors: &Survivors) -> [u8; 4] {
        let device = MemoryDevice::new(2048);
        power_cut(&trace(), at, survivors, &device).expect("the trace has data");
        let bytes = device.to_vec();
        for sector in bytes.chunks(512) {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is torn");
        }
        std::array::from_fn(|n| bytes[n * 512])
    }

    #[test]
    fn the_masks_enumerate_every_subset_and_no_other() {
        assert_eq!(unflushed_writes(&trace(), 6), [2, 4, 5]);
        let images: BTreeSet<[u8; 4]> = (0..8).map(|mask| image(6, &Survivors::Mask(mask))).collect();
        let expected = [0, 2, 4].into_iter().flat_map(|one| [[1, one, 0, 0], [1, one, 3, 3]]).collect();
        assert_eq!(images, expected);
        assert_eq!(image(6, &Survivors::None), [1, 0, 0, 0]);
        assert_eq!(image(6, &Survivors::All), [1, 4, 3, 3]);
    }

    #[test]
    fn the_prefix_ends_at_the_cut() {
        assert_eq!(image(0, &Survivors::All), [0; 4]);
        assert_eq!(image(1, &Survivors::None), [0; 4]);
        assert_eq!(image(1, &Survivors::All), [1, 0, 0, 0]);
        assert_eq!(image(2, &Survivors::None), [1, 0, 0, 0]);
        assert_eq!(image(3, &Survivors::All), [1, 2, 0, 0]);
    }

    #[test]
    fn tears_reach_exactly_the_sectors_that_may_differ() {
        let images: BTreeSet<[u8; 4]> = (0..2000).map(|seed| image(6, &Survivors::Torn { seed })).collect();
        let mut expected = BTreeSet::new();
        for one in [0, 2, 4] {
            for two in [0, 3] {
                expected.extend([[1, one, two, 0], [1, one, two, 3]]);
            }
        }
        assert_eq!(images, expected);
        assert_eq!(image(6, &Survivors::Torn { seed: 5 }), image(6, &Survivors::Torn { seed: 5 }));
    }

    #[test]
    fn a_trace_without_data_is_refused() {
        let device = Recording::without_data(MemoryDevice::new(2048));
        device.write(0, &[1; 512]).expect("within the device");
        let onto = MemoryDevice::new(2048);
        let error = power_cut(&device.trace(), 1, &Survivors::All, &onto).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
