//! The position of a cell in a matrix.

use serde::{Deserialize, Serialize};

use crate::plan::Age;

/// Values that a cell has in the dimensions that a study without a matrix has only once.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Point {
    /// Size of the file of buffered writes and reads in bytes; all other sizes are in proportion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Seed of random orders and contents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Aging of the file system before the experiment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age: Option<Age>,
    /// Name of the guest's kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// The user's workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<WorkloadId>,
}

/// Name and content of a user's workload.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WorkloadId {
    /// Name.
    pub name: String,
    /// SHA-256 of its file.
    pub sha256: String,
}

impl Point {
    /// Returns true if the cell is of no matrix.
    pub fn is_none(&self) -> bool {
        *self == Point::default()
    }

    /// Returns the values for the end of a cell's name: `.size-16M.seed-2012`.
    pub fn suffix(&self) -> String {
        let values = [
            self.size_bytes.map(|bytes| format!("size-{}", short(bytes))),
            self.age.map(|age| format!("aged-{}", age.to_string().replace(':', "-"))),
            self.kernel.as_ref().map(|kernel| format!("kernel-{kernel}")),
            self.seed.map(|seed| format!("seed-{seed}")),
        ];
        values.into_iter().flatten().map(|value| format!(".{value}")).collect()
    }
}

/// Formats a size exactly, with the largest unit that divides it.
fn short(bytes: u64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "K")];
    let unit = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or(bytes.to_string(), |(shift, name)| format!("{}{name}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_part_of_a_name() {
        let point = Point {
            size_bytes: Some(48 << 20),
            seed: Some(7),
            age: "2:80".parse().ok(),
            kernel: Some("6.1".into()),
            workload: None,
        };
        assert_eq!(point.suffix(), ".size-48M.aged-2-80.kernel-6.1.seed-7");
        assert_eq!((Point::default().suffix(), Point::default().is_none()), (String::new(), true));
        assert_eq!([short(4 << 30), short(1000), short(0)], ["4G", "1000", "0"]);
    }
}
