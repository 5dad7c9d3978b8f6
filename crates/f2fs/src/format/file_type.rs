//! The kind of a file: in an inode's mode, and as the code of a directory entry.

/// Kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A symbolic link.
    Symlink,
}

/// The bits of a mode that hold the kind (`S_IFMT`).
pub(super) const TYPE_MASK: u16 = 0o170_000;

impl FileType {
    /// Every kind, in the order of the directory entries' codes.
    pub const ALL: [FileType; 7] = [
        FileType::Regular,
        FileType::Directory,
        FileType::CharDevice,
        FileType::BlockDevice,
        FileType::Fifo,
        FileType::Socket,
        FileType::Symlink,
    ];

    /// The kind that a mode has, if it has one.
    #[must_use]
    pub fn from_mode(mode: u16) -> Option<FileType> {
        FileType::ALL.into_iter().find(|kind| kind.mode_bits() == mode & TYPE_MASK)
    }

    /// The kind that a directory entry's code stands for, if it is one.
    #[must_use]
    pub fn from_dentry_code(code: u8) -> Option<FileType> {
        FileType::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// Name of the kind.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            FileType::Regular => "file",
            FileType::Directory => "directory",
            FileType::CharDevice => "character device",
            FileType::BlockDevice => "block device",
            FileType::Fifo => "fifo",
            FileType::Socket => "socket",
            FileType::Symlink => "symlink",
        }
    }

    /// The kind's bits of a mode.
    #[must_use]
    pub const fn mode_bits(self) -> u16 {
        match self {
            FileType::Regular => 0o100_000,
            FileType::Directory => 0o040_000,
            FileType::CharDevice => 0o020_000,
            FileType::BlockDevice => 0o060_000,
            FileType::Fifo => 0o010_000,
            FileType::Socket => 0o140_000,
            FileType::Symlink => 0o120_000,
        }
    }

    /// The code in a directory entry.
    #[must_use]
    pub const fn dentry_code(self) -> u8 {
        match self {
            FileType::Regular => 1,
            FileType::Directory => 2,
            FileType::CharDevice => 3,
            FileType::BlockDevice => 4,
            FileType::Fifo => 5,
            FileType::Socket => 6,
            FileType::Symlink => 7,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_codes_convert_both_ways() {
        for (index, kind) in FileType::ALL.into_iter().enumerate() {
            assert_eq!(FileType::from_mode(kind.mode_bits() | 0o7777), Some(kind));
            assert_eq!(usize::from(kind.dentry_code()), index + 1);
            assert_eq!(FileType::from_dentry_code(kind.dentry_code()), Some(kind));
        }
        assert_eq!(FileType::from_mode(0o644), None);
        assert_eq!(FileType::from_dentry_code(0), None);
        assert_eq!(FileType::from_dentry_code(8), None);
    }
}
