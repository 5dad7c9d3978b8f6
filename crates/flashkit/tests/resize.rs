//! `flashkit resize` of image files and devices: their lengths, their content, and what it prints.

mod support;

use std::{
    fs::{self, File},
    path::Path,
};

use support::{fails, ok};

const MIB: u64 = 1 << 20;

/// Makes a volume of 200 MiB with a tree, in `v.img`.
fn volume(dir: &Path) {
    fs::create_dir(dir.join("tree")).unwrap();
    fs::write(dir.join("tree/large"), vec![7; 20 << 20]).unwrap();
    fs::write(dir.join("tree/small"), "small\n").unwrap();
    // The extension of a hot file: its blocks lie near the start of the main area.
    fs::write(dir.join("tree/hot.db"), vec![3; 64 << 10]).unwrap();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "200M", "--from", "tree"]);
}

fn length(dir: &Path) -> u64 {
    fs::metadata(dir.join("v.img")).unwrap().len()
}

/// Fails unless the volume is clean, with all its content.
fn assert_whole(dir: &Path) {
    let judged = model::fsck::fsck_image(&dir.join("v.img"));
    assert!(judged.is_ok(), "{judged:?}");
    assert!(ok(dir, &["fsck", "-q", "v.img"]).contains("clean"));
    assert_eq!(ok(dir, &["cat", "v.img:/small"]), "small\n");
    assert!(ok(dir, &["cat", "v.img:/large"]).into_bytes() == vec![7; 20 << 20]);
}

fn info(dir: &Path, key: &str) -> u64 {
    let text = ok(dir, &["info", "v.img", "--json"]);
    let info: serde_json::Value = serde_json::from_str(&text).unwrap();
    info[key].as_u64().unwrap_or_else(|| panic!("{key}: {text}"))
}

#[test]
fn an_image_file_has_the_length_of_its_volume_after_each_resize() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    volume(dir);
    for (size, mib) in [("300M", 300), ("120M", 120), ("200M", 200)] {
        let printed = ok(dir, &["resize", "-q", "v.img", size]);
        assert!(printed.contains(&format!("now {mib}.00 MiB")), "{printed}");
        assert_eq!((length(dir), info(dir, "volume_bytes")), (mib * MIB, mib * MIB));
        assert_whole(dir);
    }
    let printed = ok(dir, &["resize", "-q", "--minimize", "v.img", "--json"]);
    let record: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((&record["old_bytes"], &record["done"]), (&(200 * MIB).into(), &true.into()));
    let least = record["new_bytes"].as_u64().unwrap();
    assert!(least < 100 * MIB && length(dir) == least, "{least}");
    assert_whole(dir);
    // A longer file: the volume grows to its end.
    File::options().write(true).open(dir.join("v.img")).unwrap().set_len(150 * MIB).unwrap();
    ok(dir, &["resize", "-q", "v.img"]);
    assert_eq!(info(dir, "volume_bytes"), 150 * MIB);
    assert_whole(dir);
}

#[test]
fn a_plan_and_a_refused_size_change_nothing() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    volume(dir);
    let before = fs::read(dir.join("v.img")).unwrap();
    let printed = ok(dir, &["resize", "-q", "--dry-run", "v.img", "100M"]);
    assert!(printed.contains("would be 100.00 MiB"), "{printed}");
    ok(dir, &["resize", "-q", "-n", "--minimize", "v.img"]);
    let error = fails(dir, &["resize", "-q", "v.img", "20M"]);
    assert!(error.contains("too small") && error.contains("needs at least"), "{error}");
    let error = fails(dir, &["resize", "-q", "--no-truncate", "v.img", "300M"]);
    assert!(error.contains("enlarge it first"), "{error}");
    fs::write(dir.join("text"), "text").unwrap();
    assert!(fails(dir, &["resize", "-q", "text"]).contains("not an F2FS volume"));
    assert!(fs::read(dir.join("v.img")).unwrap() == before);
}

#[test]
fn the_length_of_a_file_stays_with_no_truncate() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    volume(dir);
    ok(dir, &["resize", "-q", "--no-truncate", "v.img", "100M"]);
    assert_eq!((length(dir), info(dir, "volume_bytes")), (200 * MIB, 100 * MIB));
    assert_whole(dir);
    ok(dir, &["resize", "-q", "--no-truncate", "v.img"]);
    assert_eq!(info(dir, "volume_bytes"), 200 * MIB);
    assert_whole(dir);
}

#[test]
fn a_file_is_as_long_as_before_after_a_growth_that_a_pinned_file_prevents() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    volume(dir);
    // The summary area must grow, and the files at the start of the main area must move for that.
    let first = info(dir, "volume_bytes");
    support::pin(&dir.join("v.img"), "/hot.db");
    let error = fails(dir, &["resize", "-q", "v.img", "3G"]);
    assert!(error.contains("pinned"), "{error}");
    assert_eq!((length(dir), info(dir, "volume_bytes")), (first, first));
    assert_whole(dir);
}

/// Makes a volume on the files `v.img` and `second.img`, of 100 MiB each.
fn volume_on_two_files(dir: &Path) {
    for name in ["v.img", "second.img"] {
        File::create(dir.join(name)).unwrap().set_len(100 * MIB).unwrap();
    }
    ok(dir, &["mkfs", "-q", "v.img", "--device", "second.img"]);
}

#[test]
fn the_last_of_several_files_may_have_any_number_of_bytes() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    volume_on_two_files(dir);
    let resize = |more: &[&str]| {
        let printed =
            ok(dir, &[&["resize", "-q", "--json", "v.img", "--device", "second.img"], more].concat());
        serde_json::from_str::<serde_json::Value>(&printed).unwrap()["new_bytes"].as_u64().unwrap()
    };
    for (bytes, mib) in [(150 * MIB + 1, 150), (60 * MIB - 1, 58)] {
        let size = bytes.to_string();
        assert_eq!(resize(&[&size, "-n"]), (100 + mib) * MIB);
        assert_eq!(resize(&[&size]), (100 + mib) * MIB);
        assert_eq!(fs::metadata(dir.join("second.img")).unwrap().len(), bytes);
        let judged = model::fsck::fsck_image(&dir.join("v.img"));
        assert!(judged.is_ok(), "{size}: {judged:?}");
    }
    assert_eq!(resize(&[]), 158 * MIB, "the present size is as odd");
}

#[test]
fn the_last_of_several_files_grows_and_shrinks() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    volume_on_two_files(dir);
    fs::write(dir.join("file"), vec![5; 30 << 20]).unwrap();
    ok(dir, &["cp", "--device", "second.img", "file", "v.img:/file"]);
    let second = || fs::metadata(dir.join("second.img")).unwrap().len();
    for size in ["150M", "60M", "100M"] {
        ok(dir, &["resize", "-q", "v.img", "--device", "second.img", size]);
        assert_eq!(second(), size.trim_end_matches('M').parse::<u64>().unwrap() * MIB);
        assert_eq!(length(dir), 100 * MIB);
        let judged = model::fsck::fsck_image(&dir.join("v.img"));
        assert!(judged.is_ok(), "{size}: {judged:?}");
        let back = ok(dir, &["cat", "--device", "second.img", "v.img:/file"]);
        assert!(back.into_bytes() == vec![5; 30 << 20], "{size}");
    }
    assert!(fails(dir, &["resize", "-q", "v.img", "60M"]).contains("devices of the volume: 2; given: 1"));
}

#[test]
fn a_damaged_volume_is_not_resized() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    volume(dir);
    support::damage(&dir.join("v.img"), "/large");
    let before = fs::read(dir.join("v.img")).unwrap();
    for arguments in
        [&["v.img", "150M"][..], &["v.img", "300M"], &["v.img", "--minimize"], &["-n", "v.img", "150M"]]
    {
        let error = fails(dir, &[&["resize", "-q"], arguments].concat());
        assert!(error.contains("the volume is damaged") && error.contains("nothing was changed"), "{error}");
    }
    assert!(fs::read(dir.join("v.img")).unwrap() == before);
}
