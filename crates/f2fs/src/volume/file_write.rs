//! Writing files: data, size, holes.
//!
//! *Invariants*: a block that gets its first address goes to its log at once, and changes in the log's
//! pending run as long as it is there. Only two sorts of blocks wait as dirty pages: blocks on the device
//! that are overwritten in part, and blocks that an fsync is likely to update in place. Large writes may
//! [bypass the log's buffer](super::straight). Therefore the blocks of a file have the same order on the
//! device as in the file. Space is checked before anything changes.

use std::ops::Range;

use super::{
    InPlace, Volume,
    allocate::{self, Asks},
    fsync::IN_PLACE_BLOCKS_MAX,
    map_write::Slot,
    node_cache::Change,
    pages::Page,
};
use crate::{
    Error, Place, Result,
    format::{
        FileType,
        inode::{advise, flag, inline},
        node::NodeBlock,
        sit::SegmentType,
    },
    units::{BlockAddr, Ino, Time},
};

/// Maximum number of bytes that are reserved or freed in one step: some hundred nodes of addresses. A longer
/// range takes several steps, between which nodes are evicted from memory and a checkpoint frees space.
const PIECE_BYTES: u64 = 1 << 30;
/// Maximum number of adjacent blocks that are overwritten with one write: eight commands of 120 KiB.
const NEIGHBOURS_MOST: usize = 240;

/// Maximum number of bytes that are written in one step: less than the sections hold that are always kept
/// free.
const WRITE_BYTES: u64 = 4 << 20;

/// Result of one step of a write.
struct Written {
    /// Number of blocks; the last one may be written in part.
    blocks: usize,
    /// Number of bytes.
    length: usize,
    /// Number of blocks that were added to the file.
    gained: u64,
}

/// Splits a range of a file at multiples of 1 GiB, which are cluster boundaries as well.
pub(super) fn pieces(offset: u64, end: u64) -> impl Iterator<Item = Range<u64>> {
    pieces_of(PIECE_BYTES, offset, end)
}

fn pieces_of(bytes: u64, offset: u64, end: u64) -> impl Iterator<Item = Range<u64>> {
    let starts = (offset / bytes..end.div_ceil(bytes)).map(move |n| n * bytes);
    starts.map(move |start| offset.max(start)..end.min(start + bytes))
}

impl Volume {
    /// Writes to a regular file, which grows if the data extends past its end.
    pub fn write(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        self.begin()?;
        let inode = self.writable_file(ino)?;
        if inode.has_flag(flag::APPEND) && offset < inode.head().size.get() {
            return Err(Error::NotPermitted);
        }
        drop(inode);
        self.put(ino, offset, data, true)
    }

    /// Writes cached data to a regular file, for a program that may have opened it before it became
    /// append-only. If the cache [holds the times](Options::cache_has_times), this leaves them alone, and the
    /// caller [sets](Self::set_attr) them.
    pub fn overwrite_cached(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        self.begin()?;
        drop(self.writable_file(ino)?);
        self.put(ino, offset, data, !self.options.cache_has_times)
    }

    fn put(&mut self, ino: Ino, offset: u64, data: &[u8], stamps: bool) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        self.write_pieces(ino, offset, data)?;
        if stamps { self.stamp(ino) } else { Ok(()) }
    }

    /// Writes to a regular file in pieces, between which a checkpoint frees space. If not all of it fits,
    /// nothing is written.
    fn write_pieces(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        let inode = self.inode(ino)?;
        let end = self.end_of(&inode, offset, data.len() as u64)?;
        drop(inode);
        if pieces_of(WRITE_BYTES, offset, end).nth(1).is_some() {
            let log = self.geometry.block_size.log();
            self.reserve(ino, offset >> log..end.div_ceil(1 << log))?;
        }
        for piece in pieces_of(WRITE_BYTES, offset, end) {
            if piece.start > offset {
                self.begin()?;
            }
            let part = (piece.start - offset) as usize..(piece.end - offset) as usize;
            self.write_content(ino, piece.start, &data[part])?;
        }
        Ok(())
    }

    /// Writes cached data to a regular file, for a cache that tracks changes in whole blocks. In an
    /// append-only file this does not append: existing bytes other than zero stay, and zeroes are replaced,
    /// in whichever order the blocks come. If the data differs from bytes that stay, the result is
    /// [`Error::NotPermitted`]. The times are handled as in [`overwrite_cached`](Self::overwrite_cached).
    pub fn write_cached(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        let inode = self.inode(ino)?;
        let (appends_only, size) = (inode.has_flag(flag::APPEND), inode.head().size.get());
        drop(inode);
        if !appends_only || offset >= size || data.is_empty() {
            return self.overwrite_cached(ino, offset, data);
        }
        self.begin()?;
        drop(self.writable_file(ino)?);
        let mut merged = data.to_vec();
        let mut there = vec![0; data.len().min((size - offset).try_into().unwrap_or(usize::MAX))];
        let length = self.read(ino, offset, &mut there)?;
        let mut changes = false;
        for (new, old) in merged.iter_mut().zip(&there[..length]).filter(|(_, old)| **old != 0) {
            changes |= new != old;
            *new = *old;
        }
        self.put(ino, offset, &merged, !self.options.cache_has_times)?;
        if changes { Err(Error::NotPermitted) } else { Ok(()) }
    }

    /// Sets the size of a regular file. Content past it is removed; added content reads as zeroes.
    pub fn truncate(&mut self, ino: Ino, size: u64) -> Result<()> {
        self.begin()?;
        let inode = self.changeable_file(ino)?;
        if inode.has_flag(flag::APPEND) {
            return Err(Error::NotPermitted);
        }
        self.end_of(&inode, size, 0)?;
        let cluster_bytes = (inode.layout().cluster_blocks() as u64) << self.geometry.block_size.log();
        if inode.has_inline(inline::COMPRESS_RELEASED) && size % cluster_bytes != 0 {
            // The last cluster would become plain, but its saved blocks are not reserved (Linux,
            // `f2fs_setattr`).
            return Err(Error::Invalid(
                "a file with released blocks can be truncated only between clusters".into(),
            ));
        }
        drop(inode);
        self.set_size(ino, size)?;
        self.stamp(ino)
    }

    /// Punches a hole into a regular file: the range reads as zeroes, whole blocks of it are freed, and the
    /// size stays.
    pub fn punch_hole(&mut self, ino: Ino, offset: u64, length: u64) -> Result<()> {
        self.begin()?;
        let inode = self.writable_file(ino)?;
        if inode.has_flag(flag::APPEND) {
            return Err(Error::NotPermitted);
        }
        self.end_of(&inode, offset, length)?;
        drop(inode);
        for piece in pieces(offset, offset + length) {
            self.begin()?;
            self.punch(ino, piece.start, piece.end)?;
        }
        self.stamp(ino)
    }

    /// Reserves blocks for a range of a regular file; former holes read as zeroes. Unless `keep_size`, the
    /// file grows to the end of the range.
    pub fn allocate_range(&mut self, ino: Ino, offset: u64, length: u64, keep_size: bool) -> Result<()> {
        self.begin()?;
        let inode = self.writable_file(ino)?;
        let end = self.end_of(&inode, offset, length)?;
        drop(inode);
        let log = self.geometry.block_size.log();
        self.reserve(ino, offset >> log..end.div_ceil(1 << log))?;
        for piece in pieces(offset, end) {
            self.begin()?;
            self.allocate_blocks(ino, piece.start, piece.end, keep_size)?;
        }
        Ok(())
    }

    /// Checks that a range of a regular file can be allocated, as [`allocate_range`](Self::allocate_range) does
    /// first. A caller that allocates it in parts asks for all of it before it begins.
    ///
    /// # Errors
    /// Those of `allocate_range`.
    pub fn check_allocation(&self, ino: Ino, offset: u64, length: u64) -> Result<()> {
        let inode = self.writable_file(ino)?;
        let end = self.end_of(&inode, offset, length)?;
        drop(inode);
        let log = self.geometry.block_size.log();
        self.reserve(ino, offset >> log..end.div_ceil(1 << log))
    }

    /// Punches a hole from byte `offset` to byte `reach` of a file.
    pub(super) fn punch(&mut self, ino: Ino, offset: u64, reach: u64) -> Result<()> {
        let inode = self.inode(ino)?;
        let size = inode.head().size.get();
        let is_inline = inode.has_inline(inline::DATA);
        drop(inode);
        if is_inline {
            return self.zero_inline(ino, offset, reach.min(size.max(offset)));
        }
        let log = self.geometry.block_size.log();
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

    /// Reserves blocks from byte `offset` to byte `end` of a file, and sets the size unless `keep_size`.
    pub(super) fn allocate_blocks(&mut self, ino: Ino, offset: u64, end: u64, keep_size: bool) -> Result<()> {
        let inode = self.inode(ino)?;
        let log = self.geometry.block_size.log();
        let blocks = offset >> log..end.div_ceil(1 << log);
        let fits_inline = inode.has_inline(inline::DATA) && end <= inode.layout().inline_bytes() as u64;
        drop(inode);
        if !fits_inline {
            self.reserve(ino, blocks.clone())?;
            self.leave_inline(ino)?;
            let mut at = blocks.start;
            while at < blocks.end {
                let slot = self.make_slot(ino, at)?;
                let count = (slot.left as u64).min(blocks.end - at);
                self.occupy(ino, Slot { left: count as usize, ..slot })?;
                at += count;
            }
        }
        let inode = self.inode_mut(ino)?;
        let grows = end > inode.head().size.get();
        if grows && !keep_size {
            inode.head_mut().size.set(end);
        } else if grows {
            inode.head_mut().advise |= advise::KEEP_SIZE;
        }
        // Linux treats this as a change of the content (`f2fs_fallocate`).
        self.stamp(ino)
    }

    /// Sets mtime and ctime after a change of content. Within one tick of the clock the inode stays as it is,
    /// so that an fsync need not write it.
    pub(super) fn stamp(&mut self, ino: Ino) -> Result<()> {
        let now = self.time();
        let inode = self.inode(ino)?;
        if inode.mtime() == now && inode.ctime() == now {
            return Ok(());
        }
        drop(inode);
        let inode = self.inode_for(ino, Change::TIMES)?;
        inode.set_mtime(now);
        inode.set_ctime(now);
        Ok(())
    }

    /// Writes to the content of an inode of any type, except to inline directory entries.
    pub(super) fn write_content(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        let inode = self.inode(ino)?;
        let (layout, size) = (inode.layout(), self.geometry.block_size);
        let end = self.end_of(&inode, offset, data.len() as u64)?;
        if inode.has_inline(inline::DATA) && end <= layout.inline_bytes() as u64 {
            drop(inode);
            let inode = self.inode_mut(ino)?;
            inode.inline_area_mut()[offset as usize..end as usize].copy_from_slice(data);
            inode.head_mut().inline |= inline::DATA_EXIST;
            return self.grow(ino, end);
        }
        let (kind, compressed) = (self.log_of_data(&inode), inode.compression().is_some());
        drop(inode);
        self.reserve(ino, offset >> size.log()..end.div_ceil(size.bytes() as u64))?;
        self.leave_inline(ino)?;

        let written = match compressed {
            true => self.write_clusters(ino, offset, data),
            false => self.write_blocks(ino, offset, data, kind),
        };
        if let Err(error) = written {
            // Blocks past the end must neither be counted nor become visible when the file grows. Blocks that
            // are reserved outside the written range stay.
            let inode = self.inode(ino)?;
            let (end_of_file, has_reserved) = (inode.head().size.get(), inode.has_advise(advise::KEEP_SIZE));
            drop(inode);
            match has_reserved {
                true => {
                    self.punch(ino, end_of_file.max(offset), end.next_multiple_of(size.bytes() as u64))?
                }
                false => self.cut(ino, end_of_file)?,
            }
            return Err(error);
        }
        self.grow(ino, end)
    }

    fn write_blocks(&mut self, ino: Ino, offset: u64, data: &[u8], kind: SegmentType) -> Result<()> {
        let size = self.geometry.block_size;
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let slot = self.make_slot(ino, at >> size.log())?;
            let inside = at as usize & (size.bytes() - 1);
            let length = rest.len().min(slot.left * size.bytes() - inside);
            self.write_addrs(ino, slot, at, &rest[..length], kind)?;
            at += length as u64;
            rest = &rest[length..];
        }
        Ok(())
    }

    /// Writes data whose addresses are all in the node of `slot`, from that slot on.
    fn write_addrs(
        &mut self,
        ino: Ino,
        slot: Slot,
        offset: u64,
        data: &[u8],
        kind: SegmentType,
    ) -> Result<()> {
        let (mut at, mut rest, mut slot) = (offset, data, slot);
        let (mut added, mut result) = (0, Ok(()));
        while !rest.is_empty() {
            match self.write_next(ino, slot, at, rest, kind) {
                Ok(Written { blocks, length, gained }) => {
                    added += gained;
                    at += length as u64;
                    rest = &rest[length..];
                    slot.index += blocks;
                    slot.left -= blocks;
                }
                Err(error) => {
                    // Data that was written before the error counts all the same.
                    result = Err(error);
                    break;
                }
            }
        }
        if added > 0 {
            self.count_blocks(added);
            self.add_blocks(ino, added)?;
        }
        result
    }

    /// Writes the next block or a part of it, or several blocks at once past the log's buffer.
    fn write_next(
        &mut self,
        ino: Ino,
        slot: Slot,
        offset: u64,
        data: &[u8],
        kind: SegmentType,
    ) -> Result<Written> {
        let (bytes, log) = (self.geometry.block_size.bytes(), self.geometry.block_size.log());
        let (block, inside) = (offset >> log, offset as usize & (bytes - 1));
        let straight = if inside == 0 { self.straight_blocks(ino, slot, block, data)? } else { 0 };
        if straight > 0 {
            let (blocks, gained) = self.write_straight(ino, slot, &data[..straight << log], kind)?;
            return Ok(Written { blocks, length: blocks << log, gained });
        }
        let length = data.len().min(bytes - inside);
        let gained = self.write_one(ino, slot, block, inside, &data[..length], kind)?;
        Ok(Written { blocks: 1, length, gained })
    }

    /// Writes one block or a part of it. Returns the number of blocks that were added to the file, 0 or 1.
    fn write_one(
        &mut self,
        ino: Ino,
        slot: Slot,
        block: u64,
        inside: usize,
        data: &[u8],
        kind: SegmentType,
    ) -> Result<u64> {
        let bytes = self.geometry.block_size.bytes();
        if let Some(page) = self.pages.get_mut(ino, block) {
            page[inside..inside + data.len()].copy_from_slice(data);
            return Ok(0);
        }
        let old = self.node(slot.nid)?.addr(slot.index);
        if old.is_real() {
            if let Some(pending) = self.logs.pending_mut(old) {
                pending[inside..inside + data.len()].copy_from_slice(data);
                return Ok(0);
            }
        }
        let whole = data.len() == bytes;
        if whole && old.is_real() && self.stays(ino, Asks::Nobody, 1)? {
            self.write_in_place(old, Place::File(ino, block), data)?;
            return Ok(0);
        }
        if old.is_real() && (!whole || self.waits_for_fsync(ino)?) {
            let mut page = vec![0; bytes].into_boxed_slice();
            if !whole {
                self.read_block(old, Place::File(ino, block), &mut page)?;
            }
            page[inside..inside + data.len()].copy_from_slice(data);
            self.pages.insert(ino, block, Page { bytes: page, is_needed: false });
            return Ok(0);
        }
        if old == BlockAddr::COMPRESS {
            return Err(Error::corrupt(Place::File(ino, block), "a compressed cluster in a plain file"));
        }
        match whole {
            true => self.relocate(ino, slot, block, kind, data)?,
            false => {
                let mut content = vec![0; bytes];
                content[inside..inside + data.len()].copy_from_slice(data);
                self.relocate(ino, slot, block, kind, &content)?
            }
        };
        Ok(u64::from(old == BlockAddr::NULL))
    }

    /// Overwrites a block of the content of an inode, up to the end of the file.
    pub(super) fn overwrite_block(&mut self, ino: Ino, block: u64, bytes: &[u8]) -> Result<()> {
        let inode = self.inode(ino)?;
        let (kind, log) = (self.log_of_data(&inode), self.geometry.block_size.log());
        let length = (inode.head().size.get() - (block << log)).min(bytes.len() as u64) as usize;
        let is_there = !inode.has_inline(inline::DATA) && self.address(&inode, block)?.is_real();
        drop(inode);
        if !is_there {
            return self.write_content(ino, block << log, &bytes[..length]);
        }
        let slot = self.slot(ino, block)?.expect("a mapped block has a slot");
        self.write_one(ino, slot, block, 0, bytes, kind).map(drop)
    }

    /// Returns true if an overwritten block waits as a dirty page: a likely fsync then updates it in place,
    /// and need not write a node for a new address. In a file that fits into memory all overwritten blocks
    /// wait, so that adjacent blocks are written together.
    fn waits_for_fsync(&self, ino: Ino) -> Result<bool> {
        if self.options.in_place != InPlace::Fsync {
            return Ok(false);
        }
        let size_blocks = self.inode(ino)?.head().size.get() >> self.geometry.block_size.log();
        let synced_few = self.synced.contains(&ino) && self.pages.has_fewer(ino, IN_PLACE_BLOCKS_MAX);
        Ok(synced_few || size_blocks <= self.most_pages() as u64)
    }

    /// Checks that a range of blocks can be written. It passes if there is space for a range that is
    /// completely new, and fails if there is not even space for the range less all blocks of the file. Only
    /// between the two, the holes are counted.
    pub(super) fn reserve(&self, ino: Ino, blocks: Range<u64>) -> Result<()> {
        let nodes = self.nodes_for(ino, blocks.clone())? + 1;
        let length = blocks.end - blocks.start;
        if self.require_blocks(ino, length + nodes, nodes).is_ok() {
            return Ok(());
        }
        let inode = self.inode(ino)?;
        let had_blocks = inode.head().blocks.get().saturating_add(inode.saved_blocks().unwrap_or(0));
        self.require_blocks(ino, length.saturating_sub(had_blocks), 0)?;
        let mut holes = 0;
        if inode.has_inline(inline::DATA) {
            // Inline data goes to block 0.
            holes = length + u64::from(blocks.start > 0);
        } else {
            let mut at = blocks.start;
            while at < blocks.end {
                let run = self.run(&inode, at, blocks.end)?;
                holes += if run.addr == BlockAddr::NULL { run.len() } else { 0 };
                self.require_space(holes)?;
                at = run.blocks.end;
            }
        }
        let nodes = if holes == 0 { 0 } else { self.missing_nodes(ino, blocks)? };
        self.require_blocks(ino, holes + nodes, nodes)
    }

    /// Fails if the volume has no space for `blocks` more blocks, `nodes` of which are nodes, or if a quota
    /// of the file's owners does not admit them.
    fn require_blocks(&self, ino: Ino, blocks: u64, nodes: u64) -> Result<()> {
        self.require_space(blocks)?;
        if u64::from(self.free_nodes()) < nodes {
            return Err(Error::NoInodes);
        }
        self.admit(ino, blocks)
    }

    /// Moves inline data into a block; a file without inline data stays as it is. If no block can be
    /// allocated, the data stays inline.
    pub(super) fn leave_inline(&mut self, ino: Ino) -> Result<()> {
        let inode = self.inode(ino)?;
        if !inode.has_inline(inline::DATA) {
            return Ok(());
        }
        let kind = self.log_of_data(&inode);
        let mut content = inode.inline_area().to_vec();
        let there = inode.has_inline(inline::DATA_EXIST) && inode.head().size.get() > 0;
        let before = inode;
        content.resize(self.geometry.block_size.bytes(), 0);
        if there {
            self.content_moves_out(ino)?;
        }
        let inode = self.inode_mut(ino)?;
        inode.inline_area_mut().fill(0);
        inode.head_mut().inline &= !(inline::DATA | inline::DATA_EXIST);
        if there {
            let slot = self.make_slot(ino, 0)?;
            if let Err(error) = self.relocate(ino, slot, 0, kind, &content) {
                self.inode_mut(ino)?.clone_from(&before);
                return Err(error);
            }
            self.count_blocks(1);
            self.add_blocks(ino, 1)?;
        }
        Ok(())
    }

    /// Sets the size. Content past it is freed or zeroed. Inline data moves into a block if the new size does
    /// not fit inline.
    pub(super) fn set_size(&mut self, ino: Ino, size: u64) -> Result<()> {
        let inode = self.inode(ino)?;
        let (old, layout) = (inode.head().size.get(), inode.layout());
        let is_inline = inode.has_inline(inline::DATA);
        let past_end = inode.has_advise(advise::KEEP_SIZE);
        drop(inode);
        if is_inline && size > layout.inline_bytes() as u64 {
            self.reserve(ino, 0..1)?;
            self.leave_inline(ino)?;
        } else if is_inline {
            if size < old {
                self.zero_inline(ino, size, old)?;
            }
        } else if size < old || size == old && past_end {
            // A file that grows keeps the blocks that are reserved past its end (Linux, `f2fs_setattr`).
            self.cut(ino, size)?;
        }
        let head = self.inode_mut(ino)?.head_mut();
        head.size.set(size);
        if size <= old {
            head.advise &= !advise::KEEP_SIZE;
        }
        if size == 0 {
            head.inline &= !inline::COMPRESS_RELEASED;
        }
        Ok(())
    }

    /// Frees the blocks past `size`, and zeroes the rest of the last block.
    pub(super) fn cut(&mut self, ino: Ino, size: u64) -> Result<()> {
        let log = self.geometry.block_size.log();
        let kept = size.div_ceil(1 << log);
        self.zero_part(ino, size, kept << log)?;
        self.open_clusters(ino, kept..kept)?;
        self.free_from(ino, kept)
    }

    /// Fills part of one block with zeroes, if the block exists.
    fn zero_part(&mut self, ino: Ino, from: u64, to: u64) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let log = self.geometry.block_size.log();
        let block = from >> log;
        self.open_cluster(ino, block)?;
        let there =
            self.pages.get(ino, block).is_some() || self.address(&*self.inode(ino)?, block)?.is_real();
        if !there {
            return Ok(());
        }
        let slot = self.slot(ino, block)?.expect("a mapped block has a slot");
        let kind = self.log_of_data(&*self.inode(ino)?);
        let inside = from as usize & ((1 << log) - 1);
        let zeroes = vec![0; (to - from) as usize];
        self.write_one(ino, slot, block, inside, &zeroes, kind)?;
        Ok(())
    }

    fn zero_inline(&mut self, ino: Ino, from: u64, to: u64) -> Result<()> {
        let area = self.inode_mut(ino)?.inline_area_mut();
        let end = area.len().min(to as usize);
        if (from as usize) < end {
            area[from as usize..end].fill(0);
        }
        Ok(())
    }

    /// Sets the size to `end`, if that is larger.
    fn grow(&mut self, ino: Ino, end: u64) -> Result<()> {
        let inode = self.inode(ino)?;
        let size = inode.head().size.get();
        if end <= size {
            return Ok(());
        }
        let last_block = (end - 1) >> self.geometry.block_size.log() << self.geometry.block_size.log();
        // Roll-forward derives the size from the last block only if that block is new.
        let follows = size <= last_block && !inode.has_inline(inline::DATA);
        drop(inode);
        let change = if follows { Change::SIZE } else { Change::REST };
        self.inode_for(ino, change)?.head_mut().size.set(end);
        Ok(())
    }

    /// Writes all dirty pages. A page of a regular file stays dirty, and holds up no other page, if the
    /// device refuses its in-place update, or if its nodes or the rest of its cluster cannot be read;
    /// [`write_waiting`](Self::write_waiting) reports it. Pages of directories and of clusters that were made
    /// plain must be written: names have to reach the device together with their inodes, and the old content
    /// of the cluster is stored nowhere else.
    pub(super) fn write_pages(&mut self) -> Result<()> {
        for (ino, block) in self.pages.keys() {
            match self.write_page(ino, block) {
                Err(error) if self.stays_in_place(&error) && self.may_wait(ino, block) => {}
                result => result?,
            }
        }
        Ok(())
    }

    /// Writes the pages without which a checkpoint would be incomplete, as far as possible. While their nodes
    /// are still in memory as well, nothing has to be read for this.
    pub(super) fn write_needed_pages(&mut self) -> Result<()> {
        for (ino, block) in self.pages.keys() {
            match self.pages.is_needed(ino, block).then(|| self.write_page(ino, block)) {
                Some(Err(error)) if self.read_only_reason().is_some() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns true if a checkpoint is complete without a page.
    fn may_wait(&self, ino: Ino, block: u64) -> bool {
        !self.is_quota_ino(ino) && !self.pages.is_needed(ino, block)
    }

    /// Writes the pages that [`write_pages`](Self::write_pages) left, or returns the error that keeps them
    /// waiting.
    pub(super) fn write_waiting(&mut self) -> Result<()> {
        self.pages.keys().into_iter().try_for_each(|(ino, block)| self.write_page(ino, block))
    }

    /// Writes a page in place or to its log, with the rest of its cluster if it has one.
    fn write_page(&mut self, ino: Ino, block: u64) -> Result<()> {
        match self.own_place(ino, block)? {
            Some(addr) => self.write_neighbours(ino, &[block], addr),
            None => self.append_page(ino, block),
        }
    }

    /// Writes the dirty pages of a file for an fsync. Adjacent pages that the policy updates in place leave
    /// as one write.
    pub(super) fn write_pages_of(&mut self, ino: Ino) -> Result<()> {
        let blocks = self.pages.blocks_of(ino, 0, u64::MAX);
        let few = blocks.len() <= IN_PLACE_BLOCKS_MAX;
        let asks = if few { Asks::FewSynced } else { Asks::ManySynced };
        let mut rest = &blocks[..];
        while !rest.is_empty() {
            let (addr, count) = self.neighbours(ino, rest)?;
            let (these, others) = rest.split_at(count);
            match addr {
                Some(addr) if self.stays(ino, asks, count)? => self.write_neighbours(ino, these, addr)?,
                _ => these.iter().try_for_each(|block| self.append_page(ino, *block))?,
            }
            rest = others;
        }
        Ok(())
    }

    /// Returns the address of the first of these pages, if it can be updated in place, and the number of
    /// pages from it on that are adjacent in the file and on the device. The number is at most that of one
    /// large write.
    fn neighbours(&self, ino: Ino, blocks: &[u64]) -> Result<(Option<BlockAddr>, usize)> {
        let inode = self.inode(ino)?;
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
        let bytes = pages.collect::<Vec<_>>().concat();
        self.write_in_place(addr, Place::File(ino, blocks[0]), &bytes)?;
        for block in blocks {
            self.pages.remove(ino, *block);
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
    fn stays(&self, ino: Ino, asks: Asks, neighbours: usize) -> Result<bool> {
        let wanted = allocate::in_place(self.options.in_place, asks, neighbours) || self.is_pinned(ino)?;
        Ok(wanted && !self.is_quota_ino(ino))
    }

    /// Returns the address at which a page is updated in place without an fsync, or `None` if it goes to its
    /// log.
    fn own_place(&self, ino: Ino, block: u64) -> Result<Option<BlockAddr>> {
        let addr = self.overwritable(&*self.inode(ino)?, block)?;
        Ok(if self.stays(ino, Asks::Nobody, 1)? { addr } else { None })
    }

    /// Writes a page to its log.
    fn append_page(&mut self, ino: Ino, block: u64) -> Result<()> {
        let inode = self.inode(ino)?;
        if inode.compression().is_some() {
            drop(inode);
            return self.write_cluster(ino, block);
        }
        let kind = self.log_of_data(&inode);
        drop(inode);
        let slot = self.slot(ino, block)?.expect("a page's block is reserved in the map");
        let Some(page) = self.pages.remove(ino, block) else { return Ok(()) };
        let result = self.relocate(ino, slot, block, kind, &page.bytes).map(drop);
        if result.is_err() {
            self.pages.insert(ino, block, page);
        }
        result
    }

    /// Returns the end of a range of a file, which must not exceed the maximum file size.
    pub(super) fn end_of(&self, inode: &NodeBlock, offset: u64, length: u64) -> Result<u64> {
        let most = inode.layout().reach_blocks() << self.geometry.block_size.log();
        offset.checked_add(length).filter(|end| *end <= most).ok_or(Error::FileTooLarge)
    }

    /// Returns true if a file is pinned, so that its blocks must not move.
    fn is_pinned(&self, ino: Ino) -> Result<bool> {
        Ok(self.inode(ino)?.has_inline(inline::PIN))
    }

    /// Returns a regular file that may be changed; the blocks that compression saves may be released.
    fn changeable_file(&self, ino: Ino) -> Result<std::sync::Arc<NodeBlock>> {
        let inode = self.inode(ino)?;
        match inode.file_type() {
            FileType::Regular => {}
            FileType::Directory => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid("not a regular file".into())),
        }
        if inode.has_advise(advise::ENCRYPT) {
            return Err(Error::NoKey);
        }
        if inode.has_advise(advise::VERITY)
            || inode.has_flag(flag::IMMUTABLE)
            || inode.has_flag(flag::DEVICE_ALIAS)
        {
            return Err(Error::NotPermitted);
        }
        Ok(inode)
    }

    /// Returns a regular file whose content may be written.
    pub(super) fn writable_file(&self, ino: Ino) -> Result<std::sync::Arc<NodeBlock>> {
        let inode = self.changeable_file(ino)?;
        match inode.has_inline(inline::COMPRESS_RELEASED) {
            true => Err(Error::NotPermitted),
            false => Ok(inode),
        }
    }

    /// The current time, for timestamps.
    pub(super) fn time(&self) -> Time {
        (self.options.clock)()
    }
}
