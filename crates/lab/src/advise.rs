//! Advice by measurement: the options of our file system that are best for a purpose on a model of a card.
//!
//! The search goes from the rules of the probe, and the defaults of mkfs and mount, in the direction of the greatest gain:
//! first sections and zones, then logs, then the mode. [`crate::tune`] compares all combinations, which takes some four times as long.

use std::{io, path::PathBuf};

use flash::{
    Profile,
    probe::{Findings, IpuPolicy, Shape},
};

use crate::{
    plan::{Checks, Costs, Plan},
    record::{Record, Records},
    report::{self, Scores},
    rivals::FileSystem,
    scale::Scale,
    stop::Stop,
    study,
    systems::OURS,
    tune::{Candidate, EXPERIMENTS, Purpose, sections_and_zones, unit_of},
};

/// Size of the file that the experiments write and read.
const FILE_BYTES: u64 = 64 << 20;
/// A candidate replaces an earlier one only if it is this many times as good. The first one is that of the rules, whose
/// sections or zones are whole units: on an aged volume that spares the card work, which new volumes do not show.
const BETTER: f64 = 1.03;
/// The defaults of mkfs and mount.
const DEFAULTS: Candidate = Candidate { section: 1, zone: 1, ipu_policy: IpuPolicy::Fsync, logs: 6 };

/// A search of the best placement.
pub struct Search {
    /// The use of the card.
    pub purpose: Purpose,
    /// Directory for the data of the modelled cards.
    pub work: PathBuf,
    /// Cells run at once.
    pub jobs: usize,
    /// Ends the search early.
    pub stop: Stop,
}

impl Search {
    /// Creates a search with a cell for each processor.
    pub fn new(purpose: Purpose, work: PathBuf) -> Search {
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        Search { purpose, work, jobs, stop: Stop::default() }
    }

    /// Returns the best placement on a card like the one that was probed. `None` also if the unit or the limit of open units
    /// is not certain, because the rest of the model rests on them.
    ///
    /// # Errors
    /// As [`shape`](Self::shape).
    pub fn of_findings(&self, findings: &Findings, tell: &mut dyn FnMut(&str)) -> io::Result<Option<Shape>> {
        match findings.profile("probed") {
            Ok(model) if findings.is_certain_of_units() => self.shape(&model, tell),
            _ => Ok(None),
        }
    }

    /// Returns the best placement on a card. `None` if no file system can be measured on it (a raw chip, a card that is too
    /// small), or a stop was requested. `tell` gets the name of each candidate when it begins.
    ///
    /// # Errors
    /// The temporary files cannot be made.
    pub fn shape(&self, card: &Profile, tell: &mut dyn FnMut(&str)) -> io::Result<Option<Shape>> {
        if card.is_raw() {
            return Ok(None);
        }
        let results = tempfile::tempdir_in(&self.work)?;
        let mut tried =
            Tried { search: self, card, records: Records::open(results.path())?, done: Vec::new() };
        let findings = Findings::of(card);
        let rules = findings.shape_by_rules();
        let by_rules = Candidate {
            section: rules.segments_per_section,
            zone: rules.sections_per_zone,
            ipu_policy: rules.ipu_policy,
            logs: rules.active_logs,
        };
        let pairs = sections_and_zones(unit_of(&findings)).into_iter();
        let pairs = pairs.map(|(section, zone)| Candidate { section, zone, ..DEFAULTS });
        tried.run([by_rules].into_iter().chain(pairs).collect(), tell)?;
        if let Some((best, _)) = tried.best() {
            tried.run([4, 2].map(|logs| Candidate { logs, ..best }).to_vec(), tell)?;
        }
        if let Some((best, _)) = tried.best() {
            let policies = [IpuPolicy::Fsync, IpuPolicy::Disable];
            tried.run(policies.map(|ipu_policy| Candidate { ipu_policy, ..best }).to_vec(), tell)?;
        }
        Ok(tried.best().filter(|_| !self.stop.is_wished()).map(|(best, scores)| Shape {
            segments_per_section: best.section,
            sections_per_zone: best.zone,
            ipu_policy: best.ipu_policy,
            active_logs: best.logs,
            reasons: vec![reason(self.purpose, &scores, tried.done.len())],
        }))
    }
}

/// The candidates that were measured on a card.
struct Tried<'a> {
    search: &'a Search,
    card: &'a Profile,
    records: Records,
    /// In the order in which they were tried.
    done: Vec<(Candidate, Vec<Record>)>,
}

impl Tried<'_> {
    /// Measures candidates that were not measured before.
    fn run(&mut self, candidates: Vec<Candidate>, tell: &mut dyn FnMut(&str)) -> io::Result<()> {
        for candidate in candidates {
            if self.done.iter().any(|(done, _)| *done == candidate) || self.search.stop.is_wished() {
                continue;
            }
            let file_system = candidate.file_system(OURS);
            tell(&file_system.name());
            let records = self.measure(&file_system)?;
            self.done.push((candidate, records));
        }
        Ok(())
    }

    fn measure(&self, file_system: &FileSystem) -> io::Result<Vec<Record>> {
        let cards = std::slice::from_ref(self.card);
        let cells = Plan::cells_without_guest(&EXPERIMENTS, std::slice::from_ref(file_system), &[], cards);
        let plan = Plan {
            cards: cards.to_vec(),
            costs: Costs::LeftOut,
            checks: Checks::LeftOut,
            jobs: self.search.jobs,
            ..Plan::of(cells, Scale::of_file(FILE_BYTES), self.search.work.clone())
        };
        study::run(&plan, &self.records, &self.search.stop, &mut |_| {})?;
        Ok(plan.cells.iter().filter_map(|cell| self.records.get(cell, None)).collect())
    }

    /// Returns the best candidate so far with its scores beside the defaults. Of those that are equally good, the first
    /// one is the best.
    fn best(&self) -> Option<(Candidate, Scores)> {
        let records: Vec<Record> =
            self.done.iter().flat_map(|(_, records)| records.iter().cloned()).collect();
        let scores = report::scores_beside(&report::sheets(&records), &DEFAULTS.file_system(OURS).name());
        let n = Purpose::ALL.iter().position(|purpose| *purpose == self.search.purpose)?;
        let scored = self.done.iter().filter_map(|(candidate, _)| {
            Some((*candidate, *scores.get(&candidate.file_system(OURS).name())?))
        });
        scored.reduce(|best, other| if other.1[n] > best.1[n] * BETTER { other } else { best })
    }
}

/// Returns the reason for the best candidate.
fn reason(purpose: Purpose, scores: &Scores, tried: usize) -> String {
    let all: Vec<String> = Purpose::ALL
        .iter()
        .zip(scores)
        .map(|(purpose, score)| format!("{} {score:.2}", purpose.name()))
        .collect();
    format!(
        "Measured on a model of this card: the best of {tried} shapes for {} use on a new volume. Times as good as the \
         defaults of mkfs and mount: {}.",
        purpose.name(),
        all.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(purpose: Purpose) -> Search {
        Search::new(purpose, std::env::temp_dir())
    }

    /// The advice by rules is among the candidates, so the measured one is no worse.
    #[test]
    fn the_best_shape_depends_on_the_purpose_and_is_no_worse_than_that_of_the_rules() {
        let card = Profile::named("survey-class4").unwrap();
        let mut tried = Vec::new();
        let streams = search(Purpose::Streams).shape(&card, &mut |name| tried.push(name.to_owned()));
        let streams = streams.unwrap().unwrap();
        assert_eq!((streams.segments_per_section, streams.sections_per_zone), (1, 1), "{streams:?}");
        let rules = Findings::of(&card).shape_by_rules();
        assert_ne!(streams.active_logs, rules.active_logs, "two logs halve its streams");
        assert!(tried.len() > 5 && tried.contains(&DEFAULTS.file_system(OURS).name()), "{tried:?}");
        let small = search(Purpose::SmallFiles).shape(&card, &mut |_| {}).unwrap().unwrap();
        assert!(small.segments_per_section.max(small.sections_per_zone) > 1, "{small:?}");
        assert!(small.reasons[0].contains("best of") && small.reasons[0].contains("for small files use"));
    }

    #[test]
    fn a_raw_chip_and_a_stopped_search_have_no_shape() {
        let chip = Profile::named("nand-2003").unwrap();
        assert_eq!(search(Purpose::Mixed).shape(&chip, &mut |_| {}).unwrap(), None);
        let stopped = search(Purpose::Mixed);
        stopped.stop.wish();
        let card = Profile::named("survey-class4").unwrap();
        assert_eq!(stopped.shape(&card, &mut |_| {}).unwrap(), None);
    }
}
