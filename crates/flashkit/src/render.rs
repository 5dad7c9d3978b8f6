//! Output of records as text or JSON on standard output.

use std::{
    fmt,
    io::{self, Write},
};

use anyhow::Result;
use f2fs_tree::{PathId, PathTree};
use indicatif::HumanCount;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

/// Standard output, whose errors can be recognised as its own.
pub struct Stdout(io::StdoutLock<'static>);

impl Stdout {
    /// Locks standard output for this thread.
    pub fn lock() -> Stdout {
        Stdout(io::stdout().lock())
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(of_stdout)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(of_stdout)
    }
}

/// An error of standard output.
#[derive(Debug)]
struct OfStdout(io::Error);

impl fmt::Display for OfStdout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "standard output: {}", self.0)
    }
}

impl std::error::Error for OfStdout {}

/// Marks an error as one of standard output.
pub fn of_stdout(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), OfStdout(error))
}

/// Returns the error of standard output among an error's causes.
fn stdout_error(error: &anyhow::Error) -> Option<&io::Error> {
    let causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.into_iter().find(|cause| cause.get_ref().is_some_and(|inner| inner.is::<OfStdout>()))
}

/// Returns true if writing to standard output failed.
pub fn is_of_stdout(error: &anyhow::Error) -> bool {
    stdout_error(error).is_some()
}

/// Returns true if the reader of standard output has gone, as in `flashkit ls ... | head`.
pub fn has_no_reader(error: &anyhow::Error) -> bool {
    stdout_error(error).is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// Output in lines that is safe for a terminal, whatever names are in it. Each write must hold whole characters, as those of
/// `write!` do.
struct Lines<W>(W);

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(f2fs::printable::lines(bytes).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Prints the output of `text`. Whatever a terminal would obey in it is escaped: names may come from images, records,
/// profiles and programs.
pub fn text(text: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let mut out = Lines(io::BufWriter::new(Stdout::lock()));
    text(&mut out)?;
    out.flush()?;
    Ok(())
}

/// The form of a verb's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Text for people.
    Text,
    /// JSON for programs.
    Json,
}

impl From<bool> for Format {
    /// Converts the flag `--json`.
    fn from(is_json: bool) -> Format {
        if is_json { Format::Json } else { Format::Text }
    }
}

/// Prints a record as JSON, or as `text` writes it.
pub fn print<R: Serialize>(
    record: &R,
    format: impl Into<Format>,
    text: impl FnOnce(&R, &mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let format = format.into();
    self::text(|out| match format {
        Format::Json => {
            serde_json::to_writer_pretty(Json(&mut *out), record)?;
            writeln!(out)
        }
        Format::Text => text(record, out),
    })
}

/// Output of JSON that is safe for a terminal. The serializer writes whole characters.
struct Json<W>(W);

impl<W: Write> Write for Json<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text =
            std::str::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        self.0.write_all(f2fs::printable::json(text).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Prints rows as they arrive, in any number: as a JSON array, or as a table whose columns are the fields of
/// the first row.
pub fn rows<R: Serialize>(rows: impl Iterator<Item = Result<R>>, format: impl Into<Format>) -> Result<()> {
    let json = format.into() == Format::Json;
    let mut out = io::BufWriter::new(Stdout::lock());
    let mut widths: Vec<usize> = Vec::new();
    let mut count = 0u64;
    for (n, row) in rows.enumerate() {
        let row = row?;
        count += 1;
        if json {
            out.write_all(if n == 0 { b"[\n" } else { b",\n" })?;
            out.write_all(f2fs::printable::json(&serde_json::to_string(&row)?).as_bytes())?;
            continue;
        }
        let Value::Object(fields) = serde_json::to_value(&row)? else {
            unreachable!("a row is a struct");
        };
        let cells = shown(&fields).map(|(key, value)| (key, plain(value, bytes_of(&fields, key))));
        let (keys, cells): (Vec<&str>, Vec<String>) = cells.unzip();
        if n == 0 {
            widths = keys.iter().zip(&cells).map(|(key, cell)| key.len().max(cell.len()).max(7)).collect();
            line(&mut out, &keys, &widths)?;
        }
        line(&mut out, &cells, &widths)?;
    }
    if json {
        out.write_all(if count == 0 { b"[]\n".as_slice() } else { b"\n]\n".as_slice() })?;
    }
    out.flush()?;
    Ok(())
}

/// Prints a record of any depth, as JSON or as indented lines of `field value`.
pub fn fields<R: Serialize>(record: &R, format: impl Into<Format>) -> Result<()> {
    fn walk(out: &mut dyn Write, value: &Value, depth: usize) -> io::Result<()> {
        let Value::Object(fields) = value else {
            return writeln!(out, "{:depth$}{}", "", plain(value, None), depth = depth * 2);
        };
        for (key, value) in shown(fields) {
            write!(out, "{:depth$}{key:24} ", "", depth = depth * 2)?;
            match value {
                Value::Object(_) => {
                    writeln!(out)?;
                    walk(out, value, depth + 1)?;
                }
                Value::Array(items) if items.iter().any(Value::is_object) => {
                    writeln!(out)?;
                    for item in items {
                        walk(out, item, depth + 1)?;
                        writeln!(out)?;
                    }
                }
                _ => writeln!(out, "{}", plain(value, bytes_of(fields, key)))?,
            }
        }
        Ok(())
    }
    let value = serde_json::to_value(record)?;
    print(&value, format, |value, out| walk(out, value, 0))
}

fn line(out: &mut dyn Write, cells: &[impl fmt::Display], widths: &[usize]) -> io::Result<()> {
    let cells: Vec<String> =
        cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}", width = *width)).collect();
    writeln!(out, "{}", cells.join("  ").trim_end())
}

/// Formats a value without quotes, and a list with commas. If a name has `bytes`, they replace its string.
fn plain(value: &Value, bytes: Option<Vec<u8>>) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => name(&bytes.unwrap_or_else(|| text.clone().into_bytes())),
        Value::Array(items) => items.iter().map(|item| plain(item, None)).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// Bytes that are mostly text: a file name, a path, or the value of an attribute. In JSON its key always
/// holds a string, which is the exact name if the name is UTF-8. Otherwise the string escapes the other
/// bytes, and a second key that ends in `_bytes` holds all bytes ([`keyed`]). For text output, see [`name`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(pub Vec<u8>);

/// Suffix of the key that holds a name's bytes.
const BYTES: &str = "_bytes";

impl Name {
    /// Returns the JSON fields of a name under this key.
    pub fn fields(&self, key: &str) -> impl Iterator<Item = (String, Value)> + use<> {
        let (text, bytes) = match std::str::from_utf8(&self.0) {
            Ok(text) => (text.to_owned(), None),
            Err(_) => (name(&self.0), Some((format!("{key}{BYTES}"), Value::from(self.0.clone())))),
        };
        std::iter::once((key.to_owned(), Value::from(text))).chain(bytes)
    }
}

/// Rows with paths in the order of a walk. A path can have 4 MiB, so each is made when its row is written.
pub struct PathRows<R> {
    paths: PathTree,
    rows: Vec<(PathId, R)>,
}

impl<R> Default for PathRows<R> {
    fn default() -> PathRows<R> {
        PathRows { paths: PathTree::default(), rows: Vec::new() }
    }
}

impl<R> PathRows<R> {
    /// Adds a row.
    pub fn push(&mut self, path: &[u8], row: R) {
        self.rows.push((self.paths.insert(path), row));
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the rows in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = (Name, &R)> {
        self.rows.iter().map(|(path, row)| (Name(self.paths.path(*path)), row))
    }
}

impl<R: Serialize> Serialize for PathRows<R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct WithPath<'a, R> {
            #[serde(flatten, serialize_with = "keyed::path")]
            path: Name,
            #[serde(flatten)]
            row: &'a R,
        }
        serializer.collect_seq(self.iter().map(|(path, row)| WithPath { path, row }))
    }
}

/// Functions for `#[serde(flatten, serialize_with = "...")]`: a name under a key.
pub mod keyed {
    use serde::{Serializer, ser::SerializeMap};

    use super::Name;

    fn under<S: Serializer>(key: &str, name: Option<&Name>, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in name.into_iter().flat_map(|name| name.fields(key)) {
            map.serialize_entry(&key, &value)?;
        }
        map.end()
    }

    /// Writes the name under `name`.
    pub fn name<S: Serializer>(name: &Name, serializer: S) -> Result<S::Ok, S::Error> {
        under("name", Some(name), serializer)
    }

    /// Writes the name under `path`.
    pub fn path<S: Serializer>(name: &Name, serializer: S) -> Result<S::Ok, S::Error> {
        under("path", Some(name), serializer)
    }

    /// Writes the name under `value`.
    pub fn value<S: Serializer>(name: &Name, serializer: S) -> Result<S::Ok, S::Error> {
        under("value", Some(name), serializer)
    }

    /// Writes the name under `target`, if there is one.
    pub fn target<S: Serializer>(name: &Option<Name>, serializer: S) -> Result<S::Ok, S::Error> {
        under("target", name.as_ref(), serializer)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&name(&self.0))
    }
}

/// Returns the fields for text output: all except the bytes of names.
fn shown(fields: &Map<String, Value>) -> impl Iterator<Item = (&str, &Value)> {
    let is_bytes_of_a_name = |key: &str, value: &Value| {
        value.is_array() && key.strip_suffix(BYTES).is_some_and(|name| fields.contains_key(name))
    };
    fields
        .iter()
        .map(|(key, value)| (key.as_str(), value))
        .filter(move |(key, value)| !is_bytes_of_a_name(key, value))
}

/// Returns the bytes of the [`Name`] under a key, if it is not UTF-8.
fn bytes_of(fields: &Map<String, Value>, key: &str) -> Option<Vec<u8>> {
    serde_json::from_value(fields.get(&format!("{key}{BYTES}"))?.clone()).ok()
}

/// Makes a file name, path, label or other foreign text safe for a terminal: see [`f2fs::printable`].
pub fn name(bytes: &[u8]) -> String {
    f2fs::printable::name(bytes).into_owned()
}

/// Formats a number of things: `1 section`, `1,234 sections`, `0 entries`, `2 flushes`.
pub fn count(n: u64, one: &str) -> String {
    let many = match one.strip_suffix('y') {
        _ if n == 1 => one.to_owned(),
        Some(stem) => format!("{stem}ies"),
        None if one.ends_with("sh") => format!("{one}es"),
        None => format!("{one}s"),
    };
    format!("{} {many}", HumanCount(n))
}

/// Formats bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bytes that pairs of hexadecimal digits stand for.
pub fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pair = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?);
    text.chunks(2).map(pair).collect()
}

/// Formats a mode as `drwxr-xr-x`.
pub fn mode(mode: u32) -> String {
    let kind = match mode & 0o170_000 {
        0o040_000 => 'd',
        0o100_000 => '-',
        0o120_000 => 'l',
        0o020_000 => 'c',
        0o060_000 => 'b',
        0o010_000 => 'p',
        0o140_000 => 's',
        _ => '?',
    };
    let bit = |mask: u32, c: char| if mode & mask != 0 { c } else { '-' };
    // The execute bit shares its place with setuid, setgid or sticky.
    let execute = |x: u32, special: u32, both: char| match (mode & x != 0, mode & special != 0) {
        (true, true) => both,
        (false, true) => both.to_ascii_uppercase(),
        (true, false) => 'x',
        (false, false) => '-',
    };
    [
        kind,
        bit(0o400, 'r'),
        bit(0o200, 'w'),
        execute(0o100, 0o4000, 's'),
        bit(0o040, 'r'),
        bit(0o020, 'w'),
        execute(0o010, 0o2000, 's'),
        bit(0o004, 'r'),
        bit(0o002, 'w'),
        execute(0o001, 0o1000, 't'),
    ]
    .iter()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_read_as_ls_prints_them() {
        assert_eq!(mode(0o100_644), "-rw-r--r--");
        assert_eq!(mode(0o041_777), "drwxrwxrwt");
        assert_eq!(mode(0o104_655), "-rwSr-xr-x");
        assert_eq!(mode(0o102_755), "-rwxr-sr-x");
    }

    #[test]
    fn a_single_thing_is_singular() {
        assert_eq!(count(1, "section"), "1 section");
        assert_eq!(count(1234, "section"), "1,234 sections");
        assert_eq!(
            [count(0, "entry"), count(1, "directory"), count(2, "flush")],
            ["0 entries", "1 directory", "2 flushes"]
        );
    }

    #[test]
    fn names_stand_unescaped_in_json() {
        let json = |bytes: &[u8]| Name(bytes.to_vec()).fields("name").collect::<Map<_, _>>();
        let plain = |bytes: &[u8]| plain(&json(bytes)["name"], bytes_of(&json(bytes), "name"));
        assert_eq!(json(b"a\n\\b")["name"], "a\n\\b");
        assert_eq!(json(b"a\n\\b").len(), 1);
        assert_eq!(
            Value::from(json(b"a\xff")),
            serde_json::json!({"name": "a\\xff", "name_bytes": [97, 255]})
        );
        assert_eq!(plain(b"a\n\\b"), r"a\n\\b");
        assert_eq!(plain(b"a\xff"), r"a\xff");
        assert_eq!(shown(&json(b"a\xff")).count(), 1);
    }

    #[test]
    fn text_of_others_is_safe_and_keeps_its_lines() {
        let mut out = Lines(Vec::new());
        writeln!(out, "mine\u{1b}]0;t\u{7}\u{9b}31m\u{202e}\t|").unwrap();
        assert_eq!(String::from_utf8(out.0).unwrap(), "mine\\u{1b}]0;t\\u{7}\\u{9b}31m\\u{202e}\t|\n");
    }

    #[test]
    fn names_never_carry_control_characters() {
        assert_eq!(name("grün".as_bytes()), "grün");
        assert_eq!(name(b"a\x1b[2J\xffb"), "a\\u{1b}[2J\\xffb");
    }
}
