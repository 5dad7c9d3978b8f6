//! Checking, repair, resizing, and volumes on several devices under the names of f2fs-tools.

use super::*;

#[test]
fn a_check_has_the_exit_codes_of_fsck() {
    let tools = Tools::new();
    tools.blank("IMG", 64 << 20);
    tools.ok("mkfs.f2fs -q IMG");
    for line in ["fsck.f2fs -a IMG", "fsck.f2fs --dry-run IMG", "fsck.f2fs -p IMG", "fsck.f2fs IMG"] {
        tools.ok(line);
    }
    let image = File::options().write(true).open(tools.path("IMG")).unwrap();
    let main = tools.info("IMG")["areas"][4]["start_block"].as_u64().unwrap();
    // The root directory's inode is gone.
    let node_log = tools.info("IMG")["logs"].as_array().unwrap().clone();
    let hot = node_log.iter().find(|log| log["log"].as_str().unwrap().contains("hot node")).unwrap();
    let segment = hot["segment"].as_u64().unwrap();
    image.write_all_at(&[0; 4096], (main + segment * 512) * 4096).unwrap();
    for line in ["fsck.f2fs --dry-run IMG", "fsck.f2fs IMG", "fsck.f2fs -f -y --dry-run IMG"] {
        assert_eq!(tools.fails(line).0, 4, "{line}");
    }
    assert_eq!(tools.fails("fsck.f2fs nothing").0, 8);
    assert_eq!(tools.fails("fsck.f2fs").0, 16);
    assert_eq!(tools.fails("fsck.f2fs -Q IMG").0, 16);
}

/// Makes a volume whose checkpoint has wrong counts and whose first superblock is invalid: damage with a certain repair.
fn make_damaged(tools: &Tools) {
    tools.blank("IMG", 64 << 20);
    tools.ok("mkfs.f2fs -q IMG; mkdir -p tree; echo hello > tree/file; sload.f2fs -f tree IMG");
    let image = File::options().write(true).open(tools.path("IMG")).unwrap();
    image.write_all_at(&[0; 4], 1024).unwrap();
}

#[test]
fn callers_of_fsck_repair_a_volume_and_read_its_exit_code() {
    let tools = Tools::new();
    for (line, allowed) in [
        // systemd-fsck and libblockdev, fsck(8), Android
        ("fsck.f2fs -a IMG", true),
        ("fsck.f2fs -p IMG", true),
        ("fsck.f2fs -p 1 IMG", true),
        ("fsck.f2fs -g android IMG", true),
        // GParted, new and old
        ("fsck.f2fs -f -a IMG", true),
        ("fsck.f2fs -f -y -a IMG", true),
        ("fsck.f2fs -y -d 1 --no-kernel-check IMG", true),
        // libblockdev's check
        ("fsck.f2fs --dry-run IMG", false),
        ("fsck.f2fs IMG", false),
    ] {
        make_damaged(&tools);
        let before = fs::read(tools.path("IMG")).unwrap();
        let (code, _) = tools.fails(line);
        assert_eq!(code, if allowed { 1 } else { 4 }, "{line}");
        match allowed {
            true => {
                let judged = model::fsck::fsck_image(&tools.path("IMG"));
                assert!(judged.is_ok(), "{line}: {judged:?}");
                tools.ok(line);
                assert_eq!(ok(tools.dir(), &["cat", "IMG:/file"]), "hello\n");
            }
            false => assert!(fs::read(tools.path("IMG")).unwrap() == before, "{line}"),
        }
    }
}

/// Mounts the volume on a directory by a line of a shell script. Returns false, with a message, if the host cannot.
fn mounts(tools: &Tools, line: &str) -> bool {
    let output = tools.sh(line);
    if !output.status.success() {
        eprintln!("skipped: {line}: {}", String::from_utf8_lossy(&output.stderr));
    }
    output.status.success()
}

#[test]
fn systemd_checks_a_root_that_is_mounted_read_only_and_goes_on() {
    let tools = Tools::new();
    tools.blank("IMG", 64 << 20);
    tools.ok("mkfs.f2fs -q IMG; mkdir -p dir");
    // The mount of a block device, as that of a root directory, whose device the kernel holds.
    if !mounts(&tools, "losetup --show -f IMG > loop && PROGRAM mount -o ro $(cat loop) dir") {
        return;
    }
    let run = tools.sh("fsck.f2fs -a $(cat loop); echo $?; fsck.f2fs -f -a $(cat loop); echo $?");
    let rw = tools.sh("umount dir; PROGRAM mount $(cat loop) dir && fsck.f2fs -a $(cat loop); echo $?");
    tools.sh("umount dir; losetup -d $(cat loop)");
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    assert_eq!(text.lines().filter(|line| *line == "0").count(), 2, "{text}");
    let told = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(told.contains("checked, and not repaired"), "{told}");
    // A volume that is mounted for writing is not touched.
    let text = String::from_utf8_lossy(&rw.stdout).into_owned();
    assert!(text.ends_with("8\n"), "{text}");
}

#[test]
fn partition_editors_resize_a_volume() {
    let tools = Tools::new();
    make_tree(&tools);
    tools.blank("IMG", IMAGE_BYTES);
    tools.ok("mkfs.f2fs -q IMG 204800; sload.f2fs -f tree IMG");
    let size = |line: &str| {
        tools.ok(line);
        let judged = model::fsck::fsck_image(&tools.path("IMG"));
        assert!(judged.is_ok(), "{line}: {judged:?}");
        assert_eq!(ok(tools.dir(), &["cat", "IMG:/bin/tool"]), "hello\n", "{line}");
        assert_eq!(fs::metadata(tools.path("IMG")).unwrap().len(), IMAGE_BYTES, "{line}");
        tools.info("IMG")["volume_bytes"].as_u64().unwrap() >> 20
    };
    // GParted, in sectors of the device; to the size of the partition
    assert_eq!(size("resize.f2fs -t 307200 IMG"), 150);
    assert_eq!(size("resize.f2fs IMG"), 200);
    // libblockdev
    assert_eq!(size("resize.f2fs -s -t 245760 IMG"), 120);
    assert_eq!(size("resize.f2fs -s IMG"), 200);
    assert_eq!(size("resize.f2fs -t 0 -d 1 -i IMG"), 200);
    let before = fs::read(tools.path("IMG")).unwrap();
    for (line, code, reason) in [
        ("resize.f2fs -t 204800 IMG", 255, "-s shrinks it"),
        ("resize.f2fs -s -t 4096 IMG", 255, "too small"),
        ("resize.f2fs -t 409601 IMG", 255, "enlarge it first"),
        ("resize.f2fs nothing", 255, "nothing"),
        ("resize.f2fs", 1, "Device not specified"),
        ("resize.f2fs -o 7 IMG", 1, "overprovision"),
        ("resize.f2fs -Q IMG", 1, "invalid option"),
    ] {
        let (got, message) = tools.fails(line);
        assert!(got == code && message.contains(reason), "{line}: {got}: {message}");
    }
    assert!(fs::read(tools.path("IMG")).unwrap() == before, "the volume is as it was");
}

#[test]
fn the_further_devices_of_a_volume_are_found_by_their_paths() {
    let tools = Tools::new();
    for name in ["IMG", "second"] {
        tools.blank(name, 100 << 20);
    }
    ok(tools.dir(), &["mkfs", "-q", "IMG", "--device", "second"]);
    tools.ok("fsck.f2fs -a IMG");
    // Of all devices together
    tools.ok("resize.f2fs -s -t 307200 IMG");
    tools.ok("fsck.f2fs --dry-run IMG");
    let judged = model::fsck::fsck_image(&tools.path("IMG"));
    assert!(judged.is_ok(), "{judged:?}");
    let text = ok(tools.dir(), &["info", "IMG", "--device", "second", "--json"]);
    let info: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(info["volume_bytes"], 150 << 20);
}

#[test]
fn further_devices_that_a_hostile_superblock_names_elsewhere_are_not_opened() {
    let tools = Tools::new();
    fs::create_dir(tools.path("sub")).unwrap();
    tools.blank("external", 100 << 20);
    symlink(tools.path("external"), tools.path("sub/link")).unwrap();
    symlink("/dev/zero", tools.path("sub/zero")).unwrap();
    tools.blank("sub/IMG", 100 << 20);
    // Its place in the superblock has space for the others.
    let honest = format!("{}external", "./".repeat(16));
    ok(tools.dir(), &["mkfs", "-q", "sub/IMG", "--device", &honest]);
    let head = fs::read(tools.path("sub/IMG")).unwrap()[..8192].to_vec();
    let before = fs::read(tools.path("external")).unwrap();
    for (path, reason) in [
        ("external", "outside of the directory of the image"),
        ("sub/link", "outside of the directory of the image"),
        ("sub/zero", "outside of the directory of the image"),
        ("sub", "not a regular file"),
        ("nbd://127.0.0.1:1/x", "No such file"),
        ("sub/IMG#1", "No such file"),
    ] {
        let mut hostile = head.clone();
        for at in (0..head.len()).filter(|at| head[*at..].starts_with(honest.as_bytes())) {
            hostile[at..at + honest.len()].fill(0);
            hostile[at..at + path.len()].copy_from_slice(path.as_bytes());
        }
        let image = File::options().write(true).open(tools.path("sub/IMG")).unwrap();
        image.write_all_at(&hostile, 0).unwrap();
        for (line, code) in
            [("fsck.f2fs -a sub/IMG", 8), ("fsck.f2fs -t sub/IMG", 8), ("resize.f2fs sub/IMG", 255)]
        {
            let (got, message) = tools.fails(line);
            assert!(got == code && message.contains(reason), "{line}, {path}: {got}: {message}");
        }
    }
    assert!(fs::read(tools.path("external")).unwrap() == before);
}

#[test]
fn blocks_of_an_area_move_as_by_defrag_f2fs() {
    let tools = Tools::new();
    tools.blank("IMG", 128 << 20);
    tools.ok("mkfs.f2fs -q IMG && mkdir tree && head -c 3000000 /dev/zero | tr '\\0' x > tree/file");
    tools.ok("sload.f2fs -f tree IMG");
    let main = tools.info("IMG")["areas"][4]["start_block"].as_u64().unwrap();
    let used = |from: u64, to: u64| {
        let sit = tools.ok("PROGRAM dump sit IMG --json");
        let entries: serde_json::Value = serde_json::from_str(&sit).unwrap();
        let all = entries.as_array().unwrap_or_else(|| panic!("{sit}")).iter();
        let range = (from - main) / 512..(to - main) / 512;
        let within = all.filter(|entry| range.contains(&entry["segment"].as_u64().unwrap()));
        within.map(|entry| entry["valid_blocks"].as_u64().unwrap()).sum::<u64>()
    };
    let (start, target) = (main, main + 20 * 512);
    assert!(used(start, target) > 0);
    tools.ok(&format!("defrag.f2fs -d 0 -s {start} -l {} -t {target:#x} IMG", target - start));
    assert_eq!(used(start, target), 0);
    tools.ok("/usr/sbin/fsck.f2fs --dry-run IMG");
    // To the left: before the area, which ends with the volume.
    let end = main + tools.info("IMG")["areas"][4]["segments"].as_u64().unwrap() * 512;
    tools.ok(&format!("defrag.f2fs -s {target} -l 1000000 -i IMG"));
    assert_eq!(used(target, end), 0);
    tools.ok("/usr/sbin/fsck.f2fs --dry-run IMG");
    assert_eq!(tools.ok("PROGRAM cat IMG:/file").len(), 3_000_000);
    for (line, code) in [
        ("defrag.f2fs", 1),
        ("defrag.f2fs -Q IMG", 1),
        ("defrag.f2fs -s 0x5000 -l 16 -t 0x5008 IMG", 255),
        ("defrag.f2fs nothing", 255),
    ] {
        assert_eq!(tools.fails(line).0, code, "{line}");
    }
}

/// Makes a volume with files of several layouts.
fn make_places(tools: &Tools) {
    tools.blank("IMG", 64 << 20);
    tools.ok(
        "mkfs.f2fs -q IMG; mkdir -p tree/d; echo small > tree/small; head -c 20000 /dev/zero | tr '\\0' x > tree/d/file; \
         head -c 9000000 /dev/zero | tr '\\0' y > tree/large; truncate -s 40960 tree/holes; \
         for n in 0 2 3 7 9; do printf z | dd of=tree/holes bs=4096 seek=$n conv=notrunc status=none; done; \
         truncate -s 9000000 tree/far; printf z | dd of=tree/far bs=4096 seek=2000 conv=notrunc status=none; \
         sload.f2fs -f tree IMG",
    );
}

#[test]
fn the_places_of_blocks_are_those_that_f2fs_tools_prints() {
    let tools = Tools::new();
    make_places(&tools);
    let ours = tools.ok("fsck.f2fs -M IMG");
    let lines: Vec<&str> = ours.lines().collect();
    assert!(lines.iter().any(|line| line.starts_with("/d/file ")) && lines.contains(&"/small"), "{ours}");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    if Path::new("/usr/sbin/fsck.f2fs").exists() {
        let theirs = tools.ok("/usr/sbin/fsck.f2fs -M IMG");
        // Between some lines, it writes an escape in place of the line's end.
        let theirs = theirs.replace("\u{1b}[2K\r", "\n");
        let theirs: Vec<_> = theirs.lines().map(words).filter(|line| !line.is_empty()).collect();
        assert_eq!(lines.iter().map(|line| words(line)).collect::<Vec<_>>(), theirs);
        for ino in 4..12 {
            let ours = tools.sh(&format!("dump.f2fs -M -i {ino} IMG"));
            if !ours.status.success() {
                // The number of another node.
                continue;
            }
            let ours = String::from_utf8(ours.stdout).unwrap();
            let theirs = tools.ok(&format!("/usr/sbin/dump.f2fs -M -i {ino} IMG"));
            assert_eq!(words(&ours), words(&theirs), "inode {ino}");
        }
    } else {
        eprintln!("skipped: fsck.f2fs is not installed");
    }
}

#[test]
fn the_owner_of_a_block_is_that_which_f2fs_tools_prints() {
    let tools = Tools::new();
    make_places(&tools);
    let map = tools.ok("fsck.f2fs -M IMG");
    let large = map.lines().find_map(|line| line.strip_prefix("/large ")).expect("the map of a file");
    let first: u64 = large.split(['-', ' ']).next().unwrap().parse().unwrap();
    let main = tools.info("IMG")["areas"][4]["start_block"].as_u64().unwrap();
    let part = |text: &str| {
        let (_, part) = text.split_once("== Dump data from block address ==").expect("the part on the block");
        let lines = part.lines().take_while(|line| !line.starts_with("Info:") && !line.starts_with("Done"));
        // The tool adds the start of the main area to the end of the volume.
        let without_end = |line: &str| line.split(" User data is from").next().unwrap_or_default().to_owned();
        lines.filter(|line| !line.is_empty()).map(without_end).collect::<Vec<_>>()
    };
    let ours = |block: u64| part(&tools.ok(&format!("dump.f2fs -b {block} IMG")));
    assert_eq!(ours(first)[0], format!("FS Userdata Area: Data block from {first:#x}"));
    assert!(ours(first + 2000).contains(&" - Data offset       : 0x7d0 (4KB), 8192000 (bytes)".into()));
    if !Path::new("/usr/sbin/dump.f2fs").exists() {
        eprintln!("skipped: dump.f2fs is not installed");
        return;
    }
    let areas = [0, 512, 513, 1600, 2600, main - 1, main + 300, 999_999];
    let nodes = (main..main + 20).chain(main + 512..main + 530);
    let mut compared = 0;
    for block in areas.into_iter().chain(nodes).chain([first, first + 870]) {
        let theirs = part(&tools.ok(&format!("/usr/sbin/dump.f2fs -b {block} IMG")));
        // Of a block that is not in use, the tool tells its last owner; it prints all fields of a directory.
        if !theirs.iter().any(|line| line == "blkaddr is not valid" || line.starts_with("i_mode")) {
            assert_eq!(ours(block), theirs, "{block}");
            compared += 1;
        }
    }
    assert!(compared >= 10, "{compared}");
}
