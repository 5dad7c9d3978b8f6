//! `chmod`: changes permissions.

use std::str::FromStr;

use anyhow::{Context, Result};
use f2fs::{
    engine::{Caller, FinalSymlink, SetAttr},
    format::FileType,
};

use crate::{
    below::Below,
    target::{Further, Target},
};

/// Arguments of `chmod`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  flashkit chmod 4755 card.img:/bin/su\n  flashkit chmod -R u=rwX,go=rX card.img:/srv"
)]
pub struct Args {
    /// Permissions in octal, or in chmod's notation: u+x,go-w.
    #[arg(allow_hyphen_values = true)]
    mode: Change,
    /// The image and a path inside it; any number of them, in one image.
    #[arg(value_name = "IMAGE[:PATH]", required = true)]
    targets: Vec<Target>,
    /// Include everything below a directory; links in it are skipped.
    #[arg(short = 'R', long)]
    recursive: bool,
    #[command(flatten)]
    further: Further,
}

/// Changes the permissions.
pub fn run(args: &Args) -> Result<()> {
    Target::change_all(&args.targets, &args.further, |volume, target| {
        let mut below = Below::new(volume, &target.path, FinalSymlink::Follow, args.recursive)?;
        while let Some((ino, kind)) = below.next(volume)? {
            if kind != FileType::Symlink {
                let context = || below.shown();
                let old = volume.stat(ino).with_context(context)?.mode;
                let permissions = Some(args.mode.apply(old, kind));
                let set = SetAttr { permissions, ..SetAttr::default() };
                volume.begin(Caller::ADMIN).set_attr(ino, &set).with_context(context)?;
            }
        }
        Ok(())
    })
}

/// A change of permissions: octal digits, or clauses of classes, operator and permissions, as POSIX defines
/// for chmod.
#[derive(Debug, Clone)]
enum Change {
    /// Exact permissions. Unlike with GNU's chmod, directories do not keep their set-id bits.
    Octal(u16),
    /// Clauses, applied in order.
    Clauses(Vec<Clause>),
}

/// One operator with the letters before and after it.
#[derive(Debug, Clone)]
struct Clause {
    who: String,
    how: char,
    what: String,
}

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Change, String> {
        if let Ok(permissions) = octal(text) {
            return Ok(Change::Octal(permissions));
        }
        let mut clauses = Vec::new();
        for part in text.split(',') {
            let (who, mut rest) = part.split_at(part.find(['+', '-', '=']).unwrap_or(part.len()));
            let mut is_known = !rest.is_empty() && who.chars().all(|c| "ugoa".contains(c));
            while let Some(how) = rest.chars().next() {
                let end = rest[1..].find(['+', '-', '=']).map_or(rest.len(), |at| at + 1);
                let what = &rest[1..end];
                is_known &= matches!(what, "u" | "g" | "o") || what.chars().all(|c| "rwxXst".contains(c));
                clauses.push(Clause { who: who.into(), how, what: what.into() });
                rest = &rest[end..];
            }
            if !is_known {
                return Err("write permissions in octal (644, 4755) or as changes (u+x,go-w)".into());
            }
        }
        Ok(Change::Clauses(clauses))
    }
}

impl Change {
    /// Returns a file's permissions after the change.
    fn apply(&self, old: u16, kind: FileType) -> u16 {
        match self {
            Change::Octal(permissions) => *permissions,
            Change::Clauses(clauses) => {
                clauses.iter().fold(old & 0o7777, |mode, clause| clause.apply(mode, kind))
            }
        }
    }
}

impl Clause {
    fn apply(&self, old: u16, kind: FileType) -> u16 {
        let is_directory = kind == FileType::Directory;
        let everybody = self.who.is_empty() || self.who.contains('a');
        // Bits of the selected classes, including the set-id and sticky bits.
        let classes = [('u', 0o4700), ('g', 0o2070), ('o', 0o1007)];
        let meant = classes.iter().filter(|(class, _)| everybody || self.who.contains(*class));
        let meant = meant.fold(0, |bits, (_, class)| bits | class);
        let what = self.what.chars().fold(0, |bits, letter| {
            bits | match letter {
                'r' => 0o444,
                'w' => 0o222,
                'x' => 0o111,
                'X' if is_directory || old & 0o111 != 0 => 0o111,
                's' => 0o6000,
                't' => 0o1000,
                'u' => (old >> 6 & 7) * 0o111,
                'g' => (old >> 3 & 7) * 0o111,
                'o' => (old & 7) * 0o111,
                _ => 0,
            }
        }) & meant;
        match self.how {
            '+' => old | what,
            '-' => old & !what,
            // Directories keep set-id bits that are not named, as with GNU's chmod.
            _ if is_directory => old & !(meant & 0o1777) | what,
            _ => old & !meant | what,
        }
    }
}

/// Parses permissions in octal digits.
pub fn octal(text: &str) -> Result<u16, String> {
    match u16::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err("write permissions in octal: 644, 4755".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, process::Command};

    use super::*;

    #[test]
    fn changes_equal_those_of_chmod() {
        let folder = tempfile::tempdir().unwrap();
        let (file, dir) = (folder.path().join("file"), folder.path().join("dir"));
        fs::write(&file, "").unwrap();
        fs::create_dir(&dir).unwrap();
        let changes = [
            "644",
            "4755",
            "u+x,go-w",
            "a=rX",
            "g=u",
            "o=g",
            "ug+s,o+t",
            "-x",
            "o=",
            "u+w-x",
            "+t",
            "u=rws",
            "g+u-w",
            "a-s",
            "=",
            "go=rX,u+w",
            "a+X",
        ];
        for change in changes {
            for old in [0o600, 0o640, 0o755, 0o4755, 0o2664, 0o7777, 0] {
                let octal = change.parse::<u16>().is_ok();
                for path in [&file, &dir].into_iter().take(if octal { 1 } else { 2 }) {
                    fs::set_permissions(path, PermissionsExt::from_mode(old)).unwrap();
                    // With a mask of 0, a change without classes applies to all of them.
                    let mut chmod = Command::new("sh");
                    let status = chmod.args(["-c", "umask 0; chmod \"$@\"", "-", "--", change]);
                    assert!(status.arg(path).status().unwrap().success());
                    let wanted = fs::metadata(path).unwrap().permissions().mode() as u16 & 0o7777;
                    let kind = if path == &dir { FileType::Directory } else { FileType::Regular };
                    let got = change.parse::<Change>().unwrap().apply(old as u16, kind);
                    assert_eq!(got, wanted, "{change} on {old:o} of {}: {got:o}", path.display());
                }
            }
        }
        for wrong in ["", "9", "77777", "u+q", "x", "u", "8+x", "u+x,", ",u+x", "u+xu", "u+ux", "u+ü"] {
            assert!(wrong.parse::<Change>().is_err(), "{wrong}");
        }
    }
}
