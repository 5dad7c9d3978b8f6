//! The logs, which allocate new blocks. Each of the six has a current segment (curseg) and a *pending run*:
//! consecutive blocks gathered in memory, to be written in one request.
//!
//! *Invariants*: a block of a pending run is valid and its newest content exists nowhere else, so reads look here first. A run
//! that could not be written stays here; it is read and overwritten like any other, and no later run is
//! written before it.

use crate::{
    Place, Result,
    disk::Io,
    format::{
        BLOCKS_PER_SEGMENT,
        checkpoint::{AllocMode, LogPosition},
        sit::SegmentType,
        summary::Summary,
    },
    units::{BlockAddr, SegNo},
};

/// Maximum size of a run in bytes: eight whole commands of 120 KiB, the largest that a USB card reader takes.
/// A run of 1 MiB would end in a partial command. A device with larger commands needs hardly more of them
/// than with 1 MiB.
const RUN_BYTES: usize = 8 * (120 << 10);
/// Maximum number of runs that are kept while the device fails to write them.
const FAILED_WRITES_MAX: usize = 64;

/// One log.
pub(super) struct Log {
    /// The current segment.
    pub segment: SegNo,
    /// The next block to allocate in it; 512 if it is full and no other segment could be opened.
    pub offset: u16,
    /// The way in which the log takes blocks of the segment.
    pub mode: AllocMode,
    /// The summary of the current segment: the owner of each block.
    pub summary: Summary,
    /// Nodes that fsyncs wrote to the log since it opened its segment or the volume was opened.
    pub synced: u16,
    run: Run,
}

/// Consecutive blocks that have not been written yet.
#[derive(Default)]
struct Run {
    start: BlockAddr,
    bytes: Vec<u8>,
}

impl Log {
    /// Creates a log that continues at `position`.
    pub(super) fn new(position: LogPosition, summary: Summary) -> Log {
        Log {
            segment: position.segment,
            offset: position.offset,
            mode: position.mode,
            summary,
            synced: 0,
            run: Run::default(),
        }
    }

    /// Returns true if no block of the segment is left.
    pub(super) fn is_full(&self) -> bool {
        u32::from(self.offset) >= BLOCKS_PER_SEGMENT
    }

    /// The log's current position, as a checkpoint stores it.
    pub(super) fn position(&self) -> LogPosition {
        LogPosition { segment: self.segment, offset: self.offset, mode: self.mode }
    }
}

/// The six logs. A read-only volume has logs as well but never writes to them.
pub(super) struct Logs {
    logs: [Log; 6],
    /// Runs whose write failed, in the order in which they are to be written.
    failed_writes: Vec<Run>,
    block_bytes: usize,
    /// Index of the log whose run was written last.
    latest: usize,
}

impl Logs {
    /// Creates the logs, with blocks of `block_bytes` bytes.
    pub(super) fn new(logs: [Log; 6], block_bytes: usize) -> Logs {
        Logs { logs, failed_writes: Vec::new(), block_bytes, latest: 0 }
    }

    /// The log of this kind.
    pub(super) fn get(&self, kind: SegmentType) -> &Log {
        &self.logs[kind.index()]
    }

    /// The log of this kind, mutable.
    pub(super) fn get_mut(&mut self, kind: SegmentType) -> &mut Log {
        &mut self.logs[kind.index()]
    }

    /// The current segments.
    pub(super) fn segments(&self) -> [SegNo; 6] {
        SegmentType::ALL.map(|kind| self.logs[kind.index()].segment)
    }

    /// Number of blocks at the start of a segment that no log is going to write: all 512 if it is no current
    /// segment, the blocks before the position for LFS, none for SSR.
    pub(super) fn written_part(&self, segment: SegNo) -> u16 {
        let log = self.logs.iter().find(|log| log.segment == segment);
        log.map_or(BLOCKS_PER_SEGMENT as u16, |log| if log.mode.is_ssr() { 0 } else { log.offset })
    }

    /// Adds a block to the run of a log. If the block does not follow the run, the run is written first. The
    /// block is added even if that write fails.
    pub(super) fn push(&mut self, io: &Io, kind: SegmentType, addr: BlockAddr, bytes: &[u8]) -> Result<()> {
        debug_assert_eq!(bytes.len(), self.block_bytes);
        let run = &mut self.logs[kind.index()].run;
        let end = run.start.index() + run.bytes.len() / self.block_bytes;
        let mut result = Ok(());
        if end != addr.index() || run.bytes.len() >= RUN_BYTES {
            if self.failed_writes.is_empty() {
                self.latest = if run.bytes.is_empty() { self.latest } else { kind.index() };
                result = run.write(io);
            }
            if !run.bytes.is_empty() {
                self.failed_writes.push(std::mem::take(run));
            }
            run.start = addr;
        }
        run.bytes.extend_from_slice(bytes);
        result
    }

    /// Writes blocks that a log has allocated directly from `bytes`, after the log's run. If the write fails,
    /// they are kept as a run.
    pub(super) fn write_through(
        &mut self,
        io: &Io,
        kind: SegmentType,
        addr: BlockAddr,
        bytes: &[u8],
    ) -> Result<()> {
        debug_assert!(self.failed_writes.is_empty());
        self.latest = kind.index();
        let run = &mut self.logs[kind.index()].run;
        let result = run.write(io).and_then(|()| io.write(addr, Place::Block(addr), bytes));
        if result.is_err() {
            if !run.bytes.is_empty() {
                self.failed_writes.push(std::mem::take(run));
            }
            self.failed_writes.push(Run { start: addr, bytes: bytes.to_vec() });
        }
        result
    }

    /// Returns true if runs are waiting because their write failed.
    pub(super) fn has_failed_writes(&self) -> bool {
        !self.failed_writes.is_empty()
    }

    /// Joins data blocks that are overwritten in place to the front of the data run that begins right behind
    /// them. Returns true if there is such a run with room for them. Node runs do not qualify: an fsync
    /// writes all data runs, but of the node runs only that of the warm node log.
    pub(super) fn prepend(&mut self, addr: BlockAddr, bytes: &[u8]) -> bool {
        let end = addr.index() + bytes.len() / self.block_bytes;
        let data = SegmentType::ALL.into_iter().zip(&mut self.logs).filter(|(kind, _)| !kind.is_node());
        let mut runs = data.map(|(_, log)| &mut log.run);
        let follows = |run: &&mut Run| !run.bytes.is_empty() && run.start.index() == end;
        match runs.find(follows) {
            Some(run) if run.bytes.len() + bytes.len() <= RUN_BYTES => {
                run.bytes.splice(0..0, bytes.iter().copied());
                run.start = addr;
                true
            }
            _ => false,
        }
    }

    /// Returns true if so many runs are waiting after failed writes that no more should be kept.
    pub(super) fn is_choked(&self) -> bool {
        self.failed_writes.len() >= FAILED_WRITES_MAX
    }

    fn retry_failed_writes(&mut self, io: &Io) -> Result<()> {
        while let Some(run) = self.failed_writes.first_mut() {
            run.write(io)?;
            self.failed_writes.remove(0);
        }
        Ok(())
    }

    fn runs(&self) -> impl Iterator<Item = &Run> {
        self.logs.iter().map(|log| &log.run).chain(&self.failed_writes)
    }

    /// Writes the run of a log.
    pub(super) fn write(&mut self, io: &Io, kind: SegmentType) -> Result<()> {
        self.retry_failed_writes(io)?;
        self.logs[kind.index()].run.write(io)
    }

    /// Writes all runs: first that of the log that was written last, since it continues at the same place,
    /// then the others in ascending order of address. Flash cards prefer this order.
    pub(super) fn write_all(&mut self, io: &Io) -> Result<()> {
        self.retry_failed_writes(io)?;
        let mut order = [0, 1, 2, 3, 4, 5];
        order.sort_by_key(|log| (*log != self.latest, self.logs[*log].run.start));
        order.into_iter().try_for_each(|log| self.logs[log].run.write(io))
    }

    /// The content of a block that has not been written yet.
    pub(super) fn pending(&self, addr: BlockAddr) -> Option<&[u8]> {
        self.runs().find_map(|run| {
            let at = run.offset_of(addr, self.block_bytes)?;
            Some(&run.bytes[at..at + self.block_bytes])
        })
    }

    /// The content of a block that has not been written yet, to overwrite it.
    pub(super) fn pending_mut(&mut self, addr: BlockAddr) -> Option<&mut [u8]> {
        let size = self.block_bytes;
        let runs = self.logs.iter_mut().map(|log| &mut log.run).chain(&mut self.failed_writes);
        runs.into_iter().find_map(|run| {
            let at = run.offset_of(addr, size)?;
            Some(&mut run.bytes[at..at + size])
        })
    }

    /// Returns true if any of the `count` blocks from `addr` on has not been written yet.
    pub(super) fn holds_any(&self, addr: BlockAddr, count: usize) -> bool {
        self.runs().any(|run| {
            let (start, end) = (run.start.index(), run.start.index() + run.bytes.len() / self.block_bytes);
            addr.index() < end && start < addr.index() + count
        })
    }
}

impl Run {
    fn write(&mut self, io: &Io) -> Result<()> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        io.write(self.start, Place::Block(self.start), &self.bytes)?;
        self.bytes.clear();
        Ok(())
    }

    fn offset_of(&self, addr: BlockAddr, block_bytes: usize) -> Option<usize> {
        let at = addr.0.checked_sub(self.start.0)? as usize * block_bytes;
        (at < self.bytes.len()).then_some(at)
    }
}
