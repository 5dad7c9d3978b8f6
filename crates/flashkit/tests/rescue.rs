//! `flashkit rescue`: destinations, lists, and that it only reads.

mod support;

use std::{
    fs,
    os::unix::fs::{FileExt, symlink},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use support::{fails, flashkit, ok};

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
fn an_image_with_blocks_in_another_order_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    let raw = fs::read(dir.join("v.img")).unwrap();
    for (start, at) in [(&b"KDMV"[..], 0), (b"vhdxfile", 0), (b"conectix", 0), (b"\x7F\x10\xDA\xBE", 64)] {
        let mut header = vec![0; 1 << 20];
        header[at..at + start.len()].copy_from_slice(start);
        fs::write(dir.join("disk"), [&header[..], &raw].concat()).unwrap();
        let error = fails(dir, &["rescue", "disk", "rescued"]);
        assert!(error.contains("qemu-img convert -O raw"), "{error}");
        assert!(!dir.join("rescued").exists());
        let error = fails(dir, &["rescue", "--list", "disk"]);
        assert!(error.contains("qemu-img convert -O raw"), "{error}");
    }
    // These blocks are in order.
    ok(dir, &["rescue", "disk", "rescued", "--format", "raw"]);
    same(dir, "rescued");
}

/// Makes a volume on devices of `bytes` each, fills the first of them, and takes the superblocks away. Returns the arguments
/// that name the others.
fn on_several(dir: &Path, sections: &str, bytes: u64, further: &[&'static str]) -> Vec<&'static str> {
    fs::create_dir_all(dir.join("tree/many")).unwrap();
    fs::write(dir.join("tree/first"), vec![7; 80 << 20]).unwrap();
    for n in 0..SMALL {
        fs::write(dir.join(format!("tree/many/{n}")), n.to_string()).unwrap();
    }
    let content = (0..5u32 << 20).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes());
    fs::write(dir.join("tree/then"), content.collect::<Vec<u8>>()).unwrap();
    for name in further.iter().chain(&["v.img"]) {
        fs::File::create(dir.join(name)).unwrap().set_len(bytes).unwrap();
    }
    let devices: Vec<&str> = further.iter().flat_map(|name| ["--device", name]).collect();
    ok(dir, &[&["mkfs", "-q", "v.img", "-s", sections, "--from", "tree"], &devices[..]].concat());
    lose_metadata(dir, 2 << 20);
    devices
}

/// Number of small files on several devices.
const SMALL: u32 = 150;

/// Returns true if all files of several devices are as before.
fn is_whole(dir: &Path) -> bool {
    let same = |name: &str| {
        let read = |tree: &str| fs::read(dir.join(tree).join(name)).unwrap();
        read("rescued") == read("tree")
    };
    same("first") && same("then") && (0..SMALL).all(|n| same(&format!("many/{n}")))
}

#[test]
fn a_volume_on_several_devices_without_a_superblock_is_rescued() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let devices = on_several(dir, "1", (100 << 20) + 512, &["second.img", "third.img"]);
    ok(dir, &[&["rescue", "v.img", "rescued"], &devices[..]].concat());
    assert!(is_whole(dir));
}

#[test]
fn a_part_of_a_device_that_nothing_tells_is_named_by_options() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    // All inodes lie on the first device, and zones of 4 MiB leave 2 MiB of it out.
    let devices = on_several(dir, "2", 102 << 20, &["second.img"]);
    let arguments = ["rescue", "-q", "v.img", "rescued"];
    let told = flashkit(dir, &[&arguments, &devices[..]].concat());
    let told = String::from_utf8(told.stderr).unwrap();
    assert!(told.contains("its first 106954752 bytes are taken") && told.contains("--length SIZE"), "{told}");
    assert!(!is_whole(dir), "the second device begins elsewhere");
    fs::remove_dir_all(dir.join("rescued")).unwrap();
    ok(dir, &[&arguments, &devices[..], &["--offset", "0", "--length", "100M"]].concat());
    assert!(is_whole(dir));
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
fn a_list_and_a_timeline_that_lack_a_lost_inode_fail() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    // The content of the file is in the block of its inode.
    let mut image = fs::read(dir.join("v.img")).unwrap();
    let has_notes = |block: &&mut [u8]| block.windows(11).any(|bytes| bytes == b"some notes\n");
    image.chunks_mut(4096).filter(has_notes).for_each(|block| block.fill(0));
    fs::write(dir.join("v.img"), &image).unwrap();
    for form in ["--list", "--timeline"] {
        let output = flashkit(dir, &["rescue", form, "v.img"]);
        let error = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(1), "{form}: {error}");
        assert!(error.contains("1 thing cannot be rescued"), "{form}: {error}");
        assert!(error.contains("notes.txt"), "{form}: {error}");
    }
}

#[test]
fn the_map_is_kept_and_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    ok(dir, &["rescue", "v.img", "rescued", "--map", "v.map"]);
    let map = fs::read_to_string(dir.join("v.map")).unwrap();
    assert!(map.starts_with("# Mapfile") && map.lines().any(|line| line.ends_with('+')), "{map}");
    // A part that was bad stays bad.
    fs::write(dir.join("v.map"), map.clone() + "0x4000000 0x1000 -\n").unwrap();
    ok(dir, &["rescue", "v.img", "again", "--map", "v.map"]);
    assert_eq!(fs::read_to_string(dir.join("v.map")).unwrap().matches(" -").count(), 1);
}

/// Makes a volume and a map of another program, by which the blocks of one.jpg were not read.
fn copy_with_bad_sectors(dir: &Path, start: usize) -> String {
    volume(dir);
    let mut disk = vec![0; start];
    disk.extend(fs::read(dir.join("v.img")).unwrap());
    let block = vec![7; 4096];
    let at = disk.chunks(4096).position(|bytes| bytes == block).expect("a block of one.jpg") * 4096;
    disk[at..at + 8192].fill(0);
    fs::write(dir.join("disk.img"), &disk).unwrap();
    let (rest, length) = (at + 8192, disk.len() - at - 8192);
    format!(
        "# Mapfile. Created by GNU ddrescue version 1.27\n0x0 ? 1\n0 {at} +\n{at} 4096 -\n{} 4096 ?\n{rest} {length} +\n",
        at + 4096
    )
}

#[test]
fn bytes_that_another_program_could_not_read_are_never_whole() {
    for (start, options) in [(0, &[][..]), (4 << 20, &["--offset", "4M"][..])] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let map = copy_with_bad_sectors(dir, start);
        fs::write(dir.join("copy.map"), &map).unwrap();
        let list = |map: &[&str]| ok(dir, &[&["rescue", "--list", "disk.img"], options, map].concat());
        let one = |list: String| list.lines().find(|line| line.contains("one.jpg")).unwrap().to_owned();
        assert!(one(list(&[])).starts_with("whole"), "zeroes in place of bad sectors look whole");
        let line = one(list(&["--map", "copy.map"]));
        assert!(line.starts_with("partial") && line.contains("2 blocks unreadable"), "{line}");
        assert_eq!(fs::read_to_string(dir.join("copy.map")).unwrap(), map, "it is only read");
    }
}

#[test]
fn a_file_that_the_destination_does_not_take_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    fs::create_dir(dir.join("out")).unwrap();
    fs::write(dir.join("out/notes.txt"), "mine").unwrap();
    let summary = |limit: &str, out: &str| {
        let command = format!("{limit} exec {} rescue v.img {out} --json", env!("CARGO_BIN_EXE_flashkit"));
        let output = Command::new("sh").args(["-c", &command]).current_dir(dir).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (summary["grades"]["whole"].as_u64().unwrap(), summary["lost_inodes"].as_u64().unwrap())
    };
    // The root, a directory, two files and a link.
    assert_eq!(summary("", "out"), (4, 1), "a file is in the way");
    assert_eq!(fs::read(dir.join("out/notes.txt")).unwrap(), b"mine");
    assert_eq!(summary("trap '' XFSZ; ulimit -f 1024;", "small"), (4, 1), "one.jpg is too large");
    assert_eq!(fs::read(dir.join("small/notes.txt")).unwrap(), b"some notes\n");
}

#[test]
fn the_image_is_never_a_destination() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    fs::hard_link(dir.join("v.img"), dir.join("v.tar")).unwrap();
    let before = fs::read(dir.join("v.img")).unwrap();
    for options in [&["out", "--map", "v.img"][..], &["out", "--manifest", "./v.img"], &["v.tar"]] {
        let error = fails(dir, &[&["rescue", "v.img"], options].concat());
        assert!(error.contains("is the image; choose another file"), "{error}");
    }
    let error = fails(dir, &["rescue", "v.img", "out", "--offset", "0", "--map", "new.map"]);
    assert!(error.contains("of a part of an image no map is kept"), "{error}");
    assert!(fs::read(dir.join("v.img")).unwrap() == before && !dir.join("out").exists());
}

#[test]
fn the_list_replaces_no_file_unasked() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    fs::write(dir.join("notes"), b"mine").unwrap();
    let error = fails(dir, &["rescue", "v.img", "out", "--manifest", "notes"]);
    assert!(error.contains("notes: the file exists"), "{error}");
    assert!(fs::read(dir.join("notes")).unwrap() == b"mine" && !dir.join("out").exists());
    for (map, manifest) in [("v.map", "v.map"), ("v.map", "./v.map")] {
        let error = fails(dir, &["rescue", "v.img", "out", "--map", map, "--manifest", manifest]);
        assert!(error.contains("are one file"), "{error}");
        assert!(!dir.join("v.map").exists() && !dir.join("out").exists());
    }
    ok(dir, &["rescue", "v.img", "out", "--manifest", "notes", "--overwrite"]);
    assert!(fs::read(dir.join("notes")).unwrap().starts_with(b"["));
}

#[test]
fn a_map_of_bad_sectors_only_leaves_nothing_to_rescue() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    fs::write(dir.join("v.map"), "0x0 ? 1\n0x0 0x4000000 -\n").unwrap();
    let output = flashkit(dir, &["rescue", "v.img", "again", "--map", "v.map"]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains("no inodes"), "{message}");
}

/// Returns the number of bytes that a process has read.
fn bytes_read(pid: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("rchar: "));
    line.map_or(0, |count| count.parse().unwrap())
}

#[test]
fn a_scan_that_a_signal_ends_keeps_its_map() {
    const ENOUGH: u64 = 256 << 20;
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    // The scan of its main area takes minutes.
    ok(dir, &["mkfs", "-q", "v.img", "--size", "128G"]);
    let bytes_in = |map: &str| {
        let sizes = map.lines().filter_map(|line| line.strip_suffix("  +")?.split("  0x").nth(1));
        sizes.map(|size| u64::from_str_radix(size, 16).unwrap()).sum::<u64>()
    };
    for signal in [Signal::INT, Signal::TERM] {
        let map = "# Mapfile. Created by flashkit\n0x0 ? 1\n0x1000000000 0x1000 -\n";
        fs::write(dir.join("v.map"), map).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_flashkit"));
        child.args(["rescue", "v.img", "out", "--map", "v.map"]).current_dir(dir).stderr(Stdio::piped());
        let mut child = child.spawn().expect("it starts");
        let saved = || fs::read_to_string(dir.join("v.map")).unwrap();
        let is_running = |child: &mut Child| {
            thread::sleep(Duration::from_millis(5));
            child.try_wait().unwrap().is_none()
        };
        // The first part is saved at once, and so the scan has begun.
        while bytes_in(&saved()) == 0 && is_running(&mut child) {}
        let before = bytes_read(child.id());
        while bytes_read(child.id()) < before + ENOUGH && is_running(&mut child) {}
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(130), "{message}");
        assert!(message.contains("v.map has the parts that were tried"), "{message}");
        assert!(bytes_in(&saved()) >= ENOUGH / 2, "{}", saved());
        assert!(saved().contains("0x1000000000  0x00001000  -"), "an earlier bad part is lost: {}", saved());
    }
}
