//! What the table of mounts says of ours.

use std::path::Path;

use block::Mount;

/// The number of the device that is mounted on a directory; the last mount counts.
pub fn device_on(mounts: &[Mount], dir: &Path) -> Option<(u32, u32)> {
    mounts.iter().rev().find(|mount| mount.dir == dir).map(|mount| mount.device)
}

/// Whether the file system with a device number takes no changes, whatever each of its mounts says.
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
    fn a_file_system_is_told_from_its_mounts() {
        assert!(is_read_only(&mounts(), (0, 51)));
        assert!(!is_read_only(&mounts(), (0, 50)), "it is mounted read-only only in one place");
        assert!(!is_read_only(&mounts(), (0, 5)));
    }
}
