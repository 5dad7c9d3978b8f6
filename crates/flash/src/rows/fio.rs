//! fio's JSON (`--output-format=json`).

use serde_json::Value;

use super::{Key, LineError, Measured, Operation, Row, size};
use crate::profile::Order;

/// Parses the jobs. A mixed job has a row of reads and one of writes.
///
/// # Errors
/// The text is not JSON, or a job has no known pattern or size.
pub(super) fn parse(text: &str, name: &str) -> Result<Measured, LineError> {
    let value: Value =
        serde_json::from_slice(text.as_bytes()).map_err(|error| (error.line(), error.to_string()))?;
    let mut measured = Measured::new(name);
    let Some(jobs) = value.get("jobs").and_then(Value::as_array) else {
        return Err((1, "JSON, but without fio's \"jobs\"".into()));
    };
    for job in jobs {
        let title = job.get("jobname").and_then(Value::as_str).unwrap_or("unnamed");
        let fail = |what: &str| (line_of(text, title), format!("job {title:?}: {what}"));
        let option = |name: &str| {
            let own = job.get("job options").and_then(|options| options.get(name));
            let option = own.or_else(|| value.get("global options").and_then(|options| options.get(name)));
            option.map(|option| option.as_str().map_or_else(|| option.to_string(), str::to_string))
        };
        let pattern = option("rw").or_else(|| option("readwrite")).unwrap_or_else(|| "read".into());
        let order = match pattern.split(':').next().unwrap_or_default() {
            "read" | "write" | "rw" | "readwrite" => Order::InOrder,
            "randread" | "randwrite" | "randrw" => Order::OutOfOrder,
            other => return Err(fail(&format!("pattern {other:?} is neither sequential nor random"))),
        };
        let count = |name: &str| option(name).and_then(|text| text.parse::<u32>().ok()).unwrap_or(1);
        let grouped = option("group_reporting").is_some_and(|it| it != "0");
        let depth = count("iodepth").saturating_mul(if grouped { count("numjobs") } else { 1 });
        for (direction, op, place) in [("read", Operation::Read, 0), ("write", Operation::Write, 1)] {
            let Some(figures) = job.get(direction) else { continue };
            let figure = |name: &str| figures.get(name).and_then(Value::as_f64).unwrap_or(0.0);
            // Versions before 3 have only KiB per second.
            let rate = if figure("bw_bytes") > 0.0 { figure("bw_bytes") } else { figure("bw") * 1024.0 };
            if rate <= 0.0 {
                continue;
            }
            let sizes = option("bs").or_else(|| option("blocksize")).unwrap_or_else(|| "4k".into());
            let sizes: Vec<&str> = sizes.split(',').collect();
            let block = sizes.get(place).or(sizes.first()).copied().unwrap_or_default();
            let bytes = size(block).ok_or_else(|| fail(&format!("bs={block} is no size")))?;
            let units = (order == Order::InOrder).then_some(1);
            let key = Key { op, order, bytes, units, depth };
            measured.rows.push(Row { key, bytes_per_s: rate, line: line_of(text, title) });
        }
    }
    Ok(measured)
}

/// Returns the line, from 1, with the name of a job.
fn line_of(text: &str, title: &str) -> usize {
    let quoted = format!("\"{title}\"");
    let is_name = |line: &str| line.contains("\"jobname\"") && line.contains(&quoted);
    text.lines().position(is_name).map_or(1, |n| n + 1)
}
