//! `defrag`: the fragmentation of files and directories, and its removal.

mod area;
mod online;

use std::io::Write;

use anyhow::{Context, Result};
use f2fs::{
    engine::{Caller, Engine, FinalSymlink, Fragmentation},
    format::FileType,
};
use image::Source;
use indicatif::HumanCount;
use serde::Serialize;

use crate::{
    below::{Below, Depth},
    mounted::Mounted,
    render::{self, PathRows},
    target::{Further, Target},
};

/// Arguments of `defrag`.
#[derive(clap::Args)]
#[command(after_help = "\
An extent is a run of blocks that are adjacent in the file and on the device. A file needs one for each section that it
fills, and one more for each hole. Content that lies in an inode has none.

-y writes the blocks of each fragmented file and directory anew, in the order of the file. Content, attributes and times
stay as they are; pinned files do not move. In a mounted volume, -y moves files through the mount, for an administrator;
directories stay as they are. The volume is then named by its image, its mount, or a file in it. A power cut leaves every file whole. Each move costs a write, and on flash
memory, fragmented files are read nearly as fast as others: look at the report first.

Examples:
  flashkit defrag card.img
  flashkit defrag card.img:/var/lib --all
  flashkit defrag card.img:/var/lib/app.db -y
  flashkit defrag /mnt/card/var/lib/app.db -y
  flashkit defrag card.img --area 0x4000..0x4200 --behind 0x8000   empty an area of the device")]
pub struct Args {
    /// The image, and a path inside it.
    #[arg(value_name = "IMAGE[:PATH]")]
    target: Target,
    #[command(flatten)]
    further: Further,
    /// Move the blocks of fragmented files and directories before the report.
    #[arg(short = 'y', long = "do")]
    moves: bool,
    /// List every file and directory that has blocks, not only fragmented ones.
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    area: area::Area,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// One file or directory.
#[derive(Serialize)]
struct File {
    blocks: u64,
    extents: u64,
    ideal_extents: u64,
}

/// The list and its sums, over all files and directories that have blocks.
#[derive(Serialize, Default)]
struct Report {
    inodes: u64,
    fragmented_inodes: u64,
    blocks: u64,
    extents: u64,
    ideal_extents: u64,
    moved_blocks: u64,
    files: PathRows<File>,
}

/// Prints the report.
pub fn run(args: &Args) -> Result<()> {
    if args.area.is_given() {
        return area::run(args);
    }
    let mut report = Report::default();
    let (target, mounted) = place(&args.target)?;
    if let Some(mounted) = &mounted {
        mounted.sync().with_context(|| mounted.at.display().to_string())?;
    }
    match &mounted {
        Some(mounted) if args.moves => report.moved_blocks = online::defragment(args, &target, mounted)?,
        None if args.moves => report.moved_blocks = defragment(args)?,
        _ => {}
    }
    let (volume, _) = target.find(&args.further)?;
    each(&target, &volume, |_, path, found| report.add(&path, found, args))?;
    render::print(&report, args.json, Report::text)
}

/// Returns the image and the path inside it, and the mount through which it must be changed, if there is one.
fn place(target: &Target) -> Result<(Target, Option<Mounted>)> {
    let on_mount = if target.path == b"/" { Mounted::of_path(&target.image)? } else { None };
    if let Some((mounted, inside)) = on_mount {
        let path = [b"/", inside.as_os_str().as_encoded_bytes()].concat();
        return Ok((Target { image: mounted.source.name().into(), path }, Some(mounted)));
    }
    Ok((target.clone(), Mounted::of_image(&Source::parse(&target.image))?))
}

/// Calls `each` with the kind, the path and the fragmentation of every file and directory that has blocks.
fn each(
    target: &Target,
    volume: &Engine,
    mut each: impl FnMut(FileType, Vec<u8>, Fragmentation),
) -> Result<()> {
    let mut below = Below::new(volume, &target.path, FinalSymlink::NoFollow, Depth::Recursive)?;
    while let Some((ino, kind)) = below.next(volume)? {
        if matches!(kind, FileType::Regular | FileType::Directory) {
            let found = volume.fragmentation(ino).with_context(|| below.shown())?;
            if found.blocks > 0 {
                each(kind, below.path(), found);
            }
        }
    }
    Ok(())
}

/// Moves the blocks of fragmented files and directories. Returns their number.
fn defragment(args: &Args) -> Result<u64> {
    let mut moved = 0;
    args.target.change(&args.further, |volume| {
        let mut below = Below::new(volume, &args.target.path, FinalSymlink::NoFollow, Depth::Recursive)?;
        while let Some((ino, kind)) = below.next(volume)? {
            let has_order = matches!(kind, FileType::Regular | FileType::Directory);
            if has_order && volume.fragmentation(ino).with_context(|| below.shown())?.is_fragmented() {
                let done = volume.begin(Caller::ADMIN).defragment(ino, 0..u64::MAX);
                moved += done.with_context(|| below.shown())?;
            }
        }
        Ok(())
    })?;
    Ok(moved)
}

impl Report {
    fn add(&mut self, path: &[u8], found: Fragmentation, args: &Args) {
        self.inodes += 1;
        self.fragmented_inodes += u64::from(found.is_fragmented());
        self.blocks += found.blocks;
        self.extents += found.extents;
        self.ideal_extents += found.ideal_extents;
        if args.all || found.is_fragmented() {
            let Fragmentation { blocks, extents, ideal_extents } = found;
            self.files.push(path, File { blocks, extents, ideal_extents });
        }
    }

    fn text(&self, out: &mut dyn Write) -> std::io::Result<()> {
        if !self.files.is_empty() {
            writeln!(out, "{:>9} {:>9} {:>11}  path", "extents", "needed", "blocks")?;
        }
        for (path, File { blocks, extents, ideal_extents }) in self.files.iter() {
            writeln!(out, "{extents:>9} {ideal_extents:>9} {blocks:>11}  {path}")?;
        }
        if self.moved_blocks > 0 {
            writeln!(out, "{} moved", render::count(self.moved_blocks, "block"))?;
        }
        writeln!(
            out,
            "{} of {} fragmented: {} in {}, {} needed",
            HumanCount(self.fragmented_inodes),
            render::count(self.inodes, "file"),
            render::count(self.blocks, "block"),
            render::count(self.extents, "extent"),
            HumanCount(self.ideal_extents)
        )
    }
}
