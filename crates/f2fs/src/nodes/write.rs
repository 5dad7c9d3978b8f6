//! Creation, modification, removal and write-back of nodes.

use std::sync::Arc;

use super::{Nodes, cache::Change};
use crate::{
    Error, Place, Result,
    format::{
        FileType,
        checkpoint::RESERVED_NIDS,
        nat::NatEntry,
        node::{NodeBlock, NodeFooter},
        node_path::NodeKind,
        sit::SegmentType,
        summary::Owner,
    },
    segments::{FsyncMark, OldBlock, log_for_node},
    units::{BlockAddr, Ino, Nid, SegNo},
};

/// Footer marks that an fsync sets for roll-forward recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Marks {
    /// The fsync mark: recovery takes the node into account.
    pub fsync: bool,
    /// The dentry mark: recovery must also create the directory entry.
    pub dentry: bool,
}

impl Nodes {
    /// A node, to change it; it becomes dirty.
    pub(crate) fn node_mut(&mut self, nid: Nid) -> Result<&mut NodeBlock> {
        self.node_for(nid, Change::REST)
    }

    /// An inode, to change it; it becomes dirty.
    pub(crate) fn inode_mut(&mut self, ino: Ino) -> Result<&mut NodeBlock> {
        self.inode_for(ino, Change::REST)
    }

    /// An inode, to make only this change.
    pub(crate) fn inode_for(&mut self, ino: Ino, change: Change) -> Result<&mut NodeBlock> {
        let node = self.node_for(ino.into(), change)?;
        if !node.is_inode() {
            return Err(Error::corrupt(Place::Inode(ino), format!("its node belongs to {}", node.ino())));
        }
        Ok(node)
    }

    fn node_for(&mut self, nid: Nid, change: Change) -> Result<&mut NodeBlock> {
        if self.cache.change(nid).is_none() {
            let node = self.node(nid)?;
            self.note_charge(&node);
            self.cache.insert_dirty(nid, node, change);
            self.report_dirty_nodes();
        }
        Ok(self.cache.get_dirty(nid, change).expect("it is dirty"))
    }

    /// Tells the segment manager how many nodes wait for a place.
    fn report_dirty_nodes(&mut self) {
        self.segments.set_waiting_nodes(self.cache.dirty_count());
    }

    /// Allocates a nid. The node exists only after [`add_node`](Self::add_node).
    pub(crate) fn take_nid(&mut self) -> Result<Nid> {
        let most = self.disk().geometry().nids_end().0 - RESERVED_NIDS;
        if self.segments.counters().valid_nodes >= most {
            return Err(Error::NoInodes);
        }
        self.nat.take_free(self.segments.disk().io())
    }

    /// Adds a new node to the volume and counts it. The caller has checked the space, and counts the node in
    /// `i_blocks` if it is not an inode.
    pub(crate) fn add_node(&mut self, node: NodeBlock) -> Result<()> {
        let (nid, ino) = (node.nid(), node.ino());
        let old = self.nat_entry(nid)?;
        if !old.is_free() {
            return Err(Error::corrupt(Place::Nat(nid), "a free node is in use"));
        }
        self.nat.set(self.segments.disk().io(), nid, NatEntry { ino, addr: BlockAddr::NEW, ..old })?;
        self.segments.count_node(nid, ino);
        self.note_new(&node);
        self.charge_inode(&node, 1);
        self.cache.insert_dirty(nid, Arc::new(node), Change::REST);
        self.report_dirty_nodes();
        Ok(())
    }

    /// Creates a node of an existing file of type `kind`.
    pub(crate) fn add_child_node(&mut self, ino: Ino, offset: u32, kind: FileType) -> Result<Nid> {
        let nid = self.take_nid()?;
        self.add_node(NodeBlock::new(self.disk().node_format(), nid, ino, offset, kind))?;
        Ok(nid)
    }

    /// Removes a node and updates the counters.
    pub(crate) fn remove_node(&mut self, nid: Nid) -> Result<()> {
        let entry = self.nat_entry(nid)?;
        if entry.is_free() {
            return Err(Error::corrupt(Place::Nat(nid), "a node in use has no address"));
        }
        let is_inode = Nid::from(entry.ino) == nid;
        let charged = (is_inode && self.disk().superblock().has_quotas()).then(|| self.inode(entry.ino));
        let charged = charged.transpose()?;
        if entry.addr != BlockAddr::NEW {
            self.segments.release_block(entry.addr, Place::Nat(nid))?;
            self.since_checkpoint.shrunk.insert(entry.ino);
        }
        self.nat.release(self.segments.disk().io(), nid, entry.version)?;
        self.cache.remove(nid);
        self.report_dirty_nodes();
        self.segments.uncount_node(nid, entry.ino);
        if let Some(inode) = charged {
            self.charge_inode(&inode, -1);
            self.settle_removed(&inode);
        }
        Ok(())
    }

    /// Writes all dirty nodes.
    pub(crate) fn write_nodes(&mut self) -> Result<()> {
        self.dirty_by_log().into_iter().try_for_each(|nid| self.write_node(nid, Marks::default()))
    }

    /// All dirty nodes in the order of writing: one log after the other, so that a card switches between erase
    /// units as rarely as possible.
    pub(crate) fn dirty_by_log(&self) -> Vec<Nid> {
        let mut nids = self.cache.dirty_nids();
        nids.sort_by_cached_key(|nid| {
            self.log_of_node(self.cache.get(*nid).expect("the node is dirty").footer()).index()
        });
        nids
    }

    /// Writes a dirty node to its log.
    pub(crate) fn write_node(&mut self, nid: Nid, marks: Marks) -> Result<()> {
        let entry = self.nat_entry(nid)?;
        let node = self.cache.get(nid).expect("the node is dirty");
        let footer = node.footer();
        drop(node);
        let kind = self.log_of_node(footer);
        let old = OldBlock { addr: entry.addr, at: Place::Nat(nid) };
        let owner = Owner { nid, version: 0, offset: 0 };
        let mark = if marks.fsync { FsyncMark::Set } else { FsyncMark::Clear };
        let cp_ver = self.disk().checkpoint().node_version();
        let addr = self.segments.replace_node(old, kind, owner, mark, |next_addr| {
            let node = self.cache.get_dirty(nid, Change::REST).expect("the node is dirty");
            let (fsync, dentry) = (marks.fsync, marks.dentry);
            node.set_footer(NodeFooter { fsync, dentry, cp_ver, next_addr, ..footer });
            node.seal();
            node.bytes()
        })?;
        if Nid::from(footer.ino) == nid {
            self.settle_charge(footer.ino);
        }
        self.cache.set_clean(nid);
        self.report_dirty_nodes();
        if !marks.fsync && footer.cold {
            self.since_checkpoint.note_unmarked(footer.ino);
        }
        self.nat.set(self.segments.disk().io(), nid, NatEntry { addr, ..entry })
    }

    /// The log for a node. Indirect nodes are cold. Direct nodes, inodes and xattr nodes are warm if they
    /// belong to a file, hot if they belong to a directory.
    fn log_of_node(&self, footer: NodeFooter) -> SegmentType {
        let best = match NodeKind::of(self.disk().geometry().block_size, footer.offset) {
            Some(NodeKind::Indirect | NodeKind::DoubleIndirect) => SegmentType::ColdNode,
            _ if footer.cold => SegmentType::WarmNode,
            _ => SegmentType::HotNode,
        };
        log_for_node(self.disk().options().active_logs, best)
    }

    /// Moves a node, for cleaning. The summary of `segment` says that `owner` is at `addr`.
    pub(crate) fn move_node(&mut self, segment: SegNo, addr: BlockAddr, owner: Owner) -> Result<()> {
        let entry = self.nat_entry(owner.nid)?;
        if entry.addr != addr {
            let what = format!("{addr} is valid, but {} is at {}", owner.nid, entry.addr);
            return Err(Error::corrupt(Place::Ssa(segment), what));
        }
        self.node_mut(owner.nid)?;
        self.write_node(owner.nid, Marks::default())
    }
}
