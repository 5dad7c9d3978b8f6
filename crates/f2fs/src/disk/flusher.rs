//! Flushes of a device that concurrent callers share (group commit).
//!
//! *Invariants*: a call returns after a flush that began after the call, so one flush serves all calls that arrive while
//! the previous one is running. Flushes do not overlap. A failed flush ends all use of the device: the writes that it lost
//! are reported to it alone, the next flush would succeed, and the lost writes may be those of any caller.

use std::{
    io,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

use block::Device;

/// Lets the calls that wait for a running flush of a device share the next one.
#[derive(Default)]
pub(super) struct Flusher {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Number of flushes begun.
    begun: u64,
    /// Number of flushes ended.
    ended: u64,
    /// Number and error of the flush that failed.
    failed: Option<(u64, io::ErrorKind)>,
}

impl Flusher {
    /// Makes all completed writes durable. Every call must pass the same `device`.
    pub(super) fn flush(&self, device: &dyn Device) -> io::Result<()> {
        let mut state = self.lock();
        // A running flush may have missed the writes of this caller; the next one covers them.
        let wanted = state.begun + 1;
        loop {
            if let Some((_, kind)) = state.failed.filter(|(number, _)| *number <= wanted) {
                return Err(io::Error::new(kind, "a flush of the device has failed"));
            }
            if state.ended >= wanted {
                return Ok(());
            }
            if state.begun == state.ended {
                state.begun += 1;
                drop(state);
                let mut running = Running { flusher: self, failed: Some(io::ErrorKind::Other) };
                let result = device.flush();
                running.failed = result.as_ref().err().map(io::Error::kind);
                return result;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running flush. It ends when this is dropped, and has failed if it has panicked.
struct Running<'a> {
    flusher: &'a Flusher,
    failed: Option<io::ErrorKind>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.flusher.lock();
        state.ended = state.begun;
        state.failed = self.failed.map(|kind| (state.ended, kind));
        drop(state);
        self.flusher.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        sync::{
            Barrier,
            atomic::{AtomicU64, Ordering},
            mpsc,
        },
        thread,
        time::Duration,
    };

    use block::{Hooked, MemoryDevice, Verb};

    use super::*;

    /// Returns a device that calls `act` with the number of each flush.
    fn counting(act: impl Fn(u64) -> io::Result<()> + Send + Sync) -> impl Device {
        let flushes = AtomicU64::new(0);
        Hooked::new(MemoryDevice::new(4096), move |verb, _| match verb {
            Verb::Flush => act(flushes.fetch_add(1, Ordering::Relaxed)),
            _ => Ok(()),
        })
    }

    #[test]
    fn many_share_a_flush() {
        let (about_to_flush, flushes) = (Barrier::new(16), AtomicU64::new(0));
        let device = counting(|number| {
            flushes.store(number + 1, Ordering::Relaxed);
            if number == 0 {
                about_to_flush.wait();
                thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        });
        let flusher = Flusher::default();
        thread::scope(|scope| {
            scope.spawn(|| flusher.flush(&device).unwrap());
            for _ in 1..16 {
                scope.spawn(|| {
                    about_to_flush.wait();
                    flusher.flush(&device).unwrap();
                });
            }
        });
        let shared = flushes.load(Ordering::Relaxed);
        assert!((2..16).contains(&shared), "{shared} flushes for 16");
        flusher.flush(&device).unwrap();
        assert_eq!(flushes.load(Ordering::Relaxed), shared + 1, "no other caller shares it");
    }

    /// The device loses writes during the first flush, reports them to it, and has no other failure.
    #[test]
    fn a_failed_flush_fails_for_those_that_wait_for_the_next_one() {
        let (begun, has_begun) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let (begun, ended) = (Mutex::new(begun), Mutex::new(ended));
        let device = counting(|number| {
            if number > 0 {
                return Ok(());
            }
            begun.lock().unwrap().send(()).unwrap();
            ended.lock().unwrap().recv().unwrap();
            Err(io::ErrorKind::StorageFull.into())
        });
        let flusher = Flusher::default();
        thread::scope(|scope| {
            let flush = || flusher.flush(&device).map_err(|error| error.kind());
            let first = scope.spawn(flush);
            has_begun.recv().unwrap();
            let second = scope.spawn(flush);
            end.send(()).unwrap();
            assert_eq!(first.join().unwrap(), Err(io::ErrorKind::StorageFull));
            assert_eq!(second.join().unwrap(), Err(io::ErrorKind::StorageFull));
            assert_eq!(flush(), Err(io::ErrorKind::StorageFull), "so do all later ones");
        });
    }

    #[test]
    fn a_flush_that_panics_ends_as_failed() {
        let device = counting(|_| panic!("a fault in a flush"));
        let flusher = Flusher::default();
        assert!(catch_unwind(AssertUnwindSafe(|| flusher.flush(&device))).is_err());
        {
            let state = flusher.lock();
            assert_eq!((state.begun, state.ended), (1, 1), "later calls would wait forever");
        }
        assert!(flusher.flush(&counting(|_| Ok(()))).is_err());
    }
}
