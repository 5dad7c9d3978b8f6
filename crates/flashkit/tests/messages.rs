//! Error messages and their advice.

mod support;

use std::fs;

use support::{fails, flashkit, ok};

/// If a volume is full, the message states the missing bytes and a remedy.
#[test]
fn the_error_of_a_full_volume_names_the_need_and_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir(dir.join("tree")).unwrap();
    fs::write(dir.join("tree/large"), vec![7; 100 << 20]).unwrap();

    let made = fails(dir, &["mkfs", "v.img", "--size", "64M", "-o", "60", "--from", "tree"]);
    assert!(made.contains(" MiB needed, ") && made.contains(" MiB free; "), "{made}");
    assert!(made.contains("--minimize") && made.contains("-o 60") && !made.contains("blocks"), "{made}");
    assert!(!dir.join("v.img").exists());

    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M"]);
    for call in [["import", "tree", "v.img"], ["cp", "tree/large", "v.img:/"]] {
        let told = fails(dir, &call);
        assert!(told.contains("no space left on the volume: ") && told.contains(" MiB needed, "), "{told}");
        assert!(told.contains(" free\n") && told.contains("flashkit rm"), "{told}");
        assert_eq!(ok(dir, &["ls", "v.img"]), "", "nothing is left of it");
    }
}

/// Nouns are singular after 1.
#[test]
fn counted_nouns_agree_in_number() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir(dir.join("tree")).unwrap();
    fs::write(dir.join("tree/file"), "x").unwrap();
    let made = ok(dir, &["mkfs", "v.img", "--size", "128M", "--from", "tree", "-s", "2"]);
    assert!(made.contains(" segments, 2 a section, 1 section a zone;"), "{made}");
    assert!(made.contains("\n  1 entry, 1 B of data"), "{made}");
    let info = ok(dir, &["info", "v.img"]);
    assert!(info.contains("each 2 segments; 1 section in a zone"), "{info}");
    assert!(ok(dir, &["tree", "v.img"]).ends_with("\n0 directories, 1 file\n"));
}

/// The call that meets damage explains it once, with advice. A later look at the volume does so, too.
#[test]
fn damage_is_reported_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir(dir.join("tree")).unwrap();
    fs::write(dir.join("tree/damaged"), vec![7; 8 << 20]).unwrap();
    fs::write(dir.join("tree/whole"), "x").unwrap();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "96M", "--from", "tree"]);
    support::damage(&dir.join("v.img"), "damaged");

    assert!(!ok(dir, &["info", "v.img"]).contains("damage"));
    let read = flashkit(dir, &["cat", "v.img:/damaged"]);
    let told = String::from_utf8(read.stderr).unwrap();
    assert_eq!(read.status.code(), Some(1));
    assert!(told.contains("corrupt ") && told.contains("flashkit fsck"), "{told}");
    let whole = flashkit(dir, &["chmod", "600", "v.img:/whole"]);
    assert!(whole.status.success() && whole.stderr.is_empty(), "no operation has found it");

    let removed = flashkit(dir, &["rm", "v.img:/damaged"]);
    let told = String::from_utf8(removed.stderr).unwrap();
    assert!(removed.status.success() && told.lines().count() == 1, "{told}");
    assert!(
        told.starts_with("flashkit: v.img: found damage") && told.contains("flashkit fsck v.img"),
        "{told}"
    );
    assert!(ok(dir, &["info", "v.img"]).contains("\ndamage          found: flashkit fsck -y repairs it\n"));
    assert!(ok(dir, &["info", "v.img", "--json"]).contains("\"asks_for_fsck\": true"));

    let repaired = flashkit(dir, &["fsck", "-y", "v.img"]);
    assert_eq!(repaired.status.code(), Some(1), "{}", String::from_utf8_lossy(&repaired.stdout));
    assert!(!ok(dir, &["info", "v.img"]).contains("damage"), "it was repaired");
    assert_eq!(ok(dir, &["cat", "v.img:/whole"]), "x");
}

/// A file that cannot be read does not prevent output of the others.
#[test]
fn cat_continues_after_a_missing_file() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M"]);
    for name in ["a", "c"] {
        fs::write(dir.join(name), name).unwrap();
    }
    ok(dir, &["cp", "a", "c", "v.img:/"]);
    let read = flashkit(dir, &["cat", "v.img:/a", "v.img:/b", "v.img:/", "v.img:/c"]);
    assert_eq!((read.status.code(), &read.stdout[..]), (Some(1), &b"ac"[..]));
    let told = String::from_utf8(read.stderr).unwrap();
    assert_eq!(told, "flashkit: v.img:/b: not found\nflashkit: v.img:/: not a regular file\n");
}

/// An invalid number or path is not damage, and the message names it.
#[test]
fn wrong_numbers_and_places_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M"]);
    ok(dir, &["mkdir", "v.img:/dir"]);
    fs::write(dir.join("f"), "x").unwrap();
    for call in [
        &["dump", "nat", "v.img", "--nid", "99999999"][..],
        &["dump", "node", "v.img", "--nid", "99999999"],
        &["dump", "inode", "v.img", "--ino", "99999999"],
    ] {
        let told = fails(dir, call);
        assert!(told.contains("node 99999999 is out of range") && !told.contains("fsck"), "{call:?}: {told}");
    }
    assert!(fails(dir, &["cp", "f", "v.img:/nodir/"]).contains("v.img:/nodir/: not found"));
    assert!(fails(dir, &["ln", "v.img:/dir", "v.img:/x"]).contains("v.img:/dir: is a directory"));
    let map = ok(dir, &["dump", "map", "v.img:/dir"]);
    assert!(map.contains("inline, in the inode") && !map.contains("hole"), "{map}");
    let told = fails(dir, &["study", "-o", "a", "--fs", "ext4"]);
    assert!(told.contains("flashkit's sources") && told.contains("--guest"), "{told}");
}
