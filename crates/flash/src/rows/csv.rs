//! CSV with a header of `op`, `order`, `size`, `rate`, and, if wanted, `units`, `depth` and `unit`.

use std::collections::HashMap;

use super::{Key, LineError, Measured, Operation, Row, number, size};
use crate::profile::Order;

/// Returns true for the header line of a table of rows.
pub(super) fn is_header(line: &str) -> bool {
    let names = cells(line);
    ["op", "order", "size"].iter().all(|name| names.iter().any(|cell| cell == name))
}

fn cells(line: &str) -> Vec<String> {
    line.split([',', ';', '\t']).map(|cell| cell.trim().trim_matches('"').to_lowercase()).collect()
}

/// Parses the table.
///
/// # Errors
/// A line that is no row.
pub(super) fn parse(text: &str, name: &str) -> Result<Measured, LineError> {
    let mut measured = Measured::new(name);
    let mut lines = text.lines().enumerate().filter(|(_, line)| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with('#')
    });
    let Some((n, header)) = lines.next() else { return Ok(measured) };
    let header = cells(header);
    let Some(rate_name) = header.iter().find(|name| name.starts_with("rate") || *name == "iops") else {
        return Err((n + 1, "the header has no column \"rate\"".into()));
    };
    for (n, line) in lines {
        let fail = |what: String| (n + 1, what);
        let cells = cells(line);
        if cells.len() != header.len() {
            return Err(fail(format!("{} cells, but the header has {}", cells.len(), header.len())));
        }
        let row: HashMap<&str, &str> =
            header.iter().map(String::as_str).zip(cells.iter().map(String::as_str)).collect();
        let key = key(&row).map_err(fail)?;
        let bytes_per_s = rate(row[rate_name.as_str()], rate_name, key.bytes)
            .ok_or_else(|| fail(format!("{:?} is no rate", row[rate_name.as_str()])))?;
        if let Some(unit) = row.get("unit").filter(|unit| !unit.is_empty()) {
            measured.unit_bytes = size(unit).ok_or_else(|| fail(format!("{unit:?} is no size")))?;
        }
        measured.rows.push(Row { key, bytes_per_s, line: n + 1 });
    }
    Ok(measured)
}

/// Returns the conditions of a row, or a description of the error.
fn key(row: &HashMap<&str, &str>) -> Result<Key, String> {
    let op = match row["op"] {
        "read" | "r" => Operation::Read,
        "write" | "w" => Operation::Write,
        other => return Err(format!("op is read or write, not {other:?}")),
    };
    let order = match row["order"] {
        "linear" | "sequential" | "seq" | "in_order" => Order::InOrder,
        "random" | "rand" | "out_of_order" => Order::OutOfOrder,
        other => return Err(format!("order is sequential or random, not {other:?}")),
    };
    let bytes = size(row["size"]).ok_or_else(|| format!("{:?} is no size", row["size"]))?;
    let count = |name: &str| match row.get(name) {
        None | Some(&"") => Ok(None),
        Some(text) => match text.parse::<u32>() {
            Ok(count) => Ok(Some(count)),
            Err(_) => Err(format!("{name}: {text:?} is no number")),
        },
    };
    let units = match order {
        Order::InOrder => Some(count("units")?.unwrap_or(1)),
        Order::OutOfOrder => count("units")?,
    };
    Ok(Key { op, order, bytes, units, depth: count("depth")?.unwrap_or(1) })
}

/// Returns bytes per second. The cell or the column's name has the unit; without one it is bytes per second.
fn rate(cell: &str, column: &str, bytes: u64) -> Option<f64> {
    let digits = cell.find(|c: char| !(c.is_ascii_digit() || ".e+-".contains(c))).unwrap_or(cell.len());
    let (value, unit) = cell.split_at(digits);
    let unit = match unit.trim() {
        "" => column.trim_start_matches("rate").trim_matches(|c: char| "_ ()[]".contains(c)),
        unit => unit,
    };
    let factor = match unit.replace("_s", "/s").as_str() {
        "" | "b/s" | "bytes/s" => 1.0,
        // As flashbench, iozone and hdparm mean them.
        "kb/s" | "kib/s" | "k/s" => 1024.0,
        "mib/s" | "m/s" => 1024.0 * 1024.0,
        "mb/s" => 1e6,
        "iops" => bytes as f64,
        _ => return None,
    };
    Some(number(value)? * factor)
}
