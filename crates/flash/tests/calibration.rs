//! The built-in profiles compared with the published figures of the modelled devices.
//!
//! The tables of docs/DEVICE-MODEL.md are computed here and compared with the file. With `BLESS=1` they are
//! written to it.

mod support;

use std::{cmp::Reverse, collections::BinaryHeap, fmt::Write as _, fs};

use block::{Device, Rng};
use flashkit_flash::{
    Card, Clock, Condition, Model, Op, Profile,
    flashbench::{self, OpenUnits},
};
use support::{check_document, repository};

const K: u64 = 1024;
const M: u64 = 1024 * K;

/// One row that the profile was fitted to: the published figure, and the model's.
struct Row {
    what: String,
    published: f64,
    model: f64,
}

impl Row {
    fn error(&self) -> f64 {
        self.model / self.published - 1.0
    }

    /// Describes the fit. An error of more than a third is not a calibration.
    fn reached(&self) -> &'static str {
        if self.error().abs() > 1.0 / 3.0 { "out of reach" } else { "calibrated" }
    }
}

fn reference(name: &str) -> toml::Table {
    let path = repository("testdata/reference").join(name);
    toml::from_str(&fs::read_to_string(&path).expect("the figures are in the repository")).expect("TOML")
}

/// flashbench's tables of bergmann-2012 on the modelled stick, in MB/s.
fn bergmann() -> Vec<Row> {
    let table = reference("bergmann-2012.toml");
    let profile = Profile::named("bergmann-stick").expect("built in");
    let mut rows = Vec::new();
    let mut sweep = |what: &str, how: OpenUnits, sizes: &toml::Value, figures: &toml::Value| {
        let card = Card::new(profile.clone(), Condition::Preconditioned);
        for (size, figure) in
            sizes.as_array().expect("a list").iter().zip(figures.as_array().expect("a list"))
        {
            let bytes = parse_size(size.as_str().expect("a size"));
            let model = flashbench::open_units(&card, &card, how, bytes).expect("within the stick") / 1e6;
            let published = figure.as_float().expect("a rate");
            rows.push(Row { what: format!("{what}, {}", size.as_str().expect("a size")), published, model });
        }
    };
    for units in [2, 3] {
        let how = OpenUnits { unit_bytes: 16 * M, units, offset_bytes: 64 * M, stride: 1, random: false };
        let open = &table["open_au"];
        sweep(&format!("open-au, {units} units"), how, &open["sizes"], &open[format!("nr{units}")]);
    }
    let how = OpenUnits { unit_bytes: 4 * M, units: 1, offset_bytes: M, stride: 1, random: false };
    let offset = &table["open_au_offset"];
    sweep("open-au at 1 MiB, 1 unit", how, &offset["sizes"], &offset["offset_1m_erase_4m"]);
    rows
}

fn parse_size(text: &str) -> u64 {
    let (number, unit) = text.split_at(text.len() - 1);
    number.parse::<u64>().expect("digits") * if unit == "M" { M } else { K }
}

/// lavinen-2003: a 4 KiB write on NOR is 4164 bytes of program and its share of an erase, in ms.
fn lavinen() -> Vec<Row> {
    let table = reference("lavinen-2003.toml");
    let published = table["rows"]["nov27_sequential"][2].as_integer().expect("milliseconds") as f64;
    let profile = Profile::named("nor-2003").expect("built in");
    // JFFS2 writes a node of 4164 bytes. The chip is priced in pieces of 256 bytes, so 16.27 of them on
    // average.
    let chip = Card::new(profile.clone(), Condition::Fresh);
    let (block, piece) = (u64::from(profile.flash.block_bytes), 256);
    let writes = 4096u64;
    let (mut at, mut owed) = (0, 0);
    for _ in 0..writes {
        owed += 4164;
        while owed >= piece {
            let place = at % (32 * M);
            if place % block == 0 {
                chip.discard(place, block).expect("whole blocks");
            }
            chip.write(place, &[0; 256]).expect("erased before");
            (at, owed) = (at + piece, owed - piece);
        }
    }
    let model = chip.now_ns() as f64 / 1e6 / writes as f64;
    vec![Row { what: "a write of 4 KiB by JFFS2, sequential, ms".into(), published, model }]
}

fn render(rows: &[Row]) -> String {
    let mut text = String::from("| row | published | model | error | |\n|---|---:|---:|---:|---|\n");
    for row in rows {
        let digits = if row.published < 10.0 { 2 } else { usize::from(row.published < 100.0) };
        writeln!(
            text,
            "| {} | {:.digits$} | {:.digits$} | {:+.0} % | {} |",
            row.what,
            row.published,
            row.model,
            row.error() * 100.0,
            row.reached()
        )
        .expect("writing to a string cannot fail");
    }
    text
}

/// Makers' figures of their devices, to which profiles were fitted: queue depth of the measurement,
/// sequential reads and writes in MB/s, and random requests of 4 KiB per second.
const MAKERS: [(&str, &str, u32, [Option<f64>; 4]); 6] = [
    ("survey-emmc45", "Samsung eMMC 4.5", 1, [Some(140.0), Some(50.0), Some(7e3), Some(2e3)]),
    ("survey-emmc51", "Samsung eMMC 5.1", 32, [Some(250.0), Some(125.0), Some(11e3), Some(13e3)]),
    ("survey-ufs21", "Samsung eUFS 2.1 of 2017", 32, [Some(860.0), Some(255.0), Some(42e3), Some(40e3)]),
    ("survey-ufs31", "Samsung eUFS 3.1", 32, [Some(2100.0), Some(1200.0), Some(100e3), Some(70e3)]),
    ("survey-ssd", "Samsung 850 EVO, 500 GB", 32, [Some(540.0), Some(520.0), Some(98e3), Some(90e3)]),
    ("survey-ssd", "the same, one at a time", 1, [None, None, Some(10e3), Some(40e3)]),
];

/// The order of a run's addresses.
#[derive(Clone, Copy)]
enum Order {
    Sequential,
    Random,
}

/// Measures requests per second with `depth` in flight, for `count` requests of `bytes` each.
fn rate(
    profile: &Profile,
    depth: u32,
    op: impl Fn(u64, u64) -> Op,
    bytes: u64,
    count: u64,
    order: Order,
) -> f64 {
    let mut model = Model::new(profile.clone(), Condition::Fresh);
    let places = (1 << 30) / bytes;
    let mut rng = Rng::new(1);
    let mut under_way = BinaryHeap::new();
    let mut done_ns = 0;
    for n in 0..count {
        let place = match order {
            Order::Sequential => n % places,
            Order::Random => rng.below(places),
        };
        let full = under_way.len() >= depth as usize;
        let now_ns = if full { under_way.pop().map_or(0, |Reverse(done)| done) } else { 0 };
        let done = model.submit(now_ns, op(place * bytes, bytes)).expect("within the device").done_ns;
        under_way.push(Reverse(done));
        done_ns = done_ns.max(done);
    }
    count as f64 / done_ns as f64 * 1e9
}

/// The five devices for which only their makers' figures are known.
fn makers() -> String {
    let mut text = String::from(
        "| profile | device | under way | | published | model | error |\n|---|---|---:|---|---:|---:|---:|\n",
    );
    for (name, device, depth, published) in MAKERS {
        let profile = Profile::named(name).expect("built in");
        let large = 512 * K;
        let megabytes = |op: fn(u64, u64) -> Op| {
            rate(&profile, depth, op, large, 2000, Order::Sequential) * large as f64 / 1e6
        };
        let requests = |op: fn(u64, u64) -> Op| rate(&profile, depth, op, 4 * K, 50_000, Order::Random);
        let rows: [(&str, &dyn Fn() -> f64); 4] = [
            ("reads in sequence, MB/s", &|| megabytes(Op::read)),
            ("writes in sequence, MB/s", &|| megabytes(Op::write)),
            ("reads at random, a second", &|| requests(Op::read)),
            ("writes at random, a second", &|| requests(Op::write)),
        ];
        for ((what, measure), published) in rows.into_iter().zip(published) {
            let Some(published) = published else { continue };
            let model = measure();
            let error = model / published - 1.0;
            writeln!(
                text,
                "| `{name}` | {device} | {depth} | {what} | {published:.0} | {model:.0} | {:+.0} % |",
                error * 100.0
            )
            .expect("writing to a string cannot fail");
            // Writes were not fitted at a depth of one.
            assert!(error.abs() < if name == "survey-ssd" && depth == 1 { 0.4 } else { 0.05 }, "{text}");
        }
    }
    text
}

// All tables are in one test, because they are parts of one file.
#[test]
fn the_tables_of_the_document_match_the_model() {
    let stick = bergmann();
    let nor = lavinen();
    check_document("bergmann-2012", &render(&stick));
    check_document("lavinen-2003", &render(&nor));
    check_document("makers", &makers());
    assert!(nor[0].error().abs() < 0.05, "{}", nor[0].error());
    // The shape of flashbench's tables.
    let rate = |what: &str| stick.iter().find(|row| row.what == what).expect("a row").model;
    for size in ["16K", "8K", "4K"] {
        let (two, three) =
            (rate(&format!("open-au, 2 units, {size}")), rate(&format!("open-au, 3 units, {size}")));
        assert!(two > 2.0 * three, "{size}: {two} with 2 units, {three} with 3");
    }
    for size in ["4M", "2M", "1M"] {
        let (two, three) =
            (rate(&format!("open-au, 2 units, {size}")), rate(&format!("open-au, 3 units, {size}")));
        assert!((two / three - 1.0).abs() < 0.1, "{size}: {two} with 2 units, {three} with 3");
    }
    assert!(rate("open-au at 1 MiB, 1 unit, 64K") > 2.0 * rate("open-au, 2 units, 32K"));
}

#[test]
fn reads_of_the_stick_show_no_boundary() {
    let card = Card::new(Profile::named("bergmann-stick").expect("built in"), Condition::Preconditioned);
    let rows = flashbench::align(&card, &card, 1024, 100).expect("within the stick");
    let boundary =
        |bytes| rows.iter().find(|row| row.boundary_bytes == bytes).expect("measured").difference_ns();
    // As published: the boundaries of units (4 MiB) are no different from those of 1 MiB or 64 KiB.
    assert!((boundary(4 * M) - boundary(64 * K)).abs() < 1000.0);
}

#[test]
fn the_front_of_the_stick_takes_any_order() {
    let card = Card::new(Profile::named("bergmann-stick").expect("built in"), Condition::Preconditioned);
    let rate = |offset_bytes| {
        let how = OpenUnits { unit_bytes: 4 * M, units: 1, offset_bytes, stride: 1, random: true };
        flashbench::open_units(&card, &card, how, 16 * K).expect("within the stick")
    };
    assert!(rate(0) > 2.0 * rate(64 * M), "{} at the front, {} behind it", rate(0), rate(64 * M));
}
