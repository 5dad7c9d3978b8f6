//! Writing a checkpoint, which makes all changes durable at once.
//!
//! *Order*: data and nodes, then SIT, NAT and the summaries of closed segments, then the checkpoint pack
//! except its last block, a flush, the last block, a flush. After a power cut before the last block is
//! written, the previous checkpoint counts.

use super::{
    Access, Io, Volume,
    discards::UNIT_BLOCKS,
    fsync::SinceCheckpoint,
    journal,
    log::Log,
    pending::{PendingSync, Then},
};
use crate::{
    Error, Place, Result,
    format::{
        BLOCKS_PER_SEGMENT,
        checkpoint::{Checkpoint, FIXED_BLOCKS, Flags},
        nat::NatEntry,
        orphan,
        sit::{SegmentType, SitEntry},
        summary::{Journal, encode_compact},
    },
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

impl Volume {
    /// Makes all changes durable at once.
    pub fn checkpoint(&mut self) -> Result<()> {
        let pending = self.begin_checkpoint()?;
        self.complete(pending)
    }

    /// Begins a [`checkpoint`](Self::checkpoint): does all that needs access to the volume.
    pub fn begin_checkpoint(&mut self) -> Result<Option<PendingSync>> {
        self.start()?;
        match self.changed {
            true => self.checkpoint_then(Reason::Sync, Then::WriteWaiting(Reason::Sync)).map(Some),
            false => self.write_what_waits(Reason::Sync),
        }
    }

    /// Makes all changes durable and marks the volume as cleanly unmounted. The volume may still be used;
    /// later changes reach the device with the next checkpoint.
    pub fn unmount(&mut self) -> Result<()> {
        let is_ended = !self.changed && self.checkpoint.flags.has(Flags::UMOUNT);
        if is_ended && self.pages.is_empty() && self.read_only_reason().is_none() {
            return Ok(());
        }
        self.start()?;
        if !is_ended {
            self.write_checkpoint(Reason::Unmount)?;
        }
        let pending = self.write_what_waits(Reason::Unmount)?;
        self.complete(pending)
    }

    /// Writes the pages that a checkpoint could not write, and begins another checkpoint for them. Returns
    /// the error if they still cannot be written.
    pub(super) fn write_what_waits(&mut self, reason: Reason) -> Result<Option<PendingSync>> {
        self.write_waiting()?;
        if self.changed { self.checkpoint_then(reason, Then::End).map(Some) } else { Ok(None) }
    }

    pub(super) fn write_checkpoint(&mut self, reason: Reason) -> Result<()> {
        let pending = self.checkpoint_then(reason, Then::End)?;
        self.complete(Some(pending))
    }

    /// Writes all blocks of a checkpoint except the last one.
    pub(super) fn prepare_checkpoint(&mut self, reason: Reason) -> Result<Prepared> {
        self.let_go_of_leaving()?;
        self.write_quotas()?;
        let result = self.write_all(reason);
        if result.is_err() {
            self.note_waiting_charges();
        }
        result
    }

    fn write_all(&mut self, reason: Reason) -> Result<Prepared> {
        self.write_back()?;
        if self.counters.valid_blocks > self.checkpoint.user_blocks {
            // Neither we nor Linux would open such a volume. The previous checkpoint, with the fsyncs since
            // then, is whole.
            let needed_blocks = self.counters.valid_blocks - self.checkpoint.user_blocks;
            self.access = Access::ReadOnly("it holds more blocks than its capacity".into());
            return Err(Error::no_space(self.geometry.block_size, needed_blocks, 0));
        }
        // Every log must be able to go on. A log without a segment may borrow a prefree one, which this
        // checkpoint frees.
        let mut borrowed = false;
        let opened = SegmentType::ALL.into_iter().try_for_each(|kind| {
            if self.logs.get(kind).is_full() {
                self.open_segment(kind, true)?;
                let log = self.logs.get(kind);
                // SSR writes only to blocks that the last checkpoint does not need.
                let is_needed = self.sit.segment(&self.io, log.segment)?.protected_blocks > 0;
                borrowed |= is_needed && !log.fills_holes;
            }
            Ok(())
        });
        let result = opened.and_then(|()| self.prepare(reason));
        if borrowed { self.give_up_on_error(result) } else { self.stop_on_error(result) }
    }

    /// Makes the volume read-only on any error, for a checkpoint in which a log has borrowed a segment. The
    /// last checkpoint needs that segment, so nothing may be written to it until the new checkpoint counts.
    fn give_up_on_error<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.access = Access::ReadOnly(format!("a checkpoint could not be written: {error}").into());
        }
        result
    }

    /// Writes all dirty pages and nodes to their logs, and the pending runs of the logs to the device.
    pub(super) fn write_back(&mut self) -> Result<()> {
        self.write_pages()?;
        self.write_nodes()?;
        let result = self.logs.write_all(&self.io);
        self.stop_on_error(result)
    }

    /// Writes all blocks of a checkpoint except the last one, which it returns. Until that is written, the
    /// previous checkpoint counts, and all of this can be repeated.
    fn prepare(&mut self, reason: Reason) -> Result<Prepared> {
        // SIT before NAT, in the order of their addresses: cards are fastest when writing upwards.
        let sit = self.sit.write_back(&self.io)?;
        let nat = self.nat.write_back(&self.io)?;
        self.write_summaries()?;

        let pack = 1 - self.pack;
        let orphans: Vec<Ino> = self.orphans.iter().copied().collect();
        let mut next = self.checkpoint.clone();
        let kept = Flags(self.checkpoint.flags.0 & KEPT.0);
        next.flags = kept
            .set(Flags::QUOTA_NEED_FSCK, self.unsaid.needs_fsck())
            .set(Flags::FSCK, kept.has(Flags::FSCK) || self.io.met_damage())
            .set(Flags::UMOUNT, reason == Reason::Unmount)
            .set(Flags::ORPHAN_PRESENT, !orphans.is_empty())
            .set(Flags::CRC_RECOVERY, true);
        next.version = CheckpointVer(self.checkpoint.version.0.wrapping_add(1));
        next.valid_blocks = self.counters.valid_blocks;
        next.valid_nodes = self.counters.valid_nodes;
        next.valid_inodes = self.counters.valid_inodes;
        next.free_segments = self.sit.free_segments(&self.io, &self.logs.segments())?;
        next.next_free_nid = self.nat.next_free();
        next.elapsed_seconds = self.now;
        next.logs = SegmentType::ALL.map(|kind| self.logs.get(kind).position());
        next.sit_bitmap = sit.bitmap.clone();
        next.nat_bitmap = nat.bitmap.clone();

        let size = self.geometry.block_size;
        let payload = self.superblock.cp_payload;
        next.summaries_start = 1 + payload + orphan::blocks(orphans.len(), size) as u32;
        let journals = (Journal::Nat(nat.journal.clone()), Journal::Sit(sit.journal.clone()));
        let (compact, summaries) = self.encode_summaries(&journals.0, &journals.1, reason);
        next.flags = next.flags.set(Flags::COMPACT_SUM, compact);
        let summary_blocks = (summaries.len() / size.bytes()) as u32;
        next.pack_blocks = next.summaries_start + summary_blocks + (FIXED_BLOCKS - 1);
        assert!(next.pack_blocks <= BLOCKS_PER_SEGMENT, "a pack of {} blocks", next.pack_blocks);

        let mut bytes = next.encode(&self.superblock);
        let last = bytes[..size.bytes()].to_vec();
        bytes.extend(orphan::encode(&orphans, size));
        bytes.extend(summaries);
        let (start, at) = (self.geometry.pack(pack), Place::Checkpoint(pack));
        self.io.write(start, at, &bytes)?;
        let last_addr = BlockAddr(start.0 + next.pack_blocks - 1);
        Ok(Prepared { next, last, last_addr, at, nat, sit })
    }

    /// Completes a checkpoint after its last block was written: switches packs and resets the changes since
    /// the last one.
    pub(super) fn commit(&mut self, prepared: Prepared, written: Result<()>) -> Result<()> {
        if written.is_err() {
            let failed = self.fail_on_error(written);
            self.note_waiting_charges();
            return failed;
        }
        let Prepared { next, nat, sit, .. } = prepared;
        self.checkpoint = next;
        self.pack = 1 - self.pack;
        self.opened_seconds = (self.options.clock)().seconds;
        self.changed = false;
        self.since_checkpoint = SinceCheckpoint::default();
        self.room_sections = None;
        self.forget_partial_limits();
        self.nat.committed(nat);
        let (geometry, logs, discards) = (self.geometry, &self.logs, &self.discards);
        let wanted = self.options.discard;
        self.sit.committed(sit, |number, offset, blocks| {
            // Blocks that a log is about to write are not discarded.
            let end = u32::from(logs.written_part(number)) / UNIT_BLOCKS * UNIT_BLOCKS;
            let blocks = blocks.min(end.saturating_sub(offset.into()));
            if wanted && blocks > 0 {
                discards.add(geometry.block(number, offset), blocks);
            }
        });
        // A segment that is free now needs no summary.
        let (io, table) = (&self.io, &mut self.sit);
        self.unreadable.retain(|number| table.segment(io, *number).is_ok_and(|segment| !segment.is_free()));
        Ok(())
    }

    /// Returns the summary blocks of the pack, and true if those of the data logs are in the compact form.
    fn encode_summaries(&self, nat: &Journal, sit: &Journal, reason: Reason) -> (bool, Vec<u8>) {
        let layout = self.geometry.summary;
        let data = [SegmentType::HotData, SegmentType::WarmData, SegmentType::ColdData];
        let data = data.map(|kind| self.logs.get(kind));
        let entries = data.map(Log::summary_entries);
        let compact = layout.compact_blocks(entries.iter().sum()) < data.len();
        let mut bytes = match compact {
            true => {
                let [hot, warm, cold] = data;
                let logs =
                    [(&hot.summary, entries[0]), (&warm.summary, entries[1]), (&cold.summary, entries[2])];
                encode_compact(layout, nat, sit, logs)
            }
            false => {
                let journals = [Some(nat), None, Some(sit)];
                let blocks = data.iter().zip(journals);
                blocks.flat_map(|(log, journal)| self.summary_block(log, journal)).collect()
            }
        };
        if reason == Reason::Unmount {
            let written = Journal::Written(self.written_kilobytes());
            for (kind, journal) in [
                (SegmentType::HotNode, Some(&written)),
                (SegmentType::WarmNode, None),
                (SegmentType::ColdNode, None),
            ] {
                bytes.extend(self.summary_block(self.logs.get(kind), journal));
            }
        }
        (compact, bytes)
    }

    /// Encodes the summary of a log in a block of its own.
    fn summary_block(&self, log: &Log, journal: Option<&Journal>) -> Vec<u8> {
        let mut block = log.summary.encode(self.geometry.summary, journal);
        block.resize(self.geometry.block_size.bytes(), 0);
        block
    }

    fn written_kilobytes(&self) -> u64 {
        self.written_before + (self.io.written_blocks() << (self.geometry.block_size.log() - 10))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use block::MemoryDevice;

    use super::*;
    use crate::{
        mkfs::{self, DeviceSize, NewVolume, Plan},
        units::Time,
        volume::{NewNode, Options},
    };

    /// Two logs are full, and the only segment for them is a prefree one.
    #[test]
    fn a_prefree_segment_is_not_written_before_its_checkpoint() {
        const BYTES: u64 = 64 << 20;
        let size = DeviceSize { path: String::new(), bytes: BYTES };
        let plan = Plan::new(&mkfs::Options::new([1; 16]), &[size]).unwrap();
        let options = Options::new(Time::default);
        let device = Arc::new(MemoryDevice::new(BYTES));
        let mut volume = NewVolume::begin(device, &plan, true, options).unwrap().finish().unwrap();
        let root = volume.superblock.root_ino;
        let file = volume.create(root, b"file", &NewNode::new(0o100_644)).unwrap();
        // Fills a segment with data.
        volume.write(file, 0, &[1; 2 << 20]).unwrap();
        volume.checkpoint().unwrap();
        volume.unlink(root, b"file").unwrap();
        let mut prefree = 0;
        let take_all = |volume: &mut Volume, number: SegNo| {
            for offset in 0..BLOCKS_PER_SEGMENT as u16 {
                let addr = volume.geometry.block(number, offset);
                volume.sit.take(&volume.io, addr, SegmentType::ColdData, 0).unwrap();
            }
        };
        let current = volume.logs.segments();
        for number in (0..volume.geometry.segments).map(SegNo).filter(|number| !current.contains(number)) {
            match volume.sit.segment(&volume.io, number).unwrap().is_prefree() {
                true => prefree += 1,
                false => take_all(&mut volume, number),
            }
        }
        assert_eq!(prefree, 1);
        for kind in [SegmentType::WarmData, SegmentType::ColdData] {
            let segment = volume.logs.get(kind).segment;
            take_all(&mut volume, segment);
            volume.logs.get_mut(kind).offset = BLOCKS_PER_SEGMENT as u16;
        }
        let result = volume.checkpoint();
        assert!(matches!(result, Err(Error::NoSpace { .. })), "{result:?}");
        assert!(volume.read_only_reason().is_some(), "one of them has borrowed it");
    }
}
