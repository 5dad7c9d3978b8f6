//! Operations on ranges of files: zero, collapse, insert.
//!
//! *Invariants*: blocks that move inside a file are copied, as cleaning copies them, because the summary of a
//! segment on the device may only name owners that the last checkpoint knows as well. A range moves piece by
//! piece, in an order that never overwrites blocks still to be moved. If space runs short, a checkpoint may
//! be written between pieces, so that files larger than the free space can be shifted.

use std::ops::Range;

use super::{Files, map_write::Slot};
use crate::{
    Error, Result,
    format::inode::{advise, flag, inline},
    segments::Reservation,
    units::{BlockAddr, Ino},
};

/// Maximum number of blocks in a piece.
const PIECE_BLOCKS: u64 = 256;
/// Blocks that a piece may need temporarily beyond those that it frees.
const SPARE_BLOCKS: u64 = 4;

/// The direction in which blocks of a file move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// To lower offsets.
    Down,
    /// To higher offsets.
    Up,
}

/// A shift of the blocks of a file, to be done move by move.
pub(crate) struct Shift {
    /// The parts that are not holes, ascending.
    used: Vec<Range<u64>>,
    direction: Direction,
    /// Distance of the shift.
    blocks: u64,
    /// Size of the file at the end, in bytes.
    pub(crate) new_size: u64,
    /// Space for the nodes at the new positions, and for the blocks that are at both positions for a while.
    _space: Reservation,
}

impl Shift {
    /// Returns the moves in order, each as the blocks and the block where the first of them goes.
    pub(crate) fn moves(&self) -> impl Iterator<Item = (Range<u64>, u64)> + '_ {
        let (shift, length) = (self.blocks, PIECE_BLOCKS.min(self.blocks));
        let down = self.used.iter().flat_map(move |range| {
            let starts = (range.start..range.end).step_by(length as usize);
            starts.map(move |at| (at..range.end.min(at + length), at - shift))
        });
        let up = self.used.iter().rev().flat_map(move |range| {
            let ends = (0..(range.end - range.start).div_ceil(length)).map(move |n| range.end - n * length);
            ends.map(move |at| {
                let start = range.start.max(at.saturating_sub(length));
                (start..at, start + shift)
            })
        });
        let is_down = self.direction == Direction::Down;
        let (down, up) = (is_down.then_some(down), (!is_down).then_some(up));
        down.into_iter().flatten().chain(up.into_iter().flatten())
    }
}

impl Files {
    /// Prepares to remove a range from a regular file, and frees it. The shift moves the content behind it to `offset`;
    /// then the file is cut.
    pub(crate) fn begin_collapse(&mut self, ino: Ino, offset: u64, length: u64) -> Result<Shift> {
        let size = self.check_shift(ino, offset, length)?;
        let new_size = match offset.checked_add(length) {
            Some(end) if end < size => size - length,
            _ => return Err(Error::Invalid("the range must end before the end of the file".into())),
        };
        self.leave_inline_for_good(ino)?;
        let log = self.geometry().block_size.log();
        let (start, end) = (offset >> log, (offset + length) >> log);
        let used = self.used_ranges(ino, end, size.div_ceil(1 << log))?;
        let space = self.reserve_nodes(ino, &used, |block| block - (end - start))?;
        self.free_blocks(ino, start..end)?;
        Ok(Shift { used, direction: Direction::Down, blocks: end - start, new_size, _space: space })
    }

    /// Prepares to insert a hole into a regular file, which grows. The shift moves the content from `offset` on up.
    pub(crate) fn begin_insert(&mut self, ino: Ino, offset: u64, length: u64) -> Result<Shift> {
        let size = self.check_shift(ino, offset, length)?;
        if offset >= size {
            return Err(Error::Invalid("the range must begin before the end of the file".into()));
        }
        let new_size = self.end_of(&*self.nodes.inode(ino)?, size, length)?;
        self.leave_inline_for_good(ino)?;
        let log = self.geometry().block_size.log();
        let (start, shift) = (offset >> log, length >> log);
        let used = self.used_ranges(ino, start, size.div_ceil(1 << log))?;
        let space = self.reserve_nodes(ino, &used, |block| block + shift)?;
        // Blocks beyond the end would be in the way, also those that no mark tells of.
        self.cut(ino, size)?;
        // Grow the file first: if the operation ends early, by an error or by a power cut after a checkpoint,
        // no block is beyond the end.
        let head = self.nodes.inode_mut(ino)?.head_mut();
        head.size.set(new_size);
        head.advise &= !advise::PAST_END;
        Ok(Shift { used, direction: Direction::Up, blocks: shift, new_size, _space: space })
    }

    /// Checks the conditions for shifting blocks of a file, and returns the size of the file.
    fn check_shift(&self, ino: Ino, offset: u64, length: u64) -> Result<u64> {
        let inode = self.writable_file(ino)?;
        if inode.has_flag(flag::APPEND) {
            return Err(Error::NotPermitted);
        }
        // Each block of an encrypted file is encrypted under its number (Linux, `f2fs_fallocate`).
        let is_encrypted = inode.has_advise(advise::ENCRYPT);
        if is_encrypted || inode.compression().is_some() || inode.has_inline(inline::PIN) {
            return Err(Error::Unsupported(
                "shifting blocks of an encrypted, compressed or pinned file".into(),
            ));
        }
        let block_bytes = self.geometry().block_size.bytes() as u64;
        if length == 0 || offset % block_bytes != 0 || length % block_bytes != 0 {
            return Err(Error::Invalid("only whole blocks can be removed or inserted".into()));
        }
        Ok(inode.head().size.get())
    }

    fn leave_inline_for_good(&mut self, ino: Ino) -> Result<()> {
        if self.nodes.inode(ino)?.has_inline(inline::DATA) {
            let _space = self.reserve(ino, 0..1)?;
            self.leave_inline(ino)?;
        }
        Ok(())
    }

    /// The parts of a block range that are not holes. Holes shorter than 256 blocks count as used.
    fn used_ranges(&self, ino: Ino, from: u64, to: u64) -> Result<Vec<Range<u64>>> {
        let inode = self.nodes.inode(ino)?;
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut at = from;
        while at < to {
            let run = self.run(&inode, at, to)?;
            at = run.blocks.end;
            match ranges.last_mut() {
                _ if run.addr == BlockAddr::NULL => {}
                Some(last) if run.blocks.start - last.end < PIECE_BLOCKS => last.end = run.blocks.end,
                _ => ranges.push(run.blocks),
            }
        }
        Ok(ranges)
    }

    /// Reserves the nodes needed at the new positions; `place` maps a block to its new position.
    fn reserve_nodes(
        &self,
        ino: Ino,
        parts: &[Range<u64>],
        place: impl Fn(u64) -> u64,
    ) -> Result<Reservation> {
        let mut nodes = 0;
        for part in parts {
            nodes += self.nodes_for(ino, place(part.start)..place(part.end))?;
        }
        if u64::from(self.segments().free_nodes()) < nodes {
            return Err(Error::NoInodes);
        }
        let space = self.segments().reserve(nodes + SPARE_BLOCKS)?;
        self.nodes.admit(ino, nodes + 1)?;
        Ok(space)
    }

    /// Moves blocks of a file into a hole. The two ranges must not overlap.
    pub(crate) fn move_blocks(&mut self, ino: Ino, from: Range<u64>, to: u64) -> Result<()> {
        let size = self.geometry().block_size;
        let inode = self.nodes.inode(ino)?;
        let kind = self.log_of_data(&inode);
        let mut content = vec![0; ((from.end - from.start) as usize) << size.log()];
        self.read_past_end(&inode, from.start << size.log(), &mut content)?;
        let mut addrs = Vec::with_capacity((from.end - from.start) as usize);
        while addrs.len() < (from.end - from.start) as usize {
            let run = self.run(&inode, from.start + addrs.len() as u64, from.end)?;
            addrs.resize(addrs.len() + run.len() as usize, run.addr);
        }
        drop(inode);
        for ((block, addr), bytes) in (from.start..).zip(addrs).zip(content.chunks_exact(size.bytes())) {
            if addr == BlockAddr::NULL {
                continue;
            }
            let target = to + (block - from.start);
            let slot = self.make_slot(ino, target)?;
            if addr == BlockAddr::NEW && self.pages.get(ino, block).is_none() {
                self.occupy(ino, Slot { left: 1, ..slot })?;
            } else {
                self.relocate(ino, slot, target, kind, bytes)?;
                self.segments_mut().count_blocks(1);
                self.add_blocks(ino, 1)?;
            }
        }
        self.nodes.content_moves(ino)?;
        self.free_blocks(ino, from)
    }
}
