//! `find`: the paths of a tree that an expression of find(1) selects.

mod expression;

use std::{
    ffi::OsString,
    io::{self, Write},
};

use anyhow::{Context, Result};
use clap::error::ErrorKind;
use expression::{Ending, Search};

use crate::{
    descent::{Descent, Node, Visit},
    record::Entry,
    render,
    target::{Further, Target},
};

/// Arguments of `find`.
#[derive(clap::Args)]
#[command(after_help = "Expression, as in find(1); tests that follow each other must all hold:
  -name GLOB, -iname GLOB    the last part of the path; -iname ignores case
  -path GLOB, -ipath GLOB    the whole path, from the root of the volume
  -type f,d,l,c,b,p,s        kinds: file, directory, symbolic link, devices, pipe, socket
  -size [+-]N[cwbkMG]        size, rounded up to bytes, 2 bytes, blocks of 512 (default), KiB, MiB or GiB
  -empty                     files without content, directories without names
  -newer PATH                content changed after that of PATH in the volume
  -newermt TIME              changed after TIME: 2024-01-31, '2024-01-31 12:00' (UTC) or @SECONDS
  -user [+-]N, -group [+-]N  owner and group, as numbers; also -uid, -gid
  -perm MODE, -MODE, /MODE   permissions in octal: exactly, all of these bits, any of these
  -links [+-]N, -inum [+-]N  number of names, inode number
  ! E, -not E                E does not hold
  E1 -o E2, -or              one of the two holds
  ( E )                      groups
  -mindepth N, -maxdepth N   at least, at most N levels below the path
  -print0                    end each path with a NUL instead of a line end, and print it as it is

+N is more than N, -N less. Names of users are not known in an image. Options such as --key stand before IMAGE.

Examples:
  flashkit find card.img:/etc -name '*.conf' -type f
  flashkit find card.img -type f -size +10M ! -user 0
  flashkit find card.img -perm /6000
  flashkit find card.img:/home -newermt 2024-01-31 -print0 | xargs -0 printf '%s\\n'
  flashkit find --json card.img -empty | jq -r '.[].name'")]
pub struct Args {
    #[command(flatten)]
    further: Further,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// The image, and a path inside it.
    #[arg(value_name = "IMAGE[:PATH]")]
    target: Target,
    /// Tests and options of find(1); see below. Without any, all paths.
    #[arg(value_name = "EXPRESSION", trailing_var_arg = true, allow_hyphen_values = true)]
    expression: Vec<OsString>,
}

/// Prints the paths. Continues after damage, which is a failure at the end.
pub fn run(args: &Args) -> Result<()> {
    let (volume, start) = args.target.find(&args.further)?;
    let search = Search::parse(&args.expression, &volume)
        .unwrap_or_else(|why| clap::Error::raw(ErrorKind::ValueValidation, format!("{why}\n")).exit());
    let descent = Descent::new(&volume, start, &args.target.path, search.depth_max);
    let mut descent = descent.with_context(|| args.target.to_string())?;
    let found = std::iter::from_fn(|| {
        loop {
            let Visit::Entered(node) = descent.next()? else { continue };
            if node.depth < search.depth_min {
                continue;
            }
            match search.expression.holds(&node, &volume) {
                Ok(true) => return Some(node),
                Ok(false) => {}
                Err(error) => descent.lose(error),
            }
        }
    });
    match args.json {
        true => render::rows(found.map(|node| Ok(Entry::of(&volume, node.ino, &node.path)?)), true)?,
        false => print(found, search.ending)?,
    }
    descent.finish()
}

fn print(found: impl Iterator<Item = Node>, ending: Ending) -> Result<()> {
    let mut out = io::BufWriter::new(render::Stdout::lock());
    for node in found {
        match ending {
            Ending::Nul => out.write_all(&[&node.path, &b"\0"[..]].concat())?,
            Ending::Line => writeln!(out, "{}", render::name(&node.path))?,
        }
    }
    Ok(out.flush()?)
}
