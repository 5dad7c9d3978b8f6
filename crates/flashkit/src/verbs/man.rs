//! `man`: the man pages, one a verb, from the same source as `--help`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::cli::Cli;

/// Arguments of `man`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  flashkit man /usr/local/share/man/man1 && man flashkit-mkfs")]
pub struct Args {
    /// The directory to write into.
    directory: PathBuf,
}

/// Writes the pages.
pub fn run(args: &Args) -> Result<()> {
    std::fs::create_dir_all(&args.directory).with_context(|| args.directory.display().to_string())?;
    clap_mangen::generate_to(Cli::command(), &args.directory)
        .with_context(|| args.directory.display().to_string())
}
