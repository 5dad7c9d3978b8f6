//! A file whose filled holes can be restored.

use std::{
    io,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{Device, DiscardUnit, FileDevice, Geometry};

/// A file that records the holes filled by an operation. If the operation fails, they become holes again,
/// which returns their space to the host.
///
/// *Invariant*: a restored hole covers only bytes that read as zeroes when the operation began.
pub struct Refillable {
    inner: Arc<FileDevice>,
    filled: Mutex<Filled>,
}

enum Filled {
    /// Ranges in the order of their writes. Adjacent ranges are merged.
    Known(Vec<Range<u64>>),
    /// No operation is under way: writes stay.
    Kept,
    /// The holes are restored. Further writes fail.
    GivenBack,
}

impl Refillable {
    /// Wraps a file. Until an operation begins, writes stay.
    pub fn new(inner: Arc<FileDevice>) -> Refillable {
        Refillable { inner, filled: Mutex::new(Filled::Kept) }
    }

    /// Begins an operation. Earlier writes stay.
    pub fn begin(&self) {
        *self.lock() = Filled::Known(Vec::new());
    }

    /// Ends the operation and keeps all its writes.
    pub fn keep(&self) {
        *self.lock() = Filled::Kept;
    }

    /// Aborts the operation: restores its holes, and makes later writes fail. Without an operation, does
    /// nothing.
    ///
    /// # Errors
    /// Those of fallocate(2).
    pub fn give_back(&self) -> io::Result<()> {
        let mut filled = self.lock();
        if let Filled::Known(ranges) = &*filled {
            for range in ranges {
                self.inner.punch(range.start, range.end - range.start)?;
            }
            *filled = Filled::GivenBack;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Filled> {
        self.filled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the holes of a range that is about to be written.
    fn note(&self, ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
        let mut at = range.start;
        while at < range.end {
            let (end, is_hole) = self.inner.extent(at, range.end);
            match ranges.last_mut().filter(|last| last.end == at) {
                Some(last) if is_hole => last.end = end,
                _ if is_hole => ranges.push(at..end),
                _ => {}
            }
            at = end;
        }
    }
}

impl Device for Refillable {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset_bytes, buf)
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        self.inner.geometry().check_write(offset_bytes, buf.len())?;
        // The lock is held during the write, so that no write can fill a hole while it is being restored.
        let mut filled = self.lock();
        match &mut *filled {
            Filled::Kept => drop(filled),
            Filled::GivenBack => {
                return Err(io::Error::other("earlier writes were discarded after an error"));
            }
            Filled::Known(ranges) => {
                self.note(ranges, offset_bytes..offset_bytes + buf.len() as u64);
                return self.inner.write(offset_bytes, buf);
            }
        }
        self.inner.write(offset_bytes, buf)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.inner.discard(offset_bytes, length_bytes)
    }

    fn discard_unit(&self) -> Option<DiscardUnit> {
        self.inner.discard_unit()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::OpenOptions;

    #[test]
    fn filled_holes_come_back_and_nothing_else_does() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("image");
        let device = FileDevice::create(&path, 8 << 20).expect("a new file");
        device.write(1 << 20, &vec![1; 1 << 20]).expect("within the file");
        device.flush().expect("flushed");
        drop(device);
        let blocks = || std::fs::metadata(&path).expect("there").blocks();
        for is_kept in [false, true] {
            let options = OpenOptions { write: true, direct: false };
            let device = Refillable::new(Arc::new(FileDevice::open(&path, options).expect("it opens")));
            // An earlier write stays, whatever becomes of the operation.
            device.write(7 << 20, &[7; 4096]).expect("within the file");
            device.flush().expect("flushed");
            let before = blocks();
            device.begin();
            // One write covers data and crosses both its ends; another is far from it.
            device.write((1 << 20) - 8192, &vec![2; (1 << 20) + 16384]).expect("within the file");
            device.write(4 << 20, &vec![3; 1 << 20]).expect("within the file");
            device.write(5 << 20, &vec![4; 1 << 20]).expect("within the file");
            device.flush().expect("flushed");
            assert!(blocks() > before);
            if is_kept {
                device.keep();
            }
            device.give_back().expect("holes");
            let mut bytes = vec![9; 8 << 20];
            device.read(0, &mut bytes).expect("within the file");
            let counts = (0..5).map(|n| bytes.iter().filter(|byte| **byte == n).count()).collect::<Vec<_>>();
            if is_kept {
                assert_eq!(counts[2..], [(1 << 20) + 16384, 1 << 20, 1 << 20]);
                assert!(device.write(0, &[5]).is_ok());
            } else {
                assert_eq!(counts, [(7 << 20) - 4096, 0, 1 << 20, 0, 0]);
                assert_eq!(bytes[7 << 20..][..4096], [7; 4096]);
                assert_eq!(blocks(), before);
                assert!(device.write(0, &[5]).is_err());
            }
        }
    }
}
