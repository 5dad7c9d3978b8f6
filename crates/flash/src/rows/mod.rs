//! Measured rates of a card, from the output of the programs that people measure with.
//!
//! The format of a file is recognised by its content: CSV, fio's JSON, iozone's tables, the logs of
//! wirenboard/sdcard_benchmark as `testdata/reference/cards-measured.txt` has them, or a transcript of a
//! terminal with flashbench, hdparm and dd.

mod csv;
mod fio;
mod iozone;
pub mod simulate;
mod survey;
mod transcript;

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use serde::Serialize;

use crate::profile::Order;

/// Maximum length of a file in bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of rows of a card.
pub const ROWS_MAX: usize = 1000;
/// The allocation unit if nothing gives it: flashbench's default.
pub const UNIT_BYTES: u64 = 4 << 20;
/// Maximum number of units written in turn.
pub const UNITS_MAX: u32 = 32;
/// Maximum number of requests of a row, which the model makes one by one, and a fit many times. Units of 64 MiB have so many
/// of the smallest.
const REQUESTS_MAX: u64 = 4 << 20;

/// Direction of the requests of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Reads.
    Read,
    /// Writes.
    Write,
}

/// Conditions of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Key {
    /// Direction of the requests.
    pub op: Operation,
    /// Order of the requests in their unit, or in their area.
    pub order: Order,
    /// Size of a request in bytes.
    pub bytes: u64,
    /// Number of units that are written in turn; None if requests go to any place of a large area.
    pub units: Option<u32>,
    /// Number of concurrent requests.
    pub depth: u32,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let op = match self.op {
            Operation::Read => "read",
            Operation::Write => "write",
        };
        let order = match self.order {
            Order::InOrder => "in order",
            Order::OutOfOrder => "at random",
        };
        write!(f, "{op} {order}, {}", size_text(self.bytes))?;
        match self.units {
            Some(1) => write!(f, ", 1 unit")?,
            Some(units) => write!(f, ", {units} units")?,
            None => write!(f, ", a large area")?,
        }
        if self.depth > 1 { write!(f, ", {} at once", self.depth) } else { Ok(()) }
    }
}

/// A measured rate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Conditions.
    #[serde(flatten)]
    pub key: Key,
    /// Rate in bytes per second.
    pub bytes_per_s: f64,
    /// Line of the file, from 1; 0 if the format has no lines.
    pub line: usize,
}

impl Row {
    /// Returns the time in nanoseconds that a request takes, as its share of the rate.
    pub fn request_ns(&self) -> f64 {
        self.key.bytes as f64 / self.bytes_per_s * 1e9
    }
}

/// The rows of one card.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    /// Name of the card: in the file, or that of the file.
    pub name: String,
    /// Size of the card in bytes, if the file has it.
    pub size_bytes: Option<u64>,
    /// The unit in bytes that was written in full and in turn.
    pub unit_bytes: u64,
    /// Differences in nanoseconds between a read across a boundary and others, by the boundary in bytes
    /// (flashbench -a).
    pub crossings: Vec<(u64, f64)>,
    /// The rows, in the order of the file.
    pub rows: Vec<Row>,
}

impl Measured {
    fn new(name: &str) -> Measured {
        let (name, crossings, rows) = (name.to_string(), Vec::new(), Vec::new());
        Measured { name, size_bytes: None, unit_bytes: UNIT_BYTES, crossings, rows }
    }
}

/// Error of a file of rows.
#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// A line is invalid.
    #[error("{}:{line}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Description of the error.
        what: String,
    },
    /// The file has no rows.
    #[error(
        "{}: no rate was recognised; docs/DEVICE-MODEL.md has an example of each format", path.display()
    )]
    Nothing {
        /// The file.
        path: PathBuf,
    },
    /// The file has several cards, or not the wanted one.
    #[error("{}: {what}; it has {}", path.display(), names.join(", "))]
    Cards {
        /// The file.
        path: PathBuf,
        /// Description of the error.
        what: String,
        /// Names of the cards with rows.
        names: Vec<String>,
    },
}

/// Limits of an allocation unit, in bytes.
const UNIT_BYTES_MIN: u64 = 4 << 10;
const UNIT_BYTES_MAX: u64 = 1 << 30;

/// Error of one line, from 1, before the file is known.
type LineError = (usize, String);

/// Reads the rows of one card from files. If a file has several cards, `card` names the one. `unit_bytes` replaces the
/// allocation unit of the files, which otherwise must be the same in all of them.
///
/// # Errors
/// [`RowsError`].
pub fn read(paths: &[PathBuf], card: Option<&str>, unit_bytes: Option<u64>) -> Result<Measured, RowsError> {
    let mut all: Option<Measured> = None;
    for path in paths {
        let found = choose(path, read_cards_with(path, unit_bytes)?, card)?;
        match &mut all {
            None => all = Some(found),
            Some(all) if all.unit_bytes != found.unit_bytes => {
                let (unit, other) = (found.unit_bytes, all.unit_bytes);
                let what =
                    format!("an allocation unit of {unit} bytes, {other} in the files before: give --unit");
                return Err(RowsError::Line { path: path.clone(), line: 1, what });
            }
            Some(all) => {
                all.size_bytes = all.size_bytes.or(found.size_bytes);
                all.rows.extend(found.rows);
                all.crossings.extend(found.crossings);
            }
        }
        let row = all.as_ref().and_then(|all| all.rows.get(ROWS_MAX));
        if let Some(Row { line, .. }) = row {
            let what = format!("more than {ROWS_MAX} rows in all files");
            return Err(RowsError::Line { path: path.clone(), line: *line, what });
        }
    }
    all.ok_or_else(|| RowsError::Nothing { path: PathBuf::from("(no file)") })
}

fn choose(path: &Path, mut cards: Vec<Measured>, card: Option<&str>) -> Result<Measured, RowsError> {
    let names = || cards.iter().map(|card| card.name.clone()).collect();
    let wanted = card.map(|card| cards.iter().position(|it| it.name == card));
    match (cards.len(), wanted) {
        (1, None) => Ok(cards.remove(0)),
        (_, Some(Some(n))) => Ok(cards.swap_remove(n)),
        // One card that has no name of its own is any card.
        (1, Some(None)) if cards[0].name == stem(path) => Ok(cards.remove(0)),
        (_, Some(None)) => {
            let what = format!("there is no card {:?}", card.unwrap_or_default());
            Err(RowsError::Cards { path: path.into(), what, names: names() })
        }
        (_, None) => {
            let what = "several cards; choose one with --only".into();
            Err(RowsError::Cards { path: path.into(), what, names: names() })
        }
    }
}

/// Reads all cards with rows in a file.
///
/// # Errors
/// [`RowsError`].
pub fn read_cards(path: &Path) -> Result<Vec<Measured>, RowsError> {
    read_cards_with(path, None)
}

fn read_cards_with(path: &Path, unit_bytes: Option<u64>) -> Result<Vec<Measured>, RowsError> {
    let bytes = read_whole(path).map_err(|source| RowsError::Io { path: path.into(), source })?;
    let text = String::from_utf8_lossy(&bytes);
    let cards = parse(&text, &stem(path), unit_bytes).map_err(|(line, what)| RowsError::Line {
        path: path.into(),
        line,
        what,
    })?;
    if cards.is_empty() {
        return Err(RowsError::Nothing { path: path.into() });
    }
    Ok(cards)
}

/// Reads a file of at most [`FILE_BYTES_MAX`] bytes.
fn read_whole(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!(
            "more than {}, which no measurement has",
            size_text(FILE_BYTES_MAX)
        )));
    }
    Ok(bytes)
}

fn stem(path: &Path) -> String {
    path.file_stem().map_or("card".into(), |stem| stem.to_string_lossy().into_owned())
}

/// Parses a text. Returns the cards with rows; `name` is that of a card that has none of its own, `unit_bytes` replaces
/// the allocation units.
fn parse(text: &str, name: &str, unit_bytes: Option<u64>) -> Result<Vec<Measured>, LineError> {
    let first = text.lines().find(|line| !line.trim().is_empty() && !line.starts_with('#')).unwrap_or("");
    let mut cards = if first.trim_start().starts_with(['{', '[']) {
        vec![fio::parse(text, name)?]
    } else if csv::is_header(first) {
        vec![csv::parse(text, name)?]
    } else if text.lines().any(survey::is_row) {
        survey::parse(text, name)?
    } else if text.lines().any(iozone::is_header) {
        vec![iozone::parse(text, name)?]
    } else {
        vec![transcript::parse(text, name)?]
    };
    for card in &mut cards {
        card.unit_bytes = unit_bytes.unwrap_or(card.unit_bytes);
        if !(UNIT_BYTES_MIN..=UNIT_BYTES_MAX).contains(&card.unit_bytes) || card.unit_bytes % 512 != 0 {
            let unit = card.unit_bytes;
            return Err((
                1,
                format!("an allocation unit of {unit} bytes: must be 4 KiB to 1 GiB, whole sectors"),
            ));
        }
        if let Some(row) = card.rows.get(ROWS_MAX) {
            return Err((row.line, format!("card {} has more than {ROWS_MAX} rows", card.name)));
        }
        for row in &card.rows {
            check(row, card.unit_bytes).map_err(|what| (row.line, what))?;
        }
    }
    cards.retain(|card| !card.rows.is_empty());
    Ok(cards)
}

/// Checks that a row is possible. Returns a description of the error.
fn check(row: &Row, unit_bytes: u64) -> Result<(), String> {
    let Key { bytes, units, depth, order, .. } = row.key;
    if !(512..=64 << 20).contains(&bytes) || bytes % 512 != 0 {
        return Err(format!("requests of {bytes} bytes: must be whole sectors of 512 bytes, up to 64 MiB"));
    }
    if !(row.bytes_per_s.is_finite() && row.bytes_per_s >= 1.0 && row.bytes_per_s < 1e12) {
        return Err(format!("a rate of {} bytes per second", row.bytes_per_s));
    }
    if row.request_ns() > 1e10 {
        return Err(format!("a request of {} takes over 10 s at this rate", size_text(bytes)));
    }
    if units.is_some_and(|units| !(1..=UNITS_MAX).contains(&units)) {
        return Err(format!("1 to {UNITS_MAX} units in turn, not {}", units.unwrap_or(0)));
    }
    if units.is_some_and(|units| units > 1) && bytes > unit_bytes {
        return Err(format!("writes of {} in units of {}", size_text(bytes), size_text(unit_bytes)));
    }
    let requests = unit_bytes / bytes * u64::from(units.unwrap_or(0));
    if requests > REQUESTS_MAX {
        let (bytes, unit) = (size_text(bytes), size_text(unit_bytes));
        return Err(format!(
            "writes of {bytes} in units of {unit}: {requests} of them, at most {REQUESTS_MAX} are possible"
        ));
    }
    if units.is_none() && order == Order::InOrder {
        return Err("sequential requests need a number of units: 1 is a single sequence".into());
    }
    if !(1..=1024).contains(&depth) {
        return Err(format!("a depth of {depth}: 1 to 1024"));
    }
    Ok(())
}

/// Formats a size in bytes with its binary unit.
pub fn size_text(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 20 && bytes % (1 << 20) == 0 => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 && bytes % (1 << 10) == 0 => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} bytes"),
    }
}

/// Parses a size such as `4K`, `64KiB` or `4096`. `K` and `M` are binary.
fn size(text: &str) -> Option<u64> {
    parse_size::Config::new().with_binary().parse_size(text.trim()).ok()
}

/// Parses a positive number.
fn number(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0)
}

#[cfg(test)]
mod tests;
