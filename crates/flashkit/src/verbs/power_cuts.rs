//! `study -e 9`: power cuts, and what each file system keeps of its promises.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use anyhow::{Context, Result, bail};
use flash::{Profile, profile::Layer};
use lab::{
    promises::{self, CARD_BYTES, CHIP_BYTES, CardFailure, CutId, Progress, PromiseRecord, Task},
    rivals::FileSystem,
    stop::Stop,
    systems::{GET_KERNEL, Machine, OURS, Programs},
    vm::Failure,
};

use super::lab_run::{self, INTERRUPTED};
use crate::{notice::notice, render};

/// Number of cuts on an honest card, and of each other kind.
const CUTS: u64 = 1000;
const DISHONEST_CUTS: u64 = 300;

/// Options of experiment 9.
#[derive(clap::Args)]
#[command(next_help_heading = "Power cuts (experiment 9)")]
pub struct Cuts {
    /// Number of power cuts of each file system on an honest card.
    #[arg(long, value_name = "N", default_value_t = CUTS)]
    cuts: u64,
    /// Number of power cuts for each way in which a card is dishonest.
    #[arg(long, value_name = "N", default_value_t = DISHONEST_CUTS)]
    dishonest_cuts: u64,
    /// Make only this cut again, as a record names it, and print the result as JSON. Needs one --fs.
    #[arg(long, value_name = "ID")]
    cut: Option<CutId>,
    /// With --cut: write the card's content after the cut, before the recovery, to this file, and the card's requests
    /// with their fates to FILE.requests.
    #[arg(long, value_name = "FILE", requires = "cut")]
    keep: Option<PathBuf>,
}

impl Cuts {
    /// Returns true if one of the options has another value than by default.
    pub fn is_given(&self) -> bool {
        self.cut.is_some() || (self.cuts, self.dishonest_cuts) != (CUTS, DISHONEST_CUTS)
    }
}

/// The parts of a study that experiment 9 uses, too.
pub struct Setting {
    /// Directory for the records.
    pub output: PathBuf,
    /// The named file systems.
    pub file_systems: Vec<FileSystem>,
    /// The named cards.
    pub cards: Vec<Profile>,
    /// Size of the card.
    pub card_bytes: Option<u64>,
    /// Seed of scripts and cuts.
    pub seed: u64,
    /// Number of file systems at once.
    pub jobs: Option<usize>,
    /// Directory of the guest's kernel, for messages.
    pub guest: PathBuf,
    /// The guest's programs.
    pub programs: Option<Programs>,
    /// Directory for temporary images.
    pub work: PathBuf,
    /// Form of the printed records.
    pub format: render::Format,
}

/// Runs experiment 9.
pub fn run(cuts: &Cuts, setting: &Setting) -> Result<ExitCode> {
    let stop = lab_run::stop_on_interrupt()?;
    let tasks = tasks(cuts, setting, &stop)?;
    if let Some(id) = &cuts.cut {
        let [task] = &tasks[..] else { bail!("--cut {id}: name the file system with one --fs") };
        let report = promises::replay(task, id, cuts.keep.as_deref())?;
        render::print(&report, render::Format::Json, |_, _| Ok(()))?;
        return Ok(if report.has_finding() { ExitCode::FAILURE } else { ExitCode::SUCCESS });
    }
    notice!("seed {}, {}", setting.seed, render::count(tasks.len() as u64, "file system"));
    let keep = || format!("{}: cannot store results", setting.output.display());
    let records = run_all(&tasks, &setting.output, setting.jobs)?;
    if stop.is_wished() {
        notice!("stopped; the same call continues from here");
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let all = promises::read_all(&setting.output).with_context(keep)?;
    let page = setting.output.join("power-cuts.html");
    let text = promises::page(&all).map_err(|error| anyhow::anyhow!("{}: {error}", page.display()))?;
    std::fs::write(&page, text).with_context(keep)?;
    notice!("{}: tables and the evidence of each broken promise", page.display());
    render::print(&records, setting.format, |records, out| write!(out, "{}", promises::text(records)))?;
    let is_broken = |record: &PromiseRecord| {
        let honest = record.tallies.get(&CardFailure::Honest);
        let breaks =
            honest.is_some_and(|tally| tally.broken() + tally.not_mounted + tally.faulty + tally.died > 0);
        record.failure.is_some() || record.file_system.is_ours() && breaks
    };
    Ok(if records.iter().any(is_broken) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns a task for each file system that can be measured.
fn tasks(cuts: &Cuts, setting: &Setting, stop: &Stop) -> Result<Vec<Task>> {
    let named = match &setting.cards[..] {
        [] => None,
        [card] => Some(card),
        _ => bail!("experiment 9 is run on one card; leave one --card"),
    };
    let programs = setting.programs.clone().filter(|programs| programs.machine == Machine::Virtual);
    let mut file_systems = match setting.file_systems.is_empty() {
        true => promises::file_systems()
            .into_iter()
            .filter(|it| named.is_none_or(|card| fits(it, card)))
            .collect(),
        false => setting.file_systems.clone(),
    };
    if programs.is_none() {
        file_systems.retain(|it| it.kind == OURS);
        notice!(
            "{}: contains no kernel for the lab's guest, so only our own file system is measured; {GET_KERNEL}",
            setting.guest.display()
        );
    }
    if file_systems.is_empty() {
        bail!("no file system is left to measure; name {OURS}, or build the lab's kernel");
    }
    let task = |file_system: FileSystem| {
        let card = card(&file_system, named, setting.card_bytes)?;
        let count = |failure: CardFailure| match failure {
            CardFailure::Honest => cuts.cuts,
            _ => cuts.dishonest_cuts,
        };
        let cuts = CardFailure::of(&card).iter().map(|failure| (*failure, count(*failure))).collect();
        Ok(Task {
            file_system,
            card,
            seed: setting.seed,
            cuts,
            programs: programs.clone(),
            work: setting.work.clone(),
            stop: stop.clone(),
        })
    };
    file_systems.into_iter().map(task).collect()
}

/// Returns true if a file system can be on this card or bare chip.
fn fits(file_system: &FileSystem, card: &Profile) -> bool {
    let lacks_spare_bytes = card.layer == Layer::Nand && file_system.needs_spare_bytes();
    file_system.is_raw() == card.is_raw() && !lacks_spare_bytes
}

/// Returns the card or chip of a file system: the named one, or that of the file system.
fn card(file_system: &FileSystem, named: Option<&Profile>, bytes: Option<u64>) -> Result<Profile> {
    let card = match named {
        Some(card) => card.clone(),
        None => Profile::named(promises::card_of(file_system))?,
    };
    if !fits(file_system, &card) {
        bail!("{} cannot be on {}; leave out --card, or name another", file_system.kind, card.name);
    }
    let usual = if card.is_raw() { CHIP_BYTES } else { CARD_BYTES };
    Ok(card.with_size(bytes.unwrap_or(usual))?)
}

/// Runs the tasks, several at once. Returns the records in the order of the tasks, fewer after a stop.
fn run_all(tasks: &[Task], dir: &Path, jobs: Option<usize>) -> Result<Vec<PromiseRecord>> {
    let jobs = jobs.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Result<PromiseRecord, Failure>)>> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, tasks.len()) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(task) = tasks.get(number) else { return };
                    let result = run_one(task, dir);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((number, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(number, _)| *number);
    let finished = done.into_iter().filter(|(_, result)| !matches!(result, Err(Failure::Stopped)));
    finished.map(|(_, result)| Ok(result?)).collect()
}

/// Runs one task, and tells each tenth of it.
fn run_one(task: &Task, dir: &Path) -> Result<PromiseRecord, Failure> {
    let name = task.file_system.name();
    let (mut told, mut has_told_kept) = (0, false);
    promises::run(task, dir, &mut |progress: Progress| {
        let is_first_new = progress.done > progress.kept && progress.kept > 0;
        if is_first_new && !has_told_kept {
            has_told_kept = true;
            notice!("{name}: {} of {} cuts have results", progress.kept, progress.all);
        }
        let tenths = progress.done * 10 / progress.all.max(1);
        if tenths > told {
            told = tenths;
            let broken = render::count(progress.broken, "promise");
            notice!("{name}: {} of {} cuts, {broken} broken", progress.done, progress.all);
        }
    })
}
