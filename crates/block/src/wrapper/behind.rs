//! A device that writes in the background.

use std::{
    collections::VecDeque,
    io,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use crate::{Device, DiscardUnit, Geometry};

/// Number of buffers kept for reuse.
const SPARE_BUFFERS: usize = 8;

/// A write-behind device. Writes return at once, and a thread executes them in order while the caller
/// prepares the next.
///
/// A flush waits for all writes, so its promise holds. The next write, discard or flush reports a failed
/// write, and so does every later one, because later data may depend on the missing write.
pub struct Behind<D: Device + 'static> {
    shared: Arc<Shared<D>>,
    writer: Option<JoinHandle<()>>,
}

struct Shared<D> {
    inner: D,
    limit_bytes: usize,
    queue: Mutex<Queue>,
    /// Signals that a write was queued or that the thread must end.
    queued: Condvar,
    /// Signals that a write was executed.
    written: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Queued writes, the oldest first. The write under way stays in front.
    writes: VecDeque<Write>,
    bytes: usize,
    spare: Vec<Vec<u8>>,
    failure: Option<(io::ErrorKind, String)>,
    over: bool,
}

struct Write {
    offset_bytes: u64,
    bytes: Arc<Vec<u8>>,
}

impl Write {
    fn range(&self) -> Range<u64> {
        self.offset_bytes..self.offset_bytes + self.bytes.len() as u64
    }
}

impl<D: Device + 'static> Behind<D> {
    /// Makes a write-behind device over `inner` that queues at most about `limit_bytes`.
    pub fn new(inner: D, limit_bytes: usize) -> Behind<D> {
        let shared = Arc::new(Shared {
            inner,
            limit_bytes,
            queue: Mutex::default(),
            queued: Condvar::new(),
            written: Condvar::new(),
        });
        let writer = Arc::clone(&shared);
        let writer = thread::Builder::new().name("write-behind".into()).spawn(move || writer.run());
        // Without the thread no write would ever happen, and only this place can report that the host has
        // none left.
        let writer = Some(writer.expect("the host has a thread left"));
        Behind { shared, writer }
    }

    /// Returns the device below. Unflushed writes may be missing there.
    pub fn inner(&self) -> &D {
        &self.shared.inner
    }
}

impl<D: Device> Shared<D> {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, condition: &Condvar, queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        condition.wait(queue).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the queue is empty.
    fn drain(&self) -> io::Result<()> {
        let mut queue = self.lock();
        while !queue.writes.is_empty() {
            queue = self.wait(&self.written, queue);
        }
        queue.check()
    }

    /// Executes queued writes until the device is dropped.
    fn run(&self) {
        let mut queue = self.lock();
        loop {
            let Some(front) = queue.writes.front() else {
                if queue.over {
                    return;
                }
                queue = self.wait(&self.queued, queue);
                continue;
            };
            let (offset_bytes, bytes) = (front.offset_bytes, Arc::clone(&front.bytes));
            let failed = queue.failure.is_some();
            drop(queue);
            let write = || self.inner.write(offset_bytes, &bytes);
            let result = match failed {
                true => Ok(()),
                // A panic becomes an error. Otherwise a caller that waits for this write would wait forever.
                false => catch_unwind(AssertUnwindSafe(write))
                    .unwrap_or_else(|_| Err(io::Error::other("the device below panicked"))),
            };
            queue = self.lock();
            if let Err(error) = result {
                queue.failure = Some((error.kind(), error.to_string()));
            }
            queue.writes.pop_front();
            queue.bytes -= bytes.len();
            if let (Some(buffer), true) = (Arc::into_inner(bytes), queue.spare.len() < SPARE_BUFFERS) {
                queue.spare.push(buffer);
            }
            self.written.notify_all();
        }
    }
}

impl Queue {
    fn check(&self) -> io::Result<()> {
        match &self.failure {
            Some((kind, what)) => Err(io::Error::new(*kind, what.clone())),
            None => Ok(()),
        }
    }
}

impl<D: Device> Device for Behind<D> {
    fn geometry(&self) -> Geometry {
        self.shared.inner.geometry()
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        let wanted = offset_bytes..offset_bytes.saturating_add(buf.len() as u64);
        let meets = |write: &Write| {
            let range = write.range();
            range.start < wanted.end && wanted.start < range.end
        };
        let mut queue = self.shared.lock();
        while queue.writes.iter().any(meets) {
            queue = self.shared.wait(&self.shared.written, queue);
        }
        drop(queue);
        self.shared.inner.read(offset_bytes, buf)
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        self.geometry().check_write(offset_bytes, buf.len())?;
        let mut queue = self.shared.lock();
        while !queue.writes.is_empty() && queue.bytes + buf.len() > self.shared.limit_bytes {
            queue = self.shared.wait(&self.shared.written, queue);
        }
        queue.check()?;
        let mut bytes = queue.spare.pop().unwrap_or_default();
        drop(queue);
        bytes.clear();
        bytes.extend_from_slice(buf);
        let mut queue = self.shared.lock();
        queue.bytes += bytes.len();
        queue.writes.push_back(Write { offset_bytes, bytes: Arc::new(bytes) });
        self.shared.queued.notify_one();
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.shared.drain()?;
        self.shared.inner.flush()
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.shared.drain()?;
        self.shared.inner.discard(offset_bytes, length_bytes)
    }

    fn discard_unit(&self) -> Option<DiscardUnit> {
        self.shared.inner.discard_unit()
    }
}

impl<D: Device + 'static> Drop for Behind<D> {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.queued.notify_one();
        if let Some(writer) = self.writer.take() {
            // The thread ends when the queue is empty.
            let _ = writer.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fault, Faulty, Hooked, MemoryDevice, Rng, Verb};

    #[test]
    fn callers_do_not_wait_for_a_device_that_panicked() {
        let panics = Hooked::new(MemoryDevice::new(1 << 20), |verb, _| {
            assert!(verb != Verb::Write, "a fault of the device");
            Ok(())
        });
        let device = Behind::new(panics, 1 << 20);
        device.write(0, &[1; 4096]).expect("it is queued");
        device.read(0, &mut [0; 4096]).expect("the previous content");
        assert!(device.flush().is_err() && device.write(0, &[1; 512]).is_err());
    }

    #[test]
    fn reads_return_pending_writes_and_the_end_writes_them_all() {
        let behind = Behind::new(MemoryDevice::new(1 << 20), 64 << 10);
        let mut reference = vec![0u8; 1 << 20];
        let mut rng = Rng::new(7);
        for n in 0..2000u32 {
            let (at, length) = (rng.below(1 << 20) as usize, rng.below(20_000) as usize);
            let end = (at + length).min(1 << 20);
            if rng.chance(0.7) {
                reference[at..end].fill(n as u8);
                behind.write(at as u64, &vec![n as u8; end - at]).unwrap();
            } else {
                let mut buf = vec![0; end - at];
                behind.read(at as u64, &mut buf).unwrap();
                assert!(buf == reference[at..end], "step {n}");
            }
        }
        behind.flush().unwrap();
        assert!(behind.inner().to_vec() == reference);
        assert!(behind.write(1 << 20, &[1]).is_err());
    }

    #[test]
    fn a_failed_write_is_reported_by_every_later_flush() {
        let faulty =
            Faulty::new(MemoryDevice::new(1 << 20), vec![Fault::ErrorAt { verb: Verb::Write, nth: 1 }]);
        let behind = Behind::new(faulty, 1 << 20);
        behind.write(0, &[1; 512]).unwrap();
        behind.write(512, &[2; 512]).ok();
        assert!(behind.flush().is_err());
        assert!(behind.flush().is_err() && behind.write(0, &[3; 512]).is_err());
    }

    #[test]
    fn dropping_the_device_writes_pending_data() {
        let memory: Arc<MemoryDevice> = Arc::new(MemoryDevice::new(1 << 20));
        let behind = Behind::new(Arc::clone(&memory), 1 << 20);
        for n in 0..100u64 {
            behind.write(n * 512, &[n as u8; 512]).unwrap();
        }
        drop(behind);
        assert_eq!(memory.to_vec()[99 * 512], 99);
    }
}
