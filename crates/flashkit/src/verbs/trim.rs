//! `trim`: tells the device which blocks are unused.

use anyhow::Result;
use serde::Serialize;

use crate::{render, size, target::Image};

/// Arguments of `trim`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  flashkit trim /dev/mmcblk0p2 --least 1M")]
pub struct Args {
    #[command(flatten)]
    image: Image,
    /// Skip free runs that are shorter than this.
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = size::parse)]
    least: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Result of a trim.
#[derive(Serialize)]
struct Record {
    trimmed_bytes: u64,
}

/// Trims the volume.
pub fn run(args: &Args) -> Result<()> {
    let trimmed_bytes = args.image.change(|volume| {
        let block_bytes = volume.superblock().block_size.bytes() as u64;
        let least_blocks = u32::try_from(args.least.div_ceil(block_bytes)).unwrap_or(u32::MAX);
        Ok(volume.trim(least_blocks)? * block_bytes)
    })?;
    let record = Record { trimmed_bytes };
    render::print(&record, args.json, |record, out| {
        writeln!(out, "{} trimmed", indicatif::BinaryBytes(record.trimmed_bytes))
    })
}
