//! The other file systems: those of the guest's kernel, formatted on the host with their own programs.

use std::{
    fs::{File, OpenOptions},
    io,
    path::Path,
    process::{Output, Stdio},
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
    /// The user's programs for a file system that the lab does not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<Box<OwnPrograms>>,
}

/// Programs of a file system that the user names. `{image}` stands for the file with the volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnPrograms {
    /// Name in tables and files.
    pub name: String,
    /// Command that formats the file, split at white space.
    pub make: Vec<String>,
    /// Command that checks the file without changing it and exits with 0 if it is clean.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub check: Vec<String>,
}

/// Placeholder of the file with the volume in the user's commands.
const IMAGE: &str = "{image}";

impl OwnPrograms {
    /// Returns a command of the user for this image.
    pub fn command(words: &[String], image: &Path) -> std::process::Command {
        let word = |word: &String| word.replace(IMAGE, &image.to_string_lossy());
        let mut command = programs::command(&words.first().map(word).unwrap_or_default());
        command.args(words.iter().skip(1).map(word));
        command
    }
}

impl FileSystem {
    /// Creates a file system with default options.
    pub fn new(kind: &str) -> FileSystem {
        FileSystem { kind: kind.to_owned(), mkfs: Vec::new(), mount: String::new(), own: None }
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
        FileSystem { kind, mount, mkfs: mkfs.split_whitespace().map(str::to_owned).collect(), own: None }
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
        let kind = self.own.as_ref().map_or(&self.kind, |own| &own.name);
        match options.is_empty() {
            true => kind.clone(),
            false => format!("{kind} ({})", options.join(" ")),
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

    /// Returns true if it keeps its markers on NAND in the spare (OOB) bytes, which the lab's chip does not provide.
    pub fn needs_spare_bytes(&self) -> bool {
        self.kind == "jffs2"
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
        if let Some(own) = &self.own {
            File::create(image)?.set_len(size_bytes)?;
            let program = own.make.first().cloned().unwrap_or_default();
            let mut command = OwnPrograms::command(&own.make, image);
            command.args(&self.mkfs);
            return made(&program, command.stdin(Stdio::null()).output());
        }
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
            .output();
        made(program, output)
    }

    /// Digest of the mkfs program; `None` if it is not installed.
    pub fn formatter_digest(&self) -> Option<String> {
        let program = match &self.own {
            Some(own) => own.make.first()?,
            None => self.program().ok()?.0,
        };
        digest(File::open(programs::find(program)?).ok()?).ok()
    }

    fn program(&self) -> io::Result<(&'static str, &'static [&'static str])> {
        Ok(match self.kind.as_str() {
            "ext4" => ("mke2fs", &["-q", "-F", "-t", "ext4", "-U", UUID, "-E", HASH_SEED]),
            "f2fs" => ("mkfs.f2fs", &["-q", "-f", "-r", "-U", UUID]),
            "nilfs2" => ("mkfs.nilfs2", &["-q", "-f"]),
            "vfat" => ("mkfs.vfat", &["-F", "32", "-i", VOLUME_ID, "--invariant"]),
            "exfat" => ("mkfs.exfat", &[]),
            "btrfs" => ("mkfs.btrfs", &["-q", "-f", "-U", UUID]),
            "xfs" => ("mkfs.xfs", &["-q", "-f", "-m", XFS_UUID]),
            other => {
                let what = format!("flashkit cannot format {other}");
                return Err(io::Error::new(io::ErrorKind::Unsupported, what));
            }
        })
    }
}

/// Checks that a program has made a volume.
fn made(program: &str, output: io::Result<Output>) -> io::Result<()> {
    let output = output.map_err(|error| {
        let what = format!("cannot start {program} (scripts/setup installs the lab's): {error}");
        io::Error::new(error.kind(), what)
    })?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        return Err(io::Error::other(format!("{program}: {}\n{said}", output.status)));
    }
    Ok(())
}

/// Seed of ext4's directory hashes, which determine the placement of directories.
const HASH_SEED: &str = "hash_seed=0f1a5b00-0000-4000-8000-000000000001";
const XFS_UUID: &str = "uuid=0f1a5b00-0000-4000-8000-000000000001";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Check;

    #[test]
    fn names_show_settings_other_than_the_default() {
        assert_eq!(FileSystem::new("ext4").name(), "ext4");
        let f2fs = FileSystem::new("f2fs").made(&["-s", "2"]).mounted("mode=lfs");
        assert_eq!(f2fs.name(), "f2fs (-s 2 mode=lfs)");
        assert_eq!(FileSystem::parse("f2fs:mode=lfs:-s 2"), f2fs);
        assert_eq!(FileSystem::parse("ext4"), FileSystem::new("ext4"));
    }

    #[test]
    fn a_users_file_system_is_made_and_checked_by_the_users_programs() {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        let own = |check: &str| FileSystem {
            own: Some(Box::new(OwnPrograms {
                name: "mine".into(),
                make: words("mke2fs -q -F -t ext2 {image}"),
                check: words(check),
            })),
            ..FileSystem::new("ext2")
        };
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let clean = own("e2fsck -fn {image}");
        clean.format(&image, 8 << 20).unwrap();
        assert_eq!((clean.name().as_str(), clean.formatter_digest().is_some()), ("mine", true));
        assert_eq!(Check::of(&clean, &image), Check::Clean { program: "e2fsck".into() });
        assert!(Check::of(&own("false {image}"), &image).has_faults());
        assert!(matches!(Check::of(&own(""), &image), Check::NotChecked { .. }));
        let mut broken = own("");
        broken.mkfs = vec!["nonsense".into()];
        assert!(broken.format(&image, 8 << 20).unwrap_err().to_string().contains("mke2fs"));
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
