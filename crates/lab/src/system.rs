//! Programs of this machine's system: file systems' own, which are not on every user's path.

use std::{env, ffi::OsStr, path::PathBuf, process::Command};

/// Further directories with programs.
const DIRS: &str = "/usr/sbin:/sbin";

/// A program to be started, which speaks English.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", path()).env("LC_ALL", "C");
    command
}

/// A program that is killed when the thread that starts it ends, in any way: without its calendar and its
/// card a guest would run forever.
pub fn bound(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Path of a program, if it is installed.
pub fn find(program: &str) -> Option<PathBuf> {
    env::split_paths(&path()).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// Directories in which programs are searched.
fn path() -> String {
    match env::var("PATH") {
        Ok(path) if !path.is_empty() => format!("{path}:{DIRS}"),
        _ => format!("/usr/bin:/bin:{DIRS}"),
    }
}
