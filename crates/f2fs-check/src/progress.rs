//! Progress of a check.

/// Stage of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Node address table.
    Nat,
    /// Segment information table.
    Sit,
    /// Inodes.
    Inodes,
    /// Other nodes.
    Nodes,
    /// Directories.
    Directories,
    /// Sums, quota files and the chain of fsynced nodes.
    Sums,
}

impl Stage {
    /// Returns the stage's name.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Nat => "NAT",
            Stage::Sit => "SIT",
            Stage::Inodes => "inodes",
            Stage::Nodes => "nodes",
            Stage::Directories => "directories",
            Stage::Sums => "sums",
        }
    }
}

/// Progress of a check, for display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The current stage.
    pub stage: Stage,
    /// Bytes of structures that the stage has checked.
    pub done_bytes: u64,
    /// Bytes of structures that the stage checks.
    pub total_bytes: u64,
}
