//! Copy on write over any device. Changes stay in memory; the base is never written.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io,
    ops::Range,
    sync::{PoisonError, RwLock},
};

use crate::{Device, Geometry, pieces};

/// Bytes per page, the unit of copying.
const PAGE_BYTES: usize = 4096;

type Page = Box<[u8; PAGE_BYTES]>;

/// A device that reads as its base until it is written, and keeps written data in memory.
pub struct Overlay<D> {
    base: D,
    changes: RwLock<BTreeMap<u64, Page>>,
}

impl<D: Device> Overlay<D> {
    /// Makes an overlay without changes.
    pub fn new(base: D) -> Overlay<D> {
        Overlay { base, changes: RwLock::default() }
    }

    /// Returns the device below.
    pub fn base(&self) -> &D {
        &self.base
    }

    /// Returns the changed ranges in bytes, ascending and merged, in whole 4096-byte pages. The end of the
    /// device may cut the last one short.
    pub fn changed_ranges(&self) -> Vec<Range<u64>> {
        let size = self.base.geometry().size_bytes;
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for number in self.changes.read().unwrap_or_else(PoisonError::into_inner).keys() {
            let start = number * PAGE_BYTES as u64;
            let end = (start + PAGE_BYTES as u64).min(size);
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(start..end),
            }
        }
        ranges
    }

    /// Discards all changes, so the overlay reads as its base again.
    pub fn drop_changes(&self) {
        self.changes.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Reads a range between changed pages from the base. The base is not asked for changed pages: it may fail there.
    fn read_base(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        match buf.is_empty() {
            true => Ok(()),
            false => self.base.read(offset_bytes, buf),
        }
    }

    fn base_page(&self, number: u64) -> io::Result<Page> {
        let start = number * PAGE_BYTES as u64;
        let held = (self.base.geometry().size_bytes - start).min(PAGE_BYTES as u64) as usize;
        let mut page: Page = Box::new([0; PAGE_BYTES]);
        self.base.read(start, &mut page[..held])?;
        Ok(page)
    }
}

impl<D: Device> Device for Overlay<D> {
    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.geometry().check_read(offset_bytes, buf.len())?;
        if buf.is_empty() {
            return Ok(());
        }
        // The lock is held during the base's reads, so that a page cannot change in between.
        let changes = self.changes.read().unwrap_or_else(PoisonError::into_inner);
        let page_bytes = PAGE_BYTES as u64;
        let end = offset_bytes + buf.len() as u64;
        let mut at = offset_bytes;
        for (number, page) in changes.range(offset_bytes / page_bytes..=(end - 1) / page_bytes) {
            let start = number * page_bytes;
            let (from, to) = (start.max(offset_bytes), (start + page_bytes).min(end));
            self.read_base(at, &mut buf[(at - offset_bytes) as usize..(from - offset_bytes) as usize])?;
            let part = (from - offset_bytes) as usize..(to - offset_bytes) as usize;
            buf[part].copy_from_slice(&page[(from - start) as usize..(to - start) as usize]);
            at = to;
        }
        self.read_base(at, &mut buf[(at - offset_bytes) as usize..])
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        self.geometry().check_write(offset_bytes, buf.len())?;
        let mut changes = self.changes.write().unwrap_or_else(PoisonError::into_inner);
        for (number, start, part) in pieces(offset_bytes, buf.len(), PAGE_BYTES) {
            let page = match changes.entry(number) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) if part.len() == PAGE_BYTES => entry.insert(Box::new([0; PAGE_BYTES])),
                Entry::Vacant(entry) => entry.insert(self.base_page(number)?),
            };
            page[start..start + part.len()].copy_from_slice(&buf[part]);
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    /// Has no effect: the content of the range stays.
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        match self.geometry().contains(offset_bytes, length_bytes) {
            true => Ok(()),
            false => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Counted, Fault, Faulty, MemoryDevice, Verb};

    const SIZE: usize = 100_001;

    #[test]
    fn changes_are_listed_and_dropped_and_the_base_is_never_written() {
        let overlay = Overlay::new(Counted::new(MemoryDevice::from_bytes(&[3; SIZE])));
        overlay.write(4095, &[1; 2]).expect("within the device");
        overlay.write(SIZE as u64 - 1, &[9]).expect("within the device");
        overlay.discard(0, SIZE as u64).expect("within the device");
        overlay.flush().expect("memory");
        assert_eq!(overlay.changed_ranges(), [0..8192, 98304..SIZE as u64]);
        let mut buf = [0; 4];
        overlay.read(4094, &mut buf).expect("within the device");
        assert_eq!(buf, [3, 1, 1, 3]);
        let counts = overlay.base().counts();
        assert_eq!((counts.writes, counts.discards, counts.flushes), (0, 0, 0));
        overlay.drop_changes();
        overlay.read(4094, &mut buf).expect("within the device");
        assert_eq!((buf, overlay.changed_ranges().len()), ([3; 4], 0));
    }

    #[test]
    fn a_page_that_was_written_is_read_although_the_base_cannot_read_it() {
        let fault = Fault::ErrorIn { verb: Verb::Read, range: 4096..4097 };
        let overlay = Overlay::new(Faulty::new(MemoryDevice::from_bytes(&[3; SIZE]), vec![fault]));
        let mut buf = [0; 3 * 4096];
        assert!(overlay.read(0, &mut buf).is_err());
        overlay.write(4096, &[1; 4096]).expect("a whole page");
        overlay.read(0, &mut buf).expect("the base is read around the page");
        assert!(buf[..4096] == [3; 4096] && buf[4096..8192] == [1; 4096] && buf[8192..] == [3; 4096]);
    }

    proptest! {
        #[test]
        fn the_device_behaves_like_a_vector(
            steps in prop::collection::vec((any::<bool>(), 0..SIZE, 0usize..20000, any::<u8>()), 1..40)
        ) {
            let mut reference: Vec<u8> = (0..SIZE).map(|at| (at / 7) as u8).collect();
            let original = reference.clone();
            let overlay = Overlay::new(MemoryDevice::from_bytes(&original));
            for (write, at, length, byte) in steps {
                let end = (at + length).min(SIZE);
                if write {
                    overlay.write(at as u64, &vec![byte; end - at])?;
                    reference[at..end].fill(byte);
                } else {
                    let mut buf = vec![1; end - at];
                    overlay.read(at as u64, &mut buf)?;
                    prop_assert_eq!(&buf[..], &reference[at..end]);
                }
            }
            let mut all = vec![0; SIZE];
            overlay.read(0, &mut all)?;
            prop_assert!(all == reference);
            prop_assert!(overlay.base().to_vec() == original);
            let changed = overlay.changed_ranges();
            for at in 0..SIZE {
                if !changed.iter().any(|range| range.contains(&(at as u64))) {
                    prop_assert_eq!(reference[at], original[at]);
                }
            }
        }
    }
}
