//! Workloads of real programs: SQLite, phones, tar, compilers and years of use.
//!
//! A workload has a seed and some sizes, which fully determine its [`Step`]s. The steps are applied to
//! [`Files`]: a directory of a mounted file system, or an engine in this process.
//!
//! *Invariant*: all data that a workload reads or checks is, byte by byte, the data that its steps wrote
//! there.

mod aging;
mod database;
mod dir;
mod kernel;
mod phone;
mod shadow;
mod step_list;

use std::io;

use serde::{Deserialize, Serialize};

use self::shadow::Shadow;
pub use self::{
    aging::Aging,
    database::{Change, Database, FIRST_ROW, Journal, ROWS, VALUE_BYTES},
    dir::Dir,
    kernel::{KernelBuild, KernelTree},
    phone::Phone,
    step_list::{StepList, StepListError},
};
use crate::content::SplitMix;

/// A workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// Transactions of SQLite.
    Transactions {
        /// Journal mode of the transactions.
        journal: Journal,
        /// Number of transactions.
        transactions: u64,
        /// Seed for the choice of rows.
        seed: u64,
    },
    /// A day of a phone.
    Phone(Phone),
    /// Unpacking of a kernel's sources from an archive.
    Untar(KernelTree),
    /// Compilation of a kernel's sources.
    Build(KernelBuild),
    /// Years of use.
    Aging(Aging),
}

/// A stage of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Makes the required files.
    Prepare,
    /// The workload itself.
    Run,
    /// Reads and compares all resulting files.
    Check,
}

/// One step. Paths are relative to the workload's directory; a directory's own path is empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are clear")]
pub enum Step {
    MakeDir {
        path: String,
    },
    /// Opens a file, makes it if it does not exist, and keeps it open.
    Write {
        path: String,
        at: u64,
        length: u64,
    },
    /// Opens a file and keeps it open.
    Read {
        path: String,
        at: u64,
        length: u64,
    },
    Truncate {
        path: String,
        size: u64,
    },
    /// fsync(2) of a file or directory.
    Fsync {
        path: String,
    },
    /// fdatasync(2) of a file or directory.
    Fdatasync {
        path: String,
    },
    Close {
        path: String,
    },
    Rename {
        from: String,
        to: String,
    },
    /// An open file is closed first.
    Remove {
        path: String,
    },
    /// sync(2).
    SyncAll,
    /// A unit of the workload ends: a transaction, an action, a file.
    Done,
}

/// The files that workloads are applied to.
#[allow(missing_docs, reason = "they are the steps")]
pub trait Files {
    fn make_dir(&mut self, path: &str) -> io::Result<()>;
    fn write(&mut self, path: &str, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Fills `bytes`.
    fn read(&mut self, path: &str, at: u64, bytes: &mut [u8]) -> io::Result<()>;
    fn truncate(&mut self, path: &str, size: u64) -> io::Result<()>;
    fn fsync(&mut self, path: &str) -> io::Result<()>;
    fn fdatasync(&mut self, path: &str) -> io::Result<()>;
    fn close(&mut self, path: &str) -> io::Result<()>;
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&mut self, path: &str) -> io::Result<()>;
    fn sync_all(&mut self) -> io::Result<()>;
    /// Returns the size of a file.
    fn size(&mut self, path: &str) -> io::Result<u64>;
    /// Returns the time in nanoseconds of the clock that times units.
    fn now_ns(&mut self) -> u64;
    /// Returns true if reads return the written data; a null target does not keep it.
    fn keeps(&self) -> bool {
        true
    }
}

/// Maximum size of a read or write in bytes, whatever a step's length.
const PIECE_BYTES: u64 = 1 << 20;

impl Workload {
    /// Returns the steps that make the workload's files.
    pub fn preparation(&self) -> Box<dyn Iterator<Item = Step>> {
        match *self {
            Workload::Transactions { journal, .. } => {
                let mut steps = Vec::new();
                Database::new("test.db", journal).create(&mut steps);
                Box::new(steps.into_iter())
            }
            Workload::Phone(phone) => phone.preparation(),
            Workload::Build(build) => build.tree.steps(),
            Workload::Untar(_) | Workload::Aging(_) => Box::new(std::iter::empty()),
        }
    }

    /// Returns the steps of the workload itself.
    pub fn steps(&self) -> Box<dyn Iterator<Item = Step>> {
        match *self {
            Workload::Transactions { journal, transactions, seed } => {
                let mut database = Database::new("test.db", journal);
                let mut random = SplitMix(seed);
                Box::new((0..=transactions).flat_map(move |n| {
                    let mut steps = Vec::new();
                    match n < transactions {
                        true => {
                            database.change(&mut random, &mut steps);
                            steps.push(Step::Done);
                        }
                        false => database.close(&mut steps),
                    }
                    steps
                }))
            }
            Workload::Phone(phone) => phone.steps(),
            Workload::Untar(tree) => tree.steps(),
            Workload::Build(build) => build.steps(),
            Workload::Aging(aging) => aging.steps(),
        }
    }

    /// Runs a stage. Returns the durations of its units in nanoseconds, none for a check.
    ///
    /// # Errors
    /// Those of the files, and [`io::ErrorKind::InvalidData`] if they hold other data than was written.
    pub fn run_on(&self, stage: Stage, files: &mut dyn Files) -> io::Result<Vec<u64>> {
        run_stage(stage, self.preparation(), self.steps(), files)
    }
}

/// Runs a stage of a workload that has these steps.
fn run_stage(
    stage: Stage,
    preparation: impl Iterator<Item = Step>,
    steps: impl Iterator<Item = Step>,
    files: &mut dyn Files,
) -> io::Result<Vec<u64>> {
    let mut shadow = Shadow::default();
    if stage == Stage::Prepare {
        return perform(preparation, &mut shadow, files);
    }
    preparation.for_each(|step| shadow.note(&step));
    if stage == Stage::Run {
        return perform(steps, &mut shadow, files);
    }
    steps.for_each(|step| shadow.note(&step));
    shadow.check(files).map(|()| Vec::new())
}

fn perform(
    steps: impl Iterator<Item = Step>,
    shadow: &mut Shadow,
    files: &mut dyn Files,
) -> io::Result<Vec<u64>> {
    let mut times = Vec::new();
    let mut before = files.now_ns();
    let mut bytes = Vec::new();
    for step in steps {
        shadow.note(&step);
        match &step {
            Step::MakeDir { path } => files.make_dir(path)?,
            Step::Write { path, at, length } => {
                for (at, length) in pieces(*at, *length) {
                    bytes.resize(length, 0);
                    shadow.written(at, &mut bytes);
                    files.write(path, at, &bytes)?;
                }
            }
            Step::Read { path, at, length } => {
                for (at, length) in pieces(*at, *length) {
                    bytes.resize(length, 0);
                    files.read(path, at, &mut bytes)?;
                    shadow.compare(path, at, &bytes).or_else(|error| match files.keeps() {
                        true => Err(error),
                        false => Ok(()),
                    })?;
                }
            }
            Step::Truncate { path, size } => files.truncate(path, *size)?,
            Step::Fsync { path } => files.fsync(path)?,
            Step::Fdatasync { path } => files.fdatasync(path)?,
            Step::Close { path } => files.close(path)?,
            Step::Rename { from, to } => files.rename(from, to)?,
            Step::Remove { path } => files.remove(path)?,
            Step::SyncAll => files.sync_all()?,
            Step::Done => {
                let now = files.now_ns();
                times.push(now.saturating_sub(before));
                before = now;
            }
        }
    }
    Ok(times)
}

/// Splits a range into pieces: offsets and lengths.
fn pieces(at: u64, length: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..length.div_ceil(PIECE_BYTES))
        .map(move |n| (at + n * PIECE_BYTES, (length - n * PIECE_BYTES).min(PIECE_BYTES) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workloads() -> [Workload; 6] {
        let tree = KernelTree { files: 600 };
        let transactions = |journal| Workload::Transactions { journal, transactions: 40, seed: 1 };
        [
            transactions(Journal::Delete),
            transactions(Journal::Wal),
            Workload::Phone(Phone { actions: 60, seed: 1 }),
            Workload::Untar(tree),
            Workload::Build(KernelBuild { tree, seed: 1 }),
            Workload::Aging(Aging { live_bytes: 4 << 20, written_bytes: 12 << 20, seed: 1 }),
        ]
    }

    #[test]
    fn a_load_leaves_its_written_data_and_a_changed_byte_is_found() {
        for workload in workloads() {
            let dir = tempfile::tempdir().unwrap();
            let run = |stage| workload.run_on(stage, &mut Dir::new(dir.path().to_owned()));
            run(Stage::Prepare).unwrap();
            let times = run(Stage::Run).unwrap();
            let units = workload.steps().filter(|step| *step == Step::Done).count();
            assert!(times.len() == units && units > 10, "{workload:?}: {units}");
            run(Stage::Check).unwrap();

            let largest = walk(dir.path()).into_iter().max_by_key(|path| path.metadata().unwrap().len());
            let path = largest.unwrap();
            let mut content = std::fs::read(&path).unwrap();
            let middle = content.len() / 2;
            content[middle] ^= 1;
            std::fs::write(&path, content).unwrap();
            let error = run(Stage::Check).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{workload:?}: {error}");
        }
    }

    #[test]
    fn a_seed_always_gives_the_same_steps() {
        for workload in workloads() {
            assert!(workload.steps().eq(workload.steps()), "{workload:?}");
        }
        let phone = |seed| Phone { actions: 60, seed }.steps();
        assert!(!phone(1).eq(phone(2)));
    }

    fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
        let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
    }
}
