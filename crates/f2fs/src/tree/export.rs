//! From a source to a sink.

use std::ops::Range;

use super::{Entry, Kind, Progress, Source, dir_sink::is_inside, show};
use crate::{Error, Result};

/// Bytes of a file that are read and written at once.
const RUN_BYTES: usize = 1 << 20;

/// What takes a tree, entry by entry, in the order of a [`Source`].
pub trait Sink {
    /// Begins an entry; the one before is complete. `false` where the destination has no place for such an entry, which is
    /// among the [`losses`](Self::losses). An error costs this entry alone, unless the sink [is
    /// broken](Self::is_broken).
    fn entry(&mut self, entry: &Entry) -> Result<bool>;

    /// Takes a run of data of the file that was the last entry, in ascending order. What is between runs, and
    /// after the last, is zeroes. An error costs the data from here on.
    fn run(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Completes the last entry and the tree.
    fn finish(&mut self) -> Result<()>;

    /// The parts of entries that could not be carried since the last call.
    fn losses(&mut self) -> Vec<Loss> {
        Vec::new()
    }

    /// Returns true if nothing more can be taken after an error.
    fn is_broken(&self) -> bool {
        false
    }
}

/// A part of an entry that a sink could not carry, though the rest of it is there.
#[derive(Debug)]
pub struct Loss {
    /// Path of the entry.
    pub path: Vec<u8>,
    /// The reason.
    pub error: Error,
    /// An export without [`keep_going`](ExportOptions::keep_going) goes on, too: the destination has no place for it.
    pub is_tolerated: bool,
}

/// Is told of each part of the tree that is lost: an [`Error::Lost`].
pub type Lost<'a> = &'a mut dyn FnMut(&Error);

/// How to export.
#[derive(Default)]
pub struct ExportOptions<'a> {
    /// Goes on where an entry, or a part of one, cannot be read or written; each loss is told.
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
    /// Losses that were told.
    pub losses: u64,
}

/// Puts everything that a source has into a sink. An entry whose data is lost in part is there with zeroes.
pub fn export(source: &mut dyn Source, sink: &mut dyn Sink, options: ExportOptions<'_>) -> Result<Exported> {
    let done = Exported::default();
    let mut exporter = Exporter { options, done, buf: vec![0; RUN_BYTES], missing: None, range: None };
    loop {
        match source.next_entry() {
            Ok(Some(entry)) => exporter.entry(&entry, source, sink)?,
            Ok(None) => break,
            Err(error @ Error::Lost { .. }) => exporter.lose(error)?,
            Err(error) => return Err(error),
        }
    }
    sink.finish()?;
    exporter.lose_parts(sink)?;
    Ok(exporter.done)
}

struct Exporter<'a> {
    options: ExportOptions<'a>,
    done: Exported,
    buf: Vec<u8>,
    /// A directory that could not be made: nothing in it can be.
    missing: Option<Vec<u8>>,
    /// Bytes of the file that are lost and not told yet, and why: what follows on it is told with it.
    range: Option<(Range<u64>, Error)>,
}

impl Exporter<'_> {
    fn entry(&mut self, entry: &Entry, source: &mut dyn Source, sink: &mut dyn Sink) -> Result<()> {
        self.tell(&entry.path);
        let taken = match &self.missing {
            Some(missing) if is_inside(&entry.path, missing) => {
                Err(Error::Invalid(format!("{} could not be made", show(missing)).into()))
            }
            _ => sink.entry(entry),
        };
        self.lose_parts(sink)?;
        match taken {
            Ok(true) => {}
            Ok(false) => {
                source.refused();
                return Ok(());
            }
            Err(error) if sink.is_broken() => return Err(error),
            Err(error) => {
                source.refused();
                let is_told = self.missing.as_ref().is_some_and(|missing| is_inside(&entry.path, missing));
                if entry.kind == Kind::Directory && !is_told {
                    self.missing = Some(entry.path.clone());
                }
                return self.lose(Error::lost(&entry.path, error));
            }
        }
        self.done.entries += 1;
        if let Kind::File { size, .. } = entry.kind {
            self.content(entry, size, source, sink)?;
            self.tell_range(&entry.path)?;
        }
        Ok(())
    }

    fn content(
        &mut self,
        entry: &Entry,
        size: u64,
        source: &mut dyn Source,
        sink: &mut dyn Sink,
    ) -> Result<()> {
        loop {
            let run = match source.next_run(&mut self.buf) {
                Ok(Some(run)) => run,
                Ok(None) => return Ok(()),
                Err(Error::Lost { bytes: Some(bytes), source, .. }) => {
                    self.lose_range(&entry.path, bytes, *source)?;
                    continue;
                }
                Err(error @ Error::Lost { .. }) => {
                    self.lose(error)?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if let Err(error) = sink.run(run.offset, &self.buf[..run.length]) {
                if sink.is_broken() {
                    return Err(error);
                }
                return self.lose_range(&entry.path, run.offset..size, error);
            }
            self.done.bytes += run.length as u64;
            self.tell(&entry.path);
        }
    }

    /// Bytes of a file are lost.
    fn lose_range(&mut self, path: &[u8], bytes: Range<u64>, error: Error) -> Result<()> {
        match &mut self.range {
            Some((lost, _)) if lost.end == bytes.start => lost.end = bytes.end,
            _ => {
                self.tell_range(path)?;
                self.range = Some((bytes, error));
            }
        }
        if self.options.keep_going { Ok(()) } else { self.tell_range(path) }
    }

    fn tell_range(&mut self, path: &[u8]) -> Result<()> {
        let Some((bytes, error)) = self.range.take() else { return Ok(()) };
        self.lose(Error::Lost { path: path.to_vec(), bytes: Some(bytes), source: Box::new(error) })
    }

    /// Something is lost: fatal, except where the caller wants to go on.
    fn lose(&mut self, error: Error) -> Result<()> {
        if !self.options.keep_going {
            return Err(error);
        }
        self.note(&error);
        Ok(())
    }

    /// Tells the losses of the sink.
    fn lose_parts(&mut self, sink: &mut dyn Sink) -> Result<()> {
        for Loss { path, error, is_tolerated } in sink.losses() {
            let error = Error::lost(&path, error);
            if is_tolerated { self.note(&error) } else { self.lose(error)? }
        }
        Ok(())
    }

    fn note(&mut self, error: &Error) {
        self.done.losses += 1;
        if let Some(lost) = &mut self.options.lost {
            lost(error);
        }
    }

    fn tell(&mut self, path: &[u8]) {
        if let Some(progress) = &mut self.options.progress {
            progress(Progress { entries: self.done.entries, bytes: self.done.bytes, path });
        }
    }
}
