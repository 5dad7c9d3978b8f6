//! Traces of requests, read and written as JSON lines of our own, the text of `blkparse`, or the logs of
//! `fio`.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::op::{CLOCK_END_NS, Command, Op};

/// Sector of the addresses in blkparse's text, in bytes (blkparse(1)).
const SECTOR_BYTES: u64 = 512;

/// One request, with its start and end in nanoseconds of the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Time when the host made it.
    pub at_ns: u64,
    /// Time when the host had the answer; `at_ns` if the format does not record it.
    pub done_ns: u64,
    /// The operation.
    #[serde(flatten)]
    pub op: Op,
}

/// Requests in the order of their times.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// The requests.
    pub entries: Vec<Entry>,
}

/// Error of an invalid line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct TraceError {
    /// Number of the line, from 1.
    pub line: usize,
    /// Description of the error.
    pub what: String,
}

/// Text formats of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceFormat {
    /// One JSON object per line, complete and exact.
    Json,
    /// blkparse's default format: requests issued (D) and completed (C).
    Blkparse,
    /// fio's iolog, version 3, with times in whole microseconds. Version 2 can be read, too.
    FioIolog,
}

impl Trace {
    /// Formats the trace as text.
    pub fn to_text(&self, format: TraceFormat) -> String {
        match format {
            TraceFormat::Json => {
                let line = |entry| serde_json::to_string(entry).expect("numbers and names") + "\n";
                self.entries.iter().map(line).collect()
            }
            TraceFormat::Blkparse => self.to_blkparse(),
            TraceFormat::FioIolog => self.to_fio(),
        }
    }

    /// Parses a trace. Its first characters determine the format.
    ///
    /// # Errors
    /// [`TraceError`] names the first invalid line.
    pub fn parse(text: &str) -> Result<Trace, TraceError> {
        let start = text.trim_start();
        let mut entries = if start.starts_with('{') {
            let parse = |(n, line): (usize, &str)| {
                let entry = serde_json::from_slice(line.as_bytes());
                entry
                    .map_err(|e| TraceError { line: n + 1, what: e.to_string() })
                    .and_then(|entry| checked(n, entry))
            };
            let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
            lines.map(parse).collect::<Result<Vec<Entry>, _>>()?
        } else if start.starts_with("fio version ") {
            parse_fio(text)?
        } else {
            parse_blkparse(text)?
        };
        entries.sort_by_key(|entry| entry.at_ns);
        Ok(Trace { entries })
    }

    fn to_blkparse(&self) -> String {
        // Device, CPU, sequence, time, process, action, kind, sectors, program (blkparse(1), "Default format").
        let mut lines: Vec<(u64, String)> = Vec::new();
        for Entry { at_ns, done_ns, op } in &self.entries {
            let kind = match (op.command, op.fua) {
                (Command::Read, _) => "R",
                (Command::Write, false) => "W",
                (Command::Write, true) => "WF",
                (Command::Flush, _) => "FN",
                (Command::Discard, _) => "D",
            };
            let (range, done) = match op.command {
                Command::Flush => (String::new(), "0 ".to_string()),
                _ => {
                    let sectors = [op.offset_bytes, op.length_bytes].map(|bytes| bytes / SECTOR_BYTES);
                    let range = format!("{} + {} ", sectors[0], sectors[1]);
                    (range.clone(), range)
                }
            };
            lines.push((*at_ns, format!("D {kind:>3} {range}[flash]")));
            lines.push((*done_ns, format!("C {kind:>3} {done}[0]")));
        }
        lines.sort_by_key(|(at_ns, _)| *at_ns);
        let mut text = String::new();
        for (n, (at_ns, rest)) in lines.iter().enumerate() {
            let (s, ns) = (at_ns / 1_000_000_000, at_ns % 1_000_000_000);
            writeln!(text, "  8,0    0 {:>8} {s:>5}.{ns:09}     0  {rest}", n + 1)
                .expect("writing to a string cannot fail");
        }
        text
    }

    fn to_fio(&self) -> String {
        let mut text = String::from("fio version 3 iolog\n0 card add\n0 card open\n");
        let mut last_us = 0;
        for Entry { at_ns, op, .. } in &self.entries {
            last_us = at_ns / 1000;
            let action = match op.command {
                Command::Read => "read",
                Command::Write => "write",
                Command::Flush => "datasync",
                Command::Discard => "trim",
            };
            writeln!(text, "{last_us} card {action} {} {}", op.offset_bytes, op.length_bytes)
                .expect("writing to a string cannot fail");
        }
        writeln!(text, "{last_us} card close").expect("writing to a string cannot fail");
        text
    }
}

/// Checks that a model can serve the request of line `n` (from 0).
fn checked(n: usize, entry: Entry) -> Result<Entry, TraceError> {
    let fail = |what: &str| Err(TraceError { line: n + 1, what: what.to_string() });
    if entry.op.offset_bytes.checked_add(entry.op.length_bytes).is_none() {
        return fail("the request ends beyond the largest offset");
    }
    if entry.at_ns.max(entry.done_ns) > CLOCK_END_NS {
        return fail("the time exceeds the clock of a card");
    }
    Ok(entry)
}

/// Requests count when they are issued to the driver (D) or, if no line has that, when they are queued (Q).
fn parse_blkparse(text: &str) -> Result<Vec<Entry>, TraceError> {
    let mut issued: Vec<Entry> = Vec::new();
    let mut queued: Vec<Entry> = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let fail = |what: &str| TraceError { line: n + 1, what: what.to_string() };
        let fields: Vec<&str> = line.split_whitespace().collect();
        // The final summary, and messages, have other forms.
        let [device, _, _, time, _, action, kind, ref rest @ ..] = fields[..] else { continue };
        if !device.contains(',') || !matches!(action, "D" | "Q" | "C") {
            continue;
        }
        let at_ns = seconds_to_ns(time).ok_or_else(|| fail("expected a time of the form 1.000000000"))?;
        let Some((command, fua)) = blkparse_kind(kind) else { continue };
        let op = match rest {
            [from, "+", count, ..] => {
                let number = |text: &str| text.parse::<u64>().ok()?.checked_mul(SECTOR_BYTES);
                let range = number(from).zip(number(count));
                let (offset_bytes, length_bytes) =
                    range.ok_or_else(|| fail("expected sectors of the form 8 + 8"))?;
                Op { command, offset_bytes, length_bytes, fua }
            }
            // An empty write with a flush flag is a flush.
            _ if kind.starts_with('F') => Op::flush(),
            // Such a write has been answered, under the name of one without a flush.
            _ if action == "C" => continue,
            _ => return Err(fail("expected sectors of the form 8 + 8")),
        };
        let entry = checked(n, Entry { at_ns, done_ns: at_ns, op })?;
        match action {
            "D" => issued.push(entry),
            "Q" => queued.push(entry),
            _ => {
                let same = |entry: &&mut Entry| {
                    let (one, two) = (entry.op, op);
                    entry.done_ns == entry.at_ns
                        && (one.command, one.offset_bytes, one.length_bytes)
                            == (two.command, two.offset_bytes, two.length_bytes)
                };
                let waiting = issued.iter_mut().rev().take(4096).filter(same).last();
                if let Some(entry) = waiting {
                    entry.done_ns = at_ns;
                }
            }
        }
    }
    Ok(if issued.is_empty() { queued } else { issued })
}

/// Formats blkparse's RWBS field: an F before the verb requests a flush, one after it FUA.
fn blkparse_kind(kind: &str) -> Option<(Command, bool)> {
    let rest = kind.strip_prefix('F').unwrap_or(kind);
    let command = match rest.chars().next() {
        Some('R') => Command::Read,
        Some('W') => Command::Write,
        Some('D') => Command::Discard,
        _ if kind.starts_with('F') => Command::Flush,
        _ => return None,
    };
    Some((command, command == Command::Write && rest[1..].contains('F')))
}

fn seconds_to_ns(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.')?;
    let ns: u64 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(ns)
}

fn parse_fio(text: &str) -> Result<Vec<Entry>, TraceError> {
    let version = match text.trim_start().lines().next() {
        Some("fio version 3 iolog") => 3,
        Some("fio version 2 iolog") => 2,
        _ => return Err(TraceError { line: 1, what: "only versions 2 and 3 of fio's log are read".into() }),
    };
    let mut entries = Vec::new();
    let mut now_ns = 0u64;
    for (n, line) in text.lines().enumerate().skip(1) {
        let fail = |what: &str| TraceError { line: n + 1, what: what.to_string() };
        let mut fields: Vec<&str> = line.split_whitespace().collect();
        if fields.is_empty() {
            continue;
        }
        if version == 3 {
            let us = fields.remove(0).parse::<u64>().ok().and_then(|us| us.checked_mul(1000));
            now_ns = us.ok_or_else(|| fail("expected a time in microseconds"))?;
        }
        let (action, numbers) = match fields[..] {
            [_, "add" | "open" | "close"] => continue,
            [_, action, ref numbers @ ..] => (action, numbers),
            _ => return Err(fail("expected a file and an action")),
        };
        let number = |at: usize| {
            let text = numbers.get(at).ok_or_else(|| fail("a number is missing"))?;
            text.parse::<u64>().map_err(|e| fail(&e.to_string()))
        };
        let op = match action {
            "read" => Op::read(number(0)?, number(1)?),
            "write" => Op::write(number(0)?, number(1)?),
            "trim" => Op::discard(number(0)?, number(1)?),
            "sync" | "datasync" => Op::flush(),
            "wait" if version == 2 => {
                // Microseconds since the start (fio(1), "Trace file format v2").
                let us = number(0)?.checked_mul(1000);
                now_ns = now_ns.max(us.ok_or_else(|| fail("the time exceeds the clock of a card"))?);
                continue;
            }
            _ => return Err(fail("unknown action of fio")),
        };
        entries.push(checked(n, Entry { at_ns: now_ns, done_ns: now_ns, op })?);
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn trace() -> Trace {
        let entry = |at_ns, done_ns, op| Entry { at_ns, done_ns, op };
        Trace {
            entries: vec![
                entry(0, 1_000_000, Op::write(4096, 8192)),
                entry(2_000_000, 2_500_000, Op::read(0, 512)),
                entry(3_000_000, 3_000_001, Op::flush()),
                entry(4_000_000, 5_123_456_789, Op { fua: true, ..Op::write(0, 512) }),
                entry(6_000_000_000, 6_000_000_500, Op::discard(0, 1 << 20)),
            ],
        }
    }

    #[test]
    fn json_and_blkparse_keep_everything() {
        for format in [TraceFormat::Json, TraceFormat::Blkparse] {
            let text = trace().to_text(format);
            assert_eq!(Trace::parse(&text), Ok(trace()), "{text}");
        }
    }

    #[test]
    fn fio_keeps_the_order_and_the_microseconds() {
        let parsed = Trace::parse(&trace().to_text(TraceFormat::FioIolog)).expect("our own text");
        let at = |trace: &Trace| trace.entries.iter().map(|entry| entry.at_ns).collect::<Vec<_>>();
        assert_eq!(at(&parsed), at(&trace()));
        assert_eq!(parsed.entries[3].op, Op::write(0, 512));
        assert_eq!(parsed.entries[2].op, Op::flush());
    }

    #[test]
    fn traces_of_the_tools_are_read() {
        // The example of blkparse(1), with the surrounding lines of real output.
        let text = "\
  8,0    3        1     0.000000000   697  Q   W 223490 + 8 [kjournald]
  8,0    3        2     0.000001829   697  G   W 223490 + 8 [kjournald]
  8,0    3        7     0.000009480   697  D   W 223490 + 8 [kjournald]
  8,0    3        8     0.000015000     0  D FWFS 8 + 8 [x]
  8,0    3        9     0.000019000     0  Q FWS [x]
  8,0    3       10     0.000020000     0  D  FN [x]
  8,0    3       11     0.000030000     0  C  FN 0 [0]
  8,0    3       12     0.000031000     0  C  WS 0 [0]
  8,0    0        1     0.005000000     0  C   W 223490 + 8 [0]
CPU3 (8,0):
 Reads Queued:           0,        0KiB\t Writes Queued:           7,      128KiB
";
        let parsed = Trace::parse(text).expect("real text");
        let ops: Vec<Op> = parsed.entries.iter().map(|entry| entry.op).collect();
        let fua = Op { fua: true, ..Op::write(4096, 4096) };
        assert_eq!(ops, [Op::write(223490 * 512, 4096), fua, Op::flush()]);
        assert_eq!((parsed.entries[0].at_ns, parsed.entries[0].done_ns), (9480, 5_000_000));
        assert_eq!((parsed.entries[2].at_ns, parsed.entries[2].done_ns), (20_000, 30_000));
        let v3 = "fio version 3 iolog\n19 /tmp/f add\n192 /tmp/f open\n196 /tmp/f write 0 4096\n\
                  300203 /tmp/f sync 28672 0\n1500270 /tmp/f close\n";
        let parsed = Trace::parse(v3).expect("real text");
        assert_eq!((parsed.entries[1].op, parsed.entries[1].at_ns), (Op::flush(), 300_203_000));
        let v2 = "fio version 2 iolog\n/dev/sda add\n/dev/sda open\n/dev/sda write 0 4096\n/dev/sda wait 7\n\
                  /dev/sda sync 0 0\n/dev/sda close\n";
        let parsed = Trace::parse(v2).expect("real text");
        assert_eq!((parsed.entries[1].op, parsed.entries[1].at_ns), (Op::flush(), 7000));
    }

    #[test]
    fn a_malformed_trace_is_an_error_with_its_line() {
        for (text, line) in [
            ("fio version 9 iolog\n", 1),
            ("fio version 3 iolog\n0 x write 1\n", 2),
            ("fio version 3 iolog\n0 x fly 1 2\n", 2),
            ("fio version 3 iolog\n0 x write 18446744073709551615 2\n", 2),
            ("fio version 3 iolog\n\n0 x add\n0 x write 18446744073709551615 2\n", 4),
            ("fio version 3 iolog\n18446744073709551 x read 0 512\n", 2),
            (
                "\n{\"at_ns\":18446744073709551615,\"done_ns\":0,\"command\":\"read\",\"offset_bytes\":0,\"length_bytes\":1,\"fua\":false}\n",
                2,
            ),
            ("{\"at_ns\":1}\n", 1),
            (" 8,0 0 1 x 0 D W 1 + 1 [x]\n", 1),
            (" 8,0 0 1 0.1 0 D W 1 [x]\n", 1),
            (" 8,0 0 1 0.1 0 D W 99999999999999999999 + 1 [x]\n", 1),
        ] {
            assert_eq!(Trace::parse(text).unwrap_err().line, line, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "(fio version [23] iolog\n)?([{ 0-9,.DQCRWF+a-z\n-]{0,80})") {
            let _ = Trace::parse(&text);
        }
    }
}
