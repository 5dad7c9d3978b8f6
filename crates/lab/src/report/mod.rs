//! From records to what people read: first sheets of figures, then those as text, CSV or a page.

mod chart;
mod compare;
mod csv;
mod html;
mod latency;
mod lead;
mod text;
mod verdict;

use std::collections::BTreeSet;

pub use compare::{Change, compare};
pub use csv::csv;
pub use html::html;
pub use latency::{Line, lines};
pub use lead::{Lead, leads};
pub use text::text;
pub use verdict::{Verdict, verdicts};

use crate::{
    check::Check,
    experiment::{Experiment, Part, Phase},
    preset::Preset,
    published::published,
    record::Record,
    scale::Scale,
};

/// The file system that others are measured against, as in the originals.
const YARDSTICK: &str = "ext4";

/// One experiment on one machine: a row a file system, a figure a part.
#[derive(Debug, Clone, PartialEq)]
pub struct Sheet {
    /// The experiment.
    pub experiment: Experiment,
    /// The machine.
    pub preset: Preset,
    /// The card's name.
    pub profile: String,
    /// The rows.
    pub rows: Vec<Row>,
}

/// A file system in a sheet.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Its name with its options.
    pub name: String,
    /// Its type.
    pub kind: String,
    /// Options that it was given because of the card.
    pub suited: Option<String>,
    /// A figure for each part that was measured.
    pub figures: Vec<Option<Figure>>,
    /// Why there are not all of them.
    pub failure: Option<String>,
    /// What its checker said.
    pub check: Check,
}

impl Row {
    /// What was measured.
    pub fn phases(&self) -> impl Iterator<Item = &Phase> {
        self.figures.iter().flatten().map(|figure| &figure.phase)
    }

    /// The most memory that the kernel took for itself.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.phases().filter_map(|phase| phase.cost?.memory_bytes).max()
    }

    /// Whether it is known what any part of it costs.
    pub fn has_costs(&self) -> bool {
        self.phases().any(|phase| phase.cost.is_some())
    }
}

/// A figure and what stands beside it.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// What was measured.
    pub phase: Phase,
    /// What was published.
    pub published: Option<f64>,
    /// The figure as a multiple of ext4's in the same run.
    pub to_ext4: Option<f64>,
    /// The published figure as a multiple of the published one of ext4.
    pub published_to_ext4: Option<f64>,
}

impl Sheet {
    /// The parts of the experiment.
    pub fn parts(&self) -> &'static [Part] {
        self.experiment.parts()
    }
}

/// Sheets of all records.
pub fn sheets(records: &[Record]) -> Vec<Sheet> {
    let keys: BTreeSet<(Preset, Experiment)> =
        records.iter().map(|record| (record.cell.preset, record.cell.experiment)).collect();
    keys.into_iter().map(|(preset, experiment)| sheet(records, preset, experiment)).collect()
}

fn sheet(records: &[Record], preset: Preset, experiment: Experiment) -> Sheet {
    let wanted = |record: &&Record| (record.cell.preset, record.cell.experiment) == (preset, experiment);
    let of_sheet: Vec<&Record> = records.iter().filter(wanted).collect();
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
        Row {
            name: record.cell.file_system.name(),
            kind: record.cell.file_system.kind.clone(),
            suited: record.suited.clone(),
            figures: experiment.parts().iter().map(figure).collect(),
            failure: record.failure.clone(),
            check: record.check.clone(),
        }
    });
    let rows = rows.collect();
    let profile = of_sheet.first().map(|record| record.profile.0.clone()).unwrap_or_default();
    Sheet { experiment, preset, profile, rows }
}

/// A figure with as many digits as say something.
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
    fn digits_say_something() {
        assert_eq!(
            [0.0123, 1.234, 12.34, 123.4, 1234.5].map(shown),
            ["0.0123", "1.23", "12.3", "123.4", "1234"]
        );
    }
}
