//! `ln`: links, hard and symbolic.

use std::ffi::OsString;

use anyhow::{Context, Result};
use f2fs::{
    engine::{Caller, FinalSymlink, NewNode},
    format::FileType,
};

use crate::target::{Further, Target, destination};

/// Arguments of `ln`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  flashkit ln card.img:/bin/busybox card.img:/bin/ls\n  flashkit ln -s busybox card.img:/bin/sh"
)]
pub struct Args {
    /// The image and the path that gets another name; with -s, the target of the link.
    #[arg(value_name = "IMAGE:PATH|TEXT")]
    from: OsString,
    /// The image, and the new name.
    #[arg(value_name = "IMAGE:NAME")]
    to: Target,
    /// Make a symbolic link.
    #[arg(short, long)]
    symbolic: bool,
    #[command(flatten)]
    further: Further,
}

/// Makes the link.
pub fn run(args: &Args) -> Result<()> {
    args.to.change(&args.further, |volume| {
        if args.symbolic {
            let text = args.from.as_encoded_bytes();
            // In a directory, the link gets the name of its target, as with ln(1).
            let own_name =
                text.split(|byte| *byte == b'/').rfind(|name| !name.is_empty()).unwrap_or_default();
            let (dir, name) = destination(volume, &args.to, own_name, FileType::Symlink)?;
            let new = NewNode::new(FileType::Symlink.mode_bits() | 0o777);
            volume.begin(Caller::ADMIN).symlink(dir, &name, text, &new)?;
            return Ok(());
        }
        let from = Target::from(args.from.clone());
        from.same_image(&args.to)?;
        let ino = volume.resolve(&from.path, FinalSymlink::NoFollow)?;
        let kind = volume.stat(ino)?.kind;
        if kind == FileType::Directory {
            return Err(f2fs::Error::IsDirectory).with_context(|| from.to_string());
        }
        let (_, own_name) = from.parent(volume)?;
        let (dir, name) = destination(volume, &args.to, own_name, kind)?;
        Ok(volume.begin(Caller::ADMIN).link(ino, dir, &name)?)
    })
}
