//! System programs of the host, such as those of file systems, which are not in every user's PATH.

use std::{env, ffi::OsStr, path::PathBuf, process::Command};

/// Additional directories to search for programs.
const DIRS: &str = "/usr/sbin:/sbin";

/// Creates the command of a program, with messages in English.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", path()).env("LC_ALL", "C");
    command
}

/// Creates the command of a program that is killed when the thread that started it ends. Otherwise a guest
/// without its time-travel server and card would run for ever.
pub fn bound(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Returns the path of a program, if it is installed.
pub fn find(program: &str) -> Option<PathBuf> {
    env::split_paths(&path()).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// Returns the search path for programs.
fn path() -> String {
    match env::var("PATH") {
        Ok(path) if !path.is_empty() => format!("{path}:{DIRS}"),
        _ => format!("/usr/bin:/bin:{DIRS}"),
    }
}
