//! Linux mounts what our links make for the command lines of callers, and reads what they load.

use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use xtask::trial::linux_recovery;

const MKFS_LINES: &str = include_str!("../../testdata/drop-in/mkfs-lines");
/// Size of the images, in bytes.
const IMAGE_BYTES: u64 = 200 << 20;
/// Command lines that load a directory, as AOSP's mkf2fsuserimg.sh and Buildroot write them.
const SLOAD_LINES: [(&str, &str); 2] = [
    ("make_f2fs -g android -l data IMG", "sload_f2fs -f tree -t /data -T 1700000000 IMG"),
    ("mkfs.f2fs -f -l rootfs IMG", "sload.f2fs -f tree IMG"),
];

/// The program that the tests of the workspace are built with; `None` if it is not built.
fn program() -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    Some(test.parent()?.parent()?.join("flashkit")).filter(|path| path.exists())
}

/// Runs a line of a shell script with the links first in the path.
fn run(dir: &Path, line: &str) {
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", dir.join("links").display());
    let output =
        Command::new("sh").args(["-c", line]).current_dir(dir).env("PATH", path).output().expect("sh");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn linux_mounts_what_the_links_make() {
    let Some(program) = program() else {
        eprintln!("skipped: cargo build -p flashkit makes the program that this tests");
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let (links, tree) = (dir.path().join("links"), dir.path().join("tree/etc"));
    fs::create_dir(&links).expect("a directory");
    for name in ["mkfs.f2fs", "make_f2fs", "sload.f2fs", "sload_f2fs"] {
        symlink(&program, links.join(name)).expect("a link");
    }
    fs::create_dir_all(&tree).expect("a directory");
    fs::write(tree.join("name"), vec![b'n'; 300_000]).expect("a file");
    symlink("name", tree.join("link")).expect("a link");
    let mut images = Vec::new();
    let mkfs = MKFS_LINES.lines().filter(|line| !line.starts_with('#')).map(|line| (line, None));
    for (line, load) in mkfs.chain(SLOAD_LINES.map(|(line, load)| (line, Some(load)))) {
        let name = format!("{}.img", images.len());
        let image = dir.path().join(&name);
        // With -S, the call sets the size.
        let bytes = if line.contains("-S ") { 0 } else { IMAGE_BYTES };
        File::create(&image).and_then(|file| file.set_len(bytes)).expect("an image");
        for line in [Some(line), load].into_iter().flatten() {
            run(dir.path(), &line.replace("IMG", &name));
        }
        images.push(image);
    }
    linux_recovery::compare(&images).expect("Linux reads what the engine reads");
}
