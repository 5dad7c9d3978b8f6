//! Records to text or JSON on standard output.

use std::io::{self, Write};

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

/// Prints what `text` writes.
pub fn text(text: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
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
    let mut out = io::BufWriter::new(io::stdout().lock());
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
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
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
    fn names_never_carry_control_characters() {
        assert_eq!(name("grün".as_bytes()), "grün");
        assert_eq!(name(b"a\x1b[2J\xffb"), "a\\u{1b}[2J\\xffb");
    }
}
