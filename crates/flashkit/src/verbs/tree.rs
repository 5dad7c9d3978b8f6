//! `tree`: draws a volume, or a part of it, as a tree.

use std::io::{self, Write};

use anyhow::{Context, Result};
use f2fs::{
    engine::Engine,
    format::FileType,
    units::Ino,
    walk::{Step, Walk},
};
use serde::Serialize;

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
    /// Maximum depth.
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
    let walk = Branches::new(&volume, root, path, args.depth.unwrap_or(usize::MAX));
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

/// One entry of the drawing.
struct Branch {
    path: Vec<u8>,
    name: Vec<u8>,
    ino: Ino,
    kind: FileType,
    /// For each level, true if this branch is the last one there.
    lasts: Vec<bool>,
}

/// The entries below a directory, depth first, sorted by name. Ends with an error at damage and at a
/// directory seen before, which only a damaged volume has.
struct Branches<'a> {
    volume: &'a Engine,
    /// Path of the directory.
    base: Vec<u8>,
    depth: usize,
    walk: Walk,
    /// The directory to enter next.
    next: Option<Ino>,
}

impl<'a> Branches<'a> {
    fn new(volume: &'a Engine, root: Ino, base: Vec<u8>, depth: usize) -> Branches<'a> {
        Branches { volume, base, depth, walk: Walk::default(), next: Some(root) }
    }

    fn path(&self) -> Vec<u8> {
        match self.walk.path() {
            b"" => self.base.clone(),
            path => [&*self.base, b"/", path].concat(),
        }
    }

    fn step(&mut self) -> Result<Option<Branch>> {
        if let Some(dir) = self.next.take() {
            let entered = self.walk.enter_whole(self.volume, dir);
            entered.with_context(|| format!("directory {}", render::name(&self.path())))?;
        }
        while let Some(step) = self.walk.next() {
            let Step::Name(found) = step else { continue };
            let kind = self.volume.stat(found.ino).with_context(|| render::name(&self.path()))?.kind;
            let lasts: Vec<bool> = self.walk.lasts().collect();
            let is_deeper = kind == FileType::Directory && lasts.len() < self.depth;
            self.next = is_deeper.then_some(found.ino);
            return Ok(Some(Branch { path: self.path(), name: found.name, ino: found.ino, kind, lasts }));
        }
        Ok(None)
    }
}

impl Iterator for Branches<'_> {
    type Item = Result<Branch>;

    fn next(&mut self) -> Option<Result<Branch>> {
        self.step().transpose()
    }
}
