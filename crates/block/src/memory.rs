//! A sparse device in memory. Its memory is proportional to the data written, at any device size.

use std::{
    collections::HashMap,
    io,
    ops::Range,
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use crate::{ATOMIC_BYTES, Device, Geometry, allocation, pieces};

/// Bytes per page, the unit of allocation.
const PAGE_BYTES: usize = 4096;
/// Pages per region.
const REGION_PAGES: usize = 256;
/// Bytes per region.
const REGION_BYTES: usize = REGION_PAGES * PAGE_BYTES;
/// Number of locks. A region belongs to the lock of its number modulo this.
const SHARDS: usize = 64;

type Page = Box<[u8; PAGE_BYTES]>;
type Region = Vec<Option<Page>>;

/// A sparse device in memory. A range that was never written or was discarded reads as zeroes. Zeroes written
/// to such a range take no memory.
pub struct MemoryDevice {
    geometry: Geometry,
    shards: Vec<RwLock<HashMap<u64, Region>>>,
}

impl MemoryDevice {
    /// Makes a device of zeroes with sectors of 512 bytes.
    pub fn new(size_bytes: u64) -> MemoryDevice {
        MemoryDevice::with_geometry(Geometry { size_bytes, sector_bytes: ATOMIC_BYTES as u32 })
    }

    /// Makes a device of zeroes with this geometry.
    pub fn with_geometry(geometry: Geometry) -> MemoryDevice {
        MemoryDevice { geometry, shards: (0..SHARDS).map(|_| RwLock::default()).collect() }
    }

    /// Makes a device whose content is exactly `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> MemoryDevice {
        let device = MemoryDevice::new(bytes.len() as u64);
        device.write(0, bytes).expect("the device is as large as the bytes");
        device
    }

    /// Returns the number of bytes of memory that hold data.
    pub fn allocated_bytes(&self) -> u64 {
        let pages = |region: &Region| region.iter().flatten().count();
        let count: usize = (0..SHARDS as u64).map(|n| self.peek(n).values().map(pages).sum::<usize>()).sum();
        (count * PAGE_BYTES) as u64
    }

    /// Returns the offsets of the 4096-byte pages that hold data, ascending.
    pub fn allocated_pages(&self) -> Vec<u64> {
        self.allocated_pages_in(0..self.geometry.size_bytes)
    }

    /// Returns the offsets of the 4096-byte pages that hold data and overlap the range, ascending.
    pub fn allocated_pages_in(&self, range: Range<u64>) -> Vec<u64> {
        let mut offsets = Vec::new();
        for shard in 0..SHARDS as u64 {
            for (number, region) in self.peek(shard).iter() {
                let start = number * REGION_BYTES as u64;
                if range.end <= start || start + REGION_BYTES as u64 <= range.start {
                    continue;
                }
                let held = region.iter().enumerate().filter(|(_, page)| page.is_some());
                offsets.extend(held.map(|(n, _)| start + (n * PAGE_BYTES) as u64));
            }
        }
        offsets.retain(|page| *page < range.end && range.start < page + PAGE_BYTES as u64);
        offsets.sort_unstable();
        offsets
    }

    /// Returns all bytes of the device. For tests and small devices.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.geometry.size_bytes as usize];
        self.read(0, &mut bytes).expect("the buffer is as large as the device");
        bytes
    }

    // A thread that panicked under the lock has written whole pages only, so the table stays usable.
    fn peek(&self, region: u64) -> RwLockReadGuard<'_, HashMap<u64, Region>> {
        self.shards[(region % SHARDS as u64) as usize].read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, region: u64) -> RwLockWriteGuard<'_, HashMap<u64, Region>> {
        self.shards[(region % SHARDS as u64) as usize].write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device for MemoryDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.geometry.check_read(offset_bytes, buf.len())?;
        for (number, start, part) in pieces(offset_bytes, buf.len(), REGION_BYTES) {
            let buf = &mut buf[part];
            let shard = self.peek(number);
            let Some(region) = shard.get(&number) else {
                buf.fill(0);
                continue;
            };
            for (page, start, part) in pieces(start as u64, buf.len(), PAGE_BYTES) {
                let buf = &mut buf[part];
                match &region[page as usize] {
                    Some(page) => buf.copy_from_slice(&page[start..start + buf.len()]),
                    None => buf.fill(0),
                }
            }
        }
        Ok(())
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        self.geometry.check_write(offset_bytes, buf.len())?;
        for (number, start, part) in pieces(offset_bytes, buf.len(), REGION_BYTES) {
            let buf = &buf[part];
            let mut shard = self.change(number);
            if !shard.contains_key(&number) && is_zero(buf) {
                continue;
            }
            let region = shard.entry(number).or_insert_with(|| vec![None; REGION_PAGES]);
            for (page, start, part) in pieces(start as u64, buf.len(), PAGE_BYTES) {
                let buf = &buf[part];
                match &mut region[page as usize] {
                    Some(page) => page[start..start + buf.len()].copy_from_slice(buf),
                    None if is_zero(buf) => {}
                    empty => {
                        let mut fresh: Page = Box::new([0; PAGE_BYTES]);
                        fresh[start..start + buf.len()].copy_from_slice(buf);
                        *empty = Some(fresh);
                    }
                }
            }
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        if !self.geometry.contains(offset_bytes, length_bytes) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let range = offset_bytes..offset_bytes + length_bytes;
        for shard in 0..SHARDS as u64 {
            self.change(shard).retain(|number, region| {
                let first = number * REGION_BYTES as u64;
                if range.end <= first || first + REGION_BYTES as u64 <= range.start {
                    return true;
                }
                for (n, slot) in region.iter_mut().enumerate() {
                    let first = first + (n * PAGE_BYTES) as u64;
                    let from = range.start.clamp(first, first + PAGE_BYTES as u64) - first;
                    let to = range.end.clamp(first, first + PAGE_BYTES as u64) - first;
                    if to - from == PAGE_BYTES as u64 {
                        *slot = None;
                    } else if let Some(page) = slot {
                        page[from as usize..to as usize].fill(0);
                    }
                }
                region.iter().any(Option::is_some)
            });
        }
        Ok(())
    }

    fn allocation(&self, range: Range<u64>) -> Vec<(u64, bool)> {
        allocation::of_memory(self, range)
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_device_of_16_tib_allocates_only_written_blocks() {
        let size = 16 << 40;
        let device = MemoryDevice::new(size);
        device.write(size - 100, &[7; 100]).expect("within the device");
        device.write(1 << 43, &[0; 8192]).expect("within the device");
        assert_eq!(device.allocated_bytes(), PAGE_BYTES as u64);
        assert_eq!(device.allocated_pages(), [size - PAGE_BYTES as u64]);
        let mut buf = [1; 200];
        device.read(size - 200, &mut buf).expect("within the device");
        assert_eq!((buf[99], buf[100]), (0, 7));
        device.discard(0, size).expect("within the device");
        assert_eq!(device.allocated_bytes(), 0);
    }

    #[test]
    fn access_past_the_end_fails_with_the_right_kind() {
        let device = MemoryDevice::new(1000);
        assert_eq!(device.read(999, &mut [0; 2]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(device.write(u64::MAX, &[0; 2]).unwrap_err().kind(), io::ErrorKind::WriteZero);
        assert!(device.discard(500, 501).is_err());
        assert!(device.write(1000, &[]).is_ok());
    }

    #[test]
    fn threads_write_side_by_side() {
        let device = MemoryDevice::new(8 << 20);
        std::thread::scope(|scope| {
            for n in 0..8u8 {
                let device = &device;
                scope.spawn(move || {
                    for at in (u64::from(n) * 1000..8 << 20).step_by(8000) {
                        let length = 1000.min((8 << 20) - at) as usize;
                        device.write(at, &vec![n + 1; length]).expect("within the device");
                    }
                });
            }
        });
        assert!(device.to_vec().iter().enumerate().all(|(at, &byte)| byte == (at / 1000 % 8) as u8 + 1));
    }

    proptest! {
        #[test]
        fn the_device_behaves_like_a_vector(
            steps in prop::collection::vec((0usize..3, 0usize..3 << 20, 0usize..20000, any::<u8>()), 1..40)
        ) {
            let size = 3 << 20;
            let device = MemoryDevice::new(size as u64);
            let mut reference = vec![0u8; size];
            for (verb, at, length, byte) in steps {
                let end = (at + length).min(size);
                match verb {
                    0 => {
                        device.write(at as u64, &vec![byte; end - at])?;
                        reference[at..end].fill(byte);
                    }
                    1 => {
                        device.discard(at as u64, (end - at) as u64)?;
                        reference[at..end].fill(0);
                    }
                    _ => {
                        let mut buf = vec![1; end - at];
                        device.read(at as u64, &mut buf)?;
                        prop_assert_eq!(&buf[..], &reference[at..end]);
                    }
                }
            }
            prop_assert!(device.to_vec() == reference);
        }
    }
}
