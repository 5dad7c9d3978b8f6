//! Partitions of a disk, to tell where on it a volume lies.
//!
//! *Invariant*: any table is read in bounded time and memory.

use std::{fmt, io};

use block::Device;

/// Offset of F2FS's superblock in its block, and its magic (Linux, include/linux/f2fs_fs.h).
const F2FS: (u64, [u8; 4]) = (1024, [0x10, 0x20, 0xF5, 0xF2]);
/// Maximum number of GPT partitions examined. A table usually has 128.
const ENTRIES_MAX: u64 = 1024;
const ENTRY_BYTES: std::ops::RangeInclusive<u64> = 128..=4096;

/// A disk with partitions.
pub struct Disk {
    table: &'static str,
    /// Number and first byte of each F2FS partition.
    volumes: Vec<(usize, u64)>,
}

impl Disk {
    /// Reads a GPT with sectors of 512 or 4096 bytes.
    pub fn read_gpt(device: &dyn Device) -> io::Result<Option<Disk>> {
        for sector in [512, 4096] {
            let Some(header) = bytes(device, sector, 92)? else { continue };
            if !header.starts_with(b"EFI PART") {
                continue;
            }
            // UEFI specification 2.10, 5.3.2 and 5.3.3.
            let first = number(&header[72..80]).checked_mul(sector);
            let (count, size) = (number(&header[80..84]), number(&header[84..88]));
            let mut starts = Vec::new();
            for n in 0..count.min(ENTRIES_MAX) {
                let at = first.and_then(|first| first.checked_add(n * size));
                let Some(at) = at.filter(|_| ENTRY_BYTES.contains(&size)) else { break };
                let Some(entry) = bytes(device, at, 128)? else { break };
                if entry[..16] != [0; 16] {
                    starts.push((n as usize + 1, number(&entry[32..40]).checked_mul(sector)));
                }
            }
            return Disk::with(device, "a GPT disk", starts).map(Some);
        }
        Ok(None)
    }

    /// Reads an MBR with partitions. Any other boot sector has no plausible partitions.
    pub fn read_mbr(device: &dyn Device) -> io::Result<Option<Disk>> {
        let Some(sector) = bytes(device, 0, 512)? else { return Ok(None) };
        let mut starts = Vec::new();
        for (n, entry) in sector[446..510].chunks_exact(16).enumerate() {
            let (start, sectors) = (number(&entry[8..12]), number(&entry[12..16]));
            if entry[4] == 0 {
                continue;
            }
            if entry[0] & 0x7F != 0 || start == 0 || sectors == 0 {
                return Ok(None);
            }
            starts.push((n + 1, Some(start * 512)));
        }
        match starts.is_empty() {
            true => Ok(None),
            false => Disk::with(device, "an MBR disk", starts).map(Some),
        }
    }

    fn with(device: &dyn Device, table: &'static str, starts: Vec<(usize, Option<u64>)>) -> io::Result<Disk> {
        let mut volumes = Vec::new();
        for (number, start) in starts {
            let Some(start) = start else { continue };
            let Some(at) = start.checked_add(F2FS.0) else { continue };
            if bytes(device, at, 4)?.is_some_and(|magic| magic == F2FS.1) {
                volumes.push((number, start));
            }
        }
        Ok(Disk { table, volumes })
    }
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.table)?;
        for (number, start) in &self.volumes {
            write!(f, "; partition {number} at byte {start} is F2FS")?;
        }
        match self.volumes.is_empty() {
            true => write!(f, " without a partition that is F2FS"),
            false => write!(f, ": losetup -P -f --show makes devices of its partitions"),
        }
    }
}

/// Reads bytes of a device. Returns None if the device ends before.
fn bytes(device: &dyn Device, offset: u64, length: usize) -> io::Result<Option<Vec<u8>>> {
    if !device.geometry().contains(offset, length as u64) {
        return Ok(None);
    }
    let mut bytes = vec![0; length];
    device.read(offset, &mut bytes)?;
    Ok(Some(bytes))
}

/// Decodes a little-endian number of up to 8 bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use block::MemoryDevice;

    use super::*;

    #[test]
    fn partitions_with_a_volume_are_named() {
        for sector in [512u64, 4096] {
            let device = MemoryDevice::new(80 << 20);
            device.write(sector, b"EFI PART").unwrap();
            device.write(sector + 72, &2u64.to_le_bytes()).unwrap();
            device.write(sector + 80, &[128, 0, 0, 0, 128, 0, 0, 0]).unwrap();
            for (n, start) in [(0u64, 1u64 << 20), (1, 68_157_440)] {
                let at = 2 * sector + n * 128;
                device.write(at, &[0xAF; 16]).unwrap();
                device.write(at + 32, &(start / sector).to_le_bytes()).unwrap();
            }
            device.write(68_157_440 + 1024, &F2FS.1).unwrap();
            let disk = Disk::read_gpt(&device).unwrap().unwrap().to_string();
            assert!(disk.starts_with("a GPT disk; partition 2 at byte 68157440 is F2FS: losetup"), "{disk}");
        }
    }

    #[test]
    fn an_mbr_is_distinguished_from_other_boot_sectors() {
        let device = MemoryDevice::new(8 << 20);
        device.write(510, &[0x55, 0xAA]).unwrap();
        assert!(Disk::read_mbr(&device).unwrap().is_none());
        device.write(446, &[0x80, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0]).unwrap();
        device.write((1 << 20) + 1024, &F2FS.1).unwrap();
        let disk = Disk::read_mbr(&device).unwrap().unwrap().to_string();
        assert!(disk.contains("partition 1 at byte 1048576 is F2FS"), "{disk}");
        device.write(446, b"text of a boot loader").unwrap();
        assert!(Disk::read_mbr(&device).unwrap().is_none());
    }

    #[test]
    fn a_table_of_any_content_is_read() {
        let device = MemoryDevice::new(1 << 20);
        device.write(512, &[0xFF; 4096]).unwrap();
        device.write(512, b"EFI PART").unwrap();
        let disk = Disk::read_gpt(&device).unwrap().unwrap().to_string();
        assert_eq!(disk, "a GPT disk without a partition that is F2FS");
    }
}
