//! What is mounted where, as /proc/self/mountinfo has it (proc(5)). Reading it asks no file system.

use std::{fs, io, path::PathBuf};

/// A mount that this process sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Major and minor number of the device, which is made up where the file system has none.
    pub device: (u32, u32),
    /// Where.
    pub dir: PathBuf,
    /// The mount's own options.
    pub options: String,
    /// Type of the file system.
    pub kind: String,
    /// What is mounted, as the file system calls it.
    pub source: String,
    /// The file system's options, the same for all of its mounts.
    pub file_system_options: String,
}

/// All mounts. Of several on one directory the last is seen.
///
/// # Errors
/// There is no `/proc`.
pub fn mounts() -> io::Result<Vec<Mount>> {
    Ok(mounts_in(&String::from_utf8_lossy(&fs::read("/proc/self/mountinfo")?)))
}

/// The mounts that the text of such a table lists; lines of another form are passed over.
pub fn mounts_in(table: &str) -> Vec<Mount> {
    let mount = |line: &str| {
        let (of_mount, of_file_system) = line.split_once(" - ")?;
        let (mut mount, mut rest) = (of_mount.split(' ').skip(2), of_file_system.split(' '));
        let (device, _root, dir, options) = (mount.next()?, mount.next()?, mount.next()?, mount.next()?);
        let (kind, source, more) = (rest.next()?, rest.next()?, rest.next()?);
        Some(Mount {
            device: device_number(device)?,
            dir: unescape(dir).into(),
            options: options.to_owned(),
            kind: kind.to_owned(),
            source: unescape(source),
            file_system_options: more.to_owned(),
        })
    };
    table.lines().filter_map(mount).collect()
}

/// Major and minor number, as the kernel writes them.
pub(crate) fn device_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Undoes the kernel's octal escapes of space, tab, newline, hash and backslash.
pub(crate) fn unescape(text: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\043", "#"), ("\\134", "\\")];
    escapes.iter().fold(text.to_string(), |text, (escape, plain)| text.replace(escape, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read() {
        let table = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro\n\
                     broken line\n\
                     40 22 0:44 / /mnt/a\\040b ro - fuse.flashkit /home/my\\040\\043card rw,user_id=0\n";
        let mounts = mounts_in(table);
        assert_eq!(mounts.len(), 2);
        let Mount { device, dir, options, kind, source, file_system_options } = &mounts[1];
        assert_eq!((*device, dir.to_str(), options.as_str()), ((0, 44), Some("/mnt/a b"), "ro"));
        let of_file_system = (kind.as_str(), source.as_str(), file_system_options.as_str());
        assert_eq!(of_file_system, ("fuse.flashkit", "/home/my #card", "rw,user_id=0"));
    }
}
