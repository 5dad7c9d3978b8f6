//! Flushes of the device that several fsyncs share.
//!
//! *Invariant*: whoever asks returns after a flush that began after asking. So one flush serves everybody who asked
//! while the one before it ran.

use std::{
    io,
    sync::{Condvar, Mutex},
};

use block::Device;

/// Flushes one device for many.
#[derive(Default)]
pub struct Flusher {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Flushes that have begun.
    begun: u64,
    /// Flushes that have ended.
    ended: u64,
    /// The newest flush that failed, and how.
    failed: Option<(u64, io::ErrorKind)>,
}

impl Flusher {
    /// Makes every write that has returned durable. `device` is the same each time.
    pub fn flush(&self, device: &dyn Device) -> io::Result<()> {
        let mut state = self.state.lock().expect("nothing panics under this lock");
        // A flush that has begun already may have passed our writes; the next one has not.
        let wanted = state.begun + 1;
        loop {
            if state.ended >= wanted {
                return match state.failed {
                    Some((number, kind)) if number >= wanted => Err(kind.into()),
                    _ => Ok(()),
                };
            }
            if state.begun == state.ended {
                state.begun += 1;
                let number = state.begun;
                drop(state);
                let result = device.flush();
                state = self.state.lock().expect("nothing panics under this lock");
                state.ended = number;
                if let Err(error) = &result {
                    state.failed = Some((number, error.kind()));
                }
                self.changed.notify_all();
                return result;
            }
            state = self.changed.wait(state).expect("nothing panics under this lock");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU64, Ordering},
        thread,
        time::Duration,
    };

    use block::{Geometry, MemoryDevice};

    use super::*;

    /// Counts flushes, which take their time.
    struct Slow {
        inner: MemoryDevice,
        flushes: AtomicU64,
        fails: bool,
    }

    impl Slow {
        fn new(fails: bool) -> Slow {
            Slow { inner: MemoryDevice::new(4096), flushes: AtomicU64::new(0), fails }
        }
    }

    impl Device for Slow {
        fn geometry(&self) -> Geometry {
            self.inner.geometry()
        }
        fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
            self.inner.read(offset_bytes, buf)
        }
        fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
            self.inner.write(offset_bytes, buf)
        }
        fn flush(&self) -> io::Result<()> {
            thread::sleep(Duration::from_millis(20));
            self.flushes.fetch_add(1, Ordering::Relaxed);
            if self.fails { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
        }
        fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
            self.inner.discard(offset_bytes, length_bytes)
        }
    }

    #[test]
    fn many_share_a_flush() {
        let (flusher, device) = (Flusher::default(), Slow::new(false));
        thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| flusher.flush(&device).unwrap());
            }
        });
        let flushes = device.flushes.load(Ordering::Relaxed);
        assert!((1..16).contains(&flushes), "{flushes} flushes for 16");
        flusher.flush(&device).unwrap();
        assert_eq!(device.flushes.load(Ordering::Relaxed), flushes + 1, "nobody to share with");
    }

    #[test]
    fn a_failure_reaches_all_who_share_it() {
        let (flusher, device) = (Flusher::default(), Slow::new(true));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert!(flusher.flush(&device).is_err()));
            }
        });
    }
}
