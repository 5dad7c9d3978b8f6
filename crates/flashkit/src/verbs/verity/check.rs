//! `verity check`: all content of sealed files against their Merkle trees.

use std::{
    collections::HashSet,
    ffi::OsString,
    io::{self, Write},
    process::ExitCode,
};

use anyhow::{Context, Result};
use f2fs::{
    engine::{Engine, FinalSymlink, SealedDamage, SealedPart, SealedPlace},
    format::FileType,
};
use indicatif::{BinaryBytes, HumanCount, ProgressBar};
use serde::Serialize;

use crate::{
    descent::{Descent, Node, Visit},
    failure, progress,
    render::{self, Name, keyed},
    target::{self, Further, Target},
};

/// Exit code: there is damage.
const DAMAGED: u8 = 4;
/// Exit code: something could not be checked.
const OPERATIONAL: u8 = 8;
/// Exit code: the arguments are invalid.
const USAGE: u8 = 16;
/// Maximum number of damaged places that are listed.
const LISTED_MAX: usize = 10_000;

/// Arguments of `verity check`.
#[derive(clap::Args)]
#[command(
    after_help = "The whole tree and the whole content are checked, from the root hash of the descriptor down. Below \
a damaged block of the tree nothing can be checked. Adjacent damaged blocks are one place.

Exit codes, as of fsck(8):
  0   no damage
  4   there is damage
  8   something could not be checked, for example because there is no volume, or a key is missing
  12  both of these
  16  the arguments are invalid; nothing was done

Examples:
  flashkit verity check card.img
  flashkit verity check card.img:/bin card.img:/lib/firmware
  flashkit verity check card.img --json | jq -r '.damage[].path'"
)]
pub struct Args {
    /// The image, and a path inside it; any number of them, in one image.
    #[arg(value_name = "IMAGE[:PATH]", required = true)]
    targets: Vec<Target>,
    /// Print no progress.
    #[arg(short, long)]
    quiet: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    further: Further,
}

/// Returns the exit code of a usage error, if the call is one of `verity check`.
pub fn usage_code(arguments: &[OsString]) -> Option<u8> {
    let words = arguments.get(1).zip(arguments.get(2));
    words.is_some_and(|(verb, what)| verb == "verity" && what == "check").then_some(USAGE)
}

/// The result of a check.
#[derive(Serialize, Default)]
struct Report {
    clean: bool,
    regular_files: u64,
    sealed_files: u64,
    damaged_files: u64,
    /// Sealed files that could not be checked.
    unchecked_files: u64,
    /// Content that matches.
    checked_bytes: u64,
    damaged_places: u64,
    damage: Vec<Place>,
}

/// A damaged place.
#[derive(Serialize)]
struct Place {
    #[serde(flatten, serialize_with = "keyed::path")]
    path: Name,
    structure: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<u64>,
    /// The range of the content that is damaged, or that cannot be checked because of the place.
    from_byte: u64,
    to_byte: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Place {
    fn of(path: &[u8], damage: &SealedDamage) -> Place {
        let (structure, level, block) = match damage.place {
            SealedPlace::Descriptor => ("descriptor", None, None),
            SealedPlace::Tree { level, block } => ("tree", Some(level), Some(block)),
            SealedPlace::Content => ("content", None, None),
        };
        Place {
            path: Name(path.to_vec()),
            structure,
            level,
            block,
            from_byte: damage.content.start,
            to_byte: damage.content.end,
            error: damage.error.as_ref().map(|error| failure::plain(&error.to_string())),
        }
    }

    /// Extends the place by damage that follows it directly, and is of the same sort. Returns false if it is not.
    fn extend(&mut self, other: &Place) -> bool {
        let is_next = self.structure == "content"
            && other.structure == "content"
            && self.error.is_none()
            && other.error.is_none()
            && self.path == other.path
            && self.to_byte == other.from_byte;
        if is_next {
            self.to_byte = other.to_byte;
        }
        is_next
    }
}

/// Checks the files, and prints the damaged places.
pub fn run(args: &Args) -> ExitCode {
    check(args).unwrap_or_else(|error| {
        failure::tell(&error);
        ExitCode::from(OPERATIONAL)
    })
}

fn check(args: &Args) -> Result<ExitCode> {
    let [first, others @ ..] = &args.targets[..] else { return Ok(ExitCode::SUCCESS) };
    others.iter().try_for_each(|other| first.same_image(other))?;
    let volume = target::open_read_only(&first.image, &args.further)?;
    let bar = progress::bytes("checking", None, args.quiet || args.json);
    let (mut report, mut seen, mut code) = (Report::default(), HashSet::new(), 0);
    for target in &args.targets {
        let start = volume.resolve(&target.path, FinalSymlink::Follow).with_context(|| target.to_string())?;
        let descent = Descent::new(&volume, start, &target.path, usize::MAX);
        let mut descent = descent.with_context(|| target.to_string())?;
        while let Some(visit) = descent.next() {
            let Visit::Entered(node) = visit else { continue };
            let is_file = node.stat.kind == FileType::Regular;
            if !is_file || node.stat.links > 1 && !seen.insert(node.ino) {
                continue;
            }
            if let Err(error) = report.add(&volume, &node, &bar) {
                descent.lose(error);
            }
        }
        if let Err(error) = descent.finish() {
            failure::tell(&error);
            code |= OPERATIONAL;
        }
    }
    bar.finish_and_clear();
    if report.damaged_places > 0 {
        code |= DAMAGED;
    }
    report.clean = code == 0;
    render::print(&report, args.json, |report, out| report.text(out))?;
    Ok(ExitCode::from(code))
}

impl Report {
    /// Checks a regular file.
    fn add(&mut self, volume: &Engine, node: &Node, bar: &ProgressBar) -> f2fs::Result<()> {
        self.regular_files += 1;
        if !node.stat.sealed {
            return Ok(());
        }
        self.sealed_files += 1;
        let before = self.damaged_places;
        let checked = volume.check_sealed(node.ino, |part| match part {
            SealedPart::Whole(content) => {
                self.checked_bytes += content.end - content.start;
                bar.set_position(self.checked_bytes);
            }
            SealedPart::Damaged(damage) => self.add_place(Place::of(&node.path, &damage)),
        });
        self.damaged_files += u64::from(self.damaged_places > before);
        self.unchecked_files += u64::from(checked.is_err());
        checked.map(drop)
    }

    fn add_place(&mut self, place: Place) {
        if self.damage.last_mut().is_some_and(|last| last.extend(&place)) {
            return;
        }
        self.damaged_places += 1;
        if self.damage.len() < LISTED_MAX {
            self.damage.push(place);
        }
    }

    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for place in &self.damage {
            let range = format!("bytes {} to {}", place.from_byte, place.to_byte.saturating_sub(1));
            write!(out, "{}: ", place.path)?;
            let what = match (&place.error, place.structure) {
                (Some(error), _) => error.as_str(),
                (None, "content") => "does not match the Merkle tree",
                (None, _) => "does not match the block above it",
            };
            match (place.level, place.block) {
                (Some(level), Some(block)) => writeln!(
                    out,
                    "level {level} of the Merkle tree, block {block}: {what}; {range} of the content cannot be checked"
                )?,
                _ if place.structure == "content" => writeln!(out, "content, {range}: {what}")?,
                _ => writeln!(out, "descriptor: {what}; the content cannot be checked")?,
            }
        }
        let unlisted = self.damaged_places - self.damage.len() as u64;
        if unlisted > 0 {
            writeln!(out, "and {} more", render::count(unlisted, "damaged place"))?;
        }
        writeln!(
            out,
            "{}, {} of them sealed; {} of their content match",
            render::count(self.regular_files, "regular file"),
            HumanCount(self.sealed_files),
            BinaryBytes(self.checked_bytes)
        )?;
        if self.damaged_places > 0 {
            let files = render::count(self.damaged_files, "damaged file");
            writeln!(out, "{files}, {}", render::count(self.damaged_places, "damaged place"))?;
        }
        if self.unchecked_files > 0 {
            writeln!(out, "{} could not be checked", render::count(self.unchecked_files, "sealed file"))?;
        }
        Ok(())
    }
}
