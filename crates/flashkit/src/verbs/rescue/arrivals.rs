//! The count of the files that arrive at the destination of a rescue.

use std::{cell::Cell, collections::BTreeMap, rc::Rc};

use f2fs::Result;
use f2fs_rescue::{Found, Grade, Rescue, RescueSource, Selection};
use f2fs_tree::{Entry, Kind, Run, Source};

/// The rescued tree on its way to the destination.
///
/// An inode has arrived if the destination took its entry and, of a file, all bytes that are not lost.
pub struct Arrivals<'a> {
    source: RescueSource<'a>,
    seen: Rc<Cell<Seen>>,
    /// Grade of the last entry, until that has arrived.
    under_way: Option<Grade>,
    /// True while bytes of the last entry have not been read.
    has_more: bool,
    grades: BTreeMap<Grade, u64>,
}

/// Inodes that the source has found.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    inodes: u64,
    /// Grade of the last one.
    last: Option<Grade>,
}

/// Numbers of inodes.
pub struct Counts {
    /// Those at the destination, by their grades.
    pub grades: BTreeMap<Grade, u64>,
    /// Those that were found, and are not at the destination or not with all their bytes.
    pub lost: u64,
}

impl<'a> Arrivals<'a> {
    /// Makes a source of the tree. `observer` gets every inode that has a grade, before its entry.
    pub fn new(
        rescue: &'a Rescue,
        selection: Selection,
        mut observer: impl FnMut(&Found) + 'a,
    ) -> Arrivals<'a> {
        let seen = Rc::new(Cell::new(Seen::default()));
        let sees = seen.clone();
        let source = RescueSource::new(rescue, selection, move |found| {
            let last = found.certainty.map(|certainty| certainty.grade());
            let inodes = sees.get().inodes + u64::from(last.is_some());
            sees.set(Seen { inodes, last });
            if last.is_some() {
                observer(found);
            }
        });
        Arrivals { source, seen, under_way: None, has_more: false, grades: BTreeMap::new() }
    }

    /// Counts the last entry.
    fn settle(&mut self) {
        if let Some(grade) = self.under_way.take().filter(|_| !self.has_more) {
            *self.grades.entry(grade).or_default() += 1;
        }
    }

    /// Returns the counts, after the end of the tree.
    pub fn counts(mut self) -> Counts {
        self.settle();
        let lost = self.seen.get().inodes - self.grades.values().sum::<u64>();
        Counts { grades: self.grades, lost }
    }
}

impl Source for Arrivals<'_> {
    fn next_entry(&mut self) -> Result<Option<Entry>> {
        self.settle();
        let next = self.source.next_entry();
        if let Ok(Some(entry)) = &next {
            self.under_way = self.seen.get().last;
            self.has_more = matches!(entry.kind, Kind::File { .. });
        }
        next
    }

    fn next_run(&mut self, buf: &mut [u8]) -> Result<Option<Run>> {
        let next = self.source.next_run(buf);
        self.has_more &= !matches!(next, Ok(None));
        next
    }

    fn refused(&mut self) {
        self.under_way = None;
        self.source.refused();
    }

    fn is_first_name(&self) -> bool {
        self.source.is_first_name()
    }
}
