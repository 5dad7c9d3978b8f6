//! Write-back: dirty pages get their places, in a log or where they are.

use super::{
    Files,
    in_place::{IN_PLACE_BLOCKS_MAX, WriteReason, in_place},
};
use crate::{
    Place, Result,
    format::{
        inode::{advise, inline},
        node::NodeBlock,
    },
    units::{BlockAddr, Ino},
};

/// Maximum number of adjacent blocks that are overwritten with one write: eight commands of 120 KiB.
const NEIGHBOURS_MOST: usize = 240;

/// The dirty pages of a file that an fsync writes.
pub(crate) struct PagesOfFile {
    ino: Ino,
    blocks: Vec<u64>,
    /// Number of `blocks` that are written.
    written: usize,
    reason: WriteReason,
}

impl PagesOfFile {
    /// The file.
    pub(crate) fn ino(&self) -> Ino {
        self.ino
    }
}

impl Files {
    /// Maximum number of dirty pages, and of dirty nodes, in memory.
    pub(crate) fn most_pages(&self) -> usize {
        self.options().dirty_bytes() / self.geometry().block_size.bytes()
    }

    /// The files and blocks of all dirty pages, in the order of write-back.
    pub(crate) fn dirty_pages(&self) -> Vec<(Ino, u64)> {
        self.pages.keys()
    }

    /// Lists the dirty pages of a file.
    pub(crate) fn dirty_pages_of(&self, ino: Ino) -> Vec<(Ino, u64)> {
        self.pages.blocks_of(ino, 0, u64::MAX).into_iter().map(|block| (ino, block)).collect()
    }

    /// Writes a page of [`dirty_pages`](Self::dirty_pages). A page of a regular file stays dirty, and holds up
    /// no other page, if the device refuses its in-place update, or if its nodes or the rest of its cluster
    /// cannot be read; [`write_waiting`](Self::write_waiting) reports it. Pages of directories and of clusters
    /// that were made plain must be written: names have to reach the device together with their inodes, and
    /// the old content of the cluster is stored nowhere else.
    pub(crate) fn write_dirty_page(&mut self, ino: Ino, block: u64) -> Result<()> {
        match self.write_page(ino, block) {
            Err(error) if self.disk().stays_in_place(&error) && self.may_wait(ino, block) => Ok(()),
            result => result,
        }
    }

    /// Writes a page of [`dirty_pages`](Self::dirty_pages) if a checkpoint would be incomplete without it, as
    /// far as possible. While its nodes are still in memory as well, nothing has to be read for this.
    pub(crate) fn write_needed_page(&mut self, ino: Ino, block: u64) -> Result<()> {
        match self.pages.is_needed(ino, block).then(|| self.write_page(ino, block)) {
            Some(Err(error)) if self.disk().read_only_reason().is_some() => Err(error),
            _ => Ok(()),
        }
    }

    /// Writes all dirty pages of encrypted files.
    pub(crate) fn write_encrypted_pages(&mut self) -> Result<()> {
        self.pages.keys().into_iter().try_for_each(|(ino, block)| self.write_encrypted_page(ino, block))
    }

    /// Writes a page of [`dirty_pages`](Self::dirty_pages) if its file is encrypted.
    pub(crate) fn write_encrypted_page(&mut self, ino: Ino, block: u64) -> Result<()> {
        match self.nodes.inode(ino)?.has_advise(advise::ENCRYPT) {
            true => self.write_page(ino, block),
            false => Ok(()),
        }
    }

    /// Returns true if a checkpoint is complete without a page.
    fn may_wait(&self, ino: Ino, block: u64) -> bool {
        !self.disk().superblock().is_quota_ino(ino) && !self.pages.is_needed(ino, block)
    }

    /// Writes the pages that [`write_dirty_page`](Self::write_dirty_page) left, or returns the error that keeps them
    /// waiting.
    pub(crate) fn write_waiting(&mut self) -> Result<()> {
        self.pages.keys().into_iter().try_for_each(|(ino, block)| self.write_page(ino, block))
    }

    /// Writes a page in place or to its log, with the rest of its cluster if it has one.
    fn write_page(&mut self, ino: Ino, block: u64) -> Result<()> {
        match self.in_place_address(ino, block)? {
            Some(addr) => self.write_neighbours(ino, &[block], addr),
            None => self.append_page(ino, block),
        }
    }

    /// Writes the dirty pages of a file for an fsync.
    pub(crate) fn write_pages_of(&mut self, ino: Ino) -> Result<()> {
        let mut pages = self.pages_of(ino);
        while self.write_some_pages(&mut pages, usize::MAX)? {}
        Ok(())
    }

    /// Lists the dirty pages of a file for an fsync.
    pub(crate) fn pages_of(&self, ino: Ino) -> PagesOfFile {
        let blocks = self.pages.blocks_of(ino, 0, u64::MAX);
        let few = blocks.len() <= IN_PLACE_BLOCKS_MAX;
        let reason = if few { WriteReason::SmallFsync } else { WriteReason::LargeFsync };
        PagesOfFile { ino, blocks, written: 0, reason }
    }

    /// Writes at least `count` of these pages, or the rest; adjacent pages that the policy updates in place count as one, because
    /// they leave as one write. Returns true if some are left. Nothing may change between two calls.
    pub(crate) fn write_some_pages(&mut self, pages: &mut PagesOfFile, count: usize) -> Result<bool> {
        let PagesOfFile { ino, reason, .. } = *pages;
        let end = pages.written.saturating_add(count);
        while pages.written < pages.blocks.len().min(end) {
            let rest = &pages.blocks[pages.written..];
            let (addr, count) = self.neighbours(ino, rest)?;
            let these = &rest[..count];
            match addr {
                Some(addr) if self.updates_in_place(ino, reason, count)? => {
                    self.write_neighbours(ino, these, addr)?
                }
                _ => these.iter().try_for_each(|block| self.append_page(ino, *block))?,
            }
            pages.written += count;
        }
        Ok(pages.written < pages.blocks.len())
    }

    /// Returns the address of the first of these pages, if it can be updated in place, and the number of
    /// pages from it on that are adjacent in the file and on the device. The number is at most that of one
    /// large write.
    fn neighbours(&self, ino: Ino, blocks: &[u64]) -> Result<(Option<BlockAddr>, usize)> {
        let inode = self.nodes.inode(ino)?;
        let Some(first) = self.overwritable(&inode, blocks[0])? else { return Ok((None, 1)) };
        let mut count = 1;
        while count < blocks.len().min(NEIGHBOURS_MOST)
            && blocks[count] == blocks[0] + count as u64
            && self.overwritable(&inode, blocks[count])? == Some(BlockAddr(first.0 + count as u32))
        {
            count += 1;
        }
        Ok((Some(first), count))
    }

    /// Updates these adjacent pages in place, from `addr` on.
    fn write_neighbours(&mut self, ino: Ino, blocks: &[u64], addr: BlockAddr) -> Result<()> {
        let pages = blocks.iter().map(|block| self.pages.get(ino, *block).expect("it was listed"));
        let clear = pages.collect::<Vec<_>>().concat();
        let stored = self.to_stored(ino, blocks[0], &clear)?;
        self.segments_mut().write_in_place(addr, Place::File(ino, blocks[0]), &stored)?;
        for block in blocks {
            self.remove_page(ino, *block);
        }
        Ok(())
    }

    /// Returns the address of a page's block on the device, if it can be updated in place.
    fn overwritable(&self, inode: &NodeBlock, block: u64) -> Result<Option<BlockAddr>> {
        if inode.compression().is_some() || inode.is_directory() {
            return Ok(None);
        }
        Ok(Some(self.address(inode, block)?).filter(|addr| addr.is_real()))
    }

    /// Returns true if `neighbours` adjacent blocks of a file are updated in place. Blocks of quota files
    /// never are, because they belong to one checkpoint (Linux, `f2fs_should_update_outplace`).
    pub(super) fn updates_in_place(&self, ino: Ino, reason: WriteReason, neighbours: usize) -> Result<bool> {
        let wanted = in_place(self.options().in_place(), reason, neighbours) || self.is_pinned(ino)?;
        Ok(wanted && !self.disk().superblock().is_quota_ino(ino))
    }

    /// Returns the address at which a page is updated in place without an fsync, or `None` if it goes to its
    /// log.
    fn in_place_address(&self, ino: Ino, block: u64) -> Result<Option<BlockAddr>> {
        let addr = self.overwritable(&*self.nodes.inode(ino)?, block)?;
        Ok(if self.updates_in_place(ino, WriteReason::WriteBack, 1)? { addr } else { None })
    }

    /// Writes a page to its log.
    fn append_page(&mut self, ino: Ino, block: u64) -> Result<()> {
        let inode = self.nodes.inode(ino)?;
        if inode.compression().is_some() {
            drop(inode);
            return self.write_cluster(ino, block);
        }
        let kind = self.log_of_data(&inode);
        drop(inode);
        let slot = self.mapped_slot(ino, block)?;
        let Some(page) = self.remove_page(ino, block) else { return Ok(()) };
        let result = self.relocate(ino, slot, block, kind, &page.bytes).map(drop);
        if result.is_err() {
            self.insert_page(ino, block, page);
        }
        result
    }

    /// Returns true if a file is pinned, so that its blocks must not move.
    fn is_pinned(&self, ino: Ino) -> Result<bool> {
        Ok(self.nodes.inode(ino)?.has_inline(inline::PIN))
    }
}
