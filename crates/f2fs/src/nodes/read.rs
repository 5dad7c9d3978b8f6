//! Reading nodes.

use std::sync::Arc;

use super::Nodes;
use crate::{
    Error, Place, Result,
    format::node::NodeBlock,
    units::{Ino, Nid},
};

impl Nodes {
    /// Returns a node, checked against its NAT entry; see [`NodeBlock::check`].
    pub(crate) fn node(&self, nid: Nid) -> Result<Arc<NodeBlock>> {
        if let Some(node) = self.cache.get(nid) {
            return Ok(node);
        }
        let node = Arc::new(self.read_node(nid)?);
        self.cache.insert_clean(nid, node.clone());
        Ok(node)
    }

    /// Returns an inode; a node of any other kind is an error.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<NodeBlock>> {
        let node = self.node(ino.into())?;
        if !node.is_inode() {
            let what = format!("its node belongs to {}", node.ino());
            return self.disk().io().record_corruption(Err(Error::corrupt(Place::Inode(ino), what)));
        }
        Ok(node)
    }

    /// Returns true if a nid belongs to an inode. A stale handle may name a nid that does not; that is no
    /// damage.
    pub(crate) fn is_inode(&self, ino: Ino) -> Result<bool> {
        let nid = Nid::from(ino);
        if nid == Nid::NULL || nid >= self.disk().geometry().nids_end() {
            return Ok(false);
        }
        let entry = self.nat_entry(nid)?;
        Ok(!entry.is_free() && entry.ino == ino)
    }

    fn read_node(&self, nid: Nid) -> Result<NodeBlock> {
        let entry = self.nat_entry(nid)?;
        if nid == Nid::NULL || !entry.addr.is_real() {
            return Err(Error::corrupt(Place::Nat(nid), "a node in use has no address"));
        }
        let disk = self.disk();
        let mut bytes = vec![0; disk.geometry().block_size.bytes()].into_boxed_slice();
        self.segments.read_blocks(entry.addr, Place::Nat(nid), &mut bytes)?;
        disk.io().record_corruption(NodeBlock::check(disk.node_format(), bytes, nid, entry.ino, entry.addr))
    }
}
