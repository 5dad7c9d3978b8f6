//! A source of given entries.

use std::cell::RefCell;

use f2fs_tree::{Entry, Kind, Metadata, Source};

use super::NOW;

/// A source of given values.
pub struct Given<'a> {
    entries: std::vec::IntoIter<Entry>,
    data: &'a RefCell<u64>,
    left: Vec<std::ops::Range<u64>>,
}

/// Makes a source of these entries. It counts the bytes of data that it gives.
pub fn given(entries: Vec<Entry>, data: &RefCell<u64>) -> Given<'_> {
    Given { entries: entries.into_iter(), data, left: vec![] }
}

impl Source for Given<'_> {
    fn next_entry(&mut self) -> f2fs::Result<Option<Entry>> {
        let entry = self.entries.next();
        self.left = match entry.as_ref().map(|entry| &entry.kind) {
            Some(Kind::File { data: Some(data), .. }) => data.iter().rev().cloned().collect(),
            Some(Kind::File { size, .. }) if *size > 0 => std::iter::once(0..*size).collect(),
            _ => vec![],
        };
        Ok(entry)
    }

    fn next_run(&mut self, buf: &mut [u8]) -> f2fs::Result<Option<f2fs_tree::Run>> {
        let Some(mut range) = self.left.pop() else { return Ok(None) };
        let length = buf.len().min((range.end - range.start) as usize);
        buf[..length].fill(7);
        *self.data.borrow_mut() += length as u64;
        let offset = range.start;
        range.start += length as u64;
        if range.start < range.end {
            self.left.push(range);
        }
        Ok(Some(f2fs_tree::Run { offset, length }))
    }
}

/// An entry of a kind.
pub fn entry(path: impl Into<Vec<u8>>, kind: Kind) -> Entry {
    let meta = Metadata { permissions: 0o644, mtime: NOW, ..Metadata::default() };
    Entry { path: path.into(), kind, meta }
}

/// A file without holes.
pub fn file(path: impl Into<Vec<u8>>, size: u64) -> Entry {
    entry(path, Kind::File { size, data: None })
}
