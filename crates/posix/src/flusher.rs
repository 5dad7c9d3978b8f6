//! Group commit for device flushes: several fsyncs share one flush.
//!
//! *Invariant*: a call returns after a flush that began after the call. So one flush serves all calls that
//! arrive while the previous flush is running.

use std::{
    io,
    sync::{Condvar, Mutex},
};

use block::Device;

/// Merges concurrent flushes of one device.
#[derive(Default)]
pub struct Flusher {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Number of flushes begun.
    begun: u64,
    /// Number of flushes ended.
    ended: u64,
    /// Number and error of the latest failed flush.
    failed: Option<(u64, io::ErrorKind)>,
}

impl Flusher {
    /// Makes all completed writes durable. Every call must pass the same `device`.
    pub fn flush(&self, device: &dyn Device) -> io::Result<()> {
        let mut state = self.state.lock().expect("no code panics while it holds this lock");
        // A running flush may have missed our writes; the next one covers them.
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
                state = self.state.lock().expect("no code panics while it holds this lock");
                state.ended = number;
                if let Err(error) = &result {
                    state.failed = Some((number, error.kind()));
                }
                self.changed.notify_all();
                return result;
            }
            state = self.changed.wait(state).expect("no code panics while it holds this lock");
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

    /// A device that counts flushes, each of which takes 20 ms.
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
        assert_eq!(device.flushes.load(Ordering::Relaxed), flushes + 1, "no other caller shares it");
    }

    #[test]
    fn a_failure_reaches_all_callers_of_a_shared_flush() {
        let (flusher, device) = (Flusher::default(), Slow::new(true));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert!(flusher.flush(&device).is_err()));
            }
        });
    }
}
