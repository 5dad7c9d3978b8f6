//! `export`: copies a volume, or a part of it, into a directory or tar archive.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use f2fs_tree::{Owners, VolumeSource};
use indicatif::BinaryBytes;
use serde::Serialize;

use crate::{
    carry::{Carry, Loss, Sparse},
    exclude::Exclude,
    notice::notice,
    render::{self, PathRows},
    target::{Further, Target},
};

/// Arguments of `export`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  flashkit export card.img photos/
  flashkit export card.img:/etc etc.tar.xz
  flashkit export card.img backup/ --exclude /var/cache --exclude '*.tmp'
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
    /// Keep the holes of files in a tar archive (GNU's format 1.0 for pax), as GNU tar and bsdtar read it.
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_value = "auto",
          default_missing_value = "always")]
    sparse: Sparse,
    /// Give everything to the calling user; by default owners are kept if root's rights allow it.
    #[arg(long)]
    no_owners: bool,
    /// Export encrypted files as they are stored.
    #[arg(long, conflicts_with = "keys")]
    raw: bool,
    /// Continue after read and write errors. Each loss is reported with its path, and with the lost bytes of
    /// a file's content, which are zeroes in the copy. The exit code is then 1.
    #[arg(short, long)]
    keep_going: bool,
    /// Replace existing files in the directory, for example after an interrupted export; directories are
    /// merged.
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    exclude: Exclude,
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
    lost: PathRows<Loss>,
}

/// Exports the tree.
pub fn run(args: &Args) -> Result<()> {
    let name = || args.target.to_string();
    let (volume, root) = args.target.find(&args.further)?;
    let mut source = VolumeSource::new(&volume, root, args.target.name()).with_context(name)?;
    if args.raw {
        source = source.raw();
    }
    let mut source = source.excluding(args.exclude.read()?);
    let carry = Carry {
        what: "exporting",
        source: name(),
        destination: &args.destination,
        holes: args.sparse.into(),
        owners: if args.no_owners { Owners::Caller } else { Owners::permitted() },
        overwrite: args.overwrite,
        keep_going: args.keep_going,
        quiet: args.quiet,
        json: args.json,
    };
    let (done, lost) = f2fs_tree::read_ahead(&mut source, |source| carry.run(source))?;
    let record = Record {
        source: name(),
        destination: carry.destination_name(),
        entries: done.entries,
        content_bytes: done.bytes,
        losses: done.losses,
        lost,
    };
    if args.json && !carry.is_to_stdout() {
        render::print(&record, true, |_, _| Ok(()))?;
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
