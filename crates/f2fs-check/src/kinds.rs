//! Kinds of files: i_mode, beside the names and the content of an inode.
//!
//! One bit of i_mode makes a socket or a symbolic link of a file. A directory entry has the kind, too, and the content fits
//! only some kinds.

use f2fs::{
    Place,
    format::{
        FileType,
        block_size::INODE_NIDS,
        dentry::Dentry,
        inode::inline,
        node::{NodeBlock, NodeFooter},
        superblock::Features,
    },
    units::{BlockAddr, Ino, Nid},
};

use crate::{
    Certainty, Finding, Fix, Kind, Slot,
    areas::begins_with_dot,
    checker::{Checker, ODD_MAX},
    inodes::{BLOCKS, MODE},
    reader::parse_node,
    table::{Entry, fact},
};

/// Blocks that an inode without content can have: itself, and its xattr node.
const BLOCKS_WITHOUT_CONTENT: u64 = 2;
/// Blocks that a symbolic link can have: itself, its xattr node, and its target.
const BLOCKS_OF_SYMLINK: u64 = 3;
/// Permissions of every symbolic link.
pub const SYMLINK_PERMISSIONS: u16 = 0o777;

impl Checker<'_> {
    /// Returns true if the content of an inode contradicts its kind: a device, FIFO or socket with content, or a root that is
    /// no directory. Its names decide, in [`conclude_kinds`](Self::conclude_kinds).
    pub fn doubts_kind(&mut self, inode: &NodeBlock) -> bool {
        let is_root = inode.ino() == self.superblock.root_ino;
        let is_doubtful = match inode.file_type() {
            FileType::Directory => false,
            _ if is_root => self.begins_as_directory(inode),
            kind => is_special(kind) && has_content(inode),
        };
        let is_kept = is_doubtful && self.doubted_kinds.len() < ODD_MAX;
        if is_kept {
            self.doubted_kinds.insert(inode.ino());
        }
        is_kept
    }

    /// Returns true if the content of an inode contradicts its kind.
    pub fn is_doubted(&self, ino: Ino) -> bool {
        self.doubted_kinds.contains(&ino)
    }

    /// The kind of an invalid inode, according to a directory entry.
    pub fn named_kind(&self, ino: Ino) -> Option<FileType> {
        let is_root = ino == self.superblock.root_ino;
        if is_root { Some(FileType::Directory) } else { self.named.get(&ino).map(|named| named.kind) }
    }

    /// Decides on the kinds of inodes that their content contradicts.
    pub fn conclude_kinds(&mut self) {
        let mut doubted: Vec<Ino> = self.doubted_kinds.iter().copied().collect();
        doubted.sort_unstable();
        for ino in doubted {
            let Some(entry) = self.table.find(ino.into()) else { continue };
            let Ok(bytes) = self.cache.block(&self.io, self.table.addr(entry)) else { continue };
            let addr = self.table.addr(entry);
            let (Ok(inode), _) =
                parse_node(self.format, &NodeFooter::with_inode(&bytes, ino), ino.into(), addr)
            else {
                continue;
            };
            let own = inode.file_type();
            let named = self.named_kind(ino);
            // Without a name, the mark of cold nodes tells directories from files.
            let other = if inode.footer().cold { FileType::Regular } else { FileType::Directory };
            let kind = named.unwrap_or(other);
            if is_special(kind) {
                self.drop_content(&inode, own);
                continue;
            }
            let source = if named.is_some() { "its name says" } else { "it may be" };
            let known = format!("i_mode says {}, and it has content; {source} {}", own.name(), kind.name());
            self.set_kind(
                &inode,
                kind,
                known,
                if named.is_some() { Certainty::Likely } else { Certainty::Unclear },
            );
        }
    }

    /// Has the numbers of nodes in a device, FIFO or socket cleared, which its name confirms.
    fn drop_content(&mut self, inode: &NodeBlock, own: FileType) {
        let (nid, nids_at) = (inode.nid(), self.geometry.block_size.inode_nids_at());
        let known = format!("i_mode and its name say {}, and it has content", own.name());
        self.add(Kind::InodeInvalid, Place::Inode(inode.ino()), known);
        for index in (0..INODE_NIDS).filter(|index| inode.child(*index) != Nid::NULL) {
            self.fix(Fix::Node(Slot { nid, at: nids_at + 4 * index }, vec![0; 4]));
            self.unfound_nodes += 1;
        }
        let blocks = 1 + u64::from(inode.xattr_nid() != Nid::NULL);
        self.fix(Fix::Node(Slot { nid, at: BLOCKS }, blocks.to_le_bytes().to_vec()));
    }

    /// Has the kind of an inode set.
    fn set_kind(&mut self, inode: &NodeBlock, kind: FileType, known: String, certainty: Certainty) {
        let finding = Finding::new(Kind::InodeInvalid, Place::Inode(inode.ino()), known)
            .repaired_by(format!("set its kind to {}", kind.name()));
        self.report.add(finding.with_certainty(certainty));
        let mode = kind.mode_bits() | inode.head().mode.get() & 0o7777;
        self.fix(Fix::Node(Slot { nid: inode.nid(), at: MODE }, mode.to_le_bytes().to_vec()));
    }

    /// Decides between the kind of an entry and that of its inode, which differ. Returns true if the entry gets the kind of
    /// the inode.
    pub fn check_kind(
        &mut self,
        at: Place,
        entry: &Dentry<'_>,
        shown: &str,
        (found, kind): (Entry, FileType),
    ) -> bool {
        if self.is_doubted(entry.ino) {
            return false;
        }
        let is_invalid = self.table.has(found, fact::INVALID);
        let inode = if is_invalid { None } else { self.inode_of(entry.ino) };
        if let (Some(inode), Some(named)) = (inode, entry.kind) {
            if let Some(certainty) = self.named_is_right(&inode, found, kind, named) {
                let known = format!(
                    "i_mode says {}; its name says {}, which its content fits",
                    kind.name(),
                    named.name()
                );
                self.set_kind(&inode, named, known, certainty);
                if named == FileType::Directory {
                    self.table.note(found, fact::INVALID | fact::TAINTED);
                    self.quotas.give_up();
                }
                return false;
            }
        }
        let is_sealed = self.superblock.features.has(Features::INODE_CHECKSUM)
            && self.report.count(Kind::InodeChecksum) == 0;
        // Without a checksum, either of them may be damaged.
        let certainty =
            if is_sealed || entry.kind.is_none() { Certainty::Certain } else { Certainty::Unclear };
        let known = format!(
            "{shown} says {}, {} is {}",
            entry.kind.map_or("an unknown kind", FileType::name),
            entry.ino,
            kind.name()
        );
        self.report.add(Finding::new(Kind::DentryType, at, known).with_certainty(certainty));
        !is_invalid
    }

    /// The certainty that the kind in a name is right, and not that of the inode: the content fits only the one, or the inode
    /// has no right checksum and one bit makes the kind of the inode of that in the name.
    fn named_is_right(
        &mut self,
        inode: &NodeBlock,
        found: Entry,
        own: FileType,
        named: FileType,
    ) -> Option<Certainty> {
        match (self.fits(own, inode), self.fits(named, inode)) {
            // Two bits make a directory of a file; a name may be that of an earlier inode of the number.
            _ if own == FileType::Directory => None,
            (_, false) => None,
            // A regular file has other permissions, as a rule.
            (true, true) if own == FileType::Symlink => None,
            (false, true) => Some(Certainty::Likely),
            (true, true) if self.table.has(found, fact::UNSEALED) => Some(Certainty::Likely),
            (true, true) if self.superblock.features.has(Features::INODE_CHECKSUM) => None,
            (true, true) => {
                let bits_of_mode = (own.mode_bits() ^ named.mode_bits()).count_ones();
                let bits_of_code = (own.dentry_code() ^ named.dentry_code()).count_ones();
                (bits_of_mode == 1 && bits_of_code > 1).then_some(Certainty::Unclear)
            }
        }
    }

    /// Returns true if the content of an inode can be that of this kind.
    fn fits(&mut self, kind: FileType, inode: &NodeBlock) -> bool {
        let head = inode.head();
        match kind {
            FileType::Directory => self.begins_as_directory(inode),
            FileType::Regular => !self.begins_as_directory(inode),
            FileType::Symlink => {
                (1..=self.geometry.block_size.bytes() as u64).contains(&head.size.get())
                    && head.blocks.get() <= BLOCKS_OF_SYMLINK
                    && head.mode.get() & 0o777 == SYMLINK_PERMISSIONS
            }
            _ => head.size.get() == 0 && !has_content(inode) && !inode.has_inline(inline::DATA),
        }
    }

    /// Returns true if the first block of an inode, according to its first address, begins with the entry "." of the inode.
    pub fn begins_as_directory(&mut self, inode: &NodeBlock) -> bool {
        if inode.has_inline(inline::DATA) {
            return false;
        }
        let place = inode.layout().addrs_at();
        let stored = inode.bytes().get(place..place + 4).and_then(|bytes| bytes.try_into().ok());
        let addr = BlockAddr(stored.map_or(0, u32::from_le_bytes));
        self.segments.is_marked(addr) && self.is_first_of_directory(addr, inode.ino())
    }

    /// Returns true if a block begins with the entry "." of an inode.
    pub fn is_first_of_directory(&mut self, addr: BlockAddr, ino: Ino) -> bool {
        self.cache.block(&self.io, addr).is_ok_and(|block| begins_with_dot(&block, ino))
    }
}

/// Returns true for a kind without content.
fn is_special(kind: FileType) -> bool {
    !matches!(kind, FileType::Regular | FileType::Directory | FileType::Symlink)
}

/// Returns true if an inode names nodes, or counts blocks of content.
fn has_content(inode: &NodeBlock) -> bool {
    let names_nodes = (0..INODE_NIDS).any(|index| inode.child(index) != Nid::NULL);
    names_nodes || inode.head().blocks.get() > BLOCKS_WITHOUT_CONTENT
}
