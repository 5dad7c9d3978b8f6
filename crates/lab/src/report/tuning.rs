//! The result of a search of options: the best ones of each file system by purpose, and what they cost the other
//! purposes.

use std::collections::BTreeMap;

use super::{Row, Sheet, YARDSTICK};
use crate::tune::{DEFAULTS, PartName, Purpose};

/// Scores of a row by purpose, in the order of [`Purpose::ALL`]: times as good as another one.
pub type Scores = [f64; Purpose::ALL.len()];

/// The options of one file system on one card.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuning {
    /// The machine.
    pub machine: String,
    /// Type of the file system.
    pub kind: String,
    /// Name of the best row for each purpose, in the order of [`Purpose::ALL`], and its scores beside the defaults.
    pub best: Vec<(String, Scores)>,
    /// Scores of the options that the probe advises, for ours, and the options.
    pub advised: Option<(String, Scores)>,
    /// For each purpose, the scores of the best row beside ext4 at its defaults; `None` without ext4.
    pub beside_ext4: Option<Scores>,
}

/// Figures of a row: how often a second each part could be done.
type Speeds = BTreeMap<PartName, f64>;

/// Returns the result of the search on each card, a file system at a time. A file system of which fewer than two rows
/// are complete has none.
pub fn tunings(sheets: &[Sheet]) -> Vec<Tuning> {
    let mut machines: Vec<&str> = Vec::new();
    for sheet in sheets {
        if !machines.contains(&sheet.machine.as_str()) {
            machines.push(&sheet.machine);
        }
    }
    let of_machine = |machine: &&str| {
        let sheets: Vec<&Sheet> = sheets.iter().filter(|sheet| sheet.machine == *machine).collect();
        on_one(machine, &sheets)
    };
    machines.iter().flat_map(of_machine).collect()
}

fn on_one(machine: &str, sheets: &[&Sheet]) -> Vec<Tuning> {
    let mut kinds: Vec<String> = Vec::new();
    for row in sheets.iter().flat_map(|sheet| &sheet.rows) {
        if !kinds.contains(&row.kind) {
            kinds.push(row.kind.clone());
        }
    }
    let rows = speeds(sheets);
    let ext4 = rows.get(YARDSTICK).map(|(_, speeds)| speeds.clone());
    kinds.iter().filter_map(|kind| tuning(machine, kind, &rows, ext4.as_ref())).collect()
}

/// Returns the rows of sheets of one machine with the speeds of all their parts, by their names.
fn speeds<'a>(sheets: &[&'a Sheet]) -> BTreeMap<String, (&'a Row, Speeds)> {
    let mut rows: BTreeMap<String, (&Row, Speeds)> = BTreeMap::new();
    for sheet in sheets {
        for row in &sheet.rows {
            let (_, speeds) = rows.entry(row.name.clone()).or_insert((row, Speeds::new()));
            for (n, part) in sheet.parts().iter().enumerate() {
                if let Some(figure) = row.sound_figure(n) {
                    let speed = part.unit.times_as_good(figure.phase.value, 1.0);
                    speeds.insert((sheet.experiment, part.name), speed);
                }
            }
        }
    }
    rows
}

/// Returns the scores of rows beside one of them, by their names. Rows with a missing part have none.
pub fn scores_beside(sheets: &[Sheet], name: &str) -> BTreeMap<String, Scores> {
    let rows = speeds(&sheets.iter().collect::<Vec<_>>());
    let Some((_, beside)) = rows.get(name) else { return BTreeMap::new() };
    rows.iter().filter_map(|(name, (_, speeds))| Some((name.clone(), scores(speeds, beside)?))).collect()
}

fn tuning(
    machine: &str,
    kind: &str,
    rows: &BTreeMap<String, (&Row, Speeds)>,
    ext4: Option<&Speeds>,
) -> Option<Tuning> {
    let own: Vec<(&String, &Row, &Speeds)> = rows
        .iter()
        .filter(|(_, (row, _))| row.kind == kind)
        .map(|(name, (row, it))| (name, *row, it))
        .collect();
    let is_default = |name: &str, row: &Row| match row.is_ours() {
        true => name.ends_with(&format!("({DEFAULTS})")),
        false => row.is_at_defaults(),
    };
    let (_, _, defaults) = own.iter().find(|(name, row, _)| is_default(name, row))?;
    let scored: Vec<(&String, &Row, Scores)> =
        own.iter().filter_map(|(name, row, speeds)| Some((*name, *row, scores(speeds, defaults)?))).collect();
    if scored.len() < 2 {
        return None;
    }
    let best_for = |n: usize| scored.iter().max_by(|a, b| a.2[n].total_cmp(&b.2[n])).expect("there are two");
    let best: Vec<(String, Scores)> = (0..Purpose::ALL.len())
        .map(|n| {
            let (name, _, scores) = best_for(n);
            ((*name).clone(), *scores)
        })
        .collect();
    let advised = scored.iter().find(|(_, row, _)| row.is_ours() && row.suited.is_some());
    let beside_ext4 = ext4.and_then(|ext4| {
        let mut beside = Scores::default();
        for (n, (name, _)) in best.iter().enumerate() {
            beside[n] = scores(&rows[name].1, ext4)?[n];
        }
        Some(beside)
    });
    Some(Tuning {
        machine: machine.to_owned(),
        kind: kind.to_owned(),
        best,
        advised: advised.map(|(_, row, scores)| (row.suited.clone().unwrap_or_default(), *scores)),
        beside_ext4,
    })
}

/// Returns the scores of a row beside another one: geometric means; `None` if a part is missing.
fn scores(speeds: &Speeds, beside: &Speeds) -> Option<Scores> {
    let mut scores = Scores::default();
    for (score, purpose) in scores.iter_mut().zip(Purpose::ALL) {
        let parts = purpose.parts();
        let logarithms: Option<Vec<f64>> =
            parts.iter().map(|part| Some((speeds.get(part)? / beside.get(part)?).ln())).collect();
        *score = (logarithms?.iter().sum::<f64>() / parts.len() as f64).exp();
    }
    Some(scores)
}

/// Formats the results as tables.
pub fn tuning_text(sheets: &[Sheet]) -> String {
    let tunings = tunings(sheets);
    let mut out = String::new();
    for tuning in &tunings {
        let head =
            format!("{} on {}: times as good as at its defaults, by purpose", tuning.kind, tuning.machine);
        let mut cells = vec![head_line("best for")];
        for (purpose, (name, scores)) in Purpose::ALL.iter().zip(&tuning.best) {
            cells.push(line(purpose.name(), name, scores));
        }
        if let Some((options, scores)) = &tuning.advised {
            cells.push(line("(advised)", options, scores));
        }
        out += &format!("{head}\n");
        super::text::aligned(&cells, &mut out);
        if let Some((_, scores)) = &tuning.advised {
            let behind = Purpose::ALL.iter().zip(scores).zip(&tuning.best).enumerate();
            let behind = behind.map(|(n, ((purpose, score), (_, best)))| {
                format!("{:.1} % for {}", 100.0 * (1.0 - score / best[n]), purpose.name())
            });
            out += &format!(
                "The advised options are behind the best by {}.\n",
                behind.collect::<Vec<_>>().join(", ")
            );
        }
        out += "\n";
    }
    let mut cells = vec![head_line("file system")];
    for tuning in &tunings {
        if let Some(scores) = &tuning.beside_ext4 {
            cells.push(line(&tuning.kind, &tuning.machine, scores));
        }
    }
    if cells.len() > 1 {
        out += "Each at its best options for the purpose: times as good as ext4 at its defaults\n";
        super::text::aligned(&cells, &mut out);
    }
    out
}

fn head_line(first: &str) -> Vec<String> {
    let purposes = Purpose::ALL.map(|purpose| purpose.name().to_owned());
    [first.to_owned(), String::new()].into_iter().chain(purposes).collect()
}

fn line(first: &str, name: &str, scores: &Scores) -> Vec<String> {
    let scores = scores.iter().map(|score| format!("{score:.2}"));
    [first.to_owned(), name.to_owned()].into_iter().chain(scores).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::{Record, tests::record},
        report::sheets,
        tune::EXPERIMENTS,
    };

    /// Returns the records of a file system that needs this many times as long as another one, by experiment.
    fn of(kind: &str, mount: &str, slower: [f64; 4]) -> Vec<Record> {
        EXPERIMENTS
            .iter()
            .zip(slower)
            .map(|(experiment, slower)| {
                let value = |part: &crate::experiment::Part| {
                    if part.unit.more_is_better() { 100.0 / slower } else { 100.0 * slower }
                };
                let values: Vec<f64> = experiment.parts().iter().map(value).collect();
                let mut one = record(*experiment, kind, &values);
                one.cell.file_system.mount = mount.into();
                one
            })
            .collect()
    }

    #[test]
    fn the_best_options_are_named_with_what_they_cost_the_others() {
        let mut advised = of("flashkit", "", [1.0, 0.8, 1.0, 1.0]);
        advised.iter_mut().for_each(|record| record.suited = Some("-z 2".into()));
        let records = [
            of("flashkit", "defaults", [1.0; 4]),
            advised,
            of("flashkit", "mode=lfs", [1.0, 0.5, 1.0, 2.0]),
            of("ext4", "", [2.0; 4]),
            of("ext4", "data=journal", [4.0; 4]),
            of("vfat", "", [1.0; 4]),
        ];
        let tunings = tunings(&sheets(&records.concat()));
        assert_eq!(tunings.iter().map(|it| it.kind.as_str()).collect::<Vec<_>>(), ["flashkit", "ext4"]);
        let ours = &tunings[0];
        let near = |one: f64, other: f64| (one - other).abs() < 1e-9;
        let (name, scores) = &ours.best[1];
        assert_eq!(name, "flashkit (mode=lfs)");
        assert!(
            near(scores[1], 2.0) && near(scores[2], 0.5),
            "databases gain what small files lose: {scores:?}"
        );
        assert_ne!(ours.best[2].0, "flashkit (mode=lfs)");
        assert!(near(ours.advised.as_ref().unwrap().1[1], 1.25));
        let beside = ours.beside_ext4.unwrap();
        assert!(near(beside[1], 4.0) && near(beside[2], 2.0), "{beside:?}");
        assert_eq!(tunings[1].best[3].0, "ext4", "its other mode is slower");

        let text = tuning_text(&sheets(&records.concat()));
        assert!(text.contains("behind the best by 0.0 % for streams, 37.5 % for databases"), "{text}");
        assert!(text.contains("Each at its best options for the purpose"), "{text}");
    }
}
