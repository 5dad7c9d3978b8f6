//! `flashkit tune`: what it shows, changes and refuses.

mod support;

use std::{fs, path::Path, process::Command};

use block::{FileDevice, OpenOptions};
use serde_json::Value;
use support::{fails, ok};

const UUID: &str = "00112233-4455-6677-8899-aabbccddeeff";

/// Makes a volume with a file in `v.img`.
fn volume(dir: &Path) {
    fs::create_dir(dir.join("tree")).unwrap();
    fs::write(dir.join("tree/file"), vec![7; 30_000]).unwrap();
    let features = "extra_attr,inode_checksum";
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M", "-l", "card", "-O", features, "--from", "tree"]);
}

fn shown(dir: &Path) -> Value {
    serde_json::from_str(&ok(dir, &["tune", "v.img", "--json"])).unwrap()
}

/// Fails unless the volume is clean, with its file.
fn assert_whole(dir: &Path) {
    let judged = model::fsck::fsck_image(&dir.join("v.img"));
    assert!(judged.is_ok(), "{judged:?}");
    assert!(ok(dir, &["fsck", "-q", "v.img"]).contains("clean"));
    assert!(ok(dir, &["cat", "v.img:/file"]).into_bytes() == vec![7; 30_000]);
}

#[test]
fn all_properties_change_in_one_call_and_dump_f2fs_sees_them() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    volume(dir);
    let text = ok(dir, &["tune", "v.img"]);
    assert!(text.contains("label            card\n") && text.contains("quota            none\n"), "{text}");
    let changes = ["-U", UUID, "-O", "casefold,sb_checksum", "-C", "utf8:strict", "-e", "^gz,log"];
    let more = ["-E", "sqlite", "--quota", "user,group", "--json"];
    let done = ok(dir, &[&["tune", "v.img"][..], &changes, &more].concat());
    let done: Value = serde_json::from_str(&done).unwrap();
    assert!(done["done"] == true && done["changes"].as_array().unwrap().len() == 5, "{done}");
    let now = shown(dir);
    assert_eq!(
        (&now["uuid"], &now["encoding"], &now["label"]),
        (&UUID.into(), &"utf8:strict".into(), &"card".into())
    );
    assert_eq!(now["quota"], serde_json::json!(["user", "group"]));
    let has = |key: &str, word: &str| now[key].as_array().unwrap().contains(&word.into());
    assert!(
        has("features", "sb_checksum") && has("cold_extensions", "log") && has("hot_extensions", "sqlite")
    );
    assert!(!has("cold_extensions", "gz"), "{now}");
    assert_whole(dir);
    let dump = Command::new("/usr/sbin/dump.f2fs").arg("-d1").arg(dir.join("v.img")).output().unwrap();
    let dump = String::from_utf8_lossy(&dump.stdout).to_lowercase();
    assert!(dump.contains("sb_checksum") || dump.contains("superblock_checksum"), "{dump}");
    let usage = ok(dir, &["quota", "v.img"]);
    assert!(usage.contains("user") && usage.contains("group"), "{usage}");
    assert_eq!(ok(dir, &["tune", "v.img", "-U", UUID]), "nothing to change\n");
    assert_eq!(ok(dir, &["tune", "v.img", "-C", "utf8:strict"]), "nothing to change\n");
    let printed = ok(dir, &["tune", "v.img", "-U", "clear"]);
    assert_eq!(printed, format!("uuid: {UUID} -> 00000000-0000-0000-0000-000000000000\n"));
    ok(dir, &["tune", "v.img", "-U", "random", "--quota", "none"]);
    assert!(shown(dir)["uuid"] != UUID && shown(dir)["quota"] == serde_json::json!([]));
    assert_whole(dir);
}

#[test]
fn a_plan_and_a_refused_change_write_nothing() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    volume(dir);
    let before = fs::read(dir.join("v.img")).unwrap();
    let plan = ok(dir, &["tune", "v.img", "-n", "--quota", "user", "-O", "verity"]);
    assert!(plan.contains("would change quota: none -> user"), "{plan}");
    let error = fails(dir, &["tune", "v.img", "-O", "flexible_inline_xattr"]);
    assert!(error.contains("v.img") && error.contains("layout of every inode"), "{error}");
    for more in [&[][..], &["-O", "verity"]] {
        let error = fails(dir, &[&["tune", "v.img", "-C", "utf8"][..], more].concat());
        assert!(error.contains("needs the feature casefold"), "{error}");
    }
    assert!(fails(dir, &["tune", "v.img", "-O", "nonsense"]).contains("unknown feature"));
    assert!(fails(dir, &["tune", "v.img", "-e", "^nope"]).contains("not in the list"));
    let held = FileDevice::open(dir.join("v.img"), OpenOptions { write: true, direct: false }).unwrap();
    let error = fails(dir, &["tune", "v.img", "-U", "random"]);
    assert!(error.contains("v.img"), "{error}");
    drop(held);
    assert!(fs::read(dir.join("v.img")).unwrap() == before);
}

#[test]
fn a_plan_for_a_volume_that_is_not_written_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "256M", "-b", "16K", "-O", "packed_ssa"]);
    for plan in [&["tune", "-n", "v.img", "-U", "random"][..], &["resize", "-q", "-n", "v.img", "300M"]] {
        let error = fails(dir, plan);
        assert!(error.contains("volumes with packed_ssa are not written"), "{error}");
    }
}
