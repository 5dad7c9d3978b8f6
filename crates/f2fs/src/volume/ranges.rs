//! Operations on ranges of files: zero, collapse, insert.
//!
//! *Invariants*: blocks that move inside a file are copied, as cleaning copies them, because the summary of a
//! segment on the device may only name owners that the last checkpoint knows as well. A range moves piece by
//! piece, in an order that never overwrites blocks still to be moved. If space runs short, a checkpoint may
//! be written between pieces, so that files larger than the free space can be shifted.

use std::ops::Range;

use super::{Volume, file_write::pieces, map_write::Slot};
use crate::{
    Error, Result,
    format::inode::{flag, inline},
    units::{BlockAddr, Ino},
};

/// Maximum number of blocks in a piece.
const PIECE_BLOCKS: u64 = 256;
/// Blocks that a piece may need temporarily beyond those that it frees.
const SPARE_BLOCKS: u64 = 4;

impl Volume {
    /// Makes a range of a regular file read as zeroes, with all its blocks reserved. Without `keep_size`, the
    /// file grows to the end of the range.
    pub fn zero_range(&mut self, ino: Ino, offset: u64, length: u64, keep_size: bool) -> Result<()> {
        self.begin()?;
        let inode = self.writable_file(ino)?;
        if inode.has_flag(flag::APPEND) {
            return Err(Error::NotPermitted);
        }
        let end = self.end_of(&inode, offset, length)?;
        drop(inode);
        let log = self.geometry.block_size.log();
        self.reserve(ino, offset >> log..end.div_ceil(1 << log))?;
        for piece in pieces(offset, end) {
            self.begin()?;
            self.punch(ino, piece.start, piece.end)?;
            self.allocate_blocks(ino, piece.start, piece.end, keep_size)?;
        }
        Ok(())
    }

    /// Removes a range from a regular file: the content behind it moves to `offset`, and the file shrinks
    /// (Linux, `f2fs_collapse_range`). The range must consist of whole blocks and end before the end of the
    /// file.
    pub fn collapse_range(&mut self, ino: Ino, offset: u64, length: u64) -> Result<()> {
        self.begin()?;
        let size = self.check_shift(ino, offset, length)?;
        let new_size = match offset.checked_add(length) {
            Some(end) if end < size => size - length,
            _ => return Err(Error::Invalid("the range must end before the end of the file".into())),
        };
        self.leave_inline_for_good(ino)?;
        let log = self.geometry.block_size.log();
        let (start, end) = (offset >> log, (offset + length) >> log);
        let used = self.used_ranges(ino, end, size.div_ceil(1 << log))?;
        self.require_nodes(ino, &used, |block| block - (end - start))?;
        self.free_blocks(ino, start..end)?;
        for range in used {
            let mut at = range.start;
            while at < range.end {
                let next = range.end.min(at + PIECE_BLOCKS.min(end - start));
                self.move_blocks(ino, at..next, at - (end - start))?;
                at = next;
            }
        }
        self.set_size(ino, new_size)?;
        self.stamp(ino)
    }

    /// Inserts a hole into a regular file: the content from `offset` on moves up by `length`, and the file
    /// grows (Linux, `f2fs_insert_range`). The range must consist of whole blocks, and `offset` must be
    /// before the end of the file.
    pub fn insert_range(&mut self, ino: Ino, offset: u64, length: u64) -> Result<()> {
        self.begin()?;
        let size = self.check_shift(ino, offset, length)?;
        if offset >= size {
            return Err(Error::Invalid("the range must begin before the end of the file".into()));
        }
        let new_size = self.end_of(&*self.inode(ino)?, size, length)?;
        self.leave_inline_for_good(ino)?;
        let log = self.geometry.block_size.log();
        let (start, shift) = (offset >> log, length >> log);
        let used = self.used_ranges(ino, start, size.div_ceil(1 << log))?;
        self.require_nodes(ino, &used, |block| block + shift)?;
        // Blocks reserved beyond the end would be in the way.
        self.set_size(ino, size)?;
        // Grow the file first: if the operation ends early, by an error or by a power cut after a checkpoint,
        // no block is beyond the end.
        self.inode_mut(ino)?.head_mut().size.set(new_size);
        for range in used.into_iter().rev() {
            let mut at = range.end;
            while at > range.start {
                let next = range.start.max(at.saturating_sub(PIECE_BLOCKS.min(shift)));
                self.move_blocks(ino, next..at, next + shift)?;
                at = next;
            }
        }
        self.stamp(ino)
    }

    /// Checks the conditions for shifting blocks of a file, and returns the size of the file.
    fn check_shift(&self, ino: Ino, offset: u64, length: u64) -> Result<u64> {
        let inode = self.writable_file(ino)?;
        if inode.has_flag(flag::APPEND) {
            return Err(Error::NotPermitted);
        }
        if inode.compression().is_some() || inode.has_inline(inline::PIN) {
            return Err(Error::Unsupported("shifting blocks of a compressed or pinned file".into()));
        }
        let block_bytes = self.geometry.block_size.bytes() as u64;
        if length == 0 || offset % block_bytes != 0 || length % block_bytes != 0 {
            return Err(Error::Invalid("only whole blocks can be removed or inserted".into()));
        }
        Ok(inode.head().size.get())
    }

    fn leave_inline_for_good(&mut self, ino: Ino) -> Result<()> {
        if self.inode(ino)?.has_inline(inline::DATA) {
            self.reserve(ino, 0..1)?;
            self.leave_inline(ino)?;
        }
        Ok(())
    }

    /// The parts of a block range that are not holes. Holes shorter than 256 blocks count as used.
    fn used_ranges(&self, ino: Ino, from: u64, to: u64) -> Result<Vec<Range<u64>>> {
        let inode = self.inode(ino)?;
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

    /// Checks that the nodes needed at the new positions can be allocated; `place` maps a block to its new
    /// position.
    fn require_nodes(&self, ino: Ino, parts: &[Range<u64>], place: impl Fn(u64) -> u64) -> Result<()> {
        let mut nodes = 0;
        for part in parts {
            nodes += self.nodes_for(ino, place(part.start)..place(part.end))?;
        }
        if u64::from(self.free_nodes()) < nodes {
            return Err(Error::NoInodes);
        }
        self.require_space(nodes + SPARE_BLOCKS)?;
        self.admit(ino, nodes + 1)
    }

    /// Moves blocks of a file into a hole. The two ranges must not overlap.
    fn move_blocks(&mut self, ino: Ino, from: Range<u64>, to: u64) -> Result<()> {
        self.make_room()?;
        let size = self.geometry.block_size;
        let inode = self.inode(ino)?;
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
                self.count_blocks(1);
                self.add_blocks(ino, 1)?;
            }
        }
        self.content_moves_out(ino)?;
        self.free_blocks(ino, from)
    }
}
