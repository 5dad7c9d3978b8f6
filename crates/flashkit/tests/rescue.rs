//! `flashkit rescue`: destinations, lists, and that it only reads.

mod support;

use std::{
    fs,
    os::unix::fs::{FileExt, symlink},
    path::Path,
};

use support::{flashkit, ok};

/// Makes a volume with a few files.
fn volume(dir: &Path) {
    fs::create_dir_all(dir.join("tree/photos")).unwrap();
    fs::write(dir.join("tree/photos/one.jpg"), vec![7; 3 << 20]).unwrap();
    fs::write(dir.join("tree/notes.txt"), "some notes\n").unwrap();
    symlink("notes.txt", dir.join("tree/link")).unwrap();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M", "--from", "tree"]);
}

/// Overwrites the start of an image, where all metadata lies.
fn lose_metadata(dir: &Path, bytes: usize) {
    let image = fs::File::options().write(true).open(dir.join("v.img")).unwrap();
    image.write_all_at(&vec![0; bytes], 0).unwrap();
}

fn same(dir: &Path, rescued: &str) {
    for path in ["photos/one.jpg", "notes.txt"] {
        let read = |tree: &str| fs::read(dir.join(tree).join(path)).unwrap();
        assert!(read(rescued) == read("tree"), "{path}");
    }
    assert_eq!(fs::read_link(dir.join(rescued).join("link")).unwrap(), Path::new("notes.txt"));
}

#[test]
fn a_volume_without_metadata_is_rescued_and_the_image_is_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    lose_metadata(dir, 2 << 20);
    assert_eq!(flashkit(dir, &["ls", "v.img"]).status.code(), Some(1), "there is no superblock");
    let before = fs::read(dir.join("v.img")).unwrap();
    ok(dir, &["rescue", "v.img", "rescued", "--manifest", "list.json"]);
    same(dir, "rescued");
    assert!(fs::read(dir.join("v.img")).unwrap() == before, "a rescue only reads");
    let list: serde_json::Value = serde_json::from_slice(&fs::read(dir.join("list.json")).unwrap()).unwrap();
    let photo = list.as_array().unwrap().iter().find(|row| row["path"] == "/photos/one.jpg").unwrap();
    assert_eq!((photo["grade"].as_str(), photo["unproven_blocks"].as_u64()), (Some("likely"), Some(768)));
    let summary = ok(dir, &["rescue", "v.img", "rescued.tar", "--json"]);
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    assert_eq!((summary["volume"]["superblock"].as_u64(), summary["losses"].as_u64()), (None, Some(0)));
    assert!(fs::metadata(dir.join("rescued.tar")).unwrap().len() > 3 << 20);
}

#[test]
fn lists_grade_every_file_and_the_timeline_has_the_removed_ones() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    ok(dir, &["rm", "v.img:/notes.txt"]);
    let list = ok(dir, &["rescue", "--list", "v.img"]);
    assert!(
        list.contains("whole") && list.contains("/photos/one.jpg") && !list.contains("notes.txt"),
        "{list}"
    );
    let list = ok(dir, &["rescue", "--list", "--deleted", "v.img"]);
    assert!(list.contains("/notes.txt") && !list.contains("one.jpg"), "{list}");
    let timeline = ok(dir, &["rescue", "--timeline", "--deleted", "v.img"]);
    assert!(
        timeline.contains("|/notes.txt (deleted)|") && timeline.contains("|/photos/one.jpg|"),
        "{timeline}"
    );
    assert!(timeline.lines().all(|line| line.split('|').count() == 11), "{timeline}");
    ok(dir, &["rescue", "--deleted", "v.img", "undeleted"]);
    assert_eq!(fs::read(dir.join("undeleted/notes.txt")).unwrap(), b"some notes\n");
    assert!(!dir.join("undeleted/photos").exists());
}

#[test]
fn the_map_is_kept_and_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    ok(dir, &["rescue", "v.img", "rescued", "--map", "v.map"]);
    let map = fs::read_to_string(dir.join("v.map")).unwrap();
    assert!(map.starts_with("# Mapfile") && map.lines().any(|line| line.ends_with('+')), "{map}");
    // All of the image is bad from now on.
    fs::write(dir.join("v.map"), "0x0 ? 1\n0x0 0x4000000 -\n").unwrap();
    let output = flashkit(dir, &["rescue", "v.img", "again", "--map", "v.map"]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains("no nodes"), "{message}");
}
