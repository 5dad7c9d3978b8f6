//! The ioctls that a FUSE file system receives with their full argument: flags, projects, generation, label
//! and UUID (these two up to Linux 6.8), FITRIM, and the f2fs ioctls for defragmentation and compressed files.

use f2fs::{
    engine::{SetAttr, Stat},
    format::{
        inode::{Algorithm, flag},
        superblock::Superblock,
    },
};

/// Encodes the number of an ioctl, like `_IOC` in Linux.
const fn number(direction: u32, kind: u8, code: u8, bytes: u32) -> u32 {
    direction << 30 | bytes << 16 | (kind as u32) << 8 | code as u32
}

const WRITES: u32 = 1;
const READS: u32 = 2;

/// `FS_IOC_GETFLAGS`, declared with a long and used with an int.
const GET_FLAGS: u32 = number(READS, b'f', 1, 8);
const SET_FLAGS: u32 = number(WRITES, b'f', 2, 8);
/// The same from 32-bit programs.
const GET_FLAGS_32: u32 = number(READS, b'f', 1, 4);
const SET_FLAGS_32: u32 = number(WRITES, b'f', 2, 4);
const GET_VERSION: u32 = number(READS, b'v', 1, 8);
const FS_GET_XATTR: u32 = number(READS, b'X', 31, FSXATTR_BYTES as u32);
const FS_SET_XATTR: u32 = number(WRITES, b'X', 32, FSXATTR_BYTES as u32);
/// `FITRIM`, whose argument and result are a `struct fstrim_range`.
const TRIM: u32 = number(READS | WRITES, b'X', 121, TRIM_RANGE_BYTES as u32);
const TRIM_RANGE_BYTES: usize = 24;
const GET_LABEL: u32 = number(READS, 0x94, 49, LABEL_BYTES as u32);
const SET_LABEL: u32 = number(WRITES, 0x94, 50, LABEL_BYTES as u32);
/// `FS_IOC_GETFSUUID`, which returns a `struct fsuuid2`.
const GET_UUID: u32 = number(READS, 0x15, 0, 17);
/// The same under a number of flashkit's own: since version 6.9, Linux answers the other one without asking a file system of FUSE.
const GET_OWN_UUID: u32 = number(READS, F2FS, 200, 17);
/// Magic number of the f2fs ioctls (Linux, `include/uapi/linux/f2fs.h`).
const F2FS: u8 = 0xF5;
/// `F2FS_IOC_DEFRAGMENT`, whose argument and result are a `struct f2fs_defragment`.
const DEFRAGMENT: u32 = number(READS | WRITES, F2FS, 8, 16);
/// `F2FS_IOC_RESIZE_FS`, with the new size in blocks.
const RESIZE: u32 = number(WRITES, F2FS, 16, 8);
const GET_COMPRESS_BLOCKS: u32 = number(READS, F2FS, 17, 8);
const RELEASE_COMPRESS_BLOCKS: u32 = number(READS, F2FS, 18, 8);
const RESERVE_COMPRESS_BLOCKS: u32 = number(READS, F2FS, 19, 8);
const GET_COMPRESS_OPTION: u32 = number(READS, F2FS, 21, 2);
const SET_COMPRESS_OPTION: u32 = number(WRITES, F2FS, 22, 2);

/// Bytes of `struct fsxattr`.
const FSXATTR_BYTES: usize = 28;
/// Bytes of a label, zeroes included.
const LABEL_BYTES: usize = 256;

/// A parsed ioctl request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Returns the flags.
    GetFlags,
    /// Changes the flags.
    SetFlags(u32),
    /// Returns the generation.
    GetVersion,
    /// Returns flags and project as a `struct fsxattr`.
    GetExtended,
    /// Changes flags and project.
    SetExtended {
        /// Flags in the encoding of `chattr`.
        flags: u32,
        /// Project ID.
        project: u32,
    },
    /// Returns the volume's label.
    GetLabel,
    /// Changes the label to this text.
    SetLabel(Vec<u8>),
    /// Returns the volume's UUID.
    GetUuid,
    /// Discards free blocks.
    Trim(TrimRange),
    /// Lets the volume grow to so many blocks.
    Resize(u64),
    /// Moves the blocks of a file into order.
    Defragment(ByteRange),
    /// Returns the number of blocks saved by compression.
    GetSaved,
    /// Releases the saved blocks to the volume's free space.
    ReleaseSaved,
    /// Reserves the saved blocks again.
    ReserveSaved,
    /// Returns the compression settings of a file.
    GetCompression,
    /// Changes the compression settings of a file.
    SetCompression {
        /// Compression algorithm.
        algorithm: Algorithm,
        /// log2 of the blocks in a cluster.
        log_cluster_blocks: u8,
    },
}

/// Argument of `FITRIM`, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrimRange {
    /// Start of the range.
    pub start: u64,
    /// Length of the range.
    pub length: u64,
    /// Minimum length of a run of free blocks to discard.
    pub least: u64,
}

impl TrimRange {
    /// Encodes the answer, with `trimmed` as the number of bytes discarded.
    pub fn done(self, trimmed: u64) -> Vec<u8> {
        [self.start, trimmed, self.least].iter().flat_map(|long| long.to_ne_bytes()).collect()
    }
}

/// Argument of `F2FS_IOC_DEFRAGMENT`: a range of a file, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    /// Start of the range.
    pub start: u64,
    /// Length of the range.
    pub length: u64,
}

impl ByteRange {
    /// Encodes the answer, with `moved` as the number of bytes that were moved.
    pub fn done(self, moved: u64) -> Vec<u8> {
        [self.start, moved].iter().flat_map(|long| long.to_ne_bytes()).collect()
    }
}

impl Request {
    /// Parses an ioctl number and its data. Returns `None` for an unknown or malformed request.
    pub fn parse(command: u32, data: &[u8]) -> Option<Request> {
        let word = |at: usize| {
            let bytes = data.get(at..at + 4)?;
            Some(u32::from_ne_bytes(bytes.try_into().expect("4 bytes")))
        };
        let long = |at: usize| Some(u64::from_ne_bytes(data.get(at..at + 8)?.try_into().expect("8 bytes")));
        match command {
            GET_FLAGS | GET_FLAGS_32 => Some(Request::GetFlags),
            SET_FLAGS | SET_FLAGS_32 => Some(Request::SetFlags(word(0)?)),
            GET_VERSION => Some(Request::GetVersion),
            FS_GET_XATTR => Some(Request::GetExtended),
            FS_SET_XATTR => {
                Some(Request::SetExtended { flags: flags_of_extended(word(0)?), project: word(12)? })
            }
            GET_LABEL => Some(Request::GetLabel),
            SET_LABEL => Some(Request::SetLabel(data.to_vec())),
            GET_UUID | GET_OWN_UUID => Some(Request::GetUuid),
            TRIM => {
                let (start, length, least) = (long(0)?, long(8)?, long(16)?);
                Some(Request::Trim(TrimRange { start, length, least }))
            }
            RESIZE => Some(Request::Resize(long(0)?)),
            DEFRAGMENT => Some(Request::Defragment(ByteRange { start: long(0)?, length: long(8)? })),
            GET_COMPRESS_BLOCKS => Some(Request::GetSaved),
            RELEASE_COMPRESS_BLOCKS => Some(Request::ReleaseSaved),
            RESERVE_COMPRESS_BLOCKS => Some(Request::ReserveSaved),
            GET_COMPRESS_OPTION => Some(Request::GetCompression),
            SET_COMPRESS_OPTION => {
                let [code, log_cluster_blocks] = *data.first_chunk()?;
                let algorithm = Algorithm::from_code(code)?;
                Some(Request::SetCompression { algorithm, log_cluster_blocks })
            }
            _ => None,
        }
    }

    /// Returns true if the request changes the file or the volume.
    pub fn changes(&self) -> bool {
        match self {
            Request::SetFlags(_)
            | Request::SetExtended { .. }
            | Request::SetLabel(_)
            | Request::Trim(_)
            | Request::Defragment(_)
            | Request::Resize(_)
            | Request::ReleaseSaved
            | Request::ReserveSaved
            | Request::SetCompression { .. } => true,
            Request::GetFlags
            | Request::GetVersion
            | Request::GetExtended
            | Request::GetLabel
            | Request::GetUuid
            | Request::GetSaved
            | Request::GetCompression => false,
        }
    }

    /// Returns true if the request makes an inode immutable or append-only, or releases the saved blocks of a file. Data
    /// written before it must still be written back.
    pub fn protects(&self) -> bool {
        match self {
            Request::SetFlags(flags) | Request::SetExtended { flags, .. } => flags & PROTECTING != 0,
            Request::ReleaseSaved => true,
            _ => false,
        }
    }

    /// Returns the attribute change of the request for an inode with attributes `stat`, if it is one.
    pub fn change(&self, stat: &Stat) -> Option<SetAttr> {
        match *self {
            Request::SetFlags(flags) => Some(SetAttr { flags: Some(flags), ..SetAttr::default() }),
            Request::SetExtended { flags, project } => {
                // The encoding does not cover all flags; the others stay.
                let flags = Some(stat.flags & !flags_of_extended(u32::MAX) | flags);
                Some(SetAttr { flags, project: Some(project), ..SetAttr::default() })
            }
            _ => None,
        }
    }

    /// Encodes the answer of a request that only reads.
    pub fn answer(&self, stat: &Stat, superblock: &Superblock) -> Vec<u8> {
        match self {
            Request::GetFlags => stat.shown_flags().to_ne_bytes().to_vec(),
            Request::GetVersion => u64::from(stat.generation).to_ne_bytes().to_vec(),
            Request::GetExtended => {
                let mut bytes = vec![0; FSXATTR_BYTES];
                bytes[..4].copy_from_slice(&extended_of_flags(stat.flags).to_ne_bytes());
                bytes[12..16].copy_from_slice(&stat.project.to_ne_bytes());
                bytes
            }
            Request::GetLabel => {
                let mut bytes = superblock.label.as_bytes().to_vec();
                // Labels of F2FS may be longer than this buffer.
                bytes.truncate(LABEL_BYTES - 1);
                bytes.resize(LABEL_BYTES, 0);
                bytes
            }
            Request::GetUuid => [&[16], &superblock.uuid[..]].concat(),
            Request::GetSaved => stat.saved_blocks.to_ne_bytes().to_vec(),
            Request::GetCompression => stat
                .compression
                .map_or_else(Vec::new, |how| vec![how.algorithm.code(), how.log_cluster_blocks]),
            Request::SetFlags(_)
            | Request::SetExtended { .. }
            | Request::SetLabel(_)
            | Request::Trim(_)
            | Request::Defragment(_)
            | Request::Resize(_)
            | Request::ReleaseSaved
            | Request::ReserveSaved
            | Request::SetCompression { .. } => Vec::new(),
        }
    }
}

/// Flags that only an administrator sets and clears.
pub const PROTECTING: u32 = flag::IMMUTABLE | flag::APPEND;

/// `FS_DAX_FL`, which no volume supports. It is decoded so that the request can be refused.
const DAX: u32 = 0x0200_0000;

/// Flags in both encodings: that of `chattr` and that of `struct fsxattr`.
const EXTENDED: [(u32, u32); 7] = [
    (flag::IMMUTABLE, 0x08),
    (flag::APPEND, 0x10),
    (flag::SYNC, 0x20),
    (flag::NOATIME, 0x40),
    (flag::NODUMP, 0x80),
    (flag::PROJECT_INHERIT, 0x200),
    (DAX, 0x8000),
];

fn extended_of_flags(flags: u32) -> u32 {
    EXTENDED.iter().filter(|(plain, _)| flags & plain != 0).fold(0, |all, (_, extended)| all | extended)
}

fn flags_of_extended(extended: u32) -> u32 {
    EXTENDED.iter().filter(|(_, bit)| extended & bit != 0).fold(0, |all, (plain, _)| all | plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_equal_those_of_linux() {
        assert_eq!(
            [GET_FLAGS, SET_FLAGS, GET_VERSION, FS_GET_XATTR, FS_SET_XATTR],
            [0x8008_6601, 0x4008_6602, 0x8008_7601, 0x801C_581F, 0x401C_5820]
        );
        assert_eq!([GET_LABEL, SET_LABEL, GET_UUID], [0x8100_9431, 0x4100_9432, 0x8011_1500]);
        assert_eq!(
            [TRIM, GET_COMPRESS_BLOCKS, RELEASE_COMPRESS_BLOCKS, GET_COMPRESS_OPTION, SET_COMPRESS_OPTION],
            [0xC018_5879, 0x8008_F511, 0x8008_F512, 0x8002_F515, 0x4002_F516]
        );
        assert_eq!([DEFRAGMENT, RESIZE], [0xC010_F508, 0x4008_F510]);
    }

    #[test]
    fn extended_flags_convert_both_ways() {
        let all = EXTENDED.iter().fold(0, |all, (plain, _)| all | plain);
        assert_eq!(flags_of_extended(extended_of_flags(all)), all);
        assert_eq!(extended_of_flags(flag::IMMUTABLE | flag::COMPRESS), 0x08);
    }

    #[test]
    fn requests_carry_their_data() {
        assert_eq!(Request::parse(SET_FLAGS, &[0x10, 0, 0, 0]), Some(Request::SetFlags(0x10)));
        assert_eq!(Request::parse(SET_FLAGS, &[0x10]), None);
        let mut data = [0; FSXATTR_BYTES];
        (data[0], data[12]) = (0x10, 7);
        let request = Request::parse(FS_SET_XATTR, &data);
        assert_eq!(request, Some(Request::SetExtended { flags: flag::APPEND, project: 7 }));
        assert_eq!(Request::parse(0x1234, &data), None);
        let request = Request::parse(SET_COMPRESS_OPTION, &[2, 4]);
        let wanted = Request::SetCompression { algorithm: Algorithm::Zstd, log_cluster_blocks: 4 };
        assert_eq!(request, Some(wanted));
        assert_eq!(Request::parse(SET_COMPRESS_OPTION, &[9, 4]), None);
    }
}
