//! Mounts of volumes that Linux encrypted, with their keys and without.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io,
    os::unix::{
        ffi::OsStringExt,
        fs::{FileExt, OpenOptionsExt, symlink},
    },
    path::{Path, PathBuf},
    process::Command,
};

use rustix::{fs::OFlags, io::Errno};
use support::{fails, ok};

mod support;

/// An image in a directory of its own, with its key, mounted on `mnt`.
struct Mounted(tempfile::TempDir);

/// Returns true if this host cannot mount, and prints the reason.
fn skipped() -> bool {
    let possible = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !possible {
        eprintln!("skipped: this needs root and /dev/fuse");
    }
    !possible
}

impl Mounted {
    fn new(golden: &str, options: &[&str]) -> Mounted {
        let mounted = Mounted(tempfile::tempdir().expect("a directory"));
        let dir = mounted.0.path();
        let golden =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../testdata/golden/{golden}.img.zst"));
        let packed = File::open(golden).expect("a golden image");
        zstd::stream::copy_decode(packed, File::create(dir.join("card.img")).expect("a file"))
            .expect("a zstd stream");
        fs::write(dir.join("master.key"), [0x5A; 64]).expect("a file");
        fs::write(dir.join("counted.key"), (0x5A..0x9A).collect::<Vec<u8>>()).expect("a file");
        fs::create_dir(dir.join("mnt")).expect("a directory");
        mounted.mount(options);
        mounted
    }

    fn mount(&self, options: &[&str]) {
        ok(self.0.path(), &[&["mount", "card.img", "mnt"], options].concat());
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("mnt").join(name)
    }

    /// Unmounts the volume and waits for the end of the process that served it, which has the image locked.
    fn unmount(&self) {
        let script = "umount mnt && flock --timeout 60 card.img true";
        let run = Command::new("sh").args(["-c", script]).current_dir(self.0.path()).status();
        assert!(run.expect("there is a shell").success());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Only a failed test leaves a mount.
        let _ = Command::new("umount").args(["-q", "-l"]).arg(self.path("")).stderr(io::stderr()).status();
    }
}

/// Everything below a directory: the content of each file, the target of each link, nothing for all others.
fn tree(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut rest) = (BTreeMap::new(), vec![dir.to_owned()]);
    while let Some(at) = rest.pop() {
        for entry in fs::read_dir(at).expect("a directory").map(|entry| entry.expect("an entry")) {
            let (path, kind) = (entry.path(), entry.file_type().expect("its type"));
            let content = if kind.is_symlink() {
                fs::read_link(&path).expect("a target").into_os_string().into_vec()
            } else if kind.is_file() {
                fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
            } else {
                if kind.is_dir() {
                    rest.push(path.clone());
                }
                Vec::new()
            };
            found.insert(path.strip_prefix(dir).expect("it is below").to_owned(), content);
        }
    }
    found
}

/// Asserts that a call failed with an errno.
fn refused<T>(of: &str, result: io::Result<T>, errno: Errno) {
    match result {
        Ok(_) => panic!("{of}: it was not refused"),
        Err(error) => assert_eq!(error.raw_os_error(), Some(errno.raw_os_error()), "{of}: {error}"),
    }
}

fn writing() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    options
}

/// Tries every change of a file in an encrypted directory, and of the directory.
fn assert_refuses_changes(mounted: &Mounted, dir: &Path, file: &Path, errno: Errno) {
    let (new, plain) = (dir.join("new"), mounted.path("plain"));
    refused("to write", writing().open(file), errno);
    refused("to append", OpenOptions::new().append(true).open(file), errno);
    refused("to read and write", OpenOptions::new().read(true).write(true).open(file), errno);
    refused("to write directly", writing().custom_flags(OFlags::DIRECT.bits() as i32).open(file), errno);
    refused("to cut at open", writing().truncate(true).open(file), errno);
    refused(
        "truncate(2)",
        Command::new("truncate").args(["-s", "1"]).arg(file).output().and_then(failed),
        errno,
    );
    refused("to create", File::create(&new), errno);
    refused("to make a directory", fs::create_dir(&new), errno);
    refused("to make a symbolic link", symlink("clear", &new), errno);
    refused("to link into", fs::hard_link(&plain, &new), errno);
    refused("to rename into", fs::rename(&plain, &new), errno);
    refused("to rename over", fs::rename(&plain, file), errno);
    refused("to rename inside", fs::rename(file, &new), errno);
    refused("to rename out", fs::rename(file, mounted.path("new")), errno);
    refused("to copy into", fs::copy(&plain, &new), errno);
    refused(
        "to create without a name",
        writing().custom_flags(OFlags::TMPFILE.bits() as i32).open(dir),
        errno,
    );
    assert!(plain.exists() && !mounted.path("new").exists());
}

/// The error that a tool reports by its message, as C's library spells it.
fn failed(output: std::process::Output) -> io::Result<()> {
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    for errno in [Errno::OPNOTSUPP, Errno::NOKEY] {
        let error = io::Error::from_raw_os_error(errno.raw_os_error());
        let spelled = error.to_string();
        if spelled.split(" (os error").next().is_some_and(|message| told.contains(message)) {
            return Err(error);
        }
    }
    assert!(!output.status.success(), "it was not refused");
    Err(io::Error::other(told))
}

#[test]
fn a_mount_with_the_key_shows_names_and_contents_and_refuses_changes() {
    if skipped() {
        return;
    }
    let mounted = Mounted::new("encrypted", &["--key", "master.key"]);
    let dir = mounted.0.path();
    ok(dir, &["export", "card.img", "expected", "--key", "master.key"]);
    let expected = tree(&dir.join("expected"));
    assert!(expected.len() > 250, "{}", expected.len());
    // The second time, the contents are in the page cache.
    for _ in 0..2 {
        assert!(tree(&mounted.path("")) == expected);
    }
    assert_eq!(fs::symlink_metadata(mounted.path("locked/symlink")).expect("a link").len(), 5);
    let long = &expected[Path::new("locked/long")];
    let mut reading = OpenOptions::new();
    reading.read(true).custom_flags(OFlags::DIRECT.bits() as i32);
    let direct = reading.open(mounted.path("locked/long")).expect("it opens");
    assert!(read_in_pages(&direct) == *long, "past the page cache");
    drop(direct);
    assert_refuses_changes(
        &mounted,
        &mounted.path("locked"),
        &mounted.path("locked/short"),
        Errno::OPNOTSUPP,
    );
    fs::write(mounted.path("beside"), "clear").expect("other files are written");
    fs::remove_file(mounted.path("locked/long")).expect("encrypted files are removed");
    mounted.unmount();
    model::fsck::fsck_image(&dir.join("card.img")).expect("a consistent volume");
    ok(dir, &["export", "card.img", "after", "--key", "master.key"]);
    let mut wanted = expected;
    wanted.remove(Path::new("locked/long"));
    wanted.insert("beside".into(), b"clear".to_vec());
    assert!(tree(&dir.join("after")) == wanted);
}

/// Reads a file in pieces of one page, each into aligned memory.
fn read_in_pages(file: &File) -> Vec<u8> {
    let mut memory = vec![0; 2 * 4096];
    let start = memory.as_ptr().align_offset(4096);
    let page = &mut memory[start..start + 4096];
    let mut content = Vec::new();
    loop {
        let length = file.read_at(page, content.len() as u64).expect("it is readable");
        content.extend_from_slice(&page[..length]);
        if length < 4096 {
            return content;
        }
    }
}

#[test]
fn a_mount_with_the_keys_shows_every_kind_of_policy() {
    if skipped() {
        return;
    }
    let keys = ["--key", "master.key", "--key", "37d1a5a45557972c:counted.key"];
    let mounted = Mounted::new("encrypted-modes", &[&["-o", "ro"], &keys[..]].concat());
    let dir = mounted.0.path();
    ok(dir, &[&["export", "card.img", "expected"], &keys[..]].concat());
    let expected = tree(&dir.join("expected"));
    assert!(tree(&mounted.path("")) == expected);
    let policies = expected.keys().filter(|path| path.ends_with("below/child")).count();
    assert_eq!(policies, 9);
    refused("to write", writing().open(mounted.path("v1-aes-128/prose")), Errno::ROFS);
    mounted.unmount();
}

#[test]
fn a_mount_without_the_key_shows_encoded_names_and_no_content() {
    if skipped() {
        return;
    }
    let mounted = Mounted::new("encrypted", &[]);
    let dir = mounted.0.path();
    let locked = mounted.path("locked");
    let mut names: Vec<String> = fs::read_dir(&locked)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    let mut listed: Vec<String> = ok(dir, &["ls", "card.img:/locked"]).lines().map(str::to_owned).collect();
    listed.sort();
    assert_eq!(names, listed);
    assert!(!names.iter().any(|name| name == "short"));
    let is_file = |name: &&String| locked.join(name).is_file();
    let file = locked.join(names.iter().find(is_file).expect("a file"));
    refused("to read", fs::read(&file), Errno::NOKEY);
    assert!(!locked.join("short").exists());
    assert_refuses_changes(&mounted, &locked, &file, Errno::NOKEY);
    assert_eq!(fs::read(mounted.path("plain")).expect("a plain file"), b"open to all\n");
    mounted.unmount();
    assert_eq!(ok(dir, &["cat", "card.img:/locked/short", "--key", "master.key"]), "secret\n");
}

#[test]
fn verbs_state_that_encrypted_files_are_only_read() {
    let folder = tempfile::tempdir().expect("a directory");
    let dir = folder.path();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden/encrypted.img.zst");
    let image = File::create(dir.join("card.img")).expect("a file");
    zstd::stream::copy_decode(File::open(golden).expect("a golden image"), image).expect("a zstd stream");
    fs::write(dir.join("master.key"), [0x5A; 64]).expect("a file");
    fs::create_dir(dir.join("tree")).expect("a directory");
    fs::write(dir.join("tree/new"), "clear").expect("a file");
    let changes: [&[&str]; 6] = [
        &["cp", "tree/new", "card.img:/locked/new"],
        &["cp", "tree/new", "card.img:/locked/short"],
        &["import", "tree", "card.img:/locked"],
        &["mkdir", "card.img:/locked/new"],
        &["ln", "-s", "clear", "card.img:/locked/new"],
        &["mv", "card.img:/plain", "card.img:/locked/new"],
    ];
    for change in changes {
        let told = fails(dir, &[change, &["--key", "master.key"]].concat());
        assert!(told.contains("flashkit does not write encrypted files yet"), "{change:?}: {told}");
        let told = fails(dir, change);
        assert!(told.contains("the key is missing") || told.contains("not found"), "{change:?}: {told}");
    }
    assert_eq!(ok(dir, &["cat", "card.img:/locked/short", "--key", "master.key"]), "secret\n");
    let names = ok(dir, &["ls", "card.img:/locked", "--key", "master.key"]);
    assert!(!names.contains("new"), "{names}");
}

/// The background process read the key a second time.
#[test]
fn a_key_from_a_pipe_is_read_once_and_stands_on_no_command_line() {
    if skipped() {
        return;
    }
    let digits = "5a".repeat(64);
    let mounted = Mounted::new("encrypted", &["--key", &digits]);
    let dir = mounted.0.path().canonicalize().expect("it exists");
    let lines = fs::read_dir("/proc").expect("proc(5)").filter_map(|process| {
        let line = fs::read(process.ok()?.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).into_owned())
    });
    let lines: Vec<String> =
        lines.filter(|line| line.contains(&*dir.join("mnt").to_string_lossy())).collect();
    assert!(lines.len() == 1 && lines[0].contains("--stays") && !lines[0].contains("5a5a"), "{lines:?}");
    mounted.unmount();
    let script = format!("mkfifo key && printf {digits} > key");
    let mut writer = Command::new("sh").args(["-c", &script]).current_dir(&dir).spawn().expect("a shell");
    while !dir.join("key").exists() {
        std::thread::yield_now();
    }
    mounted.mount(&["--key", "key"]);
    assert!(writer.wait().expect("it has written").success());
    assert_eq!(fs::read(mounted.path("locked/short")).expect("it is readable"), b"secret\n");
    mounted.unmount();
}
