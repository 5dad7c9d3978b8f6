//! Records of power cuts as one self-contained page.

use std::{error::Error, iter};

use minijinja::{Environment, context};
use serde::Serialize;

use super::{
    log::CardFailure,
    record::{Broken, LostWrite, PromiseRecord},
    table::{head, kind_row, kinds_of, rows_of},
};

const TEMPLATE: &str = include_str!("page.html");
/// Maximum number of cuts of one file system whose findings the page lists. The records have all.
const CUTS: usize = 200;

#[derive(Serialize)]
struct Sheet {
    title: &'static str,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
    kinds: Vec<&'static str>,
    kind_rows: Vec<Vec<String>>,
}

#[derive(Serialize)]
struct Evidence {
    name: String,
    cuts: usize,
    all: usize,
    lines: Vec<[String; 6]>,
}

/// Returns the page.
///
/// # Errors
/// The template is wrong.
pub fn page(records: &[PromiseRecord]) -> Result<String, Box<dyn Error>> {
    let mut environment = Environment::new();
    environment.add_template("page.html", TEMPLATE)?;
    let sheets: Vec<Sheet> =
        CardFailure::ALL.into_iter().filter_map(|failure| sheet(records, failure)).collect();
    let evidence: Vec<Evidence> =
        records.iter().filter(|record| !record.findings.is_empty()).map(evidence).collect();
    let setups: Vec<String> = records.iter().map(setup).collect();
    Ok(environment.get_template("page.html")?.render(context! { sheets, evidence, setups })?)
}

fn sheet(records: &[PromiseRecord], failure: CardFailure) -> Option<Sheet> {
    let rows = rows_of(records, failure);
    let kinds = kinds_of(&rows);
    (!rows.is_empty()).then(|| Sheet {
        title: failure.title(),
        head: head(),
        kinds: kinds.iter().map(|kind| kind.name()).collect(),
        kind_rows: rows.iter().map(|(record, tally)| kind_row(record, tally, &kinds)).collect(),
        rows: rows.iter().map(|(record, tally)| super::table::row(record, tally)).collect(),
    })
}

fn setup(record: &PromiseRecord) -> String {
    let kernel = record.versions.guest_kernel.as_deref().unwrap_or("in process");
    let early = record.failure.as_ref().map(|why| format!("; ended early: {why}")).unwrap_or_default();
    format!(
        "{}: {} of {} MiB, seed {}, {kernel}, {}, {}{early}",
        record.file_system.name(),
        record.card,
        record.card_bytes >> 20,
        record.seed,
        record.made.on,
        record.made.by,
    )
}

/// Describes the state that was found, and the writes whose loss explains it.
fn found_text(broken: &Broken) -> String {
    let lost = broken.lost_writes.iter().map(|write| {
        let LostWrite { request, offset_bytes, length_bytes, early_flush } = write;
        let flush = early_flush
            .map(|flush| format!(", flush {flush} was sent before its answer"))
            .unwrap_or_default();
        format!("; write {request} of {length_bytes} bytes at {offset_bytes} was lost{flush}")
    });
    iter::once(broken.found.clone()).chain(lost).collect()
}

/// Returns the findings of a file system, a line each.
fn evidence(record: &PromiseRecord) -> Evidence {
    let mut lines = Vec::new();
    for report in record.findings.iter().take(CUTS) {
        let line = |what: &str, path: &str, fault: &str, required: &str, found: &str| {
            [report.id.as_str(), what, path, fault, required, found].map(str::to_owned)
        };
        for broken in &report.broken {
            let promised = if broken.is_promised { "" } else { " (not promised)" };
            let what = format!("{}{promised}", broken.kind.name());
            let found = found_text(broken);
            lines.push(line(&what, &broken.path, broken.fault.name(), &broken.required, &found));
        }
        if report.recovered_ns.is_none() || report.has_died {
            let what = if report.has_died { "kernel died" } else { "not mounted" };
            lines.push(line(what, "", "", "", &report.said.join("; ")));
        }
        if let crate::check::Check::Faults { program, said } = &report.check {
            lines.push(line(&format!("{program} finds faults"), "", "", "", said));
        }
    }
    let (cuts, all) = (record.findings.len().min(CUTS), record.findings.len());
    Evidence { name: record.file_system.name(), cuts, all, lines }
}
