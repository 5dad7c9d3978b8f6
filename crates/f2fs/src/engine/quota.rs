//! Quota files: their records and limits. `quota_sync` writes the changes of usage to them.

use std::collections::BTreeMap;

use super::{Engine, Transaction, quota_sync::QuotaReader};
use crate::{
    Error, Result,
    format::{
        inode::inline,
        node::NodeBlock,
        quota::{Located, QuotaKind, raw::QuotaRecord},
    },
    nodes::{EnforcedLimits, apply, blank, has_limit, set_times},
    units::{BlockAddr, Ino},
};

/// A quota file, with everything that changing it needs read into memory.
pub(super) struct QuotaFile {
    pub(super) kind: QuotaKind,
    pub(super) ino: Ino,
    /// Grace times in seconds of the soft limits for space and for inodes.
    pub(super) graces: (u32, u32),
    /// The records, by id.
    pub(super) records: BTreeMap<u32, Located>,
    /// The blocks of the file that contain the records.
    pub(super) blocks: BTreeMap<u64, Box<[u8]>>,
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
        let changes = self.nodes().quota_changes();
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
        apply(&mut record, self.nodes().quota_changes()[kind.index()].get(&id));
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
            let changes = self.nodes().quota_changes();
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
        if let Some((_, records)) = self.quota_in_write.as_ref().filter(|(written, _)| *written == kind) {
            return Ok(records.values().copied().collect());
        }
        let Some(ino) = self.quota_ino(kind) else { return Ok(Vec::new()) };
        Ok(self.read_quota(kind, ino)?.records.into_values().collect())
    }

    /// Reads a quota file.
    pub(super) fn read_quota(&self, kind: QuotaKind, ino: Ino) -> Result<QuotaFile> {
        let mut reader = QuotaReader::new(self, kind, ino)?;
        while reader.read_some(self, usize::MAX)? {}
        Ok(reader.into_file())
    }

    /// The address of a block of a quota file; `None` if the content is in the inode or in a dirty page.
    pub(super) fn quota_address(&self, inode: &NodeBlock, block: u64) -> Result<Option<BlockAddr>> {
        match inode.has_inline(inline::DATA) || self.files().dirty_page(inode.ino(), block).is_some() {
            true => Ok(None),
            false => self.files().address(inode, block).map(Some),
        }
    }

    /// Writes a quota file at once.
    fn store_quota(&mut self, file: QuotaFile, changed: &[u32]) -> Result<()> {
        let mut store = self.begin_store(file, changed)?;
        while self.store_some(&mut store, usize::MAX)? {}
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
