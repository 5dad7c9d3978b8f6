//! Writes the tables of a closed volume for another geometry.
//!
//! *Invariant*: nothing is written to a place that the newest checkpoint of the old geometry needs.

use super::snapshot::{SitEntries, Snapshot};
use crate::{
    Place, Result,
    disk::{Geometry, journal::TableRun},
    format::{TableCopy, sit},
    units::{Nid, SegNo},
};

/// Place of the new SIT blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SitPlace {
    /// The same area: each block goes to the copy that is not current.
    OtherCopies,
    /// Another area: the first copies.
    NewArea,
}

/// A SIT that was written.
pub(super) struct NewSit {
    /// The current copy of each block: a set bit means the second.
    pub(super) bitmap: Vec<u8>,
    /// Segments of the new main area that have valid blocks.
    pub(super) used: Vec<SegNo>,
}

/// Tables of a volume that get another geometry. Segment `n` of it is segment `n + first` of the old one.
pub(super) struct Tables<'a> {
    pub(super) from: &'a Snapshot,
    pub(super) to: &'a Geometry,
    pub(super) first: i64,
}

impl Tables<'_> {
    /// The old number of a segment.
    fn old_number(&self, new: SegNo) -> Option<SegNo> {
        let old = u32::try_from(i64::from(new.0) + self.first).ok()?;
        (old < self.from.geometry.segments).then_some(SegNo(old))
    }

    /// Writes the SIT, without a journal. In the same area it also has the entries that only the old geometry needs.
    pub(super) fn write_sit(&self, place: SitPlace, bitmap_bytes: usize) -> Result<NewSit> {
        let size = self.from.superblock.block_size;
        let per_block = size.sit_entries() as u32;
        let (mut bitmap, blocks) = match place {
            SitPlace::NewArea => (vec![0; bitmap_bytes], self.to.sit_blocks()),
            SitPlace::OtherCopies => {
                let bitmap = self.from.checkpoint.sit_bitmap.clone();
                (bitmap, self.to.sit_blocks().max(self.from.geometry.sit_blocks()))
            }
        };
        let mut entries = SitEntries::of(self.from);
        let mut used = Vec::new();
        let mut runs = TableCopy::BOTH.map(|_| TableRun::default());
        for index in 0..blocks {
            let first = index * per_block;
            let mut block = vec![0; size.bytes()];
            for (number, at) in (first..first + per_block).map(SegNo).zip(0..) {
                let entry = entries.get(self.old_number(number))?;
                if entry.valid_blocks > 0 && number.0 < self.to.segments {
                    used.push(number);
                }
                sit::set_entry(&mut block, at, &entry);
            }
            let copy = match place {
                SitPlace::OtherCopies => TableCopy::current(&self.from.checkpoint.sit_bitmap, index).other(),
                SitPlace::NewArea => TableCopy::First,
            };
            copy.select(&mut bitmap, index);
            let addr = self.to.sit_block(index, copy);
            runs[copy as usize].push(&self.from.io, addr, Place::Sit(SegNo(first)), &block)?;
        }
        runs.iter_mut().try_for_each(|run| run.write(&self.from.io))?;
        Ok(NewSit { bitmap, used })
    }

    /// Writes the NAT to its new area, without a journal.
    pub(super) fn write_nat(&self) -> Result<()> {
        let size = self.from.superblock.block_size;
        let mut run = TableRun::default();
        for index in 0..self.to.nat_blocks() {
            let block = match index < self.from.geometry.nat_blocks() {
                true => self.from.nat_block(index)?,
                false => vec![0; size.bytes()],
            };
            let at = Place::Nat(Nid(index * size.nat_entries() as u32));
            run.push(&self.from.io, self.to.nat_block(index, TableCopy::First), at, &block)?;
        }
        run.write(&self.from.io)
    }

    /// Writes the summaries of the `used` segments to the new SSA.
    pub(super) fn write_summaries(&self, used: &[SegNo]) -> Result<()> {
        let mut run = TableRun::default();
        for number in used {
            let old = self.old_number(*number).expect("a segment in use is not new");
            let (from, _) = self.from.geometry.summary_block(old);
            let block = self.from.io.read_block(from, Place::Ssa(old))?;
            let (to, _) = self.to.summary_block(*number);
            run.push(&self.from.io, to, Place::Ssa(*number), &block)?;
        }
        run.write(&self.from.io)
    }
}
