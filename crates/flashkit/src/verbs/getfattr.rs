//! `getfattr`: extended attributes.

use anyhow::{Context, Result};
use serde::Serialize;

use crate::{
    render,
    target::{Further, Target},
};

/// Arguments of `getfattr`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  flashkit getfattr card.img:/bin/ping\n  flashkit getfattr card.img:/bin/ping -n security.capability"
)]
pub struct Args {
    /// The image, and a path inside it.
    #[arg(value_name = "IMAGE[:PATH]")]
    target: Target,
    #[command(flatten)]
    further: Further,
    /// Only this attribute, with its prefix: user.comment.
    #[arg(short, long)]
    name: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// An attribute: its value as text where it is text, and always as hexadecimal digits.
#[derive(Serialize)]
struct Attribute {
    name: String,
    value: String,
    hex: String,
}

/// Prints the attributes.
pub fn run(args: &Args) -> Result<()> {
    let (volume, ino) = args.target.find(&args.further)?;
    let context = || args.target.to_string();
    let attributes = match &args.name {
        Some(name) => {
            let value = volume
                .get_xattr(ino, name.as_bytes())
                .with_context(|| format!("{}, attribute {name}", args.target))?;
            vec![(name.clone().into_bytes(), value)]
        }
        None => volume.xattrs(ino).with_context(context)?,
    };
    let rows = attributes.iter().map(|(name, value)| {
        let text = value.strip_suffix(&[0]).unwrap_or(value);
        Ok(Attribute { name: render::name(name), value: render::name(text), hex: render::hex(value) })
    });
    render::rows(rows, args.json)
}
