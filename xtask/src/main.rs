//! Development only: what builds, judges and measures flashkit and is never shipped.

mod spec;

use std::path::Path;

use anyhow::{Result, bail};

fn main() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["spec"] => spec::run(root, false),
        ["spec", "--check"] => spec::run(root, true),
        _ => bail!("usage: cargo xtask spec [--check]"),
    }
}
