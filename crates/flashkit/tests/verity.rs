//! `verity`: files are sealed, measured and checked as by fsverity(1), also through a mount.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use guest::ioctl;
use serde_json::Value;
use support::{fails, flashkit, ok};

mod support;

/// Makes `card.img` with a file of 600,000 bytes whose blocks differ, a short one, and an empty one.
fn filled(dir: &Path, features: &str) {
    fs::create_dir_all(dir.join("tree/below")).expect("a directory");
    fs::write(dir.join("tree/large"), large()).expect("a file");
    fs::write(dir.join("tree/below/short"), "short\n").expect("a file");
    fs::write(dir.join("tree/below/empty"), "").expect("a file");
    let _ = fs::remove_file(dir.join("tree/below/same"));
    fs::hard_link(dir.join("tree/large"), dir.join("tree/below/same")).expect("a link");
    ok(dir, &["mkfs", "-q", "-f", "card.img", "--size", "64M", "-O", features, "--from", "tree"]);
}

fn large() -> Vec<u8> {
    (0..600_000 / 16).flat_map(|n| format!("{n:015}\n").into_bytes()).collect()
}

/// Calls fsverity(1). Returns `None` if it is not installed.
fn fsverity(dir: &Path, arguments: &[&str]) -> Option<Output> {
    let output = Command::new("fsverity").args(arguments).current_dir(dir).output().ok();
    if output.is_none() {
        eprintln!("skipped: fsverity is not installed");
    }
    output
}

fn text(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Returns the exit code of a check, and what it prints.
fn check(dir: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = flashkit(dir, &[&["verity", "check"], arguments].concat());
    (output.status.code(), String::from_utf8(output.stdout).expect("text"))
}

/// Changes the byte at this place of the image.
fn flip(dir: &Path, at: usize) {
    let mut image = fs::read(dir.join("card.img")).expect("the image");
    image[at] ^= 1;
    fs::write(dir.join("card.img"), image).expect("it is written");
}

/// Returns the place of a text in the image, of which it has one.
fn place_of(dir: &Path, text: &[u8]) -> usize {
    let image = fs::read(dir.join("card.img")).expect("the image");
    let mut places = image.windows(text.len()).enumerate().filter(|(_, window)| *window == text);
    let (at, _) = places.next().expect("it is there");
    assert!(places.next().is_none(), "it is there once");
    at
}

#[test]
fn files_are_sealed_and_measured_as_by_fsverity() {
    let folder = tempfile::tempdir().expect("a directory");
    let dir = folder.path();
    filled(dir, "verity");
    let told = fails(dir, &["verity", "measure", "card.img:/large"]);
    assert!(told.contains("card.img:/large: not sealed with fs-verity"), "{told}");
    let ways: [(&str, &[&str]); 3] = [
        ("large", &[]),
        ("below/short", &["--hash-alg", "sha512", "--block-size", "1024", "--salt", "00a1FF"]),
        ("below/empty", &["--block-size=65536"]),
    ];
    for (name, way) in ways {
        let target = format!("card.img:/{name}");
        let told = ok(dir, &[&["verity", "enable", "-q", &target], way].concat());
        assert!(told.is_empty(), "{told}");
        let told = ok(dir, &["verity", "measure", &target]);
        let (digest, path) = told.trim_end().split_once(' ').expect("a digest and a path");
        assert_eq!(path, target);
        let file = format!("tree/{name}");
        if let Some(output) = fsverity(dir, &[&["digest", &file], way].concat()) {
            assert_eq!(text(output).split(' ').next(), Some(digest), "{name}");
        }
        assert_eq!(
            ok(dir, &["cat", &target]).as_bytes(),
            fs::read(dir.join(file)).expect("a file"),
            "{name}"
        );
    }
    let measured = ok(dir, &["verity", "measure", "--json", "card.img:/below/short", "card.img:/large"]);
    let measured: Value = serde_json::from_str(&measured).expect("JSON");
    assert_eq!(
        (
            &measured[0]["path"],
            &measured[0]["hash_algorithm"],
            &measured[0]["salt"],
            &measured[0]["block_bytes"]
        ),
        (&"/below/short".into(), &"sha512".into(), &"00a1ff".into(), &1024.into())
    );
    assert_eq!((&measured[1]["size_bytes"], &measured[1]["signature_bytes"]), (&600_000.into(), &0.into()));
    let output = flashkit(dir, &["verity", "measure", "card.img:/below", "card.img:/large"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1, "the other is printed");

    let told = fails(dir, &["verity", "enable", "card.img:/large"]);
    assert!(told.contains("card.img:/large: sealed already"), "{told}");
    let told = fails(dir, &["verity", "enable", "card.img:/below"]);
    assert!(told.contains("not a regular file"), "{told}");
    fails(dir, &["cp", "tree/below/short", "card.img:/large"]);
    model::fsck::fsck_image(&dir.join("card.img")).expect("a consistent volume");
    let (code, told) = check(dir, &["card.img"]);
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(told, "3 regular files, 3 of them sealed; 585.94 KiB of their content match\n");
}

#[test]
fn a_tree_is_sealed_at_once_or_not_at_all() {
    let folder = tempfile::tempdir().expect("a directory");
    let dir = folder.path();
    filled(dir, "verity");
    ok(dir, &["verity", "enable", "card.img:/below/short"]);
    let made = ok(dir, &["verity", "enable", "-R", "--json", "card.img:/"]);
    let made: Value = serde_json::from_str(&made).expect("JSON");
    let mut paths: Vec<&str> =
        made.as_array().expect("a list").iter().filter_map(|file| file["path"].as_str()).collect();
    paths.sort_unstable();
    assert!(paths == ["/below/empty", "/below/same"] || paths == ["/below/empty", "/large"], "{paths:?}");
    let (code, told) = check(dir, &["card.img:/below", "card.img:/large"]);
    assert_eq!((code, told.starts_with("3 regular files, 3 of them sealed")), (Some(0), true), "{told}");
    filled(dir, "verity");
    let told = fails(dir, &["verity", "enable", "card.img:/large", "card.img:/none"]);
    assert!(told.contains("card.img:/none: not found"), "{told}");
    let (_, told) = check(dir, &["card.img"]);
    assert!(told.starts_with("3 regular files, 0 of them sealed"), "{told}");
    ok(dir, &["mkfs", "-q", "plain.img", "--size", "64M", "--from", "tree"]);
    let told = fails(dir, &["verity", "enable", "plain.img:/large"]);
    assert!(told.contains("tune -O verity"), "{told}");
}

#[test]
fn a_check_lists_each_damaged_place_and_has_the_codes_of_fsck() {
    let folder = tempfile::tempdir().expect("a directory");
    let dir = folder.path();
    filled(dir, "verity");
    let whole = fs::read(dir.join("card.img")).expect("the image");
    ok(dir, &["verity", "enable", "card.img:/large", "card.img:/below/short"]);
    for line in [1000, 1200, 20_000] {
        let at = place_of(dir, format!("{line:015}\n").as_bytes());
        flip(dir, at);
    }
    let (code, told) = check(dir, &["card.img"]);
    assert_eq!(code, Some(4), "{told}");
    let name = if told.starts_with("/large") { "/large" } else { "/below/same" };
    let expected = format!(
        "{name}: content, bytes 12288 to 20479: does not match the Merkle tree\n\
         {name}: content, bytes 319488 to 323583: does not match the Merkle tree\n\
         3 regular files, 2 of them sealed; 573.94 KiB of their content match\n\
         1 damaged file, 2 damaged places\n"
    );
    assert_eq!(told, expected);
    let (code, told) = check(dir, &["card.img", "--json"]);
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!((code, &told["clean"], &told["damaged_places"]), (Some(4), &false.into(), &2.into()));
    let place = &told["damage"][0];
    assert_eq!(
        (&place["structure"], &place["from_byte"], &place["to_byte"]),
        (&"content".into(), &12_288.into(), &20_480.into())
    );
    let (code, told) = check(dir, &["card.img:/below/short", "card.img:/below/empty"]);
    assert_eq!(code, Some(0), "{told}");
    let told = fails(dir, &["cat", "card.img:/large"]);
    assert!(told.contains("does not match the verity tree"), "{told}");

    // The first hash of the lower level: that of the first block.
    fs::write(dir.join("card.img"), whole).expect("it is written");
    ok(dir, &["verity", "enable", "card.img:/large"]);
    let tree = dir.join("tree.bin");
    if fsverity(dir, &["digest", "tree/large", "--out-merkle-tree", "tree.bin"]).is_some() {
        let tree = fs::read(tree).expect("a tree");
        let at = place_of(dir, &tree[4096..4096 + 32]);
        flip(dir, at);
        let (code, told) = check(dir, &["card.img:/large"]);
        assert_eq!(code, Some(4), "{told}");
        let expected = "/large: level 0 of the Merkle tree, block 0: does not match the block above it; bytes 0 to 524287 \
                        of the content cannot be checked\n";
        assert!(told.starts_with(expected), "{told}");
    }
    for (arguments, wanted) in
        [(&["none.img"][..], 8), (&["card.img:/none"], 8), (&["card.img", "--none"], 16)]
    {
        assert_eq!(check(dir, arguments).0, Some(wanted), "{arguments:?}");
    }
}

#[test]
fn encrypted_files_are_sealed_and_need_their_key_to_be_checked() {
    let folder = tempfile::tempdir().expect("a directory");
    let dir = folder.path();
    filled(dir, "verity,encrypt");
    fs::write(dir.join("master.key"), [0x5A; 64]).expect("a file");
    let key = ["--key", "master.key"];
    ok(dir, &[&["encrypt", "card.img:/private"], &key[..]].concat());
    ok(dir, &[&["cp", "tree/large", "card.img:/private/secret"], &key[..]].concat());
    fails(dir, &["verity", "enable", "-R", "card.img:/private"]);
    ok(dir, &[&["verity", "enable", "card.img:/private/secret"], &key[..]].concat());
    ok(dir, &["verity", "enable", "card.img:/large"]);
    // What is measured is the clear content.
    let digest = |path: &str| {
        let told = ok(dir, &[&["verity", "measure", path], &key[..]].concat());
        told.split(' ').next().expect("a digest").to_owned()
    };
    assert_eq!(digest("card.img:/private/secret"), digest("card.img:/large"));
    let (code, told) = check(dir, &["card.img", "--key", "master.key"]);
    assert_eq!((code, told.contains("2 of them sealed; 1.14 MiB")), (Some(0), true), "{told}");
    let (code, told) = check(dir, &["card.img"]);
    assert_eq!((code, told.contains("1 sealed file could not be checked")), (Some(8), true), "{told}");
    model::fsck::fsck_image(&dir.join("card.img")).expect("a consistent volume");
}

/// Returns true if this host cannot mount, and prints the reason.
fn skipped() -> bool {
    let possible = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !possible {
        eprintln!("skipped: this needs root and /dev/fuse");
    }
    !possible
}

/// Unmounts on drop, which only a failed test leaves to it.
struct Mount<'d>(&'d Path);

impl Mount<'_> {
    fn unmount(&self) {
        let script = "umount mnt && flock --timeout 60 card.img true";
        let run = Command::new("sh").args(["-c", script]).current_dir(self.0).status();
        assert!(run.expect("there is a shell").success());
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let mut umount = Command::new("umount");
        let _ = umount.args(["-q", "-l", "mnt"]).current_dir(self.0).stderr(std::io::stderr()).status();
    }
}

#[test]
fn fsverity_seals_and_measures_files_of_a_mount() {
    let folder = tempfile::tempdir().expect("a directory");
    let dir = folder.path();
    if skipped() || fsverity(dir, &["--version"]).is_none() {
        return;
    }
    filled(dir, "verity");
    fs::create_dir(dir.join("mnt")).expect("a directory");
    ok(dir, &["mount", "card.img", "mnt"]);
    let mount = Mount(dir);
    let run = |arguments: &[&str]| text(fsverity(dir, arguments).expect("it is installed"));
    let refused = |arguments: &[&str]| {
        let output = fsverity(dir, arguments).expect("it is installed");
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused(&["measure", "mnt/large"]).contains("No data available"));
    fs::write(dir.join("signature"), [7; 300]).expect("a file");
    let signed = ["--signature", "signature", "--salt", "aabb", "--hash-alg", "sha512"];
    run(&[&["enable", "mnt/below/short"], &signed[..]].concat());
    run(&["enable", "mnt/large"]);
    assert!(refused(&["enable", "mnt/large"]).contains("exists"));
    let writer = fs::OpenOptions::new().write(true).open(dir.join("mnt/below/empty")).expect("it opens");
    assert!(refused(&["enable", "mnt/below/empty"]).contains("Text file busy"));
    drop(writer);
    run(&["enable", "mnt/below/empty", "--block-size", "1024"]);
    for (name, way) in
        [("large", &[][..]), ("below/short", &signed[2..]), ("below/empty", &["--block-size=1024"])]
    {
        let (inside, outside) = (format!("mnt/{name}"), format!("tree/{name}"));
        let measured = run(&["measure", &inside]);
        let digest = run(&[&["digest", &outside], way].concat());
        assert_eq!(measured.split(' ').next(), digest.split(' ').next(), "{name}");
        assert_eq!(
            fs::read(dir.join(&inside)).expect("it matches"),
            fs::read(dir.join(outside)).expect("a file")
        );
        let told = ioctl::measure_verity(fs::File::open(dir.join(inside)).expect("it opens"));
        assert_eq!(Some(&*told.expect("a digest")), measured.split(' ').next(), "{name}");
        let opened = fs::OpenOptions::new().write(true).open(dir.join("mnt").join(name));
        assert_eq!(opened.map(drop).map_err(|error| error.kind()), Err(std::io::ErrorKind::PermissionDenied));
    }
    run(&["digest", "tree/large", "--out-merkle-tree", "tree.bin", "--out-descriptor", "descriptor.bin"]);
    for (what, file) in [("merkle_tree", "tree.bin"), ("descriptor", "descriptor.bin")] {
        let dumped = fsverity(dir, &["dump_metadata", what, "mnt/large"]).expect("it is installed");
        assert!(dumped.stdout == fs::read(dir.join(file)).expect("a file"), "{what}");
    }
    let dumped = fsverity(dir, &["dump_metadata", "signature", "mnt/below/short"]).expect("it is installed");
    assert_eq!(dumped.stdout, [7; 300]);
    mount.unmount();
    let (code, told) = check(dir, &["card.img"]);
    assert_eq!((code, told.starts_with("3 regular files, 3 of them sealed")), (Some(0), true), "{told}");
    let measured = ok(dir, &["verity", "measure", "--json", "card.img:/below/short"]);
    let measured: Value = serde_json::from_str(&measured).expect("JSON");
    assert_eq!(measured[0]["signature_bytes"], 300);
    model::fsck::fsck_image(&dir.join("card.img")).expect("a consistent volume");
}
