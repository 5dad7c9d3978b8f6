//! The node manager: the address of each node, nodes in memory, and their way to the logs.
//!
//! *Invariants*: a node is dirty or clean, never both. A new node is counted when it is added, a removed one at once;
//! both are charged to their owners. Notes that fsync needs about the time since the last checkpoint are kept here,
//! because every layer above makes some.

mod cache;
mod nat;
mod nat_changes;
mod number_set;
mod quota_ledger;
mod read;
mod read_ahead;
mod since_checkpoint;
mod write;
mod xattr;

pub(crate) use cache::Change;
pub use quota_ledger::Limits;
pub(crate) use quota_ledger::{EnforcedLimits, apply, blank, has_limit, set_times};
pub(crate) use since_checkpoint::SinceCheckpoint;
pub(crate) use write::Marks;

use cache::NodeCache;
use nat::Nat;
use quota_ledger::QuotaLedger;

use crate::{
    Result,
    disk::{
        Disk,
        journal::{Prepared, TableWrite},
    },
    format::{checkpoint::Checkpoint, nat::NatEntry, sit::SitEntry},
    segments::Segments,
    units::{Ino, Nid, SegNo},
};

/// Memory that a changed node takes until the next checkpoint, in bytes, in all tables together.
const CHANGED_NODE_BYTES: usize = 64;
/// Upkeep writes a checkpoint once more than one in this many nids has changed since the last one
/// (Linux, `DEF_NAT_CACHE_THRESHOLD` and `excess_dirty_nats`).
const CHANGED_NODES_SHARE: usize = 10;

/// The nodes of a volume.
pub(crate) struct Nodes {
    segments: Segments,
    nat: Nat,
    cache: NodeCache,
    quota: QuotaLedger,
    since_checkpoint: SinceCheckpoint,
}

impl Nodes {
    /// The nodes of a volume as its newest checkpoint says, with the entries of the checkpoint's journal.
    pub(crate) fn new(segments: Segments, journal: Vec<(Nid, NatEntry)>) -> Result<Nodes> {
        let disk = segments.disk();
        let (geometry, options) = (*disk.geometry(), disk.options());
        Ok(Nodes {
            // Upkeep, where it is, writes a checkpoint earlier.
            nat: Nat::new(
                geometry,
                disk.checkpoint(),
                journal,
                disk.pack(),
                options.nat_bytes(),
                options.cache_bytes / CHANGED_NODE_BYTES,
            )?,
            cache: NodeCache::new(options.node_bytes() / geometry.block_size.bytes()),
            quota: QuotaLedger::new(disk.checkpoint().flags),
            since_checkpoint: SinceCheckpoint::default(),
            segments,
        })
    }

    fn disk(&self) -> &Disk {
        self.segments.disk()
    }

    pub(crate) fn segments(&self) -> &Segments {
        &self.segments
    }

    pub(crate) fn segments_mut(&mut self) -> &mut Segments {
        &mut self.segments
    }

    /// The current NAT entry of a node.
    pub(crate) fn nat_entry(&self, nid: Nid) -> Result<NatEntry> {
        self.nat.get(self.disk().io(), nid)
    }

    /// The version of a node, for the owner of a block that the node points to.
    pub(crate) fn version(&self, nid: Nid) -> Result<u8> {
        Ok(self.nat_entry(nid)?.version)
    }

    /// Returns true if the last checkpoint has a node of this number.
    pub(crate) fn is_checkpointed(&self, nid: Nid) -> Result<bool> {
        self.nat.is_checkpointed(self.disk().io(), nid)
    }

    /// Count of the inodes that [`read_inodes_ahead`](Self::read_inodes_ahead) reads at most.
    #[cfg(test)]
    pub(crate) fn ahead_max(&self) -> usize {
        self.cache.ahead_max()
    }

    /// Count of dirty nodes.
    pub(crate) fn dirty_count(&self) -> usize {
        self.cache.dirty_count()
    }

    /// The dirty nodes of a file.
    pub(crate) fn dirty_of(&self, ino: Ino) -> Vec<Nid> {
        self.cache.dirty_of(ino)
    }

    /// The changes of a node, if it is dirty.
    pub(crate) fn change(&self, nid: Nid) -> Option<Change> {
        self.cache.change(nid)
    }

    /// Returns true if so many node addresses have changed since the last checkpoint, or the changes of nodes and segments
    /// take so much memory, that upkeep writes another one.
    pub(crate) fn need_checkpoint(&self) -> bool {
        let entries = self.nat.changed_entries();
        // Freed nids can be allocated again only after a checkpoint.
        entries * CHANGED_NODE_BYTES + self.segments.changed_bytes() > self.disk().options().cache_bytes
            || entries > self.disk().geometry().nids_end().0 as usize / CHANGED_NODES_SHARE
    }

    /// Lists the changes of the NAT; only the next checkpoint makes them count.
    pub(crate) fn list_table(&self) -> TableWrite<Nid> {
        self.nat.list_table()
    }

    /// Writes up to `most` blocks of the NAT, and returns their number. If it is smaller, all are written.
    pub(crate) fn write_some_of_table(&self, table: &mut TableWrite<Nid>, most: usize) -> Result<usize> {
        self.nat.write_some(self.disk().io(), table, most)
    }

    /// Returns the state of the NAT once all its blocks are written.
    pub(crate) fn prepared_table(&self, table: TableWrite<Nid>) -> Prepared<Nid, NatEntry> {
        self.nat.prepared(table)
    }

    /// The nid at which the search for a free one continues.
    pub(crate) fn next_free_nid(&self) -> Nid {
        self.nat.next_free()
    }

    /// Goes on from a checkpoint that counts now.
    pub(crate) fn committed(
        &mut self,
        next: Checkpoint,
        nat: Prepared<Nid, NatEntry>,
        sit: Prepared<SegNo, SitEntry>,
    ) {
        self.since_checkpoint = SinceCheckpoint::default();
        self.quota.forget_partial_limits();
        self.nat.committed(nat);
        self.segments.committed(next, sit);
    }
}
