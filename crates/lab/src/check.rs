//! Runs each file system's own checker on the volume that an experiment has left.

use std::{io, path::Path, process::Stdio};

use serde::{Deserialize, Serialize};

use crate::{
    programs,
    rivals::{FileSystem, OwnPrograms},
    systems::{OURS, THROUGH_FUSE},
};

/// Maximum length of the recorded output, in bytes.
const SAID_BYTES: usize = 2000;

/// Result of a checker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// No errors were found.
    Clean {
        /// Name of the checker.
        program: String,
    },
    /// Errors were found.
    Faults {
        /// Name of the checker.
        program: String,
        /// End of its output.
        said: String,
    },
    /// The volume was not checked.
    NotChecked {
        /// Reason.
        why: String,
    },
}

impl Check {
    /// Returns true if errors were found.
    pub fn has_faults(&self) -> bool {
        matches!(self, Check::Faults { .. })
    }

    /// Returns true if the volume was not checked, but could be now because the checker is installed.
    pub fn is_due(&self, kind: &str) -> bool {
        let is_here = |(program, _)| programs::find(program).is_some();
        matches!(self, Check::NotChecked { .. }) && checker(kind).is_some_and(is_here)
    }

    /// Checks the volume in `image` without changing it.
    pub fn of(file_system: &FileSystem, image: &Path) -> Check {
        let kind = &file_system.kind;
        let (program, mut command) = match (&file_system.own, checker(kind)) {
            (Some(own), _) if own.check.is_empty() => {
                return Check::NotChecked { why: format!("no checker for {} was named", own.name) };
            }
            (Some(own), _) => (own.check[0].as_str(), OwnPrograms::command(&own.check, image)),
            (None, Some((program, arguments))) => {
                let mut command = programs::command(program);
                command.args(arguments).arg(image);
                (program, command)
            }
            (None, None) => {
                return Check::NotChecked { why: format!("no checker for {kind} exists") };
            }
        };
        let output = match command.stdin(Stdio::null()).output() {
            Ok(output) => output,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Check::NotChecked {
                    why: format!("{program} is not installed; scripts/setup installs it"),
                };
            }
            Err(error) => return Check::NotChecked { why: format!("{program}: {error}") },
        };
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let program = program.to_owned();
        if output.status.code().is_none() {
            return Check::NotChecked { why: format!("{program} was killed") };
        }
        let complains = program == "fsck.f2fs" && !guest::fsck::findings(&said, |_| false).is_empty();
        match output.status.success() && !complains {
            true => Check::Clean { program },
            false => {
                let from = said.char_indices().rev().nth(SAID_BYTES).map_or(0, |(at, _)| at);
                Check::Faults { program, said: said[from..].to_owned() }
            }
        }
    }
}

/// Returns the checker for a type of file system, and the arguments that make it read-only.
fn checker(kind: &str) -> Option<(&'static str, &'static [&'static str])> {
    Some(match kind {
        "ext4" => ("e2fsck", &["-f", "-n"]),
        "f2fs" | OURS | THROUGH_FUSE => ("fsck.f2fs", &["--dry-run"]),
        "vfat" => ("fsck.vfat", &["-n"]),
        "exfat" => ("fsck.exfat", &["-n"]),
        "btrfs" => ("btrfs", &["check", "--readonly"]),
        "xfs" => ("xfs_repair", &["-n", "-f"]),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_clean_until_it_is_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        for kind in ["ext4", "f2fs"] {
            let file_system = FileSystem::new(kind);
            file_system.format(&image, 64 << 20).unwrap();
            assert!(matches!(Check::of(&file_system, &image), Check::Clean { .. }), "{kind}");
            let mut bytes = std::fs::read(&image).unwrap();
            // Metadata of both: bitmaps and tables of ext4's first group, f2fs's NAT.
            bytes[4096..8 << 20].iter_mut().for_each(|byte| *byte ^= 0x5a);
            std::fs::write(&image, bytes).unwrap();
            assert!(matches!(Check::of(&file_system, &image), Check::Faults { .. }), "{kind}");
        }
        let none = Check::of(&FileSystem::new("nilfs2"), &image);
        assert!(matches!(none, Check::NotChecked { .. }) && !none.is_due("nilfs2"));
    }

    #[test]
    fn an_unchecked_volume_is_due_once_its_checker_is_installed() {
        let not_checked = Check::NotChecked { why: "e2fsck is not installed".into() };
        assert!(not_checked.is_due("ext4"));
        assert!(!Check::Clean { program: "e2fsck".into() }.is_due("ext4"));
    }
}
