//! Changes that repair findings, as data.

use f2fs::{
    format::{FileType, quota::QuotaKind},
    units::{BlockAddr, Ino, Nid, SegNo},
};

use crate::Content;

/// A place in a node: byte `at` of node `nid`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// The node.
    pub nid: Nid,
    /// Offset in bytes.
    pub at: usize,
}

/// Content of a block that a repair adds to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewBlock {
    /// The content of another block.
    Copy(BlockAddr),
    /// These bytes.
    Bytes(Vec<u8>),
}

/// One change of a repair. SIT, summaries, counts and checkpoint are computed anew after all changes, so
/// findings in them need no change of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fix {
    /// Sets the NAT entry of a node.
    Nat {
        /// The node.
        nid: Nid,
        /// The inode that it belongs to.
        ino: Ino,
        /// Its block.
        addr: BlockAddr,
    },
    /// Frees a nid: nothing is left of the node, or nothing can name it.
    Free(Nid),
    /// Sets the numbers in a node's footer.
    Footer {
        /// The node.
        nid: Nid,
        /// Its inode.
        ino: Ino,
        /// Its offset in the file.
        offset: u32,
    },
    /// Overwrites bytes of a node. An inode gets its checksum afterwards, even if there are no bytes.
    Node(Slot, Vec<u8>),
    /// Overwrites bytes of the entries of an inline directory, in its inode.
    InlineData(Slot, Vec<u8>),
    /// Overwrites bytes of a block of a directory, from a byte offset on.
    Data(BlockAddr, usize, Vec<u8>),
    /// Puts a new block at an address in a node.
    Block(Slot, NewBlock),
    /// Makes an empty node, in place of a lost one, and names it at a place in its parent. The next check attaches its
    /// children to it.
    Indirect {
        /// The place in the parent.
        slot: Slot,
        /// The inode.
        ino: Ino,
        /// Offset of the new node in the file.
        offset: u32,
    },
    /// Makes an inode in place of a lost one, with these bytes.
    Inode(Ino, Vec<u8>),
    /// Makes an empty node of addresses in place of a lost one, with its number. Other changes restore the addresses.
    Direct {
        /// The node.
        nid: Nid,
        /// Its inode.
        ino: Ino,
        /// Its offset in the file.
        offset: u32,
        /// Kind of the inode.
        kind: FileType,
    },
    /// Restores the fields of an inode that contradict each other; a directory entry tells the kind. If that
    /// fails, frees the inode.
    Mend(Ino, Option<FileType>),
    /// Computes the summary of a segment anew.
    Summary(SegNo),
    /// Moves the blocks of this content out of a segment.
    MoveOut {
        /// The segment.
        segment: SegNo,
        /// The content that moves.
        content: Content,
        /// Bytes of the blocks that move, with those of their nodes.
        bytes: usize,
    },
    /// Enters an inode into the orphan list.
    Orphan(Ino),
    /// Takes an inode out of the orphan list.
    NoOrphan(Ino),
    /// Makes the root directory, of which nothing is left.
    Root,
    /// Enters an inode without a name into its directory, or into lost+found.
    Attach(Ino),
    /// Enters a name again, at the place that its hash selects. If the directory has the name, it gets a suffix. If the
    /// directory is encrypted, the inode comes to lost+found then.
    Enter {
        /// The directory.
        dir: Ino,
        /// The name, as the directory stores it.
        name: Vec<u8>,
        /// Its hash, for an encrypted directory.
        hash: u32,
        /// Inode that it names.
        ino: Ino,
    },
    /// Replaces the records of a quota file.
    Quota {
        /// Users, groups or projects.
        kind: QuotaKind,
        /// The whole content.
        content: Vec<u8>,
    },
    /// Puts another number in place of the only impossible one in the newest pack.
    MendNewestPack,
    /// Counts the extensions in the lists of the first superblock.
    CountExtensions,
    /// Copies the second superblock over the first.
    TakeSecondSuperblock,
    /// Clears the errors that the superblocks record.
    ClearErrors,
    /// Clears the numbers of quota inodes in the superblocks.
    ClearQuotaInodes,
}

impl Fix {
    /// Bytes that the change holds beside itself.
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Fix::Node(_, bytes)
            | Fix::InlineData(_, bytes)
            | Fix::Data(_, _, bytes)
            | Fix::Block(_, NewBlock::Bytes(bytes))
            | Fix::Inode(_, bytes) => bytes.len(),
            Fix::Enter { name, .. } => name.len(),
            // A repair holds the blocks until it is written.
            Fix::MoveOut { bytes, .. } => *bytes,
            Fix::Quota { content, .. } => content.len(),
            _ => 0,
        }
    }
}
