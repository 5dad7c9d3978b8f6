//! Facts about a file.

use crate::{
    engine::Stat,
    format::FileType,
    units::{Ino, Time},
};

/// Facts about a file, as they were when it was asked for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata(Stat);

impl Metadata {
    /// The kind of the file.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        self.0.kind
    }

    /// Returns true for a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.0.kind == FileType::Regular
    }

    /// Returns true for a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.0.kind == FileType::Directory
    }

    /// Returns true for a symbolic link.
    #[must_use]
    pub fn is_symlink(&self) -> bool {
        self.0.kind == FileType::Symlink
    }

    /// Size in bytes; of a symbolic link, the length of its target.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "as std::fs::Metadata")]
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// Permissions: the lowest twelve bits of the mode, set-ID and sticky bits included.
    #[must_use]
    pub fn permissions(&self) -> u16 {
        self.0.mode & 0o7777
    }

    /// Number of the owner.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.0.uid
    }

    /// Number of the group.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.0.gid
    }

    /// Number of names.
    #[must_use]
    pub fn links(&self) -> u32 {
        self.0.links
    }

    /// Number of the inode: names with the same number are hard links of one file.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.0.ino
    }

    /// Time of the last access that was recorded; [`Time::to_system_time`] makes it a time of the host.
    #[must_use]
    pub fn accessed(&self) -> Time {
        self.0.atime
    }

    /// Time of the last change of the content.
    #[must_use]
    pub fn modified(&self) -> Time {
        self.0.mtime
    }

    /// Time of the last change of the content or the attributes.
    #[must_use]
    pub fn changed(&self) -> Time {
        self.0.ctime
    }

    /// Time at which the file was made, if the volume records it.
    #[must_use]
    pub fn created(&self) -> Option<Time> {
        self.0.crtime
    }

    /// Returns true for a file, directory or symbolic link that is encrypted; its key need not be at hand.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.0.encrypted
    }

    /// Returns true for a file that is sealed with fs-verity.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.0.sealed
    }

    /// All facts, those of F2FS included.
    #[must_use]
    pub fn stat(&self) -> &Stat {
        &self.0
    }
}

impl From<Stat> for Metadata {
    fn from(stat: Stat) -> Metadata {
        Metadata(stat)
    }
}
