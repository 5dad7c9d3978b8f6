//! `label`: prints or changes the label of a volume.

use anyhow::Result;
use serde::Serialize;

use crate::{
    render,
    target::{Image, open_read_only},
};

/// Arguments of `label`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  flashkit label card.img
  flashkit label card.img DATA
  flashkit label card.img ''")]
pub struct Args {
    #[command(flatten)]
    image: Image,
    /// The new label; an empty one removes the label.
    label: Option<String>,
    /// Print no text.
    #[arg(short, long)]
    quiet: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The label.
#[derive(Serialize)]
struct Record {
    label: String,
}

/// Changes the label, if a new one is given, and prints the label.
pub fn run(args: &Args) -> Result<()> {
    if let Some(label) = &args.label {
        args.image.change(|volume| volume.set_label(label))?;
    }
    let volume = open_read_only(&args.image.image, &args.image.further)?;
    if args.quiet && !args.json {
        return Ok(());
    }
    let record = Record { label: volume.superblock().label.clone() };
    render::print(&record, args.json, |record, out| {
        writeln!(out, "{}", render::name(record.label.as_bytes()))
    })
}
