//! Export from a source to a sink.

use std::ops::Range;

use f2fs::{Error, Result, printable};

use crate::{Entry, Kind, Progress, Source, path::is_inside};

/// Bytes of a file read and written at once.
const RUN_BYTES: usize = 1 << 20;

/// The destination of a tree. It takes entries one by one, in the order of a [`Source`].
pub trait Sink {
    /// Starts an entry and completes the previous one. Returns `false` if the destination cannot store such
    /// an entry, which is then among the [`losses`](Self::losses). An error costs only this entry, unless the
    /// sink [is broken](Self::is_broken).
    fn entry(&mut self, entry: &Entry) -> Result<bool>;

    /// Takes a run of data of the last entry, which is a file. Runs come in ascending order. Bytes between
    /// runs and after the last one are zero. An error costs the data from this run on.
    fn run(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Completes the last entry and the tree.
    fn finish(&mut self) -> Result<()>;

    /// Returns the parts of entries lost since the last call.
    fn losses(&mut self) -> Vec<Loss> {
        Vec::new()
    }

    /// Returns true if the sink can take nothing more after an error.
    fn is_broken(&self) -> bool {
        false
    }
}

/// A part of an entry that a sink could not store, although the rest of the entry is there.
#[derive(Debug)]
pub struct Loss {
    /// Path of the entry.
    pub path: Vec<u8>,
    /// The reason.
    pub error: Error,
    /// True if the destination cannot store such a part. The export then continues even without
    /// [`keep_going`](ExportOptions::keep_going).
    pub is_tolerated: bool,
}

/// Callback for each lost part of the tree, an [`Error::Lost`].
pub type Lost<'a> = &'a mut dyn FnMut(&Error);

/// Options of an export.
#[derive(Default)]
pub struct ExportOptions<'a> {
    /// True if the export continues after an entry, or a part of one, that cannot be read or written. It always
    /// continues after an encrypted entry whose key is missing or cannot decrypt it.
    pub keep_going: bool,
    /// Called for every loss.
    pub lost: Option<Lost<'a>>,
    /// Called for every entry and every run of data.
    pub progress: Option<&'a mut dyn FnMut(Progress<'_>)>,
}

/// Totals of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exported {
    /// Entries, including the root.
    pub entries: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// Reported losses.
    pub losses: u64,
}

/// Copies a tree from a source to a sink. If part of a file's data is lost, the file has zeroes there.
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
    /// A directory that could not be created; entries below it fail, too.
    missing: Option<Vec<u8>>,
    /// Lost bytes of the current file that are not reported yet, and the reason. An adjacent loss is merged
    /// into them.
    range: Option<(Range<u64>, Error)>,
}

impl Exporter<'_> {
    fn entry(&mut self, entry: &Entry, source: &mut dyn Source, sink: &mut dyn Sink) -> Result<()> {
        self.tell(&entry.path);
        let taken = match &self.missing {
            Some(missing) if is_inside(&entry.path, missing) => Err(Error::Invalid(
                format!("its directory {} could not be created", printable::path(missing)).into(),
            )),
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

    /// Records that bytes of a file are lost.
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

    /// Reports a loss, or fails if the caller does not want to continue.
    fn lose(&mut self, error: Error) -> Result<()> {
        if !self.options.keep_going && !is_without_key(&error) {
            return Err(error);
        }
        self.note(&error);
        Ok(())
    }

    /// Reports the losses of the sink.
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

/// Returns true if an entry is lost because its key is missing or cannot decrypt it.
fn is_without_key(error: &Error) -> bool {
    let is_of_key =
        |source: &Error| matches!(source, Error::NoKey | Error::OtherKey(_) | Error::UnusableKey(_));
    matches!(error, Error::Lost { source, .. } if is_of_key(source))
}
