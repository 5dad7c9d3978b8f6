//! The result of a check.

use std::collections::{BTreeMap, BTreeSet};

use f2fs::units::{BlockAddr, Ino};

use crate::{Certainty, Finding, Fix, Kind, Loss, Severity};

/// Maximum number of findings of one kind that are kept. The others are only counted.
const KEPT_PER_KIND: u64 = 1000;
/// Maximum number of fixes that are kept. With more, the volume is not repaired.
const FIXES_MAX: usize = 1 << 20;
/// Maximum number of bytes that the kept fixes hold beside themselves.
const FIX_BYTES_MAX: usize = 64 << 20;

/// Findings that prevent no resize. An interrupted one leaves some until the next change of the volume: a checkpoint pack or
/// a superblock that is not finished, superblocks of two sizes, and a checkpoint whose count of free segments fits the other
/// size. Sections with nodes and data, which sload.f2fs and resize.f2fs leave, stop only the cleaner of Linux.
const RESIZABLE: [Kind; 7] = [
    Kind::SuperblockMagic,
    Kind::SuperblockChecksum,
    Kind::SuperblockInvalid,
    Kind::SuperblocksDiffer,
    Kind::PackUnreadable,
    Kind::CountFree,
    Kind::SectionMixed,
];

/// Sums over the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sums {
    /// Blocks in use, reserved ones included.
    pub blocks: u64,
    /// Nodes in use.
    pub nodes: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Directories.
    pub directories: u64,
    /// Directory entries, without "." and "..".
    pub entries: u64,
    /// Free segments.
    pub free_segments: u64,
}

/// The result of a check.
#[derive(Debug, Clone, Default)]
pub struct Report {
    findings: Vec<Finding>,
    counts: BTreeMap<Kind, u64>,
    fixes: Vec<Fix>,
    /// Bytes that the fixes hold beside themselves.
    fix_bytes: usize,
    /// Number of fixes that were not kept.
    dropped_fixes: u64,
    losses: BTreeMap<Loss, u64>,
    /// Files whose link count a change sets: the stored number, and the new one.
    links: BTreeMap<Ino, (u32, u32)>,
    /// Addresses in the chain of fsynced nodes that name blocks of other files: the block of the node, and the index.
    foreign: BTreeSet<(BlockAddr, usize)>,
    /// Sums over the volume.
    pub sums: Sums,
    /// The reason why the check ended early, if it did: without a superblock or checkpoint nothing else can be
    /// checked.
    pub ended_early: Option<String>,
    /// The reason not to repair the volume, if there is one: a repair would lose what a rescue can read.
    pub(crate) obstacle: Option<String>,
}

impl Report {
    /// Returns the findings, at most 1,000 of each kind.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Returns the number of findings of each kind, also of those that were not kept.
    pub fn counts(&self) -> impl Iterator<Item = (Kind, u64)> + '_ {
        self.counts.iter().map(|(kind, count)| (*kind, *count))
    }

    /// Returns the number of findings of a kind.
    pub fn count(&self, kind: Kind) -> u64 {
        self.counts.get(&kind).copied().unwrap_or(0)
    }

    /// Returns the number of findings with a severity.
    pub fn count_of(&self, severity: Severity) -> u64 {
        self.counts().filter(|(kind, _)| kind.severity() == severity).map(|(_, count)| count).sum()
    }

    /// Returns true if no rule of the format is broken. There may be notices.
    pub fn is_clean(&self) -> bool {
        self.count_of(Severity::Error) == 0 && self.ended_early.is_none()
    }

    /// Returns true if there are at most findings that prevent no resize: those of an interrupted one, which the next resize
    /// mends, and sections with nodes and data. The report must be that of [`check_as_opened`](crate::check_as_opened): a
    /// resize writes the first usable superblock over the other.
    pub fn is_clean_for_resize(&self) -> bool {
        let mut errors = self.counts().filter(|(kind, _)| kind.severity() == Severity::Error);
        errors.all(|(kind, _)| RESIZABLE.contains(&kind)) && self.ended_early.is_none()
    }

    /// Returns the changes that repair the findings, in the order in which they were found. Findings in tables that
    /// a repair computes anew have none.
    pub fn fixes(&self) -> &[Fix] {
        &self.fixes
    }

    pub(crate) fn fix(&mut self, fix: Fix) {
        let bytes = self.fix_bytes + fix.held_bytes();
        if self.fixes.len() < FIXES_MAX && bytes <= FIX_BYTES_MAX {
            self.fix_bytes = bytes;
            self.fixes.push(fix);
        } else {
            self.dropped_fixes += 1;
        }
    }

    /// Counts a change that is too much to keep.
    pub(crate) fn drop_fix(&mut self) {
        self.dropped_fixes += 1;
    }

    /// Returns the number of changes that were too many to keep: without them, a repair is not whole.
    pub(crate) fn dropped_fixes(&self) -> u64 {
        self.dropped_fixes
    }

    /// Counts a loss that the changes bring.
    pub(crate) fn lose(&mut self, loss: Loss) {
        *self.losses.entry(loss).or_default() += 1;
    }

    /// Notes that a change sets the link count of a file from `stored` to `found`. Such a change is a fix of its own, so their
    /// number has the same limit.
    pub(crate) fn note_links(&mut self, ino: Ino, stored: u32, found: u32) {
        if self.links.len() < FIXES_MAX {
            self.links.insert(ino, (stored, found));
        }
    }

    /// Returns the files whose link count a change sets, with the stored number and the new one.
    pub(crate) fn links(&self) -> &BTreeMap<Ino, (u32, u32)> {
        &self.links
    }

    /// Notes that an address of a fsynced node names a block of another file. Returns false if there are too many.
    pub(crate) fn note_foreign(&mut self, node: BlockAddr, index: usize) -> bool {
        self.foreign.len() < FIXES_MAX && self.foreign.insert((node, index))
    }

    /// Returns true if an address of a fsynced node names a block of another file.
    pub(crate) fn is_foreign(&self, node: BlockAddr, index: usize) -> bool {
        self.foreign.contains(&(node, index))
    }

    /// Takes over losses of blocks that were found before a roll-forward, if there were more: it decides nothing about them.
    pub(crate) fn lose_as(&mut self, earlier: &Report) {
        for loss in [Loss::Block, Loss::Freed] {
            let Some(count) = earlier.losses.get(&loss) else { continue };
            let own = self.losses.entry(loss).or_default();
            *own = (*own).max(*count);
        }
    }

    /// Returns the losses that the changes bring, with their numbers.
    pub(crate) fn losses(&self) -> &BTreeMap<Loss, u64> {
        &self.losses
    }

    /// Drops the changes that `is_dropped` selects, and the losses in directories, which come with such changes.
    pub(crate) fn drop_fixes(&mut self, is_dropped: fn(&Fix) -> bool) {
        self.fixes.retain(|fix| !is_dropped(fix));
        self.losses.retain(|loss, _| !matches!(loss, Loss::Name | Loss::Entry));
    }

    /// Lets the findings of a kind need a person.
    pub(crate) fn doubt(&mut self, kind: Kind) {
        for finding in self.findings.iter_mut().filter(|finding| finding.kind == kind) {
            finding.certainty = Certainty::Unclear;
        }
    }

    pub(crate) fn add(&mut self, finding: Finding) {
        let count = self.counts.entry(finding.kind).or_default();
        *count += 1;
        if *count <= KEPT_PER_KIND {
            self.findings.push(finding);
        }
    }
}

#[cfg(test)]
mod tests {
    use f2fs::units::{BlockAddr, Ino, SegNo};

    use super::*;
    use crate::Content;

    #[test]
    fn fixes_beyond_their_number_are_counted_and_not_kept() {
        let mut report = Report::default();
        for _ in 0..FIXES_MAX {
            report.fix(Fix::NoOrphan(Ino(5)));
        }
        assert_eq!((report.fixes().len(), report.dropped_fixes()), (FIXES_MAX, 0));
        report.fix(Fix::NoOrphan(Ino(5)));
        assert_eq!((report.fixes().len(), report.dropped_fixes()), (FIXES_MAX, 1));
    }

    #[test]
    fn the_blocks_that_move_out_of_segments_are_bounded() {
        let mut report = Report::default();
        let section =
            |segment| Fix::MoveOut { segment: SegNo(segment), content: Content::Data, bytes: 3 << 21 };
        let count = FIX_BYTES_MAX / (3 << 21);
        (0..count as u32).for_each(|segment| report.fix(section(segment)));
        assert_eq!(report.dropped_fixes(), 0);
        report.fix(section(count as u32));
        assert_eq!((report.fixes().len(), report.dropped_fixes()), (count, 1));
    }

    #[test]
    fn the_bytes_that_fixes_hold_are_bounded() {
        let mut report = Report::default();
        let block = || Fix::Data(BlockAddr(9), 0, vec![0; 4096]);
        for _ in 0..FIX_BYTES_MAX / 4096 {
            report.fix(block());
        }
        assert_eq!(report.dropped_fixes(), 0);
        report.fix(block());
        assert_eq!(report.dropped_fixes(), 1);
        assert_eq!(report.fixes().len(), FIX_BYTES_MAX / 4096);
    }
}
