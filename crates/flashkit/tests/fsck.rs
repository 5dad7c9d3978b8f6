//! `flashkit fsck`: what it prints and returns, and that it only reads.

mod support;

use std::{fs, os::unix::fs::FileExt, path::Path};

use support::{damage, flashkit, ok};

/// Makes a volume with one file whose map has several nodes.
fn volume(dir: &Path) {
    fs::create_dir(dir.join("tree")).unwrap();
    fs::write(dir.join("tree/large"), vec![7; 8 << 20]).unwrap();
    ok(dir, &["mkfs", "v.img", "--size", "64M", "--from", "tree"]);
}

/// Returns the exit code, the output and the messages of a check.
fn fsck(dir: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = flashkit(dir, &[&["fsck"], arguments].concat());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_clean_volume_has_exit_code_0_and_a_damaged_one_4() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    let (code, printed, _) = fsck(dir, &["v.img"]);
    assert_eq!(code, Some(0));
    assert!(printed.ends_with(": clean\n"), "{printed}");

    damage(&dir.join("v.img"), "/large");
    let before = fs::read(dir.join("v.img")).unwrap();
    for options in [&[][..], &["-n"], &["-f"]] {
        let (code, printed, _) = fsck(dir, &[options, &["v.img"]].concat());
        assert_eq!(code, Some(4), "{options:?}: {printed}");
        assert!(printed.contains("error: "), "{printed}");
    }
    assert!(fs::read(dir.join("v.img")).unwrap() == before, "a check changes nothing");

    let (code, printed, _) = fsck(dir, &["--json", "v.img"]);
    let report: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((code, report["clean"].as_bool()), (Some(4), Some(false)));
    let findings = report["findings"].as_array().unwrap();
    assert!(!findings.is_empty() && findings.iter().all(|finding| finding["kind"].is_string()), "{printed}");
}

#[test]
fn a_superblock_that_is_damaged_once_is_a_finding_and_twice_no_volume() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    let image = fs::File::options().write(true).open(dir.join("v.img")).unwrap();
    image.write_all_at(&[0; 4], 1024).unwrap();
    let (code, printed, _) = fsck(dir, &["v.img"]);
    assert_eq!(code, Some(4), "{printed}");
    assert!(printed.contains("superblock"), "{printed}");
    image.write_all_at(&[0; 4], 4096 + 1024).unwrap();
    let (code, printed, message) = fsck(dir, &["v.img"]);
    assert_eq!((code, printed.as_str()), (Some(8), ""));
    assert!(message.contains("not an F2FS volume"), "{message}");
}

#[test]
fn failures_have_exit_code_8_and_calls_without_sense_16() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    let (code, _, message) = fsck(dir, &["missing.img"]);
    assert_eq!(code, Some(8));
    assert!(message.contains("missing.img"), "{message}");
    assert_eq!(fsck(dir, &[]).0, Some(16));
    assert_eq!(fsck(dir, &["-p", "-y", "v.img"]).0, Some(16));
    assert_eq!(fsck(dir, &["-n", "-y", "v.img"]).0, Some(16));
}

#[test]
fn a_repair_has_exit_code_1_and_undo_brings_the_damaged_image_back() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    let sound = fs::read(dir.join("v.img")).unwrap();
    for option in ["-a", "-p", "-y"] {
        assert_eq!(fsck(dir, &[option, "v.img"]).0, Some(0), "{option}: there is nothing to repair");
    }
    assert!(fs::read(dir.join("v.img")).unwrap() == sound, "a clean volume is not written");

    damage(&dir.join("v.img"), "/large");
    let before = fs::read(dir.join("v.img")).unwrap();
    let (code, printed, _) = fsck(dir, &["-n", "v.img"]);
    assert_eq!(code, Some(4), "{printed}");
    assert!(printed.contains("nothing was written"), "{printed}");
    let (code, printed, _) = fsck(dir, &["-p", "v.img"]);
    assert_eq!(code, Some(4), "a person has to decide: {printed}");
    assert!(fs::read(dir.join("v.img")).unwrap() == before);

    let (code, printed, message) = fsck(dir, &["-y", "--undo", "v.undo", "v.img"]);
    assert_eq!(code, Some(1), "{printed}{message}");
    assert_eq!(fsck(dir, &["v.img"]).0, Some(0));
    let repaired = fs::read(dir.join("v.img")).unwrap();
    let (code, printed, _) = fsck(dir, &["--undo", "v.undo", "v.img"]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(fs::read(dir.join("v.img")).unwrap() == before, "every byte is back");

    // An undo file is not overwritten, and then nothing is repaired.
    assert_eq!(fsck(dir, &["-y", "--undo", "v.undo", "v.img"]).0, Some(8));
    assert!(fs::read(dir.join("v.img")).unwrap() == before);
    // A volume that was changed after the repair stays as it is.
    fs::write(dir.join("v.img"), &repaired).unwrap();
    ok(dir, &["mkdir", "v.img:/new"]);
    let changed = fs::read(dir.join("v.img")).unwrap();
    let (code, _, message) = fsck(dir, &["--undo", "v.undo", "v.img"]);
    assert_eq!(code, Some(8));
    assert!(message.contains("changed after the repair"), "{message}");
    assert!(fs::read(dir.join("v.img")).unwrap() == changed);
}

#[test]
fn a_certain_repair_is_made_without_a_person() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    let image = fs::File::options().write(true).open(dir.join("v.img")).unwrap();
    image.write_all_at(&[0; 4], 1024).unwrap();
    let (code, printed, _) = fsck(dir, &["-p", "--json", "v.img"]);
    let report: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((code, report["repair"]["state"].as_str()), (Some(1), Some("done")), "{printed}");
    assert_eq!(fsck(dir, &["v.img"]).0, Some(0));
}
