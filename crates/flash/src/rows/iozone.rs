//! iozone's tables of throughput, in KB/s.

use super::{Key, LineError, Measured, Operation, Row, number};
use crate::profile::Order;

/// The columns that are used, in iozone's order after `kB` and `reclen`. Later ones are other patterns.
const COLUMNS: [(Operation, Order); 6] = [
    (Operation::Write, Order::InOrder),
    (Operation::Write, Order::InOrder),
    (Operation::Read, Order::InOrder),
    (Operation::Read, Order::InOrder),
    (Operation::Read, Order::OutOfOrder),
    (Operation::Write, Order::OutOfOrder),
];

/// Returns true for the header of a table.
pub(super) fn is_header(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    words.first().is_some_and(|word| word.eq_ignore_ascii_case("kb")) && words.get(1) == Some(&"reclen")
}

/// Parses the table. A cell belongs to the column of the header whose end is nearest, because tests that did
/// not run leave their cells empty.
///
/// # Errors
/// A line of the table that is no row.
pub(super) fn parse(text: &str, name: &str) -> Result<Measured, LineError> {
    let mut measured = Measured::new(name);
    let mut ends: Option<Vec<usize>> = None;
    for (n, line) in text.lines().enumerate() {
        if is_header(line) {
            ends = Some(words(line).map(|(end, _)| end).skip(2).take(COLUMNS.len()).collect());
            continue;
        }
        let Some(columns) = &ends else { continue };
        let cells: Vec<(usize, &str)> = words(line).collect();
        let numbers = cells.iter().all(|(_, cell)| cell.bytes().all(|byte| byte.is_ascii_digit()));
        if cells.is_empty() || (!numbers && !cells[0].1.starts_with(|c: char| c.is_ascii_digit())) {
            // The table has ended.
            ends = ends.filter(|_| cells.is_empty());
            continue;
        }
        let fail = |what: String| (n + 1, what);
        let kib = cells.get(1).and_then(|(_, cell)| cell.parse::<u64>().ok());
        let kib = kib.ok_or_else(|| fail("a row begins with two numbers, kB and reclen".into()))?;
        for (at, (end, cell)) in cells.iter().enumerate().skip(2) {
            let rate = number(cell).ok_or_else(|| fail(format!("{cell:?} is no rate")))?;
            // Complete rows need no positions.
            let column = if cells.len() >= COLUMNS.len() + 2 { at - 2 } else { nearest(columns, *end) };
            let Some((op, order)) = COLUMNS.get(column) else { continue };
            let units = (*order == Order::InOrder).then_some(1);
            let key = Key { op: *op, order: *order, bytes: kib.saturating_mul(1024), units, depth: 1 };
            measured.rows.push(Row { key, bytes_per_s: rate * 1024.0, line: n + 1 });
        }
    }
    Ok(measured)
}

fn nearest(ends: &[usize], end: usize) -> usize {
    (0..ends.len()).min_by_key(|n| ends[*n].abs_diff(end)).unwrap_or(0)
}

/// Returns the words of a line with the positions of their ends.
fn words(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let start = line.as_ptr() as usize;
    line.split_whitespace().map(move |word| (word.as_ptr() as usize - start + word.len(), word))
}
