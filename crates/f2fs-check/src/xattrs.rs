//! Extended attributes.

use f2fs::{
    Error, Place,
    format::{
        block_size::NODE_FOOTER_BYTES,
        xattr::{self, HEADER_BYTES},
    },
    units::Ino,
};

use crate::{Kind, checker::Checker};

impl Checker<'_> {
    /// Checks the attributes of an inode: the area in the inode, and the payload of the xattr node after it.
    pub fn check_xattrs(&mut self, ino: Ino, stream: &[u8]) {
        let at = Place::Xattr(ino);
        let entries = match xattr::entries(stream, at) {
            Ok(entries) => entries,
            Err(error) => return self.add(Kind::XattrInvalid, at, text(&error)),
        };
        let mut end = HEADER_BYTES;
        for entry in entries {
            match entry {
                Ok(entry) => end += entry.stored_bytes(),
                Err(error) => return self.add(Kind::XattrInvalid, at, text(&error)),
            }
        }
        let has_header = stream.first_chunk::<4>().is_some_and(|magic| *magic != [0; 4]);
        let rest = if has_header { stream.get(end..).unwrap_or(&[]) } else { &[] };
        if let Some(first) = rest.iter().position(|byte| *byte != 0) {
            let known = format!("byte {} after the last entry is not zero", end + first);
            self.add(Kind::XattrTail, at, known);
        }
    }

    /// Checks the attributes of an inode with an xattr node, given the node.
    pub fn check_xattr_node(&mut self, ino: Ino, bytes: &[u8]) {
        let Some(inode) = self.inode_of(ino) else { return };
        let payload = &bytes[..bytes.len() - NODE_FOOTER_BYTES];
        let stream = [inode.inline_xattrs(), payload].concat();
        self.check_xattrs(ino, &stream);
    }
}

fn text(error: &Error) -> String {
    match error {
        Error::Corrupt { what, .. } => what.to_string(),
        error => error.to_string(),
    }
}
