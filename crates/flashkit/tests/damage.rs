//! Walks and exports of damaged volumes: each ends, names each loss, and loses nothing else.

mod support;

use std::{
    fs,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    process::{Command, Output},
    sync::Arc,
};

use block::{FileDevice, OpenOptions};
use f2fs::{
    engine::{Caller, Engine, NewNode, Options},
    format::{
        block_size::{DENTRY_BYTES, NAME_SLOT_BYTES},
        dentry::Dentries,
    },
    units::{Ino, Time},
};
use support::{damage, fails, flashkit, ok};

const ROOT: Ino = Ino(3);
const DIR: u16 = 0o040_755;
const FILE: u16 = 0o100_644;

fn open(image: &Path) -> Engine {
    let device = FileDevice::open(image, OpenOptions::default()).expect("it opens");
    Engine::open(Arc::new(device), Options::read_only()).expect("a volume")
}

fn open_to_write(image: &Path) -> Engine {
    let writable = OpenOptions { write: true, ..OpenOptions::default() };
    let device = FileDevice::open(image, writable).expect("it opens");
    let now = || Time { seconds: 1_700_000_000, nanoseconds: 0 };
    Engine::open(Arc::new(device), Options::new(now)).expect("a volume")
}

/// Redirects a name of an inline directory to another inode.
fn redirect(image: &Path, dir: Ino, name: &[u8], to: Ino) {
    let volume = open(image);
    let inode = volume.inode(dir).expect("sound");
    let slot = volume.find_entry(dir, name).expect("sound").expect("it exists").slot;
    let slots = Dentries::new(inode.inline_area(), f2fs::Place::Volume).slots();
    let dentries = inode.layout().inline_range().end - slots * (DENTRY_BYTES + NAME_SLOT_BYTES);
    let block = u64::from(volume.nat_entry(dir.into()).expect("sound").addr.0) * 4096;
    let file = fs::File::options().write(true).open(image).expect("it opens");
    file.write_all_at(&to.0.to_le_bytes(), block + (dentries + slot * DENTRY_BYTES + 4) as u64)
        .expect("written");
}

/// Runs a call with a memory limit in KiB, so that unbounded use of memory fails.
fn bounded(dir: &Path, kibibytes: u64, arguments: &[&str]) -> Output {
    let script = format!("ulimit -v {kibibytes}; exec \"$0\" \"$@\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_flashkit")]).args(arguments).current_dir(dir);
    shell.output().expect("it starts")
}

#[test]
fn walks_of_directories_that_hold_one_another_end_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, image) = (dir.path(), dir.path().join("v.img"));
    // Without inode checksums, a changed name is accepted.
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M", "-O", ""]);
    let mut volume = open_to_write(&image);
    let top = volume.begin(Caller::ADMIN).create(ROOT, b"top", &NewNode::new(DIR)).unwrap();
    let middle = volume.begin(Caller::ADMIN).create(top, b"middle", &NewNode::new(DIR)).unwrap();
    let back = volume.begin(Caller::ADMIN).create(middle, b"back", &NewNode::new(DIR)).unwrap();
    volume.begin(Caller::ADMIN).create(middle, b"file", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).create(ROOT, b"elsewhere", &NewNode::new(DIR)).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    let _ = back;
    for to in [top, middle, ROOT] {
        redirect(&image, middle, b"back", to);
        let before = fs::read(&image).unwrap();
        let calls: [&[&str]; 5] = [
            &["rm", "-r", "v.img:/top"],
            &["chmod", "-R", "700", "v.img:/top"],
            &["chown", "-R", "7:7", "v.img:/top"],
            &["tree", "v.img:/top"],
            &["compression", "v.img:/top"],
        ];
        for call in calls {
            let output = bounded(dir, 4 << 20, call);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{call:?}: {errors}");
            assert!(errors.contains("middle/back"), "{call:?}: {errors}");
            assert!(fs::read(&image).unwrap() == before, "{call:?} has changed something");
        }
        let error = fails(dir, &["export", "-k", "-q", "v.img", "out"]);
        assert!(error.contains("flashkit: top/middle/back: corrupt"), "{error}");
        assert!(dir.join("out/top/middle/file").exists() && dir.join("out/elsewhere").exists());
        fs::remove_dir_all(dir.join("out")).unwrap();
    }
}

#[test]
fn memory_grows_linearly_with_the_depth() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, image) = (dir.path(), dir.path().join("v.img"));
    ok(dir, &["mkfs", "-q", "v.img", "--size", "256M"]);
    let mut volume = open_to_write(&image);
    let mut at = ROOT;
    for _ in 0..2000 {
        // Each level has names that remain while a subdirectory is walked, and a file with a second name.
        let file = volume.begin(Caller::ADMIN).create(at, &[b'z'; 200], &NewNode::new(FILE)).unwrap();
        volume.begin(Caller::ADMIN).link(file, at, &[b'a'; 200]).unwrap();
        volume.begin(Caller::ADMIN).create(at, &[b'y'; 200], &NewNode::new(0o140_644)).unwrap();
        at = volume.begin(Caller::ADMIN).create(at, &[b'd'; 200], &NewNode::new(DIR)).unwrap();
    }
    volume.unmount().unwrap();
    drop(volume);
    let calls: [&[&str]; 5] = [
        &["export", "-k", "-q", "v.img", "out"],
        &["export", "-k", "-q", "--overwrite", "v.img", "out"],
        &["tree", "v.img", "--depth", "2000"],
        &["chmod", "-R", "u+x", "v.img:/"],
        &["rm", "-r", &format!("v.img:/{}", "d".repeat(200))],
    ];
    for call in calls {
        let output = bounded(dir, 600 << 10, call);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{call:?}: {}", &errors[..errors.len().min(1000)]);
    }
    assert!(Command::new("rm").args(["-rf", "out"]).current_dir(dir).status().unwrap().success());
}

#[test]
fn du_keeps_one_path_however_deep_the_tree_is() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, image) = (dir.path(), dir.path().join("v.img"));
    ok(dir, &["mkfs", "-q", "v.img", "--size", "256M"]);
    let mut volume = open_to_write(&image);
    let mut at = ROOT;
    for _ in 0..3000 {
        at = volume.begin(Caller::ADMIN).create(at, &[b'd'; 250], &NewNode::new(DIR)).unwrap();
    }
    volume.unmount().unwrap();
    drop(volume);
    let output = bounded(dir, 400 << 10, &["du", "-s", "v.img"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Makes `files` files, each with two names, at the end of `levels` directories whose names have 250 bytes. Returns their
/// inodes.
fn fill_deep_directory(image: &Path, levels: usize, files: usize) -> Vec<Ino> {
    let mut volume = open_to_write(image);
    let mut at = ROOT;
    for _ in 0..levels {
        at = volume.begin(Caller::ADMIN).create(at, &[b'd'; 250], &NewNode::new(DIR)).unwrap();
    }
    let make = |n: usize| {
        let name = format!("a{n}");
        let file = volume.begin(Caller::ADMIN).create(at, name.as_bytes(), &NewNode::new(FILE)).unwrap();
        volume.begin(Caller::ADMIN).write(file, 0, &[1; 4096]).unwrap();
        volume.begin(Caller::ADMIN).link(file, at, format!("b{n}").as_bytes()).unwrap();
        file
    };
    let inodes = (0..files).map(make).collect();
    volume.unmount().unwrap();
    inodes
}

/// Runs a call in 400 MiB, without its output. Returns its exit code.
fn bounded_without_output(dir: &Path, call: &str) -> Option<i32> {
    let script = format!("ulimit -v 409600; exec \"$0\" {call} >/dev/null 2>&1");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_flashkit")]).current_dir(dir);
    shell.status().expect("it starts").code()
}

/// The full paths of all first names have 450 MB.
#[test]
fn lists_of_deep_files_keep_no_full_paths() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, image) = (dir.path(), dir.path().join("v.img"));
    ok(dir, &["mkfs", "-q", "v.img", "--size", "256M"]);
    let files = fill_deep_directory(&image, 600, 3000);
    for call in
        ["defrag --all v.img", "defrag --all --json v.img", "export -q v.img out", "import -q out new.img"]
    {
        if call.starts_with("import") {
            ok(dir, &["mkfs", "-q", "new.img", "--size", "256M"]);
        }
        assert_eq!(bounded_without_output(dir, call), Some(0), "{call}");
    }
    assert!(Command::new("rm").args(["-rf", "out"]).current_dir(dir).status().unwrap().success());
    // Each inode becomes a loss, under each of its names.
    let volume = open(&image);
    let device = fs::File::options().write(true).open(&image).unwrap();
    for ino in &files {
        let block = u64::from(volume.nat_entry((*ino).into()).unwrap().addr.0) * 4096;
        device.write_all_at(&[0xA5; 4096], block).unwrap();
    }
    drop(volume);
    assert_eq!(bounded_without_output(dir, "export -k --json v.img out"), Some(1));
    assert!(Command::new("rm").args(["-rf", "out"]).current_dir(dir).status().unwrap().success());
}

/// The full paths of the first names have 640 MB. A rescue moves deeper directories to lost+found.
#[test]
fn a_rescue_of_deep_files_with_two_names_keeps_no_full_paths() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, image) = (dir.path(), dir.path().join("v.img"));
    ok(dir, &["mkfs", "-q", "v.img", "--size", "256M"]);
    fill_deep_directory(&image, 128, 20_000);
    assert_eq!(bounded_without_output(dir, "rescue -q v.img -"), Some(0));
}

#[test]
fn a_bad_part_of_a_file_loses_only_those_bytes_in_directories_and_archives() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir(dir.join("tree")).unwrap();
    let content: Vec<u8> = (0..3_000_000u32).flat_map(|n| n.to_le_bytes()).collect();
    fs::write(dir.join("tree/large"), &content).unwrap();
    fs::write(dir.join("tree/zz"), "behind it").unwrap();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M", "--from", "tree"]);
    support::damage(&dir.join("v.img"), "large");
    let error = fails(dir, &["export", "v.img", "stops"]);
    assert!(error.contains("large, bytes ") && error.contains("flashkit export -k"), "{error}");
    let output = flashkit(dir, &["export", "-k", "--json", "v.img", "out"]);
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("flashkit: large, bytes "), "{told}");
    let record: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let lost = &record["lost"][0];
    assert_eq!((&record["losses"], &lost["path"]), (&1.into(), &"large".into()), "{record}");
    let (from, to) =
        (lost["from_byte"].as_u64().unwrap() as usize, lost["to_byte"].as_u64().unwrap() as usize);
    assert_eq!(to - from, 1018 * 4096, "the blocks of one node");
    let wanted = [&content[..from], &vec![0; to - from], &content[to..]].concat();
    assert!(fs::read(dir.join("out/large")).unwrap() == wanted);
    assert_eq!(fs::read(dir.join("out/zz")).unwrap(), b"behind it");
    for more in [&[][..], &["--sparse"]] {
        let output = flashkit(dir, &[&["export", "-k", "-q", "v.img", "out.tar"], more].concat());
        assert_eq!(output.status.code(), Some(1));
        fs::create_dir(dir.join("unpacked")).unwrap();
        let tar = Command::new("tar")
            .args(["-xf", "../out.tar"])
            .current_dir(dir.join("unpacked"))
            .output()
            .unwrap();
        assert!(tar.status.success(), "{}", String::from_utf8_lossy(&tar.stderr));
        assert!(fs::read(dir.join("unpacked/large")).unwrap() == wanted);
        assert_eq!(fs::read(dir.join("unpacked/zz")).unwrap(), b"behind it");
        fs::remove_dir_all(dir.join("unpacked")).unwrap();
    }
}

#[test]
fn an_interrupted_export_continues_with_overwrite() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir_all(dir.join("tree/sub")).unwrap();
    for name in ["a", "b", "sub/c"] {
        fs::write(dir.join("tree").join(name), name.repeat(3)).unwrap();
    }
    fs::hard_link(dir.join("tree/a"), dir.join("tree/sub/link")).unwrap();
    std::os::unix::fs::symlink("a", dir.join("tree/symlink")).unwrap();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M", "--from", "tree"]);
    ok(dir, &["export", "-q", "v.img", "out"]);
    // A partial file, a link to elsewhere in the place of a file, and a file in the place of a directory.
    fs::write(dir.join("elsewhere"), "stays").unwrap();
    fs::write(dir.join("out/a"), "a").unwrap();
    fs::remove_file(dir.join("out/b")).unwrap();
    std::os::unix::fs::symlink("../elsewhere", dir.join("out/b")).unwrap();
    fs::remove_dir_all(dir.join("out/sub")).unwrap();
    fs::write(dir.join("out/sub"), "in the way").unwrap();
    fs::write(dir.join("out/other"), "stays").unwrap();
    let error = fails(dir, &["export", "-q", "v.img", "out"]);
    assert!(error.contains("out/a: File exists; --overwrite replaces existing files"), "{error}");
    ok(dir, &["export", "-q", "--overwrite", "v.img", "out"]);
    let names = fs::read_dir(dir.join("out")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["a", "b", "other", "sub", "symlink"], "no temporary name is left");
    for name in ["a", "b", "sub/c"] {
        assert_eq!(fs::read_to_string(dir.join("out").join(name)).unwrap(), name.repeat(3));
    }
    for name in ["elsewhere", "out/other"] {
        assert_eq!(fs::read_to_string(dir.join(name)).unwrap(), "stays");
    }
    assert_eq!(fs::metadata(dir.join("out/sub/link")).unwrap().nlink(), 2);
    assert_eq!(fs::read_link(dir.join("out/symlink")).unwrap(), Path::new("a"));
    let error = fails(dir, &["export", "-q", "--overwrite", "v.img", "out.tar"]);
    assert!(error.contains("--overwrite applies only to directories"), "{error}");
}

#[test]
fn a_file_that_cannot_be_exported_leaves_the_existing_one() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir(dir.join("tree")).unwrap();
    fs::write(dir.join("tree/large"), vec![1; 8 << 20]).unwrap();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M", "--from", "tree"]);
    damage(&dir.join("v.img"), "large");
    fs::create_dir(dir.join("out")).unwrap();
    fs::write(dir.join("out/large"), "older").unwrap();
    fails(dir, &["export", "-q", "--overwrite", "v.img", "out"]);
    assert_eq!(fs::read(dir.join("out/large")).unwrap(), b"older");
    assert_eq!(fs::read_dir(dir.join("out")).unwrap().count(), 1, "no temporary name is left");
    fs::create_dir(dir.join("taken")).unwrap();
    fs::create_dir(dir.join("taken/large")).unwrap();
    let error = fails(dir, &["export", "-q", "--overwrite", "v.img", "taken"]);
    assert!(error.contains("taken/large: Is a directory"), "{error}");
}

#[test]
fn a_refused_owner_loses_only_the_owner() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let inside = |arguments: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user"]).args(arguments).current_dir(dir);
        unshare.output()
    };
    if !inside(&["true"]).is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this machine forbids user namespaces");
        return;
    }
    fs::create_dir_all(dir.join("tree/b")).unwrap();
    for name in ["a", "b/c", "b/d", "e"] {
        fs::write(dir.join("tree").join(name), name).unwrap();
    }
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M", "--from", "tree"]);
    ok(dir, &["chown", "0:0", "v.img:/", "v.img:/b", "v.img:/b/c", "v.img:/b/d", "v.img:/e"]);
    ok(dir, &["chown", "7:7", "v.img:/a"]);
    let output = inside(&[env!("CARGO_BIN_EXE_flashkit"), "export", "-k", "-q", "v.img", "out"]).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert_eq!(errors.matches("flashkit: ").count(), 2, "one loss and the end: {errors}");
    assert!(errors.starts_with("flashkit: a: ") && errors.contains("its owner 7:7"), "{errors}");
    for name in ["a", "b/c", "b/d", "e"] {
        assert_eq!(fs::read_to_string(dir.join("out").join(name)).unwrap(), name);
    }
}

#[test]
fn a_damaged_name_does_not_lead_changes_to_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, image) = (dir.path(), dir.path().join("v.img"));
    // Without inode checksums, a changed name is accepted.
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M", "-O", ""]);
    let mut volume = open_to_write(&image);
    let top = volume.begin(Caller::ADMIN).create(ROOT, b"top", &NewNode::new(DIR)).unwrap();
    volume.begin(Caller::ADMIN).create(top, b"damaged", &NewNode::new(DIR)).unwrap();
    volume.begin(Caller::ADMIN).symlink(ROOT, b"link", b"top/damaged/.", &NewNode::new(0o120_777)).unwrap();
    let x = volume.begin(Caller::ADMIN).create(ROOT, b"x", &NewNode::new(DIR)).unwrap();
    let y = volume.begin(Caller::ADMIN).create(x, b"y", &NewNode::new(DIR)).unwrap();
    volume.begin(Caller::ADMIN).create(y, b"file", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).symlink(ROOT, b"sound", b"x/y/", &NewNode::new(0o120_777)).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    redirect(&image, top, b"damaged", y);
    let before = fs::read(&image).unwrap();
    let calls: [&[&str]; 5] = [
        &["rm", "-r", "v.img:/top/damaged"],
        &["chmod", "-R", "700", "v.img:/top/damaged"],
        &["chmod", "-R", "700", "v.img:/top/damaged/"],
        &["chmod", "-R", "700", "v.img:/link"],
        &["chown", "-R", "7:7", "v.img:/top/damaged"],
    ];
    for call in calls {
        let error = fails(dir, call);
        assert!(error.contains(&format!("has a name in {top}, but its parent is {x}")), "{call:?}: {error}");
        assert!(fs::read(&image).unwrap() == before, "{call:?} has changed something");
    }
    // Under its own name it is changed, however the path is written.
    for path in
        ["v.img:/x/y", "v.img:/x/y/", "v.img:/x/y/.", "v.img:/x/../x/y", "v.img:/sound", "v.img:/x/y/.."]
    {
        ok(dir, &["chmod", "-R", "700", path]);
    }
    ok(dir, &["rm", "-r", "v.img:/x/y"]);
    assert_eq!(ok(dir, &["ls", "v.img:/x"]), "");
}

#[test]
fn a_volume_without_the_head_of_its_newest_checkpoint_is_read_with_a_notice_and_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M"]);
    for name in ["v.img:/first", "v.img:/second"] {
        ok(dir, &["mkdir", name]);
    }
    let image = dir.join("v.img");
    let volume = open(&image);
    let head = u64::from(volume.geometry().pack(volume.last_pack()).0) * 4096;
    drop(volume);
    let file = fs::File::options().write(true).open(&image).expect("it opens");
    file.write_all_at(&[0xA5; 8], head + 200).expect("written");
    let before = fs::read(&image).unwrap();
    let told = "the head of the newest checkpoint";
    let error = fails(dir, &["mkdir", "v.img:/third"]);
    assert!(error.contains(told) && error.contains("flashkit fsck -p restores it"), "{error}");
    let error = fails(dir, &["resize", "-q", "--no-truncate", "v.img", "60M"]);
    assert!(error.contains(told) || error.contains("damaged"), "{error}");
    assert!(fs::read(&image).unwrap() == before);
    let output = flashkit(dir, &["ls", "v.img:/"]);
    let notice = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && notice.contains("those of an older checkpoint"), "{notice}");
    assert_eq!(flashkit(dir, &["fsck", "-p", "v.img"]).status.code(), Some(1));
    ok(dir, &["mkdir", "v.img:/third"]);
    assert!(ok(dir, &["ls", "v.img:/"]).contains("second"));
}
