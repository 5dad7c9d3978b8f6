//! The decision to overwrite blocks of a file in place: a pure function.

use crate::disk::InPlace;

/// Maximum number of dirty pages that an fsync updates in place even if they are not adjacent (Linux,
/// `DEF_MIN_FSYNC_BLOCKS`).
pub(super) const IN_PLACE_BLOCKS_MAX: usize = 8;

/// Minimum run of adjacent blocks for an in-place update on an fsync of many blocks: one command of 120 KiB,
/// the most that a USB reader takes at once.
const NEIGHBOURS_LEAST: usize = 30;

/// The reason for writing blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteReason {
    /// No fsync: a plain write, a checkpoint, or memory that runs short.
    WriteBack,
    /// An fsync of few blocks.
    SmallFsync,
    /// An fsync of many blocks.
    LargeFsync,
}

/// Returns true if blocks of a file that have addresses are updated in place (IPU). `neighbours` is the
/// number of these blocks, which are adjacent in the file and on the device. Appending them to a log would
/// take no fewer commands, and would write their new addresses and segment summaries as well.
pub(super) fn in_place(policy: InPlace, reason: WriteReason, neighbours: usize) -> bool {
    match (policy, reason) {
        (InPlace::Never, _) | (InPlace::Fsync, WriteReason::WriteBack) => false,
        (InPlace::Always, _) | (InPlace::Fsync, WriteReason::SmallFsync) => true,
        (InPlace::Fsync, WriteReason::LargeFsync) => neighbours >= NEIGHBOURS_LEAST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_overwritten_in_place_according_to_the_policy() {
        assert!(in_place(InPlace::Always, WriteReason::WriteBack, 1));
        assert!(!in_place(InPlace::Never, WriteReason::SmallFsync, 500));
        assert!(
            in_place(InPlace::Fsync, WriteReason::SmallFsync, 1)
                && !in_place(InPlace::Fsync, WriteReason::WriteBack, 500)
        );
        assert!(
            in_place(InPlace::Fsync, WriteReason::LargeFsync, 30)
                && !in_place(InPlace::Fsync, WriteReason::LargeFsync, 29)
        );
    }
}
