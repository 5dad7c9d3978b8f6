//! Queries of the mount table.

use std::path::{Path, PathBuf};

use block::Mount;

/// Returns the topmost mount on a directory.
pub fn on<'a>(mounts: &'a [Mount], dir: &Path) -> Option<&'a Mount> {
    mounts.iter().rev().find(|mount| mount.dir == dir)
}

/// Returns the device number of the topmost mount on a directory.
pub fn device_on(mounts: &[Mount], dir: &Path) -> Option<(u32, u32)> {
    on(mounts, dir).map(|mount| mount.device)
}

/// Returns the mount options that reproduce a mount's current flags.
pub fn flags_of(mount: &Mount) -> String {
    // The kernel lists some flags with the file system.
    let shared = mount.file_system_options.split(',').filter(|option| ["sync", "dirsync"].contains(option));
    let own: Vec<_> = mount.options.split(',').chain(shared).collect();
    let is_strict = !own.iter().any(|option| ["noatime", "relatime"].contains(option));
    own.into_iter().chain(is_strict.then_some("strictatime")).collect::<Vec<_>>().join(",")
}

/// Returns the directories on which the file system with a device number is mounted and visible.
pub fn places_of(mounts: &[Mount], device: (u32, u32)) -> Vec<PathBuf> {
    let own = mounts.iter().filter(|mount| mount.device == device);
    let seen = own.filter(|mount| device_on(mounts, &mount.dir) == Some(device));
    seen.map(|mount| mount.dir.clone()).collect()
}

/// Returns true if the file system with a device number is read-only as a whole, and not only some of its
/// mounts.
pub fn is_read_only(mounts: &[Mount], device: (u32, u32)) -> bool {
    let mount = mounts.iter().rev().find(|mount| mount.device == device);
    mount.is_some_and(|mount| mount.file_system_options.split(',').any(|option| option == "ro"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounts() -> Vec<Mount> {
        let table = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                     40 22 0:50 / /mnt/a\\040b rw - fuse.flashkit x rw\n\
                     41 22 0:51 / /mnt/a\\040b rw shared:1 - fuse.flashkit x ro,user_id=0\n\
                     42 22 0:50 / /mnt/bound ro - fuse.flashkit x rw\n";
        block::mounts_in(table)
    }

    #[test]
    fn the_newest_mount_on_a_directory_is_found() {
        assert_eq!(device_on(&mounts(), Path::new("/mnt/a b")), Some((0, 51)));
        assert_eq!(device_on(&mounts(), Path::new("/mnt")), None);
    }

    #[test]
    fn flags_are_found() {
        let table = "40 22 0:50 / /mnt rw,nosuid,noexec,relatime - fuse.flashkit x rw,sync,user_id=0\n";
        assert_eq!(flags_of(&block::mounts_in(table)[0]), "rw,nosuid,noexec,relatime,sync");
        assert_eq!(flags_of(&mounts()[3]), "ro,strictatime");
    }

    #[test]
    fn a_mount_on_top_is_not_the_file_system_below() {
        assert_eq!(places_of(&mounts(), (0, 50)), [Path::new("/mnt/bound")]);
        assert_eq!(places_of(&mounts(), (0, 51)), [Path::new("/mnt/a b")]);
        assert!(places_of(&mounts(), (0, 5)).is_empty());
    }

    #[test]
    fn a_file_system_is_identified_by_its_mounts() {
        assert!(is_read_only(&mounts(), (0, 51)));
        assert!(!is_read_only(&mounts(), (0, 50)), "it is mounted read-only only in one place");
        assert!(!is_read_only(&mounts(), (0, 5)));
    }
}
