//! The search of options: the candidates for a card, and the purposes by which they are compared.

use flash::{
    Profile, ProfileError,
    probe::{Findings, IpuPolicy, SEGMENT_BYTES},
};

use crate::{
    experiment::Experiment,
    plan::Cell,
    preset::Preset,
    rivals::FileSystem,
    systems::{OURS, THROUGH_FUSE},
};

/// A use of a card, with the parts of experiments that stand for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Large files, written and read from start to end.
    Streams,
    /// Small writes that are made durable one by one.
    Databases,
    /// A tree of small files, copied and removed.
    SmallFiles,
    /// All of them, and random access without fsync.
    Mixed,
}

/// A part by its experiment and its name.
pub type PartName = (Experiment, &'static str);

const STREAMS: [PartName; 4] = [
    (Experiment::BufferedWrite, "sequential"),
    (Experiment::BufferedRead, "sequential"),
    (Experiment::Copy, "iso_copy"),
    (Experiment::Copy, "archive_copy"),
];
const DATABASES: [PartName; 2] = [(Experiment::WriteFsync, "sequential"), (Experiment::WriteFsync, "random")];
const SMALL_FILES: [PartName; 2] = [(Experiment::Copy, "tree_copy"), (Experiment::Copy, "tree_remove")];
const RANDOM: [PartName; 2] = [(Experiment::BufferedWrite, "random"), (Experiment::BufferedRead, "random")];

impl Purpose {
    /// All purposes.
    pub const ALL: [Purpose; 4] = [Purpose::Streams, Purpose::Databases, Purpose::SmallFiles, Purpose::Mixed];

    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Purpose::Streams => "streams",
            Purpose::Databases => "databases",
            Purpose::SmallFiles => "small files",
            Purpose::Mixed => "mixed",
        }
    }

    /// Name in command lines.
    pub fn argument(self) -> &'static str {
        match self {
            Purpose::SmallFiles => "small-files",
            other => other.name(),
        }
    }

    /// The parts whose geometric mean is the purpose's score.
    pub fn parts(self) -> Vec<PartName> {
        match self {
            Purpose::Streams => STREAMS.to_vec(),
            Purpose::Databases => DATABASES.to_vec(),
            Purpose::SmallFiles => SMALL_FILES.to_vec(),
            Purpose::Mixed => [&STREAMS[..], &DATABASES, &SMALL_FILES, &RANDOM].concat(),
        }
    }
}

/// The experiments that have the parts of all purposes.
pub const EXPERIMENTS: [Experiment; 4] =
    [Experiment::BufferedWrite, Experiment::WriteFsync, Experiment::BufferedRead, Experiment::Copy];

/// Mount options that leave everything at its default.
pub const DEFAULTS: &str = "defaults";

/// Returns the candidates of a file system on a card, the defaults first. For ours the second one has no options, so it
/// gets those that the probe advises. A file system with options is its only candidate.
///
/// Left out is what changes the promises of a file system: ext4 without a journal, f2fs with `fsync_mode=nobarrier`.
pub fn candidates(file_system: &FileSystem, card: &Profile) -> Vec<FileSystem> {
    if !file_system.is_plain() {
        return vec![file_system.clone()];
    }
    let kind = file_system.kind.as_str();
    let unit = unit_of(&Findings::of(card));
    let plain = FileSystem::new(kind);
    match kind {
        OURS | THROUGH_FUSE => {
            let first = [plain.clone().mounted(DEFAULTS), plain];
            first.into_iter().chain(shapes(kind, unit)).collect()
        }
        "f2fs" => [plain].into_iter().chain(shapes(kind, unit)).collect(),
        "ext4" => ext4(unit),
        _ => vec![plain],
    }
}

/// Makes the cells of a plan for experiments and file systems on presets and cards.
pub type MakeCells = fn(&[Experiment], &[FileSystem], &[Preset], &[Profile]) -> Vec<Cell>;

/// Returns the cells of a search of options: on each card the candidates that suit its unit.
///
/// # Errors
/// A preset has no modelled device.
pub fn cells(
    make: MakeCells,
    experiments: &[Experiment],
    file_systems: &[FileSystem],
    presets: &[Preset],
    cards: &[Profile],
) -> Result<Vec<Cell>, ProfileError> {
    let for_card = |card: &Profile| -> Vec<FileSystem> {
        file_systems.iter().flat_map(|it| candidates(it, card)).collect()
    };
    let mut found = Vec::new();
    for preset in presets {
        found.extend(make(experiments, &for_card(&preset.profile()?), &[*preset], &[]));
    }
    for card in cards {
        found.extend(make(experiments, &for_card(card), &[], std::slice::from_ref(card)));
    }
    Ok(found)
}

/// A combination of sections, zones, policy of in-place updates and logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub section: u64,
    pub zone: u64,
    pub ipu_policy: IpuPolicy,
    pub logs: u64,
}

impl Candidate {
    /// Returns a file system with these options. The kernel's f2fs has no option for in-place updates alone, but `mode=lfs`,
    /// which does without them.
    pub fn file_system(self, kind: &str) -> FileSystem {
        let Candidate { section, zone, ipu_policy, logs } = self;
        let file_system = FileSystem::new(kind);
        let policy = match (ipu_policy, file_system.is_ours()) {
            (IpuPolicy::Fsync, true) => "ipu_policy=fsync",
            (IpuPolicy::Disable, true) => "ipu_policy=disable",
            (IpuPolicy::Fsync, false) => "mode=adaptive",
            (IpuPolicy::Disable, false) => "mode=lfs",
        };
        let made = ["-s", &section.to_string(), "-z", &zone.to_string()];
        file_system.made(&made).mounted(&format!("{policy},active_logs={logs}"))
    }
}

/// Returns the findings' unit of a card, or what is tried without one.
pub(crate) fn unit_of(findings: &Findings) -> u64 {
    findings.unit_bytes.and_then(|found| found.value).unwrap_or(2 * SEGMENT_BYTES)
}

/// Numbers of segments in a section and of sections in a zone that can match a unit, those of mkfs first.
pub(crate) fn sections_and_zones(unit_bytes: u64) -> Vec<(u64, u64)> {
    let whole = unit_bytes.div_ceil(SEGMENT_BYTES).max(2);
    let mut found = vec![(1, 1), (whole, 1), (1, whole)];
    if whole > 2 {
        found.extend([(2, 1), (1, 2)]);
    }
    found
}

/// Returns all combinations of sections, zones, modes and logs that can match a unit. The kernel's f2fs must know them,
/// too.
fn shapes(kind: &str, unit_bytes: u64) -> Vec<FileSystem> {
    let mut found = Vec::new();
    for (section, zone) in sections_and_zones(unit_bytes) {
        for ipu_policy in [IpuPolicy::Fsync, IpuPolicy::Disable] {
            for logs in [6, 4, 2] {
                found.push(Candidate { section, zone, ipu_policy, logs }.file_system(kind));
            }
        }
    }
    found
}

/// Returns ext4 with its journal modes, with and without the unit as its stripe.
fn ext4(unit_bytes: u64) -> Vec<FileSystem> {
    let blocks = unit_bytes / 4096;
    let stripe = format!("stride={blocks},stripe_width={blocks}");
    let modes = ["", "data=writeback", "data=journal"];
    let with = |made: &[&str]| modes.map(|mode| FileSystem::new("ext4").made(made).mounted(mode));
    [with(&[]), with(&["-E", &stripe])].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_differ_and_begin_with_the_defaults() {
        for name in ["transcend-16g-desktop", "survey-class4", "survey-usb-stick", "survey-a1"] {
            let card = Profile::named(name).unwrap();
            for kind in [OURS, THROUGH_FUSE, "f2fs", "ext4", "vfat"] {
                let all = candidates(&FileSystem::new(kind), &card);
                let mut names: Vec<String> = all.iter().map(FileSystem::name).collect();
                let first = if all[0].is_ours() { format!("{kind} ({DEFAULTS})") } else { kind.to_owned() };
                assert_eq!(names[0], first);
                names.sort();
                names.dedup();
                assert_eq!(names.len(), all.len(), "{name}");
            }
        }
        let given = FileSystem::parse("f2fs:mode=lfs");
        assert_eq!(candidates(&given, &Profile::named("survey-a1").unwrap()), [given]);
    }

    #[test]
    fn every_part_of_a_purpose_is_measured() {
        for (experiment, name) in Purpose::ALL.into_iter().flat_map(Purpose::parts) {
            assert!(EXPERIMENTS.contains(&experiment));
            assert!(experiment.parts().iter().any(|part| part.name == name), "{name}");
        }
    }
}
