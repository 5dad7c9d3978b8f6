//! Errors with a location and a kind.

use std::{borrow::Cow, fmt, io, ops::Range};

use crate::{
    format::BlockSize,
    units::{BlockAddr, Bytes, Ino, Nid, SegNo},
};

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A location on the volume, as precise as known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// One of the two superblock copies, 0 or 1.
    Superblock(u8),
    /// One of the two checkpoint packs, 0 or 1.
    Checkpoint(u8),
    /// The NAT entry of a node.
    Nat(Nid),
    /// The SIT entry of a segment.
    Sit(SegNo),
    /// The summary of a segment.
    Ssa(SegNo),
    /// A node block.
    Node(Nid, BlockAddr),
    /// A property of an inode that is not one block.
    Inode(Ino),
    /// A block of a directory.
    Dir(Ino, u64),
    /// A block of a file.
    File(Ino, u64),
    /// Extended attributes of an inode.
    Xattr(Ino),
    /// A block of the device that none of the above locations covers.
    Block(BlockAddr),
    /// The volume as a whole.
    Volume,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Superblock(copy) => write!(f, "superblock copy {copy}"),
            Place::Checkpoint(pack) => write!(f, "checkpoint pack {pack}"),
            Place::Nat(nid) => write!(f, "NAT entry of {nid}"),
            Place::Sit(seg) => write!(f, "SIT entry of {seg}"),
            Place::Ssa(seg) => write!(f, "summary of {seg}"),
            Place::Node(nid, addr) => write!(f, "{nid} at {addr}"),
            Place::Inode(ino) => write!(f, "{ino}"),
            Place::Dir(ino, block) => write!(f, "directory {}, block {block}", ino.0),
            Place::File(ino, block) => write!(f, "file {}, block {block}", ino.0),
            Place::Xattr(ino) => write!(f, "extended attributes of {ino}"),
            Place::Block(addr) => write!(f, "{addr}"),
            Place::Volume => write!(f, "volume"),
        }
    }
}

/// All errors of this crate. The FUSE adapter maps each to an errno.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes at a place cannot come from a correct writer.
    #[error("corrupt {at}: {what}")]
    Corrupt {
        /// The place.
        at: Place,
        /// Description of the error, including the invalid value.
        what: Cow<'static, str>,
    },
    /// The device failed.
    #[error("{at}: {source}")]
    Io {
        /// The structure that was read or written.
        at: Place,
        /// The device's error.
        source: io::Error,
    },
    /// A file of the host (an image, a source tree or an archive) could not be opened, read or written.
    #[error("{path}: {source}")]
    Host {
        /// Path on the host, or name in the archive.
        path: String,
        /// The host's error.
        source: io::Error,
    },
    /// Failure at one path of a tree. A walk or a copy goes on after it.
    #[error("{}{}: {source}", crate::printable::path(.path), of_bytes(.bytes))]
    Lost {
        /// Path from the root of the tree; empty for the root itself.
        path: Vec<u8>,
        /// The lost bytes of a file's content, if only these are lost.
        bytes: Option<Range<u64>>,
        /// The reason.
        source: Box<Error>,
    },
    /// Valid, but not supported by this code.
    #[error("not supported: {0}")]
    Unsupported(Cow<'static, str>),
    /// The bytes are not an F2FS volume.
    #[error("not an F2FS volume: {0}")]
    NotF2fs(Cow<'static, str>),
    /// The volume is full.
    #[error("no space left on the volume: {} needed, {} free{}", Bytes(*.needed_bytes), Bytes(*.free_bytes), scattered(*.needed_bytes, *.free_bytes))]
    NoSpace {
        /// Space that the operation needs, in bytes of whole blocks.
        needed_bytes: u64,
        /// Space that users may still use, in bytes.
        free_bytes: u64,
    },
    /// All nids are in use.
    #[error("no inode number left on the volume")]
    NoInodes,
    /// A quota limit.
    #[error("quota exceeded")]
    Quota,
    /// The target directory belongs to another project.
    #[error("the target directory belongs to another project")]
    OtherProject,
    /// The volume, or the file, refuses writes.
    #[error("read-only: {0}")]
    ReadOnly(Cow<'static, str>),
    /// The caller's arguments are invalid.
    #[error("{0}")]
    Invalid(Cow<'static, str>),
    /// No such entry, inode or attribute.
    #[error("not found")]
    NotFound,
    /// No such extended attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// The inode and its xattr node have no space for the extended attribute.
    #[error("no space for the extended attribute")]
    AttributeTooLarge,
    /// The name is taken.
    #[error("already exists")]
    Exists,
    /// A directory was needed.
    #[error("not a directory")]
    NotDirectory,
    /// Something other than a directory was needed.
    #[error("is a directory")]
    IsDirectory,
    /// The directory still has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// Names have at most 255 bytes.
    #[error("name too long")]
    NameTooLong,
    /// The file would be larger than the format allows.
    #[error("file too large")]
    FileTooLarge,
    /// Too many symbolic links on the path; it may be a cycle.
    #[error("too many levels of symbolic links")]
    TooManySymlinks,
    /// The link count is at its limit.
    #[error("too many links")]
    TooManyLinks,
    /// Forbidden regardless of the caller's rights (immutable, append-only, ...).
    #[error("operation not permitted")]
    NotPermitted,
    /// The key of an encrypted file or name is missing.
    #[error("encrypted, and the key is missing")]
    NoKey,
    /// The file or name is encrypted with the key of this name, which is not among the keys that were given.
    #[error("encrypted with the key {0}, which is none of those given")]
    OtherKey(String),
    /// The file or name cannot be decrypted with the key that it names: its cipher is not supported, or the key is too
    /// short or the wrong one.
    #[error("encrypted, and not readable with the key: {0}")]
    UnusableKey(Cow<'static, str>),
    /// An encrypted directory takes only files and directories with its own encryption policy.
    #[error("the directory is encrypted, and takes only files and directories with its encryption policy")]
    OtherPolicy,
    /// A new encrypted file needs a nonce, and the volume was opened without a source of random values.
    #[error(
        "a new file in an encrypted directory needs random values, which the options of the volume do not give"
    )]
    NoNonces,
}

impl Error {
    /// Makes an [`Error::Corrupt`] at `at`.
    pub fn corrupt(at: Place, what: impl Into<Cow<'static, str>>) -> Error {
        Error::Corrupt { at, what: what.into() }
    }

    /// Makes an [`Error::Lost`] of a whole entry, or of something that belongs to it.
    #[must_use]
    pub fn lost(path: &[u8], source: Error) -> Error {
        Error::Lost { path: path.to_vec(), bytes: None, source: Box::new(source) }
    }

    /// Makes an [`Error::NoSpace`] from needed and free blocks.
    #[must_use]
    pub fn no_space(block_size: BlockSize, needed_blocks: u64, free_blocks: u64) -> Error {
        let bytes = |blocks: u64| blocks.saturating_mul(block_size.bytes() as u64);
        Error::NoSpace { needed_bytes: bytes(needed_blocks), free_bytes: bytes(free_blocks) }
    }
}

impl From<Error> for io::Error {
    /// The error as [`io::Read`] and its like return it: of the kind that the standard library gives for the same failure
    /// of the host, with the [`Error`] inside ([`io::Error::get_ref`]).
    fn from(error: Error) -> io::Error {
        use io::ErrorKind as Kind;
        let kind = match &error {
            Error::Io { source, .. } | Error::Host { source, .. } => source.kind(),
            Error::Corrupt { .. } | Error::NotF2fs(_) => Kind::InvalidData,
            Error::Unsupported(_) | Error::NoNonces => Kind::Unsupported,
            Error::NoSpace { .. } | Error::NoInodes => Kind::StorageFull,
            Error::Quota => Kind::QuotaExceeded,
            Error::ReadOnly(_) => Kind::ReadOnlyFilesystem,
            Error::Invalid(_) | Error::NameTooLong => Kind::InvalidInput,
            Error::OtherProject | Error::OtherPolicy => Kind::CrossesDevices,
            Error::NotFound | Error::NoAttribute => Kind::NotFound,
            Error::Exists => Kind::AlreadyExists,
            Error::NotDirectory => Kind::NotADirectory,
            Error::IsDirectory => Kind::IsADirectory,
            Error::NotEmpty => Kind::DirectoryNotEmpty,
            Error::FileTooLarge => Kind::FileTooLarge,
            Error::TooManyLinks => Kind::TooManyLinks,
            Error::NotPermitted | Error::NoKey | Error::OtherKey(_) | Error::UnusableKey(_) => {
                Kind::PermissionDenied
            }
            Error::Lost { .. } | Error::AttributeTooLarge | Error::TooManySymlinks => Kind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// Formats the bytes of an error for a message: first and last.
fn of_bytes(bytes: &Option<Range<u64>>) -> String {
    match bytes {
        Some(bytes) => format!(", bytes {} to {}", bytes.start, bytes.end.saturating_sub(1)),
        None => String::new(),
    }
}

/// Explains a failure despite sufficient free space.
fn scattered(needed_bytes: u64, free_bytes: u64) -> &'static str {
    if needed_bytes <= free_bytes { ", but no whole section of it" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_full_volume_is_in_bytes() {
        let text = |needed, free| Error::no_space(BlockSize::B4K, needed, free).to_string();
        assert_eq!(text(25600, 1), "no space left on the volume: 100.00 MiB needed, 4.00 KiB free");
        assert_eq!(
            text(1, 300),
            "no space left on the volume: 4.00 KiB needed, 1.17 MiB free, but no whole section of it"
        );
    }
}
