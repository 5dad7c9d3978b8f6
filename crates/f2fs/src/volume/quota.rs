//! Usage and limits of users, groups and projects.

use super::Volume;
use crate::{
    Error, Place, Result,
    format::{
        FileType,
        quota::{self, BLOCK_BYTES, Located, QuotaKind},
    },
    units::Ino,
};

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
}
