//! Reading files.

use std::{
    ops::{Deref, Range},
    sync::Arc,
};

use fscrypt::FileCipher;

use super::{
    Files,
    extents::{Extent, ExtentKind},
    map::{Cluster, Run},
};
use crate::{
    Error, Place, Result,
    format::{
        FileType, cluster,
        inode::{advise, inline},
        node::NodeBlock,
    },
    units::{BlockAddr, Ino},
};

/// The content of one block.
pub(crate) enum FileBlock<'a> {
    /// A block that waits in memory.
    Waiting(&'a [u8]),
    /// A block of the device, or one that reads as zeroes.
    Stored(Arc<[u8]>),
}

/// The form in which a compressed cluster is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clusters {
    /// Its content.
    Decompressed,
    /// Its blocks as they are stored.
    Stored,
}

impl Deref for FileBlock<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            FileBlock::Waiting(bytes) => bytes,
            FileBlock::Stored(bytes) => bytes,
        }
    }
}

impl Files {
    /// Reads from a regular file, at most up to its end, and returns the number of bytes.
    pub(crate) fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inode = self.regular(ino)?;
        if !inode.has_advise(advise::VERITY) {
            return self.read_content(&inode, offset, buf);
        }
        let length = length_inside(&inode, offset, buf);
        self.read_checked(&inode, offset, &mut buf[..length])?;
        Ok(length)
    }

    /// Like [`read`](Self::read), but returns the encrypted bytes of an encrypted file. A compressed cluster of it has its
    /// stored blocks at the places of their addresses, behind a block of zeroes, and zeroes behind them.
    pub(crate) fn read_raw(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inode = self.regular(ino)?;
        let clusters = match inode.has_advise(advise::ENCRYPT) {
            true => Clusters::Stored,
            false => Clusters::Decompressed,
        };
        let length = length_inside(&inode, offset, buf);
        self.read_blocks_of(&inode, offset, &mut buf[..length], None, clusters)?;
        Ok(length)
    }

    /// Returns the ranges on the device, in bytes and in order, that hold `length` bytes of a regular file from
    /// `offset` on, at most up to the end of the file.
    pub(crate) fn ranges_on_device(
        &self,
        ino: Ino,
        offset: u64,
        length: u64,
    ) -> Result<Option<Vec<Range<u64>>>> {
        let inode = self.regular(ino)?;
        let end = inode.head().size.get().min(offset.saturating_add(length));
        let log = self.disk().superblock().block_size.log();
        let changed = || !self.pages.blocks_of(ino, offset >> log, end.div_ceil(1 << log)).is_empty();
        // What is decrypted or checked has to pass through here.
        let is_plain = !inode.has_advise(advise::ENCRYPT) && !inode.has_advise(advise::VERITY);
        if !is_plain || !self.pages.is_empty() && changed() {
            return Ok(None);
        }
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut at = offset;
        while at < end {
            let found = self.next_extent(ino, at)?.filter(|found| found.offset == at);
            let Some(Extent { length, physical: Some(start), kind: ExtentKind::Data, .. }) = found else {
                return Ok(None);
            };
            let range = start..start + length.min(end - at);
            let addr = BlockAddr((range.start >> log) as u32);
            let blocks = (range.end.div_ceil(1 << log) - u64::from(addr.0)) as usize;
            let place = Place::File(ino, at >> log);
            if !self.segments().are_on_device(addr, blocks, place) {
                return Ok(None);
            }
            at += range.end - range.start;
            match ranges.last_mut().filter(|last| last.end == range.start) {
                Some(last) => last.end = range.end,
                None => ranges.push(range),
            }
        }
        Ok(Some(ranges))
    }

    /// Reads from the content of an inode of any type, at most up to `i_size`.
    pub(crate) fn read_content(&self, inode: &NodeBlock, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let length = length_inside(inode, offset, buf);
        self.read_past_end(inode, offset, &mut buf[..length])?;
        Ok(length)
    }

    /// Fills `buf` from the content of an inode regardless of `i_size`: verity metadata lies past it.
    pub(super) fn read_past_end(&self, inode: &NodeBlock, offset: u64, buf: &mut [u8]) -> Result<()> {
        let cipher = self.content_cipher(inode)?;
        self.read_blocks_of(inode, offset, buf, cipher.as_deref(), Clusters::Decompressed)
    }

    /// Fills `buf` from the content of an inode, decrypted if there is a cipher, or else as stored.
    fn read_blocks_of(
        &self,
        inode: &NodeBlock,
        offset: u64,
        buf: &mut [u8],
        cipher: Option<&FileCipher>,
        clusters: Clusters,
    ) -> Result<()> {
        if inode.has_inline(inline::DATA) {
            let area = inode.inline_area();
            let from = area.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
            let there = buf.len().min(area.len() - from);
            buf[..there].copy_from_slice(&area[from..from + there]);
            buf[there..].fill(0);
            return Ok(());
        }
        let log = self.disk().superblock().block_size.log();
        let end = offset + buf.len() as u64;
        let limit = end.div_ceil(1 << log);
        let mut at = offset;
        while at < end {
            let block = at >> log;
            let rest = &mut buf[(at - offset) as usize..];
            let cluster = match clusters {
                Clusters::Decompressed => self.cluster(inode, block)?,
                Clusters::Stored => Cluster::Plain,
            };
            if let Cluster::Compressed { blocks, addrs } = cluster {
                let content = self.read_cluster(inode, blocks.start, &addrs, cipher)?;
                let inside = &content[(at - (blocks.start << log)) as usize..];
                let length = inside.len().min(rest.len());
                rest[..length].copy_from_slice(&inside[..length]);
                at += length as u64;
            } else {
                let run = self.run(inode, block, limit)?;
                let length = rest.len().min(((run.blocks.end << log) - at) as usize);
                match (clusters, run.addr) {
                    (Clusters::Stored, BlockAddr::COMPRESS) => rest[..length].fill(0),
                    _ => self.read_run(inode, &run, at, &mut rest[..length], cipher)?,
                }
                at += length as u64;
            }
        }
        self.overlay_pages(inode.ino(), offset, buf);
        Ok(())
    }

    /// Returns the content of one block of a directory, or `None` if it is a hole.
    pub(crate) fn dir_block(&self, inode: &NodeBlock, block: u64) -> Result<Option<FileBlock<'_>>> {
        if let Some(page) = self.pages.get(inode.ino(), block) {
            return Ok(Some(FileBlock::Waiting(page)));
        }
        let addr = self.address(inode, block)?;
        if addr == BlockAddr::NULL {
            return Ok(None);
        }
        if let Some(pending) = self.segments().pending(addr) {
            return Ok(Some(FileBlock::Waiting(pending)));
        }
        let bytes = match addr {
            BlockAddr::NEW => vec![0; self.disk().superblock().block_size.bytes()].into(),
            _ => self.segments().dir_block(addr, Place::File(inode.ino(), block))?,
        };
        Ok(Some(FileBlock::Stored(bytes)))
    }

    fn regular(&self, ino: Ino) -> Result<Arc<NodeBlock>> {
        let inode = self.nodes.inode(ino)?;
        match inode.file_type() {
            FileType::Regular => Ok(inode),
            FileType::Directory => Err(Error::IsDirectory),
            _ => Err(Error::Invalid("not a regular file".into())),
        }
    }

    /// Reads part of a run, from byte `at` of the file on.
    fn read_run(
        &self,
        inode: &NodeBlock,
        run: &Run,
        at: u64,
        buf: &mut [u8],
        cipher: Option<&FileCipher>,
    ) -> Result<()> {
        let place = |block: u64| Place::File(inode.ino(), block);
        if run.addr == BlockAddr::COMPRESS {
            return Err(Error::corrupt(
                place(run.blocks.start),
                "the mark of a compressed cluster inside a cluster",
            ));
        }
        if !run.addr.is_real() {
            buf.fill(0);
            return Ok(());
        }
        let (size, log) =
            (self.disk().superblock().block_size.bytes(), self.disk().superblock().block_size.log());
        let mut done = 0;
        while done < buf.len() {
            let block = (at + done as u64) >> log;
            let inside = (at + done as u64) as usize & (size - 1);
            let addr = BlockAddr(run.addr.0 + (block - run.blocks.start) as u32);
            let rest = &mut buf[done..];
            if inside == 0 && rest.len() >= size {
                let whole = rest.len() & !(size - 1);
                self.read_stored(inode, addr, place(block), block, &mut rest[..whole], cipher)?;
                done += whole;
            } else {
                let mut bytes = vec![0; size];
                self.read_stored(inode, addr, place(block), block, &mut bytes, cipher)?;
                let length = rest.len().min(size - inside);
                rest[..length].copy_from_slice(&bytes[inside..inside + length]);
                done += length;
            }
        }
        Ok(())
    }

    /// Reads whole adjacent blocks, of which `block` is the first one, and decrypts them if there is a cipher.
    pub(super) fn read_stored(
        &self,
        inode: &NodeBlock,
        addr: BlockAddr,
        place: Place,
        block: u64,
        buf: &mut [u8],
        cipher: Option<&FileCipher>,
    ) -> Result<()> {
        match inode.has_advise(advise::ENCRYPT) && inode.file_type() == FileType::Regular {
            true => self.segments().read_encrypted(addr, place, buf)?,
            false => self.segments().read_blocks(addr, place, buf)?,
        }
        if let Some(cipher) = cipher {
            cipher.decrypt_blocks(block, buf);
        }
        Ok(())
    }

    /// Reads and decompresses a cluster. Its blocks are encrypted under the numbers of the addresses that they are at: the
    /// first one is behind the mark.
    fn read_cluster(
        &self,
        inode: &NodeBlock,
        start: u64,
        addrs: &[BlockAddr],
        cipher: Option<&FileCipher>,
    ) -> Result<Vec<u8>> {
        let place = Place::File(inode.ino(), start);
        let size = self.disk().superblock().block_size.bytes();
        let mut stored = vec![0; addrs.len() * size];
        for ((bytes, addr), block) in stored.chunks_exact_mut(size).zip(addrs).zip(start + 1..) {
            self.read_stored(inode, *addr, place, block, bytes, cipher)?;
        }
        if inode.has_advise(advise::ENCRYPT) && cipher.is_none() {
            return Err(self.no_key(inode));
        }
        let settings = inode.compression().expect("a file with clusters is compressed");
        let mut content = vec![0; size << settings.log_cluster_blocks];
        cluster::decode(&settings, &stored, &mut content, place)?;
        Ok(content)
    }

    /// Copies dirty pages over content that was read from the device.
    fn overlay_pages(&self, ino: Ino, offset: u64, buf: &mut [u8]) {
        if self.pages.is_empty() || buf.is_empty() {
            return;
        }
        let log = self.disk().superblock().block_size.log();
        let end = offset + buf.len() as u64;
        for block in self.pages.blocks_of(ino, offset >> log, end.div_ceil(1 << log)) {
            let page = self.pages.get(ino, block).expect("it was listed");
            let start = (block << log).max(offset);
            let stop = ((block + 1) << log).min(end);
            let inside = (start - (block << log)) as usize;
            let length = (stop - start) as usize;
            buf[(start - offset) as usize..][..length].copy_from_slice(&page[inside..inside + length]);
        }
    }
}

/// Number of bytes of `buf` that are inside a file, from `offset` on.
fn length_inside(inode: &NodeBlock, offset: u64, buf: &[u8]) -> usize {
    let left = inode.head().size.get().saturating_sub(offset);
    buf.len().min(usize::try_from(left).unwrap_or(usize::MAX))
}
