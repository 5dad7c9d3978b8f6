//! `du`: the space of files and directories.

use std::{
    collections::HashSet,
    io::{self, Write},
};

use anyhow::{Context, Result};
use f2fs::{format::FileType, units::Ino};
use serde::Serialize;

use crate::{
    descent::{Descent, Node, Visit},
    render::{self, Name, keyed},
    size,
    target::{Further, Target},
};

/// Arguments of `du`.
#[derive(clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "Space is that of du(1) on a mount of the volume: all blocks of a file, those of its map included \
and its inode not. A file with several names counts once, under the first in byte order. Apparent sizes are those of \
regular files and symbolic links, as in coreutils 9.2 and newer.

Examples:
  flashkit du -sh card.img:/home
  flashkit du -h -d 1 card.img
  flashkit du -ab card.img:/etc
  flashkit du --json card.img | jq 'max_by(.allocated_bytes).path'"
)]
pub struct Args {
    /// The image, and a path inside it.
    #[arg(value_name = "IMAGE[:PATH]")]
    target: Target,
    #[command(flatten)]
    further: Further,
    /// Print only the sum.
    #[arg(short, long, conflicts_with_all = ["all", "max_depth"])]
    summarize: bool,
    /// Print every file, not only directories.
    #[arg(short, long)]
    all: bool,
    /// Print only names at most so many levels below the path.
    #[arg(short = 'd', long, value_name = "LEVELS")]
    max_depth: Option<usize>,
    /// Print sizes for people, in powers of 1024: 1.5M.
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Sum up the sizes of files instead of their space.
    #[arg(long)]
    apparent_size: bool,
    /// Print apparent sizes in bytes.
    #[arg(short, long, conflicts_with = "human_readable")]
    bytes: bool,
    /// Print JSON, with space and apparent size.
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// Space and sizes of a file, or of a directory with everything below it.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Usage {
    allocated_bytes: u64,
    apparent_bytes: u64,
}

/// A line of the output.
#[derive(Serialize)]
struct Line {
    #[serde(flatten, serialize_with = "keyed::path")]
    path: Name,
    #[serde(flatten)]
    usage: Usage,
}

impl Usage {
    fn of(node: &Node) -> Usage {
        let has_size = matches!(node.stat.kind, FileType::Regular | FileType::Symlink);
        Usage {
            allocated_bytes: node.stat.sectors * 512,
            apparent_bytes: if has_size { node.stat.size } else { 0 },
        }
    }

    fn add(&mut self, other: Usage) {
        self.allocated_bytes += other.allocated_bytes;
        // The size of a damaged inode may be any number.
        self.apparent_bytes = self.apparent_bytes.saturating_add(other.apparent_bytes);
    }
}

/// Prints the usage. Continues after damage, which is a failure at the end.
pub fn run(args: &Args) -> Result<()> {
    let (volume, start) = args.target.find(&args.further)?;
    let descent = Descent::new(&volume, start, &args.target.path, usize::MAX);
    let mut descent = descent.with_context(|| args.target.to_string())?;
    let mut lines = Lines::of(args, &mut descent);
    match args.json {
        true => render::rows(lines.by_ref().map(Ok), true)?,
        false => {
            let mut out = io::BufWriter::new(render::Stdout::lock());
            for Line { path, usage } in lines {
                writeln!(out, "{}\t{path}", args.shown(usage))?;
            }
            out.flush()?;
        }
    }
    descent.finish()
}

impl Args {
    fn shown(&self, usage: Usage) -> String {
        let bytes = match self.apparent_size || self.bytes {
            true => usage.apparent_bytes,
            false => usage.allocated_bytes,
        };
        match (self.human_readable, self.bytes) {
            (true, _) => size::human(bytes),
            (_, true) => bytes.to_string(),
            _ => bytes.div_ceil(1024).to_string(),
        }
    }

    fn depth_max(&self) -> usize {
        if self.summarize { 0 } else { self.max_depth.unwrap_or(usize::MAX) }
    }
}

/// The lines of the output, each directory after its content.
struct Lines<'a, 'v> {
    args: &'a Args,
    descent: &'a mut Descent<'v>,
    /// Path of the directory that was entered last. The paths of all open directories are its beginnings, so that
    /// memory is linear in the depth.
    path: Vec<u8>,
    /// The open directories: the length of the path of each, and the usage counted in it so far.
    open: Vec<(usize, Usage)>,
    /// Inodes with several names.
    counted: HashSet<Ino>,
}

impl<'a, 'v> Lines<'a, 'v> {
    fn of(args: &'a Args, descent: &'a mut Descent<'v>) -> Lines<'a, 'v> {
        Lines { args, descent, path: Vec::new(), open: Vec::new(), counted: HashSet::new() }
    }

    fn line(&self, path: &[u8], usage: Usage, depth: usize) -> Option<Line> {
        (depth <= self.args.depth_max()).then(|| Line { path: Name(path.to_vec()), usage })
    }

    fn step(&mut self, visit: Visit) -> Option<Line> {
        match visit {
            Visit::Entered(node) if node.is_directory() => {
                self.open.push((node.path.len(), Usage::of(&node)));
                self.path = node.path;
                None
            }
            Visit::Entered(node) => {
                if node.stat.links > 1 && !self.counted.insert(node.ino) {
                    return None;
                }
                let usage = Usage::of(&node);
                if let Some((_, sum)) = self.open.last_mut() {
                    sum.add(usage);
                }
                let is_shown = self.args.all || node.depth == 0;
                is_shown.then(|| self.line(&node.path, usage, node.depth)).flatten()
            }
            Visit::Left(depth) => {
                let (path_bytes, usage) = self.open.pop()?;
                if let Some((_, sum)) = self.open.last_mut() {
                    sum.add(usage);
                }
                self.line(&self.path[..path_bytes], usage, depth)
            }
        }
    }
}

impl Iterator for Lines<'_, '_> {
    type Item = Line;

    fn next(&mut self) -> Option<Line> {
        loop {
            let visit = self.descent.next()?;
            if let Some(line) = self.step(visit) {
                return Some(line);
            }
        }
    }
}
