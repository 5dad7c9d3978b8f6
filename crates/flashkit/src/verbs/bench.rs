//! `bench`: the experiments in a directory of a real device.

use std::{io, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, bail};
use lab::{
    bench::{Bench, EXPERIMENTS, Place},
    experiment::Experiment,
    record::{Record, Records},
    report,
    sample::RUNS_MAX,
    stop::Stop,
};

use super::lab_run::{self, INTERRUPTED, Sizes};
use crate::{notice::notice, progress, render};

/// Arguments of `bench`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  flashkit bench /mnt/card
  flashkit bench /mnt/card --size 1G --runs 10 -o before
  flashkit bench /tank/data -e write_fsync --json
  flashkit report before --compare after

Experiments, by name or number:
  1 buffered_write   2 write_fsync   4 buffered_read   7 copy
  5 workloads (only if named)

All work is done in a new directory, which is removed at the end. Before reading, root drops the kernel's \
caches. Other users ask the kernel to drop the pages of the file, which some file systems ignore (ZFS keeps its \
own cache).")]
pub struct Args {
    /// A directory on any mounted file system.
    dir: PathBuf,
    /// Run only this experiment; repeat for more.
    #[arg(short, long = "experiment", value_name = "EXPERIMENT", value_parser = lab_run::experiments(), hide_possible_values = true)]
    experiments: Vec<Experiment>,
    /// Number of runs of each experiment, at most 1000.
    #[arg(short, long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..=RUNS_MAX as i64))]
    runs: u16,
    #[command(flatten)]
    sizes: Sizes,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 2012)]
    seed: u64,
    /// Directory for the records, for `report`.
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Print the records as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the experiments.
pub fn run(args: &Args) -> Result<ExitCode> {
    let name = || args.dir.display().to_string();
    let bench = args.bench().with_context(name)?;
    let keep = || args.output.as_ref().map(|dir| dir.display().to_string()).unwrap_or_default();
    let records = args.output.as_ref().map(|dir| Records::open(dir)).transpose().with_context(keep)?;
    let stop = lab_run::stop_on_interrupt()?;
    let (runs, place) = (render::count(bench.runs as u64, "run"), &bench.place);
    notice!("seed {}, {runs}, {} on {}", bench.seed, place.kind, place.source);
    let bar = progress::steps((bench.experiments.len() * bench.runs) as u64, args.json);
    let mut done: Vec<Record> = Vec::new();
    let mut failed = Ok(());
    for (before, experiment) in bench.experiments.iter().enumerate() {
        let record = bench.run(*experiment, &stop, &mut |experiment, n| {
            bar.set_position((before * bench.runs + n) as u64);
            bar.set_message(format!("{}, run {} of {}", experiment.name(), n + 1, bench.runs));
        });
        let record = match record.with_context(name) {
            Ok(Some(record)) => record,
            Ok(None) => break,
            Err(error) => {
                failed = Err(error);
                break;
            }
        };
        if let Some(records) = &records {
            failed = failed.and(keep_record(records, &record, &stop).with_context(keep));
        }
        done.push(record);
    }
    bar.finish_and_clear();
    // The measurements are printed even if they could not be saved, or if something failed later.
    render::print(&done, args.json, |done, out| write!(out, "{}", report::text(&report::sheets(done))))?;
    failed?;
    if stop.is_wished() {
        notice!("stopped; the measurements up to then are above");
        return Ok(ExitCode::from(INTERRUPTED));
    }
    match done.iter().filter(|record| record.failure.is_some()).count() {
        0 => Ok(ExitCode::SUCCESS),
        failed => bail!("{failed} of {} failed", render::count(bench.experiments.len() as u64, "experiment")),
    }
}

/// Saves a record. An interrupted one does not replace another.
fn keep_record(records: &Records, record: &Record, stop: &Stop) -> io::Result<()> {
    match records.get(&record.cell, None) {
        Some(earlier) if stop.is_wished() && record.failure.is_some() => {
            let (name, runs) = (record.cell.experiment.name(), render::count(earlier.runs() as u64, "run"));
            notice!("{name}: kept the earlier {runs} in {}", records.dir().display());
            Ok(())
        }
        _ => records.put(record),
    }
}

impl Args {
    fn bench(&self) -> Result<Bench> {
        let experiments = match self.experiments.is_empty() {
            true => EXPERIMENTS.into_iter().filter(|one| Experiment::USUAL.contains(one)).collect(),
            false => self.experiments.clone(),
        };
        if let Some(other) = experiments.iter().find(|one| !EXPERIMENTS.contains(one)) {
            bail!("{} needs its own device; `study` runs it on a modelled card", other.name());
        }
        Ok(Bench {
            place: Place::of(&self.dir)?,
            experiments,
            scale: self.sizes.scale(),
            runs: self.runs.into(),
            seed: self.seed,
        })
    }
}
