//! Inodes: their fields, their content and their children.

use std::sync::Arc;

use f2fs::{
    Place,
    format::{
        FileType,
        inode::{advise, flag, inline},
        node::{NodeBlock, NodeFooter, XATTR_NODE_OFFSET},
        superblock::Features,
    },
    units::{BlockAddr, Ino, Nid},
};

use crate::{
    Certainty, Finding, Fix, Kind, Slot,
    checker::{Checker, ODD_MAX},
    encryption::has_content,
    links::Directory,
    names::has_encrypted_name,
    reader::{parse_node, with_other_bit},
    segments::Content,
    table::{Entry, fact},
};

/// Byte offset of i_mode.
pub const MODE: usize = 0;
/// Byte offset of i_advise.
pub const ADVISE: usize = 2;
/// Byte offset of i_inline.
pub const INLINE: usize = 3;
/// Byte offset of i_links.
pub const LINKS: usize = 12;
/// Byte offset of i_size.
pub const SIZE: usize = 16;
/// Byte offset of i_blocks.
pub const BLOCKS: usize = 24;
/// Byte offset of i_current_depth.
pub const DEPTH: usize = 72;
/// Byte offset of i_xattr_nid.
pub const XATTR_NID: usize = 76;
/// Byte offset of i_flags.
pub const FLAGS: usize = 80;
/// Byte offset of i_pino.
pub const PARENT: usize = 84;
/// Byte offset of the extent.
pub const EXTENT: usize = 348;
/// Byte offset of i_compr_blocks.
pub const SAVED_BLOCKS: usize = 384;
/// Byte offset of i_compress_algorithm, before i_log_cluster_size.
pub const ALGORITHM: usize = 392;

/// Byte offset of the extra attributes, which begin with their size.
pub const EXTRA: usize = 360;

impl Checker<'_> {
    /// Checks an inode block whose footer is right.
    pub fn check_inode(&mut self, nid: Nid, entry: Entry, addr: BlockAddr, bytes: &[u8]) {
        let (ino, at) = (Ino::from(nid), Place::Node(nid, addr));
        self.report.sums.inodes += 1;
        let (parsed, wrong_checksum) = parse_node(self.format, bytes, nid, addr);
        if (wrong_checksum.is_some() || parsed.is_err()) && self.corrects_bit(nid, entry, at, bytes) {
            return;
        }
        if let Some(what) = wrong_checksum {
            self.add(Kind::InodeChecksum, at, what);
            self.fix(Fix::Node(Slot { nid, at: 0 }, Vec::new()));
            self.table.note(entry, fact::UNSEALED);
        }
        let inode = match parsed {
            Ok(inode) => inode,
            Err(error) => {
                self.invalid_inode(entry, at, bytes, &error);
                return;
            }
        };
        let head = inode.head();
        self.table.set_kind(entry, inode.file_type());
        self.table.take_links(entry, 0u32.wrapping_sub(head.links.get()));
        // The rules bound i_blocks to 32 bits. The inode is the first of them.
        self.table.take_blocks(entry, 1u32.wrapping_sub(head.blocks.get() as u32));
        if self.doubts_kind(&inode)
            || self.is_marked_inline_by_mistake(&inode, at)
            || self.has_wrong_layout(&inode, at)
        {
            self.table.note(entry, fact::INVALID | fact::TAINTED);
            self.quotas.give_up();
            return;
        }
        if !self.table.has(entry, fact::HIDDEN) {
            self.quotas.charge(&inode);
        }
        self.note_encryption_of_parent(&inode);
        if inode.is_directory() {
            self.report.sums.directories += 1;
            self.table.take_links(entry, 1);
            self.directories.push(Directory::new(ino));
        }
        if let Some(saved) = inode.saved_blocks().filter(|_| inode.compression().is_some()) {
            if self.saved.len() < ODD_MAX && !inode.has_inline(inline::COMPRESS_RELEASED) {
                *self.saved.entry(ino).or_default() += i64::try_from(saved).unwrap_or(i64::MAX / 2);
            }
        }
        if inode.xattr_nid() == Nid::NULL {
            self.check_xattrs(&inode, None, inode.inline_xattrs());
        } else {
            self.expect(inode.xattr_nid(), XATTR_NODE_OFFSET, ino, at, Slot { nid, at: XATTR_NID });
        }
        if is_alias(&inode, self.format.features) {
            self.claim_alias(entry, ino, &inode);
            return;
        }
        self.check_reserved(&inode, at);
        self.check_unmarked(&inode, at);
        let extent = inode.head().extent;
        if extent.len.get() > 0 && self.extents.len() < ODD_MAX {
            self.extents.insert(ino, extent.len.get());
        }
        if has_map(&inode) {
            self.note_layout(&inode);
            self.check_addresses(&inode, nid, entry, 0, inode.layout().addrs());
        }
        self.expect_children(&inode, at);
    }

    /// Expects the nodes that an inode names.
    fn expect_children(&mut self, inode: &NodeBlock, at: Place) {
        let n = self.geometry.block_size.node_addrs() as u32;
        let nids_at = self.geometry.block_size.inode_nids_at();
        for (index, offset) in [1, 2, 3, 4 + n, 5 + 2 * n].into_iter().enumerate() {
            let child = inode.child(index);
            if child == Nid::NULL {
                continue;
            }
            let slot = Slot { nid: inode.nid(), at: nids_at + 4 * index };
            match has_map(inode) {
                true => self.expect(child, offset, inode.ino(), at, slot),
                false => self.drop_child_of_inode_without_addresses(child, at, slot),
            }
        }
    }

    /// Has a bit corrected with which the checksum of an inode is right. Returns true if there is one; the next check reads
    /// the rest.
    fn corrects_bit(&mut self, nid: Nid, entry: Entry, at: Place, bytes: &[u8]) -> bool {
        let has_checksums = self.format.features.has(Features::INODE_CHECKSUM);
        let corrected = has_checksums.then(|| with_other_bit(self.format, bytes)).flatten();
        let Some((corrected, byte)) = corrected else { return false };
        let (Ok(inode), None) = parse_node(self.format, &corrected, nid, BlockAddr::NULL) else {
            return false;
        };
        let known = format!("its checksum is right with another bit in byte {byte}");
        let finding = Finding::new(Kind::InodeChecksum, at, known).repaired_by("correct the bit");
        self.report.add(finding.with_certainty(Certainty::Certain));
        self.fix(Fix::Node(Slot { nid, at: byte }, vec![corrected[byte]]));
        self.table.set_kind(entry, inode.file_type());
        self.table.note(entry, fact::INVALID | fact::TAINTED);
        self.quotas.give_up();
        true
    }

    /// Notes if the parent of an inode is encrypted, on a volume with encryption: all that is made in an encrypted directory has
    /// an encrypted name, and is encrypted if it has content.
    fn note_encryption_of_parent(&mut self, inode: &NodeBlock) {
        if !self.has_encryption() || inode.has_advise(advise::LOST_PINO) {
            return;
        }
        let parents = match (has_encrypted_name(inode), inode.has_advise(advise::ENCRYPT)) {
            (true, _) => &mut self.parents.encrypted,
            (false, false) if has_content(inode) => &mut self.parents.plain,
            _ => return,
        };
        if parents.len() < ODD_MAX {
            parents.insert(Ino(inode.head().pino.get()));
        }
    }

    /// Reports a node of an inode whose content has no addresses: Linux does not read the number.
    fn drop_child_of_inode_without_addresses(&mut self, child: Nid, at: Place, slot: Slot) {
        self.add(Kind::NodeChild, at, format!("it names {child}, and its content has no addresses"));
        self.taint(Ino::from(slot.nid));
        self.fix(Fix::Node(slot, vec![0; 4]));
        self.unfound_nodes += 1;
    }

    /// Returns true if an inode is marked as inline although its first address names a block whose summary names the inode:
    /// then the mark is wrong. Has the mark cleared.
    fn is_marked_inline_by_mistake(&mut self, inode: &NodeBlock, at: Place) -> bool {
        let marks = inline::DATA | inline::DENTRY;
        let own = match inode.has_inline(marks) {
            true => self.own_first_block(inode.nid(), inode.bytes(), inode.layout().addrs_at()),
            false => None,
        };
        if let Some(addr) = own {
            let known =
                format!("it is marked as inline; its first address names {addr}, whose summary names it");
            let finding = Finding::new(Kind::InlineReserved, at, known).repaired_by("clear the mark");
            self.report.add(finding.with_certainty(Certainty::Likely));
            let flags = inode.head().inline & !(marks | inline::DATA_EXIST);
            self.fix(Fix::Node(Slot { nid: inode.nid(), at: INLINE }, vec![flags]));
        }
        own.is_some()
    }

    /// Returns the first address of an inode, at a byte, if its block is in use and its summary names the inode.
    pub fn own_first_block(&mut self, nid: Nid, bytes: &[u8], at: usize) -> Option<BlockAddr> {
        let (addr, index) = self.own_address(nid, bytes, at)?;
        (index == 0 && self.segments.is_marked(addr)).then_some(addr)
    }

    /// Returns the word at a byte of an inode as an address, with its index by the summary, if that names the inode.
    pub fn own_address(&mut self, nid: Nid, bytes: &[u8], at: usize) -> Option<(BlockAddr, usize)> {
        let addr = address_at(bytes, at);
        if !self.geometry.in_main(addr) {
            return None;
        }
        let owned = self.summaries.owner(&self.io, addr)?;
        let is_own = owned.content == Content::Data && owned.owner.nid == nid;
        is_own.then_some((addr, usize::from(owned.owner.offset)))
    }

    /// Checks the address that inline content leaves free: the content moves there when it outgrows the inode.
    fn check_reserved(&mut self, inode: &NodeBlock, at: Place) {
        if !inode.has_inline(inline::DATA | inline::DENTRY) {
            return;
        }
        let slot = Slot { nid: inode.nid(), at: inode.layout().addrs_at() };
        let stored = inode.bytes().get(slot.at..slot.at + 4).unwrap_or(&[]);
        if stored.iter().any(|byte| *byte != 0) {
            let known = format!("the address before inline content is {stored:02x?}");
            let finding = Finding::new(Kind::InlineReserved, at, known);
            // It may be part of extra attributes whose size is wrong.
            let is_certain = self.is_usual_extra(slot.at - EXTRA);
            self.report.add(match is_certain {
                true => finding,
                false => finding.with_certainty(Certainty::Unclear),
            });
            self.fix(Fix::Node(slot, vec![0; 4]));
        }
    }

    /// Checks that there is no inline data without the flag for it. Linux reads such data, but drops it when the content
    /// outgrows the inode.
    fn check_unmarked(&mut self, inode: &NodeBlock, at: Place) {
        if !inode.has_inline(inline::DATA) || inode.has_inline(inline::DATA_EXIST) {
            return;
        }
        if let Some(byte) = inode.inline_area().iter().position(|byte| *byte != 0) {
            self.add(Kind::InlineUnmarked, at, format!("byte {byte} of the inline data is not zero"));
            let flags = inode.head().inline | inline::DATA_EXIST;
            self.fix(Fix::Node(Slot { nid: inode.nid(), at: INLINE }, vec![flags]));
        }
    }

    /// Claims the blocks of a file that stands for a device: a single extent.
    fn claim_alias(&mut self, entry: Entry, ino: Ino, inode: &NodeBlock) {
        let extent = inode.head().extent;
        for n in 0..extent.len.get() {
            let addr = BlockAddr(extent.blk.get().wrapping_add(n));
            if !self.geometry.in_main(addr) {
                let known = format!("its extent names {addr}, outside the main area");
                self.add(Kind::BlockAddress, Place::File(ino, n.into()), known);
                break;
            }
            if self.segments.claim(addr, Content::Data) {
                // Files that share a device must not multiply the work.
                self.claimed_again(addr, format!("{ino}"), None);
                self.taint(ino);
                break;
            }
            self.table.take_blocks(entry, 1);
            self.report.sums.blocks += 1;
        }
    }

    /// Returns an inode by its number, with the footer and checksum that it should have. `None` if it cannot
    /// be used.
    pub fn inode_of(&mut self, ino: Ino) -> Option<Arc<NodeBlock>> {
        if let Some(last) = self.last_inode.as_ref().filter(|last| last.ino() == ino) {
            return Some(last.clone());
        }
        let entry = self.table.find(ino.into())?;
        if self.table.has(entry, fact::BROKEN | fact::INVALID) {
            return None;
        }
        let addr = self.table.addr(entry);
        let bytes = self.cache.block(&self.io, addr).ok()?;
        let (parsed, _) = parse_node(self.format, &NodeFooter::with_inode(&bytes, ino), ino.into(), addr);
        let inode = Arc::new(parsed.ok()?);
        self.last_inode = Some(inode.clone());
        Some(inode)
    }
}

/// Returns the word at a byte of an inode as an address; outside the block there is none.
pub fn address_at(bytes: &[u8], at: usize) -> BlockAddr {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(BlockAddr::NULL, |word| BlockAddr(u32::from_le_bytes(word)))
}

/// Returns true if blocks may lie past the end of a file.
pub fn may_pass_end(inode: &NodeBlock) -> bool {
    inode.has_advise(advise::PAST_END | advise::VERITY) || inode.has_inline(inline::PIN)
}

/// Returns true if the address area of an inode holds block addresses.
pub fn has_map(inode: &NodeBlock) -> bool {
    !inode.has_inline(inline::DATA | inline::DENTRY)
        && matches!(inode.file_type(), FileType::Regular | FileType::Directory | FileType::Symlink)
}

/// Returns true if a file stands for a device and has no addresses.
pub fn is_alias(inode: &NodeBlock, features: Features) -> bool {
    inode.has_flag(flag::DEVICE_ALIAS) && features.has(Features::DEVICE_ALIAS)
}
