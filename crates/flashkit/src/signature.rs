//! What is on a device before it is overwritten: known file systems and partition tables, by their magic
//! bytes. Offsets and magics are those of util-linux's libblkid.

use std::io;

use block::Device;

/// Name, offset in bytes, magic bytes.
const SIGNATURES: &[(&str, u64, &[u8])] = &[
    ("F2FS", 1024, &[0x10, 0x20, 0xF5, 0xF2]),
    ("F2FS", 5120, &[0x10, 0x20, 0xF5, 0xF2]),
    ("ext2, ext3 or ext4", 1080, &[0x53, 0xEF]),
    ("XFS", 0, b"XFSB"),
    ("Btrfs", 0x1_0040, b"_BHRfS_M"),
    ("NILFS2", 1030, &[0x34, 0x34]),
    ("NTFS", 3, b"NTFS    "),
    ("exFAT", 3, b"EXFAT   "),
    ("FAT", 54, b"FAT1"),
    ("FAT", 82, b"FAT32"),
    ("ISO 9660", 32769, b"CD001"),
    ("SquashFS", 0, b"hsqs"),
    ("EROFS", 1024, &[0xE2, 0xE1, 0xF5, 0xE0]),
    ("UBI", 0, b"UBI#"),
    ("JFFS2", 0, &[0x85, 0x19]),
    ("LUKS", 0, b"LUKS\xBA\xBE"),
    ("LVM2", 536, b"LVM2 001"),
    ("swap", 4086, b"SWAPSPACE2"),
    ("GPT partition table", 512, b"EFI PART"),
    ("MBR partition table", 510, &[0x55, 0xAA]),
];

/// The file system or partition table that a device seems to carry.
pub fn find(device: &dyn Device) -> io::Result<Option<&'static str>> {
    let size = device.geometry().size_bytes;
    for (name, offset, magic) in SIGNATURES {
        // Whole sectors: real devices read nothing smaller.
        let sector = offset / 4096 * 4096;
        if sector + 4096 > size {
            continue;
        }
        let mut bytes = [0; 4096];
        device.read(sector, &mut bytes)?;
        if bytes[(offset - sector) as usize..].starts_with(magic) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use block::MemoryDevice;

    use super::*;

    #[test]
    fn every_signature_is_found_and_zeroes_are_none() {
        let blank = MemoryDevice::new(1 << 20);
        assert_eq!(find(&blank).unwrap(), None);
        for (name, offset, magic) in SIGNATURES {
            let device = MemoryDevice::new(1 << 20);
            device.write(*offset, magic).unwrap();
            assert_eq!(find(&device).unwrap(), Some(*name));
        }
    }

    #[test]
    fn a_device_that_is_too_short_has_none() {
        assert_eq!(find(&MemoryDevice::new(100)).unwrap(), None);
    }
}
