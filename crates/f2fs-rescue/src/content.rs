//! Reading of the content of an inode: runs of data, targets of links, extended attributes.

use std::ops::Range;

use f2fs::{
    Error, Place, Result,
    format::{
        acl::Acl,
        cluster,
        inode::{advise, inline},
        node::XATTR_NODE_OFFSET,
        xattr::{self, index},
    },
    units::{BlockAddr, Nid},
};
use f2fs_tree::Xattr;

use crate::{
    judge::{Judge, Verdict},
    nodes::Inode,
    pieces::Piece,
};

/// Reads the content of one file.
pub(crate) struct Content<'a> {
    pub(crate) judge: Judge<'a>,
    pub(crate) inode: &'a Inode,
}

impl Content<'_> {
    fn block_bytes(&self) -> usize {
        self.judge.nodes.shape.block_size().bytes()
    }

    /// Size of the file in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.inode.node.head().size.get()
    }

    /// Content of a file whose data lies in the inode.
    pub(crate) fn inline(&self) -> Option<&[u8]> {
        let node = &self.inode.node;
        if !node.has_inline(inline::DATA) {
            return None;
        }
        let length = usize::try_from(self.size()).unwrap_or(usize::MAX);
        match node.has_inline(inline::DATA_EXIST) {
            true => node.inline_area().get(..length),
            false => Some(&[]),
        }
    }

    /// Reads the start of a run of blocks, at most as many as fit into `buf`, and returns their number. Stops
    /// before a block that cannot be read. Blocks that the scan could not read are not tried again: a failed read takes
    /// seconds on some devices.
    ///
    /// # Errors
    /// The reason why the first block is lost.
    pub(crate) fn read_run(
        &self,
        block: u64,
        addrs: Range<u32>,
        nid: Nid,
        index: u16,
        buf: &mut [u8],
    ) -> Result<usize> {
        let size = self.block_bytes();
        let most = addrs.len().min(buf.len() / size);
        let good = addrs
            .clone()
            .zip(index..)
            .take(most)
            .take_while(|(addr, index)| self.try_block(block, BlockAddr(*addr), nid, *index).is_ok());
        let count = good.count();
        if count == 0 {
            self.try_block(block, BlockAddr(addrs.start), nid, index)?;
        }
        let place = Place::File(self.inode.ino(), block);
        let first = BlockAddr(addrs.start);
        let whole = self.judge.nodes.shape.io.read(first, place, &mut buf[..count * size]);
        if whole.is_ok() || count <= 1 {
            return whole.map(|()| count);
        }
        // A sector in the run cannot be read: the blocks before it can.
        for (n, part) in (0..).zip(buf[..count * size].chunks_exact_mut(size)) {
            let read = self.judge.nodes.shape.io.read(BlockAddr(first.0 + n), place, part);
            if let Err(error) = read {
                return if n == 0 { Err(error) } else { Ok(n as usize) };
            }
        }
        Ok(count)
    }

    /// Returns an error for a block that is lost, by the evidence or by the scan.
    fn try_block(&self, block: u64, addr: BlockAddr, nid: Nid, index: u16) -> Result<()> {
        self.check(block, addr, nid, index)?;
        if self.judge.nodes.shape.is_unreadable(addr) {
            let source = std::io::Error::other(format!("the scan could not read {addr}"));
            return Err(Error::Io { at: Place::File(self.inode.ino(), block), source });
        }
        Ok(())
    }

    /// Reads a compressed cluster.
    pub(crate) fn read_cluster(&self, block: u64, addrs: &[u32], nid: Nid, index: u16) -> Result<Vec<u8>> {
        let place = Place::File(self.inode.ino(), block);
        let size = self.block_bytes();
        let mut stored = vec![0; addrs.len() * size];
        for ((addr, index), part) in addrs.iter().zip(index..).zip(stored.chunks_exact_mut(size)) {
            self.try_block(block, BlockAddr(*addr), nid, index)?;
            self.judge.nodes.shape.io.read(BlockAddr(*addr), place, part)?;
        }
        let settings = self.inode.node.compression();
        let settings =
            settings.ok_or_else(|| Error::corrupt(place, "a cluster in a file without compression"))?;
        let mut content = vec![0; size << settings.log_cluster_blocks];
        cluster::decode(&settings, &stored, &mut content, place)?;
        Ok(content)
    }

    fn check(&self, block: u64, addr: BlockAddr, nid: Nid, index: u16) -> Result<()> {
        let place = Place::File(self.inode.ino(), block);
        match self.judge.verdict(self.inode, addr, nid, index) {
            Verdict::Agreeing | Verdict::Unproven | Verdict::Contradicted | Verdict::Unreadable => Ok(()),
            Verdict::Reused => Err(Error::corrupt(place, format!("another file has reused {addr}"))),
            Verdict::Missing => Err(Error::corrupt(place, format!("{addr} is past the end of the image"))),
        }
    }

    /// Reads the target of a symbolic link.
    pub(crate) fn target(&self, pieces: &[Piece]) -> Result<Vec<u8>> {
        let bad = |what: &'static str| Error::corrupt(Place::Inode(self.inode.ino()), what);
        if self.inode.node.has_advise(advise::ENCRYPT) {
            return Err(Error::NoKey);
        }
        let length = usize::try_from(self.size()).unwrap_or(usize::MAX);
        let mut target = match (self.inline(), pieces.first()) {
            (Some(inline), _) => inline.to_vec(),
            (None, Some(Piece::Data { block: 0, addrs, nid, index })) if length <= self.block_bytes() => {
                let mut block = vec![0; self.block_bytes()];
                self.read_run(0, addrs.start..addrs.start + 1, *nid, *index, &mut block)?;
                block.truncate(length);
                block
            }
            _ => return Err(bad("the target of the symbolic link is lost")),
        };
        let end = target.iter().position(|byte| *byte == 0).unwrap_or(target.len());
        target.truncate(end);
        if target.is_empty() { Err(bad("a symbolic link without target")) } else { Ok(target) }
    }

    /// Reads all extended attributes that can be read, and the errors that hide others.
    pub(crate) fn xattrs(&self) -> (Vec<Xattr>, Vec<Error>) {
        let (mut found, mut damage) = (Vec::new(), Vec::new());
        let mut stream = self.inode.node.inline_xattrs().to_vec();
        let nid = self.inode.node.xattr_nid();
        if nid != Nid::NULL {
            match self.judge.nodes.child(self.inode, nid, XATTR_NODE_OFFSET) {
                Ok((node, _)) => stream.extend_from_slice(node.payload()),
                Err(error) => damage.push(error),
            }
        }
        // An entry that continues in a lost node is cut, which is already reported.
        let is_cut = !damage.is_empty();
        let place = Place::Xattr(self.inode.ino());
        let entries = match xattr::entries(&stream, place) {
            Ok(entries) => entries,
            Err(error) => {
                damage.push(error);
                return (found, damage);
            }
        };
        for entry in entries {
            let shown = entry.and_then(|entry| {
                let Some(name) = entry.full_name() else { return Ok(None) };
                let value = match entry.index {
                    index::ACL_ACCESS | index::ACL_DEFAULT => Acl::from_disk(entry.value, place)?.to_system(),
                    _ => entry.value.to_vec(),
                };
                Ok(Some(Xattr { name, value }))
            });
            match shown {
                Ok(shown) => found.extend(shown),
                Err(_) if is_cut => {}
                Err(error) => damage.push(error),
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found.dedup_by(|a, b| a.name == b.name);
        (found, damage)
    }
}
