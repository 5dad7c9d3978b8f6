//! Models and fits compared with figures of real cards that they were not made from
//! (`testdata/reference/cards-measured.txt`).
//!
//! The table of docs/DEVICE-MODEL.md is computed here and compared with the file. With `BLESS=1` it is
//! written to it.

mod support;

use std::{collections::BTreeMap, fmt::Write as _, fs};

use flashkit_flash::{
    Card, Condition, Profile,
    flashbench::{self, OpenUnits},
    probe::fit::{Point, median, stream_limit},
};
use support::{check_document, repository};

const K: u64 = 1024;
const M: u64 = 1024 * K;
/// As in the probe, a jump is a merge if it costs more than writing this many times as much.
const MERGE_FACTOR: f64 = 1.5;

/// KB/s by order, size of the writes, and number of units written in turn.
type Rates = BTreeMap<(&'static str, u64, u64), f64>;

fn survey() -> BTreeMap<String, Rates> {
    let text =
        fs::read_to_string(repository("testdata/reference/cards-measured.txt")).expect("in the repository");
    let mut cards: BTreeMap<String, Rates> = BTreeMap::new();
    let mut name = String::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if line.starts_with("result_") {
            name = words[0].trim_end_matches(".txt").to_string();
        } else if let ["linear" | "random", size, rest @ ..] = &words[..] {
            let order = if words[0] == "linear" { "linear" } else { "random" };
            let (number, unit) = size.split_at(size.find(|c: char| !c.is_ascii_digit()).expect("a unit"));
            let bytes = number.parse::<u64>().expect("digits") * if unit == "MiB" { M } else { K };
            for pair in rest {
                let (units, rate) = pair.split_once(':').expect("units:rate");
                let key = (order, bytes, units.parse().expect("digits"));
                cards.entry(name.clone()).or_default().insert(key, rate.parse().expect("a rate"));
            }
        }
    }
    cards
}

/// Models compared with logs. The profile of each was derived from its first log.
const MODELS: [(&str, &str, &[&str]); 3] = [
    ("survey-class10", "result_28", &["result_25", "result_28_2"]),
    ("survey-class4", "result_7", &["result_3_3", "result_15", "result_15_1", "result_4"]),
    ("survey-toshiba-4g", "result_6_2", &["result_6"]),
];

/// Model over measured, row by row, of one order.
fn ratios(profile: &Profile, measured: &Rates, order: &str) -> Vec<f64> {
    let card = Card::new(profile.clone(), Condition::Preconditioned);
    let rows = measured.iter().filter(|((of, _, units), _)| *of == order && *units <= 7);
    rows.map(|((of, bytes, units), rate)| {
        let random = *of == "random";
        let how = OpenUnits { unit_bytes: 4 * M, units: *units, offset_bytes: 64 * M, stride: 1, random };
        let model = flashbench::open_units(&card, &card, how, *bytes).expect("within the card");
        model / 1024.0 / rate
    })
    .collect()
}

/// Returns the median deviation as a factor, and the share of rows within a factor of two.
fn deviation(ratios: &[f64]) -> (f64, f64) {
    let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln().abs()).collect();
    let near = ratios.iter().filter(|ratio| (0.5..=2.0).contains(*ratio)).count();
    (median(&logs).exp(), near as f64 / ratios.len() as f64)
}

#[test]
fn models_predict_cards_that_they_were_not_made_from() {
    let survey = survey();
    let mut table = String::from(
        "| model | figures of | order | rows | middle deviation | within a factor of 2 | |\n|---|---|---|---:|---:|---:|---|\n",
    );
    for (name, own, others) in MODELS {
        let profile = Profile::named(name).expect("built in");
        for (log, kind) in
            [(own, "read off it")].into_iter().chain(others.iter().map(|log| (*log, "held out")))
        {
            let Some(rates) = survey.get(log) else { panic!("no {log}") };
            for order in ["linear", "random"] {
                let ratios = ratios(&profile, rates, order);
                if ratios.is_empty() {
                    continue;
                }
                let (factor, near) = deviation(&ratios);
                writeln!(
                    table,
                    "| `{name}` | {log} | {order} | {} | {:.0} % | {:.0} % | {kind} |",
                    ratios.len(),
                    (factor - 1.0) * 100.0,
                    near * 100.0
                )
                .expect("writing to a string cannot fail");
            }
        }
    }
    check_document("survey", &table);
}

/// Open units according to the readers of these logs. The fit sees one figure for each number of units.
#[test]
fn the_probes_fit_reads_open_units_off_real_cards_as_people_do() {
    let survey = survey();
    for (log, limit, card) in [
        ("result_12", Some(4), "SanDisk, 4 GB, 2013"),
        ("result_1", Some(4), "SanDisk, 4 GB, 2013"),
        ("result_7", Some(3), "Phison, 8 GB, 2014"),
        ("result_15", Some(3), "Phison, 4 GB, 2014"),
        ("result_6_2", Some(3), "Toshiba, 4 GB, 2013"),
        ("result_25", None, "Transcend, 8 GB, 2014"),
        ("result_28", None, "Transcend, 8 GB, 2014"),
        ("result_31_1", None, "Samsung, 16 GB, 2015"),
    ] {
        let rates =
            survey[log].iter().filter(|((order, bytes, _), _)| (*order, *bytes) == ("linear", 64 * K));
        let points: Vec<Point> = rates
            .map(|((_, bytes, units), rate)| Point {
                at: *units,
                samples: vec![*bytes as f64 / rate / 1024.0 * 1e9],
            })
            .collect();
        let found = stream_limit(&points, points[0].median(), MERGE_FACTOR);
        println!("{log} {card}: {found:?}");
        assert_eq!(found, limit, "{log}, {card}: {points:?}");
    }
}
