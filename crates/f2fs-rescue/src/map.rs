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

/// The parts of a device, in ascending order, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Map {
    parts: Vec<(Range<u64>, Status)>,
}

impl Map {
    /// Reads a mapfile. Parts that ddrescue has given up for now count as untried.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the line that is no part.
    pub fn parse(text: &str) -> Result<Map> {
        let lines = text.lines().enumerate().filter(|(_, line)| {
            let line = line.trim_start();
            !line.is_empty() && !line.starts_with('#')
        });
        let mut map = Map::default();
        // The first line is the position of ddrescue itself.
        for (n, line) in lines.skip(1) {
            let bad = || Error::Invalid(format!("line {} of the map is no part: {line}", n + 1).into());
            let words: Vec<&str> = line.split_whitespace().collect();
            let [start, length, status] = words[..] else { return Err(bad()) };
            let (start, length) = (number(start).ok_or_else(bad)?, number(length).ok_or_else(bad)?);
            let status = match status {
                "-" => Status::Bad,
                "+" => Status::Read,
                "?" | "*" | "/" => Status::Untried,
                _ => return Err(bad()),
            };
            let end = start.checked_add(length).ok_or_else(bad)?;
            map.push(start..end, status);
        }
        Ok(map)
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

    /// Adds untried parts before `start` up to the last part.
    pub(crate) fn skip_to(&mut self, start: u64) {
        let end = self.parts.last().map_or(0, |(bytes, _)| bytes.end);
        if end < start {
            self.push(end..start, Status::Untried);
        }
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
        writeln!(f, "# Mapfile. Created by flashkit")?;
        writeln!(f, "# current_pos  current_status  current_pass")?;
        let end = self.parts.last().map_or(0, |(part, _)| part.end);
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
        map.skip_to(1 << 20);
        assert_eq!(Map::parse(&map.to_string()).expect("our own"), map);
        assert_eq!(map.bytes(Status::Read), 8192);
        assert!(map.is_bad(&(8000..8200)) && !map.is_bad(&(0..8192)) && !map.is_bad(&(8704..9000)));
    }

    #[test]
    fn the_mapfile_of_ddrescue_is_read() {
        let text = "# Rescue Logfile. Created by GNU ddrescue version 1.27\n# Command line: ddrescue a b\n\
                    # current_pos  current_status  current_pass\n0x0     ?   1\n#  pos  size  status\n\
                    0x00000000  0x00001000  +\n0x00001000  0x00000200  -\n0x00001200  0x00000E00  *\n";
        let map = Map::parse(text).expect("ddrescue's");
        assert_eq!((map.bytes(Status::Read), map.bytes(Status::Bad)), (4096, 512));
        assert!(Map::parse("0x0 + 1\n0x0 zz +").is_err());
        assert!(Map::parse("0x0 + 1\n0xFFFFFFFFFFFFFFFF 2 +").is_err());
    }
}
