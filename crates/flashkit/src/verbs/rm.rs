//! `rm`: removes names.

use anyhow::{Result, bail};
use f2fs::{
    engine::{Caller, Engine},
    format::FileType,
    units::Ino,
    walk::Walk,
};

use crate::{
    render,
    target::{Further, Target},
};

/// Arguments of `rm`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  flashkit rm card.img:/etc/motd\n  flashkit rm -r card.img:/var/cache")]
pub struct Args {
    /// The image, and the path to remove; any number of them, in one image.
    #[arg(value_name = "IMAGE:PATH", required = true)]
    targets: Vec<Target>,
    /// Remove a directory with everything in it.
    #[arg(short, long)]
    recursive: bool,
    #[command(flatten)]
    further: Further,
}

/// Removes either all of them or none.
pub fn run(args: &Args) -> Result<()> {
    Target::change_all(&args.targets, &args.further, |volume, target| {
        let (dir, name, _) = target.entry(volume)?;
        let is_directory = volume.stat(volume.lookup(dir, name)?)?.kind == FileType::Directory;
        match is_directory {
            true if args.recursive => remove_tree(volume, dir, name),
            true => bail!("is a directory; -r removes it with everything in it"),
            false => Ok(volume.begin(Caller::ADMIN).unlink(dir, name)?),
        }
    })
}

/// Removes a directory with everything in it.
fn remove_tree(volume: &mut Engine, dir: Ino, name: &[u8]) -> Result<()> {
    let mut walk = Walk::default();
    walk.remove(volume, dir, name).map_err(|error| match walk.path() {
        b"" => error.into(),
        path => anyhow::Error::from(error).context(render::name(path)),
    })
}
