//! `import`: copies a directory or tar archive into an existing volume.

use std::path::PathBuf;

use anyhow::{Context, Result};
use f2fs::{
    Error,
    engine::{FinalSymlink, Options},
};
use f2fs_tree::{FillOptions, SavedSpace, Transform};
use indicatif::BinaryBytes;
use serde::Serialize;

use crate::{
    clock,
    compress::Compress,
    exclude::Exclude,
    interrupt::Outcome,
    progress, render,
    source::{Changes, Content, Reads},
    target::{AllOrNothing, Further, Target},
};

/// Arguments of `import`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  flashkit import photos/ card.img:/DCIM
  flashkit import base.tar overlay/ card.img --exclude '*.o'
  zstdcat backup.tar.zst | flashkit import - /dev/mmcblk0p2")]
pub struct Args {
    /// A directory, a tar archive (plain, gz, xz, zst), or - for a tar archive on standard input; further ones are
    /// laid over it. The image itself is skipped if it lies in a directory.
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<PathBuf>,
    /// The image and an existing directory inside it. Existing directories are merged, existing files
    /// replaced.
    #[arg(value_name = "IMAGE[:PATH]")]
    target: Target,
    #[command(flatten)]
    further: Further,
    /// Print nothing but errors.
    #[arg(short, long)]
    quiet: bool,
    /// Print a summary as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    exclude: Exclude,
    #[command(flatten)]
    changes: Changes,
    #[command(flatten)]
    compress: Compress,
}

/// Summary of an import.
#[derive(Serialize)]
struct Imported {
    target: String,
    entries: u64,
    content_bytes: u64,
    free_bytes: u64,
}

/// Returns the engine's options. If the source's times are replaced or limited, new inodes and changed directories
/// have that time, too, so that the same call makes the same volume.
fn engine_options(args: &Args, transform: &Transform) -> Options {
    let mut options = match transform.all_times.or(transform.latest) {
        Some(time) => Options::new(move || time),
        None => Options::new(clock::now),
    };
    args.compress.apply(&mut options);
    options
}

/// Imports the content. The last checkpoint makes either all or nothing of it durable.
pub fn run(args: &Args) -> Result<()> {
    let name = || args.target.to_string();
    let transform = args.changes.read()?;
    let into = std::iter::once(&args.target.image).chain(&args.further.place.devices);
    let content = Content::find(&args.sources, &args.exclude, transform.owners.as_ref())?;
    let content = content.leaving_out(into.map(PathBuf::as_path)).prepared(Reads::Once)?;
    let mut import = AllOrNothing::open(&args.target.image, &args.further, engine_options(args, &transform))?;
    let volume = &mut import.volume;
    args.compress.require(volume.superblock().features).with_context(name)?;
    let into = volume.resolve(&args.target.path, FinalSymlink::Follow).with_context(name)?;
    // How much compression will release is not known in advance.
    if content.is_repeatable() && args.compress.saved_space() == SavedSpace::Reserved {
        // If the content does not fit, not a block is written.
        let mut source = content.open()?;
        let need = f2fs_tree::count(&mut *source, &transform, volume.superblock(), volume.options());
        let need = need.map_err(|error| content.explain(error, &args.target.image, Into::into))?;
        let free_blocks = volume.free_user_blocks();
        if need.blocks > free_blocks {
            let block_size = volume.superblock().block_size;
            return Err(Error::no_space(block_size, need.blocks, free_blocks)).with_context(name);
        }
    }
    let outcome = Outcome::new(format!("{}: nothing was changed", args.target));
    outcome.undo(import.undo());
    let bar = progress::bytes("importing", None, args.quiet || args.json);
    let mut source = content.open()?;
    let mut tell = progress::teller(&bar);
    let saved_space = args.compress.saved_space();
    let how = FillOptions { transform, root: false, saved_space, progress: Some(&mut tell) };
    let filled =
        f2fs_tree::read_ahead(&mut *source, |source| f2fs_tree::fill(&mut import.volume, into, source, how));
    let done = match filled {
        Ok(done) => done,
        Err(error) => {
            import.give_up();
            return Err(content.explain(error, &args.target.image, Into::into));
        }
    };
    let volume = &import.volume;
    let free_bytes = volume.free_user_blocks() * volume.superblock().block_size.bytes() as u64;
    outcome.change(format!("{}: the volume has either all of the import or none of it", args.target));
    import.keep(&args.target.image)?;
    drop(outcome);
    bar.finish_and_clear();
    let imported = Imported {
        target: args.target.to_string(),
        entries: done.entries,
        content_bytes: done.bytes,
        free_bytes,
    };
    if args.quiet && !args.json {
        return Ok(());
    }
    render::print(&imported, args.json, |imported, out| {
        writeln!(
            out,
            "{}: {}, {} of data; {} left",
            imported.target,
            render::count(imported.entries, "entry"),
            BinaryBytes(imported.content_bytes),
            BinaryBytes(imported.free_bytes)
        )
    })
}
