//! The program under the names of f2fs-tools: command lines of their callers, as these callers write them.

mod checks;
#[path = "../support/mod.rs"]
mod support;

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use support::ok;

/// Command lines of callers. Linux mounts the images that they make: xtask/tests/linux_drop_in.rs.
const MKFS_LINES: &str = include_str!("../../../../testdata/drop-in/mkfs-lines");
/// Size of the images, as in Buildroot's own test.
const IMAGE_BYTES: u64 = 200 << 20;

/// A directory of links to the program, and a directory to work in.
struct Tools {
    links: tempfile::TempDir,
    work: tempfile::TempDir,
}

impl Tools {
    fn new() -> Tools {
        let links = tempfile::tempdir().unwrap();
        for name in [
            "mkfs.f2fs",
            "make_f2fs",
            "sload.f2fs",
            "sload_f2fs",
            "dump.f2fs",
            "fsck.f2fs",
            "resize.f2fs",
            "defrag.f2fs",
            "f2fslabel",
        ] {
            symlink(env!("CARGO_BIN_EXE_flashkit"), links.path().join(name)).unwrap();
        }
        Tools { links, work: tempfile::tempdir().unwrap() }
    }

    fn dir(&self) -> &Path {
        self.work.path()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    /// Makes an image file that is one hole.
    fn blank(&self, name: &str, bytes: u64) {
        File::create(self.path(name)).unwrap().set_len(bytes).unwrap();
    }

    /// Runs a line of a shell script with the links first in the path.
    fn sh(&self, line: &str) -> Output {
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}:/usr/sbin:/sbin", self.links.path().display());
        let line = line.replace("PROGRAM", env!("CARGO_BIN_EXE_flashkit"));
        Command::new("sh").args(["-c", &line]).current_dir(self.dir()).env("PATH", path).output().unwrap()
    }

    /// Runs a line that must succeed. Returns its standard output.
    fn ok(&self, line: &str) -> String {
        let output = self.sh(line);
        assert_eq!(output.status.code(), Some(0), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a line that must fail. Returns its exit code and its message.
    fn fails(&self, line: &str) -> (i32, String) {
        let output = self.sh(line);
        assert!(!output.status.success(), "{line}");
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }

    fn info(&self, name: &str) -> serde_json::Value {
        serde_json::from_str(&ok(self.dir(), &["info", name, "--json"])).unwrap()
    }

    fn stat(&self, path: &str) -> serde_json::Value {
        serde_json::from_str(&ok(self.dir(), &["stat", path, "--json"])).unwrap()
    }
}

#[test]
fn command_lines_of_callers_make_volumes_as_with_mkfs_f2fs() {
    let tools = Tools::new();
    for line in MKFS_LINES.lines().filter(|line| !line.starts_with('#')) {
        match line.contains("-S ") {
            true => tools.blank("IMG", 0),
            false => tools.blank("IMG", IMAGE_BYTES),
        }
        tools.ok(line);
        let judged = model::fsck::fsck_image(&tools.path("IMG"));
        assert!(judged.is_ok(), "{line}: {judged:?}");
    }
}

#[test]
fn properties_of_a_command_line_reach_the_volume() {
    let tools = Tools::new();
    tools.blank("IMG", IMAGE_BYTES);
    let inode = fs::metadata(tools.path("IMG")).unwrap().ino();
    tools.ok("mkfs.f2fs -q -l first -l 'last one' -R 7:8 -s 2 -O extra_attr -O quota -E db IMG 204800");
    let info = tools.info("IMG");
    assert_eq!(info["label"], "last one");
    assert_eq!(info["segments_per_section"], 2);
    assert_eq!(info["volume_bytes"], 100 << 20);
    assert_eq!(info["features"], serde_json::json!(["extra_attr", "quota"]));
    assert!(info["hot_extensions"].as_array().unwrap().contains(&"db".into()));
    assert_eq!((&tools.stat("IMG")["uid"], &tools.stat("IMG")["gid"]), (&7.into(), &8.into()));
    // As with mkfs.f2fs, the file is the same one, and as long as before.
    let facts = fs::metadata(tools.path("IMG")).unwrap();
    assert_eq!((facts.ino(), facts.len()), (inode, IMAGE_BYTES));
    tools.ok("mkfs.f2fs -g android IMG");
    let features = serde_json::json!(["encrypt", "extra_attr", "project_quota", "quota", "verity"]);
    assert_eq!(tools.info("IMG")["features"], features);
}

#[test]
fn a_footer_behind_the_volume_survives() {
    let tools = Tools::new();
    tools.blank("IMG", 64 << 20);
    let image = File::options().write(true).open(tools.path("IMG")).unwrap();
    let footer = [0x5A; 16384];
    image.write_all_at(&footer, (64 << 20) - 16384).unwrap();
    tools.ok("mkfs.f2fs -f -t 0 -r 16384 IMG");
    assert_eq!(tools.info("IMG")["volume_bytes"], (64 << 20) - 16384);
    assert!(fs::read(tools.path("IMG")).unwrap().ends_with(&footer));
}

#[test]
fn failures_have_the_exit_codes_of_f2fs_tools() {
    let tools = Tools::new();
    tools.blank("IMG", 64 << 20);
    tools.ok("mkfs.f2fs -q IMG");
    let before = fs::read(tools.path("IMG")).unwrap();
    let (code, message) = tools.fails("mkfs.f2fs IMG");
    assert!(code == 255 && message.contains("carries F2FS; -f overwrites it"), "{code}: {message}");
    assert!(fs::read(tools.path("IMG")).unwrap() == before, "the volume is as it was");
    for (line, code) in [
        ("mkfs.f2fs nothing", 255),
        ("mkfs.f2fs -f IMG 99999999", 255),
        ("mkfs.f2fs", 1),
        ("mkfs.f2fs -h", 1),
        ("mkfs.f2fs -Q IMG", 1),
        ("mkfs.f2fs -f -U nonsense IMG", 1),
        ("sload.f2fs -f nodir IMG", 255),
        ("sload.f2fs -f . nothing", 255),
        // Android's script would take 1 for a success.
        ("sload.f2fs -f .", 255),
        ("sload.f2fs -r -f . IMG", 255),
    ] {
        assert_eq!(tools.fails(line).0, code, "{line}");
    }
    assert!(fs::read(tools.path("IMG")).unwrap() == before, "the volume is as it was");
    // libblockdev and GParted compare versions.
    let version = tools.ok("mkfs.f2fs -V");
    let number = version.strip_prefix("mkfs.f2fs ").unwrap().split(' ').next().unwrap();
    let parts: Vec<u32> = number.split('.').map(|part| part.parse().unwrap()).collect();
    assert!(parts >= vec![1, 12, 0], "{version}");
}

/// Makes a tree with files of several owners and kinds.
fn make_tree(tools: &Tools) {
    let line = "mkdir -p tree/bin tree/app; echo hello > tree/bin/tool; chmod 750 tree/bin/tool
        ln -s tool tree/bin/link; ln tree/bin/tool tree/hard
        seq 1 400000 > tree/app/numbers.txt; cp tree/app/numbers.txt tree/app/kept.apk
        touch -d @1000000000 tree/bin/tool";
    tools.ok(line);
    if rustix::process::geteuid().is_root() {
        tools.ok("chown -R 1000:1001 tree");
    }
}

#[test]
fn a_directory_is_loaded_as_by_sload_f2fs() {
    let tools = Tools::new();
    make_tree(&tools);
    fs::write(tools.path("config"), "system/bin/tool 0 2000 0755\n").unwrap();
    fs::write(tools.path("contexts"), "/system(/.*)? u:object_r:system_file:s0\n").unwrap();
    let owner = fs::metadata(tools.path("tree/app")).unwrap();
    for (line, app, tool, seconds) in [
        // genimage, Buildroot, Mender: everything belongs to root.
        ("sload.f2fs -f 'tree' 'IMG'", (0, 0), (0, 0, "0750"), 1_000_000_000),
        (
            "sload.f2fs -P -f tree IMG",
            (owner.uid(), owner.gid()),
            (owner.uid(), owner.gid(), "0750"),
            1_000_000_000,
        ),
        // Android
        (
            "sload_f2fs -S -C config -f tree -p out -s contexts -t /system -T 1230768000 IMG",
            (0, 0),
            (0, 2000, "0755"),
            1_230_768_000,
        ),
    ] {
        tools.blank("IMG", IMAGE_BYTES);
        tools.ok("mkfs.f2fs -q IMG");
        tools.ok(line);
        let judged = model::fsck::fsck_image(&tools.path("IMG"));
        assert!(judged.is_ok(), "{line}: {judged:?}");
        let (of_app, of_tool) = (tools.stat("IMG:/app"), tools.stat("IMG:/bin/tool"));
        assert_eq!((&of_app["uid"], &of_app["gid"]), (&app.0.into(), &app.1.into()), "{line}");
        assert_eq!(
            (&of_tool["uid"], &of_tool["gid"], &of_tool["mode"]),
            (&tool.0.into(), &tool.1.into(), &tool.2.into()),
            "{line}"
        );
        assert_eq!(of_tool["links"], 2, "{line}");
        let text = ok(tools.dir(), &["ls", "-l", "IMG:/bin"]);
        let date = if seconds == 1_000_000_000 { "2001-09-09" } else { "2009-01-01" };
        assert!(text.lines().any(|line| line.ends_with(" tool") && line.contains(date)), "{text}");
        assert_eq!(
            ok(tools.dir(), &["getfattr", "IMG:/bin/tool"]).contains("system_file"),
            line.contains("contexts")
        );
    }
}

#[test]
fn the_largest_image_size_is_enough_for_the_content() {
    let tools = Tools::new();
    make_tree(&tools);
    tools.blank("IMG", IMAGE_BYTES);
    tools.ok("mkfs.f2fs -q -O extra_attr IMG");
    let log = tools.ok("sload.f2fs -f tree IMG");
    // The words of mkf2fsuserimg.sh: grep "Max image size" | awk '{print $5}'
    let line = log.lines().find(|line| line.contains("Max image size")).unwrap();
    let megabytes: u64 = line.split_whitespace().nth(4).unwrap().trim_end_matches(',').parse().unwrap();
    assert!(megabytes < 60, "{line}");
    tools.blank("SMALL", megabytes << 20);
    tools.ok("mkfs.f2fs -q -O extra_attr SMALL");
    tools.ok("sload.f2fs -f tree SMALL");
    assert!(model::fsck::fsck_image(&tools.path("SMALL")).is_ok());
    // Without a source the sizes are told all the same.
    assert!(tools.ok("sload.f2fs SMALL").contains("Max image size"));
}

#[test]
fn files_are_compressed_on_the_way_in() {
    let tools = Tools::new();
    make_tree(&tools);
    tools.blank("IMG", IMAGE_BYTES);
    // MIO-KITCHEN's lines
    tools.ok("mkfs.f2fs IMG -O extra_attr -O inode_checksum -O sb_checksum -O compression -f");
    tools.ok("sload.f2fs -f tree -t /system IMG -c -a LZ4 -L 3 -x apk -r");
    let judged = model::fsck::fsck_image(&tools.path("IMG"));
    assert!(judged.is_ok(), "{judged:?}");
    let report = ok(tools.dir(), &["compression", "IMG:/app", "--files", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let files = report["files"].as_array().unwrap();
    assert_eq!(files.len(), 1, "{report}");
    assert_eq!(files[0]["path"], "/app/numbers.txt");
    assert_eq!((&files[0]["algorithm"], &files[0]["cluster_blocks"]), (&"lz4".into(), &8.into()));
    assert_eq!(files[0]["released"], true);
    assert!(report["released_blocks"].as_u64() > Some(100), "{report}");
    ok(tools.dir(), &["export", "-q", "IMG:/app", "back"]);
    for name in ["numbers.txt", "kept.apk"] {
        let same = fs::read(tools.path("back").join(name)).unwrap()
            == fs::read(tools.path("tree/app").join(name)).unwrap();
        assert!(same, "{name}");
    }
    tools.blank("PLAIN", IMAGE_BYTES);
    tools.ok("mkfs.f2fs -q PLAIN");
    let (code, message) = tools.fails("sload.f2fs -f tree -c PLAIN");
    assert!(code == 255 && message.contains("lacks the feature compression"), "{code}: {message}");
}

/// Compiles an expression of a caller, for bytes as glib and POSIX have them.
fn expression(text: &str) -> regex::bytes::Regex {
    regex::bytes::RegexBuilder::new(text).unicode(false).build().unwrap()
}

/// Returns the named group of an expression in a text, or the first group.
fn find<'t>(pattern: &str, group: &str, text: &'t str) -> &'t str {
    let expression = expression(pattern);
    let found = expression.captures(text.as_bytes()).unwrap_or_else(|| panic!("{pattern} in {text}"));
    let found = if group.is_empty() { found.get(1) } else { found.name(group) };
    std::str::from_utf8(found.expect("a group").as_bytes()).unwrap()
}

#[test]
fn partition_editors_find_their_figures_in_a_dump() {
    let tools = Tools::new();
    tools.blank("IMG", IMAGE_BYTES);
    tools.ok("mkfs.f2fs -q -l 'a label' -O extra_attr IMG");
    let info = tools.info("IMG");
    // GParted, f2fs.cc
    let dump = tools.ok("dump.f2fs -d 1 IMG");
    let number = |expression: &str| find(expression, "", &dump).parse::<u64>().unwrap();
    let field = |name: &str| number(&format!(r"{name}\s+\[0x\s+[0-9a-f]+ : ([0-9]+)\]"));
    let block_bytes = 1 << field("log_blocksize");
    assert_eq!(field("user_block_count") * block_bytes, info["user_bytes"].as_u64().unwrap());
    assert_eq!(field("valid_block_count") * block_bytes, info["used_bytes"].as_u64().unwrap());
    assert_eq!(number("sector size = ([0-9]+)") * number("total FS sectors = ([0-9]+)"), IMAGE_BYTES);
    // Ansible, filesystem.py: words of two lines
    let word = |line: &str, at: usize| {
        let line =
            dump.lines().find(|found| found.contains(line)).unwrap_or_else(|| panic!("{line}: {dump}"));
        line.split_whitespace().nth(at).unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(word("Info: sector size = ", 4) * word("Info: total FS sectors = ", 5), IMAGE_BYTES);
    // Scripts with awk
    assert_eq!(Some(field("\nfree_segment_count")), info["free_segments"].as_u64());
    assert_eq!(Some(field("\nrsvd_segment_count")), info["reserved_segments"].as_u64());
    assert_eq!(Some(field("\nsegment_count_main")), info["areas"][4]["segments"].as_u64());
    // libblockdev, f2fs.c; its expression is an extended one
    let dump = tools.ok("dump.f2fs IMG");
    let expression = r"(?x)[\S\s]+(?:Info:\ssector\ssize\s=\s(?P<ssize>\d+)?\s+)?[\S\s]+Info:\ssuperblock\sfeatures\s=\s(?P<features>\d+)\s:[\S\s]+Info:\stotal\sFS\ssectors\s=\s(?P<sectors>\d+).+[\S\s]+";
    assert_eq!(find(expression, "features", &dump), "8");
    assert_eq!(find(expression, "sectors", &dump), "409600");
    for tool in ["fsck.f2fs", "dump.f2fs", "resize.f2fs"] {
        find(&format!(r"{tool}\s+([\d\.]+).+"), "", &tools.ok(&format!("{tool} -V")));
    }
    assert_eq!(tools.fails("dump.f2fs nothing").0, 255);
    tools.blank("ZERO", 1 << 20);
    assert_eq!(tools.fails("dump.f2fs ZERO").0, 255);
}

#[test]
fn a_dump_has_the_fields_of_dump_f2fs_with_the_same_values() {
    let tools = Tools::new();
    tools.blank("IMG", IMAGE_BYTES);
    tools.ok("mkfs.f2fs -q -l label IMG");
    let Ok(theirs) = Command::new("/usr/sbin/dump.f2fs").args(["-d", "1"]).arg(tools.path("IMG")).output()
    else {
        eprintln!("skipped: dump.f2fs is missing");
        return;
    };
    let theirs = String::from_utf8_lossy(&theirs.stdout).into_owned();
    let ours = tools.ok("dump.f2fs -d 1 IMG");
    let fields = |text: &str| -> Vec<String> {
        text.lines()
            .filter(|line| line.contains("\t\t[") && !line.contains("bitmap["))
            .map(str::to_owned)
            .collect()
    };
    assert!(fields(&theirs).len() > 50, "{theirs}");
    assert_eq!(fields(&ours), fields(&theirs));
}

/// The first copy of the superblock was taken for a checked one.
#[test]
fn a_dump_has_the_figures_of_the_copy_of_the_superblock_that_is_sound() {
    let tools = Tools::new();
    tools.blank("IMG", IMAGE_BYTES);
    tools.ok("mkfs.f2fs -q -l label IMG");
    let figures = |dump: String| -> Vec<String> {
        dump.lines().filter(|line| line.starts_with("Info: ")).map(str::to_owned).collect()
    };
    let sound = figures(tools.ok("dump.f2fs IMG"));
    // log_sectorsize, log_sectors_per_block and block_count of the first copy.
    let image = File::options().write(true).open(tools.path("IMG")).unwrap();
    [8, 12, 36].iter().for_each(|at| image.write_all_at(&[0xFF; 4], 1024 + at).unwrap());
    drop(image);
    assert_eq!(figures(tools.ok("dump.f2fs IMG")), sound);
    tools.ok("dump.f2fs -d 1 IMG");
}

#[test]
fn parts_of_a_volume_are_printed_and_copied() {
    let tools = Tools::new();
    make_tree(&tools);
    tools.blank("IMG", IMAGE_BYTES);
    tools.ok("mkfs.f2fs -q IMG; sload.f2fs -f tree IMG");
    assert!(tools.ok("fsck.f2fs -t IMG").contains("numbers.txt"));
    assert!(tools.ok("fsck.f2fs -l IMG").contains("| Checkpoint "));
    assert!(tools.ok("dump.f2fs -i 3 IMG").contains("links"));
    assert!(tools.ok("dump.f2fs -s0~-1 -n 3~4 IMG").contains("valid_blocks"));
    tools.ok("dump.f2fs -f -r -o out IMG");
    assert_eq!(
        fs::read(tools.path("out/app/kept.apk")).unwrap(),
        fs::read(tools.path("tree/app/kept.apk")).unwrap()
    );
}

#[test]
fn a_label_is_printed_and_changed() {
    let tools = Tools::new();
    tools.blank("IMG", 64 << 20);
    tools.ok("mkfs.f2fs -q -l first IMG");
    assert_eq!(tools.ok("f2fslabel IMG"), "Info: volume label = first\n");
    assert_eq!(tools.ok("f2fslabel IMG 'n\u{e4}chstes'"), "Info: volume label is changed to n\u{e4}chstes\n");
    assert_eq!(ok(tools.dir(), &["label", "IMG"]), "n\u{e4}chstes\n");
    assert_eq!(ok(tools.dir(), &["label", "IMG", "", "--json"]), "{\n  \"label\": \"\"\n}\n");
    assert!(model::fsck::fsck_image(&tools.path("IMG")).is_ok());
    assert_eq!(tools.fails("f2fslabel").0, 1);
    assert_eq!(tools.fails("f2fslabel nothing x").0, 255);
    assert_eq!(tools.fails(&format!("f2fslabel IMG {}", "x".repeat(513))).0, 255);
}

#[test]
fn genimage_makes_its_f2fs_image_with_the_links() {
    let tools = Tools::new();
    if Command::new("genimage").arg("--version").output().is_err() {
        eprintln!("skipped: genimage is missing");
        return;
    }
    make_tree(&tools);
    let config =
        "image test.f2fs {\n f2fs {\n label = \"testf2fs\"\n }\n mountpoint = \"/\"\n size = 64M\n}\n";
    fs::write(tools.path("config"), config).unwrap();
    tools.ok("mkdir input; genimage --config config --rootpath tree --inputpath input --outputpath out --tmppath tmp");
    let image = tools.path("out/test.f2fs");
    let judged = model::fsck::fsck_image(&image);
    assert!(judged.is_ok(), "{judged:?}");
    assert_eq!(tools.info("out/test.f2fs")["label"], "testf2fs");
    assert_eq!(ok(tools.dir(), &["cat", "out/test.f2fs:/bin/tool"]), "hello\n");
}

#[test]
fn systemd_makefs_makes_its_volume_with_the_links() {
    const PROGRAM: &str = "/usr/lib/systemd/systemd-makefs";
    let tools = Tools::new();
    let can_loop = rustix::process::geteuid().is_root()
        && Command::new("losetup").arg("-f").output().is_ok_and(|run| run.status.success());
    if !can_loop || !Path::new(PROGRAM).exists() {
        eprintln!("skipped: this needs root, loop devices and systemd-makefs");
        return;
    }
    tools.blank("IMG", IMAGE_BYTES);
    let device = tools.ok("losetup -f --show IMG");
    let made = tools.sh(&format!("{PROGRAM} f2fs {device}"));
    tools.ok(&format!("losetup -d {device}"));
    assert!(made.status.success(), "{made:?}");
    let superblock = tools.ok("dump.f2fs -d 1 IMG");
    assert!(superblock.contains("flashkit"), "our program made it: {superblock}");
    let judged = model::fsck::fsck_image(&tools.path("IMG"));
    assert!(judged.is_ok(), "{judged:?}");
}

#[test]
fn systemd_repart_makes_its_partition_with_the_links() {
    let tools = Tools::new();
    let loops = || Command::new("losetup").arg("-f").output().is_ok_and(|run| run.status.success());
    if !rustix::process::geteuid().is_root()
        || !loops()
        || Command::new("systemd-repart").arg("--version").output().is_err()
    {
        eprintln!("skipped: this needs root, loop devices and systemd-repart");
        return;
    }
    fs::create_dir(tools.path("definitions")).unwrap();
    let definition = "[Partition]\nType=linux-generic\nFormat=f2fs\nLabel=made-here\nSizeMinBytes=100M\n";
    fs::write(tools.path("definitions/10.conf"), definition).unwrap();
    tools.blank("disk.img", IMAGE_BYTES);
    tools.ok("systemd-repart --definitions=definitions --empty=require --dry-run=no --no-pager disk.img");
    assert_eq!(tools.info("disk.img#1")["label"], "made-here");
}
