//! Copying of a tree to the destination that a verb names: a directory, an archive or standard output.

use std::{
    fs::{self, File},
    io::{self, BufWriter, IsTerminal, Write},
    path::Path,
};

use anyhow::{Context, Result, anyhow, bail};
use f2fs::Error;
use f2fs_tree::{Compression, DirSink, ExportOptions, Exported, Holes, Owners, Sink, Source, TarSink};
use serde::Serialize;

use crate::{
    host,
    interrupt::Outcome,
    notice::notice,
    output::Fresh,
    progress,
    render::{self, PathRows},
};

/// A copy of a tree.
pub struct Carry<'a> {
    /// Verb in the progress, such as "exporting".
    pub what: &'static str,
    /// Name of the source, for messages.
    pub source: String,
    /// A directory, an archive, or `-`.
    pub destination: &'a Path,
    /// Form of holes in a tar archive.
    pub holes: Holes,
    /// Owners of the entries of a directory.
    pub owners: Owners,
    /// True if existing files in a directory are replaced, each when its replacement is complete.
    pub overwrite: bool,
    /// True if the copy continues after a loss.
    pub keep_going: bool,
    /// True if only errors are printed.
    pub quiet: bool,
    /// True if losses are collected for JSON.
    pub json: bool,
}

/// The files whose holes stay holes in a tar archive, as on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Sparse {
    /// All files.
    Always,
    /// Files with at least 1 MiB of holes, and more holes than data.
    Auto,
    /// None: holes become zeroes.
    Never,
}

impl From<Sparse> for Holes {
    fn from(sparse: Sparse) -> Holes {
        match sparse {
            Sparse::Always => Holes::Kept,
            Sparse::Auto => Holes::LargeKept,
            Sparse::Never => Holes::Filled,
        }
    }
}

/// A lost part of the tree.
#[derive(Serialize)]
pub struct Loss {
    /// The first lost byte, and the byte after the last; null if more than a part of a file's content is
    /// lost.
    from_byte: Option<u64>,
    to_byte: Option<u64>,
    reason: String,
}

impl Loss {
    /// Adds the record of a loss.
    pub fn add(losses: &mut PathRows<Loss>, error: &Error) {
        let Error::Lost { path, bytes, source } = error else { return };
        let loss = Loss {
            from_byte: bytes.as_ref().map(|bytes| bytes.start),
            to_byte: bytes.as_ref().map(|bytes| bytes.end),
            reason: source.to_string(),
        };
        losses.push(path, loss);
    }
}

impl Carry<'_> {
    /// Returns true if the destination is standard output.
    pub fn is_to_stdout(&self) -> bool {
        self.destination == Path::new("-")
    }

    /// Returns true if the destination is a pipe or a device: it is written to, and not replaced.
    fn is_to_stream(&self) -> bool {
        fs::metadata(self.destination).is_ok_and(|found| !found.is_file() && !found.is_dir())
    }

    /// Name of the destination, for messages.
    pub fn destination_name(&self) -> String {
        self.destination.display().to_string()
    }

    /// Copies the tree. Returns the totals and, for JSON, the losses.
    pub fn run(&self, source: &mut dyn Source) -> Result<(Exported, PathRows<Loss>)> {
        let archive = match self.destination.is_dir() {
            true => None,
            false => Compression::of_name(self.destination.as_os_str().as_encoded_bytes())
                .with_context(|| self.destination_name())?,
        };
        if self.overwrite && (self.is_to_stdout() || archive.is_some()) {
            bail!("--overwrite applies only to directories; an archive is always rewritten");
        }
        let destination = self.destination_name();
        let _outcome = Outcome::new(match (self.is_to_stdout() || self.is_to_stream(), archive.is_some()) {
            (true, _) => "the archive is incomplete".into(),
            (_, true) => format!("{destination}: nothing was written"),
            (_, false) => {
                format!("{destination}: the entries exported so far are kept; --overwrite continues")
            }
        });
        match archive {
            _ if self.is_to_stdout() => self.to_stdout(source),
            Some(compression) => self.to_archive(compression, source),
            None => self.to_directory(source),
        }
    }

    fn to_stdout(&self, source: &mut dyn Source) -> Result<(Exported, PathRows<Loss>)> {
        if io::stdout().is_terminal() {
            bail!("standard output is a terminal; name a directory or a .tar file");
        }
        let mut sink = TarSink::new(BufWriter::with_capacity(1 << 20, render::Stdout::lock()), self.holes);
        let done = self.copy(source, &mut sink)?;
        sink.into_inner().flush()?;
        Ok(done)
    }

    fn to_archive(
        &self,
        compression: Compression,
        source: &mut dyn Source,
    ) -> Result<(Exported, PathRows<Loss>)> {
        let destination = || self.destination_name();
        let fresh = match self.is_to_stream() {
            true => None,
            false => Some(Fresh::new(self.destination)?),
        };
        let path = fresh.as_ref().map_or(self.destination, Fresh::working);
        let file = File::create(path).with_context(destination)?;
        let file = compression.begin(BufWriter::with_capacity(1 << 20, file)).with_context(destination)?;
        let mut sink = TarSink::new(file, self.holes);
        let done = self.copy(source, &mut sink)?;
        sink.into_inner().finish().and_then(|mut file| file.flush()).with_context(destination)?;
        fresh.map_or(Ok(()), Fresh::finish)?;
        Ok(done)
    }

    fn to_directory(&self, source: &mut dyn Source) -> Result<(Exported, PathRows<Loss>)> {
        let mut sink =
            DirSink::new(self.destination, self.owners).with_context(|| self.destination_name())?;
        if self.overwrite {
            sink = sink.overwriting();
            host::keep_on_interrupt(&sink);
        }
        self.copy(source, &mut sink)
    }

    /// Returns the end of a message: a way out, if there is one.
    fn remedy(&self, error: &Error) -> &'static str {
        let Error::Lost { source, .. } = error else { return "" };
        match &**source {
            // Other reasons for this kind of error have no number.
            Error::Host { source, .. }
                if source.kind() == io::ErrorKind::AlreadyExists && source.raw_os_error().is_some() =>
            {
                if self.overwrite { "" } else { "; --overwrite replaces existing files" }
            }
            _ => "",
        }
    }

    /// Copies everything from a source to a sink.
    fn copy(&self, source: &mut dyn Source, sink: &mut dyn Sink) -> Result<(Exported, PathRows<Loss>)> {
        let bar = progress::bytes(self.what, None, self.quiet || self.json);
        let mut tell = progress::teller(&bar);
        let mut losses = PathRows::default();
        let mut lost = |error: &Error| {
            bar.suspend(|| notice!("flashkit: {error}{}", self.remedy(error)));
            if self.json {
                Loss::add(&mut losses, error);
            }
        };
        let options =
            ExportOptions { keep_going: self.keep_going, lost: Some(&mut lost), progress: Some(&mut tell) };
        let done = f2fs_tree::export(source, sink, options).map_err(|error| match self.remedy(&error) {
            "" => anyhow::Error::from(error),
            remedy => anyhow!("{error}{remedy}"),
        });
        let done = done.with_context(|| self.source.clone())?;
        bar.finish_and_clear();
        Ok((done, losses))
    }
}
