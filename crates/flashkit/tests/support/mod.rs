//! Calls of the command.

use std::{
    path::Path,
    process::{Command, Output},
};

/// Calls it in a directory.
pub fn flashkit(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flashkit")).current_dir(dir).args(arguments).output().expect("it starts")
}

/// What a call prints that must succeed.
pub fn ok(dir: &Path, arguments: &[&str]) -> String {
    let output = flashkit(dir, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

/// The message of a call that must fail with exit code 1 and print nothing else.
pub fn fails(dir: &Path, arguments: &[&str]) -> String {
    let output = flashkit(dir, arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    String::from_utf8(output.stderr).expect("text")
}
