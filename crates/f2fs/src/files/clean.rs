//! Cleaning: blocks of files that move.

use super::{Files, map_write::Slot};
use crate::{
    Error, Place, Result,
    format::{inode::inline, node::NodeBlock, node_path::NodeKind, sit::SegmentType, summary::Owner},
    segments::log_for_data,
    units::{BlockAddr, Ino, SegNo},
};

impl Files {
    /// Moves a block of a file, whose content is `stored` if it was read already. Returns false if the file is pinned.
    pub(crate) fn move_data(
        &mut self,
        segment: SegNo,
        addr: BlockAddr,
        owner: Owner,
        stored: Option<&[u8]>,
    ) -> Result<bool> {
        let node = self.nodes.node(owner.nid)?;
        let (ino, index) = (node.ino(), usize::from(owner.offset));
        let block =
            self.block_of(&node, index)?.filter(|_| index < node.addr_count() && node.addr(index) == addr);
        let Some(block) = block else {
            let what = format!("{addr} is valid, but not address {index} of {}", owner.nid);
            return Err(Error::corrupt(Place::Ssa(segment), what));
        };
        drop(node);
        let inode = self.nodes.inode(ino)?;
        if inode.has_inline(inline::PIN) {
            return Ok(false);
        }
        let kind = log_for_data(self.options().active_logs, SegmentType::ColdData, inode.file_type());
        // Blocks of a compressed cluster move as they are, even if dirty pages are about to replace them.
        let page = self.pages.get(ino, block).filter(|_| inode.compression().is_none());
        let slot = Slot { nid: owner.nid, index, left: 1 };
        if let Some(page) = page {
            let (kind, page) = (self.log_of_data(&inode), page.to_vec());
            drop(inode);
            self.relocate(ino, slot, block, kind, &page)?;
            self.remove_page(ino, block);
            return Ok(true);
        }
        drop(inode);
        match stored {
            Some(bytes) => self.relocate_stored(ino, slot, block, kind, bytes)?,
            None => {
                let mut bytes = vec![0; self.geometry().block_size.bytes()];
                self.segments().read_blocks(addr, Place::File(ino, block), &mut bytes)?;
                self.relocate_stored(ino, slot, block, kind, &bytes)?
            }
        };
        Ok(true)
    }

    /// Returns the block number in the file that an address of a node stands for.
    fn block_of(&self, node: &NodeBlock, index: usize) -> Result<Option<u64>> {
        let layout = self.nodes.inode(Ino(node.ino().0))?.layout();
        let kind = NodeKind::of(self.geometry().block_size, node.footer().offset);
        let first = kind.and_then(|kind| kind.first_block(&layout));
        Ok(first.map(|first| first + index as u64))
    }
}
