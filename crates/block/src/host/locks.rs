//! The locks on a file, as `/proc/locks` lists them (proc_locks(5)).

use std::{fs, ops::RangeInclusive};

use rustix::fs::{Dev, makedev};

/// A lock that a program holds.
#[derive(Debug)]
pub(super) struct Lock {
    pub(super) kind: Kind,
    pub(super) access: Access,
    /// The process that has it; None for a lock of an open file description.
    pub(super) process: Option<u32>,
    /// The bytes that are locked.
    pub(super) bytes: RangeInclusive<u64>,
}

/// The call that made a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// flock(2).
    Whole,
    /// fcntl(2).
    Record,
}

/// Use of the file that a lock allows to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Shared,
    Exclusive,
}

/// Returns the text of `/proc/locks`; empty without `/proc`.
pub(super) fn table() -> String {
    fs::read_to_string("/proc/locks").unwrap_or_default()
}

/// Returns the locks on a file in the text of `/proc/locks`. Lines of programs that wait for a lock are left out.
pub(super) fn locks_in(table: &str, device: Dev, inode: u64) -> impl Iterator<Item = Lock> {
    let of_file = move |(file, lock)| (file == (device, inode)).then_some(lock);
    table.lines().filter_map(parse).filter_map(of_file)
}

/// Parses a line: `1: POSIX  ADVISORY  WRITE 4242 fe:01:77 0 EOF`.
fn parse(line: &str) -> Option<((Dev, u64), Lock)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, kind, _, access, process, file, first, last] = words[..] else { return None };
    let kind = match kind {
        "FLOCK" => Kind::Whole,
        "POSIX" | "OFDLCK" => Kind::Record,
        _ => return None,
    };
    let access = if access == "WRITE" { Access::Exclusive } else { Access::Shared };
    let bytes = first.parse().ok()?..=last.parse().unwrap_or(u64::MAX);
    Some((place(file)?, Lock { kind, access, process: process.parse().ok(), bytes }))
}

/// Parses `MAJOR:MINOR:INODE`, with hexadecimal numbers of the device.
fn place(text: &str) -> Option<(Dev, u64)> {
    let mut parts = text.split(':');
    let mut number = |radix| u64::from_str_radix(parts.next()?, radix).ok();
    let (major, minor, inode) = (number(16)?, number(16)?, number(10)?);
    Some((makedev(u32::try_from(major).ok()?, u32::try_from(minor).ok()?), inode))
}
