//! `export`: copies a volume, or a part of it, into a directory or tar archive.

use std::{
    fs::File,
    io::{self, BufWriter, IsTerminal, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use f2fs::Error;
use f2fs_tree::{Compression, DirSink, ExportOptions, Exported, Holes, Owners, Sink, TarSink, VolumeSource};
use indicatif::BinaryBytes;
use serde::Serialize;

use crate::{
    interrupt::Outcome,
    notice::notice,
    output::Fresh,
    progress,
    render::{self, Name, keyed},
    target::{Further, Target},
};

/// Arguments of `export`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  flashkit export card.img photos/
  flashkit export card.img:/etc etc.tar.xz
  flashkit export card.img - | tar t")]
pub struct Args {
    /// The image, and a path inside it.
    #[arg(value_name = "IMAGE[:PATH]")]
    target: Target,
    /// A directory, made if it does not exist; a tar archive named *.tar, *.tar.gz (*.tgz), *.tar.xz (*.txz)
    /// or *.tar.zst (*.tzst), which appears when it is complete; or - for a tar archive on standard output.
    destination: PathBuf,
    #[command(flatten)]
    further: Further,
    /// Keep files with holes sparse in a tar archive (GNU's format 1.0 for pax).
    #[arg(long)]
    sparse: bool,
    /// Give everything to the calling user; by default owners are kept if root's rights allow it.
    #[arg(long)]
    no_owners: bool,
    /// Export encrypted files as they are stored.
    #[arg(long)]
    raw: bool,
    /// Continue after read and write errors. Each loss is reported with its path, and with the lost bytes of
    /// a file's content, which are zeroes in the copy. The exit code is then 1.
    #[arg(short, long)]
    keep_going: bool,
    /// Replace existing files in the directory, for example after an interrupted export; directories are
    /// merged.
    #[arg(long)]
    overwrite: bool,
    /// Print nothing but errors.
    #[arg(short, long)]
    quiet: bool,
    /// Print a summary as JSON; not with a tar archive on standard output.
    #[arg(long)]
    json: bool,
}

/// Summary of an export.
#[derive(Serialize)]
struct Record {
    source: String,
    destination: String,
    entries: u64,
    content_bytes: u64,
    losses: u64,
    lost: Vec<Loss>,
}

/// A lost part of the tree.
#[derive(Serialize)]
struct Loss {
    #[serde(flatten, serialize_with = "keyed::path")]
    path: Name,
    /// The first lost byte, and the byte after the last; null if more than a part of a file's content is
    /// lost.
    from_byte: Option<u64>,
    to_byte: Option<u64>,
    reason: String,
}

impl Loss {
    fn of(error: &Error) -> Option<Loss> {
        let Error::Lost { path, bytes, source } = error else { return None };
        Some(Loss {
            path: Name(path.clone()),
            from_byte: bytes.as_ref().map(|bytes| bytes.start),
            to_byte: bytes.as_ref().map(|bytes| bytes.end),
            reason: source.to_string(),
        })
    }
}

/// Exports the tree.
pub fn run(args: &Args) -> Result<()> {
    let name = || args.target.to_string();
    let (volume, root) = args.target.find(&args.further)?;
    let mut source = VolumeSource::new(&volume, root, args.target.name()).with_context(name)?;
    if args.raw {
        source = source.raw();
    }
    let to_stdout = args.destination == Path::new("-");
    let destination = || args.destination.display().to_string();
    let archive = match args.destination.is_dir() {
        true => None,
        false => {
            Compression::of_name(args.destination.as_os_str().as_encoded_bytes()).with_context(destination)?
        }
    };
    if args.overwrite && (to_stdout || archive.is_some()) {
        bail!("--overwrite applies only to directories; an archive is always rewritten");
    }
    let outcome = Outcome::new(match (to_stdout, archive.is_some()) {
        (true, _) => "the archive is incomplete".into(),
        (_, true) => format!("{}: nothing was written", destination()),
        (_, false) => {
            format!("{}: the entries exported so far are kept; --overwrite continues", destination())
        }
    });
    let (done, lost) = carry_to(args, archive, &mut source)?;
    drop(outcome);
    let record = Record {
        source: name(),
        destination: destination(),
        entries: done.entries,
        content_bytes: done.bytes,
        losses: done.losses,
        lost,
    };
    if args.json && !to_stdout {
        render::fields(&record, true)?;
    } else if !args.quiet {
        notice!(
            "{}: {}, {} of data to {}",
            record.source,
            render::count(record.entries, "entry"),
            BinaryBytes(record.content_bytes),
            record.destination
        );
    }
    match record.losses {
        0 => Ok(()),
        losses => bail!("{} could not be exported", render::count(losses, "thing")),
    }
}

impl Args {
    /// Returns the form of holes in an archive.
    fn holes(&self) -> Holes {
        if self.sparse { Holes::Kept } else { Holes::Filled }
    }
}

/// Exports to the destination that the arguments name: a compressed archive or a directory.
fn carry_to(
    args: &Args,
    archive: Option<Compression>,
    source: &mut VolumeSource<'_>,
) -> Result<(Exported, Vec<Loss>)> {
    let (name, destination) = (|| args.target.to_string(), || args.destination.display().to_string());
    if args.destination == Path::new("-") {
        if io::stdout().is_terminal() {
            bail!("standard output is a terminal; name a directory or a .tar file");
        }
        let stdout = BufWriter::with_capacity(1 << 20, render::Stdout::lock());
        let mut sink = TarSink::new(stdout, args.holes());
        let done = carry(args, source, &mut sink).with_context(name)?;
        sink.into_inner().flush()?;
        Ok(done)
    } else if let Some(compression) = archive {
        let fresh = Fresh::new(&args.destination)?;
        let file = File::create(fresh.working()).with_context(destination)?;
        let file = compression.begin(BufWriter::with_capacity(1 << 20, file)).with_context(destination)?;
        let mut sink = TarSink::new(file, args.holes());
        let done = carry(args, source, &mut sink).with_context(name)?;
        sink.into_inner().finish().and_then(|mut file| file.flush()).with_context(destination)?;
        fresh.finish()?;
        Ok(done)
    } else {
        let owners = if args.no_owners { Owners::Caller } else { Owners::permitted() };
        let mut sink = DirSink::new(&args.destination, owners).with_context(destination)?;
        if args.overwrite {
            sink = sink.overwriting();
        }
        carry(args, source, &mut sink).with_context(name)
    }
}

/// Copies everything from a source to a sink. Collects the losses if JSON is requested.
fn carry(args: &Args, source: &mut VolumeSource<'_>, sink: &mut dyn Sink) -> Result<(Exported, Vec<Loss>)> {
    let bar = progress::bytes("exporting", None, args.quiet || args.json);
    let mut tell = progress::teller(&bar);
    let mut losses = Vec::new();
    let mut lost = |error: &Error| {
        bar.suspend(|| notice!("flashkit: {error}"));
        losses.extend(args.json.then(|| Loss::of(error)).flatten());
    };
    let options =
        ExportOptions { keep_going: args.keep_going, lost: Some(&mut lost), progress: Some(&mut tell) };
    let done = f2fs_tree::export(source, sink, options)?;
    bar.finish_and_clear();
    Ok((done, losses))
}
