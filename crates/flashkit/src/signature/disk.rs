//! Partitions of a disk, to tell which of them is a volume.

use std::io;

use block::Device;
use image::{Extents, Partition, Source, Table};

/// Offset of F2FS's superblock in its block, and its magic (Linux, include/linux/f2fs_fs.h).
const F2FS: (u64, [u8; 4]) = (1024, [0x10, 0x20, 0xF5, 0xF2]);
/// Maximum number of volumes in a message.
const SHOWN_MAX: usize = 8;

/// A disk with partitions.
pub struct Disk {
    table: Table,
    /// The partitions that are F2FS.
    volumes: Vec<Partition>,
}

impl Disk {
    /// Reads the table of a disk and the start of each partition.
    pub fn read(device: &dyn Device) -> io::Result<Option<Disk>> {
        let Some(table) = Table::read(device)? else { return Ok(None) };
        let mut volumes = Vec::new();
        for partition in &table.partitions {
            if is_volume(device, partition)? {
                volumes.push(partition.clone());
            }
        }
        Ok(Some(Disk { table, volumes }))
    }

    /// Describes the disk, and how to name its volumes.
    pub fn describe(&self, source: &Source) -> String {
        let kind = format!("{} disk", self.table.kind);
        let article = if kind.starts_with(['M', 'A']) { "an" } else { "a" };
        if self.volumes.is_empty() {
            return format!("{article} {kind} without a partition that is F2FS");
        }
        let shown = || self.volumes.iter().take(SHOWN_MAX);
        let place = |volume: &Partition| {
            format!(
                "partition {} at byte {} is F2FS",
                volume.number,
                volume.start_bytes().unwrap_or_default()
            )
        };
        let places: Vec<String> = shown().map(place).collect();
        let names: Vec<String> = shown().map(|volume| format!("{source}#{}", volume.number)).collect();
        format!("{article} {kind}; {}: use {}", places.join("; "), names.join(" or "))
    }
}

/// Returns true if a partition begins with the superblock of F2FS.
fn is_volume(device: &dyn Device, partition: &Partition) -> io::Result<bool> {
    // A partition behind the end of an image that was cut off.
    let Ok(extents) = Extents::new(device, partition.extents.iter().copied()) else { return Ok(false) };
    let mut magic = [0; F2FS.1.len()];
    if !extents.geometry().contains(F2FS.0, magic.len() as u64) {
        return Ok(false);
    }
    extents.read(F2FS.0, &mut magic)?;
    Ok(magic == F2FS.1)
}

#[cfg(test)]
mod tests {
    use block::MemoryDevice;

    use super::*;

    #[test]
    fn partitions_with_a_volume_are_named() {
        let device = MemoryDevice::new(8 << 20);
        device.write(510, &[0x55, 0xAA]).unwrap();
        assert!(Disk::read(&device).unwrap().is_none());
        for (n, start) in [2048u32, 4096, 6144].into_iter().enumerate() {
            let at = 446 + 16 * n as u64;
            device.write(at + 4, &[0x83]).unwrap();
            device.write(at + 8, &start.to_le_bytes()).unwrap();
            device.write(at + 12, &2048u32.to_le_bytes()).unwrap();
        }
        let describe = || Disk::read(&device).unwrap().unwrap().describe(&Source::parse("sd.img"));
        assert_eq!(describe(), "an MBR disk without a partition that is F2FS");
        device.write((2 << 20) + 1024, &F2FS.1).unwrap();
        assert_eq!(describe(), "an MBR disk; partition 2 at byte 2097152 is F2FS: use sd.img#2");
        device.write((3 << 20) + 1024, &F2FS.1).unwrap();
        assert!(describe().ends_with("partition 3 at byte 3145728 is F2FS: use sd.img#2 or sd.img#3"));
    }
}
