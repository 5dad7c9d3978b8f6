//! Progress of a study, in a file beside its records, for those who watch it.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use crate::{plan::time_left, record::write_json};

/// Name of the file within a study's directory.
pub const FILE: &str = "progress.json";

/// Progress of the last call that ran the study.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Number of cells.
    pub cells: usize,
    /// Cells that had a record when the call began.
    pub kept: usize,
    /// Cells that have ended since, with the failed ones.
    pub ended: usize,
    /// The running cells by name, with the second since 1970 in which each began.
    pub running: BTreeMap<String, u64>,
    /// Second since 1970 in which the call began.
    pub started_at: u64,
    /// True once the call has ended or was stopped.
    pub is_over: bool,
}

impl Progress {
    /// Reads the progress of a study; `None` if the file is missing or unreadable.
    pub fn read(study: &Path) -> Option<Progress> {
        serde_json::from_slice(&fs::read(study.join(FILE)).ok()?).ok()
    }

    /// Estimates the remaining time at a second since 1970.
    pub fn left(&self, now_s: u64) -> Option<Duration> {
        let passed = Duration::from_secs(now_s.saturating_sub(self.started_at));
        if self.is_over { None } else { time_left(self.ended, self.cells.saturating_sub(self.kept), passed) }
    }
}

/// Returns the second since 1970.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The file of a running study.
pub(crate) struct ProgressFile {
    study: PathBuf,
    progress: Progress,
}

impl ProgressFile {
    /// Begins a call of a study with this number of cells.
    pub(crate) fn begin(study: &Path, cells: usize, kept: usize) -> ProgressFile {
        let progress = Progress { cells, kept, started_at: now_s(), ..Progress::default() };
        let file = ProgressFile { study: study.to_owned(), progress };
        file.write();
        file
    }

    /// Notes that a cell has begun.
    pub(crate) fn cell_begins(&mut self, cell: String) {
        self.progress.running.insert(cell, now_s());
        self.write();
    }

    /// Notes that a cell has ended, successfully or not.
    pub(crate) fn cell_ends(&mut self, cell: &str) {
        self.progress.running.remove(cell);
        self.progress.ended += 1;
        self.write();
    }

    /// Notes the end of the call.
    pub(crate) fn end(mut self) {
        self.progress.running.clear();
        self.progress.is_over = true;
        self.write();
    }

    fn write(&self) {
        // The study is worth more than its progress: a full disk is told when a record cannot be written.
        let _: io::Result<()> = write_json(&self.study, FILE, &self.progress);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read_back_while_a_study_runs_and_after_it() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Progress::read(dir.path()), None);
        let mut file = ProgressFile::begin(dir.path(), 5, 1);
        let read = || Progress::read(dir.path()).unwrap();
        assert_eq!((read().cells, read().kept, read().ended, read().is_over), (5, 1, 0, false));
        file.cell_begins("a".into());
        file.cell_begins("b".into());
        file.cell_ends("a");
        assert_eq!((read().running.into_keys().collect::<Vec<_>>(), read().ended), (vec!["b".to_owned()], 1));
        let progress = Progress { started_at: 100, ..read() };
        assert_eq!(progress.left(110), Some(Duration::from_secs(30)), "three of four cells are left");
        file.end();
        assert!(read().is_over && read().running.is_empty() && read().left(u64::MAX).is_none());
    }
}
