//! Inodes: the fixed head, the extra attributes, and what the rest of the block is used for.
//!
//! From byte 360 on, an inode block holds, in this order: the extra attributes (as many bytes as
//! `i_extra_isize` says), addresses or inline content, inline xattrs at the end of the address area, five node
//! ids, the footer. Which of it exists, and where, is an [`InodeLayout`]; [`NodeBlock::check`] has made sure
//! that it is possible. An extra attribute exists only if the size covers it *and* the volume's feature for it
//! is on; its accessor is `None` otherwise. Rules: Linux, `do_read_inode` and `sanity_check_inode`.

use std::{
    mem::{offset_of, size_of},
    ops::Range,
};

use zerocopy::{FromBytes, IntoBytes};

use super::{
    BlockSize, FileType,
    block_size::INODE_HEAD_BYTES,
    crc::crc,
    node::{NodeBlock, NodeFormat},
    superblock::Features,
};
use crate::{
    Error, Place, Result,
    units::{Ino, Nid, Time},
};

/// What the bytes say.
pub mod raw {
    use std::mem::{offset_of, size_of};

    use zerocopy::{
        FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
        little_endian::{I64, U16, U32, U64},
    };

    /// The fixed head of an inode block.
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
    #[repr(C)]
    pub struct InodeHead {
        /// Kind and permissions, as `st_mode`.
        pub mode: U16,
        /// Hints, see [`advise`](super::advise).
        pub advise: u8,
        /// What is inline, see [`inline`](super::inline).
        pub inline: u8,
        /// Owner.
        pub uid: U32,
        /// Group.
        pub gid: U32,
        /// Directory entries that name the inode; a directory has one more for its own ".".
        pub links: U32,
        /// Size in bytes; of an inline directory the capacity of its area.
        pub size: U64,
        /// Blocks, this one and every other node included.
        pub blocks: U64,
        /// Last access, seconds.
        pub atime: I64,
        /// Last change of the inode, seconds.
        pub ctime: I64,
        /// Last change of the content, seconds.
        pub mtime: I64,
        /// Last access, nanoseconds.
        pub atime_nsec: U32,
        /// Last change of the inode, nanoseconds.
        pub ctime_nsec: U32,
        /// Last change of the content, nanoseconds.
        pub mtime_nsec: U32,
        /// Tells this inode from earlier ones of the same number.
        pub generation: U32,
        /// Of a directory: levels of its hash table. Of a regular file, lower half: how often cleaning failed on it
        /// while it was pinned.
        pub current_depth: U32,
        /// Node with the xattrs that do not fit inline, or 0.
        pub xattr_nid: U32,
        /// Flags as `chattr` shows them, see [`flag`](super::flag).
        pub flags: U32,
        /// Directory that the inode was last entered into.
        pub pino: U32,
        /// Bytes of the name that it was last entered under.
        pub namelen: U32,
        /// That name, for roll-forward recovery.
        pub name: [u8; 255],
        /// Of a directory: log2 of the buckets of level 0.
        pub dir_level: u8,
        /// The largest extent, a cache.
        pub extent: Extent,
    }

    const _: () = assert!(
        size_of::<InodeHead>() == crate::format::block_size::INODE_HEAD_BYTES
            && offset_of!(InodeHead, links) == 12
            && offset_of!(InodeHead, blocks) == 24
            && offset_of!(InodeHead, atime_nsec) == 56
            && offset_of!(InodeHead, current_depth) == 72
            && offset_of!(InodeHead, flags) == 80
            && offset_of!(InodeHead, name) == 92
            && offset_of!(InodeHead, dir_level) == 347
            && offset_of!(InodeHead, extent) == 348
    );

    /// A run of blocks of a file that lie together on the device.
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(C)]
    pub struct Extent {
        /// First block, in the file.
        pub fofs: U32,
        /// First block, on the device.
        pub blk: U32,
        /// Blocks.
        pub len: U32,
    }

    /// The extra attributes, from byte 360 of an inode block.
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
    #[repr(C)]
    pub struct ExtraAttributes {
        /// Bytes of the extra attributes that exist, a multiple of 4.
        pub extra_isize: U16,
        /// Size of the inline xattr area in words of 4 bytes.
        pub inline_xattr_words: U16,
        /// Project id.
        pub projid: U32,
        /// Checksum of the block.
        pub inode_checksum: U32,
        /// Creation, seconds.
        pub crtime: I64,
        /// Creation, nanoseconds.
        pub crtime_nsec: U32,
        /// Blocks that compression saves.
        pub compr_blocks: U64,
        /// How clusters are compressed: 0 LZO, 1 LZ4, 2 zstd, 3 LZO-RLE.
        pub compress_algorithm: u8,
        /// log2 of the blocks in a cluster.
        pub log_cluster_size: u8,
        /// Bit 0: clusters carry a checksum. Bits 8 to 15: level of compression.
        pub compress_flag: U16,
    }

    const _: () = assert!(
        size_of::<ExtraAttributes>() == super::EXTRA_BYTES_MAX
            && offset_of!(ExtraAttributes, inode_checksum) == 8
            && offset_of!(ExtraAttributes, crtime) == 12
            && offset_of!(ExtraAttributes, compr_blocks) == 24
            && offset_of!(ExtraAttributes, log_cluster_size) == 33
    );
}

/// Bits of the head's `inline`.
pub mod inline {
    /// The inline xattr area is in use.
    pub const XATTR: u8 = 0x01;
    /// The content lies in the inode.
    pub const DATA: u8 = 0x02;
    /// The directory entries lie in the inode.
    pub const DENTRY: u8 = 0x04;
    /// Inline content is there: without it, inline content is zeroes.
    pub const DATA_EXIST: u8 = 0x08;
    /// Obsolete: a directory without "." and "..".
    pub const DOTS: u8 = 0x10;
    /// There are extra attributes.
    pub const EXTRA_ATTR: u8 = 0x20;
    /// The blocks must not move.
    pub const PIN: u8 = 0x40;
    /// The blocks that compression saved have been given back; the file is immutable.
    pub const COMPRESS_RELEASED: u8 = 0x80;
}

/// Bits of the head's `advise`.
pub mod advise {
    /// Cold data, by its extension or by a hint.
    pub const COLD: u8 = 0x01;
    /// `pino` is not to be relied on.
    pub const LOST_PINO: u8 = 0x02;
    /// The content is encrypted.
    pub const ENCRYPT: u8 = 0x04;
    /// The name in the inode is encrypted.
    pub const ENC_NAME: u8 = 0x08;
    /// Blocks may lie past the end of the file.
    pub const KEEP_SIZE: u8 = 0x10;
    /// Hot data, by its extension or by a hint.
    pub const HOT: u8 = 0x20;
    /// Sealed with fs-verity.
    pub const VERITY: u8 = 0x40;
    /// A truncation is to be finished.
    pub const TRUNC: u8 = 0x80;
}

/// Bits of the head's `flags` that mean something to F2FS.
pub mod flag {
    /// The file is compressed.
    pub const COMPRESS: u32 = 0x4;
    /// Writes are synchronous.
    pub const SYNC: u32 = 0x8;
    /// Nothing may change.
    pub const IMMUTABLE: u32 = 0x10;
    /// Writes may only append.
    pub const APPEND: u32 = 0x20;
    /// Backups leave it out.
    pub const NODUMP: u32 = 0x40;
    /// Access times are not kept.
    pub const NOATIME: u32 = 0x80;
    /// The file must not be compressed.
    pub const NOCOMPRESS: u32 = 0x400;
    /// Shown, never stored: content or names are encrypted.
    pub const ENCRYPT: u32 = 0x800;
    /// Shown for hashed directories.
    pub const INDEX: u32 = 0x1000;
    /// Changes of the directory are synchronous.
    pub const DIRSYNC: u32 = 0x1_0000;
    /// Shown, never stored: sealed with fs-verity.
    pub const VERITY: u32 = 0x10_0000;
    /// Shown, never stored: the blocks must not move.
    pub const NOCOW: u32 = 0x80_0000;
    /// Shown, never stored: the content lies in the inode.
    pub const INLINE_DATA: u32 = 0x1000_0000;
    /// New entries take the directory's project id.
    pub const PROJECT_INHERIT: u32 = 0x2000_0000;
    /// Names are looked up without regard to case.
    pub const CASEFOLD: u32 = 0x4000_0000;
    /// The file stands for a whole device.
    pub const DEVICE_ALIAS: u32 = 0x8000_0000;
    /// Those that Linux shows; it takes no others (Linux, `F2FS_GETTABLE_FS_FL`).
    pub const SHOWN: u32 = COMPRESS
        | SYNC
        | IMMUTABLE
        | APPEND
        | NODUMP
        | NOATIME
        | NOCOMPRESS
        | ENCRYPT
        | INDEX
        | DIRSYNC
        | VERITY
        | NOCOW
        | INLINE_DATA
        | PROJECT_INHERIT
        | CASEFOLD;
}

/// Bytes of all extra attributes that this code knows.
pub const EXTRA_BYTES_MAX: usize = 36;

/// Smallest size of the extra attributes: the two sizes that stand first (Linux, `F2FS_MIN_EXTRA_ATTR_SIZE`).
pub const EXTRA_BYTES_MIN: usize = 4;
/// Words of inline xattrs where the volume's features fix the size.
pub const INLINE_XATTR_WORDS: usize = 50;
/// Bytes of the smallest inline directory: "." and "..".
const INLINE_DENTRY_BYTES_MIN: usize = 40;
/// Words between the extra attributes and inline content.
const INLINE_RESERVED_WORDS: usize = 1;
/// Bytes of an xattr header, the least that an inline xattr area in use has room for.
const XATTR_HEADER_BYTES: usize = 24;
/// Bytes that a file may reach to at most, whatever its nodes address: a number of 32 bits counts its pieces of 4 KiB,
/// as encryption does, also where blocks are larger (Linux 6.12, `max_file_blocks`).
const REACH_BYTES: u64 = 4096 << 32;

/// How clusters of a file are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// LZO1X.
    Lzo,
    /// LZ4.
    Lz4,
    /// Zstandard.
    Zstd,
    /// LZO1X with runs of zeroes.
    LzoRle,
}

impl Algorithm {
    /// The algorithm with this code, if it is one.
    pub const fn from_code(code: u8) -> Option<Algorithm> {
        match code {
            0 => Some(Algorithm::Lzo),
            1 => Some(Algorithm::Lz4),
            2 => Some(Algorithm::Zstd),
            3 => Some(Algorithm::LzoRle),
            _ => None,
        }
    }

    /// The code in an inode.
    pub const fn code(self) -> u8 {
        match self {
            Algorithm::Lzo => 0,
            Algorithm::Lz4 => 1,
            Algorithm::Zstd => 2,
            Algorithm::LzoRle => 3,
        }
    }

    /// The name that the mount option `compress_algorithm` has for it.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Lzo => "lzo",
            Algorithm::Lz4 => "lz4",
            Algorithm::Zstd => "zstd",
            Algorithm::LzoRle => "lzo-rle",
        }
    }
}

/// log2 of the blocks that a cluster may have (Linux, `MIN_COMPRESS_LOG_SIZE` and `MAX_COMPRESS_LOG_SIZE`).
pub const LOG_CLUSTER_BLOCKS: std::ops::RangeInclusive<u8> = 2..=8;

/// The settings of a compressed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Compression {
    /// How clusters are compressed.
    pub algorithm: Algorithm,
    /// log2 of the blocks in a cluster, one of [`LOG_CLUSTER_BLOCKS`].
    pub log_cluster_blocks: u8,
    /// Whether clusters carry a checksum.
    pub checksum: bool,
    /// Level of compression; 0 is the algorithm's usual one.
    pub level: u8,
}

impl Default for Compression {
    /// What Linux takes without mount options.
    fn default() -> Compression {
        Compression { algorithm: Algorithm::Lz4, log_cluster_blocks: 2, checksum: false, level: 0 }
    }
}

/// Where things lie in an inode block, and how its file's addresses are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeLayout {
    block_size: BlockSize,
    extra_bytes: usize,
    xattr_words: usize,
    /// Blocks in a cluster; 1 where the file is not compressed.
    cluster_blocks: usize,
}

impl InodeLayout {
    /// Byte offset of address 0.
    pub fn addrs_at(&self) -> usize {
        INODE_HEAD_BYTES + self.extra_bytes
    }

    /// Addresses in the inode. Compressed files have whole clusters only.
    pub fn addrs(&self) -> usize {
        self.whole_clusters(self.words() - self.xattr_words)
    }

    /// Addresses that the file uses of each direct node.
    pub fn direct_addrs(&self) -> usize {
        self.whole_clusters(self.block_size.node_addrs())
    }

    /// Children of each indirect node.
    pub fn children(&self) -> usize {
        self.block_size.node_addrs()
    }

    /// Blocks in a compressed cluster; 1 where the file is not compressed.
    pub fn cluster_blocks(&self) -> usize {
        self.cluster_blocks
    }

    /// Blocks that the nodes of such a file can address.
    pub fn max_blocks(&self) -> u64 {
        let (direct, children) = (self.direct_addrs() as u64, self.children() as u64);
        self.addrs() as u64 + direct * (2 + 2 * children + children * children)
    }

    /// Blocks that a file may reach to. Linux does not count the inode's own, so that the limit does not depend
    /// on what else is in there (Linux, `max_file_blocks`).
    pub fn reach_blocks(&self) -> u64 {
        (self.max_blocks() - self.addrs() as u64).min(REACH_BYTES >> self.block_size.log())
    }

    /// Bytes of inline content that the inode has room for.
    pub fn inline_bytes(&self) -> usize {
        4 * (self.words() - self.xattr_words - INLINE_RESERVED_WORDS)
    }

    /// Where inline content lies in the block.
    pub fn inline_range(&self) -> Range<usize> {
        let start = self.addrs_at() + 4 * INLINE_RESERVED_WORDS;
        start..start + self.inline_bytes()
    }

    /// Where the area for inline xattrs lies in the block; it is reserved even while it is not in use.
    pub fn inline_xattr_range(&self) -> Range<usize> {
        let end = self.block_size.inode_nids_at();
        end - 4 * self.xattr_words..end
    }

    /// Words from the extra attributes to the node ids.
    fn words(&self) -> usize {
        self.block_size.inode_addrs() - self.extra_bytes / 4
    }

    fn whole_clusters(&self, addrs: usize) -> usize {
        addrs - addrs % self.cluster_blocks
    }
}

/// A device number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DeviceNumber {
    /// The driver, below 4096.
    pub major: u32,
    /// The driver's device, below 2^20.
    pub minor: u32,
}

/// Constructor and accessors of inode blocks. Except for [`new_inode`](NodeBlock::new_inode) they are a bug of
/// the caller, and panic, on other nodes.
impl NodeBlock {
    /// A new inode without content: one link (a directory: two, and depth 1), one block. With the feature
    /// extra_attr it has all extra attributes. `inline` is what to use inline (the bit for extra attributes is
    /// not the caller's business); `inline_xattr_words` counts only with the feature flexible_inline_xattr.
    pub fn new_inode(
        format: NodeFormat,
        ino: Ino,
        mode: u16,
        inline: u8,
        inline_xattr_words: u16,
    ) -> NodeBlock {
        let directory = FileType::from_mode(mode) == Some(FileType::Directory);
        let mut node = NodeBlock::new(format, ino.into(), ino, 0, !directory);
        let extra = format.features.has(Features::EXTRA_ATTR);
        let head = node.head_mut();
        head.mode.set(mode);
        head.inline = inline & !inline::EXTRA_ATTR | if extra { inline::EXTRA_ATTR } else { 0 };
        head.links.set(if directory { 2 } else { 1 });
        head.blocks.set(1);
        head.current_depth.set(u32::from(directory));
        if extra {
            let extra = node.extra_mut();
            extra.extra_isize.set(EXTRA_BYTES_MAX as u16);
            if format.features.has(Features::FLEXIBLE_INLINE_XATTR) {
                extra.inline_xattr_words.set(inline_xattr_words);
            }
        }
        debug_assert!(node.find_layout().is_ok(), "impossible inode layout");
        node
    }

    /// The fixed head.
    pub fn head(&self) -> &raw::InodeHead {
        assert!(self.is_inode(), "{} is no inode", self.nid());
        raw::InodeHead::ref_from_prefix(self.bytes()).expect("a block is longer than an inode's head").0
    }

    /// The fixed head, to change it. Whoever changes `inline` or `flags` must leave a layout that is possible.
    pub fn head_mut(&mut self) -> &mut raw::InodeHead {
        assert!(self.is_inode(), "{} is no inode", self.nid());
        raw::InodeHead::mut_from_prefix(self.bytes_mut()).expect("a block is longer than an inode's head").0
    }

    /// Where things lie.
    pub fn layout(&self) -> InodeLayout {
        self.find_layout().expect("the layout was checked, and every change keeps it possible")
    }

    /// Kind of the file.
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.head().mode.get()).expect("the kind was checked")
    }

    /// Whether the inode is a directory.
    pub fn is_directory(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    /// Whether a bit of [`inline`] is set.
    pub fn has_inline(&self, bit: u8) -> bool {
        self.head().inline & bit != 0
    }

    /// Whether a bit of [`advise`] is set.
    pub fn has_advise(&self, bit: u8) -> bool {
        self.head().advise & bit != 0
    }

    /// Whether a bit of [`flag`] is set.
    pub fn has_flag(&self, bit: u32) -> bool {
        self.head().flags.get() & bit != 0
    }

    /// The name that the inode was last entered under. Empty for what never had one.
    pub fn last_name(&self) -> &[u8] {
        let head = self.head();
        &head.name[..(head.namelen.get() as usize).min(head.name.len())]
    }

    /// Sets the name and the directory that the inode is entered under.
    ///
    /// # Panics
    /// Where `name` is longer than 255 bytes: a bug of the caller.
    pub fn set_last_name(&mut self, parent: Ino, name: &[u8]) {
        let head = self.head_mut();
        head.pino.set(parent.0);
        head.namelen.set(name.len() as u32);
        head.name = [0; 255];
        head.name[..name.len()].copy_from_slice(name);
    }

    /// Node with the xattrs that do not fit inline, or 0.
    pub fn xattr_nid(&self) -> Nid {
        Nid(self.head().xattr_nid.get())
    }

    /// Last access.
    pub fn atime(&self) -> Time {
        time(self.head().atime.get(), self.head().atime_nsec.get())
    }

    /// Last change of the inode.
    pub fn ctime(&self) -> Time {
        time(self.head().ctime.get(), self.head().ctime_nsec.get())
    }

    /// Last change of the content.
    pub fn mtime(&self) -> Time {
        time(self.head().mtime.get(), self.head().mtime_nsec.get())
    }

    /// Creation, where the inode has it.
    pub fn crtime(&self) -> Option<Time> {
        let extra = self.extra_if(Features::INODE_CRTIME, CRTIME_END)?;
        Some(time(extra.crtime.get(), extra.crtime_nsec.get()))
    }

    /// Sets the last access.
    pub fn set_atime(&mut self, to: Time) {
        let head = self.head_mut();
        head.atime.set(to.seconds);
        head.atime_nsec.set(to.nanoseconds);
    }

    /// Sets the last change of the inode.
    pub fn set_ctime(&mut self, to: Time) {
        let head = self.head_mut();
        head.ctime.set(to.seconds);
        head.ctime_nsec.set(to.nanoseconds);
    }

    /// Sets the last change of the content.
    pub fn set_mtime(&mut self, to: Time) {
        let head = self.head_mut();
        head.mtime.set(to.seconds);
        head.mtime_nsec.set(to.nanoseconds);
    }

    /// Sets the creation, where the inode has it.
    pub fn set_crtime(&mut self, to: Time) {
        if self.crtime().is_some() {
            let extra = self.extra_mut();
            extra.crtime.set(to.seconds);
            extra.crtime_nsec.set(to.nanoseconds);
        }
    }

    /// Project id, where the inode has it; 0 counts otherwise.
    pub fn project(&self) -> Option<u32> {
        Some(self.extra_if(Features::PROJECT_QUOTA, PROJID_END)?.projid.get())
    }

    /// Sets the project id, where the inode has it.
    pub fn set_project(&mut self, project: u32) {
        if self.project().is_some() {
            self.extra_mut().projid.set(project);
        }
    }

    /// The settings of a compressed file; `None` for every other inode.
    pub fn compression(&self) -> Option<Compression> {
        self.find_compression().ok().flatten()
    }

    /// Sets how the file is compressed, for an inode that has the fields for it; `None` ends compression. Of a
    /// directory it says that new entries are to be compressed; Linux wants valid settings there, too.
    /// Settings change how addresses are counted: a file must not have blocks.
    pub fn set_compression(&mut self, to: Option<Compression>) {
        let flags = self.head().flags.get();
        if let Some(to) = to {
            self.head_mut().flags.set(flags | flag::COMPRESS);
            let extra = self.extra_mut();
            extra.compress_algorithm = to.algorithm.code();
            extra.log_cluster_size = to.log_cluster_blocks;
            extra.compress_flag.set(u16::from(to.checksum) | u16::from(to.level) << 8);
            debug_assert!(
                self.is_directory() || self.compression() == Some(to),
                "an inode that cannot be compressed"
            );
        } else {
            self.head_mut().flags.set(flags & !flag::COMPRESS);
        }
    }

    /// Blocks that compression saves, where the inode counts them.
    pub fn saved_blocks(&self) -> Option<u64> {
        self.extra_if(Features::COMPRESSION, COMPRESSION_END).map(|extra| extra.compr_blocks.get())
    }

    /// Sets the blocks that compression saves, where the inode counts them.
    pub fn set_saved_blocks(&mut self, blocks: u64) {
        if self.saved_blocks().is_some() {
            self.extra_mut().compr_blocks.set(blocks);
        }
    }

    /// The area for inline content: data, or directory entries.
    pub fn inline_area(&self) -> &[u8] {
        &self.bytes()[self.layout().inline_range()]
    }

    /// See [`inline_area`](Self::inline_area).
    pub fn inline_area_mut(&mut self) -> &mut [u8] {
        let range = self.layout().inline_range();
        &mut self.bytes_mut()[range]
    }

    /// The inline xattrs; empty where the inode does not use the area.
    pub fn inline_xattrs(&self) -> &[u8] {
        if self.has_inline(inline::XATTR) { &self.bytes()[self.layout().inline_xattr_range()] } else { &[] }
    }

    /// See [`inline_xattrs`](Self::inline_xattrs).
    pub fn inline_xattrs_mut(&mut self) -> &mut [u8] {
        let range = if self.has_inline(inline::XATTR) { self.layout().inline_xattr_range() } else { 0..0 };
        &mut self.bytes_mut()[range]
    }

    /// Number of the device that a device node stands for; `None` for other inodes. The old encoding lies in
    /// address 0; where that is 0, the new one lies in address 1 (Linux, `__get_inode_rdev`).
    pub fn device_number(&self) -> Option<DeviceNumber> {
        if !matches!(self.file_type(), FileType::CharDevice | FileType::BlockDevice) {
            return None;
        }
        let (old, new) = (self.addr(0).0, self.addr(1).0);
        Some(if old != 0 {
            DeviceNumber { major: old >> 8 & 0xFF, minor: old & 0xFF }
        } else {
            DeviceNumber { major: new >> 8 & 0xFFF, minor: new & 0xFF | new >> 12 & 0xF_FF00 }
        })
    }

    /// Sets the number of the device that a device node stands for.
    ///
    /// # Panics
    /// Where a number is too large to be stored: a bug of the caller.
    pub fn set_device_number(&mut self, to: DeviceNumber) {
        assert!(to.major < 1 << 12 && to.minor < 1 << 20, "device number {to:?}");
        let (old, new) = if to.major < 256 && to.minor < 256 {
            (to.major << 8 | to.minor, 0)
        } else {
            (0, to.minor & 0xFF | to.major << 8 | (to.minor & !0xFF) << 12)
        };
        let at = self.layout().addrs_at();
        self.set_word(at, old);
        self.set_word(at + 4, new);
    }

    /// Sets the checksum of an inode that has one; to be done last before the block is written. Other nodes
    /// have no checksum and stay as they are.
    pub fn seal(&mut self) {
        if self.is_inode() && self.checksum().is_some() {
            let sum = self.compute_checksum();
            self.extra_mut().inode_checksum.set(sum);
        }
    }

    /// The rules for inodes.
    pub(super) fn check_inode(&self, at: Place) -> Result<()> {
        let bad = |what: String| Error::corrupt(at, what);
        if let Some(stored) = self.checksum() {
            let computed = self.compute_checksum();
            if stored != computed {
                return Err(bad(format!("inode checksum {stored:#010x}, computed {computed:#010x}")));
            }
        }
        let head = self.head();
        let mode = head.mode.get();
        let kind =
            FileType::from_mode(mode).ok_or_else(|| bad(format!("mode {mode:#o} is of no kind of file")))?;
        let layout = self.find_layout().map_err(bad)?;
        let blocks = head.blocks.get();
        if blocks == 0 {
            return Err(bad("i_blocks is 0, the inode itself must be counted".into()));
        }
        if blocks > u64::from(u32::MAX) {
            return Err(bad(format!("i_blocks {blocks}, more than a volume can have")));
        }
        if head.xattr_nid.get() == self.ino().0 {
            return Err(bad("i_xattr_nid is the inode itself".into()));
        }
        let size = head.size.get();
        let block_size = self.format().block_size;
        if size > block_size.max_file_blocks() << block_size.log() {
            return Err(bad(format!("i_size {size} is more than the format can address")));
        }
        if head.namelen.get() as usize > super::NAME_MAX {
            return Err(bad(format!("i_namelen {}, at most 255", head.namelen.get())));
        }
        if self.has_inline(inline::DATA) {
            let encoded = self.has_advise(advise::ENCRYPT) || self.has_advise(advise::VERITY);
            match kind {
                FileType::Regular if encoded || self.has_flag(flag::COMPRESS) => {
                    return Err(bad("inline data in an encrypted, sealed or compressed file".into()));
                }
                FileType::Regular | FileType::Symlink => {}
                _ => return Err(bad(format!("inline data with mode {mode:#o}"))),
            }
            if size > layout.inline_bytes() as u64 {
                return Err(bad(format!(
                    "i_size {size} with inline data, which has room for {}",
                    layout.inline_bytes()
                )));
            }
        }
        if self.has_inline(inline::DENTRY) && kind != FileType::Directory {
            return Err(bad(format!("inline directory entries with mode {mode:#o}")));
        }
        if self.has_flag(flag::CASEFOLD) && !self.format().features.has(Features::CASEFOLD) {
            return Err(bad("a casefolded directory without the feature casefold".into()));
        }
        match (self.saved_blocks(), self.compression()) {
            (Some(saved), Some(_)) if saved >= blocks => {
                Err(bad(format!("i_compr_blocks {saved} with i_blocks {blocks}")))
            }
            _ => Ok(()),
        }
    }

    fn find_layout(&self) -> Result<InodeLayout, String> {
        let NodeFormat { block_size, features, .. } = self.format();
        let has_extra = self.has_inline(inline::EXTRA_ATTR);
        if has_extra && !features.has(Features::EXTRA_ATTR) {
            return Err("extra attributes without the feature extra_attr".into());
        }
        let flexible = features.has(Features::FLEXIBLE_INLINE_XATTR);
        let extra_bytes = if has_extra { usize::from(self.extra().extra_isize.get()) } else { 0 };
        // Smaller extra attributes would share the place of their own size with address 0.
        let least = if has_extra || flexible { EXTRA_BYTES_MIN } else { 0 };
        if !(least..=EXTRA_BYTES_MAX).contains(&extra_bytes) || extra_bytes % 4 != 0 {
            return Err(format!("i_extra_isize {extra_bytes}"));
        }
        let xattr_words = if flexible {
            usize::from(self.extra().inline_xattr_words.get())
        } else if self.has_inline(inline::XATTR | inline::DENTRY) {
            // Inline directories keep the room even where inline xattrs are off (Linux, do_read_inode).
            INLINE_XATTR_WORDS
        } else {
            0
        };
        let least = if self.has_inline(inline::XATTR) { XATTR_HEADER_BYTES / 4 } else { 0 };
        let most = block_size.inode_addrs()
            - EXTRA_BYTES_MAX / 4
            - INLINE_RESERVED_WORDS
            - INLINE_DENTRY_BYTES_MIN / 4;
        if !(least..=most).contains(&xattr_words) {
            return Err(format!("i_inline_xattr_size {xattr_words}, must be {least} to {most}"));
        }
        let cluster_blocks = self.find_compression()?.map_or(1, |settings| 1 << settings.log_cluster_blocks);
        Ok(InodeLayout { block_size, extra_bytes, xattr_words, cluster_blocks })
    }

    fn find_compression(&self) -> Result<Option<Compression>, String> {
        if !self.has_flag(flag::COMPRESS) || self.file_type_bits() != FileType::Regular.mode_bits() {
            return Ok(None);
        }
        let Some(extra) = self.extra_if(Features::COMPRESSION, COMPRESSION_END) else { return Ok(None) };
        let (code, log_cluster_blocks) = (extra.compress_algorithm, extra.log_cluster_size);
        let algorithm = Algorithm::from_code(code)
            .ok_or_else(|| format!("compression algorithm {code}, must be 0 to 3"))?;
        if !LOG_CLUSTER_BLOCKS.contains(&log_cluster_blocks) {
            return Err(format!("i_log_cluster_size {log_cluster_blocks}, must be 2 to 8"));
        }
        let flags = extra.compress_flag.get();
        Ok(Some(Compression {
            algorithm,
            log_cluster_blocks,
            checksum: flags & 1 != 0,
            level: (flags >> 8) as u8,
        }))
    }

    fn file_type_bits(&self) -> u16 {
        self.head().mode.get() & super::file_type::TYPE_MASK
    }

    /// The checksum, where the inode has one.
    fn checksum(&self) -> Option<u32> {
        Some(self.extra_if(Features::INODE_CHECKSUM, CHECKSUM_END)?.inode_checksum.get())
    }

    /// Over UUID, inode number, generation, and the whole block with zeroes for the checksum itself.
    fn compute_checksum(&self) -> u32 {
        const AT: usize = INODE_HEAD_BYTES + offset_of!(raw::ExtraAttributes, inode_checksum);
        let head = self.head();
        let seed = crc(self.format().checksum_seed, &self.ino().0.to_le_bytes());
        let seed = crc(seed, head.generation.as_bytes());
        let sum = crc(seed, &self.bytes()[..AT]);
        crc(crc(sum, &[0; 4]), &self.bytes()[AT + 4..])
    }

    /// The extra attributes if the feature is on and `i_extra_isize` covers them up to `end`.
    fn extra_if(&self, feature: Features, end: usize) -> Option<&raw::ExtraAttributes> {
        let extra = self.extra();
        let there = self.has_inline(inline::EXTRA_ATTR)
            && self.format().features.has(feature)
            && usize::from(extra.extra_isize.get()) >= end;
        there.then_some(extra)
    }

    fn extra(&self) -> &raw::ExtraAttributes {
        let bytes = &self.bytes()[INODE_HEAD_BYTES..INODE_HEAD_BYTES + EXTRA_BYTES_MAX];
        raw::ExtraAttributes::ref_from_bytes(bytes).expect("the slice has the struct's size")
    }

    fn extra_mut(&mut self) -> &mut raw::ExtraAttributes {
        let bytes = &mut self.bytes_mut()[INODE_HEAD_BYTES..INODE_HEAD_BYTES + EXTRA_BYTES_MAX];
        raw::ExtraAttributes::mut_from_bytes(bytes).expect("the slice has the struct's size")
    }
}

const PROJID_END: usize = offset_of!(raw::ExtraAttributes, inode_checksum);
const CHECKSUM_END: usize = offset_of!(raw::ExtraAttributes, crtime);
const CRTIME_END: usize = offset_of!(raw::ExtraAttributes, compr_blocks);
const COMPRESSION_END: usize = size_of::<raw::ExtraAttributes>();

fn time(seconds: i64, nanoseconds: u32) -> Time {
    Time { seconds, nanoseconds: nanoseconds.min(999_999_999) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::BlockAddr;

    const FULL: Features = Features(
        Features::EXTRA_ATTR.0
            | Features::FLEXIBLE_INLINE_XATTR.0
            | Features::INODE_CHECKSUM.0
            | Features::INODE_CRTIME.0
            | Features::PROJECT_QUOTA.0
            | Features::COMPRESSION.0,
    );

    fn format(features: Features) -> NodeFormat {
        NodeFormat::new(BlockSize::B4K, features, &[7; 16])
    }

    fn file(features: Features, inline: u8) -> NodeBlock {
        NodeBlock::new_inode(format(features), Ino(9), 0o100_644, inline, 50)
    }

    fn check(node: &NodeBlock) -> Result<NodeBlock> {
        NodeBlock::check(node.format(), node.bytes().into(), Nid(9), Ino(9), BlockAddr(5))
    }

    fn complaint(node: &NodeBlock) -> String {
        check(node).expect_err("must be refused").to_string()
    }

    #[test]
    fn inline_content_starts_one_word_after_the_addresses_and_has_the_formats_sizes() {
        let layout = |features, mode, inline| {
            NodeBlock::new_inode(format(features), Ino(9), mode, inline, 50).layout()
        };
        let plain = layout(Features::default(), 0o100_644, inline::XATTR);
        assert_eq!((plain.inline_range().start, plain.inline_bytes()), (364, 3488));
        let extra = layout(FULL, 0o100_644, inline::XATTR);
        assert_eq!((extra.inline_range().start, extra.inline_bytes()), (400, 3452));
        assert_eq!(extra.inline_xattr_range(), 3852..4052);
        assert_eq!((plain.addrs(), extra.addrs()), (873, 864));
        let without = layout(Features::default(), 0o100_644, 0);
        assert_eq!(without.addrs(), 923);
        let dir = layout(Features::default(), 0o040_755, inline::DENTRY);
        assert_eq!(dir.inline_bytes(), 3488, "an inline directory keeps the xattr area free");
        let reserved = layout(FULL, 0o100_644, 0);
        assert_eq!(reserved.addrs(), 864, "flexible: the size counts even where the flag is off");
        let big = NodeFormat::new(BlockSize::B16K, Features::default(), &[0; 16]);
        let big = NodeBlock::new_inode(big, Ino(9), 0o040_755, inline::DENTRY, 0).layout();
        assert_eq!(big.inline_bytes(), 4 * (3995 - 50 - 1));
        let reach = 1018 * (2 + 2 * 1018 + 1018 * 1018);
        assert_eq!((plain.reach_blocks(), big.reach_blocks()), (reach, 1 << 30), "no farther than 16 TiB");
    }

    #[test]
    fn compressed_files_count_whole_clusters() {
        let mut node = file(FULL, inline::XATTR);
        let settings =
            Compression { algorithm: Algorithm::Zstd, log_cluster_blocks: 3, checksum: true, level: 7 };
        node.set_compression(Some(settings));
        assert_eq!(node.compression(), Some(settings));
        assert_eq!((node.layout().addrs(), node.layout().direct_addrs()), (864, 1016));
        node.set_compression(Some(Compression { log_cluster_blocks: 8, ..settings }));
        assert_eq!((node.layout().addrs(), node.layout().direct_addrs()), (768, 768));
        node.head_mut().mode.set(0o040_755);
        assert_eq!(node.compression(), None, "a directory only hands the flag on");
        assert_eq!(node.layout().direct_addrs(), 1018);
    }

    #[test]
    fn a_field_needs_its_feature_and_an_isize_that_covers_it() {
        let mut node = file(FULL, 0);
        node.set_crtime(Time { seconds: -5, nanoseconds: 6 });
        node.set_project(77);
        assert_eq!(node.crtime(), Some(Time { seconds: -5, nanoseconds: 6 }));
        assert_eq!(node.project(), Some(77));
        node.extra_mut().extra_isize.set(20);
        assert_eq!((node.crtime(), node.project()), (None, Some(77)));
        assert_eq!(node.layout().addrs_at(), 380);
        let mut without = file(Features(FULL.0 & !Features::PROJECT_QUOTA.0), 0);
        without.set_project(77);
        assert_eq!(without.project(), None);
        let mut none = file(Features::default(), 0);
        none.set_crtime(Time { seconds: 1, nanoseconds: 1 });
        assert_eq!(none.crtime(), None);
        assert_eq!(none.layout().addrs_at(), 360);
    }

    #[test]
    fn the_checksum_covers_the_block_and_depends_on_number_and_generation() {
        let mut node = file(FULL, 0);
        node.head_mut().size.set(4711);
        node.seal();
        assert!(check(&node).is_ok());
        for at in [0, 359, 372, 4052, 4095] {
            let mut bad = node.clone();
            bad.bytes_mut()[at] ^= 0x40;
            if at < 4072 {
                assert!(complaint(&bad).contains("inode checksum"), "byte {at}");
            } else {
                assert!(check(&bad).is_err());
            }
        }
        let sum = node.checksum();
        node.head_mut().generation.set(1);
        node.seal();
        assert_ne!(node.checksum(), sum);
    }

    #[test]
    fn device_numbers_have_an_old_and_a_new_form() {
        let mut node = NodeBlock::new_inode(format(FULL), Ino(9), 0o060_600, 0, 0);
        for (major, minor, words) in
            [(8, 1, [0x801, 0]), (259, 0x12345, [0, 0x1231_0345]), (1, 300, [0, 0x10_012C])]
        {
            node.set_device_number(DeviceNumber { major, minor });
            assert_eq!(node.device_number(), Some(DeviceNumber { major, minor }));
            assert_eq!([node.word(396), node.word(400)], words);
        }
        assert_eq!(file(FULL, 0).device_number(), None);
    }

    #[test]
    fn impossible_inodes_are_corrupt() {
        let damaged = |damage: fn(&mut NodeBlock)| {
            let mut node = file(FULL, inline::XATTR);
            damage(&mut node);
            let sum = node.compute_checksum();
            node.extra_mut().inode_checksum.set(sum);
            complaint(&node)
        };
        assert!(damaged(|node| node.head_mut().blocks.set(0)).contains("i_blocks is 0"));
        assert!(damaged(|node| node.head_mut().blocks.set(1 << 32)).contains("i_blocks 4294967296"));
        assert!(damaged(|node| node.head_mut().xattr_nid.set(9)).contains("i_xattr_nid"));
        assert!(damaged(|node| node.head_mut().mode.set(0o644)).contains("no kind of file"));
        assert!(damaged(|node| node.extra_mut().extra_isize.set(40)).contains("i_extra_isize 40"));
        assert!(damaged(|node| node.extra_mut().extra_isize.set(34)).contains("i_extra_isize 34"));
        assert!(damaged(|node| node.extra_mut().inline_xattr_words.set(5)).contains("i_inline_xattr_size 5"));
        assert!(
            damaged(|node| node.extra_mut().inline_xattr_words.set(904)).contains("i_inline_xattr_size 904")
        );
        assert!(
            damaged(|node| node.head_mut().inline |= inline::DENTRY).contains("inline directory entries")
        );
        assert!(damaged(|node| node.head_mut().size.set(1 << 60)).contains("i_size"));
        assert!(damaged(|node| node.head_mut().namelen.set(256)).contains("i_namelen"));
        assert!(damaged(|node| node.head_mut().flags.set(flag::CASEFOLD)).contains("casefold"));
        assert!(
            damaged(|node| {
                node.head_mut().inline |= inline::DATA;
                node.head_mut().size.set(3453);
            })
            .contains("room for 3452")
        );
        assert!(
            damaged(|node| {
                node.head_mut().inline |= inline::DATA;
                node.head_mut().advise = advise::VERITY;
            })
            .contains("sealed")
        );
        assert!(
            damaged(|node| {
                node.head_mut().flags.set(flag::COMPRESS);
                node.extra_mut().compress_algorithm = 4;
            })
            .contains("algorithm 4")
        );
        assert!(damaged(|node| node.head_mut().flags.set(flag::COMPRESS)).contains("i_log_cluster_size 0"));
        assert!(damaged(|node| node.extra_mut().extra_isize.set(0)).contains("i_extra_isize 0"));
        let mut plain = file(Features::default(), 0);
        plain.head_mut().inline = inline::EXTRA_ATTR;
        assert!(complaint(&plain).contains("without the feature extra_attr"));
        let mut flexible = file(Features(Features::EXTRA_ATTR.0 | Features::FLEXIBLE_INLINE_XATTR.0), 0);
        flexible.head_mut().inline = 0;
        assert!(complaint(&flexible).contains("i_extra_isize 0"));
    }
}
