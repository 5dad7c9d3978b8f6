//! The superblock: geometry and identity of the volume, in two copies.
//!
//! It has 3072 bytes at byte 1024 of block 0 and of block 1. [`raw::Superblock`] is the bytes.
//! [`Superblock::check`] turns it into a [`Superblock`], whose numbers are consistent with each other and
//! with the device. Rules: those of Linux (`sanity_check_raw_super`, `sanity_check_area_boundary`).

mod check;

use zerocopy::IntoBytes;

use super::{BLOCKS_PER_SEGMENT, BlockSize, LOG_BLOCKS_PER_SEGMENT, crc::f2fs_crc, quota::QuotaKind};
use crate::{
    Error, Result,
    units::{BlockAddr, Ino},
};

/// Byte offset of the superblock in its block.
pub const OFFSET: usize = 1024;
/// Bytes of a superblock.
pub const BYTES: usize = 3072;
/// Byte offset of the checksum, if there is one.
const CRC_OFFSET: usize = 3068;
/// Maximum number of extensions in both lists together.
pub const EXTENSIONS_MAX: usize = 64;
/// Maximum length of a label in UTF-16 units.
pub const LABEL_UNITS: usize = 512;
/// Maximum number of devices of a volume.
pub const DEVICES_MAX: usize = 8;

/// Raw bytes.
pub mod raw {
    use std::mem::{offset_of, size_of};

    use zerocopy::{
        FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
        little_endian::{U16, U32, U64},
    };

    /// The superblock as it lies on the device.
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
    #[repr(C)]
    pub struct Superblock {
        /// [`MAGIC`](crate::format::MAGIC).
        pub magic: U32,
        /// Major version of the format: 1.
        pub major_version: U16,
        /// Minor version of the format.
        pub minor_version: U16,
        /// log2 of the sector size in bytes.
        pub log_sector_bytes: U32,
        /// log2 of the sectors in a block.
        pub log_sectors_per_block: U32,
        /// log2 of the block size in bytes: 12 or 14.
        pub log_block_bytes: U32,
        /// log2 of the blocks in a segment: 9.
        pub log_blocks_per_segment: U32,
        /// Segments in a section.
        pub segments_per_section: U32,
        /// Sections in a zone.
        pub sections_per_zone: U32,
        /// Offset in bytes of the checksum in this structure: 3068, or 0 without the feature sb_checksum.
        pub checksum_offset: U32,
        /// Blocks of the volume.
        pub block_count: U64,
        /// Sections of the main area.
        pub section_count: U32,
        /// Segments from `segment0_blkaddr` on, of all areas.
        pub segment_count: U32,
        /// Segments of the checkpoint area: 2.
        pub segment_count_ckpt: U32,
        /// Segments of the SIT area, both copies.
        pub segment_count_sit: U32,
        /// Segments of the NAT area, both copies.
        pub segment_count_nat: U32,
        /// Segments of the SSA.
        pub segment_count_ssa: U32,
        /// Segments of the main area.
        pub segment_count_main: U32,
        /// First block of segment 0.
        pub segment0_blkaddr: U32,
        /// First block of the checkpoint area.
        pub cp_blkaddr: U32,
        /// First block of the SIT area.
        pub sit_blkaddr: U32,
        /// First block of the NAT area.
        pub nat_blkaddr: U32,
        /// First block of the SSA.
        pub ssa_blkaddr: U32,
        /// First block of the main area.
        pub main_blkaddr: U32,
        /// Inode of the root directory: 3.
        pub root_ino: U32,
        /// Inode that stands for the node pages: 1.
        pub node_ino: U32,
        /// Inode that stands for the metadata pages: 2.
        pub meta_ino: U32,
        /// UUID of the volume.
        pub uuid: [u8; 16],
        /// Label, UTF-16.
        pub volume_name: [U16; 512],
        /// Extensions of cold files.
        pub extension_count: U32,
        /// Extensions: the cold ones, then the hot ones, each padded with zeroes.
        pub extension_list: [[u8; 8]; 64],
        /// Blocks of a checkpoint pack for version bitmaps that do not fit its first block.
        pub cp_payload: U32,
        /// Version string of the last kernel that mounted the volume.
        pub version: [u8; 256],
        /// Version string of the program that made the volume.
        pub init_version: [u8; 256],
        /// Feature bits.
        pub feature: U32,
        /// Encryption level, unused by Linux.
        pub encryption_level: u8,
        /// Salt of password-derived encryption keys.
        pub encrypt_pw_salt: [u8; 16],
        /// Devices of a multi-device volume.
        pub devs: [DeviceEntry; 8],
        /// Quota inodes: user, group, project.
        pub qf_ino: [U32; 3],
        /// Extensions of hot files.
        pub hot_ext_count: u8,
        /// Encoding of file names if casefolding is on: 1 is UTF-8 12.1.
        pub s_encoding: U16,
        /// Flags of the encoding: bit 0 strict, bit 1 no linear fallback in lookups.
        pub s_encoding_flags: U16,
        /// Counts of the reasons why checkpoints were stopped.
        pub s_stop_reason: [u8; 32],
        /// Bitmap of errors that Linux has met on the volume.
        pub s_errors: [u8; 16],
        /// Not used.
        pub reserved: [u8; 258],
        /// Checksum of all bytes before it, with the feature sb_checksum.
        pub crc: U32,
    }

    const _: () = assert!(
        size_of::<Superblock>() == super::BYTES
            && offset_of!(Superblock, checksum_offset) == 32
            && offset_of!(Superblock, segment0_blkaddr) == 72
            && offset_of!(Superblock, uuid) == 108
            && offset_of!(Superblock, extension_list) == 1152
            && offset_of!(Superblock, cp_payload) == 1664
            && offset_of!(Superblock, feature) == 2180
            && offset_of!(Superblock, devs) == 2201
            && offset_of!(Superblock, qf_ino) == 2745
            && offset_of!(Superblock, s_errors) == 2794
            && offset_of!(Superblock, crc) == super::CRC_OFFSET
    );

    /// One device of a multi-device volume.
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
    #[repr(C)]
    pub struct DeviceEntry {
        /// Path as mkfs was given it, padded with zeroes.
        pub path: [u8; 64],
        /// Segments on the device; for the first, without the blocks before segment 0.
        pub total_segments: U32,
    }

    const _: () = assert!(size_of::<DeviceEntry>() == 68);
}

/// Feature bits of the superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Features(pub u32);

macro_rules! features {
    ($($(#[$doc:meta])* $name:ident = $bit:literal, $mkfs:literal;)*) => {
        impl Features {
            $($(#[$doc])* pub const $name: Features = Features($bit);)*
            /// Every feature that has a name, with the name that `mkfs -O` takes.
            pub const NAMED: &'static [(Features, &'static str)] = &[$((Features::$name, $mkfs)),*];
        }
    };
}

features! {
    /// Files and names may be encrypted (fscrypt).
    ENCRYPT = 0x1, "encrypt";
    /// On a zoned device.
    BLKZONED = 0x2, "blkzoned";
    /// Atomic writes, never set by mkfs.
    ATOMIC_WRITE = 0x4, "atomic_write";
    /// Inodes carry extra attributes.
    EXTRA_ATTR = 0x8, "extra_attr";
    /// Project ids.
    PROJECT_QUOTA = 0x10, "project_quota";
    /// Inodes carry a checksum.
    INODE_CHECKSUM = 0x20, "inode_checksum";
    /// The size of the inline xattr area is per inode.
    FLEXIBLE_INLINE_XATTR = 0x40, "flexible_inline_xattr";
    /// Hidden quota inodes.
    QUOTA = 0x80, "quota";
    /// Inodes carry the time of their creation.
    INODE_CRTIME = 0x100, "inode_crtime";
    /// A lost+found directory, for fsck.
    LOST_FOUND = 0x200, "lost_found";
    /// Files may be sealed with fs-verity.
    VERITY = 0x400, "verity";
    /// The superblock carries a checksum.
    SB_CHECKSUM = 0x800, "sb_checksum";
    /// Directories may ignore case.
    CASEFOLD = 0x1000, "casefold";
    /// Files may be compressed.
    COMPRESSION = 0x2000, "compression";
    /// The compact layout that is never written.
    RO = 0x4000, "ro";
    /// Files that stand for a whole device of the volume.
    DEVICE_ALIAS = 0x8000, "device_alias";
    /// With blocks larger than 4 KiB, several summaries share an SSA block.
    PACKED_SSA = 0x1_0000, "packed_ssa";
}

impl Features {
    /// Returns true if every bit of `other` is set.
    #[must_use]
    pub const fn has(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    /// The set with the bits of `other` added.
    #[must_use]
    pub const fn with(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }

    /// The set without the bits of `other`.
    #[must_use]
    pub const fn without(self, other: Features) -> Features {
        Features(self.0 & !other.0)
    }

    /// Refuses features that lie in the extra attributes of inodes, if inodes have none.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the name of the feature.
    pub fn require_extra_attr(self) -> Result<()> {
        let in_inodes = [
            Features::PROJECT_QUOTA,
            Features::INODE_CHECKSUM,
            Features::FLEXIBLE_INLINE_XATTR,
            Features::INODE_CRTIME,
            Features::COMPRESSION,
        ];
        let found = in_inodes.into_iter().find(|feature| self.has(*feature));
        match found.filter(|_| !self.has(Features::EXTRA_ATTR)) {
            Some(feature) => {
                let name = feature.names().next().unwrap_or_default();
                Err(Error::Invalid(format!("feature {name} needs feature extra_attr").into()))
            }
            None => Ok(()),
        }
    }

    /// The bits that have no name.
    #[must_use]
    pub fn unknown(self) -> u32 {
        Features::NAMED.iter().fold(self.0, |bits, (feature, _)| bits & !feature.0)
    }

    /// Names of the bits that are set and have one, in bit order.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Features::NAMED.iter().filter(move |(feature, _)| self.has(*feature)).map(|(_, name)| *name)
    }
}

/// One of the metadata areas: a range of whole segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// First block.
    pub start: BlockAddr,
    /// Length in segments.
    pub segments: u32,
}

impl Area {
    /// Length in blocks.
    #[must_use]
    pub const fn blocks(self) -> u64 {
        (self.segments as u64) << LOG_BLOCKS_PER_SEGMENT
    }

    /// First block after the area.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.start.0 as u64 + self.blocks()
    }
}

/// A device of a multi-device volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeDevice {
    /// Path as given to mkfs.
    pub path: String,
    /// Segments on it; for the first, without the blocks before segment 0.
    pub segments: u32,
}

/// A superblock whose numbers are consistent. The comments of [`raw::Superblock`] have the kernel's names.
#[derive(Debug, Clone)]
pub struct Superblock {
    /// Size of a block.
    pub block_size: BlockSize,
    /// log2 of the sector in bytes, 9 to the block size's.
    pub log_sector_bytes: u32,
    /// Segments in a section.
    pub segments_per_section: u32,
    /// Sections in a zone.
    pub sections_per_zone: u32,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Segments of all areas.
    pub segments: u32,
    /// Sections of the main area.
    pub sections: u32,
    /// Checkpoint area: two packs, a segment each.
    pub checkpoint: Area,
    /// Segment information table.
    pub sit: Area,
    /// Node address table.
    pub nat: Area,
    /// Segment summary area.
    pub ssa: Area,
    /// Main area: nodes and data.
    pub main: Area,
    /// Inode of the root directory.
    pub root_ino: Ino,
    /// UUID of the volume.
    pub uuid: [u8; 16],
    /// Label.
    pub label: String,
    /// File name extensions of cold data.
    pub cold_extensions: Vec<String>,
    /// File name extensions of hot data.
    pub hot_extensions: Vec<String>,
    /// Blocks of a checkpoint pack for version bitmaps that do not fit its first block.
    pub cp_payload: u32,
    /// Feature bits.
    pub features: Features,
    /// Devices of a multi-device volume; otherwise empty.
    pub devices: Vec<VolumeDevice>,
    /// Inodes of the quota files for users, groups and projects; 0 is none, as are all without the feature quota.
    pub quota_inos: [Ino; 3],
    /// Encoding of names for casefolding.
    pub encoding: u16,
    /// Flags of the encoding.
    pub encoding_flags: u16,
}

impl Superblock {
    /// Size of the volume in bytes, all its devices together.
    #[must_use]
    pub fn volume_bytes(&self) -> u64 {
        self.blocks << self.block_size.log()
    }

    /// Copies of each SIT block: half of the area's blocks.
    #[must_use]
    pub fn sit_blocks(&self) -> u32 {
        self.sit.segments / 2 * BLOCKS_PER_SEGMENT
    }

    /// Copies of each NAT block: half of the area's blocks.
    #[must_use]
    pub fn nat_blocks(&self) -> u32 {
        self.nat.segments / 2 * BLOCKS_PER_SEGMENT
    }

    /// The hidden inode of a quota file, if the volume has this quota.
    #[must_use]
    pub fn quota_ino(&self, kind: QuotaKind) -> Option<Ino> {
        Some(self.quota_inos[kind.index()]).filter(|ino| ino.0 != 0)
    }

    /// Returns true if an inode holds a quota.
    #[must_use]
    pub fn is_quota_ino(&self, ino: Ino) -> bool {
        self.quota_inos.contains(&ino)
    }

    /// Returns true if the volume has a quota of any kind.
    #[must_use]
    pub fn has_quotas(&self) -> bool {
        self.quota_inos.iter().any(|ino| ino.0 != 0)
    }
}

/// Sets the checksum of a raw superblock if its features include one.
pub fn seal(raw: &mut raw::Superblock) {
    if Features(raw.feature.get()).has(Features::SB_CHECKSUM) {
        raw.checksum_offset.set(u32::try_from(CRC_OFFSET).expect("the superblock has 3072 bytes"));
        let sum = f2fs_crc(&raw.as_bytes()[..CRC_OFFSET]);
        raw.crc.set(sum);
    } else {
        raw.checksum_offset.set(0);
        raw.crc.set(0);
    }
}

/// Refuses a label that does not fit or contains a NUL.
///
/// # Errors
/// [`Error::Invalid`] with the length of the label.
pub fn check_label(label: &str) -> Result<()> {
    let units = label.encode_utf16().count();
    if units > LABEL_UNITS || label.contains('\0') {
        let what = format!("label of {units} characters, at most {LABEL_UNITS} and no NUL");
        return Err(Error::Invalid(what.into()));
    }
    Ok(())
}

/// Stores a checked label.
pub fn set_label(raw: &mut raw::Superblock, label: &str) {
    let filled = label.encode_utf16().chain(std::iter::repeat(0));
    raw.volume_name.iter_mut().zip(filled).for_each(|(slot, unit)| slot.set(unit));
}

/// The label as text.
#[must_use]
pub fn label_of(raw: &raw::Superblock) -> String {
    let units = raw.volume_name.iter().map(|unit| unit.get()).take_while(|unit| *unit != 0);
    char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
}

fn until_nul(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
