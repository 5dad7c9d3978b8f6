//! `find`, `du` and `df`, compared with find(1), du(1) and df(1) on a mount of the same image; and damage.

mod support;

use std::{
    fs,
    os::unix::fs::{FileExt, PermissionsExt, chown, symlink},
    path::Path,
    process::Command,
    sync::Arc,
};

use block::{FileDevice, OpenOptions};
use f2fs::engine::{Engine, FinalSymlink, Options};
use support::{flashkit, ok};

/// Returns true if this host cannot mount, and prints the reason.
fn skipped() -> bool {
    let possible = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !possible {
        eprintln!("skipped: this needs root and /dev/fuse");
    }
    !possible
}

/// A mount of `v.img` on `mnt`, for reading.
struct Mounted<'d>(&'d Path);

impl Mounted<'_> {
    fn new(dir: &Path) -> Mounted<'_> {
        fs::create_dir_all(dir.join("mnt")).unwrap();
        ok(dir, &["mount", "v.img", "mnt", "-o", "ro"]);
        Mounted(dir)
    }

    /// Runs a program in the mount. Returns its [records].
    fn host(&self, program: &str, arguments: &[&str]) -> Vec<String> {
        let output = Command::new(program).current_dir(self.0.join("mnt")).args(arguments).output();
        let output = output.expect("it starts");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        records(&String::from_utf8(output.stdout).unwrap())
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.join("mnt")).status();
    }
}

/// Returns the parts of an output, sorted: those that end with a NUL, or else the lines.
fn records(text: &str) -> Vec<String> {
    let end = if text.contains('\0') { '\0' } else { '\n' };
    let mut parts: Vec<_> = text.split_terminator(end).map(str::to_owned).collect();
    parts.sort();
    parts
}

/// Makes `v.img` of a tree with everything that the tests look for.
fn volume(dir: &Path) {
    let tree = dir.join("tree");
    for (path, length) in [
        ("etc/hosts", 20),
        ("etc/app.conf", 5000),
        ("etc/Other.CONF", 4096),
        (".hidden/large.bin", 3_000_000),
        ("deep/a/b/c/d/leaf", 1),
        ("none", 0),
        ("braces{a,b}", 512),
        ("star*", 513),
        ("odd\nname", 7),
    ] {
        fs::create_dir_all(tree.join(path).parent().unwrap()).unwrap();
        fs::write(tree.join(path), vec![b'x'; length]).unwrap();
    }
    fs::create_dir(tree.join("empty")).unwrap();
    for n in 0..300 {
        fs::create_dir_all(tree.join("many")).unwrap();
        fs::write(tree.join(format!("many/a-file-with-a-longer-name-{n}")), "").unwrap();
    }
    fs::File::create(tree.join("sparse")).unwrap().set_len(50 << 20).unwrap();
    fs::hard_link(tree.join(".hidden/large.bin"), tree.join("zz-again")).unwrap();
    symlink("etc/hosts", tree.join("link")).unwrap();
    Command::new("mkfifo").arg(tree.join("pipe")).status().unwrap();
    fs::set_permissions(tree.join("etc/hosts"), fs::Permissions::from_mode(0o4711)).unwrap();
    fs::set_permissions(tree.join("none"), fs::Permissions::from_mode(0o000)).unwrap();
    Command::new("touch")
        .args(["-d", "2024-02-03 04:05:06 UTC"])
        .arg(tree.join("etc/hosts"))
        .status()
        .unwrap();
    Command::new("touch")
        .args(["-d", "2030-01-01 UTC"])
        .arg(tree.join("deep/a/b/c/d/leaf"))
        .status()
        .unwrap();
    chown(tree.join("etc/app.conf"), Some(1000), Some(100)).unwrap();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "128M", "--from", "tree"]);
}

#[test]
fn find_selects_as_find_1_does() {
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    let mounted = Mounted::new(dir);
    for expression in [
        &[][..],
        &["-name", "*.conf"],
        &["-iname", "*.conf", "-type", "f"],
        &["-name", "*"],
        &["-mindepth", "1", "-name", ".*"],
        &["-name", "braces{a,b}"],
        &["-name", r"star\*"],
        &["-name", "[el]*"],
        &["-type", "d"],
        &["-type", "f,l"],
        &["-type", "p"],
        &["-size", "1"],
        &["-size", "-2"],
        &["-size", "+1k"],
        &["-size", "4096c"],
        &["-size", "+1M", "-size", "-10M"],
        &["-empty"],
        &["-newermt", "2029-01-01"],
        &["-newermt", "@1706932800", "!", "-newermt", "@1706940000"],
        &["-user", "1000"],
        &["-group", "100"],
        &["-uid", "+0"],
        &["-perm", "644", "-type", "f"],
        &["-perm", "-4000"],
        &["-perm", "/4111", "-type", "f"],
        &["-perm", "-0"],
        &["-links", "2", "-type", "f"],
        &["-links", "+2"],
        &["-maxdepth", "1"],
        &["-maxdepth", "0"],
        &["-mindepth", "3", "-maxdepth", "5"],
        &["-not", "-type", "f", "-not", "-name", "many"],
        &["(", "-name", "leaf", "-o", "-name", "hosts", ")", "-size", "-3"],
        &["-name", "leaf", "-o", "-name", "hosts", "-size", "+3"],
        &["!", "(", "-type", "f", "-o", "-type", "d", ")"],
        &["-name", "leaf", "-a", "-type", "f"],
    ] {
        let ours = ok(dir, &[&["find", "v.img"], expression, &["-print0"]].concat());
        // An alternative binds less than the tests beside it.
        let grouped = if expression.is_empty() { vec![] } else { [&["("], expression, &[")"]].concat() };
        let theirs = mounted.host("find", &[&["."], &grouped[..], &["-print0"]].concat());
        let theirs = theirs.into_iter().map(|name| match &name[1..] {
            "" => "/".to_owned(),
            path => path.to_owned(),
        });
        assert_eq!(records(&ours), theirs.collect::<Vec<_>>(), "{expression:?}");
    }
    let newer = ok(dir, &["find", "v.img:/", "-newer", "/etc/hosts", "-type", "f", "-print"]);
    let theirs = mounted.host("find", &[".", "-newer", "etc/hosts", "-type", "f", "-print0"]);
    assert_eq!(newer.lines().count(), theirs.len(), "{newer}");
    assert!(newer.contains("/odd\\nname\n") && !newer.contains("/etc/hosts\n"), "{newer}");
    assert_eq!(ok(dir, &["find", "v.img:/etc", "-name", "hosts"]), "/etc/hosts\n");
    assert_eq!(ok(dir, &["find", "v.img", "-path", "/d*/c"]), "/deep/a/b/c\n");
    assert_eq!(ok(dir, &["find", "v.img", "-ipath", "/ETC/h*"]), "/etc/hosts\n");
    assert_eq!(ok(dir, &["find", "v.img:/etc/hosts"]), "/etc/hosts\n");
    let json: serde_json::Value =
        serde_json::from_str(&ok(dir, &["find", "--json", "v.img", "-size", "+1M", "-links", "1"])).unwrap();
    assert_eq!((&json[0]["name"], &json[0]["size_bytes"]), (&"/sparse".into(), &(50 << 20).into()));
}

#[test]
fn an_expression_that_means_nothing_is_misuse() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M"]);
    for expression in [
        &["-nam", "x"][..],
        &["-name"],
        &["-type", "x"],
        &["-size", "1x"],
        &["-perm", "u+s"],
        &["-user", "root"],
        &["-newer", "/none"],
        &["-newermt", "soon"],
        &["!"],
        &["("],
        &["(", "-empty"],
        &["-empty", ")"],
        &["-o", "-empty"],
        &["-empty", "-o"],
        &["-empty", "-a"],
        &["-name", "[x"],
        &["-maxdepth", "-1"],
        &["more"],
    ] {
        let output = flashkit(dir, &[&["find", "v.img"], expression].concat());
        assert_eq!(output.status.code(), Some(2), "{expression:?}");
        assert!(output.stdout.is_empty() && output.stderr.starts_with(b"error: "), "{expression:?}");
    }
}

#[test]
fn du_counts_as_du_1_does() {
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    // A line end in a name would split a line.
    ok(dir, &["rm", "v.img:/odd\nname"]);
    let mounted = Mounted::new(dir);
    for options in [&[][..], &["-a"], &["-s"], &["-h"], &["-ah"], &["-d", "1"], &["-a", "-d", "2"], &["-d0"]]
    {
        let ours = records(&ok(dir, &[&["du", "v.img"], options].concat()));
        let theirs = mounted.host("du", options);
        let theirs = theirs.iter().map(|line| line.replace("\t./", "\t/").replace("\t.", "\t/"));
        let mut theirs: Vec<_> = theirs.collect();
        theirs.sort();
        // Both count a file with two names once, each under a name of its own choice.
        let counted = |lines: &[String]| {
            let lines = lines.iter().filter(|line| !line.contains("large.bin") && !line.contains("zz-again"));
            lines.filter(|line| !line.ends_with("/.hidden")).cloned().collect::<Vec<_>>()
        };
        assert_eq!(counted(&ours), counted(&theirs), "{options:?}");
        assert_eq!(ours.len(), theirs.len(), "{options:?}");
    }
    let lines = ok(dir, &["du", "-a", "v.img"]);
    assert!(lines.contains("/.hidden/large.bin\n") && !lines.contains("zz-again"), "{lines}");
    let sizes = mounted.host("find", &[".", "-type", "f,l", "-printf", "%i %s\n"]);
    let files: std::collections::BTreeMap<_, _> =
        sizes.iter().map(|line| line.split_once(' ').unwrap()).collect();
    let sum: u64 = files.values().map(|size| size.parse::<u64>().unwrap()).sum();
    assert_eq!(ok(dir, &["du", "-sb", "v.img"]), format!("{sum}\t/\n"));
    assert_eq!(ok(dir, &["du", "-s", "--apparent-size", "v.img"]), format!("{}\t/\n", sum.div_ceil(1024)));
    let json: serde_json::Value = serde_json::from_str(&ok(dir, &["du", "-s", "--json", "v.img:/"])).unwrap();
    assert_eq!(json[0]["apparent_bytes"], sum);
    let file = mounted.host("du", &["etc/app.conf"]);
    assert_eq!(ok(dir, &["du", "v.img:/etc/app.conf"]).trim_end(), file[0].replace("etc", "/etc"));
}

#[test]
fn df_shows_what_df_1_shows() {
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    volume(dir);
    let mounted = Mounted::new(dir);
    for (options, fields) in [
        (&[][..], "size,used,avail,pcent"),
        (&["-h"], "size,used,avail,pcent"),
        (&["-i"], "itotal,iused,iavail,ipcent"),
        (&["-ih"], "itotal,iused,iavail,ipcent"),
    ] {
        let ours = ok(dir, &[&["df", "v.img"], options].concat());
        let cells: Vec<_> = ours.lines().nth(1).unwrap().split_whitespace().skip(1).collect();
        let output = format!("--output={fields}");
        let human: &[&str] =
            if options.iter().any(|option| option.contains('h')) { &["-h"] } else { &["-k"] };
        let theirs = mounted.host("df", &[&[output.as_str(), "."], human].concat());
        let theirs = theirs.iter().find(|line| line.contains('%') && !line.contains("Use")).unwrap();
        assert_eq!(cells, theirs.split_whitespace().collect::<Vec<_>>(), "{options:?}");
    }
    let json: serde_json::Value = serde_json::from_str(&ok(dir, &["df", "--json", "v.img"])).unwrap();
    assert_eq!(json["block_bytes"], 4096);
    let info: serde_json::Value = serde_json::from_str(&ok(dir, &["info", "--json", "v.img"])).unwrap();
    assert_eq!(json["available_bytes"], info["free_bytes"]);
}

#[test]
fn damage_is_reported_and_the_rest_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir_all(dir.join("tree/d")).unwrap();
    fs::write(dir.join("tree/d/file"), "x").unwrap();
    fs::write(dir.join("tree/zz"), "z").unwrap();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M", "--from", "tree"]);
    destroy(dir, "/d");
    for (words, expected) in
        [(&["find", "v.img"][..], "/\n/zz\n"), (&["du", "-ab", "v.img"], "1\t/zz\n1\t/\n")]
    {
        let output = flashkit(dir, words);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains("/d: ") && errors.contains("1 thing could not be read"), "{errors}");
    }
}

/// Overwrites the inode of a file.
fn destroy(dir: &Path, path: &str) {
    let image = dir.join("v.img");
    let device = FileDevice::open(&image, OpenOptions::default()).unwrap();
    let volume = Engine::open(Arc::new(device), Options::read_only()).unwrap();
    let ino = volume.resolve(path.as_bytes(), FinalSymlink::NoFollow).unwrap();
    let addr = volume.nat_entry(ino.into()).unwrap().addr;
    let file = fs::File::options().write(true).open(image).unwrap();
    file.write_all_at(&[0xA5; 4096], u64::from(addr.0) * 4096).unwrap();
}
