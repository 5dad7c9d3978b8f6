//! Mounts of volumes that Linux encrypted, with their keys and without.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::{
        ffi::OsStringExt,
        fs::{FileExt, OpenOptionsExt, symlink},
    },
    path::{Path, PathBuf},
    process::Command,
};

use guest::ioctl;
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
fn refused<T>(of: &str, result: Result<T, impl Into<io::Error>>, errno: Errno) {
    match result.map_err(Into::into) {
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
fn a_mount_with_the_key_shows_names_and_contents_and_changes_them() {
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
    let mut wanted = expected;
    change_through(&mounted, &mut wanted);
    assert!(tree(&mounted.path("")) == wanted, "before the unmount");
    mounted.unmount();
    model::fsck::fsck_image(&dir.join("card.img")).expect("a consistent volume");
    ok(dir, &["export", "card.img", "after", "--key", "master.key"]);
    assert!(tree(&dir.join("after")) == wanted);
    let device = fs::read(dir.join("card.img")).expect("the image");
    assert!(!device.windows(SECRET.len()).any(|window| window == SECRET), "clear text");
    // The second mount reads what the first one has encrypted.
    mounted.mount(&["--key", "master.key"]);
    assert!(tree(&mounted.path("")) == wanted, "mounted again");
    mounted.unmount();
}

/// A text that must be nowhere on the device.
const SECRET: &[u8] = b"a secret that is encrypted before it is written";

/// Changes files and names of an encrypted directory through a mount, and a map of them in the same way.
fn change_through(mounted: &Mounted, wanted: &mut BTreeMap<PathBuf, Vec<u8>>) {
    let at = |name: &str| mounted.path(&format!("locked/{name}"));
    let named = |name: &str| PathBuf::from(format!("locked/{name}"));
    fs::write(at("new"), SECRET.repeat(2000)).expect("a new file");
    let new = writing().open(at("new")).expect("it opens");
    new.write_at(SECRET, 5000).expect("it is overwritten");
    new.sync_all().expect("an fsync");
    new.set_len(60_001).expect("it is cut");
    let mut content = SECRET.repeat(2000);
    content[5000..5000 + SECRET.len()].copy_from_slice(SECRET);
    content.truncate(60_001);
    wanted.insert(named("new"), content);
    let direct = writing().custom_flags(OFlags::DIRECT.bits() as i32).open(at("long")).expect("it opens");
    direct.write_at(SECRET, 8192).expect("past the page cache");
    let long = wanted.get_mut(&named("long")).expect("it is there");
    long[8192..8192 + SECRET.len()].copy_from_slice(SECRET);
    let mut appending = OpenOptions::new().append(true).open(at("short")).expect("it opens");
    appending.write_all(SECRET).expect("it grows");
    wanted.get_mut(&named("short")).expect("it is there").extend(SECRET);
    fs::create_dir(at("below")).expect("a directory");
    fs::copy(at("new"), at("below/copy")).expect("a copy");
    let copied = wanted[&named("new")].clone();
    wanted.extend([(named("below"), Vec::new()), (named("below/copy"), copied)]);
    let target = String::from_utf8(SECRET.repeat(3)).expect("text");
    symlink(&target, at("link")).expect("a link");
    wanted.insert(named("link"), target.into_bytes());
    fs::hard_link(at("short"), at("below/second")).expect("another name");
    let short = wanted[&named("short")].clone();
    wanted.insert(named("below/second"), short);
    fs::rename(at("empty"), at(&"m".repeat(255))).expect("a long name");
    let moved = wanted.remove(&named("empty")).expect("it was there");
    wanted.insert(named(&"m".repeat(255)), moved);
    refused("to rename into", fs::rename(mounted.path("plain"), at("plain")), Errno::XDEV);
    refused("to link into", fs::hard_link(mounted.path("plain"), at("plain")), Errno::XDEV);
    fs::rename(at("dir/child"), mounted.path("left")).expect("a file leaves");
    let left = wanted.remove(&named("dir/child")).expect("it was there");
    wanted.insert("left".into(), left);
    fs::remove_file(at("n".repeat(255).as_str())).expect("it is removed");
    wanted.remove(&named(&"n".repeat(255)));
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
fn verbs_write_encrypted_files_with_the_key_only() {
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
    fs::write(dir.join("other.key"), [0x5B; 64]).expect("a file");
    for change in changes {
        let told = fails(dir, change);
        assert!(told.contains("the key is missing") || told.contains("not found"), "{change:?}: {told}");
        let told = fails(dir, &[change, &["--key", "other.key"]].concat());
        assert!(told.contains("none of those given") || told.contains("not found"), "{change:?}: {told}");
    }
    let before = ok(dir, &["ls", "card.img:/locked", "--key", "master.key"]);
    assert!(!before.contains("new"), "{before}");
    let key = ["--key", "master.key"];
    ok(dir, &[&["cp", "tree/new", "card.img:/locked/new"], &key[..]].concat());
    ok(dir, &[&["cp", "tree/new", "card.img:/locked/short"], &key[..]].concat());
    ok(dir, &[&["mkdir", "card.img:/locked/made"], &key[..]].concat());
    ok(dir, &[&["import", "tree", "card.img:/locked/made"], &key[..]].concat());
    ok(dir, &[&["ln", "-s", "new", "card.img:/locked/link"], &key[..]].concat());
    ok(dir, &[&["mv", "card.img:/locked/long", "card.img:/locked/made/long"], &key[..]].concat());
    let told = fails(dir, &[&["mv", "card.img:/plain", "card.img:/locked/plain"], &key[..]].concat());
    assert!(told.contains("takes only files and directories with its encryption policy"), "{told}");
    for path in ["new", "short", "made/new", "link"] {
        let path = format!("card.img:/locked/{path}");
        assert_eq!(ok(dir, &["cat", &path, "--key", "master.key"]), "clear", "{path}");
        fails(dir, &["cat", &path]);
    }
    model::fsck::fsck_image(&dir.join("card.img")).expect("a consistent volume");
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
    assert!(lines.iter().any(|line| line.contains("--stays")), "{lines:?}");
    assert!(lines.iter().all(|line| !line.contains("5a5a")), "{lines:?}");
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

/// A policy as Linux's guests set it in the judge's machine.
const POLICY: guest::op::Policy = guest::op::Policy::USUAL;

#[test]
fn programs_add_and_remove_keys_of_a_mount_and_set_policies() {
    if skipped() {
        return;
    }
    let mounted = Mounted::new("encrypted", &[]);
    let dir = mounted.0.path();
    let open = |name: &str| File::open(mounted.path(name)).expect("it opens");
    let (root, short) = (open("."), mounted.path("locked/short"));
    assert!(!short.exists());
    let listed =
        || fs::read_dir(mounted.path("locked")).expect("a directory").flatten().map(|e| e.file_name());
    let encoded: Vec<_> = listed().collect();
    assert!(!encoded.contains(&"short".into()));
    let of_locked = ioctl::encryption_policy(open("locked")).expect("a policy, without the key");
    let id = ioctl::add_encryption_key(&root, &[0x5A; 64], None).expect("a key");
    assert_eq!(POLICY.argument(&id), of_locked);
    assert_eq!(ioctl::encryption_key_status(&root, &id).expect("its state"), 2);
    assert_eq!(fs::read(&short).expect("the name and the content"), b"secret\n");
    assert!(listed().any(|name| name == "short") && listed().all(|name| !encoded.contains(&name)));
    let nonce = ioctl::encryption_nonce(open("locked/short")).expect("a nonce");
    assert_ne!(nonce, ioctl::encryption_nonce(open("locked")).expect("a nonce"));
    refused("a policy of a plain file", ioctl::encryption_policy(open("plain")), Errno::NODATA);

    fs::create_dir(mounted.path("made")).expect("a directory");
    let made = open("made");
    ioctl::set_encryption_policy(&made, &POLICY, &id).expect("an empty directory");
    assert_eq!(ioctl::encryption_policy(&made).expect("a policy"), of_locked);
    let other = guest::op::Policy { contents: 9, names: 9, ..POLICY };
    refused("another policy", ioctl::set_encryption_policy(&made, &other, &id), Errno::EXIST);
    refused("a full directory", ioctl::set_encryption_policy(&root, &POLICY, &id), Errno::NOTEMPTY);
    let (file, content) = (mounted.path("made/file"), SECRET.repeat(500));
    fs::write(&file, &content).expect("a file");

    let writer = writing().open(&file).expect("it opens");
    writer.write_at(b"S", 0).expect("dirty data of the kernel");
    assert_eq!(ioctl::remove_encryption_key(&root, &id).expect("it is busy"), 1);
    assert_eq!(ioctl::encryption_key_status(&root, &id).expect("its state"), 2);
    drop(writer);
    while ioctl::remove_encryption_key(&root, &id).expect("a state") != 0 {
        // The kernel tells of the end of a writer later than close(2).
        std::thread::yield_now();
    }
    assert_eq!(ioctl::encryption_key_status(&root, &id).expect("its state"), 1);
    assert!(!file.exists() && !short.exists());
    assert_eq!(listed().collect::<Vec<_>>(), encoded, "names from before the removal");
    refused("to create without the key", File::create(mounted.path("made/new")), Errno::NOKEY);
    refused("a second removal", ioctl::remove_encryption_key(&root, &id), Errno::NOKEY);
    let wrong = ioctl::add_encryption_key(&root, &[0x5B; 64], None).expect("another key");
    assert!(wrong != id && !file.exists());
    let again = ioctl::add_encryption_key(&root, &[0x5A; 64], None).expect("the key");
    assert_eq!(again, id);
    let mut wanted = content;
    wanted[0] = b'S';
    assert!(fs::read(&file).expect("the content") == wanted);
    drop((root, made));
    mounted.unmount();
    model::fsck::fsck_image(&dir.join("card.img")).expect("a consistent volume");
    let image = fs::read(dir.join("card.img")).expect("the image");
    assert!(!image.windows(SECRET.len()).any(|window| window == SECRET), "clear text");
}
