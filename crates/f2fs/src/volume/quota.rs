//! Usage and limits of users, groups and projects.
//!
//! *Invariants*: the quota files contain the usage at the last checkpoint. Before an inode changes for the
//! first time after it, its current charge is recorded; the next checkpoint compares and writes the
//! differences. A difference is kept until it is in its file, and as long as it is not, checkpoints ask for
//! fsck. For the few ids with limits the current usage is also kept in memory; other ids cost nothing before
//! the checkpoint. An operation checks the limits before it changes anything.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use zerocopy::{FromZeros, IntoBytes};

use super::Volume;
use crate::{
    Error, Place, Result,
    format::{
        BlockSize, FileType,
        checkpoint::Flags,
        inode::inline,
        node::NodeBlock,
        quota::{self, BLOCK_BYTES, Located, QuotaKind, raw::QuotaRecord},
    },
    units::Ino,
};

/// The owners of an inode, and the blocks that they are charged for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Charge {
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
struct Change {
    inodes: i64,
    bytes: i64,
}

/// Changes of the usage, by quota type and id.
type Changes = [BTreeMap<u32, Change>; 3];

/// Charges of inodes; `None` for an inode that did not exist.
type Charges = BTreeMap<Ino, Option<Charge>>;

/// Changes that the quota files do not contain yet.
#[derive(Debug, Default)]
pub(super) struct Unsaid {
    /// The charges that changed inodes had at the last checkpoint; `None` for an inode that did not exist.
    charges: Charges,
    /// Such charges of inodes that could not be read when the files were last written.
    unread: Charges,
    /// The changes of usage of all other inodes, added up.
    changes: Changes,
    /// True if the quota files may be wrong, which fsck has to repair.
    is_wrong: bool,
}

impl Unsaid {
    /// Creates the state that follows a checkpoint with these flags.
    pub fn new(flags: Flags) -> Unsaid {
        Unsaid { is_wrong: flags.has(Flags::QUOTA_NEED_FSCK), ..Unsaid::default() }
    }

    /// Returns true if the quota files need fsck even though they have just been written.
    pub fn needs_fsck(&self) -> bool {
        self.is_wrong || !self.unread.is_empty() || self.changes.iter().any(|changes| !changes.is_empty())
    }
}

/// Current usage of the ids that have limits, with the grace times in seconds of the soft limits for space
/// and for inodes.
#[derive(Debug, Default)]
pub(super) struct Limited {
    kinds: [BTreeMap<u32, QuotaRecord>; 3],
    graces: [(u32, u32); 3],
    /// True if not all files could be read.
    is_partial: bool,
}

impl Limited {
    fn is_empty(&self) -> bool {
        self.kinds.iter().all(BTreeMap::is_empty)
    }
}

/// A quota file, with everything that changing it needs read into memory.
struct QuotaFile {
    kind: QuotaKind,
    ino: Ino,
    /// Grace times in seconds of the soft limits for space and for inodes.
    graces: (u32, u32),
    /// The records, by id.
    records: BTreeMap<u32, Located>,
    /// The blocks of the file that contain the records.
    blocks: BTreeMap<u64, Box<[u8]>>,
}

/// Limits of a user, group or project; 0 means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuotaLimits {
    /// Hard limit of space in KiB.
    pub space_hard_kib: u64,
    /// Soft limit of space in KiB, which may be exceeded for the grace time.
    pub space_soft_kib: u64,
    /// Hard limit of inodes.
    pub inodes_hard: u64,
    /// Soft limit of inodes, which may be exceeded for the grace time.
    pub inodes_soft: u64,
}

/// Returns true if the limits permit `usage` (Linux, `dquot_add_space` and `dquot_add_inodes`). `until` is
/// the end of the grace time, or 0 if the soft limit is not exceeded yet.
pub fn admits(usage: u64, hard: u64, soft: u64, until: u64, now: u64) -> bool {
    let over = |limit: u64| limit != 0 && usage > limit;
    let too_long = until != 0 && now >= until;
    !(over(hard) || over(soft) && too_long)
}

/// Returns the end of the grace time, or 0 if `usage` does not exceed the soft limit. The grace time starts
/// when the limit is first exceeded.
pub fn grace_end(usage: u64, soft: u64, until: u64, now: u64, grace_seconds: u32) -> u64 {
    match (soft != 0 && usage > soft, until) {
        (false, _) => 0,
        (true, 0) => now + u64::from(grace_seconds),
        (true, until) => until,
    }
}

impl Volume {
    /// Sets if the callers of the following operations may exceed quota limits, as the administrator may
    /// (`CAP_SYS_RESOURCE`). Initially they may.
    pub fn set_privileged(&mut self, privileged: bool) {
        self.privileged = privileged;
    }

    /// Sets the limits of a user, group or project. Returns [`Error::Unsupported`] if the volume has no such
    /// quota.
    pub fn set_quota_limits(&mut self, kind: QuotaKind, id: u32, limits: QuotaLimits) -> Result<()> {
        self.begin()?;
        let ino = self
            .quota_ino(kind)
            .ok_or_else(|| Error::Unsupported("quota limits without the feature quota".into()))?;
        let changes = self.quota_changes()?;
        let mut file = self.read_quota(kind, ino)?;
        let located = file.records.entry(id).or_insert_with(|| Located { offset: 0, record: blank(id) });
        let record = &mut located.record;
        record.block_hard_limit.set(limits.space_hard_kib);
        record.block_soft_limit.set(limits.space_soft_kib);
        record.inode_hard_limit.set(limits.inodes_hard);
        record.inode_soft_limit.set(limits.inodes_soft);
        // The file keeps the usage at the last checkpoint.
        let mut now = *record;
        apply(&mut now, changes[kind.index()].get(&id));
        set_times(&mut now, file.graces, self.quota_now());
        (record.block_time, record.inode_time) = (now.block_time, now.inode_time);
        self.store_quota(file, &[id])?;
        self.limited = None;
        self.load_limits()
    }

    /// Current usage and limits of a user, group or project.
    pub fn quota_of(&self, kind: QuotaKind, id: u32) -> Result<QuotaRecord> {
        if let Some(record) = self.limited.as_ref().and_then(|limited| limited.kinds[kind.index()].get(&id)) {
            return Ok(*record);
        }
        let records = self.quota_records(kind)?.into_iter().map(|located| located.record);
        let mut record =
            records.into_iter().find(|record| record.id.get() == id).unwrap_or_else(|| blank(id));
        apply(&mut record, self.quota_changes()?[kind.index()].get(&id));
        Ok(record)
    }

    /// Returns true if any id has limits.
    pub(super) fn has_limits(&self) -> bool {
        self.limited.as_ref().is_some_and(|limited| !limited.is_empty())
    }

    /// Loads the limits before the first change.
    pub(super) fn load_limits(&mut self) -> Result<()> {
        if self.limited.is_some() {
            return Ok(());
        }
        let mut limited = Limited::default();
        // If the files may be wrong, limits are not enforced (Linux, `f2fs_enable_quotas`).
        if self.has_quotas() && !self.unsaid.is_wrong {
            let now = self.quota_now();
            let changes = match self.quota_changes() {
                Err(error) if self.stays_in_place(&error) => {
                    limited.is_partial = true;
                    Changes::default()
                }
                changes => changes?,
            };
            for (n, kind) in QuotaKind::ALL.into_iter().enumerate() {
                let Some(ino) = self.quota_ino(kind) else { continue };
                match self.read_quota(kind, ino) {
                    Ok(QuotaFile { records, graces, .. }) => {
                        let records = records.into_iter().map(|(id, located)| (id, located.record));
                        limited.kinds[n] = records.filter(|(_, record)| has_limit(record)).collect();
                        limited.graces[n] = graces;
                        for (id, record) in &mut limited.kinds[n] {
                            apply(record, changes[n].get(id));
                            set_times(record, graces, now);
                        }
                    }
                    // The next checkpoint asks for fsck.
                    Err(Error::Corrupt { .. }) => {}
                    Err(error) if self.stays_in_place(&error) => limited.is_partial = true,
                    Err(error) => return Err(error),
                }
            }
        }
        self.limited = Some(limited);
        Ok(())
    }

    /// Drops limits that were read only in part, after a checkpoint, so that they are read again.
    pub(super) fn forget_partial_limits(&mut self) {
        self.limited = self.limited.take().filter(|limited| !limited.is_partial);
    }

    /// Returns an error if the limits do not permit `blocks` more blocks for a file.
    pub(super) fn admit(&self, ino: Ino, blocks: u64) -> Result<()> {
        if blocks == 0 || self.is_quota_ino(ino) {
            return Ok(());
        }
        self.admit_ids(|| Ok(Charge::of(&*self.inode(ino)?).ids.map(Some)), 0, blocks)
    }

    /// Returns an error if the limits of its owners do not permit a new inode with `blocks` blocks besides
    /// its own.
    pub(super) fn admit_new(&self, ids: [u32; 3], blocks: u64) -> Result<()> {
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
        let Some(limited) = self.limited.as_ref().filter(|limited| !self.privileged && !limited.is_empty())
        else {
            return Ok(());
        };
        let ids = ids()?;
        let now = self.quota_now();
        let bytes = blocks << self.geometry.block_size.log();
        for (records, id) in limited.kinds.iter().zip(ids) {
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
    pub(super) fn admit_owner(&self, ino: Ino, to: [Option<u32>; 3]) -> Result<()> {
        if !self.has_limits() || self.is_quota_ino(ino) {
            return Ok(());
        }
        let charge = Charge::of(&*self.inode(ino)?);
        self.admit_ids(|| Ok(charge.changed(to)), 1, charge.blocks)
    }

    /// Moves the charge of an inode to its new owners, before the owners change.
    pub(super) fn charge_owner(&mut self, ino: Ino, to: [Option<u32>; 3]) -> Result<()> {
        if !self.has_limits() || self.is_quota_ino(ino) {
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
    pub(super) fn charge_blocks(&mut self, ino: Ino, blocks: i64) -> Result<()> {
        if self.has_limits() && !self.is_quota_ino(ino) {
            let ids = Charge::of(&*self.inode(ino)?).ids;
            self.charge(ids.map(Some), 0, blocks);
        }
        Ok(())
    }

    /// Updates the usage for an inode that is created (`sign` 1) or removed (-1) with its blocks.
    pub(super) fn charge_inode(&mut self, node: &NodeBlock, sign: i64) {
        if node.is_inode() && self.has_limits() && !self.is_quota_ino(node.ino()) {
            let charge = Charge::of(node);
            self.charge(charge.ids.map(Some), sign, sign * charge.blocks as i64);
        }
    }

    fn charge(&mut self, ids: [Option<u32>; 3], inodes: i64, blocks: i64) {
        let (now, log) = (self.quota_now(), self.geometry.block_size.log());
        let Some(limited) = &mut self.limited else { return };
        for ((records, id), graces) in limited.kinds.iter_mut().zip(ids).zip(limited.graces) {
            let Some(record) = id.and_then(|id| records.get_mut(&id)) else { continue };
            record.inodes.set(record.inodes.get().saturating_add_signed(inodes));
            record.space.set(record.space.get().saturating_add_signed(blocks << log));
            set_times(record, graces, now);
        }
    }

    /// Current time in seconds, for grace times.
    fn quota_now(&self) -> u64 {
        self.time().seconds.max(0) as u64
    }

    pub(super) fn is_quota_ino(&self, ino: Ino) -> bool {
        self.superblock.quota_inos.contains(&ino)
    }

    /// The hidden inode of a quota file, if the volume has this quota.
    pub fn quota_ino(&self, kind: QuotaKind) -> Option<Ino> {
        Some(self.superblock().quota_inos[kind.index()]).filter(|ino| ino.0 != 0)
    }

    /// All records of a quota; none if the volume does not have it.
    pub fn quota_records(&self, kind: QuotaKind) -> Result<Vec<Located>> {
        let Some(ino) = self.quota_ino(kind) else { return Ok(Vec::new()) };
        Ok(self.read_quota(kind, ino)?.records.into_values().collect())
    }

    fn read_quota(&self, kind: QuotaKind, ino: Ino) -> Result<QuotaFile> {
        let (inode, at) = (self.inode(ino)?, Place::Inode(ino));
        if inode.file_type() != FileType::Regular {
            return Err(Error::corrupt(at, "the quota file is not a regular file"));
        }
        let size = self.geometry.block_size;
        let mut blocks = BTreeMap::new();
        let mut read = |part: u32| {
            let start = u64::from(part) * BLOCK_BYTES as u64;
            if start + BLOCK_BYTES as u64 > inode.head().size.get() {
                return Err(Error::corrupt(at, "the quota file is too short"));
            }
            let block = match blocks.entry(start >> size.log()) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => {
                    let mut bytes = vec![0; size.bytes()].into_boxed_slice();
                    self.read_content(&inode, *unknown.key() << size.log(), &mut bytes)?;
                    unknown.insert(bytes)
                }
            };
            let inside = start as usize & (size.bytes() - 1);
            Ok(*block[inside..].first_chunk().expect("blocks hold whole parts"))
        };
        let info = quota::info(&read(0)?, kind, at)?;
        let records = quota::records(kind, at, read)?;
        let records = records.into_iter().map(|located| (located.record.id.get(), located)).collect();
        Ok(QuotaFile { kind, ino, graces: (info.block_grace.get(), info.inode_grace.get()), records, blocks })
    }

    /// Records the charge of an inode before its first change since the last checkpoint.
    pub(super) fn note_charge(&mut self, inode: &NodeBlock) {
        if self.is_charged(inode) {
            self.unsaid.charges.entry(inode.ino()).or_insert_with(|| Some(Charge::of(inode)));
        }
    }

    /// Records that an inode did not exist at the last checkpoint, before it is created.
    pub(super) fn note_new(&mut self, inode: &NodeBlock) {
        if self.is_charged(inode) {
            self.unsaid.charges.entry(inode.ino()).or_insert(None);
        }
    }

    /// Returns true if a node is an inode that counts for quota.
    fn is_charged(&self, node: &NodeBlock) -> bool {
        node.is_inode() && self.has_quotas() && !self.is_quota_ino(node.ino())
    }

    /// Updates the quota files. An unreadable file is retried at the next checkpoint; a damaged or partly
    /// written one is left to fsck. Neither makes the checkpoint fail (Linux, `f2fs_quota_sync`).
    pub(super) fn write_quotas(&mut self) -> Result<()> {
        let mut charges = std::mem::take(&mut self.unsaid.charges);
        charges.append(&mut self.unsaid.unread);
        for (ino, before) in charges {
            match self.charge_now(ino) {
                Ok(after) => {
                    add_difference(&mut self.unsaid.changes, before, after, self.geometry.block_size)
                }
                Err(Error::Corrupt { .. }) => self.unsaid.is_wrong = true,
                Err(error) if self.stays_in_place(&error) => drop(self.unsaid.unread.insert(ino, before)),
                Err(error) => return Err(error),
            }
        }
        for (n, kind) in QuotaKind::ALL.into_iter().enumerate() {
            let Some(ino) = self.quota_ino(kind).filter(|_| !self.unsaid.changes[n].is_empty()) else {
                self.unsaid.changes[n].clear();
                continue;
            };
            let read = self.read_quota(kind, ino);
            if read.as_ref().is_err_and(|error| matches!(error, Error::Io { .. })) {
                continue;
            }
            let changes = std::mem::take(&mut self.unsaid.changes[n]);
            let Err(error) = read.and_then(|file| self.write_quota(file, &changes)) else { continue };
            self.unsaid.is_wrong = true;
            if !matches!(error, Error::NoSpace { .. }) && !self.stays_in_place(&error) {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Records the charges of all dirty inodes after a failed checkpoint. Its quota files contain all changes
    /// up to now, as after a successful one, but the inodes are still dirty and may change again.
    pub(super) fn note_waiting_charges(&mut self) {
        for nid in self.nodes.dirty_nids() {
            let node = self.nodes.get(nid).expect("the node is dirty");
            self.note_charge(&node);
        }
    }

    fn has_quotas(&self) -> bool {
        self.superblock.quota_inos.iter().any(|ino| ino.0 != 0)
    }

    /// Changes of the usage since the quota files were written.
    fn quota_changes(&self) -> Result<Changes> {
        let mut changes = self.unsaid.changes.clone();
        let mut charges = self.unsaid.charges.clone();
        charges.extend(&self.unsaid.unread);
        for (ino, before) in charges {
            let after = self.charge_now(ino)?;
            add_difference(&mut changes, before, after, self.geometry.block_size);
        }
        Ok(changes)
    }

    /// The current charge of an inode; `None` if it does not exist.
    fn charge_now(&self, ino: Ino) -> Result<Option<Charge>> {
        match self.nat.get(&self.io, ino.into())?.is_free() {
            true => Ok(None),
            false => Ok(Some(Charge::of(&*self.inode(ino)?))),
        }
    }

    fn write_quota(&mut self, mut file: QuotaFile, changes: &BTreeMap<u32, Change>) -> Result<()> {
        let now = self.quota_now();
        for (id, change) in changes {
            let located =
                file.records.entry(*id).or_insert_with(|| Located { offset: 0, record: blank(*id) });
            let record = &mut located.record;
            apply(record, Some(change));
            set_times(record, file.graces, now);
            let limited = self.limited.as_mut();
            if let Some(limited) = limited.and_then(|limited| limited.kinds[file.kind.index()].get_mut(id)) {
                // The grace time started when the limit was exceeded. The usage of both records is the same
                // unless the file was wrong; then the file's value counts for both.
                (record.block_time, record.inode_time) = (limited.block_time, limited.inode_time);
                *limited = *record;
            }
        }
        let changed: Vec<u32> = changes.keys().copied().collect();
        self.store_quota(file, &changed)
    }

    /// Writes a quota file. The records of `changed` are overwritten in place unless records were added or
    /// removed. Nothing is read here, so a read error cannot leave the file half written.
    fn store_quota(&mut self, mut file: QuotaFile, changed: &[u32]) -> Result<()> {
        let size = self.geometry.block_size;
        let stays = |record: &QuotaRecord| *record != blank(record.id.get());
        // A new record has no offset yet; offset 0, the start of the file, holds no record.
        if !file.records.values().all(|located| located.offset != 0 && stays(&located.record)) {
            let kept = file.records.into_values().map(|located| located.record).filter(stays);
            let mut content = quota::encode_records(file.kind, file.graces, kept);
            let end = content.len() as u64;
            if !self.inode(file.ino)?.has_inline(inline::DATA) {
                content.resize(content.len().next_multiple_of(size.bytes()), 0);
            }
            self.write_content(file.ino, 0, &content)?;
            return self.set_size(file.ino, end);
        }
        let mut blocks = BTreeSet::new();
        for Located { offset, record } in changed.iter().filter_map(|id| file.records.get(id)) {
            let (block, inside) = (offset >> size.log(), *offset as usize & (size.bytes() - 1));
            let bytes = file.blocks.get_mut(&block).expect("a record was read from its block");
            bytes[inside..inside + size_of::<QuotaRecord>()].copy_from_slice(record.as_bytes());
            blocks.insert(block);
        }
        for block in blocks {
            self.overwrite_block(file.ino, block, &file.blocks[&block])?;
        }
        Ok(())
    }
}

/// Adds the difference between two charges of an inode to `changes`.
fn add_difference(changes: &mut Changes, before: Option<Charge>, after: Option<Charge>, size: BlockSize) {
    for (charge, sign) in [(before, -1), (after, 1)] {
        let Some(charge) = charge else { continue };
        for (changes, id) in changes.iter_mut().zip(charge.ids) {
            let change = changes.entry(id).or_default();
            change.inodes += sign;
            change.bytes += sign * charge.blocks as i64 * size.bytes() as i64;
            if *change == Change::default() {
                changes.remove(&id);
            }
        }
    }
}

/// Adds a change to the usage in a record.
fn apply(record: &mut QuotaRecord, change: Option<&Change>) {
    let change = change.copied().unwrap_or_default();
    record.inodes.set(record.inodes.get().saturating_add_signed(change.inodes));
    record.space.set(record.space.get().saturating_add_signed(change.bytes));
}

fn has_limit(record: &QuotaRecord) -> bool {
    let limits =
        [record.block_hard_limit, record.block_soft_limit, record.inode_hard_limit, record.inode_soft_limit];
    limits.iter().any(|limit| limit.get() != 0)
}

/// Updates the ends of the grace times for the current usage.
fn set_times(record: &mut QuotaRecord, graces: (u32, u32), now: u64) {
    let block_soft = record.block_soft_limit.get().saturating_mul(1024);
    let block_time = grace_end(record.space.get(), block_soft, record.block_time.get(), now, graces.0);
    record.block_time.set(block_time);
    let inode_soft = record.inode_soft_limit.get();
    let inode_time = grace_end(record.inodes.get(), inode_soft, record.inode_time.get(), now, graces.1);
    record.inode_time.set(inode_time);
}

/// A record with no usage and no limits.
fn blank(id: u32) -> QuotaRecord {
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
