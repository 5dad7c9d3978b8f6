//! Comparison of two runs: differences beyond noise.
//!
//! Device time is exact, so any difference is a change. For repeated runs, the confidence intervals of the
//! medians must not overlap.

use std::fmt;

use crate::{plan::Cell, record::Record};

/// Maximum relative difference that counts as noise for figures of a stock kernel in QEMU, which include the
/// host's work.
const INDICATIVE_NOISE: f64 = 0.25;

/// A difference between two runs.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Only one run has the cell.
    Only {
        /// The cell.
        cell: Cell,
        /// 1 or 2.
        run: u8,
    },
    /// A setting differs, such as seed, sizes, card or limits.
    Setup {
        /// The cell.
        cell: Cell,
        /// The setting.
        what: &'static str,
    },
    /// Only one run has measured the part.
    Part {
        /// The cell.
        cell: Cell,
        /// The part.
        part: String,
        /// The run that has it: 1 or 2.
        run: u8,
    },
    /// There are too few repetitions to decide.
    TooFewRuns {
        /// The cell.
        cell: Cell,
        /// The part.
        part: String,
    },
    /// A figure changed.
    Figure {
        /// The cell.
        cell: Cell,
        /// The part.
        part: String,
        /// The first and the second figure.
        values: (f64, f64),
        /// Ratio of the second to the first; above 1 if it is better.
        times: f64,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Only { cell, run } => write!(f, "{}: only in run {run}", cell.id()),
            Change::Setup { cell, what } => write!(f, "{}: another {what}", cell.id()),
            Change::Part { cell, part, run } => write!(f, "{}, {part}: only in run {run}", cell.id()),
            Change::TooFewRuns { cell, part } => {
                write!(f, "{}, {part}: too few runs for a comparison; six are enough", cell.id())
            }
            Change::Figure { cell, part, values: (before, after), times } => {
                let (before, after) = (super::shown(*before), super::shown(*after));
                let how = if *times >= 1.0 { "better" } else { "worse" };
                write!(
                    f,
                    "{}, {part}: {before} -> {after}, {:+.1} % ({how})",
                    cell.id(),
                    (times - 1.0) * 100.0
                )
            }
        }
    }
}

/// Finds the changes from one run to another.
pub fn compare(before: &[Record], after: &[Record]) -> Vec<Change> {
    let mut changes = Vec::new();
    for old in before {
        match counterpart(old, before, after) {
            Some(new) => compare_cell(old, new, &mut changes),
            None => changes.push(Change::Only { cell: old.cell.clone(), run: 1 }),
        }
    }
    for new in after {
        if counterpart(new, after, before).is_none() {
            changes.push(Change::Only { cell: new.cell.clone(), run: 2 });
        }
    }
    changes
}

/// Returns the record in `others` to compare with one of `own`: that of the same cell. If each run has
/// measured only one directory, the directories are compared even if their paths differ.
fn counterpart<'a>(record: &Record, own: &[Record], others: &'a [Record]) -> Option<&'a Record> {
    let same = |other: &&Record| other.cell == record.cell;
    let elsewhere = |other: &&Record| {
        let place = record.cell.place.clone();
        place.is_some() && other.cell.place.is_some() && Cell { place, ..other.cell.clone() } == record.cell
    };
    let only = |records: &'a [Record]| {
        let mut found = records.iter().filter(elsewhere);
        found.next().filter(|_| found.next().is_none())
    };
    let is_only_one = own.iter().filter(elsewhere).count() == 1;
    others.iter().find(same).or_else(|| only(others).filter(|_| is_only_one))
}

fn compare_cell(old: &Record, new: &Record, changes: &mut Vec<Change>) {
    let cell = &old.cell;
    for what in old.differences(new) {
        changes.push(Change::Setup { cell: cell.clone(), what });
    }
    let is_indicative = old.is_indicative() || new.is_indicative();
    for part in cell.experiment.parts() {
        let name = part.name.to_owned();
        match (old.phase(part.name), new.phase(part.name)) {
            (Some(old), Some(new)) => {
                let values = (old.value, new.value);
                let times = part.unit.times_as_good(new.value, old.value);
                let changed = match (&old.runs, &new.runs) {
                    (Some(old), Some(new)) => old.differs(new),
                    _ if is_indicative => Some((times - 1.0).abs() > INDICATIVE_NOISE),
                    _ => Some(old.duration_ns != new.duration_ns),
                };
                let cell = cell.clone();
                match changed {
                    Some(true) => changes.push(Change::Figure { cell, part: name, values, times }),
                    Some(false) => {}
                    None => changes.push(Change::TooFewRuns { cell, part: name }),
                }
            }
            (None, None) => {}
            (old, _) => {
                let run = if old.is_some() { 1 } else { 2 };
                changes.push(Change::Part { cell: cell.clone(), part: name, run });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Experiment::{Copy, Mount};
    use crate::record::tests::record;
    use crate::sample::Sample;

    #[test]
    fn the_same_run_has_no_change_and_any_difference_is_one() {
        let before = [record(Copy, "ext4", &[1.0, 2.0, 3.0, 4.0])];
        assert_eq!(compare(&before, &before), []);
        let after = [record(Copy, "ext4", &[1.0, 2.0, 3.0, 4.02]), record(Mount, "ext4", &[1.0, 1.0])];
        let changes = compare(&before, &after);
        assert_eq!(changes.len(), 2, "{changes:?}");
        assert_eq!(changes[0].to_string(), "copy.ext4.desktop, tree_remove: 4.00 -> 4.02, -0.5 % (worse)");
        assert_eq!(changes[1].to_string(), "mount.ext4.desktop: only in run 2");
    }

    #[test]
    fn repeated_runs_change_when_their_medians_are_surely_apart() {
        let run = |from: f64, runs: u32| {
            let mut one = record(Mount, "f2fs", &[from, from]);
            for phase in &mut one.phases {
                let runs = Sample::new((0..runs).map(|n| from + f64::from(n)).collect());
                (phase.value, phase.duration_ns) = (runs.median(), from as u64);
                phase.runs = Some(runs);
            }
            one
        };
        assert_eq!(compare(&[run(10.0, 6)], &[run(14.0, 6)]), []);
        assert_eq!(compare(&[run(10.0, 6)], &[run(16.0, 6)]).len(), 2);
        let few = compare(&[run(10.0, 6)], &[run(16.0, 5)]);
        assert!(few.iter().all(|change| matches!(change, Change::TooFewRuns { .. })), "{few:?}");
    }

    #[test]
    fn a_directory_is_compared_with_itself_or_with_the_only_other() {
        let at = |place: &str, value: f64| {
            let mut one = record(Copy, "ext4", &[value; 4]);
            one.cell.place = Some(place.into());
            one
        };
        assert_eq!(compare(&[at("/a", 1.0), at("/b", 2.0)], &[at("/b", 2.0), at("/a", 1.0)]), []);
        assert_eq!(compare(&[at("/a", 1.0)], &[at("/b", 2.0)]).len(), 4, "all figures");
        let changes = compare(&[at("/a", 1.0), at("/b", 2.0)], &[at("/c", 1.0)]);
        assert!(
            changes.len() == 3 && changes.iter().all(|it| matches!(it, Change::Only { .. })),
            "{changes:?}"
        );
    }

    #[test]
    fn other_settings_and_missing_parts_are_reported() {
        let before = record(Mount, "f2fs", &[1.0, 2.0]);
        let mut after = record(Mount, "f2fs", &[1.0]);
        after.seed = 2;
        let changes: Vec<String> = compare(&[before], &[after]).iter().map(Change::to_string).collect();
        assert_eq!(
            changes,
            ["mount.f2fs.desktop: another seed", "mount.f2fs.desktop, after_reboot: only in run 1"]
        );
    }
}
