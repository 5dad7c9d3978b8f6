//! `setfattr`: sets and removes extended attributes.

use std::ffi::OsString;

use anyhow::Result;
use clap::builder::{OsStringValueParser, TypedValueParser};
use f2fs::engine::{Caller, FinalSymlink, XattrMode};

use crate::{
    render,
    target::{Further, Target},
};

/// Arguments of `setfattr`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  flashkit setfattr card.img:/bin/app -n user.origin -v build-17\n  flashkit setfattr card.img:/bin/app -x user.origin"
)]
pub struct Args {
    /// The image, and a path inside it.
    #[arg(value_name = "IMAGE[:PATH]")]
    target: Target,
    /// The attribute to set, with its prefix: user.comment.
    #[arg(short, long, required_unless_present = "remove")]
    name: Option<OsString>,
    /// Its value: text, or hexadecimal digits after 0x.
    #[arg(short, long, default_value = "", value_parser = OsStringValueParser::new().try_map(value))]
    value: Value,
    /// The attribute to remove.
    #[arg(short = 'x', long, conflicts_with = "name")]
    remove: Option<OsString>,
    #[command(flatten)]
    further: Further,
}

/// The bytes of a value.
#[derive(Debug, Clone)]
struct Value(Vec<u8>);

/// Sets or removes it.
pub fn run(args: &Args) -> Result<()> {
    args.target.change(&args.further, |volume| {
        let ino = volume.resolve(&args.target.path, FinalSymlink::Follow)?;
        match (&args.name, &args.remove) {
            (_, Some(name)) => volume.begin(Caller::ADMIN).remove_xattr(ino, name.as_encoded_bytes())?,
            (Some(name), None) => {
                volume.begin(Caller::ADMIN).set_xattr(
                    ino,
                    name.as_encoded_bytes(),
                    &args.value.0,
                    XattrMode::Set,
                )?;
            }
            (None, None) => unreachable!("one of the two is required"),
        }
        Ok(())
    })
}

fn value(text: OsString) -> Result<Value, String> {
    let Some(digits) = text.as_encoded_bytes().strip_prefix(b"0x") else {
        return Ok(Value(text.as_encoded_bytes().to_vec()));
    };
    render::from_hex(digits).map(Value).ok_or_else(|| "hexadecimal digits come in pairs".into())
}
