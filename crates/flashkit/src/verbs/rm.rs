//! `rm`: removes names.

use anyhow::{Result, bail};
use f2fs::{engine::Engine, format::FileType, units::Ino, walk::Walk};

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
        remove(volume, dir, name, args.recursive)
    })
}

fn remove(volume: &mut Engine, dir: Ino, name: &[u8], recursive: bool) -> Result<()> {
    let top = volume.lookup(dir, name)?;
    if volume.stat(top)?.kind != FileType::Directory {
        return Ok(volume.unlink(dir, name)?);
    }
    if !recursive {
        bail!("is a directory; -r removes it with everything in it");
    }
    let mut walk = Walk::default();
    walk.remove(volume, dir, name).map_err(|error| match walk.path() {
        b"" => error.into(),
        path => anyhow::Error::from(error).context(render::name(path)),
    })
}
