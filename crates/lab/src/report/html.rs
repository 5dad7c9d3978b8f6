//! One self-contained page that fetches no other resource.

use std::{collections::BTreeMap, error::Error};

use minijinja::{Environment, context};
use serde::Serialize;

use super::{
    Lead, Sheet,
    chart::{self, Bar, CAUSES_MAX, Owner, Stack},
    is_mixed, latency, leads, lines, sheets, shown, tally,
    verdict::verdicts,
};
use crate::{check::Check, experiment::Phase, preset::Preset, record::Record, sample::Sample, wear::Wear};

const TEMPLATE: &str = include_str!("page.html");

/// A sheet as data of the template.
#[derive(Serialize)]
struct View {
    id: String,
    title: String,
    machine: String,
    profile: String,
    charts: Vec<Chart>,
    key: Vec<Key>,
    times: Vec<Times>,
    columns: Vec<Column>,
    rows: Vec<Line>,
    causes: Option<Causes>,
    maps: Vec<Map>,
}

#[derive(Serialize)]
struct Chart {
    title: String,
    svg: String,
}

/// The colour of a file system's curves.
#[derive(Serialize)]
struct Key {
    colour: String,
    name: String,
}

/// Durations of single writes, in the order of the template's columns.
#[derive(Serialize)]
struct Times {
    part: &'static str,
    name: String,
    is_ours: bool,
    is_published: bool,
    cells: [String; 7],
}

#[derive(Serialize)]
struct Column {
    title: &'static str,
    unit: &'static str,
}

#[derive(Serialize)]
struct Line {
    name: String,
    suited: String,
    is_ours: bool,
    cells: Vec<[String; 4]>,
    /// CPU time by part, and memory; empty if no cost is known.
    costs: Vec<String>,
    amplification: String,
    returned: String,
    check: String,
    failure: Option<String>,
}

#[derive(Serialize)]
struct Causes {
    names: Vec<String>,
    svg: String,
}

/// Erase counts of the flash by location.
#[derive(Serialize)]
struct Map {
    name: String,
    erases: u64,
    most: u32,
    piece_blocks: u32,
    svg: String,
}

#[derive(Serialize)]
struct Leading {
    name: String,
    part: String,
    ours: String,
    rival: String,
    figure: String,
    times: String,
    standing: &'static str,
}

/// Renders the page of these records.
///
/// # Errors
/// Errors of the drawing and template libraries, which do not occur with valid records.
pub fn html(records: &[Record]) -> Result<String, Box<dyn Error>> {
    let sheets = sheets(records);
    let mixed = is_mixed(&sheets);
    let views = (0..sheets.len()).map(|n| view(&sheets, n)).collect::<Result<Vec<_>, _>>()?;
    let leading: Vec<Leading> = sheets.iter().flat_map(leading).collect();
    let all_leads: Vec<Lead> = sheets.iter().flat_map(leads).collect();
    let verdicts: Vec<_> = verdicts(&sheets)
        .into_iter()
        .map(|it| context! { machine => it.machine, sentences => it.sentences })
        .collect();
    let first = records.first();
    let seeds = first.filter(|_| !mixed).map(|record| record.seed);
    let real = records.iter().any(|record| record.cell.preset == Preset::Here);
    let modelled = records.iter().any(|record| record.cell.preset != Preset::Here);
    let guest = records.iter().find_map(|record| record.versions.guest_kernel.clone());
    let mut environment = Environment::new();
    environment.set_keep_trailing_newline(true);
    environment.add_template("page.html", TEMPLATE)?;
    let page = environment.get_template("page.html")?.render(context! {
        views,
        leading,
        tally => tally(&all_leads),
        verdicts,
        seed => seeds,
        scale => first.map(|record| record.scale),
        versions => first.map(|record| record.versions.clone()),
        guest,
        real,
        modelled,
        indicative => records.iter().any(Record::is_indicative),
    })?;
    Ok(page)
}

/// Returns the anchor of a sheet. The second and later sheets of one experiment have a number.
fn id(sheets: &[Sheet], n: usize) -> String {
    let what = |sheet: &Sheet| (sheet.experiment.name(), sheet.machine.clone());
    let (experiment, machine) = what(&sheets[n]);
    match sheets[..n].iter().filter(|sheet| what(sheet) == (experiment, machine.clone())).count() {
        0 => format!("{experiment}-{machine}"),
        earlier => format!("{experiment}-{machine}-{}", earlier + 1),
    }
}

fn view(sheets: &[Sheet], n: usize) -> Result<View, Box<dyn Error>> {
    let sheet = &sheets[n];
    let times = times(sheet);
    let charts = if times.is_empty() { bars(sheet)? } else { curves(sheet)? };
    let rows = sheet.rows.iter().enumerate();
    let key = rows.map(|(n, row)| Key { colour: chart::colour(row.owner(n)), name: row.name.clone() });
    Ok(View {
        id: id(sheets, n),
        title: format!("{} · {}", sheet.experiment.number(), sheet.experiment.title()),
        machine: sheet.machine.clone(),
        profile: if is_mixed(sheets) { format!("{}, {}", sheet.card(), sheet.setup()) } else { sheet.card() },
        charts,
        key: if times.is_empty() { Vec::new() } else { key.collect() },
        times,
        columns: sheet
            .parts()
            .iter()
            .map(|part| Column { title: part.title, unit: part.unit.sign() })
            .collect(),
        rows: sheet.rows.iter().map(line).collect(),
        causes: causes(sheet)?,
        maps: maps(sheet),
    })
}

fn times(sheet: &Sheet) -> Vec<Times> {
    let of = |value: Option<f64>| value.map_or("–".into(), shown);
    let times = lines(sheet).into_iter().map(|line| Times {
        part: line.part.title,
        cells: [
            line.count.to_string(),
            shown(line.kb_per_s),
            shown(line.mean_ms),
            of(line.p50_ms),
            of(line.p99_ms),
            shown(line.p999_ms),
            shown(line.max_ms),
        ],
        name: line.name,
        is_ours: line.is_ours,
        is_published: line.is_published,
    });
    times.collect()
}

/// Draws two charts per part: the distribution of durations, and throughput over time.
fn curves(sheet: &Sheet) -> Result<Vec<Chart>, Box<dyn Error>> {
    let mut charts = Vec::new();
    for (n, part) in sheet.parts().iter().enumerate() {
        let (curves, marks) = latency::distributions(sheet, n);
        if curves.is_empty() {
            continue;
        }
        let published = if marks.is_empty() { "" } else { "; crosses: published p99.9 and maximum" };
        let title = format!("{}: share of the writes that took at least so many ms{published}", part.title);
        charts.push(Chart { svg: chart::log_curves(&title, &curves, &marks)?, title });
        let title = format!("{}: KB/s over the device's time in s", part.title);
        charts.push(Chart { svg: chart::curves(&title, &latency::progress(sheet, n))?, title });
    }
    Ok(charts)
}

/// Draws one chart per part.
fn bars(sheet: &Sheet) -> Result<Vec<Chart>, Box<dyn Error>> {
    let mut charts = Vec::new();
    for (n, part) in sheet.parts().iter().enumerate() {
        let bars: Vec<Bar> = sheet
            .rows
            .iter()
            .filter_map(|row| {
                let figure = row.figures[n].as_ref()?;
                Some(Bar {
                    name: row.name.clone(),
                    value: figure.phase.value,
                    label: format!("{} {}", measured(&figure.phase), part.unit.sign()),
                    published: figure.published,
                    is_ours: row.is_ours(),
                })
            })
            .collect();
        let better = if part.unit.more_is_better() { "more is better" } else { "less is better" };
        let title = format!("{}, {}: {better}", part.title, part.unit.sign());
        charts.push(Chart {
            svg: chart::bars(&format!("{}: {title}", sheet.experiment.title()), &bars)?,
            title,
        });
    }
    Ok(charts)
}

fn line(row: &super::Row) -> Line {
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "–".into());
    let ratio = |value: Option<f64>| or_dash(value.map(|value| format!("{value:.2}")));
    let cells = row.figures.iter().map(|figure| match figure {
        Some(it) => [
            measured(&it.phase),
            or_dash(it.published.map(shown)),
            ratio(it.to_ext4),
            ratio(it.published_to_ext4),
        ],
        None => ["–"; 4].map(str::to_owned),
    });
    let phases = || row.phases();
    let written: u64 = phases().map(|phase| phase.totals.written_bytes).sum();
    let programmed: u64 = phases().map(|phase| phase.flash.programmed_bytes).sum();
    let amplification = (written > 0).then(|| format!("{:.2}", programmed as f64 / written as f64));
    let returned: Vec<String> =
        phases().filter_map(|phase| Some(shown(phase.returned_ns? as f64 / 1e9))).collect();
    let check = match &row.check {
        Check::Clean { program } => format!("{program}: clean"),
        Check::Faults { program, .. } => format!("{program}: FAULTS"),
        Check::NotChecked { why } => why.clone(),
    };
    let cpu = row.figures.iter().map(|figure| figure.as_ref().and_then(|it| it.phase.cpu_us_a_record()));
    let memory = row.memory_bytes().map(|bytes| bytes as f64 / f64::from(1 << 20));
    let costs = match row.has_costs() {
        true => cpu.chain([memory]).map(|value| or_dash(value.map(shown))).collect(),
        false => Vec::new(),
    };
    Line {
        costs,
        name: row.name.clone(),
        suited: row.suited.clone().unwrap_or_default(),
        is_ours: row.is_ours(),
        cells: cells.collect(),
        amplification: or_dash(amplification),
        returned: returned.join(", "),
        check,
        failure: row.failure.as_ref().and_then(|text| text.lines().next().map(str::to_owned)),
    }
}

/// Formats a figure; a repeated one with the confidence interval of its median.
fn measured(phase: &Phase) -> String {
    let figure = shown(phase.value);
    match phase.runs.as_ref().map(Sample::interval) {
        Some(interval) => format!("{figure} ({}–{})", shown(interval.low), shown(interval.high)),
        None => figure,
    }
}

/// Draws the device time by cause, summed over all parts of an experiment.
fn causes(sheet: &Sheet) -> Result<Option<Causes>, Box<dyn Error>> {
    let mut all: BTreeMap<&str, u64> = BTreeMap::new();
    let times = |row: &super::Row| -> BTreeMap<String, u64> {
        let mut sum = BTreeMap::new();
        for figure in row.figures.iter().flatten() {
            for (cause, ns) in &figure.phase.flash.time_ns {
                *sum.entry(cause.clone()).or_insert(0) += ns;
            }
        }
        sum
    };
    let rows: Vec<(&super::Row, BTreeMap<String, u64>)> =
        sheet.rows.iter().map(|row| (row, times(row))).collect();
    for (_, sum) in &rows {
        for (cause, ns) in sum {
            *all.entry(cause).or_insert(0) += ns;
        }
    }
    if all.is_empty() {
        return Ok(None);
    }
    let mut causes: Vec<(&str, u64)> = all.into_iter().collect();
    causes.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    // Each of the largest causes has its own colour; the others share the last one.
    let rest = if causes.len() > CAUSES_MAX { causes.split_off(CAUSES_MAX - 1) } else { Vec::new() };
    let stacks: Vec<Stack> = rows
        .iter()
        .map(|(row, sum)| {
            let seconds = |cause: &str| *sum.get(cause).unwrap_or(&0) as f64 / 1e9;
            let mut parts: Vec<f64> = causes.iter().map(|(cause, _)| seconds(cause)).collect();
            if !rest.is_empty() {
                parts.push(rest.iter().map(|(cause, _)| seconds(cause)).sum());
            }
            let label = format!("{} s", shown(parts.iter().sum()));
            Stack { name: row.name.clone(), parts, label }
        })
        .collect();
    let about = format!("{}: device time by cause, in seconds", sheet.experiment.title());
    let mut names: Vec<String> = causes.into_iter().map(|(name, _)| name.replace('_', " ")).collect();
    if !rest.is_empty() {
        let of_rest: Vec<String> = rest.into_iter().map(|(name, _)| name.replace('_', " ")).collect();
        names.push(of_rest.join(", "));
    }
    Ok(Some(Causes { names, svg: chart::stacks(&about, &stacks)? }))
}

/// Draws a map for each file system, all with the same scale.
fn maps(sheet: &Sheet) -> Vec<Map> {
    let rows = || sheet.rows.iter().enumerate();
    let wears = || rows().filter_map(|(n, row)| Some((row.owner(n), row, row.wear.as_ref()?)));
    let most = wears().flat_map(|(_, _, wear)| wear.erases.iter().copied()).max().unwrap_or(0);
    let map = |(owner, row, wear): (Owner, &super::Row, &Wear)| Map {
        svg: chart::map(&format!("Erases of the flash, {}", row.name), &wear.erases, most, owner),
        name: row.name.clone(),
        erases: wear.total(),
        most: wear.most,
        piece_blocks: wear.piece_blocks,
    };
    // A card has erased spare blocks, so an experiment may end before any block is erased.
    if most == 0 { Vec::new() } else { wears().map(map).collect() }
}

fn leading(sheet: &Sheet) -> Vec<Leading> {
    leads(sheet)
        .into_iter()
        .map(|lead| Leading {
            name: format!("{} {} ({})", sheet.experiment.number(), sheet.experiment.name(), sheet.machine),
            part: format!("{}, {}", lead.part.title, lead.part.unit.sign()),
            ours: lead.ours.map_or("-".into(), shown),
            figure: shown(lead.rival.1),
            times: lead.times.map_or(String::new(), |times| format!("{times:.2}")),
            standing: lead.standing().word(),
            rival: lead.rival.0,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        experiment::Experiment,
        record::{INDICATIVE_CLOCK, tests::record},
    };

    #[test]
    fn no_cause_is_left_out_of_the_sum() {
        let mut one = record(Experiment::Mount, "ext4", &[4.0, 2.0]);
        one.phases[0].flash.time_ns = (1..=10).map(|n| (format!("cause_{n}"), n * 1_000_000_000)).collect();
        let causes = causes(&sheets(&[one])[0]).unwrap().unwrap();
        assert_eq!(causes.names.len(), CAUSES_MAX);
        assert_eq!(causes.names[7], "cause 3, cause 2, cause 1");
        assert!(causes.svg.contains("55.0 s"), "{}", causes.svg);
    }

    #[test]
    fn indicative_figures_are_marked() {
        let mut one = record(Experiment::Mount, "ext4", &[4.0, 2.0]);
        assert!(!html(&[one.clone()]).unwrap().contains("indicative"));
        one.clock = INDICATIVE_CLOCK.into();
        let page = html(&[one, record(Experiment::Mount, "flashkit", &[2.0, 3.0])]).unwrap();
        assert!(page.contains("ext4, indicative") && page.contains("ran in QEMU"), "{page}");
        assert!(
            page.contains("No comparable figures were measured"),
            "exact figures are not compared with indicative ones"
        );
    }

    #[test]
    fn each_sheet_has_a_place_of_its_own() {
        let one = record(Experiment::Mount, "ext4", &[4.0, 2.0]);
        let other = Record { seed: one.seed + 1, ..one.clone() };
        let page = html(&[one, other]).unwrap();
        let ids = ["mount-desktop", "mount-desktop-2"];
        for id in ids {
            assert_eq!(page.matches(&format!("<section id=\"{id}\">")).count(), 1, "{id}");
            assert!(page.contains(&format!("href=\"#{id}\"")), "{id}");
        }
    }

    #[test]
    fn the_page_has_everything_and_fetches_nothing() {
        let mut failed = record(Experiment::Mount, "nilfs2", &[1.0]);
        failed.failure = Some("<no> space\nmore".into());
        failed.wear = Some(Wear::of_blocks(&[3, 0, 4]));
        let records = [
            record(Experiment::Mount, "flashkit", &[2.0, 3.0]),
            record(Experiment::Mount, "ext4", &[4.0, 2.0]),
            failed,
        ];
        let page = html(&records).unwrap();
        assert_eq!(page.matches("<svg").count(), 3, "a chart a part, and a map");
        assert!(page.contains("7 erases"), "of the map");
        for wanted in [
            "On this card (card) no file system is the fastest in all",
            "prefers-color-scheme",
            "@media print",
            "&lt;no&gt; space",
        ] {
            assert!(page.contains(wanted), "{wanted:?} is not in the page");
        }
        for foreign in ["src=", "@import", "url(", "<script", "<link"] {
            assert!(!page.contains(foreign), "{foreign:?} is in the page");
        }
        let addresses = page.matches("http").count();
        assert_eq!(addresses, page.matches("http://www.w3.org/2000/svg").count(), "only the name of SVG");
        assert!(html(&[]).is_ok());
    }
}
