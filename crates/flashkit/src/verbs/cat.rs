//! `cat`: the content of files.

use std::io::Write;

use anyhow::{Context, Result, bail};
use f2fs::format::FileType;

use crate::{
    render,
    target::{Further, Target},
};

/// Bytes that are read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Arguments of `cat`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  flashkit cat card.img:/etc/os-release")]
pub struct Args {
    /// The image and the path of a file inside it; any number of them.
    #[arg(value_name = "IMAGE:PATH", required = true)]
    targets: Vec<Target>,
    #[command(flatten)]
    further: Further,
}

/// Prints the files one after the other.
pub fn run(args: &Args) -> Result<()> {
    let mut out = render::Stdout::lock();
    let mut chunk = vec![0; CHUNK_BYTES];
    for target in &args.targets {
        let (volume, ino) = target.find_content(&args.further)?;
        let kind = volume.stat(ino).with_context(|| target.to_string())?.kind;
        if kind != FileType::Regular {
            bail!("{target}: is no regular file");
        }
        let mut offset = 0;
        loop {
            let count = volume.read(ino, offset, &mut chunk).with_context(|| target.to_string())?;
            if count == 0 {
                break;
            }
            out.write_all(&chunk[..count])?;
            offset += count as u64;
        }
    }
    Ok(out.flush()?)
}
