//! Experiments in a directory of a real device, in real time. They are repeated, because real time is not
//! exact.

use std::{
    io,
    path::{Path, PathBuf},
    time::Instant,
};

use block::{Mount, mounts};

use crate::{
    check::Check,
    experiment::{Experiment, How, Phase},
    plan::Cell,
    preset::Preset,
    record::{FORM, Made, Record, Versions},
    rivals::FileSystem,
    sample::Sample,
    scale::Scale,
    stop::Stop,
    systems::{DirectoryTarget, can_drop_caches},
    vm::Failure,
};

/// Experiments that work in a directory and need no separate device.
pub const EXPERIMENTS: [Experiment; 5] = [
    Experiment::BufferedWrite,
    Experiment::WriteFsync,
    Experiment::BufferedRead,
    Experiment::Workloads,
    Experiment::Copy,
];
/// Maximum overhead of a small file: the rest of its last block, an inode, its name.
const FILE_BYTES: u64 = 8 << 10;
/// Mean size of a kernel source file, including its share of the compiled objects.
const KERNEL_FILE_BYTES: u64 = 24 << 10;
/// Mean growth per phone action: one in 77 is a photo, one in 500 an app.
const ACTION_BYTES: u64 = 64 << 10;
/// Size of the databases and apps that exist at the start.
const LOADS_BYTES: u64 = 64 << 20;

/// The device and file system behind a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The directory.
    pub dir: PathBuf,
    /// Type of its file system.
    pub kind: String,
    /// Source of the mount.
    pub source: String,
    /// Options of the mount and of the file system.
    pub options: String,
}

impl Place {
    /// Finds the device and file system behind a directory.
    ///
    /// # Errors
    /// The path is no directory, or the kernel does not list its mount.
    pub fn of(dir: &Path) -> io::Result<Place> {
        let dir = dir.canonicalize()?;
        if !dir.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let mount = mount_of(mounts()?, &dir)
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "its mount was not found"))?;
        let (kind, source, options) = facts(mount);
        Ok(Place { dir, kind, source, options })
    }

    /// Returns the number of free bytes for unprivileged users.
    ///
    /// # Errors
    /// The file system does not report it.
    pub fn free_bytes(&self) -> io::Result<u64> {
        let facts = rustix::fs::statvfs(&self.dir)?;
        Ok(facts.f_bavail.saturating_mul(facts.f_frsize))
    }
}

/// Returns the mount that contains a directory: the deepest one, and the last of several at one place.
fn mount_of(mounts: Vec<Mount>, dir: &Path) -> Option<Mount> {
    let around = mounts.into_iter().filter(|mount| dir.starts_with(&mount.dir));
    around.max_by_key(|mount| mount.dir.components().count())
}

/// Returns type, source and options of a mount.
fn facts(mount: Mount) -> (String, String, String) {
    let Mount { kind, source, options, file_system_options, .. } = mount;
    (kind, source, format!("{options};{file_system_options}"))
}

/// A plan of measurements.
#[derive(Debug, Clone)]
pub struct Bench {
    /// Directory to measure in.
    pub place: Place,
    /// Experiments to run.
    pub experiments: Vec<Experiment>,
    /// Sizes.
    pub scale: Scale,
    /// Number of runs.
    pub runs: usize,
    /// Seed of random orders and contents.
    pub seed: u64,
}

/// Progress callback: the experiment, and its number of finished runs.
pub type Progress<'a> = &'a mut dyn FnMut(Experiment, usize);

impl Bench {
    /// Returns the maximum space that the experiments need, in bytes.
    pub fn needed_bytes(&self) -> u64 {
        let Scale {
            buffered_bytes,
            fsync_bytes,
            image_bytes,
            archive_bytes,
            tree_files,
            tree_mean_bytes,
            phone_actions,
            kernel_files,
            ..
        } = self.scale;
        let of = |experiment: &Experiment| match experiment {
            Experiment::Copy => image_bytes + archive_bytes + tree_files * (tree_mean_bytes + FILE_BYTES),
            Experiment::WriteFsync => fsync_bytes,
            Experiment::Workloads => {
                LOADS_BYTES + kernel_files * (KERNEL_FILE_BYTES + FILE_BYTES) + phone_actions * ACTION_BYTES
            }
            _ => buffered_bytes,
        };
        self.experiments.iter().map(of).max().unwrap_or(0)
    }

    /// Measures one experiment; returns `None` if it was stopped before a run was complete.
    ///
    /// # Errors
    /// There is too little space, or a directory cannot be created.
    pub fn run(
        &self,
        experiment: Experiment,
        stop: &Stop,
        progress: Progress<'_>,
    ) -> io::Result<Option<Record>> {
        let (free, needed) = (self.place.free_bytes()?, self.needed_bytes());
        if free < needed {
            let what = format!("{free} bytes are free, and the experiments need {needed}");
            return Err(io::Error::new(io::ErrorKind::StorageFull, what));
        }
        let started = Instant::now();
        let mut runs = Vec::new();
        let mut failure = None;
        for n in 0..self.runs {
            progress(experiment, n);
            match self.once(experiment, stop)? {
                Ok(phases) => runs.push(phases),
                Err(Failure::Stopped) if runs.is_empty() => return Ok(None),
                Err(Failure::Stopped) => {
                    failure = Some(format!("stopped after {} of {} runs", runs.len(), self.runs));
                    break;
                }
                Err(why) => {
                    failure = Some(why.to_string());
                    break;
                }
            }
        }
        Ok(Some(self.record(experiment, &runs, failure, started.elapsed().as_secs_f64())))
    }

    fn once(&self, experiment: Experiment, stop: &Stop) -> io::Result<Result<Vec<Phase>, Failure>> {
        let mut target = DirectoryTarget::new(&self.place.dir, stop)?;
        let how = How {
            scale: self.scale,
            age: None,
            seed: self.seed,
            workload: None,
            mount: (&self.place.kind, ""),
            source: "",
            page_bytes: 0,
        };
        let mut phases = Vec::new();
        let done = experiment.run(&mut target, &how, &mut |phase| phases.push(phase));
        Ok(done.map(|()| phases))
    }

    fn record(
        &self,
        experiment: Experiment,
        runs: &[Vec<Phase>],
        failure: Option<String>,
        took_s: f64,
    ) -> Record {
        let Place { kind, source, options, .. } = &self.place;
        let caches = if can_drop_caches() { "caches dropped" } else { "pages of files dropped" };
        Record {
            form: FORM,
            cell: Cell {
                place: Some(self.place.dir.display().to_string()),
                ..Cell::new(experiment, FileSystem::new(kind), Preset::Here)
            },
            suited: None,
            seed: self.seed,
            scale: self.scale,
            age: None,
            full_percent: None,
            clock: format!("wall, before reading {caches}"),
            dirty_bytes: None,
            profile: (source.clone(), options.clone()),
            card: None,
            made: Some(Made::now()),
            versions: Versions::here(),
            phases: merged(runs),
            wear: None,
            check: Check::NotChecked { why: "it is mounted".into() },
            failure,
            cost_failure: None,
            took_s,
        }
    }
}

/// Merges runs: for each part the median run, with the figures of all runs.
fn merged(runs: &[Vec<Phase>]) -> Vec<Phase> {
    let Some(first) = runs.first() else { return Vec::new() };
    let parts = first.iter().enumerate().map(|(n, phase)| {
        let of = |figure: fn(&Phase) -> f64| Sample::new(runs.iter().map(|run| figure(&run[n])).collect());
        let values = of(|phase| phase.value);
        Phase {
            value: values.median(),
            duration_ns: of(|phase| phase.duration_ns as f64).median() as u64,
            returned_ns: phase
                .returned_ns
                .map(|_| of(|phase| phase.returned_ns.unwrap_or_default() as f64).median() as u64),
            runs: Some(values),
            ..phase.clone()
        }
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_directory_is_measured_often_and_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let bench = Bench {
            place: Place::of(dir.path()).unwrap(),
            experiments: EXPERIMENTS.to_vec(),
            scale: Scale::of_file(1 << 20),
            runs: 3,
            seed: 1,
        };
        for experiment in EXPERIMENTS {
            let mut told = Vec::new();
            let record = bench.run(experiment, &Stop::default(), &mut |_, n| told.push(n)).unwrap().unwrap();
            assert_eq!(told, [0, 1, 2]);
            assert!(record.is_complete(), "{record:#?}");
            for phase in &record.phases {
                let runs = phase.runs.as_ref().unwrap();
                assert!(
                    runs.runs.len() == 3 && runs.median() == phase.value && phase.value > 0.0,
                    "{phase:?}"
                );
            }
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn oversized_experiments_are_not_started_and_stopped_ones_have_no_record() {
        let dir = tempfile::tempdir().unwrap();
        let mut bench = Bench {
            place: Place::of(dir.path()).unwrap(),
            experiments: vec![Experiment::BufferedWrite],
            scale: Scale::of_file(1 << 20),
            runs: 1,
            seed: 1,
        };
        let stop = Stop::default();
        stop.wish();
        assert!(bench.run(Experiment::BufferedWrite, &stop, &mut |_, _| {}).unwrap().is_none());
        bench.scale.buffered_bytes = u64::MAX;
        let error = bench.run(Experiment::BufferedWrite, &Stop::default(), &mut |_, _| {}).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(Place::of(&dir.path().join("nothing")).is_err());
    }

    #[test]
    fn the_mount_of_a_directory_is_the_deepest_and_the_last() {
        let mounts = "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n\
                      30 22 8:17 / /mnt/my\\040card rw,noatime shared:3 - f2fs /dev/sdb1 rw,mode=lfs\n\
                      31 22 8:18 / /mnt/my\\040card rw - vfat /dev/sdb2 rw\n";
        let of = |dir: &str| facts(mount_of(block::mounts_in(mounts), Path::new(dir)).unwrap());
        assert_eq!(of("/mnt/my card/a"), ("vfat".into(), "/dev/sdb2".into(), "rw;rw".into()));
        assert_eq!(of("/mnt/my"), ("ext4".into(), "/dev/sda1".into(), "rw,relatime;rw".into()));
    }
}
