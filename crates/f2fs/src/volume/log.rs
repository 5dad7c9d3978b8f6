//! The logs: where new blocks go. Each of the six has a current segment, and a *pending run*: consecutive blocks
//! gather in memory and leave as one large write.
//!
//! *Invariant*: a block of a pending run is valid and nowhere else; who reads looks here first.

use super::io::Io;
use crate::{
    Place, Result,
    format::{BLOCKS_PER_SEGMENT, checkpoint::LogPosition, sit::SegmentType, summary::Summary},
    units::{BlockAddr, SegNo},
};

/// Bytes that a run gathers at most.
const RUN_BYTES: usize = 1 << 20;

/// One log.
pub struct Log {
    /// Its current segment.
    pub segment: SegNo,
    /// The next block in it; 512 where it is full and no other could be opened.
    pub offset: u16,
    /// Whether it fills the holes of a used segment.
    pub fills_holes: bool,
    /// Whose the segment's blocks are.
    pub summary: Summary,
    run: Run,
}

/// Consecutive blocks that have not been written yet.
#[derive(Default)]
struct Run {
    start: BlockAddr,
    bytes: Vec<u8>,
}

impl Log {
    /// A log that goes on at a position.
    pub fn new(position: LogPosition, summary: Summary) -> Log {
        Log {
            segment: position.segment,
            offset: position.offset,
            fills_holes: position.fills_holes,
            summary,
            run: Run::default(),
        }
    }

    /// Whether the segment has no block left.
    pub fn is_full(&self) -> bool {
        u32::from(self.offset) >= BLOCKS_PER_SEGMENT
    }

    /// Where it goes on.
    pub fn position(&self) -> LogPosition {
        LogPosition { segment: self.segment, offset: self.offset, fills_holes: self.fills_holes }
    }

    /// Entries of the summary that the checkpoint must hold.
    pub fn summary_entries(&self) -> usize {
        if self.fills_holes { BLOCKS_PER_SEGMENT as usize } else { usize::from(self.offset) }
    }
}

/// The six logs. A read-only volume has logs, too, but never writes to them.
pub struct Logs {
    logs: [Log; 6],
    block_bytes: usize,
}

impl Logs {
    /// These logs, with blocks of so many bytes.
    pub fn new(logs: [Log; 6], block_bytes: usize) -> Logs {
        Logs { logs, block_bytes }
    }

    /// A log.
    pub fn get(&self, kind: SegmentType) -> &Log {
        &self.logs[kind.index()]
    }

    /// A log, to change it.
    pub fn get_mut(&mut self, kind: SegmentType) -> &mut Log {
        &mut self.logs[kind.index()]
    }

    /// The current segments.
    pub fn segments(&self) -> [SegNo; 6] {
        SegmentType::ALL.map(|kind| self.logs[kind.index()].segment)
    }

    /// Adds a block to the run of a log. What is no neighbour of the run makes it leave first.
    pub fn push(&mut self, io: &Io, kind: SegmentType, addr: BlockAddr, bytes: &[u8]) -> Result<()> {
        debug_assert_eq!(bytes.len(), self.block_bytes);
        let run = &mut self.logs[kind.index()].run;
        let end = run.start.index() + run.bytes.len() / self.block_bytes;
        if end != addr.index() || run.bytes.len() >= RUN_BYTES {
            run.write(io)?;
            run.start = addr;
        }
        run.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Writes the run of a log.
    pub fn write(&mut self, io: &Io, kind: SegmentType) -> Result<()> {
        self.logs[kind.index()].run.write(io)
    }

    /// Writes all runs.
    pub fn write_all(&mut self, io: &Io) -> Result<()> {
        self.logs.iter_mut().try_for_each(|log| log.run.write(io))
    }

    /// The content of a block that has not left yet.
    pub fn pending(&self, addr: BlockAddr) -> Option<&[u8]> {
        self.logs.iter().find_map(|log| {
            let at = log.run.offset_of(addr, self.block_bytes)?;
            Some(&log.run.bytes[at..at + self.block_bytes])
        })
    }

    /// The content of a block that has not left yet, to overwrite it.
    pub fn pending_mut(&mut self, addr: BlockAddr) -> Option<&mut [u8]> {
        let size = self.block_bytes;
        self.logs.iter_mut().find_map(|log| {
            let at = log.run.offset_of(addr, size)?;
            Some(&mut log.run.bytes[at..at + size])
        })
    }

    /// Whether any of `count` blocks from `addr` on has not left yet.
    pub fn holds_any(&self, addr: BlockAddr, count: usize) -> bool {
        self.logs.iter().any(|log| {
            let (start, end) =
                (log.run.start.index(), log.run.start.index() + log.run.bytes.len() / self.block_bytes);
            addr.index() < end && start < addr.index() + count
        })
    }
}

impl Run {
    fn write(&mut self, io: &Io) -> Result<()> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        let result = io.write(self.start, Place::Block(self.start), &self.bytes);
        self.bytes.clear();
        result
    }

    fn offset_of(&self, addr: BlockAddr, block_bytes: usize) -> Option<usize> {
        let at = addr.0.checked_sub(self.start.0)? as usize * block_bytes;
        (at < self.bytes.len()).then_some(at)
    }
}
