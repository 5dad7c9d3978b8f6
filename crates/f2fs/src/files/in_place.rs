//! Whether blocks of a file are overwritten where they are: a pure decision.

use crate::disk::InPlace;

/// Maximum number of dirty pages that an fsync updates in place even if they are not adjacent (Linux,
/// `DEF_MIN_FSYNC_BLOCKS`).
pub(super) const IN_PLACE_BLOCKS_MAX: usize = 8;

/// Minimum run of adjacent blocks for an in-place update on an fsync of many blocks: one command of 120 KiB,
/// the most that a USB reader takes at once.
const NEIGHBOURS_LEAST: usize = 30;

/// Why blocks are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asks {
    /// No fsync: a plain write, a checkpoint, or memory that runs short.
    Nobody,
    /// An fsync of few blocks.
    FewSynced,
    /// An fsync of many blocks.
    ManySynced,
}

/// Returns true if blocks of a file that have addresses are updated in place (IPU). `neighbours` is the
/// number of these blocks, which are adjacent in the file and on the device. Appending them to a log would
/// take no fewer commands, and would write their new addresses and segment summaries as well.
pub(super) fn in_place(policy: InPlace, asks: Asks, neighbours: usize) -> bool {
    match (policy, asks) {
        (InPlace::Never, _) | (InPlace::Fsync, Asks::Nobody) => false,
        (InPlace::Always, _) | (InPlace::Fsync, Asks::FewSynced) => true,
        (InPlace::Fsync, Asks::ManySynced) => neighbours >= NEIGHBOURS_LEAST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_overwritten_in_place_according_to_the_policy() {
        assert!(in_place(InPlace::Always, Asks::Nobody, 1));
        assert!(!in_place(InPlace::Never, Asks::FewSynced, 500));
        assert!(in_place(InPlace::Fsync, Asks::FewSynced, 1) && !in_place(InPlace::Fsync, Asks::Nobody, 500));
        assert!(
            in_place(InPlace::Fsync, Asks::ManySynced, 30) && !in_place(InPlace::Fsync, Asks::ManySynced, 29)
        );
    }
}
