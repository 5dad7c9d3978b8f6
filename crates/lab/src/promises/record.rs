//! Results of power cuts: counts, and the evidence of each broken promise.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    dirty_mark::DirtyMark,
    log::CardFailure,
    promise::{Fault, Kind},
};
use crate::{
    check::Check,
    record::{Made, Versions, bytes_of, write_json},
    rivals::FileSystem,
};

/// Version of the record format.
pub const FORM: u32 = 2;
/// Maximum number of lost writes that are listed for a broken promise.
pub(super) const LOST_WRITES: usize = 8;
/// Folder of the records within a study's directory.
const FOLDER: &str = "power-cuts";

/// Results of one file system on one card.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PromiseRecord {
    /// Version of the record format.
    pub form: u32,
    /// The file system.
    pub file_system: FileSystem,
    /// Name of the card's profile.
    pub card: String,
    /// Size of the card in bytes.
    pub card_bytes: u64,
    /// Seed of scripts and cuts.
    pub seed: u64,
    /// Date and command.
    pub made: Made,
    /// Versions of all programs that were involved.
    pub versions: Versions,
    /// Counts for each failure of the card.
    pub tallies: BTreeMap<CardFailure, Tally>,
    /// Cuts with a finding.
    pub findings: Vec<CutReport>,
    /// Reason if the run ended early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// Counts of cuts and promises.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Number of cuts.
    pub cuts: u64,
    /// Volumes that could not be mounted.
    pub not_mounted: u64,
    /// Cuts after which the kernel died.
    pub died: u64,
    /// Volumes in which the checker found faults, after a mount and an unmount without an error, besides the mark
    /// of a volume in use.
    pub faulty: u64,
    /// Volumes with that mark.
    #[serde(default)]
    pub marked_dirty: u64,
    /// Volumes that were checked.
    pub checked: u64,
    /// Promises in force on volumes that could not be mounted.
    pub unreachable: u64,
    /// Promises by kind.
    pub promises: BTreeMap<Kind, Outcomes>,
    /// The same for kinds that this file system does not promise.
    pub unpromised: BTreeMap<Kind, Outcomes>,
    /// Durations of the mounts on the card's clock.
    pub recovered_ns: Vec<u64>,
}

/// Counts of one kind of promise.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcomes {
    /// Promises kept.
    pub kept: u64,
    /// Promises broken, by fault.
    pub broken: BTreeMap<Fault, u64>,
}

impl Outcomes {
    /// Number of broken promises.
    pub fn broken_count(&self) -> u64 {
        self.broken.values().sum()
    }
}

/// Result of one cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutReport {
    /// ID, for a replay.
    pub id: String,
    /// Number of requests of the card's log before the cut.
    pub requests: usize,
    /// Number of promises in force.
    pub promises: usize,
    /// Number of promises kept by kind, promised or not.
    #[serde(default)]
    pub kept: BTreeMap<Kind, u64>,
    /// Broken promises.
    pub broken: Vec<Broken>,
    /// Duration of the mount on the card's clock; `None` if the volume could not be mounted.
    pub recovered_ns: Option<u64>,
    /// True if the kernel died.
    #[serde(default)]
    pub has_died: bool,
    /// Errors of the mount, of the unmount, and of the kernel in between.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub said: Vec<String>,
    /// Result of the checker after the recovery, without the mark of a volume in use.
    pub check: Check,
    /// The mark of a volume in use (FAT, exFAT), which remains until a checker clears it.
    #[serde(default, skip_serializing_if = "DirtyMark::is_absent")]
    pub dirty_mark: DirtyMark,
}

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broken {
    /// Number of the promise in the script of the cut's round.
    pub promise: usize,
    /// Its source.
    pub kind: Kind,
    /// True if the file system promises this kind.
    pub is_promised: bool,
    /// The path.
    pub path: String,
    /// Number of requests of the log after which it was in force.
    pub since_request: usize,
    /// The operation that made it.
    pub made_by: String,
    /// The fault.
    pub fault: Fault,
    /// The required state.
    pub required: String,
    /// The state that was found.
    pub found: String,
    /// Writes that the card got before the promise was in force and lost, at most [`LOST_WRITES`]: evidence that the file
    /// system promised too early, or that the card ignored a flush. Without one, the card had all that was promised.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost_writes: Vec<LostWrite>,
}

/// A write that a card lost, or of which it kept a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostWrite {
    /// Number of the request.
    pub request: usize,
    /// Offset in bytes.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub length_bytes: u64,
    /// Number of the last flush before the promise, if it was sent before this write was answered: such a flush does not
    /// cover the write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_flush: Option<usize>,
}

impl CutReport {
    /// Returns true if there is something to tell.
    pub fn has_finding(&self) -> bool {
        !self.broken.is_empty() || self.recovered_ns.is_none() || self.has_died || self.check.has_faults()
    }
}

impl Tally {
    /// Counts a cut.
    pub fn count(&mut self, report: &CutReport, is_promised: impl Fn(Kind) -> bool) {
        self.cuts += 1;
        self.died += u64::from(report.has_died);
        self.recovered_ns.extend(report.recovered_ns);
        if report.recovered_ns.is_none() {
            self.not_mounted += 1;
            self.unreachable += report.promises as u64;
        }
        self.checked += u64::from(!matches!(report.check, Check::NotChecked { .. }));
        self.faulty += u64::from(report.check.has_faults());
        self.marked_dirty += u64::from(report.dirty_mark == DirtyMark::Present);
        let (promises, unpromised) = (&mut self.promises, &mut self.unpromised);
        let mut of = |kind: Kind| match is_promised(kind) {
            true => std::mem::take(promises.entry(kind).or_default()),
            false => std::mem::take(unpromised.entry(kind).or_default()),
        };
        let mut changed: BTreeMap<Kind, Outcomes> = BTreeMap::new();
        for (kind, count) in &report.kept {
            changed.entry(*kind).or_insert_with(|| of(*kind)).kept += count;
        }
        for broken in &report.broken {
            let outcomes = changed.entry(broken.kind).or_insert_with(|| of(broken.kind));
            *outcomes.broken.entry(broken.fault).or_default() += 1;
        }
        for (kind, outcomes) in changed {
            let map = if is_promised(kind) { &mut self.promises } else { &mut self.unpromised };
            map.insert(kind, outcomes);
        }
    }

    /// Number of promises kept, of those that the file system makes.
    pub fn kept(&self) -> u64 {
        self.promises.values().map(|outcomes| outcomes.kept).sum()
    }

    /// Number of promises broken, of those that the file system makes, on volumes that could be mounted.
    pub fn broken(&self) -> u64 {
        self.promises.values().map(Outcomes::broken_count).sum()
    }

    /// Number of promises broken by a fault.
    pub fn broken_by(&self, fault: Fault) -> u64 {
        self.promises.values().filter_map(|outcomes| outcomes.broken.get(&fault)).sum()
    }

    /// Median and maximum of the durations of the mounts.
    pub fn recovery_ns(&self) -> Option<(u64, u64)> {
        let mut all = self.recovered_ns.clone();
        all.sort_unstable();
        Some((*all.get(all.len() / 2)?, *all.last()?))
    }
}

impl PromiseRecord {
    /// Returns the name of the record's file without its ending. File systems, cards and seeds have records of their
    /// own.
    fn stem(&self) -> String {
        let (file_system, card, seed) = (&self.file_system, &self.card, self.seed);
        let of_name = |c: char| if c.is_ascii_alphanumeric() || "-=,".contains(c) { c } else { '_' };
        let name: String = file_system.name().chars().map(of_name).collect();
        format!("{}.{card}.{seed}", name.trim_end_matches('_'))
    }

    /// Returns the folder of the results of single cuts.
    pub(super) fn folder(&self, dir: &Path) -> PathBuf {
        dir.join(FOLDER).join(self.stem())
    }

    /// Writes the record atomically.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn put(&self, dir: &Path) -> io::Result<()> {
        let folder = dir.join(FOLDER);
        fs::create_dir_all(&folder)?;
        write_json(&folder, &format!("{}.json", self.stem()), self)
    }
}

/// Returns all records of a study's directory, ours first.
///
/// # Errors
/// The folder or a file in it cannot be read.
pub fn read_all(dir: &Path) -> io::Result<Vec<PromiseRecord>> {
    let mut records: Vec<PromiseRecord> = Vec::new();
    let entries = match fs::read_dir(dir.join(FOLDER)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(records),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "json") {
            let record = serde_json::from_slice(&bytes_of(&path)?);
            records.push(record.map_err(|error| {
                io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display()))
            })?);
        }
    }
    records.sort_by_key(|it| (it.card.clone(), !it.file_system.is_ours(), it.file_system.name()));
    Ok(records)
}
