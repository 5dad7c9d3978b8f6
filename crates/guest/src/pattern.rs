//! Record-by-record reads and writes of a file, as in benchmarks.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::Path,
};

use serde::{Deserialize, Serialize};

use crate::{
    content::{SplitMix, noise},
    room,
};

/// Accesses to a file. Each record is visited once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pattern {
    /// Read or write.
    pub access: Access,
    /// Order of the records.
    pub order: Order,
    /// Length of the file; a whole number of records.
    pub file_bytes: u64,
    /// Length of a record.
    pub record_bytes: u32,
    /// Time at which written data must be durable.
    pub sync: Sync,
}

/// Kind of access to a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Reads the record and compares it byte by byte with the last written content.
    Read {
        /// True if all records were overwritten after their creation.
        overwritten: bool,
    },
    /// Writes the record to a new, empty file.
    Create,
    /// Overwrites the record's content.
    Overwrite,
}

/// Version of a record's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Created,
    Overwritten,
}

impl Access {
    /// Returns the version that is written, or is there to be read.
    fn version(self) -> Version {
        match self {
            Access::Create | Access::Read { overwritten: false } => Version::Created,
            Access::Overwrite | Access::Read { overwritten: true } => Version::Overwritten,
        }
    }
}

/// Order of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The order in the file.
    Sequential,
    /// Random, the same for the same seed.
    Random {
        /// Seed of the order.
        seed: u64,
    },
}

/// Times of fsync(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sync {
    /// Never.
    Never,
    /// After each record.
    Each,
    /// After the last.
    End,
}

/// The file that a pattern is applied to: one of a mounted file system, or of an engine in this process.
pub trait RecordFile {
    /// Reads `record` from byte `at` on.
    fn read_record(&mut self, record: &mut [u8], at: u64) -> io::Result<()>;
    /// Writes `record` at byte `at`.
    fn write_record(&mut self, record: &[u8], at: u64) -> io::Result<()>;
    /// Makes written data durable.
    fn sync(&mut self) -> io::Result<()>;
}

impl RecordFile for File {
    fn read_record(&mut self, record: &mut [u8], at: u64) -> io::Result<()> {
        self.read_exact_at(record, at)
    }

    fn write_record(&mut self, record: &[u8], at: u64) -> io::Result<()> {
        room::wait_for(|| self.write_all_at(record, at))
    }

    fn sync(&mut self) -> io::Result<()> {
        room::wait_for(|| self.sync_all())
    }
}

impl Pattern {
    /// Applies the pattern to the file at `path`. Returns the number of records.
    ///
    /// # Errors
    /// Those of [`run_on`](Self::run_on).
    pub fn run(&self, path: &Path) -> io::Result<u64> {
        self.records()?;
        self.run_on(&mut self.open(path)?)
    }

    /// Applies the pattern to an open file, which must be empty if records are created. Returns the number of
    /// records.
    ///
    /// # Errors
    /// The file's; [`io::ErrorKind::InvalidData`] if a record differs from the written one;
    /// [`io::ErrorKind::InvalidInput`] if the lengths are invalid.
    pub fn run_on(&self, file: &mut dyn RecordFile) -> io::Result<u64> {
        let (records, length) = (self.records()?, u64::from(self.record_bytes));
        let mut record = vec![0; self.record_bytes as usize];
        let mut wanted = record.clone();
        let version = self.access.version();
        for n in self.order.of(records) {
            let at = n * length;
            match self.access {
                Access::Read { .. } => {
                    file.read_record(&mut record, at)?;
                    fill(&mut wanted, n, version);
                    if record != wanted {
                        let what = format!("record {n} differs from the written data");
                        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
                    }
                }
                Access::Create | Access::Overwrite => {
                    fill(&mut record, n, version);
                    file.write_record(&record, at)?;
                    if self.sync == Sync::Each {
                        file.sync()?;
                    }
                }
            }
        }
        if self.sync == Sync::End {
            file.sync()?;
        }
        Ok(records)
    }

    /// Returns the number of records.
    fn records(&self) -> io::Result<u64> {
        let length = u64::from(self.record_bytes);
        if length == 0 || self.file_bytes % length != 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a whole number of records"));
        }
        Ok(self.file_bytes / length)
    }

    /// Opens the file at `path` for the pattern, and empties it if records are created.
    ///
    /// # Errors
    /// The file's.
    pub fn open(&self, path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        match self.access {
            Access::Read { .. } => options.read(true),
            Access::Create => options.write(true).create(true).truncate(true),
            Access::Overwrite => options.write(true),
        };
        room::wait_for(|| options.open(path))
    }
}

/// Writes the content of a record: different noise in each, and new noise for an overwrite, so that no layer
/// above the flash can save work by compression, comparison, or leaving out a write.
fn fill(record: &mut [u8], n: u64, version: Version) {
    let seed = match version {
        Version::Created => n << 1,
        Version::Overwritten => n << 1 | 1,
    };
    noise(SplitMix(seed).next(), record);
}

impl Order {
    /// Returns the numbers of the records.
    pub(crate) fn of(self, records: u64) -> Box<dyn Iterator<Item = u64>> {
        match self {
            Order::Sequential => Box::new(0..records),
            Order::Random { seed } => {
                let mut order: Vec<u64> = (0..records).collect();
                let mut random = SplitMix(seed);
                for n in (1..order.len()).rev() {
                    order.swap(n, (random.next() % (n as u64 + 1)) as usize);
                }
                Box::new(order.into_iter())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(access: Access, order: Order) -> Pattern {
        Pattern { access, order, file_bytes: 64 * 512, record_bytes: 512, sync: Sync::End }
    }

    #[test]
    fn data_written_in_one_order_is_read_in_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        assert_eq!(pattern(Access::Create, Order::Sequential).run(&path).unwrap(), 64);
        let random = Order::Random { seed: 7 };
        assert_eq!(pattern(Access::Overwrite, random).run(&path).unwrap(), 64);
        let read = |overwritten, order| pattern(Access::Read { overwritten }, order).run(&path);
        assert_eq!(read(true, random).unwrap(), 64);
        let error = read(false, random).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "a lost overwrite is seen");
        assert_eq!(path.metadata().unwrap().len(), 64 * 512);

        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(b"another", 512 * 10 - 7).unwrap();
        let error = read(true, Order::Sequential).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_random_order_visits_each_record_once_and_seeds_matter() {
        let order = |seed| Order::Random { seed }.of(1000).collect::<Vec<u64>>();
        let mut sorted = order(1);
        assert_ne!(sorted, (0..1000).collect::<Vec<u64>>());
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<u64>>());
    }

    #[test]
    fn half_a_record_is_refused() {
        let pattern = Pattern { record_bytes: 500, ..pattern(Access::Create, Order::Sequential) };
        let error = pattern.run(Path::new("/nonexistent/file")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
