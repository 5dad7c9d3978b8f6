//! New volumes: over existing content, from invalid sources, and from files under fakeroot.

mod support;

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt, chown},
    path::Path,
    process::Command,
};

use support::{fails, flashkit, ok};

/// Makes a test directory that other users may search.
fn shared_dir() -> tempfile::TempDir {
    let dir =
        tempfile::Builder::new().permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755)).tempdir();
    dir.expect("a temporary directory")
}

fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // No magic starts with such a byte.
        state as u8 | 1
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn a_file_that_holds_data_is_overwritten_only_when_forced() {
    let dir = shared_dir();
    let dir = dir.path();
    let film = noise(3 << 20);
    let late = [vec![0; 50 << 20], b"x".to_vec()].concat();
    let middle = [vec![0; 2 << 20], b"a note".to_vec(), vec![0; 3 << 20]].concat();
    let program = fs::read(env!("CARGO_BIN_EXE_flashkit")).unwrap()[..1 << 20].to_vec();
    let mut qcow2 = b"QFI\xFB\0\0\0\x03".to_vec();
    qcow2.resize(200_000, 0);
    for (name, content, told) in [
        ("film.mp4", &film, "holds data in an unknown format from byte 0 on"),
        ("late", &late, "from byte 52428800 on"),
        ("middle", &middle, "from byte 2097152 on"),
        ("one", &b"1".to_vec(), "from byte 0 on"),
        ("program", &program, "carries an ELF program"),
        ("q.qcow2", &qcow2, "carries a qcow2 image"),
    ] {
        fs::write(dir.join(name), content).unwrap();
        let error = fails(dir, &["mkfs", "-q", name, "--size", "64M"]);
        assert!(error.contains(told) && error.contains("-f overwrites it"), "{name}: {error}");
        assert!(fs::read(dir.join(name)).unwrap() == *content, "{name} is as it was");
        ok(dir, &["mkfs", "-q", name, "--size", "64M", "-f"]);
        ok(dir, &["info", name]);
    }
}

#[test]
fn empty_files_become_volumes_without_force() {
    let dir = shared_dir();
    let dir = dir.path();
    fs::write(dir.join("empty"), b"").unwrap();
    File::create(dir.join("hole")).unwrap().set_len(64 << 20).unwrap();
    fs::write(dir.join("zeroes"), vec![0; 64 << 20]).unwrap();
    for name in ["empty", "hole", "zeroes", "new"] {
        ok(dir, &["mkfs", "-q", name, "--size", "64M"]);
    }
    File::create(dir.join("long")).unwrap().set_len(80 << 20).unwrap();
    let error = fails(dir, &["mkfs", "-q", "long", "--size", "64M"]);
    assert!(error.contains("has 83886080 bytes and the volume 67108864; -f truncates the file"), "{error}");
    assert_eq!(fs::metadata(dir.join("long")).unwrap().len(), 80 << 20);
    ok(dir, &["mkfs", "-q", "long", "--size", "64M", "-f"]);
    assert_eq!(fs::metadata(dir.join("long")).unwrap().len(), 64 << 20);
}

#[test]
fn other_formats_are_named() {
    let dir = shared_dir();
    let dir = dir.path();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M"]);
    let disk = File::create(dir.join("disk")).unwrap();
    disk.set_len(160 << 20).unwrap();
    disk.write_all_at(&[0x55, 0xAA], 510).unwrap();
    for (n, start) in [(0, 1u32 << 20), (1, 65 << 20)] {
        disk.write_all_at(&[0x83], 446 + n * 16 + 4).unwrap();
        disk.write_all_at(&(start / 512).to_le_bytes(), 446 + n * 16 + 8).unwrap();
        disk.write_all_at(&[0, 0, 2, 0], 446 + n * 16 + 12).unwrap();
    }
    disk.write_all_at(&fs::read(dir.join("v.img")).unwrap(), 65 << 20).unwrap();
    let long = |start: &[u8]| [start, &[0; 100_000]].concat();
    fs::write(dir.join("lz4"), long(b"\x04\x22\x4D\x18")).unwrap();
    fs::write(dir.join("gz"), long(b"\x1F\x8B\x08")).unwrap();
    fs::write(dir.join("ext"), [&[0; 1080][..], b"\x53\xEF", &[0; 100_000]].concat()).unwrap();
    for (name, told) in [
        ("disk", "an MBR disk; partition 2 at byte 68157440 is F2FS: use disk#2"),
        ("lz4", "lz4-compressed data: decompress it first"),
        ("ext", "it carries ext2, ext3 or ext4"),
    ] {
        for arguments in [&["info", name][..], &["ls", name], &["import", "v.img", name]] {
            let error = fails(dir, arguments);
            assert_eq!(error, format!("flashkit: {name}: not an F2FS volume: {told}\n"), "{arguments:?}");
        }
    }
    // An image may be compressed.
    let error = fails(dir, &["info", "gz"]);
    assert!(error.contains("gz: the compressed data is damaged or cut off"), "{error}");
}

#[test]
fn a_source_that_is_no_archive_is_named_and_not_the_image() {
    let dir = shared_dir();
    let dir = dir.path();
    fs::write(dir.join("text"), noise(2000)).unwrap();
    fs::write(dir.join("word"), b"yes\n").unwrap();
    fs::write(dir.join("zip"), [&b"PK\x03\x04"[..], &noise(2000)].concat()).unwrap();
    ok(dir, &["mkfs", "-q", "d.img", "--size", "64M"]);
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M"]);
    for (name, told) in [
        ("text", "flashkit: text: not a tar archive\n"),
        ("word", "flashkit: word: not a tar archive\n"),
        ("zip", "flashkit: zip: not a tar archive but a zip archive: unpack it first\n"),
        (
            "d.img",
            "flashkit: d.img: not a tar archive but an F2FS volume; flashkit export d.img - makes an archive of it\n",
        ),
    ] {
        assert_eq!(fails(dir, &["mkfs", "-q", "new.img", "--size", "64M", "--from", name]), told);
        assert_eq!(fails(dir, &["mkfs", "-q", "new.img", "--minimize", "--from", name]), told);
        assert_eq!(fails(dir, &["import", "-q", name, "v.img"]), told);
    }
    assert!(!dir.join("new.img").exists());
    let error = fails(dir, &["mkfs", "nodir/x.img", "--size", "64M"]);
    assert!(error.contains("nodir/x.img: nodir: No such file or directory"), "{error}");
}

#[test]
fn a_probe_writes_only_to_the_range_of_the_volume() {
    let dir = shared_dir();
    let dir = dir.path();
    let (before, after) = (noise(4 << 20), noise(3 << 20));
    let disk = File::create(dir.join("disk.img")).unwrap();
    disk.write_all_at(&before, 0).unwrap();
    disk.write_all_at(&after, 68 << 20).unwrap();
    ok(dir, &["mkfs", "-q", "--probe", "--offset", "4M", "--length", "64M", "disk.img"]);
    let disk = fs::read(dir.join("disk.img")).unwrap();
    assert!(disk[..4 << 20] == before, "the bytes before the range");
    assert!(disk[68 << 20..] == after, "the bytes behind the range");
    ok(dir, &["info", "disk.img", "--offset", "4M", "--length", "64M"]);
}

#[test]
fn bytes_behind_a_smaller_volume_stay() {
    let dir = shared_dir();
    let dir = dir.path();
    let footer = noise(1 << 20);
    let disk = File::create(dir.join("disk.img")).unwrap();
    disk.write_all_at(&footer, 64 << 20).unwrap();
    ok(dir, &["mkfs", "-q", "-f", "--in-place", "--size", "64M", "disk.img"]);
    assert!(fs::read(dir.join("disk.img")).unwrap()[64 << 20..] == footer);
}

#[test]
fn sectors_of_a_file_have_512_bytes_and_too_many_are_refused() {
    let dir = shared_dir();
    let dir = dir.path();
    ok(dir, &["mkfs", "-q", "v.img", "131072"]);
    assert_eq!(fs::metadata(dir.join("v.img")).unwrap().len(), 64 << 20);
    let error = fails(dir, &["mkfs", "-q", "new.img", "36028797018963969"]);
    assert!(error.contains("36028797018963969 sectors of 512 bytes are too many"), "{error}");
}

#[test]
fn a_forced_volume_in_place_replaces_the_format_of_the_file() {
    let dir = shared_dir();
    let dir = dir.path();
    // A qcow2 image, of version 3, of a disk of 1 GiB, with its tables behind the header.
    let header: [&[u8]; 10] = [
        b"QFI\xFB\0\0\0\x03",
        &[0; 12],
        &16u32.to_be_bytes(),
        &(1u64 << 30).to_be_bytes(),
        &[0; 4],
        &2u32.to_be_bytes(),
        &(3u64 << 16).to_be_bytes(),
        &(1u64 << 16).to_be_bytes(),
        &1u32.to_be_bytes(),
        &[0; 36],
    ];
    let mut header = header.concat();
    header.extend([4u32.to_be_bytes(), 104u32.to_be_bytes()].concat());
    let disk = File::create(dir.join("disk.qcow2")).unwrap();
    disk.write_all_at(&header, 0).unwrap();
    disk.set_len(64 << 20).unwrap();
    assert!(fails(dir, &["mkfs", "-q", "--in-place", "disk.qcow2"]).contains("carries a qcow2 image"));
    ok(dir, &["mkfs", "-q", "--in-place", "-f", "disk.qcow2"]);
    let bytes = fs::read(dir.join("disk.qcow2")).unwrap();
    assert_eq!(bytes.len(), 64 << 20);
    assert_eq!(bytes[1024..1028], 0xF2F5_2010_u32.to_le_bytes(), "the volume is in the file itself");
    ok(dir, &["info", "disk.qcow2"]);
}

#[test]
fn options_without_effect_are_refused_and_owners_reach_the_root() {
    let dir = shared_dir();
    let dir = dir.path();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M", "--all-owned-by", "5:6"]);
    let stat = ok(dir, &["stat", "v.img", "--json"]);
    assert!(stat.contains("\"uid\": 5") && stat.contains("\"gid\": 6"), "{stat}");
    fs::write(dir.join("map"), "uid 1 2\n").unwrap();
    let error = fails(dir, &["mkfs", "w.img", "--size", "64M", "--mount-point", "/system"]);
    assert!(error.contains("--fs-config"), "{error}");
    let error = fails(dir, &["mkfs", "w.img", "--size", "64M", "--owner-map", "map"]);
    assert!(error.contains("--from"), "{error}");
    fs::create_dir(dir.join("tree")).unwrap();
    fs::write(dir.join("compiled"), b"\x8A\xFF\x7C\xF9\x05\0\0\0\xFF").unwrap();
    let compiled = ["mkfs", "w.img", "--size", "64M", "--from", "tree", "--file-contexts", "compiled"];
    let error = fails(dir, &compiled);
    assert!(error.contains("compiled: compiled file_contexts; use the text"), "{error}");
    for option in ["-s", "-z"] {
        let refused = flashkit(dir, &["mkfs", "w.img", "--size", "64M", option, "0"]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("0 is not in 1.."));
    }
}

#[test]
fn an_overprovision_of_0_is_automatic_and_sizes_have_both_kinds_of_units() {
    let dir = shared_dir();
    let dir = dir.path();
    let shape = |option: &[&str]| {
        let call = [
            "mkfs",
            "v.img",
            "--size",
            "100MB",
            "--json",
            "--dry-run",
            "-U",
            "00000000-0000-0000-0000-000000000001",
        ];
        ok(dir, &[&call, option].concat())
    };
    // Buildroot's call literally contains -o 0.
    assert_eq!(shape(&["-o", "0"]), shape(&[]));
    assert_ne!(shape(&["-o", "20"]), shape(&[]));
    for (size, bytes) in [("100MB", 100_000_000), ("100M", 100 << 20), ("100MiB", 100 << 20)] {
        ok(dir, &["mkfs", "-q", "-f", "v.img", "--size", size]);
        assert_eq!(fs::metadata(dir.join("v.img")).unwrap().len(), bytes, "{size}");
    }
    for (option, value) in [("--size", "1e3M"), ("-s", "0")] {
        let refused = flashkit(dir, &["mkfs", "v.img", option, value]);
        assert_eq!(refused.status.code(), Some(2), "{option} {value}");
    }
}

#[test]
fn an_import_that_fails_leaves_no_space_taken_on_the_host() {
    let dir = shared_dir();
    let dir = dir.path();
    fs::create_dir(dir.join("tree")).unwrap();
    for n in 0..20 {
        fs::write(dir.join(format!("tree/{n}")), noise(1 << 20)).unwrap();
    }
    ok(dir, &["mkfs", "-q", "v.img", "--size", "256M"]);
    assert!(Command::new("tar").current_dir(dir).args(["cf", "t.tar", "tree"]).status().unwrap().success());
    let blocks = || fs::metadata(dir.join("v.img")).unwrap().blocks();
    let before = blocks();
    let whole = fs::read(dir.join("t.tar")).unwrap();
    fs::write(dir.join("t.tar"), &whole[..15 << 20]).unwrap();
    // A stream cannot be counted in advance.
    let stopped = Command::new(env!("CARGO_BIN_EXE_flashkit"))
        .current_dir(dir)
        .args(["import", "-q", "-", "v.img"])
        .stdin(File::open(dir.join("t.tar")).unwrap())
        .output()
        .unwrap();
    assert_eq!(stopped.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&stopped.stderr).contains("truncated"), "{stopped:?}");
    // The host's file system may need further blocks for the map of the file.
    assert!(blocks() <= before + 64, "{} blocks before, {} after", before, blocks());
    assert_eq!(ok(dir, &["ls", "v.img"]), "");
    fs::write(dir.join("t.tar"), &whole).unwrap();
    ok(dir, &["import", "-q", "t.tar", "v.img"]);
    assert!(blocks() > before + (20 << 11));
    assert!(model::fsck::fsck_image(&dir.join("v.img")).is_ok());
}

/// The space of blocks that the closing checkpoint writes was not returned.
#[test]
fn an_import_whose_last_checkpoint_fails_leaves_no_space_taken_on_the_host() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: this needs root to limit the disk of the image");
    }
    let dir = shared_dir();
    let script = format!(
        "mkdir host; mount --make-rprivate /; mount -t tmpfs -o size=64M tmpfs host; cd host
         {0} mkfs -q v.img --size 256M
         mkdir ../tree; for n in $(seq 200); do head -c 9000 /dev/urandom > ../tree/$n; done
         before=$(stat -c %b v.img); used=$(df -k --output=used . | tail -1); failed=0
         sum=$(sha256sum < v.img)
         for more in 500 1500 $(seq 2100 75 3600) 40000; do
             mount -o remount,size=$((used + more))k $PWD
             if {0} import -q ../tree v.img 2> ../said; then break; fi
             failed=$((failed + 1)); grep -q 'disk that holds the image is full' ../said
             test $(stat -c %b v.img) -le $((before + 16)) || {{ echo \"$more: $before $(stat -c %b v.img)\"; exit 1; }}
         done
         echo $failed; {0} ls v.img | wc -l",
        env!("CARGO_BIN_EXE_flashkit")
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-euo", "pipefail", "-c", &script]);
    let run = command.current_dir(dir.path()).output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{said}{errors}");
    let [failed, entries] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    assert!(failed.parse::<u32>().unwrap() > 10 && entries == "200", "{said}");
}

/// Returns true if a program can be started. Otherwise prints that its test is skipped.
fn has(program: &str) -> bool {
    let is_there = Command::new(program).arg("--version").output().is_ok();
    if !is_there {
        eprintln!("skipped: {program} is missing");
    }
    is_there
}

/// Returns a shell script's output under fakeroot, as an ordinary user.
fn under_fakeroot(dir: &Path, script: &str) -> String {
    let mut call = match rustix::process::geteuid().is_root() {
        true => {
            chown(dir, Some(65534), Some(65534)).unwrap();
            let mut call = Command::new("setpriv");
            call.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "fakeroot"]);
            call
        }
        false => Command::new("fakeroot"),
    };
    let flashkit = env!("CARGO_BIN_EXE_flashkit");
    let call = call.current_dir(dir).args(["sh", "-ec", script]).env("flashkit", flashkit);
    let output = call.output().expect("fakeroot starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn owners_and_nodes_that_fakeroot_pretends_reach_the_volume_and_come_back() {
    if !has("fakeroot") || !has("setpriv") {
        return;
    }
    let dir = shared_dir();
    let dir = dir.path();
    // An ordinary user without access to the program cannot start it.
    let reachable = Path::new(env!("CARGO_BIN_EXE_flashkit"));
    let others_may = |path: &Path| path.metadata().is_ok_and(|facts| facts.mode() & 0o001 != 0);
    if rustix::process::geteuid().is_root() && !reachable.ancestors().all(others_may) {
        eprintln!("skipped: an ordinary user cannot start {}", reachable.display());
        return;
    }
    let listed = under_fakeroot(
        dir,
        "mkdir -p r/dev; echo x > r/a; chown 5:6 r/a; chmod 4755 r/a; mknod r/dev/null c 1 3; chown 7:8 r
         $flashkit mkfs -q f.img --size 64M --from r
         $flashkit mkfs -q i.img --size 64M; $flashkit import -q r i.img
         for image in f.img i.img; do
             for path in a dev/null; do $flashkit stat $image:/$path --json; done
         done
         $flashkit export -q f.img out; stat -c 'exported: %u:%g %a %F' out/a out/dev/null",
    );
    for (field, count) in [
        ("\"uid\": 5,", 2),
        ("\"gid\": 6,", 2),
        ("\"mode\": \"4755\"", 2),
        ("\"uid\": 0,", 2),
        ("\"kind\": \"character device\"", 2),
        ("exported: 5:6 4755 regular file", 1),
        ("exported: 0:0 644 character special file", 1),
    ] {
        assert_eq!(listed.matches(field).count(), count, "{field} in {listed}");
    }
    // In reality it is an ordinary file of the user.
    assert!(fs::metadata(dir.join("r/dev/null")).unwrap().is_file());
}

#[test]
fn a_program_outside_the_reach_of_fakeroot_refuses_to_read_a_directory() {
    let dir = shared_dir();
    let dir = dir.path();
    fs::create_dir(dir.join("tree")).unwrap();
    fs::write(dir.join("map"), "uid 1 2\n").unwrap();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M"]);
    // As in a static program: the variable is set, and the library is not loaded.
    for (variable, program) in [("FAKEROOTKEY", "fakeroot"), ("PSEUDO_PREFIX", "pseudo")] {
        let call = |arguments: &[&str]| {
            let mut call = Command::new(env!("CARGO_BIN_EXE_flashkit"));
            call.current_dir(dir)
                .args(arguments)
                .env(variable, "1")
                .env_remove("LD_PRELOAD")
                .output()
                .unwrap()
        };
        let mkfs = ["mkfs", "-q", "-f", "w.img", "--size", "64M", "--from", "tree"];
        for arguments in [&mkfs[..], &["import", "-q", "tree", "v.img"]] {
            let refused = call(arguments);
            assert_eq!(refused.status.code(), Some(1), "{arguments:?}");
            let error = String::from_utf8_lossy(&refused.stderr).into_owned();
            let advice = ["--owner-map", "tar c -C tree . | flashkit mkfs --from -"];
            assert!(error.contains(program) && advice.iter().all(|part| error.contains(part)), "{error}");
        }
        assert!(call(&[&mkfs[..], &["--owner-map", "map"]].concat()).status.success());
    }
}
