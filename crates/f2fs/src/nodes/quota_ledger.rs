//! The quota ledger: the usage that the quota files do not contain yet, and the limits that are enforced.
//!
//! *Invariants*: the charge of an inode is recorded before the inode becomes dirty. The record is compared with the charge
//! at a later time while the inode is still in memory: when it is written, when it is removed, and before a checkpoint. So
//! nothing is read for this. A difference is kept until it is in its file. For the few ids with limits the current usage
//! is kept in memory. An operation checks the limits before it changes anything.

use std::collections::BTreeMap;

use zerocopy::FromZeros;

use super::Nodes;
use crate::{
    Error, Result,
    format::{
        BlockSize,
        checkpoint::Flags,
        node::NodeBlock,
        quota::{QuotaKind, raw::QuotaRecord},
    },
    units::Ino,
};

/// Quota limits that hold for the callers of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Limits {
    /// Those of the volume.
    #[default]
    Enforced,
    /// None: an administrator (`CAP_SYS_RESOURCE`) may exceed them, and some volumes have none.
    Exempt,
}

/// The ledger of one volume.
pub(crate) struct QuotaLedger {
    dirty_usage: DirtyUsage,
    /// Current usage of the ids that have limits; `None` before the first change.
    enforced: Option<EnforcedLimits>,
    /// Limits for the callers of the next changes.
    limits: Limits,
}

impl QuotaLedger {
    /// Creates the ledger that follows a checkpoint with these flags.
    pub(super) fn new(flags: Flags) -> QuotaLedger {
        let is_wrong = flags.has(Flags::QUOTA_NEED_FSCK);
        QuotaLedger {
            dirty_usage: DirtyUsage { is_wrong, ..DirtyUsage::default() },
            enforced: None,
            limits: Limits::Exempt,
        }
    }

    /// Sets the quota limits for the callers of the following changes.
    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Returns true if the limits have been loaded.
    pub(crate) fn knows_limits(&self) -> bool {
        self.enforced.is_some()
    }

    /// Enforces these limits from now on; with `None`, they have to be loaded again.
    pub(crate) fn enforce(&mut self, limits: Option<EnforcedLimits>) {
        self.enforced = limits;
    }

    /// The current usage of an id that has limits.
    pub(crate) fn enforced(&self, kind: QuotaKind, id: u32) -> Option<&QuotaRecord> {
        self.enforced.as_ref()?.kinds[kind.index()].get(&id)
    }

    /// The current usage of an id that has limits, to update it.
    pub(crate) fn enforced_mut(&mut self, kind: QuotaKind, id: u32) -> Option<&mut QuotaRecord> {
        self.enforced.as_mut()?.kinds[kind.index()].get_mut(&id)
    }

    /// Returns true if the quota files may be wrong.
    pub(crate) fn is_wrong(&self) -> bool {
        self.dirty_usage.is_wrong
    }

    /// Records that the quota files may be wrong, which fsck has to repair.
    pub(crate) fn mark_wrong(&mut self) {
        self.dirty_usage.is_wrong = true;
    }

    /// Records that the quota files have just been computed from all inodes.
    pub(crate) fn mark_right(&mut self) {
        self.dirty_usage.is_wrong = false;
    }

    /// Returns true if the quota files need fsck even though they have just been written.
    pub(crate) fn needs_fsck(&self) -> bool {
        self.dirty_usage.needs_fsck()
    }

    /// Returns true if the usage of any id of this kind has changed, as far as charges are settled.
    pub(crate) fn has_settled_usage(&self, kind: QuotaKind) -> bool {
        !self.dirty_usage.changes[kind.index()].is_empty()
    }

    /// The settled changes of usage of a kind.
    pub(crate) fn settled_usage(&self, kind: QuotaKind) -> &BTreeMap<u32, UsageChange> {
        &self.dirty_usage.changes[kind.index()]
    }

    /// Takes the settled changes of usage of a kind: they are about to be written.
    pub(crate) fn take_usage(&mut self, kind: QuotaKind) -> BTreeMap<u32, UsageChange> {
        std::mem::take(&mut self.dirty_usage.changes[kind.index()])
    }

    /// Returns true if any id has limits.
    pub(crate) fn has_limits(&self) -> bool {
        self.enforced.as_ref().is_some_and(|limits| !limits.is_empty())
    }

    /// Drops limits that were read only in part, after a checkpoint, so that they are read again.
    pub(super) fn forget_partial_limits(&mut self) {
        self.enforced = self.enforced.take().filter(|limits| !limits.is_partial);
    }
}

/// The owners of an inode, and the blocks that they are charged for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Charge {
    /// User, group and project.
    ids: [u32; 3],
    blocks: u64,
}

impl Charge {
    fn of(inode: &NodeBlock) -> Charge {
        let head = inode.head();
        let ids = [head.uid.get(), head.gid.get(), inode.project().unwrap_or(0)];
        Charge { ids, blocks: head.blocks.get().saturating_sub(1) }
    }

    /// Those of the ids `to` that differ from the current owners.
    fn changed(self, to: [Option<u32>; 3]) -> [Option<u32>; 3] {
        std::array::from_fn(|n| to[n].filter(|id| *id != self.ids[n]))
    }
}

/// Change of the usage of an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct UsageChange {
    inodes: i64,
    bytes: i64,
}

/// Changes of the usage, by quota type and id.
pub(crate) type Changes = [BTreeMap<u32, UsageChange>; 3];

/// Changes that the quota files do not contain yet.
#[derive(Debug, Default)]
struct DirtyUsage {
    /// The charges of dirty inodes before they became dirty; `None` for an inode that did not exist.
    charges: BTreeMap<Ino, Option<Charge>>,
    /// The changes of usage of all other inodes, added up.
    changes: Changes,
    /// True if the quota files may be wrong, which fsck has to repair.
    is_wrong: bool,
}

impl DirtyUsage {
    /// Returns true if the quota files need fsck even though they have just been written.
    pub(crate) fn needs_fsck(&self) -> bool {
        self.is_wrong || self.changes.iter().any(|changes| !changes.is_empty())
    }
}

/// Current usage of the ids that have limits, with the grace times in seconds of the soft limits for space
/// and for inodes.
#[derive(Debug, Default)]
pub(crate) struct EnforcedLimits {
    pub(crate) kinds: [BTreeMap<u32, QuotaRecord>; 3],
    pub(crate) graces: [(u32, u32); 3],
    /// True if not all files could be read.
    pub(crate) is_partial: bool,
}

impl EnforcedLimits {
    fn is_empty(&self) -> bool {
        self.kinds.iter().all(BTreeMap::is_empty)
    }
}

/// Returns true if the limits permit `usage` (Linux, `dquot_add_space` and `dquot_add_inodes`). `until` is
/// the end of the grace time, or 0 if the soft limit is not exceeded yet.
pub(super) fn admits(usage: u64, hard: u64, soft: u64, until: u64, now: u64) -> bool {
    let over = |limit: u64| limit != 0 && usage > limit;
    let too_long = until != 0 && now >= until;
    !(over(hard) || over(soft) && too_long)
}

/// Returns the end of the grace time, or 0 if `usage` does not exceed the soft limit. The grace time starts
/// when the limit is first exceeded.
pub(super) fn grace_end(usage: u64, soft: u64, until: u64, now: u64, grace_seconds: u32) -> u64 {
    match (soft != 0 && usage > soft, until) {
        (false, _) => 0,
        (true, 0) => now + u64::from(grace_seconds),
        (true, until) => until,
    }
}

impl Nodes {
    /// The quota ledger.
    pub(crate) fn quota(&self) -> &QuotaLedger {
        &self.quota
    }

    /// The quota ledger, to change it.
    pub(crate) fn quota_mut(&mut self) -> &mut QuotaLedger {
        &mut self.quota
    }

    /// Turns the recorded charges of all dirty inodes into changes of usage.
    pub(crate) fn settle_charges(&mut self) {
        for (ino, before) in std::mem::take(&mut self.quota.dirty_usage.charges) {
            self.count_difference(before, self.charge_of_dirty(ino));
        }
    }

    /// Turns the recorded charge of an inode into changes of usage, before the inode becomes clean.
    pub(super) fn settle_charge(&mut self, ino: Ino) {
        if let Some(before) = self.quota.dirty_usage.charges.remove(&ino) {
            self.count_difference(before, self.charge_of_dirty(ino));
        }
    }

    /// Turns the charge of an inode that was removed into changes of usage. It may not have changed before.
    pub(super) fn settle_removed(&mut self, inode: &NodeBlock) {
        if self.is_charged(inode) {
            let recorded = self.quota.dirty_usage.charges.remove(&inode.ino());
            self.count_difference(recorded.unwrap_or(Some(Charge::of(inode))), None);
        }
    }

    /// The current charge of an inode whose charge is recorded.
    fn charge_of_dirty(&self, ino: Ino) -> Option<Charge> {
        Some(Charge::of(&self.cache.get(ino.into()).expect("the charges of dirty inodes are recorded")))
    }

    fn count_difference(&mut self, before: Option<Charge>, after: Option<Charge>) {
        let size = self.disk().geometry().block_size;
        add_difference(&mut self.quota.dirty_usage.changes, before, after, size);
    }

    /// Returns an error if the limits do not permit `blocks` more blocks for a file.
    pub(crate) fn admit(&self, ino: Ino, blocks: u64) -> Result<()> {
        if blocks == 0 || self.disk().superblock().is_quota_ino(ino) {
            return Ok(());
        }
        self.admit_ids(|| Ok(Charge::of(&*self.inode(ino)?).ids.map(Some)), 0, blocks)
    }

    /// Returns an error if the limits of its owners do not permit a new inode with `blocks` blocks besides
    /// its own.
    pub(crate) fn admit_new(&self, ids: [u32; 3], blocks: u64) -> Result<()> {
        self.admit_ids(|| Ok(ids.map(Some)), 1, blocks)
    }

    /// Returns an error if the limits of `ids` do not permit these inodes and blocks, unless the caller may
    /// exceed limits.
    fn admit_ids(
        &self,
        ids: impl FnOnce() -> Result<[Option<u32>; 3]>,
        inodes: u64,
        blocks: u64,
    ) -> Result<()> {
        let Some(limits) = self
            .quota
            .enforced
            .as_ref()
            .filter(|limits| self.quota.limits == Limits::Enforced && !limits.is_empty())
        else {
            return Ok(());
        };
        let ids = ids()?;
        let now = self.quota_now();
        let bytes = blocks << self.segments.disk().geometry().block_size.log();
        for (records, id) in limits.kinds.iter().zip(ids) {
            let Some(record) = id.and_then(|id| records.get(&id)) else { continue };
            let space = record.space.get().saturating_add(bytes);
            let count = record.inodes.get().saturating_add(inodes);
            let fits = admits(
                space,
                record.block_hard_limit.get().saturating_mul(1024),
                record.block_soft_limit.get().saturating_mul(1024),
                record.block_time.get(),
                now,
            ) || bytes == 0;
            let counts = admits(
                count,
                record.inode_hard_limit.get(),
                record.inode_soft_limit.get(),
                record.inode_time.get(),
                now,
            ) || inodes == 0;
            if !fits || !counts {
                return Err(Error::Quota);
            }
        }
        Ok(())
    }

    /// Returns an error if the limits of the new owners do not permit the inode.
    pub(crate) fn admit_owner(&self, ino: Ino, to: [Option<u32>; 3]) -> Result<()> {
        if !self.quota.has_limits() || self.disk().superblock().is_quota_ino(ino) {
            return Ok(());
        }
        let charge = Charge::of(&*self.inode(ino)?);
        self.admit_ids(|| Ok(charge.changed(to)), 1, charge.blocks)
    }

    /// Moves the charge of an inode to its new owners, before the owners change.
    pub(crate) fn charge_owner(&mut self, ino: Ino, to: [Option<u32>; 3]) -> Result<()> {
        if !self.quota.has_limits() || self.disk().superblock().is_quota_ino(ino) {
            return Ok(());
        }
        let charge = Charge::of(&*self.inode(ino)?);
        let ids = charge.changed(to);
        let old = std::array::from_fn(|n| ids[n].map(|_| charge.ids[n]));
        self.charge(old, -1, -(charge.blocks as i64));
        self.charge(ids, 1, charge.blocks as i64);
        Ok(())
    }

    /// Updates the usage after a file has gained or lost blocks.
    pub(crate) fn charge_blocks(&mut self, ino: Ino, blocks: i64) -> Result<()> {
        if self.quota.has_limits() && !self.disk().superblock().is_quota_ino(ino) {
            let ids = Charge::of(&*self.inode(ino)?).ids;
            self.charge(ids.map(Some), 0, blocks);
        }
        Ok(())
    }

    /// Updates the usage for an inode that is created (`sign` 1) or removed (-1) with its blocks.
    pub(super) fn charge_inode(&mut self, node: &NodeBlock, sign: i64) {
        if node.is_inode() && self.quota.has_limits() && !self.disk().superblock().is_quota_ino(node.ino()) {
            let charge = Charge::of(node);
            self.charge(charge.ids.map(Some), sign, sign * charge.blocks as i64);
        }
    }

    fn charge(&mut self, ids: [Option<u32>; 3], inodes: i64, blocks: i64) {
        let (now, log) = (self.quota_now(), self.segments.disk().geometry().block_size.log());
        let Some(limits) = &mut self.quota.enforced else { return };
        for ((records, id), graces) in limits.kinds.iter_mut().zip(ids).zip(limits.graces) {
            let Some(record) = id.and_then(|id| records.get_mut(&id)) else { continue };
            record.inodes.set(record.inodes.get().saturating_add_signed(inodes));
            record.space.set(record.space.get().saturating_add_signed(blocks << log));
            set_times(record, graces, now);
        }
    }

    /// Current time in seconds, for grace times.
    pub(crate) fn quota_now(&self) -> u64 {
        self.segments.disk().time().seconds.max(0) as u64
    }

    /// Records the charge of an inode before it becomes dirty.
    pub(super) fn note_charge(&mut self, inode: &NodeBlock) {
        if self.is_charged(inode) {
            self.quota.dirty_usage.charges.entry(inode.ino()).or_insert_with(|| Some(Charge::of(inode)));
        }
    }

    /// Records that an inode did not exist, before it is created.
    pub(super) fn note_new(&mut self, inode: &NodeBlock) {
        if self.is_charged(inode) {
            self.quota.dirty_usage.charges.entry(inode.ino()).or_insert(None);
        }
    }

    /// Returns true if a node is an inode that counts for quota.
    fn is_charged(&self, node: &NodeBlock) -> bool {
        node.is_inode()
            && self.disk().superblock().has_quotas()
            && !self.disk().superblock().is_quota_ino(node.ino())
    }

    /// Records the charges of all dirty inodes after a failed checkpoint. Its quota files contain all changes
    /// up to now, as after a successful one, but the inodes are still dirty and may change again.
    pub(crate) fn note_waiting_charges(&mut self) {
        for nid in self.cache.dirty_nids() {
            let node = self.cache.get(nid).expect("the node is dirty");
            self.note_charge(&node);
        }
    }

    /// Changes of the usage since the quota files were written.
    pub(crate) fn quota_changes(&self) -> Changes {
        let mut changes = self.quota.dirty_usage.changes.clone();
        let size = self.disk().geometry().block_size;
        for (ino, before) in &self.quota.dirty_usage.charges {
            add_difference(&mut changes, *before, self.charge_of_dirty(*ino), size);
        }
        changes
    }
}

/// Adds the difference between two charges of an inode to `changes`.
fn add_difference(changes: &mut Changes, before: Option<Charge>, after: Option<Charge>, size: BlockSize) {
    for (charge, sign) in [(before, -1), (after, 1)] {
        let Some(charge) = charge else { continue };
        for (changes, id) in changes.iter_mut().zip(charge.ids) {
            let change = changes.entry(id).or_default();
            change.inodes += sign;
            // The rules of an inode allow more blocks than the volume has, so the sum of many may not fit.
            let bytes = sign * charge.blocks as i64 * size.bytes() as i64;
            change.bytes = change.bytes.saturating_add(bytes);
            if *change == UsageChange::default() {
                changes.remove(&id);
            }
        }
    }
}

/// Adds a change to the usage in a record.
pub(crate) fn apply(record: &mut QuotaRecord, change: Option<&UsageChange>) {
    let change = change.copied().unwrap_or_default();
    record.inodes.set(record.inodes.get().saturating_add_signed(change.inodes));
    record.space.set(record.space.get().saturating_add_signed(change.bytes));
}

pub(crate) fn has_limit(record: &QuotaRecord) -> bool {
    let limits =
        [record.block_hard_limit, record.block_soft_limit, record.inode_hard_limit, record.inode_soft_limit];
    limits.iter().any(|limit| limit.get() != 0)
}

/// Updates the ends of the grace times for the current usage.
pub(crate) fn set_times(record: &mut QuotaRecord, graces: (u32, u32), now: u64) {
    let block_soft = record.block_soft_limit.get().saturating_mul(1024);
    let block_time = grace_end(record.space.get(), block_soft, record.block_time.get(), now, graces.0);
    record.block_time.set(block_time);
    let inode_soft = record.inode_soft_limit.get();
    let inode_time = grace_end(record.inodes.get(), inode_soft, record.inode_time.get(), now, graces.1);
    record.inode_time.set(inode_time);
}

/// A record with no usage and no limits.
pub(crate) fn blank(id: u32) -> QuotaRecord {
    let mut record = QuotaRecord::new_zeroed();
    record.id.set(id);
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_limits_hold_at_once_and_soft_ones_after_a_time() {
        assert!(admits(10, 10, 0, 0, 5) && !admits(11, 10, 0, 0, 5));
        assert!(admits(11, 0, 10, 0, 5), "the time begins");
        assert!(admits(11, 0, 10, 6, 5) && !admits(11, 0, 10, 6, 6));
        assert!(admits(10, 0, 10, 6, 6) && admits(u64::MAX, 0, 0, 1, 2));
    }

    #[test]
    fn the_time_over_a_soft_limit_begins_and_ends_with_it() {
        assert_eq!(grace_end(11, 10, 0, 100, 7), 107);
        assert_eq!(grace_end(12, 10, 107, 105, 7), 107);
        assert_eq!((grace_end(10, 10, 107, 105, 7), grace_end(11, 0, 107, 105, 7)), (0, 0));
    }
}
