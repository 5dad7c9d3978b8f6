//! Limits of a block device's discards.

use std::{fs::File, io, path::Path};

use crate::{
    DiscardUnit, Geometry,
    host::backing::{self, Identity},
};

/// Limits of discards as sysfs has them (Linux, Documentation/ABI/stable/sysfs-block).
#[derive(Debug, Default)]
pub(super) struct DiscardLimits {
    /// Size of a unit and offset of the first one, in bytes.
    unit_bytes: Option<u64>,
    first_bytes: Option<u64>,
    /// Maximum size of a discard in bytes; 0 if the device has none.
    most_bytes: Option<u64>,
}

impl DiscardLimits {
    /// Returns the limits of a block device. A regular file has no known ones.
    pub(super) fn of(file: &File) -> io::Result<DiscardLimits> {
        match Identity::of(&file.metadata()?) {
            Identity::Device(device) => Ok(DiscardLimits::in_dir(&backing::sys(device))),
            Identity::File { .. } => Ok(DiscardLimits::default()),
        }
    }

    fn in_dir(sys: &Path) -> DiscardLimits {
        // The queue of a partition is that of its disk.
        let queues = [sys.join("queue"), sys.join("../queue")];
        let in_queue = |name: &str| queues.iter().find_map(|queue| backing::count_in(&queue.join(name)));
        DiscardLimits {
            unit_bytes: in_queue("discard_granularity"),
            first_bytes: backing::count_in(&sys.join("discard_alignment")),
            most_bytes: in_queue("discard_max_bytes"),
        }
    }

    /// Returns the unit of discards. `None` if the device has no discards.
    pub(super) fn unit(&self, geometry: Geometry) -> Option<DiscardUnit> {
        let bytes = self.unit_bytes.unwrap_or_default().max(geometry.sector_bytes.into());
        let first_bytes = self.first_bytes.unwrap_or_default() % bytes;
        (self.most_bytes != Some(0)).then_some(DiscardUnit { bytes, first_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_of_discards_is_that_of_the_host() {
        let dir = tempfile::tempdir().unwrap();
        let part = dir.path().join("part");
        let write = |name: &str, value: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, value).unwrap();
        };
        write("queue/discard_granularity", "4194304\n");
        write("part/discard_alignment", "3145728\n");
        let geometry = Geometry { size_bytes: 1 << 30, sector_bytes: 512 };
        let limits = DiscardLimits::in_dir(&part);
        let unit = DiscardUnit { bytes: 4 << 20, first_bytes: 3 << 20 };
        assert_eq!(limits.unit(geometry), Some(unit));
        write("queue/discard_max_bytes", "0\n");
        assert_eq!(DiscardLimits::in_dir(&part).unit(geometry), None);
        let unit = DiscardUnit { bytes: 512, first_bytes: 0 };
        assert_eq!(DiscardLimits::default().unit(geometry), Some(unit));
    }
}
