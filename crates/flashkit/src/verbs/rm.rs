//! `rm`: removes names.

use anyhow::{Result, bail};
use f2fs::{Volume, format::FileType, units::Ino};

use crate::target::{Further, Target};

/// Arguments of `rm`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  flashkit rm card.img:/etc/motd\n  flashkit rm -r card.img:/var/cache")]
pub struct Args {
    /// The image, and the path to remove; any number of them, in one image.
    #[arg(value_name = "IMAGE:PATH", required = true)]
    targets: Vec<Target>,
    /// A directory with everything in it.
    #[arg(short, long)]
    recursive: bool,
    #[command(flatten)]
    further: Further,
}

/// Removes all of them, or nothing.
pub fn run(args: &Args) -> Result<()> {
    Target::change_all(&args.targets, &args.further, |volume, target| {
        let (dir, name, _) = target.entry(volume)?;
        remove(volume, dir, name, args.recursive)
    })
}

fn remove(volume: &mut Volume, dir: Ino, name: &[u8], recursive: bool) -> Result<()> {
    // A path of directories that are being emptied: a tree may be deeper than the stack.
    let mut path = vec![(dir, name.to_vec())];
    while let Some((dir, name)) = path.pop() {
        let ino = volume.lookup(dir, &name)?;
        if volume.stat(ino)?.kind != FileType::Directory {
            volume.unlink(dir, &name)?;
            continue;
        }
        if !recursive {
            bail!("is a directory; -r removes it with everything in it");
        }
        match super::ls::children(volume, ino)? {
            children if children.is_empty() => volume.remove_dir(dir, &name)?,
            children => {
                path.push((dir, name));
                path.extend(children.into_iter().map(|child| (ino, child.name)));
            }
        }
    }
    Ok(())
}
