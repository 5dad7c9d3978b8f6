//! Counts of operations: a trial that never runs an operation does not test it.

use std::{collections::BTreeMap, fmt};

use guest::{Op, op::Allocate};

/// Counts of operations by kind: successful ones and refused ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<&'static str, [u64; 2]>);

/// Outcome of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded.
    Done,
    /// It was refused.
    Refused,
}

impl Tally {
    /// Counts an operation.
    pub fn count(&mut self, op: &Op, outcome: Outcome) {
        self.0.entry(kind(op)).or_default()[outcome as usize] += 1;
    }

    /// Adds the counts of another tally.
    pub fn add(&mut self, other: &Tally) {
        for (kind, counts) in &other.0 {
            let sum = self.0.entry(kind).or_default();
            *sum = [sum[0] + counts[0], sum[1] + counts[1]];
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kinds: Vec<_> = self.0.iter().collect();
        kinds.sort_by_key(|(_, [done, _])| std::cmp::Reverse(*done));
        let told = kinds.iter().map(|(kind, [done, refused])| format!("{kind} {done} (refused {refused})"));
        f.write_str(&told.collect::<Vec<_>>().join(", "))
    }
}

fn kind(op: &Op) -> &'static str {
    match op {
        Op::Mkdir { .. } => "mkdir",
        Op::Rmdir { .. } => "rmdir",
        Op::Write { .. } | Op::WriteOpen { .. } => "write",
        Op::Truncate { .. } => "truncate",
        Op::Allocate { how: Allocate::Extend | Allocate::KeepSize, .. } => "allocate",
        Op::Allocate { how: Allocate::Punch, .. } => "punch",
        Op::Allocate { how: Allocate::Zero, .. } => "zero",
        Op::Allocate { how: Allocate::Collapse, .. } => "collapse",
        Op::Allocate { how: Allocate::Insert, .. } => "insert",
        Op::Rename { .. } | Op::RenameNew { .. } => "rename",
        Op::Exchange { .. } => "exchange",
        Op::Link { .. } => "link",
        Op::Symlink { .. } => "symlink",
        Op::Unlink { .. } => "unlink",
        Op::Mknod { .. } => "mknod",
        Op::SetXattr { .. } => "setxattr",
        Op::RemoveXattr { .. } => "removexattr",
        Op::Chmod { .. } => "chmod",
        Op::Chown { .. } => "chown",
        Op::Times { .. } => "utimens",
        Op::Fsync { .. } | Op::FsyncOpen { .. } => "fsync",
        Op::Open { .. } => "open",
        Op::OpenNameless { .. } => "open nameless",
        Op::LinkOpen { .. } => "link nameless",
        Op::Close { .. } => "close",
        Op::Flags { .. } => "flags",
        Op::Release { .. } => "release",
        Op::Reserve { .. } => "reserve",
        Op::Collect { .. } => "clean",
        Op::Sync | Op::Checkpoint { .. } => "checkpoint",
        Op::Unmount { .. } | Op::DropCaches => "remount",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_operations_are_counted_separately() {
        let (mut all, mut some) = (Tally::default(), Tally::default());
        let collapse = Op::Allocate { path: "/f".into(), how: Allocate::Collapse, offset: 0, length: 4096 };
        some.count(&collapse, Outcome::Done);
        some.count(&collapse, Outcome::Refused);
        some.count(&Op::Sync, Outcome::Done);
        all.count(&collapse, Outcome::Done);
        all.add(&some);
        assert_eq!(all.to_string(), "collapse 2 (refused 1), checkpoint 1 (refused 0)");
    }
}
