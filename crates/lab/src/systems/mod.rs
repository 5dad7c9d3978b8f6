//! Targets of experiments: a file system on a modelled card, in process or in a guest.
//!
//! *Invariant*: a target runs [`Op`]s of the one vocabulary and reports the duration of each on the card's
//! clock.

mod block_cache;
mod chip;
mod cleaner;
mod directory;
pub(crate) mod engine;
mod linux;
mod null_target;
mod queue;
mod read_ahead;
mod stock;
mod suited;
mod workloads;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use ::guest::Op;
use flash::{Pace, Profile, Trace, counters::Counters};
use serde::{Deserialize, Serialize};

pub(crate) use self::chip::ChipRequest;
pub use self::{
    directory::{DirectoryTarget, can_drop_caches},
    engine::EngineTarget,
    linux::{GuestTarget, traits},
    stock::StockTarget,
    suited::suited,
};
use crate::{
    preset::Preset,
    rivals::FileSystem,
    scale::Scale,
    stop::Stop,
    vm::{Failure, Measured},
    wear::Wear,
};

/// Name of our own file system in this process.
pub const OURS: &str = "flashkit";
/// Name of our own file system mounted through FUSE in the guest.
pub const THROUGH_FUSE: &str = "flashkit-fuse";
/// Path of the card's disk in targets.
pub const DISK: &str = "/disk/card";
/// Mount source for raw flash: JFFS2 takes the name of the flash, UBIFS that of the only UBI volume on it.
pub const CHIP: &str = "mtd:flash";
#[allow(missing_docs, reason = "the check before ensures it")]
pub const UBI_VOLUME: &str = "ubi0:lab";
/// Mount point.
pub const MOUNT_POINT: &str = "/mnt";

/// A formatted file system on its card, not yet mounted.
pub trait Target {
    /// Executes one operation.
    ///
    /// # Errors
    /// The file system refuses it, or the target fails.
    fn run(&mut self, op: &Op) -> Result<Measured, Failure>;

    /// Reboots the machine; the card keeps its power, and no file system is mounted afterwards.
    ///
    /// # Errors
    /// The machine does not boot.
    fn reboot(&mut self) -> Result<(), Failure>;

    /// Returns the card's counters.
    fn counters(&self) -> Counters;

    /// Returns the erase counts of the flash by location; `None` if unknown.
    fn wear(&self) -> Option<Wear> {
        None
    }

    /// Returns the requests since the last boot, if they are recorded.
    fn trace(&self) -> Option<Trace>;

    /// Returns the memory in bytes that the kernel uses for itself, without pages of files; `None` if
    /// unknown.
    ///
    /// # Errors
    /// The target fails.
    fn kernel_memory(&mut self) -> Result<Option<u64>, Failure> {
        Ok(None)
    }
}

/// Kind of guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machine {
    /// User-mode Linux with time travel: exact device time.
    Virtual,
    /// A stock kernel in QEMU: real time, indicative.
    Stock,
}

/// Instructions for getting a kernel for the guest. An installed program has no sources beside it.
pub const GET_KERNEL: &str = "`cargo xtask uml-kernel` in a checkout of flashkit's sources builds one, and --guest names its directory \
                              (var/uml there)";

/// The guest's programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    /// Kind of machine.
    pub machine: Machine,
    /// The kernel.
    pub kernel: PathBuf,
    /// Its init; for a stock kernel the initramfs that contains it.
    pub agent: PathBuf,
    /// Program that mounts our file system in the guest, if needed.
    pub flashkit: Option<PathBuf>,
}

impl Programs {
    /// Returns the programs in a directory. Exact ones take precedence over indicative ones.
    pub fn find(dir: &Path) -> Option<Programs> {
        let dir = std::path::absolute(dir).ok()?;
        let flashkit = std::env::current_exe().ok();
        let there = [(Machine::Virtual, "linux", "guest-agent"), (Machine::Stock, "vmlinuz", "initramfs")];
        let programs = there.map(|(machine, kernel, agent)| Programs {
            machine,
            kernel: dir.join(kernel),
            agent: dir.join(agent),
            flashkit: flashkit.clone(),
        });
        programs.into_iter().find(|programs| programs.kernel.is_file() && programs.agent.is_file())
    }
}

/// Configuration of a target.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The file system and its options, including those that suit the card.
    pub file_system: FileSystem,
    /// Preset of the machine.
    pub preset: Preset,
    /// Profile of the card.
    pub profile: Profile,
    /// Sizes.
    pub scale: Scale,
    /// The guest's programs, for the kernel's file systems.
    pub programs: Option<Programs>,
    /// Clock of the measurement: the card's or the machine's.
    pub pace: Pace,
    /// True if requests to the card are recorded; on bare flash, its programs and erases.
    pub traced: bool,
    /// True if the file system's background cleaner runs, for those that have one.
    pub cleaned: bool,
    /// Seed of the guest's random choices.
    pub seed: u64,
    /// Stop request.
    pub stop: Stop,
}

impl Setting {
    /// Returns true if figures come from the host's clock, with a stock kernel in QEMU.
    pub fn is_indicative(&self) -> bool {
        let is_stock = self.programs.as_ref().is_some_and(|programs| programs.machine == Machine::Stock);
        is_stock && self.file_system.kind != OURS
    }

    /// Formats the file `image` and starts a target on it.
    ///
    /// # Errors
    /// Formatting or booting fails.
    pub fn start(&self, image: &Path) -> Result<Box<dyn Target>, Failure> {
        Ok(match self.file_system.kind == OURS {
            true => Box::new(EngineTarget::start(self, image)?),
            false if self.is_indicative() => Box::new(StockTarget::start(self, image)?),
            false => Box::new(GuestTarget::start(self, image)?),
        })
    }

    /// Starts a target on the file `image`, which contains a volume.
    ///
    /// # Errors
    /// Opening or booting fails.
    pub fn start_on(&self, image: &Path) -> Result<Box<dyn Target>, Failure> {
        Ok(match self.file_system.kind == OURS {
            true => Box::new(EngineTarget::start_on(self, image)?),
            false if self.is_indicative() => Box::new(StockTarget::start_on(self, image)?),
            false => Box::new(GuestTarget::start_on(self, image)?),
        })
    }
}

/// Flash operations during a part of an experiment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are clear and include the units")]
pub struct FlashWork {
    pub programmed_bytes: u64,
    pub page_reads: u64,
    pub block_erases: u64,
    pub copied_pages: u64,
    /// Busy time of the card by cause.
    pub time_ns: BTreeMap<String, u64>,
    /// Number of write commands by the log2 of their length in bytes.
    pub writes_by_log2_bytes: BTreeMap<u32, u64>,
}

impl FlashWork {
    /// Adds the work of a later part.
    pub fn add(&mut self, later: &FlashWork) {
        self.programmed_bytes += later.programmed_bytes;
        self.page_reads += later.page_reads;
        self.block_erases += later.block_erases;
        self.copied_pages += later.copied_pages;
        for (cause, ns) in &later.time_ns {
            *self.time_ns.entry(cause.clone()).or_default() += ns;
        }
        for (size, count) in &later.writes_by_log2_bytes {
            *self.writes_by_log2_bytes.entry(*size).or_default() += count;
        }
    }

    /// Returns the share of the card's time that merges took: copies and erases of its own. `None` if the card was not
    /// busy.
    pub fn merge_share(&self) -> Option<f64> {
        let all: f64 = self.time_ns.values().map(|ns| *ns as f64).sum();
        let merges = self.time_ns.get("merge").copied().unwrap_or(0);
        (all > 0.0).then(|| merges as f64 / all)
    }

    /// Returns the difference between two states of the counters.
    pub fn between(earlier: &Counters, later: &Counters, page_bytes: u32) -> FlashWork {
        let parts = later.time_ns.parts().into_iter().zip(earlier.time_ns.parts());
        let grown = |(size, count): (&u32, &u64)| {
            let before = earlier.host.writes_by_log2_bytes.get(size).copied().unwrap_or(0);
            (*count > before).then(|| (*size, count - before))
        };
        FlashWork {
            programmed_bytes: (later.flash.page_programs - earlier.flash.page_programs)
                * u64::from(page_bytes),
            page_reads: later.flash.page_reads - earlier.flash.page_reads,
            block_erases: later.flash.block_erases - earlier.flash.block_erases,
            copied_pages: later.layer.copied_pages - earlier.layer.copied_pages,
            time_ns: parts
                .filter(|(late, early)| late.1 > early.1)
                .map(|(late, early)| (late.0.replace(' ', "_"), late.1 - early.1))
                .collect(),
            writes_by_log2_bytes: later.host.writes_by_log2_bytes.iter().filter_map(grown).collect(),
        }
    }
}
