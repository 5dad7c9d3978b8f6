//! Units as types, so that a number of one unit cannot be used as another.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident, $show:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// Returns the number as an index into a slice.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $show, self.0)
            }
        }
    };
}

unit!(
    /// Address of a block on the volume, in blocks from its start. The three special addresses of a file's
    /// map are [`BlockAddr::NULL`], [`BlockAddr::NEW`] and [`BlockAddr::COMPRESS`].
    BlockAddr, "block {}"
);
unit!(
    /// A segment of the main area (512 blocks), counted from the area's start.
    SegNo, "segment {}"
);
unit!(
    /// A section: the unit of cleaning, one or more segments.
    SecNo, "section {}"
);
unit!(
    /// Number of a node (inode, direct, indirect or xattr node): the index into the NAT.
    Nid, "node {}"
);
unit!(
    /// Number of an inode; the nid of its inode block.
    Ino, "inode {}"
);

impl BlockAddr {
    /// A hole.
    pub const NULL: BlockAddr = BlockAddr(0);
    /// Reserved, not yet written: reads as zeroes, and counts in `i_blocks`.
    pub const NEW: BlockAddr = BlockAddr(u32::MAX);
    /// First address of a compressed cluster.
    pub const COMPRESS: BlockAddr = BlockAddr(u32::MAX - 1);

    /// Returns true if this is an address on the device, not one of the three special values.
    #[must_use]
    pub const fn is_real(self) -> bool {
        self.0 != 0 && self.0 < u32::MAX - 1
    }
}

impl Nid {
    /// The invalid nid.
    pub const NULL: Nid = Nid(0);
}

impl From<Ino> for Nid {
    fn from(ino: Ino) -> Nid {
        Nid(ino.0)
    }
}

impl From<Nid> for Ino {
    /// The inode whose inode block is this node.
    fn from(nid: Nid) -> Ino {
        Ino(nid.0)
    }
}

/// A size in readable form: `512 B`, `1.50 GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefixes = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        match self.0.checked_ilog2().unwrap_or(0) as usize / 10 {
            0 => write!(f, "{} B", self.0),
            power => {
                write!(f, "{:.2} {}B", self.0 as f64 / (1u64 << (10 * power)) as f64, prefixes[power - 1])
            }
        }
    }
}

/// Version of a checkpoint. Versions wrap, so they are ordered by their signed difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CheckpointVer(pub u64);

impl CheckpointVer {
    /// Returns true if `self` is newer than `other`.
    #[must_use]
    pub const fn is_after(self, other: CheckpointVer) -> bool {
        (self.0.wrapping_sub(other.0) as i64) > 0
    }
}

/// A point in time as the file system stores it: seconds since 1970 (may be negative) and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time {
    /// Seconds since 1970-01-01 UTC.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanoseconds: u32,
}

impl From<SystemTime> for Time {
    /// Time of the host as the volume stores it. It is cut to whole nanoseconds, and to the seconds that fit into 64 bits.
    fn from(time: SystemTime) -> Time {
        let seconds = |from: i64, before: Duration| from.saturating_sub_unsigned(before.as_secs());
        match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Time {
                seconds: 0_i64.saturating_add_unsigned(since.as_secs()),
                nanoseconds: since.subsec_nanos(),
            },
            Err(before) => {
                // Nanoseconds count upwards from the second before.
                let before = before.duration();
                match before.subsec_nanos() {
                    0 => Time { seconds: seconds(0, before), nanoseconds: 0 },
                    part => Time { seconds: seconds(-1, before), nanoseconds: 1_000_000_000 - part },
                }
            }
        }
    }
}

impl Time {
    /// The same time for the host; `None` if the host cannot express it, or if the volume holds an impossible number of
    /// nanoseconds.
    #[must_use]
    pub fn to_system_time(self) -> Option<SystemTime> {
        let seconds = Duration::from_secs(self.seconds.unsigned_abs());
        let whole = match self.seconds < 0 {
            true => UNIX_EPOCH.checked_sub(seconds)?,
            false => UNIX_EPOCH.checked_add(seconds)?,
        };
        match self.nanoseconds < 1_000_000_000 {
            true => whole.checked_add(Duration::from_nanos(self.nanoseconds.into())),
            false => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_host_become_times_of_the_volume_and_back() {
        for (seconds, nanoseconds) in
            [(0, 0), (1_700_000_000, 999_999_999), (-1, 0), (-1, 1), (-5, 999_999_999)]
        {
            let time = Time { seconds, nanoseconds };
            let host = time.to_system_time().expect("the host can express it");
            assert_eq!(Time::from(host), time);
        }
        assert_eq!(Time { seconds: 0, nanoseconds: 1_000_000_000 }.to_system_time(), None);
        // Whether the host can express the earliest second depends on the host. It is never another second.
        let earliest = Time { seconds: i64::MIN, nanoseconds: 0 };
        assert!(earliest.to_system_time().is_none_or(|host| Time::from(host) == earliest));
    }
}
