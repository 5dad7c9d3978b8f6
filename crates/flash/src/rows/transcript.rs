//! A transcript of a terminal with flashbench, hdparm and dd. Lines of other programs are passed over.
//!
//! flashbench does not print its options, so the command line must be in the text: `flashbench -O
//! --open-au-nr=3 --random /dev/sdb`. The same holds for dd, which does not print its direction.

use super::{Key, LineError, Measured, Operation, Row, number, size};
use crate::profile::Order;

/// flashbench's default of `--open-au-nr`.
const OPEN_UNITS: u32 = 2;
/// flashbench's default of `--blocksize`.
const BLOCK_BYTES: u64 = 16 << 10;
/// The largest request of an SD or eMMC host (Linux, sdhci.c). hdparm and dd ask for more at once.
const REQUEST_BYTES: u64 = 512 << 10;

/// Options of the last command.
#[derive(Debug, Clone, PartialEq)]
enum Running {
    Nothing,
    /// flashbench -O.
    OpenUnits {
        units: u32,
        order: Order,
    },
    /// flashbench -a, with the size of a read.
    Align {
        bytes: u64,
    },
    Dd {
        op: Operation,
        bytes: u64,
    },
}

/// Parses the text.
///
/// # Errors
/// A line of flashbench, hdparm or dd that is invalid.
pub(super) fn parse(text: &str, name: &str) -> Result<Measured, LineError> {
    let mut measured = Measured::new(name);
    let mut running = Running::Nothing;
    for (n, line) in text.lines().enumerate() {
        let fail = |what: String| (n + 1, what);
        if let Some(command) = command(line, &mut measured).map_err(fail)? {
            running = command;
        } else if let Some(row) = rates(line, &running, &mut measured).map_err(fail)? {
            measured.rows.push(Row { line: n + 1, ..row });
        }
    }
    Ok(measured)
}

/// Returns the options of a command line of flashbench or dd.
fn command(line: &str, measured: &mut Measured) -> Result<Option<Running>, String> {
    let line = line.replace(" * ", "*");
    let words: Vec<&str> = line.split_whitespace().collect();
    let called = |program: &str| {
        words.iter().position(|word| *word == program || word.ends_with(&format!("/{program}")))
    };
    if let Some(at) = called("flashbench") {
        return flashbench(&words[at + 1..], measured).map(Some);
    }
    let Some(at) = called("dd") else { return Ok(None) };
    let option = |name: &str| words[at + 1..].iter().find_map(|word| word.strip_prefix(name));
    let (Some(from), Some(to)) = (option("if="), option("of=")) else { return Ok(None) };
    let op = match (from, to) {
        ("/dev/zero" | "/dev/urandom" | "/dev/random", _) => Operation::Write,
        (_, "/dev/null") => Operation::Read,
        _ => return Err("dd must read /dev/zero or write /dev/null, else it measures two devices".into()),
    };
    let bytes = match option("bs=") {
        Some(text) => size(text).ok_or_else(|| format!("bs={text} is no size"))?,
        None => 512,
    };
    // Without O_DIRECT the kernel joins small writes.
    let direct = line.contains("direct");
    let bytes = if direct { bytes } else { bytes.max(REQUEST_BYTES) };
    Ok(Some(Running::Dd { op, bytes: bytes.clamp(512, 64 << 20) / 512 * 512 }))
}

fn flashbench(options: &[&str], measured: &mut Measured) -> Result<Running, String> {
    let (mut units, mut order, mut block_bytes) = (OPEN_UNITS, Order::InOrder, None);
    let mut kind = None;
    let mut words = options.iter();
    while let Some(word) = words.next() {
        let (option, value) = word.split_once('=').map_or((*word, None), |(name, value)| (name, Some(value)));
        let mut value = || {
            let value = value.or_else(|| words.next().copied());
            value.ok_or_else(|| format!("flashbench {option}: its value is missing"))
        };
        match option {
            "-O" | "--open-au" => kind = Some('O'),
            "-a" | "--align" => kind = Some('a'),
            "-r" | "--random" => order = Order::OutOfOrder,
            "--open-au-nr" => {
                let text = value()?;
                units = text.parse().map_err(|_| format!("--open-au-nr={text} is no number"))?;
            }
            "-e" | "--erasesize" => {
                let text = value()?;
                measured.unit_bytes = expression(text)
                    .filter(|bytes| (4096..=1 << 30).contains(bytes))
                    .ok_or_else(|| format!("--erasesize={text} is no size"))?;
            }
            "-b" | "--blocksize" => {
                let text = value()?;
                let bytes = expression(text).ok_or_else(|| format!("--blocksize={text} is no size"))?;
                block_bytes = Some(bytes);
            }
            _ => {}
        }
    }
    Ok(match kind {
        Some('O') => Running::OpenUnits { units, order },
        Some('a') => Running::Align { bytes: block_bytes.unwrap_or(BLOCK_BYTES) },
        _ => Running::Nothing,
    })
}

/// Returns the value of a size, or of a product of sizes as in `$[4*1024*1024]`.
fn expression(text: &str) -> Option<u64> {
    let text = text.trim_matches(|c: char| "$[()]\"'".contains(c));
    text.split('*').try_fold(1u64, |product, factor| product.checked_mul(size(factor)?))
}

/// Returns the row of a line of output, without its number.
fn rates(line: &str, running: &Running, measured: &mut Measured) -> Result<Option<Row>, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let row = |op, order, bytes, units, bytes_per_s| {
        Some(Row { key: Key { op, order, bytes, units: Some(units), depth: 1 }, bytes_per_s, line: 0 })
    };
    match (&words[..], running) {
        // 4MiB    8.79M/s
        ([bytes, rate], Running::OpenUnits { units, order }) if rate.ends_with("/s") => {
            let bytes = size(bytes).ok_or_else(|| format!("{bytes:?} is no size"))?;
            let rate = binary_rate(rate).ok_or_else(|| format!("{rate:?} is no rate"))?;
            Ok(row(Operation::Write, *order, bytes, *units, rate))
        }
        // align 8388608  pre 735µs  on 1.04ms  post 763µs  diff 287µs
        (["align", boundary, "pre", pre, "on", _, "post", _, "diff", diff], Running::Align { bytes }) => {
            let boundary: u64 = boundary.parse().map_err(|_| format!("{boundary:?} is no boundary"))?;
            let pre = time_ns(pre).filter(|ns| *ns > 0.0).ok_or_else(|| format!("{pre:?} is no time"))?;
            let diff = time_ns(diff).ok_or_else(|| format!("{diff:?} is no time"))?;
            measured.crossings.push((boundary, diff));
            // Smaller boundaries have smaller reads.
            let reads = boundary >= 2 * *bytes;
            let rate = *bytes as f64 / pre * 1e9;
            Ok(row(Operation::Read, Order::OutOfOrder, *bytes, 1, rate)
                .map(|row| Row { key: Key { units: None, ..row.key }, ..row })
                .filter(|_| reads))
        }
        // Timing buffered disk reads: 132 MB in  3.02 seconds =  43.70 MB/sec
        ([.., rate, "MB/sec"], _) if line.contains("disk reads:") => {
            let rate = number(rate).ok_or_else(|| format!("{rate:?} is no rate"))?;
            Ok(row(Operation::Read, Order::InOrder, REQUEST_BYTES, 1, rate * 1048576.0))
        }
        // 52428800 bytes (52 MB, 50 MiB) copied, 2.35 s, 22.3 MB/s
        ([bytes, "bytes", ..], Running::Dd { op, bytes: each }) if line.contains("copied,") => {
            let copied: f64 = number(bytes).ok_or_else(|| format!("{bytes:?} is no number of bytes"))?;
            let rest = line.rsplit_once("copied,").map_or("", |(_, rest)| rest);
            let seconds = rest.split_whitespace().next().and_then(number);
            let seconds = seconds.ok_or("the seconds after \"copied,\" are missing")?;
            Ok(row(*op, Order::InOrder, *each, 1, copied / seconds))
        }
        ([_, "bytes", ..], Running::Nothing) if line.contains("copied,") => {
            Err("the command line of dd must precede its output, for its direction".into())
        }
        _ => Ok(None),
    }
}

/// Parses flashbench's rates: `8.79M/s`, `612K/s`.
fn binary_rate(text: &str) -> Option<f64> {
    let text = text.strip_suffix("/s")?.trim_end_matches(['B', 'i']);
    let unit = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (value, unit) = text.split_at(unit);
    let factor = match unit {
        "" => 1.0,
        "K" | "k" => 1024.0,
        "M" => 1048576.0,
        "G" => 1073741824.0,
        _ => return None,
    };
    Some(number(value)? * factor)
}

/// Parses flashbench's times, which may be negative: `735µs`, `1.04ms`, `-12ns`.
fn time_ns(text: &str) -> Option<f64> {
    let (value, factor) = [("ns", 1.0), ("µs", 1e3), ("μs", 1e3), ("us", 1e3), ("ms", 1e6), ("s", 1e9)]
        .iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    value.trim().parse::<f64>().ok().filter(|value| value.is_finite()).map(|value| value * factor)
}
