//! `getfattr`: extended attributes.

use std::ffi::OsString;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::{
    render::{self, Name, keyed},
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
    name: Option<OsString>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// An attribute: its value as text if it is text, and always as hexadecimal digits.
#[derive(Serialize)]
struct Attribute {
    #[serde(flatten, serialize_with = "keyed::name")]
    name: Name,
    #[serde(flatten, serialize_with = "keyed::value")]
    value: Name,
    hex: String,
}

/// Prints the attributes.
pub fn run(args: &Args) -> Result<()> {
    let (volume, ino) = args.target.find(&args.further)?;
    let context = || args.target.to_string();
    let attributes = match &args.name {
        Some(name) => {
            let name = name.as_encoded_bytes();
            let value = volume
                .get_xattr(ino, name)
                .with_context(|| format!("{}, attribute {}", args.target, render::name(name)))?;
            vec![(name.to_vec(), value)]
        }
        None => volume.xattrs(ino).with_context(context)?,
    };
    let rows = attributes.iter().map(|(name, value)| {
        let text = value.strip_suffix(&[0]).unwrap_or(value);
        Ok(Attribute { name: Name(name.clone()), value: Name(text.to_vec()), hex: render::hex(value) })
    });
    render::rows(rows, args.json)
}
