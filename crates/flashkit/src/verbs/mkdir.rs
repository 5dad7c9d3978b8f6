//! `mkdir`: makes directories.

use anyhow::Result;
use f2fs::{
    engine::{Caller, FinalSymlink, NewNode},
    format::FileType,
};

use crate::target::{Further, Target};

/// Kind and permissions of created parent directories.
const PARENTS_MODE: u16 = FileType::Directory.mode_bits() | 0o755;

/// Arguments of `mkdir`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  flashkit mkdir -p card.img:/var/log/app")]
pub struct Args {
    /// The image, and the path of the directory to make; any number of them, in one image.
    #[arg(value_name = "IMAGE:PATH", required = true)]
    targets: Vec<Target>,
    /// Make missing parents too; an existing directory is no error.
    #[arg(short, long)]
    parents: bool,
    /// Permissions in octal.
    #[arg(short, long, default_value = "755", value_parser = super::chmod::octal)]
    mode: u16,
    #[command(flatten)]
    further: Further,
}

/// Makes either all of them or none.
pub fn run(args: &Args) -> Result<()> {
    let mode = FileType::Directory.mode_bits() | args.mode;
    Target::change_all(&args.targets, &args.further, |volume, target| {
        if args.parents {
            match volume.resolve(&target.path, FinalSymlink::Follow) {
                Ok(found) if volume.stat(found)?.kind == FileType::Directory => return Ok(()),
                Ok(_) => return Err(f2fs::Error::Exists.into()),
                Err(f2fs::Error::NotFound) => {
                    volume.begin(Caller::ADMIN).create_dir_all(
                        target.parent_path(),
                        &NewNode::new(PARENTS_MODE),
                        0,
                    )?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        let (dir, name) = target.parent(volume)?;
        volume.begin(Caller::ADMIN).create(dir, name, &NewNode::new(mode))?;
        Ok(())
    })
}
