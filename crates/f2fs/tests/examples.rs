//! The examples, run on one image that fsck.f2fs judges.

mod support;

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Once,
};

static BUILT: Once = Once::new();

/// Builds the examples where cargo did not: it builds them for `cargo test`, and not for `cargo test --test examples`.
fn build(program: &Path) {
    if !program.exists() {
        let mut cargo = Command::new(env::var_os("CARGO").expect("cargo runs the tests"));
        let build = cargo.args(["build", "--quiet", "--offline", "--package", "f2fs", "--examples"]).status();
        assert!(build.expect("cargo starts").success(), "the examples are not built");
    }
}

/// The folder in which cargo puts the examples beside this test.
fn folder() -> PathBuf {
    let test = env::current_exe().expect("a test knows its program");
    test.parent().and_then(Path::parent).expect("tests lie in target/PROFILE/deps").join("examples")
}

fn run(example: &str, arguments: &[&str]) -> Output {
    let program = folder().join(example);
    BUILT.call_once(|| build(&program));
    let run = Command::new(program).args(arguments).output().expect("the example starts");
    let stderr = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{example} {arguments:?}: {stderr}");
    run
}

fn text(example: &str, arguments: &[&str]) -> String {
    String::from_utf8(run(example, arguments).stdout).expect("the example prints text")
}

#[test]
fn the_examples_make_fill_and_show_a_volume() {
    let folder = tempfile::tempdir().unwrap();
    let (image, file) = (folder.path().join("image"), folder.path().join("file"));
    let (image_name, file_name) = (image.to_str().unwrap(), file.to_str().unwrap());
    std::fs::write(&file, "hello\n".repeat(10_000)).unwrap();
    run("make", &[image_name, "64"]);
    run("put", &[image_name, file_name, "/srv/data/greeting"]);
    assert_eq!(text("cat", &[image_name, "/name"]), "example\n");
    assert!(text("cat", &[image_name, "srv/data/greeting"]) == "hello\n".repeat(10_000));
    assert_eq!(text("ls", &[image_name, "/srv/data"]), "0644     0        60000 greeting\n");
    let walked = text("walk", &[image_name, "/"]);
    let paths: Vec<&str> = walked.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(paths, ["etc", "etc/hostname", "name", "srv", "srv/data", "srv/data/greeting"]);
    support::assert_clean(&image);
}
