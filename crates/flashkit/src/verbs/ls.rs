//! `ls`: the entries of a directory.

use std::io::{self, Write};

use anyhow::{Context, Result};
use f2fs::{
    engine::{DirEntry, Engine, FinalSymlink},
    format::FileType,
    units::Ino,
};

use crate::{
    record::Entry,
    render,
    target::{Further, Target},
};

/// Arguments of `ls`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  flashkit ls card.img:/etc\n  flashkit ls -l /dev/mmcblk0p2:/var/log\n  flashkit ls --json card.img | jq '.[].name'"
)]
pub struct Args {
    /// The image, and a path inside it.
    #[arg(value_name = "IMAGE[:PATH]")]
    target: Target,
    #[command(flatten)]
    further: Further,
    /// One entry per line, with mode, links, owner, group, size and time.
    #[arg(short, long)]
    long: bool,
    /// Include names that begin with a dot.
    #[arg(short, long)]
    all: bool,
    /// Keep the order of the directory instead of sorting by name.
    #[arg(short = 'U', long)]
    unsorted: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Lists a directory, or any other file itself. Follows a link to a directory, unless the details of the link
/// are requested, as with ls(1).
pub fn run(args: &Args) -> Result<()> {
    let (volume, mut ino) = args.target.find(&args.further)?;
    let context = || args.target.to_string();
    if !args.long && !args.json {
        match volume.resolve(&args.target.path, FinalSymlink::Follow) {
            Ok(led) if volume.stat(led).with_context(context)?.kind == FileType::Directory => ino = led,
            Ok(_) | Err(f2fs::Error::NotFound) => {}
            Err(error) => return Err(error).with_context(context),
        }
    }
    if volume.stat(ino).with_context(context)?.kind != FileType::Directory {
        return print(args, std::iter::once(Entry::of(&volume, ino, &args.target.path).map_err(Into::into)));
    }
    let mut entries = children(&volume, ino).with_context(context)?;
    entries.retain(|entry| args.all || !entry.name.starts_with(b"."));
    if !args.unsorted {
        entries.sort_by(|a, b| a.name.cmp(&b.name));
    }
    print(
        args,
        entries.iter().map(|entry| {
            Entry::of(&volume, entry.ino, &entry.name).with_context(|| render::name(&entry.name))
        }),
    )
}

/// Returns the entries of a directory, without "." and "..".
pub fn children(volume: &Engine, dir: Ino) -> f2fs::Result<Vec<DirEntry>> {
    let dots = |name: &[u8]| matches!(name, b"." | b"..");
    volume.entries(dir, 0)?.filter(|entry| !entry.as_ref().is_ok_and(|entry| dots(&entry.name))).collect()
}

fn print(args: &Args, entries: impl Iterator<Item = Result<Entry>>) -> Result<()> {
    if args.json {
        return render::rows(entries, true);
    }
    let mut out = io::BufWriter::new(render::Stdout::lock());
    for entry in entries {
        let entry = entry?;
        if args.long {
            long(&mut out, &entry)?;
        } else {
            writeln!(out, "{}", entry.name)?;
        }
    }
    Ok(out.flush()?)
}

fn long(out: &mut dyn Write, entry: &Entry) -> io::Result<()> {
    let size = match entry.device {
        Some((major, minor)) => format!("{major}, {minor}"),
        None => entry.size_bytes.to_string(),
    };
    write!(
        out,
        "{} {:>3} {:>5} {:>5} {size:>12} {} {}",
        render::mode(entry.raw_mode.into()),
        entry.links,
        entry.uid,
        entry.gid,
        entry.modified.get(..19).unwrap_or(&entry.modified).replace('T', " "),
        entry.name
    )?;
    match &entry.target {
        Some(target) => writeln!(out, " -> {target}"),
        None => writeln!(out),
    }
}
