//! Logical partitions of Android's super partition (AOSP, system/core/fs_mgr/liblp/include/liblp/metadata_format.h).

use std::{io, ops::Range};

use block::Device;
use sha2::{Digest, Sha256};

use super::{Partition, Table, TableKind};
use crate::{
    bytes::{invalid, little, read as read_bytes},
    extents::Extent,
};

/// Places of the geometry and its copy.
const GEOMETRY_AT: [u64; 2] = [4096, 8192];
/// First byte of the metadata.
const METADATA_AT: u64 = 4096 + 2 * 4096;
const GEOMETRY_MAGIC: &[u8] = b"gDla";
const GEOMETRY_BYTES: u64 = 52;
const HEADER_MAGIC: &[u8] = b"0PLA";
/// Lengths of a header, from version 10.0 to those with flags.
const HEADER_BYTES: std::ops::RangeInclusive<u64> = 128..=4096;
const MAJOR_VERSION: u64 = 10;
/// Unit of extents in bytes, whatever the block of the disk.
const SECTOR_BYTES: u64 = 512;
/// Maximum size of one copy of the metadata in bytes. The usual one has 64 KiB.
const METADATA_BYTES_MAX: u64 = 4 << 20;
const SLOTS_MAX: u64 = 16;
/// Types of extents.
const LINEAR: u64 = 0;
const ZERO: u64 = 1;

/// Reads the table of logical partitions of the first slot whose metadata, or their backup, is whole. The other slots
/// usually differ after an update of Android, and are not compared. Returns `None` if there is no super partition.
pub fn read(device: &dyn Device) -> io::Result<Option<Table>> {
    let mut found = None;
    for at in GEOMETRY_AT {
        let Some(bytes) = read_bytes(device, at, GEOMETRY_BYTES as usize)? else { continue };
        if bytes.starts_with(GEOMETRY_MAGIC) {
            match geometry(device, at, &bytes) {
                Ok(geometry) => return with_geometry(device, geometry).map(Some),
                error => found = Some(error),
            }
        }
    }
    found.map_or(Ok(None), |error| error.map(|_| None))
}

/// Size of one copy of the metadata in bytes, and the number of slots.
type Geometry = (u64, u64);

fn geometry(device: &dyn Device, at: u64, start: &[u8]) -> io::Result<Geometry> {
    let damaged = |what: String| invalid(format!("super partition: geometry at byte {at}: {what}"));
    let length = little(&start[4..8]);
    let bytes = match length {
        GEOMETRY_BYTES..=4096 => read_bytes(device, at, length as usize)?,
        _ => None,
    };
    let mut bytes = bytes.ok_or_else(|| damaged(format!("a length of {length} bytes")))?;
    if !sum_matches(&mut bytes, 8..40) {
        return Err(damaged("wrong checksum".into()));
    }
    let (size, slots) = (little(&bytes[40..44]), little(&bytes[44..48]));
    if !(1..=METADATA_BYTES_MAX).contains(&size) || !(1..=SLOTS_MAX).contains(&slots) {
        return Err(damaged(format!("{slots} slots of {size} bytes")));
    }
    Ok((size, slots))
}

fn with_geometry(device: &dyn Device, (size, slots): Geometry) -> io::Result<Table> {
    let mut failed = None;
    for slot in 0..slots {
        // The backups of all slots follow the slots.
        let places = [slot, slots + slot].map(|copy| METADATA_AT + copy * size);
        let copies = places.map(|at| metadata(device, at, size));
        let conflict = match &copies {
            [Ok(first), Ok(backup)] if first != backup => Some(format!(
                "the copies of the super partition's metadata at the bytes {} and {} differ",
                places[0], places[1]
            )),
            _ => None,
        };
        for copy in copies {
            match copy {
                Ok(partitions) => return Ok(Table { kind: TableKind::Super, partitions, conflict }),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
    }
    Err(failed.expect("there is a slot"))
}

/// Compares a SHA-256 sum with the bytes that contain it. The sum counts as zeroes.
fn sum_matches(bytes: &mut [u8], sum: Range<usize>) -> bool {
    let expected = bytes[sum.clone()].to_vec();
    bytes[sum].fill(0);
    Sha256::digest(bytes)[..] == expected
}

/// Reads one copy of the metadata.
fn metadata(device: &dyn Device, at: u64, size: u64) -> io::Result<Vec<Partition>> {
    let damaged = |what: &str| invalid(format!("super partition: metadata at byte {at}: {what}"));
    let bytes =
        read_bytes(device, at, size as usize)?.ok_or_else(|| damaged("behind the end of the image"))?;
    if bytes.len() < *HEADER_BYTES.start() as usize || !bytes.starts_with(HEADER_MAGIC) {
        return Err(damaged("no metadata"));
    }
    if little(&bytes[4..6]) != MAJOR_VERSION {
        return Err(damaged(&format!("unknown version {}", little(&bytes[4..6]))));
    }
    let length = little(&bytes[8..12]);
    if !HEADER_BYTES.contains(&length) || length > size {
        return Err(damaged("wrong length of the header"));
    }
    let (header, tables) = bytes.split_at(length as usize);
    let mut header = header.to_vec();
    if !sum_matches(&mut header, 12..44) {
        return Err(damaged("wrong checksum of the header"));
    }
    let tables = tables
        .get(..little(&header[44..48]) as usize)
        .ok_or_else(|| damaged("wrong length of the tables"))?;
    if Sha256::digest(tables)[..] != header[48..80] {
        return Err(damaged("wrong checksum of the tables"));
    }
    let table = |descriptor: usize, entry_bytes: usize| {
        let number = |at: usize| little(&header[descriptor + at..][..4]) as usize;
        let (offset, count, stride) = (number(0), number(4), number(8));
        let end = count.checked_mul(stride).and_then(|length| offset.checked_add(length));
        let entries = end.filter(|_| stride >= entry_bytes).and_then(|end| tables.get(offset..end));
        entries
            .map(|entries| entries.chunks_exact(stride))
            .ok_or_else(|| damaged("a table outside of the tables"))
    };
    let extents: Vec<&[u8]> = table(92, 24)?.collect();
    // Each extent belongs to one partition. Without the limit, shared lists need memory without bound.
    let mut unclaimed = extents.len();
    let mut used = Vec::new();
    let partition = |(number, entry): (u32, &[u8])| {
        let (first, count) = (little(&entry[40..44]) as usize, little(&entry[44..48]) as usize);
        let own = first.checked_add(count).and_then(|end| extents.get(first..end));
        let own =
            own.ok_or_else(|| damaged(&format!("partition {number} has extents that are not there")))?;
        unclaimed = unclaimed.checked_sub(count).ok_or_else(|| {
            damaged(&format!("partition {number}: the partitions have more extents than the table"))
        })?;
        let extents = own.iter().map(|entry| extent(entry)).collect::<Result<Vec<_>, _>>();
        let extents = extents.map_err(|what| damaged(&format!("partition {number}: {what}")))?;
        used.extend(
            extents.iter().filter_map(|extent| Some((extent.start_bytes?, extent.length_bytes, number))),
        );
        let name = entry[..36].split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(Partition {
            number,
            name: Some(String::from_utf8_lossy(name).into_owned()),
            id: None,
            type_id: if little(&entry[36..40]) & 1 == 1 { "readonly" } else { "writable" }.into(),
            extents,
        })
    };
    let partitions = (1..).zip(table(80, 52)?).map(partition).collect::<io::Result<Vec<_>>>()?;
    used.sort_unstable();
    match used.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
        None => Ok(partitions),
        Some(pair) => {
            let (start, one, other) = (pair[1].0, pair[0].2, pair[1].2);
            Err(damaged(&format!("extents of the partitions {one} and {other} overlap at byte {start}")))
        }
    }
}

/// Decodes an extent.
fn extent(entry: &[u8]) -> Result<Extent, String> {
    let (sectors, target, data) = (little(&entry[..8]), little(&entry[8..12]), little(&entry[12..20]));
    let bytes = |sectors: u64| sectors.checked_mul(SECTOR_BYTES).filter(|bytes| *bytes < 1 << 62);
    let (length, start) = (bytes(sectors), bytes(data));
    match (target, little(&entry[20..24]), length, start) {
        (ZERO, _, Some(length_bytes), _) => Ok(Extent { start_bytes: None, length_bytes }),
        (LINEAR, 0, Some(length_bytes), Some(start)) => Ok(Extent { start_bytes: Some(start), length_bytes }),
        (LINEAR, 1.., _, _) => Err("a part of it lies on another device".into()),
        (LINEAR, ..) | (ZERO, ..) => Err(format!("an extent of {sectors} sectors at sector {data}")),
        _ => Err(format!("an extent of the unknown type {target}")),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use block::MemoryDevice;

    use super::*;

    /// Extents of a partition: sectors, type, first sector.
    pub(crate) type Raw<'a> = (&'a str, &'a [(u64, u32, u64)]);

    fn with_sum(mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
        let sum = Sha256::digest(&bytes);
        bytes[at..at + 32].copy_from_slice(&sum);
        bytes
    }

    /// Writes metadata with one slot and its backup, as liblp does.
    pub(crate) fn make(device: &dyn Device, partitions: &[Raw<'_>]) {
        make_with(device, partitions, Lists::Own);
    }

    /// Lists of extents of the partitions.
    #[derive(Clone, Copy, PartialEq)]
    enum Lists {
        Own,
        /// All partitions have the list of the first one.
        Shared,
    }

    fn make_with(device: &dyn Device, partitions: &[Raw<'_>], lists: Lists) {
        make_slots(device, &[metadata_of(partitions, lists)]);
    }

    /// Writes the metadata of two slots and their backups.
    pub(crate) fn make_two(device: &dyn Device, first: &[Raw<'_>], second: &[Raw<'_>]) {
        make_slots(device, &[first, second].map(|partitions| metadata_of(partitions, Lists::Own)));
    }

    fn make_slots(device: &dyn Device, slots: &[Vec<u8>]) {
        let mut geometry = vec![0; 52];
        geometry[..4].copy_from_slice(GEOMETRY_MAGIC);
        geometry[4] = 52;
        geometry[40..44].copy_from_slice(&65536u32.to_le_bytes());
        geometry[44] = slots.len() as u8;
        geometry[48..52].copy_from_slice(&4096u32.to_le_bytes());
        let geometry = with_sum(geometry, 8);
        GEOMETRY_AT.iter().for_each(|at| device.write(*at, &geometry).unwrap());
        for (copy, metadata) in slots.iter().chain(slots).enumerate() {
            device.write(METADATA_AT + copy as u64 * 65536, metadata).unwrap();
        }
    }

    /// Makes one copy of metadata.
    fn metadata_of(partitions: &[Raw<'_>], lists: Lists) -> Vec<u8> {
        let (mut names, mut extents, mut count) = (Vec::new(), Vec::new(), 0u32);
        for (name, list) in partitions {
            let mut entry = [0; 52];
            entry[..name.len()].copy_from_slice(name.as_bytes());
            entry[40..44].copy_from_slice(&count.to_le_bytes());
            entry[44..48].copy_from_slice(&(list.len() as u32).to_le_bytes());
            names.extend(entry);
            if lists == Lists::Shared && count > 0 {
                let first = names.len() - entry.len() + 40;
                names[first..first + 4].fill(0);
                continue;
            }
            for (sectors, kind, start) in *list {
                extents.extend(sectors.to_le_bytes());
                extents.extend(kind.to_le_bytes());
                extents.extend(start.to_le_bytes());
                extents.extend([0; 4]);
                count += 1;
            }
        }
        let tables = [names.clone(), extents].concat();
        let mut header = vec![0; 128];
        header[..4].copy_from_slice(HEADER_MAGIC);
        header[4] = 10;
        header[8] = 128;
        header[44..48].copy_from_slice(&(tables.len() as u32).to_le_bytes());
        header[48..80].copy_from_slice(&Sha256::digest(&tables));
        for (at, offset, entries, size) in
            [(80, 0, partitions.len() as u32, 52u32), (92, names.len() as u32, count, 24)]
        {
            header[at..at + 4].copy_from_slice(&offset.to_le_bytes());
            header[at + 4..at + 8].copy_from_slice(&entries.to_le_bytes());
            header[at + 8..at + 12].copy_from_slice(&size.to_le_bytes());
        }
        [with_sum(header, 12), tables].concat()
    }

    const SYSTEM: Raw<'_> =
        ("system_a", &[(16, LINEAR as u32, 2048), (8, ZERO as u32, 0), (8, LINEAR as u32, 4096)]);

    #[test]
    fn logical_partitions_have_their_extents() {
        let device = MemoryDevice::new(8 << 20);
        make(&device, &[SYSTEM, ("system_b", &[])]);
        let table = Table::read(&device).unwrap().unwrap();
        assert_eq!(table.kind, TableKind::Super);
        let system = table.find("system_a").unwrap();
        assert_eq!((system.start_bytes(), system.size_bytes()), (Some(1 << 20), 32 * 512));
        assert_eq!(system.extents[1].start_bytes, None);
        assert_eq!(table.find("system_b").unwrap().size_bytes(), 0);
    }

    #[test]
    fn damage_is_located_and_the_copies_take_over() {
        let device = MemoryDevice::new(8 << 20);
        make(&device, &[SYSTEM]);
        device.write(4096 + 44, &[9]).unwrap();
        device.write(METADATA_AT + 20, &[9]).unwrap();
        assert!(read(&device).unwrap().is_some());
        device.write(METADATA_AT + 65536 + 130, b"x").unwrap();
        let error = read(&device).unwrap_err().to_string();
        assert_eq!(error, "super partition: metadata at byte 12288: wrong checksum of the header");
        device.write(8192 + 40, &[1, 1, 1, 1]).unwrap();
        let error = read(&device).unwrap_err().to_string();
        assert_eq!(error, "super partition: geometry at byte 8192: wrong checksum");
    }

    #[test]
    fn partitions_that_share_an_extent_list_are_refused() {
        let device = MemoryDevice::new(8 << 20);
        // Extents of zeroes never overlap on the disk.
        let list: &[_] = &[(8, ZERO as u32, 0)];
        make_with(&device, &[("one", list), ("two", list)], Lists::Shared);
        let error = read(&device).unwrap_err().to_string();
        assert!(error.contains("partition 2: the partitions have more extents than the table"), "{error}");
    }

    #[test]
    fn overlapping_and_overflowing_extents_are_refused() {
        for (other, told) in [
            ((16, 0, 2060), "extents of the partitions 1 and 2 overlap at byte 1054720"),
            ((u64::MAX, 0, 9000), "partition 2: an extent of 18446744073709551615 sectors"),
            ((1, 7, 9000), "partition 2: an extent of the unknown type 7"),
        ] {
            let device = MemoryDevice::new(8 << 20);
            make(&device, &[SYSTEM, ("other", &[other])]);
            let error = read(&device).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }
}
