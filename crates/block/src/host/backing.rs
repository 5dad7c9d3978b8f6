//! The bytes behind a path, as the host identifies them: a range of a regular file or of a disk.
//!
//! *Invariant*: names do not count. A hard link, a bind mount, a loop device, a partition and a second device
//! node lead to the same bytes if the host says so.

use std::{
    fs::{self, Metadata},
    io,
    ops::Range,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use rustix::fs::{Dev, major, makedev, minor};

use super::{loop_device, mounts::device_number};

/// Unit of sizes and offsets in sysfs in bytes, whatever the disk's sector (Linux, block/partitions/core.c).
const SYSFS_BYTES: u64 = 512;
/// Maximum depth of stacked loop devices and partitions. The kernel allows no cycles.
const DEPTH_MAX: usize = 32;

/// A file of the host, independent of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Identity {
    /// A regular file: its file system and its inode.
    File { device: Dev, inode: u64 },
    /// A block device.
    Device(Dev),
}

impl Identity {
    pub(crate) fn of(facts: &Metadata) -> Identity {
        match facts.file_type().is_block_device() {
            true => Identity::Device(facts.rdev()),
            false => Identity::File { device: facts.dev(), inode: facts.ino() },
        }
    }
}

/// A range of bytes of a base: a regular file, or a disk that is not itself made of either.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Backing {
    /// The file or disk at the bottom of the stack.
    base: Identity,
    range: Range<u64>,
    /// Paths of the files and devices below the loop devices of the stack, if they have any.
    pub(crate) files: Vec<PathBuf>,
}

impl Backing {
    /// Returns the bytes behind a regular file or block device.
    pub(crate) fn of(identity: Identity) -> Backing {
        Backing::at_depth(identity, 0)
    }

    fn at_depth(identity: Identity, depth: usize) -> Backing {
        let whole = || Backing { base: identity, range: 0..u64::MAX, files: Vec::new() };
        let Identity::Device(device) = identity else { return whole() };
        if depth == DEPTH_MAX {
            return whole();
        }
        let sys = sys(device);
        if let (Some(disk), Some(range)) = (disk_of_partition(&sys), partition(&sys)) {
            return Backing::at_depth(Identity::Device(disk), depth + 1).part(range);
        }
        let Some(below) = loop_device::source(device, &sys) else { return whole() };
        let mut backing = Backing::at_depth(below.identity, depth + 1).part(below.range);
        backing.files.extend(below.path);
        backing
    }

    fn part(self, part: Range<u64>) -> Backing {
        let at = |offset: u64| self.range.start.saturating_add(offset).min(self.range.end);
        Backing { range: at(part.start)..at(part.end), ..self }
    }

    fn overlaps(&self, other: &Backing) -> bool {
        let (ours, theirs) = (&self.range, &other.range);
        self.base == other.base && ours.start < theirs.end && theirs.start < ours.end
    }

    /// Returns the file system and the inode of the regular file at the bottom, if there is one.
    pub(crate) fn file(&self) -> Option<(Dev, u64)> {
        match self.base {
            Identity::File { device, inode } => Some((device, inode)),
            Identity::Device(_) => None,
        }
    }

    /// Returns true if the range covers the whole base.
    pub(crate) fn is_whole(&self) -> bool {
        self.range == (0..u64::MAX)
    }

    /// Returns true if some of the bytes belong to this file or device.
    pub(crate) fn is_made_of(&self, identity: Identity) -> bool {
        self.overlaps(&Backing::of(identity))
    }

    /// Returns all block devices of the host that show some of these bytes.
    pub(crate) fn views(&self) -> Vec<View> {
        let mut views: Vec<View> = entries(Path::new("/sys/class/block"))
            .iter()
            .filter_map(|sys| {
                let device = number_in(&sys.join("dev"))?;
                let disk = disk_of_partition(sys);
                let backing = Backing::of(Identity::Device(device));
                backing.overlaps(self).then(|| View {
                    name: file_name(sys),
                    device,
                    disk: disk.unwrap_or(device),
                    is_loop: sys.join("loop").exists() || sys.join("../loop").exists(),
                })
            })
            .collect();
        views.sort_by(|one, other| one.name.cmp(&other.name));
        views
    }
}

/// A block device that shows some of the bytes of a [`Backing`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct View {
    /// Name in /dev.
    pub(crate) name: String,
    pub(crate) device: Dev,
    /// The disk that the partition lies on. For a whole disk, the disk itself.
    pub(crate) disk: Dev,
    /// True for a loop device or a partition of one.
    pub(crate) is_loop: bool,
}

impl View {
    pub(crate) fn is_partition(&self) -> bool {
        self.disk != self.device
    }

    /// Returns true if a process that has exclusively opened the devices in `own` thereby holds this one, too: it is
    /// one of them, or a partition of one of them.
    pub(crate) fn is_held_by(&self, own: &[Dev]) -> bool {
        own.contains(&self.device) || own.contains(&self.disk)
    }

    /// Returns true if the device is a disk with partitions, wherever they lie.
    pub(crate) fn has_partitions(&self) -> bool {
        entries(&sys(self.device)).iter().any(|entry| entry.join("partition").exists())
    }

    /// Returns true if the device is read-only.
    pub(crate) fn is_read_only(&self) -> bool {
        fs::read_to_string(sys(self.device).join("ro")).is_ok_and(|text| text.trim() == "1")
    }

    /// Returns the names of block devices that are made of this one (RAID, LVM, dm-crypt).
    pub(crate) fn holders(&self) -> Vec<String> {
        entries(&sys(self.device).join("holders")).iter().map(|holder| file_name(holder)).collect()
    }

    /// Returns the path of the device's node. `None` if there is no node or the node is another device's.
    pub(crate) fn node(&self) -> Option<PathBuf> {
        node(self.device, &self.name)
    }
}

/// Returns the path of a device's node, if it exists.
pub(crate) fn node(device: Dev, name: &str) -> Option<PathBuf> {
    // In sysfs, an exclamation mark stands for a slash.
    let path = Path::new("/dev").join(name.replace('!', "/"));
    let is_it = |facts: Metadata| Identity::of(&facts) == Identity::Device(device);
    fs::metadata(&path).is_ok_and(is_it).then_some(path)
}

/// Returns the directory of a block device in sysfs.
pub(crate) fn sys(device: Dev) -> PathBuf {
    format!("/sys/dev/block/{}:{}", major(device), minor(device)).into()
}

/// Returns true for a device of an MMC host, a removable disk, and a partition of one, by its directory in sysfs.
pub(crate) fn is_card(sys: &Path) -> bool {
    let Ok(place) = sys.canonicalize() else { return false };
    let disk = if place.join("partition").exists() { place.parent() } else { Some(&*place) };
    place.components().any(|part| part.as_os_str() == "mmc_host")
        || disk.is_some_and(|disk| count_in(&disk.join("removable")) == Some(1))
}

/// Returns the disk that a partition lies on. `None` if the device is not a partition.
fn disk_of_partition(sys: &Path) -> Option<Dev> {
    if sys.join("partition").exists() { number_in(&sys.join("../dev")) } else { None }
}

/// Returns the range of bytes that a partition occupies on its disk.
fn partition(sys: &Path) -> Option<Range<u64>> {
    let start = count_in(&sys.join("start"))?.saturating_mul(SYSFS_BYTES);
    let length = count_in(&sys.join("size"))?.saturating_mul(SYSFS_BYTES);
    Some(start..start.saturating_add(length))
}

/// Reads a number from a file in sysfs.
pub(crate) fn count_in(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Reads a device number from a file in sysfs.
fn number_in(path: &Path) -> Option<Dev> {
    let (major, minor) = device_number(&fs::read_to_string(path).ok()?)?;
    Some(makedev(major, minor))
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let listing = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = listing.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the identity of the file or device at a path.
///
/// # Errors
/// Those of stat(2).
pub(crate) fn identity(path: &Path) -> io::Result<Identity> {
    Ok(Identity::of(&fs::metadata(path)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part_of_a_file(inode: u64, range: Range<u64>) -> Backing {
        Backing::of(Identity::File { device: 1, inode }).part(range)
    }

    #[test]
    fn parts_overlap_exactly_if_their_bytes_overlap() {
        let whole = part_of_a_file(7, 0..u64::MAX);
        let part = part_of_a_file(7, 1000..2000);
        assert!(whole.overlaps(&part) && part.overlaps(&whole) && part.overlaps(&part));
        assert!(
            !part.overlaps(&part_of_a_file(7, 2000..3000)) && !part.overlaps(&part_of_a_file(8, 0..9000))
        );
        let inner = part.clone().part(500..5000);
        assert_eq!(inner.range, 1500..2000, "a part ends with its whole");
        assert!(!inner.overlaps(&part.part(0..500)));
    }

    #[test]
    fn cards_are_devices_of_an_mmc_host_and_removable_disks() {
        let root = tempfile::tempdir().unwrap();
        let disk = |place: &str, removable: &str| {
            let (disk, part) = (root.path().join(place), root.path().join(place).join("part"));
            fs::create_dir_all(&part).unwrap();
            fs::write(disk.join("removable"), removable).unwrap();
            fs::write(part.join("partition"), "1\n").unwrap();
            [is_card(&disk), is_card(&part)]
        };
        assert_eq!(disk("soc/mmc_host/mmc0/mmc0:0001/block/mmcblk0", "0\n"), [true; 2]);
        assert_eq!(disk("pci/usb2/2-1/block/sdb", "1\n"), [true; 2], "a USB stick");
        assert_eq!(disk("pci/ata1/block/sda", "0\n"), [false; 2]);
        assert!(!is_card(&root.path().join("missing")));
    }
}
