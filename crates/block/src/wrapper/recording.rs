//! A wrapper that records every request.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{Device, DiscardUnit, Geometry};

/// Kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    /// [`Device::read`].
    Read,
    /// [`Device::write`].
    Write,
    /// [`Device::flush`].
    Flush,
    /// [`Device::discard`].
    Discard,
}

/// One request that succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Kind of request.
    pub verb: Verb,
    /// Offset in bytes; 0 for a flush.
    pub offset_bytes: u64,
    /// Length in bytes; 0 for a flush.
    pub length_bytes: u64,
    /// Written data, if the recording keeps data.
    pub data: Option<Arc<[u8]>>,
}

/// A device that records the requests that reach it, in the order in which they took effect. It serves one
/// request at a time to make this order exact.
pub struct Recording<D> {
    inner: D,
    keep_data: bool,
    trace: Mutex<Vec<Request>>,
}

impl<D: Device> Recording<D> {
    /// Records kinds and ranges, without data.
    pub fn without_data(inner: D) -> Recording<D> {
        Recording { inner, keep_data: false, trace: Mutex::default() }
    }

    /// Also records the data of writes, so that the trace can be replayed.
    pub fn with_data(inner: D) -> Recording<D> {
        Recording { inner, keep_data: true, trace: Mutex::default() }
    }

    /// Returns the device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Returns the requests so far. Data is shared, not copied.
    pub fn trace(&self) -> Vec<Request> {
        self.lock().clone()
    }

    /// Returns the requests so far and clears the record.
    pub fn take_trace(&self) -> Vec<Request> {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Request>> {
        self.trace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(
        &self,
        request: impl FnOnce() -> Request,
        act: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let mut trace = self.lock();
        act()?;
        trace.push(request());
        Ok(())
    }
}

impl<D: Device> Device for Recording<D> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        let length_bytes = buf.len() as u64;
        let request = || Request { verb: Verb::Read, offset_bytes, length_bytes, data: None };
        self.record(request, || self.inner.read(offset_bytes, buf))
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        let request = || Request {
            verb: Verb::Write,
            offset_bytes,
            length_bytes: buf.len() as u64,
            data: self.keep_data.then(|| buf.into()),
        };
        self.record(request, || self.inner.write(offset_bytes, buf))
    }

    fn flush(&self) -> io::Result<()> {
        let request = || Request { verb: Verb::Flush, offset_bytes: 0, length_bytes: 0, data: None };
        self.record(request, || self.inner.flush())
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        let request = || Request { verb: Verb::Discard, offset_bytes, length_bytes, data: None };
        self.record(request, || self.inner.discard(offset_bytes, length_bytes))
    }

    fn discard_unit(&self) -> Option<DiscardUnit> {
        self.inner.discard_unit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn requests_are_kept_in_order_and_failed_ones_are_not() {
        let device = Recording::with_data(MemoryDevice::new(8192));
        device.write(4096, b"abc").expect("within the device");
        device.flush().expect("memory");
        device.read(0, &mut [0; 10]).expect("within the device");
        assert!(device.write(8192, b"x").is_err());
        device.discard(0, 4096).expect("within the device");
        let trace = device.take_trace();
        let verbs: Vec<Verb> = trace.iter().map(|request| request.verb).collect();
        assert_eq!(verbs, [Verb::Write, Verb::Flush, Verb::Read, Verb::Discard]);
        assert_eq!(trace[0].data.as_deref(), Some(&b"abc"[..]));
        assert_eq!((trace[2].offset_bytes, trace[2].length_bytes), (0, 10));
        assert!(device.trace().is_empty());
    }

    #[test]
    fn without_data_nothing_is_copied() {
        let device = Recording::without_data(MemoryDevice::new(8192));
        device.write(0, b"abc").expect("within the device");
        assert_eq!(device.trace()[0].data, None);
    }
}
