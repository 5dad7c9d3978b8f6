//! Making and removing the quota files of a volume, while the feature quota is off.

use std::collections::BTreeMap;

use super::{Engine, NewNode, SetAttr};
use crate::{
    Result,
    format::{
        FileType,
        inode::flag,
        quota::{self, QuotaKind, Usage},
    },
    nodes::blank,
    units::Ino,
};

impl Engine {
    /// Reserves the number of a new inode until the volume is closed.
    pub(crate) fn free_ino(&mut self) -> Result<Ino> {
        Ok(Ino(self.nodes_mut().take_nid()?.0))
    }

    /// Makes the quota files of the `wanted` kinds with this usage, each in the inode of its kind, and removes those of
    /// other kinds. A file that exists keeps its limits. The feature quota must be off, so that nothing is
    /// charged meanwhile.
    pub(crate) fn replace_quota_files(
        &mut self,
        inos: [Ino; 3],
        wanted: &[QuotaKind],
        usage: &[BTreeMap<u32, Usage>; 3],
    ) -> Result<()> {
        assert!(!self.superblock().has_quotas(), "the feature quota is off");
        for kind in QuotaKind::ALL {
            let (ino, usage) = (inos[kind.index()], &usage[kind.index()]);
            let exists = ino != Ino(0) && self.is_quota_file(kind, ino)?;
            self.admit_change()?;
            match (wanted.contains(&kind), exists) {
                (true, true) => self.renew_quota_file(kind, ino, usage)?,
                (true, false) => self.make_quota_file(kind, ino, usage)?,
                (false, true) => {
                    self.nodes_mut().inode_mut(ino)?.head_mut().links.set(0);
                    self.names_mut().remove_orphan(ino)?;
                }
                (false, false) => {}
            }
        }
        self.nodes_mut().quota_mut().mark_right();
        Ok(())
    }

    fn make_quota_file(&mut self, kind: QuotaKind, ino: Ino, usage: &BTreeMap<u32, Usage>) -> Result<()> {
        let root = self.superblock().root_ino;
        self.names_mut().make_inode_at(ino, root, &NewNode::new(FileType::Regular.mode_bits() | 0o600))?;
        let flags = Some(flag::IMMUTABLE | flag::NOATIME);
        self.names_mut().set_attr(ino, &SetAttr { flags, ..SetAttr::default() })?;
        self.files_mut().write_content(ino, 0, &quota::encode(kind, usage))
    }

    /// Replaces the usage in a quota file.
    fn renew_quota_file(&mut self, kind: QuotaKind, ino: Ino, usage: &BTreeMap<u32, Usage>) -> Result<()> {
        let file = self.read_quota(kind, ino)?;
        let graces = file.graces();
        let mut records = file.into_limits();
        for (id, used) in usage {
            let record = records.entry(*id).or_insert_with(|| blank(*id));
            record.inodes.set(used.inodes);
            record.space.set(used.bytes);
        }
        let content = quota::encode_records(kind, graces, records.into_values());
        self.files_mut().write_content(ino, 0, &content)?;
        self.files_mut().set_size(ino, content.len() as u64)
    }
}
