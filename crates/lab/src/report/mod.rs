//! Reports: records are grouped into sheets of figures, which are rendered as text, CSV or an HTML page.

mod board;
mod chart;
mod compare;
mod csv;
mod html;
mod ink;
mod latency;
mod lead;
mod since;
mod text;
mod tuning;
mod utilization;
mod verdict;

use std::collections::BTreeMap;

pub use board::board;
pub use compare::{Change, compare};
pub use csv::{csv, wear_csv};
pub use html::{Address, html, html_at};
pub use latency::{Line, lines};
pub use lead::{COMPARISONS, Comparison, Lead, Standing, WithCpu, main_comparison, tally, tally_with_cpu};
pub use since::{Since, since, since_text};
pub use text::text;
pub use tuning::{Scores, Tuning, scores_beside, tuning_text, tunings};
pub use verdict::{Verdict, verdicts};

use crate::{
    check::Check,
    experiment::{Experiment, Part, Phase},
    plan::{Age, Cell, Rounds},
    preset::Preset,
    published::published,
    record::{Record, Records},
    scale::Scale,
    systems::{OURS, THROUGH_FUSE},
    wear::Wear,
};

/// Reference file system for ratios, as in the original studies.
const YARDSTICK: &str = "ext4";

/// One experiment on one machine, with a row per file system and a figure per part.
#[derive(Debug, Clone, PartialEq)]
pub struct Sheet {
    /// The experiment.
    pub experiment: Experiment,
    /// The machine.
    pub preset: Preset,
    /// Name of the machine: of its card, if no preset has it, or else of the preset.
    pub machine: String,
    /// The card's name.
    pub profile: String,
    /// Seed of random orders and contents.
    pub seed: u64,
    /// Sizes.
    pub scale: Scale,
    /// Aging of the file systems before the experiments.
    pub age: Option<Age>,
    /// Share of the card that a file fills, in percent, if the experiment depends on it.
    pub full_percent: Option<u64>,
    /// The rows.
    pub rows: Vec<Row>,
}

/// A file system in a sheet.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Name with options.
    pub name: String,
    /// Type.
    pub kind: String,
    /// Options that it got because they suit the card.
    pub suited: Option<String>,
    /// Figure of each part; `None` if it was not measured.
    pub figures: Vec<Option<Figure>>,
    /// Reason if parts are missing.
    pub failure: Option<String>,
    /// Erase counts of the flash by location.
    pub wear: Option<Wear>,
    /// Result of its checker.
    pub check: Check,
    /// Path of its record within the study's directory.
    pub record: String,
}

impl Row {
    /// The measured parts.
    pub fn phases(&self) -> impl Iterator<Item = &Phase> {
        self.figures.iter().flatten().map(|figure| &figure.phase)
    }

    /// Returns true if it is our own file system, in process or mounted.
    pub fn is_ours(&self) -> bool {
        [OURS, THROUGH_FUSE].contains(&self.kind.as_str())
    }

    /// Returns true if it has no options of its mkfs or mount.
    fn is_at_defaults(&self) -> bool {
        self.name.strip_prefix(&self.kind).is_some_and(|rest| !rest.contains('('))
    }

    /// Returns the owner in charts of this row, the one of this number in its sheet.
    fn owner(&self, row: usize) -> chart::Owner {
        if self.is_ours() { chart::Owner::Ours } else { chart::Owner::Rival { row } }
    }

    /// Returns the maximum memory of the kernel, plus that of our process if it served the mount, in bytes.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.phases().filter_map(|phase| phase.cost?.memory_bytes).max()
    }

    /// Returns the figure of a part, unless fsck found errors.
    pub fn sound_figure(&self, part: usize) -> Option<&Figure> {
        self.figures[part].as_ref().filter(|_| !self.check.has_faults())
    }

    /// Returns true if the costs of any part are known.
    pub fn has_costs(&self) -> bool {
        self.phases().any(|phase| phase.cost.is_some())
    }
}

/// A figure with its reference values.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// The measured part.
    pub phase: Phase,
    /// The published figure.
    pub published: Option<f64>,
    /// Ratio to the figure of ext4 in the same run.
    pub to_ext4: Option<f64>,
    /// Ratio of the published figure to the published one of ext4.
    pub published_to_ext4: Option<f64>,
}

impl Sheet {
    /// Describes the settings that affect figures, apart from the card.
    pub fn setup(&self) -> String {
        format!("buffered file of {} MiB, seed {}", self.scale.buffered_bytes >> 20, self.seed)
    }

    /// Describes the card and the aging of its file systems.
    pub fn card(&self) -> String {
        let mut card = self.profile.clone();
        if let Some(Age { times, full_percent, rounds }) = self.age {
            card += &format!(", aged: written {times} times, then {full_percent} % full");
            if rounds == Rounds::UntilSteady {
                card += ", then until the rate stands";
            }
        }
        if let Some(percent) = self.full_percent {
            card += &format!(", {percent} % full");
        }
        card
    }

    /// The parts of the experiment.
    pub fn parts(&self) -> &'static [Part] {
        self.experiment.parts()
    }
}

/// Groups all records into sheets. A sheet contains only comparable figures.
pub fn sheets(records: &[Record]) -> Vec<Sheet> {
    let mut groups: BTreeMap<_, Vec<Vec<&Record>>> = BTreeMap::new();
    for record in records {
        let Cell { preset, card, experiment, .. } = &record.cell;
        let groups = groups.entry((*preset, card.as_deref(), *experiment)).or_default();
        match groups.iter_mut().find(|group| group.iter().all(|one| one.is_comparable(record))) {
            Some(group) => group.push(record),
            None => groups.push(vec![record]),
        }
    }
    groups.into_values().flatten().map(|group| sheet(&group)).collect()
}

/// Returns true if the sheets come from runs with different settings.
fn is_mixed(sheets: &[Sheet]) -> bool {
    // The number of timed writes is ignored, because sheets show it themselves.
    let told = |sheet: &Sheet| (sheet.seed, sheet.scale.with_timed_writes(0), sheet.age);
    sheets.windows(2).any(|pair| told(&pair[0]) != told(&pair[1]))
}

/// Creates the sheet of at least one record, all of one experiment on one machine.
fn sheet(of_sheet: &[&Record]) -> Sheet {
    let Record { cell, seed, scale, age, full_percent, profile, .. } = of_sheet[0];
    let (preset, experiment) = (cell.preset, cell.experiment);
    let yardstick = of_sheet
        .iter()
        .find(|record| record.cell.file_system.kind == YARDSTICK && record.cell.file_system.is_plain());
    let rows = of_sheet.iter().map(|record| {
        let figure = |part: &Part| {
            let phase = record.phase(part.name)?.clone();
            let was = |kind| {
                let figure = published(experiment, part.name, preset, kind)?;
                (figure.is_rate || record.scale == Scale::full()).then_some(figure.value)
            };
            let published_ratio = |kind| {
                Some(
                    published(experiment, part.name, preset, kind)?.value
                        / published(experiment, part.name, preset, YARDSTICK)?.value,
                )
            };
            let kind = record.cell.file_system.kind.as_str();
            Some(Figure {
                published: was(kind),
                to_ext4: yardstick
                    .and_then(|record| record.phase(part.name))
                    .map(|of_ext4| phase.value / of_ext4.value),
                published_to_ext4: published_ratio(kind),
                phase,
            })
        };
        let name = record.cell.subject();
        Row {
            name: if record.is_indicative() { format!("{name}, indicative") } else { name },
            kind: record.cell.file_system.kind.clone(),
            suited: record.suited.clone(),
            figures: experiment.parts().iter().map(figure).collect(),
            failure: record.failure.clone(),
            wear: record.wear.clone(),
            check: record.check.clone(),
            record: Records::name(&record.cell, record.age),
        }
    });
    let rows = rows.collect();
    let profile = profile.0.clone();
    Sheet {
        experiment,
        preset,
        machine: cell.machine().to_owned(),
        profile,
        seed: *seed,
        scale: *scale,
        age: *age,
        full_percent: *full_percent,
        rows,
    }
}

/// Formats a figure with its significant digits.
pub fn shown(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        v if v < 0.1 => format!("{value:.4}"),
        v if v < 10.0 => format!("{value:.2}"),
        v if v < 1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn figures_stand_beside_the_published_ones_and_ext4s() {
        let records = [
            record(Experiment::BufferedWrite, "flashkit", &[10.0, 2000.0]),
            record(Experiment::BufferedWrite, "ext4", &[5.0, 1000.0]),
            record(Experiment::BufferedWrite, "f2fs", &[6.0]),
            record(Experiment::Mount, "ext4", &[3.0, 4.0]),
        ];
        let sheets = sheets(&records);
        assert_eq!(sheets.len(), 2);
        let figures = |row: usize| &sheets[0].rows[row].figures;
        let ours = figures(0)[1].as_ref().unwrap();
        assert_eq!((ours.to_ext4, ours.published), (Some(2.0), None));
        let f2fs = figures(2);
        assert_eq!(f2fs[0].as_ref().unwrap().published, Some(10.6));
        assert!((f2fs[0].as_ref().unwrap().published_to_ext4.unwrap() - 1.493).abs() < 0.001);
        assert!(f2fs[1].is_none() && sheets[0].rows[2].failure.is_some());
    }

    #[test]
    fn figures_of_other_sizes_stand_in_sheets_of_their_own() {
        let mut large = record(Experiment::Mount, "f2fs", &[1.0, 2.0]);
        large.scale = Scale::full();
        let sheets = sheets(&[record(Experiment::Mount, "ext4", &[3.0, 4.0]), large]);
        assert_eq!(sheets.len(), 2);
        assert!(is_mixed(&sheets) && sheets[1].setup().contains("1024 MiB"));
        assert!(sheets[1].rows[0].figures[0].as_ref().unwrap().to_ext4.is_none());
    }

    #[test]
    fn figures_have_three_or_four_digits() {
        assert_eq!(
            [0.0123, 1.234, 12.34, 123.4, 1234.5].map(shown),
            ["0.0123", "1.23", "12.3", "123.4", "1234"]
        );
    }
}
