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
                let mut running =
                    Running { flusher: self, number: state.begun, failed: Some(io::ErrorKind::Other) };
                drop(state);
                let result = device.flush();
                running.failed = result.as_ref().err().map(io::Error::kind);
                return result;
            }
            state = self.changed.wait(state).expect("no code panics while it holds this lock");
        }
    }
}

/// A running flush. It ends when this is dropped, and has failed if it has panicked.
struct Running<'a> {
    flusher: &'a Flusher,
    number: u64,
    failed: Option<io::ErrorKind>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.flusher.state.lock().expect("no code panics while it holds this lock");
        state.ended = self.number;
        if let Some(kind) = self.failed {
            state.failed = Some((self.number, kind));
        }
        drop(state);
        self.flusher.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
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
        outcome: Outcome,
    }

    /// The outcome of each flush.
    #[derive(PartialEq)]
    enum Outcome {
        Success,
        Failure,
        Panic,
    }

    impl Slow {
        fn new(outcome: Outcome) -> Slow {
            Slow { inner: MemoryDevice::new(4096), flushes: AtomicU64::new(0), outcome }
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
            assert!(self.outcome != Outcome::Panic, "a fault in a flush");
            if self.outcome == Outcome::Failure { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
        }
        fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
            self.inner.discard(offset_bytes, length_bytes)
        }
    }

    #[test]
    fn many_share_a_flush() {
        let (flusher, device) = (Flusher::default(), Slow::new(Outcome::Success));
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
        let (flusher, device) = (Flusher::default(), Slow::new(Outcome::Failure));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert!(flusher.flush(&device).is_err()));
            }
        });
    }

    #[test]
    fn a_flush_that_panics_ends_as_failed() {
        let flusher = Flusher::default();
        let panics = Slow::new(Outcome::Panic);
        assert!(catch_unwind(AssertUnwindSafe(|| flusher.flush(&panics))).is_err());
        {
            let state = flusher.state.lock().unwrap();
            assert_eq!((state.begun, state.ended), (1, 1), "later calls would wait forever");
            assert_eq!(state.failed, Some((1, io::ErrorKind::Other)), "callers that share it fail");
        }
        flusher.flush(&Slow::new(Outcome::Success)).unwrap();
    }
}
