//! A wrapper that calls a function before each request.

use std::{io, ops::Range};

use crate::{Device, DiscardUnit, Geometry, Verb};

/// A device that calls a function before each request, with the kind and the byte range of the request. An error of the
/// function is the error of the request, which then has no effect. Faults that are known beforehand are those of
/// [`Faulty`](crate::Faulty).
pub struct Hooked<D, F> {
    inner: D,
    hook: F,
}

impl<D: Device, F: Fn(Verb, Range<u64>) -> io::Result<()> + Send + Sync> Hooked<D, F> {
    /// Makes a device that calls `hook` before each request. A flush has an empty range.
    pub fn new(inner: D, hook: F) -> Hooked<D, F> {
        Hooked { inner, hook }
    }
}

impl<D: Device, F: Fn(Verb, Range<u64>) -> io::Result<()> + Send + Sync> Device for Hooked<D, F> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        (self.hook)(Verb::Read, offset_bytes..offset_bytes + buf.len() as u64)?;
        self.inner.read(offset_bytes, buf)
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        (self.hook)(Verb::Write, offset_bytes..offset_bytes + buf.len() as u64)?;
        self.inner.write(offset_bytes, buf)
    }

    fn flush(&self) -> io::Result<()> {
        (self.hook)(Verb::Flush, 0..0)?;
        self.inner.flush()
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        (self.hook)(Verb::Discard, offset_bytes..offset_bytes + length_bytes)?;
        self.inner.discard(offset_bytes, length_bytes)
    }

    fn discard_unit(&self) -> Option<DiscardUnit> {
        self.inner.discard_unit()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn the_hook_sees_each_request_and_can_refuse_it() {
        let seen = Mutex::new(Vec::new());
        let device = Hooked::new(MemoryDevice::new(1 << 20), |verb, range: Range<u64>| {
            seen.lock().expect("no panic").push((verb, range.clone()));
            if range.start == 512 { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
        });
        device.write(0, &[1; 512]).expect("it is not refused");
        assert!(device.write(512, &[1; 512]).is_err());
        device.discard(4096, 4096).expect("it is not refused");
        device.flush().expect("it is not refused");
        let mut found = [0; 1024];
        device.read(0, &mut found).expect("it is not refused");
        assert!(found[..512] == [1; 512] && found[512..] == [0; 512]);
        let wanted = [
            (Verb::Write, 0..512),
            (Verb::Write, 512..1024),
            (Verb::Discard, 4096..8192),
            (Verb::Flush, 0..0),
            (Verb::Read, 0..1024),
        ];
        assert_eq!(*seen.lock().expect("no panic"), wanted);
    }
}
