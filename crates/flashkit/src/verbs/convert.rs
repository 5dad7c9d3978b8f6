//! `convert`: copies an image in one format to another.

use std::{
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use block::Device;
use indicatif::{BinaryBytes, ProgressBar};

use crate::{
    interrupt::Outcome,
    notice::notice,
    output::{Existing, Form, Fresh, Output, write_sparse},
    progress,
    target::{Range, open_device},
};

/// Bytes copied at once.
const STEP_BYTES: usize = 1 << 20;

/// Arguments of `convert`.
#[derive(clap::Args)]
#[command(
    after_help = "The format of the source follows from its first bytes: raw, Android sparse, qcow2 with its backing \
files. Zeroes become holes of a raw image, and fill chunks of a sparse image.

Examples:
  flashkit convert userdata.simg userdata.img
  flashkit convert userdata.img userdata.simg --to sparse
  flashkit convert sd.img#2 root.img
  flashkit convert disk.qcow2 disk.img"
)]
pub struct Args {
    /// The image, or a partition of it as IMAGE#NUMBER or IMAGE#NAME.
    from: PathBuf,
    /// The new image, which appears when it is complete.
    output: PathBuf,
    #[command(flatten)]
    range: Range,
    /// Format of the new image.
    #[arg(long = "to", value_name = "FORMAT", value_enum, default_value_t = Format::Raw)]
    format: Format,
    /// Replace an existing file.
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
    let device = open_device(&source)?;
    let bytes = device.geometry().size_bytes;
    Existing::look(&image::Source::parse(&args.output), args.force)?;
    let outcome = Outcome::new(format!("{}: nothing was written", args.output.display()));
    let bar = progress::bytes("converting", Some(bytes), args.quiet);
    match args.format {
        Format::Raw => to_raw(&*device, &args.output, &bar).with_context(|| source.to_string())?,
        Format::Sparse => {
            let fresh = Fresh::new(&args.output)?;
            write_sparse(&*device, &fresh, std::iter::once(0..bytes).collect(), &bar)
                .with_context(|| args.output.display().to_string())?;
            fresh.finish()?;
        }
    }
    bar.finish_and_clear();
    drop(outcome);
    if !args.quiet {
        notice!("{source}: {} to {}", BinaryBytes(bytes), args.output.display());
    }
    Ok(())
}

fn to_raw(device: &dyn Device, to: &Path, bar: &ProgressBar) -> Result<()> {
    let output = Output::file(to, device.geometry().size_bytes, Form::Raw)?;
    copy(device, &*output.device, bar)?;
    output.finish()
}

/// Copies everything but zeroes to a device that reads as zeroes.
fn copy(from: &dyn Device, to: &dyn Device, bar: &ProgressBar) -> io::Result<()> {
    let bytes = from.geometry().size_bytes;
    let mut buf = vec![0; STEP_BYTES];
    for at in (0..bytes).step_by(STEP_BYTES) {
        let step = &mut buf[..(bytes - at).min(STEP_BYTES as u64) as usize];
        from.read(at, step)?;
        for (n, block) in
            step.chunks(4096).enumerate().filter(|(_, block)| block.iter().any(|byte| *byte != 0))
        {
            to.write(at + n as u64 * 4096, block)?;
        }
        bar.set_position(at + step.len() as u64);
    }
    Ok(())
}
