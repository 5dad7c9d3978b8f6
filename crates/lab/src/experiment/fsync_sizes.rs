//! Experiment 11: random writes of 4 KiB with fsync on files of several sizes.
//!
//! An fsync writes the nodes of its file. A small file has few of them, and a file system may keep all its pointers in
//! the inode, so which file system is faster depends on the size of the file.

use guest::{
    Op,
    pattern::{Access, Order, Sync},
};

use super::{Bench, Part, Unit, part, pattern};
use crate::{scale::RECORD_BYTES, vm::Failure};

/// Sizes of the files in MiB. They do not depend on the scale: most databases have at most a few MiB.
const SIZES_MIB: [u64; 6] = [1, 2, 4, 8, 16, 32];

/// A part for each size.
pub(super) const PARTS: &[Part] = &[
    part("random_1_mib", "1 MiB", Unit::Iops),
    part("random_2_mib", "2 MiB", Unit::Iops),
    part("random_4_mib", "4 MiB", Unit::Iops),
    part("random_8_mib", "8 MiB", Unit::Iops),
    part("random_16_mib", "16 MiB", Unit::Iops),
    part("random_32_mib", "32 MiB", Unit::Iops),
];

impl Bench<'_> {
    pub(super) fn fsync_sizes(&mut self) -> Result<(), Failure> {
        self.target.run(&self.mount_op())?;
        for mib in SIZES_MIB {
            let path = format!("/mnt/{mib}");
            let bytes = mib << 20;
            let file = |access, order, sync| Op::Pattern {
                path: path.as_str().into(),
                pattern: pattern(access, order, bytes, sync),
            };
            self.target.run(&file(Access::Create, Order::Sequential, Sync::End))?;
            let over = file(Access::Overwrite, self.random(), Sync::Each);
            self.measure(bytes / u64::from(RECORD_BYTES), &[over])?;
        }
        self.unmount()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_has_its_part() {
        let titles: Vec<String> = SIZES_MIB.iter().map(|mib| format!("{mib} MiB")).collect();
        assert_eq!(PARTS.iter().map(|part| part.title).collect::<Vec<_>>(), titles);
    }
}
