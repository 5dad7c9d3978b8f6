//! Magic bytes of file systems, RAID members, encrypted volumes and partition tables, and of files that hold
//! disks or archives.
//!
//! Offsets and magics are those that util-linux's libblkid searches (2.41; libblkid/src/superblocks and
//! libblkid/src/partitions). libblkid also checks checksums and further fields to rule out chance. This table
//! does not: a false alarm costs an option, while an overwritten volume is lost.

/// The offsets at which a magic may lie.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    anchor: Anchor,
    /// Distance of repeated places in bytes, and the number of all places.
    step: u64,
    count: u64,
}

#[derive(Debug, Clone, Copy)]
enum Anchor {
    /// Bytes from the start.
    Start(u64),
    /// Bytes before the end of the last whole unit of `unit` bytes.
    End { unit: u64, before: u64 },
}

impl Place {
    const fn every(self, step: u64, count: u64) -> Place {
        Place { step, count, ..self }
    }

    /// Returns the offsets at which `length` bytes fit on a device of `size` bytes.
    pub fn offsets(self, size: u64, length: u64) -> impl Iterator<Item = u64> {
        let first = match self.anchor {
            Anchor::Start(offset) => Some(offset),
            Anchor::End { unit, before } => (size / unit * unit).checked_sub(before),
        };
        let all = (0..self.count).filter_map(move |n| first?.checked_add(n * self.step));
        all.filter(move |offset| offset.checked_add(length).is_some_and(|end| end <= size))
    }
}

const fn at(offset: u64) -> Place {
    Place { anchor: Anchor::Start(offset), step: 0, count: 1 }
}

const fn end(unit: u64, before: u64) -> Place {
    Place { anchor: Anchor::End { unit, before }, step: 0, count: 1 }
}

/// Returns the place of a sector counted from the end. 1 is the last.
const fn last(sectors: u64) -> Place {
    end(512, 512 * sectors)
}

/// A format with its places and magics. Any of the magics may lie at any of the places.
pub struct Signature {
    /// The format's name.
    pub name: &'static str,
    /// The places.
    pub places: &'static [Place],
    /// The magics.
    pub magics: &'static [&'static [u8]],
}

const fn sign(name: &'static str, places: &'static [Place], magics: &'static [&'static [u8]]) -> Signature {
    Signature { name, places, magics }
}

/// The last ten bytes of a page hold a swap area's magic; pages have 4 to 64 KiB.
const SWAP: &[Place] = &[at(0xFF6), at(0x1FF6), at(0x3FF6), at(0x7FF6), at(0xFFF6)];
/// The four labels of a ZFS member.
const ZFS_LISTS: &[Place] =
    &[at(16 << 10), at(272 << 10), end(256 << 10, 496 << 10), end(256 << 10, 240 << 10)];
const ZFS_UBERBLOCKS: &[Place] = &[
    at(128 << 10).every(1 << 10, 128),
    at(384 << 10).every(1 << 10, 128),
    end(256 << 10, 384 << 10).every(1 << 10, 128),
    end(256 << 10, 128 << 10).every(1 << 10, 128),
];
/// `fs_magic` at the four places of UFS's superblock.
const UFS: &[Place] = &[at(1372), at((8 << 10) + 1372), at((64 << 10) + 1372), at((256 << 10) + 1372)];
/// Copies of the header of LUKS 2.
const LUKS2: &[Place] = &[
    at(0x4000),
    at(0x8000),
    at(0x1_0000),
    at(0x2_0000),
    at(0x4_0000),
    at(0x8_0000),
    at(0x10_0000),
    at(0x20_0000),
    at(0x40_0000),
];
const PROMISE: &[Place] = &[
    last(63),
    last(255),
    last(256),
    last(16),
    last(399),
    last(591),
    last(675),
    last(735),
    last(911),
    last(974),
    last(991),
    last(951),
    last(3087),
];
/// Volume descriptors on optical media, one per sector.
const VOLUME_DESCRIPTORS: &[Place] = &[at(0x8001).every(2048, 64)];

/// File systems, array members, encrypted volumes and partition tables. Those with a short magic come last,
/// because random bytes may match them.
#[rustfmt::skip]
pub const VOLUMES: &[Signature] = &[
    sign("F2FS", &[at(1024), at(5120), at(17408)], &[b"\x10\x20\xF5\xF2"]),
    sign("Btrfs", &[at(0x1_0040), at(0x400_0040)], &[b"_BHRfS_M"]),
    sign("XFS", &[at(0)], &[b"XFSB"]),
    sign("an XFS log", &[at(0).every(512, 512)], &[b"\xFE\xED\xBA\xBE\0\0\0\x01", b"\xFE\xED\xBA\xBE\0\0\0\x02"]),
    sign("ExFS", &[at(0)], &[b"EXFS"]),
    sign("bcachefs", &[at(4120), at((2 << 20) + 24), end(1, (1 << 20) - 24)],
        &[b"\xC6\x85\x73\xF6\x66\xCE\x90\xA9\xD9\x6A\x60\xCF\x80\x3D\xF7\xEF"]),
    sign("bcache", &[at(4120)], &[b"\xC6\x85\x73\xF6\x4E\x1A\x45\xCA\x82\x65\xF5\x7F\x48\xBA\x6D\x81"]),
    sign("ZFS", ZFS_LISTS, &[b"\x01\x00\0\0\0\0\0\0\0\0\0\x01", b"\x01\x01\0\0\0\0\0\0\0\0\0\x01"]),
    sign("ZFS", ZFS_UBERBLOCKS, &[b"\x0C\xB1\xBA\0\0\0\0\0", b"\0\0\0\0\0\xBA\xB1\x0C"]),
    sign("NTFS", &[at(3)], &[b"NTFS    "]),
    sign("exFAT", &[at(3)], &[b"EXFAT   "]),
    sign("ReFS", &[at(0)], &[b"\0\0\0ReFS\0"]),
    sign("BitLocker", &[at(0)], &[b"\xEB\x52\x90-FVE-FS-", b"\xEB\x58\x90-FVE-FS-", b"\xEB\x58\x90MSWIN4.1"]),
    sign("FAT", &[at(54)], &[b"FAT12   ", b"FAT16   ", b"FAT     ", b"MSDOS"]),
    sign("FAT", &[at(82)], &[b"FAT32   ", b"MSWIN"]),
    sign("UDF", VOLUME_DESCRIPTORS, &[b"BEA01", b"BOOT2", b"CDW02", b"NSR02", b"NSR03", b"TEA01"]),
    sign("ISO 9660", VOLUME_DESCRIPTORS, &[b"CD001"]),
    sign("High Sierra", &[at(32777)], &[b"CDROM"]),
    sign("SquashFS", &[at(0)], &[b"hsqs", b"sqsh"]),
    sign("EROFS", &[at(1024)], &[b"\xE2\xE1\xF5\xE0"]),
    sign("cramfs", &[at(0), at(512)], &[b"\x45\x3D\xCD\x28", b"\x28\xCD\x3D\x45"]),
    sign("romfs", &[at(0)], &[b"-rom1fs-"]),
    sign("UBI", &[at(0)], &[b"UBI#"]),
    sign("UBIFS", &[at(0)], &[b"\x31\x18\x10\x06"]),
    sign("ReiserFS", &[at(8244), at(8212), at(65588)], &[b"ReIsErFs", b"ReIsEr2Fs", b"ReIsEr3Fs"]),
    sign("Reiser4", &[at(65536)], &[b"ReIsEr4"]),
    sign("JFS", &[at(32768)], &[b"JFS1"]),
    sign("APFS", &[at(32)], &[b"NXSB"]),
    sign("HPFS", &[at(8192)], &[b"\x49\xE8\x95\xF9"]),
    sign("UFS", UFS, &[
        b"\x54\x19\x01\0", b"\0\x01\x19\x54", b"\x19\x01\x54\x19", b"\x19\x54\x01\x19",
        b"\x12\x56\x19\0", b"\0\x19\x56\x12", b"\x14\x50\x09\0", b"\0\x09\x50\x14",
        b"\x95\x21\x61\0", b"\0\x61\x21\x95", b"\x94\x19\x23\x05", b"\x05\x23\x19\x94",
    ]),
    sign("BeFS", &[at(32), at(544)], &[b"BFS1", b"1SFB"]),
    sign("BFS", &[at(0)], &[b"\xCE\xFA\xAD\x1B"]),
    sign("System V", &[at(1016), at(10232), at(16376), at(19448)], &[b"\x20\x7E\x18\xFD", b"\xFD\x18\x7E\x20"]),
    sign("Xenix", &[at(2048)], &[b"\x2B\x55\x44", b"\x44\x55\x2B"]),
    sign("VxFS", &[at(1024)], &[b"\xF5\xFC\x01\xA5"]),
    sign("VxFS", &[at(8192)], &[b"\xA5\x01\xFC\xF5"]),
    sign("NetWare", &[at(4096)], &[b"SPB5"]),
    sign("GFS", &[at(65536)], &[b"\x01\x16\x19\x70"]),
    sign("OCFS", &[at(8192)], &[b"OracleCFS"]),
    sign("OCFS2", &[at(1024), at(2048), at(4096), at(8192)], &[b"OCFSV2"]),
    sign("Oracle ASM", &[at(32)], &[b"ORCLDISK"]),
    sign("VMFS", &[at(2 << 20)], &[b"\x5E\xF1\xAB\x2F"]),
    sign("VMFS", &[at(1 << 20)], &[b"\x0D\xD0\x01\xC0"]),
    sign("zonefs", &[at(0)], &[b"SFOZ"]),
    sign("ScoutFS", &[at(65540)], &[b"\x8B\x42\x3C\x10"]),
    sign("mpool", &[at(0)], &[b"mpoolDev"]),
    sign("Ceph BlueStore", &[at(0)], &[b"bluestore block device"]),
    sign("LUKS", &[at(0)], &[b"LUKS\xBA\xBE"]),
    sign("LUKS", LUKS2, &[b"SKUL\xBA\xBE"]),
    sign("LVM", &[at(24), at(536), at(1048), at(1560)], &[b"LVM2 001"]),
    sign("an LVM snapshot", &[at(0)], &[b"SnAp"]),
    sign("dm-verity", &[at(0)], &[b"verity\0\0"]),
    sign("dm-integrity", &[at(0)], &[b"integrt\0"]),
    sign("VDO", &[at(0)], &[b"dmvdo001"]),
    sign("Stratis", &[at(516), at(4612)], &[b"!Stra0tis\x86\xFF\x02^\x41rh"]),
    sign("swap", SWAP, &[b"SWAPSPACE2", b"SWAP-SPACE"]),
    sign("hibernation", SWAP, &[b"S1SUSPEND", b"S2SUSPEND", b"ULSUSPEND", b"LINHIB0001"]),
    sign("hibernation", &[at(0)], &[b"\xED\xC3\x02\xE9\x98\x56\xE5\x0C"]),
    sign("md RAID", &[end(64 << 10, 64 << 10), end(4096, 8192), at(0), at(4096)],
        &[b"\xFC\x4E\x2B\xA9", b"\xA9\x2B\x4E\xFC"]),
    sign("DDF RAID", &[last(1), last(257)], &[b"\xDE\x11\xDE\x11", b"\x11\xDE\x11\xDE"]),
    sign("Intel RAID", &[last(2), end(4096, 8192)], &[b"Intel Raid ISM Cfg Sig. "]),
    sign("LSI RAID", &[last(1)], &[b"$XIDE$"]),
    sign("NVIDIA RAID", &[last(2)], &[b"NVIDIA  "]),
    sign("Promise RAID", PROMISE, &[b"Promise Technology, Inc."]),
    sign("Adaptec RAID", &[last(1)], &[b"\x37\xFC\x4D\x1E"]),
    sign("HighPoint RAID", &[at(4640), last(11)],
        &[b"\xF0\x16\x78\x5A", b"\xF3\x16\x78\x5A", b"\xFD\x16\x78\x5A"]),
    sign("Silicon Image RAID", &[end(512, 512 - 0x60)], &[b"\0\0\0\x2F"]),
    sign("DRBD", &[end(1, 4096 - 60)], &[b"\x83\x74\x02\x6B", b"\x83\x74\x02\x6C", b"\x83\x74\x02\x6D"]),
    sign("DRBD", &[at(0)], &[b"$DRBDmgr=q", b"DRBDdlh*"]),
    sign("a GPT", &[at(512), at(1024), at(2048), at(4096)], &[b"EFI PART"]),
    sign("a GPT (its backup at the end)", &[last(1), end(4096, 4096)], &[b"EFI PART"]),
    sign("an SGI disk label", &[at(0)], &[b"\x0B\xE5\xA9\x41"]),
    sign("a BSD disk label", &[at(64), at(128), at(512)], &[b"\x57\x45\x56\x82"]),
    sign("a Solaris disk label", &[at(524)], &[b"\xEE\xDE\x0D\x60"]),
    sign("a UnixWare disk label", &[at(14852)], &[b"\x0D\x60\xE5\xCA"]),
    sign("an Ultrix disk label", &[at(16312)], &[b"\x57\x29\x03\0"]),
    sign("an AIX disk label", &[at(0)], &[b"\xC9\xC2\xD4\xC1"]),
    sign("a DASD label", &[at(512), at(1024), at(2048), at(4096), at(8192)],
        &[b"\xE5\xD6\xD3\xF1", b"\xD3\xD5\xE7\xF1", b"\xC3\xD4\xE2\xF1"]),
    sign("ext2, ext3 or ext4", &[at(1080)], &[b"\x53\xEF"]),
    sign("HFS or HFS+", &[at(1024)], &[b"BD", b"H+", b"HX"]),
    sign("MINIX", &[at(1040)], &[
        b"\x7F\x13", b"\x8F\x13", b"\x13\x7F", b"\x13\x8F", b"\x68\x24", b"\x78\x24", b"\x24\x68", b"\x24\x78",
    ]),
    sign("MINIX", &[at(1048)], &[b"\x5A\x4D", b"\x4D\x5A"]),
    sign("NILFS2", &[at(1030), end(4096, 4096 - 6)], &[b"\x34\x34"]),
    sign("JFFS2", &[at(0)], &[b"\x85\x19", b"\x19\x85"]),
    sign("FileVault", &[at(88)], &[b"CS"]),
    sign("LVM1", &[at(0)], &[b"HM"]),
    sign("JMicron RAID", &[last(1)], &[b"JM"]),
    sign("VIA RAID", &[last(1)], &[b"\x55\xAA"]),
    sign("an Apple partition map", &[at(0)], &[b"ER"]),
    sign("a Sun disk label", &[at(508)], &[b"\xDA\xBE"]),
    sign("an MBR partition table", &[at(510)], &[b"\x55\xAA"]),
];

/// Advice for disk images of other formats, which keep the blocks of a disk in an order of their own.
pub const CONVERT: &str = "convert it with qemu-img convert -O raw";

/// Files that hold a disk, an archive or a program, each with advice for a caller who mistakes it for a
/// volume.
#[rustfmt::skip]
pub const CONTAINERS: &[(Signature, &str)] = &[
    (sign("an Android sparse image", &[at(0)], &[b"\x3A\xFF\x26\xED"]), "flashkit convert makes a raw image of it"),
    (sign("an Android super image", &[at(4096)], &[b"\x67\x44\x6C\x61"]), "flashkit partitions lists its partitions"),
    (sign("an Android boot image", &[at(0)], &[b"ANDROID!", b"VNDRBOOT"]), "it holds a kernel and no volume"),
    (sign("an Android verified boot image", &[at(0)], &[b"AVB0"]), "it holds no volume"),
    (sign("a qcow2 image", &[at(0)], &[b"QFI\xFB"]), "flashkit convert makes a raw image of it"),
    (sign("a VMDK image", &[at(0)], &[b"KDMV", b"COWD"]), CONVERT),
    (sign("a VHDX image", &[at(0)], &[b"vhdxfile"]), CONVERT),
    (sign("a VHD image", &[at(0)], &[b"conectix"]), CONVERT),
    (sign("a VDI image", &[at(64)], &[b"\x7F\x10\xDA\xBE"]), CONVERT),
    (sign("gzip-compressed data", &[at(0)], &[b"\x1F\x8B\x08"]), "decompress it first"),
    (sign("xz-compressed data", &[at(0)], &[b"\xFD7zXZ\0"]), "decompress it first"),
    (sign("zstd-compressed data", &[at(0)], &[b"\x28\xB5\x2F\xFD"]), "decompress it first"),
    (sign("bzip2-compressed data", &[at(0)], &[b"BZh1", b"BZh2", b"BZh3", b"BZh4", b"BZh5", b"BZh6", b"BZh7", b"BZh8", b"BZh9"]),
        "decompress it first"),
    (sign("lz4-compressed data", &[at(0)], &[b"\x04\x22\x4D\x18"]), "decompress it first"),
    (sign("a zip archive", &[at(0)], &[b"PK\x03\x04"]), "unpack it first"),
    (sign("a 7z archive", &[at(0)], &[b"7z\xBC\xAF\x27\x1C"]), "unpack it first"),
    (sign("a cpio archive", &[at(0)], &[b"070701", b"070702", b"070707"]), "unpack it first"),
    (sign("a tar archive", &[at(257)], &[b"ustar"]), "flashkit mkfs --from makes a volume of it"),
    (sign("an ELF program", &[at(0)], &[b"\x7FELF"]), "it holds no volume"),
];
