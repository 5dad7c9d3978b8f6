//! The study's folder: notices new and changed records.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde::Serialize;

use crate::{
    progress::{Progress, now_s},
    record::{CELLS, Record, Records},
    report,
};

/// Name of the folder with the logs of a workflow engine.
pub(super) const LOGS: &str = "logs";
/// Age from which the time of the folder shows every later change. File systems keep times with the granularity of
/// their kernel's clock, so two changes in close succession may have the same.
const SETTLED: Duration = Duration::from_secs(2);

/// A cell as the page shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Shown {
    /// Name of the cell's files without their ending.
    name: String,
    /// Reason if the cell failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
    /// Its figures.
    figures: String,
    /// Wall time in seconds.
    took_s: f64,
    /// True if a workflow engine left a log.
    has_log: bool,
}

/// Everything that was noticed so far.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    /// Number of the last change.
    pub version: u64,
    /// The cells by name, with the number of the change that brought them.
    cells: BTreeMap<String, (u64, Shown)>,
    progress: Option<Progress>,
}

/// An event for the page.
#[derive(Serialize)]
struct Event<'a> {
    cells: Vec<&'a Shown>,
    ended: usize,
    failed: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<&'a Progress>,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_s: Option<u64>,
    now_s: u64,
}

impl State {
    /// Returns an event of a stream with everything that changed after a version.
    pub(super) fn event(&self, after: u64) -> String {
        let mut cells: Vec<&(u64, Shown)> = self.cells.values().filter(|(at, _)| *at > after).collect();
        cells.sort_by_key(|(at, _)| *at);
        let now_s = now_s();
        let event = Event {
            cells: cells.into_iter().map(|(_, cell)| cell).collect(),
            ended: self.cells.len(),
            failed: self.cells.values().filter(|(_, cell)| cell.failure.is_some()).count(),
            progress: self.progress.as_ref(),
            left_s: self.progress.as_ref().and_then(|it| it.left(now_s)).map(|left| left.as_secs()),
            now_s,
        };
        // JSON without line feeds is one line of an event.
        format!("data: {}\n\n", serde_json::to_string(&event).expect("it has only text and numbers"))
    }
}

/// Length, time and number of a file, which change with its content: records are replaced as a whole.
type Signature = (u64, i64, i64, u64);

/// The folder of a study.
pub(super) struct Folder {
    study: PathBuf,
    seen: HashMap<String, Signature>,
    /// Time of the folder when it was read completely, and had settled.
    settled_at: Option<SystemTime>,
}

impl Folder {
    pub(super) fn new(study: &Path) -> Folder {
        Folder { study: study.to_owned(), seen: HashMap::new(), settled_at: None }
    }

    /// Looks for changes. Returns the new state if there are any.
    pub(super) fn look(&mut self, state: &State) -> Option<State> {
        let changed = self.changed_cells();
        let progress = Progress::read(&self.study);
        if changed.is_empty() && progress == state.progress {
            return None;
        }
        let mut new = State { progress, ..state.clone() };
        for cell in changed {
            new.version += 1;
            new.cells.insert(cell.name.clone(), (new.version, cell));
        }
        Some(new)
    }

    /// Reads the records that are new or have changed.
    fn changed_cells(&mut self) -> Vec<Shown> {
        let cells = self.study.join(CELLS);
        let Ok(changed_at) = fs::metadata(&cells).and_then(|it| it.modified()) else { return Vec::new() };
        if self.settled_at == Some(changed_at) {
            return Vec::new();
        }
        let is_settled = changed_at.elapsed().is_ok_and(|age| age > SETTLED);
        let Ok(entries) = fs::read_dir(&cells) else { return Vec::new() };
        let mut changed = Vec::new();
        for entry in entries.flatten() {
            let file = entry.file_name();
            let Some(name) = file.to_str().and_then(|name| name.strip_suffix(".json")) else { continue };
            let Ok(about) = entry.metadata() else { continue };
            let signature = (about.len(), about.mtime(), about.mtime_nsec(), about.ino());
            if about.is_file() && self.seen.insert(name.to_owned(), signature) != Some(signature) {
                changed.push(self.shown(name, &entry.path()));
            }
        }
        self.settled_at = is_settled.then_some(changed_at);
        changed
    }

    fn shown(&self, name: &str, path: &Path) -> Shown {
        let has_log = self.study.join(LOGS).join(format!("{name}.log")).is_file();
        let shown =
            |failure, figures, took_s| Shown { name: name.to_owned(), failure, figures, took_s, has_log };
        let read = Records::of(&self.study).read(path);
        match read.and_then(|record| record.map_err(io::Error::from)) {
            Ok(record) => shown(failure_of(&record), figures_of(&record), record.took_s),
            Err(error) => shown(Some(format!("the record cannot be read: {error}")), String::new(), 0.0),
        }
    }
}

fn failure_of(record: &Record) -> Option<String> {
    match (&record.failure, &record.check) {
        (Some(failure), _) => Some(failure.clone()),
        (None, crate::check::Check::Faults { program, said }) => {
            Some(format!("{program} found faults: {said}"))
        }
        (None, _) => None,
    }
}

fn figures_of(record: &Record) -> String {
    let phases = record.phases.iter();
    let figures =
        phases.map(|phase| format!("{} {} {}", phase.part, report::shown(phase.value), phase.unit.sign()));
    figures.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{experiment::Experiment, record::tests::record};

    #[test]
    fn each_record_is_noticed_once_and_again_when_it_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let mut folder = Folder::new(dir.path());
        assert!(folder.look(&State::default()).is_none(), "there is no study yet");
        let records = Records::open(dir.path()).unwrap();
        let mut one = record(Experiment::Mount, "ext4", &[1.5, 2.5]);
        records.put(&one).unwrap();
        let first = folder.look(&State::default()).unwrap();
        assert!(first.event(0).contains("after_format 1.50 ms, after_reboot 2.50 ms"), "{}", first.event(0));
        assert!(folder.look(&first).is_none());
        one.failure = Some("no\nspace".into());
        records.put(&one).unwrap();
        records.put(&record(Experiment::Mount, "f2fs", &[1.0, 2.0])).unwrap();
        fs::create_dir(dir.path().join(LOGS)).unwrap();
        fs::write(dir.path().join(CELLS).join("bad.json"), "{").unwrap();
        let second = folder.look(&first).unwrap();
        let event = second.event(first.version);
        assert_eq!(event.matches("\"name\"").count(), 3, "{event}");
        assert!(event.contains("\"ended\":3,\"failed\":2"), "{event}");
        assert_eq!(event.matches('\n').count(), 2, "an event is one line: {event}");
        assert_eq!(second.event(second.version).matches("\"name\"").count(), 0);
    }
}
