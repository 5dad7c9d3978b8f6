//! From a source to a sink.

use super::{Entry, Progress, Source, show};
use crate::{Error, Result};

/// Bytes of a file that are read and written at once.
const RUN_BYTES: usize = 1 << 20;

/// What takes a tree, entry by entry, in the order of a [`Source`].
pub trait Sink {
    /// Begins an entry; the one before is complete.
    fn entry(&mut self, entry: &Entry) -> Result<()>;

    /// Takes a run of data of the file that was the last entry, in ascending order. What is between runs, and
    /// after the last, is zeroes.
    fn run(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Completes the last entry and the tree.
    fn finish(&mut self) -> Result<()>;

    /// What could not be carried since the last call, though the entry is there: its path, and what is missing.
    fn losses(&mut self) -> Vec<(Vec<u8>, Error)> {
        Vec::new()
    }
}

/// Is told of something that is lost: its path, and why.
pub type Lost<'a> = &'a mut dyn FnMut(&[u8], &Error);

/// How to export.
#[derive(Default)]
pub struct ExportOptions<'a> {
    /// Goes on where an entry, or a part of a file, cannot be read or written; what is lost is told.
    pub keep_going: bool,
    /// Told of everything that is lost.
    pub lost: Option<Lost<'a>>,
    /// Told of every entry and every run of data.
    pub progress: Option<&'a mut dyn FnMut(Progress<'_>)>,
}

/// What an export has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exported {
    /// Entries, the root among them.
    pub entries: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// Things that were lost.
    pub losses: u64,
}

/// Puts everything that a source has into a sink. An entry whose data is lost in part is there with zeroes.
pub fn export(source: &mut dyn Source, sink: &mut dyn Sink, options: ExportOptions<'_>) -> Result<Exported> {
    let mut exporter = Exporter { options, done: Exported::default(), buf: vec![0; RUN_BYTES] };
    loop {
        match source.next_entry() {
            Ok(Some(entry)) => exporter.entry(&entry, source, sink)?,
            Ok(None) => break,
            Err(error) => exporter.lose(b"", error)?,
        }
    }
    sink.finish()?;
    exporter.tell_losses(sink);
    Ok(exporter.done)
}

struct Exporter<'a> {
    options: ExportOptions<'a>,
    done: Exported,
    buf: Vec<u8>,
}

impl Exporter<'_> {
    fn entry(&mut self, entry: &Entry, source: &mut dyn Source, sink: &mut dyn Sink) -> Result<()> {
        self.tell(&entry.path);
        if let Err(error) = sink.entry(entry) {
            return self.lose(&entry.path, error);
        }
        self.tell_losses(sink);
        self.done.entries += 1;
        loop {
            match source.next_run(&mut self.buf) {
                Ok(Some(run)) => {
                    sink.run(run.offset, &self.buf[..run.length])?;
                    self.done.bytes += run.length as u64;
                    self.tell(&entry.path);
                }
                Ok(None) => return Ok(()),
                Err(error) => self.lose(&entry.path, error)?,
            }
        }
    }

    /// Something is lost: fatal, except where the caller wants to go on.
    fn lose(&mut self, path: &[u8], error: Error) -> Result<()> {
        if !self.options.keep_going {
            return Err(about(path, error));
        }
        self.note(path, &error);
        Ok(())
    }

    fn tell_losses(&mut self, sink: &mut dyn Sink) {
        for (path, error) in sink.losses() {
            self.note(&path, &error);
        }
    }

    fn note(&mut self, path: &[u8], error: &Error) {
        self.done.losses += 1;
        if let Some(lost) = &mut self.options.lost {
            lost(path, error);
        }
    }

    fn tell(&mut self, path: &[u8]) {
        if let Some(progress) = &mut self.options.progress {
            progress(Progress { entries: self.done.entries, bytes: self.done.bytes, path });
        }
    }
}

/// An error with the path that it is about, where it does not name a place itself.
fn about(path: &[u8], error: Error) -> Error {
    match error {
        Error::NoKey => Error::Unsupported(format!("{}: {error}", show(path)).into()),
        Error::Invalid(what) => Error::Invalid(format!("{}: {what}", show(path)).into()),
        other => other,
    }
}
