//! Creation, modification, removal and write-back of nodes.

use std::sync::Arc;

use super::{Volume, allocate::log_for, node_cache::Change};
use crate::{
    Error, Place, Result,
    format::{
        checkpoint::RESERVED_NIDS, nat::NatEntry, node::NodeBlock, node_path::NodeKind, sit::SegmentType,
        summary::Owner,
    },
    units::{BlockAddr, Ino, Nid},
};

/// Footer marks that an fsync sets for roll-forward recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Marks {
    /// The fsync mark: recovery takes the node into account.
    pub fsync: bool,
    /// The dentry mark: recovery must also create the directory entry.
    pub dentry: bool,
}

impl Volume {
    /// A node, to change it; it becomes dirty.
    pub(super) fn node_mut(&mut self, nid: Nid) -> Result<&mut NodeBlock> {
        self.node_for(nid, Change::REST)
    }

    /// An inode, to change it; it becomes dirty.
    pub(super) fn inode_mut(&mut self, ino: Ino) -> Result<&mut NodeBlock> {
        self.inode_for(ino, Change::REST)
    }

    /// An inode, to make only this change.
    pub(super) fn inode_for(&mut self, ino: Ino, change: Change) -> Result<&mut NodeBlock> {
        let node = self.node_for(ino.into(), change)?;
        if !node.is_inode() {
            return Err(Error::corrupt(Place::Inode(ino), format!("its node belongs to {}", node.ino())));
        }
        Ok(node)
    }

    fn node_for(&mut self, nid: Nid, change: Change) -> Result<&mut NodeBlock> {
        if self.nodes.change(nid).is_none() {
            let node = self.node(nid)?;
            self.note_charge(&node);
            return Ok(self.nodes.insert_dirty(nid, node, change));
        }
        Ok(self.nodes.get_dirty(nid, change).expect("it was just found dirty"))
    }

    /// Allocates a nid. The node exists only after [`add_node`](Self::add_node).
    pub(super) fn take_nid(&mut self) -> Result<Nid> {
        let most = self.geometry.nids_end().0 - RESERVED_NIDS;
        if self.counters.valid_nodes >= most {
            return Err(Error::NoInodes);
        }
        self.nat.take_free(&self.io)
    }

    /// Adds a new node to the volume and counts it. The caller has checked the space, and counts the node in
    /// `i_blocks` if it is not an inode.
    pub(super) fn add_node(&mut self, node: NodeBlock) -> Result<()> {
        let (nid, ino) = (node.nid(), node.ino());
        let old = self.nat.get(&self.io, nid)?;
        if !old.is_free() {
            return Err(Error::corrupt(Place::Nat(nid), "a free node is in use"));
        }
        self.nat.set(&self.io, nid, NatEntry { ino, addr: BlockAddr::NEW, ..old })?;
        self.count_blocks(1);
        self.counters.valid_nodes += 1;
        self.counters.valid_inodes += u32::from(node.is_inode());
        self.note_new(&node);
        self.charge_inode(&node, 1);
        self.nodes.insert_dirty(nid, Arc::new(node), Change::REST);
        Ok(())
    }

    /// Creates a node of an existing file.
    pub(super) fn add_child_node(&mut self, ino: Ino, offset: u32, cold: bool) -> Result<Nid> {
        let nid = self.take_nid()?;
        self.add_node(NodeBlock::new(self.format, nid, ino, offset, cold))?;
        Ok(nid)
    }

    /// Removes a node and updates the counters.
    pub(super) fn remove_node(&mut self, nid: Nid) -> Result<()> {
        let entry = self.nat.get(&self.io, nid)?;
        if entry.is_free() {
            return Err(Error::corrupt(Place::Nat(nid), "a node in use has no address"));
        }
        if entry.ino.0 == nid.0 && self.has_limits() {
            let inode = self.inode(entry.ino)?;
            self.charge_inode(&inode, -1);
        }
        if entry.addr != BlockAddr::NEW {
            self.release_block(entry.addr, Place::Nat(nid))?;
            self.since_checkpoint.shrunk.insert(entry.ino);
        }
        self.nat.release(&self.io, nid, entry.version)?;
        self.nodes.remove(nid);
        let uncount = |counter: &mut u32| *counter = counter.saturating_sub(1);
        uncount(&mut self.counters.valid_nodes);
        if entry.ino.0 == nid.0 {
            uncount(&mut self.counters.valid_inodes);
        }
        self.counters.valid_blocks = self.counters.valid_blocks.saturating_sub(1);
        Ok(())
    }

    /// Writes all dirty nodes, one log after the other, so that a card switches between erase units as rarely
    /// as possible.
    pub(super) fn write_nodes(&mut self) -> Result<()> {
        let mut nids = self.nodes.dirty_nids();
        nids.sort_by_cached_key(|nid| {
            let footer = self.nodes.get(*nid).expect("the node is dirty").footer();
            self.log_of_node(footer.offset, footer.cold).index()
        });
        nids.into_iter().try_for_each(|nid| self.write_node(nid, Marks::default()))
    }

    /// Writes a dirty node to its log.
    pub(super) fn write_node(&mut self, nid: Nid, marks: Marks) -> Result<()> {
        let entry = self.nat.get(&self.io, nid)?;
        let node = self.nodes.get(nid).expect("the node is dirty");
        let footer = node.footer();
        drop(node);
        let kind = self.log_of_node(footer.offset, footer.cold);
        self.ready_to_replace(entry.addr)?;
        let owner = Owner { nid, version: 0, offset: 0 };
        let mut place = self.allocate(kind, owner)?;
        if marks.fsync {
            self.logs.get_mut(kind).synced += 1;
            // This only improves speed. The node already has its block and must be written there in any case.
            match self.nodes_follow() {
                Ok(next) => place.next = next.unwrap_or(place.next),
                Err(_) => self.since_checkpoint.no_zone = true,
            }
            self.since_fsync_blocks = 0;
        }
        if kind == SegmentType::WarmNode {
            self.since_checkpoint.chain_ended |= place.next == BlockAddr::NULL;
        }
        self.replaced(entry.addr, Place::Nat(nid))?;
        let cp_ver = self.checkpoint.node_version();
        let node = self.nodes.get_dirty(nid, Change::REST).expect("the node is dirty");
        let mut footer = footer;
        (footer.fsync, footer.dentry) = (marks.fsync, marks.dentry);
        (footer.cp_ver, footer.next_addr) = (cp_ver, place.next);
        node.set_footer(footer);
        node.seal();
        let result = self.logs.push(&self.io, kind, place.addr, node.bytes());
        self.pushed(result)?;
        self.nodes.set_clean(nid);
        if !marks.fsync && footer.cold {
            self.since_checkpoint.unmarked.insert(footer.ino);
        }
        self.nat.set(&self.io, nid, NatEntry { addr: place.addr, ..entry })
    }

    /// The log for a node. Indirect nodes are cold. Direct nodes, inodes and xattr nodes are warm if they
    /// belong to a file, hot if they belong to a directory.
    fn log_of_node(&self, offset: u32, cold: bool) -> SegmentType {
        let best = match NodeKind::of(self.geometry.block_size, offset) {
            Some(NodeKind::Indirect | NodeKind::DoubleIndirect) => SegmentType::ColdNode,
            _ if cold => SegmentType::WarmNode,
            _ => SegmentType::HotNode,
        };
        log_for(self.options.active_logs, best, !cold)
    }
}
