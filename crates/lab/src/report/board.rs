//! A page for many cells: filters, sorting, comparison of two file systems, small charts. The browser draws it.

use serde::Serialize;

use super::{Address, ink};
use crate::{experiment::Part, record::Record, record::Records};

/// The page; `DATA` stands for the figures.
const PAGE: &str = include_str!("board.html");

/// A figure.
#[derive(Serialize)]
struct Row<'a> {
    card: &'a str,
    part: String,
    system: String,
    setting: String,
    /// `None` if the part was not measured.
    value: Option<f64>,
    unit: &'static str,
    /// True if more is better.
    more: bool,
    ours: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'a str>,
    record: String,
}

/// Renders the page of these records. `address` returns the address of a record's path within its study.
pub fn board(records: &[Record], address: Address<'_>) -> String {
    let rows = records.iter().flat_map(|record| {
        record.cell.parts().iter().map(|part| row(record, part, address)).collect::<Vec<_>>()
    });
    let rows: Vec<Row<'_>> = rows.collect();
    // No text of a record ends the script.
    let data = serde_json::to_string(&rows).expect("rows have only text and numbers").replace('<', "\\u003c");
    PAGE.replacen("DATA", &data, 1)
}

fn row<'a>(record: &'a Record, part: &Part, address: Address<'_>) -> Row<'a> {
    let workload = record.cell.point.workload.as_ref().map(|workload| format!(" {}", workload.name));
    let experiment = record.cell.experiment.name();
    let mut setting = format!("{} MiB, seed {}", record.scale.buffered_bytes >> 20, record.seed);
    if let Some(age) = record.age {
        setting += &format!(", aged {age}");
    }
    if record.is_indicative() {
        setting += ", indicative";
    }
    let failure = match (&record.failure, record.check.has_faults()) {
        (Some(failure), _) => failure.lines().next(),
        (None, true) => Some("the checker found faults"),
        (None, false) => None,
    };
    Row {
        card: record.cell.machine(),
        part: format!("{experiment}{}: {}", workload.unwrap_or_default(), part.title),
        system: record.cell.subject(),
        setting,
        value: record.phase(part.name).map(|phase| phase.value),
        unit: part.unit.sign(),
        more: part.unit.more_is_better(),
        ours: record.cell.file_system.is_ours(),
        failure,
        record: ink::encoded(&address(&Records::name(&record.cell, record.age))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        experiment::Experiment,
        plan::{Age, Rounds},
        record::tests::record,
    };

    #[test]
    fn each_figure_is_in_the_page_and_nothing_is_fetched() {
        let mut failed = record(Experiment::Mount, "ext4", &[1.5]);
        failed.failure = Some("</script> no space\nmore".into());
        let page =
            board(&[failed, record(Experiment::Mount, "flashkit", &[2.5, 3.5])], &|name| name.to_owned());
        for wanted in
            ["1.5", "2.5", "3.5", "\"value\":null", "\\u003c/script> no space", "mount: after reboot"]
        {
            assert!(page.contains(wanted), "{wanted:?} is not in {page}");
        }
        assert_eq!(page.matches("</script>").count(), 2);
        for foreign in ["src=", "@import", "url(", "<link", "fetch("] {
            assert!(!page.contains(foreign), "{foreign:?} is in the page");
        }
    }

    #[test]
    fn figures_of_different_ages_have_different_settings() {
        let setting = |age| {
            let record = Record { age, ..record(Experiment::Mount, "flashkit", &[2.5]) };
            row(&record, &record.cell.parts()[0], &|name| name.to_owned()).setting
        };
        let steady = Age { rounds: Rounds::UntilSteady, ..Age::default() };
        let settings = [None, Some(Age::default()), Some(steady)].map(setting);
        assert!(
            settings[1].ends_with(", aged 2:60") && settings[2].ends_with(", aged 2:60:steady"),
            "{settings:?}"
        );
        assert_ne!(settings[0], settings[1]);
    }
}
