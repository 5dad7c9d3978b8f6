//! GUID Partition Table (UEFI specification 2.10, 5.3).

use std::io;

use block::Device;

use super::{Partition, Table, TableKind};
use crate::{
    bytes::{invalid, little, read as read_bytes},
    extents::Extent,
};

/// Length of a header in bytes, without its reserved rest.
const HEADER_BYTES: usize = 92;
/// Sizes of an entry in bytes: 128 times a power of two.
const ENTRY_BYTES: std::ops::RangeInclusive<u64> = 128..=4096;
/// Maximum size of all entries in bytes. The usual table has 16 KiB.
const ENTRIES_BYTES_MAX: u64 = 4 << 20;

/// Reads a GPT with sectors of 512 or 4096 bytes: the table at the start or, if that is damaged, its backup at the end.
pub fn read(device: &dyn Device) -> io::Result<Option<Table>> {
    for sector_bytes in [512, 4096] {
        let first = match read_at(device, 1, sector_bytes) {
            Ok(Some(partitions)) => return Ok(Some(table(sector_bytes, partitions))),
            found => found,
        };
        let last = (device.geometry().size_bytes / sector_bytes).saturating_sub(1);
        match (first, read_at(device, last, sector_bytes)) {
            (_, Ok(Some(partitions))) => return Ok(Some(table(sector_bytes, partitions))),
            (Err(error), _) | (_, Err(error)) => return Err(error),
            _ => {}
        }
    }
    Ok(None)
}

fn table(sector_bytes: u64, partitions: Vec<Partition>) -> Table {
    Table { kind: TableKind::Gpt { sector_bytes: sector_bytes as u32 }, partitions, conflict: None }
}

/// Reads the table whose header lies in a sector. Returns None if there is no header.
fn read_at(device: &dyn Device, sector: u64, sector_bytes: u64) -> io::Result<Option<Vec<Partition>>> {
    let at = sector * sector_bytes;
    let Some(bytes) = read_bytes(device, at, sector_bytes as usize)? else { return Ok(None) };
    if !bytes.starts_with(b"EFI PART") {
        return Ok(None);
    }
    let damaged = |what: String| invalid(format!("GPT header at byte {at}: {what}; gdisk repairs it"));
    let length = little(&bytes[12..16]) as usize;
    if !(HEADER_BYTES..=bytes.len()).contains(&length) {
        return Err(damaged(format!("a length of {length} bytes")));
    }
    let mut header = bytes[..length].to_vec();
    header[16..20].fill(0);
    if u64::from(crc32fast::hash(&header)) != little(&bytes[16..20]) {
        return Err(damaged("wrong checksum".into()));
    }
    if little(&bytes[24..32]) != sector {
        return Err(damaged(format!("it belongs to sector {}", little(&bytes[24..32]))));
    }
    let (count, size) = (little(&bytes[80..84]), little(&bytes[84..88]));
    let length = count * size;
    if !ENTRY_BYTES.contains(&size) || length > ENTRIES_BYTES_MAX {
        return Err(damaged(format!("{count} entries of {size} bytes")));
    }
    let start = little(&bytes[72..80]).checked_mul(sector_bytes);
    let entries = start.map(|start| read_bytes(device, start, length as usize)).transpose()?.flatten();
    let entries = entries.ok_or_else(|| damaged("its entries pass the end of the image".into()))?;
    if u64::from(crc32fast::hash(&entries)) != little(&bytes[88..92]) {
        return Err(damaged("the checksum of its entries is wrong".into()));
    }
    let numbered = (1u32..).zip(entries.chunks_exact(size as usize));
    Ok(Some(numbered.filter_map(|(number, entry)| partition(number, entry, sector_bytes)).collect()))
}

/// Formats a GUID. Its first three fields are little-endian.
fn guid(bytes: &[u8]) -> String {
    let (first, second, third) = (little(&bytes[..4]), little(&bytes[4..6]), little(&bytes[6..8]));
    let rest: String = bytes[8..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{first:08x}-{second:04x}-{third:04x}-{}-{}", &rest[..4], &rest[4..])
}

/// Decodes an entry. Returns None for an unused one.
fn partition(number: u32, entry: &[u8], sector_bytes: u64) -> Option<Partition> {
    if entry[..16] == [0; 16] {
        return None;
    }
    let (first, last) = (little(&entry[32..40]), little(&entry[40..48]));
    // An entry that overflows passes the end of each device.
    let start = first.saturating_mul(sector_bytes);
    let length = (last.saturating_add(1)).saturating_sub(first).saturating_mul(sector_bytes);
    let units: Vec<u16> = entry[56..128].chunks_exact(2).map(|unit| little(unit) as u16).collect();
    let name = String::from_utf16_lossy(units.split(|unit| *unit == 0).next().unwrap_or_default());
    Some(Partition {
        number,
        name: Some(name),
        id: Some(guid(&entry[16..32])),
        type_id: guid(&entry[..16]),
        extents: vec![Extent { start_bytes: Some(start), length_bytes: length }],
    })
}

#[cfg(test)]
mod tests {
    use block::MemoryDevice;

    use super::*;

    const DISK: u64 = 4 << 20;

    /// Writes a table with one partition of two sectors from sector 100 on, named `data`.
    fn make(device: &MemoryDevice, sector_bytes: u64, header_sector: u64, entries_sector: u64) {
        let mut entries = vec![0; 128 * 128];
        entries[128..144].fill(0xAF);
        entries[144..160].copy_from_slice(&[3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15]);
        entries[160..168].copy_from_slice(&100u64.to_le_bytes());
        entries[168..176].copy_from_slice(&101u64.to_le_bytes());
        for (n, unit) in "data".encode_utf16().enumerate() {
            entries[184 + 2 * n..][..2].copy_from_slice(&unit.to_le_bytes());
        }
        let mut header = vec![0; HEADER_BYTES];
        header[..8].copy_from_slice(b"EFI PART");
        header[12] = HEADER_BYTES as u8;
        header[24..32].copy_from_slice(&header_sector.to_le_bytes());
        header[72..80].copy_from_slice(&entries_sector.to_le_bytes());
        header[80..88].copy_from_slice(&[128, 0, 0, 0, 128, 0, 0, 0]);
        header[88..92].copy_from_slice(&crc32fast::hash(&entries).to_le_bytes());
        let sum = crc32fast::hash(&header);
        header[16..20].copy_from_slice(&sum.to_le_bytes());
        device.write(header_sector * sector_bytes, &header).unwrap();
        device.write(entries_sector * sector_bytes, &entries).unwrap();
    }

    #[test]
    fn a_table_is_read_with_either_sector_and_from_its_backup() {
        for sector in [512u64, 4096] {
            let last = DISK / sector - 1;
            for (header, entries) in [(1, 2), (last, last - 32)] {
                let device = MemoryDevice::new(DISK);
                make(&device, sector, header, entries);
                let table = read(&device).unwrap().unwrap();
                assert_eq!(table.kind, TableKind::Gpt { sector_bytes: sector as u32 });
                let [found] = &table.partitions[..] else { panic!("{table:?}") };
                assert_eq!((found.number, found.name.as_deref()), (2, Some("data")));
                assert_eq!(found.id.as_deref(), Some("00010203-0405-0607-0809-0a0b0c0d0e0f"));
                assert_eq!((found.start_bytes(), found.size_bytes()), (Some(100 * sector), 2 * sector));
            }
        }
    }

    #[test]
    fn damage_is_located_and_the_backup_takes_over() {
        let device = MemoryDevice::new(DISK);
        make(&device, 512, 1, 2);
        // The name of the partition.
        device.write(1024 + 184, b"X").unwrap();
        let error = read(&device).unwrap_err().to_string();
        assert!(error.starts_with("GPT header at byte 512: the checksum of its entries is wrong"), "{error}");
        device.write(512 + 60, b"X").unwrap();
        let error = read(&device).unwrap_err().to_string();
        assert!(error.starts_with("GPT header at byte 512: wrong checksum"), "{error}");
        let last = DISK / 512 - 1;
        make(&device, 512, last, last - 32);
        assert_eq!(read(&device).unwrap().unwrap().partitions.len(), 1);
    }

    #[test]
    fn huge_tables_are_refused_before_they_are_read() {
        for (count, size) in [(u32::MAX, 128u32), (128, u32::MAX), (1, 1), (0x10_0000, 4096)] {
            let device = MemoryDevice::new(DISK);
            make(&device, 512, 1, 2);
            let mut header = vec![0; HEADER_BYTES];
            device.read(512, &mut header).unwrap();
            header[80..84].copy_from_slice(&count.to_le_bytes());
            header[84..88].copy_from_slice(&size.to_le_bytes());
            header[16..20].fill(0);
            let sum = crc32fast::hash(&header);
            header[16..20].copy_from_slice(&sum.to_le_bytes());
            device.write(512, &header).unwrap();
            let error = read(&device).unwrap_err().to_string();
            assert!(error.contains(&format!("{count} entries of {size} bytes")), "{error}");
        }
    }
}
