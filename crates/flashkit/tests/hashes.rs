//! Volumes with a hash tree of dm-verity, which veritysetup makes.

mod support;

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
    process::Command,
};

use support::{fails, flashkit, ok};

/// Makes a volume with a file of noise, and a hash tree in a file of its own. Returns the root hash and the place of the
/// file's content in the image; None with a message without veritysetup.
fn make(dir: &Path) -> Option<(String, u64)> {
    let noise: Vec<u8> =
        (0..65_536u64).flat_map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()).collect();
    fs::create_dir(dir.join("tree")).unwrap();
    fs::write(dir.join("tree/noise"), &noise).unwrap();
    fs::write(dir.join("tree/note"), "a note\n").unwrap();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M", "--from", "tree"]);
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let format = ["format", "v.img", "hashes"];
    let output = match Command::new("veritysetup").args(format).current_dir(dir).env("PATH", path).output() {
        Err(_) => {
            eprintln!("skipped: veritysetup (cryptsetup-bin) is missing");
            return None;
        }
        Ok(output) => String::from_utf8(output.stdout).unwrap(),
    };
    let root =
        output.lines().find_map(|line| line.strip_prefix("Root hash:")).expect("it prints the root hash");
    let image = fs::read(dir.join("v.img")).unwrap();
    let at = image.chunks(4096).position(|block| block == &noise[4096..8192]).expect("the content is there");
    Some((root.trim().to_owned(), at as u64 * 4096))
}

fn flip(dir: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(dir.join("v.img")).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn every_verb_reads_checked_blocks_only_and_none_writes() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let Some((root, at)) = make(dir) else { return };
    let options = ["--hash-device", "hashes", "--root-hash", &root];
    let call = |words: &[&str]| flashkit(dir, &[words, &options].concat());
    let succeeds = |words: &[&str]| {
        let output = call(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let refused = |words: &[&str]| {
        let output = call(words);
        assert!(!output.status.success(), "{words:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert_eq!(succeeds(&["cat", "v.img:/note"]), "a note\n");
    assert_eq!(succeeds(&["ls", "v.img"]), "noise\nnote\n");
    assert!(succeeds(&["fsck", "-q", "v.img"]).contains("clean"));
    assert!(succeeds(&["dmverity", "v.img"]).contains("16,384 blocks of 4096 bytes"));
    let before = fs::read(dir.join("v.img")).unwrap();
    for words in [
        &["rm", "v.img:/note"][..],
        &["mkfs", "v.img", "-f"],
        &["label", "v.img", "X"],
        &["fsck", "-y", "v.img"],
    ] {
        assert!(refused(words).contains("is only read"), "{words:?}");
    }
    assert!(fs::read(dir.join("v.img")).unwrap() == before);
    let other = if root.starts_with('0') { root.replacen('0', "1", 1) } else { format!("0{}", &root[1..]) };
    let error = fails(dir, &["ls", "v.img", "--hash-device", "hashes", "--root-hash", &other]);
    assert!(error.contains("does not have this root hash"), "{error}");
    assert!(fails(dir, &["dmverity", "v.img"]).contains("--root-hash is missing"));
    assert!(fails(dir, &["ls", "v.img", "--root-hash", "stored"]).contains("no AVB footer"));

    flip(dir, at + 5);
    assert_eq!(succeeds(&["cat", "v.img:/note"]), "a note\n", "the rest can be read");
    assert!(
        refused(&["cat", "v.img:/noise"])
            .contains(&format!("the block at byte {at} does not match its hash"))
    );
    assert!(refused(&["dmverity", "v.img"]).contains("1 of 16,384 blocks do not match"));
    let printed = call(&["dmverity", "--json", "v.img"]).stdout;
    let printed: serde_json::Value = serde_json::from_slice(&printed).unwrap();
    assert_eq!(printed["damaged"], serde_json::json!([{"from_byte": at, "to_byte": at + 4096}]));
    assert!(flashkit(dir, &["cat", "v.img:/noise"]).status.success(), "unchecked, it is given");
}

#[test]
fn a_mount_reads_checked_blocks_only() {
    if !(rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists()) {
        return eprintln!("skipped: this needs root and /dev/fuse");
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let Some((root, at)) = make(dir) else { return };
    flip(dir, at);
    fs::create_dir(dir.join("mnt")).unwrap();
    ok(dir, &["mount", "v.img", "mnt", "-o", "ro", "--hash-device", "hashes", "--root-hash", &root]);
    let note = fs::read_to_string(dir.join("mnt/note"));
    let noise = fs::read(dir.join("mnt/noise"));
    let unmounted = Command::new("umount").arg(dir.join("mnt")).status().unwrap();
    assert_eq!((note.unwrap().as_str(), unmounted.success()), ("a note\n", true));
    assert!(noise.is_err(), "the page cache does not hide the damage");
}
