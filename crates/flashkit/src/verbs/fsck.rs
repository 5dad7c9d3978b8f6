//! `fsck`: a check of a volume, and its repair.

mod printed;

use std::{
    ffi::OsString,
    fs::File,
    io::{BufReader, BufWriter, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, Result};
use block::Device;
use f2fs::Error;
use f2fs_check::{
    Certainty, Report,
    repair::{Plan, Planned, Undo},
};
use printed::Printed;

use crate::{
    clock, failure, notice,
    output::folder,
    progress, render,
    target::{BareImage, open_device, open_device_to_write, with_content},
};

/// Exit code: findings were corrected.
const CORRECTED: u8 = 1;
/// Exit code: findings are left uncorrected.
const UNCORRECTED: u8 = 4;
/// Exit code: the check itself failed.
const OPERATIONAL: u8 = 8;
/// Exit code: the arguments are invalid.
const USAGE: u8 = 16;

/// Arguments of `fsck`.
#[derive(clap::Args)]
#[command(
    after_help = "Without -p and -y, nothing is written to the volume. A repair is planned as a whole, checked, \
and then made by one checkpoint: a power cut leaves the old volume or the repaired one. Files without a name go back \
to their directory if that is certain, else to lost+found, where those of one lost directory stay together. --undo saves \
what the repair overwrites.

Exit codes, as of fsck(8):
  0   no finding, or only notices
  1   there were findings, and all are repaired
  4   there are findings, and none was repaired
  8   the check failed, for example because there is no volume, or it is in use
  16  the arguments are invalid; nothing was done

A notice is a state that the next mount resolves, such as an fsync after the last checkpoint.

Examples:
  flashkit fsck card.img
  flashkit fsck -n card.img
  flashkit fsck -y --undo card.undo card.img
  flashkit fsck --undo card.undo card.img
  flashkit fsck /dev/mmcblk0p2 --json | jq -r '.findings[] | .kind'"
)]
pub struct Args {
    #[command(flatten)]
    image: BareImage,
    /// Print the findings and the plan of a repair, and write nothing.
    #[arg(short = 'n', conflicts_with_all = ["auto", "preen", "yes", "undo"])]
    no: bool,
    /// Check even if the volume is marked as clean; every check does.
    #[arg(short, long)]
    force: bool,
    /// The same as -p.
    #[arg(short = 'a', conflicts_with = "yes")]
    auto: bool,
    /// Repair if every part of the repair is certain; otherwise write nothing and print that a decision is needed.
    #[arg(short = 'p', conflicts_with = "yes")]
    preen: bool,
    /// Repair everything that can be repaired.
    #[arg(short = 'y')]
    yes: bool,
    /// With -p or -y, save the bytes that the repair overwrites in a new file. Without them, bring the bytes in the
    /// file back.
    #[arg(long, value_name = "FILE")]
    undo: Option<PathBuf>,
    /// Print no progress.
    #[arg(short, long)]
    quiet: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Changes that the call allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// A check.
    Look,
    /// A check and a plan.
    Plan,
    /// A repair in which everything is certain.
    Safe,
    /// Every repair.
    All,
}

/// The result of a repair.
enum Repair {
    /// The volume cannot be repaired, for this reason.
    Refused(String),
    /// It could be repaired so.
    Planned(Plan),
    /// It could be repaired so, and a person has to decide.
    NeedsPerson(Plan),
    /// It is repaired.
    Done(Plan),
}

/// Returns the exit code of a usage error, if the call is one of `fsck`.
pub fn usage_code(arguments: &[OsString]) -> Option<u8> {
    arguments.get(1).is_some_and(|verb| verb == "fsck").then_some(USAGE)
}

/// Checks the volume, repairs it if that is asked for, and prints the findings.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mode = match (args.yes, args.preen || args.auto, args.no) {
        (true, ..) => Mode::All,
        (_, true, _) => Mode::Safe,
        (.., true) => Mode::Plan,
        _ => Mode::Look,
    };
    let done = match &args.undo {
        Some(file) if mode == Mode::Look => bring_back(args, file).map(|()| ExitCode::SUCCESS),
        _ => check(args, mode),
    };
    Ok(done.unwrap_or_else(|error| {
        failure::tell(&with_content(&args.image.place.range.of(&args.image.image), error));
        ExitCode::from(OPERATIONAL)
    }))
}

fn check(args: &Args, mode: Mode) -> Result<ExitCode> {
    let device = open(args, mode)?;
    let name = || args.image.image.display().to_string();
    let bar = progress::stages(args.quiet);
    let found = match mode {
        Mode::Look => {
            f2fs_check::check(device.clone(), &mut progress::checker(&bar)).map(|report| (report, None))
        }
        _ => f2fs_check::repair::plan(&device, clock::now(), &mut progress::checker(&bar)).map(divide),
    };
    bar.finish_and_clear();
    let (report, mut repair) = found.with_context(name)?;
    let is_allowed = |plan: &Plan| mode == Mode::All || plan.certainty() == Certainty::Certain;
    repair = match repair {
        Some(Repair::Planned(plan)) if mode == Mode::Plan => Some(Repair::Planned(plan)),
        Some(Repair::Planned(plan)) if !is_allowed(&plan) => Some(Repair::NeedsPerson(plan)),
        Some(Repair::Planned(plan)) => {
            if let Some(file) = &args.undo {
                save_undo(&plan, &*device, file)?;
            }
            plan.apply(&*device).with_context(name)?;
            Some(Repair::Done(plan))
        }
        other => other,
    };
    let code = match &repair {
        _ if report.is_clean() => ExitCode::SUCCESS,
        Some(Repair::Done(_)) => ExitCode::from(CORRECTED),
        _ => ExitCode::from(UNCORRECTED),
    };
    let printed = Printed::of(&report, repair.as_ref());
    render::print(&printed, args.json, |printed, out| printed.text(&report, out))?;
    Ok(code)
}

/// Divides a plan into the first check and the repair.
fn divide(planned: Planned) -> (Report, Option<Repair>) {
    match planned {
        Planned::Clean(report) => (report, None),
        Planned::Repair(plan) => (plan.report.clone(), Some(Repair::Planned(plan))),
        Planned::Refused(refusal) => (refusal.report, Some(Repair::Refused(refusal.reason))),
    }
}

/// Opens the devices of the volume as one.
fn open(args: &Args, mode: Mode) -> Result<Arc<dyn Device>> {
    let open = match mode {
        Mode::Look | Mode::Plan => open_device,
        Mode::Safe | Mode::All => open_device_to_write,
    };
    let sources = args.image.sources();
    let devices = sources.iter().map(open).collect::<Result<Vec<_>>>()?;
    let first = devices[0].clone();
    let alone = devices.len() == 1;
    match f2fs::engine::join(devices) {
        // The check says what is wrong with the superblocks.
        Err(Error::Corrupt { .. } | Error::Io { .. }) if alone => Ok(first),
        joined => joined.with_context(|| args.image.image.display().to_string()),
    }
}

/// Saves the bytes that a repair overwrites, in a file that does not exist yet.
fn save_undo(plan: &Plan, device: &dyn Device, path: &Path) -> Result<()> {
    let name = || path.display().to_string();
    let undo = Undo::of(plan.requests(), device);
    if undo.unreadable_bytes() > 0 {
        notice::tell(format_args!(
            "{}: {} bytes that the repair overwrites cannot be read; undo puts zeroes there",
            path.display(),
            undo.unreadable_bytes()
        ));
    }
    let file = File::create_new(path).with_context(name)?;
    let mut out = BufWriter::new(&file);
    undo.store(&mut out).and_then(|()| out.flush()).with_context(name)?;
    drop(out);
    file.sync_all().with_context(name)?;
    // The name must survive a power cut, too: the repair follows.
    File::open(folder(path)).and_then(|folder| folder.sync_all()).with_context(name)
}

/// Brings the bytes in an undo file back.
fn bring_back(args: &Args, path: &Path) -> Result<()> {
    let name = || path.display().to_string();
    let file = File::open(path).with_context(name)?;
    let undo = Undo::load(&mut BufReader::new(file)).with_context(name)?;
    let device = open(args, Mode::All)?;
    undo.apply(&device).with_context(|| args.image.image.display().to_string())
}
