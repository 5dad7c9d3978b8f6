//! `stat`: the metadata of a file.

use anyhow::{Context, Result};

use crate::{
    record::Entry,
    render,
    target::{Further, Target},
};

/// Arguments of `stat`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  flashkit stat card.img:/etc/passwd")]
pub struct Args {
    /// The image, and a path inside it.
    #[arg(value_name = "IMAGE[:PATH]")]
    target: Target,
    #[command(flatten)]
    further: Further,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the metadata.
pub fn run(args: &Args) -> Result<()> {
    let (volume, ino) = args.target.find(&args.further)?;
    let entry = Entry::of(&volume, ino, &args.target.path).with_context(|| args.target.to_string())?;
    render::fields(&entry, args.json)
}
