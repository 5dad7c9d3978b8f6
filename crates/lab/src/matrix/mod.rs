//! A matrix: a TOML file of cards, file systems, experiments, sizes, ages, kernels and seeds, which expands to the
//! cells of a study.
//!
//! *Invariant*: a cell's name has the value of every dimension, so names stay the same when a dimension gets more
//! values.

mod entries;
mod point;
mod workload;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use flash::Profile;

use self::entries::{Entries, Reader};
pub use self::{
    point::{Point, WorkloadId},
    workload::OwnWorkload,
};
use crate::{
    experiment::Experiment,
    plan::{Age, Cell, Checks, Costs, Plan},
    preset::Preset,
    rivals::FileSystem,
    scale::Scale,
    systems::{Machine, OURS, Programs, THROUGH_FUSE},
};

/// An error in a matrix, with its place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}: {key}{}{what}", file.display(), if key.is_empty() { "" } else { ": " })]
pub struct MatrixError {
    /// The file.
    pub file: PathBuf,
    /// Number of the line, from 1.
    pub line: usize,
    /// The key; empty if the text is no TOML.
    pub key: String,
    /// Description of the error.
    pub what: String,
}

/// The dimensions of a study.
#[derive(Debug, Clone, Default)]
pub struct Matrix {
    /// The file.
    pub file: PathBuf,
    /// Files that the cells depend on, apart from kernels.
    pub inputs: Vec<PathBuf>,
    experiments: Vec<Experiment>,
    presets: Vec<Preset>,
    cards: Vec<Profile>,
    file_systems: Vec<FileSystem>,
    sizes: Vec<u64>,
    ages: Vec<Option<Age>>,
    seeds: Vec<u64>,
    kernels: BTreeMap<String, Programs>,
    workloads: BTreeMap<String, (WorkloadId, OwnWorkload)>,
    card_bytes: Option<u64>,
    timed_writes: Option<u64>,
    dirty_percent: u64,
    costs: bool,
}

/// The files that a matrix may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// All files.
    Anywhere,
    /// Files in the directory of the matrix and below it, for a matrix of somebody else. Kernels are not among them: they are
    /// run, so they need trust anyway.
    Below,
}

impl Matrix {
    /// Reads a matrix. Paths in it are relative to its directory.
    ///
    /// # Errors
    /// [`MatrixError`] names the line and the key.
    pub fn read(file: &Path, reach: Reach) -> Result<Matrix, MatrixError> {
        let fail = |what: String| MatrixError { file: file.into(), line: 1, key: String::new(), what };
        let text = fs::read_to_string(file).map_err(|error| fail(error.to_string()))?;
        Matrix::parse(&text, file, reach)
    }

    /// Parses the text of the matrix in `file`.
    ///
    /// # Errors
    /// [`MatrixError`] names the line and the key.
    pub fn parse(text: &str, file: &Path, reach: Reach) -> Result<Matrix, MatrixError> {
        let reader = Reader { text, file, reach };
        let entries = Entries::parse(&reader)?;
        entries.resolve(&reader)
    }

    /// Returns the plan of all cells that make sense. `guest` is used for the kernel's file systems if the matrix
    /// names no kernels. Without any kernel, only the cells in process remain.
    pub fn plan(&self, guest: Option<Programs>, work: PathBuf, jobs: usize) -> Plan {
        let scale = Scale::of_file(self.sizes.first().copied().unwrap_or_default());
        Plan {
            timed_writes: self.timed_writes,
            cards: self.cards.clone(),
            card_bytes: self.card_bytes,
            programs: guest.clone(),
            kernels: self.kernels.clone(),
            workloads: self.workloads.iter().map(|(name, (_, it))| (name.clone(), it.clone())).collect(),
            costs: if self.costs { Costs::Measured } else { Costs::LeftOut },
            checks: Checks::Made,
            jobs,
            ..Plan::of(self.cells(guest.as_ref()), scale.with_dirty(self.dirty_percent), work)
        }
    }

    /// Returns true if a study of this matrix runs programs that it names, or programs of this machine with arguments that
    /// it names: commands of file systems, options of their mkfs, jobs of fio, or kernels. Options of mkfs can name files:
    /// `-c` of mkfs.f2fs and `-z` of mke2fs overwrite them.
    #[must_use]
    pub fn runs_commands(&self) -> bool {
        let is_fio = |(_, workload): &(WorkloadId, OwnWorkload)| matches!(workload, OwnWorkload::Fio(_));
        let has_arguments = |it: &FileSystem| it.own.is_some() || !it.is_ours() && !it.mkfs.is_empty();
        !self.kernels.is_empty()
            || self.file_systems.iter().any(has_arguments)
            || self.workloads.values().any(is_fio)
    }

    /// Maximum number of cells: the product of all dimensions.
    fn cells_max(&self) -> u64 {
        let workloads = self.experiments.len() + self.workloads.len();
        let machines = self.presets.len() + self.cards.len();
        [machines, self.file_systems.len(), workloads, self.sizes.len(), self.ages.len(), self.seeds.len()]
            .iter()
            .chain(&[self.kernels.len().max(1)])
            .fold(1, |cells: u64, values| cells.saturating_mul(*values as u64))
    }

    /// Returns the number of cells that need a kernel which is not there.
    pub fn left_out(&self, guest: Option<&Programs>) -> usize {
        let programs = || Programs {
            machine: Machine::Virtual,
            kernel: PathBuf::new(),
            agent: PathBuf::new(),
            flashkit: None,
        };
        self.cells(Some(&programs())).len() - self.cells(guest).len()
    }

    fn cells(&self, guest: Option<&Programs>) -> Vec<Cell> {
        let named: Vec<Option<String>> = self.kernels.keys().cloned().map(Some).collect();
        let kernels = if named.is_empty() { vec![None] } else { named };
        let mut cells = Vec::new();
        for (preset, card) in self.machines() {
            for file_system in &self.file_systems {
                for (experiment, point) in self.points(file_system, &kernels) {
                    let card = card.map(str::to_owned);
                    let cell = Cell { card, point, ..Cell::new(experiment, file_system.clone(), preset) };
                    cells.push(cell);
                }
            }
        }
        cells.retain(|cell| {
            let programs = match &cell.point.kernel {
                Some(kernel) => self.kernels.get(kernel),
                None => guest,
            };
            cell.makes_sense() && self.can_run(cell, programs)
        });
        cells
    }

    /// Returns true if the cell's programs are there: a kernel for those that need one, time travel for bare flash
    /// and our own mount, and a guest for fio.
    fn can_run(&self, cell: &Cell, programs: Option<&Programs>) -> bool {
        let kind = cell.file_system.kind.as_str();
        let workload = cell.point.workload.as_ref().and_then(|id| self.workloads.get(&id.name));
        let is_fio = matches!(workload, Some((_, OwnWorkload::Fio(_))));
        match programs.map(|programs| programs.machine) {
            _ if kind == OURS => !is_fio,
            None => false,
            Some(Machine::Virtual) => true,
            Some(Machine::Stock) => !cell.preset.is_raw() && kind != THROUGH_FUSE && workload.is_none(),
        }
    }

    /// Returns the machines: presets, and then cards.
    fn machines(&self) -> impl Iterator<Item = (Preset, Option<&str>)> {
        let presets = self.presets.iter().map(|preset| (*preset, None));
        presets.chain(self.cards.iter().map(|card| (Preset::Card, Some(card.name.as_str()))))
    }

    /// Returns the experiments of a file system with their positions in all other dimensions.
    fn points(&self, file_system: &FileSystem, kernels: &[Option<String>]) -> Vec<(Experiment, Point)> {
        // Our engine in this process has no kernel.
        let kernels = if file_system.kind == OURS { &[None][..] } else { kernels };
        let own = self.workloads.values().map(|(id, _)| (Experiment::Own, Some(id.clone())));
        let experiments: Vec<_> = self.experiments.iter().map(|it| (*it, None)).chain(own).collect();
        let mut points = Vec::new();
        for (experiment, workload) in experiments {
            for size in &self.sizes {
                for age in &self.ages {
                    for kernel in kernels {
                        points.extend(self.seeds.iter().map(|seed| {
                            let point = Point {
                                size_bytes: Some(*size),
                                seed: Some(*seed),
                                age: *age,
                                kernel: kernel.clone(),
                                workload: workload.clone(),
                            };
                            (experiment, point)
                        }));
                    }
                }
            }
        }
        points
    }
}

/// Returns the first value that occurs twice.
fn repeated<T: Ord + Clone>(values: impl Iterator<Item = T>) -> Option<T> {
    let mut seen = BTreeSet::new();
    values.into_iter().find(|value| !seen.insert(value.clone()))
}

#[cfg(test)]
mod tests;
