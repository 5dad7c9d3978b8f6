//! `cat`: the content of files.

use std::{io::Write, process::ExitCode};

use anyhow::{Context, Result, bail};
use f2fs::format::FileType;

use crate::{
    failure, render,
    target::{Further, Target},
};

/// Bytes read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Arguments of `cat`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  flashkit cat card.img:/etc/os-release
  flashkit cat card.img:/var/log/syslog.1 card.img:/var/log/syslog | less")]
pub struct Args {
    /// The image and the path of a file inside it; any number of them.
    #[arg(value_name = "IMAGE:PATH", required = true)]
    targets: Vec<Target>,
    #[command(flatten)]
    further: Further,
}

/// Prints the files one after the other. If one cannot be read, the others are still printed, and the exit
/// code is not 0.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut out = render::Stdout::lock();
    let mut code = ExitCode::SUCCESS;
    for target in &args.targets {
        match print(target, &args.further, &mut out) {
            // No further output is possible.
            Err(error) if render::is_of_stdout(&error) => return Err(error),
            Err(error) => {
                failure::tell(&error);
                code = ExitCode::FAILURE;
            }
            Ok(()) => {}
        }
    }
    out.flush()?;
    Ok(code)
}

/// Writes the content of a file.
pub fn print(target: &Target, further: &Further, out: &mut dyn Write) -> Result<()> {
    let (volume, ino) = target.find_content(further)?;
    let kind = volume.stat(ino).with_context(|| target.to_string())?.kind;
    if kind != FileType::Regular {
        bail!("{target}: not a regular file");
    }
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut offset = 0;
    loop {
        let count = volume.read(ino, offset, &mut chunk).with_context(|| target.to_string())?;
        if count == 0 {
            return Ok(());
        }
        out.write_all(&chunk[..count])?;
        offset += count as u64;
    }
}
