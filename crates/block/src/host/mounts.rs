//! Mounts, as listed in /proc/self/mountinfo (proc(5)). Reading the list does not contact any file system.

use std::{ffi::OsString, fs, io, os::unix::ffi::OsStringExt, path::PathBuf};

/// A mount visible to this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Major and minor number of the device. File systems without a device make up a number.
    pub device: (u32, u32),
    /// Directory of the mount.
    pub dir: PathBuf,
    /// The mount's own options.
    pub options: String,
    /// Type of the file system.
    pub kind: String,
    /// Mounted device or other source, as the file system names it.
    pub source: String,
    /// Options of the file system, shared by all its mounts.
    pub file_system_options: String,
}

/// Returns all mounts. If several are on one directory, the last is the visible one.
///
/// # Errors
/// There is no `/proc`.
pub fn mounts() -> io::Result<Vec<Mount>> {
    Ok(mounts_in(fs::read("/proc/self/mountinfo")?))
}

/// Parses a table of mounts. Skips lines of another form.
pub fn mounts_in(table: impl AsRef<[u8]>) -> Vec<Mount> {
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let mount = |line: &[u8]| {
        let mut words = line.split(|byte| *byte == b' ').skip(2);
        let (device, _root, dir, options) = (words.next()?, words.next()?, words.next()?, words.next()?);
        // Optional fields may precede the dash.
        words.find(|word| word == b"-")?;
        let (kind, source, more) = (words.next()?, words.next()?, words.next()?);
        Some(Mount {
            device: device_number(&text(device))?,
            dir: OsString::from_vec(unescape(dir)).into(),
            options: text(options),
            kind: text(kind),
            source: text(&unescape(source)),
            file_system_options: text(more),
        })
    };
    table.as_ref().split(|byte| *byte == b'\n').filter_map(mount).collect()
}

/// Parses a major and minor number in the kernel's notation.
pub(crate) fn device_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Undoes the kernel's octal escapes of space, tab, newline, hash and backslash.
pub(crate) fn unescape(word: &[u8]) -> Vec<u8> {
    let escapes =
        [(b"\\040", b' '), (b"\\011", b'\t'), (b"\\012", b'\n'), (b"\\043", b'#'), (b"\\134", b'\\')];
    let (mut plain, mut rest) = (Vec::new(), word);
    while let Some((first, others)) = rest.split_first() {
        let escape = escapes.iter().find(|(escape, _)| rest.starts_with(*escape));
        let (byte, after) = escape.map_or((*first, others), |(escape, byte)| (*byte, &rest[escape.len()..]));
        plain.push(byte);
        rest = after;
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read() {
        let table = b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro\n\
                      broken line\n\
                      40 22 0:44 / /mnt/a\\040b ro - fuse.flashkit /home/my\\040\\043card rw,user_id=0\n\
                      41 22 0:45 / /mnt/\xFF\\134040 ro - tmpfs tmpfs ro\n";
        let mounts = mounts_in(table);
        assert_eq!(mounts.len(), 3);
        let Mount { device, dir, options, kind, source, file_system_options } = &mounts[1];
        assert_eq!((*device, dir.to_str(), options.as_str()), ((0, 44), Some("/mnt/a b"), "ro"));
        let of_file_system = (kind.as_str(), source.as_str(), file_system_options.as_str());
        assert_eq!(of_file_system, ("fuse.flashkit", "/home/my #card", "rw,user_id=0"));
        assert_eq!(mounts[2].dir.as_os_str().as_encoded_bytes(), b"/mnt/\xFF\\040");
    }
}
