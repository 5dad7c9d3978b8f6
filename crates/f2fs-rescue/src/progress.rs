//! Progress of a rescue.

use crate::Map;

/// Stage of a rescue, before the files are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Search for nodes on the device.
    Scan,
    /// Collection of the owners of all blocks.
    Owners,
    /// Reading of the directories.
    Names,
}

impl Stage {
    /// Returns the stage's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Scan => "scan",
            Stage::Owners => "owners",
            Stage::Names => "names",
        }
    }
}

/// Progress of a rescue, for display, and for a map that outlives an interrupted scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The current stage.
    pub stage: Stage,
    /// Bytes of the device that the stage has read.
    pub done_bytes: u64,
    /// Bytes of the device that the stage reads.
    pub total_bytes: u64,
    /// The parts of the device that the scan has tried so far. Parts are only added, at the end.
    pub map: &'a Map,
}
