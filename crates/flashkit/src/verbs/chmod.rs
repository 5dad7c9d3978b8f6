//! `chmod`: changes permissions.

use anyhow::Result;
use f2fs::volume::SetAttr;

use crate::target::{Further, Target};

/// Arguments of `chmod`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  flashkit chmod 4755 card.img:/bin/su")]
pub struct Args {
    /// Permissions in octal.
    #[arg(value_parser = octal)]
    mode: u16,
    /// The image, and a path inside it.
    #[arg(value_name = "IMAGE[:PATH]")]
    target: Target,
    #[command(flatten)]
    further: Further,
}

/// Changes them.
pub fn run(args: &Args) -> Result<()> {
    args.target.change(&args.further, |volume| {
        let ino = volume.resolve(args.target.path.as_bytes(), true)?;
        let set = SetAttr { permissions: Some(args.mode), ..SetAttr::default() };
        Ok(volume.set_attr(ino, &set)?)
    })
}

/// Permissions in octal digits.
pub fn octal(text: &str) -> Result<u16, String> {
    match u16::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err("write permissions in octal: 644, 4755".into()),
    }
}
