//! The mark of FAT and exFAT that a volume is in use.
//!
//! Linux sets the mark at the mount and clears it at the unmount, unless it was set before the mount: then only a
//! checker clears it. After a power cut the mark therefore remains on every volume, damaged or not, and checkers of FAT
//! report it as a fault. Without the mark they report the damage alone.

use std::{
    fs::OpenOptions,
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
};

use serde::{Deserialize, Serialize};

/// Length of the boot sector in bytes.
const BOOT_BYTES: usize = 512;
/// FAT: offset of the number of sectors of a table in 16 bits, which is 0 on FAT32, and the offsets of the state
/// (Microsoft, "FAT: General Overview of On-Disk Format", `BPB_FATSz16` and `BS_Reserved1`).
const FAT_SECTORS_AT: usize = 22;
const FAT16_STATE_AT: usize = 37;
const FAT32_STATE_AT: usize = 65;
/// Bit of the state: the volume is in use.
const FAT_DIRTY: u8 = 1;
/// exFAT: offset of `VolumeFlags`, and its bit `VolumeDirty` (exFAT specification, 3.1.13). The checksum of the boot
/// region leaves these bytes out.
const EXFAT_FLAGS_AT: usize = 106;
const EXFAT_DIRTY: u8 = 2;

/// Presence of the mark.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DirtyMark {
    /// The volume has no mark, or its file system knows none.
    #[default]
    Absent,
    /// The volume is marked as in use.
    Present,
}

impl DirtyMark {
    /// Returns true if file systems of this type have such a mark.
    pub(super) fn exists_on(kind: &str) -> bool {
        matches!(kind, "vfat" | "msdos" | "exfat")
    }

    pub(super) fn is_absent(&self) -> bool {
        *self == DirtyMark::Absent
    }

    /// Clears the mark in an image, and returns its former state.
    ///
    /// # Errors
    /// The image cannot be read or written.
    pub(super) fn clear(kind: &str, image: &Path) -> io::Result<DirtyMark> {
        if !DirtyMark::exists_on(kind) {
            return Ok(DirtyMark::Absent);
        }
        let mut file = OpenOptions::new().read(true).write(true).open(image)?;
        let mut boot = [0; BOOT_BYTES];
        file.read_exact(&mut boot)?;
        let is_fat32 = boot[FAT_SECTORS_AT..FAT_SECTORS_AT + 2] == [0, 0];
        let (at, bit) = match kind {
            "exfat" => (EXFAT_FLAGS_AT, EXFAT_DIRTY),
            _ if is_fat32 => (FAT32_STATE_AT, FAT_DIRTY),
            _ => (FAT16_STATE_AT, FAT_DIRTY),
        };
        if boot[at] & bit == 0 {
            return Ok(DirtyMark::Absent);
        }
        file.seek(SeekFrom::Start(at as u64))?;
        file.write_all(&[boot[at] & !bit])?;
        Ok(DirtyMark::Present)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check::Check, rivals::FileSystem};

    fn change(image: &Path, at: usize, to: impl Fn(u8) -> u8) {
        let mut bytes = std::fs::read(image).unwrap();
        bytes[at] = to(bytes[at]);
        std::fs::write(image, bytes).unwrap();
    }

    #[test]
    fn a_mark_alone_is_no_fault_and_does_not_hide_damage() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let (fat32, fat16) = (FileSystem::new("vfat"), FileSystem::new("vfat").made(&["-F", "16"]));
        for (file_system, state_at) in [(fat32, FAT32_STATE_AT), (fat16, FAT16_STATE_AT)] {
            file_system.format(&image, 64 << 20).unwrap();
            assert_eq!(DirtyMark::clear("vfat", &image).unwrap(), DirtyMark::Absent);
            change(&image, state_at, |state| state | FAT_DIRTY);
            assert!(Check::of(&file_system, &image).has_faults(), "the checker reports the mark");
            assert_eq!(DirtyMark::clear("vfat", &image).unwrap(), DirtyMark::Present);
            assert!(matches!(Check::of(&file_system, &image), Check::Clean { .. }));

            change(&image, state_at, |state| state | FAT_DIRTY);
            // The first table begins after the reserved sectors; its second copy no longer agrees.
            let bytes = std::fs::read(&image).unwrap();
            let reserved = usize::from(u16::from_le_bytes([bytes[14], bytes[15]]));
            change(&image, reserved * 512 + 16, |entry| entry ^ 0x55);
            assert_eq!(DirtyMark::clear("vfat", &image).unwrap(), DirtyMark::Present);
            assert!(Check::of(&file_system, &image).has_faults(), "damage remains a fault");
        }
    }

    #[test]
    fn the_mark_of_exfat_is_cleared_and_other_file_systems_stay_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        FileSystem::new("exfat").format(&image, 64 << 20).unwrap();
        let clean = std::fs::read(&image).unwrap();
        change(&image, EXFAT_FLAGS_AT, |flags| flags | EXFAT_DIRTY);
        let marked = std::fs::read(&image).unwrap();
        assert_eq!(DirtyMark::clear("ext4", &image).unwrap(), DirtyMark::Absent);
        assert!(std::fs::read(&image).unwrap() == marked);
        assert_eq!(DirtyMark::clear("exfat", &image).unwrap(), DirtyMark::Present);
        assert!(std::fs::read(&image).unwrap() == clean);
    }
}
