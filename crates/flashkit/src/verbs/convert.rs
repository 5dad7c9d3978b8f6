//! `convert`: copies an image in one format to another.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use block::{Device, data_ranges};
use image::Source;
use indicatif::{BinaryBytes, ProgressBar};

use crate::{
    bmap::UsedBlocks,
    host,
    interrupt::Outcome,
    notice::notice,
    output::{Existing, Form, Fresh, HOLE_BYTES, Output, is_one_place, write_sparse},
    progress,
    target::{Range, open_device, with_content},
};

/// Bytes copied at once.
const STEP_BYTES: usize = 1 << 20;

/// Arguments of `convert`.
#[derive(clap::Args)]
#[command(
    after_help = "The format of the source follows from its first bytes: raw, Android sparse, qcow2, and each of them \
compressed by gzip, xz or zstd.
--format names it; qcow2 backing files need that. Zeroes become holes of a raw image, and fill chunks of a sparse image.

A block device, a partition of an existing disk or an NBD export is written in place; bytes behind the image stay. -f
overwrites content that is recognized there.

Examples:
  flashkit convert userdata.simg userdata.img
  flashkit convert userdata.img userdata.simg --to sparse
  flashkit convert sd.img#2 root.img
  flashkit convert disk.qcow2 disk.img
  flashkit convert userdata.simg /dev/mmcblk0p2
  flashkit convert card.img out.img --bmap out.bmap && bmaptool copy --bmap out.bmap out.img /dev/sdb
  flashkit convert overlay.qcow2 disk.img --format qcow2"
)]
pub struct Args {
    /// The image, or a partition of it as IMAGE#NUMBER or IMAGE#NAME.
    from: PathBuf,
    /// The new image, which appears when it is complete; or a block device, partition or NBD export.
    output: PathBuf,
    #[command(flatten)]
    range: Range,
    /// Format of the new image.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Raw)]
    to: Format,
    /// Also write a map of the blocks that the volume uses, with checksums, so that bmaptool(1) copies only these.
    #[arg(long, value_name = "FILE")]
    bmap: Option<PathBuf>,
    /// Replace an existing file, or overwrite the content of a device.
    #[arg(short, long)]
    force: bool,
    /// Print nothing but errors.
    #[arg(short, long)]
    quiet: bool,
}

/// Format of a new image.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// The bytes of the disk, with holes.
    Raw,
    /// An Android sparse image.
    Sparse,
}

/// Converts the image.
pub fn run(args: &Args) -> Result<()> {
    let source = args.range.of(&args.from);
    let to = Source::parse(&args.output);
    if host::is_same(source.path(), to.path()) {
        bail!("{to}: it is on the disk of {source}; convert that to another file first");
    }
    let device = open_device(&source)?;
    let bytes = device.geometry().size_bytes;
    let existing = Existing::look(&to, args.force)?;
    if let Existing::InPlace { bytes: space } = existing {
        require_place(args, &source, &to, bytes, space)?;
    }
    let outcome = Outcome::new(match existing {
        Existing::InPlace { .. } => format!("{to}: the image on it is incomplete; run convert again"),
        Existing::Nothing | Existing::File { .. } => format!("{to}: nothing was written"),
    });
    let bar = progress::bytes("converting", Some(bytes), args.quiet);
    // The map gets its name last: a map without the image would be of no use.
    let map = match &args.bmap {
        Some(path) => Some(write_map(args, path, (&source, &device), &to, &bar)?),
        None => None,
    };
    match args.to {
        Format::Raw => to_raw(&*device, &source, &to, existing, &bar)?,
        Format::Sparse => {
            let fresh = Fresh::new(&args.output)?;
            let all = std::iter::once(0..bytes).collect();
            write_sparse(&*device, &source.to_string(), &fresh, all, &bar)?;
            fresh.finish()?;
        }
    }
    map.map_or(Ok(()), Fresh::finish)?;
    bar.finish_and_clear();
    drop(outcome);
    if !args.quiet {
        notice!("{source}: {} to {}", BinaryBytes(bytes), args.output.display());
    }
    Ok(())
}

/// Writes the map of used blocks to a file that has no name yet.
fn write_map(
    args: &Args,
    path: &Path,
    (source, device): (&Source, &Arc<dyn Device>),
    to: &Source,
    bar: &ProgressBar,
) -> Result<Fresh> {
    let place = Source::parse(path);
    require_map_place(args, &place, source, to)?;
    let of_source = |error: anyhow::Error| with_content(source, error.context(source.to_string()));
    let used = UsedBlocks::of(device.clone()).map_err(of_source)?;
    let fresh = Fresh::new(place.path())?;
    let map = used.map(&**device, bar).with_context(|| source.to_string())?;
    fs::write(fresh.working(), map).with_context(|| place.to_string())?;
    Ok(fresh)
}

/// Refuses a map of a sparse image, and a place of the map that is the source or the output, or that holds something
/// else.
fn require_map_place(args: &Args, map: &Source, from: &Source, to: &Source) -> Result<()> {
    if args.to == Format::Sparse {
        bail!("--bmap is for raw images; a sparse image has a map of its own");
    }
    for other in [from, to] {
        if is_one_place(map.path(), other.path()) {
            bail!("{map}: it is the file of {other}; choose another file for the map");
        }
    }
    match Existing::look(map, args.force)? {
        Existing::Nothing | Existing::File { .. } => Ok(()),
        Existing::InPlace { .. } => bail!("{map}: a map is a file; choose another name for it"),
    }
}

/// Refuses to write `bytes` of an image in place to a device or partition of `space` bytes that cannot take them.
fn require_place(args: &Args, from: &Source, to: &Source, bytes: u64, space: u64) -> Result<()> {
    if args.to == Format::Sparse {
        bail!("{to}: --to sparse makes a file; without it, the bytes of the image are written here");
    }
    if args.bmap.is_some() {
        bail!("{to}: --bmap is for image files; a device is written whole");
    }
    if bytes > space {
        bail!("{to}: {space} bytes, too small for the {bytes} bytes of {from}; nothing was written");
    }
    Ok(())
}

fn to_raw(
    device: &dyn Device,
    from: &Source,
    to: &Source,
    existing: Existing,
    bar: &ProgressBar,
) -> Result<()> {
    let bytes = device.geometry().size_bytes;
    let output = match existing {
        Existing::InPlace { .. } => Output::in_place(to)?,
        Existing::Nothing | Existing::File { .. } => Output::file(to.path(), bytes, Form::Raw)?,
    };
    let mut buf = vec![0; STEP_BYTES];
    let mut copy = |bytes: std::ops::Range<u64>| {
        for at in bytes.clone().step_by(STEP_BYTES) {
            let step = &mut buf[..(bytes.end - at).min(STEP_BYTES as u64) as usize];
            device.read(at, step).with_context(|| from.to_string())?;
            output.write(at, step)?;
            bar.set_position(at + step.len() as u64);
        }
        anyhow::Ok(())
    };
    if output.is_blank() {
        // Whole blocks, because only these can bypass the cache.
        let block = HOLE_BYTES as u64;
        for data in data_ranges(device, 0..bytes) {
            copy(data.start / block * block..data.end.next_multiple_of(block).min(bytes))?;
        }
    } else {
        copy(0..bytes)?;
    }
    output.finish()
}
