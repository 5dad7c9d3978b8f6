//! Records EXT4's requests to the card of jeong-2012 in each experiment, reduced to the samples that flash's
//! calibration test replays: `KERNEL AGENT PROFILE DIR`. `cargo xtask uml-kernel` prints the first two; the
//! profile is `transcend-16g-desktop` or `transcend-16g-phone`, and DIR its directory in
//! testdata/calibration.
use std::{fs, path::Path};

use anyhow::{Context, Result, bail};
use flash::{Command, Entry, Pace, Profile, Trace, TraceFormat};
use flashkit_lab::{
    experiment::{Experiment, How, Phase},
    preset::Preset,
    rivals::FileSystem,
    scale::Scale,
    stop::Stop,
    systems::{DISK, GuestTarget, Machine, Programs, Setting, Target},
};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kernel, agent, profile, dir] = &arguments[..] else {
        bail!("ext4_requests KERNEL AGENT PROFILE DIR")
    };
    // The buffered file may be smaller than the original, because its requests are uniform. The file with
    // fsync must cover as many allocation units as the original.
    let scale = Scale { fsync_bytes: 100 << 20, ..Scale::of_file(128 << 20) };
    let setting = Setting {
        file_system: FileSystem::new("ext4"),
        preset: if profile.ends_with("phone") { Preset::Phone } else { Preset::Desktop },
        profile: Profile::named(profile)?,
        scale,
        programs: Some(Programs {
            machine: Machine::Virtual,
            kernel: kernel.into(),
            agent: agent.into(),
            flashkit: None,
        }),
        pace: Pace::Virtual,
        traced: true,
        cleaned: false,
        seed: 2012,
        stop: Stop::default(),
    };
    let page_bytes = setting.profile.flash.page_bytes;
    let (mount, workload) = (("ext4", ""), None);
    let how = How { scale, age: None, seed: 2012, workload, mount, source: DISK, page_bytes };
    let work = tempfile::tempdir_in("/dev/shm")?;
    fs::create_dir_all(dir)?;
    for experiment in [Experiment::BufferedWrite, Experiment::BufferedRead, Experiment::WriteFsync] {
        let mut target = GuestTarget::start(&setting, &work.path().join(experiment.name()))?;
        let mut phases = Vec::new();
        experiment.run(&mut target, &how, &mut |phase| phases.push(phase))?;
        let trace = target.trace().context("it was asked for")?;
        for phase in phases {
            let entries = requests(experiment, &phase, &trace, most(experiment, &phase.part));
            let text = Trace { entries }.to_text(TraceFormat::FioIolog);
            let name = format!("{}-{}.fio", name(experiment), phase.part);
            fs::write(Path::new(dir).join(name), text)?;
        }
    }
    Ok(())
}

fn name(experiment: Experiment) -> String {
    experiment.name().replace('_', "-")
}

/// Returns the number of requests of a part to keep.
fn most(experiment: Experiment, part: &str) -> usize {
    match (experiment, part) {
        (Experiment::BufferedWrite, "sequential") => 1000,
        (Experiment::BufferedWrite, _) => 4000,
        (Experiment::BufferedRead, "sequential") => 300,
        (Experiment::BufferedRead, _) => 500,
        _ => 900,
    }
}

/// Returns requests from the middle of a part. Reads are sampled over the whole part: their offsets do not
/// matter, but their lengths change over time.
fn requests(experiment: Experiment, phase: &Phase, trace: &Trace, most: usize) -> Vec<Entry> {
    let during = phase.started_ns..phase.started_ns + phase.duration_ns;
    let mut entries: Vec<Entry> =
        trace.entries.iter().filter(|entry| during.contains(&entry.at_ns)).copied().collect();
    if experiment == Experiment::WriteFsync && phase.part == "random" {
        entries = whole_records(&entries);
    }
    if experiment == Experiment::BufferedRead {
        entries.retain(|entry| entry.op.command == Command::Read);
        let every = entries.len().div_ceil(most).max(1);
        return entries.into_iter().step_by(every).collect();
    }
    let from = entries.len().saturating_sub(most) / 2;
    entries.into_iter().skip(from).take(most).collect()
}

/// Returns data, transaction and commit block of each complete record. The guest's clock ticks every 10 ms:
/// of two records in one tick the second leaves the inode unchanged, and has no transaction. The clocks of
/// the study's kernels ticked every 1 to 4 ms, less than the duration of any record.
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
