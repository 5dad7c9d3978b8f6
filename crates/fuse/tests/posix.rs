//! Runs the example `posix` on a mounted volume and on ext4. The results are equal except for the cases that
//! are listed here with their reasons.

mod support;

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Stdio},
};

use support::Bench;

/// One of this many steps of the long tables is executed; `POSIX_SHARE=1` executes all.
const SHARE: &str = "6";

/// Steps that may differ: prefix of the line, and reason.
const EXPLAINED: [(&str, &str); 14] = [
    ("copy within", "ext4 reads once more after it wrote, which makes the last access too old"),
    ("rename dir to full RenameFlags(WHITEOUT)", "ext4 touches the directory although it fails"),
    ("rename full to full RenameFlags(WHITEOUT)", "ext4 touches the directory although it fails"),
    ("chown file 7777 to None None", "the kernel sends it as before a write: write permission is enough"),
    ("chown fifo 7777 to None None", "the kernel sends it as before a write: write permission is enough"),
    ("remove", "a list that is not there is removed in the kernel, which counts that as a change"),
    ("plain on dir as system.posix_acl_access", "a list without a difference counts as a change"),
    ("empty on ", "as an empty list"),
    ("write a fifo", "the kernel does not report data through a fifo to FUSE"),
    ("allocate past the limit", "ext4 touches the file although it fails"),
    ("punch an open file of IFlags", "the kernel touches the file before it asks"),
    ("allocate in an open file of IFlags", "the kernel touches the file before it asks"),
    ("set nodump", "the kernel keeps the times of regular files, and does not know that flags change one"),
    ("value of 65537", "the largest value differs"),
];

/// Further steps that may differ with `direct_write`.
const EXPLAINED_DIRECT: [(&str, &str); 5] = [
    ("open trunc rdonly", "the truncation is a request of its own, after an opening as for reading"),
    ("store", "mapped data counts as changed when it is written back"),
    ("read after store", "as store"),
    ("store again", "as store"),
    ("unmap", "as store"),
];

/// Steps whose checks the kernel does before it asks us, without knowing the flags.
const WITHOUT_FLAGS: [&str; 4] = ["rmdir ", "unlink ", "rename to ", "access "];

/// Removes access times that may differ from a line. The kernel does not report reads from its cache, so an
/// open for reading counts as the access.
fn comparable(line: &str) -> String {
    let exact = ["read of an old file", "read without atime", "asking for flags", "list", "readlink"];
    match exact.iter().any(|start| line.starts_with(start)) {
        true => line.into(),
        false => line.split(';').filter(|part| !part.ends_with(" +atime")).collect::<Vec<_>>().join(";"),
    }
}

#[test]
fn calls_have_the_same_results_as_on_ext4() {
    needs_fuse!();
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: acting as another user needs root");
    }
    // Large enough that space is never short. Short space makes the kernel drop its cache, and then a write
    // first reads.
    const BYTES: u64 = 4 << 30;
    let [mut cached, mut direct] =
        [(); 2].map(|()| Bench::new(BYTES >> 20, &["-O", "extra_attr,inode_crtime"]));
    let (image, beside) = (cached.beside("ext4.img"), cached.beside("ext4"));
    File::create(&image).and_then(|file| file.set_len(BYTES)).unwrap();
    fs::create_dir(&beside).unwrap();
    let made = Command::new("mkfs.ext4")
        .args(["-q", "-b", "4096"])
        .arg(&image)
        .status()
        .is_ok_and(|status| status.success());
    let mount = || Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&beside).status();
    if !made || !mount().is_ok_and(|status| status.success()) {
        return eprintln!("skipped: no ext4 to compare with");
    }
    cached.mount("allow_other");
    direct.mount(&format!("allow_other,{}", support::direct_write()));
    let dirs = [cached.path(""), direct.path(""), beside.clone()];
    let runs = dirs.map(|dir| std::thread::spawn(move || run(&dir)));
    let [in_cache, past_cache, theirs] = runs.map(|run| run.join().unwrap());
    let unmounted = Command::new("umount").arg(&beside).status().unwrap();
    assert!(unmounted.success());
    cached.unmount_clean();
    direct.unmount_clean();
    assert!(theirs.lines().count() > 1000, "there is something to compare");
    compare("in the cache", &in_cache, &theirs, &[]);
    compare("direct_write", &past_cache, &theirs, &EXPLAINED_DIRECT);
}

/// Compares our results of the calls with those of ext4.
fn compare(name: &str, ours: &str, theirs: &str, also_explained: &[(&str, &str)]) {
    let explained = |line: &str| {
        let of_flags =
            line.contains("of IFlags") && WITHOUT_FLAGS.iter().any(|start| line.starts_with(start));
        of_flags || EXPLAINED.iter().chain(also_explained).any(|(start, _)| line.starts_with(start))
    };
    let differences: Vec<String> = ours
        .lines()
        .zip(theirs.lines())
        .filter(|(ours, theirs)| comparable(ours) != comparable(theirs) && !explained(ours))
        .map(|(ours, theirs)| format!("flashkit: {ours}\n    ext4: {theirs}"))
        .collect();
    assert!(differences.is_empty(), "{name}:\n{}", differences.join("\n"));
    assert_eq!(ours.lines().count(), theirs.lines().count(), "{name}");
}

/// Runs the example in a directory and returns its output.
fn run(dir: &Path) -> String {
    let test = std::env::current_exe().unwrap();
    let example = test.parent().and_then(Path::parent).unwrap().join("examples/posix");
    let share = std::env::var("POSIX_SHARE").unwrap_or_else(|_| SHARE.into());
    // A write past the limit raises SIGXFSZ unless that is ignored.
    let run = Command::new("sh")
        .args(["-c", "trap '' XFSZ; exec \"$0\" \"$1\" \"$2\""])
        .arg(example)
        .arg(dir)
        .arg(share)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert!(run.status.success(), "{}: {}", dir.display(), String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap()
}
