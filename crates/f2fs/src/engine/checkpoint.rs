//! Writing a checkpoint, which makes all changes durable at once.
//!
//! Readers have a turn after every few blocks: of data and nodes ([`write_dirty`](super::write_dirty)), and of the
//! tables ([`TablesWrite`]). What is left is written at once: the pack, one request of at most a segment.
//!
//! *Order*: data and nodes, then SIT, NAT and the summaries of segments that the logs have left, then the checkpoint pack
//! except its last block, a flush, the last block, a flush. After a power cut before the last block is
//! written, the previous checkpoint counts.

use super::{
    Engine, Io,
    gc::SpaceStep,
    pending::{PendingSync, Then, Work},
    write_dirty::SLICE_BLOCKS,
};
use crate::{
    Error, Place, Result,
    disk::journal::{self, TableWrite},
    format::{
        BLOCKS_PER_SEGMENT,
        checkpoint::{Checkpoint, FIXED_BLOCKS, Flags},
        nat::NatEntry,
        orphan,
        sit::SitEntry,
        summary::Journal,
    },
    segments::{NodeSummaries, SummariesWrite},
    units::{BlockAddr, CheckpointVer, Ino, Nid, SegNo},
};

/// Why a checkpoint is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// Makes changes durable while the volume stays in use.
    Sync,
    /// Closes the volume.
    Unmount,
}

/// The tables of a checkpoint that are being written. Nothing changes between two slices, because a
/// [`PendingSync`] is outstanding, and the current copies of the blocks stay as they are: a checkpoint that fails
/// half way can be written again.
pub(super) struct TablesWrite {
    reason: Reason,
    then: Then,
    sit: TableWrite<SegNo>,
    nat: TableWrite<Nid>,
    summaries: SummariesWrite,
}

/// A checkpoint whose blocks are written except the last one.
pub(super) struct Prepared {
    next: Checkpoint,
    /// The last block and its address.
    last: Vec<u8>,
    last_addr: BlockAddr,
    at: Place,
    nat: journal::Prepared<Nid, NatEntry>,
    sit: journal::Prepared<SegNo, SitEntry>,
}

impl Prepared {
    /// Flushes the blocks written so far, then writes and flushes the last block, which commits the
    /// checkpoint.
    pub(super) fn write_last(&self, io: &Io) -> Result<()> {
        io.flush()?;
        io.write(self.last_addr, self.at, &self.last)?;
        io.flush()
    }
}

/// Flags that a checkpoint takes over from the previous one. The others follow from the current state.
const KEPT: Flags = Flags(
    Flags::ERROR.0
        | Flags::FSCK.0
        | Flags::LARGE_NAT_BITMAP.0
        | Flags::DISABLED_QUICK.0
        | Flags::CRC_RECOVERY.0,
);

impl Engine {
    /// Makes all changes durable at once.
    ///
    /// # Errors
    /// Those of [every change](Engine#errors).
    pub fn checkpoint(&mut self) -> Result<()> {
        let pending = self.begin_checkpoint()?;
        self.complete(pending)
    }

    /// Begins a [`checkpoint`](Self::checkpoint). Returns its next work on the device, if any; [`finish`](Self::finish) takes the
    /// outcome and returns the work after that.
    ///
    /// # Errors
    /// Those of [every change](Engine#errors).
    pub fn begin_checkpoint(&mut self) -> Result<Option<PendingSync>> {
        self.start()?;
        match self.segments().is_changed() {
            true => self.checkpoint_then(Reason::Sync, Then::WriteWaiting(Reason::Sync)),
            false => self.write_what_waits(Reason::Sync),
        }
    }

    /// Makes all changes durable and marks the volume as cleanly unmounted. The volume may still be used;
    /// later changes reach the device with the next checkpoint.
    ///
    /// # Errors
    /// Those of [every change](Engine#errors).
    pub fn unmount(&mut self) -> Result<()> {
        let pending = self.begin_unmount()?;
        self.complete(pending)
    }

    /// Begins an [`unmount`](Self::unmount), in the steps of [`begin_checkpoint`](Self::begin_checkpoint).
    ///
    /// # Errors
    /// Those of [every change](Engine#errors).
    pub fn begin_unmount(&mut self) -> Result<Option<PendingSync>> {
        let is_ended = !self.segments().is_changed() && self.disk().checkpoint().flags.has(Flags::UMOUNT);
        if is_ended && self.files().page_count() == 0 && self.read_only_reason().is_none() {
            return Ok(None);
        }
        self.start()?;
        match is_ended {
            true => self.write_what_waits(Reason::Unmount),
            false => self.checkpoint_then(Reason::Unmount, Then::WriteWaiting(Reason::Unmount)),
        }
    }

    /// Writes the pages that a checkpoint could not write, and begins another checkpoint for them. Returns
    /// the error if they still cannot be written.
    pub(super) fn write_what_waits(&mut self, reason: Reason) -> Result<Option<PendingSync>> {
        self.files_mut().write_waiting()?;
        if self.segments().is_changed() { self.checkpoint_then(reason, Then::End) } else { Ok(None) }
    }

    pub(super) fn write_checkpoint(&mut self, reason: Reason) -> Result<()> {
        let pending = self.checkpoint_then(reason, Then::End)?;
        self.complete(pending)
    }

    /// Begins a checkpoint; `then` follows it.
    pub(super) fn checkpoint_then(&mut self, reason: Reason, then: Then) -> Result<Option<PendingSync>> {
        self.names_mut().retry_evictions()?;
        self.write_quotas_then(reason, then)
    }

    /// Continues a checkpoint when everything is written back: begins to write the tables.
    pub(super) fn go_on_with_checkpoint(
        &mut self,
        reason: Reason,
        then: Then,
    ) -> Result<Option<PendingSync>> {
        let ready = self.segments_mut().require_room_for_checkpoint();
        let opened = ready.and_then(|()| {
            let opened = self.segments_mut().open_full_logs();
            self.end_on_error(opened)
        });
        match opened {
            Ok(()) => {
                let (sit, nat) = (self.segments().list_table(), self.nodes().list_table());
                let summaries = SummariesWrite::default();
                self.go_on_with_tables(Box::new(TablesWrite { reason, then, sit, nat, summaries }))
            }
            Err(error) => self.give_up_checkpoint(error, &then),
        }
    }

    /// Writes the next slice of the tables, and after the last one the pack except its last block.
    pub(super) fn go_on_with_tables(&mut self, mut tables: Box<TablesWrite>) -> Result<Option<PendingSync>> {
        let written = self.write_some_of_tables(&mut tables, SLICE_BLOCKS as usize);
        if matches!(written, Ok(written) if written == SLICE_BLOCKS as usize) {
            return Ok(Some(self.pending(Work::Yield, Then::WriteTables(tables))));
        }
        let TablesWrite { reason, then, sit, nat, .. } = *tables;
        let prepared = written.and_then(|_| self.prepare(reason, sit, nat));
        match self.end_on_error(prepared) {
            Ok(prepared) => Ok(Some(self.pending(Work::Commit(Box::new(prepared)), then))),
            Err(error) => self.give_up_checkpoint(error, &then),
        }
    }

    /// Writes up to `most` blocks of the tables that are left, and returns their number. If it is smaller, all are
    /// written.
    fn write_some_of_tables(&mut self, tables: &mut TablesWrite, most: usize) -> Result<usize> {
        // SIT before NAT, in the order of their addresses: cards are fastest when writing upwards.
        let mut written = self.segments_mut().write_some_of_table(&mut tables.sit, most)?;
        if written < most {
            written += self.nodes().write_some_of_table(&mut tables.nat, most - written)?;
        }
        if written < most {
            written += self.segments_mut().write_some_summaries(&mut tables.summaries, most - written)?;
        }
        Ok(written)
    }

    /// Ends a checkpoint that could not be written. A lack of space is not an error of a checkpoint that only
    /// frees space.
    pub(super) fn give_up_checkpoint(&mut self, error: Error, then: &Then) -> Result<Option<PendingSync>> {
        self.nodes_mut().note_waiting_charges();
        match then {
            Then::FreeSpace(SpaceStep::Clean | SpaceStep::Again(_) | SpaceStep::End)
                if matches!(error, Error::NoSpace { .. }) =>
            {
                Ok(None)
            }
            _ => Err(error),
        }
    }

    /// Returns the result of a step of a checkpoint. After an error the volume may become read-only.
    fn end_on_error<T>(&mut self, result: Result<T>) -> Result<T> {
        match self.segments().turnover().borrowed.is_empty() {
            true => self.segments_mut().stop_on_error(result),
            false => self.give_up_on_error(result),
        }
    }

    /// Makes the volume read-only on any error, for a checkpoint in which a log has borrowed a segment. The
    /// last checkpoint needs that segment, so nothing may be written to it until the new checkpoint counts.
    fn give_up_on_error<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.disk_mut().refuse_changes(format!("a checkpoint could not be written: {error}"));
        }
        result
    }

    /// Writes the pack of a checkpoint except its last block, which it returns. Until that is written, the
    /// previous checkpoint counts, and all of this can be repeated.
    fn prepare(&mut self, reason: Reason, sit: TableWrite<SegNo>, nat: TableWrite<Nid>) -> Result<Prepared> {
        let (sit, nat) = (self.segments().prepared_table(sit), self.nodes().prepared_table(nat));
        let pack = 1 - self.disk().pack();
        let orphans: Vec<Ino> = self.orphans().iter().copied().collect();
        let mut next = self.disk().checkpoint().clone();
        next.flags = self.next_flags(reason);
        next.version = CheckpointVer(self.disk().checkpoint().version.0.wrapping_add(1));
        next.next_free_nid = self.nodes().next_free_nid();
        next.elapsed_seconds = self.disk().mounted_seconds();
        next.sit_bitmap = sit.bitmap.clone();
        next.nat_bitmap = nat.bitmap.clone();

        let size = self.geometry().block_size;
        let payload = self.superblock().cp_payload;
        next.summaries_start = 1 + payload + orphan::blocks(orphans.len(), size) as u32;
        let (nat_journal, sit_journal) =
            (Journal::Nat(nat.journal.clone()), Journal::Sit(sit.journal.clone()));
        let nodes = match reason {
            Reason::Sync => NodeSummaries::Omitted,
            Reason::Unmount => NodeSummaries::Included,
        };
        let summaries = self.segments_mut().describe(&mut next, &nat_journal, &sit_journal, nodes)?;
        let summary_blocks = (summaries.len() / size.bytes()) as u32;
        next.pack_blocks = next.summaries_start + summary_blocks + (FIXED_BLOCKS - 1);
        assert!(next.pack_blocks <= BLOCKS_PER_SEGMENT, "a pack of {} blocks", next.pack_blocks);

        let mut bytes = next.encode(self.superblock());
        let last = bytes[..size.bytes()].to_vec();
        bytes.extend(orphan::encode(&orphans, size));
        bytes.extend(summaries);
        let (start, at) = (self.geometry().pack(pack), Place::Checkpoint(pack));
        self.io().write(start, at, &bytes)?;
        let last_addr = BlockAddr(start.0 + next.pack_blocks - 1);
        Ok(Prepared { next, last, last_addr, at, nat, sit })
    }

    /// The flags of the next checkpoint, except that for compact summaries.
    fn next_flags(&self, reason: Reason) -> Flags {
        let kept = Flags(self.disk().checkpoint().flags.0 & KEPT.0);
        let conditions = [
            (Flags::QUOTA_NEED_FSCK, self.nodes().quota().needs_fsck()),
            (Flags::FSCK, kept.has(Flags::FSCK) || self.io().met_damage()),
            (Flags::UMOUNT, reason == Reason::Unmount),
            (Flags::ORPHAN_PRESENT, !self.orphans().is_empty()),
            (Flags::CRC_RECOVERY, true),
        ];
        conditions.into_iter().fold(kept, |flags, (flag, holds)| match holds {
            true => flags.with(flag),
            false => flags.without(flag),
        })
    }

    /// Completes a checkpoint after its last block was written: switches packs and resets the changes since
    /// the last one.
    pub(super) fn commit(&mut self, prepared: Prepared, written: Result<()>) -> Result<()> {
        if written.is_err() {
            let failed = self.disk_mut().fail_on_error(written);
            self.nodes_mut().note_waiting_charges();
            return failed;
        }
        let Prepared { next, nat, sit, .. } = prepared;
        self.nodes_mut().committed(next, nat, sit);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use block::MemoryDevice;

    use super::*;
    use crate::{
        engine::{Caller, NewNode, Options},
        format::sit::SegmentType,
        mkfs::{self, DeviceContent, DeviceSize, NewVolume, Plan},
        units::Time,
    };

    /// A volume with a prefree segment: the last checkpoint has a file in it that was removed since.
    fn with_prefree_segment() -> (Engine, SegNo) {
        const BYTES: u64 = 64 << 20;
        let size = DeviceSize { path: String::new(), bytes: BYTES };
        let plan = Plan::new(&mkfs::Options::new([1; 16]), &[size]).unwrap();
        let options = Options::new(Time::default);
        let device = Arc::new(MemoryDevice::new(BYTES));
        let new = NewVolume::begin(device, &plan, DeviceContent::Zeroes, options).unwrap();
        let mut volume = new.finish().unwrap();
        let root = volume.superblock().root_ino;
        let file = volume.begin(Caller::ADMIN).create(root, b"file", &NewNode::new(0o100_644)).unwrap();
        // Fills a segment with data.
        volume.begin(Caller::ADMIN).write(file, 0, &[1; 2 << 20]).unwrap();
        volume.checkpoint().unwrap();
        volume.begin(Caller::ADMIN).unlink(root, b"file").unwrap();
        let current = volume.segments_mut().log_segments();
        let mut numbers = (0..volume.geometry().segments).map(SegNo);
        let is_prefree = |number: &SegNo| {
            !current.contains(number) && volume.segments_mut().segment(*number).unwrap().is_prefree()
        };
        let prefree = numbers.find(is_prefree).expect("the file filled a segment");
        (volume, prefree)
    }

    /// Two logs are full, and the only segment for them is a prefree one.
    #[test]
    fn a_prefree_segment_is_not_written_before_its_checkpoint() {
        let (mut volume, prefree) = with_prefree_segment();
        let current = volume.segments_mut().log_segments();
        for number in (0..volume.geometry().segments).map(SegNo) {
            if number != prefree && !current.contains(&number) {
                volume.segments_mut().take_segment(number);
            }
        }
        for kind in [SegmentType::WarmData, SegmentType::ColdData] {
            volume.segments_mut().fill_log(kind);
        }
        let result = volume.checkpoint();
        assert!(matches!(result, Err(Error::NoSpace { .. })), "{result:?}");
        assert!(volume.read_only_reason().is_some(), "one of them has borrowed it");
    }

    #[test]
    #[should_panic(expected = "the last checkpoint needs it")]
    fn a_block_freed_since_the_last_checkpoint_is_not_taken() {
        let (mut volume, prefree) = with_prefree_segment();
        volume.segments_mut().take_segment(prefree);
    }

    #[test]
    #[should_panic(expected = "is allocated and not written")]
    fn a_block_is_not_taken_without_content() {
        let (mut volume, _) = with_prefree_segment();
        volume.segments_mut().allocate_only(SegmentType::ColdData);
    }

    #[test]
    #[should_panic(expected = "space is taken that nobody has reserved")]
    fn space_is_not_taken_after_its_reservation_has_ended() {
        let (mut volume, _) = with_prefree_segment();
        drop(volume.segments().reserve(1).unwrap());
        volume.segments_mut().count_blocks(1);
    }
}
