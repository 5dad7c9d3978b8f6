//! Records of power cuts as tables.

use std::fmt::Write;

use super::{
    dirty_mark::DirtyMark,
    log::CardFailure,
    promise::{Fault, Kind},
    record::{PromiseRecord, Tally},
};

/// Returns the tables as text: one for each failure of the card, and one of the kinds of promises.
pub fn text(records: &[PromiseRecord]) -> String {
    let mut out = String::new();
    for failure in CardFailure::ALL {
        let rows = rows_of(records, failure);
        if rows.is_empty() {
            continue;
        }
        let _ = writeln!(out, "{}", failure.title());
        let mut table = vec![head()];
        table.extend(rows.iter().map(|(record, tally)| row(record, tally)));
        out += &aligned(&table);
        out.push('\n');
        let kinds = kinds_of(&rows);
        if !kinds.is_empty() {
            out += "broken by kind (in brackets: not promised by this file system)\n";
            let names = kinds.iter().map(|kind| kind.name().to_owned());
            let mut table = vec![[String::new()].into_iter().chain(names).collect()];
            table.extend(rows.iter().map(|(record, tally)| kind_row(record, tally, &kinds)));
            out += &aligned(&table);
            out.push('\n');
        }
    }
    for record in records.iter().filter(|record| record.failure.is_some()) {
        let why = record.failure.as_deref().unwrap_or_default();
        let _ = writeln!(out, "{}: ended early: {why}", record.file_system.name());
    }
    out
}

/// Returns the records with cuts of a failure.
pub(super) fn rows_of(records: &[PromiseRecord], failure: CardFailure) -> Vec<(&PromiseRecord, &Tally)> {
    records.iter().filter_map(|record| Some((record, record.tallies.get(&failure)?))).collect()
}

/// Returns the kinds of promises of which at least one was broken.
pub(super) fn kinds_of(rows: &[(&PromiseRecord, &Tally)]) -> Vec<Kind> {
    let is_broken = |kind: &Kind| rows.iter().any(|(_, tally)| broken(tally, *kind) > 0);
    Kind::ALL.into_iter().filter(is_broken).collect()
}

/// Returns the titles of the columns of the main table.
pub(super) fn head() -> Vec<String> {
    let faults = Fault::ALL.map(|fault| fault.name().to_owned());
    let first = ["", "cuts", "promises kept", "broken"].map(str::to_owned);
    let last = ["not mounted", "marked dirty", "checker's faults", "recovery ms, median", "maximum"];
    first.into_iter().chain(faults).chain(last.map(str::to_owned)).collect()
}

/// Returns the cells of a file system in the main table.
pub(super) fn row(record: &PromiseRecord, tally: &Tally) -> Vec<String> {
    let ms = |ns: u64| format!("{:.1}", ns as f64 / 1e6);
    let (median, most) = match tally.recovery_ns() {
        Some((median, most)) => (ms(median), ms(most)),
        None => ("-".into(), "-".into()),
    };
    let faults = match tally.checked {
        0 => "-".into(),
        _ => tally.faulty.to_string(),
    };
    let marked = match DirtyMark::exists_on(&record.file_system.kind) {
        true => tally.marked_dirty.to_string(),
        false => "-".into(),
    };
    let dead = match tally.died {
        0 => String::new(),
        died => format!(" (kernel died: {died})"),
    };
    let first = [
        record.file_system.name(),
        tally.cuts.to_string(),
        tally.kept().to_string(),
        tally.broken().to_string(),
    ];
    let by_fault = Fault::ALL.map(|fault| tally.broken_by(fault).to_string());
    let last = [format!("{}{dead}", tally.not_mounted), marked, faults, median, most];
    first.into_iter().chain(by_fault).chain(last).collect()
}

/// Number of broken promises of a kind, promised by the file system or not.
fn broken(tally: &Tally, kind: Kind) -> u64 {
    let all = [&tally.promises, &tally.unpromised];
    all.iter().filter_map(|map| Some(map.get(&kind)?.broken_count())).sum()
}

/// Returns the cells of a file system in the table of kinds.
pub(super) fn kind_row(record: &PromiseRecord, tally: &Tally, kinds: &[Kind]) -> Vec<String> {
    let cell = |kind: &Kind| match (tally.promises.get(kind), tally.unpromised.get(kind)) {
        (Some(outcomes), _) => outcomes.broken_count().to_string(),
        (None, Some(outcomes)) => format!("({})", outcomes.broken_count()),
        (None, None) => "-".into(),
    };
    [record.file_system.name()].into_iter().chain(kinds.iter().map(cell)).collect()
}

/// Aligns the columns of a table; the first one to the left, the others to the right.
fn aligned(table: &[Vec<String>]) -> String {
    let columns = table.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        table.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in table {
        let cells = row.iter().zip(&widths).enumerate().map(|(n, (cell, width))| match n {
            0 => format!("{cell:<width$}"),
            _ => format!("  {cell:>width$}"),
        });
        let line: String = cells.collect();
        out += line.trim_end();
        out.push('\n');
    }
    out
}
