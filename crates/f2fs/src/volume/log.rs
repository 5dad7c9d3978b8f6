//! The logs: where new blocks go. Each of the six has a current segment, and a *pending run*: consecutive blocks
//! gather in memory and leave as one large write.
//!
//! *Invariants*: a block of a pending run is valid and nowhere else; who reads looks here first. A run that could not be
//! written stays, is read and overwritten like any other, and nothing leaves before it.

use super::io::Io;
use crate::{
    Place, Result,
    format::{BLOCKS_PER_SEGMENT, checkpoint::LogPosition, sit::SegmentType, summary::Summary},
    units::{BlockAddr, SegNo},
};

/// Bytes that a run gathers at most: whole commands of 120 KiB, which is what a USB reader takes at once; of larger
/// ones it is not many more than of a mebibyte.
const RUN_BYTES: usize = 8 * (120 << 10);
/// Runs that may wait for a device that does not take them.
const STUCK_MAX: usize = 64;

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
    /// Nodes that fsyncs wrote to it since its segment was opened, or the volume.
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
    /// A log that goes on at a position.
    pub fn new(position: LogPosition, summary: Summary) -> Log {
        Log {
            segment: position.segment,
            offset: position.offset,
            fills_holes: position.fills_holes,
            summary,
            synced: 0,
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
    /// Runs that could not be written, in the order in which they should have been.
    stuck: Vec<Run>,
    block_bytes: usize,
    /// The log whose run left last.
    latest: usize,
}

impl Logs {
    /// These logs, with blocks of so many bytes.
    pub fn new(logs: [Log; 6], block_bytes: usize) -> Logs {
        Logs { logs, stuck: Vec::new(), block_bytes, latest: 0 }
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

    /// How much of a segment no log is about to write: all of it where no log is there, what lies before its position
    /// where one appends, nothing where one fills holes.
    pub fn written_part(&self, segment: SegNo) -> u16 {
        let log = self.logs.iter().find(|log| log.segment == segment);
        log.map_or(BLOCKS_PER_SEGMENT as u16, |log| if log.fills_holes { 0 } else { log.offset })
    }

    /// Adds a block to the run of a log. What is no neighbour of the run makes it leave first; where that fails, the
    /// block is added all the same.
    pub fn push(&mut self, io: &Io, kind: SegmentType, addr: BlockAddr, bytes: &[u8]) -> Result<()> {
        debug_assert_eq!(bytes.len(), self.block_bytes);
        let run = &mut self.logs[kind.index()].run;
        let end = run.start.index() + run.bytes.len() / self.block_bytes;
        let mut result = Ok(());
        if end != addr.index() || run.bytes.len() >= RUN_BYTES {
            if self.stuck.is_empty() {
                self.latest = if run.bytes.is_empty() { self.latest } else { kind.index() };
                result = run.write(io);
            }
            if !run.bytes.is_empty() {
                self.stuck.push(std::mem::take(run));
            }
            run.start = addr;
        }
        run.bytes.extend_from_slice(bytes);
        result
    }

    /// Writes blocks that a log gave out from where they are, behind its run. Where they cannot leave, they wait as a run.
    pub fn write_through(&mut self, io: &Io, kind: SegmentType, addr: BlockAddr, bytes: &[u8]) -> Result<()> {
        debug_assert!(self.stuck.is_empty());
        self.latest = kind.index();
        let run = &mut self.logs[kind.index()].run;
        let result = run.write(io).and_then(|()| io.write(addr, Place::Block(addr), bytes));
        if result.is_err() {
            if !run.bytes.is_empty() {
                self.stuck.push(std::mem::take(run));
            }
            self.stuck.push(Run { start: addr, bytes: bytes.to_vec() });
        }
        result
    }

    /// Whether something waits for a device that does not take it.
    pub fn is_stuck(&self) -> bool {
        !self.stuck.is_empty()
    }

    /// Puts blocks of data that are overwritten in front of the run of data that begins right behind them; says whether
    /// there is one. With a run of nodes they could not leave: an fsync sends those of files only.
    pub fn prepend(&mut self, addr: BlockAddr, bytes: &[u8]) -> bool {
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

    /// Whether so much waits for a device that does not take it that no more should.
    pub fn is_choked(&self) -> bool {
        self.stuck.len() >= STUCK_MAX
    }

    fn write_stuck(&mut self, io: &Io) -> Result<()> {
        while let Some(run) = self.stuck.first_mut() {
            run.write(io)?;
            self.stuck.remove(0);
        }
        Ok(())
    }

    fn runs(&self) -> impl Iterator<Item = &Run> {
        self.logs.iter().map(|log| &log.run).chain(&self.stuck)
    }

    /// Writes the run of a log.
    pub fn write(&mut self, io: &Io, kind: SegmentType) -> Result<()> {
        self.write_stuck(io)?;
        self.logs[kind.index()].run.write(io)
    }

    /// Writes all runs: first the one that goes on where the last one ended, then upwards, which is what a card likes
    /// best.
    pub fn write_all(&mut self, io: &Io) -> Result<()> {
        self.write_stuck(io)?;
        let mut order = [0, 1, 2, 3, 4, 5];
        order.sort_by_key(|log| (*log != self.latest, self.logs[*log].run.start));
        order.into_iter().try_for_each(|log| self.logs[log].run.write(io))
    }

    /// The content of a block that has not left yet.
    pub fn pending(&self, addr: BlockAddr) -> Option<&[u8]> {
        self.runs().find_map(|run| {
            let at = run.offset_of(addr, self.block_bytes)?;
            Some(&run.bytes[at..at + self.block_bytes])
        })
    }

    /// The content of a block that has not left yet, to overwrite it.
    pub fn pending_mut(&mut self, addr: BlockAddr) -> Option<&mut [u8]> {
        let size = self.block_bytes;
        let runs = self.logs.iter_mut().map(|log| &mut log.run).chain(&mut self.stuck);
        runs.into_iter().find_map(|run| {
            let at = run.offset_of(addr, size)?;
            Some(&mut run.bytes[at..at + size])
        })
    }

    /// Whether any of `count` blocks from `addr` on has not left yet.
    pub fn holds_any(&self, addr: BlockAddr, count: usize) -> bool {
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
