//! What a study does: cells of experiment, file system and machine.

use std::{path::PathBuf, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    experiment::{Experiment, Part},
    format::FileSystem,
    preset::Preset,
    scale::Scale,
    target::{OURS, Programs, THROUGH_FUSE},
};

/// One experiment on one file system on one machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// What is done.
    pub experiment: Experiment,
    /// To what.
    pub file_system: FileSystem,
    /// On what.
    pub preset: Preset,
}

impl Cell {
    /// How commands and files name it: `write_fsync.f2fs.desktop`, and options between.
    pub fn id(&self) -> String {
        let name: String = self.file_system.name().chars().map(of_file_name).collect();
        format!("{}.{}.{}", self.experiment.name(), name.trim_end_matches('_'), self.preset.name())
    }

    /// Whether it can be done: bare flash takes file systems that are made for it, which are asked for their times
    /// of writes only.
    fn makes_sense(&self) -> bool {
        let is_raw = self.preset.is_raw();
        // On NAND, JFFS2 keeps its marks in spare bytes, which the lab's chip does not show.
        let lacks_spare_bytes = self.preset == Preset::Nand && self.file_system.kind == "jffs2";
        is_raw == self.file_system.is_raw()
            && (!is_raw || self.experiment == Experiment::Latency && !lacks_spare_bytes)
    }

    /// The parts that it measures.
    pub fn parts(&self) -> &'static [Part] {
        self.experiment.parts_of(&self.file_system.kind)
    }

    /// The place of its record among others.
    pub fn rank(&self) -> (Preset, Experiment, bool, String) {
        (self.preset, self.experiment, !self.file_system.is_ours(), self.file_system.name())
    }
}

/// A character of a name as it may stand in a file's name.
fn of_file_name(c: char) -> char {
    if c.is_ascii_alphanumeric() || "-=,".contains(c) { c } else { '_' }
}

/// What a file system went through before an experiment begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Age {
    /// How often all its room was written.
    pub times: u32,
    /// How full it was from then on, in percent.
    pub full_percent: u32,
}

/// How full an aged file system is where nobody says it.
const FULL_PERCENT: u32 = 60;

impl FromStr for Age {
    type Err = String;

    fn from_str(text: &str) -> Result<Age, String> {
        let (times, full) = text.split_once(':').unwrap_or((text, ""));
        let full_percent = if full.is_empty() { Ok(FULL_PERCENT) } else { full.parse() };
        match (times.parse(), full_percent) {
            (Ok(times @ 1..=1000), Ok(full_percent @ 1..=95)) => Ok(Age { times, full_percent }),
            _ => Err("TIMES[:PERCENT], as 3:60; up to 1000 times, up to 95 %".into()),
        }
    }
}

/// Everything that a study does.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The cells, in the order in which they are begun.
    pub cells: Vec<Cell>,
    /// How large.
    pub scale: Scale,
    /// Another size of the cards than their own.
    pub card_bytes: Option<u64>,
    /// What file systems go through before.
    pub age: Option<Age>,
    /// Picks random orders and contents.
    pub seed: u64,
    /// The guest's programs.
    pub programs: Option<Programs>,
    /// Where the cards' data is while a cell runs.
    pub work: PathBuf,
    /// Cells at once.
    pub jobs: usize,
}

impl Plan {
    /// Cells for all of these. The kernel's file systems are left out where there is no guest to run them.
    pub fn cells(
        experiments: &[Experiment],
        file_systems: &[FileSystem],
        presets: &[Preset],
        has_guest: bool,
    ) -> Vec<Cell> {
        let mut cells = Vec::new();
        for preset in presets {
            for experiment in experiments {
                for file_system in file_systems {
                    let cell =
                        Cell { experiment: *experiment, file_system: file_system.clone(), preset: *preset };
                    if cell.makes_sense() && (has_guest || file_system.kind == OURS) {
                        cells.push(cell);
                    }
                }
            }
        }
        cells
    }
}

/// The file systems of the study, ours first: f2fs also as it was in 2012, when it never overwrote in place.
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

/// How long what is left will take, from what was done: weighed by nothing, for cells differ less than machines.
pub fn time_left(done: usize, all: usize, passed: Duration) -> Option<Duration> {
    (done > 0 && done < all).then(|| passed.mul_f64((all - done) as f64 / done as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_named_so_that_files_can_be() {
        let file_system = FileSystem::new("f2fs").made(&["-s", "2"]).mounted("mode=lfs,active_logs=2");
        let cell = Cell { experiment: Experiment::Mount, file_system, preset: Preset::Phone };
        assert_eq!(cell.id(), "mount.f2fs__-s_2_mode=lfs,active_logs=2.phone");
    }

    #[test]
    fn ages_are_read() {
        assert_eq!("3".parse(), Ok(Age { times: 3, full_percent: 60 }));
        assert_eq!("2:80".parse(), Ok(Age { times: 2, full_percent: 80 }));
        for bad in ["", "0", "1:99", "x:5", "-1"] {
            assert!(bad.parse::<Age>().is_err(), "{bad}");
        }
    }

    #[test]
    fn without_a_guest_there_is_ours() {
        let cells = |guest| Plan::cells(&Experiment::USUAL, &file_systems(), &[Preset::Desktop], guest);
        assert_eq!(cells(true).len(), 35);
        assert!(cells(false).iter().all(|cell| cell.file_system.kind == OURS));
        assert_eq!(cells(false).len(), 5);
    }

    #[test]
    fn bare_flash_takes_what_is_made_for_it() {
        let cells = Plan::cells(&Experiment::ALL, &file_systems(), &[Preset::Nor], true);
        let ids: Vec<String> = cells.iter().map(Cell::id).collect();
        assert_eq!(ids, ["latency.jffs2.nor", "latency.ubifs.nor"]);
        let cells = Plan::cells(&Experiment::ALL, &file_systems(), &[Preset::Nand], true);
        assert_eq!(cells.iter().map(Cell::id).collect::<Vec<_>>(), ["latency.ubifs.nand"]);
    }

    #[test]
    fn time_left_is_in_proportion() {
        assert_eq!(time_left(1, 4, Duration::from_secs(10)), Some(Duration::from_secs(30)));
        assert_eq!(time_left(0, 4, Duration::ZERO), None);
    }
}
