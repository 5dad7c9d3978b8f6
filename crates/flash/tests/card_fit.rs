//! Profiles fitted to half of the rows of real cards predict the other half.
//!
//! The table of docs/DEVICE-MODEL.md is computed here and compared with the file. With `BLESS=1` it is written to
//! it. `SEEDS=N` judges more splits, without the table.

mod support;

use std::fmt::Write as _;

use flashkit_flash::{
    Profile,
    fit::{HoldOut, Trial, compare, export, hold_out, split},
    rows::{self, Measured},
};
use support::{check_document, repository};

/// The splits of the table: seeds 1 to this one.
const SEEDS: u64 = 5;

fn cards() -> Vec<Measured> {
    rows::read_cards(&repository("testdata/reference/cards-measured.txt")).expect("in the repository")
}

/// Judges a card with several splits, as one trial with the rows of all.
fn judged(card: &Measured, seeds: u64) -> Trial {
    let mut all = Trial { seed: 0, fitted_rows: 0, rows: Vec::new() };
    for seed in 1..=seeds {
        let trial = hold_out(card, HoldOut::Share(0.5), seed).expect("a fit");
        all.fitted_rows += trial.fitted_rows;
        all.rows.extend(trial.rows);
    }
    all
}

fn row(name: &str, trial: &Trial) -> String {
    let worst = trial.worst().expect("rows");
    format!(
        "| {name} | {} | {:.0} % | {:.0} % | {:.0} % | {}: {:.0} instead of {:.0} KB/s |\n",
        trial.rows.len(),
        trial.share_within(0.2) * 100.0,
        trial.median_error() * 100.0,
        trial.coverage() * 100.0,
        worst.key.to_string().trim_start_matches("write "),
        worst.model_bytes_per_s / 1024.0,
        worst.measured_bytes_per_s / 1024.0,
    )
}

#[test]
fn half_of_the_rows_of_a_card_predict_the_other_half() {
    let seeds = std::env::var("SEEDS").ok().map(|text| text.parse().expect("a number"));
    let mut table = String::from(
        "| card | rows | within 20 % | median error | within their intervals | worst |\n|---|---:|---:|---:|---:|---|\n",
    );
    let mut all = Trial { seed: 0, fitted_rows: 0, rows: Vec::new() };
    for card in cards() {
        let trial = judged(&card, seeds.unwrap_or(SEEDS));
        table += &row(&card.name, &trial);
        all.rows.extend(trial.rows);
    }
    table += &row("all", &all);
    println!("{table}");
    assert!(all.share_within(0.2) >= 0.75, "{:.3}", all.share_within(0.2));
    assert!(all.median_error() <= 0.1, "{:.3}", all.median_error());
    assert!((0.85..=0.97).contains(&all.coverage()), "intervals of 90 %: {:.3}", all.coverage());
    if seeds.is_none() {
        check_document("fit", &table);
    }
}

/// The profile's file alone gives the same rates as the fit that made it.
#[test]
fn a_written_profile_predicts_as_its_fit() {
    let card = cards().into_iter().find(|card| card.name == "result_28").expect("in the logs");
    let (kept, out) = split(&card, HoldOut::Share(0.5), 1);
    let fit = flashkit_flash::fit::Fit::new(&kept, &mut |_| ()).expect("a fit");
    let text = export(&fit, &kept).expect("a profile").to_toml();
    let profile = Profile::parse(&text).expect("its own text");
    let rows = compare(&profile, &out, &mut |_| ()).expect("large enough");
    let trial = hold_out(&card, HoldOut::Share(0.5), 1).expect("a fit");
    let mut worst = String::new();
    for (row, judged) in rows.iter().zip(&trial.rows) {
        assert_eq!(row.key, judged.key);
        if (row.model_bytes_per_s / judged.model_bytes_per_s - 1.0).abs() > 1e-6 {
            writeln!(worst, "{}", row.key).expect("writing to a string cannot fail");
        }
    }
    assert!(worst.is_empty(), "{worst}");
}
