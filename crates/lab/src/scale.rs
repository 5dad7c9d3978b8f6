//! Sizes of the experiments.

use serde::{Deserialize, Serialize};

/// Record length in experiments 1, 2 and 4.
pub const RECORD_BYTES: u32 = 4096;
/// Default limit of dirty data, as a percentage of the buffered file. The card model was fitted with it.
pub const DIRTY_PERCENT: u64 = 7;
/// Size of the file of the original buffered writes and reads (jeong-2012).
const ORIGINAL_BYTES: u64 = 1 << 30;
/// Minimum size of that file.
const LEAST_BYTES: u64 = 1 << 20;
/// Minimum number of writes for a meaningful 99.9th percentile.
const LEAST_WRITES: u64 = 2000;
/// Minimum number of transactions, actions or files for a meaningful rate.
const LEAST_UNITS: u64 = 100;
/// Minimum size of a card on which every file system can be created and filled to 95 %.
const LEAST_CARD_BYTES: u64 = 512 << 20;
/// Granularity of card sizes.
const CARD_STEP_BYTES: u64 = 64 << 20;

/// Sizes of all written data, in the proportions of the original studies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scale {
    /// Size of the file of buffered writes and reads; originally 1 GiB.
    pub buffered_bytes: u64,
    /// Size of the file of writes with fsync; originally 100 MiB.
    pub fsync_bytes: u64,
    /// Size of the copied image; originally 748 MB (fedorchuk-2014).
    pub image_bytes: u64,
    /// Size of the copied archive. The original size was not published; a ports tree of that year took about
    /// 66 MB.
    pub archive_bytes: u64,
    /// Number of files in the copied tree; together they had 320 MB. A ports tree of that year had about
    /// 170,000.
    pub tree_files: u64,
    /// Mean size of those files.
    pub tree_mean_bytes: u64,
    /// Number of timed writes; originally 10 thousand to a million (lavinen-2003).
    #[serde(default)]
    pub timed_writes: u64,
    /// Number of timed writes in all parts after the first, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timed_writes_later: Option<u64>,
    /// Size of a card on which single writes are timed, reduced so that the card can be filled.
    #[serde(default)]
    pub timed_card_bytes: u64,
    /// Number of SQLite transactions in each journal mode.
    #[serde(default)]
    pub transactions: u64,
    /// Number of actions on a phone.
    #[serde(default)]
    pub phone_actions: u64,
    /// Number of kernel source files; Linux 6.1 has 78579.
    #[serde(default)]
    pub kernel_files: u64,
    /// Limit of dirty data in the guest at which write-back begins, as a percentage of the buffered file. At
    /// twice that, a writer has to wait. The limits of the original machines were not published.
    #[serde(default = "usual_dirty_percent")]
    pub dirty_percent: u64,
}

fn usual_dirty_percent() -> u64 {
    DIRTY_PERCENT
}

impl Scale {
    /// Returns the sizes of the original studies.
    pub fn full() -> Scale {
        Scale {
            buffered_bytes: ORIGINAL_BYTES,
            fsync_bytes: 100 << 20,
            image_bytes: 748_000_000 / COPY_BYTES * COPY_BYTES,
            archive_bytes: 66_000_000 / COPY_BYTES * COPY_BYTES,
            tree_files: 170_000,
            tree_mean_bytes: 1880,
            timed_writes: 100_000,
            timed_writes_later: None,
            timed_card_bytes: 4 << 30,
            transactions: 8000,
            phone_actions: 20_000,
            kernel_files: 78_579,
            dirty_percent: DIRTY_PERCENT,
        }
    }

    /// Returns all sizes in proportion to the size of the buffered file.
    pub fn of_file(buffered_bytes: u64) -> Scale {
        let full = Scale::full();
        let buffered_bytes = buffered_bytes.clamp(LEAST_BYTES, 64 * ORIGINAL_BYTES);
        let part =
            |of: u64| (u128::from(of) * u128::from(buffered_bytes) / u128::from(ORIGINAL_BYTES)) as u64;
        let whole = |bytes: u64, record: u64| (bytes / record).max(1) * record;
        Scale {
            buffered_bytes: whole(buffered_bytes, RECORD_BYTES.into()),
            fsync_bytes: whole(part(full.fsync_bytes), RECORD_BYTES.into()),
            image_bytes: whole(part(full.image_bytes), COPY_BYTES),
            archive_bytes: whole(part(full.archive_bytes), COPY_BYTES),
            tree_files: part(full.tree_files).max(10),
            tree_mean_bytes: full.tree_mean_bytes,
            timed_writes: part(full.timed_writes).max(LEAST_WRITES),
            timed_writes_later: None,
            timed_card_bytes: whole(part(full.timed_card_bytes), CARD_STEP_BYTES).max(LEAST_CARD_BYTES),
            transactions: part(full.transactions).max(LEAST_UNITS),
            phone_actions: part(full.phone_actions).max(LEAST_UNITS),
            kernel_files: part(full.kernel_files).max(LEAST_UNITS),
            dirty_percent: full.dirty_percent,
        }
    }

    /// Returns the size of a card for aged file systems. It is reduced, because aging a whole card would take
    /// days; all experiments fit beside the aged files.
    pub fn aged_card_bytes(&self) -> u64 {
        (12 * self.buffered_bytes).next_multiple_of(CARD_STEP_BYTES).max(LEAST_CARD_BYTES)
    }

    /// Sets the number of timed writes.
    pub fn with_timed_writes(self, writes: u64) -> Scale {
        Scale { timed_writes: writes.max(1), timed_writes_later: None, ..self }
    }

    /// Sets the number of timed writes to that of JFFS2 of Nov 27 (lavinen-2003).
    pub fn with_writes_of_2003(self) -> Scale {
        Scale { timed_writes: 100_000, timed_writes_later: Some(10_000), ..self }
    }

    /// Sets the limit of dirty data.
    pub fn with_dirty(self, percent: u64) -> Scale {
        Scale { dirty_percent: percent.max(1), ..self }
    }

    /// Sets the size of the file of writes with fsync.
    pub fn with_fsync(self, bytes: u64) -> Scale {
        let record = u64::from(RECORD_BYTES);
        Scale { fsync_bytes: (bytes / record).max(1) * record, ..self }
    }
}

/// Length of a read and a write of cp.
pub const COPY_BYTES: u64 = 128 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset::Preset;

    #[test]
    fn all_sizes_are_whole_records_at_every_scale() {
        for scale in [Scale::full(), Scale::of_file(100_000_000), Scale::of_file(1 << 30)] {
            assert_eq!(scale.image_bytes % COPY_BYTES + scale.archive_bytes % COPY_BYTES, 0);
            assert_eq!((scale.buffered_bytes % 4096, scale.fsync_bytes % 4096), (0, 0));
        }
    }

    /// Records without this field have the default of 7 %.
    #[test]
    fn the_limit_of_dirty_memory_is_in_the_record() {
        let scale = Scale::of_file(256 << 20);
        assert_eq!(Preset::Desktop.dirty_bytes(&scale), (18_790_478, 37_580_956));
        assert_eq!(Preset::Desktop.dirty_bytes(&scale.with_dirty(17)), (45_634_018, 91_268_036));
        assert_eq!(Preset::Desktop.dirty_bytes(&Scale::of_file(16 << 20)), (8 << 20, 16 << 20));
        let mut record = serde_json::to_value(scale).unwrap();
        record.as_object_mut().unwrap().remove("dirty_percent").unwrap();
        assert_eq!(serde_json::from_value::<Scale>(record).unwrap(), scale);
    }

    #[test]
    fn a_sixteenth_is_a_sixteenth_of_everything_in_whole_records() {
        let scale = Scale::of_file(64 << 20);
        assert_eq!((scale.buffered_bytes, scale.fsync_bytes), (64 << 20, 6_553_600));
        assert_eq!((scale.image_bytes % COPY_BYTES, scale.tree_files), (0, 10_625));
        let tiny = Scale::of_file(0);
        assert_eq!(
            (tiny.buffered_bytes, tiny.fsync_bytes, tiny.archive_bytes),
            (1 << 20, 102_400, COPY_BYTES)
        );
    }
}
