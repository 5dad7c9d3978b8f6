//! A wrapper that injects faults.

use std::{
    io,
    ops::Range,
    sync::{Mutex, PoisonError},
};

use crate::{ATOMIC_BYTES, Device, DiscardUnit, Geometry, Rng, Verb};

/// A fault to inject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The `nth` request of the verb (from 0) fails without effect.
    ErrorAt {
        /// Kind of the counted requests.
        verb: Verb,
        /// Index of the failing request.
        nth: u64,
    },
    /// Every request of the verb that touches the range fails without effect.
    ErrorIn {
        /// Kind of the failing requests.
        verb: Verb,
        /// Range in bytes.
        range: Range<u64>,
    },
    /// Power is lost during the `nth` write (from 0). That write and every later request fail. The seed
    /// decides which sectors of the write arrive.
    PowerCutAtWrite {
        /// Index of the write.
        nth: u64,
        /// Seed for the choice of sectors.
        seed: u64,
    },
    /// Flushes succeed without effect, as on a card that lies. Over a [`Recording`](crate::Recording) the
    /// trace then contains no flush, so images after a power cut show the loss.
    DropFlushes,
}

/// A device on which planned requests fail. Without a fault it behaves like its inner device.
pub struct Faulty<D> {
    inner: D,
    faults: Vec<Fault>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of requests so far: reads, writes, flushes, discards.
    seen: [u64; 4],
    dead: bool,
}

/// Outcome of a request.
enum Fate {
    Served,
    Ignored,
    /// A write of which only some sectors arrive.
    Torn(u64),
}

impl<D: Device> Faulty<D> {
    /// Makes a device with these faults.
    pub fn new(inner: D, faults: Vec<Fault>) -> Faulty<D> {
        Faulty { inner, faults, state: Mutex::default() }
    }

    /// Returns the device below, which has no faults: the state that a reader finds after a power cut.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Returns true if the power is off.
    pub fn is_dead(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).dead
    }

    /// Counts the request and decides its outcome.
    fn decide(&self, verb: Verb, offset_bytes: u64, length_bytes: u64) -> io::Result<Fate> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.dead {
            return Err(power_is_off());
        }
        let number = state.seen[verb as usize];
        state.seen[verb as usize] += 1;
        let mut fate = Fate::Served;
        for fault in &self.faults {
            match fault {
                Fault::ErrorAt { verb: kind, nth } if *kind == verb && *nth == number => {
                    return Err(medium_error(verb, offset_bytes));
                }
                Fault::ErrorIn { verb: kind, range }
                    if *kind == verb
                        && offset_bytes < range.end
                        && range.start < offset_bytes.saturating_add(length_bytes) =>
                {
                    return Err(medium_error(verb, offset_bytes));
                }
                Fault::PowerCutAtWrite { nth, seed } if verb == Verb::Write && *nth == number => {
                    state.dead = true;
                    fate = Fate::Torn(*seed);
                }
                Fault::DropFlushes if verb == Verb::Flush => fate = Fate::Ignored,
                _ => {}
            }
        }
        Ok(fate)
    }
}

impl<D: Device> Device for Faulty<D> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.decide(Verb::Read, offset_bytes, buf.len() as u64)?;
        self.inner.read(offset_bytes, buf)
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        let Fate::Torn(seed) = self.decide(Verb::Write, offset_bytes, buf.len() as u64)? else {
            return self.inner.write(offset_bytes, buf);
        };
        let mut rng = Rng::new(seed);
        for (_, _, part) in crate::pieces(offset_bytes, buf.len(), ATOMIC_BYTES) {
            if rng.chance(0.5) {
                self.inner.write(offset_bytes + part.start as u64, &buf[part])?;
            }
        }
        Err(power_is_off())
    }

    fn flush(&self) -> io::Result<()> {
        match self.decide(Verb::Flush, 0, 0)? {
            Fate::Ignored => Ok(()),
            _ => self.inner.flush(),
        }
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.decide(Verb::Discard, offset_bytes, length_bytes)?;
        self.inner.discard(offset_bytes, length_bytes)
    }

    fn discard_unit(&self) -> Option<DiscardUnit> {
        self.inner.discard_unit()
    }
}

fn power_is_off() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the power is off")
}

fn medium_error(verb: Verb, offset_bytes: u64) -> io::Error {
    io::Error::other(format!("medium error: {verb:?} at byte {offset_bytes}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, Recording, unflushed_writes};

    #[test]
    fn the_nth_request_fails_and_no_other() {
        let faults = vec![Fault::ErrorAt { verb: Verb::Write, nth: 1 }];
        let device = Faulty::new(MemoryDevice::new(4096), faults);
        let results: Vec<bool> = (0..3).map(|n| device.write(n * 512, &[n as u8 + 1; 512]).is_ok()).collect();
        assert_eq!(results, [true, false, true]);
        let bytes = device.inner().to_vec();
        assert_eq!((bytes[0], bytes[512], bytes[1024]), (1, 0, 3));
        assert!(device.read(0, &mut [0; 1]).is_ok());
    }

    #[test]
    fn a_bad_range_fails_wherever_it_is_touched() {
        let faults = vec![Fault::ErrorIn { verb: Verb::Read, range: 1000..1001 }];
        let device = Faulty::new(MemoryDevice::new(4096), faults);
        assert!(device.read(0, &mut [0; 1000]).is_ok());
        assert!(device.read(0, &mut [0; 1001]).is_err());
        assert!(device.read(1001, &mut [0; 1]).is_ok());
        assert!(device.write(1000, &[1]).is_ok());
    }

    #[test]
    fn a_power_cut_tears_one_write_and_ends_everything() {
        let mut partly = 0;
        for seed in 0..50 {
            let faults = vec![Fault::PowerCutAtWrite { nth: 1, seed }];
            let device = Faulty::new(MemoryDevice::new(8192), faults);
            device.write(0, &[1; 4096]).expect("the power is on");
            assert!(device.write(4096, &[2; 4096]).is_err() && device.is_dead());
            assert!(device.flush().is_err() && device.read(0, &mut [0; 1]).is_err());
            let bytes = device.inner().to_vec();
            assert!(bytes[..4096].iter().all(|&byte| byte == 1));
            let sectors: Vec<u8> = bytes[4096..].chunks(512).map(|sector| sector[0]).collect();
            assert!(bytes[4096..].chunks(512).all(|sector| sector.iter().all(|&b| b == sector[0])));
            partly += usize::from(sectors.contains(&0) && sectors.contains(&2));
        }
        assert!(partly > 40, "{partly}");
    }

    #[test]
    fn a_dropped_flush_never_arrives() {
        let device = Faulty::new(Recording::with_data(MemoryDevice::new(4096)), vec![Fault::DropFlushes]);
        device.write(0, &[1; 512]).expect("within the device");
        device.flush().expect("the card lies");
        let trace = device.inner().trace();
        assert_eq!(unflushed_writes(&trace, trace.len()), [0]);
    }
}
