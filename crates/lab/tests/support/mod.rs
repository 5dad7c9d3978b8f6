//! The guest's programs for tests.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use flashkit_lab::systems::{Machine, Programs};

/// Returns the guest's programs, if the kernel has been built.
pub fn programs() -> Result<Option<Programs>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).context("the workspace")?;
    if !root.join("var/uml/linux").exists() {
        eprintln!("skipped: no lab kernel; cargo xtask uml-kernel builds it");
        return Ok(None);
    }
    // Rebuilds both if their sources have changed: first the agent.
    let built = cargo(root, &["xtask", "uml-kernel"])?;
    let mut lines = built.lines().map(PathBuf::from);
    let (Some(kernel), Some(agent)) = (lines.next(), lines.next()) else { bail!("it printed {built}") };
    let messages = cargo(root, &["build", "--quiet", "-p", "flashkit", "--message-format", "json"])?;
    let mut flashkit = messages.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    });
    Ok(Some(Programs { machine: Machine::Virtual, kernel, agent, flashkit: flashkit.next_back() }))
}

/// Runs cargo, and returns its output.
pub fn cargo(root: &Path, arguments: &[&str]) -> Result<String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(program).current_dir(root).args(arguments).output()?;
    if !output.status.success() {
        bail!("cargo {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}
