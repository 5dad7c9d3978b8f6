//! Sheets as tables for a terminal.

use std::fmt::Write as _;

use super::{Row, Sheet, is_mixed, leads, lines, shown, tally, verdicts};
use crate::{check::Check, preset::Preset};

/// Formats all sheets, the leads and the verdicts.
pub fn text(sheets: &[Sheet]) -> String {
    let mut out = String::new();
    for sheet in sheets {
        let setup = if is_mixed(sheets) { format!(", {}", sheet.setup()) } else { String::new() };
        table(sheet, &setup, &mut out);
    }
    lead_table(sheets, &mut out);
    for verdict in verdicts(sheets) {
        line(&mut out, "");
        verdict.sentences.iter().for_each(|sentence| line(&mut out, sentence));
    }
    out
}

/// Prints a sheet, with its setup behind the card's name.
fn table(sheet: &Sheet, setup: &str, out: &mut String) {
    let Sheet { experiment, preset, machine, rows, .. } = sheet;
    let (number, title) = (experiment.number(), experiment.title());
    line(out, &format!("{number}  {title} ({machine}, {}{setup})", sheet.card()));
    let single_writes = lines(sheet);
    match preset {
        _ if !single_writes.is_empty() => times(&single_writes, out),
        Preset::Here => repeated(sheet, out),
        _ => exact(sheet, out),
    }
    if single_writes.is_empty() {
        units(sheet, out);
    }
    if rows.iter().any(Row::has_costs) {
        costs(sheet, out);
    }
    for row in rows {
        notes(row, out);
    }
    line(out, "");
}

/// Prints figures of a real device with their confidence.
fn repeated(sheet: &Sheet, out: &mut String) {
    let head = ["", "part", "median", "", "from", "to", "sure", "runs", "outliers"];
    let mut cells = vec![head.map(str::to_owned).to_vec()];
    for row in &sheet.rows {
        for (part, figure) in sheet.parts().iter().zip(&row.figures) {
            let Some(phase) = figure.as_ref().map(|figure| &figure.phase) else { continue };
            let mut line =
                [&row.name, part.title, &shown(phase.value), part.unit.sign()].map(str::to_owned).to_vec();
            if let Some(runs) = &phase.runs {
                let interval = runs.interval();
                line.extend([
                    shown(interval.low),
                    shown(interval.high),
                    format!("{:.0} %", interval.confidence * 100.0),
                    runs.runs.len().to_string(),
                    runs.outliers().to_string(),
                ]);
            }
            cells.push(line);
        }
    }
    aligned(&cells, out);
}

/// Prints figures of a modelled card together with the published ones.
fn exact(sheet: &Sheet, out: &mut String) {
    let mut cells: Vec<Vec<String>> = vec![vec![String::new()], vec![String::new()]];
    for part in sheet.parts() {
        cells[0].extend([part.title.to_owned(), String::new(), String::new(), String::new()]);
        cells[1].extend([part.unit.sign(), "published", "x ext4", "published x"].map(str::to_owned));
    }
    for row in &sheet.rows {
        let mut line = vec![row.name.clone()];
        for figure in &row.figures {
            let of = |value: Option<f64>| value.map_or("-".into(), shown);
            let ratio = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
            line.extend(match figure {
                Some(it) => {
                    [shown(it.phase.value), of(it.published), ratio(it.to_ext4), ratio(it.published_to_ext4)]
                }
                None => ["-"; 4].map(str::to_owned),
            });
        }
        cells.push(line);
    }
    drop_empty(&mut cells);
    aligned(&cells, out);
}

/// Removes columns without figures.
fn drop_empty(cells: &mut [Vec<String>]) {
    let columns = cells.iter().map(Vec::len).max().unwrap_or(0);
    for n in (1..columns).rev().filter(|n| n % 4 != 1) {
        if cells[2..].iter().all(|row| row.get(n).is_none_or(|cell| cell == "-")) {
            cells.iter_mut().filter(|row| n < row.len()).for_each(|row| drop(row.remove(n)));
        }
    }
}

/// Prints the distribution of the durations of a workload's units.
fn units(sheet: &Sheet, out: &mut String) {
    let mut cells = Vec::new();
    for (n, part) in sheet.parts().iter().enumerate() {
        for row in &sheet.rows {
            let phase = row.figures[n].as_ref().map(|figure| &figure.phase);
            let Some((phase, times)) = phase.and_then(|it| Some((it, it.latencies.as_ref()?))) else {
                continue;
            };
            let ms = |ns: u64| shown(ns as f64 / 1e6);
            let shares = [0.5, 0.99].map(|share| ms(times.quantile_ns(share)));
            let [half, most] = shares;
            let figures = [phase.records.to_string(), half, most, ms(times.max_ns())];
            cells.push([part.title.to_owned(), row.name.clone()].into_iter().chain(figures).collect());
        }
    }
    if !cells.is_empty() {
        let head = ["ms a unit", "", "units", "p50", "p99", "max"].map(str::to_owned).to_vec();
        cells.insert(0, head);
        aligned(&cells, out);
    }
}

/// Prints the costs of the machine by file system.
fn costs(sheet: &Sheet, out: &mut String) {
    let parts = sheet.parts().iter().map(|part| part.title);
    let head = std::iter::once("CPU time a record, us").chain(parts).chain(["memory, MiB"]);
    let mut cells = vec![head.map(str::to_owned).collect::<Vec<_>>()];
    let or_dash = |value: Option<f64>| value.map_or("-".into(), shown);
    for row in sheet.rows.iter().filter(|row| row.has_costs()) {
        let cpu = row
            .figures
            .iter()
            .map(|figure| or_dash(figure.as_ref().and_then(|it| it.phase.cpu_us_a_record())));
        let memory = row.memory_bytes().map(|bytes| bytes as f64 / f64::from(1 << 20));
        cells.push(std::iter::once(row.name.clone()).chain(cpu).chain([or_dash(memory)]).collect());
    }
    aligned(&cells, out);
}

/// Prints durations of single writes, part by part.
fn times(lines: &[super::Line], out: &mut String) {
    let mut cells: Vec<Vec<String>> = Vec::new();
    let mut part = "";
    for one in lines {
        if part != one.part.title {
            part = one.part.title;
            let head = ["writes", "KB/s", "mean ms", "p50", "p99", "p99.9", "max"];
            cells.push([part].into_iter().chain(head).map(str::to_owned).collect());
        }
        let of = |value: Option<f64>| value.map_or("-".into(), shown);
        cells.push(vec![
            one.name.clone(),
            one.count.to_string(),
            shown(one.kb_per_s),
            shown(one.mean_ms),
            of(one.p50_ms),
            of(one.p99_ms),
            shown(one.p999_ms),
            shown(one.max_ms),
        ]);
    }
    aligned(&cells, out);
}

fn notes(row: &Row, out: &mut String) {
    if let Some(options) = &row.suited {
        line(out, &format!("  {}: with the options that suit the card: {options}", row.name));
    }
    if let Some(failure) = &row.failure {
        let first = failure.lines().next().unwrap_or_default();
        line(out, &format!("  {}: ended early: {first}", row.name));
    }
    if let Check::Faults { program, .. } = &row.check {
        line(out, &format!("  {}: {program} finds faults", row.name));
    }
    let returned: Vec<String> = row
        .figures
        .iter()
        .flatten()
        .filter_map(|figure| Some(shown(figure.phase.returned_ns? as f64 / 1e9)))
        .collect();
    if !returned.is_empty() {
        line(out, &format!("  {}: the calls had returned after {} s", row.name, returned.join(", ")));
    }
}

fn lead_table(sheets: &[Sheet], out: &mut String) {
    let mut cells = vec![["", "", "", "flashkit", "best rival", "", "times"].map(str::to_owned).to_vec()];
    let mut all = Vec::new();
    for sheet in sheets {
        for lead in leads(sheet) {
            let name = format!("{} {}", sheet.experiment.number(), sheet.experiment.name());
            let times = lead.times.map_or(String::new(), |times| format!("{times:.2}  "));
            cells.push(vec![
                name,
                sheet.machine.clone(),
                format!("{}, {}", lead.part.title, lead.part.unit.sign()),
                lead.ours.map_or("-".into(), shown),
                lead.rival.0.clone(),
                shown(lead.rival.1),
                times + lead.standing().word(),
            ]);
            all.push(lead);
        }
    }
    if all.is_empty() {
        return;
    }
    line(out, "Our file system beside the best rival (above 1: ahead)");
    aligned(&cells, out);
    tally(&all).iter().for_each(|sentence| line(out, sentence));
}

/// Prints columns with their minimum width: names left-aligned, figures right-aligned.
fn aligned(cells: &[Vec<String>], out: &mut String) {
    let columns = cells.iter().map(Vec::len).max().unwrap_or(0);
    let width = |n: usize| cells.iter().filter_map(|row| row.get(n)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|n| width(n).unwrap_or(0)).collect();
    for row in cells {
        let mut text = String::new();
        for (n, (cell, width)) in row.iter().zip(&widths).enumerate() {
            match n == 0 {
                true => write!(text, "  {cell:<width$}"),
                false => write!(text, "  {cell:>width$}"),
            }
            .expect("writing to a string cannot fail");
        }
        line(out, text.trim_end());
    }
}

fn line(out: &mut String, text: &str) {
    writeln!(out, "{text}").expect("writing to a string cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        experiment::{Cost, Experiment},
        record::tests::record,
        report::sheets,
        sample::Sample,
    };

    #[test]
    fn costs_stand_below_the_figures() {
        let mut one = record(Experiment::WriteFsync, "ext4", &[1.0, 2.0]);
        one.phases[0].cost = Some(Cost { cpu_ns: 12_300, memory_bytes: Some(3 << 20) });
        let text = text(&sheets(&[one]));
        assert!(text.contains("  ext4                         12.3       -         3.00\n"), "{text}");
    }

    #[test]
    fn repeated_runs_show_their_confidence_intervals() {
        let mut one = record(Experiment::Copy, "ext4", &[1.0, 2.0, 3.0, 4.0]);
        one.cell.preset = Preset::Here;
        one.phases[0].runs = Some(Sample::new(vec![1.0, 0.5, 1.5, 1.0, 1.0, 90.0]));
        let text = text(&sheets(&[one]));
        let wanted = "ext4    copy image    1.00  s  0.50  90.0  97 %     6         1";
        assert!(text.contains(wanted) && text.contains("copy tree"), "{text}");
    }

    #[test]
    fn a_table_shows_failures_and_ratios() {
        let records = [
            record(Experiment::WriteFsync, "flashkit", &[1000.0, 100.0]),
            record(Experiment::WriteFsync, "ext4", &[500.0, 125.0]),
            record(Experiment::WriteFsync, "nilfs2", &[600.0]),
        ];
        let text = text(&sheets(&records));
        for wanted in [
            "2  Write and fsync, 4 KiB records (desktop, card)",
            "  flashkit        1000          -    2.00            -   100.0          -    0.80            -",
            "  ext4           500.0      511.8    1.00         1.00   125.0      125.0    1.00         1.00",
            "nilfs2: ended early: the run ended early",
            "0.80  behind",
            "ahead in 1, tied (within 1 %) in 0 and behind in 1.",
        ] {
            assert!(text.contains(wanted), "{wanted:?} is not in\n{text}");
        }
    }
}
