//! Mounts of the kernel's file systems.

use std::{ffi::CString, fs, io, path::Path};

use rustix::mount::MountFlags;

/// Makes the directory and mounts on it. As with mount(8), options that every file system has become flags of mount(2); the
/// others are for the file system.
pub(crate) fn mount(
    source: &Path,
    dir: &Path,
    kind: &str,
    options: &str,
    flags: MountFlags,
) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let (common, own) = split(options);
    Ok(rustix::mount::mount(source, dir, kind, flags | common, CString::new(own)?.as_c_str())?)
}

/// Splits options into flags of mount(2) and a list for the file system.
fn split(options: &str) -> (MountFlags, String) {
    let mut flags = MountFlags::empty();
    let mut own = Vec::new();
    for option in options.split(',') {
        match common(option) {
            Some((flag, is_set)) => flags.set(flag, is_set),
            None => own.push(option),
        }
    }
    (flags, own.join(","))
}

/// Returns the flag that an option of every file system sets or clears, by the list in mount(8), "Filesystem-independent mount
/// options".
fn common(option: &str) -> Option<(MountFlags, bool)> {
    Some(match option {
        "defaults" => (MountFlags::empty(), true),
        "ro" => (MountFlags::RDONLY, true),
        "rw" => (MountFlags::RDONLY, false),
        "sync" => (MountFlags::SYNCHRONOUS, true),
        "async" => (MountFlags::SYNCHRONOUS, false),
        "dirsync" => (MountFlags::DIRSYNC, true),
        "noatime" => (MountFlags::NOATIME, true),
        "atime" => (MountFlags::NOATIME, false),
        "nodiratime" => (MountFlags::NODIRATIME, true),
        "diratime" => (MountFlags::NODIRATIME, false),
        "relatime" => (MountFlags::RELATIME, true),
        "norelatime" => (MountFlags::RELATIME, false),
        "strictatime" => (MountFlags::STRICTATIME, true),
        "nostrictatime" => (MountFlags::STRICTATIME, false),
        "lazytime" => (MountFlags::LAZYTIME, true),
        "nolazytime" => (MountFlags::LAZYTIME, false),
        "nodev" => (MountFlags::NODEV, true),
        "dev" => (MountFlags::NODEV, false),
        "noexec" => (MountFlags::NOEXEC, true),
        "exec" => (MountFlags::NOEXEC, false),
        "nosuid" => (MountFlags::NOSUID, true),
        "suid" => (MountFlags::NOSUID, false),
        "nosymfollow" => (MountFlags::NOSYMFOLLOW, true),
        "symfollow" => (MountFlags::NOSYMFOLLOW, false),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_every_file_system_become_flags() {
        let both = MountFlags::NOATIME | MountFlags::SYNCHRONOUS;
        assert_eq!(
            split("noatime,mode=lfs,sync,errors=continue"),
            (both, "mode=lfs,errors=continue".to_string())
        );
        assert_eq!(split("sync,flush,async,defaults"), (MountFlags::empty(), "flush".to_string()));
        assert_eq!(split(""), (MountFlags::empty(), String::new()));
    }
}
