//! `mv`: renames and moves inside a volume.

use anyhow::Result;
use f2fs::engine::{Caller, RenameMode};

use crate::target::{Further, Target, destination};

/// Arguments of `mv`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  flashkit mv card.img:/etc/hosts card.img:/etc/hosts.old")]
pub struct Args {
    /// The image and an existing path.
    #[arg(value_name = "IMAGE:FROM")]
    from: Target,
    /// The same image and the new path; an existing file is replaced, and a directory is moved into.
    #[arg(value_name = "IMAGE:TO")]
    to: Target,
    /// Replace nothing.
    #[arg(short, long)]
    no_clobber: bool,
    #[command(flatten)]
    further: Further,
}

/// Renames the file.
pub fn run(args: &Args) -> Result<()> {
    args.from.same_image(&args.to)?;
    let mode = if args.no_clobber { RenameMode::NoReplace } else { RenameMode::Replace };
    args.from.change(&args.further, |volume| {
        let (dir, name, kind) = args.from.entry(volume)?;
        let (to_dir, to_name) = destination(volume, &args.to, name, kind)?;
        Ok(volume.begin(Caller::ADMIN).rename(dir, name, to_dir, &to_name, mode)?)
    })
}
