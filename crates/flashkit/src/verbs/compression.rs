//! `compression`: the space that compression saves on a volume, and its release or reservation.

use std::io::Write;

use anyhow::{Context, Result};
use f2fs::{
    engine::{Caller, Engine, FinalSymlink},
    format::FileType,
    units::Ino,
};
use indicatif::{BinaryBytes, HumanCount};
use serde::Serialize;

use crate::{
    below::{Below, Depth},
    render::{self, PathRows},
    target::{Further, Target},
};

/// Arguments of `compression`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  flashkit compression system.img:/app --files\n  \
    flashkit compression system.img:/app --release")]
pub struct Args {
    /// The image, and a path inside it.
    #[arg(value_name = "IMAGE[:PATH]")]
    target: Target,
    #[command(flatten)]
    further: Further,
    /// List each compressed file.
    #[arg(long)]
    files: bool,
    /// Release the space saved by compression, before the report. The files then cannot be written.
    #[arg(long, conflicts_with = "reserve")]
    release: bool,
    /// Reserve the released space again, before the report.
    #[arg(long)]
    reserve: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// One compressed file.
#[derive(Serialize)]
struct File {
    algorithm: &'static str,
    cluster_blocks: u32,
    logical_bytes: u64,
    saved_bytes: u64,
    released: bool,
}

/// The sums.
#[derive(Serialize, Default)]
struct Report {
    regular_files: u64,
    compressed_files: u64,
    /// Size of the compressed files' content.
    logical_bytes: u64,
    /// Space of their clusters, without the blocks saved by compression.
    stored_bytes: u64,
    /// Blocks saved by compression that are still reserved for the files.
    releasable_blocks: u64,
    /// Blocks saved by compression that have been released.
    released_blocks: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<PathRows<File>>,
}

/// Prints the report.
pub fn run(args: &Args) -> Result<()> {
    if args.release || args.reserve {
        change(args)?;
    }
    let (volume, _) = args.target.find(&args.further)?;
    let mut report = Report { files: args.files.then(PathRows::default), ..Report::default() };
    let mut below = Below::new(&volume, &args.target.path, FinalSymlink::NoFollow, Depth::Recursive)?;
    while let Some((ino, kind)) = below.next(&volume)? {
        if kind == FileType::Regular {
            report.add(&volume, ino, &below.path()).with_context(|| below.shown())?;
        }
    }
    render::print(&report, args.json, |report, out| report.text(out))
}

/// Releases or reserves the space saved by compression.
fn change(args: &Args) -> Result<()> {
    args.target.change(&args.further, |volume| {
        let mut below = Below::new(volume, &args.target.path, FinalSymlink::Follow, Depth::Recursive)?;
        while let Some((ino, _)) = below.next(volume)? {
            let stat = volume.stat(ino).with_context(|| below.shown())?;
            let is_file = stat.kind == FileType::Regular;
            if !is_file || stat.compression.is_none() || stat.released == args.release {
                continue;
            }
            let done = if args.release {
                volume.begin(Caller::ADMIN).release_saved(ino)
            } else {
                volume.begin(Caller::ADMIN).reserve_saved(ino)
            };
            done.with_context(|| below.shown())?;
        }
        Ok(())
    })
}

impl Report {
    fn add(&mut self, volume: &Engine, ino: Ino, path: &[u8]) -> f2fs::Result<()> {
        self.regular_files += 1;
        let stat = volume.stat(ino)?;
        let Some(how) = stat.compression else { return Ok(()) };
        let block_bytes = volume.superblock().block_size.bytes() as u64;
        self.compressed_files += 1;
        self.logical_bytes += stat.size;
        let whole_blocks = stat.size.div_ceil(block_bytes);
        let (saved_blocks, sum) = match stat.released {
            true => (volume.released_blocks(ino)?, &mut self.released_blocks),
            false => (stat.saved_blocks, &mut self.releasable_blocks),
        };
        *sum += saved_blocks;
        self.stored_bytes += whole_blocks.saturating_sub(saved_blocks) * block_bytes;
        if let Some(files) = &mut self.files {
            let file = File {
                algorithm: how.algorithm.name(),
                cluster_blocks: 1 << how.log_cluster_blocks,
                logical_bytes: stat.size,
                saved_bytes: saved_blocks * block_bytes,
                released: stat.released,
            };
            files.push(path, file);
        }
        Ok(())
    }

    fn text(&self, out: &mut dyn Write) -> std::io::Result<()> {
        for (path, file) in self.files.iter().flat_map(PathRows::iter) {
            writeln!(
                out,
                "{}: {} of {} saved, {} in clusters of {} blocks{}",
                path,
                BinaryBytes(file.saved_bytes),
                BinaryBytes(file.logical_bytes),
                file.algorithm,
                file.cluster_blocks,
                if file.released { ", released" } else { "" }
            )?;
        }
        writeln!(
            out,
            "{}, {} of them compressed",
            render::count(self.regular_files, "regular file"),
            HumanCount(self.compressed_files)
        )?;
        writeln!(
            out,
            "their content: {}, stored in {}",
            BinaryBytes(self.logical_bytes),
            BinaryBytes(self.stored_bytes)
        )?;
        writeln!(
            out,
            "{} could be released, {} released so far",
            render::count(self.releasable_blocks, "block"),
            HumanCount(self.released_blocks)
        )
    }
}
