//! Sheets as tables for a terminal.

use std::fmt::Write as _;

use super::{
    COMPARISONS, Comparison, Figure, Row, Sheet, Standing, is_mixed, lines, shown, tally, tally_with_cpu,
    utilization, verdicts,
};
use crate::{check::Check, experiment::Phase, preset::Preset};

/// Formats all sheets, the leads and the verdicts.
pub fn text(sheets: &[Sheet]) -> String {
    let mut out = String::new();
    for sheet in sheets {
        let setup = if is_mixed(sheets) { format!(", {}", sheet.setup()) } else { String::new() };
        table(sheet, &setup, &mut out);
    }
    COMPARISONS.iter().for_each(|comparison| lead_table(comparison, sheets, &mut out));
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
    if utilization::has_curves(sheet) {
        amplifications(sheet, out);
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

/// Prints the bytes that a file system writes to the card for each byte of the program.
fn amplifications(sheet: &Sheet, out: &mut String) {
    let titles = sheet.parts().iter().map(|part| part.title.to_owned());
    let mut cells = vec![["written for each byte".to_owned()].into_iter().chain(titles).collect()];
    for row in &sheet.rows {
        let figure = |figure: &Option<Figure>| match figure {
            Some(figure) => format!("{:.2}", utilization::amplification(&figure.phase)),
            None => "-".into(),
        };
        cells.push([row.name.clone()].into_iter().chain(row.figures.iter().map(figure)).collect());
    }
    aligned(&cells, out);
}

/// Prints the costs of the machine by file system: for each part the processor time of a record, and the figure with
/// that time added to the card's.
fn costs(sheet: &Sheet, out: &mut String) {
    let mut cells = vec![vec!["CPU time a record".to_owned()], vec![String::new()]];
    for part in sheet.parts() {
        cells[0].extend([part.title.to_owned(), "with it".to_owned()]);
        cells[1].extend(["us".to_owned(), part.unit.sign().to_owned()]);
    }
    cells[0].push("memory".into());
    cells[1].push("MiB".into());
    let or_dash = |value: Option<f64>| value.map_or("-".into(), shown);
    for row in sheet.rows.iter().filter(|row| row.has_costs()) {
        let of_part = |figure: &Option<Figure>| {
            let phase = figure.as_ref().map(|it| &it.phase);
            [phase.and_then(Phase::cpu_us_a_record), phase.and_then(Phase::with_cpu)].map(or_dash)
        };
        let memory = row.memory_bytes().map(|bytes| bytes as f64 / f64::from(1 << 20));
        let figures = row.figures.iter().flat_map(of_part);
        cells.push(std::iter::once(row.name.clone()).chain(figures).chain([or_dash(memory)]).collect());
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

/// Prints the share of the card's time that merges took, and the rounds until the rate stood.
fn merges(row: &Row, out: &mut String) {
    let shares: Vec<f64> = row.phases().map(|phase| phase.flash.merge_share().unwrap_or(0.0)).collect();
    if shares.iter().any(|share| *share > 0.0) {
        let shares: Vec<String> = shares.iter().map(|share| format!("{:.1} %", 100.0 * share)).collect();
        line(out, &format!("  {}: merges take {} of the card's time", row.name, shares.join(", ")));
    }
    let rounds: Vec<String> = row
        .phases()
        .filter_map(|phase| phase.steady.as_ref())
        .map(|it| format!("{}{}", it.figures.len(), if it.is_reached { "" } else { " (it did not stand)" }))
        .collect();
    if !rounds.is_empty() {
        line(out, &format!("  {}: rounds until the rate stood: {}", row.name, rounds.join(", ")));
    }
}

fn notes(row: &Row, out: &mut String) {
    if let Some(options) = &row.suited {
        line(out, &format!("  {}: with the options that the probe advises: {options}", row.name));
    }
    if let Some(failure) = &row.failure {
        let first = failure.lines().next().unwrap_or_default();
        line(out, &format!("  {}: ended early: {first}", row.name));
    }
    if let Check::Faults { program, .. } = &row.check {
        line(out, &format!("  {}: {program} finds faults", row.name));
    }
    merges(row, out);
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

/// Prints a comparison, unless ours has no row for it.
fn lead_table(comparison: &Comparison, sheets: &[Sheet], out: &mut String) {
    let head = ["", "", "", "ours", "best rival", "", "times", "with CPU", "best rival", "", "times"];
    let mut cells = vec![head.map(str::to_owned).to_vec()];
    let mut all = Vec::new();
    for sheet in sheets {
        for lead in comparison.leads(sheet) {
            let name = format!("{} {}", sheet.experiment.number(), sheet.experiment.name());
            let judged = |times: f64, standing: Standing| format!("{times:.2}  {}", standing.word());
            let device_time = lead.times.map(|times| judged(times, lead.standing()));
            let mut row = vec![
                name,
                sheet.machine.clone(),
                format!("{}, {}", lead.part.title, lead.part.unit.sign()),
                lead.ours.map_or("-".into(), shown),
                lead.rival.0.clone(),
                shown(lead.rival.1),
                device_time.unwrap_or_else(|| lead.standing().word().into()),
            ];
            if let Some(both) = &lead.with_cpu {
                let (rival, figure) = &both.rival;
                let times = judged(both.times, lead.standing_with_cpu());
                row.extend([shown(both.ours), rival.clone(), shown(*figure), times]);
            }
            cells.push(row);
            all.push(lead);
        }
    }
    if all.is_empty() {
        return;
    }
    if all.iter().all(|lead| lead.with_cpu.is_none()) {
        cells[0].truncate(7);
    }
    line(out, &format!("{} (above 1: ahead)", comparison.title()));
    aligned(&cells, out);
    tally(comparison.subject, &all).iter().for_each(|sentence| line(out, sentence));
    tally_with_cpu(&all).iter().for_each(|sentence| line(out, sentence));
    line(out, "");
}

/// Prints columns with their minimum width: names left-aligned, figures right-aligned.
pub(super) fn aligned(cells: &[Vec<String>], out: &mut String) {
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
        experiment::{Cost, Experiment, SteadyState},
        record::tests::record,
        report::sheets,
        sample::Sample,
    };

    #[test]
    fn costs_stand_below_the_figures() {
        let mut one = record(Experiment::WriteFsync, "ext4", &[1.0, 2.0]);
        one.phases[0].cost = Some(Cost { cpu_ns: 12_300, memory_bytes: Some(3 << 20) });
        let text = text(&sheets(&[one]));
        // One record of 4 KiB in 1 ms of the card and 12.3 us of the processor.
        assert!(
            text.contains("  ext4                     12.3     3951       -        -    3.00\n"),
            "{text}"
        );
    }

    #[test]
    fn merges_and_rounds_are_told() {
        let mut one = record(Experiment::WriteFsync, "f2fs", &[1.0, 2.0]);
        one.phases[1].flash.time_ns = [("merge".to_owned(), 1), ("command".to_owned(), 3)].into();
        one.phases[1].steady = Some(SteadyState { figures: vec![2.0; 25], is_reached: false });
        let text = text(&sheets(&[one]));
        assert!(text.contains("  f2fs: merges take 0.0 %, 25.0 % of the card's time\n"), "{text}");
        assert!(text.contains("  f2fs: rounds until the rate stood: 25 (it did not stand)\n"), "{text}");
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
