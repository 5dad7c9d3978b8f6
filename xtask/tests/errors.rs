//! Errors of the command, as a terminal shows them.

use std::process::Command;

#[test]
fn an_error_is_one_line_with_its_causes_and_without_a_backtrace() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let run = command.args(["manifest", "/nowhere"]).env("RUST_BACKTRACE", "1").output().expect("it starts");
    let said = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{said}");
    assert!(said.starts_with("xtask: ") && said.contains("No such file"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}
