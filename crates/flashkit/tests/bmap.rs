//! Maps of used blocks: an image that is written by its map over other content is the same volume. bmaptool judges
//! the form of the map.

mod support;

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, symlink},
    path::Path,
    process::Command,
    sync::Arc,
};

use block::{FileDevice, OpenOptions};
use f2fs::{
    engine::{Caller, Engine, NewNode, Options, SyncScope},
    units::{Ino, Time},
};
use support::{fails, ok};

const BLOCK: u64 = 4096;

/// Makes `v.img`, with files that were replaced and removed since.
fn volume(dir: &Path) {
    fs::create_dir_all(dir.join("tree/sub")).unwrap();
    for n in 0..40 {
        fs::write(dir.join(format!("tree/sub/file-{n}")), vec![n as u8 + 1; 50_000 + n * 1000]).unwrap();
    }
    ok(dir, &["mkfs", "-q", "v.img", "--size", "128M", "--from", "tree"]);
    for n in [3, 5, 20] {
        ok(dir, &["rm", &format!("v.img:/sub/file-{n}")]);
        ok(dir, &["cp", "tree/sub/file-7", &format!("v.img:/sub/again-{n}")]);
    }
}

/// Returns the runs of blocks in a map.
fn runs(map: &Path) -> Vec<(u64, u64)> {
    let text = fs::read_to_string(map).unwrap();
    let range = regex::Regex::new(r#"<Range chksum="[0-9a-f]{64}"> (\d+)(?:-(\d+))? </Range>"#).unwrap();
    let number = |text: regex::Match| text.as_str().parse::<u64>().unwrap();
    let runs = range.captures_iter(&text).map(|found| {
        let first = number(found.get(1).unwrap());
        (first, found.get(2).map_or(first, number) + 1)
    });
    runs.collect()
}

/// Writes the blocks of a map from one image to another.
fn write_by_map(map: &Path, from: &Path, to: &Path) {
    let (from, to) = (File::open(from).unwrap(), File::options().write(true).open(to).unwrap());
    for (start, end) in runs(map) {
        let mut bytes = vec![0; ((end - start) * BLOCK) as usize];
        from.read_exact_at(&mut bytes, start * BLOCK).unwrap();
        to.write_all_at(&bytes, start * BLOCK).unwrap();
    }
}

fn content(dir: &Path, image: &str) -> String {
    ok(dir, &["export", "-q", image, "out.tar"]);
    let sum = Command::new("sha256sum").arg(dir.join("out.tar")).output().unwrap();
    String::from_utf8(sum.stdout).unwrap()
}

#[test]
fn a_volume_written_by_its_map_over_other_content_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    ok(dir, &["convert", "-q", "v.img", "out.img", "--bmap", "out.bmap"]);
    assert!(fs::read(dir.join("v.img")).unwrap() == fs::read(dir.join("out.img")).unwrap());
    let used: u64 = runs(&dir.join("out.bmap")).iter().map(|(start, end)| end - start).sum();
    let all = (128 << 20) / BLOCK;
    assert!(used < all / 2, "{used} of {all} blocks");

    fs::write(dir.join("card.img"), vec![0xA5; 128 << 20]).unwrap();
    write_by_map(&dir.join("out.bmap"), &dir.join("out.img"), &dir.join("card.img"));
    let card = fs::read(dir.join("card.img")).unwrap();
    let kept =
        card.chunks(BLOCK as usize).filter(|block| block.iter().all(|byte| *byte == 0xA5)).count() as u64;
    assert_eq!(kept, all - used, "all other blocks are as they were");
    ok(dir, &["fsck", "-q", "card.img"]);
    assert_eq!(content(dir, "card.img"), content(dir, "v.img"));
    if let Ok(judge) = Command::new("fsck.f2fs").arg("--dry-run").arg(dir.join("card.img")).output() {
        let text = String::from_utf8_lossy(&judge.stdout).into_owned();
        assert!(judge.status.success() && !text.contains("[Fail]"), "{text}");
    }
}

#[test]
fn the_map_has_the_blocks_where_recovery_begins() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    ok(dir, &["convert", "-q", "v.img", "out.img", "--bmap", "out.bmap"]);
    let info: serde_json::Value = serde_json::from_str(&ok(dir, &["info", "--json", "v.img"])).unwrap();
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    let main = info["areas"].as_array().unwrap().iter().find(|area| area["name"] == "main").unwrap();
    let runs = runs(&dir.join("out.bmap"));
    assert_eq!(runs[0].0, 0);
    assert!(runs[0].1 >= number(&main["start_block"]), "the metadata areas are in the map");
    let logs: Vec<_> = info["logs"].as_array().unwrap().iter().collect();
    let nodes = logs.iter().filter(|log| log["log"].as_str().unwrap().ends_with("node"));
    assert_eq!(nodes.clone().count(), 3);
    for log in nodes {
        let next = number(&main["start_block"]) + number(&log["segment"]) * 512 + number(&log["next_block"]);
        assert!(runs.iter().any(|(start, end)| (*start..*end).contains(&next)), "{log}");
    }
}

#[test]
fn a_volume_that_was_not_unmounted_has_no_map() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    let options = OpenOptions { write: true, direct: false };
    let device = Arc::new(FileDevice::open(dir.join("v.img"), options).unwrap());
    let mut volume = Engine::open(device, Options::new(Time::default)).unwrap();
    let ino = volume.begin(Caller::ADMIN).create(Ino(3), b"late", &NewNode::new(0o100_644)).unwrap();
    volume.fsync(ino, SyncScope::Everything).unwrap();
    drop(volume);
    assert!(ok(dir, &["ls", "v.img"]).contains("late"), "an fsync is recovered");
    let error = fails(dir, &["convert", "-q", "v.img", "x.img", "--bmap", "x.bmap"]);
    assert!(error.contains("was not unmounted"), "{error}");
    assert!(!dir.join("x.img").exists() && !dir.join("x.bmap").exists());
}

/// Clears the first block of every entry of the segment table that has some, in both copies of the table.
fn free_used_blocks(dir: &Path) {
    let info: serde_json::Value = serde_json::from_str(&ok(dir, &["info", "--json", "v.img"])).unwrap();
    let area = info["areas"].as_array().unwrap().iter().find(|area| area["name"] == "SIT").unwrap();
    let (start, segments) = (area["start_block"].as_u64().unwrap(), area["segments"].as_u64().unwrap());
    let image = File::options().read(true).write(true).open(dir.join("v.img")).unwrap();
    let mut freed = 0;
    for at in start..start + segments * 512 {
        let mut block = [0; BLOCK as usize];
        image.read_exact_at(&mut block, at * BLOCK).unwrap();
        // An entry: the number of blocks in 10 bits, the type in 6, and from the third byte on the map.
        for entry in block.chunks_exact_mut(74).filter(|entry| entry[2..66].iter().any(|byte| *byte != 0)) {
            let byte = entry[2..66].iter().position(|byte| *byte != 0).unwrap() + 2;
            entry[byte] &= !(0x80 >> entry[byte].leading_zeros());
            let count = u16::from_le_bytes([entry[0], entry[1]]) - 1;
            entry[..2].copy_from_slice(&count.to_le_bytes());
            freed += 1;
        }
        image.write_all_at(&block, at * BLOCK).unwrap();
    }
    assert!(freed > 0, "the table on the volume has used segments");
}

#[test]
fn a_volume_with_a_damaged_segment_table_has_no_map() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    free_used_blocks(dir);
    let error = fails(dir, &["convert", "-q", "v.img", "x.img", "--bmap", "x.bmap"]);
    assert!(error.contains("v.img: the volume is damaged, so a map could leave blocks out"), "{error}");
    assert!(!dir.join("x.img").exists() && !dir.join("x.bmap").exists());
    ok(dir, &["convert", "-q", "v.img", "x.img"]);
}

#[test]
fn a_map_replaces_neither_the_source_nor_the_output_nor_an_existing_file() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    fs::hard_link(dir.join("v.img"), dir.join("link.img")).unwrap();
    symlink("out.img", dir.join("later")).unwrap();
    fs::write(dir.join("notes"), "not a map").unwrap();
    let before = fs::read(dir.join("v.img")).unwrap();
    for (map, told) in [
        ("v.img", "it is the file of v.img"),
        ("link.img", "it is the file of v.img"),
        ("v.img#1", "it is the file of v.img"),
        ("./out.img", "it is the file of out.img"),
        ("later", "it is the file of out.img"),
    ] {
        let error = fails(dir, &["convert", "-qf", "v.img", "out.img", "--bmap", map]);
        assert!(error.contains(told), "{map}: {error}");
    }
    let error = fails(dir, &["convert", "-q", "v.img", "out.img", "--bmap", "notes"]);
    assert!(error.contains("notes: holds data") && error.contains("-f overwrites it"), "{error}");
    let error = fails(dir, &["convert", "-q", "v.img", "out.img", "--bmap", "none/map"]);
    assert!(error.contains("none/map: "), "{error}");
    assert!(!dir.join("out.img").exists(), "without the map there is no image");
    assert!(fs::read(dir.join("v.img")).unwrap() == before);
    assert_eq!(fs::read(dir.join("notes")).unwrap(), b"not a map");
    ok(dir, &["convert", "-qf", "v.img", "out.img", "--bmap", "notes"]);
    assert!(!runs(&dir.join("notes")).is_empty());
}

#[test]
fn a_failed_conversion_leaves_the_old_map() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    fs::write(dir.join("old.bmap"), "an old map").unwrap();
    let error = fails(dir, &["convert", "-qf", "v.img", "none/out.img", "--bmap", "old.bmap"]);
    assert!(error.contains("none/out.img: "), "{error}");
    assert_eq!(fs::read(dir.join("old.bmap")).unwrap(), b"an old map");
}

#[test]
fn bmaptool_copies_by_the_map_and_finds_a_changed_block() {
    if Command::new("bmaptool").arg("--version").output().is_err() {
        eprintln!("skipped: no bmaptool");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    // An image whose length is no multiple of the block size, and a volume in blocks of 16 KiB.
    File::options().write(true).open(dir.join("v.img")).unwrap().set_len((128 << 20) + 100).unwrap();
    ok(dir, &["mkfs", "-q", "w.img", "--size", "256M", "-b", "16K", "--from", "tree"]);
    for image in ["v.img", "w.img"] {
        ok(dir, &["convert", "-q", "-f", image, "out.img", "--bmap", "out.bmap"]);
        let copy = || {
            let mut bmaptool = Command::new("bmaptool");
            bmaptool.args(["copy", "--bmap", "out.bmap", "out.img", "card.img"]).current_dir(dir);
            bmaptool.output().expect("it starts")
        };
        let copied = copy();
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        ok(dir, &["fsck", "-q", "card.img"]);
        assert_eq!(content(dir, "card.img"), content(dir, image));
        let out = File::options().read(true).write(true).open(dir.join("out.img")).unwrap();
        let (start, _) = *runs(&dir.join("out.bmap")).last().unwrap();
        out.write_all_at(b"changed", start * if image == "v.img" { BLOCK } else { 16384 }).unwrap();
        let refused = copy();
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && told.contains("checksum mismatch"), "{told}");
    }
}

#[test]
fn only_volumes_in_raw_images_have_maps() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M"]);
    let error = fails(dir, &["convert", "-q", "v.img", "v.simg", "--to", "sparse", "--bmap", "m"]);
    assert!(error.contains("--bmap is for raw images"), "{error}");
    fs::write(dir.join("other.img"), vec![0; 1 << 20]).unwrap();
    let error = fails(dir, &["convert", "-q", "other.img", "o.img", "--bmap", "m"]);
    assert!(error.contains("other.img: not an F2FS volume"), "{error}");
    assert!(!dir.join("o.img").exists() && !dir.join("m").exists());
}
