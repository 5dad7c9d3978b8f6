//! `fsck`: a check of a volume, which only reads.

use std::{
    ffi::OsString,
    io::{self, Write},
    process::ExitCode,
};

use anyhow::{Context, Result};
use f2fs::{Error, Place};
use f2fs_check::{Finding, Report, Severity};
use serde::Serialize;

use crate::{
    failure,
    notice::notice,
    progress, render,
    target::{Image, open_device, with_content},
};

/// Exit code: findings are left uncorrected.
const UNCORRECTED: u8 = 4;
/// Exit code: the check itself failed.
const OPERATIONAL: u8 = 8;
/// Exit code: the call makes no sense.
const USAGE: u8 = 16;

/// Arguments of `fsck`.
#[derive(clap::Args)]
#[command(after_help = "Exit codes, as of fsck(8):
  0   no finding, or only notices
  4   there are findings
  8   the check failed, for example because there is no volume
  16  the call makes no sense

A notice is a state that the next mount resolves, such as an fsync after the last checkpoint.

Examples:
  flashkit fsck card.img
  flashkit fsck /dev/mmcblk0p2 --json | jq -r '.findings[] | .kind'")]
pub struct Args {
    #[command(flatten)]
    image: Image,
    /// Only look; this is the default.
    #[arg(short = 'n', conflicts_with_all = ["auto", "preen", "yes"])]
    no: bool,
    /// Check even if the volume is marked as clean; every check does.
    #[arg(short, long)]
    force: bool,
    /// Repair without questions: not supported yet.
    #[arg(short = 'a', hide = true)]
    auto: bool,
    /// Repair what is safe: not supported yet.
    #[arg(short = 'p', hide = true)]
    preen: bool,
    /// Repair everything: not supported yet.
    #[arg(short = 'y', hide = true)]
    yes: bool,
    /// Print no progress.
    #[arg(short, long)]
    quiet: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Returns the exit code of a usage error, if the call is one of `fsck`.
pub fn usage_code(arguments: &[OsString]) -> Option<u8> {
    arguments.get(1).is_some_and(|verb| verb == "fsck").then_some(USAGE)
}

/// Checks the volume and prints the findings.
pub fn run(args: &Args) -> Result<ExitCode> {
    if args.auto || args.preen || args.yes {
        let image = args.image.image.display();
        notice!(
            "flashkit: {image}: fsck only looks so far, and changes nothing; fsck.f2fs -f {image} repairs, after a copy of \
             the image is made"
        );
        return Ok(ExitCode::from(USAGE));
    }
    let report = match check(args) {
        Ok(report) => report,
        Err(error) => {
            failure::tell(&with_content(&args.image.further.range.of(&args.image.image), error));
            return Ok(ExitCode::from(OPERATIONAL));
        }
    };
    let printed = Printed::of(&report);
    render::print(&printed, args.json, |printed, out| printed.text(&report, out))?;
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(UNCORRECTED) })
}

fn check(args: &Args) -> Result<Report> {
    let name = || args.image.image.display().to_string();
    let sources = args.image.further.sources(&args.image.image);
    let devices = sources.iter().map(open_device).collect::<Result<Vec<_>>>()?;
    let first = devices[0].clone();
    let alone = devices.len() == 1;
    let device = match f2fs::engine::join(devices) {
        // The check says what is wrong with the superblocks.
        Err(Error::Corrupt { .. } | Error::Io { .. }) if alone => first,
        joined => joined.with_context(name)?,
    };
    let bar = progress::stages(args.quiet);
    let mut stage = None;
    let report = f2fs_check::check(device, &mut |at| {
        if stage != Some(at.stage) {
            stage = Some(at.stage);
            bar.set_prefix(at.stage.name());
            bar.reset();
            bar.set_length(at.total_bytes);
        }
        bar.set_position(at.done_bytes);
    });
    bar.finish_and_clear();
    report.with_context(name)
}

/// The result in its printed form.
#[derive(Serialize)]
struct Printed {
    clean: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_early: Option<String>,
    errors: u64,
    notices: u64,
    findings: Vec<PrintedFinding>,
    counts: serde_json::Map<String, serde_json::Value>,
    blocks: u64,
    nodes: u64,
    inodes: u64,
    directories: u64,
    entries: u64,
    free_segments: u64,
}

/// A finding in its printed form.
#[derive(Serialize)]
struct PrintedFinding {
    kind: &'static str,
    severity: &'static str,
    place: PrintedPlace,
    known: String,
    rule: &'static str,
    repair: String,
    certainty: String,
}

/// A place in its printed form: as text, and its numbers.
#[derive(Serialize, Default)]
struct PrintedPlace {
    text: String,
    structure: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    copy: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    segment: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_block: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<u32>,
}

impl PrintedPlace {
    fn of(place: Place) -> PrintedPlace {
        let mut printed = PrintedPlace { text: place.to_string(), ..PrintedPlace::default() };
        match place {
            Place::Superblock(copy) => (printed.structure, printed.copy) = ("superblock", Some(copy)),
            Place::Checkpoint(pack) => (printed.structure, printed.copy) = ("checkpoint", Some(pack)),
            Place::Nat(nid) => (printed.structure, printed.nid) = ("nat", Some(nid.0)),
            Place::Sit(segment) => (printed.structure, printed.segment) = ("sit", Some(segment.0)),
            Place::Ssa(segment) => (printed.structure, printed.segment) = ("summary", Some(segment.0)),
            Place::Node(nid, addr) => {
                (printed.structure, printed.nid, printed.address) = ("node", Some(nid.0), Some(addr.0));
            }
            Place::Inode(ino) => (printed.structure, printed.inode) = ("inode", Some(ino.0)),
            Place::Xattr(ino) => (printed.structure, printed.inode) = ("xattr", Some(ino.0)),
            Place::Dir(ino, block) => {
                (printed.structure, printed.inode, printed.file_block) =
                    ("directory", Some(ino.0), Some(block));
            }
            Place::File(ino, block) => {
                (printed.structure, printed.inode, printed.file_block) = ("file", Some(ino.0), Some(block));
            }
            Place::Block(addr) => (printed.structure, printed.address) = ("block", Some(addr.0)),
            Place::Volume => printed.structure = "volume",
        }
        printed
    }
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Notice => "notice",
        Severity::Error => "error",
    }
}

impl PrintedFinding {
    fn of(finding: &Finding) -> PrintedFinding {
        PrintedFinding {
            kind: finding.kind.name(),
            severity: severity(finding.kind.severity()),
            place: PrintedPlace::of(finding.at),
            known: finding.known.clone(),
            rule: finding.kind.rule(),
            repair: finding.repair.to_string(),
            certainty: finding.certainty.to_string(),
        }
    }
}

impl Printed {
    fn of(report: &Report) -> Printed {
        let sums = report.sums;
        Printed {
            clean: report.is_clean(),
            ended_early: report.ended_early.clone(),
            errors: report.count_of(Severity::Error),
            notices: report.count_of(Severity::Notice),
            findings: report.findings().iter().map(PrintedFinding::of).collect(),
            counts: report.counts().map(|(kind, count)| (kind.name().to_owned(), count.into())).collect(),
            blocks: sums.blocks,
            nodes: sums.nodes,
            inodes: sums.inodes,
            directories: sums.directories,
            entries: sums.entries,
            free_segments: sums.free_segments,
        }
    }

    fn text(&self, report: &Report, out: &mut dyn Write) -> io::Result<()> {
        for finding in &self.findings {
            // The facts may quote names, which the checker made safe; a second pass changes nothing.
            let known = f2fs::printable::message(&finding.known);
            writeln!(out, "{}: {}: {known} [{}]", finding.severity, finding.place.text, finding.kind)?;
            writeln!(out, "  repair: {} ({})", finding.repair, finding.certainty)?;
        }
        let kept = self.findings.len() as u64;
        let hidden = (self.errors + self.notices).saturating_sub(kept);
        if hidden > 0 {
            writeln!(out, "{} of the same kinds are not listed", render::count(hidden, "finding"))?;
        }
        if let Some(reason) = &report.ended_early {
            writeln!(out, "the check ended early: {reason}")?;
            return Ok(());
        }
        writeln!(
            out,
            "{}, {}, {}, {} in use: {}",
            render::count(self.inodes, "inode"),
            render::count(self.directories, "directory"),
            render::count(self.entries, "name"),
            render::count(self.blocks, "block"),
            match (self.errors, self.notices) {
                (0, 0) => "clean".to_owned(),
                (0, notices) => format!("clean, {}", render::count(notices, "notice")),
                (errors, _) => render::count(errors, "finding"),
            }
        )
    }
}
