//! Extended attributes as they are stored, in an inode and its xattr node.

use super::Nodes;
use crate::{
    Error, Place, Result,
    format::{
        node::{NodeBlock, XATTR_NODE_OFFSET},
        xattr::{self, Entry},
    },
    units::Nid,
};

impl Nodes {
    /// The value of an attribute as stored, by its index and short name; includes attributes that programs do not
    /// see.
    pub(crate) fn stored_xattr(&self, inode: &NodeBlock, index: u8, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let stream = self.xattr_stream(inode)?;
        for entry in xattr::entries(&stream, Place::Xattr(inode.ino()))? {
            let Entry { index: own_index, name: own_name, value } = entry?;
            if own_index == index && own_name == name {
                return Ok(Some(value.to_vec()));
            }
        }
        Ok(None)
    }

    /// All attributes as one stream: the inline area, then the xattr node.
    pub(crate) fn xattr_stream(&self, inode: &NodeBlock) -> Result<Vec<u8>> {
        let mut stream = inode.inline_xattrs().to_vec();
        let nid = inode.xattr_nid();
        if nid != Nid::NULL {
            let node = self.node(nid)?;
            let footer = node.footer();
            if footer.ino != inode.ino() || footer.offset != XATTR_NODE_OFFSET {
                let what = format!(
                    "{nid} is not its xattr node, but the node at offset {} of {}",
                    footer.offset, footer.ino
                );
                let error = Error::corrupt(Place::Xattr(inode.ino()), what);
                return self.disk().io().record_corruption(Err(error));
            }
            stream.extend_from_slice(node.payload());
        }
        Ok(stream)
    }
}
