//! A census of all inodes, for changes of the volume's properties.

use std::collections::BTreeMap;

use fscrypt::IvScheme;

use super::Engine;
use crate::{
    Error, Result,
    format::{
        FileType,
        inode::{advise, flag},
        node::{NodeBlock, NodeFormat},
        quota::{QuotaKind, Usage},
    },
    units::{BlockAddr, Ino, Nid},
};

/// Maximum number of users, groups or projects that are counted.
const IDS_MAX: usize = 1 << 20;

/// Counts of inodes by the features that they use, and the usage of their owners.
#[derive(Debug, Default)]
pub(crate) struct Census {
    /// Encrypted inodes.
    pub(crate) encrypted: u64,
    /// Encrypted inodes whose keys follow from the UUID of the volume.
    pub(crate) keyed_by_uuid: u64,
    /// Files sealed with fs-verity.
    pub(crate) sealed: u64,
    /// Directories that fold case.
    pub(crate) casefolded: u64,
    /// Files marked as compressed.
    pub(crate) compressed: u64,
    /// Files without room for the attributes of compression.
    pub(crate) without_compression: u64,
    /// Usage by the id of each kind, without the quota files.
    pub(crate) usage: [BTreeMap<u32, Usage>; 3],
}

impl Census {
    /// Counts the inodes except those of `left_out`. Some may be quota files. `format` decides which of their attributes
    /// exist.
    pub(crate) fn of(
        volume: &Engine,
        format: NodeFormat,
        quota_files: [Ino; 3],
        left_out: &[Ino],
    ) -> Result<Census> {
        let mut census = Census::default();
        volume.for_each_inode(left_out, |inode, _| {
            let inode = inode.in_format(format);
            census.count_features(volume, &inode)?;
            if !quota_files.contains(&inode.ino()) {
                census.count_usage(&inode);
            }
            match census.usage.iter().any(|usage| usage.len() > IDS_MAX) {
                true => Err(Error::Invalid(format!("more than {IDS_MAX} users, groups or projects").into())),
                false => Ok(()),
            }
        })?;
        Ok(census)
    }

    fn count_features(&mut self, volume: &Engine, inode: &NodeBlock) -> Result<()> {
        let is_file = inode.file_type() == FileType::Regular;
        if inode.has_advise(advise::ENCRYPT) {
            self.encrypted += 1;
            let (_, context) = volume.files().context(inode)?;
            let is_keyed = matches!(context.scheme, IvScheme::InoLblk64 | IvScheme::InoLblk32);
            self.keyed_by_uuid += u64::from(is_keyed);
        }
        self.sealed += u64::from(inode.has_advise(advise::VERITY));
        self.casefolded += u64::from(inode.has_flag(flag::CASEFOLD));
        self.compressed += u64::from(is_file && inode.has_flag(flag::COMPRESS));
        self.without_compression += u64::from(is_file && inode.saved_blocks().is_none());
        Ok(())
    }

    fn count_usage(&mut self, inode: &NodeBlock) {
        let block_bytes = inode.format().block_size.bytes() as u64;
        let head = inode.head();
        let bytes = head.blocks.get().saturating_sub(1).saturating_mul(block_bytes);
        let ids = [head.uid.get(), head.gid.get(), inode.project().unwrap_or(0)];
        for (usage, id) in self.usage.iter_mut().zip(ids) {
            let used = usage.entry(id).or_default();
            used.inodes += 1;
            used.bytes = used.bytes.saturating_add(bytes);
        }
    }
}

impl Engine {
    /// Calls `each` with every inode of the volume except those of `left_out`, and its address, in the order of their
    /// numbers.
    pub(crate) fn for_each_inode(
        &self,
        left_out: &[Ino],
        mut each: impl FnMut(&NodeBlock, BlockAddr) -> Result<()>,
    ) -> Result<()> {
        let per_block = self.geometry().block_size.nat_entries() as u32;
        let (first, end) = (self.superblock().root_ino.0, self.geometry().nids_end().0);
        for start in (0..end).step_by(per_block as usize) {
            let mut inodes = Vec::new();
            for nid in (start.max(first)..start.saturating_add(per_block).min(end)).map(Nid) {
                let entry = self.nat_entry(nid)?;
                if !entry.is_free() && nid == entry.ino.into() && !left_out.contains(&entry.ino) {
                    inodes.push((entry.ino, entry.addr));
                }
            }
            self.read_inodes_ahead(inodes.iter().map(|(ino, _)| *ino));
            for (ino, addr) in inodes {
                each(&*self.inode(ino)?, addr)?;
            }
        }
        Ok(())
    }

    /// Returns true if an inode looks like a quota file of this kind: it has no name and is immutable, and its content begins
    /// with the magic number.
    pub(crate) fn is_quota_file(&self, kind: QuotaKind, ino: Ino) -> Result<bool> {
        let entry = self.nat_entry(ino.into())?;
        if entry.is_free() || entry.ino != ino {
            return Ok(false);
        }
        let inode = self.inode(ino)?;
        let is_quota_like = inode.file_type() == FileType::Regular
            && inode.last_name().is_empty()
            && inode.has_flag(flag::IMMUTABLE);
        let mut magic = [0; 4];
        Ok(is_quota_like
            && self.read(ino, 0, &mut magic)? == magic.len()
            && magic == kind.magic().to_le_bytes())
    }
}
