//! Paths of the workspace, and calls of other programs.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::interrupt;

/// Returns the root of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

/// Returns a directory below `var` for kernels, tools and other reproducible files, and makes it if it is
/// missing.
pub fn var(name: &str) -> Result<PathBuf> {
    let dir = root().join("var").join(name);
    std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    Ok(dir)
}

/// Runs a program to its end and returns its standard output.
///
/// # Errors
/// It cannot be started, or does not succeed; then the error includes all its output.
pub fn run(command: &mut Command) -> Result<String> {
    interrupt::check()?;
    let shown = format!("{command:?}");
    let output = command.output().with_context(|| format!("cannot start {shown}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{shown}: {}\n{text}{errors}", output.status);
    }
    Ok(text)
}
