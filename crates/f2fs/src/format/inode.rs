//! Inodes: the fixed head, the extra attributes, and the use of the rest of the block.
//!
//! From byte 360 on, an inode block holds, in this order: the extra attributes (as many bytes as
//! `i_extra_isize` says), addresses or inline content, inline xattrs at the end of the address area, five
//! node ids, the footer. An [`InodeLayout`] tells which of these exist, and their offsets;
//! [`NodeBlock::check`] has verified that it is possible. An extra attribute exists only if the size covers
//! it *and* the volume's feature for it is on; its accessor is `None` otherwise. Rules: Linux,
//! `do_read_inode` and `sanity_check_inode`.

mod compression;
mod device_number;
mod layout;
mod rules;

use std::mem::{offset_of, size_of};

use zerocopy::{FromBytes, IntoBytes};

use super::{
    FileType,
    block_size::INODE_HEAD_BYTES,
    crc::crc,
    node::{NodeBlock, NodeFormat},
    superblock::Features,
};
use crate::units::{Ino, Nid, Time};

pub use compression::{Algorithm, Compression, LOG_CLUSTER_BLOCKS};
pub use device_number::DeviceNumber;
pub use layout::InodeLayout;

/// Raw bytes.
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
        /// Flags of inline content, see [`inline`](super::inline).
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
        /// Distinguishes this inode from earlier ones of the same number.
        pub generation: U32,
        /// For a directory, levels of its hash table. For a regular file, the lower half counts how often
        /// cleaning failed on it while it was pinned.
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
        /// For a directory, log2 of the buckets of level 0.
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
        /// Compression algorithm of clusters: 0 LZO, 1 LZ4, 2 zstd, 3 LZO-RLE.
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
    /// The blocks saved by compression have been released; the file is immutable.
    pub const COMPRESS_RELEASED: u8 = 0x80;
}

/// Bits of the head's `advise`.
pub mod advise {
    /// Cold data, by its extension or by a hint.
    pub const COLD: u8 = 0x01;
    /// `pino` is unreliable.
    pub const LOST_PINO: u8 = 0x02;
    /// The content is encrypted.
    pub const ENCRYPT: u8 = 0x04;
    /// The name in the inode is encrypted.
    pub const ENC_NAME: u8 = 0x08;
    /// Blocks are reserved past the end of the file.
    pub const KEEP_SIZE: u8 = 0x10;
    /// Hot data, by its extension or by a hint.
    pub const HOT: u8 = 0x20;
    /// Sealed with fs-verity.
    pub const VERITY: u8 = 0x40;
    /// Blocks past the end of the file are to be freed.
    pub const TRUNC: u8 = 0x80;
    /// The marks of blocks past the end of the file.
    pub const PAST_END: u8 = KEEP_SIZE | TRUNC;
}

/// Bits of the head's `flags` that mean something to F2FS.
pub mod flag {
    /// The file is compressed.
    pub const COMPRESS: u32 = 0x4;
    /// Writes are synchronous.
    pub const SYNC: u32 = 0x8;
    /// The file cannot be changed.
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
/// Words of inline xattrs if the volume's features fix the size.
pub const INLINE_XATTR_WORDS: usize = 50;

/// Constructor and accessors of inode blocks. On other nodes, all except [`new_inode`](NodeBlock::new_inode)
/// panic, since the call is a bug of the caller.
impl NodeBlock {
    /// Makes a new inode without content: one link (a directory: two, and depth 1) and one block. With the
    /// feature extra_attr, it has all extra attributes. `inline` selects inline content; this function itself
    /// sets the bit for extra attributes. `inline_xattr_words` applies only with the feature
    /// flexible_inline_xattr.
    #[must_use]
    pub fn new_inode(
        format: NodeFormat,
        ino: Ino,
        mode: u16,
        inline: u8,
        inline_xattr_words: u16,
    ) -> NodeBlock {
        let kind = FileType::from_mode(mode).unwrap_or(FileType::Regular);
        let directory = kind == FileType::Directory;
        let mut node = NodeBlock::new(format, ino.into(), ino, 0, kind);
        let extra = format.features.has(Features::EXTRA_ATTR);
        let head = node.head_mut();
        head.mode.set(mode);
        head.inline = inline & !inline::EXTRA_ATTR | if extra { inline::EXTRA_ATTR } else { 0 };
        head.links.set(if directory { 2 } else { 1 });
        head.blocks.set(1);
        head.current_depth.set(u32::from(directory));
        if extra {
            let extra = node.extra_mut();
            extra.extra_isize.set(u16::try_from(EXTRA_BYTES_MAX).expect("a few dozen bytes"));
            if format.features.has(Features::FLEXIBLE_INLINE_XATTR) {
                extra.inline_xattr_words.set(inline_xattr_words);
            }
        }
        debug_assert!(node.find_layout().is_ok(), "impossible inode layout");
        node
    }

    /// The fixed head.
    #[must_use]
    pub fn head(&self) -> &raw::InodeHead {
        assert!(self.is_inode(), "{} is not an inode", self.nid());
        raw::InodeHead::ref_from_prefix(self.bytes()).expect("a block is longer than an inode's head").0
    }

    /// Returns the fixed head for changes. A caller that changes `inline` or `flags` must leave a valid
    /// layout.
    pub fn head_mut(&mut self) -> &mut raw::InodeHead {
        assert!(self.is_inode(), "{} is not an inode", self.nid());
        raw::InodeHead::mut_from_prefix(self.bytes_mut()).expect("a block is longer than an inode's head").0
    }

    /// Offsets of the parts.
    #[must_use]
    pub fn layout(&self) -> InodeLayout {
        self.find_layout().expect("the layout was checked, and every change keeps it possible")
    }

    /// Kind of the file.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.head().mode.get()).expect("the kind was checked")
    }

    /// Returns true if the inode is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    /// Returns true if a bit of [`inline`] is set.
    #[must_use]
    pub fn has_inline(&self, bit: u8) -> bool {
        self.head().inline & bit != 0
    }

    /// Returns true if a bit of [`advise`] is set.
    #[must_use]
    pub fn has_advise(&self, bit: u8) -> bool {
        self.head().advise & bit != 0
    }

    /// Returns true if a bit of [`flag`] is set.
    #[must_use]
    pub fn has_flag(&self, bit: u32) -> bool {
        self.head().flags.get() & bit != 0
    }

    /// The name of the newest directory entry of the inode. Empty if it never had one.
    #[must_use]
    pub fn last_name(&self) -> &[u8] {
        let head = self.head();
        &head.name[..(head.namelen.get() as usize).min(head.name.len())]
    }

    /// Sets the name and the directory of the inode's newest entry.
    ///
    /// # Panics
    /// If `name` is longer than 255 bytes: a bug of the caller.
    pub fn set_last_name(&mut self, parent: Ino, name: &[u8]) {
        let head = self.head_mut();
        head.pino.set(parent.0);
        head.namelen.set(u32::try_from(name.len()).expect("the caller bounds names"));
        head.name = [0; 255];
        head.name[..name.len()].copy_from_slice(name);
    }

    /// Node with the xattrs that do not fit inline, or 0.
    #[must_use]
    pub fn xattr_nid(&self) -> Nid {
        Nid(self.head().xattr_nid.get())
    }

    /// Last access.
    #[must_use]
    pub fn atime(&self) -> Time {
        time(self.head().atime.get(), self.head().atime_nsec.get())
    }

    /// Last change of the inode.
    #[must_use]
    pub fn ctime(&self) -> Time {
        time(self.head().ctime.get(), self.head().ctime_nsec.get())
    }

    /// Last change of the content.
    #[must_use]
    pub fn mtime(&self) -> Time {
        time(self.head().mtime.get(), self.head().mtime_nsec.get())
    }

    /// Creation, if the inode records it.
    #[must_use]
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

    /// Sets the creation, if the inode records it.
    pub fn set_crtime(&mut self, to: Time) {
        if self.crtime().is_some() {
            let extra = self.extra_mut();
            extra.crtime.set(to.seconds);
            extra.crtime_nsec.set(to.nanoseconds);
        }
    }

    /// Project id, if the inode has one; otherwise 0 counts.
    #[must_use]
    pub fn project(&self) -> Option<u32> {
        Some(self.extra_if(Features::PROJECT_QUOTA, PROJID_END)?.projid.get())
    }

    /// Sets the project id, if the inode has one.
    pub fn set_project(&mut self, project: u32) {
        if self.project().is_some() {
            self.extra_mut().projid.set(project);
        }
    }

    /// The area for inline content: data, or directory entries.
    #[must_use]
    pub fn inline_area(&self) -> &[u8] {
        &self.bytes()[self.layout().inline_range()]
    }

    /// See [`inline_area`](Self::inline_area).
    pub fn inline_area_mut(&mut self) -> &mut [u8] {
        let range = self.layout().inline_range();
        &mut self.bytes_mut()[range]
    }

    /// The inline xattrs; empty if the inode does not use the area.
    #[must_use]
    pub fn inline_xattrs(&self) -> &[u8] {
        if self.has_inline(inline::XATTR) { &self.bytes()[self.layout().inline_xattr_range()] } else { &[] }
    }

    /// See [`inline_xattrs`](Self::inline_xattrs).
    pub fn inline_xattrs_mut(&mut self) -> &mut [u8] {
        let range = if self.has_inline(inline::XATTR) { self.layout().inline_xattr_range() } else { 0..0 };
        &mut self.bytes_mut()[range]
    }

    /// Sets the checksum of an inode that has one. Must be the last change before the block is written. Other
    /// nodes have no checksum and stay unchanged.
    pub fn seal(&mut self) {
        if self.is_inode() && self.checksum().is_some() {
            let sum = self.compute_checksum();
            self.extra_mut().inode_checksum.set(sum);
        }
    }

    fn file_type_bits(&self) -> u16 {
        self.head().mode.get() & super::file_type::TYPE_MASK
    }

    /// The checksum, if the inode has one.
    fn checksum(&self) -> Option<u32> {
        Some(self.extra_if(Features::INODE_CHECKSUM, CHECKSUM_END)?.inode_checksum.get())
    }

    /// Covers UUID, inode number, generation, and the whole block with zeroes in place of the checksum.
    fn compute_checksum(&self) -> u32 {
        const AT: usize = INODE_HEAD_BYTES + offset_of!(raw::ExtraAttributes, inode_checksum);
        let head = self.head();
        let seed = crc(self.format().checksum_seed, &self.ino().0.to_le_bytes());
        let seed = crc(seed, head.generation.as_bytes());
        let sum = crc(seed, &self.bytes()[..AT]);
        crc(crc(sum, &[0; 4]), &self.bytes()[AT + 4..])
    }

    /// Returns the extra attributes if the feature is on and `i_extra_isize` covers them up to `end`.
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
    use crate::{Result, format::BlockSize, units::BlockAddr};

    pub(super) const FULL: Features = Features(
        Features::EXTRA_ATTR.0
            | Features::FLEXIBLE_INLINE_XATTR.0
            | Features::INODE_CHECKSUM.0
            | Features::INODE_CRTIME.0
            | Features::PROJECT_QUOTA.0
            | Features::COMPRESSION.0,
    );

    pub(super) fn format(features: Features) -> NodeFormat {
        NodeFormat::new(BlockSize::B4K, features, &[7; 16])
    }

    pub(super) fn file(features: Features, inline: u8) -> NodeBlock {
        NodeBlock::new_inode(format(features), Ino(9), 0o100_644, inline, 50)
    }

    fn check(node: &NodeBlock) -> Result<NodeBlock> {
        NodeBlock::check(node.format(), node.bytes().into(), Nid(9), Ino(9), BlockAddr(5))
    }

    pub(super) fn complaint(node: &NodeBlock) -> String {
        check(node).expect_err("must be refused").to_string()
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
}
