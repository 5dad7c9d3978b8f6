//! Repeated overwrites of a file, with the time of each write.

use std::{
    fs::{File, OpenOptions},
    io, iter,
    path::Path,
};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::{
    content::{SplitMix, noise},
    pattern::{Order, RecordFile},
};

/// Overwrites of an existing file, one record after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overwrites {
    /// Order of the records.
    pub course: Course,
    /// Length of the overwritten part, from the file's start; a whole number of records.
    pub file_bytes: u64,
    /// Length of a record.
    pub record_bytes: u32,
    /// Number of writes.
    pub writes: u64,
    /// True if each write is synced by fsync(2) before the next.
    pub sync: bool,
}

/// Order of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Course {
    /// Sequential; after the last record, the first again.
    Round,
    /// Random, with repetitions.
    Anywhere {
        /// Seed of the choice.
        seed: u64,
    },
    /// Random, each record once; after the last record, the same order again.
    Shuffled {
        /// Seed of the order.
        seed: u64,
    },
}

impl Course {
    /// Returns the numbers of the records, without end.
    fn of(self, records: u64) -> Box<dyn Iterator<Item = u64>> {
        match self {
            Course::Round => Box::new((0..records).cycle()),
            Course::Anywhere { seed } => {
                let mut random = SplitMix(seed);
                Box::new(iter::repeat_with(move || random.next() % records))
            }
            Course::Shuffled { seed } => {
                let order: Vec<u64> = Order::Random { seed }.of(records).collect();
                Box::new(order.into_iter().cycle())
            }
        }
    }
}

impl Overwrites {
    /// Overwrites the file at `path`. Returns the duration of each write in nanoseconds.
    ///
    /// # Errors
    /// Those of [`run_on`](Self::run_on).
    pub fn run(&self, path: &Path) -> io::Result<Vec<u64>> {
        let mut file: File = OpenOptions::new().write(true).open(path)?;
        self.run_on(&mut file, &mut |_| now_ns())
    }

    /// Overwrites an open file. The clock is read once per write, as in lavinen-2003, so the times add up to
    /// the total.
    ///
    /// # Errors
    /// The file's, and [`io::ErrorKind::InvalidInput`] if the lengths are invalid.
    pub fn run_on<F: RecordFile>(
        &self,
        file: &mut F,
        clock: &mut dyn FnMut(&F) -> u64,
    ) -> io::Result<Vec<u64>> {
        let length = u64::from(self.record_bytes);
        if length == 0 || self.file_bytes < length || self.file_bytes % length != 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a whole number of records"));
        }
        let records = self.file_bytes / length;
        let mut record = vec![0; self.record_bytes as usize];
        let mut times = Vec::new();
        let mut before = clock(file);
        for (write, n) in (0..self.writes).zip(self.course.of(records)) {
            // Always differs from the present content.
            noise(write, &mut record);
            file.write_record(&record, n * length)?;
            if self.sync {
                file.sync()?;
            }
            let now = clock(file);
            times.push(now.saturating_sub(before));
            before = now;
        }
        Ok(times)
    }
}

/// The machine's monotonic clock.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file whose clock advances by one with each record, and by ten with each sync.
    #[derive(Default)]
    struct Clocked {
        now: u64,
        written: Vec<u64>,
        last: Vec<u8>,
    }

    impl RecordFile for Clocked {
        fn read_record(&mut self, _: &mut [u8], _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn write_record(&mut self, record: &[u8], at: u64) -> io::Result<()> {
            assert_ne!(record, self.last);
            self.last = record.to_vec();
            self.now += 1;
            self.written.push(at / 512);
            Ok(())
        }

        fn sync(&mut self) -> io::Result<()> {
            self.now += 10;
            Ok(())
        }
    }

    fn overwrites(course: Course) -> Overwrites {
        Overwrites { course, file_bytes: 4 * 512, record_bytes: 512, writes: 10, sync: true }
    }

    #[test]
    fn each_write_has_its_time() {
        let mut file = Clocked::default();
        let times = overwrites(Course::Round).run_on(&mut file, &mut |file| file.now).unwrap();
        assert_eq!(times, [11; 10]);
        assert_eq!(file.written, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]);

        let random = |seed| {
            let mut file = Clocked::default();
            overwrites(Course::Anywhere { seed }).run_on(&mut file, &mut |file| file.now).unwrap();
            file.written
        };
        assert_eq!(random(1), random(1));
        assert_ne!(random(1), random(2));
        assert!(random(1).iter().all(|n| *n < 4));
    }

    #[test]
    fn a_shuffled_course_takes_each_record_once_before_it_repeats() {
        let order = |seed| Course::Shuffled { seed }.of(100).take(200).collect::<Vec<u64>>();
        let (first, second) = (order(1)[..100].to_vec(), order(1)[100..].to_vec());
        assert_eq!(first, second);
        assert_ne!(order(1), order(2));
        let mut sorted = first;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<u64>>());
    }

    #[test]
    fn a_file_is_written_over_and_does_not_grow() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let none = overwrites(Course::Round).run(&path).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
        std::fs::write(&path, [0; 2048]).unwrap();
        let times = overwrites(Course::Round).run(&path).unwrap();
        assert_eq!((times.len(), path.metadata().unwrap().len()), (10, 2048));
        let half = Overwrites { file_bytes: 100, ..overwrites(Course::Round) }.run(&path).unwrap_err();
        assert_eq!(half.kind(), io::ErrorKind::InvalidInput);
    }
}
