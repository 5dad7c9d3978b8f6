//! Usage and limits of users, groups and projects.
//!
//! *Invariant*: the quota files say what was true at the last checkpoint. Whatever changes an inode first tells what
//! it was charged for until then; the checkpoint compares, and writes the differences.

use std::collections::{BTreeMap, BTreeSet};

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

impl Volume {
    /// The hidden inode that holds a quota, if the volume has it.
    pub fn quota_ino(&self, kind: QuotaKind) -> Option<Ino> {
        let index = QuotaKind::ALL.iter().position(|other| *other == kind).expect("all kinds are listed");
        Some(self.superblock().quota_inos[index]).filter(|ino| ino.0 != 0)
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
        for (kind, changes) in QuotaKind::ALL.into_iter().zip(changes) {
            let Some(ino) = self.quota_ino(kind).filter(|_| !changes.is_empty()) else { continue };
            match self.write_quota(kind, ino, &changes) {
                Ok(()) => {}
                Err(Error::Corrupt { .. } | Error::NoSpace { .. }) => {
                    self.checkpoint.flags = self.checkpoint.flags.set(Flags::QUOTA_NEED_FSCK, true);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn has_quotas(&self) -> bool {
        self.superblock.quota_inos.iter().any(|ino| ino.0 != 0)
    }

    /// How the usage of each id has changed, by kind.
    fn quota_changes(&mut self) -> Result<[BTreeMap<u32, Change>; 3]> {
        let mut changes: [BTreeMap<u32, Change>; 3] = Default::default();
        let block_bytes = self.geometry.block_size.bytes() as i64;
        for (ino, before) in std::mem::take(&mut self.charges) {
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
        let mut records: BTreeMap<u32, Located> =
            self.quota_records(kind)?.into_iter().map(|located| (located.record.id.get(), located)).collect();
        let known: BTreeSet<u32> = records.keys().copied().collect();
        for (id, change) in changes {
            let record =
                &mut records.entry(*id).or_insert_with(|| Located { offset: 0, record: blank(*id) }).record;
            record.inodes.set(record.inodes.get().saturating_add_signed(change.inodes));
            record.space.set(record.space.get().saturating_add_signed(change.bytes));
        }
        let stays = |record: &QuotaRecord| *record != blank(record.id.get());
        let same_ids =
            changes.keys().all(|id| known.contains(id)) && records.values().all(|r| stays(&r.record));
        if same_ids {
            for id in changes.keys() {
                let Located { offset, record } = records[id];
                self.write_content(ino, offset, record.as_bytes())?;
            }
            return Ok(());
        }
        let mut start = [0; BLOCK_BYTES];
        self.read_content(&*self.inode(ino)?, 0, &mut start)?;
        let info = quota::info(&start, kind, Place::Inode(ino))?;
        let kept = records.into_values().map(|located| located.record).filter(stays);
        let content = quota::encode_records(kind, (info.block_grace.get(), info.inode_grace.get()), kept);
        self.write_content(ino, 0, &content)?;
        self.set_size(ino, content.len() as u64)
    }
}

/// The record of an id that uses nothing and has no limits.
fn blank(id: u32) -> QuotaRecord {
    let mut record = QuotaRecord::new_zeroed();
    record.id.set(id);
    record
}
