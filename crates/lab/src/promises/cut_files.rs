//! Results of single cuts, one file each, so that an interrupted run continues where it stopped.
//!
//! *Invariant*: a file counts only for the setup that it names: program, file system, kernel, card and seed. A cut
//! that is made again replaces its own file and no other.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{record::CutReport, task::CutId};
use crate::record::write_json;

/// Results of the cuts of one file system on one card.
pub(super) struct CutFiles {
    dir: PathBuf,
    setup: String,
    kind: String,
}

/// A file: the report of a cut, and a digest of everything that it follows from besides its ID.
#[derive(Serialize, Deserialize)]
struct CutFile {
    setup: String,
    #[serde(flatten)]
    report: CutReport,
}

impl CutFiles {
    /// Opens the folder `dir`, which is created. `setup` is a digest of the setup, `kind` the type of the file
    /// system.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub(super) fn open(dir: &Path, setup: String, kind: &str) -> io::Result<CutFiles> {
        fs::create_dir_all(dir)?;
        Ok(CutFiles { dir: dir.to_owned(), setup, kind: kind.to_owned() })
    }

    /// Returns the report of a cut, if one of this setup is there. A mounted volume that could not be checked is
    /// due again once its checker is installed. An unreadable file counts as missing.
    pub(super) fn get(&self, id: &CutId) -> Option<CutReport> {
        let file: CutFile = serde_json::from_slice(&fs::read(self.dir.join(name(id))).ok()?).ok()?;
        let CutFile { setup, report } = file;
        let is_valid = setup == self.setup && report.id == id.to_string();
        let is_mounted = report.recovered_ns.is_some() && !report.has_died;
        (is_valid && !(is_mounted && report.check.is_due(&self.kind))).then_some(report)
    }

    /// Writes the report of a cut atomically.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn put(&self, id: &CutId, report: &CutReport) -> io::Result<()> {
        let file = CutFile { setup: self.setup.clone(), report: report.clone() };
        write_json(&self.dir, &name(id), &file)
    }
}

/// Returns the name of a cut's file.
fn name(id: &CutId) -> String {
    format!("{id}.json")
}
