//! Experiment 9: power cuts. A workload makes promises on a modelled card that keeps a log of its requests.
//! The log is cut at many points, in the ways in which cards fail. After each cut the file system recovers,
//! its checker runs, and the tree is compared with the promises.
//!
//! *Invariant*: a cut follows from the file system, the card, the seed and its ID alone, so that each broken
//! promise can be replayed.

mod bare;
mod chip;
mod cut_files;
mod dirty_mark;
mod engine;
mod guest;
mod log;
mod page;
mod promise;
mod record;
mod script;
mod subject;
mod table;
mod task;

pub use self::{
    dirty_mark::DirtyMark,
    engine::EngineSubject,
    guest::GuestSubject,
    log::{After, CardFailure, Cut, Entry, Log},
    page::page,
    promise::{Fault, Kind, Must, Promise},
    record::{Broken, CutReport, PromiseRecord, Tally, read_all},
    script::{Script, Step},
    subject::{Aftermath, Recording, Subject},
    table::text,
    task::{CutId, Progress, Task, replay, run},
};

use crate::{
    rivals::FileSystem,
    systems::{OURS, THROUGH_FUSE},
};

/// Number of the experiment.
pub const NUMBER: u32 = 9;
/// Name in commands.
pub const NAME: &str = "power_cuts";

/// Name of the card on which the power is cut by default: one with a cache and a flush.
pub const CARD: &str = "survey-emmc51";
/// Size of that card. Each file system can be made on it.
pub const CARD_BYTES: u64 = 512 << 20;

/// Size of the bare chips.
pub const CHIP_BYTES: u64 = 16 << 20;

/// Returns the name of the card or chip on which a file system is tested by default.
pub fn card_of(file_system: &FileSystem) -> &'static str {
    match file_system.kind.as_str() {
        "jffs2" => "nor-2003",
        "ubifs" => "nand-2003",
        _ => CARD,
    }
}

/// Returns the file systems of the experiment, ours first, and those for bare flash last.
pub fn file_systems() -> Vec<FileSystem> {
    let ext4 = |mode: &str| FileSystem::new("ext4").mounted(mode);
    let first = [OURS, THROUGH_FUSE, "f2fs", "ext4"].map(FileSystem::new);
    let last = ["nilfs2", "vfat", "exfat", "btrfs", "xfs", "jffs2", "ubifs"].map(FileSystem::new);
    first.into_iter().chain([ext4("data=journal"), ext4("data=writeback")]).chain(last).collect()
}
