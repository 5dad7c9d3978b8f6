//! The other file systems: those of the guest's kernel, formatted on the host with their own programs.

use std::{
    fs::{File, OpenOptions},
    io,
    path::Path,
    process::Stdio,
};

use serde::{Deserialize, Serialize};

use crate::{
    programs,
    record::digest,
    systems::{CHIP, DISK, OURS, THROUGH_FUSE, UBI_VOLUME},
};

/// UUID of volumes, if it can be chosen: a random one would make runs differ.
const UUID: &str = "0f1a5b00-0000-4000-8000-000000000001";
/// The same UUID for our own mkfs.
pub const UUID_BYTES: [u8; 16] = [0x0f, 0x1a, 0x5b, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 1];
const VOLUME_ID: &str = "0F1A5B00";
/// Creation time of volumes in seconds since 1970: 2024-02-29 11:00, before the guest's clock starts.
pub const MADE_AT: i64 = 1_709_204_400;

/// A file system with its mkfs and mount options.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSystem {
    /// Type, as mount(2) knows it.
    pub kind: String,
    /// mkfs options, in addition to those that make the result reproducible.
    pub mkfs: Vec<String>,
    /// Mount options.
    pub mount: String,
}

impl FileSystem {
    /// Creates a file system with default options.
    pub fn new(kind: &str) -> FileSystem {
        FileSystem { kind: kind.to_owned(), mkfs: Vec::new(), mount: String::new() }
    }

    /// Sets the mount options.
    pub fn mounted(mut self, options: &str) -> FileSystem {
        self.mount = options.to_owned();
        self
    }

    /// Sets the mkfs options.
    pub fn made(mut self, options: &[&str]) -> FileSystem {
        self.mkfs = options.iter().map(|&option| option.to_owned()).collect();
        self
    }

    /// Parses `KIND[:MOUNT OPTIONS[:MKFS OPTIONS]]`, such as `f2fs:mode=lfs` or `f2fs::-s 2`.
    pub fn parse(text: &str) -> FileSystem {
        let mut parts = text.splitn(3, ':');
        let mut next = || parts.next().unwrap_or_default().trim().to_owned();
        let (kind, mount, mkfs) = (next(), next(), next());
        FileSystem { kind, mount, mkfs: mkfs.split_whitespace().map(str::to_owned).collect() }
    }

    /// Name in tables: the type, and in brackets all non-default options.
    pub fn name(&self) -> String {
        let options: Vec<&str> = self
            .mkfs
            .iter()
            .map(String::as_str)
            .chain([self.mount.as_str()])
            .filter(|o| !o.is_empty())
            .collect();
        match options.is_empty() {
            true => self.kind.clone(),
            false => format!("{} ({})", self.kind, options.join(" ")),
        }
    }

    /// Returns true if it is our own file system, in this process or through FUSE.
    pub fn is_ours(&self) -> bool {
        [OURS, THROUGH_FUSE].contains(&self.kind.as_str())
    }

    /// Returns true if it is a file system for raw flash.
    pub fn is_raw(&self) -> bool {
        ["jffs2", "ubifs"].contains(&self.kind.as_str())
    }

    /// Returns the source of its mount in the guest.
    pub fn source(&self) -> &'static str {
        match self.kind.as_str() {
            "jffs2" => CHIP,
            "ubifs" => UBI_VOLUME,
            _ => DISK,
        }
    }

    /// Returns true if it has no options.
    pub fn is_plain(&self) -> bool {
        self.mkfs.is_empty() && self.mount.is_empty()
    }

    /// Creates the sparse file `image` of `size_bytes`, and a file system in it.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] for an unknown type; [`io::ErrorKind::NotFound`] if its program is not
    /// installed; the message of the program if it fails.
    pub fn format(&self, image: &Path, size_bytes: u64) -> io::Result<()> {
        let (program, arguments) = self.program()?;
        let made_at = MADE_AT.to_string();
        let stamp: &[&str] = if self.kind == "f2fs" { &["-T", &made_at] } else { &[] };
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(image)?;
        file.set_len(size_bytes)?;
        let output = programs::command(program)
            .args(arguments)
            .args(stamp)
            .args(&self.mkfs)
            .arg(image)
            .env("E2FSPROGS_FAKE_TIME", &made_at)
            .env("SOURCE_DATE_EPOCH", &made_at)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| {
                let what = format!("cannot start {program} (scripts/setup installs it): {error}");
                io::Error::new(error.kind(), what)
            })?;
        if !output.status.success() {
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            return Err(io::Error::other(format!("{program}: {}\n{said}", output.status)));
        }
        Ok(())
    }

    /// Digest of the mkfs program; `None` if it is not installed.
    pub fn formatter_digest(&self) -> Option<String> {
        let (program, _) = self.program().ok()?;
        digest(File::open(programs::find(program)?).ok()?).ok()
    }

    fn program(&self) -> io::Result<(&'static str, &'static [&'static str])> {
        Ok(match self.kind.as_str() {
            "ext4" => ("mke2fs", &["-q", "-F", "-t", "ext4", "-U", UUID, "-E", HASH_SEED]),
            "f2fs" => ("mkfs.f2fs", &["-q", "-f", "-r", "-U", UUID]),
            "nilfs2" => ("mkfs.nilfs2", &["-q", "-f"]),
            "vfat" => ("mkfs.vfat", &["-F", "32", "-i", VOLUME_ID, "--invariant"]),
            "exfat" => ("mkfs.exfat", &["-q"]),
            "btrfs" => ("mkfs.btrfs", &["-q", "-f", "-U", UUID]),
            "xfs" => ("mkfs.xfs", &["-q", "-f", "-m", XFS_UUID]),
            other => {
                let what = format!("flashkit cannot format {other}");
                return Err(io::Error::new(io::ErrorKind::Unsupported, what));
            }
        })
    }
}

/// Seed of ext4's directory hashes, which determine the placement of directories.
const HASH_SEED: &str = "hash_seed=0f1a5b00-0000-4000-8000-000000000001";
const XFS_UUID: &str = "uuid=0f1a5b00-0000-4000-8000-000000000001";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_show_settings_other_than_the_default() {
        assert_eq!(FileSystem::new("ext4").name(), "ext4");
        let f2fs = FileSystem::new("f2fs").made(&["-s", "2"]).mounted("mode=lfs");
        assert_eq!(f2fs.name(), "f2fs (-s 2 mode=lfs)");
        assert_eq!(FileSystem::parse("f2fs:mode=lfs:-s 2"), f2fs);
        assert_eq!(FileSystem::parse("ext4"), FileSystem::new("ext4"));
    }

    #[test]
    fn a_failed_mkfs_reports_its_reason() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let error = FileSystem::new("hpfs").format(&image, 1 << 20).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        let error = FileSystem::new("ext4").made(&["-b", "77"]).format(&image, 1 << 20).unwrap_err();
        assert!(error.to_string().contains("mke2fs"), "{error}");
    }
}
