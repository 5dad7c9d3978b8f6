//! Summaries of the logs' segments: those that the checkpoint pack holds, and those of the summary area.

use super::{Segment, Segments, log::Log};
use crate::{
    Error, Place, Result,
    disk::{
        journal::TableRun,
        superblock_copies::{self, Copies},
    },
    format::{
        BLOCKS_PER_SEGMENT, bits,
        checkpoint::{Flags, LogPosition},
        node::NodeFooter,
        sit::SegmentType,
        summary::{Compact, Journal, Summary, encode_compact},
    },
    units::{BlockAddr, SegNo},
};

/// The presence of the node logs' summaries in a pack; packs of mounted volumes lack them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeSummaries {
    /// The pack has them.
    Included,
    /// The pack lacks them.
    Omitted,
}

/// A write of the summaries of segments that the logs have left. It can pause between any two if nothing changes
/// meanwhile.
pub(crate) struct SummariesWrite {
    /// The segment at which it continues.
    next: SegNo,
    /// The summaries that are not on the device yet.
    run: TableRun,
}

impl Default for SummariesWrite {
    fn default() -> SummariesWrite {
        SummariesWrite { next: SegNo(0), run: TableRun::default() }
    }
}

/// The parts of a pack that only changes and cleaning need.
struct PackSummaries {
    /// Summaries of the current segments.
    summaries: [Summary; 6],
    /// KiB written over the volume's life, if the pack stores it; else 0.
    written_kilobytes: u64,
}

impl Segments {
    /// Prepares for the first change: reads the summaries of the logs, checks the logs against the SIT, and
    /// counts the used segments. Read-only use skips this.
    pub(crate) fn prepare_logs(&mut self) -> Result<()> {
        if self.logs_ready {
            return Ok(());
        }
        let packed = self.read_pack_summaries()?;
        for (kind, summary) in SegmentType::ALL.into_iter().zip(packed.summaries) {
            self.logs.get_mut(kind).summary = summary;
        }
        self.written_before = packed.written_kilobytes;
        let copies = superblock_copies::repair(self.disk.io())?;
        let mut empty = 0;
        for kind in SegmentType::ALL {
            let LogPosition { segment: number, offset, mode } = self.logs.get(kind).position();
            let segment = self.sit.segment(self.disk.io(), number)?;
            empty += u32::from(segment.valid_blocks == 0);
            let hole = segment.next_hole(offset);
            let untouched = (offset..BLOCKS_PER_SEGMENT as u16).all(|at| segment.next_hole(at) == Some(at));
            if hole != Some(offset) || (!mode.is_ssr() && !untouched) {
                let what = format!("the {kind} log continues at block {offset}, which is in use");
                return Err(Error::corrupt(Place::Sit(number), what));
            }
            if kind.is_node() && !self.disk.checkpoint().has_node_summaries() {
                self.restore_summary(kind)?;
            }
        }
        let used = match copies {
            Copies::Alike => self.used_segments(empty)?,
            Copies::Repaired => self.count_used_segments()?,
        };
        self.sit.set_used(used);
        self.logs_ready = true;
        Ok(())
    }

    /// The number of segments with a valid block as the checkpoint has it. `empty` logs have no valid block.
    fn used_segments(&self, empty: u32) -> Result<u32> {
        let total = self.disk.geometry().segments;
        total.checked_sub(self.disk.checkpoint().free_segments + empty).ok_or_else(|| {
            let free = self.disk.checkpoint().free_segments;
            Error::corrupt(
                Place::Checkpoint(self.disk.pack()),
                format!("free_segment_count {free} of {total}"),
            )
        })
    }

    /// Counts the segments with a valid block. An interrupted resize has left a checkpoint with the count of free
    /// segments that fits the other size; the next checkpoint has the right one.
    fn count_used_segments(&mut self) -> Result<u32> {
        let mut used = 0;
        self.for_each(|_, segment| used += u32::from(segment.valid_blocks > 0))?;
        self.changed = true;
        Ok(used)
    }

    /// Rebuilds the summary of a node log's segment from the node footers (Linux,
    /// `f2fs_restore_node_summary`); only packs with the unmount or fastboot flag store it.
    fn restore_summary(&mut self, kind: SegmentType) -> Result<()> {
        let size = self.disk.geometry().block_size.bytes();
        let segment = self.logs.get(kind).segment;
        let (start, at) = (self.disk.geometry().block(segment, 0), Place::Ssa(segment));
        let mut bytes = vec![0; size * BLOCKS_PER_SEGMENT as usize];
        if self.disk.io().read(start, at, &mut bytes).is_err() {
            // Only blocks in use matter. An unreadable one gets no owner, so cleaning leaves it alone.
            let map = self.sit.segment(self.disk.io(), segment)?.map;
            for (block, offset) in bytes.chunks_exact_mut(size).zip(0..) {
                let in_use = bits::msb(&map, offset);
                if in_use && self.disk.io().read(BlockAddr(start.0 + offset as u32), at, block).is_ok() {
                    continue;
                }
                block.fill(0);
                if in_use {
                    // The summary will lack the owner of this block, so fsck has to find it.
                    let unknown = Error::corrupt(at, format!("block {offset} of a log cannot be read"));
                    let _ = self.disk.io().record_corruption::<()>(Err(unknown));
                }
            }
        }
        let summary = &mut self.logs.get_mut(kind).summary;
        for (owner, block) in summary.owners.iter_mut().zip(bytes.chunks_exact(size)) {
            owner.nid = NodeFooter::of(block).nid;
        }
        Ok(())
    }

    /// The summary of a log's segment as the newest checkpoint stores it; valid only before the first change.
    fn packed_summary(&self, kind: SegmentType) -> Result<Summary> {
        Ok(self.read_pack_summaries()?.summaries[kind.index()].clone())
    }

    fn read_pack_summaries(&self) -> Result<PackSummaries> {
        let (size, layout) = (self.disk.geometry().block_size.bytes(), self.disk.geometry().summary);
        let (checkpoint, at) = (self.disk.checkpoint(), Place::Checkpoint(self.disk.pack()));
        let start = BlockAddr(self.disk.geometry().pack(self.disk.pack()).0 + checkpoint.summaries_start);
        let blocks = checkpoint.pack_blocks - 1 - checkpoint.summaries_start;
        let mut bytes = vec![0; size * blocks as usize];
        self.disk.io().read(start, at, &mut bytes)?;

        let data_blocks = checkpoint.data_summary_blocks(layout);
        // The number of blocks was checked when the volume was opened, and holds for every pack that we
        // write.
        let block = |n: usize| &bytes[n * size..(n + 1) * size];
        let data = match checkpoint.flags.has(Flags::COMPACT_SUM) {
            true => {
                let used = checkpoint.data_summary_entries();
                Compact::parse(&bytes[..data_blocks * size], layout, used).summaries
            }
            false => [0, 1, 2].map(|n| Summary::parse(block(n), layout)),
        };
        let nodes = match checkpoint.has_node_summaries() {
            true => [0, 1, 2].map(|n| Some(block(data_blocks + n))),
            false => [None; 3],
        };
        let written_kilobytes =
            nodes[0].map_or(0, |block| Journal::parse_written(Summary::journal_of(block, layout)));
        let nodes = nodes.map(|block| {
            block.map_or_else(|| Summary::empty(SegmentType::HotNode), |block| Summary::parse(block, layout))
        });
        let mut all = data.into_iter().chain(nodes);
        let summaries = SegmentType::ALL.map(|kind| {
            let mut summary = all.next().expect("three data and three node summaries");
            summary.is_node = kind.is_node();
            summary
        });
        Ok(PackSummaries { summaries, written_kilobytes })
    }

    /// Returns the current summary of a segment.
    pub(crate) fn summary(&self, segment: SegNo) -> Result<Summary> {
        self.check_segment(segment)?;
        let mut kinds = SegmentType::ALL.into_iter();
        if let Some(kind) = kinds.find(|kind| self.logs.get(*kind).segment == segment) {
            return match self.logs_ready {
                true => Ok(self.logs.get(kind).summary.clone()),
                false => self.packed_summary(kind),
            };
        }
        if let Some(summary) = self.summaries.get(&segment) {
            return Ok(summary.clone());
        }
        let (addr, offset) = self.disk.geometry().summary_block(segment);
        let block = self.disk.io().read_block(addr, Place::Ssa(segment))?;
        Ok(Summary::parse(&block[offset..], self.disk.geometry().summary))
    }

    /// Returns the current summary of a segment that no log has open. If the segment was free before
    /// recovery, its summary is empty, because the one on the device is stale.
    pub(super) fn summary_to_change(&mut self, segment: SegNo) -> Result<Summary> {
        let is_fresh = self.recovering.as_mut().is_some_and(|fresh| fresh.remove(&segment));
        if is_fresh { Ok(Summary::empty(SegmentType::HotData)) } else { self.summary(segment) }
    }

    /// Writes the summaries of segments that the logs have left.
    pub(super) fn write_summaries(&mut self) -> Result<()> {
        self.write_some_summaries(&mut SummariesWrite::default(), usize::MAX).map(drop)
    }

    /// Writes up to `most` of the summaries that are left, and returns their number. If it is smaller, all are written.
    pub(crate) fn write_some_summaries(&mut self, write: &mut SummariesWrite, most: usize) -> Result<usize> {
        let mut written = 0;
        // A read-only volume has no SSA. Nothing is ever cleaned there.
        if self.disk.superblock().ssa.segments > 0 {
            let (io, geometry) = (self.disk.io(), self.disk.geometry());
            for (segment, summary) in self.summaries.range(write.next..).take(most) {
                let (addr, _) = geometry.summary_block(*segment);
                let block = summary.encode(geometry.summary, None);
                write.run.push(io, addr, Place::Ssa(*segment), &block)?;
                write.next = SegNo(segment.0 + 1);
                written += 1;
            }
        }
        if written < most {
            write.run.write(self.disk.io())?;
            self.summaries.clear();
        }
        Ok(written)
    }

    /// Returns the summary blocks of the pack, and true if those of the data logs are in the compact form.
    pub(super) fn encode_summaries(
        &self,
        nat: &Journal,
        sit: &Journal,
        nodes: NodeSummaries,
    ) -> (bool, Vec<u8>) {
        let layout = self.disk.geometry().summary;
        let data = SegmentType::DATA.map(|kind| self.logs.get(kind));
        let entries = data.map(|log| log.position().summary_entries());
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
        if nodes == NodeSummaries::Included {
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
        let mut block = log.summary.encode(self.disk.geometry().summary, journal);
        block.resize(self.disk.geometry().block_size.bytes(), 0);
        block
    }

    fn written_kilobytes(&self) -> u64 {
        let now = self.disk.io().written_blocks() << (self.disk.geometry().block_size.log() - 10);
        // The number of the volume's earlier life is not checked.
        self.written_before.saturating_add(now)
    }

    /// Returns a segment with its summary, or `None` if no block of it is valid.
    pub(crate) fn segment_to_clean(&mut self, number: SegNo) -> Result<Option<(Segment, Summary)>> {
        let segment = self.sit.segment(self.disk.io(), number)?;
        if segment.valid_blocks == 0 {
            return Ok(None);
        }
        let summary = self.summary(number)?;
        if summary.is_node != segment.kind.is_node() {
            let what = format!("a summary of {} in a {} segment", kind_of(&summary), segment.kind);
            return Err(Error::corrupt(Place::Ssa(number), what));
        }
        Ok(Some((segment, summary)))
    }
}

fn kind_of(summary: &Summary) -> &'static str {
    if summary.is_node { "nodes" } else { "data" }
}
