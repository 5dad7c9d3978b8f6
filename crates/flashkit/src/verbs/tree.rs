//! `tree`: a volume, or a part of it, drawn as a tree.

use std::{
    collections::HashSet,
    io::{self, Write},
};

use anyhow::{Context, Result};
use f2fs::{format::FileType, units::Ino, volume::Volume};
use serde::Serialize;

use super::ls::children;
use crate::{
    record::Entry,
    render,
    target::{Further, Target},
};

/// Arguments of `tree`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  flashkit tree card.img:/etc --depth 2\n  flashkit tree card.img --json > files.json"
)]
pub struct Args {
    /// The image, and a path inside it.
    #[arg(value_name = "IMAGE[:PATH]")]
    target: Target,
    #[command(flatten)]
    further: Further,
    /// Levels to go down.
    #[arg(short, long, value_name = "LEVELS")]
    depth: Option<usize>,
    /// Print JSON: an array of all entries, each with its path as name.
    #[arg(long)]
    json: bool,
}

/// Draws the tree.
pub fn run(args: &Args) -> Result<()> {
    let (volume, root) = args.target.find_content(&args.further)?;
    let path = args.target.path.strip_suffix(b"/").unwrap_or(&args.target.path).to_vec();
    let walk = Walk::new(&volume, root, path, args.depth.unwrap_or(usize::MAX));
    if args.json {
        return render::rows(
            walk.map(|step| {
                let step = step?;
                Ok(Entry::of(&volume, step.ino, &step.path)?)
            }),
            true,
        );
    }
    let mut out = io::BufWriter::new(render::Stdout::lock());
    writeln!(out, "{}", render::name(&args.target.path))?;
    let mut counts = Counts::default();
    for step in walk {
        let step = step?;
        for is_last in &step.lasts[..step.lasts.len() - 1] {
            out.write_all(if *is_last { "    " } else { "│   " }.as_bytes())?;
        }
        let branch = if step.lasts.last() == Some(&true) { "└── " } else { "├── " };
        write!(out, "{branch}{}", render::name(&step.name))?;
        match step.kind {
            FileType::Symlink => {
                let target = volume.read_link(step.ino)?;
                writeln!(out, " -> {}", render::name(&target))?;
            }
            _ => writeln!(out)?,
        }
        *(if step.kind == FileType::Directory { &mut counts.directories } else { &mut counts.files }) += 1;
    }
    writeln!(
        out,
        "\n{}, {}",
        render::count(counts.directories, "directory"),
        render::count(counts.files, "file")
    )?;
    Ok(out.flush()?)
}

#[derive(Default, Serialize)]
struct Counts {
    directories: u64,
    files: u64,
}

/// One entry on the way.
struct Step {
    path: Vec<u8>,
    name: Vec<u8>,
    ino: Ino,
    kind: FileType,
    /// For each level, whether this branch is the last one there.
    lasts: Vec<bool>,
}

/// A walk in depth, sorted by name. A directory that was seen before, which only a damaged volume has, ends it
/// with an error.
struct Walk<'a> {
    volume: &'a Volume,
    depth: usize,
    /// What is still to be visited, the next one last.
    stack: Vec<Step>,
    seen: HashSet<Ino>,
    start: Option<(Ino, Vec<u8>)>,
}

impl<'a> Walk<'a> {
    fn new(volume: &'a Volume, root: Ino, path: Vec<u8>, depth: usize) -> Walk<'a> {
        Walk { volume, depth, stack: Vec::new(), seen: HashSet::new(), start: Some((root, path)) }
    }

    fn push_children(&mut self, dir: Ino, path: &[u8], lasts: &[bool]) -> Result<()> {
        let context = || format!("directory {}", render::name(path));
        if !self.seen.insert(dir) {
            let at = f2fs::Place::Inode(dir);
            return Err(f2fs::Error::corrupt(at, "the directory is inside itself")).with_context(context);
        }
        let mut entries = children(self.volume, dir).with_context(context)?;
        entries.sort_by(|a, b| b.name.cmp(&a.name));
        for (n, entry) in entries.into_iter().enumerate() {
            let mut own = path.to_vec();
            own.push(b'/');
            own.extend(&entry.name);
            let mut branch = lasts.to_vec();
            branch.push(n == 0);
            let kind = self.volume.stat(entry.ino).with_context(|| render::name(&own))?.kind;
            self.stack.push(Step { path: own, name: entry.name, ino: entry.ino, kind, lasts: branch });
        }
        Ok(())
    }
}

impl Iterator for Walk<'_> {
    type Item = Result<Step>;

    fn next(&mut self) -> Option<Result<Step>> {
        if let Some((root, path)) = self.start.take() {
            if let Err(error) = self.push_children(root, &path, &[]) {
                return Some(Err(error));
            }
        }
        let step = self.stack.pop()?;
        if step.kind == FileType::Directory && step.lasts.len() < self.depth {
            if let Err(error) = self.push_children(step.ino, &step.path, &step.lasts) {
                self.stack.clear();
                return Some(Err(error));
            }
        }
        Some(Ok(step))
    }
}
