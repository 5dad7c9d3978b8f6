//! Usage and limits of users, groups and projects.
//!
//! *Invariants*: the quota files say what was true at the last checkpoint. Whatever changes an inode first tells what
//! it was charged for until then; the checkpoint compares, and writes the differences. Of the few ids that have limits,
//! what they use is also known at any time; all others cost nothing before the checkpoint. An operation asks for what
//! it may need before it changes anything.

use std::collections::BTreeMap;

use zerocopy::{FromZeros, IntoBytes};

use super::Volume;
use crate::{
    Error, Place, Result,
    format::{
        FileType,
        checkpoint::Flags,
        node::NodeBlock,
        quota::{self, BLOCK_BYTES, Located, QuotaKind, raw::QuotaRecord},
    },
    units::Ino,
};

/// What an inode is charged for, and to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Charge {
    /// User, group, project.
    ids: [u32; 3],
    blocks: u64,
}

impl Charge {
    fn of(inode: &NodeBlock) -> Charge {
        let head = inode.head();
        let ids = [head.uid.get(), head.gid.get(), inode.project().unwrap_or(0)];
        Charge { ids, blocks: head.blocks.get().saturating_sub(1) }
    }
}

/// What the inodes that changed since the last checkpoint were charged for then; `None` where they were not there.
pub(super) type Charges = BTreeMap<Ino, Option<Charge>>;

/// How the usage of an id has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Change {
    inodes: i64,
    bytes: i64,
}

/// What those use that have limits, as of now, and for how many seconds the soft ones of space and of inodes may be
/// exceeded.
#[derive(Debug, Default)]
pub(super) struct Limited {
    kinds: [BTreeMap<u32, QuotaRecord>; 3],
    graces: [(u32, u32); 3],
}

impl Limited {
    fn is_empty(&self) -> bool {
        self.kinds.iter().all(BTreeMap::is_empty)
    }
}

/// Limits of a user, group or project; 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuotaLimits {
    /// Space at most, in KiB.
    pub space_hard_kib: u64,
    /// Space that may be exceeded for a time, in KiB.
    pub space_soft_kib: u64,
    /// Inodes at most.
    pub inodes_hard: u64,
    /// Inodes that may be exceeded for a time.
    pub inodes_soft: u64,
}

/// Decides whether more may be used (Linux, `dquot_add_space` and `dquot_add_inodes`): `usage` is what it would be
/// then, `until` when the time over the soft limit ends, 0 where that is not exceeded yet.
pub fn admits(usage: u64, hard: u64, soft: u64, until: u64, now: u64) -> bool {
    let over = |limit: u64| limit != 0 && usage > limit;
    let too_long = until != 0 && now >= until;
    !(over(hard) || over(soft) && too_long)
}

/// When the time over a soft limit ends: begins with what exceeds the limit, and ends with what does not.
pub fn grace_end(usage: u64, soft: u64, until: u64, now: u64, grace_seconds: u32) -> u64 {
    match (soft != 0 && usage > soft, until) {
        (false, _) => 0,
        (true, 0) => now + u64::from(grace_seconds),
        (true, until) => until,
    }
}

impl Volume {
    /// Says whether who asks from now on may exceed the limits of quota, as the administrator may
    /// (`CAP_SYS_RESOURCE`). At first he may.
    pub fn set_privileged(&mut self, privileged: bool) {
        self.privileged = privileged;
    }

    /// Sets the limits of a user, group or project. [`Error::Unsupported`] where the volume has no such quota.
    pub fn set_quota_limits(&mut self, kind: QuotaKind, id: u32, limits: QuotaLimits) -> Result<()> {
        self.begin()?;
        let ino = self
            .quota_ino(kind)
            .ok_or_else(|| Error::Unsupported("limits without the feature quota".into()))?;
        let changes = self.quota_changes()?;
        let mut records = self.quota_map(kind)?;
        let located = records.entry(id).or_insert_with(|| Located { offset: 0, record: blank(id) });
        let record = &mut located.record;
        record.block_hard_limit.set(limits.space_hard_kib);
        record.block_soft_limit.set(limits.space_soft_kib);
        record.inode_hard_limit.set(limits.inodes_hard);
        record.inode_soft_limit.set(limits.inodes_soft);
        let graces = self.quota_graces(kind, ino)?;
        // The file goes on to say what was used at the last checkpoint.
        let mut now = *record;
        apply(&mut now, changes[kind.index()].get(&id));
        set_times(&mut now, graces, self.quota_now());
        (record.block_time, record.inode_time) = (now.block_time, now.inode_time);
        self.store_records(kind, ino, graces, records, &[id])?;
        self.limited = None;
        self.load_limits()
    }

    /// What a user, group or project uses and may use, as of now.
    pub fn quota_of(&self, kind: QuotaKind, id: u32) -> Result<QuotaRecord> {
        if let Some(record) = self.limited.as_ref().and_then(|limited| limited.kinds[kind.index()].get(&id)) {
            return Ok(*record);
        }
        let mut record =
            self.quota_map(kind)?.remove(&id).map_or_else(|| blank(id), |located| located.record);
        apply(&mut record, self.quota_changes()?[kind.index()].get(&id));
        Ok(record)
    }

    /// Whether anybody has limits.
    pub(super) fn has_limits(&self) -> bool {
        self.limited.as_ref().is_some_and(|limited| !limited.is_empty())
    }

    /// Before the first change: who has limits?
    pub(super) fn load_limits(&mut self) -> Result<()> {
        if self.limited.is_some() {
            return Ok(());
        }
        let mut limited = Limited::default();
        // Where the files may be wrong, nobody is held to what they say (Linux, `f2fs_enable_quotas`).
        if self.has_quotas() && !self.checkpoint.flags.has(Flags::QUOTA_NEED_FSCK) {
            let (changes, now) = (self.quota_changes()?, self.quota_now());
            for (n, kind) in QuotaKind::ALL.into_iter().enumerate() {
                let Some(ino) = self.quota_ino(kind) else { continue };
                let read = self.quota_map(kind).and_then(|map| Ok((map, self.quota_graces(kind, ino)?)));
                match read {
                    Ok((records, graces)) => {
                        let records = records.into_iter().map(|(id, located)| (id, located.record));
                        limited.kinds[n] = records.filter(|(_, record)| has_limit(record)).collect();
                        limited.graces[n] = graces;
                        for (id, record) in &mut limited.kinds[n] {
                            apply(record, changes[n].get(id));
                            set_times(record, graces, now);
                        }
                    }
                    // The next checkpoint asks fsck to see to it.
                    Err(Error::Corrupt { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        self.limited = Some(limited);
        Ok(())
    }

    /// Refuses more blocks to a file where its owners must not have them.
    pub(super) fn admit(&self, ino: Ino, blocks: u64) -> Result<()> {
        if blocks == 0 || self.is_quota_ino(ino) {
            return Ok(());
        }
        self.admit_ids(|| Ok(Charge::of(&*self.inode(ino)?).ids.map(Some)), 0, blocks)
    }

    /// Refuses a new inode with so many blocks besides its own to those that it would belong to.
    pub(super) fn admit_new(&self, ids: [u32; 3], blocks: u64) -> Result<()> {
        self.admit_ids(|| Ok(ids.map(Some)), 1, blocks)
    }

    /// Refuses inodes and blocks to those who must not have them, unless who asks may exceed limits.
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

    /// Before an inode gets other owners: who gets it must have room for it, and is charged from then on.
    pub(super) fn change_owner(&mut self, ino: Ino, to: [Option<u32>; 3]) -> Result<()> {
        if !self.has_limits() || self.is_quota_ino(ino) {
            return Ok(());
        }
        let charge = Charge::of(&*self.inode(ino)?);
        let mut ids = to;
        for (id, old) in ids.iter_mut().zip(charge.ids) {
            *id = id.filter(|id| *id != old);
        }
        self.admit_ids(|| Ok(ids), 1, charge.blocks)?;
        let old = std::array::from_fn(|n| ids[n].map(|_| charge.ids[n]));
        self.charge(old, -1, -(charge.blocks as i64));
        self.charge(ids, 1, charge.blocks as i64);
        Ok(())
    }

    /// A file has got blocks, or has given some back.
    pub(super) fn charge_blocks(&mut self, ino: Ino, blocks: i64) -> Result<()> {
        if self.has_limits() && !self.is_quota_ino(ino) {
            let ids = Charge::of(&*self.inode(ino)?).ids;
            self.charge(ids.map(Some), 0, blocks);
        }
        Ok(())
    }

    /// An inode comes (1) or goes (-1) with the blocks that it has.
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

    /// Seconds of the clock, by which times over soft limits are counted.
    fn quota_now(&self) -> u64 {
        self.time().seconds.max(0) as u64
    }

    pub(super) fn is_quota_ino(&self, ino: Ino) -> bool {
        self.superblock.quota_inos.contains(&ino)
    }

    /// The hidden inode that holds a quota, if the volume has it.
    pub fn quota_ino(&self, kind: QuotaKind) -> Option<Ino> {
        Some(self.superblock().quota_inos[kind.index()]).filter(|ino| ino.0 != 0)
    }

    /// All records of a quota; none where the volume does not have it.
    pub fn quota_records(&self, kind: QuotaKind) -> Result<Vec<Located>> {
        let Some(ino) = self.quota_ino(kind) else { return Ok(Vec::new()) };
        let (inode, at) = (self.inode(ino)?, Place::Inode(ino));
        if inode.file_type() != FileType::Regular {
            return Err(Error::corrupt(at, "a quota file that is no regular file"));
        }
        quota::records(kind, at, |block| {
            let mut bytes = [0; BLOCK_BYTES];
            let read = self.read_content(&inode, u64::from(block) * BLOCK_BYTES as u64, &mut bytes)?;
            if read == BLOCK_BYTES {
                Ok(bytes)
            } else {
                Err(Error::corrupt(at, "the quota file is too short"))
            }
        })
    }

    /// Before an inode changes for the first time since the last checkpoint.
    pub(super) fn note_charge(&mut self, inode: &NodeBlock) {
        if inode.is_inode() && self.has_quotas() {
            self.charges.entry(inode.ino()).or_insert_with(|| Some(Charge::of(inode)));
        }
    }

    /// Before an inode comes into being.
    pub(super) fn note_new(&mut self, inode: &NodeBlock) {
        if inode.is_inode() && self.has_quotas() {
            self.charges.entry(inode.ino()).or_insert(None);
        }
    }

    /// Brings the quota files up to date. Where one cannot be, fsck is asked to do it.
    pub(super) fn write_quotas(&mut self) -> Result<()> {
        if self.charges.is_empty() {
            return Ok(());
        }
        let changes = self.quota_changes()?;
        self.charges.clear();
        for (kind, changes) in QuotaKind::ALL.into_iter().zip(changes) {
            let Some(ino) = self.quota_ino(kind).filter(|_| !changes.is_empty()) else { continue };
            let Err(error) = self.write_quota(kind, ino, &changes) else { continue };
            // The changes are forgotten: no later checkpoint writes them.
            self.checkpoint.flags = self.checkpoint.flags.set(Flags::QUOTA_NEED_FSCK, true);
            if !matches!(error, Error::Corrupt { .. } | Error::NoSpace { .. }) {
                return Err(error);
            }
        }
        Ok(())
    }

    fn has_quotas(&self) -> bool {
        self.superblock.quota_inos.iter().any(|ino| ino.0 != 0)
    }

    /// How the usage of each id has changed, by kind.
    fn quota_changes(&self) -> Result<[BTreeMap<u32, Change>; 3]> {
        let mut changes: [BTreeMap<u32, Change>; 3] = Default::default();
        let block_bytes = self.geometry.block_size.bytes() as i64;
        for (&ino, &before) in &self.charges {
            if self.superblock.quota_inos.contains(&ino) {
                continue;
            }
            let gone = self.nat.get(&self.io, ino.into())?.is_free();
            let after = if gone { None } else { Some(Charge::of(&*self.inode(ino)?)) };
            for (charge, sign) in [(before, -1), (after, 1)] {
                let Some(charge) = charge else { continue };
                for (changes, id) in changes.iter_mut().zip(charge.ids) {
                    let change = changes.entry(id).or_default();
                    change.inodes += sign;
                    change.bytes += sign * charge.blocks as i64 * block_bytes;
                }
            }
        }
        for changes in &mut changes {
            changes.retain(|_, change| *change != Change::default());
        }
        Ok(changes)
    }

    fn write_quota(&mut self, kind: QuotaKind, ino: Ino, changes: &BTreeMap<u32, Change>) -> Result<()> {
        let mut records = self.quota_map(kind)?;
        let graces = self.quota_graces(kind, ino)?;
        let now = self.quota_now();
        for (id, change) in changes {
            let record =
                &mut records.entry(*id).or_insert_with(|| Located { offset: 0, record: blank(*id) }).record;
            apply(record, Some(change));
            set_times(record, graces, now);
            let limited = self.limited.as_mut().and_then(|limited| limited.kinds[kind.index()].get_mut(id));
            if let Some(limited) = limited {
                // The time over a soft limit began with what exceeded it. What is used is the same, unless the file
                // was wrong; then both go on with what it says.
                (record.block_time, record.inode_time) = (limited.block_time, limited.inode_time);
                *limited = *record;
            }
        }
        let changed: Vec<u32> = changes.keys().copied().collect();
        self.store_records(kind, ino, graces, records, &changed)
    }

    /// The records of a quota by their ids.
    fn quota_map(&self, kind: QuotaKind) -> Result<BTreeMap<u32, Located>> {
        Ok(self.quota_records(kind)?.into_iter().map(|located| (located.record.id.get(), located)).collect())
    }

    /// For how many seconds the soft limits of space and inodes may be exceeded.
    fn quota_graces(&self, kind: QuotaKind, ino: Ino) -> Result<(u32, u32)> {
        let mut start = [0; BLOCK_BYTES];
        self.read_content(&*self.inode(ino)?, 0, &mut start)?;
        let info = quota::info(&start, kind, Place::Inode(ino))?;
        Ok((info.block_grace.get(), info.inode_grace.get()))
    }

    /// Writes records to a quota file: those of the ids that `changed` where they are, unless ids came or went.
    fn store_records(
        &mut self,
        kind: QuotaKind,
        ino: Ino,
        graces: (u32, u32),
        records: BTreeMap<u32, Located>,
        changed: &[u32],
    ) -> Result<()> {
        let stays = |record: &QuotaRecord| *record != blank(record.id.get());
        // A new record has no place yet: at the start of the file there is none.
        if records.values().all(|located| located.offset != 0 && stays(&located.record)) {
            for Located { offset, record } in changed.iter().filter_map(|id| records.get(id)) {
                self.write_content(ino, *offset, record.as_bytes())?;
            }
            return Ok(());
        }
        let kept = records.into_values().map(|located| located.record).filter(stays);
        let content = quota::encode_records(kind, graces, kept);
        self.write_content(ino, 0, &content)?;
        self.set_size(ino, content.len() as u64)
    }
}

/// Adds to what a record says is used.
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

/// Brings the ends of the times over soft limits up to date with what is used.
fn set_times(record: &mut QuotaRecord, graces: (u32, u32), now: u64) {
    let block_soft = record.block_soft_limit.get().saturating_mul(1024);
    let block_time = grace_end(record.space.get(), block_soft, record.block_time.get(), now, graces.0);
    record.block_time.set(block_time);
    let inode_soft = record.inode_soft_limit.get();
    let inode_time = grace_end(record.inodes.get(), inode_soft, record.inode_time.get(), now, graces.1);
    record.inode_time.set(inode_time);
}

/// The record of an id that uses nothing and has no limits.
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
