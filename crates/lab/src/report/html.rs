//! One self-contained page that fetches no other resource.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
};

use flash::Profile;
use minijinja::{Environment, context};
use serde::Serialize;

use super::{
    COMPARISONS, Comparison, Figure, Lead, Row, Sheet,
    chart::{self, Axis, Bar, CAUSES_MAX, Owner, Stack},
    ink, is_mixed, latency, lines, sheets, shown, tally, tally_with_cpu, utilization,
    verdict::verdicts,
};
use crate::{
    check::Check,
    experiment::{Part, Phase},
    preset::Preset,
    record::Record,
    sample::Sample,
    wear::Wear,
};

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
    tables: Vec<Table>,
    rows: Vec<Line>,
    causes: Option<Causes>,
    maps: Vec<Map>,
}

/// The figures of one part, without empty columns.
#[derive(Serialize)]
struct Table {
    title: String,
    heads: Vec<&'static str>,
    rows: Vec<TableRow>,
}

#[derive(Serialize)]
struct TableRow {
    name: String,
    suited: String,
    is_ours: bool,
    cells: Vec<String>,
}

#[derive(Serialize)]
struct Chart {
    title: String,
    svg: String,
    /// The chart as a file of its own.
    file: String,
}

impl Chart {
    fn new(title: String, svg: String) -> Chart {
        Chart { title, file: ink::download(&svg), svg }
    }
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
struct Line {
    name: String,
    is_ours: bool,
    /// Address of the record.
    record: String,
    /// Memory of the kernel in MiB.
    memory: String,
    amplification: String,
    returned: String,
    check: String,
    failure: Option<String>,
}

#[derive(Serialize)]
struct Causes {
    /// Names with the numbers of their colours.
    names: Vec<(usize, &'static str)>,
    chart: Chart,
}

/// Erase counts of the flash by location.
#[derive(Serialize)]
struct Map {
    name: String,
    erases: u64,
    most: u32,
    piece_blocks: u32,
    chart: Chart,
}

/// A table of our figures beside the best rivals'.
#[derive(Serialize)]
struct Compared {
    title: String,
    tallies: Vec<String>,
    has_cpu: bool,
    rows: Vec<Leading>,
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
    /// With the processor time added: our figure and the best rival's, the ratio, and its standing.
    with_cpu: Option<(String, String, &'static str)>,
}

/// Figures of a card.
#[derive(Serialize)]
struct Card {
    name: String,
    figures: String,
}

/// Function that returns the address of a record.
pub type Address<'a> = &'a dyn Fn(&str) -> String;

/// Renders the page of these records, which are below the address `base`; empty if the page is beside them.
///
/// # Errors
/// Errors of the drawing and template libraries, which do not occur with valid records.
pub fn html(records: &[Record], base: &str) -> Result<String, Box<dyn Error>> {
    html_at(records, &|name| format!("{base}{name}"))
}

/// Renders the page of these records. `address` returns the address of a record's path within its study.
///
/// # Errors
/// A chart cannot be drawn.
pub fn html_at(records: &[Record], address: Address<'_>) -> Result<String, Box<dyn Error>> {
    let sheets = sheets(records);
    let mixed = is_mixed(&sheets);
    let views = (0..sheets.len()).map(|n| view(&sheets, n, address)).collect::<Result<Vec<_>, _>>()?;
    let compared: Vec<Compared> = COMPARISONS.iter().filter_map(|one| compared(one, &sheets)).collect();
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
        compared,
        made => records.iter().filter_map(|record| record.made.as_ref()).collect::<BTreeSet<_>>(),
        cards => cards(records),
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

fn view(sheets: &[Sheet], n: usize, address: Address<'_>) -> Result<View, Box<dyn Error>> {
    let sheet = &sheets[n];
    let times = times(sheet);
    let has_times = !times.is_empty();
    let has_curves = has_times || utilization::has_curves(sheet);
    let charts = match has_times {
        true => curves(sheet)?,
        false if has_curves => {
            let charts = utilization::charts(sheet)?;
            charts.into_iter().map(|(title, svg)| Chart::new(title, svg)).collect()
        }
        false => bars(sheet)?,
    };
    let rows = sheet.rows.iter().enumerate();
    let key = rows.map(|(n, row)| Key { colour: chart::colour(row.owner(n)), name: row.name.clone() });
    Ok(View {
        id: id(sheets, n),
        title: format!("{} · {}", sheet.experiment.number(), sheet.experiment.title()),
        machine: sheet.machine.clone(),
        profile: if is_mixed(sheets) { format!("{}, {}", sheet.card(), sheet.setup()) } else { sheet.card() },
        charts,
        key: if has_curves { key.collect() } else { Vec::new() },
        times,
        tables: if has_times { Vec::new() } else { tables(sheet) },
        rows: sheet.rows.iter().map(|row| line(row, address)).collect(),
        causes: causes(sheet)?,
        maps: maps(sheet),
    })
}

/// Returns the figures of each card, once.
fn cards(records: &[Record]) -> Vec<Card> {
    let cards: BTreeMap<_, _> =
        records.iter().filter_map(|record| Some((&record.profile, record.card.as_ref()?))).collect();
    let card = |((name, _), card): (&(String, String), &Profile)| Card {
        name: format!("{name}, {} MiB", card.size_bytes >> 20),
        figures: card.to_toml(),
    };
    cards.into_iter().map(card).collect()
}

/// Returns a table for each part.
fn tables(sheet: &Sheet) -> Vec<Table> {
    let table = |(n, part): (usize, &Part)| {
        let rows: Vec<[String; COLUMNS]> =
            sheet.rows.iter().map(|row| cells(row.figures[n].as_ref())).collect();
        let is_used = |column: usize| column == 0 || rows.iter().any(|cells| cells[column] != NOTHING);
        let used: Vec<usize> = (0..COLUMNS).filter(|column| is_used(*column)).collect();
        let row = |(row, cells): (&Row, &[String; COLUMNS])| TableRow {
            name: row.name.clone(),
            suited: row.suited.clone().unwrap_or_default(),
            is_ours: row.is_ours(),
            cells: used.iter().map(|column| cells[*column].clone()).collect(),
        };
        Table {
            title: format!("{}, {}", part.title, part.unit.sign()),
            heads: used.iter().map(|column| HEADS[*column]).collect(),
            rows: sheet.rows.iter().zip(&rows).map(row).collect(),
        }
    };
    sheet.parts().iter().enumerate().map(table).collect()
}

const COLUMNS: usize = 6;
/// The last one is the figure that follows from the sum of both times.
const HEADS: [&str; COLUMNS] =
    ["here", "published", "× ext4", "× ext4, published", "CPU, µs a record", "with CPU"];
/// A cell without a figure.
const NOTHING: &str = "–";

fn cells(figure: Option<&Figure>) -> [String; COLUMNS] {
    let or_nothing = |value: Option<String>| value.unwrap_or_else(|| NOTHING.into());
    let ratio = |value: Option<f64>| or_nothing(value.map(|value| format!("{value:.2}")));
    match figure {
        Some(it) => [
            measured(&it.phase),
            or_nothing(it.published.map(shown)),
            ratio(it.to_ext4),
            ratio(it.published_to_ext4),
            or_nothing(it.phase.cpu_us_a_record().map(shown)),
            or_nothing(it.phase.with_cpu().map(shown)),
        ],
        None => [NOTHING; COLUMNS].map(str::to_owned),
    }
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
        let svg = chart::log_curves(&title, &curves, &marks)?;
        charts.push(Chart::new(title, svg));
        let title = format!("{}: KB/s over the device's time in s", part.title);
        let svg = chart::curves(&title, &latency::progress(sheet, n))?;
        charts.push(Chart::new(title, svg));
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
        let axis = match chart::axis(&bars) {
            Axis::Linear => "",
            Axis::Logarithmic { .. } => ", logarithmic axis",
        };
        let title = format!("{}, {}: {better}{axis}", part.title, part.unit.sign());
        let svg = chart::bars(&format!("{}: {title}", sheet.experiment.title()), &bars)?;
        charts.push(Chart::new(title, svg));
    }
    Ok(charts)
}

fn line(row: &Row, address: Address<'_>) -> Line {
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| NOTHING.into());
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
    let memory = row.memory_bytes().map(|bytes| shown(bytes as f64 / f64::from(1 << 20)));
    Line {
        memory: or_dash(memory),
        name: row.name.clone(),
        is_ours: row.is_ours(),
        record: ink::encoded(&address(&row.record)),
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

/// Causes of device time by the number of their colour. What is in none of them is in the last one.
const CAUSES: [(&str, &[&str]); CAUSES_MAX] = [
    ("command", &["command"]),
    ("transfer", &["transfer"]),
    ("page read", &["page_read"]),
    ("page program", &["page_program"]),
    ("merge", &["merge", "small_write"]),
    ("unit switch", &["unit_switch", "read_crossing"]),
    ("stream miss", &["stream_miss"]),
    ("flush, discard, wait", &[]),
];

/// Draws the device time by cause, summed over all parts of an experiment.
fn causes(sheet: &Sheet) -> Result<Option<Causes>, Box<dyn Error>> {
    let seconds = |row: &Row| -> [f64; CAUSES_MAX] {
        let mut sum = [0.0; CAUSES_MAX];
        for (cause, ns) in row.phases().flat_map(|phase| &phase.flash.time_ns) {
            let known = CAUSES.iter().position(|(_, causes)| causes.contains(&cause.as_str()));
            sum[known.unwrap_or(CAUSES_MAX - 1)] += *ns as f64 / 1e9;
        }
        sum
    };
    let sums: Vec<_> = sheet.rows.iter().map(|row| (row, seconds(row))).collect();
    let is_used = |cause: usize| sums.iter().any(|(_, sum)| sum[cause] > 0.0);
    let names: Vec<(usize, &'static str)> =
        (0..CAUSES_MAX).filter(|cause| is_used(*cause)).map(|cause| (cause, CAUSES[cause].0)).collect();
    if names.is_empty() {
        return Ok(None);
    }
    let stack = |(row, sum): &(&Row, [f64; CAUSES_MAX])| Stack {
        name: row.name.clone(),
        parts: sum.to_vec(),
        label: format!("{} s", shown(sum.iter().sum())),
    };
    let title = format!("{}: device time by cause, in seconds", sheet.experiment.title());
    let svg = chart::stacks(&title, &sums.iter().map(stack).collect::<Vec<_>>())?;
    Ok(Some(Causes { names, chart: Chart::new(title, svg) }))
}

/// Draws a map for each file system, all with the same scale.
fn maps(sheet: &Sheet) -> Vec<Map> {
    let rows = || sheet.rows.iter().enumerate();
    let wears = || rows().filter_map(|(n, row)| Some((row.owner(n), row, row.wear.as_ref()?)));
    let most = wears().flat_map(|(_, _, wear)| wear.erases.iter().copied()).max().unwrap_or(0);
    let map = |(owner, row, wear): (Owner, &Row, &Wear)| Map {
        chart: {
            let title = format!("Erases of the flash, {}", row.name);
            let svg = chart::map(&title, &wear.erases, most, owner);
            Chart::new(title, svg)
        },
        name: row.name.clone(),
        erases: wear.total(),
        most: wear.most,
        piece_blocks: wear.piece_blocks,
    };
    // A card has erased spare blocks, so an experiment may end before any block is erased.
    wears().filter(|(_, _, wear)| wear.total() > 0).map(map).collect()
}

/// Returns the table of a comparison, unless ours has no row for it.
fn compared(comparison: &Comparison, sheets: &[Sheet]) -> Option<Compared> {
    let leads: Vec<(&Sheet, Lead)> = sheets
        .iter()
        .flat_map(|sheet| comparison.leads(sheet).into_iter().map(move |lead| (sheet, lead)))
        .collect();
    let only: Vec<Lead> = leads.iter().map(|(_, lead)| lead.clone()).collect();
    let rows: Vec<Leading> = leads.into_iter().map(leading).collect();
    (!rows.is_empty()).then(|| Compared {
        title: comparison.title(),
        tallies: tally(comparison.subject, &only).into_iter().chain(tally_with_cpu(&only)).collect(),
        has_cpu: rows.iter().any(|row| row.with_cpu.is_some()),
        rows,
    })
}

fn leading((sheet, lead): (&Sheet, Lead)) -> Leading {
    let with_cpu = lead.with_cpu.as_ref().map(|both| {
        let figures = format!("{}; {} {}", shown(both.ours), shown(both.rival.1), both.rival.0);
        (figures, format!("{:.2}", both.times), lead.standing_with_cpu().word())
    });
    Leading {
        name: format!("{} {} ({})", sheet.experiment.number(), sheet.experiment.name(), sheet.machine),
        part: format!("{}, {}", lead.part.title, lead.part.unit.sign()),
        ours: lead.ours.map_or("-".into(), shown),
        figure: shown(lead.rival.1),
        times: lead.times.map_or(String::new(), |times| format!("{times:.2}")),
        standing: lead.standing().word(),
        rival: lead.rival.0,
        with_cpu,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        experiment::Experiment,
        record::{INDICATIVE_CLOCK, Made, tests::record},
    };

    #[test]
    fn a_cause_has_its_colour_and_none_is_left_out_of_the_sum() {
        let mut one = record(Experiment::Mount, "ext4", &[4.0, 2.0]);
        let times = ["unit_switch", "merge", "small_write", "of a later card"];
        one.phases[0].flash.time_ns = times.map(|cause| (cause.to_owned(), 1_000_000_000)).into();
        let causes = causes(&sheets(&[one])[0]).unwrap().unwrap();
        assert_eq!(causes.names, [(4, "merge"), (5, "unit switch"), (7, "flush, discard, wait")]);
        assert!(causes.chart.svg.contains("4.00 s"), "{}", causes.chart.svg);
        for cause in [4, 5, 7] {
            assert!(causes.chart.svg.contains(&format!("var(--cause-{cause})")), "{cause}");
        }
    }

    #[test]
    fn indicative_figures_are_marked() {
        let mut one = record(Experiment::Mount, "ext4", &[4.0, 2.0]);
        assert!(!html(&[one.clone()], "").unwrap().contains("indicative"));
        one.clock = INDICATIVE_CLOCK.into();
        let page = html(&[one, record(Experiment::Mount, "flashkit", &[2.0, 3.0])], "").unwrap();
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
        let page = html(&[one, other], "").unwrap();
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
        let mut ours = record(Experiment::Mount, "flashkit", &[2.0, 3.0]);
        ours.made = Some(Made { on: "2026-11-23".into(), by: "flashkit study -e 3".into() });
        ours.card = Some(Profile::named("survey-a1").unwrap());
        let records = [ours, record(Experiment::Mount, "ext4", &[4.0, 2.0]), failed];
        let page = html(&records, "a b/").unwrap();
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
        for wanted in [
            "2026-11-23",
            "flashkit study -e 3",
            "program_page_ns = 480000",
            "href=\"a%20b&#x2f;cells&#x2f;mount.ext4.desktop.json\"",
            "Processor time is not in them",
        ] {
            assert!(page.contains(wanted), "{wanted:?} is not in the page");
        }
        assert_eq!(page.matches("download=\"").count(), 3, "of each chart");
        assert!(!page.contains("<th>published</th><th>× ext4</th><th>published</th>"), "two of one name");
        for foreign in ["src=", "@import", "url(", "<script", "<link"] {
            assert!(!page.contains(foreign), "{foreign:?} is in the page");
        }
        let addresses = page.matches("http").count();
        assert_eq!(addresses, page.matches("http://www.w3.org/2000/svg").count(), "only the name of SVG");
        assert!(html(&[], "").is_ok());
    }
}
