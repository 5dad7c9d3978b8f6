//! Master Boot Record with a chain of logical partitions, numbered as Linux does (block/partitions/msdos.c).

use std::{collections::HashSet, io};

use block::Device;

use super::{Partition, Table, TableKind};
use crate::{
    bytes::{invalid, little, read as read_bytes},
    extents::Extent,
};

/// Size of a boot sector in bytes, also on disks with larger sectors.
const BOOT_BYTES: usize = 512;
/// Types of extended partitions: those of DOS, Windows 95 and Linux.
pub(super) const EXTENDED: [u8; 3] = [0x05, 0x0F, 0x85];
/// Type of the partition that stands for a GPT.
const PROTECTIVE: u8 = 0xEE;
/// Number of the first logical partition.
const FIRST_LOGICAL: u32 = 5;
/// Maximum number of boot records in a chain, as in Linux.
const CHAIN_MAX: usize = 100;

/// Returns the name of a type of partitions.
pub(super) fn type_name(kind: u8) -> String {
    format!("{kind:#04x}")
}

/// An entry of a boot record, in sectors.
#[derive(Debug, Clone, Copy)]
struct Entry {
    status: u8,
    kind: u8,
    start: u64,
    sectors: u64,
}

impl Entry {
    /// Decodes the four entries of a boot record, if it has the signature.
    fn all_in(sector: &[u8]) -> Option<[Entry; 4]> {
        if sector[510..512] != [0x55, 0xAA] {
            return None;
        }
        let entry = |n: usize| {
            let bytes = &sector[446 + 16 * n..][..16];
            let (start, sectors) = (little(&bytes[8..12]), little(&bytes[12..16]));
            Entry { status: bytes[0], kind: bytes[4], start, sectors }
        };
        Some([entry(0), entry(1), entry(2), entry(3)])
    }

    fn is_used(&self) -> bool {
        self.kind != 0 && self.sectors != 0
    }

    fn is_extended(&self) -> bool {
        EXTENDED.contains(&self.kind)
    }
}

/// The first sector of a disk, if it is an MBR with partitions.
pub struct Sector {
    entries: [Entry; 4],
    /// Number of the disk, a part of each PARTUUID.
    signature: u32,
    /// Unit of addresses in bytes.
    sector_bytes: u64,
}

impl Sector {
    /// Reads an MBR. The boot sector of a file system, which has the same signature, has no plausible partitions.
    pub fn read(device: &dyn Device) -> io::Result<Option<Sector>> {
        let Some(bytes) = read_bytes(device, 0, BOOT_BYTES)? else { return Ok(None) };
        let Some(entries) = Entry::all_in(&bytes) else { return Ok(None) };
        let is_plausible = |entry: &Entry| {
            entry.kind == 0 || (entry.status & 0x7F == 0 && entry.start != 0 && entry.sectors != 0)
        };
        if !entries.iter().all(is_plausible) || !entries.iter().any(Entry::is_used) {
            return Ok(None);
        }
        let sector_bytes = device.geometry().sector_bytes.max(BOOT_BYTES as u32).into();
        Ok(Some(Sector { entries, signature: little(&bytes[440..444]) as u32, sector_bytes }))
    }

    /// Returns true if the MBR stands for a GPT.
    pub fn is_protective(&self) -> bool {
        self.entries.iter().any(|entry| entry.kind == PROTECTIVE)
    }

    /// Returns the partitions, with the logical ones.
    pub fn table(&self, device: &dyn Device) -> io::Result<Table> {
        let mut partitions = Vec::new();
        for (number, entry) in (1..).zip(&self.entries).filter(|(_, entry)| entry.is_used()) {
            partitions.push(self.partition(number, entry, 0));
        }
        if let Some(extended) = self.entries.iter().find(|entry| entry.is_used() && entry.is_extended()) {
            self.read_chain(device, extended, &mut partitions)?;
        }
        Ok(Table { kind: TableKind::Mbr, partitions, conflict: None })
    }

    fn partition(&self, number: u32, entry: &Entry, base: u64) -> Partition {
        let start = (base + entry.start) * self.sector_bytes;
        Partition {
            number,
            name: None,
            id: Some(format!("{:08x}-{number:02x}", self.signature)),
            type_id: type_name(entry.kind),
            extents: vec![Extent {
                start_bytes: Some(start),
                length_bytes: entry.sectors * self.sector_bytes,
            }],
        }
    }

    /// Follows the boot records in the extended partition. Each has one logical partition and the next record.
    fn read_chain(
        &self,
        device: &dyn Device,
        extended: &Entry,
        partitions: &mut Vec<Partition>,
    ) -> io::Result<()> {
        let (mut at, mut number, mut seen) = (extended.start, FIRST_LOGICAL, HashSet::new());
        loop {
            let byte = at * self.sector_bytes;
            if !seen.insert(at) || seen.len() > CHAIN_MAX {
                return Err(invalid(format!(
                    "MBR: the chain of logical partitions at byte {byte} is a cycle or has more than {CHAIN_MAX} records"
                )));
            }
            let Some(bytes) = read_bytes(device, byte, BOOT_BYTES)? else {
                return Err(invalid(format!(
                    "MBR: the boot record of logical partition {number} at byte {byte} lies behind the end of the image"
                )));
            };
            // An empty extended partition need not have a record.
            let Some(entries) = Entry::all_in(&bytes) else { return Ok(()) };
            for entry in entries[..2].iter().filter(|entry| entry.is_used() && !entry.is_extended()) {
                partitions.push(self.partition(number, entry, at));
                number += 1;
            }
            let next = entries.iter().find(|entry| entry.is_used() && entry.is_extended());
            let Some(next) = next else { return Ok(()) };
            at = extended.start + next.start;
        }
    }
}

#[cfg(test)]
mod tests {
    use block::MemoryDevice;

    use super::*;

    fn put(device: &MemoryDevice, sector: u64, entries: &[(u8, u32, u32)]) {
        let mut bytes = vec![0; 512];
        bytes[440..444].copy_from_slice(&[4, 3, 2, 1]);
        bytes[510..].copy_from_slice(&[0x55, 0xAA]);
        for (n, (kind, start, sectors)) in entries.iter().enumerate() {
            bytes[446 + 16 * n + 4] = *kind;
            bytes[446 + 16 * n + 8..][..4].copy_from_slice(&start.to_le_bytes());
            bytes[446 + 16 * n + 12..][..4].copy_from_slice(&sectors.to_le_bytes());
        }
        device.write(sector * 512, &bytes).unwrap();
    }

    #[test]
    fn logical_partitions_follow_from_five_on() {
        let device = MemoryDevice::new(8 << 20);
        put(&device, 0, &[(0x83, 2048, 100), (0, 0, 0), (0x0F, 4096, 8192)]);
        put(&device, 4096, &[(0x83, 2, 10), (0x05, 1000, 20)]);
        // A record without a partition takes no number.
        put(&device, 5096, &[(0, 0, 0), (0x05, 2000, 20)]);
        put(&device, 6096, &[(0x0C, 3, 11)]);
        let table = Table::read(&device).unwrap().unwrap();
        let found = table
            .partitions
            .iter()
            .map(|partition| (partition.number, partition.start_bytes().unwrap() / 512));
        assert_eq!(found.collect::<Vec<_>>(), [(1, 2048), (3, 4096), (5, 4098), (6, 6099)]);
        assert_eq!(table.find("01020304-06").unwrap().type_id, "0x0c");
        let error = table.find("2").unwrap_err().to_string();
        assert_eq!(error, "no partition \"2\"; the MBR table has 1, 3, 5, 6");
    }

    #[test]
    fn a_cycle_of_logical_partitions_is_an_error() {
        let device = MemoryDevice::new(8 << 20);
        put(&device, 0, &[(0x05, 4096, 8192)]);
        put(&device, 4096, &[(0x83, 2, 10), (0x05, 1000, 20)]);
        put(&device, 5096, &[(0x83, 2, 10), (0x05, 1000, 20)]);
        let error = Table::read(&device).unwrap_err().to_string();
        assert!(error.contains("at byte 2609152 is a cycle"), "{error}");
    }

    #[test]
    fn other_boot_sectors_have_no_partitions() {
        let device = MemoryDevice::new(8 << 20);
        device.write(510, &[0x55, 0xAA]).unwrap();
        assert!(Table::read(&device).unwrap().is_none());
        put(&device, 0, &[(0x83, 2048, 100)]);
        assert!(Table::read(&device).unwrap().is_some());
        device.write(446, b"text of a boot loader").unwrap();
        assert!(Table::read(&device).unwrap().is_none());
    }
}
