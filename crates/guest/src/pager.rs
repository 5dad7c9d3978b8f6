//! The files of a database with SQLite's recovery: a rollback journal, or a write-ahead log.
//!
//! The records have the parts of SQLite's (<https://www.sqlite.org/fileformat.html>) and follow its rules of
//! recovery: a journal counts once its header has the number of its records; a frame of the log counts if its
//! salt is the header's and the sum of all frames before it is right, up to the last one that commits. The
//! content of a page is stamped, so that the version of each page is known. The checksums are complete, while
//! those of SQLite's journal are samples.

use serde::{Deserialize, Serialize};

use crate::stamp::{self, SECTOR_BYTES, Sector};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Sectors of a page.
pub const PAGE_SECTORS: u64 = (PAGE_BYTES / SECTOR_BYTES) as u64;
/// Bytes of a journal's header.
pub const JOURNAL_HEADER_BYTES: usize = 512;
/// Bytes of a journal's record: number, page, checksum.
pub const JOURNAL_RECORD_BYTES: usize = 4 + PAGE_BYTES + 4;
/// Bytes of a log's header.
pub const LOG_HEADER_BYTES: usize = 32;
/// Bytes of a log's frame: header and page.
pub const LOG_FRAME_BYTES: usize = 24 + PAGE_BYTES;

const JOURNAL_MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
const LOG_MAGIC: u32 = 0x377f_0682;

/// State of a database after its recovery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recovered {
    /// The version of each page.
    Pages(Vec<u32>),
    /// The database is corrupt.
    Corrupt(String),
    /// There is no database.
    Missing,
}

/// Returns the first bytes of a journal: magic and number of records.
pub fn journal_start(records: u32) -> [u8; 12] {
    let mut start = [0; 12];
    start[..8].copy_from_slice(&JOURNAL_MAGIC);
    start[8..].copy_from_slice(&records.to_be_bytes());
    start
}

/// Returns the header of a journal whose records do not count yet.
pub fn journal_header() -> [u8; JOURNAL_HEADER_BYTES] {
    [0; JOURNAL_HEADER_BYTES]
}

/// Returns a record of a journal: the previous content of a page, which counts from 1.
pub fn journal_record(page: u32, content: &[u8]) -> Vec<u8> {
    let sum = sum(page, content);
    [&page.to_be_bytes()[..], content, &sum.to_be_bytes()].concat()
}

/// Returns the header of a log.
pub fn log_header(salt: u32) -> [u8; LOG_HEADER_BYTES] {
    let mut header = [0; LOG_HEADER_BYTES];
    header[..4].copy_from_slice(&LOG_MAGIC.to_be_bytes());
    header[4..8].copy_from_slice(&salt.to_be_bytes());
    let sum = sum(salt, &header[..8]);
    header[28..].copy_from_slice(&sum.to_be_bytes());
    header
}

/// Position of a frame in its transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commit {
    /// The last frame, which commits.
    Yes,
    /// A frame before the last one.
    No,
}

/// Returns a frame of a log, and the sum of all frames up to this one. `before` is that of the previous
/// frame; the salt for the first one.
pub fn log_frame(page: u32, commit: Commit, salt: u32, before: u32, content: &[u8]) -> (Vec<u8>, u32) {
    let mut frame = vec![0; 24];
    frame[..4].copy_from_slice(&page.to_be_bytes());
    frame[4..8].copy_from_slice(&u32::from(commit == Commit::Yes).to_be_bytes());
    frame[8..12].copy_from_slice(&salt.to_be_bytes());
    let sum = sum(sum(before, &frame[..12]), content);
    frame[12..16].copy_from_slice(&sum.to_be_bytes());
    frame.extend_from_slice(content);
    (frame, sum)
}

/// Returns the content of a page, which counts from 1, in a version.
pub fn page(file: u32, version: u32, page: u32) -> Vec<u8> {
    stamp::sectors(file, version, u64::from(page - 1) * PAGE_SECTORS, PAGE_SECTORS)
}

/// Recovers a database of `pages` pages from its files, as the next program that opens it would.
pub fn recover(
    database: Option<Vec<u8>>,
    journal: Option<&[u8]>,
    log: Option<&[u8]>,
    pages: usize,
) -> Recovered {
    let Some(mut content) = database else { return Recovered::Missing };
    content.resize(pages * PAGE_BYTES, 0);
    let mut put = |page: u32, bytes: &[u8]| {
        let at = (page.wrapping_sub(1)) as usize * PAGE_BYTES;
        if let Some(place) = content.get_mut(at..at + PAGE_BYTES) {
            place.copy_from_slice(bytes);
        }
    };
    journal.into_iter().flat_map(journal_records).for_each(|(page, bytes)| put(page, bytes));
    log.into_iter().flat_map(log_frames).for_each(|(page, bytes)| put(page, bytes));
    let versions = content.chunks(PAGE_BYTES).enumerate().map(|(n, bytes)| version(bytes, n as u64));
    match versions.collect() {
        Ok(versions) => Recovered::Pages(versions),
        Err(why) => Recovered::Corrupt(why),
    }
}

/// Returns the version of a page.
fn version(bytes: &[u8], number: u64) -> Result<u32, String> {
    let sectors = bytes.chunks(SECTOR_BYTES).enumerate();
    let sectors: Vec<Sector> =
        sectors.map(|(n, sector)| stamp::recognise(sector, number * PAGE_SECTORS + n as u64)).collect();
    match sectors[0] {
        Sector::Of { version, .. } if sectors.iter().all(|sector| *sector == sectors[0]) => Ok(version),
        _ => Err(format!("page {} has {sectors:?}", number + 1)),
    }
}

/// Returns the pages that a journal restores.
fn journal_records(journal: &[u8]) -> Vec<(u32, &[u8])> {
    if !journal.starts_with(&JOURNAL_MAGIC) || journal.len() < JOURNAL_HEADER_BYTES {
        return Vec::new();
    }
    let count = word(journal, 8) as usize;
    let records = journal[JOURNAL_HEADER_BYTES..].chunks_exact(JOURNAL_RECORD_BYTES).take(count);
    let records = records.map(|record| {
        let (page, content) = (word(record, 0), &record[4..4 + PAGE_BYTES]);
        (word(record, 4 + PAGE_BYTES) == sum(page, content)).then_some((page, content))
    });
    records.map_while(|record| record).collect()
}

/// Returns the committed pages of a log, the oldest first.
fn log_frames(log: &[u8]) -> Vec<(u32, &[u8])> {
    let Some(header) = log.get(..LOG_HEADER_BYTES) else { return Vec::new() };
    let salt = word(header, 4);
    if word(header, 0) != LOG_MAGIC || word(header, 28) != sum(salt, &header[..8]) {
        return Vec::new();
    }
    let (mut frames, mut committed, mut so_far) = (Vec::new(), 0, salt);
    for frame in log[LOG_HEADER_BYTES..].chunks_exact(LOG_FRAME_BYTES) {
        so_far = sum(sum(so_far, &frame[..12]), &frame[24..]);
        if word(frame, 8) != salt || word(frame, 12) != so_far {
            break;
        }
        frames.push((word(frame, 0), &frame[24..]));
        if word(frame, 4) != 0 {
            committed = frames.len();
        }
    }
    frames.truncate(committed);
    frames
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(std::array::from_fn(|n| bytes[at + n]))
}

/// FNV-1a (Fowler, Noll, Vo), begun with a number.
fn sum(start: u32, bytes: &[u8]) -> u32 {
    let start = start.to_le_bytes();
    let all = start.iter().chain(bytes);
    all.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database() -> Vec<u8> {
        [page(9, 1, 1), page(9, 1, 2), page(9, 1, 3)].concat()
    }

    #[test]
    fn a_journal_restores_its_pages_once_their_number_is_known() {
        let mut torn = database();
        torn[4096..5000].copy_from_slice(&page(9, 2, 2)[..904]);
        let record = journal_record(2, &page(9, 1, 2));
        let mut journal = [&journal_header()[..], &record].concat();
        assert!(matches!(recover(Some(torn.clone()), Some(&journal), None, 3), Recovered::Corrupt(_)));
        journal[..12].copy_from_slice(&journal_start(1));
        assert_eq!(recover(Some(torn.clone()), Some(&journal), None, 3), Recovered::Pages(vec![1, 1, 1]));
        journal[600] ^= 1;
        assert!(matches!(recover(Some(torn), Some(&journal), None, 3), Recovered::Corrupt(_)));
    }

    #[test]
    fn a_log_counts_up_to_its_last_whole_commit() {
        let mut log = log_header(77).to_vec();
        let mut so_far = 77;
        for (number, commit, version) in [(2, Commit::No, 2), (1, Commit::Yes, 2), (3, Commit::Yes, 3)] {
            let (frame, sum) = log_frame(number, commit, 77, so_far, &page(9, version, number));
            log.extend(frame);
            so_far = sum;
        }
        let state = |log: &[u8]| recover(Some(database()), None, Some(log), 3);
        assert_eq!(state(&log), Recovered::Pages(vec![2, 2, 3]));
        assert_eq!(state(&log[..log.len() - 1]), Recovered::Pages(vec![2, 2, 1]));
        log[LOG_HEADER_BYTES + LOG_FRAME_BYTES + 100] ^= 1;
        assert_eq!(state(&log), Recovered::Pages(vec![1, 1, 1]));
        assert_eq!(recover(None, None, Some(&log), 3), Recovered::Missing);
    }
}
