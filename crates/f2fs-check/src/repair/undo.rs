//! The bytes that a repair overwrites, and their restoration.
//!
//! The file is: a line that names the format, a line of numbers in text (size of the device, number of ranges),
//! then for each range its offset and length (le64), the old bytes and the new ones, and last a checksum. The old
//! bytes are whole pages. A page that a repair writes several times follows again with each content in between. Ranges
//! that no request overwrites are the witnesses: both superblocks and the heads of both checkpoint packs. They show that
//! a volume was changed after the repair.

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, Read, Write},
    ops::Range,
    sync::Arc,
};

use block::{Device, Request, Verb};
use f2fs::{
    Place,
    format::{crc::crc, node::NodeFooter},
};

use super::tables::Tables;

/// First bytes of the file.
const MAGIC: &[u8; 24] = b"flashkit fsck undo 1\n\0\0\0";
/// Unit of the ranges in bytes.
const PAGE: u64 = 4096;
/// Unit that a power cut does not tear, in bytes.
const SECTOR: usize = block::ATOMIC_BYTES;

/// An error of an undo file.
#[derive(Debug)]
pub enum UndoError {
    /// The file or the device cannot be read or written.
    Io(io::Error),
    /// The file is not an undo file, or is damaged; the sentence says how.
    Invalid(&'static str),
    /// The device is not the one that was repaired, or was changed since; at this byte.
    Other(u64),
    /// Fsyncs were written after the repair; the first one begins at this byte.
    Fsynced(u64),
}

impl fmt::Display for UndoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UndoError::Io(error) => write!(f, "{error}"),
            UndoError::Invalid(what) => write!(f, "not an undo file of fsck: {what}"),
            UndoError::Other(at) => write!(
                f,
                "the image is not the repaired one, or was changed after the repair: byte {at} differs; nothing was written"
            ),
            UndoError::Fsynced(at) => write!(
                f,
                "files were synced after the repair: byte {at} begins an fsync, which undo would lose; nothing was written"
            ),
        }
    }
}

impl std::error::Error for UndoError {}

impl From<io::Error> for UndoError {
    fn from(error: io::Error) -> UndoError {
        UndoError::Io(error)
    }
}

/// One page before and after.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Page {
    old: Vec<u8>,
    new: Vec<u8>,
    /// Contents between the two, if the repair writes the page several times.
    between: Vec<Vec<u8>>,
}

impl Page {
    /// Writes bytes from an offset in the page on, as the repair does.
    fn write(&mut self, at: usize, bytes: &[u8]) {
        let before = self.new.clone();
        self.new[at..at + bytes.len()].copy_from_slice(bytes);
        if before != self.old && before != self.new {
            self.between.push(before);
        }
    }

    /// Returns true if a sector of the page may have these bytes before, during or after the repair.
    fn may_have(&self, sector: Range<usize>, bytes: &[u8]) -> bool {
        let mut all = [&self.old, &self.new].into_iter().chain(&self.between);
        all.any(|content| content.get(sector.clone()) == Some(bytes))
    }
}

/// The bytes that a repair overwrites.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undo {
    size_bytes: u64,
    pages: BTreeMap<u64, Page>,
    /// Offsets of the pages in the order in which the repair first writes them.
    order: Vec<u64>,
    /// Bytes that could not be read before the repair.
    unreadable_bytes: u64,
}

impl Undo {
    /// Collects the bytes that `requests` overwrite on a device, before they are written. Zeroes take the place of sectors
    /// that cannot be read.
    #[must_use]
    pub fn of(requests: &[Request], device: &dyn Device) -> Undo {
        let size_bytes = device.geometry().size_bytes;
        let mut undo = Undo { size_bytes, pages: BTreeMap::new(), order: Vec::new(), unreadable_bytes: 0 };
        for request in requests.iter().filter(|request| request.verb == Verb::Write) {
            let Some(data) = &request.data else { continue };
            let end = request.offset_bytes + data.len() as u64;
            let mut start = request.offset_bytes / PAGE * PAGE;
            while start < end {
                undo.read_page(device, start);
                let page = undo.pages.get_mut(&start).expect("it was just read");
                let from = request.offset_bytes.max(start);
                let to = end.min(start + PAGE);
                let source = (from - request.offset_bytes) as usize..(to - request.offset_bytes) as usize;
                page.write((from - start) as usize, &data[source]);
                start += PAGE;
            }
        }
        for witness in witnesses(device) {
            undo.read_page(device, witness);
        }
        undo
    }

    /// Number of bytes that could not be read before the repair, and that undo replaces by zeroes.
    #[must_use]
    pub fn unreadable_bytes(&self) -> u64 {
        self.unreadable_bytes
    }

    fn read_page(&mut self, device: &dyn Device, start: u64) {
        if !self.pages.contains_key(&start) {
            let mut old = vec![0; (self.size_bytes - start).min(PAGE) as usize];
            let unreadable = read_sectors(device, start, &mut old);
            self.unreadable_bytes += (unreadable.len() * SECTOR) as u64;
            self.pages.insert(start, Page { new: old.clone(), old, between: Vec::new() });
            self.order.push(start);
        }
    }

    /// Writes the file.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn store(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut sum = u32::MAX;
        let mut put = |bytes: &[u8]| {
            sum = crc(sum, bytes);
            out.write_all(bytes)
        };
        put(MAGIC)?;
        put(&self.size_bytes.to_le_bytes())?;
        let pages = || self.order.iter().map(|start| (start, &self.pages[start]));
        let count: usize = pages().map(|(_, page)| 1 + page.between.len()).sum();
        put(&(count as u64).to_le_bytes())?;
        for (start, page) in pages() {
            for content in [&page.new].into_iter().chain(&page.between) {
                put(&start.to_le_bytes())?;
                put(&(page.old.len() as u64).to_le_bytes())?;
                put(&page.old)?;
                put(content)?;
            }
        }
        out.write_all(&sum.to_le_bytes())
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`UndoError::Invalid`] for another or a damaged file.
    pub fn load(input: &mut dyn Read) -> Result<Undo, UndoError> {
        let mut sum = u32::MAX;
        let mut magic = [0; MAGIC.len()];
        take(input, &mut magic, &mut sum)?;
        if magic != *MAGIC {
            return Err(UndoError::Invalid("it begins with other bytes"));
        }
        let size_bytes = number(input, &mut sum)?;
        let count = number(input, &mut sum)?;
        let mut undo = Undo { size_bytes, pages: BTreeMap::new(), order: Vec::new(), unreadable_bytes: 0 };
        for _ in 0..count {
            let (start, length) = (number(input, &mut sum)?, number(input, &mut sum)?);
            let is_within = start.checked_add(length).is_some_and(|end| end <= size_bytes);
            if length > PAGE || !is_within {
                return Err(UndoError::Invalid("a range lies outside the image"));
            }
            let (mut old, mut new) = (vec![0; length as usize], vec![0; length as usize]);
            take(input, &mut old, &mut sum)?;
            take(input, &mut new, &mut sum)?;
            if let Some(page) = undo.pages.get_mut(&start) {
                page.between.push(new);
            } else {
                undo.pages.insert(start, Page { old, new, between: Vec::new() });
                undo.order.push(start);
            }
        }
        let expected = sum;
        let mut stored = [0; 4];
        take(input, &mut stored, &mut sum)?;
        if u32::from_le_bytes(stored) != expected {
            return Err(UndoError::Invalid("its checksum is wrong"));
        }
        Ok(undo)
    }

    /// Checks that a device has the repaired volume, or an interrupted repair of it, and brings the old bytes back. The
    /// pages go back in the opposite order of the repair, so that the old checkpoint counts first. Sectors that cannot be
    /// read are not compared.
    ///
    /// # Errors
    /// [`UndoError::Other`] for another device; [`UndoError::Fsynced`] after an fsync; the device's errors.
    pub fn apply(&self, device: &Arc<dyn Device>) -> Result<(), UndoError> {
        if device.geometry().size_bytes != self.size_bytes {
            return Err(UndoError::Other(self.size_bytes));
        }
        let mut buffer = vec![0; PAGE as usize];
        for (start, page) in &self.pages {
            let found = &mut buffer[..page.old.len()];
            let unreadable = read_sectors(device, *start, found);
            for (n, sector) in found.chunks(SECTOR).enumerate().filter(|(n, _)| !unreadable.contains(n)) {
                let at = n * SECTOR;
                if !page.may_have(at..at + sector.len(), sector) {
                    return Err(UndoError::Other(start + at as u64));
                }
            }
        }
        if let Some(at) = self.fsynced(device) {
            return Err(UndoError::Fsynced(at));
        }
        // Superblocks and packs decide which of the other pages count: what comes before them is durable first.
        let ordered_end = packs_end(&**device).unwrap_or(self.size_bytes);
        let mut is_durable = true;
        for start in self.order.iter().rev() {
            let page = &self.pages[start];
            if page.old != page.new || !page.between.is_empty() {
                let is_ordered = *start < ordered_end;
                if is_ordered && !is_durable {
                    device.flush()?;
                }
                device.write(*start, &page.old)?;
                if is_ordered {
                    device.flush()?;
                }
                is_durable = is_ordered;
            }
        }
        Ok(device.flush()?)
    }

    /// The place of the first fsync after the repaired pack, if there is one. It changes neither superblocks nor packs.
    fn fsynced(&self, device: &Arc<dyn Device>) -> Option<u64> {
        let tables = Tables::read(device.clone()).ok()?;
        let log = tables.geometry.block_size.log();
        let start = u64::from(tables.geometry.pack(tables.pack.number).0) << log;
        let pack = self.pages.get(&start)?;
        let mut found = vec![0; pack.new.len()];
        device.read(start, &mut found).ok()?;
        if found != pack.new || pack.old == pack.new {
            return None;
        }
        let addr = tables.chain_start();
        let node = tables.io.read_block(addr, Place::Block(addr)).ok()?;
        let is_fsynced = tables.pack.checkpoint.is_written_after(NodeFooter::of(&node).cp_ver);
        is_fsynced.then_some(u64::from(addr.0) << log)
    }
}

/// First byte behind the superblocks and the checkpoint packs. `None` without a superblock.
fn packs_end(device: &dyn Device) -> Option<u64> {
    let (superblock, _) = f2fs::engine::read_superblock(device, device.geometry().size_bytes).ok()?;
    Some(superblock.checkpoint.end() << superblock.block_size.log())
}

/// Offsets of the pages that every change of a volume changes: superblocks and heads of the packs.
fn witnesses(device: &dyn Device) -> Vec<u64> {
    let size = device.geometry().size_bytes;
    let Ok((superblock, _)) = f2fs::engine::read_superblock(device, size) else { return Vec::new() };
    let geometry = f2fs::engine::Geometry::of(&superblock);
    let log = superblock.block_size.log();
    let packs = [0, 1].map(|pack| u64::from(geometry.pack(pack).0) << log);
    [&[0, 1 << log], &packs[..]].concat()
}

/// Reads a page, sector by sector if that fails. Returns the numbers of the sectors that cannot be read, which stay zero.
fn read_sectors(device: &dyn Device, start: u64, page: &mut [u8]) -> Vec<usize> {
    if device.read(start, page).is_ok() {
        return Vec::new();
    }
    page.fill(0);
    let sectors = page.chunks_mut(SECTOR).enumerate();
    let unreadable = sectors.filter_map(|(n, sector)| {
        let read = device.read(start + (n * SECTOR) as u64, sector);
        read.is_err().then(|| {
            sector.fill(0);
            n
        })
    });
    unreadable.collect()
}

fn take(input: &mut dyn Read, bytes: &mut [u8], sum: &mut u32) -> Result<(), UndoError> {
    input.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => UndoError::Invalid("it is too short"),
        _ => UndoError::Io(error),
    })?;
    *sum = crc(*sum, bytes);
    Ok(())
}

fn number(input: &mut dyn Read, sum: &mut u32) -> Result<u64, UndoError> {
    let mut bytes = [0; 8];
    take(input, &mut bytes, sum)?;
    Ok(u64::from_le_bytes(bytes))
}
