//! Execution of a plan: runs its cells, several in parallel, and records each result, including failures.
//!
//! *Invariant*: a cell that fails, or a guest that dies, ends only that cell; its record keeps what was
//! measured before.

use std::{
    io,
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Instant,
};

use flash::Pace;

use crate::{
    check::Check,
    experiment::{Experiment, How, OwnRun},
    plan::{Cell, Checks, Costs, Plan},
    progress::ProgressFile,
    record::{DEVICE_CLOCK, FORM, INDICATIVE_CLOCK, Made, Record, Records, Versions, digest},
    stop::Stop,
    systems::{OURS, Setting, suited},
    vm::Failure,
};

/// Progress of a study.
#[derive(Debug)]
pub enum Event {
    /// A cell has a record already.
    Kept(Cell),
    /// A cell begins.
    Begun(Cell),
    /// A cell has ended, successfully or not.
    Done(Box<Record>),
}

/// Numbers of cells of a study by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Cells completed by this run.
    pub done: usize,
    /// Cells that already had a record.
    pub kept: usize,
    /// Cells that failed.
    pub failed: usize,
    /// Cells not begun or not completed because of a stop request.
    pub stopped: usize,
}

/// Runs all cells of a plan that have no record yet.
///
/// # Errors
/// A record cannot be written, or a card's profile is invalid; then the study ends.
pub fn run(plan: &Plan, records: &Records, stop: &Stop, tell: &mut dyn FnMut(Event)) -> io::Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut todo = Vec::new();
    for cell in &plan.cells {
        if is_done(plan, cell, records, stop)? {
            outcome.kept += 1;
            tell(Event::Kept(cell.clone()));
        } else {
            todo.push(cell);
        }
    }
    let mut progress = ProgressFile::begin(records.dir(), plan.cells.len(), outcome.kept);
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<io::Error>> = Mutex::new(None);
    let (send, events) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..plan.jobs.clamp(1, todo.len().max(1)) {
            let (send, next, failed, todo) = (send.clone(), &next, &failed, &todo);
            scope.spawn(move || {
                while !stop.is_wished() {
                    let Some(cell) = todo.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                    // The receiver is gone only if the study has ended.
                    let _ = send.send(Event::Begun((*cell).clone()));
                    let kept = run_cell(plan, cell, stop).and_then(|record| {
                        record.as_ref().map_or(Ok(()), |record| records.put(record))?;
                        Ok(record)
                    });
                    match kept {
                        Ok(Some(record)) => {
                            let _ = send.send(Event::Done(Box::new(record)));
                        }
                        Ok(None) => return,
                        Err(error) => {
                            *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                            stop.wish();
                            return;
                        }
                    }
                }
            });
        }
        drop(send);
        for event in events {
            match &event {
                Event::Kept(_) => {}
                Event::Begun(cell) => progress.cell_begins(cell.id()),
                Event::Done(record) => {
                    progress.cell_ends(&record.cell.id());
                    match record.failure.is_some() || record.check.has_faults() {
                        true => outcome.failed += 1,
                        false => outcome.done += 1,
                    }
                }
            }
            tell(event);
        }
    });
    progress.end();
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    outcome.stopped = plan.cells.len() - outcome.done - outcome.kept - outcome.failed;
    Ok(outcome)
}

/// Returns true if a cell has a finished record of this plan and this program.
///
/// # Errors
/// The card's profile is invalid.
pub fn is_done(plan: &Plan, cell: &Cell, records: &Records, stop: &Stop) -> io::Result<bool> {
    let setting = setting(plan, cell, stop)?;
    let planned = planned(plan, cell, &setting);
    let lacks_costs = |record: &Record| {
        wants_costs(plan, cell, &setting) && record.phases.iter().all(|phase| phase.cost.is_none())
    };
    let record = records.get(cell, plan.age_of(cell));
    Ok(record.is_some_and(|record| record.is_done(&planned) && !lacks_costs(&record)))
}

/// Outcome of an attempt to run a cell.
#[derive(Debug)]
pub enum Attempt {
    /// The cell has ended; its record states a failure if it ended early.
    Ended(Box<Record>),
    /// The cell failed for a reason that lies with this machine at this time, such as a full disk. Another
    /// attempt may succeed.
    Transient(Box<Record>),
    /// A stop was requested.
    Stopped,
}

/// Runs one cell; returns `None` if it was stopped.
///
/// # Errors
/// The card's profile is invalid.
pub fn run_cell(plan: &Plan, cell: &Cell, stop: &Stop) -> io::Result<Option<Record>> {
    Ok(match attempt(plan, cell, stop)? {
        Attempt::Ended(record) | Attempt::Transient(record) => Some(*record),
        Attempt::Stopped => None,
    })
}

/// Runs one cell, and tells failures of the cell from those of this machine.
///
/// # Errors
/// The card's profile is invalid.
pub fn attempt(plan: &Plan, cell: &Cell, stop: &Stop) -> io::Result<Attempt> {
    let started = Instant::now();
    let setting = setting(plan, cell, stop)?;
    let mut record = planned(plan, cell, &setting);
    let mut ended: fn(Box<Record>) -> Attempt = Attempt::Ended;
    match measure(plan, &setting, &mut record) {
        Ok(()) => {}
        Err(Failure::Stopped) => return Ok(Attempt::Stopped),
        Err(failure) => {
            if failure.is_transient() {
                ended = Attempt::Transient;
            }
            record.failure.get_or_insert(failure.to_string());
        }
    }
    if record.failure.is_none() && wants_costs(plan, cell, &setting) {
        match costs(plan, &setting, &mut record) {
            Ok(()) => {}
            Err(Failure::Stopped) => return Ok(Attempt::Stopped),
            Err(failure) => record.cost_failure = Some(failure.to_string()),
        }
    }
    record.took_s = started.elapsed().as_secs_f64();
    Ok(ended(Box::new(record)))
}

/// Returns true if the costs of a cell are measured. None for single writes, which are timed only on the card's
/// clock; none for aged file systems, because costs are those of new ones; none in QEMU, which needs processor
/// time for its guest.
fn wants_costs(plan: &Plan, cell: &Cell, setting: &Setting) -> bool {
    plan.costs == Costs::Measured
        && cell.experiment.has_costs()
        && plan.age_of(cell).is_none()
        && !setting.is_indicative()
}

/// Returns the configuration of a cell's target.
fn setting(plan: &Plan, cell: &Cell, stop: &Stop) -> io::Result<Setting> {
    let mut profile = plan.profile_of(cell).map_err(io::Error::other)?;
    let file_system = suited(&cell.file_system, &profile)?;
    let scale = plan.scale_of(cell);
    // On a smaller card the spare blocks would be a larger share than on the whole one.
    let least_bytes = profile.smallest_size_bytes();
    let cut_bytes = match cell.experiment {
        _ if cell.preset.is_raw() => None,
        Experiment::Latency | Experiment::Utilization => Some(scale.timed_card_bytes.max(least_bytes)),
        _ if plan.age_of(cell).is_some() => Some(scale.aged_card_bytes().max(least_bytes)),
        _ => None,
    };
    let cut_bytes = cut_bytes.filter(|bytes| *bytes < profile.size_bytes);
    if let Some(bytes) = plan.card_bytes.or(cut_bytes) {
        profile = profile.with_size(bytes).map_err(io::Error::other)?;
    }
    Ok(Setting {
        file_system,
        preset: cell.preset,
        profile,
        scale,
        programs: plan.programs_of(cell).cloned(),
        pace: Pace::Virtual,
        traced: false,
        cleaned: cell.experiment == Experiment::Latency || plan.age_of(cell).is_some(),
        seed: plan.seed_of(cell),
        stop: stop.clone(),
    })
}

/// Returns a cell's record before any measurement.
fn planned(plan: &Plan, cell: &Cell, setting: &Setting) -> Record {
    let (chosen, profile) = (&setting.file_system, &setting.profile);
    let is_ours = chosen.kind == OURS;
    let programs = plan.programs_of(cell).filter(|_| !is_ours);
    let note = programs.and_then(|programs| note(&programs.kernel));
    Record {
        form: FORM,
        cell: cell.clone(),
        suited: (*chosen != cell.file_system).then(|| format!("{} {}", chosen.mkfs.join(" "), chosen.mount)),
        seed: plan.seed_of(cell),
        scale: setting.scale,
        age: plan.age_of(cell),
        full_percent: cell.experiment.full_percent(&chosen.kind),
        clock: if setting.is_indicative() { INDICATIVE_CLOCK } else { DEVICE_CLOCK }.into(),
        dirty_bytes: (!is_ours).then(|| cell.preset.dirty_bytes(&setting.scale)),
        profile: (profile.name.clone(), digest(profile.to_toml().as_bytes()).expect("memory can be read")),
        card: Some(profile.clone()),
        made: Some(Made::now()),
        versions: Versions {
            guest_kernel: note.as_ref().and_then(release),
            kernel_config: note.and_then(|note| Some(note["config_sha256"].as_str()?.to_owned())),
            formatter: cell.file_system.formatter_digest(),
            ..Versions::here()
        },
        phases: Vec::new(),
        wear: None,
        check: Check::NotChecked { why: "the run ended before the check".into() },
        failure: None,
        cost_failure: None,
        took_s: 0.0,
    }
}

/// Measures a cell. The name of the temporary directory, which differs between runs, is not in the record.
fn measure(plan: &Plan, setting: &Setting, record: &mut Record) -> Result<(), Failure> {
    let work = tempfile::tempdir_in(&plan.work)?;
    let plain = |text: &str| text.replace(&*work.path().to_string_lossy(), "WORK");
    let done = measure_on(plan, setting, &work.path().join("card"), record);
    if let Check::Faults { said, .. } = &mut record.check {
        *said = plain(said);
    }
    if let Err(failure) = &done {
        record.failure = Some(plain(&failure.to_string()));
    }
    done
}

fn measure_on(plan: &Plan, setting: &Setting, image: &Path, record: &mut Record) -> Result<(), Failure> {
    let mut target = setting.start(image)?;
    let cell = record.cell.clone();
    let workload = placed(plan, &cell, image)?;
    let how = How { workload: workload.as_ref(), ..how(plan, &cell, setting) };
    let done = cell.experiment.run(&mut *target, &how, &mut |phase| record.phases.push(phase));
    record.wear = target.wear();
    drop(target);
    done?;
    record.check = match plan.checks {
        Checks::Made => Check::of(&setting.file_system, image),
        Checks::LeftOut => Check::NotChecked { why: "checks are left out".into() },
    };
    Ok(())
}

/// Repeats the experiment in real time for its processor and memory costs, which virtual time does not show.
fn costs(plan: &Plan, setting: &Setting, record: &mut Record) -> Result<(), Failure> {
    let work = tempfile::tempdir_in(&plan.work)?;
    let setting = Setting { pace: Pace::RealTime, ..setting.clone() };
    let image = work.path().join("card");
    let mut target = setting.start(&image)?;
    let Record { cell, phases, .. } = record;
    let workload = placed(plan, cell, &image)?;
    let how = How { workload: workload.as_ref(), ..how(plan, cell, &setting) };
    cell.experiment.run(&mut *target, &how, &mut |again| {
        if let Some(phase) = phases.iter_mut().find(|phase| phase.part == again.part) {
            phase.cost = again.cost;
        }
    })
}

/// Returns the user's workload of a cell, with its files beside the card.
fn placed(plan: &Plan, cell: &Cell, image: &Path) -> io::Result<Option<OwnRun>> {
    plan.workload_of(cell).map(|workload| workload.place(&image.with_extension("steps"))).transpose()
}

fn how<'a>(plan: &Plan, cell: &Cell, setting: &'a Setting) -> How<'a> {
    How {
        scale: setting.scale,
        age: plan.age_of(cell),
        seed: plan.seed_of(cell),
        workload: None,
        mount: (&setting.file_system.kind, &setting.file_system.mount),
        source: setting.file_system.source(),
        page_bytes: setting.profile.flash.page_bytes,
    }
}

/// Returns the note that the build of the lab's kernel has written beside it.
pub(crate) fn note(kernel: &Path) -> Option<serde_json::Value> {
    serde_json::from_slice(&std::fs::read(kernel.with_extension("json")).ok()?).ok()
}

/// Returns the release of the kernel in its note.
pub(crate) fn release(note: &serde_json::Value) -> Option<String> {
    Some(format!("Linux {} ({})", note["release"].as_str()?, note["source"].as_str()?))
}

/// Returns the name of a kernel in a matrix: its version, and the first digits of its configuration's digest.
pub fn kernel_name(kernel: &Path) -> Option<String> {
    let note = note(kernel)?;
    let (release, config) = (note["release"].as_str()?, note["config_sha256"].as_str()?);
    Some(format!("{release}-{}", config.get(..8)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::{
        experiment::{Experiment, Phase},
        plan::{Age, Rounds},
        preset::Preset,
        rivals::FileSystem,
        scale::Scale,
    };

    fn plan(dir: &Path) -> Plan {
        let ours = [FileSystem::new(OURS)];
        // Filling a volume takes longest; it has a test of its own.
        let quick: Vec<_> = Experiment::ALL.into_iter().filter(|it| *it != Experiment::Utilization).collect();
        let cells = Plan::cells_without_guest(&quick, &ours, &[Preset::Desktop], &[]);
        Plan { jobs: 2, ..Plan::of(cells, Scale::of_file(4 << 20), dir.to_owned()) }
    }

    fn all(records: &Records) -> Vec<Record> {
        records.all(&mut |path, error| panic!("{}: {error}", path.display())).unwrap()
    }

    #[test]
    fn our_file_system_completes_all_experiments_and_repeats_its_figures() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(&dir.path().join("a")).unwrap();
        let plan = plan(dir.path());
        let outcome = run(&plan, &records, &Stop::default(), &mut |_| {}).unwrap();
        assert_eq!(outcome, Outcome { done: 8, ..Outcome::default() }, "{:#?}", all(&records));
        for record in all(&records) {
            assert!(record.is_complete(), "{record:#?}");
            assert_eq!(record.check, Check::Clean { program: "fsck.f2fs".into() });
            assert!(record.phases.iter().all(|phase| phase.duration_ns > 0 && phase.totals.busy_ns > 0));
            let costs = record.cell.experiment.has_costs();
            assert!(record.phases.iter().all(|phase| phase.cost.is_some() == costs), "{record:#?}");
        }
        let outcome = run(&plan, &records, &Stop::default(), &mut |_| {}).unwrap();
        assert_eq!(outcome.kept, 8, "finished cells are not repeated");
        let other_card = Plan { card_bytes: Some(8 << 30), ..plan.clone() };
        let mut begun = 0;
        let stop = Stop::default();
        let outcome = run(&other_card, &records, &stop, &mut |event| {
            begun += usize::from(matches!(event, Event::Begun(_)));
            stop.wish();
        });
        assert!(begun > 0 && outcome.unwrap().kept == 0, "on another card it is");

        let again = Records::open(&dir.path().join("b")).unwrap();
        run(&plan, &again, &Stop::default(), &mut |_| {}).unwrap();
        let phases = |records: &Records| -> Vec<_> {
            let phases = all(records).into_iter().flat_map(|record| record.phases);
            phases.map(|phase| Phase { cost: None, ..phase }).collect()
        };
        assert_eq!(phases(&records), phases(&again), "to the nanosecond");
    }

    #[test]
    fn a_full_volume_ends_the_experiment_and_keeps_its_measurements() {
        let dir = tempfile::tempdir().unwrap();
        let mut plan = plan(dir.path());
        (plan.card_bytes, plan.scale) = (Some(128 << 20), Scale::of_file(64 << 20));
        let copy = plan.cells.iter().find(|cell| cell.experiment == Experiment::Copy).unwrap();
        let record = run_cell(&plan, copy, &Stop::default()).unwrap().unwrap();
        let parts: Vec<&str> = record.phases.iter().map(|phase| phase.part.as_str()).collect();
        assert_eq!(parts, ["iso_copy", "archive_copy"], "{record:#?}");
        let failure = record.failure.unwrap();
        assert!(failure.contains("Plant") && failure.contains("no space"), "{failure}");
    }

    /// Size of the buffered file whose card, four times as large, is filled.
    const FILLED_BYTES: u64 = 32 << 20;

    #[test]
    fn a_fuller_file_system_is_slower_and_each_record_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let ours = [FileSystem::new(OURS)];
        let cells = Plan::cells_without_guest(&[Experiment::Utilization], &ours, &[Preset::Desktop], &[]);
        let plan = Plan::of(cells, Scale::of_file(FILLED_BYTES), dir.path().to_owned());
        let record = run_cell(&plan, &plan.cells[0], &Stop::default()).unwrap().unwrap();
        assert!(record.is_complete() && matches!(record.check, Check::Clean { .. }), "{record:#?}");
        let written = |n: usize| record.phases[n].totals.written_bytes / record.phases[n].records;
        let all: Vec<u64> = (0..5).map(written).collect();
        // Each record of a run reaches the card once at least, and nearly nothing else does on a new volume.
        assert!(all.iter().all(|bytes| *bytes >= 4096) && all[0] < 4300, "bytes a write, by level: {all:?}");
        let rates: Vec<f64> = record.phases.iter().map(|phase| phase.value).collect();
        assert!(rates.windows(2).all(|pair| pair[0] > pair[1]), "MB/s, by level: {rates:?}");
    }

    #[test]
    fn an_aged_file_system_is_slower_and_keeps_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let young = plan(dir.path());
        let young = Plan { card_bytes: Some(256 << 20), ..young };
        let aged = Plan { age: "2:80".parse().ok(), ..young.clone() };
        let copy = young.cells.iter().find(|cell| cell.experiment == Experiment::BufferedWrite).unwrap();
        let record = |plan: &Plan| run_cell(plan, copy, &Stop::default()).unwrap().unwrap();
        let (young, aged) = (record(&young), record(&aged));
        assert!(aged.is_complete() && matches!(aged.check, Check::Clean { .. }), "{aged:#?}");
        assert!(aged.phases[1].value < young.phases[1].value, "{aged:#?}");
        assert_eq!(aged.differences(&young), ["age"]);
    }

    #[test]
    fn writing_goes_on_until_the_rate_stands_and_merges_take_a_share_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let age = Age { rounds: Rounds::UntilSteady, times: 1, ..Age::default() };
        let young = plan(dir.path());
        let plan = Plan { age: Some(age), card_bytes: Some(256 << 20), ..young.clone() };
        let cell = plan.cells.iter().find(|cell| cell.experiment == Experiment::BufferedWrite).unwrap();
        let record = |plan: &Plan| run_cell(plan, cell, &Stop::default()).unwrap().unwrap();
        let (young, steady) = (record(&young), record(&plan));
        assert!(steady.is_complete() && steady.differences(&young).contains(&"age"), "{steady:#?}");
        for phase in &steady.phases {
            let rounds = phase.steady.as_ref().unwrap();
            assert!((5..=25).contains(&rounds.figures.len()) && phase.records == 5 * 1024, "{rounds:?}");
            let mean = rounds.figures[rounds.figures.len() - 5..].iter().sum::<f64>() / 5.0;
            assert!((0.8..1.25).contains(&(phase.value / mean)), "{} of {rounds:?}", phase.value);
        }
        let merges =
            |record: &Record| record.phases.iter().filter_map(|it| it.flash.merge_share()).sum::<f64>();
        assert_eq!(merges(&young), 0.0, "the spare blocks of the whole card are more than it writes");
        assert!(merges(&steady) > 0.0, "{steady:#?}");
        assert!(Records::name(&plan.cells[0], plan.age).ends_with(".aged-1-60-steady.json"));
    }

    #[test]
    fn failed_runs_are_recorded_and_stopped_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(&dir.path().join("a")).unwrap();
        let mut plan = plan(dir.path());
        plan.cells.truncate(2);
        // There is no guest for this one.
        plan.cells[1].file_system = FileSystem::new("ext4");
        let outcome = run(&plan, &records, &Stop::default(), &mut |_| {}).unwrap();
        assert_eq!((outcome.done, outcome.failed), (1, 1), "{:#?}", all(&records));
        let failure = records.get(&plan.cells[1], None).unwrap().failure.unwrap();
        assert!(failure.contains("uml-kernel"), "{failure}");

        let stop = Stop::default();
        stop.wish();
        let empty = Records::open(&dir.path().join("b")).unwrap();
        let outcome = run(&plan, &empty, &stop, &mut |_| {}).unwrap();
        assert_eq!((outcome.stopped, all(&empty).len()), (2, 0));
    }
}
