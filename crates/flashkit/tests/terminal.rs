//! Output to terminals, pipes and full devices: names are safe for a terminal, and nothing panics.

mod support;

use std::{
    fs::File,
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

use rustix::{
    fd::OwnedFd,
    io::ioctl_fionread,
    process::{Pid, Signal, kill_process},
};
use support::{fails, flashkit, ok};

/// A name that sets a title and a colour, forges a line, and reverses the direction of text.
const HOSTILE: &str = "a\u{1b}]0;t\u{7}\u{9b}31m\nflashkit: fine\u{202e}\u{2066}\u{200f}\u{7f}b";

fn assert_safe(text: &[u8], call: &[&str]) {
    let text = String::from_utf8_lossy(text);
    let unsafe_ones = |c: char| {
        c.is_control() && c != '\n' || "\u{200e}\u{200f}\u{202a}\u{202e}\u{2066}\u{2069}".contains(c)
    };
    assert!(!text.contains(unsafe_ones), "{call:?}: {text:?}");
    assert!(!text.contains("\nflashkit: fine"), "{call:?}: {text:?}");
}

/// Names of an image and of a file in it, a label, a device's path, and names on the command line are safe
/// for a terminal.
#[test]
fn names_are_safe_to_show() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let hostile = HOSTILE.replace('\n', "");
    let image = format!("{HOSTILE}.img");
    let inside = format!("{image}:/{HOSTILE}");
    let made = ["mkfs", &image, "--size", "64M", "-l", &hostile];
    assert_safe(ok(dir, &made).as_bytes(), &made);
    ok(dir, &["mkdir", &inside]);
    let missing = format!("{inside}/{HOSTILE}");
    std::fs::create_dir(dir.join("source")).unwrap();
    let nothing = format!("{HOSTILE}.nothing");
    let mut calls: Vec<Vec<&str>> = vec![
        vec!["info", &image],
        vec!["ls", "-l", &image],
        vec!["tree", &image],
        vec!["stat", &inside],
        vec!["dump", "superblock", &image],
        vec!["dump", "dir", &image],
        vec!["dump", "inode", &inside],
        vec!["dump", "node", &image, "--nid", "99999999"],
        vec!["cat", &inside],
        vec!["stat", &missing],
        vec!["rm", &inside],
        vec!["rm", &missing],
        vec!["cp", &nothing, &image],
        vec!["cp", &inside, "."],
        vec!["info", &nothing],
        vec!["mkfs", &image],
        vec!["probe", &nothing],
        vec!["report", &nothing],
        vec!["bench", &nothing],
        vec!["card", "stats", &nothing],
        vec!["card", "show", &nothing],
        vec!["export", &image, &missing],
        vec!["import", &nothing, &image],
        vec!["import", "source", &image],
    ];
    for call in 0..7 {
        calls.push([&calls[call], &["--json"][..]].concat());
    }
    calls.push(vec!["fsck", &image, "--json"]);
    let other = format!("{hostile}.2");
    for name in ["one", &other] {
        File::create(dir.join(name)).unwrap().set_len(64 << 20).unwrap();
    }
    ok(dir, &["mkfs", "-q", "-f", "one", "-c", &other]);
    calls.push(vec!["info", "one"]);
    calls.push(vec!["info", "one", "--device", &other]);
    for call in calls {
        let output = flashkit(dir, &call);
        assert!(!output.stdout.is_empty() || !output.stderr.is_empty(), "{call:?}");
        assert_safe(&output.stdout, &call);
        assert_safe(&output.stderr, &call);
    }
    assert!(ok(dir, &["info", &image]).contains(r"label           a\u{1b}]0;t"));
    assert!(fails(dir, &["info", "one"]).contains(r"\u{202e}"));
}

/// Text that comes from no image, such as the title of a profile, is safe for a terminal, too. (TOML itself escapes the
/// control characters of ASCII.)
#[test]
fn texts_of_profiles_are_safe_to_show() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let profile = ok(dir, &["card", "show", "survey-class4"]);
    let title = profile.lines().find(|line| line.starts_with("title")).unwrap();
    let hostile = "title = \"\u{9b}31mred\u{202e}\u{200f}\"";
    std::fs::write(dir.join("mine.toml"), profile.replace(title, hostile)).unwrap();
    let call = ["card", "show", "mine.toml"];
    let shown = ok(dir, &call);
    assert_safe(shown.as_bytes(), &call);
    assert!(shown.contains(r"\u{9b}31mred\u{202e}\u{200f}"), "{shown}");
}

#[test]
fn errors_of_the_system_have_no_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M"]);
    for call in [
        &["info", "none.img"][..],
        &["cp", "none", "v.img:/"],
        &["cat", "none.img:/x"],
        &["card", "stats", "v.img/x"],
        &["card", "replay", "none", "--profile", "bergmann-stick"],
        &["import", "none", "v.img"],
        &["mkfs", "nodir/v.img", "--size", "64M"],
    ] {
        let error = fails(dir, call);
        assert!(!error.contains("os error") && !error.contains("entity not found"), "{call:?}: {error}");
    }
    assert!(fails(dir, &["info", "none.img"]).contains("none.img: No such file or directory\n"));
}

/// Returns a pipe whose reader is closed.
fn closed_pipe() -> OwnedFd {
    rustix::pipe::pipe().unwrap().1
}

fn full() -> OwnedFd {
    File::options().write(true).open("/dev/full").unwrap().into()
}

fn call(dir: &Path, arguments: &[&str], stdout: impl Into<Stdio>, stderr: impl Into<Stdio>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flashkit"));
    let command = command.current_dir(dir).args(arguments).stdout(stdout).stderr(stderr);
    command.spawn().expect("it starts").wait_with_output().unwrap()
}

#[test]
fn a_reader_that_closes_the_pipe_is_success() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M"]);
    for arguments in [
        &["completions", "bash"][..],
        &["--version"],
        &["--help"],
        &["mkfs", "--help"],
        &["ls", "-l", "v.img"],
        &["dump", "nat", "v.img", "--json"],
        &["card", "list"],
    ] {
        let output = call(dir, arguments, closed_pipe(), Stdio::piped());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!error.contains("panicked"), "{arguments:?}: {error}");
        // A closed output counts as success, also for help.
        assert!(output.status.success() && error.is_empty(), "{arguments:?}: {error}");
    }
}

#[test]
fn a_full_device_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    for arguments in [&["completions", "zsh"][..], &["--version"], &["--help"], &["card", "list"]] {
        let output = call(dir.path(), arguments, full(), Stdio::piped());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
        assert_eq!(error, "flashkit: standard output: No space left on device\n", "{arguments:?}");
    }
}

#[test]
fn a_closed_standard_error_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let study = ["study", "-o", "s", "--fs", "flashkit", "-e", "mount", "--size", "2M", "-j", "1"];
    let output = call(dir, &study, Stdio::piped(), closed_pipe());
    assert!(output.status.success(), "{:?}", output.status);
    assert!(dir.join("s/report.html").exists());
    for stderr in [closed_pipe(), full()] {
        assert_eq!(call(dir, &["info", "none.img"], Stdio::piped(), stderr).status.code(), Some(1));
    }
    assert_eq!(call(dir, &["no-such-verb"], Stdio::piped(), closed_pipe()).status.code(), Some(2));
}

/// After an interrupt, the message states the outcome, and the outcome is true.
#[test]
fn an_interrupted_import_reports_that_nothing_was_changed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M"]);
    ok(dir, &["mkdir", "v.img:/there"]);
    ok(dir, &["export", "-q", "v.img", "archive.tar"]);
    let archive = std::fs::read(dir.join("archive.tar")).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_flashkit"))
        .current_dir(dir)
        .args(["import", "-", "v.img:/there"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // The archive is incomplete, so more data could follow.
    stdin.write_all(&archive[..1024]).unwrap();
    while ioctl_fionread(&stdin).unwrap() > 0 && child.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{error}");
    assert!(error.contains("flashkit: stopped: v.img:/there: nothing was changed"), "{error}");
    assert_eq!(ok(dir, &["ls", "v.img:/there"]), "");
    drop(stdin);
}
