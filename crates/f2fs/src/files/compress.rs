//! Writing compressed files.
//!
//! *Invariants*: the addresses of a cluster are in one node and change together, so that after a power cut
//! the whole cluster is old or new. In a compressed cluster the first address is the mark (`COMPRESS_ADDR`),
//! the addresses of the compressed data follow, and the rest stays reserved (`NEW_ADDR`) until it is
//! released. With these reserved blocks a cluster can always become plain again. A write to a part of a
//! cluster waits as dirty pages, and the cluster is compressed again when they are written. A cluster that
//! has a hole, or that extends past the end of the file, is plain (Linux, `cluster_may_compress`).

use std::ops::Range;

use super::{Files, map::Cluster, map_write::Slot, pages::Page, saved_blocks::SavedBlocks};
use crate::{
    Error, Place, Result,
    format::{
        FileType, cluster,
        inode::{Algorithm, Compression, LOG_CLUSTER_BLOCKS, advise, flag, inline},
        node::NodeBlock,
        sit::SegmentType,
        summary::Owner,
        superblock::Features,
    },
    segments::{OldBlock, Replaced},
    units::{BlockAddr, Ino},
};

/// The storage of a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Storage {
    /// In clusters that are compressed.
    Compressed,
    /// Uncompressed, whatever the directory or the name says.
    Plain,
}

/// The form in which a cluster is stored.
enum Stored<'a> {
    Plain(&'a [u8]),
    Compressed(&'a [u8]),
}

impl Files {
    /// Writes to a compressed file.
    pub(super) fn write_clusters(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        let cluster_blocks = self.nodes.inode(ino)?.layout().cluster_blocks();
        let log = self.geometry().block_size.log();
        let cluster_bytes = (cluster_blocks as u64) << log;
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let left = (cluster_bytes - at % cluster_bytes) as usize;
            let (part, more) = rest.split_at(left.min(rest.len()));
            if part.len() as u64 == cluster_bytes {
                self.replace_cluster(ino, at >> log, part)?;
            } else {
                self.write_part(ino, at, part)?;
            }
            at += part.len() as u64;
            rest = more;
        }
        Ok(())
    }

    /// Writes to a part of a cluster, as dirty pages.
    fn write_part(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        let (log, bytes) = (self.geometry().block_size.log(), self.geometry().block_size.bytes());
        let cluster_blocks = self.nodes.inode(ino)?.layout().cluster_blocks();
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let (block, inside) = (at >> log, at as usize & (bytes - 1));
            let length = rest.len().min(bytes - inside);
            if self.pages.get(ino, block).is_none() {
                let inode = self.nodes.inode(ino)?;
                let mut page = vec![0; bytes].into_boxed_slice();
                // A compressed cluster is read even if this block is overwritten completely: the rest of the
                // cluster is needed when it is written, so it must be readable.
                if length < bytes || matches!(self.cluster(&inode, block)?, Cluster::Compressed { .. }) {
                    self.read_past_end(&inode, block << log, &mut page)?;
                }
                drop(inode);
                let slot = self.make_slot(ino, block)?;
                self.occupy(ino, Slot { left: 1, ..slot })?;
                let page = Page { bytes: page, is_needed: false };
                self.insert_page_in_cluster(ino, block, page, cluster_blocks);
            }
            let page = self.pages.get_mut(ino, block).expect("it was just made sure of");
            page[inside..inside + length].copy_from_slice(&rest[..length]);
            at += length as u64;
            rest = &rest[length..];
        }
        Ok(())
    }

    /// Replaces the content of a whole cluster.
    fn replace_cluster(&mut self, ino: Ino, start: u64, content: &[u8]) -> Result<()> {
        let settings = self.nodes.inode(ino)?.compression().expect("the file is compressed");
        let slot = self.make_slot(ino, start)?;
        let slot = Slot { left: 1 << settings.log_cluster_blocks, ..slot };
        self.occupy(ino, slot)?;
        let stream = cluster::encode(&settings, content, self.geometry().block_size.bytes());
        self.store_cluster(ino, slot, start, content, stream)
    }

    /// Writes the dirty pages of the cluster that contains `block`, if there are any left.
    pub(super) fn write_cluster(&mut self, ino: Ino, block: u64) -> Result<()> {
        let inode = self.nodes.inode(ino)?;
        let blocks = inode.layout().cluster_blocks();
        let start = block - block % blocks as u64;
        let end = start + blocks as u64;
        let pages = self.pages.blocks_of(ino, start, end);
        if pages.is_empty() {
            return Ok(());
        }
        let kind = self.log_of_data(&inode);
        let size = self.geometry().block_size;
        let slot = self.mapped_slot(ino, start)?;
        let slot = Slot { left: blocks, ..slot };
        let node = self.nodes.node(slot.nid)?;
        let compressed = node.addr(slot.index) == BlockAddr::COMPRESS;
        let complete = node.addrs(slot.index..slot.index + blocks).all(|addr| addr != BlockAddr::NULL);
        drop(node);
        if compressed || (complete && end <= inode.head().size.get().div_ceil(size.bytes() as u64)) {
            let mut content = vec![0; blocks << size.log()];
            self.read_past_end(&inode, start << size.log(), &mut content)?;
            let settings = inode.compression().expect("the file is compressed");
            drop(inode);
            let stream = cluster::encode(&settings, &content, size.bytes());
            if compressed || stream.is_some() {
                return self.store_cluster(ino, slot, start, &content, stream);
            }
        }
        for block in pages {
            let page = self.pages.get(ino, block).expect("it was listed").to_vec();
            let slot = Slot { index: slot.index + (block - start) as usize, left: 1, ..slot };
            self.relocate(ino, slot, block, kind, &page)?;
            self.remove_page(ino, block);
        }
        Ok(())
    }

    /// Stores a whole cluster: the compressed stream, or the plain content if there is no stream. Discards
    /// its dirty pages.
    fn store_cluster(
        &mut self,
        ino: Ino,
        slot: Slot,
        start: u64,
        content: &[u8],
        stream: Option<Vec<u8>>,
    ) -> Result<()> {
        let stored = stream.as_deref().map_or(Stored::Plain(content), Stored::Compressed);
        self.place_cluster(ino, slot, start, stored)?;
        self.discard_pages(ino, start, start + slot.left as u64);
        Ok(())
    }

    /// Appends a cluster without holes to its log, and releases its old blocks.
    fn place_cluster(&mut self, ino: Ino, slot: Slot, start: u64, stored: Stored<'_>) -> Result<()> {
        let kind = self.log_of_data(&*self.nodes.inode(ino)?);
        let (first, bytes) = match stored {
            Stored::Plain(bytes) => (0, bytes),
            Stored::Compressed(bytes) => (1, bytes),
        };
        // Each block is encrypted under the number of the address that it is at.
        let bytes = self.to_stored(ino, start + first as u64, bytes)?;
        self.drop_extent(ino)?;
        let old: Vec<BlockAddr> =
            self.nodes.node_mut(slot.nid)?.addrs(slot.index..slot.index + slot.left).collect();
        let replaced = self.prepare_release(ino, start, &old)?;
        let mut new = vec![BlockAddr::NEW; slot.left];
        if first == 1 {
            new[0] = BlockAddr::COMPRESS;
        }
        let blocks = bytes.chunks_exact(self.geometry().block_size.bytes());
        if let Err(error) = self.write_out(slot, kind, blocks, &mut new[first..], first) {
            // No node refers to the new blocks yet.
            for addr in new.into_iter().filter(|addr| addr.is_real()) {
                self.segments_mut().release_block(addr, Place::File(ino, start))?;
            }
            return Err(error);
        }
        self.change_saved(ino, saved_by(&old), saved_by(&new))?;
        let node = self.nodes.node_mut(slot.nid)?;
        for (n, addr) in new.into_iter().enumerate() {
            node.set_addr(slot.index + n, addr);
        }
        replaced.into_iter().try_for_each(|block| self.segments_mut().release(block))
    }

    /// Prepares the release of a file's blocks from block `start` on.
    fn prepare_release(&mut self, ino: Ino, start: u64, addrs: &[BlockAddr]) -> Result<Vec<Replaced>> {
        let old = addrs.iter().zip(start..);
        let old = old.map(|(addr, block)| OldBlock { addr: *addr, at: Place::File(ino, block) });
        old.map(|old| self.segments_mut().prepare_release(old)).collect()
    }

    /// Writes blocks to a log and stores their addresses in `places`, whose first item is address `first` of
    /// the cluster at `slot`.
    fn write_out<'a>(
        &mut self,
        slot: Slot,
        kind: SegmentType,
        blocks: impl Iterator<Item = &'a [u8]>,
        places: &mut [BlockAddr],
        first: usize,
    ) -> Result<()> {
        let version = self.nodes.version(slot.nid)?;
        for (n, (block, place)) in blocks.zip(places).enumerate() {
            let owner = Owner { nid: slot.nid, version, offset: (slot.index + first + n) as u16 };
            *place = self.segments_mut().append(kind, owner, block)?;
        }
        Ok(())
    }

    /// Updates the file's count of saved blocks: subtracts `before` and adds `after`.
    pub(super) fn change_saved(&mut self, ino: Ino, before: u64, after: u64) -> Result<()> {
        if before != after {
            let inode = self.nodes.inode_mut(ino)?;
            let saved = inode.saved_blocks().unwrap_or(0);
            inode.set_saved_blocks(saved.saturating_sub(before).saturating_add(after));
        }
        Ok(())
    }

    /// Makes the clusters plain in which a range of a compressed file begins or ends, before the range
    /// changes block by block.
    pub(super) fn open_clusters(&mut self, ino: Ino, blocks: Range<u64>) -> Result<()> {
        let size = self.nodes.inode(ino)?.layout().cluster_blocks() as u64;
        for edge in [blocks.start, blocks.end] {
            if edge % size != 0 {
                self.open_cluster(ino, edge)?;
            }
        }
        Ok(())
    }

    /// Makes the cluster that contains `block` plain: its content becomes dirty pages.
    pub(super) fn open_cluster(&mut self, ino: Ino, block: u64) -> Result<()> {
        let inode = self.nodes.inode(ino)?;
        let Cluster::Compressed { blocks, addrs } = self.cluster(&inode, block)? else { return Ok(()) };
        if inode.has_inline(inline::COMPRESS_RELEASED) {
            return Err(Error::NotPermitted);
        }
        let size = self.geometry().block_size;
        let mut content = vec![0; ((blocks.end - blocks.start) as usize) << size.log()];
        self.read_past_end(&inode, blocks.start << size.log(), &mut content)?;
        drop(inode);
        let replaced = self.prepare_release(ino, blocks.start + 1, &addrs)?;
        let slot = self.mapped_slot(ino, blocks.start)?;
        self.drop_extent(ino)?;
        let node = self.nodes.node_mut(slot.nid)?;
        let count = (blocks.end - blocks.start) as usize;
        let holes = node.addrs(slot.index..slot.index + count).any(|addr| addr == BlockAddr::NULL);
        if holes {
            return Err(Error::corrupt(Place::File(ino, blocks.start), "a compressed cluster with a hole"));
        }
        for index in slot.index..slot.index + count {
            node.set_addr(index, BlockAddr::NEW);
        }
        replaced.into_iter().try_for_each(|block| self.segments_mut().release(block))?;
        self.change_saved(ino, (count - addrs.len()) as u64, 0)?;
        for (block, page) in blocks.zip(content.chunks_exact(size.bytes())) {
            self.insert_page_in_cluster(ino, block, Page { bytes: page.into(), is_needed: true }, count);
        }
        Ok(())
    }

    /// Subtracts the blocks that the clusters in `addrs` save from the file's count, before these addresses
    /// become holes. Returns the number of addresses that the block count of the file does not include.
    pub(super) fn forget_saved(&mut self, ino: Ino, addrs: &[BlockAddr]) -> Result<u64> {
        let inode = self.nodes.inode(ino)?;
        let size = inode.layout().cluster_blocks();
        let released = inode.has_inline(inline::COMPRESS_RELEASED);
        drop(inode);
        let (mut saved, mut marks) = (0, 0);
        for (n, _) in addrs.iter().enumerate().filter(|(_, addr)| **addr == BlockAddr::COMPRESS) {
            let cluster = &addrs[n..addrs.len().min(n + size)];
            saved += saved_by(cluster);
            marks += 1;
        }
        self.change_saved(ino, saved, 0)?;
        // The mark counts as a block only while the saved blocks are reserved.
        Ok(if released { marks } else { 0 })
    }

    /// Returns the number of saved blocks of a file that are released.
    pub(crate) fn released_blocks(&self, ino: Ino) -> Result<u64> {
        let inode = self.nodes.inode(ino)?;
        if inode.compression().is_none() || !inode.has_inline(inline::COMPRESS_RELEASED) {
            return Ok(0);
        }
        let mut released = 0;
        for slot in self.compressed_clusters(ino, 0, u64::MAX)?.0 {
            let node = self.nodes.node(slot.nid)?;
            let addrs = node.addrs(slot.index..slot.index + slot.left);
            released += addrs.filter(|addr| !addr.is_real()).count() as u64;
        }
        Ok(released)
    }

    /// Sets the algorithm and cluster size of a compressed file without content (Linux,
    /// `f2fs_ioc_set_compress_option`).
    pub(crate) fn choose_compression(
        &mut self,
        ino: Ino,
        algorithm: Algorithm,
        log_cluster_blocks: u8,
    ) -> Result<()> {
        if !LOG_CLUSTER_BLOCKS.contains(&log_cluster_blocks) {
            let what = format!("clusters of 2^{log_cluster_blocks} blocks, must be 2^2 to 2^8");
            return Err(Error::Invalid(what.into()));
        }
        self.compressed_file(ino, SavedBlocks::Reserved)?;
        let inode = self.nodes.inode(ino)?;
        let settings = inode.compression().expect("it was just looked at");
        if has_blocks(&inode) {
            return Err(Error::FileTooLarge);
        }
        drop(inode);
        let usual = self.options().compression;
        let level = if usual.algorithm == algorithm { usual.level } else { 0 };
        let settings = Compression { algorithm, log_cluster_blocks, level, ..settings };
        self.nodes.since_checkpoint_mut().note_renamed([ino]);
        self.nodes.inode_mut(ino)?.set_compression(Some(settings));
        Ok(())
    }

    /// Makes a file compressed or plain, or sets that for new entries of a directory (Linux,
    /// `f2fs_setflags_common`). The caller has [checked](Self::check_compression_flags) that the inode can be
    /// changed so.
    pub(crate) fn set_storage(&mut self, ino: Ino, storage: Storage) -> Result<()> {
        let usual = self.options().compression;
        let inode = self.nodes.inode_mut(ino)?;
        if inode.has_inline(inline::DATA) {
            inode.inline_area_mut().fill(0);
            inode.head_mut().inline &= !inline::DATA;
        }
        match storage {
            Storage::Compressed => {
                inode.set_compression(Some(usual));
                // The rules of a plain file leave this field alone.
                inode.set_saved_blocks(0);
            }
            Storage::Plain => {
                inode.set_compression(None);
                inode.head_mut().inline &= !inline::COMPRESS_RELEASED;
            }
        }
        Ok(())
    }

    /// Checks that an inode can have these flags, as far as compression is concerned.
    pub(crate) fn check_compression_flags(&self, inode: &NodeBlock, flags: u32) -> Result<()> {
        const BOTH: u32 = flag::COMPRESS | flag::NOCOMPRESS;
        let changes = (inode.head().flags.get() ^ flags) & flag::COMPRESS != 0;
        let is_file = inode.file_type() == FileType::Regular;
        if flags & BOTH != 0 {
            if !self.disk().node_format().features.has(Features::COMPRESSION) {
                return Err(Error::Unsupported("compression without the feature".into()));
            }
            let possible = (is_file || inode.is_directory()) && !inode.has_inline(inline::PIN);
            if flags & BOTH == BOTH || (changes && !possible) {
                return Err(Error::Invalid(
                    "the flags for and against compression are both set, or the file cannot be compressed"
                        .into(),
                ));
            }
            if changes && inode.saved_blocks().is_none() {
                return Err(Error::Unsupported("compression of an inode without compression fields".into()));
            }
        }
        let has_content = has_blocks(inode)
            || inode.has_inline(inline::DATA_EXIST)
            || !self.pages.has_fewer(inode.ino(), 1);
        if changes && is_file && has_content {
            return Err(Error::Invalid("compression of a file can only be changed while it is empty".into()));
        }
        Ok(())
    }

    /// Returns the storage that its directory or its name demands for a new file or directory (Linux,
    /// `set_compress_new_inode`).
    pub(crate) fn inherited_storage(&self, dir: &NodeBlock, kind: FileType, name: &[u8]) -> Option<Storage> {
        if !self.disk().node_format().features.has(Features::COMPRESSION) {
            return None;
        }
        let options = &self.options();
        let listed = |list: &[String]| list.iter().any(|extension| ends_with(name, extension.as_bytes()));
        match kind {
            // A file without a name has no extension to look up.
            FileType::Regular if name.is_empty() => return None,
            FileType::Regular if listed(&self.disk().superblock().hot_extensions) => return None,
            FileType::Regular if listed(&options.plain_extensions) => return None,
            FileType::Regular if listed(&options.compressed_extensions) => return Some(Storage::Compressed),
            FileType::Regular | FileType::Directory => {}
            _ => return None,
        }
        if dir.has_flag(flag::NOCOMPRESS) {
            return Some(Storage::Plain);
        }
        dir.has_flag(flag::COMPRESS).then_some(Storage::Compressed)
    }

    /// Checks that an inode is a compressed file that may be changed, and that its saved blocks are as `saved` demands.
    pub(super) fn compressed_file(&self, ino: Ino, saved: SavedBlocks) -> Result<()> {
        let inode = self.nodes.inode(ino)?;
        if !self.disk().node_format().features.has(Features::COMPRESSION) {
            return Err(Error::Unsupported("compression without the feature".into()));
        }
        self.require_key(&inode)?;
        if inode.has_flag(flag::IMMUTABLE | flag::DEVICE_ALIAS) || inode.has_advise(advise::VERITY) {
            return Err(Error::NotPermitted);
        }
        let is_released = inode.has_inline(inline::COMPRESS_RELEASED);
        if inode.compression().is_none() || is_released != (saved == SavedBlocks::Released) {
            return Err(Error::Invalid("the file is not compressed, or its blocks are released".into()));
        }
        Ok(())
    }
}

/// Returns the number of blocks that a cluster with these addresses saves.
fn saved_by(addrs: &[BlockAddr]) -> u64 {
    match addrs.first() {
        Some(&BlockAddr::COMPRESS) => addrs.iter().filter(|addr| !addr.is_real()).count() as u64,
        _ => 0,
    }
}

/// Returns true if a file has blocks besides its inode and xattr node.
fn has_blocks(inode: &NodeBlock) -> bool {
    inode.head().blocks.get() > 1 + u64::from(inode.xattr_nid().0 != 0)
}

/// Returns true if a name ends with an extension, or if the extension is `*` (Linux, `is_extension_exist`).
fn ends_with(name: &[u8], extension: &[u8]) -> bool {
    if extension == b"*" {
        return true;
    }
    name.len() >= extension.len() + 2
        && name[name.len() - extension.len() - 1] == b'.'
        && name[name.len() - extension.len()..].eq_ignore_ascii_case(extension)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_are_the_ends_of_names() {
        let has = |name: &str, extension: &str| ends_with(name.as_bytes(), extension.as_bytes());
        assert!(has("a.so", "so") && has("a.SO", "so") && has("anything", "*"));
        assert!(!has("a.so.1", "so") && !has(".so", "so") && !has("also", "so"));
    }
}
