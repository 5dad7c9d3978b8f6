//! Tests of fits.

use super::*;
use crate::rows::Row;

/// Rows of a card that keeps two units open, in the form of flashbench.
fn made_up(ns: impl Fn(&Key) -> f64) -> Measured {
    let mut rows = Vec::new();
    for order in [Order::InOrder, Order::OutOfOrder] {
        for bytes in [4 << 20, 1 << 20, 64 << 10, 16 << 10, 4 << 10] {
            for units in 1..=6 {
                let key = Key { op: Operation::Write, order, bytes, units: Some(units), depth: 1 };
                let bytes_per_s = bytes as f64 / ns(&key) * 1e9;
                rows.push(Row { key, bytes_per_s, line: rows.len() + 1 });
            }
        }
    }
    Measured { name: "made up".into(), size_bytes: None, unit_bytes: 4 << 20, crossings: Vec::new(), rows }
}

/// 0.5 ms a command and 10 MB/s; 1 ms for another unit; a granule of 40 ms at random below 128 KiB; 300 ms
/// beyond four units, except for whole units.
fn four_units(key: &Key) -> f64 {
    let units = key.units.unwrap_or(16);
    let part = key.bytes < 4 << 20;
    let mut ns = 0.5e6 + key.bytes as f64 * 100.0;
    if part && units > 1 {
        ns += 1e6;
    }
    if part && units > 4 {
        ns += 300e6;
    }
    if key.order == Order::OutOfOrder && key.bytes < 128 << 10 {
        ns += 40e6;
    }
    ns
}

#[test]
fn the_limit_of_open_units_is_found_from_half_of_the_rows() {
    for seed in 1..=5 {
        let measured = made_up(four_units);
        let (kept, _) = split(&measured, HoldOut::Share(0.5), seed);
        let fit = Fit::new(&kept, &mut |_| ()).expect("enough rows");
        let (limit, share) = fit.limits()[0];
        assert!(limit == Some(4) && share > 0.9, "seed {seed}: {:?}", fit.limits());
        let trial = hold_out(&measured, HoldOut::Share(0.5), seed).expect("enough rows");
        assert!(trial.share_within(0.2) >= 0.85, "{} worst {:?}", trial.to_text(), trial.worst());
    }
}

#[test]
fn the_model_takes_the_predicted_times() {
    let measured = made_up(four_units);
    let fit = Fit::new(&measured, &mut |_| ()).expect("enough rows");
    let profile = export(&fit, &measured).expect("a profile");
    for row in &measured.rows {
        let model = crate::rows::simulate::rate(&profile, &row.key, 4 << 20).expect("large enough");
        let predicted = row.key.bytes as f64 / fit.predict(&row.key).expect("writes").ns * 1e9;
        let error = model / predicted - 1.0;
        assert!(error.abs() < 0.03, "{}: {error}", row.key);
        assert!((predicted / row.bytes_per_s - 1.0).abs() < 0.1, "{}", row.key);
    }
}
