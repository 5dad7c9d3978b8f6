//! The place in a parent where a node or address belongs, and repairs of wrong parents.

use f2fs::{
    format::{
        node::{NodeBlock, NodeFooter, XATTR_NODE_OFFSET},
        node_path::NodePath,
    },
    units::{Ino, Nid},
};

use crate::{
    Fix, Slot,
    checker::Checker,
    inodes::XATTR_NID,
    table::{Entry, fact},
};

impl Checker<'_> {
    /// The place that names the node at `offset` of a file; `None` if a node above it is missing.
    fn slot_of(&mut self, ino: Ino, offset: u32) -> Option<Slot> {
        let size = self.geometry.block_size;
        let n = size.node_addrs() as u32;
        let own = |at: usize| Some(Slot { nid: ino.into(), at });
        let direct = |index: usize| own(size.inode_nids_at() + 4 * index);
        let top = 5 + 2 * n;
        let (parent, index) = match offset {
            XATTR_NODE_OFFSET => return own(XATTR_NID),
            0 => return None,
            1..=3 => return direct(offset as usize - 1),
            _ if offset == 4 + n => return direct(3),
            _ if offset == top => return direct(4),
            _ if offset < 4 + n => (3, offset - 4),
            _ if offset < top => (4 + n, offset - 5 - n),
            _ => {
                let (middle, place) = ((offset - top - 1) / (n + 1), (offset - top - 1) % (n + 1));
                match place {
                    0 => (top, middle),
                    _ => (top + 1 + middle * (n + 1), place - 1),
                }
            }
        };
        let above = self.slot_of(ino, parent)?;
        let nid = Nid(self.word_at(above)?);
        let entry = self.table.find(nid).filter(|entry| self.table.ino(*entry) == ino)?;
        let is_good = !self.table.has(entry, fact::BROKEN) && index < n;
        is_good.then_some(Slot { nid, at: 4 * index as usize })
    }

    /// The word at a place in a node.
    fn word_at(&mut self, slot: Slot) -> Option<u32> {
        let entry = self.table.find(slot.nid).filter(|entry| !self.table.has(*entry, fact::BROKEN))?;
        let addr = self.table.addr(entry);
        let bytes = self.cache.block(&self.io, addr).ok()?;
        Some(u32::from_le_bytes(bytes.get(slot.at..slot.at + 4)?.try_into().ok()?))
    }

    /// The place of a file's address.
    pub fn address_slot(&mut self, inode: &NodeBlock, block: u64) -> Option<Slot> {
        let path = NodePath::of(&inode.layout(), block)?;
        match path.steps().last() {
            None => Some(Slot { nid: inode.nid(), at: inode.layout().addrs_at() + 4 * path.index }),
            Some(step) => {
                let holder = self.slot_of(inode.ino(), step.offset)?;
                let nid = Nid(self.word_at(holder)?);
                Some(Slot { nid, at: 4 * path.index })
            }
        }
    }

    /// Clears one of two numbers of a node in its inode: that which the footer does not confirm.
    pub fn drop_second_parent(&mut self, entry: Entry, offset: u32, ino: Ino, second: Slot) {
        let addr = self.table.addr(entry);
        let own = self.cache.block(&self.io, addr).map(|bytes| NodeFooter::of(&bytes).offset);
        let first = match own {
            Ok(own) if own == offset => self.slot_of(ino, self.table.parent_offset(entry)),
            _ => None,
        };
        self.fix(Fix::Node(first.unwrap_or(second), vec![0; 4]));
    }

    /// Names a node that no parent names, at the place in its footer if that is free; otherwise frees it.
    pub fn attach_node(&mut self, nid: Nid, ino: Ino, offset: u32) {
        let slot = self.slot_of(ino, offset).filter(|slot| slot.nid != nid);
        match slot.and_then(|slot| self.word_at(slot).map(|word| (slot, word))) {
            Some((slot, 0)) => self.fix(Fix::Node(slot, nid.0.to_le_bytes().to_vec())),
            _ => self.fix(Fix::Free(nid)),
        }
    }
}
