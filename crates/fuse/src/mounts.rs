//! The table of mounts, as /proc/self/mountinfo has it (proc(5)). Reading it asks no file system.

/// The mounts that this process sees.
pub struct Mounts(String);

impl Mounts {
    /// As they are now; `None` where there is no /proc.
    pub fn read() -> Option<Mounts> {
        let table = std::fs::read("/proc/self/mountinfo").ok()?;
        Some(Mounts(String::from_utf8_lossy(&table).into_owned()))
    }

    /// The device number of what is mounted on a directory; the last mount counts.
    pub fn device_on(&self, dir: &str) -> Option<&str> {
        let escaped =
            dir.replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011").replace('\n', "\\012");
        self.0.lines().rev().find_map(|line| {
            let mut fields = line.split(' ').skip(2);
            let (device, _root, place) = (fields.next()?, fields.next()?, fields.next()?);
            (place == escaped).then_some(device)
        })
    }

    /// Whether the file system with a device number takes no changes, whatever each of its mounts says.
    pub fn is_read_only(&self, device: &str) -> bool {
        let options = self.0.lines().rev().find_map(|line| {
            let (mount, file_system) = line.split_once(" - ")?;
            let is_it = mount.split(' ').nth(2) == Some(device);
            is_it.then(|| file_system.split(' ').nth(2)).flatten()
        });
        options.is_some_and(|options| options.split(',').any(|option| option == "ro"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounts() -> Mounts {
        let table = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                     40 22 0:50 / /mnt/a\\040b rw - fuse.flashkit x rw\n\
                     41 22 0:51 / /mnt/a\\040b rw shared:1 - fuse.flashkit x ro,user_id=0\n\
                     42 22 0:50 / /mnt/bound ro - fuse.flashkit x rw\n";
        Mounts(table.into())
    }

    #[test]
    fn the_newest_mount_on_a_directory_is_found() {
        assert_eq!(mounts().device_on("/mnt/a b"), Some("0:51"));
        assert_eq!(mounts().device_on("/mnt"), None);
    }

    #[test]
    fn a_file_system_is_told_from_its_mounts() {
        assert!(mounts().is_read_only("0:51"));
        assert!(!mounts().is_read_only("0:50"), "it is mounted read-only only in one place");
        assert!(!mounts().is_read_only("0:5"));
    }
}
