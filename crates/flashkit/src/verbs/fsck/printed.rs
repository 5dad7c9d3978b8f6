//! The result of a check and of a repair in its printed form.

use std::io::{self, Write};

use f2fs::Place;
use f2fs_check::{Finding, Report, Severity};
use serde::Serialize;

use super::Repair;
use crate::render;

/// The result in its printed form.
#[derive(Serialize)]
pub struct Printed {
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
    #[serde(skip_serializing_if = "Option::is_none")]
    repair: Option<PrintedRepair>,
}

/// A repair in its printed form.
#[derive(Serialize)]
struct PrintedRepair {
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    certainty: Option<String>,
    uncovered: Vec<PrintedFinding>,
    losses: Vec<String>,
    written_bytes: u64,
}

impl PrintedRepair {
    fn of(repair: &Repair) -> PrintedRepair {
        let (state, plan) = match repair {
            Repair::Refused(reason) => {
                return PrintedRepair {
                    state: "refused",
                    refused: Some(reason.clone()),
                    certainty: None,
                    uncovered: Vec::new(),
                    losses: Vec::new(),
                    written_bytes: 0,
                };
            }
            Repair::Planned(plan) => ("planned", plan),
            Repair::NeedsPerson(plan) => ("needs-person", plan),
            Repair::Done(plan) => ("done", plan),
        };
        PrintedRepair {
            state,
            refused: None,
            certainty: Some(plan.certainty().to_string()),
            uncovered: plan.uncovered.iter().map(PrintedFinding::of).collect(),
            losses: plan.losses.clone(),
            written_bytes: plan.written_bytes(),
        }
    }

    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for finding in &self.uncovered {
            let known = f2fs::printable::message(&finding.known);
            writeln!(out, "follows: {}: {known} [{}]", finding.place.text, finding.kind)?;
            writeln!(out, "  repair: {} ({})", finding.repair, finding.certainty)?;
        }
        for loss in &self.losses {
            writeln!(out, "loss: {loss}")?;
        }
        let written = self.written_bytes;
        match (self.state, &self.refused) {
            (_, Some(reason)) => writeln!(out, "no repair: {reason}; nothing was written"),
            ("planned", _) => writeln!(out, "the repair writes {written} bytes; nothing was written"),
            ("needs-person", _) => writeln!(
                out,
                "a repair is possible, and not all of it is certain: -y makes it; nothing was written"
            ),
            _ => writeln!(out, "repaired: {written} bytes were written; a second check finds nothing"),
        }
    }
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
    /// The printed form of a check, and of a repair if one was asked for.
    pub fn of(report: &Report, repair: Option<&Repair>) -> Printed {
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
            repair: repair.map(PrintedRepair::of),
        }
    }

    /// Prints findings and sums, and the repair after them.
    pub fn text(&self, report: &Report, out: &mut dyn Write) -> io::Result<()> {
        self.check_text(report, out)?;
        self.repair.as_ref().map_or(Ok(()), |repair| repair.text(out))
    }

    fn check_text(&self, report: &Report, out: &mut dyn Write) -> io::Result<()> {
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
