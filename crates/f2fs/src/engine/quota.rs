//! Quota files: reading them, and writing the changes of usage to them.
//!
//! *Invariants*: the quota files contain the usage at the last checkpoint. As long as a change is not in its file,
//! checkpoints ask for fsck.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use rustc_hash::FxHashSet;
use zerocopy::IntoBytes;

use super::{Engine, Transaction};
use crate::{
    Error, Place, Result,
    format::{
        FileType,
        inode::{advise, inline},
        node::NodeBlock,
        quota::{self, BLOCK_BYTES, Located, QuotaKind, raw::QuotaRecord},
    },
    nodes::{Changes, EnforcedLimits, UsageChange, apply, blank, has_limit, set_times},
    units::{BlockAddr, Ino},
};

/// A quota file, with everything that changing it needs read into memory.
pub(super) struct QuotaFile {
    kind: QuotaKind,
    ino: Ino,
    /// Grace times in seconds of the soft limits for space and for inodes.
    graces: (u32, u32),
    /// The records, by id.
    records: BTreeMap<u32, Located>,
    /// The blocks of the file that contain the records.
    blocks: BTreeMap<u64, Box<[u8]>>,
}

impl QuotaFile {
    /// Grace times in seconds of the soft limits for space and for inodes.
    pub(super) fn graces(&self) -> (u32, u32) {
        self.graces
    }

    /// Takes the records that have limits, without their usage.
    pub(super) fn into_limits(self) -> BTreeMap<u32, QuotaRecord> {
        let records = self.records.into_iter().filter(|(_, located)| has_limit(&located.record));
        let unused = |mut record: QuotaRecord| {
            record.inodes.set(0);
            record.space.set(0);
            record
        };
        records.map(|(id, located)| (id, unused(located.record))).collect()
    }
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

impl Engine {
    /// Changes the limits of an id in the quota file, and enforces them.
    fn change_quota_limits(&mut self, kind: QuotaKind, id: u32, limits: QuotaLimits) -> Result<()> {
        let ino = self
            .quota_ino(kind)
            .ok_or_else(|| Error::Unsupported("quota limits without the feature quota".into()))?;
        let changes = self.nodes().quota_changes()?;
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
        set_times(&mut now, file.graces, self.nodes().quota_now());
        (record.block_time, record.inode_time) = (now.block_time, now.inode_time);
        self.store_quota(file, &[id])?;
        self.nodes_mut().quota_mut().enforce(None);
        self.load_limits()
    }

    /// Current usage and limits of a user, group or project.
    ///
    /// # Errors
    /// Those of [reading](Engine#errors).
    pub fn quota_of(&self, kind: QuotaKind, id: u32) -> Result<QuotaRecord> {
        if let Some(record) = self.nodes().quota().enforced(kind, id) {
            return Ok(*record);
        }
        let records = self.quota_records(kind)?.into_iter().map(|located| located.record);
        let mut record =
            records.into_iter().find(|record| record.id.get() == id).unwrap_or_else(|| blank(id));
        apply(&mut record, self.nodes().quota_changes()?[kind.index()].get(&id));
        Ok(record)
    }

    /// Loads the limits before the first change.
    pub(super) fn load_limits(&mut self) -> Result<()> {
        if self.nodes().quota().knows_limits() {
            return Ok(());
        }
        let mut limits = EnforcedLimits::default();
        // If the files may be wrong, limits are not enforced (Linux, `f2fs_enable_quotas`).
        if self.superblock().has_quotas() && !self.nodes().quota().is_wrong() {
            let now = self.nodes().quota_now();
            let changes = match self.nodes().quota_changes() {
                Err(error) if self.disk().stays_in_place(&error) => {
                    limits.is_partial = true;
                    Changes::default()
                }
                changes => changes?,
            };
            for (n, kind) in QuotaKind::ALL.into_iter().enumerate() {
                let Some(ino) = self.quota_ino(kind) else { continue };
                match self.read_quota(kind, ino) {
                    Ok(QuotaFile { records, graces, .. }) => {
                        let records = records.into_iter().map(|(id, located)| (id, located.record));
                        limits.kinds[n] = records.filter(|(_, record)| has_limit(record)).collect();
                        limits.graces[n] = graces;
                        for (id, record) in &mut limits.kinds[n] {
                            apply(record, changes[n].get(id));
                            set_times(record, graces, now);
                        }
                    }
                    // The next checkpoint asks for fsck.
                    Err(Error::Corrupt { .. }) => {}
                    Err(error) if self.disk().stays_in_place(&error) => limits.is_partial = true,
                    Err(error) => return Err(error),
                }
            }
        }
        self.nodes_mut().quota_mut().enforce(Some(limits));
        Ok(())
    }

    /// The hidden inode of a quota file, if the volume has this quota.
    pub fn quota_ino(&self, kind: QuotaKind) -> Option<Ino> {
        self.superblock().quota_ino(kind)
    }

    /// All records of a quota; none if the volume does not have it.
    ///
    /// # Errors
    /// Those of [reading](Engine#errors).
    pub fn quota_records(&self, kind: QuotaKind) -> Result<Vec<Located>> {
        let Some(ino) = self.quota_ino(kind) else { return Ok(Vec::new()) };
        Ok(self.read_quota(kind, ino)?.records.into_values().collect())
    }

    pub(super) fn read_quota(&self, kind: QuotaKind, ino: Ino) -> Result<QuotaFile> {
        let (inode, at) = (self.inode(ino)?, Place::Inode(ino));
        if inode.file_type() != FileType::Regular {
            return Err(Error::corrupt(at, "the quota file is not a regular file"));
        }
        if inode.has_advise(advise::ENCRYPT) || inode.compression().is_some() {
            return Err(Error::corrupt(at, "the quota file is encrypted or compressed"));
        }
        let size = self.geometry().block_size;
        let (mut blocks, mut addrs) = (BTreeMap::new(), FxHashSet::default());
        let mut read = |part: u32| {
            let start = u64::from(part) * BLOCK_BYTES as u64;
            if start + BLOCK_BYTES as u64 > inode.head().size.get() {
                return Err(Error::corrupt(at, "the quota file is too short"));
            }
            let block = match blocks.entry(start >> size.log()) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => {
                    let block = *unknown.key();
                    // Otherwise one block of the device, or a hole, could take memory without bound.
                    match self.quota_address(&inode, block)? {
                        Some(BlockAddr::NULL) => return Ok([0; BLOCK_BYTES]),
                        Some(addr) if addr.is_real() && !addrs.insert(addr) => {
                            return Err(Error::corrupt(at, format!("the quota file has {addr} twice")));
                        }
                        _ => {}
                    }
                    let mut bytes = vec![0; size.bytes()].into_boxed_slice();
                    self.files().read_content(&inode, block << size.log(), &mut bytes)?;
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

    /// The address of a block of a quota file; `None` if the content is in the inode or in a dirty page.
    fn quota_address(&self, inode: &NodeBlock, block: u64) -> Result<Option<BlockAddr>> {
        match inode.has_inline(inline::DATA) || self.files().dirty_page(inode.ino(), block).is_some() {
            true => Ok(None),
            false => self.files().address(inode, block).map(Some),
        }
    }

    /// Updates the quota files. An unreadable file is retried at the next checkpoint; a damaged or partly
    /// written one is left to fsck. Neither makes the checkpoint fail (Linux, `f2fs_quota_sync`).
    pub(super) fn write_quotas(&mut self) -> Result<()> {
        self.nodes_mut().settle_charges()?;
        for kind in QuotaKind::ALL {
            let Some(ino) = self.quota_ino(kind).filter(|_| self.nodes().quota().has_settled_usage(kind))
            else {
                self.nodes_mut().quota_mut().take_usage(kind);
                continue;
            };
            let read = self.read_quota(kind, ino);
            if read.as_ref().is_err_and(|error| matches!(error, Error::Io { .. })) {
                continue;
            }
            let changes = self.nodes_mut().quota_mut().take_usage(kind);
            let Err(error) = read.and_then(|file| self.write_quota(file, &changes)) else { continue };
            self.nodes_mut().quota_mut().mark_wrong();
            if !matches!(error, Error::NoSpace { .. }) && !self.disk().stays_in_place(&error) {
                return Err(error);
            }
        }
        Ok(())
    }

    fn write_quota(&mut self, mut file: QuotaFile, changes: &BTreeMap<u32, UsageChange>) -> Result<()> {
        let now = self.nodes().quota_now();
        for (id, change) in changes {
            let located =
                file.records.entry(*id).or_insert_with(|| Located { offset: 0, record: blank(*id) });
            let record = &mut located.record;
            apply(record, Some(change));
            set_times(record, file.graces, now);
            if let Some(limited) = self.nodes_mut().quota_mut().enforced_mut(file.kind, *id) {
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
        let size = self.geometry().block_size;
        let stays = |record: &QuotaRecord| *record != blank(record.id.get());
        // A new record has no offset yet; offset 0, the start of the file, holds no record.
        if !file.records.values().all(|located| located.offset != 0 && stays(&located.record)) {
            let kept = file.records.into_values().map(|located| located.record).filter(stays);
            let mut content = quota::encode_records(file.kind, file.graces, kept);
            let end = content.len() as u64;
            if !self.inode(file.ino)?.has_inline(inline::DATA) {
                content.resize(content.len().next_multiple_of(size.bytes()), 0);
            }
            self.files_mut().write_content(file.ino, 0, &content)?;
            return self.files_mut().set_size(file.ino, end);
        }
        let mut blocks = BTreeSet::new();
        for Located { offset, record } in changed.iter().filter_map(|id| file.records.get(id)) {
            let (block, inside) = (offset >> size.log(), *offset as usize & (size.bytes() - 1));
            let bytes = file.blocks.get_mut(&block).expect("a record was read from its block");
            bytes[inside..inside + size_of::<QuotaRecord>()].copy_from_slice(record.as_bytes());
            blocks.insert(block);
        }
        for block in blocks {
            self.files_mut().overwrite_block(file.ino, block, &file.blocks[&block])?;
        }
        Ok(())
    }
}

impl Transaction<'_> {
    /// Sets the limits of a user, group or project. Returns [`Error::Unsupported`] if the volume has no such
    /// quota.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without the quota; [`Error::NoSpace`]; those of [every change](Engine#errors).
    pub fn set_quota_limits(mut self, kind: QuotaKind, id: u32, limits: QuotaLimits) -> Result<()> {
        self.step()?.change_quota(|engine| engine.change_quota_limits(kind, id, limits))
    }
}
