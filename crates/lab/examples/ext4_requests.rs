//! What EXT4 asks of the card of jeong-2012 in each experiment, cut to pieces that flash's test of the
//! calibration replays: `KERNEL AGENT PROFILE DIR`. `cargo xtask uml-kernel` prints the first two; the
//! profile is `transcend-16g-desktop` or `transcend-16g-phone`, and DIR its directory in testdata/calibration.
use std::{fs, path::Path};

use anyhow::{Context, Result, bail};
use flash::{Command, Entry, Profile, Trace, TraceFormat};
use lab::{
    format::FileSystem,
    jeong::{self, Part, Phase, Plan, Programs},
};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kernel, agent, profile, dir] = &arguments[..] else {
        bail!("ext4_requests KERNEL AGENT PROFILE DIR")
    };
    let programs = Programs { kernel: Path::new(kernel), agent: Path::new(agent) };
    // The buffered file may be smaller than the original, since what happens to it happens everywhere alike;
    // the file with fsync has to lie on as many allocation units as the original.
    let plan =
        Plan { fsync_bytes: 100 << 20, trace: true, ..Plan::scaled(Profile::named(profile)?, 128 << 20) };
    let work = tempfile::tempdir_in("/dev/shm")?;
    let run = jeong::run(&plan, &FileSystem::new("ext4"), &programs, &work.path().join("card"))?;
    fs::create_dir_all(dir)?;
    for phase in &run.phases {
        let Some((name, most)) = piece(phase.part) else { continue };
        let entries = requests(phase, run.traces.first().context("asked for")?, most);
        let text = Trace { entries }.to_text(TraceFormat::FioIolog);
        fs::write(Path::new(dir).join(format!("{name}.fio")), text)?;
    }
    Ok(())
}

/// The file that a part goes to, and how many requests of it.
fn piece(part: Part) -> Option<(&'static str, usize)> {
    Some(match part {
        Part::BufferedSequentialWrite => ("buffered-write-sequential", 1000),
        Part::BufferedRandomWrite => ("buffered-write-random", 4000),
        Part::SequentialRead => ("buffered-read-sequential", 300),
        Part::RandomRead => ("buffered-read-random", 500),
        Part::SequentialWriteFsync => ("write-fsync-sequential", 900),
        Part::RandomWriteFsync => ("write-fsync-random", 900),
        Part::MountAfterFormat | Part::MountAfterReboot => return None,
    })
}

/// Requests from the middle of a part; reads, whose places do not matter but whose sizes change as it goes on,
/// from all of it.
fn requests(phase: &Phase, trace: &Trace, most: usize) -> Vec<Entry> {
    let during = phase.started_ns..phase.started_ns + phase.duration_ns;
    let mut entries: Vec<Entry> =
        trace.entries.iter().filter(|entry| during.contains(&entry.at_ns)).copied().collect();
    if phase.part == Part::RandomWriteFsync {
        entries = whole_records(&entries);
    }
    if matches!(phase.part, Part::SequentialRead | Part::RandomRead) {
        entries.retain(|entry| entry.op.command == Command::Read);
        let every = entries.len().div_ceil(most).max(1);
        return entries.into_iter().step_by(every).collect();
    }
    let from = entries.len().saturating_sub(most) / 2;
    entries.into_iter().skip(from).take(most).collect()
}

/// Data, transaction and commit block of each record. The guest's clock ticks every 10 ms: two records in one
/// tick leave the inode as it was, and the second has no transaction. The study's kernels ticked every 1 to
/// 4 ms, shorter than any record took.
fn whole_records(entries: &[Entry]) -> Vec<Entry> {
    let writes =
        |entry: &Entry, bytes: u64| entry.op.command == Command::Write && entry.op.length_bytes == bytes;
    let whole = |three: &&[Entry]| {
        writes(&three[0], 4096)
            && writes(&three[1], 8192)
            && writes(&three[2], 4096)
            && three[1].op.end_bytes() == three[2].op.offset_bytes
            && three[0].op.end_bytes() != three[1].op.offset_bytes
    };
    entries.windows(3).filter(whole).flatten().copied().collect()
}
