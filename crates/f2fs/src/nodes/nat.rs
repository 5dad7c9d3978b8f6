//! The NAT (node address table) in memory. Its blocks are read on demand; changes wait for the next
//! checkpoint.
//!
//! *Invariants*: an entry in `changes` overrides the NAT block. `changes` holds exactly the entries that
//! differ from the NAT blocks, because they changed since the last checkpoint or are in its journal, except for those
//! `ahead`, which were free in the last checkpoint and are in use in the copies that `copies` selects. A nid
//! freed since the last checkpoint is not allocated before the next one. The copies of NAT blocks that the last
//! checkpoint selects are never written to, so a checkpoint that failed half way can be prepared again from the start.
//!
//! Without checkpoints, a fill changes entries without bound. Blocks whose changes are all new nodes on the device are
//! then written to their other copies [ahead](Nat::write_ahead) of the checkpoint that selects these.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use rustc_hash::FxHashMap;

use super::{
    nat_changes::{Change, Changes},
    number_set::NumberSet,
};
use crate::{
    Error, Place, Result,
    disk::{
        Geometry, Io,
        journal::{self, Prepared, Split, TableBlock, TableWrite},
    },
    format::{
        TableCopy,
        checkpoint::{Checkpoint, RESERVED_NIDS},
        nat::{self, NatEntry},
    },
    units::{BlockAddr, Ino, Nid},
};

/// Number of locks that the cached blocks are distributed over.
const SHARDS: usize = 16;
/// Maximum number of blocks in a shard, regardless of the memory limit.
const SHARD_BLOCKS_MAX: usize = 64;
/// Number of unreadable NAT blocks that ends a search for free nids, since each may take seconds. The next
/// search continues behind them.
const TRIES: usize = 4;
/// Maximum number of NAT blocks in one read during a search for free nids.
const AHEAD_MAX: u32 = 16;

/// The NAT. Reads take `&self`; changes take `&mut self` and touch only memory.
pub(super) struct Nat {
    geometry: Geometry,
    /// The copy of each NAT block in the last checkpoint: a set bit means the second. Most significant bit first.
    bitmap: Vec<u8>,
    /// As `bitmap`, but the other copy for blocks that were written ahead of the next checkpoint.
    copies: Vec<u8>,
    changes: Changes,
    /// The nids whose new entries were written ahead of the next checkpoint.
    ahead: NumberSet,
    /// Number of entries by which `changes` grows before new ones are written ahead.
    changes_room: usize,
    /// Number of entries in `changes` at which new ones are written ahead.
    changes_end: usize,
    cache: [Mutex<FxHashMap<u32, Cached>>; SHARDS],
    /// Maximum number of blocks in a shard.
    shard_blocks: usize,
    free: VecDeque<Nid>,
    /// The NAT block in which the search for free nids continues.
    scan: u32,
    /// Number of blocks in the next read-ahead; it grows as the search goes on.
    read_ahead_blocks: u32,
}

/// A cached NAT block.
struct Cached {
    bytes: Arc<[u8]>,
    /// The copy that the block was read from or written to. `changes` override the entries in which it differs from the copy
    /// that `copies` selects.
    copy: TableCopy,
}

impl Nat {
    /// Creates the NAT from a checkpoint and its journal, with a cache of about `cache_bytes` bytes. Changed entries are
    /// written ahead of a checkpoint when there are more than `changes_room`.
    pub(super) fn new(
        geometry: Geometry,
        checkpoint: &Checkpoint,
        journal: Vec<(Nid, NatEntry)>,
        pack: u8,
        cache_bytes: usize,
        changes_room: usize,
    ) -> Result<Nat> {
        let end = geometry.nids_end();
        let mut changes = Changes::new(geometry.block_size);
        for (nid, entry) in journal {
            if nid == Nid::NULL || nid >= end {
                let what = format!("the NAT journal has an entry for {nid}, the NAT ends at {end}");
                return Err(Error::corrupt(Place::Checkpoint(pack), what));
            }
            changes.insert(nid, Change { entry, dirty: false, was_used: !entry.is_free() });
        }
        let first_free = if checkpoint.next_free_nid < end { checkpoint.next_free_nid } else { Nid::NULL };
        Ok(Nat {
            geometry,
            bitmap: checkpoint.nat_bitmap.clone(),
            copies: checkpoint.nat_bitmap.clone(),
            changes,
            ahead: NumberSet::default(),
            changes_room,
            changes_end: changes_room,
            cache: Default::default(),
            shard_blocks: (cache_bytes / geometry.block_size.bytes() / SHARDS).clamp(1, SHARD_BLOCKS_MAX),
            free: VecDeque::new(),
            scan: nat::position(first_free, geometry.block_size).0,
            read_ahead_blocks: 1,
        })
    }

    /// The entry of a nid.
    pub(super) fn get(&self, io: &Io, nid: Nid) -> Result<NatEntry> {
        if let Some(change) = self.changes.get(nid) {
            return Ok(change.entry);
        }
        if nid >= self.geometry.nids_end() {
            let what = format!("the NAT ends at {}", self.geometry.nids_end());
            return io.record_corruption(Err(Error::corrupt(Place::Nat(nid), what)));
        }
        let (block, index) = nat::position(nid, self.geometry.block_size);
        Ok(nat::entry(&self.block(io, block)?, index))
    }

    /// Returns true if the nid is in use in the last checkpoint.
    pub(super) fn is_checkpointed(&self, io: &Io, nid: Nid) -> Result<bool> {
        match self.changes.get(nid) {
            Some(change) => Ok(change.was_used),
            None => Ok(!self.ahead.contains(nid.0) && !self.get(io, nid)?.is_free()),
        }
    }

    /// Returns true if the entry of a nid was set since the last checkpoint.
    pub(super) fn is_changed(&self, nid: Nid) -> bool {
        self.ahead.contains(nid.0) || self.changes.get(nid).is_some_and(|change| change.dirty)
    }

    /// Sets the entry of a nid.
    pub(super) fn set(&mut self, io: &Io, nid: Nid, entry: NatEntry) -> Result<()> {
        let was_used = self.is_checkpointed(io, nid)?;
        self.changes.insert(nid, Change { entry, dirty: true, was_used });
        if self.changes.len() > self.changes_end {
            self.write_ahead(io);
            self.changes_end = self.changes.len() + self.changes_room;
        }
        Ok(())
    }

    /// Writes the blocks whose changes are all new nodes on the device to their other copies, which the next checkpoint
    /// selects. If that fails, all changes stay in memory, and the checkpoint meets the error.
    fn write_ahead(&mut self, io: &Io) {
        let is_new =
            |change: Change| change.dirty && !change.was_used && self.geometry.in_main(change.entry.addr);
        let blocks = self.changes.blocks_of(is_new);
        let numbers: Vec<u32> = blocks.keys().copied().collect();
        let mut table = self.table_of(Split { journal: Vec::new(), blocks });
        if self.write_some(io, &mut table, usize::MAX).is_ok() {
            self.copies = table.bitmap;
            for nid in numbers.into_iter().flat_map(|block| self.changes.forget(block)) {
                self.ahead.insert(nid.0);
            }
        }
    }

    /// Marks a nid as free and increments its version, so that summaries of its old blocks no longer match.
    pub(super) fn release(&mut self, io: &Io, nid: Nid, version: u8) -> Result<()> {
        let entry = NatEntry { version: version.wrapping_add(1), ino: Ino(0), addr: BlockAddr::NULL };
        self.set(io, nid, entry)
    }

    /// Allocates a free nid. The caller must [`set`](Self::set) its entry.
    pub(super) fn take_free(&mut self, io: &Io) -> Result<Nid> {
        let (mut unseen, mut unread) = (self.geometry.nat_blocks(), 0);
        loop {
            while let Some(nid) = self.free.pop_front() {
                if self.is_usable(nid) {
                    return Ok(nid);
                }
            }
            if unseen == 0 {
                return Err(Error::NoInodes);
            }
            unseen -= 1;
            self.read_ahead(io, self.scan);
            let scanned = self.scan_block(io, self.scan);
            self.scan = (self.scan + 1) % self.geometry.nat_blocks();
            // A few unreadable blocks do no harm: other blocks have free nids as well.
            unread += usize::from(scanned.is_err());
            if unread == TRIES || unseen == 0 {
                scanned?;
            }
        }
    }

    /// The free nid hint for the next session, stored in the checkpoint.
    pub(super) fn next_free(&self) -> Nid {
        match self.free.front() {
            Some(nid) => *nid,
            None => Nid(self.scan * self.geometry.block_size.nat_entries() as u32),
        }
    }

    /// Number of entries that the next checkpoint changes. Those that were written ahead and changed again count twice.
    pub(super) fn changed_entries(&self) -> usize {
        self.changes.len() + self.ahead.len()
    }

    /// Divides the changed entries: those that fit go to the journal, the rest to the other copy of their NAT
    /// blocks. They take effect only with the next checkpoint; see [`committed`](Self::committed).
    pub(super) fn list_table(&self) -> TableWrite<Nid> {
        let split = journal::split(self.changes.nids(), self.geometry.summary.nat_journal_entries());
        self.table_of(split)
    }

    /// Lists the blocks to be written to the copies that the last checkpoint does not select.
    fn table_of(&self, split: Split<Nid>) -> TableWrite<Nid> {
        let addr = |index, copy| self.geometry.nat_block(index, copy);
        let table = TableWrite::new(split, &self.bitmap, addr);
        // Blocks that were written ahead are there already.
        TableWrite { bitmap: self.copies.clone(), ..table }
    }

    /// Returns the state of the table once all its blocks are written.
    pub(super) fn prepared(&self, table: TableWrite<Nid>) -> Prepared<Nid, NatEntry> {
        let journal = table.journal.iter().map(|nid| (*nid, self.changed(*nid))).collect();
        Prepared { journal, bitmap: table.bitmap }
    }

    /// Makes the prepared state current, after the checkpoint is durable. Nothing may have changed since
    /// [`list_table`](Self::list_table).
    pub(super) fn committed(&mut self, prepared: Prepared<Nid, NatEntry>) {
        self.copies.clone_from(&prepared.bitmap);
        self.bitmap = prepared.bitmap;
        self.ahead = NumberSet::default();
        self.changes_end = self.changes_room;
        // Readers may have cached old copies while the new ones were being written.
        for shard in &mut self.cache {
            let shard = shard.get_mut().unwrap_or_else(PoisonError::into_inner);
            shard.retain(|index, block| block.copy == TableCopy::current(&self.bitmap, *index));
        }
        self.changes = Changes::new(self.geometry.block_size);
        for (nid, entry) in prepared.journal {
            self.changes.insert(nid, Change { entry, dirty: false, was_used: !entry.is_free() });
        }
    }

    /// The entry of a nid that changed.
    fn changed(&self, nid: Nid) -> NatEntry {
        self.changes.get(nid).expect("it was listed").entry
    }

    /// Writes up to `most` of the blocks that are left, and returns their number. If it is smaller, all are written.
    pub(super) fn write_some(&self, io: &Io, table: &mut TableWrite<Nid>, most: usize) -> Result<usize> {
        let mut written = 0;
        for TableBlock { addr, index, copy, keys } in table.blocks.by_ref().take(most) {
            let mut block = self.block(io, index)?.to_vec();
            for nid in &keys {
                let (_, at) = nat::position(*nid, self.geometry.block_size);
                nat::set_entry(&mut block, at, self.changed(*nid));
            }
            table.run.push(io, addr, Place::Nat(keys[0]), &block)?;
            copy.select(&mut table.bitmap, index);
            // If this copy never becomes current, `changes` still override every entry that differs.
            self.remember(index, block.into(), copy);
            written += 1;
        }
        if written < most {
            table.run.write(io)?;
        }
        Ok(written)
    }

    /// A NAT block, without the changes.
    fn block(&self, io: &Io, index: u32) -> Result<Arc<[u8]>> {
        if let Some(block) = self.cached(index) {
            return Ok(block);
        }
        let first = Nid(index * self.geometry.block_size.nat_entries() as u32);
        let copy = TableCopy::current(&self.copies, index);
        let addr = self.geometry.nat_block(index, copy);
        let block: Arc<[u8]> = io.read_block(addr, Place::Nat(first))?.into();
        self.remember(index, block.clone(), copy);
        Ok(block)
    }

    fn cached(&self, index: u32) -> Option<Arc<[u8]>> {
        let shard = self.cache[index as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner);
        shard.get(&index).map(|block| block.bytes.clone())
    }

    fn remember(&self, index: u32, bytes: Arc<[u8]>, copy: TableCopy) {
        let mut shard = self.cache[index as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner);
        if shard.len() >= self.shard_blocks && !shard.contains_key(&index) {
            // Any victim will do: the NAT is about a hundredth of the size of the nodes it points to.
            if let Some(victim) = shard.keys().next().copied() {
                shard.remove(&victim);
            }
        }
        shard.insert(index, Cached { bytes, copy });
    }

    /// Reads the NAT block of a search for free nids, together with those that follow it on the device. If
    /// that fails, each is read alone when it is needed.
    fn read_ahead(&mut self, io: &Io, index: u32) {
        if self.cached(index).is_some() {
            return;
        }
        let addr = |index: u32| self.geometry.nat_block(index, TableCopy::current(&self.copies, index));
        let most = self.read_ahead_blocks.min(self.geometry.nat_blocks() - index);
        let follows = |n: &u32| addr(index + n).0 == addr(index).0 + n && self.cached(index + n).is_none();
        let count = (0..most).take_while(follows).count() as u32;
        let size = self.geometry.block_size;
        let mut bytes = vec![0; size.bytes() * count as usize];
        let at = Place::Nat(Nid(index * size.nat_entries() as u32));
        if count > 1 && io.read(addr(index), at, &mut bytes).is_ok() {
            for (n, block) in (0..).zip(bytes.chunks_exact(size.bytes())) {
                let copy = TableCopy::current(&self.copies, index + n);
                self.remember(index + n, block.into(), copy);
            }
        }
        self.read_ahead_blocks = (2 * self.read_ahead_blocks).min(AHEAD_MAX);
    }

    /// Collects the free nids of a NAT block; none if the block is damaged.
    fn scan_block(&mut self, io: &Io, index: u32) -> Result<()> {
        let block = self.block(io, index)?;
        let per_block = self.geometry.block_size.nat_entries();
        let known = self.free.len();
        for at in 0..per_block {
            let nid = Nid(index * per_block as u32 + at as u32);
            if nid.0 < RESERVED_NIDS {
                continue;
            }
            let (entry, taken) = match self.changes.get(nid) {
                Some(change) => (change.entry, change.dirty),
                None => (nat::entry(&block, at), false),
            };
            if entry.is_free() && !taken {
                self.free.push_back(nid);
            } else if !taken && !self.geometry.in_main(entry.addr) {
                self.free.truncate(known);
                let what = format!("{} is not in the main area", entry.addr);
                // Other blocks have free nids as well.
                let _damaged = io.record_corruption::<()>(Err(Error::corrupt(Place::Nat(nid), what)));
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns true if a nid that was free when its block was scanned is still free.
    fn is_usable(&self, nid: Nid) -> bool {
        !self.ahead.contains(nid.0)
            && self.changes.get(nid).is_none_or(|change| !change.dirty && change.entry.is_free())
    }
}
