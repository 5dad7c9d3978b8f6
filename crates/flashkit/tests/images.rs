//! Images as people hold them, made and judged by the programs of other projects.

mod support;

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use support::{fails, flashkit, ok};

/// Runs a program with standard input. Returns its output, or None with a message if it is missing.
fn run(dir: &Path, program: &str, arguments: &[&str], input: &str) -> Option<String> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("/usr/bin/env");
    command.env("PATH", path).arg(program).args(arguments).current_dir(dir);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("there is env");
    // A program that does not read its input closes it.
    let _ = child.stdin.take().expect("it is piped").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("it ends");
    if output.status.code() == Some(127) {
        eprintln!("skipped: {program} is missing");
        return None;
    }
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {said}{errors}");
    Some(said.into_owned())
}

fn empty_file(dir: &Path, name: &str, mebibytes: u64) {
    File::create(dir.join(name)).and_then(|file| file.set_len(mebibytes << 20)).unwrap();
}

/// Extracts a part of a file.
fn cut(dir: &Path, from: &str, to: &str, start: u64, length: u64) {
    let bytes = fs::read(dir.join(from)).unwrap();
    fs::write(dir.join(to), &bytes[start as usize..(start + length) as usize]).unwrap();
}

/// Makes a volume in a part of a disk, changes it by several verbs, and lets fsck.f2fs judge exactly that part.
fn exercise(dir: &Path, disk: &str, part: &str, start: u64, length: u64) {
    let before = fs::read(dir.join(disk)).unwrap();
    fs::write(dir.join("file"), "content\n").unwrap();
    ok(dir, &["mkfs", "-q", part, "-l", "INSIDE"]);
    let path = |name: &str| format!("{part}:{name}");
    ok(dir, &["cp", "file", &path("/a")]);
    ok(dir, &["mkdir", &path("/dir")]);
    ok(dir, &["mv", &path("/a"), &path("/dir/b")]);
    assert_eq!(ok(dir, &["cat", &path("/dir/b")]), "content\n");
    assert_eq!(ok(dir, &["ls", part]), "dir\n");
    assert!(ok(dir, &["info", part]).contains("INSIDE"));
    assert!(ok(dir, &["fsck", "-q", part]).contains("clean"));
    fs::create_dir_all(dir.join("tree/sub")).unwrap();
    fs::write(dir.join("tree/sub/f"), vec![7; 100_000]).unwrap();
    ok(dir, &["import", "-q", "tree", part]);
    ok(dir, &["export", "-q", &path("/sub"), "out.tar"]);
    let error = fails(dir, &["mkfs", "-q", part]);
    assert!(error.contains("carries F2FS; -f overwrites it"), "{error}");
    // Nothing outside of the part changed.
    let after = fs::read(dir.join(disk)).unwrap();
    let (start, end) = (start as usize, (start + length) as usize);
    assert!(
        before.len() == after.len() && before[..start] == after[..start] && before[end..] == after[end..]
    );
    cut(dir, disk, "part", start as u64, length);
    run(dir, "fsck.f2fs", &["--dry-run", "part"], "");
    ok(dir, &["ls", "part:/dir/b"]);
}

#[test]
fn a_partition_of_a_gpt_disk_is_used_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let id = "11111111-2222-3333-4444-55555555aaaa";
    let of_512 = format!(
        "label: gpt\nstart=1MiB,size=8MiB,name=boot\nstart=16MiB,size=64MiB,name=\"user data\",uuid={id}\n"
    );
    let of_4096 =
        format!("g\nn\n1\n256\n2047\nn\n2\n4096\n20479\nx\nn\n1\nboot\nn\n2\nuser data\nu\n2\n{id}\nr\nw\n");
    for (sector, program, arguments, script) in [
        ("512", "sfdisk", &["-q", "disk.img"][..], of_512),
        ("4096", "fdisk", &["-b", "4096", "disk.img"], of_4096),
    ] {
        empty_file(dir, "disk.img", 96);
        if run(dir, program, arguments, &script).is_none() {
            return;
        }
        for name in ["2", "user data", "11111111-2222-3333-4444-55555555aaaa"] {
            exercise(dir, "disk.img", &format!("disk.img#{name}"), 16 << 20, 64 << 20);
            let blank = ["if=/dev/zero", "of=disk.img", "bs=1M", "seek=16", "count=1", "conv=notrunc"];
            run(dir, "dd", &blank, "");
        }
        ok(dir, &["mkfs", "-fq", "disk.img#2"]);
        let listed = ok(dir, &["partitions", "disk.img"]);
        assert!(listed.contains(&format!("GPT, sectors of {sector} bytes")), "{listed}");
        let listed: serde_json::Value =
            serde_json::from_str(&ok(dir, &["partitions", "--json", "disk.img"])).unwrap();
        let second = &listed["partitions"][1];
        assert_eq!((&second["name"], &second["content"]), (&"user data".into(), &"F2FS".into()));
        assert_eq!(second["start_bytes"], 16 << 20);
        assert_eq!(listed["partitions"][0]["content"], serde_json::Value::Null);
        let error = fails(dir, &["ls", "disk.img"]);
        let told =
            "disk.img: not an F2FS volume: a GPT disk; partition 2 at byte 16777216 is F2FS: use disk.img#2";
        assert!(error.contains(told), "{error}");
        let error = fails(dir, &["ls", "disk.img#3"]);
        assert!(
            error.contains("disk.img#3: no partition \"3\"; the GPT table has 1 (boot), 2 (user data)"),
            "{error}"
        );
        if sector == "512" {
            run(dir, "sfdisk", &["-q", "--verify", "disk.img"], "");
            run(dir, "sgdisk", &["-v", "disk.img"], "");
            // The backup at the end takes over.
            run(
                dir,
                "dd",
                &["if=/dev/zero", "of=disk.img", "bs=512", "seek=1", "count=4", "conv=notrunc"],
                "",
            );
            ok(dir, &["ls", "disk.img#2"]);
        }
    }
}

#[test]
fn a_logical_partition_of_an_mbr_disk_is_used_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    empty_file(dir, "sd.img", 192);
    let script = "label: dos\nlabel-id: 0xcafe1234\nstart=2048,size=8192,type=c\nstart=16384,type=f\n\
                  start=18432,size=20480,type=83\nstart=43008,size=262144,type=83\n";
    if run(dir, "sfdisk", &["-q", "sd.img"], script).is_none() {
        return;
    }
    exercise(dir, "sd.img", "sd.img#6", 43008 * 512, 262_144 * 512);
    ok(dir, &["ls", "sd.img#cafe1234-06:/dir"]);
    let listed: serde_json::Value =
        serde_json::from_str(&ok(dir, &["partitions", "--json", "sd.img"])).unwrap();
    let numbers: Vec<_> =
        listed["partitions"].as_array().unwrap().iter().map(|row| row["number"].as_u64()).collect();
    assert_eq!(numbers, [Some(1), Some(2), Some(5), Some(6)]);
    let sfdisk = run(dir, "sfdisk", &["--json", "sd.img"], "").unwrap();
    let sfdisk: serde_json::Value = serde_json::from_str(&sfdisk).unwrap();
    for (ours, theirs) in std::iter::zip(
        listed["partitions"].as_array().unwrap(),
        sfdisk["partitiontable"]["partitions"].as_array().unwrap(),
    ) {
        assert_eq!(ours["start_bytes"].as_u64().unwrap(), theirs["start"].as_u64().unwrap() * 512);
        assert_eq!(ours["size_bytes"].as_u64().unwrap(), theirs["size"].as_u64().unwrap() * 512);
    }
    // Cut off in the middle of the volume.
    File::options().write(true).open(dir.join("sd.img")).unwrap().set_len(64 << 20).unwrap();
    let error = fails(dir, &["ls", "sd.img#6"]);
    assert!(error.contains("pass the end of the image at 67108864; is the image cut off?"), "{error}");
}

#[test]
fn a_range_of_an_image_is_used_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    empty_file(dir, "flash.bin", 100);
    ok(dir, &["mkfs", "-q", "flash.bin", "--offset", "20M", "--length", "64M"]);
    fs::write(dir.join("file"), "in the middle").unwrap();
    ok(dir, &["cp", "file", "flash.bin:/f", "--offset", "20M"]);
    assert_eq!(ok(dir, &["cat", "flash.bin:/f", "--offset", "20971520", "--length", "64M"]), "in the middle");
    assert!(ok(dir, &["info", "flash.bin", "--offset", "20M"]).contains("64.00 MiB"));
    cut(dir, "flash.bin", "part", 20 << 20, 64 << 20);
    run(dir, "fsck.f2fs", &["--dry-run", "part"], "");
    assert!(fails(dir, &["info", "flash.bin"]).contains("not an F2FS volume"));
    let error = fails(dir, &["info", "flash.bin", "--offset", "200M"]);
    assert!(error.contains("does not lie in the 104857600 bytes of the image"), "{error}");
    assert_eq!(flashkit(dir, &["info", "flash.bin", "--length", "1M"]).status.code(), Some(2));
    let error = fails(dir, &["mkfs", "new.img", "--size", "64M", "--offset", "1M"]);
    assert!(error.contains("new.img: no such file; --offset is for an existing image"), "{error}");
    assert!(!dir.join("new.img").exists());
}

#[test]
fn a_file_whose_name_looks_like_a_partition_is_that_file() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["mkfs", "-q", "a#2", "--size", "64M"]);
    fs::write(dir.join("a"), "not a disk").unwrap();
    ok(dir, &["mkdir", "a#2:/here"]);
    assert_eq!(ok(dir, &["ls", "a#2"]), "here\n");
    let error = fails(dir, &["ls", "a#3"]);
    assert!(error.contains("a#3: there are no partitions, so there is no partition \"3\""), "{error}");
}

#[test]
fn the_image_of_a_mounted_partition_is_locked_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        return eprintln!("skipped: this needs root and /dev/fuse");
    }
    empty_file(dir, "disk.img", 160);
    let script = "label: gpt\nsize=64MiB\nsize=64MiB,name=data\n";
    if run(dir, "sfdisk", &["-q", "disk.img"], script).is_none() {
        return;
    }
    ok(dir, &["mkfs", "-q", "disk.img#1"]);
    ok(dir, &["mkfs", "-q", "disk.img#data"]);
    fs::create_dir(dir.join("mnt")).unwrap();
    ok(dir, &["mount", "disk.img#data", "mnt"]);
    fs::write(dir.join("mnt/file"), vec![5; 3_000_000]).unwrap();
    for part in ["disk.img#1", "disk.img#2", "disk.img"] {
        let error = fails(dir, &["mkfs", "-fq", part]);
        assert!(error.contains("mounted at") || error.contains("writing to it"), "{part}: {error}");
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(mounts.contains("disk.img#data ") || mounts.contains("/dev/loop"), "{mounts}");
    run(dir, "umount", &["mnt"], "").unwrap();
    run(dir, "flock", &["--timeout", "60", "disk.img", "true"], "").unwrap();
    assert_eq!(ok(dir, &["cat", "disk.img#2:/file"]).into_bytes(), vec![5; 3_000_000]);
    assert!(ok(dir, &["ls", "disk.img#1"]).is_empty());
    cut(dir, "disk.img", "part", 65 << 20, 64 << 20);
    run(dir, "fsck.f2fs", &["--dry-run", "part"], "");
}

#[test]
fn a_sparse_image_is_made_read_and_converted() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir(dir.join("tree")).unwrap();
    fs::write(dir.join("tree/file"), vec![3; 1_000_000]).unwrap();
    ok(dir, &["mkfs", "-q", "v.simg", "--size", "128M", "--sparse", "--from", "tree"]);
    assert!(fs::metadata(dir.join("v.simg")).unwrap().len() < 8 << 20);
    assert_eq!(ok(dir, &["cat", "v.simg:/file"]).into_bytes(), vec![3; 1_000_000]);
    let error = fails(dir, &["rm", "v.simg:/file"]);
    assert!(error.contains("v.simg: an Android sparse image cannot be changed in place"), "{error}");
    assert!(
        fails(dir, &["mkfs", "-q", "v.simg"]).contains("carries an Android sparse image; -f overwrites it")
    );
    ok(dir, &["convert", "-q", "v.simg", "raw"]);
    ok(dir, &["rm", "raw:/file"]);
    run(dir, "fsck.f2fs", &["--dry-run", "raw"], "");
    ok(dir, &["convert", "-q", "raw", "again.simg", "--to", "sparse"]);
    if run(dir, "simg2img", &["again.simg", "theirs"], "").is_some() {
        assert!(fs::read(dir.join("theirs")).unwrap() == fs::read(dir.join("raw")).unwrap());
        run(dir, "simg2img", &["v.simg", "made"], "").unwrap();
        run(dir, "fsck.f2fs", &["--dry-run", "made"], "");
        assert_eq!(ok(dir, &["cat", "made:/file"]).into_bytes(), vec![3; 1_000_000]);
    }
    assert!(fails(dir, &["convert", "-q", "raw", "again.simg"]).contains("-f overwrites it"));
}

#[test]
fn an_image_of_any_length_is_converted() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let image: Vec<u8> = (0..50_000_u32).map(|n| n as u8 | 1).collect();
    fs::write(dir.join("odd.img"), &image).unwrap();
    ok(dir, &["convert", "-q", "odd.img", "raw"]);
    assert!(fs::read(dir.join("raw")).unwrap() == image);
    ok(dir, &["convert", "-q", "odd.img", "odd.simg", "--to", "sparse"]);
    ok(dir, &["convert", "-q", "odd.simg", "back"]);
    let back = fs::read(dir.join("back")).unwrap();
    assert!(
        back[..50_000] == image && back[50_000..] == [0; 53_248 - 50_000],
        "a sparse image has whole blocks"
    );
}

#[test]
fn an_image_is_not_converted_to_its_own_file() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "60M"]);
    fs::hard_link(dir.join("v.img"), dir.join("link.img")).unwrap();
    let error = fails(dir, &["convert", "-qf", "v.img", "link.img"]);
    assert!(
        error.contains("link.img: it is on the disk of v.img; convert that to another file first"),
        "{error}"
    );
}

#[test]
fn an_image_is_converted_into_an_existing_partition() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    empty_file(dir, "disk.img", 96);
    let table = "label: gpt\nstart=1MiB,size=8MiB\nstart=16MiB,size=64MiB\n";
    if run(dir, "sfdisk", &["-q", "disk.img"], table).is_none() {
        return;
    }
    let mut expected = fs::read(dir.join("disk.img")).unwrap();
    expected[16 << 20..80 << 20].fill(0xA5);
    fs::write(dir.join("disk.img"), &expected).unwrap();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "60M"]);
    let volume = fs::read(dir.join("v.img")).unwrap();
    for (arguments, told) in [
        (
            &["v.img", "disk.img#1"][..],
            "disk.img#1: 8388608 bytes, too small for the 62914560 bytes of v.img",
        ),
        (&["v.img", "disk.img#2", "--to", "sparse"], "--to sparse makes a file"),
        (&["-f", "disk.img#1", "disk.img#2"], "convert that to another file first"),
        (&["v.img", "disk.img#3"], "no partition \"3\""),
    ] {
        let error = fails(dir, &[&["convert", "-q"], arguments].concat());
        assert!(error.contains(told), "{error}");
    }
    ok(dir, &["convert", "-q", "v.img", "disk.img#2"]);
    expected[16 << 20..76 << 20].copy_from_slice(&volume);
    assert!(fs::read(dir.join("disk.img")).unwrap() == expected, "the rest of the disk is as it was");
    assert!(!dir.join("disk.img#2").exists());
    let error = fails(dir, &["convert", "-q", "v.img", "disk.img#2"]);
    assert!(error.contains("disk.img#2: carries F2FS; -f overwrites it"), "{error}");
    ok(dir, &["convert", "-qf", "v.img", "disk.img#2"]);
    assert_eq!(ok(dir, &["ls", "disk.img#2"]), "");
}

#[test]
fn an_image_is_converted_onto_a_block_device_and_not_in_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "60M"]);
    fs::write(dir.join("card"), vec![0xA5; 64 << 20]).unwrap();
    let attached = Command::new("losetup").args(["--show", "-f", "card"]).current_dir(dir).output();
    let Some(attached) = attached.ok().filter(|run| run.status.success()) else {
        eprintln!("skipped: there is no loop device");
        return;
    };
    let device = String::from_utf8(attached.stdout).unwrap().trim().to_owned();
    let converted = flashkit(dir, &["convert", "-q", "v.img", &device]);
    let kind = fs::symlink_metadata(&device).unwrap().file_type();
    let detached = Command::new("losetup").args(["-d", &device]).status().unwrap();
    assert!(converted.status.success() && detached.success(), "{converted:?}");
    assert!(std::os::unix::fs::FileTypeExt::is_block_device(&kind));
    let card = fs::read(dir.join("card")).unwrap();
    assert!(
        card[..60 << 20] == fs::read(dir.join("v.img")).unwrap()[..] && card[60 << 20..] == [0xA5; 4 << 20]
    );
}

#[test]
fn a_volume_in_a_qcow2_image_is_changed_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["mkfs", "-q", "base", "--size", "128M"]);
    let create = ["create", "-q", "-f", "qcow2", "-b", "base", "-F", "raw", "disk.qcow2"];
    if run(dir, "qemu-img", &create, "").is_none() {
        return;
    }
    fs::create_dir(dir.join("tree")).unwrap();
    fs::write(dir.join("tree/file"), vec![3; 5_000_000]).unwrap();
    let error = fails(dir, &["ls", "disk.qcow2"]);
    assert!(
        error.contains("it is not opened unasked") && error.contains("--format qcow2 opens it"),
        "{error}"
    );
    let with_format = ["--format", "qcow2"];
    ok(dir, &[&["import", "-q", "tree", "disk.qcow2"], &with_format[..]].concat());
    ok(dir, &[&["mv", "disk.qcow2:/file", "disk.qcow2:/moved"], &with_format[..]].concat());
    assert!(ok(dir, &["ls", "base"]).is_empty(), "the backing file is not changed");
    if rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists() {
        fs::create_dir(dir.join("mnt")).unwrap();
        ok(dir, &["mount", "disk.qcow2", "mnt", "--format", "qcow2"]);
        fs::write(dir.join("mnt/new"), vec![4; 3_000_000]).unwrap();
        run(dir, "umount", &["mnt"], "").unwrap();
        run(dir, "flock", &["--timeout", "60", "disk.qcow2", "true"], "").unwrap();
        assert_eq!(
            ok(dir, &["cat", "disk.qcow2:/new", "--backing", "base"]).into_bytes(),
            vec![4; 3_000_000]
        );
    }
    run(dir, "qemu-img", &["check", "-q", "disk.qcow2"], "").unwrap();
    run(dir, "qemu-img", &["convert", "-O", "raw", "disk.qcow2", "raw"], "").unwrap();
    run(dir, "fsck.f2fs", &["--dry-run", "raw"], "");
    assert_eq!(ok(dir, &["cat", "raw:/moved"]).into_bytes(), vec![3; 5_000_000]);
    ok(dir, &["convert", "-q", "disk.qcow2", "ours", "--format", "qcow2"]);
    assert!(fs::read(dir.join("ours")).unwrap() == fs::read(dir.join("raw")).unwrap());
}

#[test]
fn a_resize_keeps_the_container_of_a_qcow2_image_whole() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    fs::write(dir.join("file"), vec![3; 3_000_000]).unwrap();
    ok(dir, &["mkfs", "-q", "raw.img", "--size", "200M"]);
    ok(dir, &["cp", "file", "raw.img:/file"]);
    let convert = ["convert", "-q", "-f", "raw", "-O", "qcow2", "raw.img", "disk.qcow2"];
    let Some(_) = run(dir, "qemu-img", &convert, "") else { return };
    let length = || fs::metadata(dir.join("disk.qcow2")).unwrap().len();
    let before = fs::read(dir.join("disk.qcow2")).unwrap();
    let error = fails(dir, &["resize", "-q", "disk.qcow2", "300M"]);
    assert!(error.contains("qemu-img resize"), "{error}");
    assert_eq!(fails(dir, &["resize", "-q", "--dry-run", "disk.qcow2", "300M"]), error);
    assert!(fs::read(dir.join("disk.qcow2")).unwrap() == before, "a refused growth changed the file");
    let minimized = ok(dir, &["resize", "-q", "--minimize", "disk.qcow2"]);
    assert!(length() >= before.len() as u64, "the container was cut: {minimized}");
    run(dir, "qemu-img", &["check", "-q", "disk.qcow2"], "").unwrap();
    assert!(ok(dir, &["fsck", "-q", "disk.qcow2"]).contains("clean"));
    run(dir, "qemu-img", &["resize", "-q", "disk.qcow2", "300M"], "").unwrap();
    ok(dir, &["resize", "-q", "disk.qcow2"]);
    assert_eq!(ok(dir, &["cat", "disk.qcow2:/file"]).into_bytes(), vec![3; 3_000_000]);
    assert!(ok(dir, &["fsck", "-q", "disk.qcow2"]).contains("clean"));
}

#[test]
fn a_compressed_image_is_read_and_not_changed() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    fs::write(dir.join("file"), vec![3; 3_000_000]).unwrap();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "100M"]);
    ok(dir, &["cp", "file", "v.img:/file"]);
    for (program, end) in [("gzip", "gz"), ("xz", "xz"), ("zstd", "zst")] {
        let packed = format!("v.img.{end}");
        if run(dir, program, &["-q", "-k", "v.img"], "").is_none() {
            continue;
        }
        assert_eq!(ok(dir, &["cat", &format!("{packed}:/file")]).into_bytes(), vec![3; 3_000_000]);
        assert_eq!(ok(dir, &["ls", &packed]), "file\n");
        ok(dir, &["fsck", "-n", &packed]);
        ok(dir, &["convert", "-q", "-f", &packed, "back.img"]);
        assert!(fs::read(dir.join("back.img")).unwrap() == fs::read(dir.join("v.img")).unwrap());
        let before = fs::read(dir.join(&packed)).unwrap();
        let error = fails(dir, &["rm", &format!("{packed}:/file")]);
        assert!(
            error.contains("a compressed image is only read; decompress it (flashkit convert"),
            "{error}"
        );
        assert!(fails(dir, &["resize", &packed, "200M"]).contains("a compressed image is only read"));
        assert!(fs::read(dir.join(&packed)).unwrap() == before);
        fs::write(dir.join("cut"), &before[..before.len() / 2]).unwrap();
        let error = fails(dir, &["ls", "cut"]);
        assert!(error.contains("the compressed data is damaged or cut off"), "{error}");
        // The bytes of the file itself.
        assert!(fails(dir, &["ls", &packed, "--format", "raw"]).contains("compressed data"));
    }
    if rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists() {
        fs::create_dir(dir.join("mnt")).unwrap();
        assert!(fails(dir, &["mount", "v.img.gz", "mnt"]).contains("-o ro mounts it for reading"));
        ok(dir, &["mount", "v.img.gz", "mnt", "-o", "ro"]);
        assert!(fs::read(dir.join("mnt/file")).unwrap() == vec![3; 3_000_000]);
        run(dir, "umount", &["mnt"], "").unwrap();
    }
}

#[test]
fn images_in_unknown_compression_are_named_and_quiet_hides_the_progress_of_decompressing() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    fs::write(dir.join("v.img.bz2"), "BZh91AY&SY").unwrap();
    let error = fails(dir, &["ls", "v.img.bz2"]);
    assert!(error.contains("data compressed with bzip2"), "{error}");
    ok(dir, &["mkfs", "-q", "v.img", "--size", "200M"]);
    if run(dir, "gzip", &["v.img"], "").is_none() {
        return;
    }
    for (option, shown) in [("-n", true), ("-nq", false)] {
        let line = format!("{} fsck {option} v.img.gz", env!("CARGO_BIN_EXE_flashkit"));
        let Some(said) = run(dir, "script", &["-qec", &line, "/dev/null"], "") else { return };
        assert_eq!(said.contains("decompressing"), shown, "{said}");
    }
}

#[test]
fn partitions_and_sparse_images_inside_of_compressed_files_are_read() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    empty_file(dir, "disk.img", 96);
    if run(dir, "sfdisk", &["-q", "disk.img"], "label: gpt\nstart=16MiB,size=64MiB,name=root\n").is_none() {
        return;
    }
    fs::write(dir.join("file"), "content\n").unwrap();
    ok(dir, &["mkfs", "-q", "disk.img#root"]);
    ok(dir, &["cp", "file", "disk.img#root:/file"]);
    // Several streams in one file, as pigz and split downloads have them.
    let bytes = fs::read(dir.join("disk.img")).unwrap();
    let (one, two) = bytes.split_at(40_000_001);
    let mut packed = Vec::new();
    for part in [one, two] {
        fs::write(dir.join("part"), part).unwrap();
        run(dir, "gzip", &["-f", "part"], "").unwrap();
        packed.extend(fs::read(dir.join("part.gz")).unwrap());
    }
    fs::write(dir.join("disk.img.gz"), packed).unwrap();
    assert_eq!(ok(dir, &["cat", "disk.img.gz#root:/file"]), "content\n");
    assert!(ok(dir, &["partitions", "disk.img.gz"]).contains("F2FS"));
    assert!(fails(dir, &["mkfs", "-f", "disk.img.gz#root"]).contains("a compressed image is only read"));
    ok(dir, &["convert", "-q", "disk.img#root", "v.simg", "--to", "sparse"]);
    run(dir, "gzip", &["v.simg"], "").unwrap();
    assert_eq!(ok(dir, &["cat", "v.simg.gz:/file"]), "content\n");
}
