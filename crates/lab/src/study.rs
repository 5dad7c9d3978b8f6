//! Running a plan: cell by cell, several at once, each of them with a record whatever comes of it.
//!
//! *Invariant*: a cell that fails, and a guest that dies, end that cell only; what it had measured is in its record.

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

use crate::{
    check::Check,
    experiment::{Experiment, How},
    guest::Failure,
    plan::{Cell, Plan},
    record::{FORM, Record, Records, Versions},
    stop::Stop,
    target::{CHIP, DISK, OURS, Setting, suited},
};

/// What a study tells while it runs.
#[derive(Debug)]
pub enum Event {
    /// A cell has a record already.
    Kept(Cell),
    /// A cell begins.
    Begun(Cell),
    /// A cell has ended, well or not.
    Done(Box<Record>),
}

/// How a study ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Cells that were done now.
    pub done: usize,
    /// Cells that had been done before.
    pub kept: usize,
    /// Cells that failed.
    pub failed: usize,
    /// Cells that were not begun, or not ended, because it was wished so.
    pub stopped: usize,
}

/// Runs what of a plan has no record yet.
///
/// # Errors
/// A record cannot be written; then the study ends.
pub fn run(plan: &Plan, records: &Records, stop: &Stop, tell: &mut dyn FnMut(Event)) -> io::Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut todo = Vec::new();
    for cell in &plan.cells {
        match records.get(cell).filter(|record| plan.is_done(record)) {
            Some(_) => {
                outcome.kept += 1;
                tell(Event::Kept(cell.clone()));
            }
            None => todo.push(cell),
        }
    }
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<io::Error>> = Mutex::new(None);
    let (send, events) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..plan.jobs.clamp(1, todo.len().max(1)) {
            let (send, next, failed, todo) = (send.clone(), &next, &failed, &todo);
            scope.spawn(move || {
                while !stop.is_wished() {
                    let Some(cell) = todo.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                    // Nobody listens any more only where the study has ended.
                    let _ = send.send(Event::Begun((*cell).clone()));
                    let Some(record) = run_cell(plan, cell, stop) else { return };
                    if let Err(error) = records.put(&record) {
                        *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                        stop.wish();
                        return;
                    }
                    let _ = send.send(Event::Done(Box::new(record)));
                }
            });
        }
        drop(send);
        for event in events {
            if let Event::Done(record) = &event {
                match record.failure {
                    Some(_) => outcome.failed += 1,
                    None => outcome.done += 1,
                }
            }
            tell(event);
        }
    });
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    outcome.stopped = plan.cells.len() - outcome.done - outcome.kept - outcome.failed;
    Ok(outcome)
}

/// Does one cell; nothing where it was stopped.
pub fn run_cell(plan: &Plan, cell: &Cell, stop: &Stop) -> Option<Record> {
    let started = Instant::now();
    let is_ours = cell.file_system.kind == OURS;
    let mut record = Record {
        form: FORM,
        cell: cell.clone(),
        suited: None,
        seed: plan.seed,
        scale: plan.scale,
        clock: "device".into(),
        dirty_bytes: (!is_ours).then(|| cell.preset.dirty_bytes(&plan.scale)),
        profile: Default::default(),
        versions: Versions::here(),
        phases: Vec::new(),
        check: Check::NotChecked { why: "it did not come to that".into() },
        failure: None,
        took_s: 0.0,
    };
    match measure(plan, cell, stop, &mut record) {
        Ok(()) => {}
        Err(Failure::Stopped) => return None,
        Err(failure) => record.failure = Some(failure.to_string()),
    }
    record.took_s = started.elapsed().as_secs_f64();
    Some(record)
}

fn measure(plan: &Plan, cell: &Cell, stop: &Stop, record: &mut Record) -> Result<(), Failure> {
    let mut profile = cell.preset.profile().map_err(io::Error::other)?;
    let is_cut = cell.experiment == Experiment::Latency && !cell.preset.is_raw();
    let size_bytes = plan.card_bytes.or(is_cut.then_some(plan.scale.timed_card_bytes));
    if let Some(bytes) = size_bytes {
        profile = profile.with_size(bytes).map_err(io::Error::other)?;
    }
    record.profile = (profile.name.clone(), digest(profile.to_toml().as_bytes()));
    if cell.file_system.kind != OURS {
        let kernel = plan.programs.as_ref().and_then(|programs| release(&programs.kernel));
        record.versions.guest_kernel = kernel;
    }
    if cell.file_system.kind == OURS && cell.file_system.is_plain() {
        let chosen = suited(&cell.file_system, &profile);
        record.suited = (!chosen.is_plain()).then(|| format!("{} {}", chosen.mkfs.join(" "), chosen.mount));
    }
    let work = tempfile::tempdir_in(&plan.work)?;
    let image = work.path().join("card");
    let setting = Setting {
        file_system: cell.file_system.clone(),
        preset: cell.preset,
        profile: profile.clone(),
        scale: plan.scale,
        programs: plan.programs.clone(),
        traced: false,
        stop: stop.clone(),
    };
    let mut target = setting.start(&image)?;
    let how = How {
        scale: plan.scale,
        seed: plan.seed,
        mount: (&cell.file_system.kind, &cell.file_system.mount),
        source: if cell.preset.is_raw() { CHIP } else { DISK },
        page_bytes: profile.flash.page_bytes,
    };
    cell.experiment.run(&mut *target, &how, &mut |phase| record.phases.push(phase))?;
    drop(target);
    record.check = Check::of(&cell.file_system.kind, &image);
    Ok(())
}

/// The release of the lab's kernel, as its build has noted it beside it.
fn release(kernel: &Path) -> Option<String> {
    let note: serde_json::Value =
        serde_json::from_slice(&std::fs::read(kernel.with_extension("json")).ok()?).ok()?;
    Some(format!("Linux {} ({})", note["release"].as_str()?, note["source"].as_str()?))
}

/// FNV-1a, 64 bits: tells one set of figures from another, and needs to do no more.
fn digest(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{experiment::Experiment, format::FileSystem, preset::Preset, scale::Scale};

    fn plan(dir: &Path) -> Plan {
        let ours = [FileSystem::new(OURS)];
        Plan {
            cells: Plan::cells(&Experiment::ALL, &ours, &[Preset::Desktop], false),
            scale: Scale::of_file(4 << 20),
            card_bytes: None,
            seed: 1,
            programs: None,
            work: dir.to_owned(),
            jobs: 2,
        }
    }

    #[test]
    fn our_file_system_goes_through_all_experiments_and_the_same_again_is_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(&dir.path().join("a")).unwrap();
        let plan = plan(dir.path());
        let outcome = run(&plan, &records, &Stop::default(), &mut |_| {}).unwrap();
        assert_eq!(outcome, Outcome { done: 6, ..Outcome::default() }, "{:#?}", records.all().unwrap());
        for record in records.all().unwrap() {
            assert!(record.is_complete(), "{record:#?}");
            assert_eq!(record.check, Check::Clean { program: "fsck.f2fs".into() });
            assert!(record.phases.iter().all(|phase| phase.duration_ns > 0 && phase.totals.busy_ns > 0));
        }
        let outcome = run(&plan, &records, &Stop::default(), &mut |_| {}).unwrap();
        assert_eq!(outcome.kept, 6, "what is done is not done again");

        let again = Records::open(&dir.path().join("b")).unwrap();
        run(&plan, &again, &Stop::default(), &mut |_| {}).unwrap();
        let phases = |records: &Records| -> Vec<_> {
            records.all().unwrap().into_iter().map(|record| record.phases).collect()
        };
        assert_eq!(phases(&records), phases(&again), "to the nanosecond");
    }

    #[test]
    fn a_volume_that_is_full_ends_the_experiment_and_keeps_what_it_had_measured() {
        let dir = tempfile::tempdir().unwrap();
        let mut plan = plan(dir.path());
        (plan.card_bytes, plan.scale) = (Some(128 << 20), Scale::of_file(64 << 20));
        let copy = plan.cells.iter().find(|cell| cell.experiment == Experiment::Copy).unwrap();
        let record = run_cell(&plan, copy, &Stop::default()).unwrap();
        let parts: Vec<&str> = record.phases.iter().map(|phase| phase.part.as_str()).collect();
        assert_eq!(parts, ["iso_copy", "archive_copy"], "{record:#?}");
        let failure = record.failure.unwrap();
        assert!(failure.contains("Plant") && failure.contains("no space"), "{failure}");
    }

    #[test]
    fn what_fails_is_recorded_and_what_is_stopped_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(&dir.path().join("a")).unwrap();
        let mut plan = plan(dir.path());
        plan.cells.truncate(2);
        // There is no guest for this one.
        plan.cells[1].file_system = FileSystem::new("ext4");
        let outcome = run(&plan, &records, &Stop::default(), &mut |_| {}).unwrap();
        assert_eq!((outcome.done, outcome.failed), (1, 1));
        let failure = records.get(&plan.cells[1]).unwrap().failure.unwrap();
        assert!(failure.contains("uml-kernel"), "{failure}");

        let stop = Stop::default();
        stop.wish();
        let empty = Records::open(&dir.path().join("b")).unwrap();
        let outcome = run(&plan, &empty, &stop, &mut |_| {}).unwrap();
        assert_eq!((outcome.stopped, empty.all().unwrap().len()), (2, 0));
    }
}
