//! Programs of this machine's system: file systems' own, which are not on every user's path.

use std::{env, ffi::OsStr, path::PathBuf, process::Command};

/// Where they are besides.
const DIRS: &str = "/usr/sbin:/sbin";

/// A program to be started, which speaks English.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", path()).env("LC_ALL", "C");
    command
}

/// A program that is killed when the thread ends that starts it, however that ends: a guest would go on for ever, with
/// nobody to give it a calendar or a card.
pub fn bound(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Where a program is, if it is here.
pub fn find(program: &str) -> Option<PathBuf> {
    env::split_paths(&path()).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// Where programs are looked for.
fn path() -> String {
    match env::var("PATH") {
        Ok(path) if !path.is_empty() => format!("{path}:{DIRS}"),
        _ => format!("/usr/bin:/bin:{DIRS}"),
    }
}
