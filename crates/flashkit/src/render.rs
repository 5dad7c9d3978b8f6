//! Records to text or JSON on standard output.

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, Write},
};

use anyhow::Result;
use indicatif::HumanCount;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// Standard output, whose errors say that they are its.
pub struct Stdout(io::StdoutLock<'static>);

impl Stdout {
    /// For this thread alone.
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

fn of_stdout(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("standard output: {error}"))
}

/// Prints what `text` writes.
pub fn text(text: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let mut out = io::BufWriter::new(Stdout::lock());
    text(&mut out)?;
    out.flush()?;
    Ok(())
}

/// Prints a record: as JSON where that was asked for, else as `text` writes it.
pub fn print<R: Serialize>(
    record: &R,
    json: bool,
    text: impl FnOnce(&R, &mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    self::text(|out| {
        if json {
            serde_json::to_writer_pretty(&mut *out, record)?;
            writeln!(out)
        } else {
            text(record, out)
        }
    })
}

/// Prints rows as they come, however many: as a JSON array where that was asked for, else as a table whose
/// columns are the fields of the first row.
pub fn rows<R: Serialize>(rows: impl Iterator<Item = Result<R>>, json: bool) -> Result<()> {
    let mut out = io::BufWriter::new(Stdout::lock());
    let mut widths: Vec<usize> = Vec::new();
    let mut count = 0u64;
    for (n, row) in rows.enumerate() {
        let row = row?;
        count += 1;
        if json {
            out.write_all(if n == 0 { b"[\n" } else { b",\n" })?;
            serde_json::to_writer(&mut out, &row)?;
            continue;
        }
        let Value::Object(fields) = serde_json::to_value(&row)? else {
            unreachable!("a row is a struct");
        };
        if n == 0 {
            widths = fields.iter().map(|(key, value)| key.len().max(plain(value).len()).max(7)).collect();
            line(&mut out, fields.keys().cloned(), &widths)?;
        }
        line(&mut out, fields.values().map(plain), &widths)?;
    }
    if json {
        out.write_all(if count == 0 { b"[]\n".as_slice() } else { b"\n]\n".as_slice() })?;
    }
    out.flush()?;
    Ok(())
}

/// Prints a record of any depth: as JSON, or as indented lines of `field value`.
pub fn fields<R: Serialize>(record: &R, json: bool) -> Result<()> {
    fn walk(out: &mut dyn Write, value: &Value, depth: usize) -> io::Result<()> {
        let Value::Object(fields) = value else {
            return writeln!(out, "{:depth$}{}", "", plain(value), depth = depth * 2);
        };
        for (key, value) in fields {
            write!(out, "{:depth$}{key:24} ", "", depth = depth * 2)?;
            match value {
                Value::Object(_) if bytes_of(value).is_none() => {
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
                _ => writeln!(out, "{}", plain(value))?,
            }
        }
        Ok(())
    }
    let value = serde_json::to_value(record)?;
    print(&value, json, |value, out| walk(out, value, 0))
}

fn line(out: &mut dyn Write, cells: impl Iterator<Item = String>, widths: &[usize]) -> io::Result<()> {
    let cells: Vec<String> =
        cells.zip(widths).map(|(cell, width)| format!("{cell:<width$}", width = *width)).collect();
    writeln!(out, "{}", cells.join("  ").trim_end())
}

/// A value without quotes; lists by commas.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => name(text.as_bytes()),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        other => match bytes_of(other) {
            Some(bytes) => name(&bytes),
            None => other.to_string(),
        },
    }
}

/// Bytes that are mostly text: a file name, a path, the value of an attribute. In JSON they are a string where they are
/// UTF-8, exactly as they are, else `{"bytes": [...]}`; as text for people see [`name`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(pub Vec<u8>);

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => text.serialize(serializer),
            Err(_) => [("bytes", &self.0)].into_iter().collect::<BTreeMap<_, _>>().serialize(serializer),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&name(&self.0))
    }
}

/// The bytes of a [`Name`] that is no UTF-8.
fn bytes_of(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::Object(fields) if fields.len() == 1 => {
            serde_json::from_value(fields.get("bytes")?.clone()).ok()
        }
        _ => None,
    }
}

/// A file name or path as text: UTF-8 as it is, control characters and other bytes escaped.
pub fn name(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || c == '\\' { out.extend(c.escape_default()) } else { out.push(c) }
        }
        for byte in chunk.invalid() {
            out += &format!("\\x{byte:02x}");
        }
    }
    out
}

/// A number of things: `1 section`, `1,234 sections`, `0 entries`, `2 flushes`.
pub fn count(n: u64, one: &str) -> String {
    let many = match one.strip_suffix('y') {
        _ if n == 1 => one.to_owned(),
        Some(stem) => format!("{stem}ies"),
        None if one.ends_with("sh") => format!("{one}es"),
        None => format!("{one}s"),
    };
    format!("{} {many}", HumanCount(n))
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `drwxr-xr-x` of a mode.
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
    fn one_thing_is_not_many() {
        assert_eq!(count(1, "section"), "1 section");
        assert_eq!(count(1234, "section"), "1,234 sections");
        assert_eq!(
            [count(0, "entry"), count(1, "directory"), count(2, "flush")],
            ["0 entries", "1 directory", "2 flushes"]
        );
    }

    #[test]
    fn names_are_themselves_in_json() {
        let json = |bytes: &[u8]| serde_json::to_value(Name(bytes.to_vec())).unwrap();
        assert_eq!(json(b"a\n\\b"), "a\n\\b");
        assert_eq!(json(b"a\xff"), serde_json::json!({"bytes": [97, 255]}));
        assert_eq!(plain(&json(b"a\n\\b")), r"a\n\\b");
        assert_eq!(plain(&json(b"a\xff")), r"a\xff");
    }

    #[test]
    fn names_never_carry_control_characters() {
        assert_eq!(name("grün".as_bytes()), "grün");
        assert_eq!(name(b"a\x1b[2J\xffb"), "a\\u{1b}[2J\\xffb");
    }
}
