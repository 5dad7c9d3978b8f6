//! Extended attributes.

use f2fs::{
    Error, Place,
    format::{
        NodeBlock,
        block_size::NODE_FOOTER_BYTES,
        inode::{advise, inline},
        superblock::Features,
        verity,
        xattr::{self, ENCRYPTION_NAME, HEADER_BYTES, index},
    },
    units::{Ino, Nid},
};

use crate::{
    Finding, Fix, Kind, Loss, Slot, checker::Checker, encryption::Attribute, inodes::has_map, table::fact,
};

/// Bytes of the numbers at the begin of a footer, which three structures tell.
const FOOTER_NUMBERS: usize = 8;

impl Checker<'_> {
    /// Checks the attributes of an inode: the area in the inode, and the payload of the xattr node after it.
    ///
    /// `node` is the xattr node, if there is one.
    pub fn check_xattrs(&mut self, inode: &NodeBlock, node: Option<Nid>, stream: &[u8]) {
        let at = Place::Xattr(inode.ino());
        let entries = match xattr::entries(stream, at) {
            Ok(entries) => entries,
            Err(error) => {
                self.add(Kind::XattrInvalid, at, text(&error));
                return self.restore_header(inode, node, stream);
            }
        };
        let mut end = HEADER_BYTES;
        let (mut context, mut descriptor) = (Attribute::Absent, Attribute::Absent);
        for entry in entries {
            match entry {
                Ok(entry) => {
                    end += entry.stored_bytes();
                    if (entry.index, entry.name) == (index::ENCRYPTION, ENCRYPTION_NAME) {
                        context = Attribute::Present;
                    }
                    if (entry.index, entry.name) == (index::VERITY, verity::ATTRIBUTE) {
                        descriptor = Attribute::Present;
                    }
                }
                Err(error) => {
                    self.add(Kind::XattrInvalid, at, text(&error));
                    self.lose(Loss::Xattrs);
                    return self.clear_xattrs(inode, node, stream, end);
                }
            }
        }
        if let Some(first) = stream.get(end..).unwrap_or(&[]).iter().position(|byte| *byte != 0) {
            let known = format!("byte {} after the last entry is not zero", end + first);
            self.add(Kind::XattrTail, at, known);
            self.lose(Loss::Xattrs);
            self.clear_xattrs(inode, node, stream, end);
        } else if end > HEADER_BYTES && stream[..4] == [0; 4] {
            let finding = Finding::new(Kind::XattrInvalid, at, "the header before the entries is zero");
            self.report.add(finding.repaired_by("restore the header"));
            self.put_xattrs(inode, node, 0, &xattr::header());
        } else if stream.iter().all(|byte| *byte == 0) && self.had_xattrs(inode) {
            self.lose(Loss::Xattrs);
        }
        self.check_mark(inode, context);
        self.check_seal(inode, descriptor);
    }

    /// Returns true if an inode without attributes may have had some: the sector of them and of the footer is zeroes, or the file
    /// is sealed, and has blocks for the tree of hashes.
    fn had_xattrs(&self, inode: &NodeBlock) -> bool {
        let bytes = inode.bytes();
        let (before, footer) = bytes.split_at(bytes.len() - NODE_FOOTER_BYTES);
        let sector = &before[bytes.len() - block::ATOMIC_BYTES..];
        let is_mended = self.table.find(inode.nid()).is_some_and(|entry| self.table.has(entry, fact::MENDED));
        let is_blank = sector.iter().chain(&footer[FOOTER_NUMBERS..]).all(|byte| *byte == 0);
        let is_sealed = inode.has_advise(advise::VERITY) && self.format.features.has(Features::VERITY);
        inode.has_inline(inline::XATTR) && is_mended && is_blank || is_sealed && has_map(inode)
    }

    /// Restores the header of a stream if entries follow it; otherwise clears the stream.
    fn restore_header(&mut self, inode: &NodeBlock, node: Option<Nid>, stream: &[u8]) {
        let mut restored = stream.to_vec();
        if restored.len() < HEADER_BYTES {
            return self.clear_xattrs(inode, node, stream, 0);
        }
        restored[..HEADER_BYTES].copy_from_slice(&xattr::header());
        let entries = xattr::entries(&restored, Place::Volume).map(|entries| entries.collect::<Vec<_>>());
        let is_good = entries.is_ok_and(|entries| !entries.is_empty() && entries.iter().all(Result::is_ok));
        if is_good {
            self.put_xattrs(inode, node, 0, &xattr::header());
        } else {
            self.lose(Loss::Xattrs);
            self.clear_xattrs(inode, node, stream, 0);
        }
    }

    fn clear_xattrs(&mut self, inode: &NodeBlock, node: Option<Nid>, stream: &[u8], from: usize) {
        if let Some(rest) = stream.len().checked_sub(from) {
            self.put_xattrs(inode, node, from, &vec![0; rest]);
        }
    }

    /// Overwrites bytes of a stream, which lie in the inode and after that in the node.
    fn put_xattrs(&mut self, inode: &NodeBlock, node: Option<Nid>, from: usize, bytes: &[u8]) {
        let inline = if inode.has_inline(inline::XATTR) { inode.layout().inline_xattr_range() } else { 0..0 };
        let in_inode = inline.len().saturating_sub(from).min(bytes.len());
        if in_inode > 0 {
            let slot = Slot { nid: inode.nid(), at: inline.start + from };
            self.fix(Fix::Node(slot, bytes[..in_inode].to_vec()));
        }
        if let (Some(nid), true) = (node, in_inode < bytes.len()) {
            let at = from + in_inode - inline.len();
            self.fix(Fix::Node(Slot { nid, at }, bytes[in_inode..].to_vec()));
        }
    }

    /// Checks the attributes of an inode with an xattr node, given the node.
    pub fn check_xattr_node(&mut self, ino: Ino, nid: Nid, bytes: &[u8]) {
        let Some(inode) = self.inode_of(ino) else { return };
        let payload = &bytes[..bytes.len() - NODE_FOOTER_BYTES];
        let stream = [inode.inline_xattrs(), payload].concat();
        self.check_xattrs(&inode, Some(nid), &stream);
    }
}

fn text(error: &Error) -> String {
    match error {
        Error::Corrupt { what, .. } => what.to_string(),
        error => error.to_string(),
    }
}
