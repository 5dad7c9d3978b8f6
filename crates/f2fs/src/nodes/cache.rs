//! Node blocks in memory: all dirty ones and a bounded number of clean ones.
//!
//! *Invariants*: a node is either in `dirty` or in the clean cache, never in both. A clean node equals the
//! block at the address that the NAT has for it.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustc_hash::FxHashMap;

use crate::{
    format::node::NodeBlock,
    generations::Generations,
    units::{Ino, Nid},
};

/// Number of locks that the clean nodes are distributed over.
const SHARDS: usize = 16;

/// The parts of a dirty node that have changed. An fsync can skip an inode if roll-forward recovers all its
/// changes from other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Change(u8);

impl Change {
    /// The block count of a file; recovery counts the blocks that it recovers.
    pub(crate) const BLOCKS: Change = Change(1);
    /// The size of a file, extended by blocks beyond its end; recovery of such a block sets the size to the
    /// end of the block.
    pub(crate) const SIZE: Change = Change(2);
    /// The timestamps of a content change.
    pub(crate) const TIMES: Change = Change(4);
    /// Any other change.
    pub(crate) const REST: Change = Change(8);

    /// Returns true if the changes include this one.
    pub(crate) fn has(self, one: Change) -> bool {
        self.0 & one.0 != 0
    }
}

struct Dirty {
    node: Arc<NodeBlock>,
    change: Change,
}

/// The node cache. Readers share the clean part; the dirty part changes only through `&mut self`.
pub(super) struct NodeCache {
    dirty: FxHashMap<Nid, Dirty>,
    /// The dirty nodes by file.
    by_file: BTreeSet<(Ino, Nid)>,
    clean: [Mutex<Shard>; SHARDS],
    /// Number of nodes in a generation of a shard.
    shard_nodes: usize,
}

/// A part of the clean nodes.
type Shard = Generations<Nid, Arc<NodeBlock>>;

impl NodeCache {
    /// Creates a cache for about `nodes` clean nodes.
    pub(super) fn new(nodes: usize) -> NodeCache {
        let shard_nodes = (nodes / SHARDS / 2).max(4);
        NodeCache {
            dirty: FxHashMap::default(),
            by_file: BTreeSet::new(),
            clean: std::array::from_fn(|_| Mutex::new(Generations::new(shard_nodes))),
            shard_nodes,
        }
    }

    /// Returns a node if it is cached.
    pub(super) fn get(&self, nid: Nid) -> Option<Arc<NodeBlock>> {
        if let Some(dirty) = self.dirty.get(&nid) {
            return Some(dirty.node.clone());
        }
        self.shard(nid).get(nid)
    }

    /// Number of clean nodes that can be added at once without dropping one of them: half a generation,
    /// because nids may be distributed unevenly over the shards.
    pub(super) fn ahead_max(&self) -> usize {
        self.shard_nodes * SHARDS / 2
    }

    /// Caches a node that was read from the device.
    pub(super) fn insert_clean(&self, nid: Nid, node: Arc<NodeBlock>) {
        self.shard(nid).insert(nid, node);
    }

    /// A node that is already dirty, to make this change to it.
    pub(super) fn get_dirty(&mut self, nid: Nid, change: Change) -> Option<&mut NodeBlock> {
        let dirty = self.dirty.get_mut(&nid)?;
        dirty.change.0 |= change.0;
        Some(Arc::make_mut(&mut dirty.node))
    }

    /// Returns the changes of a dirty node; `None` if the node is not dirty.
    pub(super) fn change(&self, nid: Nid) -> Option<Change> {
        self.dirty.get(&nid).map(|dirty| dirty.change)
    }

    /// Makes a node dirty with this change, or adds a new node.
    pub(super) fn insert_dirty(&mut self, nid: Nid, node: Arc<NodeBlock>, change: Change) -> &mut NodeBlock {
        self.shard(nid).remove(nid);
        self.by_file.insert((node.ino(), nid));
        let slot = self.dirty.entry(nid).insert_entry(Dirty { node, change }).into_mut();
        Arc::make_mut(&mut slot.node)
    }

    /// Removes a node from the cache.
    pub(super) fn remove(&mut self, nid: Nid) {
        if let Some(Dirty { node, .. }) = self.dirty.remove(&nid) {
            self.by_file.remove(&(node.ino(), nid));
        }
        self.shard(nid).remove(nid);
    }

    /// Number of dirty nodes.
    pub(super) fn dirty_count(&self) -> usize {
        self.dirty.len()
    }

    /// The nids of the dirty nodes, ordered by file.
    pub(super) fn dirty_nids(&self) -> Vec<Nid> {
        self.by_file.iter().map(|(_, nid)| *nid).collect()
    }

    /// The nids of a file's dirty nodes.
    pub(super) fn dirty_of(&self, ino: Ino) -> Vec<Nid> {
        self.by_file.range((ino, Nid(0))..=(ino, Nid(u32::MAX))).map(|(_, nid)| *nid).collect()
    }

    /// Marks a dirty node as clean after it has been written.
    pub(super) fn set_clean(&mut self, nid: Nid) {
        if let Some(Dirty { node, .. }) = self.dirty.remove(&nid) {
            self.by_file.remove(&(node.ino(), nid));
            self.insert_clean(nid, node);
        }
    }

    fn shard(&self, nid: Nid) -> MutexGuard<'_, Shard> {
        // The cache stays usable after a thread has panicked under the lock, because it holds only complete
        // nodes.
        self.clean[nid.index() % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        format::{BlockSize, node::NodeFormat, superblock::Features},
        units::Ino,
    };

    fn node(nid: u32) -> Arc<NodeBlock> {
        let format = NodeFormat::new(BlockSize::B4K, Features::default(), &[0; 16]);
        Arc::new(NodeBlock::new(format, Nid(nid), Ino(nid), 0, crate::format::FileType::Regular))
    }

    #[test]
    fn clean_nodes_are_bounded_and_the_used_ones_stay() {
        let cache = NodeCache::new(SHARDS * 2 * 8);
        for n in 1..1000 {
            cache.insert_clean(Nid(n * SHARDS as u32), node(n));
            assert!(cache.get(Nid(SHARDS as u32)).is_some(), "used all the time");
        }
        let kept = (1..1000).filter(|n| cache.get(Nid(n * SHARDS as u32)).is_some()).count();
        assert!((8..=17).contains(&kept), "{kept}");
    }

    #[test]
    fn changes_of_a_node_add_up_until_it_is_written() {
        let mut cache = NodeCache::new(16);
        cache.insert_dirty(Nid(5), node(5), Change::BLOCKS);
        assert!(
            cache.get_dirty(Nid(5), Change::SIZE).is_some()
                && cache.get_dirty(Nid(6), Change::SIZE).is_none()
        );
        let change = cache.change(Nid(5)).expect("it is dirty");
        assert!(change.has(Change::BLOCKS) && change.has(Change::SIZE) && !change.has(Change::REST));
        cache.set_clean(Nid(5));
        cache.insert_dirty(Nid(5), node(5), Change::TIMES);
        assert_eq!(cache.change(Nid(5)), Some(Change::TIMES));
    }

    #[test]
    fn a_dirty_node_is_never_dropped_and_becomes_clean_when_written() {
        let mut cache = NodeCache::new(16);
        cache.insert_dirty(Nid(5), node(5), Change::REST).set_addr(0, crate::units::BlockAddr(7));
        for n in 100..1000 {
            cache.insert_clean(Nid(n), node(n));
        }
        assert_eq!(cache.get(Nid(5)).unwrap().addr(0).0, 7);
        assert_eq!((cache.dirty_nids(), cache.dirty_count()), (vec![Nid(5)], 1));
        cache.set_clean(Nid(5));
        assert!(cache.change(Nid(5)).is_none() && cache.get(Nid(5)).is_some());
        cache.remove(Nid(5));
        assert!(cache.get(Nid(5)).is_none());
    }
}
