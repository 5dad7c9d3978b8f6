//! `mkdir`: makes directories.

use anyhow::Result;
use f2fs::{format::FileType, volume::NewNode};

use crate::target::{Further, Target};

/// Arguments of `mkdir`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  flashkit mkdir -p card.img:/var/log/app")]
pub struct Args {
    /// The image, and the path of the directory to make.
    #[arg(value_name = "IMAGE:PATH")]
    target: Target,
    /// Make what is missing above it too; no error where it is there.
    #[arg(short, long)]
    parents: bool,
    /// Permissions in octal.
    #[arg(short, long, default_value = "755", value_parser = super::chmod::octal)]
    mode: u16,
    #[command(flatten)]
    further: Further,
}

/// Makes the directory.
pub fn run(args: &Args) -> Result<()> {
    let mode = FileType::Directory.mode_bits() | args.mode;
    args.target.change(&args.further, |volume| {
        if !args.parents {
            let (dir, name) = args.target.parent(volume)?;
            volume.create(dir, name, &NewNode::new(mode))?;
            return Ok(());
        }
        let mut dir = volume.superblock().root_ino;
        for name in args.target.path.split('/').filter(|name| !name.is_empty()) {
            dir = match volume.resolve_from(dir, name.as_bytes(), true) {
                Ok(found) => found,
                Err(f2fs::Error::NotFound) => volume.create(dir, name.as_bytes(), &NewNode::new(mode))?,
                Err(error) => return Err(error.into()),
            };
        }
        Ok(())
    })
}
