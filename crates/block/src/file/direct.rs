//! Requests that bypass the page cache, and the aligned buffers that they need.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    sync::{Mutex, PoisonError},
};

/// Alignment in bytes of buffers and requests that bypass the page cache. No sector is larger.
const DIRECT_BYTES: usize = 4096;

/// Number of such buffers kept for reuse, and the size in bytes of the largest one kept.
const BOUNCES_MAX: usize = 4;
const BOUNCE_BYTES_MAX: usize = 4 << 20;

/// Aligned buffers, kept for reuse.
#[derive(Debug, Default)]
pub(super) struct Bounces(Mutex<Vec<Bounce>>);

impl Bounces {
    /// Reads any range that lies within the file.
    pub(super) fn read(&self, file: &File, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        let (start, length) = widen(offset_bytes, buf.len());
        let mut bounce = self.take(length);
        let wanted = (offset_bytes - start) as usize + buf.len();
        let mut done = 0;
        while done < wanted {
            match file.read_at(&mut bounce.bytes()[done..length], start + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        buf.copy_from_slice(&bounce.bytes()[(offset_bytes - start) as usize..wanted]);
        self.give_back(bounce);
        Ok(())
    }

    /// Writes whole sectors.
    pub(super) fn write(
        &self,
        file: &File,
        sector_bytes: u32,
        offset_bytes: u64,
        buf: &[u8],
    ) -> io::Result<()> {
        let sector = u64::from(sector_bytes);
        if offset_bytes % sector != 0 || buf.len() as u64 % sector != 0 {
            let what = "a direct write must have whole sectors";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let mut bounce = self.take(buf.len());
        bounce.bytes()[..buf.len()].copy_from_slice(buf);
        let written = file.write_all_at(&bounce.bytes()[..buf.len()], offset_bytes);
        self.give_back(bounce);
        written
    }

    /// Returns an aligned buffer of at least `length` bytes.
    fn take(&self, length: usize) -> Bounce {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.filter(|bounce| bounce.length >= length).unwrap_or_else(|| Bounce::new(length))
    }

    fn give_back(&self, bounce: Bounce) {
        let mut bounces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if bounce.length <= BOUNCE_BYTES_MAX && bounces.len() < BOUNCES_MAX {
            bounces.push(bounce);
        }
    }
}

/// Returns the smallest aligned range that contains a direct request and ends within the device.
fn widen(offset_bytes: u64, length: usize) -> (u64, usize) {
    let align = DIRECT_BYTES as u64;
    let start = offset_bytes / align * align;
    let end = (offset_bytes + length as u64).next_multiple_of(align);
    (start, (end - start) as usize)
}

/// A buffer aligned for direct I/O.
#[derive(Debug)]
struct Bounce {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Bounce {
    fn new(length: usize) -> Bounce {
        let bytes = vec![0u8; length + DIRECT_BYTES];
        let start = bytes.as_ptr().align_offset(DIRECT_BYTES);
        Bounce { bytes, start, length }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}
