//! Memory that the kernel and this process use in turns.

#![allow(unsafe_code)]

use std::{
    io,
    ops::{Deref, DerefMut},
    ptr::{self, NonNull},
    slice,
    sync::Arc,
};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// An anonymous mapping, from which [`Region`]s are cut.
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is only an address range; `Region`s are its only users, and do not overlap.
unsafe impl Send for Mapping {}
// SAFETY: see above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(bytes: usize) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        let start = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)?
        };
        NonNull::new(start.cast())
            .map(|start| Mapping { start, bytes })
            .ok_or(io::ErrorKind::OutOfMemory.into())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: no region is left, since each has a reference to this.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// A part of a mapping that nothing else refers to, and that does not move. Untouched pages take no memory.
pub struct Region {
    mapping: Arc<Mapping>,
    offset: usize,
    bytes: usize,
}

impl Region {
    /// Maps `count` regions of `bytes` zeroes each, one behind the other from the start of a page on.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn map(count: usize, bytes: usize) -> io::Result<Vec<Region>> {
        let all = count.checked_mul(bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Arc::new(Mapping::new(all)?);
        let region = |number| Region { mapping: mapping.clone(), offset: number * bytes, bytes };
        Ok((0..count).map(region).collect())
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is inside the mapping, is initialized, and belongs to this region alone.
        unsafe { slice::from_raw_parts(self.mapping.start.as_ptr().add(self.offset), self.bytes) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.mapping.start.as_ptr().add(self.offset), self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_zero_and_do_not_overlap() {
        let mut regions = Region::map(3, 5000).unwrap();
        for (number, region) in regions.iter_mut().enumerate() {
            assert!(region.len() == 5000 && region.iter().all(|byte| *byte == 0));
            region.fill(number as u8 + 1);
        }
        let last = regions.pop().unwrap();
        drop(regions);
        assert!(last.iter().all(|byte| *byte == 3));
        assert!(Region::map(usize::MAX, 2).is_err());
    }
}
