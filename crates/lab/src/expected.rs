//! Expected memory and time of a cell, for schedulers that ask before it runs.

use crate::{
    experiment::Experiment,
    plan::{Cell, Costs, Plan},
    systems::OURS,
};

/// Expected needs of a cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    /// Maximum memory of all its processes, in bytes.
    pub memory_bytes: u64,
    /// Wall time on one processor, in seconds.
    pub seconds: f64,
}

/// Memory of the process without any data: the program, the card's model.
const BASE_BYTES: u64 = 96 << 20;
/// Memory of the model for each byte of the card, as a divisor.
const MODEL_SHARE: u64 = 256;
/// Maximum of the engine's caches of blocks and nodes.
const CACHE_BYTES_MAX: u64 = 1 << 30;
/// Time to start, format and check, in seconds: in this process, and with a guest.
const START_S: (f64, f64) = (0.5, 8.0);
/// Data that a cell writes and reads in a second, in bytes: in this process, and in a guest.
const BYTES_A_SECOND: (f64, f64) = (20e6, 4e6);

impl Expected {
    /// Returns the expected needs of a cell of a plan. They are upper estimates: they follow from the amounts of
    /// data and from the kind of target, not from the card.
    pub fn of(plan: &Plan, cell: &Cell) -> Expected {
        let scale = plan.scale_of(cell);
        let is_in_process = cell.file_system.kind == OURS;
        let data_bytes = match cell.experiment {
            Experiment::BufferedWrite | Experiment::BufferedRead => 2 * scale.buffered_bytes,
            // An fsync costs as much as several records.
            Experiment::WriteFsync => 8 * 2 * scale.fsync_bytes,
            Experiment::FsyncSizes => 8 * (63 << 20),
            Experiment::Mount => scale.fsync_bytes,
            Experiment::Workloads => 4 * scale.buffered_bytes,
            Experiment::Copy => {
                let tree = scale.tree_files * (scale.tree_mean_bytes + 8192);
                2 * (scale.image_bytes + scale.archive_bytes) + 2 * tree
            }
            Experiment::Latency => 3 * plan.card_bytes.unwrap_or(scale.timed_card_bytes),
            // Four levels of ten runs, each of a sixth of the space.
            Experiment::Utilization => 8 * scale.timed_card_bytes,
            _ => 2 * scale.buffered_bytes,
        };
        let card_bytes = plan.card_bytes.or(plan.profile_of(cell).ok().map(|card| card.size_bytes));
        let aged = plan.age_of(cell).map_or(0, |age| u64::from(age.times) * scale.aged_card_bytes());
        let guest_bytes = u64::from(cell.preset.memory_mib(&scale)) << 20;
        let cached = if is_in_process { data_bytes.min(CACHE_BYTES_MAX) } else { guest_bytes };
        let pick = |(here, guest): (f64, f64)| if is_in_process { here } else { guest };
        let runs = if plan.costs == Costs::Measured { 2.0 } else { 1.0 };
        let seconds = runs * (pick(START_S) + (data_bytes + aged) as f64 / pick(BYTES_A_SECOND));
        let memory_bytes = BASE_BYTES + cached + card_bytes.unwrap_or_default() / MODEL_SHARE;
        Expected { memory_bytes, seconds }
    }
}
