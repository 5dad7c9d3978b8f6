//! Node blocks: inodes, direct nodes, indirect nodes and xattr nodes, with the footer that all of them have.
//!
//! A [`NodeBlock`] owns the bytes of one block. It comes from [`NodeBlock::check`], which compares the bytes
//! with the NAT entry and with the rules for inodes, or from one of the constructors; so every offset that
//! its accessors compute lies within the block. [`inode`](super::inode) has the accessors of inodes.

use std::fmt;

use zerocopy::{FromBytes, IntoBytes};

use super::{
    BlockSize, FileType,
    block_size::{INODE_NIDS, NODE_FOOTER_BYTES},
    crc::crc,
    superblock::{Features, Superblock},
};
use crate::{
    Error, Place, Result,
    units::{BlockAddr, Ino, Nid},
};

/// Raw bytes.
pub mod raw {
    use std::mem::size_of;

    use zerocopy::{
        FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
        little_endian::{U32, U64},
    };

    /// The end of every node block.
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(C)]
    pub struct NodeFooter {
        /// The node's own number.
        pub nid: U32,
        /// The inode that the node belongs to; an inode block has `nid == ino`.
        pub ino: U32,
        /// Bit 0 cold (no directory's node), bit 1 fsync, bit 2 dentry, from bit 3 on the node's offset in its file.
        pub flag: U32,
        /// Version of the checkpoint that was current when the block was written; the upper half may hold its
        /// checksum.
        pub cp_ver: U64,
        /// Address that the log was going to write next, for roll-forward recovery.
        pub next_blkaddr: U32,
    }

    const _: () = assert!(size_of::<NodeFooter>() == crate::format::block_size::NODE_FOOTER_BYTES);
}

/// Offset that marks an xattr node: all bits that the footer has for it.
pub const XATTR_NODE_OFFSET: u32 = u32::MAX >> OFFSET_SHIFT;

const COLD: u32 = 1;
const FSYNC: u32 = 2;
const DENTRY: u32 = 4;
const OFFSET_SHIFT: u32 = 3;

/// The footer of a node block, in this program's types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeFooter {
    /// The node's own number.
    pub nid: Nid,
    /// The inode that the node belongs to.
    pub ino: Ino,
    /// Set for nodes of everything but directories: which log the node goes to.
    pub cold: bool,
    /// Written by an fsync: roll-forward recovery counts it.
    pub fsync: bool,
    /// Recovery must make the directory entry too.
    pub dentry: bool,
    /// The node's offset in its file: 0 for the inode, 1 and 2 for its direct nodes, and so on.
    pub offset: u32,
    /// Version of the checkpoint that was current when the block was written; the upper half may hold its
    /// checksum.
    pub cp_ver: u64,
    /// Address that the log was going to write next.
    pub next_addr: BlockAddr,
}

impl NodeFooter {
    /// Reads the footer of an unchecked block, for roll-forward recovery.
    ///
    /// # Panics
    /// If `block` is shorter than a footer: a bug of the caller.
    #[must_use]
    pub fn of(block: &[u8]) -> NodeFooter {
        let (_, raw) = raw::NodeFooter::read_from_suffix(block).expect("a block is longer than a footer");
        let flag = raw.flag.get();
        NodeFooter {
            nid: Nid(raw.nid.get()),
            ino: Ino(raw.ino.get()),
            cold: flag & COLD != 0,
            fsync: flag & FSYNC != 0,
            dentry: flag & DENTRY != 0,
            offset: flag >> OFFSET_SHIFT,
            cp_ver: raw.cp_ver.get(),
            next_addr: BlockAddr(raw.next_blkaddr.get()),
        }
    }

    /// Returns true if the node is an inode.
    #[must_use]
    pub fn is_inode(&self) -> bool {
        self.nid.0 == self.ino.0
    }

    /// Writes the footer to the end of the bytes of a node block.
    ///
    /// # Panics
    /// If `block` is shorter than a footer: a bug of the caller.
    pub fn put(self, block: &mut [u8]) {
        let at = block.len() - NODE_FOOTER_BYTES;
        block[at..].copy_from_slice(self.to_raw().as_bytes());
    }

    /// Copies the bytes of a node block, and has their footer say that they are inode `ino`.
    ///
    /// # Panics
    /// If `block` is shorter than a footer: a bug of the caller.
    #[must_use]
    pub fn with_inode(block: &[u8], ino: Ino) -> Box<[u8]> {
        let mut copy: Box<[u8]> = block.into();
        NodeFooter { nid: ino.into(), ino, offset: 0, ..NodeFooter::of(block) }.put(&mut copy);
        copy
    }

    fn to_raw(self) -> raw::NodeFooter {
        let mark = |set: bool, bit: u32| if set { bit } else { 0 };
        raw::NodeFooter {
            nid: self.nid.0.into(),
            ino: self.ino.0.into(),
            flag: (mark(self.cold, COLD)
                | mark(self.fsync, FSYNC)
                | mark(self.dentry, DENTRY)
                | (self.offset << OFFSET_SHIFT))
                .into(),
            cp_ver: self.cp_ver.into(),
            next_blkaddr: self.next_addr.0.into(),
        }
    }
}

/// Properties that all node blocks of a volume share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeFormat {
    /// Size of a block.
    pub block_size: BlockSize,
    /// Features of the volume: they decide which fields of an inode exist.
    pub features: Features,
    /// Start of every inode checksum: the checksum of the volume's UUID.
    pub checksum_seed: u32,
}

impl NodeFormat {
    /// The node format of a volume.
    #[must_use]
    pub fn of(superblock: &Superblock) -> NodeFormat {
        NodeFormat::new(superblock.block_size, superblock.features, &superblock.uuid)
    }

    /// The node format of a volume with these properties.
    #[must_use]
    pub fn new(block_size: BlockSize, features: Features, uuid: &[u8; 16]) -> NodeFormat {
        NodeFormat { block_size, features, checksum_seed: crc(u32::MAX, uuid) }
    }
}

/// The owned bytes of one node block.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeBlock {
    bytes: Box<[u8]>,
    format: NodeFormat,
}

impl NodeBlock {
    /// Checks the bytes of a node block which, according to the NAT, is node `nid` of inode `ino` and lies at
    /// `addr`. Verifies the footer's numbers; for an inode, also the layout and the checksum (see
    /// [`inode`](super::inode)).
    ///
    /// # Errors
    /// [`Error::Corrupt`] at [`Place::Node`], with the field that is wrong.
    pub fn check(
        format: NodeFormat,
        bytes: Box<[u8]>,
        nid: Nid,
        ino: Ino,
        addr: BlockAddr,
    ) -> Result<NodeBlock> {
        assert_eq!(bytes.len(), format.block_size.bytes(), "a node block has the volume's block size");
        let node = NodeBlock { bytes, format };
        let at = Place::Node(nid, addr);
        let footer = node.footer();
        if footer.nid != nid {
            return Err(Error::corrupt(at, format!("the footer has {}", footer.nid)));
        }
        if footer.ino != ino {
            return Err(Error::corrupt(at, format!("the footer has {}, the NAT has {ino}", footer.ino)));
        }
        if footer.is_inode() {
            if footer.offset != 0 {
                return Err(Error::corrupt(at, format!("an inode with node offset {}", footer.offset)));
            }
            node.check_inode(at)?;
        } else if footer.offset == 0 {
            return Err(Error::corrupt(at, format!("node offset 0, but not the inode of {ino}")));
        }
        Ok(node)
    }

    /// Makes a node without content: direct, indirect or xattr node `nid` at `offset` in the file of `ino`.
    /// `kind` is the type of that file.
    #[must_use]
    pub fn new(format: NodeFormat, nid: Nid, ino: Ino, offset: u32, kind: FileType) -> NodeBlock {
        let bytes = vec![0; format.block_size.bytes()].into_boxed_slice();
        let mut node = NodeBlock { bytes, format };
        node.set_footer(NodeFooter {
            nid,
            ino,
            cold: kind != FileType::Directory,
            fsync: false,
            dentry: false,
            offset,
            cp_ver: 0,
            next_addr: BlockAddr::NULL,
        });
        node
    }

    /// All bytes of the block, to write them.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The properties that it shares with the volume's other nodes.
    #[must_use]
    pub fn format(&self) -> NodeFormat {
        self.format
    }

    /// The same bytes in a volume with other features or another UUID.
    #[must_use]
    pub(crate) fn in_format(&self, format: NodeFormat) -> NodeBlock {
        NodeBlock { bytes: self.bytes.clone(), format }
    }

    /// The footer.
    #[must_use]
    pub fn footer(&self) -> NodeFooter {
        NodeFooter::of(&self.bytes)
    }

    /// Replaces the footer.
    pub fn set_footer(&mut self, footer: NodeFooter) {
        footer.put(&mut self.bytes);
    }

    /// The node's number.
    #[must_use]
    pub fn nid(&self) -> Nid {
        self.footer().nid
    }

    /// The inode that the node belongs to.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.footer().ino
    }

    /// Returns true if this is an inode block.
    #[must_use]
    pub fn is_inode(&self) -> bool {
        let at = self.bytes.len() - NODE_FOOTER_BYTES;
        self.word(at) == self.word(at + 4)
    }

    /// Number of addresses in this node: for an inode as its layout allows, for a direct node the whole
    /// block. A compressed file uses fewer of a direct node, see
    /// [`InodeLayout::direct_addrs`](super::inode::InodeLayout::direct_addrs).
    #[must_use]
    pub fn addr_count(&self) -> usize {
        if self.is_inode() { self.layout().addrs() } else { self.format.block_size.node_addrs() }
    }

    /// Address `index` of an inode (counted from the first after the extra attributes) or direct node.
    ///
    /// # Panics
    /// If `index` is not below [`addr_count`](Self::addr_count): a bug of the caller.
    #[must_use]
    pub fn addr(&self, index: usize) -> BlockAddr {
        BlockAddr(self.word(self.addr_offset(index)))
    }

    /// Sets address `index`; see [`addr`](Self::addr).
    pub fn set_addr(&mut self, index: usize, addr: BlockAddr) {
        self.set_word(self.addr_offset(index), addr.0);
    }

    /// Addresses `range` in order; see [`addr`](Self::addr).
    #[must_use]
    pub fn addrs(&self, range: std::ops::Range<usize>) -> impl DoubleEndedIterator<Item = BlockAddr> + '_ {
        let (from, to) = if range.is_empty() {
            (0, 0)
        } else {
            (self.addr_offset(range.start), self.addr_offset(range.end - 1) + 4)
        };
        self.bytes[from..to].chunks_exact(4).map(|word| BlockAddr(u32::from_le_bytes(four(word))))
    }

    /// Child `index` of an indirect node, or nid `index` (0 to 4) of an inode: two direct, two indirect, one
    /// double indirect node.
    ///
    /// # Panics
    /// If there is no such child: a bug of the caller.
    #[must_use]
    pub fn child(&self, index: usize) -> Nid {
        Nid(self.word(self.child_offset(index)))
    }

    /// Sets child `index`; see [`child`](Self::child).
    pub fn set_child(&mut self, index: usize, nid: Nid) {
        self.set_word(self.child_offset(index), nid.0);
    }

    /// Returns the number of children of an indirect node, or five for an inode.
    #[must_use]
    pub fn child_count(&self) -> usize {
        if self.is_inode() { INODE_NIDS } else { self.format.block_size.node_addrs() }
    }

    /// Content of an xattr node: all bytes except the footer.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.bytes[..self.bytes.len() - NODE_FOOTER_BYTES]
    }

    /// See [`payload`](Self::payload).
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let end = self.bytes.len() - NODE_FOOTER_BYTES;
        &mut self.bytes[..end]
    }

    fn addr_offset(&self, index: usize) -> usize {
        let count = self.addr_count();
        assert!(index < count, "address {index} of {count}");
        if self.is_inode() { self.layout().addrs_at() + 4 * index } else { 4 * index }
    }

    fn child_offset(&self, index: usize) -> usize {
        let count = self.child_count();
        assert!(index < count, "child {index} of {count}");
        let nids_at = if self.is_inode() { self.format.block_size.inode_nids_at() } else { 0 };
        nids_at + 4 * index
    }

    pub(super) fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(four(&self.bytes[at..at + 4]))
    }

    pub(super) fn set_word(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl fmt::Debug for NodeBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeBlock").field("footer", &self.footer()).finish_non_exhaustive()
    }
}

fn four(bytes: &[u8]) -> [u8; 4] {
    bytes.try_into().expect("four bytes were cut")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(block_size: BlockSize) -> NodeFormat {
        NodeFormat::new(block_size, Features::default(), &[7; 16])
    }

    #[test]
    fn the_footer_is_the_last_24_bytes() {
        for size in [BlockSize::B4K, BlockSize::B16K] {
            let mut node = NodeBlock::new(format(size), Nid(9), Ino(4), XATTR_NODE_OFFSET, FileType::Regular);
            let mut footer = node.footer();
            footer.fsync = true;
            footer.cp_ver = 0x1122_3344_5566_7788;
            footer.next_addr = BlockAddr(0xABCD);
            node.set_footer(footer);
            assert_eq!(node.footer(), footer);
            let bytes = &node.bytes()[size.bytes() - 24..];
            assert_eq!(bytes[..8], [9, 0, 0, 0, 4, 0, 0, 0]);
            assert_eq!(bytes[8..12], 0xFFFF_FFFB_u32.to_le_bytes(), "offset 0x1FFFFFFF, fsync, cold");
            assert_eq!(bytes[20..], 0xABCD_u32.to_le_bytes());
        }
    }

    #[test]
    fn addresses_and_children_of_a_node_fill_it_up_to_the_footer() {
        for (size, words) in [(BlockSize::B4K, 1018), (BlockSize::B16K, 4090)] {
            let mut node = NodeBlock::new(format(size), Nid(9), Ino(4), 1, FileType::Directory);
            assert_eq!((node.addr_count(), node.child_count()), (words, words));
            let footer = node.footer();
            node.set_addr(words - 1, BlockAddr::NEW);
            node.set_child(0, Nid(77));
            assert_eq!(node.addr(words - 1), BlockAddr::NEW);
            assert_eq!(node.addr(0), BlockAddr(77), "addresses and children share the words");
            assert_eq!(node.addrs(0..words).filter(|addr| addr.0 != 0).count(), 2);
            assert_eq!(node.addrs(5..5).count(), 0);
            let last = 4 * (words - 1);
            assert_eq!(node.bytes()[last..last + 4], [0xFF; 4], "a reserved block's address is -1");
            node.set_addr(words - 1, BlockAddr::COMPRESS);
            assert_eq!(node.bytes()[last..last + 4], [0xFE, 0xFF, 0xFF, 0xFF], "a cluster's mark is -2");
            assert_eq!(node.footer(), footer);
        }
    }

    #[test]
    fn a_footer_that_disagrees_is_corrupt() {
        let format = format(BlockSize::B4K);
        let node = NodeBlock::new(format, Nid(9), Ino(4), 1, FileType::Directory);
        let check = |nid, ino| NodeBlock::check(format, node.bytes().into(), nid, ino, BlockAddr(5));
        assert!(check(Nid(9), Ino(4)).is_ok());
        let wrong_nid = check(Nid(8), Ino(4)).unwrap_err().to_string();
        assert_eq!(wrong_nid, "corrupt node 8 at block 5: the footer has node 9");
        assert!(check(Nid(9), Ino(5)).is_err());
        let root = NodeBlock::new(format, Nid(9), Ino(4), 0, FileType::Directory);
        assert!(NodeBlock::check(format, root.bytes().into(), Nid(9), Ino(4), BlockAddr(5)).is_err());
        let inode = NodeBlock::new(format, Nid(4), Ino(4), 1, FileType::Directory);
        assert!(NodeBlock::check(format, inode.bytes().into(), Nid(4), Ino(4), BlockAddr(5)).is_err());
    }
}
