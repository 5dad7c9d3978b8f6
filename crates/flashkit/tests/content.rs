//! Content of several sources, and without some of its entries, compared with GNU tar.

mod support;

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink},
    path::Path,
    process::{Command, Stdio},
};

use support::{fails, ok};

/// Runs a program of the host that must succeed. Returns its output.
fn host(dir: &Path, program: &str, arguments: &[&str]) -> Vec<u8> {
    let output = Command::new(program).current_dir(dir).args(arguments).output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
    output.stdout
}

/// Returns an archive of all entries of a directory, which depends on these entries alone.
fn content(dir: &Path) -> Vec<u8> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    let pax = "--pax-option=delete=atime,delete=ctime,exthdr.name=%f";
    let mut arguments = vec!["c", "--format=posix", pax, "--sort=name", "--numeric-owner"];
    arguments.extend(names.iter().map(String::as_str));
    host(dir, "tar", &arguments)
}

fn write(path: impl AsRef<Path>, text: &str) {
    fs::create_dir_all(path.as_ref().parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Makes the directories `a` and `b`, and the archives `a.tar` and `b.tar` of them.
fn two_trees(dir: &Path) {
    let (a, b) = (dir.join("a"), dir.join("b"));
    write(a.join("etc/hosts"), "127.0.0.1 a\n");
    write(a.join("etc/only-a"), "a");
    write(a.join("etc/init.d/one"), "1");
    write(a.join("first"), &"first".repeat(5000));
    fs::hard_link(a.join("first"), a.join("second")).unwrap();
    fs::hard_link(a.join("first"), a.join("third")).unwrap();
    write(a.join("kept"), "kept");
    fs::hard_link(a.join("kept"), a.join("zz-kept")).unwrap();
    symlink("etc/hosts", a.join("link")).unwrap();
    write(b.join("etc/hosts"), "127.0.0.1 b, and longer\n");
    write(b.join("etc/init.d/two"), "2");
    write(b.join("first"), "another file");
    write(b.join("var/log/new"), "n");
    write(b.join("link"), "now a file");
    symlink("hosts", b.join("etc/name")).unwrap();
    fs::set_permissions(b.join("etc"), fs::Permissions::from_mode(0o711)).unwrap();
    fs::set_permissions(&b, fs::Permissions::from_mode(0o750)).unwrap();
    for name in ["a", "b"] {
        // Archives of GNU tar have whole seconds.
        host(dir, "find", &[name, "-exec", "touch", "-h", "-d", "2020-01-02 03:04:05", "{}", "+"]);
        host(dir, "tar", &["cf", &format!("{name}.tar"), "--sort=name", "-C", name, "."]);
    }
}

/// Makes the directory `both`: the archive `a.tar` extracted, and `b.tar` over it.
fn extracted(dir: &Path) -> Vec<u8> {
    fs::create_dir(dir.join("both")).unwrap();
    for name in ["a.tar", "b.tar"] {
        host(dir, "tar", &["xpf", name, "-C", "both"]);
    }
    content(&dir.join("both"))
}

fn exported(dir: &Path, image: &str) -> Vec<u8> {
    let _ = fs::remove_dir_all(dir.join("out"));
    ok(dir, &["export", "-q", image, "out"]);
    content(&dir.join("out"))
}

#[test]
fn sources_are_laid_over_each_other_as_tar_extracts_them() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    two_trees(dir);
    let expected = extracted(dir);
    ok(dir, &["mkfs", "-q", "whole.img", "--from", "both", "--minimize"]);
    let least = fs::metadata(dir.join("whole.img")).unwrap().len();
    for (a, b) in [("a", "b"), ("a.tar", "b.tar"), ("a", "b.tar"), ("a.tar", "b")] {
        ok(dir, &["mkfs", "-q", "v.img", "--from", a, "--from", b, "--minimize", "-f"]);
        assert!(exported(dir, "v.img") == expected, "{a} and {b}");
        let out = fs::metadata(dir.join("out")).unwrap().permissions().mode();
        assert_eq!(out & 0o7777, 0o750, "the root is that of the last source");
        assert_eq!(fs::metadata(dir.join("v.img")).unwrap().len(), least, "{a} and {b}");
        ok(dir, &["fsck", "-q", "v.img"]);

        ok(dir, &["mkfs", "-q", "empty.img", "--size", "64M", "-f"]);
        ok(dir, &["import", "-q", a, b, "empty.img:/"]);
        assert!(exported(dir, "empty.img") == expected, "{a} and {b}, imported");
        ok(dir, &["fsck", "-q", "empty.img"]);
    }
}

#[test]
fn the_root_has_the_times_of_an_archive_that_has_it_last() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    two_trees(dir);
    host(dir, "tar", &["cf", "r.tar", "--no-recursion", "-C", "a", "etc", "etc/hosts", "."]);
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M", "--from", "r.tar"]);
    for path in ["v.img:/", "v.img:/etc"] {
        let stat: serde_json::Value = serde_json::from_str(&ok(dir, &["stat", "--json", path])).unwrap();
        let modified = Command::new("stat").args(["-c", "%Y"]).arg(dir.join("a/etc")).output().unwrap();
        let seconds: i64 = String::from_utf8(modified.stdout).unwrap().trim().parse().unwrap();
        let found: jiff::Timestamp = stat["modified"].as_str().unwrap().parse().unwrap();
        assert_eq!(found.as_second(), seconds, "{path}");
    }
}

#[test]
fn one_source_can_be_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    two_trees(dir);
    let expected = extracted(dir);
    let piped = Command::new(env!("CARGO_BIN_EXE_flashkit"))
        .current_dir(dir)
        .args(["mkfs", "-q", "v.img", "--size", "64M", "--from", "a", "--from", "-"])
        .stdin(Stdio::from(File::open(dir.join("b.tar")).unwrap()))
        .status();
    assert!(piped.unwrap().success());
    assert!(exported(dir, "v.img") == expected);
    let error = fails(dir, &["mkfs", "-q", "w.img", "--size", "64M", "--from", "-", "--from", "-"]);
    assert!(error.contains("standard input can be one source only"), "{error}");
}

#[test]
fn several_sources_make_the_same_image_again_and_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    two_trees(dir);
    let expected = extracted(dir);
    let make = |image: &str, options: &[&str]| {
        let made = Command::new(env!("CARGO_BIN_EXE_flashkit"))
            .current_dir(dir)
            .env("SOURCE_DATE_EPOCH", "1700000000")
            .args(["mkfs", "-q", image, "--from", "a.tar", "--from", "b"])
            .args(options)
            .status();
        assert!(made.unwrap().success());
    };
    make("v.img", &["--size", "64M"]);
    make("w.img", &["--size", "64M"]);
    assert!(fs::read(dir.join("v.img")).unwrap() == fs::read(dir.join("w.img")).unwrap());
    fs::write(dir.join("old.img"), vec![0xA5; 64 << 20]).unwrap();
    make("old.img", &["--in-place", "-f"]);
    assert!(exported(dir, "old.img") == expected);
    ok(dir, &["fsck", "-q", "old.img"]);
}

#[test]
fn a_directory_over_a_link_is_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir_all(dir.join("a/usr/lib")).unwrap();
    symlink("usr/lib", dir.join("a/lib")).unwrap();
    write(dir.join("b/lib/modules/x.ko"), "x");
    fs::write(dir.join("old.img"), "old").unwrap();
    for image in ["new.img", "old.img"] {
        let error = fails(dir, &["mkfs", "-q", "-f", image, "--size", "64M", "--from", "a", "--from", "b"]);
        assert!(error.contains("lib: a directory in b and not in a"), "{error}");
    }
    assert!(!dir.join("new.img").exists());
    assert_eq!(fs::read(dir.join("old.img")).unwrap(), b"old");
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M"]);
    let before = fs::read(dir.join("v.img")).unwrap();
    let error = fails(dir, &["import", "-q", "b", "a", "v.img"]);
    assert!(error.contains("lib: a directory in b and not in a"), "{error}");
    assert!(fs::read(dir.join("v.img")).unwrap() == before);
}

#[test]
fn excluded_entries_are_those_of_tar() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for (path, text) in [
        ("a.o", "o"),
        ("src/b.o", "o"),
        ("src/c.c", "c"),
        (".git/config", "g"),
        ("sub/.git/x", "g"),
        ("sub/x.git", "k"),
        ("tmp/t", "t"),
        ("sub/tmp/t", "k"),
        ("var/cache/apt/x", "x"),
        ("var/cache/y", "y"),
        ("data/var/cache/y", "k"),
        ("linked.o", "linked"),
    ] {
        write(dir.join("a").join(path), text);
    }
    fs::hard_link(dir.join("a/linked.o"), dir.join("a/one")).unwrap();
    fs::hard_link(dir.join("a/linked.o"), dir.join("a/two")).unwrap();
    host(dir, "find", &["a", "-exec", "touch", "-h", "-d", "2020-01-02 03:04:05", "{}", "+"]);
    let tars = ["--exclude=*.o", "--exclude=.git", "--anchored", "--no-wildcards-match-slash"];
    let anchored = ["--exclude=./tmp", "--exclude=./var/cache/*"];
    host(dir, "tar", &["cf", "a.tar", "-C", "a", "."]);
    host(dir, "tar", &[&["cf", "some.tar"], &tars[..], &anchored, &["-C", "a", "."]].concat());
    fs::create_dir(dir.join("some")).unwrap();
    host(dir, "tar", &["xpf", "some.tar", "-C", "some"]);
    let expected = content(&dir.join("some"));

    fs::write(dir.join("list"), "# caches\nvar/cache/*\n\n.git\n").unwrap();
    let ours = ["--exclude", "*.o", "--exclude", "/tmp", "--exclude-from", "list"];
    for from in ["a", "a.tar"] {
        let words = [&["mkfs", "-q", "v.img", "--size", "64M", "-f", "--from", from], &ours[..]].concat();
        ok(dir, &words);
        assert!(exported(dir, "v.img") == expected, "{from}");
        ok(dir, &["fsck", "-q", "v.img"]);
    }
    ok(dir, &["mkfs", "-q", "w.img", "--size", "64M"]);
    ok(dir, &[&["import", "-q", "a", "w.img"], &ours[..]].concat());
    assert!(exported(dir, "w.img") == expected);

    ok(dir, &["mkfs", "-q", "whole.img", "--size", "64M", "--from", "a"]);
    ok(dir, &[&["export", "-q", "whole.img", "some-out"], &ours[..]].concat());
    assert!(content(&dir.join("some-out")) == expected);
    ok(dir, &[&["export", "-q", "whole.img", "some-out.tar"], &ours[..]].concat());
    let names = String::from_utf8(host(dir, "tar", &["tf", "some-out.tar"])).unwrap();
    assert!(names.contains("two\n") && names.contains("\ndata/var/cache/y\n"), "{names}");
    assert!(!names.contains(".o\n") && !names.contains("\nvar/cache/y\n"), "{names}");
}

#[test]
fn an_excluded_directory_need_not_be_readable() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write(dir.join("a/keep"), "k");
    write(dir.join("a/run/x"), "x");
    for (path, mode) in [(dir.to_path_buf(), 0o777), (dir.join("a/run"), 0)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    // Root may read everything.
    let as_user = |options: &[&str]| {
        let make = ["mkfs", "-q", "v.img", "--size", "64M", "--from", "a"];
        let user = ["--reuid=65534", "--regid=65534", "--clear-groups", env!("CARGO_BIN_EXE_flashkit")];
        let made = match fs::read_dir(dir.join("a/run")) {
            Ok(_) => Command::new("setpriv").current_dir(dir).args(user).args(make).args(options).output(),
            Err(_) => Command::new(user[3]).current_dir(dir).args(make).args(options).output(),
        };
        made.expect("it starts")
    };
    let error = String::from_utf8(as_user(&[]).stderr).unwrap();
    assert!(error.contains("a/run: Permission denied"), "{error}");
    let made = as_user(&["--exclude", "/run"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert_eq!(ok(dir, &["ls", "v.img"]), "keep\n");
}

#[test]
fn patterns_need_a_source_and_a_meaning() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let error = fails(dir, &["mkfs", "-q", "v.img", "--size", "64M", "--exclude", "x"]);
    assert!(error.contains("--from"), "{error}");
    fs::create_dir(dir.join("a")).unwrap();
    fs::write(dir.join("list"), "[a\n").unwrap();
    for option in [["--exclude", "../x"], ["--exclude", "[a"], ["--exclude-from", "list"]] {
        let words = [&["mkfs", "-q", "v.img", "--size", "64M", "--from", "a"], &option[..]].concat();
        let error = fails(dir, &words);
        assert!(error.contains("pattern"), "{error}");
        assert_eq!(error.contains("list: "), option[0] == "--exclude-from", "{error}");
    }
}

/// Asserts that a file has its data between huge holes.
fn assert_huge(path: &Path) {
    let file = File::open(path).unwrap();
    let facts = file.metadata().unwrap();
    assert_eq!(facts.len(), HUGE_BYTES, "{}", path.display());
    assert!(facts.blocks() * 512 < 1 << 20, "{} has {} blocks", path.display(), facts.blocks());
    for (at, text) in HUGE_DATA {
        let mut found = vec![0; text.len()];
        file.read_exact_at(&mut found, at).unwrap();
        assert_eq!(found, text, "{} at byte {at}", path.display());
    }
}

/// Size of a file of huge holes: nearly the largest one of F2FS in blocks of 4 KiB, and too large to write.
const HUGE_BYTES: u64 = 3 << 40;
/// Its data, with the offsets in bytes.
const HUGE_DATA: [(u64, &[u8]); 3] =
    [(0, b"begin"), (1_649_267_441_665, b"in the middle"), (HUGE_BYTES - 3, b"end")];

#[test]
fn huge_holes_stay_holes_in_archives_of_ours_gnu_tar_and_bsdtar() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir(dir.join("tree")).unwrap();
    let huge = File::create(dir.join("tree/huge")).unwrap();
    huge.set_len(HUGE_BYTES).unwrap();
    HUGE_DATA.iter().for_each(|(at, text)| huge.write_all_at(text, *at).unwrap());
    write(dir.join("tree/small"), "no holes");
    // A file with few holes stays readable for every program.
    let few = File::create(dir.join("tree/few")).unwrap();
    few.write_all_at(&[7; 9000], 40_000).unwrap();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M", "--from", "tree"]);
    ok(dir, &["export", "-q", "v.img", "out.tar"]);
    assert!(fs::metadata(dir.join("out.tar")).unwrap().len() < 1 << 20, "the archive has zeroes");
    let names = String::from_utf8(host(dir, "tar", &["tf", "out.tar"])).unwrap();
    assert_eq!(names.lines().collect::<Vec<_>>(), ["./", "few", "huge", "small"]);
    ok(dir, &["rescue", "-q", "v.img", "rescued.tar"]);
    host(dir, "tar", &["cSf", "gnu.tar", "--format=gnu", "-C", "tree", "."]);
    host(dir, "tar", &["cSf", "pax.tar", "--format=posix", "-C", "tree", "."]);
    let readers: &[&[&str]] = &[&["tar", "-xSf"], &["bsdtar", "-xf"]];
    for archive in ["out.tar", "rescued.tar"] {
        for reader in readers {
            if Command::new(reader[0]).arg("--version").output().is_err() {
                eprintln!("skipped: {} is not installed", reader[0]);
                continue;
            }
            let _ = fs::remove_dir_all(dir.join("back"));
            fs::create_dir(dir.join("back")).unwrap();
            host(dir, reader[0], &[reader[1], archive, "-C", "back"]);
            assert_huge(&dir.join("back/huge"));
            assert_eq!(fs::read(dir.join("back/few")).unwrap(), fs::read(dir.join("tree/few")).unwrap());
        }
    }
    for archive in ["out.tar", "gnu.tar", "pax.tar"] {
        ok(dir, &["mkfs", "-q", "-f", "w.img", "--size", "64M", "--from", archive]);
        ok(dir, &["export", "-q", "w.img", archive.strip_suffix(".tar").unwrap()]);
        assert_huge(&dir.join(archive.strip_suffix(".tar").unwrap()).join("huge"));
    }
}

#[test]
fn an_archive_goes_through_a_named_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir(dir.join("tree")).unwrap();
    fs::write(dir.join("tree/file"), [7; 300_000]).unwrap();
    ok(dir, &["mkfs", "v.img", "--size", "64M", "--from", "tree"]);
    ok(dir, &["export", "v.img", "plain.tar"]);
    host(dir, "mkfifo", &["pipe.tar"]);
    let pipe = dir.join("pipe.tar");
    let reader = std::thread::spawn(move || fs::read(pipe).unwrap());
    ok(dir, &["export", "v.img", "pipe.tar"]);
    if !fs::symlink_metadata(dir.join("pipe.tar")).unwrap().file_type().is_fifo() {
        panic!("the pipe is replaced");
    }
    assert!(reader.join().unwrap() == fs::read(dir.join("plain.tar")).unwrap());
}

/// Permissions of exported directories kept their owner from later hard links into them, and from another export.
#[test]
fn ordinary_users_export_through_directories_that_forbid_them_access() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: this needs root to become another user");
    }
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    let script = format!(
        "chmod 755 .; mkdir -p tree/a/deep/deeper tree/b tree/ro/below out; chown 64734 . out
         echo 1 > tree/a/deep/deeper/file; echo 2 > tree/ro/below/file; echo 3 > tree/a/other
         ln tree/a/deep/deeper/file tree/b/link; ln tree/a/other tree/b/other; ln tree/a/other tree/b/third
         chmod 444 tree/a/deep/deeper; chmod 600 tree/a/deep; chmod 0 tree/a; chmod 555 tree/b tree/ro/below tree/ro
         chmod 555 tree; touch -d 2020-01-02 tree/ro/below tree/ro tree/a/deep tree/a tree/b tree
         {0} mkfs -q --size 64M v.img --from tree; chmod 644 v.img; cp {0} flashkit; chmod 755 flashkit
         as='setpriv --reuid 64734 --regid 64734 --clear-groups'
         list() {{ (cd $1; find . -printf '%p %y %m %n %TY-%Tm-%Td\\n' | grep -v ' f ' | sort; find . -type f -printf '%p %m %n\\n' | sort); }}
         list tree > wanted
         for overwrite in '' --overwrite --overwrite; do
             $as ./flashkit export -q $overwrite v.img out
             list out | diff wanted - || exit 1
             test $(find out -links 3 -type f | wc -l) = 3
         done
         # An error gives directories their permissions back.
         chmod 755 out/ro/below; rm out/ro/below/file; mkdir out/ro/below/file; chmod 511 out/ro/below
         ! $as ./flashkit export -q --overwrite v.img out 2> said
         grep -q 'ro/below/file' said
         stat -c %a out out/ro out/ro/below > modes; printf '555\\n555\\n511\\n' | diff - modes",
        env!("CARGO_BIN_EXE_flashkit")
    );
    let run = Command::new("bash").args(["-euc", &script]).current_dir(dir).output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{said}{errors}");
}
