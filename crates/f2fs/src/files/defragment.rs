//! Order of a file's blocks on the device.

use std::ops::Range;

use super::{Files, has_map};
use crate::{
    Error, Place, Result,
    format::{BLOCKS_PER_SEGMENT, node::NodeBlock, sit::SegmentType, summary::Owner},
    segments::log_for_data,
    units::{BlockAddr, Ino},
};

/// Pieces in which the blocks of a file lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fragmentation {
    /// Blocks on the device.
    pub blocks: u64,
    /// Pieces that are contiguous in the file and on the device.
    pub extents: u64,
    /// Pieces that the file needs: one for each section that it fills, one more for each hole, and one more if it begins in the
    /// middle of a section and goes on at the start of another one.
    pub ideal_extents: u64,
}

impl Fragmentation {
    /// Returns true if the blocks lie in more pieces than the file needs.
    #[must_use]
    pub fn is_fragmented(&self) -> bool {
        self.extents > self.ideal_extents
    }
}

impl Files {
    /// Counts the pieces of a file or directory. Content in the inode has none.
    pub(crate) fn fragmentation(&self, inode: &NodeBlock) -> Result<Fragmentation> {
        let mut found = Fragmentation::default();
        // The piece of the file without holes that ends with the last run, its extents that follow the end of a section, and
        // the address after that run.
        let (mut piece, mut after_sections, mut next_addr) = (0..0, 0, 0);
        let (mut at, end) = (0, self.blocks_of(inode));
        while at < end {
            let run = self.run(inode, at, end)?;
            at = run.blocks.end;
            if !run.addr.is_real() {
                continue;
            }
            let (addr, is_first) =
                (u64::from(run.addr.0), run.blocks.start != piece.end || found.blocks == 0);
            if is_first {
                found.ideal_extents += self.extents_needed(&piece, after_sections);
                (piece, after_sections) = (run.blocks.clone(), 0);
            } else if addr != next_addr && self.is_between_sections(next_addr, addr) {
                after_sections += 1;
            }
            found.extents += u64::from(is_first || addr != next_addr);
            found.blocks += run.len();
            (piece.end, next_addr) = (run.blocks.end, addr + run.len());
        }
        found.ideal_extents += self.extents_needed(&piece, after_sections);
        Ok(found)
    }

    /// Blocks up to the end of the content, if it is not in the inode.
    fn blocks_of(&self, inode: &NodeBlock) -> u64 {
        match has_map(inode) {
            true => inode.head().size.get().div_ceil(self.geometry().block_size.bytes() as u64),
            false => 0,
        }
    }

    /// Number of blocks from the start of a file to its end, 0 for content in the inode.
    pub(crate) fn mapped_end(&self, ino: Ino) -> Result<u64> {
        let inode = self.nodes.inode(ino)?;
        Ok(self.blocks_of(&inode))
    }

    /// Extents that a piece of a file needs: one for each section that it fills. `after_sections` of its extents begin a section,
    /// each after another one that ends a section; no move would join those.
    fn extents_needed(&self, piece: &Range<u64>, after_sections: u64) -> u64 {
        let blocks = piece.end - piece.start;
        blocks.div_ceil(self.section_blocks()).max(if blocks > 0 { after_sections + 1 } else { 0 })
    }

    fn section_blocks(&self) -> u64 {
        u64::from(self.geometry().segments_per_section) * u64::from(BLOCKS_PER_SEGMENT)
    }

    /// Returns true if a section of the main area ends before `end`, and another one begins at `start`.
    fn is_between_sections(&self, end: u64, start: u64) -> bool {
        let at = |addr: u64| {
            let addr =
                u32::try_from(addr).ok().map(BlockAddr).filter(|addr| self.geometry().in_main(*addr))?;
            let (segment, offset) = self.geometry().position(addr);
            Some(
                u64::from(segment.0 % self.geometry().segments_per_section) * u64::from(BLOCKS_PER_SEGMENT)
                    + u64::from(offset),
            )
        };
        end > 0 && at(end - 1) == Some(self.section_blocks() - 1) && at(start) == Some(0)
    }

    /// Moves blocks of a file or directory to its log, in the order of the file, at most `limit` of them. Returns the number
    /// of moved blocks, and the first block that was not examined.
    pub(crate) fn move_in_order(&mut self, ino: Ino, blocks: Range<u64>, limit: u64) -> Result<(u64, u64)> {
        let inode = self.nodes.inode(ino)?;
        let (mut at, end) = (blocks.start, blocks.end.min(self.blocks_of(&inode)));
        let mut found: Vec<u64> = Vec::new();
        while at < end && (found.len() as u64) < limit {
            let run = self.run(&inode, at, end)?;
            at = run.blocks.end;
            if run.addr.is_real() {
                at = at.min(run.blocks.start + limit - found.len() as u64);
                found.extend(run.blocks.start..at);
            }
        }
        let log = log_for_data(self.options().active_logs, SegmentType::ColdData, inode.file_type());
        drop(inode);
        if !found.is_empty() {
            self.segments_mut().leave_holes(log)?;
        }
        let mut moved = 0;
        for block in found {
            let Some(slot) = self.slot(ino, block)? else { continue };
            let addr = self.nodes.node(slot.nid)?.addr(slot.index);
            if !self.geometry().in_main(addr) {
                let what = format!("{addr} is not in the main area");
                return self
                    .disk()
                    .io()
                    .record_corruption(Err(Error::corrupt(Place::File(ino, block), what)));
            }
            let owner =
                Owner { nid: slot.nid, version: self.nodes.version(slot.nid)?, offset: slot.index as u16 };
            moved += u64::from(self.move_data(self.geometry().position(addr).0, addr, owner, None)?);
        }
        Ok((moved, at))
    }
}
