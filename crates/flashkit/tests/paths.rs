//! Paths inside images mean the same as on a mount: final slashes, links on the way, dots, and cycles. The
//! host's tools on the same tree are the reference.

mod support;

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output},
};

use support::{flashkit, ok};

/// Makes a tree with links of all kinds. Those with absolute targets are added only in an image's tree.
fn plant(top: &Path) {
    fs::create_dir_all(top.join("dir/sub")).unwrap();
    fs::create_dir(top.join("empty")).unwrap();
    fs::write(top.join("dir/file"), "in dir\n").unwrap();
    fs::write(top.join("dir/sub/deep"), "deep\n").unwrap();
    fs::write(top.join("file"), "top\n").unwrap();
    for (target, name) in [
        ("dir", "to_dir"),
        ("dir/", "to_dir_slash"),
        ("file", "to_file"),
        ("file/", "to_file_slash"),
        ("to_dir", "to_link"),
        ("nowhere", "dangling"),
        ("loop_b", "loop_a"),
        ("loop_a", "loop_b"),
        ("self", "self"),
        ("../file", "dir/up"),
        ("../to_dir/sub", "dir/sub/round"),
        ("../../../../dir", "dir/out"),
    ] {
        symlink(target, top.join(name)).unwrap();
    }
}

const PATHS: [&str; 41] = [
    "dir",
    "dir/",
    "dir//",
    "dir/.",
    "dir/..",
    "dir/../file",
    "dir/sub/../file",
    "file",
    "file/",
    "file/.",
    "file/..",
    "file/x",
    "to_dir",
    "to_dir/",
    "to_dir/.",
    "to_dir/..",
    "to_dir/file",
    "to_dir/sub/..",
    "to_dir_slash",
    "to_dir_slash/",
    "to_file",
    "to_file/",
    "to_file_slash",
    "to_link",
    "to_link/",
    "to_link/sub/",
    "dangling",
    "dangling/",
    "dangling/x",
    "loop_a",
    "loop_a/",
    "loop_b/x",
    "self",
    "dir/up",
    "dir/up/",
    "dir/sub/round",
    "dir/sub/round/",
    "dir/sub/round/deep",
    "none",
    "none/",
    "to_link/sub/round/round/round/deep",
];

/// Returns the host's reason for a refusal, in the words of the command.
fn refusal(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "not found",
        io::ErrorKind::NotADirectory => "not a directory",
        io::ErrorKind::IsADirectory => "not a regular file",
        _ if error.to_string().contains("levels of symbolic links") => "too many levels of symbolic links",
        _ => panic!("{error}"),
    }
    .into()
}

/// Returns the output of a call of the command, or the reason for its refusal.
fn said(dir: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = flashkit(dir, arguments);
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().rsplit(": ").next().unwrap().to_owned()),
    }
}

fn host(dir: &Path, program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(dir).env("LC_ALL", "C").output().expect("coreutils are installed")
}

#[test]
fn reading_resolves_paths_as_on_a_mount() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let top = dir.join("tree");
    plant(&top);
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M", "--from", "tree"]);
    let mut differences = Vec::new();
    for path in PATHS {
        let inside = format!("v.img:/{path}");
        let mut compare = |what: &str, got: Result<String, String>, wanted: Result<String, String>| {
            if got != wanted {
                differences.push(format!("{what} {path}: {got:?}, on the host {wanted:?}"));
            }
        };
        let content = || fs::read_to_string(top.join(path)).map_err(refusal);
        compare("cat", said(dir, &["cat", &inside]), content());
        let kind = |facts: fs::Metadata| match facts.file_type() {
            kind if kind.is_dir() => "directory".to_owned(),
            kind if kind.is_symlink() => "symlink".into(),
            _ => "file".into(),
        };
        let stat = said(dir, &["stat", "--json", &inside]).map(|text| {
            let facts: serde_json::Value = serde_json::from_str(&text).unwrap();
            facts["kind"].as_str().unwrap().to_owned()
        });
        let facts = fs::symlink_metadata(top.join(path));
        let is_directory = facts.as_ref().is_ok_and(fs::Metadata::is_dir);
        compare("stat", stat, facts.map(kind).map_err(refusal));
        // For a file, ls prints the path from its command line.
        let listed = host(&top, "ls", &["-1", "--", path]);
        let goes_round = content().is_err_and(|why| why.starts_with("too many"));
        // For a link that leads to itself, some versions of ls list the link.
        let wanted = match listed.status.success() && !goes_round {
            true => Ok(String::from_utf8(listed.stdout).unwrap()),
            false => Err(refusal(fs::metadata(top.join(path)).unwrap_err())),
        };
        let alone = wanted.as_ref().is_ok_and(|list| list.trim_end() == path);
        let wanted = if alone { wanted.map(|list| format!("/{list}")) } else { wanted };
        compare("ls", said(dir, &["ls", &inside]), wanted);

        // Copies out of the image, by content and as a tree.
        let _ = fs::remove_file(dir.join("out"));
        let copied = said(dir, &["cp", &inside, "out"]).map(|_| fs::read_to_string(dir.join("out")).unwrap());
        let wanted = content().map_err(|why| match &*why {
            "not a regular file" => "is a directory; flashkit export copies it".into(),
            _ => why,
        });
        compare("cp", copied, wanted);
        if is_directory {
            let exported = said(dir, &["export", "-q", &inside, "exported"]);
            let exported = exported.map(|_| format!("{:?}", names(&dir.join("exported"))));
            compare("export", exported, Ok(format!("{:?}", names(&top.join(path)))));
            fs::remove_dir_all(dir.join("exported")).unwrap();
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Calls that change an image. The host's tool gets the arguments unchanged, ours with the image before paths that
/// start with a slash.
const CHANGES: &[&str] = &[
    "rm /to_dir/",
    "rm /to_dir",
    "rm /file/",
    "rm /to_file/",
    "rm -r /dir/",
    "rm -r /to_dir/",
    "rm -r /to_dir/sub/",
    "rm -r /to_dir/file",
    "rm /loop_a",
    "rm /loop_a/",
    "rm /dangling",
    "rm /to_dir/sub/../file",
    "mkdir /made/",
    "mkdir /to_dir/made/",
    "mkdir /dangling/",
    "mkdir /to_dir/",
    "mkdir /file/made",
    "mkdir -p /to_dir/a/b/",
    "mkdir -p /to_dir/",
    "mkdir -p /file",
    "mkdir -p /dangling/x",
    "mkdir -p /file/x",
    "mv /file /renamed/",
    "mv /file /renamed",
    "mv /file/ /renamed",
    "mv /dir/ /renamed/",
    "mv /dir /renamed/",
    "mv /file /to_dir",
    "mv /file /to_dir/",
    "mv /to_dir /renamed",
    "mv /to_dir/ /renamed",
    "mv /file /to_file",
    "mv /file /dangling",
    "mv /dir/file /to_link/sub/",
    "mv /empty/ /to_dir/",
    "mv /file /none/x",
    "cp new /copied/",
    "cp new /copied",
    "cp new /to_dir",
    "cp new /to_dir/",
    "cp new /to_dir/sub/..",
    "cp new /to_file",
    "cp new /to_file/",
    "cp new /file/",
    "cp new /loop_a",
    "cp new /none/x",
    "cp new /loop_a/x",
    "ln -s text /linked/",
    "ln -s text /to_dir/linked",
    "ln -s a/text/ /to_dir",
    "ln -s text /file",
    "ln /file /to_dir/",
    "ln /file/ /linked",
    "ln /file /linked",
    "ln /file /linked/",
];

#[test]
fn changes_have_the_same_results_as_on_a_mount() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    plant(&dir.join("tree"));
    fs::write(dir.join("new"), "new\n").unwrap();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M", "--from", "tree"]);
    let differences: Vec<String> = CHANGES.iter().flat_map(|call| compare_change(dir, call)).collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Executes a call on a copy of the tree and on a copy of the image. Returns the differences of the results.
fn compare_change(dir: &Path, call: &str) -> Vec<String> {
    for name in ["theirs", "ours.tree"] {
        let _ = fs::remove_dir_all(dir.join(name));
    }
    let top = dir.join("theirs");
    plant(&top);
    fs::copy(dir.join("v.img"), dir.join("ours.img")).unwrap();
    let place = |prefix: &str| -> Vec<String> {
        call.split(' ')
            .map(|word| if word.starts_with('/') { format!("{prefix}{word}") } else { word.to_string() })
            .collect()
    };
    let (theirs, ours) = (place("theirs"), place("ours.img:"));
    let theirs: Vec<&str> = theirs.iter().map(String::as_str).collect();
    let ours: Vec<&str> = ours.iter().map(String::as_str).collect();
    let wanted = host(dir, theirs[0], &theirs[1..]);
    let got = flashkit(dir, &ours);
    let errors = [&wanted, &got].map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
    let mut differences = Vec::new();
    if got.status.success() != wanted.status.success() {
        differences.push(format!("{call}: {errors:?}"));
    }
    ok(dir, &["export", "-q", "ours.img", "ours.tree"]);
    let (wanted, got) = (names(&top), names(&dir.join("ours.tree")));
    // A call that fails here changes nothing. GNU's rm empties the link's target before it fails.
    if got != wanted && call != "rm -r /to_dir/" {
        differences.push(format!("{call}: {:?} {errors:?}", got.symmetric_difference(&wanted)));
    }
    differences
}

/// Links with absolute targets stay inside the volume, and none leads out of it.
#[test]
fn links_stay_inside_the_volume() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    plant(&dir.join("tree"));
    symlink("/dir/", dir.join("tree/dir/sub/absolute")).unwrap();
    symlink("/../../dir/file", dir.join("tree/above")).unwrap();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M", "--from", "tree"]);
    for path in
        ["dir/sub/absolute/file", "above", "dir/out/file", "../../dir/file", "to_dir/../../../to_dir/file"]
    {
        assert_eq!(ok(dir, &["cat", &format!("v.img:/{path}")]), "in dir\n", "{path}");
    }
    assert_eq!(ok(dir, &["ls", "v.img:/dir/sub/absolute/sub"]), "absolute\ndeep\nround\n");
}

/// Returns every path below a directory, with a link's target or a file's content.
fn names(top: &Path) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut left = vec![top.to_path_buf()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            let what = if kind.is_symlink() {
                format!("-> {}", fs::read_link(&path).unwrap().display())
            } else if kind.is_dir() {
                left.push(path.clone());
                "directory".into()
            } else {
                fs::read_to_string(&path).unwrap()
            };
            all.insert(format!("{} {what}", path.strip_prefix(top).unwrap().display()));
        }
    }
    all
}
