//! Experiment 12: random writes of 4 KiB on a file system that is 80 to 97.5 % full, after Lee and others, "F2FS: A New
//! File System for Flash Storage", USENIX FAST '15.
//!
//! A cold file has 60 % of the space. A hot file has the rest up to the level, and is overwritten at random in ten
//! runs, each of a sixth of the space with a sync at its end. A run writes no record twice: the second write would
//! replace the first one in memory. The hot file is removed before the next level. The first part is one run on the hot
//! file of 20 % alone, while the rest of the volume was never written.

use guest::{
    Op, Overwrites,
    overwrite::Course,
    pattern::{Access, Order, Sync},
};

use super::{Bench, Part, Unit, part, pattern};
use crate::{
    scale::{RECORD_BYTES, Scale},
    vm::Failure,
};

const COLD: &str = "/mnt/cold";
const HOT: &str = "/mnt/hot";
/// Share of the cold file, and the levels, in thousandths of the space.
const COLD_SHARE: u64 = 600;
const LEVELS: [u64; 4] = [800, 900, 950, 975];
/// Number of runs at a level, and the share of the space that each of them writes.
const RUNS: u64 = 10;
const RUN_SHARE: u64 = 6;

/// The new volume, and a part for each level.
pub(super) const PARTS: &[Part] = &[
    part("new", "new", Unit::MbPerS),
    part("full_80", "80 %", Unit::MbPerS),
    part("full_90", "90 %", Unit::MbPerS),
    part("full_95", "95 %", Unit::MbPerS),
    part("full_97_5", "97.5 %", Unit::MbPerS),
];

/// Returns the level of each part in percent; that of the new volume has only the hot file.
pub fn levels_percent() -> [f64; 5] {
    let percent = |thousandths: u64| thousandths as f64 / 10.0;
    let [a, b, c, d] = LEVELS.map(percent);
    [percent(LEVELS[0] - COLD_SHARE), a, b, c, d]
}

impl Bench<'_> {
    pub(super) fn utilization(&mut self, scale: &Scale) -> Result<(), Failure> {
        self.target.run(&self.mount_op())?;
        // The space of a new volume is what remains beside its reserves. On a larger card the amounts stay the same, so
        // that a file system has no need to clean.
        let space_bytes = self.space()?.1.min(scale.timed_card_bytes);
        self.hot_runs(space_bytes, LEVELS[0] - COLD_SHARE, 1)?;
        self.create(COLD, space_bytes, COLD_SHARE)?;
        for level in LEVELS {
            self.hot_runs(space_bytes, level - COLD_SHARE, RUNS)?;
        }
        self.unmount()
    }

    /// Makes the hot file of a share of the space, measures runs of random writes, and removes it.
    fn hot_runs(&mut self, space_bytes: u64, share: u64, runs: u64) -> Result<(), Failure> {
        let file_bytes = self.create(HOT, space_bytes, share)?;
        let writes = (space_bytes / RUN_SHARE / u64::from(RECORD_BYTES)).max(1);
        let run = |n: u64| {
            let course = Course::Shuffled { seed: self.how.seed.wrapping_add(n) };
            let overwrites =
                Overwrites { course, file_bytes, record_bytes: RECORD_BYTES, writes, sync: false };
            Op::Overwrite { path: HOT.into(), overwrites }
        };
        // Without a sync after each run, overwrites of buffered records would never reach the card.
        let ops: Vec<Op> = (0..runs).flat_map(|n| [run(n), Op::Sync]).collect();
        self.measure(runs * writes, &ops)?;
        self.target.run(&Op::Unlink { path: HOT.into() })?;
        self.target.run(&Op::Sync)?;
        Ok(())
    }

    /// Writes a file of a share of the space in order. Returns its size in bytes.
    fn create(&mut self, path: &str, space_bytes: u64, share: u64) -> Result<u64, Failure> {
        let record = u64::from(RECORD_BYTES);
        let file_bytes = (space_bytes / 1000 * share / record).max(1) * record;
        let create = pattern(Access::Create, Order::Sequential, file_bytes, Sync::End);
        self.target.run(&Op::Pattern { path: path.into(), pattern: create })?;
        Ok(file_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_has_its_part() {
        let titles: Vec<&str> = PARTS[1..].iter().map(|part| part.title).collect();
        let levels: Vec<String> = levels_percent()[1..].iter().map(|level| format!("{level} %")).collect();
        assert_eq!((titles, levels_percent()[0]), (levels.iter().map(String::as_str).collect(), 20.0));
    }
}
