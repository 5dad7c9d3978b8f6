//! `man`: the man pages, one per verb, from the same source as `--help`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::CommandFactory;
use jiff::Timestamp;

use crate::{cli::Cli, manual, source::epoch};

/// Arguments of `man`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  flashkit man /usr/local/share/man && man flashkit-mkfs
  flashkit man pages && man -l pages/man7/flashkit-filling.7

The pages are the same bytes whenever they are made; their date is that of the version, or of SOURCE_DATE_EPOCH.")]
pub struct Args {
    /// The directory of manuals; the pages go into man1, man7 and man8 below it.
    directory: PathBuf,
}

/// Writes the pages.
pub fn run(args: &Args) -> Result<()> {
    let date = match epoch()? {
        Some(time) => {
            let time = Timestamp::from_second(time.seconds).context("SOURCE_DATE_EPOCH")?;
            time.to_string().split('T').next().unwrap_or_default().to_owned()
        }
        None => manual::version_date().to_owned(),
    };
    manual::write(Cli::command(), &args.directory, &date)
}
