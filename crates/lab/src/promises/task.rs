//! Runs the power cuts of one file system, or one of them again.

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, Write as _},
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use block::{Device, MemoryDevice, Rng};
use flash::Profile;
use guest::examine::What;

use super::{
    bare::BareSubject,
    cut_files::CutFiles,
    dirty_mark::DirtyMark,
    engine::EngineSubject,
    guest::GuestSubject,
    log::{After, CardFailure, Cut, Entry, Fate, copy},
    promise::{Kind, Must, Promise, runs_text},
    record::{Broken, CutReport, FORM, PromiseRecord},
    script::Script,
    subject::{Aftermath, Recording, Subject},
};
use crate::{
    check::Check,
    record::{Made, Versions, digest},
    rivals::FileSystem,
    stop::Stop,
    study,
    systems::{OURS, Programs},
    vm::Failure,
};

/// Maximum number of cuts of one script and one failure of the card.
const CUTS_A_ROUND: u64 = 200;
/// Number of groups of operations of a script.
const EPISODES: u32 = 60;
/// Maximum length of an operation in texts, in characters.
const OP_CHARS: usize = 160;

/// The cuts of one file system on one card.
#[derive(Debug, Clone)]
pub struct Task {
    /// The file system.
    pub file_system: FileSystem,
    /// The card.
    pub card: Profile,
    /// Seed of scripts and cuts.
    pub seed: u64,
    /// Number of cuts for each failure of the card.
    pub cuts: BTreeMap<CardFailure, u64>,
    /// The guest's programs.
    pub programs: Option<Programs>,
    /// Directory for temporary images.
    pub work: PathBuf,
    /// Stop request.
    pub stop: Stop,
}

/// ID of a cut: the failure, the round and the number within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CutId {
    /// Failure of the card.
    pub failure: CardFailure,
    /// Number of the script.
    pub round: u64,
    /// Number of the cut.
    pub number: u64,
}

impl fmt::Display for CutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.failure.name(), self.round, self.number)
    }
}

impl FromStr for CutId {
    type Err = String;

    fn from_str(text: &str) -> Result<CutId, String> {
        let mut parts = text.split('-');
        let failure =
            parts.next().and_then(|name| CardFailure::ALL.into_iter().find(|one| one.name() == name));
        let mut number = || parts.next()?.parse().ok();
        match (failure, number(), number(), parts.next()) {
            (Some(failure), Some(round), Some(number), None) => Ok(CutId { failure, round, number }),
            _ => Err("FAILURE-ROUND-NUMBER, for example honest-0-17, as a record lists them; failures are \
                      honest, torn, mapping and flushes, and of bare chips honest, unstable and paired"
                .into()),
        }
    }
}

/// Progress of a run.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Cuts so far, with those of earlier runs.
    pub done: u64,
    /// Cuts of earlier runs.
    pub kept: u64,
    /// All cuts.
    pub all: u64,
    /// Promises broken so far.
    pub broken: u64,
}

impl Task {
    fn rounds(&self) -> u64 {
        self.cuts.values().copied().max().unwrap_or(0).div_ceil(CUTS_A_ROUND)
    }

    /// Returns the number of cuts of a failure in a round.
    fn cuts_in(&self, failure: CardFailure, round: u64) -> u64 {
        let (all, rounds) = (self.cuts.get(&failure).copied().unwrap_or(0), self.rounds());
        all / rounds + u64::from(round < all % rounds)
    }

    fn subject(&self) -> Result<Box<dyn Subject>, Failure> {
        Ok(match self.file_system.kind == OURS {
            true => Box::new(EngineSubject::new(&self.file_system, &self.card)?),
            false if self.card.is_raw() => Box::new(BareSubject::new(self)),
            false => Box::new(GuestSubject::new(self)),
        })
    }

    fn script_seed(&self, round: u64) -> u64 {
        Rng::new(self.seed ^ round.rotate_left(40)).next_u64()
    }

    fn recording(&self, subject: &mut dyn Subject, round: u64) -> Result<Recording, Failure> {
        let seed = self.script_seed(round);
        subject.record(Script::new(seed, EPISODES), self.seed)
    }

    /// Returns a cut: between two operations, or at any request after the preparation. On a bare chip, a quarter of the cuts
    /// are at the next erase, which takes much longer than a program.
    fn cut(&self, recording: &Recording, id: &CutId) -> Cut {
        let mut rng = Rng::new(self.script_seed(id.round) ^ (id.failure as u64 + 1) << 56 ^ id.number << 20);
        let first = recording.before_step[recording.script.prepared];
        let at = match rng.below(2) {
            0 => {
                let steps = &recording.before_step[recording.script.prepared..];
                steps[rng.below(steps.len() as u64) as usize]
            }
            _ => first + rng.below((recording.log.entries.len() - first) as u64 + 1) as usize,
        };
        let erase = self.card.is_raw() && rng.below(4) == 0;
        let at = recording.log.next_erase(at).filter(|_| erase).unwrap_or(at);
        Cut { at, failure: id.failure, seed: rng.next_u64() }
    }

    /// Makes one cut, recovers, and compares.
    fn judge(
        &self,
        subject: &mut dyn Subject,
        recording: &Recording,
        id: &CutId,
        keep: Option<&Path>,
    ) -> Result<CutReport, Failure> {
        let cut = self.cut(recording, id);
        let device = Arc::new(copy(&recording.start)?);
        let After { fates, unstable } = recording.log.apply(&cut, &self.card, &device)?;
        if let Some(path) = keep {
            write_image(&device, path)?;
            write_requests(recording, &fates, &beside(path))?;
        }
        let aftermath = subject.recover(device.clone(), &unstable)?;
        let checked = match aftermath.recovered_ns.is_some() && !aftermath.has_died {
            true => self.check(&device)?,
            false => (Check::NotChecked { why: "the volume was not mounted".into() }, DirtyMark::Absent),
        };
        Ok(compare(&self.file_system.kind, recording, (&cut, &fates), id, aftermath, checked))
    }

    /// Has a volume checked. A mark that only says that the volume was in use is cleared before.
    fn check(&self, device: &MemoryDevice) -> io::Result<(Check, DirtyMark)> {
        let work = tempfile::tempdir_in(&self.work)?;
        let image = work.path().join("card");
        write_image(device, &image)?;
        let mark = DirtyMark::clear(&self.file_system.kind, &image)?;
        let mut check = Check::of(&self.file_system, &image);
        // The name of the temporary directory differs between two runs of a cut.
        if let Check::Faults { said, .. } = &mut check {
            *said = said.replace(&*work.path().to_string_lossy(), "WORK");
        }
        Ok((check, mark))
    }

    /// Returns a digest of everything that the result of a cut follows from, apart from its ID. The host's kernel
    /// and the day do not matter.
    fn setup(&self, planned: &PromiseRecord) -> io::Result<String> {
        let versions = Versions { host: String::new(), ..planned.versions.clone() };
        let setup = (planned.form, &self.file_system, self.card.to_toml(), self.seed, versions);
        digest(serde_json::to_string(&setup)?.as_bytes())
    }

    /// Returns the IDs of the cuts of a script.
    fn ids(&self, round: u64) -> Vec<CutId> {
        let of = |failure| {
            let numbers = 0..self.cuts_in(failure, round);
            numbers.map(move |number| CutId { failure, round, number })
        };
        CardFailure::ALL.into_iter().flat_map(of).collect()
    }

    fn planned(&self) -> PromiseRecord {
        let programs = self.programs.as_ref().filter(|_| self.file_system.kind != OURS);
        let note = programs.and_then(|programs| study::note(&programs.kernel));
        PromiseRecord {
            form: FORM,
            file_system: self.file_system.clone(),
            card: self.card.name.clone(),
            card_bytes: self.card.size_bytes,
            seed: self.seed,
            made: Made::now(),
            versions: Versions {
                formatter: self.file_system.formatter_digest(),
                guest_kernel: note.as_ref().and_then(study::release),
                kernel_config: note.and_then(|note| Some(note["config_sha256"].as_str()?.to_owned())),
                ..Versions::here()
            },
            tallies: BTreeMap::new(),
            findings: Vec::new(),
            failure: None,
        }
    }
}

/// Makes all cuts of a task that have no result of this setup yet, and sums up all of them. A file system that cannot
/// be measured has a record with the reason. The result of each cut is written to a file of its own, the record to
/// `dir` after each script and after a stop, so that another call continues.
///
/// # Errors
/// A stop request; a file cannot be written.
pub fn run(task: &Task, dir: &Path, tell: &mut dyn FnMut(Progress)) -> Result<PromiseRecord, Failure> {
    let mut record = task.planned();
    match run_rounds(task, dir, &mut record, tell) {
        Err(Failure::Stopped) => {
            record.failure = Some("stopped".into());
            record.put(dir)?;
            return Err(Failure::Stopped);
        }
        Err(failure) => record.failure = Some(failure.to_string()),
        Ok(()) => {}
    }
    record.put(dir)?;
    Ok(record)
}

fn run_rounds(
    task: &Task,
    dir: &Path,
    record: &mut PromiseRecord,
    tell: &mut dyn FnMut(Progress),
) -> Result<(), Failure> {
    let kind = task.file_system.kind.as_str();
    let files = CutFiles::open(&record.folder(dir), task.setup(record)?, kind)?;
    let mut progress = Progress { done: 0, kept: 0, all: task.cuts.values().sum(), broken: 0 };
    let mut subject = task.subject()?;
    for round in 0..task.rounds() {
        // A script whose cuts all have results is not run.
        let mut recording = None;
        for id in task.ids(round) {
            if task.stop.is_wished() {
                return Err(Failure::Stopped);
            }
            let report = match files.get(&id) {
                Some(report) => {
                    progress.kept += 1;
                    report
                }
                None => {
                    if recording.is_none() {
                        recording = Some(task.recording(&mut *subject, round)?);
                    }
                    let recording = recording.as_ref().expect("it was just made");
                    let report = task.judge(&mut *subject, recording, &id, None)?;
                    files.put(&id, &report)?;
                    report
                }
            };
            let tally = record.tallies.entry(id.failure).or_default();
            tally.count(&report, |promise: Kind| promise.is_promised_by(kind));
            progress.done += 1;
            progress.broken += report.broken.iter().filter(|it| it.is_promised).count() as u64;
            tell(progress);
            if report.has_finding() {
                record.findings.push(report);
            }
        }
        record.put(dir)?;
    }
    Ok(())
}

/// Makes one cut again. With `keep`, writes the image before the recovery to this file, and the requests of the card to
/// one of the same name with `.requests` at its end.
///
/// # Errors
/// The script cannot be run, or the machine fails.
pub fn replay(task: &Task, id: &CutId, keep: Option<&Path>) -> Result<CutReport, Failure> {
    let mut subject = task.subject()?;
    let recording = task.recording(&mut *subject, id.round)?;
    task.judge(&mut *subject, &recording, id, keep)
}

/// Compares the tree after a cut with the promises in force.
fn compare(
    file_system: &str,
    recording: &Recording,
    (cut, fates): (&Cut, &[Fate]),
    id: &CutId,
    aftermath: Aftermath,
    (check, dirty_mark): (Check, DirtyMark),
) -> CutReport {
    let script = &recording.script;
    let tree: BTreeMap<String, What> =
        aftermath.found.into_iter().map(|found| (found.path.to_string(), found.is)).collect();
    // A request that the cut interrupts has begun, and may be one that ends a promise.
    let begun = fates.len();
    let is_in_force = |promise: &Promise| {
        let until = promise.until.map_or(usize::MAX, |step| recording.before_step[step]);
        recording.before_step[promise.from] <= cut.at
            && begun <= until
            && !recording.refused.contains(&promise.episode)
    };
    let in_force: Vec<(usize, &Promise)> =
        script.promises.iter().enumerate().filter(|(_, promise)| is_in_force(promise)).collect();
    let mut report = CutReport {
        id: id.to_string(),
        requests: cut.at,
        promises: in_force.len(),
        kept: BTreeMap::new(),
        broken: Vec::new(),
        recovered_ns: aftermath.recovered_ns,
        has_died: aftermath.has_died,
        said: aftermath.said,
        check,
        dirty_mark,
    };
    if report.recovered_ns.is_none() || report.has_died {
        return report;
    }
    for (number, promise) in in_force {
        let history = &script.histories[&promise.path];
        let Some((fault, found)) = promise.judge(&tree, history) else {
            *report.kept.entry(promise.kind).or_default() += 1;
            continue;
        };
        let since_request = recording.before_step[promise.from];
        let made_by = promise.from.checked_sub(1).map(|step| &script.steps[step].op);
        report.broken.push(Broken {
            promise: number,
            kind: promise.kind,
            is_promised: promise.kind.is_promised_by(file_system),
            path: promise.path.clone(),
            since_request,
            made_by: made_by.map(|op| format!("{op:?}").chars().take(OP_CHARS).collect()).unwrap_or_default(),
            fault,
            required: required(&promise.must),
            found,
            lost_writes: recording.log.lost_writes(since_request, fates),
        });
    }
    report
}

/// Describes a required state in a few words.
fn required(must: &Must) -> String {
    let one_of = |layouts: &[Vec<guest::stamp::Run>]| {
        layouts.iter().map(|layout| runs_text(layout)).collect::<Vec<_>>().join(", or ")
    };
    match must {
        Must::Dir => "a directory".into(),
        Must::Absent => "no such name".into(),
        Must::OneOf(layouts) => one_of(layouts),
        Must::Between(states) => format!("in each sector that of one of: {}", one_of(states)),
        Must::Database(states) => format!("the pages' versions are one of {states:?}"),
    }
}

/// Writes the content of a device to a sparse file.
fn write_image(device: &MemoryDevice, path: &Path) -> io::Result<()> {
    let file = block::FileDevice::create(path, device.geometry().size_bytes)?;
    let mut page = [0; 4096];
    for at in device.allocated_pages() {
        let length = (device.geometry().size_bytes - at).min(page.len() as u64) as usize;
        device.read(at, &mut page[..length])?;
        file.write(at, &page[..length])?;
    }
    Ok(())
}

/// Returns the path of the list of requests that belongs to an image.
fn beside(image: &Path) -> PathBuf {
    let mut name = image.as_os_str().to_owned();
    name.push(".requests");
    name.into()
}

/// Writes the requests, one a line with its fate, and each operation of the script before its first request.
fn write_requests(recording: &Recording, fates: &[Fate], path: &Path) -> io::Result<()> {
    let mut file = io::BufWriter::new(std::fs::File::create(path)?);
    let steps = recording.script.steps.iter().zip(&recording.before_step);
    let mut steps = steps.map(|(step, at)| (*at, &step.op)).peekable();
    writeln!(file, "number\trequest\toffset_bytes\tlength_bytes\tat_ns\tdone_ns\tfate")?;
    for (n, entry) in recording.log.entries.iter().enumerate() {
        while let Some((_, op)) = steps.next_if(|(at, _)| *at <= n) {
            writeln!(file, "# {}", format!("{op:?}").chars().take(OP_CHARS).collect::<String>())?;
        }
        let Entry { verb, offset_bytes, length_bytes, at_ns, done_ns, .. } = entry;
        let fate = fates.get(n).map_or("after the cut".to_owned(), |fate| format!("{fate:?}").to_lowercase());
        writeln!(file, "{n}\t{verb:?}\t{offset_bytes}\t{length_bytes}\t{at_ns}\t{done_ns}\t{fate}")?;
    }
    file.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promises::read_all;

    fn task(dir: &Path, cuts: [u64; 4]) -> Task {
        Task {
            file_system: FileSystem::new(OURS),
            card: Profile::named("survey-emmc51").unwrap().with_size(128 << 20).unwrap(),
            seed: 7,
            cuts: CardFailure::of(&Profile::named("survey-emmc51").unwrap())
                .iter()
                .copied()
                .zip(cuts)
                .collect(),
            programs: None,
            work: dir.to_owned(),
            stop: Stop::default(),
        }
    }

    #[test]
    fn our_file_system_keeps_its_promises_unless_the_card_ignores_flushes() {
        let dir = tempfile::tempdir().unwrap();
        let task = task(dir.path(), [30, 30, 4, 30]);
        let record = run(&task, dir.path(), &mut |_| {}).unwrap();
        assert_eq!(record.failure, None);
        for failure in [CardFailure::Honest, CardFailure::TornSectors] {
            let tally = &record.tallies[&failure];
            let counts = (tally.cuts, tally.broken(), tally.not_mounted, tally.faulty);
            assert_eq!(counts, (30, 0, 0, 0), "{:#?}", record.findings);
            assert!(tally.kept() > 200, "{tally:#?}");
        }
        assert!(record.tallies[&CardFailure::IgnoredFlushes].broken() > 0, "{:#?}", record.tallies);
        assert!(read_all(dir.path()).unwrap() == [record.clone()], "a record is read back");

        // Each broken promise can be replayed from its record.
        let broken = record.findings.iter().find(|report| !report.broken.is_empty()).unwrap();
        let image = dir.path().join("cut.img");
        let again = replay(&task, &broken.id.parse().unwrap(), Some(&image)).unwrap();
        assert_eq!(again.broken, broken.broken);
        assert_eq!(again.requests, broken.requests);
        assert_eq!(std::fs::metadata(&image).unwrap().len(), task.card.size_bytes);
        let requests = std::fs::read_to_string(dir.path().join("cut.img.requests")).unwrap();
        let fates = requests.lines().filter_map(|line| line.rsplit_once('\t')).map(|(_, fate)| fate);
        let before_cut = fates.skip(1).take_while(|fate| *fate != "after the cut");
        assert_eq!(before_cut.count(), again.requests, "{requests}");
        assert!(requests.contains("\tlost\n") && requests.contains("# Fsync"), "{requests}");
    }

    /// Returns the names and contents of the cuts' files.
    fn files(dir: &Path, record: &PromiseRecord) -> BTreeMap<PathBuf, Vec<u8>> {
        let entries = std::fs::read_dir(record.folder(dir)).unwrap();
        let file = |entry: io::Result<std::fs::DirEntry>| {
            let path = entry.unwrap().path();
            (path.strip_prefix(dir).unwrap().to_owned(), std::fs::read(&path).unwrap())
        };
        entries.map(file).collect()
    }

    #[test]
    fn an_interrupted_run_continues_and_ends_like_an_uninterrupted_one() {
        let (dir, whole_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (dir, whole_dir) = (dir.path(), whole_dir.path());
        let task = task(dir, [6, 2, 1, 4]);
        let whole = run(&task, whole_dir, &mut |_| {}).unwrap();

        let stopped = Task { stop: Stop::default(), ..task.clone() };
        let after_five = &mut |progress: Progress| {
            if progress.done == 5 {
                stopped.stop.wish();
            }
        };
        assert!(matches!(run(&stopped, dir, after_five), Err(Failure::Stopped)));
        let part = &read_all(dir).unwrap()[0];
        assert_eq!(part.failure.as_deref(), Some("stopped"));
        assert_eq!((part.tallies[&CardFailure::Honest].cuts, files(dir, part).len()), (5, 5));

        let mut seen = Vec::new();
        let done = run(&task, dir, &mut |progress| seen.push((progress.done, progress.kept))).unwrap();
        assert_eq!((seen.first(), seen.last()), (Some(&(1, 1)), Some(&(13, 5))));
        let results = |record: &PromiseRecord| (record.tallies.clone(), record.findings.clone());
        assert_eq!(results(&done), results(&whole));
        assert!(files(dir, &done) == files(whole_dir, &whole), "each cut has the same bytes");

        // A damaged file and one of another program are made again, and only they.
        let file = done.folder(dir).join("honest-0-3.json");
        let of_other = std::fs::read_to_string(&file).unwrap().replace("\"setup\": \"", "\"setup\": \"0");
        for bytes in [&b"{"[..], of_other.as_bytes()] {
            std::fs::write(&file, bytes).unwrap();
            let mut last = None;
            run(&task, dir, &mut |progress| last = Some((progress.done, progress.kept))).unwrap();
            assert_eq!(last, Some((13, 12)));
            assert!(files(dir, &done) == files(whole_dir, &whole));
        }
        let other = Task { seed: 8, ..task };
        let mut kept = 0;
        run(&other, dir, &mut |progress| kept = progress.kept).unwrap();
        assert_eq!(kept, 0, "another seed has other cuts");
    }

    #[test]
    fn ids_of_cuts_are_read_back() {
        let id = CutId { failure: CardFailure::TornSectors, round: 3, number: 41 };
        assert_eq!(id.to_string().parse(), Ok(id));
        for bad in ["", "honest", "honest-1", "honest-1-x", "other-1-1", "honest-1-1-1"] {
            assert!(bad.parse::<CutId>().is_err(), "{bad}");
        }
    }
}
