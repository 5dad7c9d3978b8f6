//! The place in a parent where a node or address belongs, and repairs of wrong parents.

use f2fs::{
    format::{
        BlockSize,
        node::{NodeBlock, NodeFooter, XATTR_NODE_OFFSET},
        node_path::NodePath,
    },
    units::{Ino, Nid},
};
use rustc_hash::FxHashSet;

use crate::{
    Fix, Loss, Slot,
    checker::Checker,
    inodes::{XATTR_NID, has_map},
    table::{Entry, fact},
};

impl Checker<'_> {
    /// The place that names the node at `offset` of a file; `None` if a node above it is missing.
    pub fn slot_of(&mut self, ino: Ino, offset: u32) -> Option<Slot> {
        match Above::of(self.geometry.block_size, offset)? {
            Above::Inode(at) => Some(Slot { nid: ino.into(), at }),
            Above::Node { offset: parent, index } => {
                let holder = self.slot_of(ino, parent)?;
                self.node_at(holder, ino).map(|nid| Slot { nid, at: 4 * index })
            }
        }
    }

    /// The highest missing node above `offset` of a file: the place that should name it, and its offset.
    fn missing_above(&mut self, ino: Ino, offset: u32) -> Option<(Slot, u32)> {
        let Above::Node { offset: parent, .. } = Above::of(self.geometry.block_size, offset)? else {
            return None;
        };
        let Some(slot) = self.slot_of(ino, parent) else { return self.missing_above(ino, parent) };
        let is_missing = self.word_at(slot).is_some() && self.node_at(slot, ino).is_none();
        is_missing.then_some((slot, parent))
    }

    /// The usable node of an inode that a place names.
    fn node_at(&mut self, slot: Slot, ino: Ino) -> Option<Nid> {
        let nid = Nid(self.word_at(slot)?);
        let entry = self.table.find(nid).filter(|entry| self.table.ino(*entry) == ino)?;
        (!self.table.has(entry, fact::BROKEN)).then_some(nid)
    }

    /// The word at a place in a node.
    pub fn word_at(&mut self, slot: Slot) -> Option<u32> {
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

    /// Names a node that no parent names, at the place in its footer if that is free. A missing node above it is made
    /// anew, once (`made`); the next check attaches its children. Otherwise frees the node, also if the content of the inode
    /// has no addresses.
    pub fn attach_node(&mut self, nid: Nid, ino: Ino, offset: u32, made: &mut FxHashSet<(Ino, u32)>) {
        let takes_nodes =
            offset == XATTR_NODE_OFFSET || self.inode_of(ino).is_some_and(|inode| has_map(&inode));
        let slot = self.slot_of(ino, offset).filter(|slot| slot.nid != nid && takes_nodes);
        if let Some((slot, 0)) = slot.and_then(|slot| self.word_at(slot).map(|word| (slot, word))) {
            self.fix(Fix::Node(slot, nid.0.to_le_bytes().to_vec()));
        } else if let Some((slot, offset)) =
            self.missing_above(ino, offset).filter(|(slot, _)| slot.nid != nid && takes_nodes)
        {
            if made.insert((ino, offset)) {
                if let Some((finding, _)) = self.bad_children.remove(&(ino, offset)) {
                    self.report.add(finding.repaired_by("make an empty node there for the children"));
                }
                self.fix(Fix::Indirect { slot, ino, offset });
            }
        } else {
            self.fix(Fix::Free(nid));
            self.lose(Loss::Node);
        }
    }
}

/// The place that names a node of a file.
enum Above {
    /// In the inode, at a byte offset.
    Inode(usize),
    /// In an indirect node.
    Node {
        /// Its offset in the file.
        offset: u32,
        /// Index of the number in the node.
        index: usize,
    },
}

impl Above {
    /// The place for the node at `offset` of a file; `None` for the inode, and past the last node.
    fn of(size: BlockSize, offset: u32) -> Option<Above> {
        let n = size.node_addrs() as u32;
        let direct = |index: usize| Some(Above::Inode(size.inode_nids_at() + 4 * index));
        let top = 5 + 2 * n;
        let (offset, index) = match offset {
            XATTR_NODE_OFFSET => return Some(Above::Inode(XATTR_NID)),
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
        (index < n).then_some(Above::Node { offset, index: index as usize })
    }
}
