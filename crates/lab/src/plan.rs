//! The plan of a study: cells of experiment, file system and machine.

use std::{collections::BTreeMap, fmt, path::PathBuf, str::FromStr, time::Duration};

use flash::{Profile, ProfileError};
use serde::{Deserialize, Serialize};

use crate::{
    experiment::{Experiment, Part},
    matrix::{OwnWorkload, Point},
    preset::Preset,
    record::digest,
    rivals::FileSystem,
    scale::Scale,
    systems::{OURS, Programs, THROUGH_FUSE},
};

/// One experiment on one file system on one machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// The experiment.
    pub experiment: Experiment,
    /// The file system.
    pub file_system: FileSystem,
    /// The machine.
    pub preset: Preset,
    /// Name of the card's profile, if it is not the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<String>,
    /// Directory to measure in, for measurements on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// Position in a matrix.
    #[serde(default, skip_serializing_if = "Point::is_none")]
    pub point: Point,
}

impl Cell {
    /// Creates a cell on a modelled device.
    pub fn new(experiment: Experiment, file_system: FileSystem, preset: Preset) -> Cell {
        Cell { experiment, file_system, preset, card: None, place: None, point: Point::default() }
    }

    /// Creates a cell on a modelled card that no preset has.
    pub fn on_card(experiment: Experiment, file_system: FileSystem, card: &str) -> Cell {
        Cell { card: Some(card.into()), ..Cell::new(experiment, file_system, Preset::Card) }
    }

    /// Name of the machine in tables: that of its card, or else of its preset.
    pub fn machine(&self) -> &str {
        self.card.as_deref().unwrap_or(self.preset.name())
    }

    /// Name in commands and files: `write_fsync.f2fs.desktop`, with options in between;
    /// `write_fsync.f2fs.card+survey-a1` for a card, `write_fsync.ext4.here+mnt+card` for a directory.
    pub fn id(&self) -> String {
        let name: String = self.file_system.name().chars().map(of_file_name).collect();
        let card = self.card.iter().map(|card| format!("/{card}"));
        let place: String =
            card.chain(self.place.clone()).flat_map(String::into_bytes).map(of_place).collect();
        let place = if place.len() > PLACE_MAX { digest_of(&place) } else { place };
        let (name, preset) = (name.trim_end_matches('_'), self.preset.name());
        let workload = self.point.workload.as_ref().map(|workload| format!("-{}", workload.name));
        let experiment = format!("{}{}", self.experiment.name(), workload.unwrap_or_default());
        let id = format!("{experiment}.{name}.{preset}{place}{}", self.point.suffix());
        if id.len() <= ID_MAX { id } else { format!("{experiment}.{preset}{}", digest_of(&id)) }
    }

    /// Name of the measured file system in tables, with its kernel if a matrix has several.
    pub fn subject(&self) -> String {
        let mut name = self.file_system.name();
        if let Some(place) = &self.place {
            name += &format!(" in {place}");
        }
        if let Some(kernel) = &self.point.kernel {
            name += &format!(", Linux {kernel}");
        }
        name
    }

    /// Returns true if the cell is possible: raw flash supports only file systems made for it, and only the
    /// experiment on durations of writes.
    pub(crate) fn makes_sense(&self) -> bool {
        let is_raw = self.preset.is_raw();
        let lacks_spare_bytes = self.preset == Preset::Nand && self.file_system.needs_spare_bytes();
        is_raw == self.file_system.is_raw()
            && (!is_raw || self.experiment == Experiment::Latency && !lacks_spare_bytes)
    }

    /// The parts that it measures.
    pub fn parts(&self) -> &'static [Part] {
        self.experiment.parts_of(&self.file_system.kind)
    }

    /// Sort key of its record.
    pub fn rank(&self) -> (Preset, Option<String>, Experiment, bool, String, Point) {
        let Cell { preset, card, experiment, point, .. } = self;
        let is_rival = !self.file_system.is_ours();
        (*preset, card.clone(), *experiment, is_rival, self.subject(), point.clone())
    }
}

/// Maximum length of a directory's name in a file name. Longer ones are replaced by a digest, because file
/// names have at most 255 bytes.
pub(crate) const PLACE_MAX: usize = 120;
/// Maximum length of a cell's name, for the same reason.
const ID_MAX: usize = 200;

/// Returns the replacement for a name that is too long.
pub(crate) fn digest_of(place: &str) -> String {
    let digest = digest(place.as_bytes()).expect("memory can be read");
    format!("+{}", &digest[..16])
}

/// Encodes a character of a name for a file name.
pub(crate) fn of_file_name(c: char) -> char {
    if c.is_ascii_alphanumeric() || "-=,".contains(c) { c } else { '_' }
}

/// Encodes a byte of a directory's path for a file name. Different paths give different names.
fn of_place(byte: u8) -> String {
    match byte {
        b'/' => "+".into(),
        b if b.is_ascii_alphanumeric() || b"-_=,".contains(&b) => char::from(b).into(),
        b => format!("%{b:02x}"),
    }
}

/// Aging of a file system before an experiment begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Age {
    /// Number of times that the whole space is written.
    pub times: u32,
    /// Fill level after that, in percent.
    pub full_percent: u32,
    /// Number of rounds of the writes that are measured afterwards.
    #[serde(default, skip_serializing_if = "Rounds::is_once")]
    pub rounds: Rounds,
}

/// Number of rounds of a part that writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rounds {
    /// One.
    #[default]
    Once,
    /// As many as the rate needs to stand.
    UntilSteady,
}

impl Rounds {
    fn is_once(&self) -> bool {
        *self == Rounds::Once
    }
}

impl Default for Age {
    /// The age before writing goes on until its rate stands: the whole space is written twice.
    fn default() -> Age {
        Age { times: 2, full_percent: FULL_PERCENT, rounds: Rounds::Once }
    }
}

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Age { times, full_percent, rounds } = self;
        write!(f, "{times}:{full_percent}{}", if rounds.is_once() { "" } else { ":steady" })
    }
}

/// Default fill level of an aged file system.
const FULL_PERCENT: u32 = 60;

impl FromStr for Age {
    type Err = String;

    fn from_str(text: &str) -> Result<Age, String> {
        let (times, full) = text.split_once(':').unwrap_or((text, ""));
        let full_percent = if full.is_empty() { Ok(FULL_PERCENT) } else { full.parse() };
        match (times.parse(), full_percent) {
            (Ok(times @ 1..=1000), Ok(full_percent @ 1..=95)) => {
                Ok(Age { times, full_percent, rounds: Rounds::Once })
            }
            _ => Err("TIMES[:PERCENT], for example 3:60; up to 1000 times, up to 95 %".into()),
        }
    }
}

/// The work of a study.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The cells, in the order in which they are started.
    pub cells: Vec<Cell>,
    /// Sizes; those of a single cell may differ, see [`scale_of`](Plan::scale_of).
    pub scale: Scale,
    /// Overrides the number of timed writes.
    pub timed_writes: Option<u64>,
    /// Profiles of the cards that cells name, each with a name of its own.
    pub cards: Vec<Profile>,
    /// Overrides the size of the cards.
    pub card_bytes: Option<u64>,
    /// Aging of the file systems before the experiments.
    pub age: Option<Age>,
    /// Seed of random orders and contents.
    pub seed: u64,
    /// The guest's programs.
    pub programs: Option<Programs>,
    /// The programs of guests with the kernels that a matrix names.
    pub kernels: BTreeMap<String, Programs>,
    /// The workloads that a matrix names.
    pub workloads: BTreeMap<String, OwnWorkload>,
    /// Measurement of the costs of the machine.
    pub costs: Costs,
    /// Check of each volume after its experiment.
    pub checks: Checks,
    /// Directory for the cards' data while a cell runs.
    pub work: PathBuf,
    /// Number of cells to run in parallel.
    pub jobs: usize,
}

/// Measurement of processor time and memory, by a second run of each cell in real time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Costs {
    /// They are measured.
    Measured,
    /// They are left out.
    LeftOut,
}

/// Check of a volume after its experiment, by the file system's own checker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checks {
    /// It is made.
    Made,
    /// It is left out: only the figures are wanted.
    LeftOut,
}

impl Plan {
    /// Returns a plan of cells with the defaults of everything else.
    pub fn of(cells: Vec<Cell>, scale: Scale, work: PathBuf) -> Plan {
        Plan {
            cells,
            scale,
            timed_writes: None,
            cards: Vec::new(),
            card_bytes: None,
            age: None,
            seed: 1,
            programs: None,
            kernels: BTreeMap::new(),
            workloads: BTreeMap::new(),
            costs: Costs::Measured,
            checks: Checks::Made,
            work,
            jobs: 1,
        }
    }

    /// Returns the seed of a cell.
    pub fn seed_of(&self, cell: &Cell) -> u64 {
        cell.point.seed.unwrap_or(self.seed)
    }

    /// Returns the aging of a cell's file system.
    pub fn age_of(&self, cell: &Cell) -> Option<Age> {
        cell.point.age.or(self.age)
    }

    /// Returns the programs of a cell's guest.
    pub fn programs_of(&self, cell: &Cell) -> Option<&Programs> {
        match &cell.point.kernel {
            Some(kernel) => self.kernels.get(kernel),
            None => self.programs.as_ref(),
        }
    }

    /// Returns the user's workload of a cell.
    pub fn workload_of(&self, cell: &Cell) -> Option<&OwnWorkload> {
        self.workloads.get(&cell.point.workload.as_ref()?.name)
    }

    /// Returns the sizes of a cell. On the flash of 2003 the number of timed writes is the published one.
    pub fn scale_of(&self, cell: &Cell) -> Scale {
        let of_file = |bytes| Scale::of_file(bytes).with_dirty(self.scale.dirty_percent);
        let scale = cell.point.size_bytes.map_or(self.scale, of_file);
        match (self.timed_writes, cell.preset) {
            (Some(writes), _) => scale.with_timed_writes(writes),
            (None, Preset::Nor) => scale.with_writes_of_2003(),
            (None, _) => scale,
        }
    }

    /// Returns the profile of a cell's card.
    ///
    /// # Errors
    /// The cell has no modelled device, or names a card that the plan does not have.
    pub fn profile_of(&self, cell: &Cell) -> Result<Profile, ProfileError> {
        let Some(name) = &cell.card else { return cell.preset.profile() };
        let card = self.cards.iter().find(|card| card.name == *name);
        card.cloned().ok_or_else(|| ProfileError::Unknown(name.clone()))
    }

    /// Returns the cells for all combinations that make sense, on the presets and then on further cards.
    pub fn cells(
        experiments: &[Experiment],
        file_systems: &[FileSystem],
        presets: &[Preset],
        cards: &[Profile],
    ) -> Vec<Cell> {
        let on = |cell_of: &dyn Fn(Experiment, FileSystem) -> Cell| -> Vec<Cell> {
            let pairs =
                experiments.iter().flat_map(|experiment| file_systems.iter().map(move |it| (experiment, it)));
            pairs.map(|(experiment, it)| cell_of(*experiment, it.clone())).filter(Cell::makes_sense).collect()
        };
        let on_presets =
            presets.iter().flat_map(|preset| on(&|experiment, it| Cell::new(experiment, it, *preset)));
        let on_cards =
            cards.iter().flat_map(|card| on(&|experiment, it| Cell::on_card(experiment, it, &card.name)));
        on_presets.chain(on_cards).collect()
    }

    /// Returns the cells that need no guest: those of our engine in this process.
    pub fn cells_without_guest(
        experiments: &[Experiment],
        file_systems: &[FileSystem],
        presets: &[Preset],
        cards: &[Profile],
    ) -> Vec<Cell> {
        let mut cells = Plan::cells(experiments, file_systems, presets, cards);
        cells.retain(|cell| cell.file_system.kind == OURS);
        cells
    }
}

/// Returns the file systems of the study, ours first. The f2fs of 2012, which never overwrote in place, is
/// included.
pub fn file_systems() -> Vec<FileSystem> {
    vec![
        FileSystem::new(OURS),
        FileSystem::new(THROUGH_FUSE),
        FileSystem::new("f2fs"),
        FileSystem::new("f2fs").mounted("mode=lfs"),
        FileSystem::new("ext4"),
        FileSystem::new("nilfs2"),
        FileSystem::new("vfat"),
        FileSystem::new("jffs2"),
        FileSystem::new("ubifs"),
    ]
}

/// Estimates the remaining time from the number of finished cells. All cells have equal weight, because they
/// differ less than machines.
pub fn time_left(done: usize, all: usize, passed: Duration) -> Option<Duration> {
    (done > 0 && done < all).then(|| passed.mul_f64((all - done) as f64 / done as f64))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_of_cells_are_valid_file_names() {
        let file_system = FileSystem::new("f2fs").made(&["-s", "2"]).mounted("mode=lfs,active_logs=2");
        let cell = Cell::new(Experiment::Mount, file_system, Preset::Phone);
        assert_eq!(cell.id(), "mount.f2fs__-s_2_mode=lfs,active_logs=2.phone");
    }

    #[test]
    fn directories_have_names_of_their_own() {
        let at = |place: &str| {
            let cell = Cell::new(Experiment::Mount, FileSystem::new("ext4"), Preset::Here);
            Cell { place: Some(place.into()), ..cell }
        };
        assert_eq!(at("/mnt/my card").id(), "mount.ext4.here+mnt+my%20card");
        assert_eq!(at("/mnt").subject(), "ext4 in /mnt");
        let (deep, deeper) = ("/deep".repeat(60), "/deep".repeat(61));
        let places = ["/a.b", "/a+b", "/a/b", "/a%2eb", &deep, &deeper];
        let ids: BTreeSet<String> = places.iter().map(|place| at(place).id()).collect();
        assert_eq!(ids.len(), places.len());
        assert!(ids.iter().all(|id| id.len() < 200), "a file's name has at most 255 bytes");
    }

    #[test]
    fn ages_are_read() {
        assert_eq!("3".parse(), Ok(Age { times: 3, ..Age::default() }));
        let age = Age { full_percent: 80, ..Age::default() };
        assert_eq!("2:80".parse(), Ok(age));
        assert_eq!(age.to_string(), "2:80");
        assert_eq!(Age { rounds: Rounds::UntilSteady, ..age }.to_string(), "2:80:steady");
        for bad in ["", "0", "1:99", "x:5", "-1"] {
            assert!(bad.parse::<Age>().is_err(), "{bad}");
        }
    }

    #[test]
    fn without_a_guest_only_our_file_system_is_planned() {
        let desktop = [Preset::Desktop];
        assert_eq!(Plan::cells(&Experiment::USUAL, &file_systems(), &desktop, &[]).len(), 35);
        let own = Plan::cells_without_guest(&Experiment::USUAL, &file_systems(), &desktop, &[]);
        assert!(own.iter().all(|cell| cell.file_system.kind == OURS));
        assert_eq!(own.len(), 5);
    }

    #[test]
    fn bare_flash_is_only_for_its_own_file_systems() {
        let cells = Plan::cells(&Experiment::ALL, &file_systems(), &[Preset::Nor], &[]);
        let ids: Vec<String> = cells.iter().map(Cell::id).collect();
        assert_eq!(ids, ["latency.jffs2.nor", "latency.ubifs.nor"]);
        let cells = Plan::cells(&Experiment::ALL, &file_systems(), &[Preset::Nand], &[]);
        assert_eq!(cells.iter().map(Cell::id).collect::<Vec<_>>(), ["latency.ubifs.nand"]);
    }

    #[test]
    fn a_card_that_no_preset_has_gets_the_cells_of_a_card() {
        let card = Profile::named("survey-class10").unwrap();
        let ext4 = [FileSystem::new("ext4"), FileSystem::new("jffs2")];
        let cells = Plan::cells(&[Experiment::Mount], &ext4, &[], std::slice::from_ref(&card));
        assert_eq!(cells.iter().map(Cell::id).collect::<Vec<_>>(), ["mount.ext4.card+survey-class10"]);
        assert_eq!(cells[0].machine(), "survey-class10");
    }

    #[test]
    fn time_left_is_in_proportion() {
        assert_eq!(time_left(1, 4, Duration::from_secs(10)), Some(Duration::from_secs(30)));
        assert_eq!(time_left(0, 4, Duration::ZERO), None);
    }
}
