//! Whether the host uses a device or image file: what a tool asks before it destroys data.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use crate::mounts::{Mount, device_number, mounts, unescape};

/// Who uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InUse {
    /// Mounted, it or a partition of it, at this directory.
    Mounted(PathBuf),
    /// The host swaps to it.
    Swap,
    /// Another block device is made of it (RAID, LVM, dm-crypt, loop): its name.
    Holder(String),
}

impl std::fmt::Display for InUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            InUse::Mounted(at) => write!(f, "mounted at {}", at.display()),
            InUse::Swap => write!(f, "used for swapping"),
            InUse::Holder(name) => write!(f, "used by {name}"),
        }
    }
}

/// Who uses the block device or image file at `path`, if anyone. What the host does not tell (no `/proc`, no
/// `/sys`) counts as nobody; the lock of a writer is the second line of defence.
///
/// # Errors
/// When `path` cannot be looked at.
pub fn in_use(path: impl AsRef<Path>) -> io::Result<Option<InUse>> {
    let path = fs::canonicalize(path)?;
    let metadata = fs::metadata(&path)?;
    let mounts = mounts().unwrap_or_default();
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swap_lists(&swaps, &path) {
        return Ok(Some(InUse::Swap));
    }
    let number = metadata.file_type().is_block_device().then(|| metadata.rdev());
    let number = number.map(|device| (rustix::fs::major(device), rustix::fs::minor(device)));
    if let Some(at) = mounted_at(&mounts, number, &path) {
        return Ok(Some(InUse::Mounted(at)));
    }
    // Of a file, or of a block device that is mounted through FUSE.
    if let Some(device) = loop_over(&path) {
        let number =
            fs::read_to_string(format!("/sys/block/{device}/dev")).ok().and_then(|text| device_number(&text));
        let mounted = mounted_at(&mounts, number, &Path::new("/dev").join(&device));
        return Ok(Some(mounted.map_or(InUse::Holder(device), InUse::Mounted)));
    }
    let Some(number) = number else { return Ok(None) };
    let directory = PathBuf::from(format!("/sys/dev/block/{}:{}", number.0, number.1));
    if let Some(holder) = entries(&directory.join("holders")).into_iter().next() {
        return Ok(Some(InUse::Holder(file_name(&holder))));
    }
    for partition in entries(&directory).into_iter().filter(|entry| entry.join("partition").exists()) {
        let device = Path::new("/dev").join(file_name(&partition));
        if swap_lists(&swaps, &device) {
            return Ok(Some(InUse::Swap));
        }
        let number = fs::read_to_string(partition.join("dev")).ok().and_then(|text| device_number(&text));
        if let Some(at) = mounted_at(&mounts, number, &device) {
            return Ok(Some(InUse::Mounted(at)));
        }
        if let Some(holder) = entries(&partition.join("holders")).into_iter().next() {
            return Ok(Some(InUse::Holder(file_name(&holder))));
        }
    }
    Ok(None)
}

/// Where the device is mounted: by its number, or, for file systems that show a number of their own, by its name.
fn mounted_at(mounts: &[Mount], number: Option<(u32, u32)>, path: &Path) -> Option<PathBuf> {
    let is_it = |mount: &&Mount| number == Some(mount.device) || Path::new(&mount.source) == path;
    mounts.iter().find(is_it).map(|mount| mount.dir.clone())
}

/// Whether the text of `/proc/swaps` names the path.
fn swap_lists(swaps: &str, path: &Path) -> bool {
    let names = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    names.map(|name| unescape(name.as_bytes())).any(|name| OsStr::from_bytes(&name) == path)
}

/// The loop device whose backing file is `path`.
fn loop_over(path: &Path) -> Option<String> {
    let backs = |entry: &PathBuf| {
        let backing = fs::read_to_string(entry.join("loop/backing_file")).unwrap_or_default();
        Path::new(backing.trim_end_matches('\n')) == path
    };
    entries(Path::new("/sys/block")).iter().find(|entry| backs(entry)).map(|entry| file_name(entry))
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let listing = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = listing.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounts_in;

    const MOUNTINFO: &str = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
36 22 0:31 / /data\\040two rw - btrfs /dev/sdb rw,space_cache=v2
40 22 0:44 / /mnt/image rw,nosuid - fuse.flashkit /home/user/card\\040image rw,user_id=0
broken line
";

    #[test]
    fn mounts_are_found_by_number_and_by_name() {
        let at = |number, path: &str| mounted_at(&mounts_in(MOUNTINFO), number, Path::new(path));
        assert_eq!(at(Some((8, 1)), "/dev/other"), Some("/".into()));
        assert_eq!(at(Some((8, 16)), "/dev/sdb"), Some("/data two".into()));
        assert_eq!(at(None, "/home/user/card image"), Some("/mnt/image".into()));
        assert_eq!(at(Some((8, 2)), "/dev/sda2"), None);
    }

    #[test]
    fn swaps_are_found_by_name() {
        let swaps = "Filename\tType\tSize\n/dev/sda2 partition 100 0 -2\n/swap\\040file file 1 0 -3\n";
        assert!(swap_lists(swaps, Path::new("/dev/sda2")) && swap_lists(swaps, Path::new("/swap file")));
        assert!(!swap_lists(swaps, Path::new("/dev/sda")) && !swap_lists("", Path::new("Filename")));
    }

    #[test]
    fn a_fresh_file_is_free() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        assert_eq!(in_use(file.path()).expect("it is there"), None);
        assert!(in_use(file.path().join("nothing")).is_err());
    }
}
