//! Node blocks in memory: the changed ones, and a bounded number of others.
//!
//! *Invariants*: a node is in `dirty` or in the clean cache, not in both; what is in the clean cache equals what
//! the NAT's address for it holds.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustc_hash::FxHashMap;

use crate::{
    format::node::NodeBlock,
    units::{Ino, Nid},
};

/// Locks over the clean nodes.
const SHARDS: usize = 16;

/// What of a dirty node has changed. An fsync need not write an inode of which roll-forward finds all that has changed
/// elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change(u8);

impl Change {
    /// How many blocks a file has: recovery counts what it recovers.
    pub const BLOCKS: Change = Change(1);
    /// The size of a file, by blocks behind its end: recovery of such a block sets it to that block's end.
    pub const SIZE: Change = Change(2);
    /// The times of a change of content.
    pub const TIMES: Change = Change(4);
    /// Anything else.
    pub const REST: Change = Change(8);

    /// Whether one of the changes is this.
    pub fn has(self, one: Change) -> bool {
        self.0 & one.0 != 0
    }
}

struct Dirty {
    node: Arc<NodeBlock>,
    change: Change,
}

/// The cache. Readers share it; the dirty part is only touched by whoever has the volume to itself.
pub struct NodeCache {
    dirty: FxHashMap<Nid, Dirty>,
    /// The dirty nodes by file.
    by_file: BTreeSet<(Ino, Nid)>,
    clean: [Mutex<Shard>; SHARDS],
    shard_nodes: usize,
}

/// Two generations: when the young one is full it becomes the old one, and what was not used since is dropped.
#[derive(Default)]
struct Shard {
    young: FxHashMap<Nid, Arc<NodeBlock>>,
    old: FxHashMap<Nid, Arc<NodeBlock>>,
}

impl NodeCache {
    /// A cache of so many clean nodes.
    pub fn new(nodes: usize) -> NodeCache {
        NodeCache {
            dirty: FxHashMap::default(),
            by_file: BTreeSet::new(),
            clean: Default::default(),
            shard_nodes: (nodes / SHARDS / 2).max(4),
        }
    }

    /// A node, if it is here.
    pub fn get(&self, nid: Nid) -> Option<Arc<NodeBlock>> {
        if let Some(dirty) = self.dirty.get(&nid) {
            return Some(dirty.node.clone());
        }
        let mut shard = self.shard(nid);
        if let Some(node) = shard.young.get(&nid) {
            return Some(node.clone());
        }
        let node = shard.old.remove(&nid)?;
        self.keep(&mut shard, nid, node.clone());
        Some(node)
    }

    /// Clean nodes that can be added at once so that none of them drops another: half of a generation, as their numbers
    /// need not spread evenly.
    pub fn ahead_max(&self) -> usize {
        self.shard_nodes * SHARDS / 2
    }

    /// Keeps a node that was read from the device.
    pub fn insert_clean(&self, nid: Nid, node: Arc<NodeBlock>) {
        self.keep(&mut self.shard(nid), nid, node);
    }

    /// A node that is dirty already, to change this of it.
    pub fn get_dirty(&mut self, nid: Nid, change: Change) -> Option<&mut NodeBlock> {
        let dirty = self.dirty.get_mut(&nid)?;
        dirty.change.0 |= change.0;
        Some(Arc::make_mut(&mut dirty.node))
    }

    /// What of a node has changed, if it is dirty.
    pub fn change(&self, nid: Nid) -> Option<Change> {
        self.dirty.get(&nid).map(|dirty| dirty.change)
    }

    /// Makes a node dirty by this change, or adds a new one.
    pub fn insert_dirty(&mut self, nid: Nid, node: Arc<NodeBlock>, change: Change) -> &mut NodeBlock {
        let mut shard = self.shard(nid);
        shard.young.remove(&nid);
        shard.old.remove(&nid);
        drop(shard);
        self.by_file.insert((node.ino(), nid));
        let slot = self.dirty.entry(nid).insert_entry(Dirty { node, change }).into_mut();
        Arc::make_mut(&mut slot.node)
    }

    /// Forgets a node.
    pub fn remove(&mut self, nid: Nid) {
        if let Some(Dirty { node, .. }) = self.dirty.remove(&nid) {
            self.by_file.remove(&(node.ino(), nid));
        }
        let mut shard = self.shard(nid);
        shard.young.remove(&nid);
        shard.old.remove(&nid);
    }

    /// Count of dirty nodes.
    pub fn dirty_count(&self) -> usize {
        self.dirty.len()
    }

    /// The dirty nodes' numbers, by file.
    pub fn dirty_nids(&self) -> Vec<Nid> {
        self.by_file.iter().map(|(_, nid)| *nid).collect()
    }

    /// The numbers of a file's dirty nodes.
    pub fn dirty_of(&self, ino: Ino) -> Vec<Nid> {
        self.by_file.range((ino, Nid(0))..=(ino, Nid(u32::MAX))).map(|(_, nid)| *nid).collect()
    }

    /// Moves a dirty node, which has been written, to the clean ones.
    pub fn set_clean(&mut self, nid: Nid) {
        if let Some(Dirty { node, .. }) = self.dirty.remove(&nid) {
            self.by_file.remove(&(node.ino(), nid));
            self.insert_clean(nid, node);
        }
    }

    fn shard(&self, nid: Nid) -> MutexGuard<'_, Shard> {
        // A thread that panicked under the lock left whole nodes: the cache stays usable.
        self.clean[nid.index() % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, shard: &mut Shard, nid: Nid, node: Arc<NodeBlock>) {
        if shard.young.len() >= self.shard_nodes {
            shard.old = std::mem::take(&mut shard.young);
        }
        shard.young.insert(nid, node);
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
        Arc::new(NodeBlock::new(format, Nid(nid), Ino(nid), 0, true))
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
