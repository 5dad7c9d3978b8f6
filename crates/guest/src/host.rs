//! Programs of the host, run in a guest that sees the host's files.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{Bytes, Op};

/// Mount point of the host's files in the guest.
pub const DIR: &str = "/host";
/// Loads a program with its libraries.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

/// Returns the operation that runs one of the host's programs in the guest, with the host's libraries.
///
/// # Errors
/// There is no such program, or no loader.
pub fn program(program: &str, arguments: &[&str]) -> io::Result<Op> {
    // Symbolic links with an absolute path would lead into the guest's root.
    let in_guest = |path: &Path| {
        let path = std::fs::canonicalize(path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        Ok::<String, io::Error>(format!("{DIR}{}", path.display()))
    };
    let program = Path::new(program);
    let (loader, in_host) = (in_guest(Path::new(LOADER))?, in_guest(program)?);
    let listed = Command::new(LOADER).arg("--list").arg(program).output()?;
    let dirs = library_dirs(&String::from_utf8_lossy(&listed.stdout));
    let libraries = dirs.iter().map(|dir| in_guest(dir)).collect::<io::Result<Vec<_>>>()?.join(":");
    let all = ["--library-path", &libraries, &in_host].into_iter().chain(arguments.iter().copied());
    Ok(Op::Execute { program: loader.as_str().into(), arguments: all.map(Bytes::from).collect() })
}

/// Returns the directories in the loader's list of libraries, which has lines like `libc.so.6 =>
/// /lib/libc.so.6 (0x7f00)`.
fn library_dirs(list: &str) -> BTreeSet<PathBuf> {
    let paths = list.lines().filter_map(|line| line.split_once(" => ")?.1.split_whitespace().next());
    paths.filter_map(|path| Some(Path::new(path).parent()?.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_as_the_loader_finds_them() {
        let list = "\tlinux-vdso.so.1 (0x7ffe)\n\tlibc.so.6 => /lib/x86/libc.so.6 (0x7f)\n\
                    \tlibceph.so.2 => /usr/lib/ceph/libceph.so.2 (0x7f)\n\t/lib64/ld-linux.so.2 (0x7f)\n";
        let dirs: Vec<_> = library_dirs(list).into_iter().collect();
        assert_eq!(dirs, [Path::new("/lib/x86"), Path::new("/usr/lib/ceph")]);
    }
}
