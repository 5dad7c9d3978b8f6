//! `cp`: copies files into an image and out of it.

mod support;

use std::{
    fs,
    os::unix::fs::FileExt,
    path::Path,
    process::{Command, Stdio},
};

use support::{fails, ok};

#[test]
fn several_files_are_copied_all_or_none() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for name in ["a", "b", "c"] {
        fs::write(dir.join(name), name).unwrap();
    }
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M"]);
    ok(dir, &["mkdir", "v.img:/x", "v.img:/y"]);
    ok(dir, &["cp", "a", "b", "v.img:/x"]);
    assert_eq!(ok(dir, &["ls", "v.img:/x"]), "a\nb\n");
    let error = fails(dir, &["cp", "c", "missing", "v.img:/x"]);
    assert!(error.contains("missing: No such file"), "{error}");
    let error = fails(dir, &["cp", "a", "b", "v.img:/z"]);
    assert!(error.contains("v.img:/z: not found"), "{error}");
    let error = fails(dir, &["rm", "v.img:/x/a", "v.img:/x/c"]);
    assert!(error.contains("v.img:/x/c: not found"), "{error}");
    assert_eq!(ok(dir, &["ls", "v.img:/x"]), "a\nb\n");
    fs::create_dir(dir.join("out")).unwrap();
    ok(dir, &["cp", "v.img:/x/a", "v.img:/x/b", "out"]);
    assert_eq!(fs::read_to_string(dir.join("out/b")).unwrap(), "b");
    ok(dir, &["chmod", "600", "v.img:/x/a", "v.img:/x/b"]);
    assert!(ok(dir, &["ls", "-l", "v.img:/x"]).lines().all(|line| line.starts_with("-rw-------")));
    ok(dir, &["rm", "-r", "v.img:/x", "v.img:/y"]);
    assert_eq!(ok(dir, &["ls", "v.img"]), "");
}

#[test]
fn a_partly_completed_copy_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M"]);
    for (name, mebibytes) in [("some", 15), ("more", 30)] {
        fs::write(dir.join(name), vec![7; mebibytes << 20]).unwrap();
    }
    let error = fails(dir, &["cp", "more", "v.img:/file"]);
    assert!(error.contains("no space left") && !error.contains("partly done"), "{error}");
    assert_eq!(ok(dir, &["ls", "v.img"]), "");
    // A file that replaces another needs space of its own.
    ok(dir, &["cp", "some", "v.img:/file"]);
    let error = fails(dir, &["cp", "more", "v.img:/file"]);
    assert!(error.contains("partly done") && error.contains("no space left"), "{error}");
    model::fsck::fsck_image(&dir.join("v.img")).unwrap();
}

#[test]
fn holes_stay_holes() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M"]);
    let file = fs::File::create(dir.join("sparse")).unwrap();
    // More data than the volume has space for.
    for (at, size) in [(0, "start"), (300 << 20, "middle")] {
        file.write_all_at(size.as_bytes(), at).unwrap();
    }
    file.set_len(600 << 20).unwrap();
    ok(dir, &["cp", "sparse", "v.img:/"]);
    ok(dir, &["cp", "v.img:/sparse", "back"]);
    let same = Command::new("cmp").args(["sparse", "back"]).current_dir(dir).status().unwrap();
    assert!(same.success());
    // Files that the kernel generates have a meaningless size.
    for made_up in ["/proc/version", "/sys/kernel/mm/transparent_hugepage/enabled"] {
        let Ok(content) = fs::read_to_string(made_up) else { continue };
        ok(dir, &["cp", made_up, "v.img:/made-up"]);
        assert_eq!(ok(dir, &["cat", "v.img:/made-up"]), content, "{made_up}");
    }
    model::fsck::fsck_image(&dir.join("v.img")).unwrap();
}

#[test]
fn a_fifo_is_refused_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M"]);
    let script = "mkfifo fifo && timeout 20 \"$0\" cp fifo v.img:/";
    let run =
        Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_flashkit")]).current_dir(dir).output();
    let run = run.unwrap();
    let error = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.code() == Some(1) && error.contains("not a regular file"), "{error}");
}

#[test]
fn standard_input_and_output_are_files_too() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M"]);
    fs::write(dir.join("long"), vec![3; 3 << 20]).unwrap();
    let call = |arguments: &[&str], from: &Path, to: &Path| {
        let to = fs::OpenOptions::new().write(true).open(to).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_flashkit"));
        let command =
            command.current_dir(dir).args(arguments).stdin(fs::File::open(from).unwrap()).stdout(to);
        command.output().expect("it starts")
    };
    let null = Path::new("/dev/null");
    assert!(call(&["cp", "-", "v.img:/long"], &dir.join("long"), null).status.success());
    ok(dir, &["cp", "v.img:/long", "back"]);
    assert_eq!(fs::read(dir.join("back")).unwrap(), vec![3; 3 << 20]);
    for arguments in [&["cat", "v.img:/long"][..], &["ls", "v.img"], &["stat", "v.img:/long"]] {
        let output = call(arguments, null, Path::new("/dev/full"));
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains("standard output: No space left on device"), "{error}");
    }
}

/// Returns the names in a directory, sorted.
fn names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_is_copied_to_standard_output() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M"]);
    let content = "line\n".repeat(400_000);
    fs::write(dir.join("f"), &content).unwrap();
    ok(dir, &["cp", "f", "v.img:/f"]);
    for output in ["-", "/dev/stdout"] {
        assert!(ok(dir, &["cp", "v.img:/f", output]) == content, "{output}");
    }
    let file = fs::File::create(dir.join("file")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_flashkit"));
    let command = command.current_dir(dir).args(["cp", "v.img:/f", "/dev/stdout"]).stdout(Stdio::from(file));
    assert!(command.status().unwrap().success());
    assert!(fs::read_to_string(dir.join("file")).unwrap() == content);
    ok(dir, &["cp", "v.img:/f", "/dev/null"]);
    assert_eq!(names(dir), ["f", "file", "v.img"], "no file is called -");
    let error = fails(dir, &["cp", "v.img:/f", "v.img:/f", "-"]);
    assert!(error.contains("no such directory"), "{error}");
}

#[test]
fn a_file_of_the_host_is_replaced_only_with_force() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M"]);
    fs::write(dir.join("f"), "new").unwrap();
    ok(dir, &["cp", "f", "v.img:/f"]);
    fs::write(dir.join("f"), "old").unwrap();
    std::os::unix::fs::symlink("f", dir.join("link")).unwrap();
    for there in [".", "f", "link"] {
        let error = fails(dir, &["cp", "v.img:/f", there]);
        assert!(error.contains("exists already; -f replaces it"), "{error}");
        assert_eq!(fs::read_to_string(dir.join("f")).unwrap(), "old");
    }
    // A link is replaced like any name. Its target stays.
    ok(dir, &["cp", "-f", "v.img:/f", "link"]);
    assert_eq!(fs::read_to_string(dir.join("f")).unwrap(), "old");
    assert!(dir.join("link").symlink_metadata().unwrap().is_file());
    ok(dir, &["cp", "-f", "v.img:/f", "."]);
    assert_eq!(fs::read_to_string(dir.join("f")).unwrap(), "new");
    assert_eq!(names(dir), ["f", "link", "v.img"]);
}

/// A failed copy leaves nothing that the next one would find.
#[test]
fn a_copy_that_fails_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir(dir.join("tree")).unwrap();
    fs::write(dir.join("tree/damaged"), vec![7; 8 << 20]).unwrap();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "96M", "--from", "tree"]);
    support::damage(&dir.join("v.img"), "damaged");
    fs::remove_dir_all(dir.join("tree")).unwrap();
    for _ in 0..2 {
        let error = fails(dir, &["cp", "v.img:/damaged", "."]);
        assert!(error.contains("corrupt "), "{error}");
        assert_eq!(names(dir), ["v.img"]);
    }
    fs::write(dir.join("damaged"), "old").unwrap();
    fails(dir, &["cp", "-f", "v.img:/damaged", "."]);
    assert_eq!(fs::read_to_string(dir.join("damaged")).unwrap(), "old", "it is replaced only by a whole one");
}

/// A file system in memory that is removed when the test ends, even if it fails.
struct Mounted(std::path::PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(&self.0).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "{} stays mounted", self.0.display());
    }
}

#[test]
fn a_full_disk_is_named_and_left_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M"]);
    fs::write(dir.join("f"), vec![7; 4 << 20]).unwrap();
    ok(dir, &["cp", "f", "v.img:/f"]);
    fs::create_dir(dir.join("small")).unwrap();
    let mut mount = Command::new("mount");
    let mount = mount.args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(dir.join("small")).output();
    if !mount.is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: no file system can be mounted here");
    }
    let small = Mounted(dir.join("small"));
    for _ in 0..2 {
        let error = fails(dir, &["cp", "v.img:/f", "small"]);
        assert_eq!(error, "flashkit: v.img:/f: small/f: No space left on device\n");
        assert_eq!(names(&small.0), [""; 0]);
    }
    // Nothing is left for the state of a card.
    fs::write(small.0.join("rest"), vec![7; 1 << 20]).unwrap();
    for _ in 0..2 {
        let error = fails(dir, &["card", "new", "--profile", "survey-class4", "small/a.card"]);
        assert!(error.contains("No space left on device"), "{error}");
        assert_eq!(names(&small.0), ["rest"]);
    }
}

#[test]
fn metadata_that_the_host_cannot_store_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: this needs root");
    }
    // The binary may lie in a directory that other users cannot search.
    fs::copy(env!("CARGO_BIN_EXE_flashkit"), dir.join("flashkit")).unwrap();
    let script = "umask 022; chmod 755 . && mkdir -m 777 out && mkdir tree && mknod tree/device c 1 3 \
                  && echo 1 >tree/program && echo 2 >tree/plain";
    assert!(Command::new("sh").args(["-c", script]).current_dir(dir).status().unwrap().success());
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M", "--from", "tree"]);
    ok(dir, &["chmod", "4755", "v.img:/program"]);
    ok(dir, &["chmod", "644", "v.img:/plain"]);
    let as_nobody = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "./flashkit"]);
        let output = command.args(arguments).current_dir(dir).output().expect("setpriv is installed");
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert!(Command::new("chmod").args(["644", "v.img"]).current_dir(dir).status().unwrap().success());
    let (code, error) = as_nobody(&["cp", "v.img:/program", "v.img:/plain", "out"]);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("its set-user-id or set-group-id bit: Operation not permitted"), "{error}");
    assert!(error.ends_with("flashkit: 1 thing could not be copied\n"), "{error}");
    assert_eq!(names(&dir.join("out")), ["plain", "program"], "the rest is there");
    let mode = fs::metadata(dir.join("out/program")).unwrap().permissions();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o7777, 0o755);
    let (code, error) = as_nobody(&["cp", "v.img:/device", "out"]);
    assert_eq!(code, Some(1), "{error}");
    assert!(
        error.contains("device, a device node, which only root can create: Operation not permitted"),
        "{error}"
    );
    assert!(error.ends_with("v.img:/device: no file was created in out\n"), "{error}");
    assert_eq!(names(&dir.join("out")), ["plain", "program"]);
    assert_eq!(as_nobody(&["cp", "-f", "v.img:/plain", "out"]), (Some(0), String::new()));
}
