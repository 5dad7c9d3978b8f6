//! The logs of wirenboard/sdcard_benchmark, as `testdata/reference/cards-measured.txt` has them.
//!
//! `result_NAME ... ['SIZE']` starts a card. `linear 64KiB 1:10445 2:10138` has KB/s by the number of units
//! of 4 MiB that are written in turn, and `random` the same at random in each unit. `align diff us` has the
//! cost of reads across boundaries.

use super::{Key, LineError, Measured, Operation, Row, number, size};
use crate::profile::Order;

/// Returns true for a line with rates.
pub(super) fn is_row(line: &str) -> bool {
    let mut words = line.split_whitespace();
    matches!(words.next(), Some("linear" | "random"))
        && words.next().is_some_and(|word| size(word).is_some())
        && words.next().is_some_and(|word| word.contains(':'))
}

/// Parses the logs of any number of cards.
///
/// # Errors
/// A line of rates that is invalid.
pub(super) fn parse(text: &str, name: &str) -> Result<Vec<Measured>, LineError> {
    let mut cards: Vec<Measured> = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let fail = |what: String| (n + 1, what);
        let words: Vec<&str> = line.split_whitespace().collect();
        match &words[..] {
            [title, ..] if !line.starts_with(char::is_whitespace) && title.starts_with("result") => {
                let mut card = Measured::new(title.trim_end_matches(".txt"));
                let last = line.rsplit_once('[').map_or("", |(_, last)| last);
                card.size_bytes = last.trim_matches(|c: char| !c.is_ascii_digit()).parse().ok();
                cards.push(card);
            }
            [order @ ("linear" | "random"), bytes, rates @ ..] => {
                let bytes = size(bytes).ok_or_else(|| fail(format!("{bytes:?} is no size")))?;
                let order = if *order == "linear" { Order::InOrder } else { Order::OutOfOrder };
                if cards.is_empty() {
                    cards.push(Measured::new(name));
                }
                let card = cards.last_mut().expect("one was added");
                for pair in rates {
                    let (units, rate) = pair
                        .split_once(':')
                        .and_then(|(units, rate)| Some((units.parse::<u32>().ok()?, number(rate)?)))
                        .ok_or_else(|| fail(format!("{pair:?} is not UNITS:KB/s")))?;
                    let key = Key { op: Operation::Write, order, bytes, units: Some(units), depth: 1 };
                    card.rows.push(Row { key, bytes_per_s: rate * 1024.0, line: n + 1 });
                }
            }
            ["align", "diff", "us:", pairs @ ..] => {
                let Some(card) = cards.last_mut() else { continue };
                let pair = |pair: &&str| {
                    let (boundary, us) = pair.split_once(':')?;
                    let mib: f64 = boundary.strip_suffix('M')?.parse().ok()?;
                    Some(((mib * 1048576.0) as u64, us.parse::<f64>().ok()? * 1000.0))
                };
                card.crossings.extend(pairs.iter().filter_map(pair));
            }
            _ => {}
        }
    }
    Ok(cards)
}
