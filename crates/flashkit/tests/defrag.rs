//! `flashkit defrag`: its report, and the moves.

mod support;

use std::{path::Path, sync::Arc};

use block::{FileDevice, OpenOptions};
use f2fs::{
    engine::{Caller, Engine, NewNode, Options},
    units::Time,
};
use serde_json::Value;
use support::ok;

/// Makes a volume with two files whose blocks alternate, and one that lies in one piece.
fn volume(dir: &Path) {
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M"]);
    ok(dir, &["mkdir", "v.img:/data"]);
    let device = FileDevice::open(dir.join("v.img"), OpenOptions { write: true, direct: false }).unwrap();
    let mut volume = Engine::open(Arc::new(device), Options::new(Time::default)).unwrap();
    let data = volume.lookup(volume.superblock().root_ino, b"data").unwrap();
    let make = |volume: &mut Engine, name: &[u8]| {
        volume.begin(Caller::ADMIN).create(data, name, &NewNode::new(0o100_644)).unwrap()
    };
    let [one, two, whole] = [&b"one"[..], b"two", b"whole"].map(|name| make(&mut volume, name));
    for block in 0..100 {
        for ino in [one, two] {
            volume.begin(Caller::ADMIN).write(ino, block * 4096, &[ino.0 as u8; 4096]).unwrap();
        }
    }
    volume.begin(Caller::ADMIN).write(whole, 0, &[7; 40_000]).unwrap();
    volume.unmount().unwrap();
}

fn report(dir: &Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&ok(dir, &[&["defrag", "--json"][..], arguments].concat())).unwrap()
}

#[test]
fn fragmented_files_are_reported_and_put_in_order() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    volume(dir);
    let text = ok(dir, &["defrag", "v.img"]);
    assert!(text.contains("      100         1         100  /data/one\n"), "{text}");
    assert!(text.contains("2 of ") && !text.contains("/data/whole"), "{text}");
    let before = report(dir, &["v.img:/data", "--all"]);
    assert_eq!(before["fragmented_inodes"], 2);
    assert!(before["files"].as_array().unwrap().iter().any(|file| file["path"] == "/data/whole"), "{before}");
    let moved = report(dir, &["v.img:/data/one", "-y"]);
    assert_eq!((&moved["moved_blocks"], &moved["fragmented_inodes"]), (&100.into(), &0.into()));
    let text = ok(dir, &["defrag", "v.img", "-y"]);
    assert!(text.starts_with("100 blocks moved\n0 of "), "{text}");
    let judged = model::fsck::fsck_image(&dir.join("v.img"));
    assert!(judged.is_ok(), "{judged:?}");
    assert!(ok(dir, &["fsck", "-q", "v.img"]).contains("clean"));
    assert!(ok(dir, &["cat", "v.img:/data/whole"]).into_bytes() == [7; 40_000]);
}
