//! Roll-forward recovery of the content of files.

use super::{Files, map_write::Slot};
use crate::{
    Error, Place, Result,
    format::{
        FileType, bits,
        inode::{advise, inline},
        node::NodeBlock,
        node_path::NodeKind,
        sit::SegmentType,
        summary::Owner,
    },
    units::{BlockAddr, Ino, Nid, SegNo},
};

impl Files {
    /// Recovers the inline data or the addresses of a node (Linux, `do_recover_data`).
    pub(crate) fn recover_content(&mut self, ino: Ino, from: &NodeBlock) -> Result<()> {
        if from.is_inode() && (self.recover_inline_data(ino, from)? || !has_map(from)) {
            return Ok(());
        }
        let layout = self.nodes.inode(ino)?.layout();
        let kind = NodeKind::of(self.geometry().block_size, from.footer().offset);
        let Some(first) = kind.and_then(|kind| kind.first_block(&layout)) else { return Ok(()) };
        let count =
            if from.is_inode() { layout.addrs().min(from.addr_count()) } else { layout.direct_addrs() };
        for index in 0..count {
            self.recover_address(ino, first + index as u64, from.addr(index))?;
        }
        Ok(())
    }

    fn recover_address(&mut self, ino: Ino, block: u64, to: BlockAddr) -> Result<()> {
        let slot = self.slot(ino, block)?;
        let now = match slot {
            Some(slot) => self.nodes.node(slot.nid)?.addr(slot.index),
            None => BlockAddr::NULL,
        };
        if now == to {
            return Ok(());
        }
        if now != BlockAddr::NULL {
            self.free_blocks(ino, block..block + 1)?;
        }
        if to == BlockAddr::NULL {
            return Ok(());
        }
        let inode = self.nodes.inode(ino)?;
        let log = self.geometry().block_size.log();
        let grows = !inode.has_advise(advise::KEEP_SIZE) && inode.head().size.get() <= block << log;
        drop(inode);
        if grows {
            self.nodes.inode_mut(ino)?.head_mut().size.set((block + 1) << log);
        }
        let slot = self.make_slot(ino, block)?;
        if to.is_real() {
            self.take_recovered(ino, block, slot, now, to)?;
        } else if to != BlockAddr::NEW {
            return Err(Error::corrupt(
                Place::File(ino, block),
                "compressed clusters are not rolled forward",
            ));
        }
        self.drop_extent(ino)?;
        self.nodes.node_mut(slot.nid)?.set_addr(slot.index, to);
        self.segments_mut().count_blocks(1);
        self.add_blocks(ino, 1)
    }

    /// Assigns a block written after the checkpoint, `addr`, to a file that has `old` in its place.
    fn take_recovered(
        &mut self,
        ino: Ino,
        block: u64,
        slot: Slot,
        old: BlockAddr,
        addr: BlockAddr,
    ) -> Result<()> {
        if !self.geometry().in_main(addr) {
            return Err(Error::corrupt(Place::File(ino, block), format!("{addr} is not in the main area")));
        }
        let (segment, offset) = self.geometry().position(addr);
        let entry = self.segments_mut().segment(segment)?;
        if bits::msb(&entry.map, usize::from(offset)) {
            self.take_from_owner(addr, segment, offset)?;
            if bits::msb(&self.segments_mut().segment(segment)?.map, usize::from(offset)) {
                let what = format!("{addr} belongs to a node of another inode");
                return Err(Error::corrupt(Place::File(ino, block), what));
            }
        }
        let kind = match entry.valid_blocks {
            0 if old == BlockAddr::NULL => SegmentType::ColdData,
            0 => SegmentType::WarmData,
            _ if entry.kind.is_node() => {
                let what = format!("{addr} is in a segment of nodes");
                return Err(Error::corrupt(Place::File(ino, block), what));
            }
            _ => entry.kind,
        };
        self.segments_mut().take_recovered(addr, kind)?;
        let version = self.nodes.version(slot.nid)?;
        self.segments_mut().set_owner(
            segment,
            offset,
            Owner { nid: slot.nid, version, offset: slot.index as u16 },
        )
    }

    /// Takes a block away from its old owner, because it now belongs to another one.
    fn take_from_owner(&mut self, addr: BlockAddr, segment: SegNo, offset: u16) -> Result<()> {
        let at = Place::Ssa(segment);
        let owner = self.segments().summary(segment)?.owners[usize::from(offset)];
        let node = self.nodes.node(owner.nid)?;
        let index = usize::from(owner.offset);
        let holds =
            (!node.is_inode() || has_map(&node)) && index < node.addr_count() && node.addr(index) == addr;
        if !holds {
            return Err(Error::corrupt(at, format!("{addr} is valid, but not in {}", owner.nid)));
        }
        let (ino, footer) = (node.ino(), node.footer());
        drop(node);
        let layout = self.nodes.inode(ino)?.layout();
        let first = NodeKind::of(self.geometry().block_size, footer.offset)
            .and_then(|kind| kind.first_block(&layout));
        let first = first.ok_or_else(|| Error::corrupt(at, format!("{} holds no addresses", owner.nid)))?;
        let block = first + index as u64;
        self.free_blocks(ino, block..block + 1)
    }

    /// Recovers inline data, or its absence. Returns true if the inode now holds the whole content (Linux,
    /// `f2fs_recover_inline_data`).
    fn recover_inline_data(&mut self, ino: Ino, from: &NodeBlock) -> Result<bool> {
        let was = self.nodes.inode(ino)?.has_inline(inline::DATA);
        let is = from.has_inline(inline::DATA);
        if is && !was {
            self.free_from(ino, 0)?;
        }
        let inode = self.nodes.inode_mut(ino)?;
        if was && !is {
            inode.inline_area_mut().fill(0);
            inode.head_mut().inline &= !(inline::DATA | inline::DATA_EXIST);
        }
        if is {
            let bits = from.head().inline & (inline::DATA | inline::DATA_EXIST);
            inode.head_mut().inline |= bits;
            let area = inode.inline_area_mut();
            let source = from.inline_area();
            if area.len() != source.len() {
                return Err(Error::corrupt(Place::Inode(ino), "its space for inline data has another size"));
            }
            area.copy_from_slice(source);
        }
        Ok(is)
    }
}

/// Returns true if the address area of an inode holds block addresses.
pub(crate) fn has_map(node: &NodeBlock) -> bool {
    node.is_inode()
        && !node.has_inline(inline::DATA | inline::DENTRY)
        && matches!(node.file_type(), FileType::Regular | FileType::Directory | FileType::Symlink)
}

/// Removes the content of an inode block.
pub(crate) fn clear_content(node: &mut NodeBlock) {
    if has_map(node) {
        for index in 0..node.addr_count() {
            node.set_addr(index, BlockAddr::NULL);
        }
    } else if node.has_inline(inline::DATA) {
        node.inline_area_mut().fill(0);
    }
    for child in 0..node.child_count() {
        node.set_child(child, Nid::NULL);
    }
    let head = node.head_mut();
    head.inline &= !(inline::DATA | inline::DATA_EXIST);
    head.extent.len.set(0);
}
