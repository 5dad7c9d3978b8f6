//! Expected content of files after the steps so far, stored as the step that wrote each range.

use std::{collections::BTreeMap, io};

use super::{Files, Step, pieces};
use crate::content::SplitMix;

/// Files by path.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    files: BTreeMap<String, Ranges>,
    /// Number of steps so far, which determines the content written by the last one.
    steps: u64,
}

/// A file: disjoint ranges by their starts.
#[derive(Debug, Default)]
struct Ranges {
    size: u64,
    /// Start -> end, and the step that wrote it.
    ranges: BTreeMap<u64, (u64, u64)>,
}

impl Shadow {
    /// Applies a step.
    pub fn note(&mut self, step: &Step) {
        self.steps += 1;
        match step {
            Step::Write { path, at, length } => {
                let stamp = self.steps;
                self.file(path).write(*at, at + length, stamp);
            }
            Step::Truncate { path, size } => self.file(path).truncate(*size),
            Step::Rename { from, to } => {
                if let Some(file) = self.files.remove(from) {
                    self.files.insert(to.clone(), file);
                }
            }
            Step::Remove { path } => drop(self.files.remove(path)),
            _ => {}
        }
    }

    /// Returns the bytes that the last step writes from `at` on.
    pub fn written(&self, at: u64, bytes: &mut [u8]) {
        fill(self.steps, at, bytes);
    }

    /// Compares read data with the written data.
    pub fn compare(&self, path: &str, at: u64, read: &[u8]) -> io::Result<()> {
        let mut wanted = vec![0; read.len()];
        if let Some(file) = self.files.get(path) {
            let end = at + read.len() as u64;
            for (start, (stop, stamp)) in file.ranges.range(..end).rev() {
                if *stop <= at {
                    break;
                }
                let (from, to) = (at.max(*start), end.min(*stop));
                fill(*stamp, from, &mut wanted[(from - at) as usize..(to - at) as usize]);
            }
        }
        if read == wanted {
            return Ok(());
        }
        let off = read.iter().zip(&wanted).position(|(read, wanted)| read != wanted).unwrap_or(0);
        Err(invalid(format!("{path}: byte {} differs from the written data", at + off as u64)))
    }

    /// Reads and compares everything.
    pub fn check(&self, files: &mut dyn Files) -> io::Result<()> {
        let mut bytes = Vec::new();
        for (path, file) in &self.files {
            let size = files.size(path)?;
            if size != file.size {
                return Err(invalid(format!("{path}: {size} bytes instead of {}", file.size)));
            }
            for (at, length) in pieces(0, size) {
                bytes.resize(length, 0);
                files.read(path, at, &mut bytes)?;
                self.compare(path, at, &bytes)?;
            }
            files.close(path)?;
        }
        Ok(())
    }

    fn file(&mut self, path: &str) -> &mut Ranges {
        if !self.files.contains_key(path) {
            self.files.insert(path.to_owned(), Ranges::default());
        }
        self.files.get_mut(path).expect("it was just put there")
    }
}

impl Ranges {
    fn write(&mut self, start: u64, end: u64, stamp: u64) {
        self.cut(start, end);
        self.ranges.insert(start, (end, stamp));
        self.size = self.size.max(end);
    }

    fn truncate(&mut self, size: u64) {
        self.cut(size, u64::MAX);
        self.size = size;
    }

    /// Removes the ranges in between.
    fn cut(&mut self, start: u64, end: u64) {
        let touched: Vec<(u64, (u64, u64))> = self
            .ranges
            .range(..end)
            .rev()
            .take_while(|(_, (stop, _))| *stop > start)
            .map(|(from, range)| (*from, *range))
            .collect();
        for (from, (stop, stamp)) in touched {
            self.ranges.remove(&from);
            if from < start {
                self.ranges.insert(from, (start, stamp));
            }
            if stop > end {
                self.ranges.insert(end, (stop, stamp));
            }
        }
    }
}

/// Returns the bytes that a step writes at an offset: incompressible noise that does not depend on how the
/// write is split.
fn fill(stamp: u64, at: u64, bytes: &mut [u8]) {
    let mut done = 0;
    while done < bytes.len() {
        let place = at + done as u64;
        let word = SplitMix(stamp.wrapping_mul(0xd6e8_feb8_6659_fd93) ^ (place / 8)).next().to_le_bytes();
        let from = (place % 8) as usize;
        let length = (8 - from).min(bytes.len() - done);
        bytes[done..done + length].copy_from_slice(&word[from..from + length]);
        done += length;
    }
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_writes_hide_earlier_ones_and_holes_are_zero() {
        let mut shadow = Shadow::default();
        let mut content = vec![0; 400];
        let mut write = |shadow: &mut Shadow, at: u64, length: u64| {
            shadow.note(&Step::Write { path: "f".into(), at, length });
            shadow.written(at, &mut content[at as usize..(at + length) as usize]);
        };
        for (at, length) in [(0, 100), (200, 150), (50, 20), (60, 200), (61, 1)] {
            write(&mut shadow, at, length);
        }
        shadow.compare("f", 3, &content[3..350]).unwrap();
        shadow.note(&Step::Truncate { path: "f".into(), size: 80 });
        shadow.note(&Step::Truncate { path: "f".into(), size: 120 });
        content[80..].fill(0);
        shadow.compare("f", 0, &content[..120]).unwrap();
        content[79] ^= 4;
        let error = shadow.compare("f", 0, &content[..120]).unwrap_err();
        assert_eq!(error.to_string(), "f: byte 79 differs from the written data");
    }
}
