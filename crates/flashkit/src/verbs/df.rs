//! `df`: the space of a volume.

use std::io::{self, Write};

use anyhow::Result;
use serde::Serialize;

use crate::{
    render, size,
    target::{Image, open_read_only},
};

/// Arguments of `df`.
#[derive(clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "The figures are those of df(1) on a mount of the volume.

Examples:
  flashkit df card.img
  flashkit df -h /dev/mmcblk0p2
  flashkit df -i card.img
  flashkit df --json card.img | jq .available_bytes"
)]
pub struct Args {
    #[command(flatten)]
    image: Image,
    /// Print sizes for people, in powers of 1024: 1.5M.
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Print inodes instead of space.
    #[arg(short, long)]
    inodes: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// Space of a volume.
#[derive(Serialize)]
struct Space {
    image: String,
    block_bytes: u64,
    size_bytes: u64,
    used_bytes: u64,
    available_bytes: u64,
    inodes: u64,
    used_inodes: u64,
    free_inodes: u64,
}

/// Prints the space.
pub fn run(args: &Args) -> Result<()> {
    let image = &args.image.image;
    let volume = open_read_only(image, &args.image.further)?;
    let (space, block_bytes) = (volume.space(), volume.superblock().block_size.bytes() as u64);
    let space = Space {
        image: image.display().to_string(),
        block_bytes,
        size_bytes: space.blocks * block_bytes,
        used_bytes: space.blocks.saturating_sub(space.free_blocks) * block_bytes,
        available_bytes: space.free_blocks * block_bytes,
        inodes: space.inodes,
        used_inodes: space.inodes.saturating_sub(space.free_inodes),
        free_inodes: space.free_inodes,
    };
    render::print(&space, args.json, |space, out| text(args, space, out))
}

fn text(args: &Args, space: &Space, out: &mut dyn Write) -> io::Result<()> {
    let (titles, figures) = match args.inodes {
        true => (
            ["Inodes", "IUsed", "IFree", "IUse%"],
            [space.inodes, space.used_inodes, space.free_inodes].map(|count| match args.human_readable {
                true => size::human(count),
                false => count.to_string(),
            }),
        ),
        false => (
            [if args.human_readable { "Size" } else { "1K-blocks" }, "Used", "Available", "Use%"],
            [space.size_bytes, space.used_bytes, space.available_bytes].map(|bytes| {
                match args.human_readable {
                    true => size::human(bytes),
                    false => bytes.div_ceil(1024).to_string(),
                }
            }),
        ),
    };
    let (used, free) = match args.inodes {
        true => (space.used_inodes, space.free_inodes),
        false => (space.used_bytes, space.available_bytes),
    };
    let image = render::name(space.image.as_bytes());
    let width = image.chars().count().max("Filesystem".len());
    let mut line = |first: &str, cells: [&str; 4]| {
        let [size, used, free, percent] = cells;
        writeln!(out, "{first:width$} {size:>12} {used:>12} {free:>12} {percent:>5}")
    };
    line("Filesystem", titles)?;
    let [size, used_text, free_text] = &figures;
    line(&image, [size, used_text, free_text, &percent(used, free)])
}

/// Formats the used share, rounded up as in df(1).
fn percent(used: u64, free: u64) -> String {
    match u128::from(used) + u128::from(free) {
        0 => "-".into(),
        all => format!("{}%", (u128::from(used) * 100).div_ceil(all)),
    }
}
