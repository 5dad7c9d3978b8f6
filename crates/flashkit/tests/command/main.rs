//! The command as users call it: its output, its files, its exit code.

mod cards;
mod matrix;

#[path = "../support/mod.rs"]
mod support;

use std::{fs, path::Path, process::Command};

use support::{fails, flashkit, ok};

fn tree(dir: &Path) {
    fs::create_dir_all(dir.join("tree/etc")).unwrap();
    fs::write(dir.join("tree/etc/motd"), "hello\n").unwrap();
    fs::write(dir.join("tree/large"), vec![7; 100_000]).unwrap();
    std::os::unix::fs::symlink("etc/motd", dir.join("tree/link")).unwrap();
}

#[test]
fn an_imported_tree_is_exported_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    tree(dir);
    let made = ok(dir, &["mkfs", "v.img", "--size", "64M", "--from", "tree", "--json"]);
    assert!(made.contains("\"entries\": 4") && made.contains("\"written\": true"), "{made}");
    assert_eq!(ok(dir, &["cat", "v.img:/etc/motd"]), "hello\n");
    assert_eq!(ok(dir, &["ls", "v.img"]), "etc\nlarge\nlink\n");
    ok(dir, &["export", "-q", "v.img", "out"]);
    assert_eq!(fs::read(dir.join("out/large")).unwrap(), vec![7; 100_000]);
    assert_eq!(fs::read_link(dir.join("out/link")).unwrap(), Path::new("etc/motd"));
    let report = ok(dir, &["info", "v.img", "--json"]);
    assert!(report.contains("\"clean\": true"), "{report}");
}

#[test]
fn an_archive_gets_its_name_after_its_content_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    tree(dir);
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M", "--from", "tree"]);
    fs::write(dir.join("out.tar"), "old").unwrap();
    let watched = Command::new("strace")
        .current_dir(dir)
        .args(["-f", "-o", "calls", "-e", "trace=fsync,fdatasync,rename,renameat,renameat2", "--"])
        .args([env!("CARGO_BIN_EXE_flashkit"), "export", "-q", "v.img", "out.tar"])
        .status();
    if !watched.is_ok_and(|status| status.success()) {
        return eprintln!("skipped: strace is missing or may not look at programs here");
    }
    let calls = fs::read_to_string(dir.join("calls")).unwrap();
    let position = |has: &dyn Fn(&str) -> bool| calls.lines().position(has);
    let named = position(&|line| line.contains("rename") && line.contains("out.tar")).expect(&calls);
    let durable = position(&|line| line.contains("fdatasync(") || line.contains("fsync(")).expect(&calls);
    assert!(durable < named, "{calls}");
    assert!(fs::metadata(dir.join("out.tar")).unwrap().len() > 100_000);
}

/// An image in the source directory does not become a part of itself.
#[test]
fn an_image_does_not_hold_itself() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    tree(dir);
    let mkfs = ["mkfs", "-q", "-f", "tree/v.img", "--size", "64M", "--from", "tree"];
    // The second time, the image exists already.
    for _ in 0..2 {
        ok(dir, &mkfs);
        assert_eq!(ok(dir, &["ls", "tree/v.img"]), "etc\nlarge\nlink\n");
    }
    ok(dir, &["mkdir", "tree/v.img:/more"]);
    ok(dir, &["import", "-q", "tree", "tree/v.img:/more"]);
    assert_eq!(ok(dir, &["ls", "tree/v.img:/more"]), "etc\nlarge\nlink\n");
    // Another image is an ordinary file.
    ok(dir, &["mkfs", "-q", "v.img", "--size", "256M", "--from", "tree"]);
    assert_eq!(ok(dir, &["ls", "v.img"]), "etc\nlarge\nlink\nv.img\n");
}

#[test]
fn archives_are_compressed_as_their_names_say() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    tree(dir);
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M", "--from", "tree"]);
    ok(dir, &["export", "-q", "v.img", "plain.tar"]);
    let plain = fs::read(dir.join("plain.tar")).unwrap();
    for (name, program) in
        [("a.tar.gz", "gzip"), ("a.tgz", "gzip"), ("a.tar.xz", "xz"), ("a.tar.zst", "zstd")]
    {
        ok(dir, &["export", "-q", "v.img", name]);
        let unpacked = Command::new(program).arg("-dc").arg(dir.join(name)).output().unwrap();
        assert!(unpacked.status.success() && unpacked.stdout == plain, "{name}");
        ok(dir, &["mkfs", "-q", "-f", "w.img", "--size", "64M", "--from", name]);
        assert_eq!(ok(dir, &["cat", "w.img:/etc/motd"]), "hello\n");
    }
    let error = fails(dir, &["export", "-q", "v.img", "a.tar.bz2"]);
    assert!(error.contains("a.tar.bz2") && error.contains(".tar.zst"), "{error}");
    assert!(!dir.join("a.tar.bz2").exists());
    // An existing directory is a directory, whatever its name.
    fs::create_dir(dir.join("d.tar")).unwrap();
    ok(dir, &["export", "-q", "v.img", "d.tar"]);
    assert!(dir.join("d.tar/etc/motd").exists());
}

/// The caller owns the root directory of a new volume, unless another owner is given.
#[test]
fn the_caller_owns_the_root_directory() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: acting as another user needs root");
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::os::unix::fs::chown(dir, Some(1000), Some(1001)).unwrap();
    // The binary may lie in a directory that other users cannot search.
    fs::copy(env!("CARGO_BIN_EXE_flashkit"), dir.join("flashkit")).unwrap();
    let made = |more: &[&str]| {
        let status = Command::new("setpriv")
            .args([
                "--reuid=1000",
                "--regid=1001",
                "--clear-groups",
                "./flashkit",
                "mkfs",
                "-q",
                "-f",
                "v.img",
            ])
            .args(["--size", "64M", "-O", "lost_found"])
            .args(more)
            .current_dir(dir)
            .status();
        assert!(status.expect("setpriv is installed").success());
        ["v.img", "v.img:/lost+found"].map(|path| {
            let stat: serde_json::Value = serde_json::from_str(&ok(dir, &["stat", path, "--json"])).unwrap();
            (stat["uid"].as_u64().unwrap(), stat["gid"].as_u64().unwrap())
        })
    };
    assert_eq!(made(&[]), [(1000, 1001); 2]);
    assert_eq!(made(&["-R", "7:8"]), [(7, 8); 2]);
}

/// An interrupted mkfs leaves nothing behind.
#[test]
fn an_interrupted_mkfs_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let dir = fs::canonicalize(dir.path()).unwrap();
    // The archive never ends, because nothing is written to the pipe.
    let mut child = Command::new(env!("CARGO_BIN_EXE_flashkit"))
        .current_dir(&dir)
        .args(["mkfs", "-q", "v.img", "--size", "64M", "--from", "-"])
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Dropping the pipe would end the command.
    let _archive = child.stdin.take();
    let open = format!("/proc/{}/fd", child.id());
    let begun = || {
        let links = fs::read_dir(&open).into_iter().flatten().flatten();
        links.filter_map(|link| fs::read_link(link.path()).ok()).any(|file| file.starts_with(&dir))
    };
    let patience = std::time::Instant::now();
    while !begun() && patience.elapsed().as_secs() < 60 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(begun());
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM)
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("flashkit: stopped: v.img: nothing was changed"), "{error}");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
fn a_symbolic_link_to_a_volume_stays_a_link() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir(dir.join("images")).unwrap();
    std::os::unix::fs::symlink("images/v.img", dir.join("link")).unwrap();
    for _ in 0..2 {
        ok(dir, &["mkfs", "-q", "-f", "link", "--size", "64M"]);
        assert_eq!(fs::read_link(dir.join("link")).unwrap(), Path::new("images/v.img"));
        assert_eq!(fs::symlink_metadata(dir.join("images/v.img")).unwrap().len(), 64 << 20);
    }
}

#[test]
fn a_volume_in_use_by_a_writer_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M"]);
    let options = block::OpenOptions { write: true, direct: false };
    let writer = block::FileDevice::open(dir.join("v.img"), options).unwrap();
    let before = fs::read(dir.join("v.img")).unwrap();
    assert!(fails(dir, &["mkfs", "-q", "-f", "v.img"]).contains("another program is writing to it"));
    assert!(fs::read(dir.join("v.img")).unwrap() == before);
    assert_eq!(fs::read_dir(dir).unwrap().count(), 1);
    drop(writer);
    ok(dir, &["mkfs", "-q", "-f", "v.img"]);
}

/// GNU tar restores files' ACLs, and with them the permissions of the group itself.
#[test]
fn access_lists_survive_gnu_tar() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    tree(dir);
    let lists = |tree: &str| {
        let output = Command::new("getfacl").args(["-Rn", "."]).current_dir(dir.join(tree)).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    for arguments in [["-m", "u:71000:rw,g:70000:r", "large"], ["-m", "d:u:71000:rwx", "etc"]] {
        let set = Command::new("setfacl").args(arguments).current_dir(dir.join("tree")).status();
        if !set.expect("setfacl is installed").success() {
            return eprintln!("skipped: no access control lists here");
        }
    }
    let wanted = lists("tree");
    assert!(wanted.contains("user:71000:rw-") && wanted.contains("default:user:71000:rwx"), "{wanted}");
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M", "--from", "tree"]);
    ok(dir, &["export", "-q", "v.img", "ours.tar"]);
    let tar = |arguments: &[&str]| {
        let run =
            Command::new("tar").args(["--acls", "--numeric-owner"]).args(arguments).current_dir(dir).status();
        assert!(run.unwrap().success(), "{arguments:?}");
    };
    fs::create_dir(dir.join("unpacked")).unwrap();
    tar(&["-xpf", "ours.tar", "-C", "unpacked"]);
    assert_eq!(lists("unpacked"), wanted);
    // In the other direction, GNU tar has the ACLs only as texts. Ids without a name on this host are numbers
    // there.
    tar(&["-cf", "theirs.tar", "-C", "tree", "."]);
    ok(dir, &["mkfs", "-q", "w.img", "--size", "64M", "--from", "theirs.tar"]);
    ok(dir, &["export", "-q", "w.img", "out"]);
    assert_eq!(lists("out"), wanted);
}

#[test]
fn the_same_command_makes_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    tree(dir);
    let make = |image: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flashkit"));
        command.current_dir(dir).env("SOURCE_DATE_EPOCH", "1700000000");
        let status = command.args(["mkfs", "-q", image, "--minimize", "--from", "tree"]).status().unwrap();
        assert!(status.success());
        fs::read(dir.join(image)).unwrap()
    };
    assert!(make("a.img") == make("b.img"));
}

#[test]
fn volumes_are_changed_without_mounting_them() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    tree(dir);
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M", "--from", "tree"]);
    ok(dir, &["mkdir", "-p", "v.img:/a/b"]);
    ok(dir, &["cp", "tree/large", "v.img:/a/b"]);
    ok(dir, &["mv", "v.img:/a/b/large", "v.img:/a/moved"]);
    ok(dir, &["ln", "v.img:/a/moved", "v.img:/a/second"]);
    ok(dir, &["ln", "-s", "moved", "v.img:/a/soft"]);
    ok(dir, &["chmod", "6755", "v.img:/a/moved"]);
    ok(dir, &["chmod", "-R", "go=u,o-x", "v.img:/a/b"]);
    ok(dir, &["chown", "-R", "7:8", "v.img:/a"]);
    assert!(ok(dir, &["stat", "v.img:/a/moved", "--json"]).contains("\"mode\": \"0755\""));
    ok(dir, &["chmod", "4711", "v.img:/a/moved"]);
    assert!(ok(dir, &["ls", "-l", "v.img:/a"]).contains("lrwxrwxrwx   1     7     8"));
    assert!(ok(dir, &["cat", "v.img:/a/soft"]).as_bytes() == fs::read(dir.join("tree/large")).unwrap());
    ok(dir, &["cp", "v.img:/a/soft", "followed"]);
    assert!(dir.join("followed").symlink_metadata().unwrap().is_file());
    assert!(fails(dir, &["cp", "v.img:/a/soft", "none/"]).contains("no such directory"));
    assert!(fails(dir, &["cp", "v.img:/a/soft", "none/copy"]).contains("none: no such directory"));
    assert!(!dir.join("none").exists());
    ok(dir, &["cp", "tree/large", "v.img:/a/soft"]);
    assert!(ok(dir, &["ls", "-l", "v.img:/a"]).contains("soft -> moved"));
    ok(dir, &["setfattr", "v.img:/a/moved", "-n", "user.k", "-v", "0x00ff"]);
    assert!(ok(dir, &["getfattr", "v.img:/a/second"]).contains("00ff"));
    let stat = ok(dir, &["stat", "v.img:/a/second", "--json"]);
    assert!(stat.contains("\"mode\": \"4711\"") && stat.contains("\"links\": 2"), "{stat}");
    assert!(fails(dir, &["rm", "v.img:/a"]).contains("-r removes it"));
    ok(dir, &["rm", "-r", "v.img:/a"]);
    assert!(fails(dir, &["stat", "v.img:/a"]).contains("not found"));
}

/// New limits are reported, do not affect each other, and leave a volume that fsck.f2fs finds clean.
#[test]
fn limits_are_set_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    tree(dir);
    ok(
        dir,
        &["mkfs", "-q", "v.img", "--size", "64M", "-O", "extra_attr,project_quota,quota", "--from", "tree"],
    );
    ok(dir, &["chown", "-R", "1000:100", "v.img:/etc"]);
    ok(dir, &["quota", "set", "v.img", "--user", "1000", "--blocks", "9M:10M"]);
    ok(dir, &["quota", "set", "v.img", "--user", "1000", "--inodes", "1:5000"]);
    ok(dir, &["quota", "set", "v.img", "--project", "7", "--blocks", "0:2048", "--inodes", "0:3"]);
    let rows: serde_json::Value = serde_json::from_str(&ok(dir, &["quota", "v.img", "--json"])).unwrap();
    let of = |kind: &str, id: u64| {
        let found = rows.as_array().unwrap().iter().find(|row| row["kind"] == kind && row["id"] == id);
        found.unwrap_or_else(|| panic!("{kind} {id}: {rows}")).clone()
    };
    let user = of("user", 1000);
    assert_eq!((user["bytes_soft"].as_u64(), user["bytes_hard"].as_u64()), (Some(9 << 20), Some(10 << 20)));
    assert_eq!((user["inodes"].as_u64(), user["inodes_soft"].as_u64()), (Some(2), Some(1)));
    assert!(user["inodes_until"].is_string() && user["bytes_until"].is_null(), "{user}");
    assert_eq!(of("project", 7)["bytes_hard"], 2048 << 10);
    assert_eq!(of("group", 100)["inodes"], 2);
    let text = ok(dir, &["quota", "v.img"]);
    assert!(text.contains("9.00 MiB") && text.contains("over its soft limit of inodes"), "{text}");
    // Without usage and without a limit there is no record.
    ok(dir, &["quota", "set", "v.img", "--project", "7", "--blocks", "0:0", "--inodes", "0:0"]);
    assert!(!ok(dir, &["quota", "v.img"]).contains("2.00 MiB"));
    model::fsck::fsck_image(&dir.join("v.img")).unwrap();

    ok(dir, &["mkfs", "-q", "plain.img", "--size", "64M"]);
    assert!(fails(dir, &["quota", "set", "plain.img", "--user", "1", "--blocks", "0:1"]).contains("quota"));
    assert_eq!(ok(dir, &["quota", "plain.img", "--json"]).trim(), "[]");
    for wrong in [
        &["quota", "set", "v.img", "--user", "1"][..],
        &["quota", "set", "v.img", "--blocks", "0:1"],
        &["quota", "set", "v.img", "--user", "1", "--group", "1", "--blocks", "0:1"],
        &["quota"],
    ] {
        assert_eq!(flashkit(dir, wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn wrong_arguments_are_reported_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    tree(dir);
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M", "--from", "tree"]);
    let before = fs::read(dir.join("v.img")).unwrap();

    assert!(fails(dir, &["mkfs", "v.img", "--size", "64M"]).contains("carries F2FS; -f overwrites it"));
    assert!(fails(dir, &["info", "none.img"]).contains("No such file"));
    fs::write(dir.join("empty.img"), "").unwrap();
    assert!(fails(dir, &["info", "empty.img"]).contains("not an F2FS volume"));
    fs::write(dir.join("cut.img"), &before[..9 << 20]).unwrap();
    assert!(fails(dir, &["tree", "cut.img"]).contains("truncated image?"));
    fs::write(dir.join("other.img"), vec![0xA5; 1 << 20]).unwrap();
    assert!(fails(dir, &["dump", "checkpoint", "other.img"]).contains("magic number"));

    fs::write(dir.join("tree/too-much"), vec![1; 60 << 20]).unwrap();
    let full = fails(dir, &["mkfs", "-q", "new.img", "--size", "64M", "--from", "tree"]);
    assert!(full.contains(" MiB needed, "), "{full}");
    assert!(!dir.join("new.img").exists());
    let full = fails(dir, &["import", "-q", "tree", "v.img"]);
    assert!(full.contains(" MiB needed, "), "{full}");
    assert_eq!(ok(dir, &["ls", "v.img"]), "etc\nlarge\nlink\n");
    let left: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
}

/// A mount that is removed when the test ends, even if it fails.
struct Mounted(std::path::PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(&self.0).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "{} stays mounted", self.0.display());
    }
}

#[test]
fn devices_in_use_are_left_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let image = dir.join("disk");
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image).status().unwrap();
    assert!(made.success());
    let device = match block::LoopDevice::attach(&image) {
        Ok(device) => device,
        Err(error) => return eprintln!("skipped: no loop devices here: {error}"),
    };
    let name = device.path().to_str().unwrap();
    let refused = |why: &str| {
        for target in [name, "disk"] {
            for arguments in [
                &["probe", target, "--write", "-y"][..],
                &["mkfs", "-f", target],
                &["mkfs", "-f", target, "--probe"],
            ] {
                let error = fails(dir, arguments);
                assert!(
                    error.contains(why) && error.contains("nothing was written"),
                    "{arguments:?}: {error}"
                );
            }
        }
    };
    let at = dir.join("mnt");
    fs::create_dir(&at).unwrap();
    let mounted = Command::new("mount").args(["-t", "ext4"]).arg(device.path()).arg(&at).status().unwrap();
    if !mounted.success() {
        return eprintln!("skipped: ext4 cannot be mounted here");
    }
    let mounted = Mounted(at.clone());
    fs::write(at.join("file"), "still there").unwrap();
    refused(&format!("mounted at {}", at.display()));
    // Reading alone does no harm.
    assert!(ok(dir, &["probe", name, "--time", "5"]).contains("64 MiB"));
    assert_eq!(fs::read_to_string(at.join("file")).unwrap(), "still there");
    drop(mounted);

    // The loop device uses the file, and the program that writes to the device uses the device.
    let error = fails(dir, &["probe", "disk", "--write", "-y"]);
    assert!(error.contains("used by loop") && error.contains("nothing was written"), "{error}");
    let writer = block::FileDevice::open(name, block::OpenOptions { write: true, direct: false }).unwrap();
    for arguments in [&["probe", name, "--write", "-y"][..], &["mkfs", "-f", name]] {
        let error = fails(dir, arguments);
        assert!(error.contains("busy") || error.contains("another program"), "{arguments:?}: {error}");
    }
    drop(writer);
    let checked = Command::new("fsck.ext4").args(["-f", "-n"]).arg(&image).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
}

#[test]
fn space_saved_by_compression_is_released_and_reserved() {
    use f2fs::{
        engine::{Caller, Engine, NewNode, Options, SetAttr},
        format::inode::flag,
        units::Time,
    };

    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["mkfs", "v.img", "--size", "64M", "-O", "extra_attr,compression"]);
    let options = block::OpenOptions { write: true, ..block::OpenOptions::default() };
    let device = block::FileDevice::open(dir.join("v.img"), options).unwrap();
    let mut volume = Engine::open(std::sync::Arc::new(device), Options::new(Time::default)).unwrap();
    let root = volume.superblock().root_ino;
    let flags = SetAttr { flags: Some(flag::COMPRESS), ..SetAttr::default() };
    volume.begin(Caller::ADMIN).set_attr(root, &flags).unwrap();
    let ino = volume.begin(Caller::ADMIN).create(root, b"file", &NewNode::new(0o100_644)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &[7; 65536]).unwrap();
    volume.unmount().unwrap();
    drop(volume);

    let report = ok(dir, &["compression", "v.img", "--json"]);
    assert!(
        report.contains("\"releasable_blocks\": 12") && report.contains("\"released_blocks\": 0"),
        "{report}"
    );
    let report = ok(dir, &["compression", "v.img", "--release", "--json"]);
    assert!(
        report.contains("\"releasable_blocks\": 0") && report.contains("\"released_blocks\": 12"),
        "{report}"
    );
    assert!(report.contains("\"stored_bytes\": 16384"), "{report}");
    assert!(ok(dir, &["compression", "v.img:/file", "--files"]).contains("48.00 KiB of 64.00 KiB saved"));
    let report = ok(dir, &["compression", "v.img:/file", "--reserve", "--json"]);
    assert!(report.contains("\"releasable_blocks\": 12"), "{report}");
    assert_eq!(ok(dir, &["cat", "v.img:/file"]).len(), 65536);
}
