//! The size of a file: growing and cutting it, holes, and blocks that are reserved.

use super::{Files, has_map, map_write::Slot};
use crate::{
    Error, Result,
    format::{
        FileType,
        inode::{advise, flag, inline},
        node::NodeBlock,
    },
    nodes::Change,
    units::Ino,
};

/// A file with at most this number of blocks and nodes is freed at once.
const FEW_BLOCKS: u64 = 16;

/// The size of a file after blocks past its end were reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSize {
    /// It grows to the end of the range.
    Grows,
    /// It stays (`FALLOC_FL_KEEP_SIZE`).
    Stays,
}

impl Files {
    /// Sets the size of a regular file. Content past it is removed; added content reads as zeroes.
    pub(crate) fn truncate(&mut self, ino: Ino, size: u64) -> Result<()> {
        self.check_truncation(ino, size)?;
        self.set_size(ino, size)?;
        self.stamp(ino)
    }

    fn check_truncation(&self, ino: Ino, size: u64) -> Result<()> {
        let inode = self.changeable_file(ino)?;
        if inode.has_flag(flag::APPEND) {
            return Err(Error::NotPermitted);
        }
        self.end_of(&inode, size, 0)?;
        let cluster_bytes = (inode.layout().cluster_blocks() as u64) << self.geometry().block_size.log();
        if inode.has_inline(inline::COMPRESS_RELEASED) && size % cluster_bytes != 0 {
            // The last cluster would become plain, but its saved blocks are not reserved (Linux,
            // `f2fs_setattr`).
            return Err(Error::Invalid(
                "a file with released blocks can be truncated only between clusters".into(),
            ));
        }
        Ok(())
    }

    /// Cuts a part of at most `bytes` bytes off the end of a file that is about to be [truncated](Self::truncate) to `size`.
    /// Returns false if the truncation has at most one such part left.
    pub(crate) fn shorten(&mut self, ino: Ino, size: u64, bytes: u64) -> Result<bool> {
        self.check_truncation(ino, size)?;
        let cuts = is_cut(&*self.nodes.inode(ino)?, size);
        Ok(cuts && self.shrink(ino, size, bytes)?)
    }

    /// Cuts a part of at most `bytes` bytes off the end of a large regular file, which keeps more than `least_size` bytes.
    /// Blocks that are reserved past the end of the file go first; its size stays meanwhile. Returns false if there is nothing
    /// to cut off, or if `bytes` is not a whole number of clusters.
    pub(crate) fn shrink(&mut self, ino: Ino, least_size: u64, bytes: u64) -> Result<bool> {
        let inode = self.nodes.inode(ino)?;
        let log = self.geometry().block_size.log();
        let cluster_bytes = (inode.layout().cluster_blocks() as u64) << log;
        // A part ends between two clusters, so that no cluster has to become plain for it.
        let has_parts = inode.file_type() == FileType::Regular
            && has_map(&inode)
            && inode.head().blocks.get() > FEW_BLOCKS
            && bytes > 0
            && bytes % cluster_bytes == 0;
        if !has_parts {
            return Ok(false);
        }
        // Whoever removes the rest reports damage.
        let Ok(end) = self.end_of_map(&inode) else { return Ok(false) };
        let size = inode.head().size.get();
        drop(inode);
        let shorter = (end << log).saturating_sub(1) / bytes * bytes;
        if shorter <= least_size {
            return Ok(false);
        }
        match shorter < size {
            true => self.set_size(ino, shorter)?,
            false => self.cut(ino, shorter)?,
        }
        Ok(true)
    }

    /// Checks that a range of a file may be punched out or zeroed, and returns its end.
    pub(crate) fn check_hole(&self, ino: Ino, offset: u64, length: u64) -> Result<u64> {
        let inode = self.writable_file(ino)?;
        if inode.has_flag(flag::APPEND) {
            return Err(Error::NotPermitted);
        }
        self.end_of(&inode, offset, length)
    }

    /// Checks that a range of a file may be reserved and can be, and returns its end.
    pub(crate) fn check_allocation(&self, ino: Ino, offset: u64, length: u64) -> Result<u64> {
        let end = self.end_of(&*self.writable_file(ino)?, offset, length)?;
        self.require_space(ino, offset, end)?;
        Ok(end)
    }

    /// Punches a hole from byte `offset` to byte `reach` of a file.
    pub(crate) fn punch(&mut self, ino: Ino, offset: u64, reach: u64) -> Result<()> {
        let inode = self.nodes.inode(ino)?;
        let size = inode.head().size.get();
        let is_inline = inode.has_inline(inline::DATA);
        drop(inode);
        if is_inline {
            return self.zero_inline(ino, offset, reach.min(size.max(offset)));
        }
        let log = self.geometry().block_size.log();
        // The hole may extend past the end of the file, where blocks may be reserved.
        let (first, last) = (offset.div_ceil(1 << log), reach >> log);
        if first > last {
            return self.zero_part(ino, offset, reach);
        }
        self.zero_part(ino, offset, first << log)?;
        self.zero_part(ino, last << log, reach)?;
        self.open_clusters(ino, first..last)?;
        self.free_blocks(ino, first..last)
    }

    /// Reserves blocks from byte `offset` to byte `end` of a file, and sets the size if it grows.
    pub(crate) fn allocate_blocks(&mut self, ino: Ino, offset: u64, end: u64, size: FileSize) -> Result<()> {
        let inode = self.nodes.inode(ino)?;
        let log = self.geometry().block_size.log();
        let blocks = offset >> log..end.div_ceil(1 << log);
        let fits_inline = inode.has_inline(inline::DATA) && end <= inode.layout().inline_bytes() as u64;
        drop(inode);
        if !fits_inline {
            self.finish_truncation(ino)?;
            let _space = self.reserve(ino, blocks.clone())?;
            self.leave_inline(ino)?;
            let mut at = blocks.start;
            while at < blocks.end {
                let slot = self.make_slot(ino, at)?;
                let count = (slot.left as u64).min(blocks.end - at);
                self.occupy(ino, Slot { left: count as usize, ..slot })?;
                at += count;
            }
        }
        let inode = self.nodes.inode(ino)?;
        let is_last = has_map(&inode) && self.end_of_map(&inode).is_ok_and(|reach| reach <= blocks.end);
        drop(inode);
        let inode = self.nodes.inode_mut(ino)?;
        let grows = end > inode.head().size.get();
        if grows && size == FileSize::Stays {
            inode.head_mut().advise |= advise::KEEP_SIZE;
        } else if grows {
            inode.head_mut().size.set(end);
            if is_last {
                inode.head_mut().advise &= !advise::KEEP_SIZE;
            }
        }
        // Linux treats this as a change of the content (`f2fs_fallocate`).
        self.stamp(ino)
    }

    /// Sets mtime and ctime after a change of content. Within one tick of the clock the inode stays as it is,
    /// so that an fsync need not write it.
    pub(crate) fn stamp(&mut self, ino: Ino) -> Result<()> {
        let now = self.disk().time();
        let inode = self.nodes.inode(ino)?;
        if inode.mtime() == now && inode.ctime() == now {
            return Ok(());
        }
        drop(inode);
        let inode = self.nodes.inode_for(ino, Change::TIMES)?;
        inode.set_mtime(now);
        inode.set_ctime(now);
        Ok(())
    }

    /// Sets the size. Content past it is freed or zeroed. Inline data moves into a block if the new size does
    /// not fit inline.
    pub(crate) fn set_size(&mut self, ino: Ino, size: u64) -> Result<()> {
        let inode = self.nodes.inode(ino)?;
        let (old, layout) = (inode.head().size.get(), inode.layout());
        let is_inline = inode.has_inline(inline::DATA);
        let is_cut = is_cut(&inode, size);
        drop(inode);
        if is_inline && size > layout.inline_bytes() as u64 {
            let _space = self.reserve(ino, 0..1)?;
            self.leave_inline(ino)?;
        } else if is_inline {
            if size < old {
                self.zero_inline(ino, size, old)?;
            }
        } else if is_cut {
            self.cut(ino, size)?;
        } else {
            self.finish_truncation(ino)?;
        }
        let head = self.nodes.inode_mut(ino)?.head_mut();
        head.size.set(size);
        if size <= old {
            head.advise &= !advise::PAST_END;
        }
        if size == 0 {
            head.inline &= !inline::COMPRESS_RELEASED;
        }
        Ok(())
    }

    /// Frees the blocks past `size`, and zeroes the rest of the last block.
    pub(super) fn cut(&mut self, ino: Ino, size: u64) -> Result<()> {
        let log = self.geometry().block_size.log();
        let kept = size.div_ceil(1 << log);
        self.zero_part(ino, size, kept << log)?;
        self.open_clusters(ino, kept..kept)?;
        self.free_from(ino, kept)
    }

    /// Frees the blocks past the end of a file with the mark [`TRUNC`](advise::TRUNC), before something else comes there: a
    /// sealing that a power cut ended leaves its tree, and a direct write in Linux blocks without content. Linux does this when
    /// it opens the file (`finish_preallocate_blocks`).
    pub(crate) fn finish_truncation(&mut self, ino: Ino) -> Result<()> {
        let inode = self.nodes.inode(ino)?;
        if !inode.has_advise(advise::TRUNC) {
            return Ok(());
        }
        let size = inode.head().size.get();
        drop(inode);
        self.set_size(ino, size)
    }

    /// Fills part of one block with zeroes, if the block exists.
    fn zero_part(&mut self, ino: Ino, from: u64, to: u64) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let log = self.geometry().block_size.log();
        let block = from >> log;
        self.open_cluster(ino, block)?;
        let there =
            self.pages.get(ino, block).is_some() || self.address(&*self.nodes.inode(ino)?, block)?.is_real();
        if !there {
            return Ok(());
        }
        let slot = self.mapped_slot(ino, block)?;
        let kind = self.log_of_data(&*self.nodes.inode(ino)?);
        let inside = from as usize & ((1 << log) - 1);
        let zeroes = vec![0; (to - from) as usize];
        self.write_one(ino, slot, block, inside, &zeroes, kind)?;
        Ok(())
    }

    fn zero_inline(&mut self, ino: Ino, from: u64, to: u64) -> Result<()> {
        let area = self.nodes.inode_mut(ino)?.inline_area_mut();
        let end = area.len().min(to as usize);
        if (from as usize) < end {
            area[from as usize..end].fill(0);
        }
        Ok(())
    }

    /// Sets the size to `end`, if that is larger.
    pub(super) fn grow(&mut self, ino: Ino, end: u64) -> Result<()> {
        let inode = self.nodes.inode(ino)?;
        let size = inode.head().size.get();
        if end <= size {
            return Ok(());
        }
        let last_block = (end - 1) >> self.geometry().block_size.log() << self.geometry().block_size.log();
        // Roll-forward derives the size from the last block only if that block is new.
        let follows = size <= last_block && !inode.has_inline(inline::DATA);
        drop(inode);
        let change = if follows { Change::SIZE } else { Change::REST };
        self.nodes.inode_for(ino, change)?.head_mut().size.set(end);
        Ok(())
    }
}

/// Returns true if blocks of a file are freed when its size is set. A file that grows keeps the blocks that are reserved past
/// its end (Linux, `f2fs_setattr`).
fn is_cut(inode: &NodeBlock, size: u64) -> bool {
    let old = inode.head().size.get();
    size < old || size == old && inode.has_advise(advise::PAST_END)
}
