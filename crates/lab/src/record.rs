//! Records of a study: one JSON file per cell, with all data that is needed to judge or repeat its figures. The
//! [`Circumstances`], which differ between runs, are in a second file.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use flash::Profile;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    check::Check,
    circumstances::Circumstances,
    experiment::Phase,
    plan::{Age, Cell},
    preset::Preset,
    scale::Scale,
    wear::Wear,
};

/// Version of the record format.
pub const FORM: u32 = 1;

/// The modelled card's own clock: exact.
pub const DEVICE_CLOCK: &str = "device";
/// The host's clock, with a modelled card in real time. The figures include the time of the host and the
/// guest.
pub const INDICATIVE_CLOCK: &str = "host's, indicative";

/// One cell's record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Version of the record format.
    pub form: u32,
    /// Experiment, file system and machine.
    pub cell: Cell,
    /// Options that the file system got because they suit the card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suited: Option<String>,
    /// Seed of random orders and contents.
    pub seed: u64,
    /// Sizes.
    pub scale: Scale,
    /// Aging of the file system before the experiment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age: Option<Age>,
    /// Share of the card that a file fills while writes are timed, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_percent: Option<u64>,
    /// Clock of the figures.
    pub clock: String,
    /// Amount of dirty data at which write-back begins, and at which writers must wait; `None` for an engine
    /// in process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty_bytes: Option<(u64, u64)>,
    /// Name of the card's profile, and a digest of its content.
    pub profile: (String, String),
    /// The card's figures; `None` for a measured directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<Profile>,
    /// Date and command of the measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<Made>,
    /// Versions of all programs that were involved.
    pub versions: Versions,
    /// The measured parts.
    pub phases: Vec<Phase>,
    /// Erase counts of the flash by location, during all parts and between them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wear: Option<Wear>,
    /// Result of the file system's own checker afterwards.
    pub check: Check,
    /// Reason if the cell ended early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Reason if the run for the costs ended early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_failure: Option<String>,
    /// Wall time of the whole cell, in seconds. It is a cost of the study, not a result.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub took_s: f64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(seconds: &f64) -> bool {
    *seconds == 0.0
}

/// Date and command of a measurement.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Made {
    /// Day in UTC, as YYYY-MM-DD.
    pub on: String,
    /// The command line.
    pub by: String,
}

impl Made {
    /// Returns today and the command line of this program.
    pub fn now() -> Made {
        let mut words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        let program = words.next().unwrap_or_default();
        let name = Path::new(&program).file_name().map(|name| name.to_string_lossy().into_owned());
        let by: Vec<String> = name.into_iter().chain(words).collect();
        Made { on: Timestamp::now().strftime("%Y-%m-%d").to_string(), by: by.join(" ") }
    }
}

/// Versions of the programs of a cell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// This program.
    pub flashkit: String,
    /// SHA-256 of this program, which contains the engine, the card and the guest's init.
    #[serde(default)]
    pub build: String,
    /// SHA-256 of the mkfs program; `None` for our own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub formatter: Option<String>,
    /// The guest's kernel; `None` for an engine in process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_kernel: Option<String>,
    /// SHA-256 of the configuration of the guest's kernel, if its build has recorded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_config: Option<String>,
    /// Kernel and architecture of the host.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
}

impl Versions {
    /// Returns the versions on this machine.
    pub fn here() -> Versions {
        let host = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        Versions {
            flashkit: env!("CARGO_PKG_VERSION").to_owned(),
            build: own_build().to_owned(),
            formatter: None,
            guest_kernel: None,
            kernel_config: None,
            host: format!("Linux {} {}", text(host.release()), text(host.machine())),
        }
    }
}

/// Returns the digest of the running program, computed once.
fn own_build() -> &'static str {
    static BUILD: OnceLock<String> = OnceLock::new();
    let read = || digest(fs::File::open(std::env::current_exe()?)?);
    BUILD.get_or_init(|| read().unwrap_or_default())
}

/// Returns the SHA-256 of the bytes in hexadecimal.
pub(crate) fn digest(mut bytes: impl io::Read) -> io::Result<String> {
    let mut digest = Sha256::new();
    io::copy(&mut bytes, &mut digest)?;
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Record {
    /// Returns true if its figures show the order of file systems rather than exact ratios.
    pub fn is_indicative(&self) -> bool {
        self.clock == INDICATIVE_CLOCK
    }

    /// Returns a measured part by name.
    pub fn phase(&self, part: &str) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.part == part)
    }

    /// Number of repetitions of the measurement.
    pub fn runs(&self) -> usize {
        self.phases.iter().filter_map(|phase| Some(phase.runs.as_ref()?.runs.len())).min().unwrap_or(1)
    }

    /// Returns the names of the settings that affect figures and differ between two records, apart from the
    /// file system and our program.
    pub fn differences(&self, other: &Record) -> Vec<&'static str> {
        let same = [
            ("form of the record", self.form == other.form),
            ("seed", self.seed == other.seed),
            ("size", self.scale == other.scale),
            ("age", self.age == other.age),
            ("full share", self.full_percent == other.full_percent),
            ("clock", self.clock == other.clock),
            ("card", self.profile == other.profile),
            ("dirty limit", self.dirty_bytes == other.dirty_bytes),
            ("kernel", self.versions.guest_kernel == other.versions.guest_kernel),
            ("kernel's configuration", self.versions.kernel_config == other.versions.kernel_config),
        ];
        same.into_iter().filter(|(_, same)| !same).map(|(what, _)| what).collect()
    }

    /// Returns true if this is a finished record of `planned`: the same settings, the same program, and no
    /// failure.
    pub fn is_done(&self, planned: &Record) -> bool {
        let (old, new) = (&self.versions, &planned.versions);
        self.failure.is_none()
            && self.cost_failure.is_none()
            && !self.check.has_faults()
            && !self.check.is_due(&self.cell.file_system.kind)
            && self.cell == planned.cell
            && self.suited == planned.suited
            && (&old.flashkit, &old.build, &old.formatter) == (&new.flashkit, &new.build, &new.formatter)
            && self.differences(planned).is_empty()
    }

    /// Returns true if its figures are comparable with another's: all settings that affect figures are equal,
    /// apart from the file system, its environment and the program. For measurements of directories the
    /// devices may differ.
    pub fn is_comparable(&self, other: &Record) -> bool {
        let is_real = self.cell.preset == Preset::Here;
        let told = |one: &Record| (one.form, one.seed, one.scale, one.age, one.full_percent);
        told(self) == told(other)
            && self.clock == other.clock
            && (is_real || self.profile == other.profile)
            && (self.dirty_bytes.is_none()
                || other.dirty_bytes.is_none()
                || self.dirty_bytes == other.dirty_bytes)
    }

    /// Returns true if all parts were measured.
    pub fn is_complete(&self) -> bool {
        self.failure.is_none() && self.phases.len() == self.cell.parts().len()
    }
}

/// A directory of records.
#[derive(Debug, Clone)]
pub struct Records {
    dir: PathBuf,
}

impl Records {
    /// Opens the records in `dir`, which is created. An unwritable directory is detected now and not after
    /// the work.
    ///
    /// # Errors
    /// The directory cannot be created or written to.
    pub fn open(dir: &Path) -> io::Result<Records> {
        let cells = dir.join(CELLS);
        fs::create_dir_all(&cells)?;
        tempfile::tempfile_in(&cells)?;
        Ok(Records { dir: dir.to_owned() })
    }

    /// Opens the records in `dir` for reading.
    pub fn of(dir: &Path) -> Records {
        Records { dir: dir.to_owned() }
    }

    /// Returns the directory of the records.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of a cell's record within the directory; each age has a separate one.
    pub fn name(cell: &Cell, age: Option<Age>) -> String {
        format!("{CELLS}/{}.json", Records::stem(cell, age))
    }

    /// Returns the name of a cell's files without their ending.
    fn stem(cell: &Cell, age: Option<Age>) -> String {
        // The name of a matrix's cell contains its age already.
        let age = age.filter(|_| cell.point.age.is_none());
        let age = age.map(|age| format!(".aged-{}", age.to_string().replace(':', "-"))).unwrap_or_default();
        format!("{}{age}", cell.id())
    }

    /// Returns the record of a cell at an age, if it exists and is readable.
    pub fn get(&self, cell: &Cell, age: Option<Age>) -> Option<Record> {
        self.read(&self.dir.join(Records::name(cell, age))).ok()?.ok()
    }

    /// Writes a record atomically, and before it the circumstances.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn put(&self, record: &Record) -> io::Result<()> {
        let mut bare = record.clone();
        let circumstances = Circumstances::take_from(&mut bare);
        let name = format!("{}.json", Records::stem(&record.cell, record.age));
        fs::create_dir_all(self.dir.join(RUNS))?;
        write_json(&self.dir.join(RUNS), &name, &circumstances)?;
        write_json(&self.dir.join(CELLS), &name, &bare)
    }

    /// Reads a record and its circumstances. A record of an older program contains its circumstances.
    pub(crate) fn read(&self, path: &Path) -> io::Result<serde_json::Result<Record>> {
        let record: serde_json::Result<Record> = serde_json::from_slice(&bytes_of(path)?);
        let mut record = match record {
            Ok(record) => record,
            Err(error) => return Ok(Err(error)),
        };
        let beside = self.dir.join(RUNS).join(path.file_name().unwrap_or_default());
        match bytes_of(&beside).map(|text| serde_json::from_slice::<Circumstances>(&text)) {
            Ok(Ok(circumstances)) => circumstances.put_into(&mut record),
            Ok(Err(error)) => return Ok(Err(error)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(Ok(record))
    }

    /// Returns all records, ordered by preset, experiment and file system. Files in another format, such as
    /// those of an older program, are passed to `passed_over` and skipped.
    ///
    /// # Errors
    /// The directory or a file in it cannot be read.
    pub fn all(&self, passed_over: &mut dyn FnMut(&Path, &serde_json::Error)) -> io::Result<Vec<Record>> {
        let mut records: Vec<Record> = Vec::new();
        for entry in fs::read_dir(self.dir.join(CELLS))? {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == "json") {
                match self.read(&path)? {
                    Ok(record) => records.push(record),
                    Err(error) => passed_over(&path, &error),
                }
            }
        }
        records.sort_by_key(|record| record.cell.rank());
        Ok(records)
    }
}

/// Directory of the records.
pub(crate) const CELLS: &str = "cells";
/// Directory of their circumstances.
pub(crate) const RUNS: &str = "runs";

/// Writes a value atomically: under a temporary name, which is then replaced.
pub(crate) fn write_json(dir: &Path, name: &str, value: &impl Serialize) -> io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    serde_json::to_writer_pretty(&mut file, value)?;
    file.write_all(b"\n")?;
    // Other users of a cluster read the records; temporary files are private.
    let mode = fs::Permissions::from_mode(0o644);
    file.as_file().set_permissions(mode)?;
    file.persist(dir.join(name))?;
    Ok(())
}

/// Maximum size of a file of a record, in bytes. One with the evidence of many power cuts has some megabytes.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Returns the content of a file of a record, which may be somebody else's: a pipe or a device would never end.
pub(crate) fn bytes_of(path: &Path) -> io::Result<Vec<u8>> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        let what = format!("{}: is not a regular file of at most {FILE_BYTES_MAX} bytes", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    fs::read(path)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{
        experiment::{Experiment, Unit},
        preset::Preset,
        rivals::FileSystem,
        systems::FlashWork,
        vm::Totals,
    };

    /// Creates a record with these figures.
    pub fn record(experiment: Experiment, kind: &str, values: &[f64]) -> Record {
        let phase = |(part, value): (&crate::experiment::Part, &f64)| Phase {
            part: part.name.to_owned(),
            value: *value,
            unit: part.unit,
            started_ns: 0,
            duration_ns: match part.unit {
                Unit::S => (*value * 1e9) as u64,
                _ => 1_000_000,
            },
            returned_ns: None,
            records: 1,
            latencies: None,
            progress_ns: Vec::new(),
            totals: Totals::default(),
            flash: FlashWork::default(),
            cost: None,
            steady: None,
            runs: None,
            said: None,
        };
        Record {
            form: FORM,
            cell: Cell::new(experiment, FileSystem::new(kind), Preset::Desktop),
            suited: None,
            seed: 1,
            scale: Scale::of_file(64 << 20),
            age: None,
            full_percent: None,
            clock: DEVICE_CLOCK.into(),
            dirty_bytes: None,
            profile: ("card".into(), "0".into()),
            card: None,
            made: None,
            versions: Versions::default(),
            phases: experiment.parts().iter().zip(values).map(phase).collect(),
            wear: None,
            check: Check::Clean { program: "fsck".into() },
            failure: (values.len() < experiment.parts().len()).then(|| "the run ended early".into()),
            cost_failure: None,
            took_s: 1.0,
        }
    }

    #[test]
    fn records_come_back_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path()).unwrap();
        let second = record(Experiment::Mount, "ext4", &[1.0, 2.0]);
        let first = record(Experiment::BufferedWrite, "ext4", &[1.5]);
        records.put(&second).unwrap();
        records.put(&first).unwrap();
        fs::write(dir.path().join("cells/old.json"), "{\"form\": 0}").unwrap();
        let mut passed_over = Vec::new();
        let all = records.all(&mut |path, _| passed_over.push(path.to_owned())).unwrap();
        assert_eq!(all, [first.clone(), second.clone()]);
        assert_eq!(passed_over, [dir.path().join("cells/old.json")]);
        assert_eq!(records.get(&second.cell, None), Some(second.clone()));
        assert!(
            fs::read_to_string(dir.path().join("runs/mount.ext4.desktop.json")).unwrap().contains("took_s")
        );
        assert!(second.is_complete() && !first.is_complete());
    }

    #[test]
    fn only_a_record_with_the_same_settings_counts_as_done() {
        let planned = record(Experiment::Mount, "f2fs", &[1.0, 2.0]);
        let done = |change: fn(&mut Record)| {
            let mut one = planned.clone();
            change(&mut one);
            one.is_done(&planned)
        };
        assert!(done(|record| record.took_s = 7.0));
        let changes: [fn(&mut Record); 16] = [
            |record| record.cell.file_system.mount = "mode=lfs".into(),
            |record| record.cell.preset = Preset::Phone,
            |record| record.suited = Some("-z 2".into()),
            |record| record.profile.1 = "1".into(),
            |record| record.seed = 2,
            |record| record.scale = Scale::full(),
            |record| record.age = "2".parse().ok(),
            |record| record.full_percent = Some(90),
            |record| record.versions.flashkit = "0.0.1".into(),
            |record| record.versions.build = "another".into(),
            |record| record.versions.formatter = Some("another".into()),
            |record| record.cost_failure = Some("it hung".into()),
            |record| record.versions.guest_kernel = Some("Linux 6.6".into()),
            |record| record.form = 0,
            |record| record.failure = Some("no space".into()),
            |record| record.check = Check::NotChecked { why: "its checker was not installed".into() },
        ];
        for (n, change) in changes.into_iter().enumerate() {
            assert!(!done(change), "{n}");
        }
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_an_error_at_once() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cells"), "a file").unwrap();
        assert!(Records::open(dir.path()).is_err());
    }

    /// A pipe in somebody else's study made `report` wait without end.
    #[test]
    fn only_regular_files_are_read_as_records() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path()).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join(CELLS).join("a.json")).unwrap();
        let error = records.all(&mut |_, _| {}).unwrap_err().to_string();
        assert!(error.contains("a.json: is not a regular file"), "{error}");
    }
}
