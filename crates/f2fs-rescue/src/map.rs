//! A map of the parts of a device that were read, in the format of ddrescue's mapfile.

use std::{fmt, ops::Range};

use f2fs::{Error, Result};

/// State of a part of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It was not tried.
    Untried,
    /// It could not be read.
    Bad,
    /// It was read.
    Read,
}

impl Status {
    const fn letter(self) -> char {
        match self {
            Status::Untried => '?',
            Status::Bad => '-',
            Status::Read => '+',
        }
    }
}

/// First line of the maps of this crate.
const TITLE: &str = "# Mapfile. Created by flashkit";

/// Program that made a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// This one: bytes with no status, or untried ones, may be read.
    Flashkit,
    /// Another one, of a copy: bytes that were not read are not those of the device.
    Other,
}

/// The parts of a device, in ascending order, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Map {
    parts: Vec<(Range<u64>, Status)>,
}

impl Map {
    /// Reads a mapfile. In the map of another program everything that is not marked as read is bad: the copy has
    /// other bytes there.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the line that is no part, or that begins before the end of the one in front of it.
    pub fn parse(text: &str) -> Result<(Map, Origin)> {
        let is_own = text.lines().next() == Some(TITLE);
        let origin = if is_own { Origin::Flashkit } else { Origin::Other };
        let lines = text.lines().enumerate().filter(|(_, line)| {
            let line = line.trim_start();
            !line.is_empty() && !line.starts_with('#')
        });
        let mut map = Map::default();
        if !is_own && lines.clone().next().is_none() {
            return Err(Error::Invalid(
                "an empty map; name a file that does not exist yet, or one of ddrescue".into(),
            ));
        }
        // The first line is the position of ddrescue itself.
        for (n, line) in lines.skip(1) {
            let bad = || Error::Invalid(format!("line {} of the map is no part: {line}", n + 1).into());
            let words: Vec<&str> = line.split_whitespace().collect();
            let [start, length, status] = words[..] else { return Err(bad()) };
            let (start, length) = (number(start).ok_or_else(bad)?, number(length).ok_or_else(bad)?);
            let status = match status {
                "-" => Status::Bad,
                "+" => Status::Read,
                "?" | "*" | "/" if is_own => Status::Untried,
                "?" | "*" | "/" => Status::Bad,
                _ => return Err(bad()),
            };
            let end = start.checked_add(length).ok_or_else(bad)?;
            if start < map.end() {
                return Err(bad());
            }
            map.skip_to(start, if is_own { Status::Untried } else { Status::Bad });
            map.push(start..end, status);
        }
        if !is_own {
            map.skip_to(u64::MAX, Status::Bad);
        }
        Ok((map, origin))
    }

    fn end(&self) -> u64 {
        self.parts.last().map_or(0, |(bytes, _)| bytes.end)
    }

    /// Returns the map of two passes over a device. A byte that one of them could not read stays bad.
    #[must_use]
    pub fn merged(&self, other: &Map) -> Map {
        let parts = || self.parts.iter().chain(&other.parts);
        let mut bounds: Vec<u64> = parts().flat_map(|(part, _)| [part.start, part.end]).collect();
        bounds.sort_unstable();
        bounds.dedup();
        let mut map = Map::default();
        for pair in bounds.windows(2) {
            let bytes = pair[0]..pair[1];
            let status = match [self.at(bytes.start), other.at(bytes.start)] {
                both if both.contains(&Status::Bad) => Status::Bad,
                both if both.contains(&Status::Read) => Status::Read,
                _ => Status::Untried,
            };
            map.skip_to(bytes.start, Status::Untried);
            map.push(bytes, status);
        }
        map
    }

    /// Takes over the parts of a later state of this map, to which parts were only added at the end.
    pub fn follow(&mut self, later: &Map) {
        // The last part may have grown.
        self.parts.pop();
        self.parts.extend_from_slice(later.parts.get(self.parts.len()..).unwrap_or_default());
    }

    /// Status of a byte.
    fn at(&self, byte: u64) -> Status {
        let part = self.parts.get(self.parts.partition_point(|(part, _)| part.end <= byte));
        part.filter(|(part, _)| part.start <= byte).map_or(Status::Untried, |(_, status)| *status)
    }

    /// Adds a part after all others. A part with the status of the one before is merged with it.
    pub(crate) fn push(&mut self, bytes: Range<u64>, status: Status) {
        if bytes.is_empty() {
            return;
        }
        match self.parts.last_mut() {
            Some((last, of)) if *of == status && last.end == bytes.start => last.end = bytes.end,
            _ => self.parts.push((bytes, status)),
        }
    }

    /// Gives the bytes from the last part to `start` a status.
    pub(crate) fn skip_to(&mut self, start: u64, status: Status) {
        self.push(self.end()..start, status);
    }

    /// Returns true if a part of these bytes is bad.
    pub(crate) fn is_bad(&self, bytes: &Range<u64>) -> bool {
        let first = self.parts.partition_point(|(part, _)| part.end <= bytes.start);
        let parts = self.parts[first..].iter().take_while(|(part, _)| part.start < bytes.end);
        parts.into_iter().any(|(_, status)| *status == Status::Bad)
    }

    /// Bytes with a status.
    #[must_use]
    pub fn bytes(&self, status: Status) -> u64 {
        self.parts.iter().filter(|(_, of)| *of == status).map(|(part, _)| part.end - part.start).sum()
    }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl fmt::Display for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{TITLE}")?;
        writeln!(f, "# current_pos  current_status  current_pass")?;
        let end = self.end();
        writeln!(f, "0x{end:08X}     +               1")?;
        writeln!(f, "#      pos        size  status")?;
        for (part, status) in &self.parts {
            writeln!(f, "0x{:08X}  0x{:08X}  {}", part.start, part.end - part.start, status.letter())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_survives_a_round_trip() {
        let mut map = Map::default();
        map.push(0..4096, Status::Read);
        map.push(4096..8192, Status::Read);
        map.push(8192..8704, Status::Bad);
        map.skip_to(1 << 20, Status::Untried);
        assert_eq!(Map::parse(&map.to_string()).expect("our own"), (map.clone(), Origin::Flashkit));
        assert_eq!(map.bytes(Status::Read), 8192);
        assert!(map.is_bad(&(8000..8200)) && !map.is_bad(&(0..8192)) && !map.is_bad(&(8704..9000)));
    }

    #[test]
    fn the_mapfile_of_ddrescue_is_read() {
        let text = "# Rescue Logfile. Created by GNU ddrescue version 1.27\n# Command line: ddrescue a b\n\
                    # current_pos  current_status  current_pass\n0x0     ?   1\n#  pos  size  status\n\
                    0x00000000  0x00001000  +\n0x00001000  0x00000200  -\n0x00001200  0x00000E00  *\n";
        let (map, origin) = Map::parse(text).expect("ddrescue's");
        assert_eq!((map.bytes(Status::Read), origin), (4096, Origin::Other));
        for bytes in [4096..4097, 0x1200..0x1201, 0x2000..0x2001, 1 << 40..(1 << 40) + 1] {
            assert!(map.is_bad(&bytes), "{bytes:?} was not read");
        }
        assert!(!map.is_bad(&(0..4096)));
        assert!(Map::parse("0x0 + 1\n0x10 0x10 +\n0x0 0x20 -").is_err(), "parts that overlap");
        assert!(Map::parse("0x0 + 1\n0x0 zz +").is_err());
        assert!(Map::parse("").is_err() && Map::parse("# comment\n").is_err(), "nothing would be readable");
        assert!(Map::parse("0x0 + 1\n0xFFFFFFFFFFFFFFFF 2 +").is_err());
    }

    #[test]
    fn a_map_follows_another_one_that_grows() {
        let (mut map, mut later) = (Map::default(), Map::default());
        for (bytes, status) in [(0..5, Status::Read), (5..9, Status::Read), (9..10, Status::Bad)] {
            later.push(bytes, status);
            map.follow(&later);
            assert_eq!(map, later);
        }
    }

    #[test]
    fn a_bad_part_stays_bad_in_a_merged_map() {
        let map = |text: &str| Map::parse(&format!("{TITLE}\n0x0 ? 1\n{text}")).expect("a map").0;
        let old = map("0 10 +\n10 10 -\n20 10 ?");
        let new = map("0 5 ?\n5 10 +\n15 5 ?\n20 20 +");
        assert_eq!(old.merged(&new), map("0 10 +\n10 10 -\n20 20 +"));
        assert_eq!(new.merged(&old), old.merged(&new));
    }
}
