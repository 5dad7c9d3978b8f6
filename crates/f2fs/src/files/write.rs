//! Writing files: data, size, holes.
//!
//! *Invariants*: a block that gets its first address goes to its log at once, and changes in the log's
//! pending run as long as it is there. Only two sorts of blocks of a plain file wait as dirty pages: blocks
//! on the device that are overwritten in part, and overwritten blocks that an fsync may update in place.
//! (Compressed files and directories have [others](super::pages).) Large writes may
//! [bypass the pending run](super::new_blocks). Therefore new blocks that are written in ascending order
//! have that order on the device too. Space is checked before anything changes.

use std::ops::Range;

use super::{Files, map_write::Slot, pages::Page};
use crate::{
    Error, Place, Result,
    disk::InPlace,
    format::{
        FileType,
        inode::{advise, flag, inline},
        node::NodeBlock,
        sit::SegmentType,
    },
    units::{BlockAddr, Ino},
};

use super::in_place::{IN_PLACE_BLOCKS_MAX, WriteReason};

/// Maximum number of bytes that are reserved or freed in one step: some hundred nodes of addresses. A longer
/// range takes several steps, between which nodes are evicted from memory and a checkpoint frees space.
const PIECE_BYTES: u64 = 1 << 30;

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
pub(crate) fn pieces(offset: u64, end: u64) -> impl Iterator<Item = Range<u64>> {
    pieces_of(PIECE_BYTES, offset, end)
}

/// Splits a range of a file into the pieces that are written in one step.
pub(crate) fn write_pieces(offset: u64, end: u64) -> impl Iterator<Item = Range<u64>> {
    pieces_of(WRITE_BYTES, offset, end)
}

fn pieces_of(bytes: u64, offset: u64, end: u64) -> impl Iterator<Item = Range<u64>> {
    let starts = (offset / bytes..end.div_ceil(bytes)).map(move |n| n * bytes);
    starts.map(move |start| offset.max(start)..end.min(start + bytes))
}

impl Files {
    /// Writes to the content of an inode of any type, except to inline directory entries.
    pub(crate) fn write_content(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        let inode = self.nodes.inode(ino)?;
        let (layout, size) = (inode.layout(), self.geometry().block_size);
        let end = self.end_of(&inode, offset, data.len() as u64)?;
        if inode.has_inline(inline::DATA) && end <= layout.inline_bytes() as u64 {
            drop(inode);
            let inode = self.nodes.inode_mut(ino)?;
            inode.inline_area_mut()[offset as usize..end as usize].copy_from_slice(data);
            inode.head_mut().inline |= inline::DATA_EXIST;
            return self.grow(ino, end);
        }
        let (kind, compressed) = (self.log_of_data(&inode), inode.compression().is_some());
        drop(inode);
        self.finish_truncation(ino)?;
        let _space = self.reserve(ino, offset >> size.log()..end.div_ceil(size.bytes() as u64))?;
        self.leave_inline(ino)?;

        let written = match compressed {
            true => self.write_clusters(ino, offset, data),
            false => self.write_blocks(ino, offset, data, kind),
        };
        if let Err(error) = written {
            // Blocks past the end must neither be counted nor become visible when the file grows. Blocks that
            // are reserved outside the written range stay.
            let inode = self.nodes.inode(ino)?;
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

    pub(super) fn write_blocks(
        &mut self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        kind: SegmentType,
    ) -> Result<()> {
        let size = self.geometry().block_size;
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
            self.segments_mut().count_blocks(added);
            self.add_blocks(ino, added)?;
        }
        result
    }

    /// Writes the next block or a part of it, or a run of new blocks.
    fn write_next(
        &mut self,
        ino: Ino,
        slot: Slot,
        offset: u64,
        data: &[u8],
        kind: SegmentType,
    ) -> Result<Written> {
        let (bytes, log) = (self.geometry().block_size.bytes(), self.geometry().block_size.log());
        let (block, inside) = (offset >> log, offset as usize & (bytes - 1));
        let new = if inside == 0 { self.new_blocks(ino, slot, block, data)? } else { 0 };
        if new > 0 {
            let (blocks, gained) = self.write_new_blocks(ino, slot, block, &data[..new << log], kind)?;
            return Ok(Written { blocks, length: blocks << log, gained });
        }
        let length = data.len().min(bytes - inside);
        let gained = self.write_one(ino, slot, block, inside, &data[..length], kind)?;
        Ok(Written { blocks: 1, length, gained })
    }

    /// Writes one block or a part of it. Returns the number of blocks that were added to the file, 0 or 1.
    pub(super) fn write_one(
        &mut self,
        ino: Ino,
        slot: Slot,
        block: u64,
        inside: usize,
        data: &[u8],
        kind: SegmentType,
    ) -> Result<u64> {
        let bytes = self.geometry().block_size.bytes();
        if let Some(page) = self.pages.get_mut(ino, block) {
            page[inside..inside + data.len()].copy_from_slice(data);
            return Ok(0);
        }
        let old = self.nodes.node(slot.nid)?.addr(slot.index);
        if old.is_real() && self.write_pending(ino, block, old, inside, data)? {
            return Ok(0);
        }
        let whole = data.len() == bytes;
        if whole && old.is_real() && self.updates_in_place(ino, WriteReason::WriteBack, 1)? {
            let stored = self.to_stored(ino, block, data)?;
            self.segments_mut().write_in_place(old, Place::File(ino, block), &stored)?;
            return Ok(0);
        }
        if old.is_real() && (!whole || self.waits_for_fsync(ino)?) {
            let inode = self.nodes.inode(ino)?;
            let cipher = self.content_cipher(&inode)?;
            let mut page = vec![0; bytes].into_boxed_slice();
            if !whole {
                self.read_stored(&inode, old, Place::File(ino, block), block, &mut page, cipher.as_deref())?;
            }
            page[inside..inside + data.len()].copy_from_slice(data);
            self.insert_page(ino, block, Page { bytes: page, is_needed: false });
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

    /// Overwrites a block of a file, or a part of it, in the pending run of its log. Returns false if it is in none.
    fn write_pending(
        &mut self,
        ino: Ino,
        block: u64,
        addr: BlockAddr,
        inside: usize,
        data: &[u8],
    ) -> Result<bool> {
        let range = inside..inside + data.len();
        if self.segments().pending(addr).is_none() {
            return Ok(false);
        }
        let cipher = self.content_cipher(&*self.nodes.inode(ino)?)?;
        let pending = self.segments_mut().pending_mut(addr).expect("it was just found");
        let Some(cipher) = cipher else {
            pending[range].copy_from_slice(data);
            return Ok(true);
        };
        if data.len() < pending.len() {
            cipher.decrypt_blocks(block, pending);
        }
        pending[range].copy_from_slice(data);
        cipher.encrypt_blocks(block, pending);
        Ok(true)
    }

    /// Overwrites a block of the content of an inode, up to the end of the file.
    pub(crate) fn overwrite_block(&mut self, ino: Ino, block: u64, bytes: &[u8]) -> Result<()> {
        let inode = self.nodes.inode(ino)?;
        let (kind, log) = (self.log_of_data(&inode), self.geometry().block_size.log());
        let length = (inode.head().size.get() - (block << log)).min(bytes.len() as u64) as usize;
        let is_there = !inode.has_inline(inline::DATA) && self.address(&inode, block)?.is_real();
        drop(inode);
        if !is_there {
            return self.write_content(ino, block << log, &bytes[..length]);
        }
        let slot = self.mapped_slot(ino, block)?;
        self.write_one(ino, slot, block, 0, bytes, kind).map(drop)
    }

    /// Returns true if an overwritten block waits as a dirty page: a likely fsync then updates it in place,
    /// and need not write a node for a new address. In a file that fits into memory all overwritten blocks
    /// wait, so that adjacent blocks are written together.
    fn waits_for_fsync(&self, ino: Ino) -> Result<bool> {
        if self.options().in_place() != InPlace::Fsync {
            return Ok(false);
        }
        let size_blocks = self.nodes.inode(ino)?.head().size.get() >> self.geometry().block_size.log();
        let synced_few = self.synced.contains(&ino) && self.pages.has_fewer(ino, IN_PLACE_BLOCKS_MAX);
        Ok(synced_few || size_blocks <= self.most_pages() as u64)
    }

    /// Moves inline data into a block; a file without inline data stays as it is. If no block can be
    /// allocated, the data stays inline.
    pub(super) fn leave_inline(&mut self, ino: Ino) -> Result<()> {
        let inode = self.nodes.inode(ino)?;
        if !inode.has_inline(inline::DATA) {
            return Ok(());
        }
        let kind = self.log_of_data(&inode);
        let mut content = inode.inline_area().to_vec();
        let there = inode.has_inline(inline::DATA_EXIST) && inode.head().size.get() > 0;
        let before = inode;
        content.resize(self.geometry().block_size.bytes(), 0);
        if there {
            self.nodes.content_moves(ino)?;
        }
        let inode = self.nodes.inode_mut(ino)?;
        inode.inline_area_mut().fill(0);
        inode.head_mut().inline &= !(inline::DATA | inline::DATA_EXIST);
        if there {
            let slot = self.make_slot(ino, 0)?;
            if let Err(error) = self.relocate(ino, slot, 0, kind, &content) {
                self.nodes.inode_mut(ino)?.clone_from(&before);
                return Err(error);
            }
            self.segments_mut().count_blocks(1);
            self.add_blocks(ino, 1)?;
        }
        Ok(())
    }

    /// Returns the end of a range of a file, which must not exceed the maximum file size.
    pub(crate) fn end_of(&self, inode: &NodeBlock, offset: u64, length: u64) -> Result<u64> {
        let most = inode.layout().reach_blocks() << self.geometry().block_size.log();
        offset.checked_add(length).filter(|end| *end <= most).ok_or(Error::FileTooLarge)
    }

    /// Returns a regular file that may be changed; the blocks that compression saves may be released.
    pub(super) fn changeable_file(&self, ino: Ino) -> Result<std::sync::Arc<NodeBlock>> {
        let inode = self.nodes.inode(ino)?;
        match inode.file_type() {
            FileType::Regular => {}
            FileType::Directory => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid("not a regular file".into())),
        }
        self.require_key(&inode)?;
        if inode.has_advise(advise::VERITY)
            || inode.has_flag(flag::IMMUTABLE)
            || inode.has_flag(flag::DEVICE_ALIAS)
        {
            return Err(Error::NotPermitted);
        }
        Ok(inode)
    }

    /// Returns a regular file whose content may be written.
    pub(crate) fn writable_file(&self, ino: Ino) -> Result<std::sync::Arc<NodeBlock>> {
        let inode = self.changeable_file(ino)?;
        match inode.has_inline(inline::COMPRESS_RELEASED) {
            true => Err(Error::NotPermitted),
            false => Ok(inode),
        }
    }
}
